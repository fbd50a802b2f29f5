"""An example of a model for texts without a batch dimension. Each RESULT is TEMPLATE with a TEXT, cut to LIMIT characters."""

import json
from typing import Any, Dict, List, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

PLACEHOLDER = "{text}"


class TritonPythonModel:
    """An instance of the model. Triton itself checks the number, dtype and shape of the inputs."""

    def initialize(self, args: Dict[str, str]) -> None:
        """Read the name, the output's dtype and the limit from the config."""
        self.name = args["model_name"]
        config = json.loads(args["model_config"])
        kind = next(output["data_type"] for output in config["output"] if output["name"] == "LENGTH")
        maximum = (config.get("parameters") or {}).get("max_characters", {}).get("string_value", "1000000")
        if not maximum.isdecimal() or not int(maximum):
            raise pb_utils.TritonModelException(
                f"model {self.name}: max_characters is {maximum!r}, expected a number of at least 1"
            )
        self.max_characters = int(maximum)
        self.length = pb_utils.triton_string_to_numpy(kind)

    def execute(self, requests: List[Any]) -> List[Any]:
        """Return a response for each request in its order. The response to an invalid request has all reasons."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        reasons: List[str] = []
        texts = self._texts(request, "TEXT", reasons)
        templates = self._texts(request, "TEMPLATE", reasons)
        limit = int(pb_utils.get_input_tensor_by_name(request, "LIMIT").as_numpy()[0])
        if templates and PLACEHOLDER not in templates[0]:
            reasons.append(f"TEMPLATE lacks {PLACEHOLDER}, which each text replaces")
        if limit < 0:
            reasons.append(f"LIMIT is {limit}, expected 0 for none, or more")
        # The size is checked before the texts are inserted, because a template may contain {text} many times.
        placeholders = templates[0].count(PLACEHOLDER) if templates else 0
        size = sum(len(templates[0]) + placeholders * (len(text) - len(PLACEHOLDER)) for text in texts) if templates else 0
        if size > self.max_characters:
            reasons.append(f"RESULT would have {size} characters before it is cut, expected at most {self.max_characters}")
        if reasons:
            error = pb_utils.TritonError(f"{self.name}: " + "; ".join(reasons), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        results = [templates[0].replace(PLACEHOLDER, text)[: limit or None] for text in texts]
        encoded = np.empty(len(results), dtype=np.object_)
        encoded[:] = [result.encode() for result in results]
        lengths = np.array([len(result) for result in results], dtype=self.length)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("RESULT", encoded), pb_utils.Tensor("LENGTH", lengths)])

    @staticmethod
    def _texts(request: Any, name: str, reasons: List[str]) -> Tuple[str, ...]:
        """Return the texts of an input. Add a reason for each text that is not UTF-8."""
        texts = []
        for number, encoded in enumerate(pb_utils.get_input_tensor_by_name(request, name).as_numpy()):
            try:
                texts.append(encoded.decode())
            except UnicodeDecodeError as error:
                reasons.append(f"{name}[{number}] is not UTF-8: byte {error.start} is 0x{encoded[error.start]:02x}")
        return tuple(texts)
