"""Servers that large files come from: a web server with Range, and object stores as rclone asks them, with failures to order."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ACCESS, SECRET = "NPUFLEETACCESS", "npufleet/secret+key"


class Store:
    """What a server has, and how it fails."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.port = 0
        self.asked: list[tuple[str, str, str]] = []
        # Bytes after which an answer breaks off, one for each; then whole answers
        self.cuts: list[int] = []
        self.ranges = True
        self.login = ""
        self.gate: threading.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ranges_asked(self) -> list[str]:
        return [given for method, _path, given in self.asked if method == "GET"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, *_words: Any) -> None:
        pass

    def say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.store.asked.append((self.command, self.path, self.headers.get("Range", "")))
        if self.store.gate:
            self.store.gate.wait(300)
        if self.allowed():
            self.find()

    def allowed(self) -> bool:
        wanted = "Basic " + base64.b64encode(self.store.login.encode()).decode()
        if not self.store.login or self.headers.get("Authorization") == wanted:
            return True
        self.say(401)
        return False

    def find(self) -> None:
        self.send(self.store.files.get(urllib.parse.unquote(self.path.partition("?")[0]).lstrip("/")))

    def send(self, whole: bytes | None, **headers: str) -> None:
        if whole is None:
            self.say(404, **headers)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if self.store.ranges else None
        body, status = whole, 200
        if asked:
            start = int(asked[1])
            if start >= len(whole):
                self.say(416, Content_Range=f"bytes */{len(whole)}")
                return
            body, status = whole[start : int(asked[2] or len(whole)) + 1], 206
            headers["Content_Range"] = f"bytes {start}-{start + len(body) - 1}/{len(whole)}"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.store.cuts:
            body = body[: self.store.cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(body)


class S3(Handler):
    """Buckets by path, for whoever signs with the right key (AWS signature version 4)."""

    def allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=(\w+)", given
        )
        if found and found[1] == ACCESS and hmac.compare_digest(self.signature(found), found[5]):
            return True
        self.say(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>", Content_Type="application/xml")
        return False

    def signature(self, found: re.Match[str]) -> str:
        path, _mark, query = self.path.partition("?")
        pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
        asked = "&".join(f"{urllib.parse.quote(name, safe='')}={urllib.parse.quote(value, safe='')}" for name, value in pairs)
        signed = "".join(f"{name}:{' '.join((self.headers.get(name) or '').split())}\n" for name in found[4].split(";"))
        payload = self.headers.get("X-Amz-Content-Sha256", "")
        canonical = "\n".join((self.command, path, asked, signed, found[4], payload))
        scope = f"{found[2]}/{found[3]}/s3/aws4_request"
        words = "\n".join(("AWS4-HMAC-SHA256", self.headers["X-Amz-Date"], scope, hashlib.sha256(canonical.encode()).hexdigest()))
        key = ("AWS4" + SECRET).encode()
        for part in (found[2], found[3], "s3", "aws4_request", words):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key.hex()

    def find(self) -> None:
        path, _mark, query = self.path.partition("?")
        bucket, _slash, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        if key:
            whole = self.store.files.get(f"{bucket}/{key}")
            etag = hashlib.md5(whole).hexdigest() if whole is not None else ""
            self.send(whole, ETag=f'"{etag}"', Last_Modified="Sat, 21 Nov 2026 00:00:00 GMT")
            return
        prefix = dict(urllib.parse.parse_qsl(query)).get("prefix", "")
        listed = "".join(
            f"<Contents><Key>{name.partition('/')[2]}</Key><Size>{len(content)}</Size>"
            "<LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
            for name, content in sorted(self.store.files.items())
            if name.startswith(f"{bucket}/{prefix}")
        )
        body = f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
        self.say(200, body.encode(), Content_Type="application/xml")


class Google(Handler):
    """Google's JSON interface to objects, for anybody."""

    def find(self) -> None:
        path, _mark, query = self.path.partition("?")
        found = re.fullmatch(r"/(?:storage/v1/|download/storage/v1/)?b/([^/]+)/o/(.+)", path)
        whole = self.store.files.get(f"{found[1]}/{urllib.parse.unquote(found[2])}") if found else None
        if found and whole is not None and "alt=media" not in query:
            link = f"{self.store.url}{path}?alt=media"
            about = {"name": urllib.parse.unquote(found[2]), "size": str(len(whole)), "mediaLink": link, "bucket": found[1]}
            about.update(updated="2026-11-21T00:00:00.000Z", md5Hash=base64.b64encode(hashlib.md5(whole).digest()).decode())
            self.say(200, json.dumps(about).encode(), Content_Type="application/json")
        elif path.rstrip("/").endswith("/o"):
            self.say(200, b'{"items": []}', Content_Type="application/json")
        else:
            self.send(whole)


@contextmanager
def serving(files: dict[str, bytes], kind: type[Handler] = Handler) -> Iterator[Store]:
    """A server on a free port of the loopback."""
    store = Store(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (kind,), {"store": store}))
    store.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        if store.gate:
            store.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
