# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The concern `monitoring`: Prometheus with its files of targets and rules, its scrape jobs, and the health of the targets."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.system import installed_packages, read_text
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import http_json

CONCERN = "monitoring"
# The file in the directory of node exporter in which status.yml writes its metrics
STATUS_FILE = "npufleet_status.prom"
# The names of this project's scrape jobs, and the job that every fleet has
JOBS, TRITON_JOB = re.compile("npufleet-(triton|node|balancer|cards)"), "npufleet-triton"
# A target that was up within this time counts as up, because the restart of a server causes one or two failed scrapes.
WINDOW = "2m"
# The block of this project's jobs in Prometheus' configuration, between two marker lines
BLOCK = re.compile("^# BEGIN npufleet\n(.*?)^# END npufleet$", re.MULTILINE | re.DOTALL)
# The key in Prometheus' configuration that lists the files of rules
RULE_FILES = re.compile("^rule_files:", re.MULTILINE)
# The block that lists the files of rules, and the path of a file in one line of the block
RULE_BLOCK = re.compile("^# BEGIN npufleet rules\n(.*?)^# END npufleet rules$", re.MULTILINE | re.DOTALL)
RULE_PATH = re.compile(r"^ *- +(/.*\S) *$", re.MULTILINE)
# The name of an alert or a recording rule
RULE = re.compile(r"^ *(?:- +)?(?:alert|record): *[\"']?([\w:]+)", re.MULTILINE)
# Shapes of the responses of Prometheus
RULES = {"groups": [{"file?": str, "rules": [{"name": str}]}]}
_LABELS = {re.compile(".*", re.DOTALL): str}
TARGETS = {"activeTargets": [{"labels": _LABELS, "scrapeUrl": str, "health": str, "lastError": str}]}
QUERY = {"result": [{"metric": _LABELS}]}


def read(desired: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the actual files, and the rules and the health of targets that Prometheus reports."""
    health = _targets(desired["port"])
    # Only a proof requires that the last scrape was successful. Otherwise a target counts as up if it was up recently.
    if health and not desired["proof"]:
        recent = _recently_up(desired["port"])
        health = {
            job: {host: "up" if (job, host) in recent else state for host, state in hosts.items()} for job, hosts in health.items()
        }
    config = read_text(desired["config"]) or ""
    block = BLOCK.search(config)
    jobs = desired["jobs"].splitlines()
    rule_block = RULE_BLOCK.search(config)
    return {
        "packages": sorted(installed_packages(desired["packages"])),
        "targets": {path: read_text(path) for path in desired["targets"]},
        "left": [path for path in desired["absent"] if os.path.lexists(path)],
        "jobs": block[1].splitlines() == jobs if block else desired["jobs"] in config,
        "rules": {path: read_text(path) for path in desired["rules"]},
        "rule_files": RULE_FILES.search(config) is not None,
        "rules_listed": all(_is_listed(path, config) for path in desired["rules"]),
        # Only this project writes the block, so all files in it belong to this project.
        "rules_left": [path for path in RULE_PATH.findall(rule_block[1] if rule_block else "") if path not in desired["rules"]],
        "rules_loaded": _rules(desired["port"], list(desired["rules"]), config),
        "health": health,
    }


def _is_listed(path: str, config: str) -> bool:
    """Return True if a configuration of Prometheus lists a file of rules by name."""
    return re.search(f"^ *- +{re.escape(path)} *$", config, re.MULTILINE) is not None


def _is_outdated(path: str, paths: List[str], config: str) -> bool:
    """Return True if a file of rules is in the directory of one of `paths`, but the configuration does not list it any more."""
    directory = os.path.dirname(path)
    return directory in map(os.path.dirname, paths) and not _is_listed(path, config) and f"{directory}/*" not in config


def _query(port: int, resource: str, shape: Any) -> Any:
    """Return the data that Prometheus reports, or None without a response. Another program on the port sends no such data."""
    status, response = http_json("127.0.0.1", port, "GET", f"/api/v1/{resource}")
    return response["data"] if status == 200 and not shapes.mismatch(response, {"data": shape}) else None


def _rules(port: int, paths: List[str], config: str) -> List[str]:
    """Return the names of the rules that Prometheus has loaded from the files in `paths`, and from files that it has to unload."""
    groups = (_query(port, "rules", RULES) or {"groups": []})["groups"]
    files = {file for file in (group.get("file", "") for group in groups) if file in paths or _is_outdated(file, paths, config)}
    return sorted(rule["name"] for group in groups if group.get("file") in files for rule in group["rules"])


def _targets(port: int) -> Optional[Dict[str, Dict[str, str]]]:
    """Return {job: {host: `up` or the last error}} of the targets, or None if Prometheus does not answer."""
    targets = _query(port, "targets?state=active", TARGETS)
    if targets is None:
        return None
    found: Dict[str, Dict[str, str]] = {}
    for entry in targets["activeTargets"]:
        labels = entry["labels"]
        if JOBS.fullmatch(labels.get("job", "")):
            state = "up" if entry["health"] == "up" else entry["lastError"] or entry["health"]
            found.setdefault(labels["job"], {})[labels.get("host", entry["scrapeUrl"])] = state
    return found


def _recently_up(port: int) -> List[Tuple[str, str]]:
    """Return (job, host) of the targets that were up at least once within WINDOW."""
    from urllib.parse import quote

    query = quote(f'max_over_time(up{{job=~"{JOBS.pattern}"}}[{WINDOW}]) == 1')
    found = _query(port, f"query?query={query}", QUERY) or {"result": []}
    return [(entry["metric"].get("job", ""), entry["metric"].get("host", "")) for entry in found["result"]]


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the differences: packages and files, and if Prometheus answers, rules and the health of the targets."""
    plan = []
    missing = sorted(set(desired["packages"]) - set(actual["packages"]))
    if missing:
        plan.append(item(CONCERN, "packages", "without " + ", ".join(missing), "installed", "install"))
    for path in sorted(desired["targets"]):
        if actual["targets"].get(path) != desired["targets"][path]:
            plan.append(item(CONCERN, path, actual["targets"].get(path), desired["targets"][path], "configure"))
    for path in actual["left"]:
        content = "metrics of status.yml" if os.path.basename(path) == STATUS_FILE else "targets of a job without hosts"
        plan.append(item(CONCERN, path, content, None, "configure"))
    if not actual["jobs"]:
        plan.append(item(CONCERN, "scrape jobs", None, ", ".join(sorted(desired["hosts"])), "configure"))
    for path, text in desired["rules"].items():
        if actual["rules"][path] != text:
            plan.append(item(CONCERN, path, actual["rules"][path], text, "configure"))
    for path in actual["rules_left"]:
        plan.append(item(CONCERN, path, "rules that are not in the inventory", None, "configure"))
    if not actual["rules_listed"]:
        plan.append(item(CONCERN, "rule_files", None, desired["rules_list"], "configure"))
    if actual["health"] is None:
        plan.append(item(CONCERN, "service", None, "a Prometheus that answers on port {}".format(desired["port"]), "start"))
        return plan
    rules = Counter(name for text in desired["rules"].values() for name in RULE.findall(text))
    loaded = Counter(actual["rules_loaded"])
    if loaded != rules:
        differences = [", ".join(sorted(set(names))) or None for names in (loaded - rules, rules - loaded)]
        plan.append(item(CONCERN, "loaded rules", differences[0], differences[1], "configure"))
    for job in sorted({*desired["hosts"], *actual["health"]}):
        hosts, health = desired["hosts"].get(job, []), actual["health"].get(job, {})
        of_job = "" if job == TRITON_JOB else f" in {job}"
        for host in hosts:
            if health.get(host) != "up":
                plan.append(item(CONCERN, f"up of {host}{of_job}", health.get(host, "not scraped"), "up", "wait"))
        for host in sorted(set(health) - set(hosts)):
            plan.append(item(CONCERN, f"up of {host}{of_job}", "scraped", None, "wait"))
    return plan
