# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Results that are computed once for all hosts of a task.

Ansible runs each host of a task in its own process. The first process computes a result and stores it in the temporary directory
of the run. The other processes load the result from this directory. Only the user of the run can read the directory, and Ansible
removes it at the end of the run.
"""

from __future__ import annotations

import fcntl
import io
import json
import pickle
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from typing import Any, Callable, Collection, Dict, Iterator, Optional, Set, Tuple, TypeVar

Result = TypeVar("Result")
# The recorded value of a variable that is not set. Every other recorded value is a JSON text, which is never empty.
ABSENT = ""
# The argument `inputs` is recorded in the same dictionary as the variables, under this key. No variable has an empty name.
INPUTS = ""


class _RecordingVariables(Mapping[str, Any]):
    """A map of variables that records the names that were read."""

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


def shared_result(
    variables: Mapping[str, Any], name: str, compute: Callable[[Mapping[str, Any]], Result], inputs: Any = None
) -> Result:
    """Return `compute(variables)`, computed once for all hosts of a task that have equal variables.

    Two hosts share the result `name` if `inputs` and all variables that `compute` has read are equal. Exceptions are not stored.
    """
    prefix = getattr(variables, "results_prefix", "")
    if not prefix:
        return compute(variables)
    with _stored(f"{prefix}.{name}") as (entries, store):
        for recorded, result in entries:
            if recorded == _values(variables, list(recorded), inputs):
                shared: Result = result
                return shared
        recording = _RecordingVariables(variables)
        result = compute(recording)
        values = _values(variables, recording.names, inputs)
        if values is not None:
            store(values, result)
        return result


@contextmanager
def _stored(path: str) -> Iterator[Tuple[Iterator[Tuple[Any, Any]], Callable[[Any, Any], None]]]:
    """Yield the stored (values, result) pairs, and a function that adds a pair. Other processes wait until the block ends."""
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)

        def store(values: Any, result: Any) -> None:
            # A result that cannot be pickled is computed by each process.
            with suppress(pickle.PicklingError, TypeError, AttributeError):
                file.write(pickle.dumps((values, result)))

        yield _entries(file.read()), store


def _entries(raw: bytes) -> Iterator[Tuple[Any, Any]]:
    source = io.BytesIO(raw)
    while source.tell() < len(raw):
        try:
            yield pickle.load(source)
        except (EOFError, pickle.UnpicklingError):
            # The process that wrote this entry was killed.
            return


def _values(variables: Mapping[str, Any], names: Collection[str], inputs: Any) -> Optional[Dict[str, str]]:
    """Return the JSON text of each variable and of `inputs`, or None if a value is not JSON or cannot be evaluated."""
    try:
        present = {name: variables[name] for name in names if name != INPUTS and name in variables}
        texts = {name: json.dumps(value, sort_keys=True) for name, value in {**present, INPUTS: inputs}.items()}
        return {**dict.fromkeys(names, ABSENT), **texts}
    # A template can raise any exception. The result is then computed for each host.
    except Exception:
        return None
