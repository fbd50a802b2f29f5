"""The readings of the cards: every form of the vendor tool's JSON becomes the same units, and unknown values are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.driver import readings, vendor_tool

# A card of driver 3.2.2 as a public test has it
CA22 = {
    "npu": 0,
    "name": "RBLN-CA22",
    "sid": "0000",
    "uuid": "u-1",
    "device": "rbln0",
    "status": "normal",
    "fw_ver": "3.2.2",
    "pci": {"dev": "0x1220", "bus_id": "0000:ab:00.0", "numa_node": "1", "link_speed": "32.0GT/s", "link_width": "8"},
    "temperature": "38C",
    "card_power": "18810987uW",
    "pstate": "P14",
    "memory": {"used": "0", "total": "16877879296"},
    "util": "12.5",
    "location": 5,
}
GIB = 2.0**30


def tool(*devices: dict[str, Any]) -> str:
    return json.dumps({"KMD_version": "3.2.2", "devices": devices, "contexts": []})


def test_a_card_of_driver_3_has_every_reading() -> None:
    assert readings.parse(tool({**CA22, "group_id": "0"})) == [
        readings.Card(
            npu="0",
            device="rbln0",
            bus_id="0000:ab:00.0",
            name="RBLN-CA22",
            uuid="u-1",
            firmware="3.2.2",
            group="0",
            healthy=True,
            celsius=38.0,
            watts=pytest.approx(18.810987),
            memory_used=0.0,
            memory_size=16877879296.0,
            utilization=0.125,
            link_speed=32.0,
            link_width=8.0,
        )
    ]


@pytest.mark.parametrize(
    ("value", "celsius"),
    [
        ("38C", 38),
        ("38.5 C", 38.5),
        ("38°C", 38),
        ("38", 38),
        (38, 38),
        (38000, 38),
        ("38000", 38),
        ("38000mC", 38),
        ("-5C", -5),
        ("38000C", None),
        ("N/A", None),
        ("", None),
        (None, None),
        (True, None),
        ("38K", None),
        ("9" * 30, None),
        ([38], None),
    ],
)
def test_temperatures_are_in_degrees(value: Any, celsius: float | None) -> None:
    assert readings.celsius(value) == celsius


@pytest.mark.parametrize(
    ("value", "watts"),
    [
        ("6.1W", 6.1),
        ("6100000uW", 6.1),
        ("6100mW", 6.1),
        (6100000, 6.1),
        ("6100000", 6.1),
        (6.1, 6.1),
        ("0W", 0),
        # It may be in milliwatts.
        (6100, None),
        ("-1W", None),
        ("5kW", None),
        ("N/A", None),
    ],
)
def test_powers_are_in_watts(value: Any, watts: float | None) -> None:
    assert readings.watts(value) == (None if watts is None else pytest.approx(watts))


@pytest.mark.parametrize(
    ("used", "size", "expected"),
    [
        ("0", "16877879296", (0, 16877879296)),
        (1024, 16877879296, (1024, 16877879296)),
        ("0.0B", "15.7GiB", (0, 15.7 * GIB)),
        ("64.0MiB", "15.7GiB", (64 * 2**20, 15.7 * GIB)),
        ("64MiB", "16384MiB", (64 * 2**20, 16 * GIB)),
        ("1GB", "16GB", (1e9, 16e9)),
        # Without a unit, the number of the whole memory is too small to be bytes.
        ("64", "16384", (None, None)),
        ("64", "15.7GiB", (None, 15.7 * GIB)),
        ("0", None, (0, None)),
        ("64MiB", "N/A", (64 * 2**20, None)),
        ("N/A", "15.7GiB", (None, 15.7 * GIB)),
        # More than there is
        ("17GiB", "16GiB", (None, 16 * GIB)),
    ],
)
def test_memory_is_in_bytes(used: Any, size: Any, expected: tuple[float | None, float | None]) -> None:
    assert readings.memory_bytes(used, size) == expected


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"npu": "3"}, "npu", "3"),
        ({"npu": None}, "npu", ""),
        ({"util": "45%"}, "utilization", 0.45),
        ({"util": 100}, "utilization", 1),
        ({"util": "101"}, "utilization", None),
        ({"util": "N/A"}, "utilization", None),
        ({"status": "fault"}, "healthy", False),
        ({"status": "N/A"}, "healthy", None),
        ({"status": None}, "healthy", None),
        ({"pci": {"link_speed": "16.0 GT/s PCIe"}}, "link_speed", 16),
        ({"pci": {"link_speed": "unknown"}}, "link_speed", None),
        ({"pci": {"link_width": "x16"}}, "link_width", 16),
        ({"pci": {"link_width": 8}}, "link_width", 8),
        ({"pci": {"link_width": "0"}}, "link_width", None),
        ({"pci": None}, "bus_id", ""),
        ({"memory": "16GiB"}, "memory_size", None),
        ({"fw_ver": None}, "firmware", ""),
        ({"name": "RBLN\n\x1b[1m"}, "name", "RBLN[1m"),
        ({"uuid": "x" * 999}, "uuid", "x" * readings.MAX_TEXT),
    ],
)
def test_other_readings(changes: dict[str, Any], field: str, expected: Any) -> None:
    assert getattr(readings.card({**CA22, **changes}), field) == expected


def test_a_card_without_readings_is_still_a_card() -> None:
    (card,) = readings.parse(tool({"device": "rbln0"}))
    assert {name for name, value in card._asdict().items() if value not in (None, "")} == {"device"}


@pytest.mark.parametrize("output", ["", "[]", "{}", '{"devices": {}}', '{"devices": [1]}', "driver is not loaded"])
def test_output_without_devices_is_an_error(output: str) -> None:
    with pytest.raises(ValueError):
        readings.parse(output)


def test_cards_are_limited() -> None:
    with pytest.raises(ValueError, match="expected at most"):
        readings.parse(tool(*[CA22] * (readings.MAX_CARDS + 1)))


@pytest.mark.parametrize(("nodes", "options"), [(1, "-j"), (2, "-g -j")])
def test_groups_are_queried_if_there_are_several(nodes: int, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "rbln-smi"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = '{options}' ] || exit 3\ncat {tmp_path}/answer\n")
    program.chmod(0o755)
    (tmp_path / "answer").write_text(tool(CA22))
    for number in range(nodes):
        (tmp_path / f"rsd{number}").touch()
    monkeypatch.setattr(vendor_tool, "TOOLS", (str(program),))
    monkeypatch.setattr(vendor_tool, "GROUP_NODES", f"{tmp_path}/rsd[0-9]*")
    assert [card.device for card in vendor_tool.query_readings(5)] == ["rbln0"]
    program.write_text("#!/bin/sh\necho no driver >&2\nexit 1\n")
    with pytest.raises(ValueError, match="ended with 1: no driver"):
        vendor_tool.query_readings(5)
    program.unlink()
    with pytest.raises(ValueError, match="is in none of"):
        vendor_tool.query_readings(5)
