"""The record of a release, which lies beside it: what it has to be, and how it is made anew out of the release itself.

The digest of a release is over all of its files, the config without that digest: files from which it follows are proven.
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
# A model's, which is a directory's too
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
    """A file of a release: its SHA-256, its bytes, and whether it is a link to a blob."""

    sha256: str
    size: int
    blob: bool


class Record(TypedDict):
    """What is written down of a release."""

    # Digests over all of its files, and over what lay on the controller
    release: str
    source: str
    # Served version numbers, and the models that an ensemble calls
    versions: List[str]
    steps: List[str]
    # Whether the server answers it out of its response cache
    cached: bool
    # Digest of the config without the digests in it: None where it was not told
    shape: Optional[str]
    files: Dict[str, File]


# A model's change of releases, as labels; None is no release. `failed` is what a put back puts back from
Move = TypedDict(
    "Move",
    {"from": Optional[str], "to": Optional[str], "what": str, "failed": Optional[str]},
    total=False,
)


def content(label: Optional[str]) -> str:
    """What a label says of its release's content: equal for equal content."""
    return (label or "").partition("-")[2]


def serial(label: str) -> int:
    """The place of a release among those of its model: it grows with each one that is made."""
    return int(label.partition("-")[0])


def tree_digest(files: Mapping[str, str], table: Mapping[str, str]) -> str:
    """SHA-256 over files, {path: digest}, and over a table of what is chosen from elsewhere."""
    lines = [f"{files[path]} {path}\n" for path in sorted(files)]
    lines += [f"{table[key]} artefact {key}\n" for key in sorted(table)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def made_anew(base: str, label: str, blob: Callable[[str], Optional[str]]) -> Optional[Record]:
    """The record of the release in directory `base`, None where its files do not prove to be what the label says.

    `blob` gives the path of a blob that is what its digest says, None where there is no such.
    """
    files: Dict[str, File] = {}
    text = ""
    for directory, _names, names in trees.walk(base):
        for path in (os.path.join(directory, name) for name in names):
            inner = os.path.relpath(path, base)
            if os.path.islink(path):
                digest = os.path.basename(os.readlink(path))
                kept = blob(digest) if DIGEST.fullmatch(digest) else None
                if kept is None or os.path.realpath(path) != os.path.realpath(kept):
                    return None
                files[inner] = {"sha256": digest, "size": os.path.getsize(kept), "blob": True}
                continue
            if not os.path.isfile(path):
                return None
            with open(path, "rb") as source:
                raw = source.read()
            files[inner] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw), "blob": False}
            text = raw.decode("utf-8", "replace") if inner == CONFIG else text
    digests = {name: _parameter(text, name) for name in ("npufleet_source", "npufleet_release")}
    bare = _without(text, "npufleet_release")
    sums = {path: file["sha256"] for path, file in files.items()}
    release = tree_digest({**sums, CONFIG: hashlib.sha256(bare.encode()).hexdigest()}, {})
    if release != digests["npufleet_release"] or not release.startswith(content(label)) or not digests["npufleet_source"]:
        return None
    return {
        "release": release,
        "source": digests["npufleet_source"],
        "versions": _versions(text, files),
        "steps": sorted(set(re.findall(r'^    model_name: "([^"]+)"$', text, re.MULTILINE))),
        "cached": bool(re.search(r"^response_cache \{\n  enable: true\n", text, re.MULTILINE)),
        "shape": hashlib.sha256(_without(bare, "npufleet_source").encode()).hexdigest(),
        "files": files,
    }


def _block(name: str) -> str:
    """A parameter of a config as manifest.py has it printed."""
    return rf'^parameters \{{\n  key: "{name}"\n  value \{{\n    string_value: "([0-9a-f]{{64}})"\n  \}}\n\}}\n'


def _parameter(text: str, name: str) -> Optional[str]:
    found = re.search(_block(name), text, re.MULTILINE)
    return found[1] if found else None


def _without(text: str, name: str) -> str:
    return re.sub(_block(name), "", text, count=1, flags=re.MULTILINE)


def _versions(text: str, files: Mapping[str, File]) -> List[str]:
    """What the printed version policy selects; without one it is the latest."""
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
