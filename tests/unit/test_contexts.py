"""Who has the cards open: which contexts count, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.engine import contexts
from helpers import FakeEngine

OWN, OTHER = "a" * 64, "b" * 64
PROC = {
    "/proc/10/comm": "triton_python_b\n",
    "/proc/10/cgroup": f"0::/system.slice/docker-{OWN}.scope\n",
    "/proc/20/comm": "python3\n",
    "/proc/20/cgroup": f"12:devices:/docker/{OTHER}\n11:cpu:/docker/{OTHER}\n",
    "/proc/30/comm": "sleep\n",
    "/proc/30/cgroup": "0::/user.slice\n",
    "/proc/40/comm": "kworker\n",
}
SERVER = {"npu": 0, "cards": ["rbln0"], "pid": 10, "process": "triton_python_backend_stub"}
CONTAINER = {"npu": 1, "cards": ["rbln1"], "pid": 20, "process": "python3"}
PROCESS = {"npu": 0, "cards": ["rbln0"], "pid": 30, "process": "sleep"}
GONE = {"npu": 1, "cards": ["rbln1"], "pid": 99, "process": "tritonserver"}
# The same number, but another process by now: or the container's own, counted inside it
REUSED = {"npu": 1, "cards": ["rbln1"], "pid": 40, "process": "tritonserver"}


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Any:
    """contexts.read_use on a host whose container runs or not, whose tool lists these holders."""
    monkeypatch.setattr(contexts, "read_text", PROC.get)
    monkeypatch.setattr(contexts, "PROC", "/nowhere")

    def ask(*holders: dict[str, Any], running: bool = True, tool: dict[str, Any] | None = None) -> dict[str, Any]:
        answers = {
            "/containers/triton/json": {
                "Id": OWN,
                "Name": "/triton",
                "State": {"Running": running, "Status": "?"},
            },
            f"/containers/{OTHER}/json": {"Id": OTHER, "Name": "/other", "State": {"Running": True, "Status": "running"}},
        }
        monkeypatch.setattr(contexts, "Engine", FakeEngine(answers))
        monkeypatch.setattr(contexts, "query_tool", lambda: tool or {"holders": list(holders)})
        return contexts.read_use("triton")

    return ask


def test_the_running_containers_own_contexts_are_none(look: Any) -> None:
    assert look(SERVER) == {"running": True, "reasons": []}


def test_once_it_is_stopped_they_count(look: Any) -> None:
    left = look(SERVER, running=False)
    assert left["running"] is False
    assert left["reasons"] == [
        f"rbln0 held by triton_python_backend_stub (pid 10) in container {OWN[:12]}: stop it (`docker stop {OWN[:12]}`)"
    ]


def test_others_are_named_each_with_what_to_do(look: Any) -> None:
    assert look(SERVER, CONTAINER, PROCESS, {**PROCESS, "npu": 1, "cards": ["rbln1"]})["reasons"] == [
        "rbln1 held by python3 (pid 20) in container other: stop it (`docker stop other`)",
        "rbln0, rbln1 held by sleep (pid 30): end it (`kill 30`)",
    ]


@pytest.mark.parametrize("holder", [GONE, REUSED])
def test_a_process_that_is_not_to_be_found_counts_only_without_a_running_container(look: Any, holder: dict[str, Any]) -> None:
    assert look(holder)["reasons"] == []
    (reason,) = look(holder, running=False)["reasons"]
    assert reason == (
        f"rbln1 held by tritonserver (pid {holder['pid']}), which has ended: reload the module "
        "(`modprobe -r rebellions && modprobe rebellions`), or reboot the host"
    )


def test_a_tool_that_does_not_answer_is_no_free_card(look: Any) -> None:
    assert look(tool={"error": "rbln-stat ended with 3: no driver"}) == {
        "running": True,
        "reasons": ["cannot read which processes have the cards open: rbln-stat ended with 3: no driver"],
    }


def test_without_an_engine_every_context_counts(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    look(PROCESS, CONTAINER)
    monkeypatch.setattr(contexts, "Engine", FakeEngine(None))
    assert contexts.read_use("triton") == {
        "running": False,
        "reasons": [
            "rbln0 held by sleep (pid 30): end it (`kill 30`)",
            f"rbln1 held by python3 (pid 20) in container {OTHER[:12]}: stop it (`docker stop {OTHER[:12]}`)",
        ],
    }


def test_whoever_loads_the_module_anew_passes_over_what_is_gone(look: Any) -> None:
    assert contexts_left(look, GONE) == []
    (reason,) = contexts_left(look, GONE, PROCESS)
    assert reason.startswith("rbln0 held by sleep")


def contexts_left(look: Any, *holders: dict[str, Any]) -> list[str]:
    """What is left of them after no time, beside a container that does not run."""
    assert len(look(*holders, running=False)["reasons"]) == len(holders)
    return contexts.wait_until_free("triton", 0, ignore_gone=True)
