"""A small Triton: real HTTP and gRPC servers on the loopback, with TLS where files are given. Its model doubles its input."""

from __future__ import annotations

import importlib
import ipaddress
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificates(place: Path) -> dict[str, str]:
    """Paths of an authority, and of certificate and key of a server on the loopback and of a client."""
    now = datetime.now(timezone.utc)
    paths: dict[str, str] = {}
    authority_key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    for name in ("ca", "server", "client"):
        key = authority_key if name == "ca" else ec.generate_private_key(ec.SECP256R1())
        subject = issuer if name == "ca" else x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        unsigned = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
            # Without these a Python from 3.13 on takes no certificate
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
        )
        if name == "ca":
            signs = dict.fromkeys(("key_cert_sign", "crl_sign"), True)
            rest = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
            usage = x509.KeyUsage(**signs, **dict.fromkeys((*rest, "encipher_only", "decipher_only"), False))
            unsigned = unsigned.add_extension(usage, critical=True)
        made = unsigned.sign(authority_key, hashes.SHA256())
        (place / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        (place / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        paths[name], paths[name + "_key"] = str(place / f"{name}.pem"), str(place / f"{name}.key")
    return paths


class SmallTriton:
    """What the server answers and was asked."""

    def __init__(self) -> None:
        self.http_port = self.grpc_port = 0
        self.models = ["double"]
        self.key = ""
        self.pause = 0.0
        self.answer: Callable[[Any], Any] = lambda array: array * 2
        # One entry a request that reached the model
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []

    def infer(self, protocol: str, array: Any) -> Any:
        self.asked.append(protocol)
        time.sleep(self.pause)
        return self.answer(array)


def _handler(small: SmallTriton) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body leave together: apart they would wait for each other.
        wbufsize = -1

        def log_message(self, *_words: Any) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            small.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, said = 200, b""
            try:
                if small.key and self.headers.get("triton-key") != small.key:
                    raise PermissionError("This API is restricted, expecting header 'triton-key'")
                if self.path == "/v2/repository/index":
                    said = json.dumps([{"name": model, "version": "1", "state": "READY"} for model in small.models]).encode()
                elif self.path.partition("?")[0].endswith("/infer"):
                    length = int(self.headers.get("Inference-Header-Content-Length") or len(body))
                    (tensor,) = json.loads(body[:length])["inputs"]
                    flat = tensor["data"] if "data" in tensor else np.frombuffer(body[length:], np.float32)
                    array = small.infer("http", np.array(flat, np.float32).reshape(tensor["shape"]))
                    output = {"name": "OUT", "datatype": "FP32", "shape": list(array.shape), "data": array.flatten().tolist()}
                    said = json.dumps(
                        {"model_name": "double", "model_version": "1", "outputs": [output]}, separators=(",", ":")
                    ).encode()
            except PermissionError as error:
                status, said = 403, json.dumps({"error": str(error)}).encode()
            except ConnectionAbortedError:
                self.close_connection = True
                return
            except OverflowError as error:
                status, said = 503, json.dumps({"error": str(error)}).encode()
            except ValueError as error:
                status, said = 500, json.dumps({"error": str(error)}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = _answer

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that do not wait for their answer, such as health checks."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _servicer(small: SmallTriton) -> Any:
    grpc = importlib.import_module("grpc")
    messages = importlib.import_module("tritonclient.grpc.service_pb2")
    services: Any = importlib.import_module("tritonclient.grpc.service_pb2_grpc")

    base: Any = services.GRPCInferenceServiceServicer

    class Servicer(base):
        def _allow(self, context: Any) -> None:
            found = dict(context.invocation_metadata())
            small.headers.append(found)
            if small.key and found.get("triton-grpc-protocol-triton-key") != small.key:
                context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, expecting header")

        def ServerLive(self, _request: Any, context: Any) -> Any:
            self._allow(context)
            return messages.ServerLiveResponse(live=True)

        def _infer(self, request: Any) -> Any:
            array = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(list(request.inputs[0].shape))
            array = small.infer("grpc", array)
            response = messages.ModelInferResponse(model_name="double", model_version="1")
            response.outputs.add(name="OUT", datatype="FP32", shape=array.shape)
            response.raw_output_contents.append(array.astype(np.float32).tobytes())
            return response

        def ModelInfer(self, request: Any, context: Any) -> Any:
            self._allow(context)
            try:
                return self._infer(request)
            except ValueError as error:
                context.abort(grpc.StatusCode.INTERNAL, str(error))

        def ModelStreamInfer(self, requests: Any, context: Any) -> Any:
            self._allow(context)
            for request in requests:
                yield messages.ModelStreamInferResponse(infer_response=self._infer(request))

        def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
            self._allow(context)
            small.asked.append(f"load {request.model_name}")
            time.sleep(small.pause)
            if request.model_name not in small.models:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, f"failed to load '{request.model_name}': " + 5000 * "a long reason "
                )
            return messages.RepositoryModelLoadResponse()

        def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
            self._allow(context)
            small.asked.append(f"unload {request.model_name} {request.parameters['unload_dependents'].bool_param}")
            return messages.RepositoryModelUnloadResponse()

    return Servicer()


@contextmanager
def small_triton(tls: dict[str, str] | None = None, address: str = "127.0.0.1") -> Iterator[SmallTriton]:
    """Both servers; with `tls` HTTPS, and gRPC that wants a certificate of the client, too."""
    grpc = importlib.import_module("grpc")
    services: Any = importlib.import_module("tritonclient.grpc.service_pb2_grpc")
    small = SmallTriton()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    http = type("Server", (_Server,), {"address_family": family})((address, 0), _handler(small))
    http.daemon_threads = True
    rpc = grpc.server(ThreadPoolExecutor(8))
    services.add_GRPCInferenceServiceServicer_to_server(_servicer(small), rpc)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls["server"], tls["server_key"])
        http.socket = context.wrap_socket(http.socket, server_side=True)
        pair = (Path(tls["server_key"]).read_bytes(), Path(tls["server"]).read_bytes())
        credentials = grpc.ssl_server_credentials([pair], Path(tls["ca"]).read_bytes(), require_client_auth=True)
        small.grpc_port = rpc.add_secure_port("127.0.0.1:0", credentials)
    else:
        small.grpc_port = rpc.add_insecure_port(f"[{address}]:0" if ":" in address else f"{address}:0")
    small.http_port = http.server_address[1]
    rpc.start()
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield small
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
        rpc.stop(None).wait()
