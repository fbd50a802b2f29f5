"""Hosts behind load balancers: when a host is drained, and what is recorded and refused. Real playbooks on simulated hosts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from stage import HOSTS, MODEL, STOPPED, Run, differs, run

LB: dict[str, Any] = {"lb-1": {"balancer": True}}
BEHIND: dict[str, Any] = {**{host: {"plan": []} for host in HOSTS[:2]}, **LB}
OUT = ("-e", "maintenance=out", "-e", "maintenance_reason='swap card 2'", "--limit", "npu-1")
IN = ("-e", "maintenance=in", "--limit", "npu-1")
STOP = "npu-1 docker_container"


def of_balancer(ran: Run) -> list[str]:
    """Return the calls that change the servers of a balancer."""
    return [call for call in ran.calls if " balancer_server " in call]


def in_order(ran: Run, *starts: str) -> bool:
    """Return True if the run made calls that start with these texts, in this order."""
    left = iter(ran.calls)
    return all(any(call.startswith(start) for call in left) for start in starts)


def test_maintenance_drains_a_host_before_it_stops_the_server(tmp_path: Path) -> None:
    ran = run(tmp_path, "maintenance.yml", BEHIND, *OUT, balancers=("lb-1",))
    assert ran.code == 0, ran.output
    mark = "npu-1 host_files /var/lib/npufleet/maintenance.json"
    assert in_order(ran, "lb-1 balancer_info", mark, "lb-1 balancer_server drained npu-1", STOP), ran.calls
    assert "traffic.json" not in " ".join(ran.calls)
    assert {call.split()[-1] for call in of_balancer(ran)} == {"npu-1"}


def test_a_host_returns_to_the_traffic_after_its_proof(tmp_path: Path) -> None:
    scenario = {**BEHIND, "npu-1": {"plan": [], "maintenance_after": ""}}
    ran = run(tmp_path, "maintenance.yml", scenario, *IN, balancers=("lb-1",))
    assert ran.code == 0, ran.output
    assert in_order(ran, "npu-1 server_change with_checks", "lb-1 balancer_server ready npu-1", "npu-1 file absent"), ran.calls
    assert not [call for call in of_balancer(ran) if " drained " in call]


def test_a_host_that_is_not_proven_stays_drained(tmp_path: Path) -> None:
    scenario = {**BEHIND, "npu-1": {"plan": [], "maintenance_after": "", "fails": "server_change"}}
    ran = run(tmp_path, "maintenance.yml", scenario, *IN, balancers=("lb-1",))
    assert ran.code == 2, ran.output
    assert in_order(ran, "npu-1 server_change", "lb-1 balancer_server drained npu-1", STOP), ran.calls
    assert not [call for call in of_balancer(ran) if " ready " in call]
    assert "npu-1 stays in maintenance" in ran.words


def test_a_drain_of_an_operator_stays(tmp_path: Path) -> None:
    scenario = {
        **BEHIND,
        "npu-1": {"plan": [], "maintenance_after": ""},
        "lb-1": {"balancer": True, "drained_by": {"npu-1": "operator"}},
    }
    ran = run(tmp_path, "maintenance.yml", scenario, *IN, balancers=("lb-1",))
    assert ran.code == 0, ran.output
    assert "npu-1 stays drained on lb-1: fan is loud" in ran.words


def test_maintenance_of_the_last_ready_host_changes_nothing(tmp_path: Path) -> None:
    scenario = {**BEHIND, "lb-1": {"balancer": True, "servers": {"npu-2": {"state": "drained"}}}}
    ran = run(tmp_path, "maintenance.yml", scenario, *OUT, balancers=("lb-1",))
    assert ran.code == 2, ran.output
    assert "lb-1: npu-1 would be drained together and no ready server would be left" in ran.words
    assert of_balancer(ran) == [] and ran.touched() == []
    allowed = run(tmp_path, "maintenance.yml", scenario, *OUT, "-e", "npufleet_allow_outage=true", balancers=("lb-1",))
    assert allowed.code == 0, allowed.output


@pytest.mark.parametrize("options", [OUT, IN])
def test_an_unreachable_balancer_refuses_the_maintenance(tmp_path: Path, options: tuple[str, ...]) -> None:
    scenario = {**BEHIND, "npu-1": {"plan": [], "maintenance_after": ""}, "lb-1": {"balancer": True, "lost": "."}}
    ran = run(tmp_path, "maintenance.yml", scenario, *options, balancers=("lb-1",))
    assert ran.code != 0, ran.output
    assert "the load balancers lb-1 cannot be reached" in ran.words, ran.output
    assert ran.touched() == []


@pytest.mark.parametrize("options", [OUT, IN])
def test_maintenance_without_balancers_calls_none(tmp_path: Path, options: tuple[str, ...]) -> None:
    scenario = {"npu-1": {"plan": [], **({"maintenance_after": ""} if options == IN else {})}, "npu-2": {"plan": []}}
    ran = run(tmp_path, "maintenance.yml", scenario, *options)
    assert ran.code == 0, ran.output
    assert "balancer" not in " ".join(ran.calls)


@pytest.mark.parametrize("options", [OUT, IN])
def test_check_mode_of_maintenance_changes_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    scenario = {**BEHIND, "npu-1": {"plan": [], **({"maintenance_after": ""} if options == IN else {})}}
    ran = run(tmp_path, "maintenance.yml", scenario, *options, "--check", balancers=("lb-1",))
    assert ran.code == 0, ran.output
    assert of_balancer(ran), ran.calls
    assert all(call.endswith(" check_mode") for call in of_balancer(ran))


def commands(directory: Path, is_drained: str = "exit 0") -> dict[str, Any]:
    """Return the drain commands of a site. They write their arguments and environment to a file."""
    text = f'echo "$1 $NPUFLEET_HOST $NPUFLEET_HTTP_PORT $NPUFLEET_WEIGHT $NPUFLEET_REASON" >> {directory}/site'
    names = {"drain": text, "undrain": text, "is_drained": is_drained}
    return {name: ["/bin/sh", "-c", body, "sh", name] for name, body in names.items()}


@pytest.mark.parametrize(
    ("options", "line"), [(OUT, "drain npu-1 8000 0 swap card 2"), (IN, "undrain npu-1 8000 100 maintenance ended: swap card 2")]
)
def test_maintenance_calls_the_commands_of_the_site(tmp_path: Path, options: tuple[str, ...], line: str) -> None:
    scenario = {"npu-1": {"plan": [], **({"maintenance_after": ""} if options == IN else {})}}
    variables = {"npufleet_drain_hook": "command", "npufleet_drain_commands": commands(tmp_path)}
    ran = run(tmp_path, "maintenance.yml", scenario, *options, **variables)
    assert ran.code == 0, ran.output
    (called,) = (tmp_path / "site").read_text().splitlines()
    assert called == line


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"npufleet_drain_hook": "f5"}, "npufleet_drain_hook is f5, expected haproxy, command or none"),
        ({"npufleet_drain_hook": "haproxy"}, "npufleet_drain_hook is haproxy, but no host is in load_balancer_hosts"),
        (
            {"npufleet_drain_hook": "command", "npufleet_drain_commands": {"drain": ["true"]}},
            "npufleet_drain_hook is command, but npufleet_drain_commands has no undrain and no is_drained",
        ),
    ],
)
def test_an_unusable_drain_hook_is_refused(tmp_path: Path, variables: dict[str, Any], words: str) -> None:
    ran = run(tmp_path, "maintenance.yml", {"npu-1": {"plan": []}}, *OUT, **variables)
    assert ran.code == 2, ran.output
    assert words in ran.words and "nothing was changed" in ran.words
    assert ran.touched() == []


def test_an_unreachable_balancer_refuses_a_rollout(tmp_path: Path) -> None:
    scenario = {host: {"plan": [differs("models", "release", name="add", until="server_change")]} for host in HOSTS[:2]}
    ran = run(tmp_path, "models.yml", {**scenario, "lb-1": {"balancer": True, "lost": "."}}, balancers=("lb-1",))
    assert ran.code != 0, ran.output
    assert "the load balancers lb-1 cannot be reached" in ran.words, ran.output
    assert ran.touched() == []


@pytest.mark.parametrize(("lost", "changed"), [("balancer_server drained", False), ("balancer_server ready", True)])
def test_a_balancer_lost_during_a_change_stops_the_rollout(tmp_path: Path, lost: str, changed: bool) -> None:
    """The host stays drained on the other balancer, and a change without a verdict is rolled back."""
    scenario = {
        **{host: {"plan": [differs("server", "restart", until="server_change")]} for host in HOSTS[:2]},
        **LB,
        "lb-2": {"balancer": True, "lost": lost},
    }
    variables = {"npufleet_judge_seconds": 1, "npufleet_rollout_serial": [1, "100%"]}
    ran = run(tmp_path, "site.yml", scenario, balancers=("lb-1", "lb-2"), **variables)
    assert ran.code != 0, ran.output
    assert "the load balancers lb-2 cannot be reached" in ran.words and "the host stays out of the traffic" in ran.words, ran.output
    assert ran.touched() == ["npu-1"]
    assert ("npu-1 server_change restored" in ran.calls) is changed, ran.calls
    assert "npu-1 server_change accepted" not in ran.calls
    assert [call for call in of_balancer(ran) if call.startswith("lb-1 ")][-1] == "lb-1 balancer_server drained npu-1", ran.calls
    assert f"npu-1 host_files absent {RECORD}" not in ran.calls


ENGINE = [differs("engine", "limit", until="systemd_service restarted docker"), differs("image", "build", until="triton_image")]


def test_the_build_host_is_drained_before_its_engine_changes(tmp_path: Path) -> None:
    scenario = {"npu-1": {"plan": ENGINE}, "npu-2": {"plan": []}, **LB}
    ran = run(tmp_path, "site.yml", scenario, balancers=("lb-1",), npufleet_build_host="npu-1", npufleet_judge_seconds=1)
    drained, restarted = "lb-1 balancer_server drained npu-1", "npu-1 systemd_service restarted docker"
    assert in_order(ran, drained, restarted, "npu-1 server_change", "lb-1 balancer_server ready npu-1"), "\n".join(
        [*ran.calls, ran.output]
    )


# A drain that a rollout has not completed

ROLLBACK = ("-e", "rollback_to=previous")
UPGRADE = ("-e", "upgrade_to=26.07-sdk0.9", "-e", "upgrade_confirm=true")
RECORD = "/var/lib/npufleet/traffic.json"
LIMITED = differs("traffic", "undrain", name="share of the traffic", until=f"host_files absent {RECORD}")


@pytest.mark.parametrize(
    ("playbook", "options"),
    [("site.yml", ()), ("models.yml", ()), ("recover.yml", ()), ("rollback.yml", ROLLBACK), ("upgrade.yml", UPGRADE)],
)
def test_an_unfinished_drain_is_completed_after_a_proof(tmp_path: Path, playbook: str, options: tuple[str, ...]) -> None:
    scenario = {**BEHIND, "npu-1": {"plan": [LIMITED], "moves": {}}, "npu-2": {"plan": [], "moves": {}}}
    ran = run(tmp_path, playbook, scenario, *options, balancers=("lb-1",), npufleet_judge_seconds=1)
    assert ran.code == 0, ran.output
    proof, ready = "npu-1 inference_check", "lb-1 balancer_server ready npu-1"
    assert in_order(ran, "lb-1 balancer_server drained npu-1", proof, ready, f"npu-1 host_files absent {RECORD}"), ran.calls
    assert {call.split()[-1] for call in of_balancer(ran)} == {"npu-1"}
    assert not [call for call in ran.calls if " server_change" in call], ran.calls


@pytest.mark.parametrize(
    ("playbook", "options"),
    [("site.yml", ()), ("recover.yml", ()), ("rollback.yml", ROLLBACK)],
)
def test_an_unfinished_drain_of_a_host_that_is_not_proven_stays(tmp_path: Path, playbook: str, options: tuple[str, ...]) -> None:
    scenario = {**BEHIND, "npu-1": {"plan": [LIMITED], "moves": {}, "fails": "inference_check|server_change"}}
    scenario["npu-2"] = {"plan": [], "moves": {}}
    ran = run(tmp_path, playbook, scenario, *options, balancers=("lb-1",), npufleet_judge_seconds=1)
    assert ran.code == 2, ran.output
    assert of_balancer(ran) and not [call for call in of_balancer(ran) if " ready " in call], ran.calls
    assert f"npu-1 host_files absent {RECORD}" not in ran.calls
    assert "the host stays out of the traffic" in ran.words


@pytest.mark.parametrize("playbook", ["recover.yml", "site.yml"])
def test_without_balancers_a_proof_removes_the_drain_record(tmp_path: Path, playbook: str) -> None:
    ran = run(tmp_path, playbook, {"npu-1": {"plan": [LIMITED]}})
    assert ran.code == 0, ran.output
    assert in_order(ran, "npu-1 inference_check", f"npu-1 host_files absent {RECORD}"), ran.calls


@pytest.mark.parametrize(("plan", "fails"), [(STOPPED, "never"), ([], "inference_check")])
def test_a_recovery_is_made_without_traffic(tmp_path: Path, plan: list[dict[str, Any]], fails: str) -> None:
    """The host is drained, because a host with wrong answers may look healthy to its balancers."""
    scenario = {**BEHIND, "npu-1": {"plan": plan, "fails": fails}}
    ran = run(tmp_path, "recover.yml", scenario, balancers=("lb-1",), npufleet_judge_seconds=1)
    assert ran.code == 0, ran.output
    drained, ready = "lb-1 balancer_server drained npu-1", "lb-1 balancer_server ready npu-1"
    assert in_order(ran, drained, "npu-1 server_change", ready), ran.calls
    assert not [call for call in ran.calls if "server_change accepted" in call or "server_change restored" in call]


def test_a_recovery_of_the_last_ready_host_changes_nothing(tmp_path: Path) -> None:
    scenario = {**BEHIND, "npu-1": {"plan": [], "fails": "inference_check"}}
    scenario["lb-1"] = {"balancer": True, "servers": {"npu-2": {"state": "drained"}}}
    ran = run(tmp_path, "recover.yml", scenario, balancers=("lb-1",))
    assert ran.code == 2, ran.output
    assert "lb-1: npu-1 would be drained together and no ready server would be left" in ran.words
    assert of_balancer(ran) == [] and not [call for call in ran.calls if " server_change" in call]


def test_a_rollback_completes_an_unfinished_drain(tmp_path: Path) -> None:
    scenario = {**BEHIND, "npu-1": {"plan": [*MODEL, LIMITED]}, "npu-2": {"plan": [], "moves": {}}}
    ran = run(tmp_path, "rollback.yml", scenario, *ROLLBACK, balancers=("lb-1",), npufleet_judge_seconds=1)
    assert ran.code == 0, ran.output
    drained, ready = "lb-1 balancer_server drained npu-1", "lb-1 balancer_server ready npu-1"
    assert in_order(ran, drained, "npu-1 server_change rollback", ready, f"npu-1 host_files absent {RECORD}"), ran.calls


# An adoption

ADOPT = ("-e", "adopt_replace=true", "-e", "triton_server_name=managed", "--limit", "npu-1")
DIGEST = hashlib.sha256(b"compiled").hexdigest()
REPLACED = [differs("server", "restart", until="server_change")]
RENAMED = 'npu-1 command ["docker", "rename", "nifty_sinoussi", "managed"]'
RENAMED_BACK = 'npu-1 command ["docker", "rename", "managed", "nifty_sinoussi"]'


def adopted(directory: Path, balancer: dict[str, Any] | None = None, variables: dict[str, Any] | None = None, **more: Any) -> Run:
    """Adopt npu-1, which has a container with another name, behind a balancer with two hosts."""
    server = {"plan": REPLACED, "unnamed": True, **more}
    scenario = {"npu-1": server, "npu-2": {"plan": []}, "lb-1": {"balancer": True, **(balancer or {})}}
    return run(directory, "adopt.yml", scenario, *ADOPT, balancers=("lb-1",), npufleet_judge_seconds=1, **(variables or {}))


def test_an_adoption_is_made_without_traffic_and_judged(tmp_path: Path) -> None:
    ran = adopted(tmp_path)
    assert ran.code == 0, ran.output
    drained, ready, accepted = (
        "lb-1 balancer_server drained npu-1",
        "lb-1 balancer_server ready npu-1",
        "npu-1 server_change accepted",
    )
    assert in_order(ran, drained, RENAMED, "npu-1 server_change", ready, accepted, ready), ran.calls
    assert {call.split()[-1] for call in of_balancer(ran)} == {"npu-1"}
    assert RENAMED_BACK not in ran.calls


def with_compiled_file(directory: Path) -> dict[str, Any]:
    """Return the variable of a model whose compiled file the host needs."""
    (directory / "model.rbln").write_bytes(b"compiled")
    artefact = {"file": str(directory / "model.rbln"), "sha256": DIGEST}
    return {"triton_models": [{"name": "add", "artefacts": {"CA22/0.9": artefact}}]}


def test_an_adoption_copies_image_and_models_before_it_drains_the_host(tmp_path: Path) -> None:
    arrived = {"model_blobs": {"changed": False, "needed": [], "arrived": {}, "taken": {}}}
    ran = adopted(tmp_path, variables=with_compiled_file(tmp_path), missing=[DIGEST], results=arrived)
    assert ran.code == 0, ran.output
    copied, checked, renamed = "npu-1 model_blobs", "npu-1 inference_check", RENAMED
    assert in_order(ran, "npu-1 host_lease", copied, "lb-1 balancer_server drained npu-1", checked, renamed), ran.calls


def test_an_adoption_that_cannot_copy_never_drains_the_host(tmp_path: Path) -> None:
    ran = adopted(tmp_path, variables=with_compiled_file(tmp_path), missing=[DIGEST], fails="model_blobs|inference_check")
    assert ran.code == 2, ran.output
    assert "npu-1 was not adopted" in ran.words and "npu-1 is played to fail" in ran.words
    assert of_balancer(ran) == [] and not [call for call in ran.calls if call.startswith("npu-1 command")], ran.calls
    assert f"npu-1 host_files {RECORD}" not in ran.calls


def test_a_failed_adoption_returns_to_the_traffic_after_a_proof(tmp_path: Path) -> None:
    ran = adopted(tmp_path, fails="server_change with_checks")
    assert ran.code == 2, ran.output
    drained, ready = "lb-1 balancer_server drained npu-1", "lb-1 balancer_server ready npu-1"
    assert in_order(ran, drained, RENAMED, RENAMED_BACK, "npu-1 inference_check", ready), ran.calls
    assert "npu-1 was not adopted" in ran.words


def test_a_failed_adoption_that_is_not_proven_stays_drained(tmp_path: Path) -> None:
    ran = adopted(tmp_path, fails="server_change with_checks|inference_check")
    assert ran.code == 2, ran.output
    assert not [call for call in of_balancer(ran) if " ready " in call], ran.calls
    assert "the host stays out of the traffic" in ran.words


def test_a_bad_verdict_restores_the_container_of_an_adoption(tmp_path: Path) -> None:
    ran = adopted(tmp_path, {"failed": {"npu-1": 100}})
    assert ran.code == 2, ran.output
    drained, ready = "lb-1 balancer_server drained npu-1", "lb-1 balancer_server ready npu-1"
    assert in_order(ran, drained, "npu-1 server_change", ready, drained, "npu-1 server_change restored", RENAMED_BACK), ran.calls
    assert "npu-1 was not adopted" in ran.words and "npu-1 server_change accepted" not in ran.calls


def test_an_adoption_keeps_the_drain_of_an_operator(tmp_path: Path) -> None:
    ran = adopted(tmp_path, {"drained_by": {"npu-1": "operator"}})
    assert ran.code == 0, ran.output
    assert "npu-1 stays drained on lb-1: fan is loud" in ran.words


def test_adopt_completes_the_drain_of_a_managed_container(tmp_path: Path) -> None:
    ran = adopted(tmp_path, plan=[LIMITED], managed=True)
    assert ran.code == 0, ran.output
    assert in_order(ran, "npu-1 inference_check", "lb-1 balancer_server ready npu-1", f"npu-1 host_files absent {RECORD}"), (
        ran.calls
    )
    assert not [call for call in ran.calls if call.startswith("npu-1 command")], ran.calls
