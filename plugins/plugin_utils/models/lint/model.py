"""One model as the rules see it, and the findings that they make about it."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, REFUSES, TAKES, WARNING, Finding

CONFIG = "config.pbtxt"
# Directories in a model that are none of its versions
NO_VERSIONS = ("configs", "warmup", "initial_state")
# Platform -> backend, for backends that go by a platform too
PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
# Of backends that read one file of a version: its name, where the config gives none
FILES = {
    "rbln": "model.rbln",
    "python": "model.py",
    "onnxruntime": "model.onnx",
    "openvino": "model.xml",
    "pytorch": "model.pt",
    "tensorrt": "model.plan",
    "dali": "model.dali",
}
LARGEST = 2**63 - 1


class Model:
    """A config with the files that go with it.

    `files` are paths below `directory`; `directories` those right in it, which may hold no file. `complete` is False where files
    may still come from elsewhere, as compiled ones do that are not in the repository. `file` is the config's own name:
    config.pbtxt, or a variant below configs/.
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
    ) -> None:
        self.name = name
        self.directory = directory
        self.config = config
        self.text = text
        self.files = frozenset(files)
        self.directories = sorted({path.split("/")[0] for path in files if "/" in path} | set(directories))
        self.record = record
        self.complete = complete
        self.file = file
        self._lines: Optional[Dict[str, int]] = None

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
    def backend(self) -> str:
        """The backend, also where only platform, file name or files tell; "" for none."""
        config = self.config
        if self.ensemble or config.backend or config.platform:
            return config.backend or PLATFORMS.get(config.platform, "")
        by_name = {file: backend for backend, file in FILES.items() if backend not in ("rbln", "dali")}
        if config.default_model_filename:
            return by_name.get(config.default_model_filename, "")
        # Triton looks into the directory that comes first by name.
        first = self.directories[0] + "/" if self.directories else None
        here = {path[len(first) :].split("/")[0] for path in self.files if first and path.startswith(first)}
        return next((by_name[entry] for entry in sorted(by_name) if entry in here), "")

    @property
    def settled(self) -> bool:
        """Whether its files and versions are known: no compiled file is yet to come."""
        return self.complete or self.backend != "rbln"

    def versions(self) -> Dict[int, str]:
        """{version: its directory} as Triton counts them."""
        found: Dict[int, str] = {}
        # Of `2` and `2_old` Triton reads the first.
        for directory in sorted(self.directories, key=len, reverse=True):
            number = None if directory in NO_VERSIONS else version_of(directory)
            if number is not None and abs(number) <= LARGEST:
                found[number] = directory
        return found

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

    def inside(self, directory: str) -> List[str]:
        """Paths below one of its directories, without that."""
        return sorted(path[len(directory) + 1 :] for path in self.files if path.startswith(directory + "/"))


def version_of(directory: str) -> Optional[int]:
    """The version that Triton takes a directory for, by std::stoll: `9.bak` is 9; None for one that it passes over."""
    if len(directory) > 1 and directory.startswith("0"):
        return None
    found = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", directory)
    return int(found.group(1)) if found else None
