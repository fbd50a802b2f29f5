"""Suppliers: reachable or not, with the right login or a wrong one, directly or through a proxy, by web and by registry."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import reach

RIGHT = "Basic " + base64.b64encode(b"fleet:right").decode()


@contextmanager
def server(answer: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(address, requests seen) of a server; `answer(path, authorization, address)` gives (status, headers, body)."""
    seen: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_words: Any) -> None:
            pass

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            seen.append((self.path, given))
            status, headers, body = answer(self.path, given, f"http://127.0.0.1:{self.server.server_port}")
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}", seen
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def behind_login(path: str, given: str, _address: str) -> tuple[int, dict[str, str], bytes]:
    if given != RIGHT:
        return 401, {"WWW-Authenticate": 'Basic realm="x"'}, b""
    return (200 if path == "/simple/rebel-compiler/" else 404), {}, b"ok"


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def ask(address: str, user: str = "", password: str = "", **more: Any) -> str | None:
    one = {"kind": "web", "what": "package index", "address": address, "user": user, "todo": "correct it", **more}
    return reach.supplier(one, {"package index": password})


def test_right_login_is_accepted() -> None:
    with server(behind_login) as (address, _seen):
        assert ask(address + "/simple/rebel-compiler/", "fleet", "right") is None


def test_wrong_login_is_refused_without_being_shown() -> None:
    with server(behind_login) as (address, _seen):
        reason = ask(address + "/simple/rebel-compiler/", "fleet", "wr0ng-secret")
    assert str(reason).startswith(
        f"package index {address}/simple/rebel-compiler/: found 401, it refuses the login of fleet, wanted"
    )
    assert "wr0ng-secret" not in str(reason)


def test_missing_login_is_refused() -> None:
    with server(behind_login) as (address, _seen):
        assert "found 401, it wants a login, and none is set: correct it" in str(ask(address + "/simple/rebel-compiler/"))


def test_what_is_not_there() -> None:
    with server(behind_login) as (address, _seen):
        assert "found 404, wanted a file or page there" in str(ask(address + "/simple/other/", "fleet", "right"))


def test_nobody_answers() -> None:
    reason = str(ask(nobody()))
    assert "found no answer (" in reason
    assert "refused" in reason


def test_server_that_fails() -> None:
    with server(lambda *_request: (503, {}, b"")) as (address, _seen):
        assert "found no answer (status 503)" in str(ask(address))


def test_login_in_an_address_is_not_shown() -> None:
    assert reach.bare("https://fleet:hunter2@index.example.com/simple/") == "https://index.example.com/simple/"


def test_login_does_not_follow_a_redirection() -> None:
    with (
        server(lambda *_request: (200, {}, b"")) as (elsewhere, seen),
        server(lambda *_request: (302, {"Location": elsewhere + "/there"}, b"")) as (address, _seen),
    ):
        assert ask(address, "fleet", "right") is None
    assert seen == [("/there", "")]


def test_proxy_is_used_and_gone_past() -> None:
    with server(lambda *_request: (200, {}, b"")) as (proxy, seen):
        assert ask("http://index.invalid/simple/", proxies={"http": proxy, "no_proxy": "example.com"}) is None
        assert [path for path, _given in seen] == ["http://index.invalid/simple/"]
        assert ask("http://index.invalid/simple/", proxies={"http": proxy, "no_proxy": "example.com,.invalid"}) is not None
        assert len(seen) == 1


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("ubuntu", ("registry-1.docker.io", "library/ubuntu", "latest")),
        ("rebellions/tritonserver:25.08", ("registry-1.docker.io", "rebellions/tritonserver", "25.08")),
        ("docker.io/rebellions/tritonserver:25.08", ("registry-1.docker.io", "rebellions/tritonserver", "25.08")),
        ("nvcr.io/nvidia/tritonserver:24.01-py3", ("nvcr.io", "nvidia/tritonserver", "24.01-py3")),
        ("localhost:5000/triton", ("localhost:5000", "triton", "latest")),
        ("repo.example.com/a/b@sha256:00", ("repo.example.com", "a/b", "sha256:00")),
    ],
)
def test_references_of_images(reference: str, parts: tuple[str, str, str]) -> None:
    assert reach.split(reference) == parts


def registry(path: str, given: str, address: str) -> tuple[int, dict[str, str], bytes]:
    """A registry that hands out tokens, anonymous ones for the repository `open`."""
    if path.startswith("/token"):
        if given == RIGHT or (not given and "open" in path):
            return 200, {}, json.dumps({"token": "t0ken"}).encode()
        return 401, {}, b""
    if given != "Bearer t0ken":
        scope = path.split("/v2/")[1].split("/manifests")[0]
        return 401, {"WWW-Authenticate": f'Bearer realm="{address}/token",service="r",scope="repository:{scope}:pull"'}, b""
    return (200 if path.endswith("/24.01") else 404), {}, b""


@pytest.mark.parametrize(
    ("image", "login", "words"),
    [
        ("open/triton:24.01", ("", ""), None),
        ("shut/triton:24.01", ("fleet", "right"), None),
        ("shut/triton:24.01", ("fleet", "wrong"), "found 401, it refuses the login of fleet"),
        ("shut/triton:24.01", ("", ""), "found 401, it wants a login, and none is set"),
        ("open/triton:99.99", ("", ""), "found no open/triton:99.99 in the registry, wanted it there"),
    ],
)
def test_registry(image: str, login: tuple[str, str], words: str | None) -> None:
    with server(registry) as (address, _seen):
        found = reach.image(image, login, {}, None, address)
    assert (found is None) if words is None else (words in str(found))
