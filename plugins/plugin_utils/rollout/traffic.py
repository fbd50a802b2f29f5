# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The effect of a change on the requests of clients, and the settings of the rollout.

This module runs only on the controller and imports nothing of ansible-core.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Sequence, Set

from ansible_collections.npufleet.triton.plugins.module_utils.concerns import driver, engine, models, server, traffic
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import LOAD_BALANCER_HOSTS
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.triton.repository import short_of_memory

# The effects of a change, the smallest first. With NONE, the server does not change. With RELOAD, it loads models while the current
# models answer. With STOP, some requests would fail, so the host is drained before the change.
EFFECTS = NONE, RELOAD, STOP = ("none", "reload", "stop")
# Actions of the concern `server` during which a server in explicit mode continues to answer requests
ANSWERING_ACTIONS = ("load", "unload", "wait", "prove")
# Seconds for the other steps of a host change besides draining and judging, such as waiting for health checks
MARGIN_SECONDS = 300
# The values of npufleet_drain_hook: how hosts are drained
HOOKS = ("haproxy", "command", "none")
# The commands of the hook `command`
COMMANDS = ("drain", "undrain", "is_drained")
# The settings of a host in sync. If one run has several playbooks, a host that an earlier playbook changed stays in the group of
# hosts to change. If this host is in sync for a later playbook, that playbook reads these settings.
UNCHANGED: Dict[str, Any] = {"hook": "none", "effect": NONE, "limited": False, "accept_within": 0}


def limited(result: Mapping[str, Any]) -> bool:
    """Return True if an earlier rollout has not restored the host's share of the traffic."""
    return any(entry["concern"] == traffic.CONCERN for entry in result["plan"])


def effect(result: Mapping[str, Any]) -> str:
    """Return the effect of the changes in a result of host_state. A rollback has its changes in `moves` instead of `plan`."""
    return max([NONE, *_effects(result)], key=EFFECTS.index)


def _effects(result: Mapping[str, Any]) -> Iterator[str]:
    desired = (result.get("desired") or {}).get("server") or {}
    is_explicit = desired.get("mode") == "explicit"
    changed_models = set(result.get("moves") or {})
    if limited(result):
        yield STOP
    for entry in [] if "moves" in result else result["plan"]:
        concern, action = entry["concern"], entry["action"]
        if concern in (driver.CONCERN, engine.CONCERN):
            yield STOP
        elif concern == server.CONCERN:
            yield RELOAD if action in ANSWERING_ACTIONS and is_explicit else STOP
        elif concern == models.CONCERN:
            # Other actions of the concern, such as the repair of a file's mode bits, change no served model.
            changed_models.update([entry["name"]] if action in ("release", "withdraw") else [])
    if changed_models:
        yield RELOAD if is_explicit and not changed_models & _unloaded_first(desired.get("models") or {}, result) else STOP


def _unloaded_first(desired: Mapping[str, Any], result: Mapping[str, Any]) -> Set[str]:
    """Return the models whose old release is unloaded before the new release loads.

    The reason is the configuration of the model, or that the memory is too small for both releases.
    """
    configured = {name for name, model in desired.items() if model.get("switch") == "unload_first"}
    tool = (result["actual"].get("driver") or {}).get("tool") or {}
    totals = [int(device["memory_total"]) for device in vendor_tool.in_process_order(tool.get("devices") or [])]
    needed = {name: model for name, model in desired.items() if any(model.get("memory") or [])}
    return configured | (short_of_memory(needed, totals) if totals and needed else set())


def hook_errors(variables: Mapping[str, Any]) -> List[str]:
    """Return the errors of the variables that select how hosts are drained."""
    hook, commands = str(variables["npufleet_drain_hook"]), variables["npufleet_drain_commands"]
    if hook not in HOOKS:
        return [f"npufleet_drain_hook is {hook}, expected {', '.join(HOOKS[:-1])} or {HOOKS[-1]}. Correct it."]
    if hook == "haproxy" and not (variables["groups"] or {}).get(LOAD_BALANCER_HOSTS):
        return [
            f"npufleet_drain_hook is haproxy, but no host is in {LOAD_BALANCER_HOSTS}. Add the load balancers, or set "
            "npufleet_drain_hook to none."
        ]
    missing = [name for name in COMMANDS if hook == "command" and isinstance(commands, Mapping) and not commands.get(name)]
    if missing:
        return [f"npufleet_drain_hook is command, but npufleet_drain_commands has no {' and no '.join(missing)}. Add the commands."]
    return []


def drain_hook(variables: Mapping[str, Any]) -> str:
    """Return how hosts are drained. Raises Refusal."""
    reasons = hook_errors(variables)
    if reasons:
        raise Refusal(reasons)
    return str(variables["npufleet_drain_hook"])


def settings(variables: Mapping[str, Any], result: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the settings of the rollout of a host: the hook, the effect of its plan, and the times in seconds. Raises Refusal."""
    hook = drain_hook(variables)
    judge = int(variables["npufleet_judge_seconds"])
    wait = int(variables["npufleet_judge_wait"]) if variables["npufleet_judge_unjudged"] == "wait" else 0
    needed_seconds = int(variables["npufleet_drain_timeout"]) + judge + wait + MARGIN_SECONDS
    lease = int(variables["npufleet_lease_timeout"])
    if hook != "none" and needed_seconds > lease:
        raise Refusal(
            "with npufleet_drain_timeout, npufleet_judge_seconds and npufleet_judge_wait, a host change can take "
            f"{needed_seconds} s, including {MARGIN_SECONDS} s for other steps, expected at most npufleet_lease_timeout "
            f"({lease} s): lower these variables, or raise npufleet_lease_timeout"
        )
    return {
        "hook": hook,
        "effect": NONE if hook == "none" else effect(result),
        "limited": limited(result),
        # Seconds that a proven change waits for the verdict about the traffic, or 0 if there will be no verdict
        "accept_within": 0 if hook == "none" or not judge else judge + wait + MARGIN_SECONDS,
    }


def steps(
    settings_of_host: Mapping[str, Any], balancers: Mapping[str, Mapping[str, Any]], host: str, repairs: bool = False
) -> Dict[str, Any]:
    """Return the steps of a host change that concern its traffic.

    - `drain`: True if the host is drained.
    - `judge`: True if the requests of clients are judged.
    - `accept_within`: the seconds that the proven change waits for the verdict, or 0.

    `balancers` has the results of balancer_info. A new host is in no balancer and gets no requests yet, so it is neither drained
    nor judged. If an earlier rollout left the host drained (`limited`), the host is drained again, even if no balancer has the host
    any more. `repairs` is True if the change repairs a server. A repair runs without traffic and is never undone, so it does not
    wait for the verdict.
    """
    balanced = settings_of_host["hook"] == "command" or any(host in info["servers"] for info in balancers.values())
    judged = balanced and settings_of_host["effect"] != NONE and settings_of_host["accept_within"] > 0
    return {
        "drain": settings_of_host["limited"] or (balanced and (settings_of_host["effect"] == STOP or repairs)),
        "judge": judged,
        "accept_within": settings_of_host["accept_within"] if judged and not repairs else 0,
    }


def outages(balancers: Mapping[str, Mapping[str, Any]], drained: Sequence[str]) -> List[str]:
    """Return a reason for each balancer that would have no ready server left if these hosts were drained together."""
    reasons = []
    for name, info in sorted(balancers.items()):
        ready = {host for host, entry in info["servers"].items() if entry["state"] == "ready" and entry["health"] == "up"}
        if ready and not ready - set(drained):
            reasons.append(
                f"{name}: {', '.join(sorted(ready))} would be drained together and no ready server would be left, expected at "
                "least one: use smaller batches (npufleet_rollout_serial), return other hosts to the traffic, or set "
                "npufleet_allow_outage"
            )
    return reasons
