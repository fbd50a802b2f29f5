"""Python files as one archive that a Python of the standard library runs: what is shipped as a program.

It is made on the controller alone; the same files make the same bytes.
"""

from __future__ import annotations

import functools
import io
import os
import re
from typing import Dict, Mapping, Set

PREFIX = "ansible_collections.npufleet.triton.plugins.module_utils."
HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
TIME = (1980, 1, 1, 0, 0, 0)
# Of a statement that imports: the module, what is taken of it; or the modules themselves. A text that looks like one brings a file
# too many, and a parser would take most of the time of a plan.
IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^#\n]*)|import ([\w., ]+))", re.MULTILINE)


@functools.cache
def of(entry: str) -> bytes:
    """A module of module_utils, such as `engine.check_client`, and all that it imports of there. Run, it calls the main() of it."""
    files: Dict[str, str] = {}
    _collect(entry, files)
    return packed(files, PREFIX + entry)


def packed(files: Mapping[str, str], main: str) -> bytes:
    """Files by their path, and the packages around them, as a program that calls the main() of a module."""
    # Here, as hosts make none
    import zipfile

    names = dict(files)
    for path in files:
        parts = path.split("/")[:-1]
        names.update({f"{'/'.join(parts[:depth])}/__init__.py": "" for depth in range(1, len(parts) + 1)})
    names.update(files)
    names["__main__.py"] = f"import sys\nfrom {main} import main\n\nsys.exit(main())\n"
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(names):
            target.writestr(zipfile.ZipInfo(name, TIME), names[name], zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def _collect(module: str, files: Dict[str, str]) -> None:
    """Add a module, the packages around it, and what they import of module_utils: {path: source}."""
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
    for found in sorted(imports(files[name])):
        _collect(found, files)


def imports(source: str) -> Set[str]:
    """What of module_utils a source imports, and the names that it takes from there, which may be modules too."""
    found: Set[str] = set()
    for module, names, plain in IMPORT.findall(source):
        if plain:
            found.update(f"{name.split()[0]}." for name in plain.split(","))
            continue
        found.update([f"{module}.", *(f"{module}.{name.split()[0]}." for name in names.strip("()").split(",") if name.split())])
    return {name[len(PREFIX) :].rstrip(".") for name in found if name.startswith(PREFIX)} - {""}
