"""The gate after each batch of a rollout, with any tags. Real playbooks on simulated hosts, in batches of one, two and the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import ROOT
from stage import HOSTS, Run, differs, run

CHANGING = ("site.yml", "models.yml", "rollback.yml", "recover.yml")
ROLLBACK = ("-e", "rollback_to=previous")
MODEL = [differs("models")]
WHOLE = [differs("driver"), differs("engine"), differs("image"), differs("models"), differs("server")]
# The calls at the beginning of the roles
OF_ANY_ROLE = "host_state (driver|engine|image|models)|inference_check"


def tags_of(playbook: str) -> set[str]:
    """Return the tags of a playbook, and of the task files that it passes to rollout.yml."""
    text = (ROOT / "playbooks" / playbook).read_text()
    files = re.findall(r"\btasks: (\w+\.yml)", text)
    texts = [text, *((ROOT / "playbooks/tasks" / name).read_text() for name in files)]
    return {tag.strip() for text in texts for found in re.findall(r"\btags: \[([^]]*)\]", text) for tag in found.split(",")} - {
        "always"
    }


# The tags of steps for hosts in a rollout. The scenes have no monitoring host.
TAGS = sorted(tags_of("site.yml") - {"monitoring"})


def fleet(size: int, plan: list[dict[str, Any]], **more: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario with `size` hosts that have this plan. npu_3={...} adds fields of npu-3."""
    return {host: {"plan": plan, **more.get(host.replace("-", "_"), {})} for host in HOSTS[:size]}


def only(host: str, *plan: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a scenario with one host."""
    return {host: {"plan": list(plan), **more}}


LOADED = "command modprobe rebellions"
DRIVER = [differs("driver", "load", name="module", until=LOADED)]
STALE = [differs("driver", "reload", name="module", until=f"({LOADED}|reboot)")]
MISSING = [differs("driver", "inspect", name="bus", until="never")]
STOPPED = [differs("server", "start", name="container", until="server_change")]
ENGINE = [differs("engine", "limit", until="systemd_service restarted docker")]
MODELS = [differs("models", "release", name="add", until="server_change")]
BUILD = [differs("image", "build")]
CONTAINER = [differs("server", "replace", until="server_change")]

# The protected environment of each host. npu-4 is in no environment.
ENVIRONMENT = "{{ {'npu-1': 'staging', 'npu-2': 'seoul', 'npu-3': 'busan'}[inventory_hostname] | default('') }}"

# {name: (playbook, scenario, options, variables)}
SCENES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "build host in maintenance": (
        "site.yml",
        {**only("npu-1", *BUILD, maintenance_after=""), **only("npu-2", *MODELS), **only("npu-3", *BUILD)},
        (),
        {"npufleet_build_host": "{{ 'npu-3' if inventory_hostname == 'npu-3' else 'npu-1' }}"},
    ),
    "adoption in maintenance": (
        "adopt.yml",
        only("npu-4", maintenance_after=""),
        ("--limit", "npu-4", "-e", "adopt_replace=true"),
        {},
    ),
    "models.yml of edge": (
        "models.yml",
        fleet(4, MODEL, npu_3={"fails": "host_state models probe server"}),
        ("-e", "npufleet_group=edge"),
        {"group": "edge"},
    ),
    "in sync": ("site.yml", fleet(4, []), (), {}),
    "refused": ("site.yml", fleet(2, [], npu_1={"refusals": ["the kernel is 5.15.0-1, expected ==6.8.0"]}), (), {}),
    "invalid variable of one host": (
        "site.yml",
        {**only("npu-1"), **only("npu-2", *MODEL)},
        (),
        {"preflight_concerns": "{{ 5 if inventory_hostname == 'npu-1' else [] }}"},
    ),
    "one host unreachable": ("site.yml", fleet(2, [], npu_1={"lost": "host_state preflight"}), (), {}),
    "maintenance": ("site.yml", fleet(2, [], npu_1={"maintenance_after": ""}), (), {}),
    "whole batch lost": ("models.yml", fleet(2, MODEL, npu_1={"lost": "host_state models"}), (), {}),
    "lost before the plan": ("models.yml", fleet(4, MODEL, npu_3={"lost": "host_state preflight"}), (), {}),
    "lost and failed": (
        "site.yml",
        fleet(4, WHOLE, npu_2={"lost": "host_state models probe server"}, npu_3={"fails": "host_state models probe server"}),
        ("--tags", "models"),
        {},
    ),
    "driver": ("site.yml", only("npu-1", *DRIVER), ("--tags", "driver"), {}),
    "driver, check": ("site.yml", only("npu-1", *DRIVER), ("--tags", "driver,check"), {}),
    "hold fails": (
        "site.yml",
        only("npu-1", differs("driver", "hold", name="hold", until="never"), fails='command .*"apt-get"'),
        ("--tags", "driver"),
        {},
    ),
    "driver cannot be unloaded": ("site.yml", only("npu-1", *DRIVER, fails="command modprobe -r"), ("--tags", "driver"), {}),
    "driver, then no proof": ("site.yml", only("npu-1", *DRIVER, fails="server_change"), ("--tags", "driver"), {}),
    "stale": ("recover.yml", only("npu-1", *STALE), (), {}),
    "stale in check mode": ("recover.yml", only("npu-1", *STALE), ("--check",), {}),
    "stopped": ("recover.yml", only("npu-1", *STOPPED), (), {}),
    "wrong answers": ("recover.yml", only("npu-1", fails="inference_check|server_change"), (), {}),
    "wrong answers, module in use": (
        "recover.yml",
        only("npu-1", fails="inference_check|server_change|command modprobe -r"),
        (),
        {},
    ),
    "wrong answers until the restart": ("recover.yml", only("npu-1", fails="inference_check"), (), {}),
    "healthy": ("recover.yml", only("npu-1"), (), {}),
    "beyond recovery": ("recover.yml", {**fleet(2, STOPPED), **only("npu-3", *STALE, *MISSING)}, (), {}),
    "module in use": ("recover.yml", only("npu-1", *STALE, fails="command modprobe -r"), (), {}),
    "module in use, may reboot": (
        "recover.yml",
        only("npu-1", *STALE, fails="command modprobe -r"),
        ("-e", "rbln_driver_reboot=true"),
        {},
    ),
    "driver without tags": ("site.yml", only("npu-1", *DRIVER), (), {}),
    # If the engine changes, the image comes after the driver
    "driver, then no image": (
        "site.yml",
        only("npu-1", *DRIVER, differs("engine"), differs("image"), fails="host_state image"),
        (),
        {},
    ),
    "engine": ("site.yml", only("npu-1", *ENGINE), ("--tags", "engine"), {}),
    "engine that fails": ("site.yml", only("npu-1", *ENGINE, fails="host_state engine prove"), ("--tags", "engine"), {}),
    "engine that does not start": (
        "site.yml",
        only(
            "npu-1",
            differs("engine", "configure", name="daemon.json", until="never"),
            fails="restart docker.service",
            failure={"changed": True, "restarted": ["docker.service"]},
        ),
        ("--tags", "engine"),
        {},
    ),
    "engine of the build host": (
        "site.yml",
        only("npu-1", *ENGINE, *BUILD, fails="docker_image_pull"),
        ("--tags", "image"),
        {"npufleet_build_host": "npu-1"},
    ),
    "models without their server": ("site.yml", only("npu-1", *MODELS), ("--skip-tags", "server"), {}),
    "fresh": ("models.yml", only("npu-1", *MODELS, fresh=True), (), {}),
    "fresh with a probe": ("models.yml", only("npu-1", *MODELS, differs("probe"), fresh=True), (), {}),
    "fresh with a driver": ("site.yml", only("npu-1", *DRIVER, *MODELS, fresh=True), (), {}),
    "end of maintenance": (
        "maintenance.yml",
        only("npu-1", *MODELS, maintenance_after="host_state"),
        ("-e", "maintenance=in", "--limit", "npu-1"),
        {},
    ),
    "role alone": (str(Path(__file__).with_name("server.yml")), only("npu-1", *MODELS), (), {}),
    "mount source missing": ("site.yml", only("npu-1", *CONTAINER, absent=["/opt/data"]), (), {}),
    "mount source missing, role alone": (
        str(Path(__file__).with_name("server.yml")),
        only("npu-1", *CONTAINER, absent=["/opt/data"]),
        (),
        {},
    ),
    "fresh rollback": ("rollback.yml", only("npu-1", *MODELS, fresh=True), ROLLBACK, {}),
    "protected": ("site.yml", fleet(1, WHOLE), ("--tags", "models"), {"npufleet_protected": "prod"}),
    "protected rollback": ("rollback.yml", fleet(1, MODEL), ROLLBACK, {"npufleet_protected": "prod"}),
    "protected recovery": ("recover.yml", only("npu-1", *STOPPED), (), {"npufleet_protected": "prod"}),
    "protected by a playbook": (str(Path(__file__).with_name("protected.yml")), fleet(1, WHOLE), (), {}),
    "several protected": ("site.yml", {**only("npu-2", *WHOLE), **only("npu-3", *WHOLE)}, (), {"npufleet_protected": ENVIRONMENT}),
    "others protected": ("site.yml", only("npu-4", *MODELS), (), {"npufleet_protected": ENVIRONMENT}),
    "confirmed recovery": (
        "recover.yml",
        only("npu-1", *STOPPED),
        ("-e", "npufleet_confirm=prod"),
        {"npufleet_protected": "prod"},
    ),
}
# The plans of playbooks that do not change all concerns
PLANS = {"models.yml": MODEL, "recover.yml": STOPPED}
SCENES["site.yml"] = ("site.yml", fleet(4, WHOLE, npu_3={"fails": OF_ANY_ROLE}), (), {})
for _tag in TAGS:
    # Two hosts are enough, because the other batches do not depend on the tag.
    SCENES[f"site.yml {_tag}"] = ("site.yml", fleet(2, WHOLE, npu_1={"fails": OF_ANY_ROLE}), ("--tags", _tag), {})
for _name in CHANGING:
    _plan, _options = PLANS.get(_name, WHOLE), ROLLBACK if _name == "rollback.yml" else ()
    SCENES.setdefault(_name, (_name, fleet(4, _plan, npu_3={"fails": "host_state models probe server"}), _options, {}))
    SCENES[f"{_name} lost"] = (_name, fleet(4, _plan, npu_3={"lost": "host_state models probe server"}), _options, {})
    SCENES[f"{_name} in maintenance"] = (
        _name,
        fleet(3, _plan, npu_3={"maintenance_after": "^npu-1 host_state models probe server"}),
        _options,
        {},
    )


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    """Run the scenes of all tests of this session, two at a time. Return the futures by name."""
    specs = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    needed = {params["scene"] for params in specs if "scene" in params}
    with ThreadPoolExecutor(2) as pool:
        started = {}
        for number, name in enumerate(sorted(needed)):
            playbook, scenario, options, variables = SCENES[name]
            started[name] = pool.submit(run, tmp_path_factory.mktemp(f"stage-{number}"), playbook, scenario, *options, **variables)
        yield started
        for process in started.values():
            process.cancel()


@pytest.fixture
def ran(scene: str, running: dict[str, Future[Run]]) -> Run:
    """Return the run of the scene of a test."""
    return running[scene].result()


def scenes(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scene", names)


def test_playbooks_that_only_read_run_with_any_tags() -> None:
    for name in ("check.yml", "status.yml", "preflight.yml"):
        plays = yaml.safe_load((ROOT / "playbooks" / name).read_text())
        imported = plays[-1].get("ansible.builtin.import_playbook")
        plays[-1:] = yaml.safe_load((ROOT / "playbooks" / imported).read_text()) if imported else plays[-1:]
        assert [play.get("tags") for play in plays] == [["always"]] * len(plays), name


def test_only_rollout_and_site_change_hosts_in_batches() -> None:
    batched = {
        path.name
        for path in (ROOT / "playbooks").rglob("*.yml")
        if any("serial" in play for play in yaml.safe_load(path.read_text()))
    }
    # site.yml changes one load balancer after the other.
    assert batched == {"rollout.yml", "site.yml"}
    assert len(TAGS) > 5
    assert {name: tags for name in CHANGING if (tags := tags_of(name))} == {"site.yml": {*TAGS, "monitoring"}}


# 0. Nothing differs


@scenes("in sync")
def test_a_fleet_in_sync_is_queried_once(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert sorted(ran.calls) == [f"{host} host_state preflight" for host in HOSTS]
    counted = [ran.recap(host) for host in HOSTS]
    assert {(line["ok"], line["skipped"]) for line in counted} == {(1, 0)}


@scenes("refused")
def test_a_refusal_is_reported_in_a_fleet_in_sync(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == []
    assert "npu-1: the kernel is 5.15.0-1, expected ==6.8.0" in ran.words


@scenes("invalid variable of one host")
def test_an_invalid_variable_of_one_host_changes_no_host(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == []
    assert "1 of 2 hosts refused" in ran.words
    assert "preflight_concerns" in ran.words


@scenes("one host unreachable")
def test_an_unreachable_host_is_reported_in_a_fleet_in_sync(ran: Run) -> None:
    assert ran.code == 4, ran.output
    assert (ran.recap("npu-1")["unreachable"], ran.recap("npu-2")["ok"]) == (1, 1)


@scenes("maintenance")
def test_maintenance_is_reported_in_a_fleet_in_sync(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == []
    assert "npu-1 is in maintenance and was skipped" in ran.words


# 1. A host fails


@scenes(*CHANGING, "models.yml of edge")
def test_a_failed_host_stops_the_next_batches(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == ["npu-1", "npu-2", "npu-3"], ran.output
    assert "npu-3 failed the gate, no further batch starts" in ran.words
    assert "npu-3 is played to fail" in ran.words
    # The other host of the batch completes its change
    assert ran.calls_on("npu-2") == ran.calls_on("npu-1")
    assert [ran.recap(host)["failed"] for host in HOSTS] == [0, 0, 1, 0]


@scenes(*(f"site.yml {tag}" for tag in TAGS))
def test_the_gate_holds_with_any_tags(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == ["npu-1"], ran.output
    assert "npu-1 failed the gate, no further batch starts" in ran.words
    assert "npu-1 is played to fail" in ran.words
    assert [ran.recap(host)["failed"] for host in HOSTS[:2]] == [1, 0]


@scenes("protected", "protected rollback", "protected recovery", "protected by a playbook")
def test_every_change_of_a_protected_environment_needs_an_answer(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert 'prod is protected: the answer is "", expected "prod" before npu-1' in ran.words
    assert ran.touched() == []


@scenes("several protected")
def test_the_answer_names_every_protected_environment_that_changes(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert 'seoul, busan is protected: the answer is "", expected "seoul, busan" before npu-2, npu-3 are changed' in ran.words
    assert ran.touched() == []


@scenes("others protected")
def test_an_unchanged_protected_environment_needs_no_answer(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == ["npu-4"]


@scenes("confirmed recovery")
def test_an_extra_variable_can_be_the_answer(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == ["npu-1"]


# 2. A playbook that stops a server starts it again


def order(calls: list[str], *starts: str) -> list[str]:
    """Return the texts of `starts` in the order in which calls first begin with them."""
    found = [next((start for start in starts if call.startswith(start)), "") for call in calls]
    return [entry for entry in dict.fromkeys(found) if entry]


# The calls that stop a server, and that change, start and prove it
STOP, CHANGE = "triton_container stopped", "server_change"


@scenes("driver", "driver, check", "driver without tags")
def test_a_server_that_is_stopped_for_the_driver_is_started_and_proven(ran: Run) -> None:
    assert ran.code == 0, ran.output
    steps = (STOP, "command modprobe -r rebellions", LOADED, CHANGE)
    assert order(ran.calls_on("npu-1"), *steps) == list(steps)
    # Only one task proves the server, and only once
    assert [call.split()[-1] for call in ran.calls_on("npu-1") if call.startswith((CHANGE, "inference_check"))] == ["with_checks"]


@scenes("hold fails")
def test_a_failed_hold_is_undone(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert [call.split()[0] for call in ran.calls_on("npu-1") if not call.startswith("host_state")][:3] == [
        "dpkg_selections",
        "command",
        "dpkg_selections",
    ]
    assert "npu-1 is played to fail" in ran.words


@scenes("driver cannot be unloaded", "driver, then no image")
def test_a_failed_change_starts_the_stopped_server(ran: Run) -> None:
    assert ran.code == 2, ran.output
    # The current releases may fail the checks of the new ones.
    expected = [STOP, "server_change current_releases", "inference_check accepted"]
    assert order(ran.calls_on("npu-1"), *expected) == expected
    assert "server_change current_releases with_checks" not in ran.calls_on("npu-1")
    assert "npu-1 is played to fail (the server serves again)" in ran.words


@scenes("driver, then no proof")
def test_a_server_that_does_not_serve_again_fails_the_gate(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert "npu-1 failed the gate" in ran.words
    assert "npu-1 is played to fail" in ran.words
    assert "serves again)" not in ran.words


@scenes("engine", "engine that fails", "engine of the build host")
def test_a_server_is_started_and_proven_after_an_engine_restart(ran: Run) -> None:
    failed = "is played to fail" in ran.words
    # After a failure, the role inference_check proves the server with the checks that its releases have passed.
    proof = (
        ["server_change current_releases", "inference_check accepted"] if failed else ["server_change current_releases with_checks"]
    )
    steps = ["systemd_service restarted docker", *proof]
    assert order(ran.calls_on("npu-1"), *steps) == steps
    assert ran.code == (2 if failed else 0), ran.output


@scenes("engine that does not start")
def test_a_server_is_proven_after_the_engine_files_are_restored(ran: Run) -> None:
    steps = ["host_files /etc/systemd/system/containerd.service.d", "inference_check"]
    assert order(ran.calls_on("npu-1"), *steps) == steps
    assert ran.code == 2, ran.output
    assert "npu-1: npu-1 is played to fail" in ran.words


@scenes("models without their server")
def test_models_are_not_switched_without_the_server_role(ran: Run) -> None:
    assert ran.code == 0, ran.output
    # Only the role of the server switches the models
    assert [call for call in ran.calls_on("npu-1") if not call.startswith("host_state")] == []


@scenes("fresh", "fresh rollback")
def test_a_change_after_a_fresh_plan_releases_the_lease(ran: Run) -> None:
    assert ran.code == 0, ran.output
    rollback = "rollback current_releases with_checks" in ran.words or "current_releases" in " ".join(ran.calls_on("npu-1"))
    change = "server_change rollback current_releases with_checks" if rollback else "server_change with_checks"
    assert ran.calls_on("npu-1") == [change, "server_change released the lease"]
    assert [call for call in ran.calls if call.endswith("host_lease released")] == []


@scenes("role alone")
def test_a_role_without_a_lease_takes_and_releases_it(ran: Run) -> None:
    assert ran.code == 0, ran.output
    looked, change = ran.calls_on("npu-1")
    assert (looked, change) == ("host_state models probe server watchdog", "server_change with_checks")
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("mount source missing", "mount source missing, role alone")
def test_a_missing_mount_source_restores_the_previous_releases(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert [call for call in ran.calls_on("npu-1") if call.startswith("server_change")] == ["server_change restored"]
    assert (
        "the previous releases serve again: npu-1: /opt/data of the mounts of the container is missing, expected on the host"
        in ran.words
    )
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("fresh with a probe")
def test_a_host_change_with_a_probe_releases_the_lease_last(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert "host_state models probe server watchdog" not in ran.calls_on("npu-1")
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("end of maintenance")
def test_maintenance_releases_the_lease_last(ran: Run) -> None:
    """After the change of the server, the probe and the end of the maintenance follow."""
    assert ran.code == 0, ran.output
    assert "server_change with_checks" in ran.calls_on("npu-1")
    assert "server_change released the lease" not in ran.calls_on("npu-1")
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("fresh with a driver")
def test_a_server_is_read_again_after_a_driver_change(ran: Run) -> None:
    assert ran.code == 0, ran.output
    look = "host_state models probe server watchdog"
    assert order(ran.calls_on("npu-1"), look, "server_change with_checks") == [look, "server_change with_checks"]


# 3. A host becomes unreachable


@scenes("models.yml lost", "rollback.yml lost")
def test_a_host_lost_during_its_change_stops_the_next_batches(ran: Run) -> None:
    assert ran.code != 0, ran.output
    assert ran.touched() == ["npu-1", "npu-2", "npu-3"], ran.output
    assert "npu-3 became unreachable during the change, no further batch starts" in ran.words
    assert "npu-3 does not answer any more" in ran.words
    assert ran.calls_on("npu-2") == ran.calls_on("npu-1")


@scenes("whole batch lost")
def test_a_batch_without_a_reachable_host_stops_the_rollout(ran: Run) -> None:
    assert ran.code != 0, ran.output
    assert ran.touched() == ["npu-1"]
    assert "npu-1 does not answer any more" in ran.words


@scenes("lost and failed")
def test_a_lost_and_a_failed_host_are_both_reported(ran: Run) -> None:
    assert ran.code != 0, ran.output
    assert ran.touched() == ["npu-1", "npu-2", "npu-3"]
    assert "npu-3 failed the gate" in ran.words
    assert "npu-2 became unreachable" in ran.words


@scenes("lost before the plan")
def test_a_host_lost_before_the_plan_is_left_out(ran: Run) -> None:
    assert ran.code == 4, ran.output
    assert [host for host in HOSTS if "server_change" in " ".join(ran.calls_on(host))] == []
    assert "npu-3 does not answer any more" in ran.words
    assert [host for host in HOSTS if "host_state models probe server watchdog" in ran.calls_on(host)] == [
        "npu-1",
        "npu-2",
        "npu-4",
    ]


# 4. A host is in maintenance


@scenes(*(f"{name} in maintenance" for name in CHANGING))
def test_a_host_in_maintenance_since_the_plan_is_skipped(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == ["npu-1", "npu-2"]
    assert "npu-3 is in maintenance and was skipped: swap card 2 (kim, " in ran.words


@scenes("build host in maintenance")
def test_a_build_host_in_maintenance_refuses_the_run(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == []
    assert "npu-1 has to build or publish the image and is in maintenance" in ran.words


@scenes("adoption in maintenance")
def test_a_host_in_maintenance_is_not_adopted(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == []
    assert "npu-4 is in maintenance and was skipped" in ran.words


# 5. A host needs a recovery


@scenes("stale")
def test_a_stale_driver_is_reloaded_while_the_server_is_stopped(ran: Run) -> None:
    assert ran.code == 0, ran.output
    steps = (STOP, "command modprobe -r rebellions", LOADED, "server_change current_releases with_checks")
    assert order(ran.calls_on("npu-1"), *steps) == list(steps)
    assert "npu-1 serves again and is proven, after the step reload" in ran.words
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("stopped")
def test_recovery_only_starts_a_stopped_server(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert "npu-1 serves again and is proven, after the step serve" in ran.words
    assert [call for call in ran.calls_on("npu-1") if not call.startswith("host_state")] == [
        "server_change current_releases with_checks",
    ]


@scenes("wrong answers")
def test_recovery_reports_all_steps_if_none_helps(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert order(ran.calls_on("npu-1"), "inference_check", STOP, LOADED) == ["inference_check", STOP, LOADED]
    assert "npu-1 is not recovered. restart did not help: npu-1 is played to fail; reload did not help:" in ran.words


@scenes("wrong answers, module in use")
def test_a_failed_recovery_step_starts_the_stopped_server(ran: Run) -> None:
    assert ran.code == 2, ran.output
    calls = ran.calls_on("npu-1")
    unloads = max(number for number, call in enumerate(calls) if call.startswith("command modprobe -r"))
    assert [call for call in calls[unloads:] if call == "server_change current_releases"], calls
    assert "the server does not serve again: npu-1 is played to fail" in ran.words


@scenes("wrong answers until the restart")
def test_recovery_ends_after_the_step_that_helps(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert order(ran.calls_on("npu-1"), STOP, LOADED, "server_change current_releases with_checks") == [
        STOP,
        "server_change current_releases with_checks",
    ]
    assert "npu-1 serves again and is proven, after the step restart" in ran.words


@scenes("healthy", "stale in check mode")
def test_recovery_skips_healthy_hosts_and_check_mode(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert set(ran.calls_on("npu-1")) <= {"inference_check"}
    assert ("no difference from the current releases, and every answer was right" in ran.words) or (
        "is old, expected new (reload)" in ran.words
    )


@scenes("beyond recovery")
def test_a_host_beyond_recovery_does_not_stop_the_others(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert "npu-3 cannot be recovered, nothing was changed: driver bus is old, expected new (inspect)" in ran.words
    assert [host for host in HOSTS if "server_change current_releases with_checks" in ran.calls_on(host)] == ["npu-1", "npu-2"]


@scenes("module in use")
def test_a_driver_module_in_use_records_the_needed_reboot(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert "npu-1 needs a reboot. Put the host into maintenance" in ran.words
    assert [call for call in ran.calls_on("npu-1") if call == "host_files /run/npufleet /run/npufleet/reboot-required"], ran.calls
    assert [call for call in ran.calls_on("npu-1") if call.startswith("reboot")] == []
    # The server serves the same releases as before
    expected = [STOP, "server_change current_releases", "inference_check accepted"]
    assert order(ran.calls_on("npu-1"), *expected) == expected


@scenes("module in use, may reboot")
def test_a_reboot_releases_the_lease_and_takes_it_again(ran: Run) -> None:
    assert ran.code == 0, ran.output
    calls = [call.partition(" ")[2] for call in ran.calls]
    around = [call for call in calls if call.startswith(("host_lease", "reboot"))]
    assert around == ["host_lease", "host_lease released", "reboot", "host_lease", "host_lease released"]
    assert "npu-1 serves again and is proven, after the step reload" in ran.words


@pytest.mark.parametrize("playbook", ["check.yml", "models.yml", "site.yml", "status.yml"])
@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--start-at-task", "Render the HTML report of the fleet"), '--start-at-task "Render the HTML report of the fleet"'),
        (("--start-at-task", "Apply the change"), '--start-at-task "Apply the change"'),
        (("--skip-tags", "monitoring,always"), "--skip-tags always"),
    ],
)
def test_options_that_skip_the_first_steps_are_refused(tmp_path: Path, playbook: str, options: tuple[str, ...], found: str) -> None:
    ran = run(tmp_path, playbook, only("npu-1", *MODELS), *options)
    assert ran.code != 0, ran.output
    assert f"The command line has {found}, expected none" in ran.words
    assert ran.calls == []


def test_results_of_a_first_playbook_are_no_inventory_variables(tmp_path: Path) -> None:
    scenario = {"npu-1": {"plan": MODELS}, "npu-2": {"plan": []}}
    ran = run(tmp_path, "models.yml", scenario, str(ROOT / "playbooks/site.yml"))
    assert ran.code == 0, ran.output
    assert len([call for call in ran.calls if "preflight" in call]) == 4
    assert ran.calls_on("npu-2") == []
