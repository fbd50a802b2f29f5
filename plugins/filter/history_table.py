# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
name: history_table
short_description: Render the history of the models of a host
description:
  - Renders RV(npufleet.triton.host_state#module:store) as a table. The oldest change is first.
  - The open transaction, the holds, the damage of the store and the last rollouts follow the table.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  _input:
    description: The model store, as M(npufleet.triton.host_state) returns it.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the history
  ansible.builtin.debug:
    msg: "{{ state.store | npufleet.triton.history_table }}"
"""

RETURN = r"""
_value:
  description: The lines of the text.
  type: list
  elements: str
"""

from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import record

COLUMNS = ("when", "who", "model", "what", "from", "to", "result", "why")
MAX_REASON_LENGTH = 120


def history_table(store: Mapping[str, Any]) -> List[str]:
    """Return the lines of the table, then the lines of the open transaction, the holds, the damage and the rollouts."""
    rows = [COLUMNS, *(tuple(_cell(key, line.get(key)) for key in COLUMNS) for line in store["history"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    if not store["history"]:
        lines = ["no change is recorded"]
    transaction = store["transaction"]
    if transaction:
        lines.append(
            "open since {since} by {by}: ".format(**transaction) + (", ".join(sorted(transaction["models"])) or "no model")
        )
    for name, hold in sorted(store["holds"].items()):
        lines.append(f"{name} is held at {hold['label']} since {hold['when']} by {hold['by']}: {hold['why'] or '-'}")
    lines += [f"{path} is damaged: {flaw}" for path, flaw in sorted(store.get("damaged", {}).items())]
    lines += [f"rollout {line}" for line in record.host_table(store.get("rollouts"))]
    return lines


def _cell(key: str, value: Any) -> str:
    words = " ".join(str(value or "-").split())
    return words if key != "why" or len(words) <= MAX_REASON_LENGTH else words[: MAX_REASON_LENGTH - 3] + "..."


class FilterModule:
    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"history_table": history_table}
