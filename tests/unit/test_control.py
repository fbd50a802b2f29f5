"""Loads and unloads by gRPC from inside the container: what is sent, what comes back, and what of it anybody can see."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control
from helpers import unix_server
from small_triton import SmallTriton, small_triton

SECRET = "0123456789-secret"


@pytest.fixture
def triton() -> Iterator[SmallTriton]:
    with small_triton() as kept:
        yield kept


def here(command: list[str], seconds: float) -> tuple[int, str]:
    """As in the container, whose environment may have a proxy."""
    proxies = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    assert SECRET not in " ".join(command)
    done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, timeout=seconds, env=proxies, check=False)
    return done.returncode, done.stdout + done.stderr


def ask(triton: SmallTriton, verb: str, model: str, timeout: float = 30, key: Any = None) -> tuple[str, str]:
    return control.send(here, verb, model, timeout, key, triton.grpc_port)


def test_what_is_asked_arrives(triton: SmallTriton) -> None:
    assert ask(triton, "load", "double") == ("OK", "")
    assert ask(triton, "unload", "double") == ("OK", "")
    long = "빈" * 50
    assert ask(triton, "unload", long) == ("OK", "")
    assert triton.asked == ["load double", "unload double False", f"unload {long} False"]


def test_tritons_own_words_come_back_and_not_without_end(triton: SmallTriton) -> None:
    code, words = ask(triton, "load", "빈 모델")
    assert (code, words[:31]) == ("INVALID_ARGUMENT", "failed to load '빈 모델': a long r")
    assert len(words) == 4000


def test_the_key_is_read_where_it_lies(triton: SmallTriton, tmp_path: Path) -> None:
    triton.key = SECRET
    key = {"name": "triton-key", "path": str(tmp_path / "key")}
    assert ask(triton, "load", "double", key=key)[0] == "UNAVAILABLE"
    (tmp_path / "key").write_text(SECRET + "\n")
    assert ask(triton, "load", "double", key=key) == ("OK", "")


def test_a_load_without_an_end_and_a_server_that_is_gone(triton: SmallTriton) -> None:
    triton.pause = 2
    assert ask(triton, "load", "double", timeout=0.2)[0] == control.DEADLINE_EXCEEDED
    triton.grpc_port = 9
    assert ask(triton, "load", "double")[0] == control.UNAVAILABLE


def test_a_container_without_the_client(triton: SmallTriton) -> None:
    with pytest.raises(
        control.ControlError, match="ended with 1 and without a response: ModuleNotFoundError: No module named 'grpc'"
    ):
        control.send(lambda *_asked: (1, "ModuleNotFoundError: No module named 'grpc'"), "load", "double", 1, None)


# By the engine


def frame(stream: int, words: str) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(words.encode()).to_bytes(4, "big") + words.encode()


def test_a_command_is_run_in_the_container_by_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "POST /containers/triton/exec": (201, {"Id": "e1"}),
        "POST /exec/e1/start": (200, frame(2, "a warning\n") + frame(1, '{"code": "OK", ') + frame(1, '"message": ""}\n')),
        "GET /exec/e1/json": (200, {"ExitCode": 0}),
    }
    with unix_server(tmp_path / "engine.sock", answers) as engine:
        monkeypatch.setattr(control, "Engine", lambda timeout: Engine(str(tmp_path / "engine.sock"), timeout))
        assert control.send(control.container_runner("triton"), "load", "double", 5, None) == ("OK", "")
        assert json.loads(engine.bodies[0])["Cmd"][:2] == ["python3", "-c"]


@pytest.mark.parametrize("status", [404, 409, 500])
def test_an_engine_that_does_not_run_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    answers: dict[str, Any] = {"POST /containers/triton/exec": (status, {"message": "no such container, or it does not run"})}
    with unix_server(tmp_path / "engine.sock", answers):
        monkeypatch.setattr(control, "Engine", lambda timeout: Engine(str(tmp_path / "engine.sock"), timeout))
        with pytest.raises(control.ControlError, match=f"the engine answered {status}: .*no such container"):
            control.send(control.container_runner("triton"), "load", "double", 5, None)
