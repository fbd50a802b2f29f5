"""What is wrong with an inventory, before any host is asked: names, kinds, contradictions, groups. Controller only."""

from __future__ import annotations

import difflib
import glob
import os
import re
from functools import cache
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Set, Tuple

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, short
from ansible_collections.npufleet.triton.plugins.module_utils.secret import replace_logins
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import bounds, image_supply, run_guard, values
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.common import in_common
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.reasons import collected, of_error

MONITORING = "monitoring_hosts"
# Prefixes that belong to this project: a name below them that nobody reads is a mistake.
FAMILIES = ("npufleet_", "rbln_", "triton_", "docker_engine_", "model_repository_", "inference_check_", "monitoring_", "preflight_")
# Of these a site may have variables of its own: only a slip of the finger is refused.
COMMON_WORDS = ("monitoring_", "preflight_")
# Names that playbooks and roles register or set themselves, by how they end
OWN = ("_state", "_result", "_failed", "_item")
# Variables that are gone, and what stands in their place
REMOVED: Dict[str, str] = {
    f"inference_check_probe{name}": f"it is monitoring_probe{name} now"
    for name in ("", "_interval", "_jitter", "_limit", "_latency", "_directory")
}
# A repository as engines call it: a registry, and a path in small letters
REPOSITORY = re.compile(
    r"(?!(index\.)?docker\.io/)([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
)
# What templates make of an inventory's values, and tasks use as paths
DERIVED = ("npufleet_incoming", "rbln_driver_package_path")
# What would end a value in the file of proxies, which shells and systemd read
UNQUOTED = re.compile(r"['\s\0-\x1f\x7f]")
# Names that this alike are taken for a slip of the finger, also outside of the families.
ALIKE = 0.86


class _Specs(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Argument specs hold no templates: a plain loader reads them many times faster than Ansible's, in every run."""


_Specs.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def specs(roles: str) -> Dict[str, Mapping[str, Any]]:
    """{variable: its entry} of every role's meta/argument_specs.yml."""
    found: Dict[str, Mapping[str, Any]] = {}
    for path in sorted(glob.glob(os.path.join(roles, "*", "meta", "argument_specs.yml"))):
        with open(path, encoding="utf-8") as source:
            read = yaml.load(source, _Specs)
        for entry in read["argument_specs"].values():
            found.update(entry.get("options") or {})
    return values.complete(found)


def findings(variables: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]], given: Iterable[str]) -> List[str]:
    """Every reason against these variables; `given` are the names that the inventory or the command line sets."""
    given = sorted(given)
    reasons: List[str] = []
    with collected(reasons):
        # Of names alone, which most hosts have in common
        reasons += in_common(variables, "names", lambda _none: list(_names(given, known)), given)
    kinds, unusable = _kinds(variables, known, given)
    reasons += kinds
    if not kinds:
        kinds, unusable = _kinds(variables, known, [name for name in DERIVED if name in variables])
        reasons += kinds
    usable = _Usable(variables, unusable)
    for rules in (_contradictions, _groups):
        # One by one: a rule that cannot be judged loses none of the reasons found before it
        with collected(reasons):
            for reason in rules(usable):
                reasons.append(reason)
    return reasons


def _names(given: List[str], known: Mapping[str, Any]) -> Iterator[str]:
    """Names that are gone, and names that nobody reads."""
    for name in given:
        if name in REMOVED:
            yield f"{name} is no longer a variable: {REMOVED[name]}"
        elif name in known or name.startswith(("ansible_", "_")):
            continue
        elif name.startswith(FAMILIES):
            near = _alike(name, known, 0.8)
            hint = f"did you mean {near[0]}?" if near else "docs/variables.md lists them"
            if name in run_guard.kept_variables():
                # Of a playbook before this one in the same run
                continue
            if not name.endswith(OWN) and (near or not name.startswith(COMMON_WORDS)):
                yield f"{name} is set, and there is no such variable: {hint}"
        else:
            near = _alike(name, known, ALIKE)
            if near:
                yield f"{name} is set, which nothing reads: did you mean {near[0]}?"


def _alike(name: str, known: Iterable[str], ratio: float) -> List[str]:
    """The most similar one, as difflib finds it; it takes long, so those that lack too many letters are left out before."""
    letters, most = _letters(name), (1 - ratio / 2) * len(name)
    near = [other for other in known if len(letters - _letters(other)) <= most - ratio / 2 * len(other)]
    return difflib.get_close_matches(name, near, n=1, cutoff=ratio)


@cache
def _letters(name: str) -> FrozenSet[str]:
    return frozenset(name)


def _kinds(variables: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]], given: List[str]) -> Tuple[List[str], Set[str]]:
    """(values of another kind than they should be and templates that lack something, the names that have them)."""
    reasons: List[str] = []
    unusable: Set[str] = set()
    for name in (entry for entry in given if entry in known):
        try:
            # Read, it is of its type
            variables[name]
        except Refusal as refusal:
            reasons += refusal.reasons
        # A template may run any lookup and any filter, and these raise anything.
        except Exception as error:
            reasons += [f"{name} cannot be made: {reason}" for reason in of_error(error)]
        else:
            continue
        unusable.add(name)
    return reasons, unusable


class _Usable(Dict[str, Any]):
    """Variables whose value can be relied on; any other reads as nothing, so that one mistake is told once."""

    def __init__(self, variables: Mapping[str, Any], unusable: Set[str]) -> None:
        super().__init__()
        self._variables = variables
        self._unusable = unusable

    def __missing__(self, name: str) -> Any:
        if name in self._unusable or name not in self._variables:
            return ""
        try:
            return self._variables[name]
        # Its reason is among those of `_kinds`, whatever it is.
        except Exception:
            return ""


def _contradictions(has: Mapping[str, Any]) -> Iterator[str]:
    """Values that are good alone and not together."""
    package = "rbln_driver_package"
    if has[f"{package}_file"] and has[f"{package}_url"]:
        yield f"{package}_file and {package}_url are both set: leave one out"
    for source in (f"{package}_file", f"{package}_url"):
        if has[source] and not has[f"{package}_sha256"]:
            yield f"{source} is set without {package}_sha256: add the digest, so that no other package is installed"
    if has["triton_image_base_archive"] and not has["triton_image_base_archive_sha256"]:
        yield "triton_image_base_archive is set without triton_image_base_archive_sha256: add `sha256sum` of the archive"
    for login in ("npufleet_artefact", "triton_image_index", "triton_image_registry", "triton_image_delivery"):
        if bool(has[f"{login}_user"]) != bool(has[f"{login}_password"]):
            there, gone = ("user", "password") if has[f"{login}_user"] else ("password", "user")
            yield f"{login}_{there} is set without {login}_{gone}: set both, or none for a server without a login"
    user, password = has["triton_image_index_user"], has["triton_image_index_password"]
    if user and password:
        python = str(((has["npufleet_row"] or {}).get("triton") or {}).get("python") or "3.12")
        flaw = image_supply.login_flaw(str(user), str(password), python)
        if flaw:
            yield f"triton_image_index_user and triton_image_index_password cannot be given to pip: {flaw}. Choose another login."
    for name in ("npufleet_http_proxy", "npufleet_https_proxy", "npufleet_no_proxy"):
        if UNQUOTED.search("".join(map(str, has[name]))):
            yield f"{name} has a quote, a space or a control character: write it encoded, as %27 for a quote"
    repository = str(has["triton_image_delivery_repository"])
    if repository and not REPOSITORY.fullmatch(repository):
        yield (
            f"triton_image_delivery_repository is {replace_logins(repository, '***@')}: write it as "
            "registry.example.com:5000/npufleet/triton, in small letters, without a scheme, a login, a tag or a digest, and one of "
            "Docker Hub without docker.io/"
        )
    elif repository and repository == has["triton_image_name"]:
        yield f"triton_image_delivery_repository and triton_image_name are both {repository}: give the latter another value"
    ports: Dict[str, List[str]] = {}
    for name in ("npufleet_http_port", "npufleet_grpc_port", "npufleet_metrics_port"):
        ports.setdefault(str(has[name]), []).append(name)
    for port, names in ports.items():
        if port and len(names) > 1:
            yield "{} are all {}: give each a port of its own".format(" and ".join(names), port)
    if str(has["triton_server_stop_timeout"]).isdigit() and str(has["triton_server_exit_timeout"]).isdigit():
        engine, server = int(has["triton_server_stop_timeout"]), int(has["triton_server_exit_timeout"])
        if engine <= server:
            yield (
                f"triton_server_stop_timeout is {engine} and triton_server_exit_timeout {server}: "
                "the engine's has to be longer, or it kills a server that is still ending its work"
            )
    if has["triton_server_allow_metrics"] is False and (has["groups"] or {}).get("monitoring_hosts"):
        yield "triton_server_allow_metrics is off and there are monitoring_hosts: turn it on, or take the hosts out of that group"
    for name in ("npufleet_http_proxy", "npufleet_https_proxy"):
        if has[name] and not str(has[name]).startswith(("http://", "https://")):
            yield f"{name} has no scheme: write it as http://proxy.example.com:3128"
    if has["npufleet_ca_file"] and not os.path.isfile(str(has["npufleet_ca_file"])):
        yield f"npufleet_ca_file is {has['npufleet_ca_file']}, and there is no such file on the controller: give its path there"


def _groups(has: Mapping[str, Any]) -> Iterator[str]:
    """Hosts in no group, groups with a slip in their name, and models whose hosts nobody knows."""
    groups: Mapping[str, List[str]] = has["groups"] or {}
    own = str(has["npufleet_group"])
    known = (own, MONITORING)
    lost = sorted(set(groups.get("ungrouped", [])) - {"localhost"})
    if lost:
        yield "{} in no group: put {} into {}".format(
            ", ".join(lost) + (" is" if len(lost) == 1 else " are"), "it" if len(lost) == 1 else "them", " or ".join(known)
        )
    slips = {
        name: near[0]
        for name in sorted(set(groups) - set(known) - {"all", "ungrouped"})
        for near in [difflib.get_close_matches(name, known, n=1, cutoff=0.8)]
        if near and not groups.get(near[0])
    }
    for name, meant in slips.items():
        yield f"there is a group {name} and no host in {meant}: rename it"
    here = has["inventory_hostname"]
    if here and not bounds.HOST_NAME.fits(here):
        expected = bounds.HOST_NAME.expected
        yield f"the name of this host is {short(ascii(here), 60)}, expected {expected}. Rename it in the inventory."
    if groups and not slips and here not in lost and not any(here in groups.get(name, []) for name in known):
        yield f"{here} is in no group {' or '.join(known)}: give npufleet_group on the command line, where every play sees it"
    hosts = set(groups.get("all", []))
    fleet = set(groups.get(own, []))
    for entry in (model for model in has["triton_models"] or [] if model.get("hosts")):
        places = entry["hosts"]
        unknown = [place for place in places if place not in hosts and place not in groups]
        if unknown:
            yield "model {}: `hosts` names {}, which is no host and no group of this inventory: correct it".format(
                entry["name"], ", ".join(unknown)
            )
        elif groups and not any(fleet & ({place} | set(groups.get(place, []))) for place in places):
            yield "model {}: is placed nowhere, none of {} is in {}: name hosts that have NPUs".format(
                entry["name"], ", ".join(places), own
            )
