#!/usr/bin/python3
"""An HTTP server of the lab that replaces the vendor's package index for pip, and serves files. It requires a login.

Its argument is a JSON file: {"root": directory, "address": "0.0.0.0", "port": 8480, "login": "user:password"}.
/simple/<package>/ lists a directory of wheels in the form that pip expects (links with #sha256=...). /public/ requires no login.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
from functools import cache, partial
from html import escape
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


@cache
def sha256_of(path: str, size: int, mtime_ns: int) -> str:
    # Size and modification time are only keys of the cache, so that a changed file is hashed again.
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, login: str, *arguments, **options):
        self.login = "Basic " + base64.b64encode(login.encode()).decode()
        super().__init__(*arguments, **options)

    def do_GET(self):
        if self.allowed():
            super().do_GET()

    def do_HEAD(self):
        if self.allowed():
            super().do_HEAD()

    def allowed(self) -> bool:
        # The path is resolved first, because a URL may contain `..`.
        if os.path.relpath(self.translate_path(self.path), self.directory).startswith("public/"):
            return True
        given = self.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), self.login.encode()):
            return True
        body = b"a login is needed\n"
        self.send_response(HTTPStatus.UNAUTHORIZED)
        self.send_header("WWW-Authenticate", 'Basic realm="npufleet lab"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return False

    def list_directory(self, path):
        links = []
        for name in sorted(os.listdir(path)):
            entry = os.path.join(path, name)
            if os.path.isdir(entry):
                links.append(f'<a href="{escape(name)}/">{escape(name)}</a><br>')
            else:
                state = os.stat(entry)
                digest = sha256_of(entry, state.st_size, state.st_mtime_ns)
                links.append(f'<a href="{escape(name)}#sha256={digest}">{escape(name)}</a><br>')
        body = ("<!DOCTYPE html><html><body>\n" + "\n".join(links) + "\n</body></html>\n").encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main() -> None:
    with open(sys.argv[1]) as source:
        settings = json.load(source)
    handler = partial(Handler, settings["login"], directory=settings["root"])
    ThreadingHTTPServer((settings["address"], settings["port"]), handler).serve_forever()


if __name__ == "__main__":
    main()
