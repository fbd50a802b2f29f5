# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Archives of Python files, which python3 runs as programs. A program imports only its own files and the standard library.

The controller makes the archives. The same files always result in the same bytes.
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
ZIP_TIME = (1980, 1, 1, 0, 0, 0)
# Import statements: `from MODULE import NAMES`, or `import MODULES`. If text in a string looks like an import, the program contains
# a file that it does not need. A real parser would take most of the time of a run that changes nothing.
IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^#\n]*)|import ([\w., ]+))", re.MULTILINE)
# The __main__.py of an archive. The path of the archive can be a link, and an upgrade changes the target of the link. So the
# program resolves the link first, and all its imports come from one version.
MAIN = "import os, sys\n\nsys.path[0] = os.path.realpath(sys.path[0])\nfrom {main} import main\n\nsys.exit(main())\n"


@functools.cache
def program(entry: str) -> bytes:
    """Return a program that runs a module, such as `engine.check_client`. It contains the modules that this module imports."""
    return pack_program(_collect(entry, {}), PREFIX + entry)


@functools.cache
def digest(entry: str) -> str:
    """Return the SHA-256 of the sources of a program."""
    content = hashlib.sha256()
    for name, source in sorted(_collect(entry, {}).items()):
        content.update(f"{name}\0{source}\0".encode())
    return content.hexdigest()


def pack_program(files: Mapping[str, str], main: str) -> bytes:
    """Return {path: source} as a program that calls main() of the module `main`. Add missing __init__.py files of packages."""
    # This import is slow, and only the controller needs it.
    import zipfile

    names = {"__main__.py": MAIN.format(main=main)}
    for path in files:
        parts = path.split("/")[:-1]
        names.update({f"{'/'.join(parts[:depth])}/__init__.py": "" for depth in range(1, len(parts) + 1)})
    names.update(files)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(names):
            target.writestr(zipfile.ZipInfo(name, ZIP_TIME), names[name], zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def _collect(module: str, files: Dict[str, str]) -> Dict[str, str]:
    """Add a module, its packages, and all modules that these import to `files`, which is {path in the archive: source}."""
    parts = module.split(".")
    for depth in range(1, len(parts)):
        _collect(".".join(parts[:depth]), files)
    base = "/".join(parts)
    path = base + ("/__init__.py" if os.path.isdir(os.path.join(HOME, base)) else ".py")
    name = PREFIX.replace(".", "/") + path
    if name in files or not os.path.exists(os.path.join(HOME, path)):
        return files
    with open(os.path.join(HOME, path), encoding="utf-8") as source:
        files[name] = source.read()
    for imported in sorted(imports(files[name])):
        _collect(imported, files)
    return files


def imports(source: str) -> Set[str]:
    """Return the modules of module_utils that a source imports, and the names that it imports from them, which can be modules."""
    found: Set[str] = set()
    for module, names, plain in IMPORT.findall(source):
        if plain:
            found.update(f"{name.split()[0]}." for name in plain.split(","))
            continue
        found.update([f"{module}.", *(f"{module}.{name.split()[0]}." for name in names.strip("()").split(",") if name.split())])
    return {name[len(PREFIX) :].rstrip(".") for name in found if name.startswith(PREFIX)} - {""}
