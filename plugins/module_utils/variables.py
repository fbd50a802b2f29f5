"""The variables of a host as the concerns read them, and the desired state made from them. Controller only."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any, Callable, Collection, Dict, FrozenSet, Iterator, List, Mapping, Tuple

from ansible.errors import AnsibleUndefinedVariable
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.npufleet.triton.plugins.module_utils import check_sources, manifest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import (
    driver,
    engine,
    image,
    models,
    monitoring,
    probe_timer,
    server,
    watchdog,
)
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

# Group of a host -> concerns that it has, in the order in which they are applied.
BY_GROUP = {
    "npu_hosts": ("driver", "engine", "image", "models", "server", "watchdog", "probe"),
    "monitoring_hosts": ("monitoring",),
}
REQUIRED = {
    "rbln_release": "the row of files/releases.yml that this fleet runs",
    "npufleet_npus": "how many NPUs (/dev/rbln*) the host has",
    "npufleet_card": "the type of its cards, such as RBLN-CA22",
    "triton_models": "the list of models to serve",
}


def concerns_of(groups: List[str]) -> List[str]:
    """The concerns of a host in these groups."""
    return [concern for group, concerns in BY_GROUP.items() if group in groups for concern in concerns]


def validate(variables: Mapping[str, Any], concerns: List[str]) -> None:
    """Refuse, all reasons at once, variables from which nothing can be wanted."""
    known = [concern for group in BY_GROUP.values() for concern in group]
    unknown = sorted(set(concerns) - set(known))
    if unknown:
        raise Refusal([f"there is no concern {', '.join(unknown)}: name some of {', '.join(known)}"])
    if concerns == ["monitoring"]:
        return
    reasons = [
        f"{name} is not set: it names {what}; set it in the inventory" for name, what in REQUIRED.items() if name not in variables
    ]
    if not reasons and not isinstance(variables["rbln_release"], str):
        reasons.append(f"rbln_release is the number {variables['rbln_release']}: quote it, or 26.10 becomes 26.1")
    models = variables.get("triton_models")
    if not reasons and not (isinstance(models, list) and all(isinstance(one, Mapping) for one in models)):
        reasons.append(f"triton_models is {models!r}, wanted a list of entries such as {{name: digits}}")
    if not reasons:
        rows = variables["npufleet_release_rows"]
        release = str(variables["rbln_release"])
        if release not in rows:
            reasons.append(
                "rbln_release is {}, there are rows for {}: name one of them, or add a row under npufleet_extra_releases".format(
                    release, ", ".join(sorted(rows))
                )
            )
        elif variables["npufleet_card"] not in rows[release]["cards"]:
            reasons.append(
                "npufleet_card is {}, release {} supports {}: choose a release for this card".format(
                    variables["npufleet_card"], release, ", ".join(rows[release]["cards"])
                )
            )
        if not str(variables["npufleet_npus"]).isdigit() or int(variables["npufleet_npus"]) < 1:
            reasons.append(f"npufleet_npus is {variables['npufleet_npus']}, wanted a number of 1 or more")
        if not variables.get("triton_server_allow_http", True):
            reasons.append("triton_server_allow_http is off: what is served is read back over HTTP, so leave it on")
        mode = variables.get("triton_server_model_control_mode")
        if mode not in ("none", "poll", "explicit"):
            reasons.append(f"triton_server_model_control_mode is {mode}, wanted none, poll or explicit")
        here = manifest.placed_here(variables["triton_models"], variables["inventory_hostname"], variables["group_names"])
        names = [entry.get("name") for entry in here]
        doubles = sorted({str(name) for name in names if names.count(name) > 1})
        if doubles:
            reasons.append("triton_models lists {} more than once for the same hosts".format(", ".join(doubles)))
        if None in names:
            reasons.append("triton_models has an entry without a name")
    if reasons:
        raise Refusal(reasons)


def survey(
    variables: Mapping[str, Any], concerns: List[str], now: bool = False
) -> Tuple[Dict[str, Any], Dict[str, Dict[str, Any]], List[str]]:
    """(desired state by concern, manifests by model, reasons); a concern that nothing can be wanted of is left out.

    `now` is for a proof. Raises Refusal where the variables that all concerns build on are not there.
    """
    validate(variables, concerns)
    wanted: Dict[str, Any] = {}
    found: Dict[str, Dict[str, Any]] = {}
    reasons: List[str] = []
    if {"models", "server"} & set(concerns):
        found, reasons = manifest.manifests(variables)
    # Reads every file of the backends, and both concerns want it
    pinned = lru_cache(maxsize=None)(lambda: image.desired(variables))
    makers: Dict[str, Callable[[], Dict[str, Any]]] = {
        "driver": lambda: driver.desired(variables),
        "engine": lambda: engine.desired(variables),
        "image": pinned,
        "models": lambda: models.desired(variables, found),
        "server": lambda: server.desired(variables, pinned(), found, manifest.cloud_models(variables)),
        "watchdog": lambda: watchdog.desired(variables),
        "probe": lambda: probe_timer.desired(
            variables, check_sources.digest(variables) if variables["inference_check_probe"] else None
        ),
        "monitoring": lambda: monitoring.desired(variables, now),
    }
    for concern in concerns:
        try:
            wanted[concern] = makers[concern]()
        except Refusal as refusal:
            reasons += refusal.reasons
        except AnsibleUndefinedVariable as error:
            reasons.append(f"{error.message}: set it in the inventory")
        except (OSError, TypeError, ValueError, AttributeError) as error:
            reasons.append(f"{concern}: a variable has a value of another kind than it should: {error}")
    return wanted, found, list(dict.fromkeys(reasons))


def desired(
    variables: Mapping[str, Any], concerns: List[str], now: bool = False
) -> Tuple[Dict[str, Any], Dict[str, Dict[str, Any]]]:
    """(desired state by concern, manifests by model). Raises Refusal with the reasons of all concerns."""
    wanted, found, reasons = survey(variables, concerns, now)
    if reasons:
        raise Refusal(reasons)
    return wanted, found


def switches(defaults: Mapping[str, Any]) -> FrozenSet[str]:
    """Names of the variables that are true or false by default."""
    return frozenset(name for name, value in defaults.items() if isinstance(value, bool))


class Templated(Mapping[str, Any]):
    """Variables of a host over the defaults of all roles, each templated when it is first read.

    `raw` is what `template` looks names up in. A value takes the place of its template there, so that what is made of it does
    not make it anew. Of `on_or_off` (see `switches`) a text is what it says, as `-e name=false` gives one;
    what says neither is left for preflight to refuse.
    """

    def __init__(self, raw: Dict[str, Any], template: Any, on_or_off: Collection[str] = ()) -> None:
        self._raw = raw
        self._template = template
        self._on_or_off = on_or_off
        # These two hold no templates of ours.
        self._done = {"hostvars", "groups"}

    def __getitem__(self, name: str) -> Any:
        if name not in self._done:
            value = self._template(self._raw[name])
            if name in self._on_or_off:
                with suppress(TypeError):
                    value = boolean(value)
            self._raw[name] = value
            self._done.add(name)
        return self._raw[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)
