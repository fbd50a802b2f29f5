"""Module wait_for_npus: whom it waits for, and whom it names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.modules import wait_for_npus
from helpers import run_module, time_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    time = time_of(wait_for_npus.contexts, monkeypatch)
    monkeypatch.setattr(wait_for_npus, "time", wait_for_npus.contexts.time)
    return time


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> Any:
    """What looks at the cards find, one after the other; the last one stays."""

    def give(*looks: dict[str, Any], timeout: int = 0) -> dict[str, Any]:
        found = list(looks)

        def look(name: str) -> dict[str, Any]:
            assert name == "triton"
            return found.pop(0) if len(found) > 1 else found[0]

        monkeypatch.setattr(wait_for_npus.contexts, "read_use", look)
        return run_module(wait_for_npus, {"host": "npu1", "container": "triton", "timeout": timeout})

    return give


HELD = "rbln0 held by sleep (pid 30): end it (`kill 30`)"


def test_free_cards_are_no_news(cards: Any, clock: SimpleNamespace) -> None:
    assert cards({"running": True, "reasons": []}, timeout=60) == {"failed": False, "changed": False, "seconds": 0}
    assert clock.slept == []


def test_cards_that_become_free_are_awaited(cards: Any, clock: SimpleNamespace) -> None:
    held = {"running": False, "reasons": [HELD]}
    assert cards(held, held, {"running": False, "reasons": []}, timeout=60) == {"failed": False, "changed": False, "seconds": 1}
    assert clock.slept == [0.5, 0.5]


def test_cards_that_stay_taken_fail_with_every_process(cards: Any, clock: SimpleNamespace) -> None:
    assert cards({"running": False, "reasons": [HELD, "rbln1 too"]}, timeout=2) == {
        "failed": True,
        "msg": f"npu1: the cards are not free. Stop the processes that use them, and run again:\n  - {HELD}\n  - rbln1 too",
    }
    assert len(clock.slept) == 4


def test_beside_a_running_container_nothing_is_awaited(cards: Any, clock: SimpleNamespace) -> None:
    assert cards({"running": True, "reasons": [HELD]}, timeout=60)["failed"] is True
    assert clock.slept == []


def test_without_the_controller_it_does_not_know_the_container() -> None:
    assert "_request: missing required arguments: host: only the controller sets it" in run_module(wait_for_npus, {})["msg"]
