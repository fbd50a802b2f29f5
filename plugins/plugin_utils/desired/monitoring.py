# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The desired Prometheus of a monitoring host: targets from the inventory, scrape jobs and rules."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.monitoring import STATUS_FILE
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import scraping
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context


def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    """Return the configuration, in which every target has the inventory name of its host as a label. Raises Refusal."""
    jobs = scraping.jobs(variables)
    files = {scraping.path(variables, job.name): json.dumps(job.targets, indent=2, sort_keys=True) + "\n" for job in jobs}
    rules = _rules([*variables["monitoring_rules"], *variables["monitoring_rules_extra"]])
    directory = variables["monitoring_rules_directory"]
    packages = set(variables["monitoring_packages"])
    absent = {scraping.path(variables, name) for name in scraping.TARGETS} - set(files)
    if not variables["monitoring_status_metrics"]:
        # Prometheus would scrape the metrics of an old file forever, so alerts about the drift in the file would never end.
        absent.add(f"{variables['monitoring_probe_directory']}/{STATUS_FILE}")
    elif variables["monitoring_node_exporter"]:
        packages.update(variables["monitoring_node_packages"])
    return {
        "packages": sorted(packages),
        "config": variables["monitoring_prometheus_config"],
        "targets": files,
        "checked": scraping.checked(files),
        "absent": sorted(absent),
        "hosts": {job.full_name: sorted(target["labels"]["host"] for target in job.targets) for job in jobs},
        "jobs": scraping.entries(variables, jobs),
        "port": int(variables["monitoring_prometheus_port"]),
        "rules": {f"{directory}/{name}": text for name, text in sorted(rules.items())},
        "rules_list": "".join(f"  - {directory}/{name}\n" for name in sorted(rules)),
        # For the proof of a change, the targets must be up now. For a plan, it is sufficient that they were up recently.
        "proof": context.proof,
    }


def _rules(paths: List[str]) -> Dict[str, str]:
    """Return {name on the host: text} of the rule files in `paths`, which can also be directories of rule files. Raises Refusal.

    The name of a file from a directory begins with the name of the directory, because directories can have files of the same name.
    """
    rules: Dict[str, str] = {}
    for path in paths:
        directory = os.path.isdir(path)
        entries = [os.path.join(path, name) for name in os.listdir(path)] if directory else [path]
        files = sorted(entry for entry in entries if entry.endswith((".yml", ".yaml")))
        if not files:
            raise Refusal(f"{path} in monitoring_rules has no file of rules, expected *.yml")
        for file in files:
            name = os.path.basename(file)
            if directory:
                name = f"{os.path.basename(os.path.normpath(path))}_{name}"
            if name in rules:
                raise Refusal(f"monitoring_rules and monitoring_rules_extra have two files {name}. Give one of them another name")
            with open(file, encoding="utf-8") as source:
                rules[name] = source.read()
    return rules
