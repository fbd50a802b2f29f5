# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired Prometheus of a monitoring host: targets from the inventory, scrape job and rules."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import netloc
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the configuration, with every host of the scraped group as a target under its inventory name."""
    hostvars = variables["hostvars"]
    targets: List[Dict[str, Any]] = []
    for host in variables["groups"].get(variables["monitoring_scrape_group"], []):
        facts = hostvars[host]
        address = facts.get("npufleet_address") or facts.get("ansible_host") or host
        port = facts.get("npufleet_metrics_port", variables["npufleet_metrics_port"])
        targets.append({"targets": [netloc(str(address).strip("[]"), port)], "labels": {"host": host}})
    with open(variables["monitoring_rules"], encoding="utf-8") as source:
        rules = source.read()
    return {
        "packages": sorted(variables["monitoring_packages"]),
        "config": variables["monitoring_prometheus_config"],
        "targets_file": variables["monitoring_targets_file"],
        "targets": json.dumps(targets, indent=2, sort_keys=True) + "\n",
        "hosts": sorted(target["labels"]["host"] for target in targets),
        "job": variables["monitoring_scrape_job"],
        "port": int(variables["monitoring_prometheus_port"]),
        "rules_file": variables["monitoring_rules_file"],
        "rules": rules,
        # A proof requires that the targets are up now, a plan that they were up recently.
        "proof": context.proof,
    }
