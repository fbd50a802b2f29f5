# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Python files as one archive that a Python of the standard library runs.

It is made on the controller alone; the same files make the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
from typing import Dict, Mapping, Set

PREFIX = "ansible_collections.npufleet.triton.plugins.module_utils."
HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
TIME = (1980, 1, 1, 0, 0, 0)
# Import statements: the module and the names that are taken from it, or the modules themselves. A text that looks like one brings a
# file too many. A parser would take most of the time of a plan.
IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^#\n]*)|import ([\w., ]+))", re.MULTILINE)
# A directory may be named by a link, which moves while the program imports from it.
MAIN = "import os, sys\n\nsys.path[0] = os.path.realpath(sys.path[0])\nfrom {main} import main\n\nsys.exit(main())\n"


@functools.cache
def of(entry: str) -> bytes:
    """Return a module of module_utils, such as `engine.check_client`, with all that it imports there, as a program."""
    return packed(_files(entry), PREFIX + entry)


@functools.cache
def digest(entry: str) -> str:
    """Return the SHA-256 of the sources of a module of module_utils and of all that it imports there."""
    content = hashlib.sha256()
    for name, source in sorted(_files(entry).items()):
        content.update(f"{name}\0{source}\0".encode())
    return content.hexdigest()


def packed(files: Mapping[str, str], main: str) -> bytes:
    """Return files by their path, and the packages around them, as a program that calls the main() of a module."""
    # Imported here, as hosts pack nothing.
    import zipfile

    names = dict(files)
    for path in files:
        parts = path.split("/")[:-1]
        names.update({f"{'/'.join(parts[:depth])}/__init__.py": "" for depth in range(1, len(parts) + 1)})
    names.update(files)
    names["__main__.py"] = MAIN.format(main=main)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(names):
            target.writestr(zipfile.ZipInfo(name, TIME), names[name], zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def _files(entry: str) -> Dict[str, str]:
    """Return {path in the archive: source} of a module and of what it imports of module_utils."""
    files: Dict[str, str] = {}
    _collect(entry, files)
    return files


def _collect(module: str, files: Dict[str, str]) -> None:
    """Add a module, the packages around it, and what they import of module_utils."""
    parts = module.split(".")
    for depth in range(1, len(parts)):
        _collect(".".join(parts[:depth]), files)
    base = "/".join(parts)
    path = base + ("/__init__.py" if os.path.isdir(os.path.join(HOME, base)) else ".py")
    name = PREFIX.replace(".", "/") + path
    if name in files or not os.path.exists(os.path.join(HOME, path)):
        return
    with open(os.path.join(HOME, path), encoding="utf-8") as source:
        files[name] = source.read()
    for imported in sorted(imports(files[name])):
        _collect(imported, files)


def imports(source: str) -> Set[str]:
    """Return what a source imports of module_utils, and the names that it takes from there, which may be modules too."""
    found: Set[str] = set()
    for module, names, plain in IMPORT.findall(source):
        if plain:
            found.update(f"{name.split()[0]}." for name in plain.split(","))
            continue
        found.update([f"{module}.", *(f"{module}.{name.split()[0]}." for name in names.strip("()").split(",") if name.split())])
    return {name[len(PREFIX) :].rstrip(".") for name in found if name.startswith(PREFIX)} - {""}
