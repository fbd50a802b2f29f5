"""Clients of a server, one for each protocol. tritonclient is imported where one is made."""

from __future__ import annotations

import importlib
import queue
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference.bounds import CHANNEL, Arrived, bounded
from ansible_collections.npufleet.triton.plugins.module_utils.inference.encoding import (
    decoded,
    encoded,
    outputs_of,
    pem,
    tls_context,
)
from ansible_collections.npufleet.triton.plugins.module_utils.inference.errors import (
    CLIENTS_WORDS,
    _line,
    _natural,
    of_connection,
    reason,
)
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import (
    Answer,
    Output,
    Question,
    fits,
    joined,
)

# Seconds in which a server has to say that it lives, however long its models may take.
SIGN_OF_LIFE = 5.0
PORTS = "Triton's ports are 8000 for HTTP and 8001 for gRPC by default"
# Metadata by which Triton's gRPC takes the key of a restricted API
RESTRICTED = "triton-grpc-protocol-"


class Service:
    """One protocol of a server. `tls` names files: {"ca", "cert", "key"}, or says `insecure`; None is without TLS.

    `headers` go with every request; over gRPC each once more as the key of a restricted API.
    """

    protocol = ""
    library = "tritonclient.grpc"

    def __init__(
        self, url: str, timeout: float, tls: Optional[Mapping[str, Any]] = None, headers: Optional[Mapping[str, str]] = None
    ) -> None:
        self.timeout = timeout
        self.url = url
        self.tls = tls
        self.headers = self.headed(headers or {})
        # What a call of tritonclient takes besides
        self.extra: Dict[str, Any] = {"headers": self.headers} if self.headers else {}
        # Both the client and the parts of it that its `http` and `grpc` extras bring have to be there.
        try:
            self.client_library = importlib.import_module(self.library)
        except (ImportError, RuntimeError) as error:
            raise ImportError(reason(error)) from None
        self.connect()

    @staticmethod
    def headed(headers: Mapping[str, str]) -> Dict[str, str]:
        """The headers as this protocol sends them."""
        lower = {name.lower(): value for name, value in headers.items()}
        return {**lower, **{RESTRICTED + name: value for name, value in lower.items()}}

    def connect(self) -> None:
        """Make what the other methods use; nothing is sent yet."""
        raise NotImplementedError

    def live(self, timeout: float) -> Any:
        """Ask the server whether it lives."""
        raise NotImplementedError

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        """The responses to a question as they come. Raises what the client raises."""
        raise NotImplementedError

    def index(self) -> List[Dict[str, Any]]:
        """[{"name", "version", "state", "reason"}] of the server's models."""
        raise NotImplementedError

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        """{"inputs": [{"name", "datatype", "shape"}], "outputs": the same}; shapes with the batch dimension, -1 is any."""
        raise NotImplementedError

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        """The model's config as the server has it."""
        raise NotImplementedError

    def silent(self) -> str:
        """Why no request to this service is worth its wait, empty where something answers."""
        try:
            self.live(min(self.timeout, SIGN_OF_LIFE))
        except Exception as error:
            # Health may be a restricted API, which says so with the status of a server that is not there.
            if of_connection(error) and "restricted" not in str(error):
                words = self.told(error)
                # So Triton's HTTP ends what it cannot read.
                words += f", as of a port that does not speak gRPC; {PORTS}" if words.endswith("Socket closed") else ""
                return f"no Triton answers {self.protocol} at {self.url}: {words}"
        return ""

    def infer(self, question: Question, timeout: Optional[float] = None) -> Answer:
        """Everything that comes back for a question, with the error that ended it."""
        began = time.monotonic()
        responses: List[Dict[str, Output]] = []
        failure: Optional[Exception] = None
        try:
            responses.extend(self.answers(question, timeout or self.timeout))
        except Exception as error:
            failure = error
        return Answer(joined(responses), len(responses), (time.monotonic() - began) * 1000, failure)

    def told(self, error: Exception) -> str:
        """An error as one line, with what helps against it where the words alone do not say."""
        words = reason(error)
        kind = "HTTP" if self.protocol == "http" else "gRPC"
        if type(error).__name__ == "HTTPParseError" or "Failed parsing HTTP/2" in words or "http1" in words:
            return f"what listens there does not speak {kind}; {PORTS}"
        if words.startswith(CLIENTS_WORDS):
            return f"what listens there answers without Triton's JSON, as a proxy or Triton's page of metrics does; {PORTS}"
        if "decoupled" in words and self.protocol != "stream":
            return f"{words}; the model answers in streams, which are gRPC's alone: ask with the protocol stream"
        if "http-max-input-size" in words:
            return f"{words}; or ask by gRPC, which takes up to 2 GiB"
        return words

    def index_says(self, model: str, version: str = "") -> str:
        """What the server's index says of a model, or of one version, that it does not serve; empty where it does not tell."""
        try:
            entries = self.index()
        except Exception:
            return ""
        ready_versions = [
            str(entry.get("version") or "") for entry in entries if entry["name"] == model and entry.get("state") == "READY"
        ]
        if version and ready_versions and version not in ready_versions:
            return (
                f"{model} has no version {version} that is ready, wanted one of {', '.join(sorted(ready_versions, key=_natural))}"
            )
        said = ["{} {}".format(entry.get("state", ""), entry.get("reason", "")) for entry in entries if entry["name"] == model]
        ready = sorted({entry["name"] for entry in entries if entry.get("state") == "READY"})
        return _line("; ".join(said)) or "it serves {}".format(", ".join(ready) or "no model")

    def _asked(self, question: Question) -> Tuple[List[Any], Optional[List[Any]]]:
        """A question as the client library's (inputs, outputs)."""
        inputs = []
        fits(question)
        for name, (dtype, array) in question.inputs.items():
            inputs.append(self.client_library.InferInput(name, list(array.shape), dtype))
            inputs[-1].set_data_from_numpy(array)
        names = list(dict.fromkeys([*question.outputs, *question.classes]))
        library = self.client_library
        return inputs, [library.InferRequestedOutput(name, class_count=question.classes.get(name, 0)) for name in names] or None


class Http(Service):
    """HTTP, by tritonclient. A client has its timeout for good, so there is one for each."""

    protocol = "http"
    library = "tritonclient.http"

    @staticmethod
    def headed(headers: Mapping[str, str]) -> Dict[str, str]:
        return dict(headers)

    def connect(self) -> None:
        self.clients: Dict[float, Any] = {}
        gevent = sys.modules.get("gevent")
        hub = gevent.get_hub() if gevent else None
        if hub is not None and KeyboardInterrupt not in hub.NOT_ERROR:
            # It would print the interrupt before it passes it on to the one who tells it.
            hub.NOT_ERROR = (*hub.NOT_ERROR, KeyboardInterrupt)
        self.client(self.timeout)

    def client(self, timeout: float) -> Any:
        """The client whose requests take so long at most."""
        if timeout not in self.clients:
            options: Dict[str, Any] = {"connection_timeout": timeout, "network_timeout": timeout}
            if self.tls is not None:
                context = tls_context(self.tls)
                insecure = bool(self.tls.get("insecure"))
                options.update(ssl=True, ssl_context_factory=lambda *_any, **_more: context, insecure=insecure)
            self.clients[timeout] = self.client_library.InferenceServerClient(self.url, **options)
        return self.clients[timeout]

    def live(self, timeout: float) -> Any:
        return self._ask(timeout, lambda client: client.is_server_live(**self.extra))

    def _ask(self, timeout: float, call: Callable[[Any], Any]) -> Any:
        """Return what a call of the client returns, within so many seconds: its own timeout begins anew with each piece."""
        client = self.client(timeout)
        try:
            with bounded(timeout):
                return call(client)
        except TimeoutError:
            # Its connection is in the middle of a request.
            self.clients.pop(timeout, None)
            raise

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        def infer(client: Any) -> Dict[str, Output]:
            inputs, outputs = self._asked(question)
            return outputs_of(client.infer(question.model, inputs, question.version, outputs, **self.extra))

        yield self._ask(timeout, infer)

    def index(self) -> List[Dict[str, Any]]:
        return list(self._ask(self.timeout, lambda client: client.get_model_repository_index(**self.extra)))

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        return dict(self._ask(self.timeout, lambda client: client.get_model_metadata(model, version, **self.extra)))

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        return dict(self._ask(self.timeout, lambda client: client.get_model_config(model, version, **self.extra)))


class Grpc(Service):
    """gRPC, by tritonclient."""

    protocol = "grpc"

    def connect(self) -> None:
        self.client = self.new_client()

    def new_client(self) -> Any:
        """A client of this server."""
        options: Dict[str, Any] = {"channel_args": CHANNEL}
        if self.tls is not None:
            options = {
                **options,
                "ssl": True,
                "root_certificates": self.tls.get("ca"),
                "private_key": self.tls.get("key"),
                "certificate_chain": self.tls.get("cert"),
            }
        return self.client_library.InferenceServerClient(self.url, **options)

    def live(self, timeout: float) -> Any:
        return self.client.is_server_live(client_timeout=timeout, **self.extra)

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        inputs, outputs = self._asked(question)
        answer = self.client.infer(question.model, inputs, question.version, outputs, client_timeout=timeout, **self.extra)
        yield outputs_of(answer)

    def index(self) -> List[Dict[str, Any]]:
        return list(
            self.client.get_model_repository_index(as_json=True, client_timeout=self.timeout, **self.extra).get("models", [])
        )

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.client.get_model_metadata(model, version, as_json=True, client_timeout=self.timeout, **self.extra)
        # Whole numbers of 64 bits are texts in protobuf's JSON.
        for tensor in [*found.get("inputs", []), *found.get("outputs", [])]:
            tensor["shape"] = [int(size) for size in tensor.get("shape", [])]
        return dict(found)

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.client.get_model_config(model, version, as_json=True, client_timeout=self.timeout, **self.extra)
        return dict(found["config"])


class Stream(Grpc):
    """gRPC's stream, over which a request may have any number of responses. A client has one stream, so each has its client."""

    protocol = "stream"

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        """Closing it before its end cancels the request."""
        inputs, outputs = self._asked(question)
        arrived = Arrived()
        until = time.monotonic() + timeout
        ended = False
        client = self.new_client()
        try:
            # With the header newer servers tell an error's status; older ones pass it over.
            headers = {**self.headers, "triton_grpc_error": "true"}
            client.start_stream(arrived.put, stream_timeout=timeout, headers=headers)
            client.async_stream_infer(
                question.model, inputs, question.version, outputs, enable_empty_final_response=True
            )  # fmt: skip
            while True:
                if time.monotonic() > until + 1:
                    raise TimeoutError(f"no end within {timeout:g} s")
                try:
                    # The stream ends by itself at its timeout, and says so: a moment later is soon enough.
                    result, error = arrived.get(timeout=max(until - time.monotonic(), 0) + 1)
                except queue.Empty:
                    raise TimeoutError(f"no response within {timeout:g} s") from None
                if error is not None:
                    raise error
                response = result.get_response()
                ended = response.parameters["triton_final_response"].bool_param
                if response.outputs:
                    yield outputs_of(result)
                if ended:
                    return
        finally:
            client.stop_stream(cancel_requests=not ended)
            client.close()


class Raw(Service):
    """gRPC by the generated stub, without tritonclient's own types: what a client in any other language sends."""

    protocol = "raw"

    def connect(self) -> None:
        self.grpc = importlib.import_module("grpc")
        self.messages = importlib.import_module("tritonclient.grpc.service_pb2")
        stub = importlib.import_module("tritonclient.grpc.service_pb2_grpc").GRPCInferenceServiceStub
        if self.tls is None:
            channel = self.grpc.insecure_channel(self.url, options=CHANNEL)
        else:
            parts = [pem(self.tls.get(name)) for name in ("ca", "key", "cert")]
            channel = self.grpc.secure_channel(self.url, self.grpc.ssl_channel_credentials(*parts), options=CHANNEL)
        self.stub = stub(channel)

    def call(self, method: str, timeout: float, /, **fields: Any) -> Any:
        """One call of the stub. Raises the error of tritonclient for that of grpc."""
        from tritonclient.utils import InferenceServerException

        request = getattr(self.messages, f"{method}Request")(**fields)
        try:
            extra = {"metadata": list(self.headers.items())} if self.headers else {}
            return getattr(self.stub, method)(request, timeout=timeout, **extra)
        except self.grpc.RpcError as error:
            raise InferenceServerException(error.details() or "", str(error.code())) from None

    def live(self, timeout: float) -> Any:
        return self.call("ServerLive", timeout)

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        fits(question)
        request = self.messages.ModelInferRequest
        inputs = [
            request.InferInputTensor(name=name, datatype=dtype, shape=array.shape)
            for name, (dtype, array) in question.inputs.items()
        ]
        names = dict.fromkeys([*question.outputs, *question.classes])
        outputs = [request.InferRequestedOutputTensor(name=name) for name in names]
        for output in outputs:
            if question.classes.get(output.name):
                output.parameters["classification"].int64_param = question.classes[output.name]
        contents = [encoded(dtype, array) for dtype, array in question.inputs.values()]
        response = self.call(
            "ModelInfer",
            timeout,
            model_name=question.model,
            model_version=question.version,
            inputs=inputs,
            outputs=outputs,
            raw_input_contents=contents,
        )
        found = {}
        for number, tensor in enumerate(response.outputs):
            shape = [int(size) for size in tensor.shape]
            data = response.raw_output_contents[number] if number < len(response.raw_output_contents) else None
            found[tensor.name] = Output(tensor.datatype, shape, None if data is None else decoded(tensor.datatype, shape, data))
        yield found

    def index(self) -> List[Dict[str, Any]]:
        models = self.call("RepositoryIndex", self.timeout).models
        return [{"name": model.name, "version": model.version, "state": model.state, "reason": model.reason} for model in models]

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.call("ModelMetadata", self.timeout, name=model, version=version)
        return {
            kind: [{"name": entry.name, "datatype": entry.datatype, "shape": list(entry.shape)} for entry in getattr(found, kind)]
            for kind in ("inputs", "outputs")
        }

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.call("ModelConfig", self.timeout, name=model, version=version).config
        return {"output": [{"name": tensor.name, "label_filename": tensor.label_filename} for tensor in found.output]}


SERVICES: Dict[str, Callable[..., Service]] = {entry.protocol: entry for entry in (Http, Grpc, Stream, Raw)}
PROTOCOLS = tuple(SERVICES)
