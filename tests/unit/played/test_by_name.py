"""Cards that an engine finds by their CDI name: when the spec of the vendor is generated. Real playbooks on simulated hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stage import Run, differs, run

GENERATE = "systemd_service restarted npufleet-cdi.service"
LOAD = "command modprobe rebellions"
OUTDATED = differs("driver", "generate", name="/var/run/cdi/rbln.yaml", until=GENERATE)


def site(directory: Path, *plan: dict[str, Any], **more: Any) -> Run:
    variables = {"npufleet_device_access": "cdi", "rbln_release": "26.07", "rbln_driver_form": "present"}
    return run(directory, "site.yml", {"npu-1": {"plan": list(plan), **more.pop("host", {})}}, **{**variables, **more})


def test_an_outdated_spec_is_generated_while_the_server_keeps_running(tmp_path: Path) -> None:
    ran = site(tmp_path, OUTDATED)
    assert ran.code == 0, ran.output
    calls = ran.calls_on("npu-1")
    assert calls.index(GENERATE) < calls.index("host_state driver prove")
    assert [call for call in calls if call.startswith(("apt", "get_url", "triton_container", LOAD))] == []


def test_a_new_driver_gets_its_spec_before_the_server_starts(tmp_path: Path) -> None:
    ran = site(tmp_path, differs("driver", "load", name="module", until=LOAD))
    assert ran.code == 0, ran.output
    calls = ran.calls_on("npu-1")
    started = next(number for number, call in enumerate(calls) if call.startswith("server_change"))
    assert calls.index("triton_container stopped") < calls.index(LOAD) < calls.index(GENERATE) < started


def test_the_toolkit_is_installed_from_its_signed_repository(tmp_path: Path) -> None:
    ran = site(tmp_path, differs("driver", "toolkit", name="rbln-container-toolkit", until="apt latest"), OUTDATED)
    assert ran.code == 0, ran.output
    installed = [
        call
        for call in ran.calls_on("npu-1")
        if call.startswith(("get_url", "apt", "host_files /etc/apt", "host_files /etc/systemd", GENERATE))
    ]
    assert installed == [
        "host_files /etc/apt/keyrings",
        "get_url /etc/apt/keyrings/rebellions.asc",
        "host_files /etc/apt/sources.list.d/rebellions.list",
        "apt latest rbln-container-toolkit",
        "host_files /etc/systemd/system/npufleet-cdi.service /etc/systemd/system/npufleet-cdi-start.service",
        GENERATE,
    ]
    ran = site(
        tmp_path / "own",
        differs("driver", "toolkit", name="rbln-container-toolkit", until="apt latest"),
        rbln_driver_toolkit_repository="",
    )
    assert ran.code == 0, ran.output
    assert [call.split()[0] for call in ran.calls_on("npu-1") if call.startswith(("get_url", "apt"))] == ["apt"]


def test_a_failed_spec_stops_the_rollout_but_not_the_server(tmp_path: Path) -> None:
    ran = site(tmp_path, OUTDATED, host={"fails": GENERATE})
    assert ran.code == 2, ran.output
    assert "npu-1: npufleet-cdi.service created no spec of the NPUs for containers" in ran.words
    assert [call for call in ran.calls_on("npu-1") if call.startswith(("triton_container", "server_change"))] == []


def test_the_unit_is_removed_without_cdi(tmp_path: Path) -> None:
    gone = "host_files absent /etc/systemd/system/npufleet-cdi.service"
    ran = site(
        tmp_path,
        differs("driver", "remove", name="npufleet-cdi.service", until=gone),
        npufleet_device_access="privileged",
    )
    assert ran.code == 0, ran.output
    calls = ran.calls_on("npu-1")
    assert calls.index("systemd_service stopped npufleet-cdi.service") < calls.index(gone)
    assert GENERATE not in calls
