"""One model as the rules see it, and the findings that they make about it."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import (
    ERROR,
    REFUSES,
    TAKES,
    WARNING,
    Finding,
    Row,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import Listing, is_within

CONFIG = "config.pbtxt"
# Directories in a model that are none of its versions
NO_VERSIONS = ("configs", "warmup", "initial_state")
SMALLEST, LARGEST = -(2**63), 2**63 - 1


class Model:
    """A config with the files that go with it.

    `files` are paths below `directory`, and `directories` paths of directories, which may hold no file. `there` is all that is on
    the disk, for a model that is linted as it lies. `complete` is False where files may still come from elsewhere, as compiled ones
    do that are not in the repository. `file` is the config's own name: config.pbtxt, or a variant below configs/.
    """

    def __init__(
        self,
        name: str,
        directory: str,
        config: Any,
        text: str,
        files: Sequence[str],
        directories: Sequence[str] = (),
        record: Optional[Mapping[str, Any]] = None,
        complete: bool = True,
        file: str = CONFIG,
        there: Optional[Listing] = None,
        row: Optional[Row] = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.config = config
        self.text = text
        self.files = frozenset(files)
        self.tree = {path[:at] for path in files for at, letter in enumerate(path) if letter == "/"} | set(directories)
        self.directories = sorted(path for path in self.tree if "/" not in path)
        self.others = there.others if there else {}
        # Paths whose content is outside of the repository
        self.outside = there.outside if there else set()
        self.row = row
        self.triton = row.triton if row else ""
        self.record = record
        self.complete = complete
        self.file = file
        self._lines: Optional[Dict[str, int]] = None
        self._identity: Optional[backends.Identity] = None

    # Findings

    def error(self, rule: str, field: str, found: str, wanted: str, do: str, triton: str = REFUSES) -> Finding:
        """Something in the config that Triton refuses or that cannot be served."""
        return self._about(ERROR, rule, field, found, wanted, do, triton)

    def warning(self, rule: str, field: str, found: str, wanted: str, do: str, triton: str = TAKES) -> Finding:
        """Something in the config that is served, and hardly meant."""
        return self._about(WARNING, rule, field, found, wanted, do, triton)

    def file_error(self, rule: str, path: str, found: str, wanted: str, do: str, triton: str = REFUSES) -> Finding:
        """Something among the files that cannot be served."""
        return Finding(self.name, os.path.join(self.directory, path), None, "", found, wanted, do, ERROR, rule, triton)

    def file_warning(self, rule: str, path: str, found: str, wanted: str, do: str, triton: str = TAKES) -> Finding:
        """Something among the files that is hardly meant."""
        return self.file_error(rule, path, found, wanted, do, triton)._replace(severity=WARNING)

    def _about(self, severity: str, rule: str, field: str, found: str, wanted: str, do: str, triton: str) -> Finding:
        path = os.path.join(self.directory, self.file)
        return Finding(self.name, path, self._line(field), field, found, wanted, do, severity, rule, triton)

    def _line(self, field: str) -> Optional[int]:
        """Where a field stands, or else what it would stand in; None for one that the file says nothing of."""
        if self._lines is None:
            self._lines = {}
            for place in schema.places(self.text):
                self._lines.setdefault(place.path, place.line)
        while field and field not in self._lines:
            field = field.rpartition(".")[0]
        return self._lines.get(field)

    # What Triton makes of it

    @property
    def ensemble(self) -> bool:
        """Whether it is made of other models."""
        return self.config.platform == "ensemble" or self.config.HasField("ensemble_scheduling")

    @property
    def identity(self) -> backends.Identity:
        """Backend, platform and file name as Triton completes them."""
        if self._identity is None:
            # Triton looks into the directory that comes first by name.
            first = os.fsdecode(min(map(os.fsencode, self.directories))) if self.directories else ""
            here = {
                path.split("/")[1] for path in (*self.files, *self.tree, *self.others) if first and path.startswith(first + "/")
            }
            self._identity = backends.identify(
                self.config, self.name, here, lambda name: f"{first}/{name}" in self.tree, self.triton
            )
        return self._identity

    @property
    def backend(self) -> str:
        """The backend, also where only platform, file name, files or the model's name tell; "" for none."""
        return self.identity.backend

    @property
    def program(self) -> bool:
        """Return True if a Python program is the backend: that of the model, or one that the image has."""
        if self.config.runtime:
            return bool(self.config.runtime == backends.PROGRAM)
        known = backends.ALL.get(self.backend)
        return bool(known and known.runtimes[0] == backends.PROGRAM)

    @property
    def settled(self) -> bool:
        """Whether its files and versions are known: no compiled file is yet to come."""
        return self.complete or self.backend != "rbln"

    def versions(self) -> Dict[int, str]:
        """{version: the directory that Triton reads for it}. It need not exist: `9.bak` is version 9, in 9/."""
        numbers = (version_of(directory) for directory in self.directories if directory not in NO_VERSIONS)
        return {number: str(number) for number in numbers if number is not None and SMALLEST <= number <= LARGEST}

    def served(self) -> List[int]:
        """The versions that the version policy selects; without one it is the latest."""
        numbers = sorted(self.versions())
        policy = self.config.version_policy
        if policy.HasField("all"):
            return numbers
        if policy.HasField("specific"):
            return [number for number in numbers if number in policy.specific.versions]
        # Here 0 is none.
        count = policy.latest.num_versions if policy.HasField("latest") else 1
        return numbers[len(numbers) - min(count, len(numbers)) :]

    def readable(self, path: str) -> bool:
        """Return True if what a path leads to may be read: it is in the repository."""
        return is_within(os.path.join(self.directory, path), os.path.dirname(self.directory))

    def inside(self, directory: str) -> List[str]:
        """Paths below one of its directories, without that."""
        return sorted(path[len(directory) + 1 :] for path in self.files if path.startswith(directory + "/"))


def version_of(directory: str) -> Optional[int]:
    """The version that Triton takes a directory for, by std::stoll: `9.bak` is 9; None for one that it passes over."""
    if len(directory) > 1 and directory.startswith("0"):
        return None
    found = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", directory)
    return int(found.group(1)) if found else None
