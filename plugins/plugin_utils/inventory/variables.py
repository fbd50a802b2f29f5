"""The variables of a host as the concerns read them, and the desired state made from them. Controller only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Callable, Collection, Dict, Iterator, List, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import secret
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import of_concern
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.engine import proxy_reasons
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import findings, values
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.common import in_common
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.reasons import collected
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import release_rows
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.manifest import Manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

REQUIRED = {
    "rbln_release": "the row of files/releases.yml that this fleet runs",
    "npufleet_npus": "how many NPUs (/dev/rbln*) the host has",
    "npufleet_card": "the type of its cards, such as RBLN-CA22",
    "triton_models": "the list of models to serve",
}
ROWS = "npufleet_release_rows"
# These two hold no templates of ours
NO_TEMPLATES = {"hostvars", "groups"}


def validate(variables: Mapping[str, Any], concerns: List[str]) -> None:
    """Refuse, all reasons at once, variables from which nothing can be wanted."""
    unknown = sorted(set(concerns) - set(CONCERNS))
    if unknown:
        raise Refusal([f"there is no concern {', '.join(unknown)}: name some of {', '.join(CONCERNS)}"])
    crooked: List[str] = []
    with collected(crooked):
        crooked += proxy_reasons(variables)
    if concerns == ["monitoring"]:
        if crooked:
            raise Refusal(crooked)
        return
    reasons = [
        f"{name} is not set: it names {what}; set it in the inventory" for name, what in REQUIRED.items() if name not in variables
    ]
    if not reasons:
        with collected(reasons):
            for reason in _against(variables):
                reasons.append(reason)
    if reasons or crooked:
        raise Refusal(misfits(variables) + [reason for reason in [*reasons, *crooked] if reason not in misfits(variables)])


def _against(variables: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with variables that all concerns build on, each of which is there."""
    rows = variables["npufleet_release_rows"]
    release, card = variables["rbln_release"], variables["npufleet_card"]
    if release not in rows:
        yield "rbln_release is {}, there are rows for {}: name one of them, or add a row under npufleet_extra_releases".format(
            release, ", ".join(sorted(rows))
        )
    elif card not in rows[release]["cards"]:
        yield "npufleet_card is {}, release {} supports {}: choose a release for this card".format(
            card, release, ", ".join(rows[release]["cards"])
        )
    if variables["npufleet_npus"] < 1:
        yield f"npufleet_npus is {variables['npufleet_npus']}, wanted a number of 1 or more"
    if not variables.get("triton_server_allow_http", True):
        yield "triton_server_allow_http is off: what is served is read back over HTTP, so leave it on"
    names = [entry["name"] for entry in manifest.placed_here(variables)]
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        yield "triton_models lists {} more than once for the same hosts".format(", ".join(doubles))


def misfits(variables: Mapping[str, Any]) -> List[str]:
    """What of these variables is not of its type."""
    return variables.misfits if isinstance(variables, Templated) else []


def survey(
    variables: Mapping[str, Any], concerns: List[str], now: bool = False, seal: bool = True
) -> Tuple[Dict[str, Any], Dict[str, Manifest], List[str]]:
    """(desired state by concern, manifests by model, reasons); a concern that nothing can be wanted of is left out.

    `now` is for a proof; without `seal` secrets are in the clear. Raises Refusal where the variables that all concerns build on are
    not there.
    """
    validate(variables, concerns)
    wanted: Dict[str, Any] = {}
    found: Dict[str, Manifest] = {}
    reasons = list(misfits(variables))
    if {"models", "server"} & set(concerns):
        with collected(reasons):
            found, more = manifests(variables)
            reasons += more
    cloud: Sequence[str] = ()
    if "server" in concerns:
        with collected(reasons):
            cloud = manifest.cloud_models(variables)
    context = Context(
        manifests=found,
        cloud_models=cloud,
        # Reads every file of the backends, and two concerns want it
        image=lru_cache(maxsize=None)(lambda: in_common(variables, "image", of_concern("image").desired)),
        checks=lambda: inputs.digest(variables, checks_digest(variables)),
        now=now,
    )
    key = secret.new_key()
    for concern in concerns:
        with collected(reasons, about=concern):
            part = of_concern(concern)
            made = context.image() if concern == "image" else part.desired(variables, context)
            wanted[concern] = part.sealed(made, key) if seal and CONCERNS[concern].sealed else made
    return wanted, found, list(dict.fromkeys(reasons))


def manifests(variables: Mapping[str, Any]) -> Tuple[Dict[str, Manifest], List[str]]:
    """Manifests of all models placed on this host, and the reasons why some cannot be."""
    placed = manifest.placed_here(variables)
    return in_common(variables, "models", lambda some: manifest.manifests(some, placed), placed)


def checks_digest(variables: Mapping[str, Any]) -> str:
    """The digest of the files that checks of models placed on this host are made of."""
    models = [str(entry["name"]) for entry in manifest.placed_here(variables)]
    return in_common(variables, "checks", lambda some: inputs.files_digest(some, models), models)


def desired(
    variables: Mapping[str, Any], concerns: List[str], now: bool = False, seal: bool = True
) -> Tuple[Dict[str, Any], Dict[str, Manifest]]:
    """(desired state by concern, manifests by model). Raises Refusal with the reasons of all concerns."""
    wanted, found, reasons = survey(variables, concerns, now, seal)
    if reasons:
        raise Refusal(reasons)
    return wanted, found


@cache
def inventory_specs() -> Dict[str, Mapping[str, Any]]:
    """The specs of every role of this collection, by variable."""
    return findings.specs(os.path.join(COLLECTION, "roles"))


def rows(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """What the default of npufleet_release_rows says, without reading the file once more for each host."""
    return {**release_rows(), **variables["npufleet_extra_releases"]}


class Templated(Mapping[str, Any]):
    """Variables of a host over the defaults of all roles, each templated when it is first read, and of its type.

    `raw` is what `template` looks names up in. A value takes the place of its template there, so that what is made of it does
    not make it anew. A value that is not of the type that the roles' specs say is refused whenever somebody reads it. Those of
    `given`, the names that are not the roles' own, are looked at beforehand where they are values already: `misfits` is every
    reason against them. What is `made` here is not made by its template. `moment` is a path that only the processes of a run know
    which are at one task with one batch of hosts (common.py).
    """

    def __init__(
        self,
        raw: Dict[str, Any],
        template: Any,
        given: Collection[str] = (),
        made: Mapping[str, Callable[[Mapping[str, Any]], Any]] = MappingProxyType({}),
        moment: str = "",
    ) -> None:
        self.moment = moment
        self._raw = raw
        self._template = template
        self._made = made
        self._done = set(NO_TEMPLATES)
        self.misfits: List[str] = []
        for name in sorted(entry for entry in given if entry in inventory_specs()):
            if _is_value(raw[name]):
                try:
                    self[name]
                except Refusal as refusal:
                    self.misfits += refusal.reasons

    def __getitem__(self, name: str) -> Any:
        if name not in self._done:
            if name in self._made:
                # Hundreds of values with a type each: they are validated once for all hosts.
                value = in_common(self, name, lambda variables: _typed(name, self._made[name](variables)))
            else:
                value = _typed(name, self.untyped(name))
            self._raw[name] = value
            self._done.add(name)
        return self._raw[name]

    def untyped(self, name: str) -> Any:
        """Return a value without a check of its type."""
        return self._template(self._raw[name])

    def __contains__(self, name: object) -> bool:
        return name in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


def _typed(name: str, value: Any) -> Any:
    """Return the value in the type that the specs of the roles require. Raises Refusal if it has another type."""
    return values.converted(name, value, inventory_specs()[name]) if name in inventory_specs() else value


def _is_value(raw: Any) -> bool:
    """Whether there is nothing to be templated or decrypted: reading it costs nothing, and asks nobody."""
    if isinstance(raw, Mapping):
        return all(_is_value(part) for part in raw.values())
    if isinstance(raw, (list, tuple)):
        return all(_is_value(part) for part in raw)
    return "{{" not in raw and "{%" not in raw if isinstance(raw, str) else raw is None or isinstance(raw, (int, float, date))
