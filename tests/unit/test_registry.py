"""A registry as an engine tells of it: there or not, with a login that it takes or not, and why an engine could not."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.filter.engine_reason import FilterModule
from ansible_collections.npufleet.triton.plugins.module_utils.engine import registry as subject

LOGIN = ("fleet", "r3gistry-secret")
LOCKED = "registry.example.com:5000/npufleet/triton@sha256:" + "a" * 64
# As Docker 20.10 answers with docker-registry 2.8 behind it
MISSING = (404, '{"message":"manifest unknown: manifest unknown"}\n')
WRONG = (401, '{"message":"unauthorized: authentication required"}\n')
NO_LOGIN = (
    500,
    '{"message":"Head \\"https://registry.example.com:5000/v2/npufleet/triton/manifests/1\\": no basic auth credentials"}\n',
)
WRONG_LOGIN = (500, '{"message":"login attempt to https://registry.example.com:5000/v2/ failed with status: 401 Unauthorized"}\n')
GONE = (500, '{"message":"Get \\"https://registry.example.com:5000/v2/\\": dial tcp 10.0.0.5:5000: connect: connection refused"}\n')
STRANGER = (500, '{"message":"Get \\"https://registry.example.com:5000/v2/\\": x509: certificate signed by unknown authority"}\n')
GOOD = (200, '{"Descriptor":{"digest":"sha256:1"}}')


class Played:
    """An engine that gives one answer, or raises it, and keeps what it was asked."""

    def __init__(self, answer: Any, there: bool = True) -> None:
        self.answer, self.there, self.asked = answer, there, []

    def __call__(self) -> Played:
        return self

    def exchange(self, method: str, resource: str, body: Any = None, headers: Any = None) -> tuple[int, bytes]:
        self.asked.append((method, resource, body, headers))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer[0], self.answer[1].encode()

    def is_running(self) -> bool:
        return self.there


def ask(monkeypatch: pytest.MonkeyPatch, engine: Played, user: str = LOGIN[0], pushes: bool = False) -> str | None:
    monkeypatch.setattr(subject, "Engine", engine)
    address = LOCKED.partition("@")[0] if pushes else LOCKED
    entry = {"name": "image", "address": address, "registry": "registry.example.com:5000", "user": user, "pushes": pushes}
    return subject.supplier_error({**entry, "todo": "correct it"}, {"image": LOGIN[1] if user else ""})


@pytest.mark.parametrize(
    ("answer", "user", "pushes", "words"),
    [
        (GOOD, "fleet", False, None),
        (GOOD, "fleet", True, None),
        (GOOD, "", True, None),
        # A repository comes to be with the first push
        (MISSING, "", True, None),
        (
            MISSING,
            "fleet",
            False,
            "the image of the lock file is not in the registry (manifest unknown: manifest unknown): correct it",
        ),
        (WRONG, "fleet", False, "it refuses the login of fleet (unauthorized: authentication required): correct it"),
        (WRONG_LOGIN, "fleet", True, "it refuses the login of fleet (login attempt to "),
        (NO_LOGIN, "", False, "it requires a login, and none is set (Head "),
        (NO_LOGIN, "", True, "it requires a login, and none is set (Head "),
        (GONE, "fleet", False, "connect: connection refused): correct it"),
        (STRANGER, "fleet", True, "x509: certificate signed by unknown authority): correct it"),
        (OSError("timed out"), "fleet", False, "this host's engine does not reach the registry (timed out): correct it"),
        ((500, "no JSON"), "fleet", False, "this host's engine does not reach the registry (no JSON)"),
    ],
)
def test_what_an_engine_says(monkeypatch: pytest.MonkeyPatch, answer: Any, user: str, pushes: bool, words: str | None) -> None:
    why = ask(monkeypatch, Played(answer), user, pushes)
    if words is None:
        assert why is None
    else:
        assert why is not None and words in why
        assert why.startswith("image registry.example.com:5000/npufleet/triton")
        assert why.endswith(": correct it")


def test_without_an_engine_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, Played(FileNotFoundError("no socket"), there=False)) is None


def test_a_login_goes_to_the_engine_alone_and_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Played((500, json.dumps({"message": f"401 for {LOGIN[0]}:{LOGIN[1]}"})))
    assert LOGIN[1] not in str(ask(monkeypatch, engine))
    assert LOGIN[1] not in str(ask(monkeypatch, engine, pushes=True))
    (got, manifest, body, headers), (put, auth, login, none) = engine.asked
    assert (got, manifest, body) == ("GET", f"/distribution/{LOCKED}/json", None)
    sent = {"username": LOGIN[0], "password": LOGIN[1], "serveraddress": "registry.example.com:5000"}
    assert json.loads(base64.urlsafe_b64decode(headers["X-Registry-Auth"])) == sent
    assert (put, auth, login, none) == ("POST", "/auth", sent, None)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Error pulling image r/n:sha256:1 - 404 Client Error for http+docker://localhost/v1.41/images/create?tag=x: Not Found "
            '("manifest for r/n@sha256:1 not found: manifest unknown")',
            "manifest for r/n@sha256:1 not found: manifest unknown",
        ),
        ("Error pushing image r/n:1: no basic auth credentials", "Error pushing image r/n:1: no basic auth credentials"),
        ('Error ("with r3gistry-secret\nin\tit \x1b[31m")', "with *** in it \\x1b[31m"),
        ("x" * 500, "x" * 197 + "..."),
    ],
)
def test_reason_of_an_engine(said: str, reason: str) -> None:
    assert FilterModule().filters()["engine_reason"](said, LOGIN[1]) == reason
