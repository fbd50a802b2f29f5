"""What hosts have in common is computed by the first of them: Ansible gives each a process of its own for each task.

It lies in the run's own directory, which no other user reads and which goes with the run.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import pickle
import re
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional, Set, Tuple, TypeVar

from ansible.errors import AnsibleError
from ansible.template import is_trusted_as_template
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

Made = TypeVar("Made")
# For a variable that is not there, which no JSON is; where the values have what is no variable
ABSENT, ALSO = "", ""
# Words of a template that may be another one on each host, or each time
OF_ITS_OWN = {"hostvars", "vars", "lookup", "query", "q", "now", "random", "shuffle", "include", "import", "extends"}
WORDS = re.compile(r"[A-Za-z_]\w*")
# A login in an address
LOGIN = re.compile(r"://[^/]*@")
# Values of one template that are kept, as a variable that is another one on each host is nothing to look for
KEPT = 4


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
    with _kept(f"{moment}.{what}") as (entries, keep):
        for read, made in entries:
            if read == _values(variables, list(read), also):
                found: Made = made
                return found
        noted = _Noted(variables)
        new = make(noted)
        values = _values(variables, noted.names, also)
        if values is not None:
            keep(values, new)
        return new


class Origins:
    """Of variables as they were given, before any template of them was: what a value follows from.

    `secret` says of a name whether its value is for nobody's eyes, `made` from which variables one follows instead of its template.
    `foreign` are the names whose templates are not this collection's, whose lookups read nothing but files of the controller.
    """

    def __init__(
        self,
        variables: Mapping[str, Any],
        secret: Callable[[str], bool],
        made: Mapping[str, Collection[str]],
        foreign: Collection[str],
    ) -> None:
        self._given = dict(variables)
        self._secret, self._made, self._foreign = secret, made, frozenset(foreign)
        # By name its text, and the words of its templates
        self._known: Dict[str, Tuple[str, Set[str]]] = {}

    def of(self, name: str) -> Optional[str]:
        """A digest of a variable and of all that its templates name; None where equal ones may have other values, or are secret."""
        found: Dict[str, str] = {}
        left: List[str] = [name]
        while left:
            entry = left.pop()
            if entry in found:
                continue
            if entry in OF_ITS_OWN:
                return None
            if entry not in self._given:
                found[entry] = ABSENT
                continue
            try:
                text, words = self._told(entry)
            except TypeError:
                return None
            if LOGIN.search(text) or (self._secret(entry) and self._given[entry]):
                return None
            found[entry] = text
            left += words
        return hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()

    def _told(self, name: str) -> Tuple[str, Set[str]]:
        if name not in self._known:
            words: Set[str] = set()
            text = _text(self._given[name], words)
            if name not in self._foreign:
                words.discard("lookup")
            self._known[name] = text, set(self._made.get(name, words))
        return self._known[name]


def of_template(moment: str, name: str, origin: Optional[str], make: Callable[[], Any]) -> Any:
    """The value of a template: another host's of the same task, where it follows from the same (Origins.of)."""
    if not moment or origin is None:
        return make()
    with _kept(f"{moment}.of.{name}") as (entries, keep):
        values = dict(entries)
        if origin in values:
            return values[origin]
        if len(values) < KEPT:
            new = make()
            keep(origin, new)
            return new
    # Each host has its own, and nobody waits for that of another
    return make()


def _text(value: Any, words: Set[str]) -> str:
    """A text that tells any two values apart, and whether each string of them is a template; `words` takes those of templates.

    Raises TypeError of one that has no such text, such as one that is still encrypted.
    """
    if isinstance(value, str):
        trusted = is_trusted_as_template(value)
        if trusted and ("{{" in value or "{%" in value):
            words.update(WORDS.findall(value))
        return json.dumps([trusted, value])
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(key, words)}:{_text(entry, words)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_text(entry, words) for entry in value) + "]"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    raise TypeError(f"no text tells {type(value)} apart")


@contextmanager
def _kept(path: str) -> Iterator[Tuple[Iterator[Tuple[Any, Any]], Callable[[Any, Any], None]]]:
    """(what was kept there, by what it follows from; keeps one more). Who comes while it is made waits for it."""
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)

        def keep(origin: Any, made: Any) -> None:
            # What cannot be handed to another process is each one's own
            with suppress(pickle.PicklingError, TypeError, AttributeError):
                file.write(pickle.dumps((origin, made)))

        yield _entries(file.read()), keep


def _entries(raw: bytes) -> Iterator[Tuple[Any, Any]]:
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
