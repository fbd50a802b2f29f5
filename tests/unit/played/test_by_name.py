"""Cards that the engine finds by name, on played hosts: when the vendor's spec of them is made, and what is left alone for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stage import Run, differs, run

MAKE = "systemd_service restarted npufleet-cdi.service"
LOAD = "command modprobe rebellions"
STALE = differs("driver", "generate", name="/var/run/cdi/rbln.yaml", until=MAKE)


def site(place: Path, *plan: dict[str, Any], **more: Any) -> Run:
    way = {"npufleet_device_access": "cdi", "rbln_release": "26.07", "rbln_driver_form": "present"}
    return run(place, "site.yml", {"npu-1": {"plan": list(plan), **more.pop("host", {})}}, **{**way, **more})


def test_a_stale_spec_is_made_anew_below_a_server_that_serves_on(tmp_path: Path) -> None:
    ran = site(tmp_path, STALE)
    assert ran.code == 0, ran.output
    calls = ran.of("npu-1")
    assert calls.index(MAKE) < calls.index("host_state driver prove")
    assert [call for call in calls if call.startswith(("apt", "get_url", "triton_container", LOAD))] == []


def test_another_driver_has_its_spec_before_the_server_starts_on_it(tmp_path: Path) -> None:
    ran = site(tmp_path, differs("driver", "load", name="module", until=LOAD))
    assert ran.code == 0, ran.output
    calls = ran.of("npu-1")
    started = next(number for number, call in enumerate(calls) if call.startswith("server_change"))
    assert calls.index("triton_container stopped") < calls.index(LOAD) < calls.index(MAKE) < started


def test_a_toolkit_is_brought_from_its_repository_by_its_key(tmp_path: Path) -> None:
    ran = site(tmp_path, differs("driver", "toolkit", name="rbln-container-toolkit", until="apt latest"), STALE)
    assert ran.code == 0, ran.output
    brought = [
        call
        for call in ran.of("npu-1")
        if call.startswith(("get_url", "apt", "host_files /etc/apt", "host_files /etc/systemd", MAKE))
    ]
    assert brought == [
        "host_files /etc/apt/keyrings",
        "get_url /etc/apt/keyrings/rebellions.asc",
        "host_files /etc/apt/sources.list.d/rebellions.list",
        "apt latest rbln-container-toolkit",
        "host_files /etc/systemd/system/npufleet-cdi.service /etc/systemd/system/npufleet-cdi-start.service",
        MAKE,
    ]
    ran = site(
        tmp_path / "own",
        differs("driver", "toolkit", name="rbln-container-toolkit", until="apt latest"),
        rbln_driver_toolkit_repository="",
    )
    assert ran.code == 0, ran.output
    assert [call.split()[0] for call in ran.of("npu-1") if call.startswith(("get_url", "apt"))] == ["apt"]


def test_a_spec_that_cannot_be_made_stops_the_rollout_below_a_server_that_serves_on(tmp_path: Path) -> None:
    ran = site(tmp_path, STALE, host={"fails": MAKE})
    assert ran.code == 2, ran.output
    assert "npu-1: npufleet-cdi.service created no spec of the NPUs for containers" in ran.words
    assert [call for call in ran.of("npu-1") if call.startswith(("triton_container", "server_change"))] == []


def test_the_unit_goes_where_no_engine_asks_by_name(tmp_path: Path) -> None:
    gone = "host_files absent /etc/systemd/system/npufleet-cdi.service"
    ran = site(
        tmp_path,
        differs("driver", "remove", name="npufleet-cdi.service", until=gone),
        npufleet_device_access="privileged",
    )
    assert ran.code == 0, ran.output
    calls = ran.of("npu-1")
    assert calls.index("systemd_service stopped npufleet-cdi.service") < calls.index(gone)
    assert MAKE not in calls
