"""The wrapper around runc: what a machine without CAP_SYS_RESOURCE cannot grant is not asked for, and all else is left as it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

WRAPPER = Path(__file__).resolve().parents[3] / "lab/runtime/npufleet-lab-runc"
MEMLOCK = {"type": "RLIMIT_MEMLOCK", "hard": 18446744073709551615, "soft": 18446744073709551615}
STACK, NOFILE = {"type": "RLIMIT_STACK", "hard": 67108864, "soft": 67108864}, {"type": "RLIMIT_NOFILE", "hard": 1, "soft": 1}
# Whoever says it in a text asks for nothing
TEXT = 'x="CAP_SYS_RESOURCE",{"type":"RLIMIT_MEMLOCK"},"oomScoreAdj":-1'


def process(capabilities: list[str], limits: list[dict[str, Any]], score: int | None = -500) -> dict[str, Any]:
    given = {"args": [TEXT], "capabilities": {"bounding": capabilities, "permitted": capabilities}, "rlimits": limits}
    return given if score is None else {**given, "oomScoreAdj": score}


@pytest.fixture
def called(tmp_path: Path) -> Any:
    """Calls the wrapper above a runc that writes down what it was called with, and returns that."""
    runc, wrapper = tmp_path / "runc", tmp_path / "wrapper"
    runc.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\n')
    wrapper.write_text(WRAPPER.read_text().replace("/usr/sbin/runc", str(runc)))
    for program in (runc, wrapper):
        program.chmod(0o755)

    def call(*words: str) -> list[str]:
        subprocess.run([wrapper, *words], check=True)
        return (tmp_path / "called").read_text().splitlines()

    return call


def written(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    # As Go writes it
    path.write_text(json.dumps(content, separators=(",", ":")))
    return path


@pytest.mark.parametrize(
    "capabilities",
    [["CAP_SYS_RESOURCE"], ["CAP_SYS_RESOURCE", "CAP_B"], ["CAP_A", "CAP_SYS_RESOURCE"], ["CAP_A", "CAP_SYS_RESOURCE", "CAP_B"]],
)
@pytest.mark.parametrize("limits", [[MEMLOCK], [MEMLOCK, STACK], [STACK, MEMLOCK], [STACK, MEMLOCK, NOFILE], []])
def test_a_container_is_started_without_what_cannot_be_granted(
    called: Any, tmp_path: Path, capabilities: list[str], limits: list[dict[str, Any]]
) -> None:
    rest = [name for name in capabilities if name != "CAP_SYS_RESOURCE"], [limit for limit in limits if limit != MEMLOCK]
    config = written(tmp_path / "bundle/config.json", {"hostname": "x", "process": process(capabilities, limits)})
    words = ["--root", "/run/runc", "create", "--bundle", str(config.parent), "--pid-file", "/run/pid", "name"]
    assert called(*words) == words
    assert json.loads(config.read_text()) == {"hostname": "x", "process": process(*rest, score=None)}
    command = written(tmp_path / "process.json", process(capabilities, limits, score=300))
    assert called("exec", "--process", str(command), "name")[0] == "exec"
    assert json.loads(command.read_text()) == process(*rest, score=300)


def test_what_starts_nothing_touches_no_file(called: Any, tmp_path: Path) -> None:
    config = written(tmp_path / "bundle/config.json", {"process": process(["CAP_SYS_RESOURCE"], [MEMLOCK])})
    before = config.read_text()
    for words in (["delete", "--force", "name"], ["--version"], ["kill", "--bundle", str(config.parent), "name"]):
        assert called(*words) == words
    assert config.read_text() == before
    with pytest.raises(subprocess.CalledProcessError):
        called("create", "--bundle", str(tmp_path / "nowhere"), "name")
