"""Results that are read from files of the controller once for all hosts of a task.

Ansible runs each host of a task in a process of its own. The first process computes the result and leaves it in the directory of
the run, which only its user can read and which Ansible removes at the end; the other processes take it from there.
"""

from __future__ import annotations

import fcntl
import io
import json
import pickle
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from typing import Any, Callable, Collection, Dict, Iterator, Optional, Set, Tuple, TypeVar

Made = TypeVar("Made")
# The text of a variable that is not set (no JSON text is empty), and the key of the value that is not a variable
ABSENT, ALSO = "", ""


class _Recorded(Mapping[str, Any]):
    """Variables that record the names of those that were read."""

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
        raise TypeError("two hosts never have all variables in common: read variables by name")

    def __len__(self) -> int:
        return len(self._variables)


def in_common(variables: Mapping[str, Any], what: str, make: Callable[[Mapping[str, Any]], Made], also: Any = None) -> Made:
    """Return `make(variables)`, or what it returned for another host of the same task whose variables are equal.

    Two hosts share a result if `also` and each variable that `make` read are equal on both. The files that it reads are read once
    for them. Exceptions are not kept.
    """
    moment = getattr(variables, "moment", "")
    if not moment:
        return make(variables)
    with _kept(f"{moment}.{what}") as (entries, keep):
        for read, made in entries:
            if read == _values(variables, list(read), also):
                found: Made = made
                return found
        recorded = _Recorded(variables)
        new = make(recorded)
        values = _values(variables, recorded.names, also)
        if values is not None:
            keep(values, new)
        return new


@contextmanager
def _kept(path: str) -> Iterator[Tuple[Iterator[Tuple[Any, Any]], Callable[[Any, Any], None]]]:
    """Yield the kept (values, result) pairs of a file and a function that keeps another pair. Other processes wait meanwhile."""
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)

        def keep(values: Any, made: Any) -> None:
            # A result that cannot be pickled is computed by each process.
            with suppress(pickle.PicklingError, TypeError, AttributeError):
                file.write(pickle.dumps((values, made)))

        yield _entries(file.read()), keep


def _entries(raw: bytes) -> Iterator[Tuple[Any, Any]]:
    source = io.BytesIO(raw)
    while source.tell() < len(raw):
        try:
            yield pickle.load(source)
        except (EOFError, pickle.UnpicklingError):
            # The process that wrote this entry was killed.
            return


def _values(variables: Mapping[str, Any], names: Collection[str], also: Any) -> Optional[Dict[str, str]]:
    """Return the JSON text of each variable; None if one has no such text, or is refused when it is read."""
    try:
        there = {name: variables[name] for name in names if name != ALSO and name in variables}
        found = {name: json.dumps(value, sort_keys=True) for name, value in {**there, ALSO: also}.items()}
        return {**dict.fromkeys(names, ABSENT), **found}
    # Whatever a template or a value raises: what is not shared is computed for each host.
    except Exception:
        return None
