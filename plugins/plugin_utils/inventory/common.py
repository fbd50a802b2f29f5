"""What hosts have in common is computed by the first of them: Ansible gives each a process of its own for each task."""

from __future__ import annotations

import fcntl
import io
import json
import pickle
from contextlib import suppress
from typing import Any, Callable, Collection, Dict, Iterator, Mapping, Optional, Set, Tuple, TypeVar

from ansible.errors import AnsibleError
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

Made = TypeVar("Made")
# For a variable that is not there, which no JSON is; where the values have what is no variable
ABSENT, ALSO = "", ""


class _Noted(Mapping[str, Any]):
    """Variables, and the names of those that were read."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables
        self.names: Set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return self._variables[name]

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return name in self._variables

    def __iter__(self) -> Iterator[str]:
        raise TypeError("all variables of a host are never those of another: read them by name")

    def __len__(self) -> int:
        return len(self._variables)


def in_common(variables: Mapping[str, Any], what: str, make: Callable[[Mapping[str, Any]], Made], also: Any = None) -> Made:
    """What `make` computes of variables, or what it has computed of equal ones for another host of the same task.

    Two hosts have it in common where `also`, and each variable that was read for it, is the same on both. The files that it reads
    are read once for them. What it raises is not kept.
    """
    moment = getattr(variables, "moment", "")
    if not moment:
        return make(variables)
    with open(f"{moment}.{what}", "a+b") as kept:
        # Who comes while it is made waits for it
        fcntl.flock(kept, fcntl.LOCK_EX)
        kept.seek(0)
        for read, made in _entries(kept.read()):
            if read == _values(variables, list(read), also):
                found: Made = made
                return found
        noted = _Noted(variables)
        new = make(noted)
        values = _values(variables, noted.names, also)
        if values is not None:
            # What cannot be handed to another process is each one's own
            with suppress(pickle.PicklingError, TypeError, AttributeError):
                kept.write(pickle.dumps((values, new)))
        return new


def _entries(raw: bytes) -> Iterator[Tuple[Dict[str, str], Any]]:
    source = io.BytesIO(raw)
    while source.tell() < len(raw):
        try:
            yield pickle.load(source)
        except (EOFError, pickle.UnpicklingError):
            # Of a process that was killed as it wrote
            return


def _values(variables: Mapping[str, Any], names: Collection[str], also: Any) -> Optional[Dict[str, str]]:
    """Texts that tell any two values of a variable apart; None where one has no such text, or is refused when it is read."""
    try:
        there = {name: variables[name] for name in names if name != ALSO and name in variables}
        found = {name: json.dumps(value, sort_keys=True) for name, value in {**there, ALSO: also}.items()}
        return {**dict.fromkeys(names, ABSENT), **found}
    except (Refusal, AnsibleError, TypeError, ValueError):
        return None
