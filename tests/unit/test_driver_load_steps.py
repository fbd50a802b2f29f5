"""The steps that load the driver of a host, and whether a reboot helps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
from ansible_collections.npufleet.triton.plugins.filter import driver_load_steps
from test_house import load, tasks_of

TASKS = Path(__file__).resolve().parents[2] / "roles/rbln_driver/tasks"
steps_of = driver_load_steps.FilterModule().filters()["driver_load_steps"]


def item(name: str, action: str = "") -> dict[str, Any]:
    return {"concern": "driver", "name": name, "current": None, "desired": None, "action": action}


def state(*plan: dict[str, Any], module: str | None = "2.0", cdi: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "plan": list(plan),
        "desired": {"driver": {"cdi": dict.fromkeys(cdi, "text")}},
        "actual": {"driver": {"module": module}},
    }


def steps(before: dict[str, Any], now: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return dict(steps_of(before, now or before, **{"loads": False, "installs": False, **options}))


def test_a_host_in_sync_needs_no_step() -> None:
    assert not any(steps(state()).values())


def test_packages_are_held_after_an_installation_or_if_they_are_not() -> None:
    assert steps(state(item("hold")))["hold"] and steps(state(), installs=True)["hold"]
    assert not steps(state(item("hold")), installs=True, hold=False)["hold"]


def test_each_file_of_the_boot_has_its_step() -> None:
    found = steps(state(item("boot"), item("npufleet-cards.service")))
    assert found["load_at_boot"] and found["wait_for_cards"]


def test_only_a_module_that_is_loaded_is_unloaded() -> None:
    before = state(item("module", "reload"))
    assert (steps(before)["unload"], steps(before)["load"]) == (True, True)
    after = state(item("module", "load"), module=None)
    assert (steps(before, after)["unload"], steps(before, after)["load"]) == (False, True)


def test_a_module_that_the_installer_has_loaded_is_not_loaded_again() -> None:
    found = steps(state(item("module", "reload")), state(), loads=True)
    assert (found["unload"], found["load"], found["start_services"]) == (False, False, True)


def test_a_requested_reload_needs_no_difference() -> None:
    assert steps(state(), reload=True)["load"]


@pytest.mark.parametrize(
    ("now", "loads", "written"),
    [
        ((), False, False),
        ((), True, True),
        ((item("toolkit", "toolkit"),), False, True),
        ((item("/x", "link"),), False, True),
        ((item("spec", "generate"),), False, True),
        ((item("npufleet-cdi.path"),), False, True),
    ],
)
def test_the_spec_is_written_after_a_load_or_if_it_differs(now: tuple[Any, ...], loads: bool, written: bool) -> None:
    cdi = ("npufleet-cdi.path",)
    assert steps(state(cdi=cdi), state(*now, cdi=cdi), loads=loads)["write_spec"] is written
    assert not steps(state(), state(*now), loads=loads)["write_spec"]


def test_units_of_the_spec_are_removed_by_name() -> None:
    assert steps(state(item("a.path", "remove"), item("b")))["remove_units"] == ["a.path"]


def test_the_role_uses_every_step() -> None:
    used = set(re.findall(r"rbln_driver_steps\.(\w+)", "".join(path.read_text() for path in TASKS.glob("*.yml"))))
    assert used == set(steps(state()))


@pytest.mark.parametrize(("actions", "fails"), [(["reload"], False), (["reload", "install"], True), (["load"], True), ([], True)])
def test_a_reboot_helps_only_if_the_kernel_has_another_module(actions: list[str], fails: bool) -> None:
    (task,) = [task for task in tasks_of(load(TASKS / "load_and_prove.yml")) if task["name"] == "Fail if a reboot does not help"]
    assert jinja2.Environment().compile_expression(task["when"])(rbln_driver_actions=actions) is fails
