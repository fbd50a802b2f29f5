"""What has to be done for a host that is ill, and what is no recovery."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.filter.recovery import FilterModule
from ansible_collections.npufleet.triton.plugins.module_utils.plan import item

recovery = FilterModule().filters()["recovery"]
FAILED = "npu-1: 1 of 2 checks failed"


def host(*plan: Any, engine: bool = True) -> dict[str, Any]:
    return {"plan": list(plan), "actual": {"engine": {}, "server": {"engine": engine}}}


def differs(concern: str, name: str, action: str) -> Any:
    return item(concern, name, "old", "new", action)


STOPPED = differs("server", "container", "start")
STALE = item("driver", "module", "stale: the vendor's tool numbers 2 cards 0", "reloaded", "reload")


def test_a_host_that_is_well_needs_nothing() -> None:
    assert recovery(host()) == {"found": [], "steps": [], "refused": [], "changes": False}


def test_an_unfinished_drain_needs_no_step() -> None:
    unfinished = recovery(host(differs("traffic", "share of the traffic", "undrain")))
    assert (unfinished["steps"], unfinished["refused"], unfinished["changes"]) == ([], [], True)
    (sentence,) = unfinished["found"]
    assert sentence.startswith("traffic share of the traffic is old")
    beyond = recovery(host(differs("traffic", "share of the traffic", "undrain"), engine=False))
    assert not beyond["changes"]


@pytest.mark.parametrize(
    ("plan", "answers", "steps"),
    [
        ([STOPPED], "", ["serve", "restart", "reload"]),
        ([differs("models", "digits", "prove")], "", ["serve", "restart", "reload"]),
        # A server that lacks a model has had no chance to answer
        ([differs("server", "digits", "load")], FAILED, ["serve", "restart", "reload"]),
        ([], FAILED, ["restart", "reload"]),
        ([STALE], "", ["reload"]),
        ([STOPPED, STALE], FAILED, ["reload"]),
        ([differs("driver", "module", "load")], "", ["reload"]),
        ([differs("driver", "/dev/rsd0", "inspect")], "", ["reload"]),
        ([differs("driver", "cards", "inspect")], "", ["reload"]),
        # What is not held or not loaded at boot makes nobody ill
        ([differs("driver", "hold", "hold"), differs("driver", "boot", "configure")], "", []),
        ([differs("engine", "log-opts", "restart")], "", []),
    ],
)
def test_the_first_step_follows_from_what_is_wrong(plan: list[Any], answers: str, steps: list[str]) -> None:
    found = recovery(host(*plan), answers)
    assert (found["steps"], found["refused"]) == (steps, [])
    assert bool(found["found"]) == bool(steps)
    assert (FAILED in found["found"]) == bool(answers)


@pytest.mark.parametrize(
    "refused",
    [
        differs("driver", "package", "install"),
        differs("driver", "/var/run/cdi/rbln.yaml", "generate"),
        differs("driver", "bus", "inspect"),
        differs("driver", "card type", "inspect"),
        differs("driver", "firmware", "inspect"),
        differs("server", "container", "create"),
        differs("server", "container.image", "replace"),
        differs("server", "key", "key"),
    ],
)
def test_what_is_no_recovery_is_refused_beside_whatever_else_is_wrong(refused: Any) -> None:
    found = recovery(host(refused, STALE), FAILED)
    assert found["steps"] == []
    (reason,) = found["refused"]
    assert reason.startswith(f"{refused['concern']} {refused['name']} is old, expected new")
    assert reason.endswith(("run playbooks/site.yml", "see docs/troubleshooting/driver.md"))


def test_without_an_engine_there_is_nothing_to_serve_with() -> None:
    found = recovery(host(engine=False))
    assert (found["steps"], len(found["refused"])) == ([], 1)
    assert "run playbooks/site.yml" in found["refused"][0]


def test_what_a_host_says_is_told_in_a_line() -> None:
    found = recovery(host(item("server", "digits", "a\x1b[2J\nb", "READY", "load")), "x\x1b[0m\ny")
    assert found["found"] == ["server digits is a\\x1b[2J b, expected READY (load)", "x\\x1b[0m\n  y"]
