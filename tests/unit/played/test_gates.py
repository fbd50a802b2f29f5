"""Gates hold whatever tags are given: the real playbooks on played hosts, in batches of one, of two and of the rest."""

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
# What a host is asked at the beginning of each role
OF_ANY_ROLE = "host_state (driver|engine|image|models)|inference_check"


def tags_of(playbook: str) -> set[str]:
    """The tags of a playbook, and of the files of tasks that it gives to the frame."""
    text = (ROOT / "playbooks" / playbook).read_text()
    files = re.findall(r"\btasks: (\w+\.yml)", text)
    texts = [text, *((ROOT / "playbooks/tasks" / name).read_text() for name in files)]
    return {tag.strip() for text in texts for found in re.findall(r"\btags: \[([^]]*)\]", text) for tag in found.split(",")} - {
        "always"
    }


# Of hosts in a rollout; of the one whose turn it is with monitoring_hosts, none is here.
TAGS = sorted(tags_of("site.yml") - {"monitoring"})


def fleet(size: int, plan: list[dict[str, Any]], **more: dict[str, Any]) -> dict[str, Any]:
    """So many hosts with this plan; npu_3={...} says what else is to be played on npu-3."""
    return {host: {"plan": plan, **more.get(host.replace("-", "_"), {})} for host in HOSTS[:size]}


def only(host: str, *plan: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One host that has a plan."""
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

# Each but npu-4 is in one
ENVIRONMENT = "{{ {'npu-1': 'staging', 'npu-2': 'seoul', 'npu-3': 'busan'}[inventory_hostname] | default('') }}"

# {name: (playbook, what is played, options, variables)}
SCENES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "build host out": (
        "site.yml",
        {**only("npu-1", *BUILD, out=""), **only("npu-2", *MODELS), **only("npu-3", *BUILD)},
        (),
        {"npufleet_build_host": "{{ 'npu-3' if inventory_hostname == 'npu-3' else 'npu-1' }}"},
    ),
    "adopt out": ("adopt.yml", only("npu-4", out=""), ("--limit", "npu-4", "-e", "adopt_replace=true"), {}),
    "models.yml of edge": (
        "models.yml",
        fleet(4, MODEL, npu_3={"fails": "host_state models probe server"}),
        ("-e", "npufleet_group=edge"),
        {"group": "edge"},
    ),
    "as wanted": ("site.yml", fleet(4, []), (), {}),
    "refused": ("site.yml", fleet(2, [], npu_1={"refusals": ["the kernel is 5.15.0-1, expected ==6.8.0"]}), (), {}),
    "refused, other": (
        "site.yml",
        {**only("npu-1"), **only("npu-2", *MODEL)},
        (),
        {"preflight_concerns": "{{ 5 if inventory_hostname == 'npu-1' else [] }}"},
    ),
    "lost, other": ("site.yml", fleet(2, [], npu_1={"lost": "host_state preflight"}), (), {}),
    "out": ("site.yml", fleet(2, [], npu_1={"out": ""}), (), {}),
    "lost alone": ("models.yml", fleet(2, MODEL, npu_1={"lost": "host_state models"}), (), {}),
    "lost before": ("models.yml", fleet(4, MODEL, npu_3={"lost": "host_state preflight"}), (), {}),
    "lost and failed": (
        "site.yml",
        fleet(4, WHOLE, npu_2={"lost": "host_state models probe server"}, npu_3={"fails": "host_state models probe server"}),
        ("--tags", "models"),
        {},
    ),
    "driver": ("site.yml", only("npu-1", *DRIVER), ("--tags", "driver"), {}),
    "driver, check": ("site.yml", only("npu-1", *DRIVER), ("--tags", "driver,check"), {}),
    "held in vain": (
        "site.yml",
        only("npu-1", differs("driver", "hold", name="hold", until="never"), fails='command .*"apt-get"'),
        ("--tags", "driver"),
        {},
    ),
    "driver stays": ("site.yml", only("npu-1", *DRIVER, fails="command modprobe -r"), ("--tags", "driver"), {}),
    "driver without a proof": ("site.yml", only("npu-1", *DRIVER, fails="server_change"), ("--tags", "driver"), {}),
    "stale": ("recover.yml", only("npu-1", *STALE), (), {}),
    "stale, but looked at": ("recover.yml", only("npu-1", *STALE), ("--check",), {}),
    "stopped": ("recover.yml", only("npu-1", *STOPPED), (), {}),
    "wrong answers": ("recover.yml", only("npu-1", fails="inference_check|server_change"), (), {}),
    "wrong answers, and stays in use": (
        "recover.yml",
        only("npu-1", fails="inference_check|server_change|command modprobe -r"),
        (),
        {},
    ),
    "wrong answers before": ("recover.yml", only("npu-1", fails="inference_check"), (), {}),
    "well": ("recover.yml", only("npu-1"), (), {}),
    "beyond recovery": ("recover.yml", {**fleet(2, STOPPED), **only("npu-3", *STALE, *MISSING)}, (), {}),
    "stays in use": ("recover.yml", only("npu-1", *STALE, fails="command modprobe -r"), (), {}),
    "stays in use, may reboot": (
        "recover.yml",
        only("npu-1", *STALE, fails="command modprobe -r"),
        ("-e", "rbln_driver_reboot=true"),
        {},
    ),
    "whole with a driver": ("site.yml", only("npu-1", *DRIVER), (), {}),
    # With another engine the image comes behind the driver
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
            **{"with": {"changed": True, "restarted": ["docker.service"]}},
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
    "back in service": (
        "maintenance.yml",
        only("npu-1", *MODELS, out="host_state"),
        ("-e", "maintenance=in", "--limit", "npu-1"),
        {},
    ),
    "role alone": (str(Path(__file__).with_name("server.yml")), only("npu-1", *MODELS), (), {}),
    "container in vain": ("site.yml", only("npu-1", *CONTAINER, absent=["/opt/data"]), (), {}),
    "container in vain, alone": (
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
# What each of them changes, where that is not all
PLANS = {"models.yml": MODEL, "recover.yml": STOPPED}
SCENES["site.yml"] = ("site.yml", fleet(4, WHOLE, npu_3={"fails": OF_ANY_ROLE}), (), {})
for _tag in TAGS:
    # What goes on before and beside the one that fails is the same with any
    SCENES[f"site.yml {_tag}"] = ("site.yml", fleet(2, WHOLE, npu_1={"fails": OF_ANY_ROLE}), ("--tags", _tag), {})
for _name in CHANGING:
    _plan, _options = PLANS.get(_name, WHOLE), ROLLBACK if _name == "rollback.yml" else ()
    SCENES.setdefault(_name, (_name, fleet(4, _plan, npu_3={"fails": "host_state models probe server"}), _options, {}))
    SCENES[f"{_name} lost"] = (_name, fleet(4, _plan, npu_3={"lost": "host_state models probe server"}), _options, {})
    SCENES[f"{_name} out"] = (_name, fleet(3, _plan, npu_3={"out": "^npu-1 host_state models probe server"}), _options, {})


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    """Every scene that a test of this session asks for, two at a time."""
    specs = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = {params["scene"] for params in specs if "scene" in params}
    with ThreadPoolExecutor(2) as pool:
        started = {}
        for number, name in enumerate(sorted(asked)):
            playbook, played, options, variables = SCENES[name]
            started[name] = pool.submit(run, tmp_path_factory.mktemp(f"stage-{number}"), playbook, played, *options, **variables)
        yield started
        for process in started.values():
            process.cancel()


@pytest.fixture
def ran(scene: str, running: dict[str, Future[Run]]) -> Run:
    """The run of a test's scene."""
    return running[scene].result()


def scenes(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scene", names)


def test_a_verdict_does_not_depend_on_tags() -> None:
    for name in ("check.yml", "status.yml", "preflight.yml"):
        plays = yaml.safe_load((ROOT / "playbooks" / name).read_text())
        imported = plays[-1].get("ansible.builtin.import_playbook")
        plays[-1:] = yaml.safe_load((ROOT / "playbooks" / imported).read_text()) if imported else plays[-1:]
        assert [play.get("tags") for play in plays] == [["always"]] * len(plays), name


def test_the_playbooks_that_change_hosts_in_batches_are_these() -> None:
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


@scenes("as wanted")
def test_a_fleet_that_is_as_wanted_is_asked_once_and_that_is_all(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert sorted(ran.calls) == [f"{host} host_state preflight" for host in HOSTS]
    counted = [ran.recap(host) for host in HOSTS]
    assert {(line["ok"], line["skipped"]) for line in counted} == {(1, 0)}


@scenes("refused")
def test_what_stands_in_the_way_is_told_where_nothing_differs(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == []
    assert "npu-1: the kernel is 5.15.0-1, expected ==6.8.0" in ran.words


@scenes("refused, other")
def test_a_host_that_cannot_be_judged_keeps_the_others_from_their_change(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == []
    assert "1 of 2 hosts refused" in ran.words
    assert "preflight_concerns" in ran.words


@scenes("lost, other")
def test_a_host_that_is_lost_is_told_where_the_others_are_as_wanted(ran: Run) -> None:
    assert ran.code == 4, ran.output
    assert (ran.recap("npu-1")["unreachable"], ran.recap("npu-2")["ok"]) == (1, 1)


@scenes("out")
def test_a_host_that_is_out_is_said_to_be_where_nothing_differs(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == []
    assert "npu-1 is in maintenance and was skipped" in ran.words


# 1. A host that fails


@scenes(*CHANGING, "models.yml of edge")
def test_a_host_that_fails_stops_what_comes_after_its_batch(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == ["npu-1", "npu-2", "npu-3"], ran.output
    assert "npu-3 failed the gate, no further batch starts" in ran.words
    assert "npu-3 is played to fail" in ran.words
    # The other one of its batch is not broken off
    assert ran.of("npu-2") == ran.of("npu-1")
    assert [ran.recap(host)["failed"] for host in HOSTS] == [0, 0, 1, 0]


@scenes(*(f"site.yml {tag}" for tag in TAGS))
def test_the_gate_holds_whatever_tags_are_given(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == ["npu-1"], ran.output
    assert "npu-1 failed the gate, no further batch starts" in ran.words
    assert "npu-1 is played to fail" in ran.words
    assert [ran.recap(host)["failed"] for host in HOSTS[:2]] == [1, 0]


@scenes("protected", "protected rollback", "protected recovery", "protected by a playbook")
def test_a_protected_environment_asks_whatever_changes_it(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert 'prod is protected: the answer is "", expected "prod" before npu-1' in ran.words
    assert ran.touched() == []


@scenes("several protected")
def test_every_protected_environment_that_changes_is_asked_about(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert 'seoul, busan is protected: the answer is "", expected "seoul, busan" before npu-2, npu-3 are changed' in ran.words
    assert ran.touched() == []


@scenes("others protected")
def test_what_is_protected_and_does_not_change_is_not_asked_about(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == ["npu-4"]


@scenes("confirmed recovery")
def test_a_protected_environment_takes_the_answer_beforehand(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == ["npu-1"]


# 2. Whoever stops something starts it again


def order(calls: list[str], *wanted: str) -> list[str]:
    """Those of the calls that begin like one that is wanted, without repetition."""
    found = [next((requirement for requirement in wanted if call.startswith(requirement)), "") for call in calls]
    return [entry for entry in dict.fromkeys(found) if entry]


# A server that is started again serves what is linked, or what is wanted by then; either way it is asked
STOP, CHANGE = "triton_container stopped", "server_change"


@scenes("driver", "driver, check", "whole with a driver")
def test_a_server_that_is_stopped_for_the_driver_is_started_and_proven(ran: Run) -> None:
    assert ran.code == 0, ran.output
    steps = (STOP, "command modprobe -r rebellions", LOADED, CHANGE)
    assert order(ran.of("npu-1"), *steps) == list(steps)
    # Once, and not by another task
    assert [call.split()[-1] for call in ran.of("npu-1") if call.startswith((CHANGE, "inference_check"))] == ["asking"]


@scenes("held in vain")
def test_what_was_held_in_vain_is_free_again_so_that_the_next_run_says_so_too(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert [call.split()[0] for call in ran.of("npu-1") if not call.startswith("host_state")][:3] == [
        "dpkg_selections",
        "command",
        "dpkg_selections",
    ]
    assert "npu-1 is played to fail" in ran.words


@scenes("driver stays", "driver, then no image")
def test_a_change_that_fails_leaves_no_server_stopped(ran: Run) -> None:
    assert ran.code == 2, ran.output
    # The current releases may fail the checks of the new ones.
    expected = [STOP, "server_change current_releases", "inference_check accepted"]
    assert order(ran.of("npu-1"), *expected) == expected
    assert "server_change current_releases asking" not in ran.of("npu-1")
    assert "npu-1 is played to fail (the server serves again)" in ran.words


@scenes("driver without a proof")
def test_a_server_that_does_not_come_back_fails_the_gate(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert "npu-1 failed the gate" in ran.words
    assert "npu-1 is played to fail" in ran.words
    assert "serves again)" not in ran.words


@scenes("engine", "engine that fails", "engine of the build host")
def test_a_server_that_an_engine_took_with_it_is_started_and_proven(ran: Run) -> None:
    failed = "is played to fail" in ran.words
    # After a failure, the role inference_check proves the server with the checks that its releases have passed.
    proof = ["server_change current_releases", "inference_check accepted"] if failed else ["server_change current_releases asking"]
    steps = ["systemd_service restarted docker", *proof]
    assert order(ran.of("npu-1"), *steps) == steps
    assert ran.code == (2 if failed else 0), ran.output


@scenes("engine that does not start")
def test_a_server_is_proven_behind_an_engine_that_kept_its_previous_files(ran: Run) -> None:
    steps = ["host_files /etc/systemd/system/containerd.service.d", "inference_check"]
    assert order(ran.of("npu-1"), *steps) == steps
    assert ran.code == 2, ran.output
    assert "npu-1: npu-1 is played to fail" in ran.words


@scenes("models without their server")
def test_models_are_not_switched_without_their_proof(ran: Run) -> None:
    assert ran.code == 0, ran.output
    # The role of the server is what switches to them: without it, nothing does
    assert [call for call in ran.of("npu-1") if not call.startswith("host_state")] == []


@scenes("fresh", "fresh rollback")
def test_a_plan_that_still_counts_is_not_asked_for_again_and_the_change_ends_the_turn(ran: Run) -> None:
    assert ran.code == 0, ran.output
    rollback = "rollback current_releases asking" in ran.words or "current_releases" in " ".join(ran.of("npu-1"))
    change = "server_change rollback current_releases asking" if rollback else "server_change asking"
    assert ran.of("npu-1") == [change, "server_change releases"]
    assert [call for call in ran.calls if call.endswith("host_lease released")] == []


@scenes("role alone")
def test_a_role_that_nobody_holds_the_host_for_holds_it_itself(ran: Run) -> None:
    assert ran.code == 0, ran.output
    looked, change = ran.of("npu-1")
    assert (looked, change) == ("host_state models probe server watchdog", "server_change asking")
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("container in vain", "container in vain, alone")
def test_nothing_is_changed_where_what_it_needs_cannot_be_made(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert [call for call in ran.of("npu-1") if call.startswith("server_change")] == ["server_change restored"]
    assert (
        "the previous releases serve again: npu-1: /opt/data of the mounts of the container is missing, expected on the host"
        in ran.words
    )
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("fresh with a probe")
def test_a_turn_that_goes_on_behind_its_change_releases_the_host_itself(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert "host_state models probe server watchdog" not in ran.of("npu-1")
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("back in service")
def test_maintenance_holds_its_host_to_the_end(ran: Run) -> None:
    """Behind the change of its server come the probe and the mark."""
    assert ran.code == 0, ran.output
    assert "server_change asking" in ran.of("npu-1")
    assert "server_change releases" not in ran.of("npu-1")
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("fresh with a driver")
def test_what_changes_below_a_server_has_it_looked_at_again(ran: Run) -> None:
    assert ran.code == 0, ran.output
    look = "host_state models probe server watchdog"
    assert order(ran.of("npu-1"), look, "server_change asking") == [look, "server_change asking"]


# 3. A host that is lost


@scenes("models.yml lost", "rollback.yml lost")
def test_a_host_that_is_lost_during_its_change_stops_what_comes_after_its_batch(ran: Run) -> None:
    assert ran.code != 0, ran.output
    assert ran.touched() == ["npu-1", "npu-2", "npu-3"], ran.output
    assert "npu-3 became unreachable during the change, no further batch starts" in ran.words
    assert "npu-3 does not answer any more" in ran.words
    assert ran.of("npu-2") == ran.of("npu-1")


@scenes("lost alone")
def test_a_batch_that_is_lost_as_a_whole_stops_the_rollout(ran: Run) -> None:
    assert ran.code != 0, ran.output
    assert ran.touched() == ["npu-1"]
    assert "npu-1 does not answer any more" in ran.words


@scenes("lost and failed")
def test_a_batch_with_a_lost_and_a_failed_host_tells_both(ran: Run) -> None:
    assert ran.code != 0, ran.output
    assert ran.touched() == ["npu-1", "npu-2", "npu-3"]
    assert "npu-3 failed the gate" in ran.words
    assert "npu-2 became unreachable" in ran.words


@scenes("lost before")
def test_a_host_that_was_lost_before_the_plan_is_left_out(ran: Run) -> None:
    assert ran.code == 4, ran.output
    assert [host for host in HOSTS if "server_change" in " ".join(ran.of(host))] == []
    assert "npu-3 does not answer any more" in ran.words
    assert [host for host in HOSTS if "host_state models probe server watchdog" in ran.of(host)] == ["npu-1", "npu-2", "npu-4"]


# 4. A host that is taken out


@scenes(*(f"{name} out" for name in CHANGING))
def test_a_host_that_is_taken_out_after_the_plan_is_left_alone(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == ["npu-1", "npu-2"]
    assert "npu-3 is in maintenance and was skipped: swap card 2 (kim, " in ran.words


@scenes("build host out")
def test_nothing_is_built_on_a_host_that_is_out(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert ran.touched() == []
    assert "npu-1 has to build or publish the image and is in maintenance" in ran.words


@scenes("adopt out")
def test_nothing_is_adopted_on_a_host_that_is_out(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert ran.touched() == []
    assert "npu-4 is in maintenance and was skipped" in ran.words


# 5. A host that is ill


@scenes("stale")
def test_a_driver_that_is_stale_is_loaded_anew_below_a_stopped_server(ran: Run) -> None:
    assert ran.code == 0, ran.output
    steps = (STOP, "command modprobe -r rebellions", LOADED, "server_change current_releases asking")
    assert order(ran.of("npu-1"), *steps) == list(steps)
    assert "npu-1 serves again and is proven, after the step reload" in ran.words
    assert ran.calls[-1] == "npu-1 host_lease released"


@scenes("stopped")
def test_a_server_that_does_not_run_is_started_and_nothing_more(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert "npu-1 serves again and is proven, after the step serve" in ran.words
    assert [call for call in ran.of("npu-1") if not call.startswith("host_state")] == [
        "server_change current_releases asking",
    ]


@scenes("wrong answers")
def test_the_steps_go_on_until_one_helps_and_all_are_told_where_none_does(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert order(ran.of("npu-1"), "inference_check", STOP, LOADED) == ["inference_check", STOP, LOADED]
    assert "npu-1 is not recovered. restart did not help: npu-1 is played to fail; reload did not help:" in ran.words


@scenes("wrong answers, and stays in use")
def test_a_step_that_fails_with_the_server_stopped_has_it_started_whatever_came_of_the_steps_before(ran: Run) -> None:
    assert ran.code == 2, ran.output
    calls = ran.of("npu-1")
    unloads = max(number for number, call in enumerate(calls) if call.startswith("command modprobe -r"))
    assert [call for call in calls[unloads:] if call == "server_change current_releases"], calls
    assert "the server does not serve again: npu-1 is played to fail" in ran.words


@scenes("wrong answers before")
def test_the_step_that_helps_is_the_last(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert order(ran.of("npu-1"), STOP, LOADED, "server_change current_releases asking") == [
        STOP,
        "server_change current_releases asking",
    ]
    assert "npu-1 serves again and is proven, after the step restart" in ran.words


@scenes("well", "stale, but looked at")
def test_a_host_that_is_well_and_one_that_is_only_looked_at_are_left_alone(ran: Run) -> None:
    assert ran.code == 0, ran.output
    assert set(ran.of("npu-1")) <= {"inference_check"}
    assert ("no difference from the current releases, and every answer was right" in ran.words) or (
        "is old, expected new (reload)" in ran.words
    )


@scenes("beyond recovery")
def test_a_host_that_needs_hands_is_told_and_keeps_no_other_from_being_recovered(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert "npu-3 cannot be recovered, nothing was changed: driver bus is old, expected new (inspect)" in ran.words
    assert [host for host in HOSTS if "server_change current_releases asking" in ran.of(host)] == ["npu-1", "npu-2"]


@scenes("stays in use")
def test_a_module_that_stays_in_use_needs_a_reboot_which_is_written_down(ran: Run) -> None:
    assert ran.code == 2, ran.output
    assert "npu-1 needs a reboot. Put the host into maintenance" in ran.words
    assert [call for call in ran.of("npu-1") if call == "host_files /run/npufleet /run/npufleet/reboot-required"], ran.calls
    assert [call for call in ran.of("npu-1") if call.startswith("reboot")] == []
    # It serves as well as it did
    expected = [STOP, "server_change current_releases", "inference_check accepted"]
    assert order(ran.of("npu-1"), *expected) == expected


@scenes("stays in use, may reboot")
def test_a_host_that_may_be_rebooted_is_let_go_and_held_again(ran: Run) -> None:
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
def test_a_run_that_leaves_out_its_first_steps_is_no_success(
    tmp_path: Path, playbook: str, options: tuple[str, ...], found: str
) -> None:
    ran = run(tmp_path, playbook, only("npu-1", *MODELS), *options)
    assert ran.code != 0, ran.output
    assert f"The command line has {found}, expected none" in ran.words
    assert ran.calls == []


def test_a_second_playbook_of_a_run_takes_results_of_the_first_for_no_variables_of_the_inventory(tmp_path: Path) -> None:
    scenario = {"npu-1": {"plan": MODELS}, "npu-2": {"plan": []}}
    ran = run(tmp_path, "models.yml", scenario, str(ROOT / "playbooks/site.yml"))
    assert ran.code == 0, ran.output
    assert len([call for call in ran.calls if "preflight" in call]) == 4
    assert ran.of("npu-2") == []
