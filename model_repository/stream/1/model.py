"""An example of a model that answers a request several times, or not at all: COUNT answers with one word of TEXT each."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

# Seconds after which a waiting stream checks again whether the client has cancelled the request
CHECK_INTERVAL_S = 0.05
# Limits of one request, because a stream occupies its place until it ends
MAX_ANSWERS, MAX_SECONDS = 1_000_000, 3600
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """An instance of the model. It answers several requests at the same time, each with a stream of answers."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Read the parameters and start the threads of the streams, because `execute` must not wait for the end of a stream."""
        self.name = args["model_name"]
        parameters = json.loads(args["model_config"]).get("parameters") or {}
        settings = {
            name: parameters.get(name, {}).get("string_value", default) for name, default in (("streams", "8"), ("waiting", "64"))
        }
        errors = [
            f"{name} is {value!r}, expected a number of at least 1"
            for name, value in settings.items()
            if not value.isdecimal() or not int(value)
        ]
        if errors:
            raise pb_utils.TritonModelException(f"model {self.name}: " + "; ".join(errors))
        self.streams = ThreadPoolExecutor(int(settings["streams"]), thread_name_prefix=self.name)
        self.capacity = threading.Semaphore(int(settings["streams"]) + int(settings["waiting"]))
        self.unloaded = threading.Event()

    def execute(self, requests: List[Any]) -> None:
        """Start a stream for each request. Read the inputs now, because Triton may have released them when the stream starts."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                words, count, wait = self._parse(request)
            except ValueError as error:
                invalid = pb_utils.TritonError(f"{self.name}: {error}", pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=invalid), flags=FINAL)
                continue
            if not self.capacity.acquire(blocking=False):
                busy = pb_utils.TritonError(
                    f"{self.name}: no more streams can wait, try again later", pb_utils.TritonError.UNAVAILABLE
                )
                sender.send(pb_utils.InferenceResponse(error=busy), flags=FINAL)
                continue
            self.streams.submit(self._answer, sender, words, count, wait).add_done_callback(lambda _ended: self.capacity.release())

    @staticmethod
    def _parse(request: Any) -> Tuple[List[bytes], int, float]:
        """Return (words, number of answers, seconds before each answer) of a request. Raises ValueError with every reason."""
        reasons = []
        words = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0].split()
        count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
        wait_input = pb_utils.get_input_tensor_by_name(request, "WAIT_MS")
        wait = int(wait_input.as_numpy()[0]) if wait_input is not None else 0
        if not words:
            reasons.append("TEXT has no word, expected one at least")
        if count < 0:
            reasons.append(f"COUNT is {count}, expected 0 or more")
        if wait < 0:
            reasons.append(f"WAIT_MS is {wait}, expected 0 or more")
        if count > MAX_ANSWERS or count * wait > MAX_SECONDS * 1000:
            reasons.append(f"COUNT is {count} and WAIT_MS {wait}, expected at most {MAX_ANSWERS} answers and {MAX_SECONDS} s")
        if reasons:
            raise ValueError("; ".join(reasons))
        return words, count, wait / 1000

    def _answer(self, sender: Any, words: List[bytes], count: int, wait: float) -> None:
        """Send the answers of a request. Always send FINAL at the end, because otherwise the stream never ends."""
        try:
            for index in range(count):
                if self._wait(sender, wait):
                    failure = pb_utils.TritonError(
                        f"{self.name}: cancelled after {index} of {count}", pb_utils.TritonError.CANCELLED
                    )
                    sender.send(pb_utils.InferenceResponse(error=failure), flags=FINAL)
                    return
                word = np.array([words[index % len(words)]], dtype=np.object_)
                place = np.array([index], dtype=np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", word), pb_utils.Tensor("INDEX", place)]))
        except Exception as error:
            failure = pb_utils.TritonError(f"{self.name}: {type(error).__name__}", pb_utils.TritonError.INTERNAL)
            sender.send(pb_utils.InferenceResponse(error=failure), flags=FINAL)
            pb_utils.Logger.log_error(f"model {self.name}: {error!r}")
            return
        sender.send(flags=FINAL)

    def _wait(self, sender: Any, wait: float) -> bool:
        """Wait before the next answer. Return True if the client has cancelled the request."""
        while wait > 0 and not sender.is_cancelled():
            part = min(wait, CHECK_INTERVAL_S)
            self.unloaded.wait(part)
            wait -= part
        return sender.is_cancelled()

    def finalize(self) -> None:
        """Wait until all streams have ended."""
        self.streams.shutdown(wait=True)
        pb_utils.Logger.log_info(f"model {self.name}: unloaded")
