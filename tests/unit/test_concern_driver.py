"""Driver and cards: what the vendor's tool says in both its shapes, and what follows for the plan."""

from __future__ import annotations

import json
import os
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import driver
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import driver as desired_driver
from helpers import ROW, fleet

UNIT = desired_driver.unit(2, 120)
WANTED = {
    "form": "deb",
    "package": "rebellions",
    "version": "1.2.92",
    "npus": 2,
    "cards": ["RBLN-CA12"],
    "hold": True,
    "reboots": False,
    "unit": UNIT,
    "cdi": {},
}
NO_TOOLKIT: dict[str, Any] = {"units": dict.fromkeys(cdi.WANTED_BY), "enabled": []}
BUS = ["0000:ab:00.0", "0000:ac:00.0"]
KERNEL = {"linux-image-6.8.0-45-generic": True, "linux-headers-6.8.0-45-generic": True}


def printed(npu: Any, bus_id: str = BUS[0], **changes: Any) -> dict[str, Any]:
    """One device as the tool prints it."""
    return {
        "npu": npu,
        "name": "RBLN-CA12",
        "sid": "0000000000000000",
        "uuid": "00000000-0000-0000-0000-000000000000",
        "device": f"rbln{npu}",
        "status": "normal",
        "fw_ver": "1.2.92",
        "pci": {"dev": "0x1120", "bus_id": bus_id, "numa_node": "1", "link_speed": "16GT/s", "link_width": "16"},
        "temperature": "38C",
        "card_power": "6.1W",
        "pstate": "P14",
        "memory": {"used": "1048576", "total": "16877879296"},
        "util": "0.0",
        "board_info": "0005000c",
        "location": 5,
        **changes,
    }


def parsed(npu: int, **changes: Any) -> dict[str, Any]:
    """The same device as the concern keeps it."""
    return {
        "npu": npu,
        "device": f"rbln{npu}",
        "name": "RBLN-CA12",
        "status": "normal",
        "firmware": "1.2.92",
        "bus_id": BUS[npu],
        "memory_total": 16877879296,
        "memory_used": 1048576,
        **changes,
    }


def tool(*devices: dict[str, Any], version: str = "1.2.92") -> dict[str, Any]:
    return {"path": "/usr/local/bin/rbln-stat", "version": version, "devices": list(devices), "contexts": 0, "holders": []}


def host(**changes: Any) -> dict[str, Any]:
    """A host that is as wanted, with changes."""
    return {
        "package": {"version": "1.2.92", "held": True},
        "packages": {},
        "installed": None,
        "dkms": None,
        "kernel_packages": dict(KERNEL),
        "kernel": "6.8.0-45-generic",
        "module": "1.2.92",
        "reboot": False,
        "boot": True,
        "bus": list(BUS),
        "nodes": ["rbln0", "rbln1"],
        "rsd0": True,
        "unit": UNIT,
        "unit_enabled": True,
        "tool": tool(parsed(0), parsed(1)),
        "toolkit": NO_TOOLKIT,
        **changes,
    }


def found(name: str, current: Any, desired: Any, action: str) -> dict[str, Any]:
    return {"concern": "driver", "name": name, "current": current, "desired": desired, "action": action}


# The tool


@pytest.mark.parametrize("npu", ["0", 0], ids=["1.x says it in a string", "2.x in a number"])
def test_tool_is_read_in_both_shapes(npu: Any) -> None:
    contexts = [{"ctx_id": "1", "npu": npu, "process": "triton", "pid": "77", "memalloc": "1048576", "status": "run"}]
    answer = vendor_tool.parse_tool(json.dumps({"KMD_version": "1.2.92", "devices": [printed(npu)], "contexts": contexts}))
    holders = [{"npu": 0, "cards": ["rbln0"], "pid": 77, "process": "triton"}]
    assert answer == {"version": "1.2.92", "devices": [parsed(0)], "contexts": 1, "holders": holders}


def test_tool_without_firmware_or_contexts_is_read() -> None:
    device = printed(1, bus_id=BUS[1])
    del device["fw_ver"]
    for rest in ({}, {"contexts": None}, {"contexts": []}):
        answer = vendor_tool.parse_tool(json.dumps({"KMD_version": "2.0.1", "devices": [device], **rest}))
        assert answer == {"version": "2.0.1", "devices": [parsed(1, firmware=None)], "contexts": 0, "holders": []}


@pytest.mark.parametrize(
    "output",
    [
        "",
        "Segmentation fault",
        "null",
        "[]",
        "{}",
        json.dumps({"devices": []}),
        json.dumps({"KMD_version": "1.2.92", "devices": None}),
        json.dumps({"KMD_version": "1.2.92", "devices": [{"npu": 0}]}),
        json.dumps({"KMD_version": "1.2.92", "devices": [printed("N/A")]}),
        json.dumps({"KMD_version": "1.2.92", "devices": [], "contexts": [{"npu": "0", "process": "triton"}]}),
        json.dumps({"KMD_version": "1.2.92", "devices": [printed(0, memory=None)]}),
        json.dumps({"KMD_version": "1.2.92", "devices": [printed(0, memory={"used": "N/A", "total": "N/A"})]}),
    ],
)
def test_tool_of_an_unknown_shape_is_an_error_with_its_words(output: str) -> None:
    answer = vendor_tool.parse_tool(output)
    assert list(answer) == ["error"]
    assert answer["error"].startswith("the vendor's tool printed an unknown format (")
    assert answer["error"].endswith(": " + output[:120])


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_first_tool_that_is_there_is_asked_for_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps({"KMD_version": "1.2.92", "devices": [printed(0)], "contexts": []})
    wanted = script(tmp_path / "rbln-smi", f"[ \"$*\" = -j ] || exit 9\necho '{answer}'\n")
    later = script(tmp_path / "rbln-stat", "exit 8\n")
    monkeypatch.setattr(vendor_tool, "TOOLS", (str(tmp_path / "not-here"), wanted, later))
    assert vendor_tool.query_tool() == {"path": wanted, "version": "1.2.92", "devices": [parsed(0)], "contexts": 0, "holders": []}


def test_tool_that_fails_or_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = script(tmp_path / "rbln-stat", "echo 'no driver' >&2\nexit 3\n")
    monkeypatch.setattr(vendor_tool, "TOOLS", (failing,))
    assert vendor_tool.query_tool() == {"error": f"{failing} ended with 3: no driver"}
    monkeypatch.setattr(vendor_tool, "TOOLS", ("/nowhere/b/rbln-smi", "/nowhere/a/rbln-stat", "/nowhere/a/rbln-smi"))
    assert vendor_tool.query_tool() == {"error": "the vendor's tool is in none of /nowhere/a, /nowhere/b"}
    # An engine that was to mount what was not there has made a directory of it
    monkeypatch.setattr(vendor_tool, "TOOLS", (str(tmp_path),))
    assert vendor_tool.find_tool() is None
    broken = script(tmp_path / "no-program", "")
    Path(broken).write_bytes(b"\x7fELF nothing")
    monkeypatch.setattr(vendor_tool, "TOOLS", (broken,))
    assert vendor_tool.query_tool() == {"error": f"{broken} ended with 126: {broken} cannot be run: Exec format error"}


# What is wanted


def test_desired_comes_from_the_release_row() -> None:
    assert desired_driver.desired(fleet(npufleet_npus="2")) == WANTED
    assert desired_driver.desired(fleet(rbln_driver_hold=False))["hold"] is False


def test_driver_of_a_form_that_cannot_be_installed_is_refused() -> None:
    row = {**ROW, "driver": {"package": "rebellions", "version": "2.1.0", "form": "rpm"}}
    with pytest.raises(Refusal) as refusal:
        desired_driver.desired(fleet(npufleet_release_row=row, rbln_release="26.01"))
    assert refusal.value.reasons == [
        "driver 2.1.0 of release 26.01 is a .rpm package, expected .deb or .run. Install it manually and set "
        "rbln_driver_form: present, or choose a release whose driver is one of these"
    ]
    assert desired_driver.desired(fleet(npufleet_release_row=row, rbln_driver_form="present"))["form"] == "present"
    row["driver"]["form"] = "run"
    assert desired_driver.desired(fleet(npufleet_release_row=row))["form"] == "run"


# Reading


def read(
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    installed: dict[str, Any],
    rsd0: bool = True,
    form: str = "deb",
    modinfo: tuple[int, str] = (1, "modinfo: ERROR: Module rebellions not found."),
) -> dict[str, Any]:
    def glob(pattern: str) -> list[str]:
        return [path for path in files if fnmatch(path, pattern) and path.count("/") == pattern.count("/")]

    asked: list[list[str]] = []

    def packages(names: list[str], broken: bool) -> dict[str, Any]:
        asked.append(names)
        return {name: facts for name, facts in installed.items() if any(fnmatch(name, pattern) for pattern in names)}

    monkeypatch.setattr(driver, "installed_packages", packages)
    monkeypatch.setattr(driver, "read_text", files.get)
    monkeypatch.setattr(driver.glob, "glob", glob)
    monkeypatch.setattr(driver, "run", lambda *command: modinfo)
    monkeypatch.setattr(driver.os.path, "islink", lambda path: path in files)
    monkeypatch.setattr(driver, "_is_device", lambda path: path == "/dev/rsd0" and rsd0)
    monkeypatch.setattr(driver, "query_tool", lambda: {"error": "not asked here"})
    actual = driver.read({**WANTED, "form": form})
    release = os.uname().release
    assert asked == [["rebellions", "linux-image-" + release, "linux-headers-" + release, "linux-*", "rebellions*", "librbln-*"]]
    return actual


def test_read_of_a_host_with_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    release = os.uname().release
    files = {
        "/sys/module/rebellions/version": "1.2.92-6d00b56\n",
        "/etc/modules-load.d/npufleet.conf": "rebellions\n",
        "/etc/systemd/system/npufleet-cards.service": "[Unit]\n",
        "/etc/systemd/system/multi-user.target.wants/npufleet-cards.service": "",
        "/sys/bus/pci/devices/0000:ac:00.0/vendor": "0x1eff\n",
        "/sys/bus/pci/devices/0000:00:1f.0/vendor": "0x8086\n",
        "/sys/bus/pci/devices/0000:ab:00.0/vendor": "0x1eff\n",
        "/dev/rbln1": "",
        "/dev/rbln0": "",
    }
    image = "linux-image-" + release
    installed = {"rebellions": {"version": "1.2.92", "held": True}, image: {"version": "6.8.0", "held": False}}
    assert read(monkeypatch, files, installed) == {
        "package": {"version": "1.2.92", "held": True},
        "packages": {"rebellions": True},
        "installed": None,
        "dkms": None,
        "in_the_way": [],
        "services": [],
        "kernel_packages": {image: False},
        "kernel": release,
        "module": "1.2.92-6d00b56",
        "reboot": False,
        "boot": True,
        "bus": BUS,
        "nodes": ["rbln0", "rbln1"],
        "rsd0": True,
        "unit": "[Unit]\n",
        "unit_enabled": True,
        "tool": {"error": "not asked here"},
        "toolkit": NO_TOOLKIT,
    }


def test_read_of_a_bare_host(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = read(monkeypatch, {"/etc/modules-load.d/npufleet.conf": "rebellions\nother\n"}, {}, rsd0=False)
    assert (actual["package"], actual["module"], actual["boot"], actual["bus"], actual["nodes"]) == (None, None, False, [], [])
    assert actual["kernel_packages"] == {}
    assert (actual["rsd0"], actual["unit"], actual["unit_enabled"]) == (False, None, False)


def test_a_file_is_no_device(tmp_path: Path) -> None:
    (tmp_path / "rsd0").write_text("")
    assert driver._is_device("/dev/null")
    assert not driver._is_device(str(tmp_path / "rsd0"))
    assert not driver._is_device(str(tmp_path / "missing"))


# The plan


def test_host_as_wanted_has_no_plan() -> None:
    assert driver.diff(WANTED, host()) == []


def test_bare_host() -> None:
    nothing = {"package": None, "module": None, "boot": False, "nodes": [], "rsd0": False, "unit": None, "unit_enabled": False}
    bare = host(**nothing, tool={"error": "no tool"}, kernel_packages=dict(KERNEL))
    assert driver.diff(WANTED, bare) == [
        found("package", None, "1.2.92", "install"),
        found("hold", "free to change: rebellions", "held", "hold"),
        found("boot", "not loaded at boot", "loaded at boot", "configure"),
        found("npufleet-cards.service", None, UNIT, "configure"),
        found("module", None, "1.2.92", "load"),
    ]


def test_unit_that_is_changed_or_disabled() -> None:
    name, other = "npufleet-cards.service", desired_driver.unit(4, 120)
    assert driver.diff(WANTED, host(unit=other)) == [found(name, other, UNIT, "configure")]
    assert driver.diff(WANTED, host(unit_enabled=False)) == [found(name, "disabled", "enabled", "configure")]


def waiting(tmp_path: Path, nodes: list[str], timeout: int = 0) -> subprocess.CompletedProcess[str]:
    """One run of the unit's command by a shell, with links to /dev/null as device nodes below tmp_path."""
    unit = desired_driver.unit(2, timeout).replace("\\\n", "")
    command = unit.split("/bin/sh -c '", 1)[1].split("'", 1)[0].replace("$$", "$").replace("/dev/r", f"{tmp_path}/r")
    for name in nodes:
        (tmp_path / name).symlink_to("/dev/null")
    variables = {"PATH": os.environ["PATH"], "NPUS": "2", "TIMEOUT": str(timeout)}
    return subprocess.run(["/bin/sh", "-c", command], env=variables, capture_output=True, text=True, timeout=300, check=False)


def test_unit_ends_when_all_cards_are_there(tmp_path: Path) -> None:
    done = waiting(tmp_path, ["rbln0", "rbln3", "rsd0"])
    assert (done.returncode, done.stderr) == (0, "")


def test_unit_says_which_cards_it_found(tmp_path: Path) -> None:
    (tmp_path / "rbln1").write_text("a file is no device")
    done = waiting(tmp_path, ["rbln0"])
    assert done.returncode == 1
    found = f"found 1 of 2 NPUs ({tmp_path}/rbln0), {tmp_path}/rsd0 missing"
    assert done.stderr == f"after 0 s: {found}: see dmesg; the engine starts all the same\n"


def test_unit_waits_no_longer_than_asked(tmp_path: Path) -> None:
    done = waiting(tmp_path, ["rbln0", "rsd0"], timeout=1)
    assert done.returncode == 1
    assert done.stderr.startswith("after 1 s: found 1 of 2 NPUs")


def test_another_version_is_installed_and_reloaded() -> None:
    old = host(package={"version": "1.1.67", "held": True}, module="1.1.67", tool=tool(parsed(0), parsed(1), version="1.1.67"))
    assert driver.diff(WANTED, old) == [
        found("package", "1.1.67", "1.2.92", "install"),
        found("module", "1.1.67", "1.2.92", "reload"),
        found("tool", "1.1.67", "1.2.92", "inspect"),
    ]


def test_installed_but_the_old_module_still_runs() -> None:
    assert driver.diff(WANTED, host(module="1.1.67")) == [found("module", "1.1.67", "1.2.92", "reload")]


def test_build_behind_the_version_is_no_difference() -> None:
    assert driver.diff(WANTED, host(module="1.2.92-6d00b56", tool=tool(parsed(0), parsed(1), version="1.2.92-6d00b56"))) == []
    assert driver.diff(WANTED, host(module="1.2.921")) == [found("module", "1.2.921", "1.2.92", "reload")]
    assert driver.diff(WANTED, host(module="1.2.9")) == [found("module", "1.2.9", "1.2.92", "reload")]


@pytest.mark.parametrize(("version", "same"), [("1.2.92-6d00b56", True), ("1.2.92-2", True), ("1.2.921", False), ("1.2.9", False)])
def test_build_behind_the_version_of_a_package_is_no_difference(version: str, same: bool) -> None:
    changed = host(package={"version": version, "held": True})
    assert driver.diff(WANTED, changed) == ([] if same else [found("package", version, "1.2.92", "install")])


def test_what_an_upgrade_would_bring_another_kernel_by_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    release = os.uname().release
    bring = [
        "linux-generic",
        "linux-generic-hwe-22.04",
        "linux-headers-amd64",
        "linux-image-generic-hwe-24.04-edge",
        "linux-virtual",
    ]
    others = ["linux-base", "linux-firmware", "linux-libc-dev", "linux-image-6.5.0-1-generic", "linux-tools-generic"]
    mine = f"linux-image-{release}"
    installed = {name: {"version": "6.8.0.49.49", "held": name == "linux-generic"} for name in [*bring, *others, mine]}
    packages = read(monkeypatch, {}, installed)["kernel_packages"]
    assert packages == {name: name == "linux-generic" for name in sorted([*bring, mine])}


def test_what_is_not_held_is_named() -> None:
    loose = host(
        package={"version": "1.2.92", "held": False},
        kernel_packages={"linux-image-6.8.0-45-generic": False, "linux-headers-6.8.0-45-generic": False},
    )
    names = "free to change: rebellions, linux-headers-6.8.0-45-generic, linux-image-6.8.0-45-generic"
    assert driver.diff(WANTED, loose) == [found("hold", names, "held", "hold")]
    assert driver.diff({**WANTED, "hold": False}, loose) == []
    kernel = host(kernel_packages={**KERNEL, "linux-image-6.8.0-45-generic": False})
    assert driver.diff(WANTED, kernel) == [found("hold", "free to change: linux-image-6.8.0-45-generic", "held", "hold")]


# A driver that somebody else has installed

PRESENT = {**WANTED, "form": "present", "version": "3.2.2"}
LEFT = {"librbln-ml": True, "rebellions-dkms": True, "rebellions-fw": True}


def present(**changes: Any) -> dict[str, Any]:
    """A host with a driver of the vendor's installer that is as wanted, with changes."""
    cards = [parsed(number, firmware="3.2.2") for number in range(2)]
    facts = {"package": None, "packages": dict(LEFT), "installed": "3.2.2-6d00b56", "dkms": True, "module": "3.2.2"}
    return host(**{**facts, "tool": tool(*cards, version="3.2.2"), **changes})


def test_a_driver_that_is_there_is_read_from_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    release = os.uname().release
    installed = {name: {"version": "3.2.2", "held": held} for name, held in LEFT.items()}
    known = {"/var/lib/dkms/rebellions-dkms": ""}
    built = {f"/var/lib/dkms/rebellions-dkms/kernel-{release}-x86_64": ""}
    actual = read(monkeypatch, {**known, **built}, installed, form="present", modinfo=(0, "3.2.2"))
    assert (actual["package"], actual["packages"], actual["installed"], actual["dkms"]) == (None, LEFT, "3.2.2", True)
    other = {"/var/lib/dkms/rebellions-dkms/kernel-6.5.0-1-generic-x86_64": ""}
    actual = read(monkeypatch, {**known, **other}, {}, form="present")
    assert (actual["packages"], actual["installed"], actual["dkms"]) == ({}, None, False)
    assert read(monkeypatch, {}, {}, form="present")["dkms"] is None


def test_a_driver_that_is_there_is_held_and_loaded_and_never_installed() -> None:
    assert driver.diff(PRESENT, present()) == []
    assert driver.diff(PRESENT, present(dkms=None)) == []
    loose = present(packages={**LEFT, "rebellions-dkms": False, "rebellions": False})
    assert driver.diff(PRESENT, loose) == [found("hold", "free to change: rebellions, rebellions-dkms", "held", "hold")]
    assert driver.diff(PRESENT, present(module="3.0.0")) == [found("module", "3.0.0", "3.2.2", "reload")]
    # Packages that an older driver may have left are of no concern to one that this role installs
    assert driver.diff(WANTED, host(packages={"librbln-ml": False})) == []


def test_what_only_its_installer_can_put_right_is_left_to_hands() -> None:
    other = [parsed(0, firmware="3.0.0"), parsed(1, firmware=None)]
    wrong = present(installed="3.0.0", dkms=False, module="3.0.0", tool=tool(*other, version="3.2.2"))
    assert driver.diff(PRESENT, wrong) == [
        found("installed module", "3.0.0", "3.2.2", "inspect"),
        found("dkms", "not installed", "installed for kernel 6.8.0-45-generic", "inspect"),
        found("firmware", "rbln0 3.0.0, rbln1 unknown", "3.2.2", "inspect"),
    ]
    bare = present(installed=None, dkms=None, module=None, packages={}, nodes=[], rsd0=False, tool={"error": "no tool"})
    assert driver.diff(PRESENT, bare) == [found("installed module", None, "3.2.2", "inspect")]


# The vendor's installer

RUN = {**PRESENT, "form": "run"}


def test_what_an_installer_puts_right() -> None:
    assert driver.diff(RUN, present()) == []
    assert driver.diff(RUN, present(installed="3.0.0", module="3.0.0", tool=tool(parsed(0), parsed(1), version="3.2.2"))) == [
        found("package", "3.0.0", "3.2.2", "install"),
        found("module", "3.0.0", "3.2.2", "reload"),
    ]
    bare = present(installed=None, dkms=None, module=None, packages={}, nodes=[], rsd0=False, tool={"error": "no tool"})
    assert driver.diff(RUN, bare) == [found("package", None, "3.2.2", "install"), found("module", None, "3.2.2", "load")]
    other_kernel = present(dkms=False, module=None)
    assert driver.diff(RUN, other_kernel)[0] == found(
        "package", "3.2.2-6d00b56, not built for kernel 6.8.0-45-generic", "3.2.2 for kernel 6.8.0-45-generic", "install"
    )


def test_what_an_installer_has_left_is_held() -> None:
    loose = present(packages={**LEFT, "rebellions-fw": False})
    assert driver.diff(RUN, loose) == [found("hold", "free to change: rebellions-fw", "held", "hold")]


def test_firmware_that_an_installer_has_not_written_is_for_hands() -> None:
    old = present(tool=tool(parsed(0, firmware="3.0.0"), parsed(1, firmware="3.2.2"), version="3.2.2"))
    assert driver.diff(RUN, old) == [found("firmware", "rbln0 3.0.0", "3.2.2", "inspect")]


def test_directories_in_the_place_of_the_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty, full, tool = tmp_path / "empty", tmp_path / "full", tmp_path / "tool"
    empty.mkdir()
    (full / "of").mkdir(parents=True)
    script(tool, "")
    monkeypatch.setattr(driver, "TOOLS", tuple(map(str, (empty, full, tool, tmp_path / "none"))))
    assert read(monkeypatch, {}, {})["in_the_way"] == [str(empty)]


def test_services_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("/lib/systemd/system/rbln-smd.service", "/etc/systemd/system/other.service")
    monkeypatch.setattr(driver.os.path, "exists", lambda path: path in there)
    assert read(monkeypatch, {}, {})["services"] == ["rbln-smd.service"]


def test_a_package_of_another_name_is_none_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("librbln-ml", "rebellions-dkms", "librbln-$(id)", "rebellions X")
    installed = {name: {"version": "1", "held": True} for name in names}
    assert sorted(read(monkeypatch, {}, installed)["packages"]) == ["librbln-ml", "rebellions-dkms"]


# Cards


def test_fewer_cards_on_the_bus_than_described() -> None:
    gone = host(bus=BUS[:1], nodes=["rbln0"], tool=tool(parsed(0)))
    assert driver.diff(WANTED, gone) == [
        found("bus", "1 NPUs", "2 NPUs", "inspect"),
        found("/dev/rbln*", ["rbln0"], "2 device nodes", "inspect"),
        found("cards", "1 listed", "2 listed `normal`", "inspect"),
    ]


def test_card_on_the_bus_that_the_tool_does_not_list() -> None:
    lost = host(tool=tool(parsed(0)))
    assert driver.diff(WANTED, lost) == [found("cards", "1 listed, 0000:ac:00.0 not listed", "2 listed `normal`", "inspect")]


def test_card_beyond_the_described_ones_counts_too() -> None:
    third = host(bus=[*BUS, "0000:ad:00.0"])
    assert driver.diff(WANTED, third) == [found("cards", "2 listed, 0000:ad:00.0 not listed", "3 listed `normal`", "inspect")]


def test_card_in_fault() -> None:
    sick = host(tool=tool(parsed(0), parsed(1, status="FAULT")))
    assert driver.diff(WANTED, sick) == [found("cards", "2 listed, rbln1 FAULT", "2 listed `normal`", "inspect")]


def test_no_rsd0() -> None:
    assert driver.diff(WANTED, host(rsd0=False)) == [found("/dev/rsd0", None, "a character device", "inspect")]


def test_tool_that_does_not_answer() -> None:
    broken = host(tool={"error": "/usr/local/bin/rbln-stat ended with 3: no driver"})
    assert driver.diff(WANTED, broken) == [
        found("cards", "/usr/local/bin/rbln-stat ended with 3: no driver", "every card listed `normal`", "inspect")
    ]


def test_card_of_a_foreign_type() -> None:
    foreign = host(tool=tool(parsed(0), parsed(1, name="RBLN-CA25")))
    both = {**WANTED, "cards": ["RBLN-CA02", "RBLN-CA12"]}
    mixed = host(tool=tool(parsed(0, name="RBLN-CR03"), parsed(1, name="RBLN-CA25")))
    assert driver.diff(WANTED, mixed) == [found("card type", "RBLN-CA25, RBLN-CR03", "RBLN-CA12", "inspect")]
    assert driver.diff(both, foreign) == [found("card type", "RBLN-CA25", "RBLN-CA02 or RBLN-CA12", "inspect")]


def test_cards_are_not_judged_without_a_module() -> None:
    unloaded = host(module=None, nodes=[], rsd0=False, tool={"error": "no driver"})
    assert driver.diff(WANTED, unloaded) == [found("module", None, "1.2.92", "load")]


# A driver that has lost its cards

NUMBERED = "stale: the vendor's tool numbers each of 2 cards 0"
EMPTY = "stale: the vendor's tool lists no card, but rbln0, rbln1 exist"


@pytest.mark.parametrize(
    ("devices", "words"), [([parsed(0), parsed(0, bus_id=BUS[1])], NUMBERED), ([], EMPTY)], ids=["numbered 0", "none"]
)
def test_a_driver_that_is_stale_is_loaded_anew_and_nothing_else_is_said_of_its_cards(devices: list[Any], words: str) -> None:
    lost = host(tool=tool(*devices))
    assert driver.diff(WANTED, lost) == [found("module", words, "reloaded", "reload")]


def test_no_card_beside_no_node_is_a_card_that_is_missing() -> None:
    bare = host(tool=tool(), nodes=[])
    assert [entry["action"] for entry in driver.diff(WANTED, bare)] == ["inspect", "inspect"]


def test_numbers_that_begin_anew_on_each_card_are_none_of_it() -> None:
    cards = [parsed(npu, bus_id=f"0000:{bus}:00.{npu}") for bus in ("ab", "ac") for npu in (0, 1)]
    assert driver.stale(tool(*cards), ["rbln0", "rbln1", "rbln2", "rbln3"]) is None


def test_a_single_card_is_number_0() -> None:
    single = host(tool=tool(parsed(0)), bus=BUS[:1], nodes=["rbln0"])
    assert driver.diff({**WANTED, "npus": 1}, single) == []


def test_another_module_is_loaded_whatever_the_tool_says() -> None:
    lost = host(tool=tool(), module="1.1.67")
    assert driver.diff(WANTED, lost)[0] == found("module", "1.1.67", "1.2.92", "reload")


def test_a_reboot_that_is_required_is_told_as_long_as_the_module_differs() -> None:
    lost = host(tool=tool(), reboot=True)
    told = found("reboot", "required", "rebooted", "inspect")
    assert driver.diff(WANTED, lost) == [found("module", EMPTY, "reloaded", "reload"), told]
    assert driver.diff({**WANTED, "reboots": True}, lost)[1] == {**told, "action": "reboot"}
    assert driver.diff(WANTED, host(reboot=True)) == []


# What the engine finds the cards by


TOOLKIT: dict[str, Any] = {
    "units": cdi.unit_texts("triton"),
    "enabled": list(cdi.WANTED_BY),
    "version": "0.2.0",
    "spec": "current",
    "flaws": [],
    "error": None,
    "link": None,
}
BY_NAME = {**WANTED, "cdi": cdi.unit_texts("triton")}


def by_name(**changes: Any) -> dict[str, Any]:
    return host(toolkit={**TOOLKIT, **changes})


def test_a_host_whose_engine_finds_its_cards_has_no_plan() -> None:
    assert driver.diff(BY_NAME, by_name()) == []


@pytest.mark.parametrize("version", [None, "0.1.2"])
def test_a_toolkit_that_is_missing_or_names_no_single_card_is_brought(version: str | None) -> None:
    plan = driver.diff(BY_NAME, by_name(version=version))
    assert plan == [found("rbln-container-toolkit", version, "0.2 or newer", "toolkit")]


@pytest.mark.parametrize("spec", [None, "outdated"])
def test_a_spec_that_is_missing_or_stale_is_made_anew(spec: str | None) -> None:
    assert driver.diff(BY_NAME, by_name(spec=spec)) == [found(cdi.SPEC, spec, "the toolkit's spec of this host", "generate")]


def test_a_spec_is_not_judged_without_a_module_or_with_cards_that_are_lost() -> None:
    bad = {"spec": "outdated", "flaws": ["no NPU 0"]}
    assert [item["action"] for item in driver.diff(BY_NAME, {**by_name(**bad), "module": None})] == ["load"]
    lost = {**by_name(**bad), "tool": tool()}
    assert [item["action"] for item in driver.diff(BY_NAME, lost)] == ["reload"]
    assert [item["name"] for item in driver.diff(BY_NAME, {**by_name(**bad), "rsd0": False})] == ["/dev/rsd0"]


def test_what_the_toolkit_does_not_find_is_for_hands() -> None:
    (item,) = driver.diff(BY_NAME, by_name(flaws=["no NPU 1", "no /usr/bin/rbln-smi in the container"]))
    assert (item["name"], item["current"], item["action"]) == (
        cdi.SPEC,
        "no NPU 1; no /usr/bin/rbln-smi in the container",
        "inspect",
    )
    (item,) = driver.diff(BY_NAME, by_name(error="it ended with 1", spec=None))
    assert (item["current"], item["action"]) == ("it ended with 1", "inspect")


def test_the_unit_that_makes_it_at_boot_is_written_and_enabled_and_goes_with_it() -> None:
    both = [(name, "configure") for name in cdi.WANTED_BY]
    for changes, current in ((NO_TOOLKIT, None), ({"enabled": []}, "disabled")):
        plan = driver.diff(BY_NAME, by_name(**changes))
        assert [(item["name"], item["action"]) for item in plan] == both
        assert {item["current"] for item in plan} == {current}
    # Of a server in a container of another name
    plan = driver.diff({**BY_NAME, "cdi": cdi.unit_texts("other")}, by_name())
    assert [item["name"] for item in plan] == [cdi.START_UNIT]
    plan = driver.diff(WANTED, host(toolkit={"units": cdi.unit_texts("triton"), "enabled": []}))
    assert plan == [found(name, "installed", None, "remove") for name in cdi.WANTED_BY]


def test_a_driver_without_what_the_toolkit_needs_is_refused_with_another_way() -> None:
    with pytest.raises(Refusal, match=r"the driver of release .* is .*, expected 3\.0 or newer for npufleet_device_access: cdi"):
        desired_driver.desired(fleet(npufleet_device_access="cdi"))
