"""What the driver brings is found under any of its names, and nothing else is mounted."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.driver import driver_files, vendor_tool

OLD, NEW = {"libraries": False, "driver": "2.0.1"}, {"libraries": True, "driver": "3.2.2"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with two directories of libraries and two places for the tool."""
    for name in ("first", "second", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(driver_files, "DIRECTORIES", (str(tmp_path / "first"), str(tmp_path / "nowhere"), str(tmp_path / "second")))
    monkeypatch.setattr(vendor_tool, "TOOLS", (str(tmp_path / "bin/rbln-stat"), str(tmp_path / "bin/rbln-smi")))
    return tmp_path


def program(path: Path) -> str:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_tool_under_the_name_that_it_has(host: Path) -> None:
    assert driver_files.find(OLD) == {"binds": [], "missing": [f"the vendor's tool ({', '.join(vendor_tool.TOOLS)})"]}
    smi = program(host / "bin/rbln-smi")
    assert driver_files.find(OLD) == {"binds": [f"{smi}:{smi}:ro"], "missing": []}
    stat = program(host / "bin/rbln-stat")
    assert driver_files.find(OLD)["binds"] == [f"{stat}:{stat}:ro"]


def test_the_tool_is_also_where_a_newer_sdk_runs_it(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = program(host / "bin/rbln-stat")
    (host / "first/librbln-thunk.so").touch()
    assert f"{stat}:/usr/bin/rbln-smi:ro" in driver_files.find(NEW)["binds"]
    monkeypatch.setattr(driver_files, "TOOL", stat)
    assert [bind for bind in driver_files.find(NEW)["binds"] if "rbln-stat" in bind] == [f"{stat}:{stat}:ro"]


def test_libraries_under_each_name_and_the_plain_one(host: Path) -> None:
    tool = program(host / "bin/rbln-smi")
    (host / "first/librbln-thunk.so.3.2.2").touch()
    (host / "first/librbln-thunk.so.3").symlink_to("librbln-thunk.so.3.2.2")
    (host / "second/librbln-ml.so").touch()
    (host / "second/librbln-thunk.so.3").touch()
    (host / "second/librbln-ccl.so.3").symlink_to("gone")
    for other in ("librbln-thunk.so.bak", "librbln_runtime.so", "librbln-x:y.so", "librbln-A.so"):
        (host / "first" / other).touch()
    (host / "first/librbln-dir.so").mkdir()
    first, second = host / "first", host / "second"
    assert driver_files.find(NEW) == {
        "binds": sorted(
            [
                f"{tool}:{tool}:ro",
                f"{tool}:/usr/bin/rbln-smi:ro",
                f"{first}/librbln-thunk.so.3:/usr/lib/librbln-thunk.so:ro",
                f"{first}/librbln-thunk.so.3:/usr/lib/librbln-thunk.so.3:ro",
                f"{first}/librbln-thunk.so.3.2.2:/usr/lib/librbln-thunk.so.3.2.2:ro",
                f"{second}/librbln-ml.so:/usr/lib/librbln-ml.so:ro",
            ]
        ),
        "missing": [],
    }
    assert driver_files.find(OLD)["binds"] == [f"{tool}:{tool}:ro"]


def test_libraries_that_are_not_there_are_told(host: Path) -> None:
    program(host / "bin/rbln-smi")
    (host / "first/librbln-ml.so").touch()
    assert driver_files.find(NEW)["missing"] == [f"librbln-thunk.so* of driver 3.2.2 (in {', '.join(driver_files.DIRECTORIES)})"]


@pytest.mark.parametrize(
    "bind",
    [
        "/usr/bin/rbln-smi:/usr/bin/rbln-smi:ro",
        "/usr/local/bin/rbln-stat:/usr/bin/rbln-smi:ro",
        "/usr/lib64/librbln-thunk.so.3.2.2:/usr/lib/librbln-thunk.so:ro",
        "/usr/lib/x86_64-linux-gnu/librbln-ml.so:/usr/lib/librbln-ml.so:ro",
    ],
)
def test_a_mount_of_the_drivers_files(bind: str) -> None:
    assert driver_files.BIND.fullmatch(bind)


@pytest.mark.parametrize(
    "bind",
    [
        "/:/host:rw",
        "/usr/bin/rbln-smi:/usr/bin/rbln-smi:rw",
        "/usr/bin/rbln-smi:/usr/bin/rbln-smi",
        "/etc/shadow:/usr/lib/librbln-thunk.so:ro",
        "/usr/lib/librbln-thunk.so:/etc/ld.so.preload:ro",
        "/usr/lib/../../etc/librbln-thunk.so:/usr/lib/librbln-thunk.so:ro",
        "/usr/lib/librbln-thunk.so:/usr/lib/librbln-thunk.so:ro\n",
        "{{ lookup('pipe', 'id') }}:/usr/bin/rbln-smi:ro",
    ],
)
def test_any_other_mount_is_none_of_the_driver(bind: str) -> None:
    assert not driver_files.BIND.fullmatch(bind)


def test_what_an_adopted_container_mounts_of_the_driver_is_no_volume() -> None:
    assert driver_files.is_driver_file("/usr/bin/rbln-smi") and driver_files.is_driver_file(
        "/usr/lib/x86_64-linux-gnu/librbln-ml.so.3"
    )
    assert not driver_files.is_driver_file("/usr/lib/librbln-ml.so/x") and not driver_files.is_driver_file("/data")
