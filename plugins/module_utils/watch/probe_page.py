# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The state of the probe as metrics for node exporter's textfile collector."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import textfile

PAUSED = ("deployment", "maintenance")
# The reasons why the probe could run no check
UNAVAILABLE = ("checks", "client", "engine", "image", "nothing", "time")
HELP = {
    "npufleet_check_ok": "Whether a check by inference passed (1) or not (0).",
    "npufleet_check_duration_seconds": "Duration of the slowest request of a check.",
    "npufleet_driver_stale": "Whether the driver has lost its cards, and has to be reloaded (1).",
    "npufleet_checks": "Number of checks that ran. A check over two protocols counts twice.",
    "npufleet_checks_failed": "Number of checks that did not pass.",
    "npufleet_models_unchecked": "Number of models without a check.",
    "npufleet_probe_duration_seconds": "Duration of the last probe, including its container.",
    "npufleet_probe_interval_seconds": "Time between two probes.",
    "npufleet_probe_last_attempt_timestamp_seconds": "Time of the last start of the probe, with or without checks.",
    "npufleet_probe_last_run_timestamp_seconds": "Time of the last probe that ran every check.",
    "npufleet_probe_paused": "Whether the probe ran no check for this reason (1).",
    "npufleet_probe_unavailable": "Whether the probe could run no check for this reason (1).",
    "npufleet_proof_last_success_timestamp_seconds": "Time at which all checks of a model last passed.",
}


def page(state: Mapping[str, Any]) -> str:
    """Return the page of metrics. Each check has one sample for each protocol, from the worst result of its requests."""
    checks: Dict[Tuple[str, str, str], Tuple[bool, float]] = {}
    for check in state["checks"]:
        key = (check.get("model", ""), check.get("check", ""), check.get("protocol") or "")
        passed, seconds = checks.get(key, (True, 0.0))
        checks[key] = (passed and check["ok"], max(seconds, (check.get("ms") or 0) / 1000))
    labels = [dict(zip(("model", "check", "protocol"), key)) for key in checks]
    unavailable = (state["unavailable"] or {}).get("reason")
    samples: Dict[str, Sequence[textfile.Sample]] = {
        "npufleet_check_ok": list(zip(labels, [float(passed) for passed, _seconds in checks.values()])),
        "npufleet_check_duration_seconds": list(zip(labels, [seconds for _passed, seconds in checks.values()])),
        "npufleet_probe_interval_seconds": [({}, state["interval"])],
        "npufleet_probe_last_attempt_timestamp_seconds": [({}, state["at"])],
        "npufleet_probe_last_run_timestamp_seconds": [({}, state["last_run"])],
        "npufleet_proof_last_success_timestamp_seconds": [({"model": model}, at) for model, at in state["proven"].items()],
        "npufleet_probe_paused": [({"reason": reason}, reason == state["paused"]) for reason in PAUSED],
        "npufleet_probe_unavailable": [({"reason": reason}, reason == unavailable) for reason in UNAVAILABLE],
    }
    if state["lost_cards"] is not None:
        samples["npufleet_driver_stale"] = [({}, bool(state["lost_cards"]))]
    if state["last_run"] == state["at"]:
        samples["npufleet_checks"] = [({}, len(checks))]
        samples["npufleet_models_unchecked"] = [({}, len(state["unchecked"]))]
        samples["npufleet_checks_failed"] = [({}, sum(not passed for passed, _seconds in checks.values()))]
        samples["npufleet_probe_duration_seconds"] = [({}, state["seconds"])]
    return textfile.page(samples, HELP)
