# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The typed variables of a host, and its desired state computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import lru_cache
from typing import Any, Collection, Dict, Iterator, List, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import secret
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS, NPU_HOSTS, groups_of
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import balancer_check, inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import of_concern
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.engine import proxy_reasons
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import lock_file, values
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.reasons import collected
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.shared_results import shared_result
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import release_rows
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.manifest import Manifest

# {variable: its meaning for messages}
REQUIRED = {
    "rbln_release": "the row of files/releases.yml that this fleet runs",
    "npufleet_npus": "the number of NPUs (/dev/rbln*) on the host",
    "npufleet_card": "the type of its cards, such as RBLN-CA22",
    "triton_models": "the list of models to serve",
}
# The default of this variable is not a template, because a template would read the file of the rows for each host.
ROWS = "npufleet_release_rows"


def validate(variables: Mapping[str, Any], concerns: List[str]) -> None:
    """Raise Refusal with all reasons if variables that all concerns need are missing or contradict each other."""
    unknown = sorted(set(concerns) - set(CONCERNS))
    if unknown:
        raise Refusal(f"concerns contains {', '.join(unknown)}, expected some of {', '.join(CONCERNS)}")
    reasons: List[str] = []
    if any(_needs_npus(variables, name) for name in concerns):
        missing = [name for name in REQUIRED if name not in variables]
        reasons += [f"{name} is not set, expected {REQUIRED[name]}. Set it in the inventory." for name in missing]
        if not missing:
            with collected(reasons):
                reasons += _required_errors(variables)
    with collected(reasons):
        reasons += proxy_reasons(variables)
    if reasons:
        raise Refusal(list(dict.fromkeys([*getattr(variables, "type_errors", []), *reasons])))


def _needs_npus(variables: Mapping[str, Any], concern: str) -> bool:
    """Return True if a concern of this host needs the variables of hosts with NPUs."""
    groups = CONCERNS[concern].groups
    names, npu_group = variables.get("group_names", []), str(variables.get("npufleet_group", NPU_HOSTS))
    return groups == (NPU_HOSTS,) or (NPU_HOSTS in groups and NPU_HOSTS in groups_of(names, npu_group))


def _required_errors(variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of the values of the required variables. The caller has checked that all of them are set."""
    all_rows = variables[ROWS]
    release, card = variables["rbln_release"], variables["npufleet_card"]
    if release not in all_rows:
        yield (
            f"rbln_release is {release}, expected one of {', '.join(sorted(all_rows))}. Correct it, or add a row to "
            "npufleet_extra_releases."
        )
    elif card not in all_rows[release]["cards"]:
        supported = ", ".join(all_rows[release]["cards"])
        yield f"npufleet_card is {card}, expected one of {supported} for release {release}. Choose a release for this card."
    if not variables.get("triton_server_allow_http", True):
        yield "triton_server_allow_http is off, expected on, because the served models are read over HTTP. Turn it on."
    names = [entry["name"] for entry in manifest.placed_here(variables)]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        yield f"triton_models contains {', '.join(duplicates)} several times for the same hosts. Remove all but one."
    yield from lock_file.errors(variables)


def collect_desired(
    variables: Mapping[str, Any], concerns: List[str], proof: bool = False, seal: bool = True
) -> Tuple[Dict[str, Any], Dict[str, Manifest], List[str]]:
    """Return (desired state by concern, manifests by model, reasons). A concern whose state cannot be computed is absent.

    If `proof` is true, the state is for the proof of a change. If `seal` is true, digests replace secrets. Raises Refusal.
    """
    validate(variables, concerns)
    states: Dict[str, Any] = {}
    by_model: Dict[str, Manifest] = {}
    reasons = list(getattr(variables, "type_errors", []))
    if {"models", "server"} & set(concerns):
        with collected(reasons):
            by_model, model_errors = manifests(variables)
            reasons += model_errors
    cloud: Sequence[str] = ()
    if "server" in concerns:
        with collected(reasons):
            cloud = manifest.cloud_models(variables)
    context = Context(
        manifests=by_model,
        cloud_models=cloud,
        # Two concerns need this state. Its computation reads all files of the backends, so the state is computed only once.
        image=lru_cache(maxsize=None)(lambda: shared_result(variables, "image", of_concern("image").desired)),
        checks=lambda: inputs.digest(variables, checks_digest(variables)),
        balancer_check=lambda models: balancer_check.request(variables, models),
        proof=proof,
    )
    key = secret.new_key()
    for concern in concerns:
        with collected(reasons, about=concern):
            module = of_concern(concern)
            state = context.image() if concern == "image" else module.desired(variables, context)
            states[concern] = module.sealed(state, key) if seal and CONCERNS[concern].sealed else state
    return states, by_model, list(dict.fromkeys(reasons))


def manifests(variables: Mapping[str, Any]) -> Tuple[Dict[str, Manifest], List[str]]:
    """Return (the manifests of the models on this host by name, the errors of the models)."""
    placed = manifest.placed_here(variables)
    return shared_result(variables, "models", lambda host: manifest.manifests(host, placed), placed)


def checks_digest(variables: Mapping[str, Any]) -> str:
    """Return the digest of the check files of this host's models, and of the arrays that these files name."""
    models = [str(entry["name"]) for entry in manifest.placed_here(variables)]
    return shared_result(variables, "checks", lambda host: inputs.files_digest(host, models), models)


def desired(
    variables: Mapping[str, Any], concerns: List[str], proof: bool = False, seal: bool = True
) -> Tuple[Dict[str, Any], Dict[str, Manifest]]:
    """Return (desired state by concern, manifests by model). Raises Refusal with the reasons of all concerns."""
    states, by_model, reasons = collect_desired(variables, concerns, proof, seal)
    if reasons:
        raise Refusal(reasons)
    return states, by_model


def rows(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the default of npufleet_release_rows."""
    return {**release_rows(), **variables["npufleet_extra_releases"]}


class Templated(Mapping[str, Any]):
    """The variables of a host, with the defaults of all roles. The first read of a variable templates and converts its value.

    `raw` has a template or a plain value for each variable. The converted value replaces the raw value. `template` evaluates a
    template, and looks names up in `raw`. `names` are the variables that the inventory or the command line sets. Reading a value of
    a wrong type raises Refusal. `type_errors` are the errors of the values of `names` that are no templates. `results_prefix` is
    the prefix of the files with shared results (shared_results.py). This prefix is equal for all hosts of a task and a batch.
    """

    def __init__(self, raw: Dict[str, Any], template: Any, names: Collection[str] = (), results_prefix: str = "") -> None:
        self.results_prefix = results_prefix
        self._raw = raw
        self._template = template
        self._names = names
        # These variables of Ansible are not templated.
        self._converted = {"hostvars", "groups"}
        self.type_errors: List[str] = []
        for name in sorted(entry for entry in names if entry in inventory_specs()):
            if _is_value(raw[name]):
                try:
                    self[name]
                except Refusal as refusal:
                    self.type_errors += refusal.reasons

    def __getitem__(self, name: str) -> Any:
        if name not in self._converted:
            if name == ROWS and name not in self._names:
                # The value has hundreds of parts, so it is converted once for all hosts.
                value = shared_result(self, name, lambda variables: _typed(name, rows(variables)))
            else:
                value = _typed(name, self.untyped(name))
            self._raw[name] = value
            self._converted.add(name)
        return self._raw[name]

    def untyped(self, name: str) -> Any:
        """Return a templated value without conversion to its type."""
        return self._template(self._raw[name])

    def __contains__(self, name: object) -> bool:
        return name in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


def _typed(name: str, value: Any) -> Any:
    """Return the value, converted to the type in the specs of the roles. Raises Refusal if that is impossible."""
    return values.converted(name, value, inventory_specs()[name]) if name in inventory_specs() else value


def _is_value(raw: Any) -> bool:
    """Return True if a value contains no templates and no encrypted parts."""
    if isinstance(raw, Mapping):
        return all(_is_value(part) for part in raw.values())
    if isinstance(raw, (list, tuple)):
        return all(_is_value(part) for part in raw)
    return "{{" not in raw and "{%" not in raw if isinstance(raw, str) else raw is None or isinstance(raw, (int, float, date))
