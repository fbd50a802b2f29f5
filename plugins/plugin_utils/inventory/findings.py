# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of an inventory that need no connection to a host: names, types, contradictions and groups."""

from __future__ import annotations

import difflib
import os
import re
from functools import cache
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import LOAD_BALANCER_HOSTS, MONITORING_HOSTS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, short
from ansible_collections.npufleet.triton.plugins.module_utils.secret import replace_logins
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import bounds, image_supply, run_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.reasons import collected, of_error
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.shared_results import shared_result
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout.traffic import hook_errors

# Prefixes of this project's variables. An unknown name with such a prefix is an error.
PREFIXES = (
    "npufleet_",
    "rbln_",
    "triton_",
    "docker_engine_",
    "model_repository_",
    "inference_check_",
    "load_balancer_",
    "monitoring_",
    "preflight_",
)
# Prefixes that a site may also use for its own variables. An unknown name with such a prefix is an error if it resembles a known
# name. Otherwise the name is accepted.
SHARED_PREFIXES = ("monitoring_", "preflight_")
# Endings of the variables that playbooks and roles set themselves
RESULT_ENDINGS = ("_state", "_result", "_failed", "_item")
# {removed variable: its replacement}
REMOVED: Dict[str, str] = {
    "npufleet_row": "npufleet_release_row",
    "monitoring_rules_file": "monitoring_rules_directory",
    **{
        f"inference_check_probe{name}": f"monitoring_probe{name}"
        for name in ("", "_interval", "_jitter", "_limit", "_latency", "_directory")
    },
    **{
        f"triton_server_watchdog_{name}_limit": f"triton_server_watchdog_{name}_timeout"
        for name in ("fault", "stall", "silence", "start")
    },
    "triton_server_watchdog_stub_limit": "triton_server_watchdog_process_timeout",
    "triton_server_watchdog_actions": "triton_server_watchdog_max_actions",
    "triton_server_linked": "triton_server_current_releases",
    "triton_server_started_inside": "triton_server_manual_process",
    "triton_server_open_control": "triton_server_allow_open_control",
    "triton_server_stuck_load_limit": "triton_server_stuck_load_timeout",
}
# The repository of an image: an optional registry, and a path in lower case
REPOSITORY = re.compile(
    r"(?!(index\.)?docker\.io/)([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
)
# Paths whose defaults are templates that contain other variables. Another variable can make such a path invalid, so these paths are
# checked even if the inventory does not set them.
TEMPLATED_PATHS = ("npufleet_incoming", "rbln_driver_package_path")
# An unknown name without a prefix of PREFIXES is an error if its similarity to a known name (0 to 1) is at least this value.
MIN_SIMILARITY = 0.86
# The variables that must be equal on all load balancers of a fleet, because clients can use each of them
COMMON_VARIABLES = (
    "load_balancer_pool",
    "load_balancer_http_port",
    "load_balancer_grpc_port",
    "load_balancer_users",
    "load_balancer_client_ca",
    "load_balancer_trace_context",
    "load_balancer_check_model",
    "load_balancer_check_body",
    "load_balancer_check_expect",
    "load_balancer_check_interval",
    "load_balancer_check_timeout",
    "load_balancer_stream_timeout",
)
# Variables that must be set on all load balancers or on none of them. Their values can differ.
SET_ON_ALL = ("load_balancer_tls_certificate",)
# Variables whose values are not shown
SECRET_VARIABLES = ("load_balancer_users",)


def findings(variables: Mapping[str, Any], names: Iterable[str]) -> List[str]:
    """Return all errors of the variables. `names` are the variables that the inventory or the command line sets."""
    names = sorted(names)
    reasons: List[str] = []
    with collected(reasons):
        reasons += shared_result(variables, "names", lambda _none: list(_unknown_names(names)), names)
    value_errors = list(_value_errors(variables, names))
    reasons += value_errors or _value_errors(variables, [name for name in TEMPLATED_PATHS if name in variables])
    with collected(reasons):
        reasons += list(balancer_differences(variables))
    usable = _Usable(variables)
    for rules in (_contradictions, _group_errors):
        with collected(reasons):
            reasons += rules(usable)
    return reasons


def _unknown_names(names: List[str]) -> Iterator[str]:
    known_specs = inventory_specs()
    for name in names:
        if name in REMOVED:
            yield f"{name} is no longer a variable. Set {REMOVED[name]} instead."
        elif name in known_specs or name.startswith(("ansible_", "_")):
            continue
        elif name.startswith(PREFIXES):
            # An earlier playbook of the same run may have set the variable.
            if name in run_guard.persistent_variables():
                continue
            similar = _most_similar(name, known_specs, 0.8)
            if not name.endswith(RESULT_ENDINGS) and (similar or not name.startswith(SHARED_PREFIXES)):
                hint = f"Did you mean {similar[0]}?" if similar else "docs/variables.md lists all variables."
                yield f"{name} is set, but there is no such variable. {hint}"
        else:
            similar = _most_similar(name, known_specs, MIN_SIMILARITY)
            if similar:
                yield f"{name} is set, but nothing reads it. Did you mean {similar[0]}?"


def _most_similar(name: str, known_names: Iterable[str], ratio: float) -> List[str]:
    """Return [the most similar known name] or []. Compare only names with enough equal letters, because difflib takes long."""
    letters, max_missing = _letters(name), (1 - ratio / 2) * len(name)
    similar = [other for other in known_names if len(letters - _letters(other)) <= max_missing - ratio / 2 * len(other)]
    return difflib.get_close_matches(name, similar, n=1, cutoff=ratio)


@cache
def _letters(name: str) -> FrozenSet[str]:
    return frozenset(name)


def _value_errors(variables: Mapping[str, Any], names: List[str]) -> Iterator[str]:
    """Yield the errors of values with a wrong type or a failing template."""
    for name in (entry for entry in names if entry in inventory_specs()):
        try:
            # Reading a variable evaluates its template and checks its type.
            variables[name]
        except Refusal as refusal:
            yield from refusal.reasons
        # Lookups and filters in a template can raise any exception.
        except Exception as error:
            yield from (f"{name} cannot be evaluated: {reason}" for reason in of_error(error))


def balancer_differences(variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield one reason with all differences between the load balancers. On any other host, yield nothing."""
    balancers = (variables["groups"] or {}).get(LOAD_BALANCER_HOSTS, [])
    if variables["inventory_hostname"] not in balancers or len(balancers) < 2:
        return
    parts: List[str] = []
    for name in (*COMMON_VARIABLES, *SET_ON_ALL):
        default = variables["npufleet_group"] if name == "load_balancer_pool" else inventory_specs()[name].get("default")
        by_value: Dict[str, List[str]] = {}
        for host in balancers:
            value = variables["hostvars"][host].get(name, default)
            by_value.setdefault(str(bool(value) if name in SET_ON_ALL else value), []).append(host)
        if len(by_value) > 1:
            texts = {value: "one value" if name in SECRET_VARIABLES else short(value, 60) or "empty" for value in by_value}
            parts.append(f"{name} is " + " and ".join(f"{texts[value]} on {', '.join(hosts)}" for value, hosts in by_value.items()))
    if parts:
        yield f"{'; '.join(parts)}, expected equal values on all load balancers. Set them for the group {LOAD_BALANCER_HOSTS}."


class _Usable(Dict[str, Any]):
    """A map of variables that returns an empty text for each unusable value, so that each error is reported only once."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        super().__init__()
        self._variables = variables

    def __missing__(self, name: str) -> Any:
        try:
            return self._variables[name]
        # The variable is not set, or `_value_errors` has reported its error.
        except Exception:
            return ""


def _contradictions(variables: Mapping[str, Any]) -> Iterator[str]:
    package = "rbln_driver_package"
    if variables[f"{package}_file"] and variables[f"{package}_url"]:
        yield f"{package}_file and {package}_url are both set. Remove one of them."
    for source in (f"{package}_file", f"{package}_url"):
        if variables[source] and not variables[f"{package}_sha256"]:
            yield f"{source} is set without {package}_sha256. Add the digest, so that no other package is installed."
    if variables["triton_image_base_archive"] and not variables["triton_image_base_archive_sha256"]:
        yield "triton_image_base_archive is set without triton_image_base_archive_sha256. Add `sha256sum` of the archive."
    for login in ("npufleet_artefact", "triton_image_index", "triton_image_registry", "triton_image_delivery"):
        if bool(variables[f"{login}_user"]) != bool(variables[f"{login}_password"]):
            present, missing = ("user", "password") if variables[f"{login}_user"] else ("password", "user")
            yield f"{login}_{present} is set without {login}_{missing}. Set both, or neither for a server without a login."
    user, password = variables["triton_image_index_user"], variables["triton_image_index_password"]
    if user and password:
        python = str(((variables["npufleet_release_row"] or {}).get("triton") or {}).get("python") or "3.12")
        flaw = image_supply.login_flaw(str(user), str(password), python)
        if flaw:
            yield f"triton_image_index_user and triton_image_index_password cannot be given to pip: {flaw}. Choose another login."
    repository = str(variables["triton_image_delivery_repository"])
    if repository and not REPOSITORY.fullmatch(repository):
        yield (
            f"triton_image_delivery_repository is {replace_logins(repository, '***@')}. Write it as "
            "registry.example.com:5000/npufleet/triton, in small letters, without a scheme, a login, a tag or a digest. Write a "
            "repository of Docker Hub without docker.io/."
        )
    elif repository and repository == variables["triton_image_name"]:
        yield f"triton_image_delivery_repository and triton_image_name are both {repository}. Give triton_image_name another value."
    ports: Dict[str, List[str]] = {}
    for name in ("npufleet_http_port", "npufleet_grpc_port", "npufleet_metrics_port"):
        ports.setdefault(str(variables[name]), []).append(name)
    for port, names in ports.items():
        if port and len(names) > 1:
            yield f"{' and '.join(names)} are all {port}. Give each its own port."
    engine, server = variables["triton_server_stop_timeout"], variables["triton_server_exit_timeout"]
    if isinstance(engine, int) and isinstance(server, int) and engine <= server:
        yield (
            f"triton_server_stop_timeout is {engine} and triton_server_exit_timeout is {server}. Make "
            "triton_server_stop_timeout longer, or the engine kills a server that is still finishing its requests."
        )
    drain, lease = variables["npufleet_drain_timeout"], variables["npufleet_lease_timeout"]
    if isinstance(drain, int) and isinstance(lease, int) and drain >= lease:
        yield (
            f"npufleet_drain_timeout is {drain} and npufleet_lease_timeout is {lease}. Make npufleet_drain_timeout shorter, or "
            "the lease of a host ends while the run waits for the last requests of the host."
        )
    if variables["npufleet_drain_hook"]:
        yield from hook_errors(variables)
    if variables["triton_server_allow_metrics"] is False and (variables["groups"] or {}).get(MONITORING_HOSTS):
        yield "triton_server_allow_metrics is off, but there are monitoring_hosts. Turn it on, or remove the hosts from that group."
    for name in ("npufleet_http_proxy", "npufleet_https_proxy"):
        if variables[name] and not str(variables[name]).startswith(("http://", "https://")):
            yield f"{name} has no scheme. Write it as http://proxy.example.com:3128."
    if variables["npufleet_ca_file"] and not os.path.isfile(str(variables["npufleet_ca_file"])):
        yield f"npufleet_ca_file is {variables['npufleet_ca_file']}, but the controller has no such file. Correct the path."


def _group_errors(variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of hosts without a group, of misspelt groups, and of models on unknown hosts."""
    groups: Mapping[str, List[str]] = variables["groups"] or {}
    fleet_group = str(variables["npufleet_group"])
    known_groups = (fleet_group, LOAD_BALANCER_HOSTS, MONITORING_HOSTS)
    listed = " or ".join(known_groups)
    if LOAD_BALANCER_HOSTS in groups and not groups[LOAD_BALANCER_HOSTS]:
        yield (
            f"the group {LOAD_BALANCER_HOSTS} has no hosts, expected the load balancers of the fleet. Add them, or remove the "
            "group."
        )
    ungrouped = sorted(set(groups.get("ungrouped", [])) - {"localhost"})
    if ungrouped:
        verb, pronoun = ("is", "it") if len(ungrouped) == 1 else ("are", "them")
        yield f"{', '.join(ungrouped)} {verb} in no group. Put {pronoun} into {listed}."
    misspelt = {
        name: similar[0]
        for name in sorted(set(groups) - set(known_groups) - {"all", "ungrouped"})
        for similar in [difflib.get_close_matches(name, known_groups, n=1, cutoff=0.8)]
        if similar and not groups.get(similar[0])
    }
    for name, expected_name in misspelt.items():
        yield f"there is a group {name}, and no host is in {expected_name}. Rename the group."
    host = variables["inventory_hostname"]
    if host and not bounds.HOST_NAME.fits(host):
        expected = bounds.HOST_NAME.expected
        yield f"the name of this host is {short(ascii(host), 60)}, expected {expected}. Rename it in the inventory."
    if groups and not misspelt and host not in ungrouped and not any(host in groups.get(name, []) for name in known_groups):
        yield f"{host} is in no group {listed}. Set npufleet_group on the command line, where every play sees it."
    hosts = set(groups.get("all", []))
    fleet = set(groups.get(fleet_group, []))
    for entry in (model for model in variables["triton_models"] or [] if model.get("hosts")):
        placement = entry["hosts"]
        unknown = [name for name in placement if name not in hosts and name not in groups]
        if unknown:
            names = ", ".join(unknown)
            yield f"model {entry['name']}: `hosts` contains {names}, expected hosts or groups of this inventory. Correct it."
        elif groups and not any(fleet & ({name} | set(groups.get(name, []))) for name in placement):
            names = ", ".join(placement)
            yield f"model {entry['name']} is on no host: none of {names} is in {fleet_group}. Name hosts that have NPUs."
