# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Readings of the cards, such as temperature and power, in base units, from the JSON of all versions of the vendor's tool.

The tool changed its units with driver 3.0: a power such as `6.1W` became `6100000uW`, and a temperature may be in thousandths of a
degree. The tool prints most numbers as strings. A reading is None if it is missing, `N/A` or impossible, or if its unit is unknown.
"""

from __future__ import annotations

import re
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes

# A number that the tool prints, with or without a unit
QUANTITY = re.compile(r"([+-]?[0-9]{1,19}(?:\.[0-9]{1,19})?) *([A-Za-z/%°]{0,8})")
# The factor of each unit to the base unit. Only units of temperatures are compared in lower case.
TEMPERATURE = {"c": 1.0, "°c": 1.0, "mc": 0.001, "m°c": 0.001}
POWER = {"W": 1.0, "mW": 1e-3, "uW": 1e-6}
MEMORY = {
    "B": 1.0,
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": 1000.0**power for power, prefix in enumerate(("k", "M", "G", "T"), 1)},
    "KB": 1000.0,
}
PERCENT = {"": 0.01, "%": 0.01}
SPEED = {"": 1.0, "GT/s": 1.0}
# Limits of possible readings. A number beyond a limit probably has another unit, so the reading is None.
MAX_CELSIUS, MIN_CELSIUS, MAX_WATTS, MAX_BYTES, MAX_SPEED, MAX_WIDTH = 200.0, -50.0, 2000.0, 2.0**50, 256.0, 32
# Limits for numbers without a unit. From MIN_MILLI_CELSIUS on, a temperature is in thousandths of a degree, because no card reaches
# 1000 degrees. From MIN_MICROWATTS on, a power is in microwatts, because no card needs 100 kW and every card more than 0.1 W.
MIN_MILLI_CELSIUS, MIN_MICROWATTS = 1000.0, 100_000.0
# From this number on, a total memory without a unit is in bytes. Every card has more than 2**30 bytes, and no
# card has 2**30 KiB (1 TiB).
MIN_BYTES = 2.0**30
# The status of a card that works, and the texts for an unknown status. Every other status is a fault.
NORMAL, UNKNOWN_STATUS = "normal", ("", "n/a", "na", "none", "unknown", "-")
# Largest number of cards in one output of the tool, and largest number of characters of a text
MAX_CARDS, MAX_TEXT = 256, 100


class Card(NamedTuple):
    """The readings of a card. An unknown text is empty, an unknown number is None."""

    npu: str
    device: str  # Name of the device node, such as rbln0
    bus_id: str
    name: str
    uuid: str
    firmware: str
    group: str
    healthy: Optional[bool]
    celsius: Optional[float]
    watts: Optional[float]
    memory_used: Optional[float]
    memory_size: Optional[float]
    utilization: Optional[float]  # From 0 to 1
    link_speed: Optional[float]  # GT/s
    link_width: Optional[float]


def parse(output: str) -> List[Card]:
    """Return the cards in the JSON of the tool. Raises ValueError if the output has no list of devices."""
    answer = shapes.parse_as(output, {"devices": [dict]})
    if len(answer["devices"]) > MAX_CARDS:
        raise ValueError(f"the output has {len(answer['devices'])} devices, expected at most {MAX_CARDS}")
    return [card(device) for device in answer["devices"]]


def card(device: Mapping[str, Any]) -> Card:
    """Return the readings of a device."""
    pci, memory = _object(device, "pci"), _object(device, "memory")
    status = text(device.get("status")).lower()
    used, size = memory_bytes(memory.get("used"), memory.get("total"))
    width = quantity(str(pci.get("link_width")).lstrip("xX"), {"": 1.0})
    # The kernel adds the word `PCIe` to the speed of a link.
    speed = quantity(str(pci.get("link_speed")).replace(" PCIe", ""), SPEED)
    return Card(
        npu=_number_text(device.get("npu")),
        device=text(device.get("device")),
        bus_id=text(pci.get("bus_id")),
        name=text(device.get("name")),
        uuid=text(device.get("uuid")),
        firmware=text(device.get("fw_ver")),
        group=_number_text(device.get("group_id")),
        healthy=None if status in UNKNOWN_STATUS else status == NORMAL,
        celsius=celsius(device.get("temperature")),
        watts=watts(device.get("card_power")),
        memory_used=used,
        memory_size=size,
        utilization=_within(quantity(device.get("util"), PERCENT), 0, 1),
        link_speed=_within(speed, 0.1, MAX_SPEED),
        link_width=_within(width, 1, MAX_WIDTH),
    )


def text(value: Any) -> str:
    """Return a string without control characters, cut at MAX_TEXT. Return "" for `N/A`, and for a value that is not a string."""
    if not isinstance(value, str):
        return ""
    line = "".join(character for character in value if character.isprintable())[:MAX_TEXT].strip()
    return "" if line.lower() in ("n/a", "none", "null") else line


def quantity(value: Any, units: Mapping[str, float]) -> Optional[float]:
    """Return the number in `value` in the base unit. Return None if `value` has no number, or a unit that is not in `units`."""
    return _convert(*_split(value), units)


def celsius(value: Any) -> Optional[float]:
    """Return a temperature in degrees Celsius. For a number without a unit, see MIN_MILLI_CELSIUS."""
    number, unit = _split(value)
    if number is not None and not unit:
        unit = "mc" if abs(number) >= MIN_MILLI_CELSIUS else "c"
    return _within(_convert(number, unit.lower(), TEMPERATURE), MIN_CELSIUS, MAX_CELSIUS)


def watts(value: Any) -> Optional[float]:
    """Return a power in watts. A number without a unit that is between MAX_WATTS and MIN_MICROWATTS is unknown."""
    number, unit = _split(value)
    if number is not None and not unit:
        unit = "uW" if number >= MIN_MICROWATTS else "W"
    return _within(_convert(number, unit, POWER), 0, MAX_WATTS)


def memory_bytes(used: Any, size: Any) -> Tuple[Optional[float], Optional[float]]:
    """Return the used and the total memory of a card in bytes. A total without a unit is in bytes from MIN_BYTES on."""
    total, unit = _split(size)
    units = {**MEMORY, "": 1.0} if total is not None and not unit and total >= MIN_BYTES else MEMORY
    limited_total = _within(quantity(size, units), 1, MAX_BYTES)
    # 0 is the same in every unit.
    limited_used = 0.0 if _split(used)[0] == 0 else quantity(used, units)
    limited_used = _within(limited_used, 0, MAX_BYTES if limited_total is None else limited_total)
    return limited_used, limited_total


def _split(value: Any) -> Tuple[Optional[float], str]:
    """Return the number and the unit of a value. Return (None, "") if it has no number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value), ""
    found = QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    return (float(found[1]), found[2]) if found else (None, "")


def _convert(number: Optional[float], unit: str, units: Mapping[str, float]) -> Optional[float]:
    return number * units[unit] if number is not None and unit in units else None


def _within(value: Optional[float], least: float, most: float) -> Optional[float]:
    return value if value is not None and least <= value <= most else None


def _number_text(value: Any) -> str:
    """Return a whole number as text, or an empty text for any other value. The tool prints some numbers as strings."""
    return str(int(value)) if shapes.mismatch(value, (int, re.compile("[0-9]{1,9}"))) is None and int(value) >= 0 else ""


def _object(device: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = device.get(name)
    return found if isinstance(found, dict) else {}
