# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `monitoring`: Prometheus with its files of targets and alerts, its scrape job, and the health of the targets."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.system import installed_packages, read_text
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import http_json

CONCERN = "monitoring"
JOB = "npufleet-triton"
# A target that was up within this time is in sync, because a restart of a server causes a failed scrape or two.
WINDOW = "2m"
# The key in Prometheus' configuration that lists the files of rules
RULE_FILES = re.compile("^rule_files:", re.MULTILINE)
# Shapes of the responses of Prometheus
RULES = {"data": {"groups": [{"file?": str, "rules": [{"name": str}]}]}}
_LABELS = {re.compile(".*", re.DOTALL): str}
TARGETS = {"data": {"activeTargets": [{"labels": _LABELS, "scrapeUrl": str, "health": str, "lastError": str}]}}
QUERY = {"data": {"result": [{"metric": _LABELS}]}}


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the files, and the alerts and the health of the targets as Prometheus reports them."""
    health = _targets(desired["port"])
    if health and not desired["proof"]:
        lately = _up_lately(desired["port"])
        health = {host: "up" if host in lately else words for host, words in health.items()}
    config = read_text(desired["config"]) or ""
    return {
        "packages": sorted(installed_packages(desired["packages"])),
        "targets": read_text(desired["targets_file"]),
        "job": desired["job"] in config,
        "rules": read_text(desired["rules_file"]),
        "rule_files": RULE_FILES.search(config) is not None,
        "rules_listed": re.search(f"^ *- +{re.escape(desired['rules_file'])} *$", config, re.MULTILINE) is not None,
        "rules_loaded": _rules(desired["port"], desired["rules_file"]),
        "health": health,
    }


def _rules(port: int, path: str) -> List[str]:
    """Return the names of the alerts that Prometheus has loaded from a file."""
    status, answer = http_json("127.0.0.1", port, "GET", "/api/v1/rules?type=alert")
    groups = answer["data"]["groups"] if status == 200 and not shapes.mismatch(answer, RULES) else []
    return sorted(rule["name"] for group in groups if group.get("file") == path for rule in group["rules"])


def _targets(port: int) -> Optional[Dict[str, str]]:
    """Return {host: `up` or the last error} of the targets, None if Prometheus does not answer."""
    status, answer = http_json("127.0.0.1", port, "GET", "/api/v1/targets?state=active")
    # A response of another shape comes from another program.
    if status != 200 or shapes.mismatch(answer, TARGETS):
        return None
    return {
        entry["labels"].get("host", entry["scrapeUrl"]): "up" if entry["health"] == "up" else entry["lastError"] or entry["health"]
        for entry in answer["data"]["activeTargets"]
        if entry["labels"].get("job") == JOB
    }


def _up_lately(port: int) -> List[str]:
    """Return the hosts that were up at least once within WINDOW."""
    from urllib.parse import quote

    query = quote(f'max_over_time(up{{job="{JOB}"}}[{WINDOW}]) == 1')
    status, answer = http_json("127.0.0.1", port, "GET", "/api/v1/query?query=" + query)
    found = answer["data"]["result"] if status == 200 and not shapes.mismatch(answer, QUERY) else []
    return [entry["metric"].get("host", "") for entry in found]


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the differences: packages and files, and if Prometheus answers, alerts and the health of the targets."""
    plan = []
    missing = sorted(set(desired["packages"]) - set(actual["packages"]))
    if missing:
        plan.append(item(CONCERN, "packages", "without " + ", ".join(missing), "installed", "install"))
    if actual["targets"] != desired["targets"]:
        plan.append(item(CONCERN, desired["targets_file"], actual["targets"], desired["targets"], "configure"))
    if not actual["job"]:
        plan.append(item(CONCERN, "scrape job", None, JOB, "configure"))
    if actual["rules"] != desired["rules"]:
        plan.append(item(CONCERN, desired["rules_file"], actual["rules"], desired["rules"], "configure"))
    if not actual["rules_listed"]:
        plan.append(item(CONCERN, "rule_files", None, desired["rules_file"], "configure"))
    if actual["health"] is None:
        plan.append(item(CONCERN, "service", None, "a Prometheus that answers on port {}".format(desired["port"]), "start"))
        return plan
    alerts = sorted(re.findall(r"^ *(?:- +)?alert: *[\"']?(\w+)", desired["rules"], re.MULTILINE))
    if actual["rules_loaded"] != alerts:
        found = ", ".join(actual["rules_loaded"]) or None
        plan.append(item(CONCERN, "alerts", found, ", ".join(alerts), "configure"))
    for host in desired["hosts"]:
        if actual["health"].get(host) != "up":
            plan.append(item(CONCERN, "up of " + host, actual["health"].get(host, "not scraped"), "up", "wait"))
    for host in sorted(set(actual["health"]) - set(desired["hosts"])):
        plan.append(item(CONCERN, "up of " + host, "scraped", None, "wait"))
    return plan
