"""Every playbook that changes hosts asks for the name of a protected environment before it changes anything.

The tests find these playbooks by their content, so that they also test a new playbook.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard
from helpers import ROOT
from stage import HOSTS, LOCAL, MODEL, PLAYBOOKS, Run, run

# Actions that change nothing on a host
READS = {
    f"ansible.builtin.{name}"
    for name in (
        "add_host", "assert", "debug", "fail", "group_by", "import_playbook", "import_role", "import_tasks", "include_role",
        "include_tasks", "include_vars", "meta", "pause", "ping", "set_fact", "setup",
    )
} | {
    f"npufleet.triton.{name}"
    for name in (
        "chart_series", "adoption", "balancer_info", "fleet_report", "host_state", "inference_check", "model_manifest",
        "rollout", "support_bundle",
    )
}  # fmt: skip
# Task files that write a report of the run on a host, and change nothing else there
REPORTS = {"roles/monitoring/tasks/status.yml"}
GATE = "roles/preflight/tasks/confirm.yml"
# {name: (playbook, options, plan)} of other ways in which playbooks change hosts
MORE = {
    "forget": ("rollback.yml", ("-e", "rollback_forget=true"), []),
    "stop in the container": ("in_container.yml", ("-e", "npufleet_stop=true"), []),
    "some tags": ("site.yml", ("--tags", "models"), MODEL),
}


class Loader(yaml.SafeLoader):
    """A loader that reads a value with the tag `!unsafe` as text."""


Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def plays_of(path: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the plays of a playbook and of the playbooks that it may import, each with its directory."""
    for play in yaml.load(path.read_text(), Loader):
        imported = play.get("ansible.builtin.import_playbook")
        if imported:
            for name in re.findall(r"[\w./-]+\.yml", imported):
                yield from plays_of(path.parent / name)
        else:
            yield play, path.parent


def steps_of(tasks: Any, directory: Path, here: bool) -> Iterator[str]:
    """Yield what tasks do in their order: the files that they include, and the actions on the hosts of their play.

    `here` is True if the tasks run on the controller. Actions on the controller are left out.
    """
    for task in tasks or []:
        on_controller = here or task.get("delegate_to") == "localhost"
        for section in ("block", "rescue", "always"):
            yield from steps_of(task.get(section), directory, on_controller)
        for name, arguments in task.items():
            if name.endswith((".include_tasks", ".import_tasks")):
                file = arguments["file"] if isinstance(arguments, dict) else arguments
                yield from file_of(directory / file, on_controller)
            elif name.endswith((".include_role", ".import_role")):
                role = arguments["name"].rpartition(".")[2]
                files = [ROOT / "roles" / role / f"tasks/{arguments.get('tasks_from', 'main')}.yml"]
                # If the name of the role is a template, any role may run
                files = files if "{{" not in arguments["name"] else sorted(ROOT.glob("roles/*/tasks/main.yml"))
                for path in files:
                    yield from file_of(path, on_controller)
            elif "." in name and not on_controller:
                yield name


def file_of(path: Path, here: bool) -> Iterator[str]:
    """Yield what a task file does. If its name is a template, yield what all files of its directory do."""
    for found in [path] if "{{" not in path.name else sorted(path.parent.glob("*.yml")):
        name = str(found.resolve().relative_to(ROOT))
        yield name
        if name not in REPORTS:
            yield from steps_of(yaml.load(found.read_text(), Loader), found.parent, here)


def changes(play: dict[str, Any], directory: Path) -> bool:
    return any("/" not in step and step not in READS for step in steps_of(play.get("tasks"), directory, False))


def asks(play: dict[str, Any], directory: Path) -> bool:
    return GATE in steps_of(play.get("tasks"), directory, False)


def changing() -> list[str]:
    """Return the playbooks that change hosts."""
    return [path.name for path in sorted((ROOT / "playbooks").glob("*.yml")) if any(changes(*found) for found in plays_of(path))]


# {playbook that changes hosts: (options, plan of each host)}
CHANGING = {name: ((), []) if name in LOCAL else PLAYBOOKS[name] for name in changing()}


def test_playbooks_that_change_hosts_are_found_by_their_content() -> None:
    assert {"adopt.yml", "compile.yml", "in_container.yml", "maintenance.yml", "models.yml", "teardown.yml"} <= set(CHANGING)
    assert {"check.yml", "collect.yml", "history.yml", "preflight.yml", "status.yml"} & set(CHANGING) == set()


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_reports_write_one_file_of_metrics_and_nothing_else(name: str) -> None:
    (task,) = yaml.load((ROOT / name).read_text(), Loader)
    assert (task["changed_when"], set(task) - {"name", "changed_when"}) == (False, {"npufleet.triton.host_files"})
    written = task["npufleet.triton.host_files"]
    (file,) = written["files"]
    assert set(written) == {"directories", "files"} and file["path"].endswith(".prom")


@pytest.mark.parametrize("name", changing())
def test_the_question_is_in_a_play_before_the_first_change(name: str) -> None:
    plays = list(plays_of(ROOT / "playbooks" / name))
    first = next(number for number, found in enumerate(plays) if changes(*found))
    assert any(asks(*found) for found in plays[:first]), f"{name} changes hosts in {plays[first][0]['name']!r}"


def changed(ran: Run) -> list[str]:
    reads = ("adoption", "host_state", "inference_check")
    return [call for call in ran.calls if call.split()[1] not in reads]


@pytest.mark.parametrize("way", [*CHANGING, *MORE])
def test_every_playbook_asks_about_a_protected_environment(tmp_path: Path, way: str) -> None:
    playbook, options, plan = MORE[way] if way in MORE else (way, *CHANGING[way])
    # in_container.yml has no inventory, so it gets the environment from the command line
    local = ("-e", "npufleet_protected=production") if playbook == "in_container.yml" else ()
    fleet = {host: {"plan": plan} for host in HOSTS[:2]}
    variables = {"npufleet_protected": "production", "npufleet_build_host": HOSTS[0] if playbook == "compile.yml" else "elsewhere"}
    ran = run(tmp_path, playbook, fleet, *options, *local, **variables)
    assert ran.code == 2, ran.output
    assert 'production is protected: the answer is "", expected "production" before ' in ran.words, ran.output
    assert changed(ran) == []


# Variables that only playbooks may set


OWN = (
    "npufleet_failed", "npufleet_state", "npufleet_lease", "npufleet_batch", "npufleet_hold_lease", "npufleet_unproven",
    "recover_proven_step", "recover", "triton_server_change", "triton_server_state", "triton_server_restored", "preflight_reasons",
    "preflight_planned", "preflight_protected", "preflight_answer", "server_was_running", "rollout_server_stopped",
    "rollout_changes", "changing_concerns", "adopt_result", "upgrade_change", "rbln_driver_stopped",
)  # fmt: skip


def test_the_guard_knows_every_variable_that_playbooks_set() -> None:
    own = run_guard.playbook_variables()
    assert set(OWN) <= own
    texts = [path.read_text() for path in [*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]]
    registered = {name for text in texts for name in re.findall(r"^\s*register: (\w+)", text, re.MULTILINE)}
    looped = {name for text in texts for name in re.findall(r"^\s*(?:loop|index)_var: (\w+)", text, re.MULTILINE)}
    assert (registered | looped) - own == set()
    assert len(registered) > 60


@pytest.mark.parametrize("playbook", ["models.yml", "site.yml", "rollback.yml", "recover.yml", "upgrade.yml", "check.yml"])
def test_extra_variables_cannot_set_playbook_variables(tmp_path: Path, playbook: str) -> None:
    options = CHANGING.get(playbook, ((), []))[0]
    extra = json.dumps(dict.fromkeys(OWN, ""))
    ran = run(tmp_path, playbook, {"npu-1": {"plan": MODEL}}, *options, "-e", extra)
    assert ran.code != 0, ran.output
    assert ran.calls == []
    assert f"Extra variables are {', '.join(sorted(OWN))}, expected no names that playbooks set themselves" in ran.words


@pytest.mark.parametrize("playbook", ["models.yml", "upgrade.yml", "teardown.yml"])
def test_an_extra_variable_cannot_remove_the_protection(tmp_path: Path, playbook: str) -> None:
    options, plan = CHANGING[playbook]
    extra = ("-e", '{"npufleet_protected": ""}')
    ran = run(tmp_path, playbook, {"npu-1": {"plan": plan}}, *options, *extra, npufleet_protected="production")
    assert ran.code != 0, ran.output
    assert changed(ran) == []
    assert "The extra variable npufleet_protected is empty" in ran.words


@pytest.mark.parametrize("group", run_guard.PLAYBOOK_GROUPS)
def test_an_inventory_cannot_fill_playbook_groups(tmp_path: Path, group: str) -> None:
    scenario = {"npu-1": {"plan": MODEL}, "npu-2": {"plan": []}}
    directory = tmp_path / "more"
    directory.mkdir()
    (directory / "hosts.yml").write_text(f"{group}: {{hosts: {{npu-2: {{}}}}}}\n")
    ran = run(tmp_path, "site.yml", scenario, "-i", str(directory))
    assert ran.code != 0, ran.output
    assert ran.calls == []
    assert f"The inventory has the groups {group}, which playbooks fill themselves" in ran.words
