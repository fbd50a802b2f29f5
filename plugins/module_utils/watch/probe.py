# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The probe: runs the checks against the Triton server of this host, and writes the results for node exporter and as JSON."""

from __future__ import annotations

# This file is part of a program, which has no run_command of a module. pylint: disable=ansible-bad-function
import functools
import glob
import hashlib
import json
import os
import re
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock, durable, locks
from ansible_collections.npufleet.triton.plugins.module_utils.system import timestamp
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.watch import probe_page
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import Probe as Settings
from ansible_collections.npufleet.triton.plugins.module_utils.watch.settings import load

LOCK = "/run/npufleet-probe.lock"
CONTAINER = "npufleet-probe"
NODES = "/dev/rbln[0-9]*"
# Largest number of failed checks in the journal
MAX_SHOWN = 20
# The fields of a check's result in the state. Pictures and golden texts are left out.
RESULT_FIELDS = ("name", "model", "check", "protocol", "ok", "why", "ms", "latency")
# The fields of the previous state that a new state takes over
PREVIOUS_SHAPE = {"last_run?": shapes.NUMBER, "proven?": {re.compile(".*", re.DOTALL): shapes.NUMBER}}
# HEAD is the shape of the first line of the file with the checks, and REQUEST_SHAPE is the shape of all other lines together.
HEAD = {"checks": str, "document": str}
REQUEST_SHAPE = {
    "program": str,
    "document": {"host": str, "checks": [dict], "unchecked?": [str], "unasked?": [str], "server": dict},
}


class Unavailable(Exception):
    """The reason why no check could run. `cause` is one of `probe_page.UNAVAILABLE`."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def paused(root: str) -> Optional[str]:
    """Return the reason why no check may run now, or None if checks may run."""
    if lease.maintenance(os.path.join(root, lease.MAINTENANCE_FILE)):
        return "maintenance"
    current = lease.read(root)
    return "deployment" if current and lease.live(root, current) else None


def read_checks(path: str) -> Tuple[str, Dict[str, Any]]:
    """Return the digest of the checks' sources, and {"program", "document"} from the file of the checks. Raises Unavailable."""
    try:
        with open(path, "rb") as source:
            head, body = shapes.parse_as(source.readline(), HEAD), source.read()
        if head["document"] != hashlib.sha256(body).hexdigest():
            raise ValueError("its content was changed")
        # Golden data can have infinite numbers, which shapes.parse refuses. json.loads is safe here, because the digest proves that
        # this project wrote the body.
        document = json.loads(body)
        flaw = shapes.mismatch(document, REQUEST_SHAPE)
        if flaw:
            raise ValueError(flaw)
        return head["checks"], document
    except (OSError, ValueError) as error:
        raise Unavailable("checks", f"{path}: {error}: run playbooks/site.yml") from None


def run_checks(settings: Settings, request: Mapping[str, Any]) -> Tuple[List[Dict[str, Any]], List[str]]:
    """Run the checks. Return the result of each check, and the models without a check. Raises Unavailable."""
    document = request["document"]
    run_client = functools.partial(check_client.run_in_container, name=CONTAINER, limit=settings.client_timeout)
    try:
        # The key is read for each run, because it may have changed.
        proof = check_client.prove(settings.image, document, request["program"], keys.headers(settings.key), run_client)
    except check_client.ClientError as error:
        raise Unavailable(error.cause, str(error)) from None
    # Earlier versions of npufleet named this field `unasked`.
    unchecked = list(document.get("unchecked", document.get("unasked", [])))
    if unchecked and not proof["checks"]:
        raise Unavailable("nothing", f"no check covers {', '.join(unchecked)}: add check files, or set monitoring_probe: false")
    return [{field: check[field] for field in RESULT_FIELDS if field in check} for check in proof["checks"]], unchecked


def lost_cards() -> Optional[str]:
    """Return a message if the driver has lost its cards, an empty string if it has all cards, or None if this is unknown."""
    tool = vendor_tool.query_tool()
    if "devices" not in tool or "groups_error" in tool:
        return None
    return vendor_tool.stale(tool, sorted(map(os.path.basename, glob.glob(NODES)))) or ""


def probe(settings: Settings, before: Mapping[str, Any]) -> Dict[str, Any]:
    """Run the checks once, and return the new state of the probe. `before` is its previous state."""
    began, moment = time.time(), clock.mark()
    previous = {"last_run": before.get("last_run", 0), "proven": dict(before.get("proven", {}))}
    no_result = {**previous, "unavailable": None, "lost_cards": None, "unchecked": [], "checks": []}
    state: Dict[str, Any] = {
        "host": settings.host,
        "when": timestamp(began),
        "at": began,
        **moment,
        **no_result,
        "interval": settings.interval,
        "seconds": 0,
        "paused": paused(settings.root),
        "document": None,
    }
    if state["paused"]:
        return state
    state["lost_cards"] = lost_cards()
    try:
        state["document"], request = read_checks(settings.checks_file)
        state["checks"], state["unchecked"] = run_checks(settings, request)
        state["last_run"] = began
        state["proven"] = proven(state["checks"], began, state["proven"])
    except Unavailable as unavailable:
        state["unavailable"] = {"reason": unavailable.cause, "why": str(unavailable)}
    state["seconds"] = round(clock.uptime() - moment["uptime"], 2)
    # If maintenance or a deployment began meanwhile, it can have caused the failure. So the probe counts as paused, not as failed.
    failed = state["unavailable"] or not all(check["ok"] for check in state["checks"])
    state["paused"] = paused(settings.root) if failed else None
    if state["paused"]:
        state.update(no_result)
    return state


def proven(checks: List[Dict[str, Any]], began: float, before: Mapping[str, float]) -> Dict[str, float]:
    """Return {model: time at which the model last passed all of its checks}. The others are left out."""
    passed: Dict[str, bool] = {}
    for check in checks:
        model = check.get("model", "")
        passed[model] = passed.get(model, True) and check["ok"]
    return {model: began if passed[model] else before[model] for model in passed if passed[model] or model in before}


def summary(state: Mapping[str, Any]) -> str:
    """Return the state as text for the journal."""
    if state["paused"]:
        return f"no check ran: {state['paused']}"
    stale_message = f"the driver is stale, run playbooks/recover.yml: {state['lost_cards']}\n" if state["lost_cards"] else ""
    if state["unavailable"]:
        return stale_message + "no check could run, {reason}: {why}".format(**state["unavailable"])
    failed = [f"  {check['name']}: {check['why']}" for check in state["checks"] if not check["ok"]]
    count = len(state["checks"])
    lines = [f"{stale_message}{count - len(failed)} of {count} checks passed in {state['seconds']:g} s", *failed[:MAX_SHOWN]]
    lines += ["  no check covers " + ", ".join(state["unchecked"])] if state["unchecked"] else []
    return "\n".join(lines + ([f"  and {len(failed) - MAX_SHOWN} more"] if len(failed) > MAX_SHOWN else []))


def run(config: str) -> int:
    """Run the checks once and write the result. Return 0 if the result was written or another probe is running."""
    settings = load(config, Settings)
    with locks.open_lock(LOCK) as lock:
        if not locks.take(lock, 0.0):
            print("another probe is running, so this one ends")
            return 0
        path = settings.root + "/probe.json"
        state = probe(settings, shapes.read(path, PREVIOUS_SHAPE).content or {})
        print(summary(state), flush=True)
        try:
            # The directory belongs to node exporter. If it is missing, this call raises an error; durable.write would create it.
            os.stat(os.path.dirname(settings.textfile))
            durable.write(settings.textfile, probe_page.page(state))
            lease.write(path, state, 0o600)
        except OSError as error:
            print(f"the result cannot be written: {error}", file=sys.stderr)
            return 1
    return 0
