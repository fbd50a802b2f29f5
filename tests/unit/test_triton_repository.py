"""Loads and unloads of a server that behaves as Triton does: what it answers, what it keeps, and where it says nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control, repository
from helpers import URL_UNSAFE_NAMES, http_server

OLD, NEW = "0" * 64, "e" * 64
TRACEBACK = (
    "load failed for model 'digits': version 1 is at UNAVAILABLE state: Internal: RBLNRuntimeError: LOADING_FILE_NOT_FOUND;\n"
)


class Triton:
    """A server in explicit mode. `disk` is what lies in its repository, `loaded` what it has in memory.

    A model on disk: {"release", "versions", "steps", "fails": its reason, "hangs": seconds, "ignored": loads that are
    answered 200 and do nothing}.
    """

    def __init__(self, disk: dict[str, dict[str, Any]], loaded: dict[str, str]) -> None:
        self.disk = disk
        self.loaded = {
            name: {"release": release, "versions": disk.get(name, {}).get("versions", ["1"])} for name, release in loaded.items()
        }
        self.steps = {name: entry.get("steps", []) for name, entry in disk.items()}
        self.broken: dict[str, str] = {}
        self.did: list[str] = []
        self.by_grpc: list[dict[str, Any]] = []

    def get(self, asked: str, _default: Any) -> tuple[int, Any]:
        path = asked.split()[1]
        words = path.strip("/").split("/")
        if path == "/v2/repository/index":
            return 200, self.index()
        if words[:3] == ["v2", "repository", "models"]:
            self.did.append(f"{words[4]} {words[3]}")
            return self.load(words[3]) if words[4] == "load" else self.unload(words[3])
        if words[-1] == "config" and words[2] in self.loaded:
            config: dict[str, Any] = {"parameters": {"npufleet_release": {"string_value": self.loaded[words[2]]["release"]}}}
            if self.steps.get(words[2]):
                config["ensemble_scheduling"] = {"step": [{"model_name": step} for step in self.steps[words[2]]]}
            return 200, config
        return 400, {"error": f"nothing at {asked}"}

    def index(self) -> list[dict[str, Any]]:
        found = []
        for name in sorted({*self.disk, *self.loaded}):
            for version in self.loaded.get(name, {}).get("versions", []):
                found.append({"name": name, "version": version, "state": "READY"})
            if name not in self.loaded:
                found.append({"name": name, "version": "1", "state": "UNAVAILABLE", "reason": self.broken.get(name, "unloaded")})
        return found

    def load(self, name: str) -> tuple[int, Any]:
        model = self.disk.get(name)
        if model is None:
            return 500, {"error": f"failed to load '{name}', failed to poll from model repository"}
        time.sleep(model.get("hangs", 0))
        if model.get("fails"):
            return 400, {"error": model["fails"]}
        if model.get("ignored", 0) > 0 and name in self.loaded:
            model["ignored"] -= 1
            return 200, b""
        self.loaded[name] = {"release": model["release"], "versions": model["versions"]}
        # An ensemble that a step is missing of comes back with it
        for ensemble, steps in self.steps.items():
            if name in steps and self.broken.pop(ensemble, None):
                self.loaded[ensemble] = {"release": self.disk[ensemble]["release"], "versions": self.disk[ensemble]["versions"]}
        return 200, b""

    def unload(self, name: str) -> tuple[int, Any]:
        self.loaded.pop(name, None)
        for ensemble, steps in self.steps.items():
            if name in steps and self.loaded.pop(ensemble, None):
                self.broken[ensemble] = f"ensemble needs {name}"
        return 200, b""


def model(release: str = NEW, versions: tuple[str, ...] = ("1",), **more: Any) -> dict[str, Any]:
    return {"release": release, "versions": list(versions), **more}


def inside(triton: Triton) -> Any:
    """Runs the client of the container: what it is asked goes to the same server, as if by gRPC."""

    def runner(command: list[str], seconds: float) -> tuple[int, str]:
        asked = json.loads(command[3])
        triton.by_grpc.append(asked)
        assert command[:3] == ["python3", "-c", control.PROGRAM] and seconds > asked["timeout"]
        hangs = triton.disk.get(asked["model"], {}).get("hangs", 0)
        if hangs > asked["timeout"]:
            time.sleep(asked["timeout"])
            return 0, json.dumps({"code": "DEADLINE_EXCEEDED", "message": "Deadline Exceeded"})
        status, answer = triton.get("POST /v2/repository/models/{model}/{verb}".format(**asked), None)
        code = {200: "OK", 400: "INVALID_ARGUMENT", 500: "INTERNAL"}[status]
        return 0, "a warning\n" + json.dumps({"code": code, "message": "" if status == 200 else answer["error"]}) + "\n"

    return runner


def change(port: int, models: dict[str, Any], timeout: float = 300, key: Any = None, runner: Any = None) -> dict[str, Any]:
    """What became of a change; `failed` with its reason where it could not be begun."""
    try:
        made = repository.Change(repository.Server("127.0.0.1", port, timeout, key, runner), models)
        made.apply()
    except repository.Refused as error:
        return {"failed": True, "msg": str(error)}
    names = ("loaded", "unloaded", "reasons", "hung")
    unchanged = sorted(set(models) - set(made.to_load))
    result = {"failed": bool(made.why()), "msg": made.why(), "unchanged": unchanged}
    return {**result, **{name: getattr(made, name) for name in names}}


def run(triton: Triton, models: dict[str, Any], grpc: bool = True, **more: Any) -> dict[str, Any]:
    with http_server(triton) as server:  # type: ignore[arg-type]
        return change(server.port, models, runner=inside(triton) if grpc else None, **more)


def test_only_what_differs_is_loaded() -> None:
    disk = {name: model() for name in ("digits", "faces", "words")}
    triton = Triton(disk, {"digits": OLD, "faces": NEW, "gone": OLD})
    result = run(triton, {name: model() for name in disk})
    assert triton.did == ["unload gone", "load digits", "load words"]
    assert (result["failed"], result["loaded"]) == (False, ["digits", "words"])
    assert (result["unloaded"], result["unchanged"]) == (["gone"], ["faces"])


def test_foreign_model_of_another_alphabet_is_unloaded() -> None:
    triton = Triton({"digits": model()}, {"digits": NEW, "\ubaa8\ub378": OLD})
    assert run(triton, {"digits": model()})["unloaded"] == ["\ubaa8\ub378"]
    assert triton.did == ["unload \ubaa8\ub378"]


@pytest.mark.parametrize("name", URL_UNSAFE_NAMES)
def test_foreign_model_that_no_request_can_name_keeps_no_other_from_being_loaded(name: str) -> None:
    triton = Triton({"digits": model()}, {"digits": OLD, name: OLD})
    result = run(triton, {"digits": model()}, grpc=False)
    assert (result["failed"], result["loaded"], list(result["reasons"])) == (True, ["digits"], [name])
    assert "so no request can unload it. Restart the container" in result["msg"]
    assert triton.did == ["load digits"]


def test_nothing_to_do_asks_for_nothing() -> None:
    triton = Triton({"digits": model()}, {"digits": NEW})
    result = run(triton, {"digits": model()})
    assert (result["loaded"], result["unchanged"], triton.did) == ([], ["digits"], [])


def test_another_set_of_versions_is_a_difference() -> None:
    triton = Triton({"digits": model(versions=("1", "2"))}, {"digits": NEW})
    triton.loaded["digits"]["versions"] = ["1"]
    assert run(triton, {"digits": model(versions=("1", "2"))})["loaded"] == ["digits"]


def test_steps_come_before_their_ensemble_and_go_after_it() -> None:
    disk = {"all": model(steps=["pre", "post"]), "post": model(), "pre": model()}
    triton = Triton(disk, {})
    assert run(triton, disk)["loaded"] == ["post", "pre", "all"]
    triton.did.clear()
    assert run(triton, {})["unloaded"] == ["all", "pre", "post"]
    assert triton.did == ["unload all", "unload pre", "unload post"]


def test_an_ensemble_whose_step_is_unloaded_first_is_loaded_again() -> None:
    disk = {"all": model(steps=["pre"]), "pre": model()}
    triton = Triton(disk, {"all": NEW, "pre": OLD})
    wanted = {"all": disk["all"], "pre": {**disk["pre"], "switch": "unload_first"}}
    result = run(triton, wanted)
    assert triton.did == ["unload all", "unload pre", "load pre", "load all"]
    assert (result["loaded"], result["unloaded"]) == (["pre", "all"], [])


@pytest.mark.parametrize(("total", "first"), [(100, True), (120, False)])
def test_what_has_no_room_beside_itself_is_unloaded_first(monkeypatch: pytest.MonkeyPatch, total: int, first: bool) -> None:
    devices = [{"npu": 0, "memory_total": 500}, {"npu": 1, "memory_total": total}]
    monkeypatch.setattr(repository.vendor_tool, "query_tool", lambda: {"devices": devices})
    wanted = {"digits": model(memory=[0, 40]), "faces": model(memory=[40, 40])}
    triton = Triton({"digits": model(), "faces": model()}, {"digits": OLD, "faces": NEW})
    assert run(triton, wanted)["loaded"] == ["digits"]
    assert triton.did == (["unload digits"] if first else []) + ["load digits"]


def test_a_load_that_is_answered_and_not_done_is_done_by_unloading() -> None:
    triton = Triton({"digits": model(ignored=1)}, {"digits": OLD})
    assert run(triton, {"digits": model()})["loaded"] == ["digits"]
    assert triton.did == ["load digits", "unload digits", "load digits"]


def test_what_is_on_its_way_is_looked_at_again_soon_and_then_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = Triton({"digits": {"release": NEW, "versions": ["1"]}}, {"digits": OLD})
    slept: list[float] = []
    moving = [[{"name": "digits", "version": "1", "state": "LOADING"}]] * 6
    as_it_is = triton.index

    def index() -> list[dict[str, Any]]:
        return moving.pop() if triton.did and moving else as_it_is()

    monkeypatch.setattr(triton, "index", index)
    monkeypatch.setattr(repository.time, "sleep", slept.append)
    assert run(triton, {"digits": model()})["loaded"] == ["digits"]
    assert [pause for pause in slept if pause] == [0.02, 0.04, 0.08, 0.16, 0.2, 0.2]


def test_a_server_that_keeps_another_release_is_told() -> None:
    triton = Triton({"digits": model(OLD)}, {"digits": OLD})
    result = run(triton, {"digits": model()})
    assert result["failed"] is True
    assert f"the server accepted the load, but serves version 1 READY {OLD[:12]}, expected release {NEW[:12]}" in result["msg"]


def test_every_refusal_is_told_in_tritons_words_and_the_others_are_loaded() -> None:
    disk = {"all": model(steps=["digits"]), "digits": model(fails=TRACEBACK), "faces": model()}
    triton = Triton(disk, {"digits": OLD})
    result = run(triton, {**disk, "words": model()})
    assert result["failed"] is True
    assert result["loaded"] == ["faces"]
    assert result["reasons"] == {
        "digits": f"status INVALID_ARGUMENT: {TRACEBACK.strip()}",
        "all": "not loaded, because its step digits was not loaded",
        "words": "status INTERNAL: failed to load 'words', failed to poll from model repository",
    }
    for words in (f"\n  - model digits: status INVALID_ARGUMENT: {TRACEBACK.strip()}", "\n  - model words: status INTERNAL"):
        assert words in result["msg"]
    # The old one goes on: nobody unloaded it
    assert triton.loaded["digits"]["release"] == OLD


def test_a_load_that_hangs_is_told_as_such_and_nothing_else_is_tried() -> None:
    disk = {"digits": model(hangs=1.5), "faces": model()}
    triton = Triton(disk, {})
    result = run(triton, disk, timeout=1)
    assert (result["failed"], result["hung"], result["loaded"]) == (True, ["digits"], [])
    assert "model digits: the load did not end within 1 s: only a restart of the server ends it" in result["msg"]
    assert "model faces: not tried, because digits hangs" in result["msg"]


def test_server_that_is_not_there() -> None:
    with http_server({}) as gone:
        pass
    result = change(gone.port, {"digits": model()})
    assert (result["failed"], result["msg"]) == (True, f"the server does not answer on port {gone.port}")


# How it is asked


def test_loads_and_unloads_go_by_grpc_and_no_key_is_in_their_command_line(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("0123456789-secret\n")
    triton = Triton({"digits": model()}, {"gone": OLD})
    key = {"name": "npufleet-key", "path": str(path)}
    assert run(triton, {"digits": model()}, key=key)["loaded"] == ["digits"]
    assert [(call["verb"], call["model"], call["key"]) for call in triton.by_grpc] == [
        ("unload", "gone", key),
        ("load", "digits", key),
    ]
    assert "secret" not in json.dumps(triton.by_grpc)


def test_a_server_without_grpc_is_asked_over_http_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123456789-secret\n")
    triton = Triton({"digits": model()}, {"digits": OLD, "gone": OLD})
    with http_server(triton) as server:  # type: ignore[arg-type]
        key = {"name": "npufleet-key", "path": str(tmp_path / "key")}
        result = change(server.port, {"digits": model()}, key=key)
        assert {headers.get("npufleet-key") for headers in server.headers} == {"0123456789-secret"}
    assert (result["loaded"], result["unloaded"], triton.by_grpc) == (["digits"], ["gone"], [])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            (1, "No module named 'grpc'"),
            "came from the server: the client in the container ended with 1 and without a response: No module",
        ),
        ((0, '{"code": "UNAVAILABLE", "message": "Socket closed"}'), "the server did not complete the request: Socket closed"),
        (
            (0, '{"code": "UNAVAILABLE", "message": "This protocol is restricted"}'),
            "status UNAVAILABLE: This protocol is restricted",
        ),
        (
            OSError("the engine answered 409: is not running"),
            "no response came from the server: the engine answered 409",
        ),
    ],
)
def test_a_client_that_cannot_ask_is_told_as_such(said: Any, words: str) -> None:
    triton = Triton({"digits": model()}, {})
    runner = mock.Mock(side_effect=[said])
    with http_server(triton) as server:  # type: ignore[arg-type]
        result = change(server.port, {"digits": model()}, runner=runner)
    assert (result["failed"], result["hung"]) == (True, [])
    assert words in result["reasons"]["digits"]
