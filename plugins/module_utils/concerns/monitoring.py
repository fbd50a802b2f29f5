"""Prometheus: one file of targets, one scrape job, and whether every target is really scraped."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.probe import http_json, packages, text

CONCERN = "monitoring"
JOB = "npufleet-triton"


def desired(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Targets from the inventory: every host of the scraped group, under its inventory name."""
    group = variables["monitoring_scrape_group"]
    hostvars = variables["hostvars"]
    targets = []
    for host in variables["groups"].get(group, []):
        facts = hostvars[host]
        address = facts.get("npufleet_address") or facts.get("ansible_host") or host
        port = facts.get("npufleet_metrics_port", variables["npufleet_metrics_port"])
        targets.append({"targets": [f"{address}:{port}"], "labels": {"host": host}})
    return {
        "packages": sorted(variables["monitoring_packages"]),
        "config": variables["monitoring_prometheus_config"],
        "targets_file": variables["monitoring_targets_file"],
        "targets": json.dumps(targets, indent=2, sort_keys=True) + "\n",
        "hosts": sorted(one["labels"]["host"] for one in targets),
        "job": variables["monitoring_scrape_job"],
        "port": int(variables["monitoring_prometheus_port"]),
    }


def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """Files, and the health of the job's targets as Prometheus itself sees them."""
    status, answer = http_json("127.0.0.1", wanted["port"], "GET", "/api/v1/targets?state=active")
    health = None
    if status == 200:
        health = {
            one["labels"].get("host", one["scrapeUrl"]): one["health"]
            if one["health"] == "up"
            else one["lastError"] or one["health"]
            for one in answer["data"]["activeTargets"]
            if one["labels"].get("job") == JOB
        }
    return {
        "packages": sorted(packages(wanted["packages"])),
        "targets": text(wanted["targets_file"]),
        "job": wanted["job"] in (text(wanted["config"]) or ""),
        "health": health,
    }


def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Packages and files first; `up` is judged once Prometheus answers."""
    plan = []
    missing = sorted(set(wanted["packages"]) - set(actual["packages"]))
    if missing:
        plan.append(item(CONCERN, "packages", "without " + ", ".join(missing), "installed", "install"))
    if actual["targets"] != wanted["targets"]:
        plan.append(item(CONCERN, wanted["targets_file"], actual["targets"], wanted["targets"], "configure"))
    if not actual["job"]:
        plan.append(item(CONCERN, "scrape job", None, JOB, "configure"))
    if actual["health"] is None:
        plan.append(item(CONCERN, "service", None, "a Prometheus that answers on port {}".format(wanted["port"]), "start"))
        return plan
    for host in wanted["hosts"]:
        if actual["health"].get(host) != "up":
            plan.append(item(CONCERN, "up of " + host, actual["health"].get(host, "not scraped"), "up", "wait"))
    for host in sorted(set(actual["health"]) - set(wanted["hosts"])):
        plan.append(item(CONCERN, "up of " + host, "scraped", None, "wait"))
    return plan
