"""The module on a host: which container is meant, what it reads, and how it says that it cannot."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.action import adoption as action
from ansible_collections.npufleet.triton.plugins.module_utils.triton.options import key_headers
from ansible_collections.npufleet.triton.plugins.modules import adoption as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text
from helpers import FakeEngine, fixture, http_server, run_module

CONTAINERS = fixture("hand_made_containers.json")
GUIDE = CONTAINERS["guide"]
STORE = "/var/lib/npufleet/served"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A model repository as the server sees it, with what does not belong to a model, and links of a container's own."""
    model = tmp_path / "models/words/1"
    model.mkdir(parents=True)
    (model / "model.py").write_text("pass\n")
    (model / "words.rbln").write_bytes(b"x" * (subject.MAX_SMALL_FILE + 1))
    (model / "__pycache__").mkdir()
    (model / "__pycache__/model.pyc").write_text("")
    (tmp_path / "models/words/config.pbtxt").write_text('name: "words"\n')
    (tmp_path / "data").mkdir()
    (tmp_path / "data/labels.txt").write_text("a\n")
    (tmp_path / "models/words/labels.txt").symlink_to("/data/labels.txt")
    return tmp_path


def test_a_model_is_read_as_its_server_sees_it(root: Path) -> None:
    files, contents = subject.model(str(root), "/models/words")
    assert sorted(files) == ["1/model.py", "1/words.rbln", "config.pbtxt", "labels.txt"]
    assert files["labels.txt"]["at"] == str(root / "data/labels.txt")
    assert files["1/words.rbln"]["size"] == subject.MAX_SMALL_FILE + 1
    assert sorted(contents) == ["1/model.py", "config.pbtxt", "labels.txt"]
    assert base64.b64decode(contents["labels.txt"]) == b"a\n"


def test_links_in_a_circle_are_a_message(root: Path) -> None:
    (root / "models/round").symlink_to("/models/round")
    with pytest.raises(subject.Failure, match="/models/round is a loop of links"):
        subject.resolve(str(root), "/models/round")


def test_a_link_does_not_lead_out_of_the_container(root: Path) -> None:
    (root / "models/out").symlink_to("/etc/passwd")
    assert subject.resolve(str(root), "/models/out") == str(root / "etc/passwd")


def engine(monkeypatch: pytest.MonkeyPatch, processes: dict[str, int | None]) -> FakeEngine:
    """An engine with these containers; a number is the process of a server in it."""
    answers: dict[str, Any] = {"/containers/json": [{"Id": name, "Names": ["/" + name]} for name in processes]}
    for name in processes:
        answers[f"/containers/{name}/json"] = {**GUIDE, "Name": "/" + name}
    found = {name: {"pid": pid, "argv": ["tritonserver"]} if pid else None for name, pid in processes.items()}
    monkeypatch.setattr(subject, "process_of", lambda _engine, name: found[name])
    fake = FakeEngine(answers)
    monkeypatch.setattr(subject, "Engine", fake)
    return fake


def test_the_only_server_is_the_one_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    inspect, process = subject.find(engine(monkeypatch, {"db": None, "hand": 7}), None)
    assert (inspect["Name"], process["pid"]) == ("/hand", 7)


class Ending(FakeEngine):
    """An engine whose container ends while it is asked for its processes."""

    def get(self, resource: str) -> Any:
        if resource.endswith("/top"):
            raise OSError("the engine answered 409: Container check is not running")
        return super().get(resource)


@pytest.mark.parametrize("state", [None, {"Running": False}, {"Running": True, "Restarting": True}])
def test_a_container_that_ends_meanwhile_has_no_server(state: Any) -> None:
    there = {"/containers/check/json": {"State": state}} if state else {}
    assert subject.process_of(Ending(there), "check") is None


def test_a_running_container_whose_processes_cannot_be_read_is_told() -> None:
    with pytest.raises(OSError, match="409"):
        subject.process_of(Ending({"/containers/check/json": {"State": {"Running": True}}}), "check")


@pytest.mark.parametrize(
    ("processes", "name", "said"),
    [
        ({"db": None}, None, "no running container has a tritonserver, expected one to adopt"),
        ({"a": 1, "b": 2, "c": None}, None, "more than one container: a, b; name the one to adopt"),
        ({"a": 1}, "b", "container b does not exist, "),
        ({"db": None}, "db", "container db runs no tritonserver, "),
    ],
)
def test_which_container_is_meant(
    monkeypatch: pytest.MonkeyPatch, processes: dict[str, int | None], name: str | None, said: str
) -> None:
    engine(monkeypatch, processes)
    result = run_module(subject, {"name": name, "store": STORE} if name else {"store": STORE})
    assert result["failed"]
    assert said in result["msg"]


def test_a_container_that_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeEngine({"/containers/hand/json": {**GUIDE, "State": {"Running": False, "Status": "exited"}}})
    monkeypatch.setattr(subject, "Engine", fake)
    assert "container hand is exited" in run_module(subject, {"name": "hand", "store": STORE})["msg"]


def test_no_engine_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "Engine", FakeEngine(None))
    result = run_module(subject, {"store": STORE})
    assert result["failed"]
    assert "no engine: the engine and the server must run" in result["msg"]


def test_it_is_called_by_its_action() -> None:
    assert "_request: missing required arguments: store: only the controller sets it" in run_module(subject, {})["msg"]


def test_a_process_is_below_its_ancestors_only() -> None:
    assert subject.is_descendant(os.getpid(), os.getpid())
    assert subject.is_descendant(os.getpid(), os.getppid())
    assert not subject.is_descendant(os.getppid(), os.getpid())


def test_pieces_make_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "words.rbln"
    path.write_bytes(b"0123456789")
    piece = {"path": str(path), "offset": 4, "size": 4}
    assert base64.b64decode(run_module(subject, {"store": STORE, "piece": piece})["data"]) == b"4567"


def test_host_vars_evaluate_what_the_project_wrote_and_nothing_else() -> None:
    text = host_text.variables({"ours": host_text.Template("{{ vault_x }}"), "theirs": "{{ lookup('pipe', 'id') }}"})
    assert "ours: '{{ vault_x }}'" in text
    assert "theirs: !unsafe" in text


@pytest.mark.parametrize(("name", "reason"), [("guide", ""), ("guide_rm", "--rm")])
def test_what_could_not_be_undone(name: str, reason: str) -> None:
    found = {"inspect": CONTAINERS[name], "image": {}, "process": {"argv": ["tritonserver"], "environment": {}, "main": False}}
    assert reason in " ".join(action.obstacles(found))
    assert bool(action.obstacles(found)) is bool(reason)


def test_a_server_started_inside_with_a_variable_of_its_own_is_started_again_so() -> None:
    process = {"pid": 7, "argv": ["tritonserver", "--http-restricted-api=trace:key=s3cr3t-value"], "environment": {"LANG": "C"},
               "main": False, "directory": "/srv", "user": "0"}  # fmt: skip
    found = {"inspect": GUIDE, "image": {}, "process": process}
    started = action.exec_options(found)
    # The command line stays on the host
    assert started == {"pid": 7, "options": ["--workdir", "/srv", "--user", "0", "--env", "LANG=C"]}
    assert action.exec_options({**found, "process": {**process, "main": True}}) == {}
    # A value of the vault under another name
    process["environment"] = {"ARGUMENTS": "--key=s3cr3t-value"}
    assert action.exec_options(found, ["s3cr3t-value"]) == {}
    (reason,) = action.obstacles(found, ["s3cr3t-value"])
    assert "ARGUMENTS" in reason and "s3cr3t" not in reason


def test_a_secret_of_a_shell_could_not_be_given_again() -> None:
    process = {"argv": ["tritonserver"], "environment": {"HF_TOKEN": "hf_1234567"}, "main": False}
    (reason,) = action.obstacles({"inspect": GUIDE, "image": {}, "process": process})
    assert "HF_TOKEN" in reason
    assert "hf_1234567" not in reason


GOOD = {"1/model.py": {"size": 1, "sha256": "0" * 64, "at": "/x"}}


def found_there(container: str = "/hand", model: str = "words", **file: Any) -> dict[str, Any]:
    files = {file.pop("path", "1/model.py"): {**GOOD["1/model.py"], **file}}
    return {"inspect": {"Name": container}, "models": {model: {"files": files}}}


def test_names_of_a_host_that_may_become_paths() -> None:
    action.check_names(found_there())
    action.check_names(found_there(container="/hand_1.x-y", model="텍스트-v1.2", path="1/a b.txt"))


PATHS = ["/etc/x", "../x", "a/../../x", "..", ".", "", "a\nb", "a\0b", "\x1b[2J"]


@pytest.mark.parametrize("path", [*PATHS, "a/b", "{{ x }}", "-x"])
def test_names_of_containers_and_models_that_are_none(path: str) -> None:
    with pytest.raises(host_text.InvalidText, match="container name is "):
        action.check_names(found_there(container="/" + path))
    with pytest.raises(host_text.InvalidText, match="model name is "):
        action.check_names(found_there(model=path))


@pytest.mark.parametrize("path", PATHS)
def test_files_that_lead_elsewhere_and_digests_that_are_none(path: str) -> None:
    with pytest.raises(host_text.InvalidText, match="the path is"):
        action.check_names(found_there(path=path))
    with pytest.raises(host_text.InvalidText, match="expected a SHA-256 digest"):
        action.check_names(found_there(sha256=path))


@pytest.mark.parametrize("size", [-1, "1", None, 1.5])
def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(host_text.InvalidText, match="bytes"):
        action.check_names(found_there(size=size))


def test_a_piece_is_no_larger_than_it_was_said_to_be(tmp_path: Path) -> None:
    """A host that never ends would fill the controller."""
    bringing = action.ActionModule.__new__(action.ActionModule)
    bringing.arguments, bringing.request = {}, {}
    bringing.call_module = lambda *_arguments: {"data": base64.b64encode(b"x" * 100).decode()}  # type: ignore[method-assign]
    with pytest.raises(host_text.InvalidText, match="/x has 100 more bytes, expected 10 in total"):
        bringing.copy_file({"size": 10, "sha256": "0" * 64, "at": "/x"}, None, str(tmp_path / "a/b"), {})


def test_a_server_that_asks_for_a_key_is_asked_with_its_own() -> None:
    answers: dict[str, Any] = {"GET /v2": (200, {"version": "2.42.0"}), "POST /v2/repository/index": (200, [])}
    with http_server(answers) as triton:
        subject.served("127.0.0.1", triton.port, key_headers(["tritonserver", "--http-restricted-api=health:a-key=secret"]))
        assert [header.get("a-key") for header in triton.headers] == ["secret", "secret"]


def test_a_file_of_a_model_that_becomes_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, secret = tmp_path / "root", tmp_path / "shadow"
    (root / "models/m/1").mkdir(parents=True)
    (root / "models/m/config.pbtxt").write_text("name: 'm'")
    (root / "models/m/1/model.bin").write_bytes(b"weights")
    os.link(root / "models/m/1/model.bin", root / "models/cached")
    secret.write_text("root's alone")
    files, contents = subject.model(str(root), "/models/m")
    assert sorted(files) == sorted(contents) == ["1/model.bin", "config.pbtxt"]
    listed = list(subject.files_of(str(root), "/models/m"))
    monkeypatch.setattr(subject, "files_of", lambda *_arguments: listed)
    for gone, target in (("models/m/config.pbtxt", secret), ("models/m/1", tmp_path)):
        (root / gone).rename(root / "moved")
        (root / gone).symlink_to(target)
        with pytest.raises(subject.Failure, match="do not change the model"):
            subject.model(str(root), "/models/m")
        (root / gone).unlink()
        (root / "moved").rename(root / gone)


def test_requests_are_sent_to_the_server_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_server({"POST /v2/models/words/infer": (200, {"outputs": []})}) as triton:
        monkeypatch.setattr(subject, "find", lambda _engine, _name: ({}, {"argv": []}))
        monkeypatch.setattr(subject.options, "endpoint", lambda _inspect, _argv: ("127.0.0.1", triton.port))
        found = subject.infer(FakeEngine({}), {"name": "guide", "requests": {"words": "{}"}})
    assert found == {"words": (200, {"outputs": []})}
