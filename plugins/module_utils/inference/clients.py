# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Clients of a server, one for each protocol. Creating a client imports tritonclient."""

from __future__ import annotations

import importlib
import queue
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.inference import encoding
from ansible_collections.npufleet.triton.plugins.module_utils.inference.bounds import CHANNEL, ResponseQueue, bounded
from ansible_collections.npufleet.triton.plugins.module_utils.inference.errors import WITHOUT_JSON, of_connection, one_line, reason
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import (
    Answer,
    Output,
    Question,
    join_outputs,
    refuse_too_large,
)

# Time limit in seconds for a server to report that it is live. A request to a model can take longer.
SIGN_OF_LIFE = 5.0
PORTS = "Triton's ports are 8000 for HTTP and 8001 for gRPC by default"
# Prefix of a gRPC header that contains the key of a restricted API
RESTRICTED = "triton-grpc-protocol-"


class Service:
    """A client of a server for one protocol. `tls` is {"ca", "cert", "key"} with paths, {"insecure"}, or None for no TLS.

    Each request has the `headers`. Over gRPC, each header is also sent with the prefix RESTRICTED, because it can be the key of a
    restricted API.
    """

    protocol = ""
    library = "tritonclient.grpc"

    def __init__(
        self, url: str, timeout: float, tls: Optional[Mapping[str, Any]] = None, headers: Optional[Mapping[str, str]] = None
    ) -> None:
        self.timeout = timeout
        self.url = url
        self.tls = tls
        self.headers = self.request_headers(headers or {})
        # Arguments that are added to each call of tritonclient
        self.extra: Dict[str, Any] = {"headers": self.headers} if self.headers else {}
        # If the packages of its extra `http` or `grpc` are missing, tritonclient raises a RuntimeError.
        try:
            self.client_library = importlib.import_module(self.library)
        except (ImportError, RuntimeError) as error:
            raise ImportError(reason(error)) from None
        self.connect()

    @staticmethod
    def request_headers(headers: Mapping[str, str]) -> Dict[str, str]:
        """Return the headers of a request of this protocol."""
        lower = {name.lower(): value for name, value in headers.items()}
        return {**lower, **{RESTRICTED + name: value for name, value in lower.items()}}

    def connect(self) -> None:
        """Create the client without sending anything."""
        raise NotImplementedError

    def live(self, timeout: float) -> Any:
        """Query whether the server is live."""
        raise NotImplementedError

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        """Send a request, and yield its responses as they arrive. Raises the errors of the client."""
        raise NotImplementedError

    def index(self) -> List[Dict[str, Any]]:
        """Return [{"name", "version", "state", "reason"}] of the server's models."""
        raise NotImplementedError

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        """Return {"inputs": tensors, "outputs": tensors}. A tensor is {"name", "datatype", "shape"}.

        A shape includes the batch dimension. A dimension of -1 is variable.
        """
        raise NotImplementedError

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        """Return the config of a loaded model."""
        raise NotImplementedError

    def unreachable(self) -> str:
        """Return the reason why this service does not answer, or an empty text if it answers."""
        try:
            self.live(min(self.timeout, SIGN_OF_LIFE))
        except Exception as error:
            # A server with a restricted health API returns the same status as a missing server, so the message is checked, too.
            if of_connection(error) and "restricted" not in str(error):
                message = self.explain(error)
                # Triton's HTTP port closes gRPC connections, so a closed connection can mean that the URL has the HTTP port.
                message += f", which may be a port of HTTP; {PORTS}" if message.endswith("Socket closed") else ""
                return f"no Triton answers {self.protocol} at {self.url}: {message}"
        return ""

    def infer(self, question: Question, timeout: Optional[float] = None) -> Answer:
        """Send a request, and return its joined responses and its error, if any."""
        began = time.monotonic()
        responses: List[Dict[str, Output]] = []
        failure: Optional[Exception] = None
        try:
            responses.extend(self.answers(question, timeout or self.timeout))
        except Exception as error:
            failure = error
        return Answer(join_outputs(responses), len(responses), (time.monotonic() - began) * 1000, failure)

    def explain(self, error: Exception) -> str:
        """Return the message of an error. For common mistakes, such as a wrong port, the message ends with a next step."""
        message = reason(error)
        kind = "HTTP" if self.protocol == "http" else "gRPC"
        if type(error).__name__ == "HTTPParseError" or "Failed parsing HTTP/2" in message or "http1" in message:
            return f"the port does not speak {kind}; {PORTS}"
        if message.startswith(WITHOUT_JSON):
            return f"the port answers without Triton's JSON, as a proxy or Triton's metrics port would; {PORTS}"
        if "decoupled" in message and self.protocol != "stream":
            return f"{message}; the model answers in streams: use the protocol stream"
        if "http-max-input-size" in message:
            return f"{message}; or use gRPC, which accepts up to 2 GiB"
        return message

    def index_entry(self, model: str, version: str = "") -> str:
        """Return what the server's index reports about a missing model or version, or an empty text without an index."""
        try:
            entries = self.index()
        except Exception:
            return ""
        own_entries = [entry for entry in entries if entry["name"] == model]
        ready_versions = [str(entry.get("version") or "") for entry in own_entries if entry.get("state") == "READY"]
        if version and ready_versions and version not in ready_versions:
            ready_versions.sort(key=lambda number: (len(number), number))
            return f"version {version} of {model} is not ready, expected one of {', '.join(ready_versions)}"
        states = ["{} {}".format(entry.get("state", ""), entry.get("reason", "")) for entry in own_entries]
        ready = sorted({entry["name"] for entry in entries if entry.get("state") == "READY"})
        return one_line("; ".join(states)) or "it serves {}".format(", ".join(ready) or "no model")

    def _tensors(self, question: Question) -> Tuple[List[Any], Optional[List[Any]]]:
        """Return (inputs, outputs) of a request as objects of the client library."""
        inputs = []
        refuse_too_large(question)
        for name, (dtype, array) in question.inputs.items():
            inputs.append(self.client_library.InferInput(name, list(array.shape), dtype))
            inputs[-1].set_data_from_numpy(array)
        library, classes = self.client_library, question.classes
        names = dict.fromkeys([*question.outputs, *classes])
        return inputs, [library.InferRequestedOutput(name, class_count=classes.get(name, 0)) for name in names] or None


class Http(Service):
    """An HTTP client that uses tritonclient. A client of tritonclient has a fixed timeout, so each timeout gets its own client."""

    protocol = "http"
    library = "tritonclient.http"

    @staticmethod
    def request_headers(headers: Mapping[str, str]) -> Dict[str, str]:
        return dict(headers)

    def connect(self) -> None:
        self.clients: Dict[float, Any] = {}
        gevent = sys.modules.get("gevent")
        hub = gevent.get_hub() if gevent else None
        if hub is not None and KeyboardInterrupt not in hub.NOT_ERROR:
            # Without this entry, gevent prints a KeyboardInterrupt before it raises the exception.
            hub.NOT_ERROR = (*hub.NOT_ERROR, KeyboardInterrupt)
        self.client(self.timeout)

    def client(self, timeout: float) -> Any:
        """Return the client with this timeout."""
        if timeout not in self.clients:
            options: Dict[str, Any] = {"connection_timeout": timeout, "network_timeout": timeout}
            if self.tls is not None:
                context = encoding.tls_context(self.tls)
                insecure = bool(self.tls.get("insecure"))
                options.update(ssl=True, ssl_context_factory=lambda *_any, **_more: context, insecure=insecure)
            self.clients[timeout] = self.client_library.InferenceServerClient(self.url, **options)
        return self.clients[timeout]

    def live(self, timeout: float) -> Any:
        return self._call_within(timeout, lambda client: client.is_server_live(**self.extra))

    def _call_within(self, timeout: float, call: Callable[[Any], Any]) -> Any:
        """Return the result of a call. Raises TimeoutError after `timeout` seconds.

        The client's own timeout is not sufficient, because it restarts whenever bytes arrive.
        """
        client = self.client(timeout)
        try:
            with bounded(timeout):
                return call(client)
        except TimeoutError:
            # The connection of this client has an unfinished request, so the client is not used again.
            self.clients.pop(timeout, None)
            raise

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        def infer(client: Any) -> Dict[str, Output]:
            inputs, outputs = self._tensors(question)
            return encoding.outputs_of(client.infer(question.model, inputs, question.version, outputs, **self.extra))

        yield self._call_within(timeout, infer)

    def index(self) -> List[Dict[str, Any]]:
        return list(self._call_within(self.timeout, lambda client: client.get_model_repository_index(**self.extra)))

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        return dict(self._call_within(self.timeout, lambda client: client.get_model_metadata(model, version, **self.extra)))

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        return dict(self._call_within(self.timeout, lambda client: client.get_model_config(model, version, **self.extra)))


class Grpc(Service):
    """A gRPC client that uses tritonclient."""

    protocol = "grpc"

    def connect(self) -> None:
        self.client = self.new_client()

    def new_client(self) -> Any:
        """Return a new client of the server."""
        options: Dict[str, Any] = {"channel_args": CHANNEL}
        if self.tls is not None:
            options.update(ssl=True, root_certificates=self.tls.get("ca"))
            options.update(private_key=self.tls.get("key"), certificate_chain=self.tls.get("cert"))
        return self.client_library.InferenceServerClient(self.url, **options)

    def live(self, timeout: float) -> Any:
        return self.client.is_server_live(client_timeout=timeout, **self.extra)

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        inputs, outputs = self._tensors(question)
        answer = self.client.infer(question.model, inputs, question.version, outputs, client_timeout=timeout, **self.extra)
        yield encoding.outputs_of(answer)

    def index(self) -> List[Dict[str, Any]]:
        found = self.client.get_model_repository_index(as_json=True, client_timeout=self.timeout, **self.extra)
        return list(found.get("models", []))

    def metadata(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.client.get_model_metadata(model, version, as_json=True, client_timeout=self.timeout, **self.extra)
        # The JSON of protobuf contains 64-bit numbers as strings.
        for tensor in [*found.get("inputs", []), *found.get("outputs", [])]:
            tensor["shape"] = [int(size) for size in tensor.get("shape", [])]
        return dict(found)

    def config(self, model: str, version: str = "") -> Dict[str, Any]:
        found = self.client.get_model_config(model, version, as_json=True, client_timeout=self.timeout, **self.extra)
        return dict(found["config"])


class Stream(Grpc):
    """A client for gRPC streams, in which a request has any number of responses.

    A client of tritonclient has at most one stream, so each request gets its own client.
    """

    protocol = "stream"

    def answers(self, question: Question, timeout: float) -> Iterator[Dict[str, Output]]:
        """Send a request, and yield its responses as they arrive. Closing the generator cancels the request."""
        inputs, outputs = self._tensors(question)
        responses = ResponseQueue()
        deadline = time.monotonic() + timeout
        is_final = False
        client = self.new_client()
        try:
            # With this header, newer servers also return the status of an error.
            headers = {**self.headers, "triton_grpc_error": "true"}
            client.start_stream(responses.put, stream_timeout=timeout, headers=headers)
            client.async_stream_infer(question.model, inputs, question.version, outputs, enable_empty_final_response=True)
            while True:
                if time.monotonic() > deadline + 1:
                    raise TimeoutError(f"no end within {timeout:g} s")
                try:
                    # The stream itself reports the timeout, so the queue waits a second longer for this report.
                    result, error = responses.get(timeout=max(deadline - time.monotonic(), 0) + 1)
                except queue.Empty:
                    raise TimeoutError(f"no response within {timeout:g} s") from None
                if error is not None:
                    raise error
                response = result.get_response()
                is_final = response.parameters["triton_final_response"].bool_param
                if response.outputs:
                    yield encoding.outputs_of(result)
                if is_final:
                    return
        finally:
            client.stop_stream(cancel_requests=not is_final)
            client.close()


class Raw(Service):
    """A gRPC client that uses the generated gRPC code, as clients in other languages do."""

    protocol = "raw"

    def connect(self) -> None:
        self.grpc = importlib.import_module("grpc")
        self.messages = importlib.import_module("tritonclient.grpc.service_pb2")
        stub = importlib.import_module("tritonclient.grpc.service_pb2_grpc").GRPCInferenceServiceStub
        if self.tls is None:
            channel = self.grpc.insecure_channel(self.url, options=CHANNEL)
        else:
            parts = [encoding.pem(self.tls.get(name)) for name in ("ca", "key", "cert")]
            channel = self.grpc.secure_channel(self.url, self.grpc.ssl_channel_credentials(*parts), options=CHANNEL)
        self.stub = stub(channel)

    def call(self, method: str, timeout: float, /, **fields: Any) -> Any:
        """Call a gRPC method, and return its response. Raises InferenceServerException, the error class of tritonclient."""
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
        refuse_too_large(question)
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
        contents = [encoding.encode_array(dtype, array) for dtype, array in question.inputs.values()]
        model = {"model_name": question.model, "model_version": question.version}
        response = self.call("ModelInfer", timeout, inputs=inputs, outputs=outputs, raw_input_contents=contents, **model)
        found = {}
        for number, tensor in enumerate(response.outputs):
            shape = [int(size) for size in tensor.shape]
            has_data = number < len(response.raw_output_contents)
            array = encoding.decode_array(tensor.datatype, shape, response.raw_output_contents[number]) if has_data else None
            found[tensor.name] = Output(tensor.datatype, shape, array)
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
