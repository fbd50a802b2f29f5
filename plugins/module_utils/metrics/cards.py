# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The readings of the cards as metrics. A reading that is unknown is left out."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional

from ansible_collections.npufleet.triton.plugins.module_utils.driver.readings import Card
from ansible_collections.npufleet.triton.plugins.module_utils.textfile import Families

# {metric: (the field of Card that has its value, its description)}
READINGS = {
    "npufleet_card_healthy": ("healthy", "Whether the vendor's tool reports the card as normal (1) or not (0)."),
    "npufleet_card_memory_size_bytes": ("memory_size", "Memory of a card."),
    "npufleet_card_memory_used_bytes": ("memory_used", "Used memory of a card."),
    "npufleet_card_pcie_link_speed_gts": ("link_speed", "Speed of a card's PCIe link in GT/s."),
    "npufleet_card_pcie_link_width": ("link_width", "Lanes of a card's PCIe link."),
    "npufleet_card_power_watts": ("watts", "Electrical power of a card in watts."),
    "npufleet_card_temperature_celsius": ("celsius", "Temperature of a card."),
    "npufleet_card_utilization_ratio": ("utilization", "Utilization of a card, from 0 to 1."),
}
HELP = {
    **{name: description for name, (_field, description) in READINGS.items()},
    "npufleet_card_info": "Bus address, name, UUID, firmware and group of a card.",
    "npufleet_cards_expected": "Cards that the host has according to the inventory.",
    "npufleet_cards_found": "Cards that the vendor's tool lists.",
    "npufleet_cards_last_read_timestamp_seconds": "Time of the last call of the vendor's tool.",
    "npufleet_cards_read_ok": "Whether the vendor's tool listed the cards (1) or failed (0).",
    "npufleet_driver_info": "Loaded version of the driver (empty if none is loaded), and the version in the inventory.",
}


class Driver(NamedTuple):
    """The versions of a host's driver, and the number of its cards according to the inventory."""

    loaded: Optional[str]
    expected: str
    cards: int


def families(driver: Driver, cards: Optional[List[Card]], now: float) -> Families:
    """Return the metrics of the cards; `cards` is None if the vendor's tool failed."""
    versions = {"loaded": driver.loaded or "", "expected": driver.expected}
    found: Families = {
        "npufleet_cards_expected": [({}, driver.cards)],
        "npufleet_driver_info": [(versions, 1)],
        "npufleet_cards_read_ok": [({}, cards is not None)],
        "npufleet_cards_last_read_timestamp_seconds": [({}, now)],
    }
    if cards is not None:
        found.update({"npufleet_cards_found": [({}, len(cards))], **{name: [] for name in (*READINGS, "npufleet_card_info")}})
    for card in cards or []:
        labels: Dict[str, str] = {"npu": card.npu, "device": card.device}
        for name, (field, _description) in READINGS.items():
            value = getattr(card, field)
            found[name] += [] if value is None else [(labels, value)]
        info = {field: getattr(card, field) for field in ("bus_id", "name", "uuid", "firmware", "group")}
        found["npufleet_card_info"].append(({**labels, **info}, 1))
    return found
