"""The steps of the role triton_server, from the plan of a host."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.filter import plan_is_valid as counting
from ansible_collections.npufleet.triton.plugins.filter import server_steps as stepping
from ansible_collections.npufleet.triton.plugins.module_utils.plan import item
from helpers import ROOT

server_steps = stepping.FilterModule().filters()["server_steps"]
plan_is_valid = counting.FilterModule().filters()["plan_is_valid"]
TASKS = ROOT / "roles/triton_server/tasks"
HELD = {"taken": True, "fresh": True}


def differs(concern: str, action: str, name: str = "digits") -> Any:
    return item(concern, name, "old", "new", action)


def state(*plan: Any, missing: Any = (), transaction: Any = None, **more: Any) -> dict[str, Any]:
    """Return the state of a host whose next container lacks nothing."""
    server = {"absent": [], "driver_files": {"missing": []}, "access": {"missing": [], "mismatches": []}}
    actual = {"models": {"missing": list(missing), "transaction": transaction}, "server": server}
    return {"plan": list(plan), "actual": actual, **more}


def taken(*plan: Any, **more: Any) -> list[str]:
    """Return the names of the steps that are taken, without the lists of models."""
    options = {name: more.pop(name) for name in ("lease", "planned", "current_releases", "rollback") if name in more}
    steps = server_steps(state(*plan, **more), **options)
    return [name for name, value in steps.items() if value is True]


def test_a_host_in_sync_has_no_step() -> None:
    assert taken() == []
    assert taken(differs("probe", "probe")) == []


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        ([differs("server", "create")], ["container", "change"]),
        ([differs("server", "replace")], ["container", "change"]),
        ([differs("server", "write"), differs("server", "key")], ["credentials", "key", "change"]),
        ([differs("server", "load")], ["change"]),
        ([differs("models", "release")], ["change"]),
        ([differs("watchdog", "watch")], ["install_watchdog"]),
        ([differs("watchdog", "unwatch")], ["remove_watchdog"]),
        ([differs("server", "replace"), differs("watchdog", "watch")], ["container", "change", "install_watchdog"]),
    ],
)
def test_each_action_has_its_steps(plan: list[Any], steps: list[str]) -> None:
    assert taken(*plan, lease=HELD) == steps
    # A role that runs alone holds the host itself, also for the watchdog alone.
    assert sorted(taken(*plan)) == sorted(["hold", *steps])


def test_new_files_are_transferred_unless_the_links_are_served() -> None:
    assert taken(missing=["sha"], lease=HELD) == ["transfer"]
    assert taken(missing=["sha"], lease=HELD, current_releases=True) == []


@pytest.mark.parametrize("reason", [{"rollback": {"models": ["digits"]}}, {"transaction": {"run": "a"}}])
def test_a_change_needs_no_difference(reason: dict[str, Any]) -> None:
    assert taken(lease=HELD, **reason) == ["change"]


def test_models_are_released_and_withdrawn_by_name() -> None:
    steps = server_steps(
        state(differs("models", "release"), differs("models", "withdraw", "faces"), differs("server", "release", "x"))
    )
    assert (steps["release"], steps["withdraw"]) == (["digits"], ["faces"])


def test_a_container_without_its_files_is_refused() -> None:
    found = state(differs("server", "replace"))
    found["actual"]["server"].update(
        absent=["/srv/data"],
        driver_files={"missing": ["/usr/lib/x.so"]},
        access={"missing": ["no rbln0"], "mismatches": ["closed rbln1"]},
    )
    (files, *devices) = server_steps(found)["refusals"]
    assert files.startswith("/srv/data, /usr/lib/x.so of the mounts of the container is missing, expected on the host: create it")
    assert devices == ["no rbln0", "closed rbln1"]
    # A change without a new container needs none of them.
    found["plan"] = [differs("server", "load")]
    assert server_steps(found)["refusals"] == []


@pytest.mark.parametrize(
    ("plan", "known", "lease", "ends"),
    [
        ([differs("models", "release")], True, HELD, True),
        ([differs("models", "release"), differs("probe", "probe")], True, HELD, False),
        ([differs("server", "replace")], True, HELD, False),
        ([differs("models", "release")], False, HELD, False),
        ([differs("models", "release")], True, {}, False),
    ],
)
def test_the_change_releases_the_host_if_nothing_follows(plan: list[Any], known: bool, lease: Any, ends: bool) -> None:
    found = state(*plan, known=known)
    assert server_steps(found, lease, planned=found)["releases_host"] is ends


@pytest.mark.parametrize(
    ("concern", "lease", "current_releases", "counts"),
    [
        ("models", HELD, False, True),
        ("probe", HELD, False, True),
        ("engine", HELD, False, False),
        ("models", {"taken": True, "fresh": False}, False, False),
        ("models", {}, False, False),
        ("models", HELD, True, False),
    ],
)
def test_a_plan_counts_while_nobody_has_held_the_host(concern: str, lease: Any, current_releases: bool, counts: bool) -> None:
    assert plan_is_valid({"plan": [differs(concern, "x")], "seen": {"current_releases": False}}, lease, current_releases) is counts


def test_a_host_that_was_not_planned_has_no_plan_that_counts() -> None:
    assert plan_is_valid({}, {}) is False
    # Another run was at work when the plan was made.
    assert plan_is_valid({"plan": [], "seen": {}}, HELD) is False


def test_every_step_is_a_condition_of_the_role() -> None:
    used = set(re.findall(r"triton_server_steps\.(\w+)", "".join(path.read_text() for path in TASKS.glob("*.yml"))))
    assert used == set(server_steps(state()))


def test_the_first_task_file_names_its_steps() -> None:
    (_read, change) = yaml.safe_load((TASKS / "main.yml").read_text())
    for task in change["block"]:
        file = task["ansible.builtin.include_tasks"]
        assert (TASKS / file).exists() and task["when"] == "triton_server_steps." + file[:-4]
