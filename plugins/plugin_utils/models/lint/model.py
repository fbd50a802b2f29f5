# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The model that the rules check, with methods that create findings about it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import AbstractSet, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, effects
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, WARNING, Finding, Row, file_error
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.text import SourceField
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import CONFIG, Listing, is_within

EMPTY = Listing([], [], {}, set())
# Directories of a model that never contain a version
NO_VERSIONS = ("configs", "warmup", "initial_state")
MIN_VERSION, MAX_VERSION = -(2**63), 2**63 - 1


@dataclass(eq=False)
class Model:
    """A config and the files of its model.

    `config` is the parsed config, and `fields` are the fields of its text. `file` is the path of the config: config.pbtxt, or a
    variant below configs/. `files` are paths below `directory`. `record` is the record of the compiled file. `complete` is False if
    the inventory can add files, such as compiled files. `listing` is the content of the directory. With an inventory, `listing` is
    empty. `row` is the release row. In methods that return findings, `triton` is the effect of the error on Triton.
    """

    name: str
    directory: str
    config: Any
    fields: Sequence[SourceField]
    files: AbstractSet[str]
    record: Optional[Mapping[str, Any]] = None
    complete: bool = True
    file: str = CONFIG
    listing: Listing = EMPTY
    row: Optional[Row] = None

    @cached_property
    def all_directories(self) -> Set[str]:
        """The directories of all levels."""
        parents = {path[:position] for path in self.files for position, letter in enumerate(path) if letter == "/"}
        return parents | set(self.listing.directories)

    @cached_property
    def directories(self) -> List[str]:
        """The sorted directories of the top level."""
        return sorted(path for path in self.all_directories if "/" not in path)

    @property
    def triton_version(self) -> str:
        """The version of Triton in the release row, or "" without a row."""
        return self.row.triton if self.row else ""

    # Findings

    def error(
        self, rule: str, field: str, actual: str, expected: str, todo: str = "Correct it", triton: str = effects.REFUSES
    ) -> Finding:
        """Return an error in the config."""
        path = os.path.join(self.directory, self.file)
        return Finding(self.name, path, self._line(field), field, actual, expected, todo, ERROR, rule, triton)

    def warning(self, rule: str, field: str, actual: str, expected: str, todo: str, triton: str = effects.LOADS) -> Finding:
        """Return a warning about the config. Triton serves the model, but the setting is probably a mistake."""
        return self.error(rule, field, actual, expected, todo, triton)._replace(severity=WARNING)

    def missing(self, rule: str, field: str, expected: str, todo: str = "Add it") -> Finding:
        """Return an error for a field of the config that is missing or empty."""
        return self.error(rule, field, "missing", expected, todo)

    def file_error(self, rule: str, path: str, actual: str, expected: str, todo: str, triton: str = effects.REFUSES) -> Finding:
        """Return an error about a file or a directory of the model."""
        return file_error(self.name, os.path.join(self.directory, path), actual, expected, todo, rule, triton)

    def file_warning(self, rule: str, path: str, actual: str, expected: str, todo: str, triton: str = effects.LOADS) -> Finding:
        """Return a warning about a file or a directory of the model."""
        return self.file_error(rule, path, actual, expected, todo, triton)._replace(severity=WARNING)

    @cached_property
    def _lines(self) -> Dict[str, int]:
        # If the text has a field several times, its first line counts.
        return {field.path: field.line for field in reversed(self.fields)}

    def _line(self, field: str) -> Optional[int]:
        """Return the line of a field. If the config lacks the field, return the line of the closest parent field, or None."""
        while field and field not in self._lines:
            field = field.rpartition(".")[0]
        return self._lines.get(field)

    def tensors(self) -> Iterator[Tuple[str, str, Any]]:
        """Yield (`input` or `output`, path of the field, tensor) for each tensor of the config."""
        for side in ("input", "output"):
            yield from ((side, f"{side}[{index}]", tensor) for index, tensor in enumerate(getattr(self.config, side)))

    # Triton's view of the model

    @property
    def ensemble(self) -> bool:
        """True if the model consists of other models."""
        return self.config.platform == "ensemble" or self.config.HasField("ensemble_scheduling")

    @cached_property
    def identity(self) -> backends.Identity:
        """The backend, the platform and the name of the model file. Triton derives those that the config leaves out."""
        # Triton looks only into the directory whose name sorts first.
        first = os.fsdecode(min(map(os.fsencode, self.directories))) if self.directories else ""
        paths = (*self.files, *self.all_directories, *self.listing.special)
        names = {path.split("/")[1] for path in paths if first and path.startswith(first + "/")}
        subdirectories = {name for name in names if f"{first}/{name}" in self.all_directories}
        return backends.identify(self.config, self.name, names, subdirectories, self.triton_version)

    @property
    def backend(self) -> str:
        """The backend in the config or, if the config has none, the backend that Triton derives. "" if Triton finds no backend."""
        return self.identity.backend

    @property
    def backend_facts(self) -> backends.Backend:
        """The known facts of the backend. The facts of an unknown backend are empty."""
        return backends.ALL_BACKENDS.get(self.backend, backends.Backend())

    @property
    def python_runtime(self) -> bool:
        """True if the backend is a Python program, which is in the model or in the image."""
        if self.config.runtime:
            return bool(self.config.runtime == backends.MODEL_PY)
        return self.backend_facts.runtimes[:1] == (backends.MODEL_PY,)

    @property
    def has_all_files(self) -> bool:
        """True if `files` has all files of the model, because the inventory adds no compiled file."""
        return self.complete or self.backend != "rbln"

    def versions(self) -> List[int]:
        """Return the sorted version numbers.

        For a directory `9.bak`, Triton assumes version 9, and looks for the files in the directory `9`, even if it does not exist.
        """
        numbers = {directory_version(directory) for directory in self.directories if directory not in NO_VERSIONS}
        return sorted(number for number in numbers if number is not None and MIN_VERSION <= number <= MAX_VERSION)

    def served(self) -> List[int]:
        """Return the versions that the version policy selects. Without a policy, only the latest version is served."""
        numbers = self.versions()
        policy = self.config.version_policy
        if policy.HasField("all"):
            return numbers
        if policy.HasField("specific"):
            return [number for number in numbers if number in policy.specific.versions]
        count = policy.latest.num_versions if policy.HasField("latest") else 1
        return numbers[len(numbers) - min(count, len(numbers)) :]

    def readable(self, path: str) -> bool:
        """Return True if the target of a path is in the repository, so that the linter is allowed to read it."""
        return is_within(os.path.join(self.directory, path), os.path.dirname(self.directory))

    def below(self, directory: str) -> List[str]:
        """Return the files below a directory of the model, as paths relative to this directory."""
        return sorted(path[len(directory) + 1 :] for path in self.files if path.startswith(directory + "/"))


def directory_version(directory: str) -> Optional[int]:
    """Return the version of a directory name, or None if Triton ignores the directory. As in Triton, `9.bak` is version 9."""
    if len(directory) > 1 and directory.startswith("0"):
        return None
    match = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", directory)
    return int(match.group(1)) if match else None
