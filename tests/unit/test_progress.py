"""Callback progress: a line for each host whose step takes long, from a thread that ends with the run."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.callback.progress import CallbackModule

HOST = SimpleNamespace(get_name=lambda: "npu1")


def task(name: str, action: str = "npufleet.triton.host_state") -> Any:
    return SimpleNamespace(get_name=lambda: name, action=action, _uuid=name)


class Played:
    """A run with this callback, and what it says."""

    def __init__(self, **variables: Any) -> None:
        self.lines: list[str] = []
        self.callback = CallbackModule(display=SimpleNamespace(display=self.lines.append, verbosity=0))
        manager = SimpleNamespace(get_vars=lambda play, host: {"npufleet_progress": 0.05, **variables})
        self.callback.v2_playbook_on_play_start(SimpleNamespace(get_variable_manager=lambda: manager))

    def start(self, *given: Any) -> None:
        self.callback.v2_runner_on_start(HOST, task(*given))

    def end(self, name: str) -> None:
        self.callback.v2_runner_on_ok(SimpleNamespace(_host=HOST, _task=task(name)))

    def told(self) -> list[str]:
        """What is said once time has passed for it."""
        deadline = time.monotonic() + 10
        while not self.lines and time.monotonic() < deadline:
            time.sleep(0.01)
        self.callback.v2_playbook_on_stats(None)
        return self.lines


def test_a_step_that_takes_long_is_told_with_its_host_and_since_when() -> None:
    run = Played()
    run.start("Read")
    run.end("Read")
    run.start("Build the image")
    assert {line.rpartition(" ")[0] for line in run.told()} == {"npu1: Build the image, since"}


@pytest.mark.parametrize(
    ("variables", "action"),
    [({"npufleet_progress": 0}, "x"), ({"npufleet_progress": "0"}, "x"), ({}, "npufleet.triton.server_change")],
)
def test_it_is_off_by_a_variable_and_for_steps_that_tell_it_themselves(variables: dict[str, Any], action: str) -> None:
    run = Played(**variables)
    run.start("Change", action)
    assert run.callback._thread is None


@pytest.mark.parametrize("value", ["{{ site_progress }}", None, []])
def test_a_value_that_is_no_number_is_the_default(value: Any) -> None:
    run = Played(npufleet_progress=value)
    run.start("Read")
    assert run.callback._interval == 10.0
    run.callback.v2_playbook_on_stats(None)
