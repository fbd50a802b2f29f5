# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The record of a release (a file next to the directory of the release), and the recovery of a lost record from the release.

A label such as `0004-0123456789ab` names a release of a model. It consists of the serial number and the first digits of the digest
of the release. The config of the model contains the digest. The digest covers all files of the release, but not the lines with the
digest in the config. So the digest can be computed again from the files.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Callable, Dict, List, Mapping, Optional, TypedDict

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.shapes import NULL

DIGEST = re.compile("[0-9a-f]{64}")
LABEL = re.compile(r"\d+-[0-9a-f]+")
# The name of a model is also the name of a directory.
NAME = re.compile(r"(?!\.{1,2}$)[^/\0]+")
PATH = re.compile(r"(?!/)(?!(?:.*/)?\.\.(?:/|$))[^\0]+")
SHAPE = {
    "release": DIGEST,
    "source": DIGEST,
    "files": {PATH: {"sha256": DIGEST, "size": int, "blob?": bool}},
    "versions?": ([str], NULL),
    "steps?": ([str], NULL),
    "cached?": (bool, NULL),
    "shape?": (str, NULL),
}
CONFIG = "config.pbtxt"


class File(TypedDict):
    """A file of a release: SHA-256, size in bytes, and `blob`: True if it is a link to a blob."""

    sha256: str
    size: int
    blob: bool


class Record(TypedDict):
    """The recorded facts of a release."""

    release: str  # digest of all files of the release
    source: str  # digest of the model's sources on the controller
    versions: List[str]  # version numbers that are served
    steps: List[str]  # models that an ensemble calls
    cached: bool  # the server caches responses of the model
    # Digest of the config without the two digests that the config contains, or None if it is unknown
    shape: Optional[str]
    files: Dict[str, File]


# A move of a model's link. `from` and `to` are the labels of two releases, or None for no release. `what` is the kind of change.
# `failed` is the label of the unproven release that a restore replaced.
Move = TypedDict(
    "Move",
    {"from": Optional[str], "to": Optional[str], "what": str, "failed": Optional[str]},
    total=False,
)


def content(label: Optional[str]) -> str:
    """Return the part of a label that is equal for releases with the same files: the start of their digest."""
    return (label or "").partition("-")[2]


def serial(label: str) -> int:
    """Return the serial number of a label. Each new release of a model gets a larger number."""
    return int(label.partition("-")[0])


def tree_digest(files: Mapping[str, str], table: Mapping[str, str]) -> str:
    """Return one SHA-256 for `files` ({path: digest}) and `table` ({key: digest of a compiled file})."""
    lines = [f"{files[path]} {path}\n" for path in sorted(files)]
    lines += [f"{table[key]} artefact {key}\n" for key in sorted(table)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def record_of(base: str, label: str, blob: Callable[[str], Optional[str]]) -> Optional[Record]:
    """Return the record of the release in directory `base`, or None if its files do not match the label.

    `blob` is a function that returns the path of the blob with a given digest, or None if the blob is missing or damaged.
    """
    files: Dict[str, File] = {}
    text = ""
    for directory, _names, names in trees.walk(base):
        for path in (os.path.join(directory, name) for name in names):
            inner = os.path.relpath(path, base)
            if os.path.islink(path):
                digest = os.path.basename(os.readlink(path))
                blob_file = blob(digest) if DIGEST.fullmatch(digest) else None
                if blob_file is None or os.path.realpath(path) != os.path.realpath(blob_file):
                    return None
                files[inner] = {"sha256": digest, "size": os.path.getsize(blob_file), "blob": True}
                continue
            if not os.path.isfile(path):
                return None
            with open(path, "rb") as source:
                raw = source.read()
            files[inner] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw), "blob": False}
            text = raw.decode("utf-8", "replace") if inner == CONFIG else text
    matches = (re.search(_block(name), text, re.MULTILINE) for name in ("npufleet_source", "npufleet_release"))
    recorded_source, recorded_release = (match and match[1] for match in matches)
    text_without_release = _without(text, "npufleet_release")
    digests_by_path = {path: file["sha256"] for path, file in files.items()}
    release = tree_digest({**digests_by_path, CONFIG: hashlib.sha256(text_without_release.encode()).hexdigest()}, {})
    if release != recorded_release or not release.startswith(content(label)) or not recorded_source:
        return None
    return {
        "release": release,
        "source": recorded_source,
        "versions": _versions(text, files),
        "steps": sorted(set(re.findall(r'^    model_name: "([^"]+)"$', text, re.MULTILINE))),
        "cached": bool(re.search(r"^response_cache \{\n  enable: true\n", text, re.MULTILINE)),
        "shape": hashlib.sha256(_without(text_without_release, "npufleet_source").encode()).hexdigest(),
        "files": files,
    }


def _block(name: str) -> str:
    """Return a regular expression for a parameter in a config, in the form in which manifest.py prints the parameter."""
    return rf'^parameters \{{\n  key: "{name}"\n  value \{{\n    string_value: "([0-9a-f]{{64}})"\n  \}}\n\}}\n'


def _without(text: str, name: str) -> str:
    return re.sub(_block(name), "", text, count=1, flags=re.MULTILINE)


def _versions(text: str, files: Mapping[str, File]) -> List[str]:
    """Return the versions that the version policy of the config selects, by default the latest version."""
    numbers = sorted({int(path.partition("/")[0]) for path in files if re.match(r"(0|[1-9]\d*)/", path)})
    found = re.search(r"^version_policy \{\n  (all|latest|specific) \{\n((?:    .*\n)*)", text, re.MULTILINE)
    kind, inner = (
        (found[1], [int(number) for number in re.findall(r": (\d+)$", found[2], re.MULTILINE)]) if found else ("latest", [1])
    )
    if kind == "latest":
        count = inner[0] if inner else 0
        numbers = numbers[len(numbers) - min(count, len(numbers)) :]
    elif kind == "specific":
        numbers = [number for number in numbers if number in inner]
    return [str(number) for number in numbers]
