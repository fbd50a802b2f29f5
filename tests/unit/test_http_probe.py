"""Suppliers: reachable or not, with the right login or a wrong one, directly or through a proxy, by web and by registry."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import download
from small_triton import certificates

RIGHT = "Basic " + base64.b64encode(b"fleet:right").decode()


@contextmanager
def server(answer: Any, tls: dict[str, str] | None = None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(address, requests seen) of a server; `answer(path, authorization, address)` gives (status, headers, body)."""
    seen: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_words: Any) -> None:
            pass

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            seen.append((self.path, given))
            status, headers, body = answer(self.path, given, f"{scheme}://127.0.0.1:{self.server.server_address[1]}")
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "https" if tls else "http"
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls["server"], tls["server_key"])
        http.socket = context.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{http.server_port}", seen
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
    entry = {"kind": "web", "name": "package index", "address": address, "user": user, "todo": "correct it", **more}
    return http_probe.supplier_error(entry, {"package index": password})


def test_right_login_is_accepted() -> None:
    with server(behind_login) as (address, _seen):
        assert ask(address + "/simple/rebel-compiler/", "fleet", "right") is None


def test_wrong_login_is_refused_without_being_shown() -> None:
    with server(behind_login) as (address, _seen):
        reason = ask(address + "/simple/rebel-compiler/", "fleet", "wr0ng-secret")
    assert str(reason).startswith(f"package index {address}/simple/rebel-compiler/: status 401: it refuses the login of fleet")
    assert "wr0ng-secret" not in str(reason)


def test_missing_login_is_refused() -> None:
    with server(behind_login) as (address, _seen):
        assert "status 401: it requires a login, and none is set: correct it" in str(ask(address + "/simple/rebel-compiler/"))


def test_what_is_not_there() -> None:
    with server(behind_login) as (address, _seen):
        assert "status 404, expected a file or page" in str(ask(address + "/simple/other/", "fleet", "right"))


def test_nobody_answers() -> None:
    reason = str(ask(nobody()))
    assert "no answer (" in reason
    assert "refused" in reason


def test_server_that_fails() -> None:
    with server(lambda *_request: (503, {}, b"")) as (address, _seen):
        assert "no answer (status 503)" in str(ask(address))


def test_login_in_an_address_is_not_shown() -> None:
    assert http_probe.public_address("https://fleet:hunter2@index.example.com/simple/") == "https://index.example.com/simple/"


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
    assert http_probe.split(reference) == parts


# Registries


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of an authority, and of certificate and key of a server on the loopback."""
    return certificates(tmp_path_factory.mktemp("tls"))


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


def behind_basic(path: str, given: str, _address: str) -> tuple[int, dict[str, str], bytes]:
    return (200, {}, b"") if given == RIGHT else (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")


def named(realm: str) -> Any:
    """A registry that names this realm for its tokens."""

    def answer(path: str, given: str, _address: str) -> tuple[int, dict[str, str], bytes]:
        if given.startswith("Bearer t0ken"):
            return 200, {}, b""
        return 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="r"'}, b""

    return answer


def pull(
    address: str, tls: dict[str, str], image: str = "shut/triton:24.01", login: tuple[str, str] = ("fleet", "right")
) -> str | None:
    """What is wrong with an image of the registry at this address."""
    authority = Path(tls["ca"]).read_text()
    return http_probe.image(address.split("//")[1] + "/" + image, http_probe.Access(login, {}, authority))


def logins(seen: list[tuple[str, str]]) -> list[str]:
    """Requests that carried a user's login."""
    return [path for path, given in seen if given.startswith("Basic")]


@pytest.mark.parametrize(
    ("image", "login", "words"),
    [
        ("open/triton:24.01", ("", ""), None),
        ("shut/triton:24.01", ("fleet", "right"), None),
        ("shut/triton:24.01", ("fleet", "wrong"), "status 401: it refuses the login of fleet"),
        ("shut/triton:24.01", ("", ""), "status 401: it requires a login, and none is set"),
        ("open/triton:99.99", ("", ""), "the registry has no open/triton:99.99, expected this image"),
    ],
)
def test_registry(tls: dict[str, str], image: str, login: tuple[str, str], words: str | None) -> None:
    with server(registry, tls) as (address, _seen):
        found = pull(address, tls, image, login)
    assert (found is None) if words is None else (words in str(found))


@pytest.mark.parametrize(("password", "words"), [("right", None), ("wrong", "it refuses the login of fleet")])
def test_registry_that_takes_the_login_itself(tls: dict[str, str], password: str, words: str | None) -> None:
    with server(behind_basic, tls) as (address, _seen):
        found = pull(address, tls, login=("fleet", password))
    assert (found is None) if words is None else (words in str(found))


def test_realm_of_another_server_gets_no_login(tls: dict[str, str]) -> None:
    hand_out = lambda *_request: (200, {}, b'{"token": "t0ken"}')  # noqa: E731
    with server(hand_out, tls) as (elsewhere, asked):
        realm = elsewhere.replace("127.0.0.1", "localhost") + "/token"
        with server(named(realm), tls) as (address, _seen):
            assert pull(address, tls) is None
    assert asked == [("/token?service=r", "")]


def test_whether_a_login_is_right_is_not_told_where_it_cannot_be_tried(tls: dict[str, str]) -> None:
    with server(lambda *_request: (401, {}, b""), tls) as (elsewhere, asked):
        realm = elsewhere.replace("127.0.0.1", "localhost") + "/token"
        with server(named(realm), tls) as (address, _seen):
            assert pull(address, tls) is None
            assert "it requires a login, and none is set" in str(pull(address, tls, login=("", "")))
    assert logins(asked) == []


def test_realm_without_tls_is_not_asked(tls: dict[str, str]) -> None:
    with (
        server(lambda *_request: (200, {}, b'{"token": "t0ken"}')) as (plain, asked),
        server(named(plain + "/token"), tls) as (address, _seen),
    ):
        assert "token server has no https address" in str(pull(address, tls))
    assert asked == []


def test_realm_is_no_file_of_the_host(tls: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"token": "of-the-host"}')
    with server(named(f"file://{tmp_path}/secret.json"), tls) as (address, seen):
        assert "token server has no https address" in str(pull(address, tls))
    assert not [given for _path, given in seen if "of-the-host" in given]


@pytest.mark.parametrize("body", [b"[]", b'{"token": 5}', b'{"token": "a\\r\\nX: y"}', b"none", b'{"token": null}'])
def test_token_that_is_none(tls: dict[str, str], body: bytes) -> None:
    def answer(path: str, given: str, address: str) -> tuple[int, dict[str, str], bytes]:
        return (200, {}, body) if path.startswith("/token") else named(address + "/token")(path, given, address)

    with server(answer, tls) as (address, _seen):
        assert "status 401: it refuses the login of fleet" in str(pull(address, tls))


def test_token_does_not_follow_a_redirection(tls: dict[str, str]) -> None:
    with server(lambda *_request: (200, {}, b""), tls) as (elsewhere, asked):

        def answer(path: str, given: str, address: str) -> tuple[int, dict[str, str], bytes]:
            if path.startswith("/v2/") and given.startswith("Bearer"):
                return 302, {"Location": elsewhere + "/there"}, b""
            return registry(path, given, address)

        with server(answer, tls) as (address, _seen):
            assert pull(address, tls) is None
    assert asked == [("/there", "")]


def through(monkeypatch: pytest.MonkeyPatch, tls: dict[str, str], hub: str, mirror: str) -> str | None:
    """An image of Docker Hub, which stands at `hub`, asked for at its mirror first."""
    monkeypatch.setattr(http_probe, "DOCKER_HUB", hub.split("//")[1])
    return http_probe.image("shut/triton:24.01", http_probe.Access(("fleet", "right"), {}, Path(tls["ca"]).read_text()), mirror)


@pytest.mark.parametrize("secure", [True, False])
def test_mirror_is_asked_without_the_login(monkeypatch: pytest.MonkeyPatch, tls: dict[str, str], secure: bool) -> None:
    with (
        server(lambda *_request: (200, {}, b""), tls if secure else None) as (mirror, asked),
        server(registry, tls) as (hub, seen),
    ):
        assert through(monkeypatch, tls, hub, mirror) is None
    assert asked == [("/v2/shut/triton/manifests/24.01", "")] and seen == []


@pytest.mark.parametrize("secure", [True, False])
def test_a_mirror_that_does_not_give_it_leaves_the_registry(
    monkeypatch: pytest.MonkeyPatch, tls: dict[str, str], secure: bool
) -> None:
    with server(behind_basic, tls if secure else None) as (mirror, asked), server(registry, tls) as (hub, seen):
        assert through(monkeypatch, tls, hub, mirror) is None
    assert logins(asked) == [] and logins(seen) != []


@contextmanager
def tunnel(status: bytes = b"200 OK") -> Iterator[tuple[str, list[bytes]]]:
    """(address, heads of requests) of a proxy that connects to where it is told, or answers with another status."""
    heads: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def relay(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while block := source.recv(1 << 16):
                target.sendall(block)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with listener, listener.accept()[0] as peer:
            head = b""
            while b"\r\n\r\n" not in head:
                head += peer.recv(1 << 16)
            heads.append(head)
            peer.sendall(b"HTTP/1.1 " + status + b"\r\n\r\n")
            host, _colon, port = head.split()[1].decode().rpartition(":")
            if status.startswith(b"200"):
                with socket.create_connection((host, int(port))) as there:
                    back = threading.Thread(target=relay, args=(there, peer))
                    back.start()
                    relay(peer, there)
                    back.join()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://fleet:pr0xy@127.0.0.1:{listener.getsockname()[1]}", heads
    finally:
        thread.join(60)


def test_tls_goes_through_a_proxy(tls: dict[str, str]) -> None:
    authority = Path(tls["ca"]).read_text()
    with server(behind_login, tls) as (address, seen), tunnel() as (proxy, heads):
        place = address + "/simple/rebel-compiler/"
        assert http_probe.measure(place, http_probe.Access(("fleet", "right"), {"https": proxy}, authority))[1] is None
    (head,) = heads
    assert head.startswith(f"CONNECT {address.split('//')[1]} HTTP/1.1\r\n".encode())
    # Each login goes to the one whose it is
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"fleet:pr0xy") in head and RIGHT.encode() not in head
    assert seen == [("/simple/rebel-compiler/", RIGHT)]


def test_a_proxy_that_refuses_is_told(tls: dict[str, str]) -> None:
    with tunnel(b"407 No") as (proxy, _heads):
        reason = str(http_probe.measure("https://elsewhere.invalid/", http_probe.Access(("", ""), {"https": proxy}, None))[1])
    assert "no answer (the proxy answers 407 to CONNECT elsewhere.invalid:443)" in reason and "pr0xy" not in reason


def test_neither_mirror_nor_registry(monkeypatch: pytest.MonkeyPatch, tls: dict[str, str]) -> None:
    with server(lambda *_request: (503, {}, b"")) as (mirror, _asked):
        reason = str(through(monkeypatch, tls, nobody(), mirror))
    assert "no answer (" in reason and f"its mirror {mirror}: no answer (status 503)" in reason


def test_tokens_of_docker_hub_are_another_server_s() -> None:
    assert http_probe.takes_login("https://registry-1.docker.io", "https://auth.docker.io/token")
    assert not http_probe.takes_login("https://registry-1.docker.io.example.com", "https://auth.docker.io/token")
    assert not http_probe.takes_login("https://nvcr.io", "https://auth.docker.io/token")
    assert not http_probe.takes_login("https://nvcr.io", "https://nvcr.io.example.com/token")
    assert not http_probe.takes_login("https://nvcr.io", "https://nvcr.io@example.com/token")
    assert http_probe.takes_login("https://nvcr.io", "https://nvcr.io/proxy_auth")


BAD = [
    "https://u:S3cret-Word@h.example.com/x",
    "http://[::1/S3cret-Word",
    "http://h:S3cret-Word/x",
    "http://h:99999/S3cret-Word",
    "http://h/a S3cret-Word",
    "http://h/S3cret-Word\n",
    "http://h/S3cret-Word\u2100",
    "http://S3cret-Word\u2100.example.com/",
    "http:///S3cret-Word",
    "ftp://h/S3cret-Word",
    "S3cret-Word",
    "",
]


@pytest.mark.parametrize("address", BAD)
def test_an_address_that_is_none_is_not_repeated(address: str, tmp_path: Path) -> None:
    with pytest.raises(http_probe.AddressError) as error:
        http_probe.parse_address(address)
    assert "S3cret" not in str(error.value)
    size, why = http_probe.measure(address, http_probe.Access(("", ""), {}, None))
    assert size is None and why and "S3cret" not in why
    for call in (
        lambda: download.size({"url": address or "x"}, "a" * 64, {}, {}),
        lambda: download.fetch({"url": address or "x"}, "a" * 64, str(tmp_path / "f"), {}, {}),
    ):
        with pytest.raises(download.SourceError) as refused:
            call()
        assert "S3cret" not in str(refused.value)


@pytest.mark.parametrize("proxy", ["http://u:pa/S3cret-Word@proxy:3128", "http://proxy:S3cret-Word", "http://[S3cret-Word"])
def test_a_proxy_that_is_no_address_is_not_repeated(proxy: str) -> None:
    for scheme in ("http", "https"):
        _size, why = http_probe.measure(f"{scheme}://127.0.0.1:1/x", http_probe.Access(("", ""), {scheme: proxy}, None))
        assert why and "S3cret" not in why


def test_an_address_that_still_has_a_login_is_not_shown() -> None:
    for address in ('https://u:S3"cret@h/x', "https%3A%2F%2Fu%3AS3cret%40h", "https://u:S3 cret@h/x"):
        assert "cret" not in http_probe.public_address(address)


def test_a_realm_that_is_no_address_gets_no_login() -> None:
    assert not http_probe.takes_login("https://nvcr.io", "https://[nvcr.io/x")


def test_a_redirect_takes_no_login_along() -> None:
    import urllib.request
    from email.message import Message

    from ansible_collections.npufleet.triton.plugins.module_utils.web_client import opener

    request = urllib.request.Request("http://portal.example.com/a", headers={"Authorization": "Basic x", "Range": "bytes=1-"})
    # As urllib does on the way to a proxy with a login
    request.add_header("Proxy-authorization", "Basic y")
    answer = (None, 302, "Found", Message(), "https://elsewhere.example.com/b")
    following = opener._RedirectHandler().redirect_request(request, *answer)
    assert following is not None
    assert following.header_items() == [("Range", "bytes=1-")]
