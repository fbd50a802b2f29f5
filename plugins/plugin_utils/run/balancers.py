# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The settings that the load balancers of a fleet must have in common. Controller only."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

# The beginning of a value that is compared, but not shown
SEALED = "digest:"


def differences(desired: Mapping[str, Mapping[str, Any]]) -> Dict[str, str]:
    """Return {host: reason} if balancers differ in a setting that has to be equal. `desired` is {host: desired balancer or {}}."""
    shared = {host: state["shared"] for host, state in desired.items() if state.get("shared")}
    names = sorted({name for settings in shared.values() for name in settings})
    parts: List[str] = []
    for name in names:
        by_value: Dict[str, List[str]] = {}
        for host, settings in shared.items():
            by_value.setdefault(str(settings.get(name)), []).append(host)
        if len(by_value) > 1:
            hidden = any(value.startswith(SEALED) for value in by_value)
            words = [f"{'one value' if hidden else value or 'empty'} on {', '.join(hosts)}" for value, hosts in by_value.items()]
            parts.append(f"{name} is {' and '.join(words)}")
    if not parts:
        return {}
    reason = f"{'; '.join(parts)}, expected equal values on all load balancers. Set them for the group load_balancer_hosts"
    return dict.fromkeys(shared, reason)
