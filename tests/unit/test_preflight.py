"""What stands in the way of a plan: each condition against what a host may be, and the one table of all hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.filter.refusal_table import table
from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
from ansible_collections.npufleet.triton.plugins.module_utils import preflight as subject
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import device_access
from ansible_collections.npufleet.triton.plugins.module_utils.driver import systems
from ansible_collections.npufleet.triton.plugins.module_utils.engine import registry
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import preflight_inputs
from helpers import FakeEngine

GIB = 2**30
KERNELS = "==6.8.0,<=6.8.0-117"
ROW = {"systems": {"ubuntu-22.04": "==6.8.0", "ubuntu-24.04": KERNELS}, "cards": ["RBLN-CA22", "RBLN-CA25"]}
OLD = {"systems": {"ubuntu-20.04": ">=5.10"}, "cards": ["RBLN-CA02", "RBLN-CA12"]}
WANTED: dict[str, Any] = {
    "release": "25.08",
    "rows": {"25.08": ROW, "24.01": OLD},
    **ROW,
    "ports": {"8000": "npufleet_http_port", "8001": "npufleet_grpc_port"},
    "container": "triton",
    "headers": True,
    "installs_headers": False,
    "uses_cdi": False,
    "installs_toolkit": True,
    "disk": {"/var/lib/docker": {"image": 60 * GIB}, "/var/lib/npufleet": {"image": 30 * GIB, "models": 5 * GIB}},
    "models": {},
}
NOBLE = 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n'
TOOL = {"path": "/usr/bin/rbln-smi", "devices": [{"npu": 0, "memory_total": 16 * GIB}, {"npu": 1, "memory_total": 15 * GIB}]}
DRIVER: dict[str, Any] = {"bus": ["a", "b"], "tool": TOOL}


def item(concern: str, name: str, action: str, current: Any = None, desired: Any = None) -> dict[str, Any]:
    return {"concern": concern, "name": name, "current": current, "desired": desired, "action": action}


def test_system_of_the_row_is_accepted() -> None:
    assert systems.system_refusals(WANTED, NOBLE, "6.8.0-49-generic") == []


def test_other_system_and_kernel_are_refused_at_once() -> None:
    system, kernel = systems.system_refusals(WANTED, NOBLE.replace("24.04", "20.04"), "5.4.0-1-generic")
    assert system == (
        "the system is ubuntu-20.04, expected ubuntu-22.04 or ubuntu-24.04 for release 25.08. "
        "Install one of them, or choose release 24.01"
    )
    todo = "for release 25.08. Install and boot such a kernel, and hold it"
    assert kernel == f"the kernel is 5.4.0-1-generic, expected ==6.8.0 or {KERNELS} {todo}"
    assert systems.system_refusals(WANTED, NOBLE, "6.8.0-118-generic") == [
        f"the kernel is 6.8.0-118-generic, expected {KERNELS} {todo}"
    ]
    assert systems.system_refusals(WANTED, NOBLE.replace("24.04", "22.04"), "6.8.0-118-generic") == []


@pytest.mark.parametrize(
    ("kernel", "rule", "fits"),
    [
        ("6.8.0-49-generic", "==6.8.0", True),
        ("6.8.1-49-generic", "==6.8.0", False),
        ("6.11.0-9-generic", "==6.8.0", False),
        ("5.15.0-1", ">=5.10", True),
        ("5.9.16", ">=5.10", False),
        ("6.1.0-18-amd64", ">=5.10", True),
        ("5.10", ">=5.10.3", False),
        ("6.8.0-138-generic", "==6.8.0,<=6.8.0-138", True),
        ("6.8.0-139-generic", "==6.8.0,<=6.8.0-138", False),
        ("6.7.9-1-generic", "==6.8.0,<=6.8.0-138", False),
        ("6.8.0", "<=6.8.0-138", True),
        ("6.8.1-1", "<=6.8.0-138", False),
        ("6.8.0-100-generic", ">=6.8.0-49", True),
        ("6.8.0-9-generic", ">=6.8.0-49", False),
        ("5.14.0-570.116.1.el9_6.x86_64", "==5.14.0,<=5.14.0-570", True),
        ("5.14.0-611.55.1.el9_7.x86_64", "==5.14.0,<=5.14.0-570", False),
        # The vendor's bounds have all the numbers of a build
        ("5.14.0-570.116.1.el9_6.x86_64", "==5.14.0,<=5.14.0-570.116.1", True),
        ("5.14.0-570.117.1.el9_6.x86_64", "==5.14.0,<=5.14.0-570.116.1", False),
        ("5.14.0-570.116.2.el9_6.x86_64", "==5.14.0,<=5.14.0-570.116.1", False),
        ("5.14.0-570.9.1.el9_6.x86_64", "==5.14.0,<=5.14.0-570.116.1", True),
        ("5.14.0-570.el9_6.x86_64", "==5.14.0,<=5.14.0-570.116.1", True),
        ("6.12.0-55.76.1.el10_0.x86_64", "==6.12.0,<=6.12.0-55.75.1", False),
        ("6.12.0-55.75.1.el10_0.x86_64", "<=6.12.0-55.75.1", True),
    ],
)
def test_kernels(kernel: str, rule: str, fits: bool) -> None:
    assert systems.kernel_fits(kernel, rule) is fits


@pytest.mark.parametrize(("found", "words"), [(1105.0, "100 s ahead of"), (900.0, "100 s behind")])
def test_clock_that_is_wrong(found: float, words: str) -> None:
    (reason,) = preflight_inputs.clock(found, 1000.0, 1005.0, 30)
    assert f"the clock is {words} the controller's, expected at most 30 s. " in reason


def test_clock_that_is_right() -> None:
    assert [preflight_inputs.clock(found, 1000.0, 1005.0, 30) for found in (970.0, 1000.0, 1003.0, 1035.0)] == [[]] * 4


def test_an_answer_that_takes_long_is_no_wrong_clock() -> None:
    assert [preflight_inputs.clock(found, 1000.0, 1600.0, 30) for found in (1000.0, 1300.0, 1600.0)] == [[]] * 3


def test_card_that_the_row_does_not_support_is_seen_on_the_bus() -> None:
    (reason,) = subject.cards(WANTED, DRIVER, [item("driver", "card type", "inspect", "RBLN-CA12", "RBLN-CA22")], ["RBLN-CA12"])
    assert reason == "the bus has RBLN-CA12, expected RBLN-CA22 or RBLN-CA25 for release 25.08. Choose release 24.01"
    (reason,) = subject.cards(WANTED, DRIVER, [], ["0x9999"])
    assert reason.endswith("No release of this version supports them")


def test_no_card_on_the_bus() -> None:
    bare = {"bus": [], "tool": {"error": "not there"}}
    (reason,) = subject.cards(
        WANTED, bare, [item("driver", "package", "install"), item("driver", "bus", "inspect", "0 NPUs", "2 NPUs")], []
    )
    assert reason.startswith("bus: no card, expected 2 NPUs. Check seat and power of the card with `lspci -d 1eff:`")


@pytest.mark.parametrize("name", sorted(subject.NEXT_STEPS))
def test_what_only_hands_repair_is_refused_with_what_to_do(name: str) -> None:
    (reason,) = subject.cards(WANTED, DRIVER, [item("driver", name, "inspect", "that", "this")], [])
    assert ": that, expected this. " in reason
    assert reason.endswith(subject.NEXT_STEPS[name])


def test_cards_are_not_judged_under_a_driver_that_is_about_to_change() -> None:
    plan = [item("driver", "module", "reload"), item("driver", "cards", "inspect", "1 listed", "2 listed")]
    assert list(subject.cards(WANTED, DRIVER, plan, ["RBLN-CA22"])) == []


def test_a_reboot_that_nobody_may_make_is_refused_where_the_module_would_be_loaded_anew() -> None:
    plan = [item("driver", "module", "reload"), item("driver", "reboot", "inspect", "required", "rebooted")]
    (reason,) = subject.cards(WANTED, DRIVER, plan, ["RBLN-CA22"])
    assert reason == (
        "reboot: required, expected rebooted. Reboot the host in maintenance (playbooks/maintenance.yml), or set rbln_driver_reboot"
    )
    allowed = [plan[0], {**plan[1], "action": "reboot"}]
    assert list(subject.cards(WANTED, DRIVER, allowed, ["RBLN-CA22"])) == []


def test_device_memory_of_each_npu_decides() -> None:
    assert list(subject.memory({**WANTED, "models": {"a": [8 * GIB, 8 * GIB], "b": [8 * GIB, 7 * GIB]}}, DRIVER)) == []
    (reason,) = subject.memory({**WANTED, "models": {"a": [7 * GIB] * 2, "b": [9 * GIB] * 2}}, DRIVER)
    assert reason.startswith("device memory of NPU 1 is 15.0 GiB, expected 16.0 GiB for the models on it (b 9.0, a 7.0). Place")
    (first,) = subject.memory({**WANTED, "models": {"a": [17 * GIB, 0], "b": [0, 9 * GIB]}}, DRIVER)
    assert "of NPU 0 is 16.0 GiB, expected 17.0 GiB for the models on it (a 17.0)" in first
    assert list(subject.memory({**WANTED, "models": {"a": [99 * GIB]}}, {"tool": {"error": "no tool yet"}})) == []


def test_npus_that_lack_the_same_memory_share_a_line() -> None:
    tool = {"devices": [{"npu": npu, "memory_total": 15 * GIB} for npu in range(8)]}
    (reason,) = subject.memory({**WANTED, "models": {"a": [16 * GIB] * 8}}, {"tool": tool})
    assert "of NPU 0, 1, 2, 3, 4, 5, 6, 7 is 15.0 GiB, expected 16.0" in reason


@pytest.mark.parametrize(
    ("variable", "key", "answer", "refused"),
    [
        (b"\6\0\0\0\1", True, "MOK.der is already enrolled", False),
        (b"\6\0\0\0\1", True, "MOK.der is not enrolled", True),
        (b"\6\0\0\0\1", True, "mokutil is not installed", True),
        (b"\6\0\0\0\1", False, "MOK.der is already enrolled", True),
        (b"\6\0\0\0\0", False, "", False),
        (b"", False, "", False),
        (None, False, "", False),
    ],
)
def test_secure_boot_without_a_key_of_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: bytes | None, key: bool, answer: str, refused: bool
) -> None:
    monkeypatch.setattr(subject, "SECURE_BOOT", str(tmp_path / "SecureBoot"))
    monkeypatch.setattr(subject, "MOK_KEYS", (str(tmp_path / "MOK.der"),))
    monkeypatch.setattr(subject, "run", lambda *command: (1, answer))
    if variable is not None:
        (tmp_path / "SecureBoot").write_bytes(variable)
    if key:
        (tmp_path / "MOK.der").touch()
    reasons = subject.secure_boot()
    assert bool(reasons) is refused
    assert all(reason.startswith("Secure Boot is on and the key by which DKMS signs") for reason in reasons)


def test_headers_of_another_kernel_do_not_count() -> None:
    (reason,) = subject.headers("0.0.0-nobody", False)
    assert "headers of the running kernel 0.0.0-nobody are missing" in reason
    assert "apt-get install linux-headers-0.0.0-nobody" in reason


@pytest.mark.parametrize(("lists", "known", "refused"), [([], 100, 0), (["a_Packages.lz4"], 0, 0), (["a_Packages"], 100, 1)])
def test_headers_that_the_role_brings_have_to_be_known(
    monkeypatch: pytest.MonkeyPatch, lists: list[str], known: int, refused: int
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(subject.glob, "glob", lambda _pattern: lists)
    monkeypatch.setattr(subject, "run", lambda *command: asked.append(command) or (known, ""))
    assert len(subject.headers("0.0.0-nobody", True)) == refused
    assert asked == [("apt-cache", "show", "linux-headers-0.0.0-nobody")] * bool(lists)


CLOSED = {"devices": [], "groups": [], "missing": ["found no device /dev/rbln0"], "mismatches": ["found user ops"]}


def test_what_the_container_mounts_has_to_be_there() -> None:
    lacks = {
        "server": {
            "absent": ["/srv/gone"],
            "driver_files": {"binds": [], "missing": ["librbln-thunk.so* of driver 3.2.2"]},
            "access": CLOSED,
        }
    }
    plan = [item("server", "container.volumes", "inspect")]
    source, files, *access = subject.refusals(WANTED, lacks, plan, [], {})
    assert source.startswith("/srv/gone is missing, expected the source of a mount in triton_server_volumes. Create")
    assert files.startswith(
        "librbln-thunk.so* of driver 3.2.2 is missing, expected the file of the driver for the container. Install"
    )
    assert access == ["npufleet_device_access: found no device /dev/rbln0", "npufleet_device_access: found user ops"]


@pytest.mark.parametrize("action", ["install", "load", "reload"])
def test_nodes_of_a_driver_that_is_not_loaded_yet_are_not_missed(action: str) -> None:
    lacks = {"server": {"absent": [], "driver_files": {"binds": [], "missing": []}, "access": CLOSED}}
    found = subject.refusals({**WANTED, "headers": False}, lacks, [item("driver", "module", action)], [], {})
    assert [reason for reason in found if "access" in reason] == ["npufleet_device_access: found user ops"]


@pytest.mark.parametrize("action", ["toolkit", "generate"])
def test_a_spec_that_is_about_to_be_made_is_not_missed(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"missing": [device_access.NO_SPEC, "found no device /dev/rbln0"], "mismatches": []}
    lacks = {"server": {"absent": [], "driver_files": {"binds": [], "missing": []}, "access": gone}}
    found = subject.refusals(WANTED, lacks, [item("driver", "of it", action)], [], {})
    assert found == ["npufleet_device_access: found no device /dev/rbln0"]
    found = subject.refusals(WANTED, lacks, [item("server", "container", "start")], [], {})
    assert found[0] == f"npufleet_device_access: {device_access.NO_SPEC}"


@pytest.mark.parametrize(("brings", "words"), [(True, []), (False, ["rbln-container-toolkit is missing and missing"])])
def test_a_toolkit_that_cannot_come_is_refused(brings: bool, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.cdi, "candidate_version", lambda _name: None)
    monkeypatch.setattr(subject, "system_refusals", lambda *_args: [])
    actual = {"driver": {**DRIVER, "toolkit": {"version": None}}}
    plan = [item("driver", "rbln-container-toolkit", "toolkit")]
    found = subject.refusals({**WANTED, "uses_cdi": True, "installs_toolkit": brings}, actual, plan, [], {})
    assert [reason.partition(" in the host's")[0] for reason in found if "the bus" not in reason] == words


def test_an_engine_that_finds_nothing_by_name_is_refused_where_it_has_to() -> None:
    actual = {"engine": {"daemon": {}, "running": {"version": "20.10.24"}}}
    plan = [item("engine", "version", "inspect")]
    assert subject.refusals(WANTED, actual, plan, [], {}) == []
    (reason,) = subject.refusals({**WANTED, "uses_cdi": True}, actual, plan, [], {})
    assert reason.startswith("Docker is 20.10.24, expected 25 or newer")


def test_files_of_a_driver_that_is_about_to_come_are_not_missed() -> None:
    lacks = {"server": {"absent": ["/srv/gone"], "driver_files": {"binds": [], "missing": ["the vendor's tool"]}, "access": CLOSED}}
    assert list(subject.mounts(lacks["server"], False)) == list(subject.mounts(lacks["server"], True))[:1]
    assert len(list(subject.mounts(lacks["server"], True))) == 2


def test_engines_in_the_way() -> None:
    fine = {"daemon": {}}
    assert list(subject.engine(fine, {"docker-ce": {}, "containerd.io": {}}, "Engine, containerd")) == []
    reasons = list(subject.engine(fine, {"podman-docker": {}, "containerd.io": {}}, "Podman Engine, Conmon"))
    assert [entry.split(",")[0] for entry in reasons] == [
        "package containerd.io is installed",
        "package podman-docker is installed",
        "podman answers at /var/run/docker.sock",
    ]
    (reason,) = subject.engine({"daemon": None, "daemon_error": "Expecting value"}, {}, "")
    assert reason == "/etc/docker/daemon.json is broken (Expecting value), expected JSON to merge with. Repair it manually"


def test_ports() -> None:
    taken = {"8000": "process 12 (nginx)", "8001": "process 13 (docker-proxy)"}
    process, container = subject.ports(WANTED, taken, {"8001": "tis"})
    assert process == "port 8000 is taken by process 12 (nginx), expected it free. Stop it, or set another npufleet_http_port"
    assert "port 8001 is published by container tis, expected it free. " in container
    assert "playbooks/adopt.yml" in container
    assert list(subject.ports(WANTED, {"8000": "process 1 (docker-proxy)"}, {"8000": "triton"})) == [], "its own port"


def test_listeners_name_the_process() -> None:
    import os
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        for listen in ("", "0.0.0.0", "127.0.0.1"):
            assert subject.listeners(listen)[port].startswith(f"process {os.getpid()} (")
        for listen in ("127.0.0.2", "::1", "::"):
            assert port not in subject.listeners(listen), "another address has the same port"
    with socket.socket(socket.AF_INET6) as server:
        server.bind(("::1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        assert [entry for entry in ("", "::", "::1", "127.0.0.1", "0.0.0.0") if port in subject.listeners(entry)] == [
            "",
            "::",
            "::1",
        ]


def test_the_host_has_the_address_that_ports_are_published_on() -> None:
    assert [subject.address_refusals(entry) for entry in ("", "0.0.0.0", "127.0.0.1", "::", "::1")] == [[]] * 5
    for listen in ("192.0.2.1", "2001:db8::1"):
        (reason,) = subject.address_refusals(listen)
        assert reason.startswith(f"triton_server_listen_address is {listen}, expected an address of this host (")
        assert reason.endswith("). Correct it")


def test_address_and_ports_are_looked_at_where_a_container_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "Engine", FakeEngine(None))
    wanted = {**WANTED, "listen": "192.0.2.1", "downloads": {}, "disk": {}}
    (reason,) = subject.refusals(wanted, {}, [item("server", "container", "create")], [], {})
    assert reason.startswith("triton_server_listen_address is 192.0.2.1, expected an address of this host")
    assert subject.refusals(wanted, {}, [item("server", "digits", "load")], [], {}) == []
    elsewhere = {**wanted, "listen": "127.0.0.1", "metrics_listen": "192.0.2.1", "ports": {}}
    (reason,) = subject.refusals(elsewhere, {}, [item("server", "container", "create")], [], {})
    assert reason.startswith("triton_server_metrics_listen_address is 192.0.2.1, expected an address of this host")


def test_containers_that_publish_on_another_address_are_not_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [{"IP": "10.0.0.5", "PublicPort": 8000}, {"IP": "::", "PublicPort": 8001}, {"PublicPort": 8002}, {"PrivatePort": 1}]
    monkeypatch.setattr(subject, "Engine", FakeEngine({"/containers/json": [{"Names": ["/other"], "Ports": ports}]}))
    assert sorted(subject._publishers("10.0.0.5")) == ["8000", "8001", "8002"]
    assert sorted(subject._publishers("10.0.0.6")) == ["8001", "8002"]
    assert sorted(subject._publishers("0.0.0.0")) == ["8000", "8001", "8002"]


def test_disk_is_asked_for_what_the_plan_writes() -> None:
    build = {("image", "build"), ("models", "release")}
    assert subject._disk_needs(WANTED, build) == {"/var/lib/docker": 60 * GIB, "/var/lib/npufleet": 35 * GIB}
    assert subject._disk_needs(WANTED, {("models", "release")}) == {"/var/lib/npufleet": 5 * GIB}
    assert subject._disk_needs(WANTED, {("models", "withdraw"), ("server", "load")}) == {}


def test_directories_of_one_file_system_need_their_sum() -> None:
    needs = {"/var/lib/docker": 60 * GIB, "/var/lib/npufleet": 35 * GIB}
    (reason,) = subject.disk(needs, lambda path: (1, 90 * GIB))
    assert reason.startswith("free space of /var/lib/docker and /var/lib/npufleet is 90.0 GiB, expected 95. ")
    assert list(subject.disk(needs, lambda path: (len(path), 61 * GIB))) == []


def test_a_host_without_a_plan_has_nothing_in_its_way() -> None:
    assert subject.refusals({**WANTED, "systems": {}}, {"driver": DRIVER}, [], [{"needed": ["image", "build"]}], {}) == []


def test_only_suppliers_that_the_plan_needs_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(http_probe, "supplier_error", lambda supplier, _passwords: asked.append(supplier["name"]) or "no answer")
    suppliers = [{"name": "index", "needed": ["image", "build"]}, {"name": "driver", "needed": ["driver", "install"]}]
    plan = [item("image", "npufleet/triton", "build")]
    wanted = {**WANTED, "disk": {}}
    assert subject.refusals(wanted, {"image": {}}, plan, suppliers, {}) == ["no answer"]
    assert asked == ["index"]


@pytest.mark.parametrize(("changes", "asked"), [([], ["the engine's", "web"]), (["engine"], ["web"])])
def test_an_engine_that_changes_is_not_asked_for_its_registry(
    monkeypatch: pytest.MonkeyPatch, changes: list[str], asked: list[str]
) -> None:
    for module, name in ((registry, "supplier_error"), (http_probe, "supplier_error")):
        monkeypatch.setattr(module, name, lambda supplier, _passwords, module=module: f"{supplier['name']} {module is registry}")
    monkeypatch.setattr(subject, "engine", lambda *_: [])
    needed = {"needed": ["image", "deliver"]}
    suppliers = [{"name": "the engine's", "kind": "engine", **needed}, {"name": "web", "kind": "web", **needed}]
    plan = [item("image", "npufleet/triton", "deliver"), *(item(concern, "daemon.json", "configure") for concern in changes)]
    reasons = subject.refusals({**WANTED, "disk": {}}, {"image": {}, "engine": {}}, plan, suppliers, {})
    assert reasons == [f"{what} {what != 'web'}" for what in asked]


# One table of all hosts


def test_table_says_a_shared_reason_once() -> None:
    reasons = {"npu1": ["found A", "found B"], "npu2": ["found B"], "npu3": []}
    assert table(reasons) == ("2 of 3 hosts refused, 2 reasons, nothing was changed:\n  - npu1: found A\n  - npu1, npu2: found B")


def test_table_of_every_host_and_of_none() -> None:
    assert table({"npu1": ["found A"], "npu2": ["found A"]}).endswith("\n  - every host: found A")
    assert table({"npu1": ["found A"]}).endswith("1 reason, nothing was changed:\n  - npu1: found A")
    assert table({"npu1": [], "npu2": []}) == table({}) == ""


def test_a_system_that_the_vendor_has_not_fully_tested_is_a_remark(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text('ID="rocky"\nVERSION_ID="9.7"\n')
    wanted = {**WANTED, "untested_systems": ["rocky-9.7"]}
    (remark,) = systems.remarks(wanted, str(release))
    assert remark == "rocky-9.7 is listed as not fully tested by the vendor for release 25.08. Test one host first"
    release.write_text(NOBLE)
    assert systems.remarks(wanted, str(release)) == systems.remarks(WANTED, str(tmp_path / "none")) == []
