"""Python files as one archive that a Python of the standard library runs: what is shipped as a program.

It is made on the controller alone; the same files make the same bytes.
"""

from __future__ import annotations

import functools
import io
import os
import re
import zipfile
from typing import Dict, Iterable, Mapping, Sequence, Set

PREFIX = "ansible_collections.npufleet.triton.plugins.module_utils."
HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
TIME = (1980, 1, 1, 0, 0, 0)
# Of a statement that imports: dots of a relative one, the module, what is taken of it; or the modules themselves. A text that looks
# like one brings a file too many, and a parser would take most of the time of a plan.
IMPORT = re.compile(r"^[ \t]*(?:from (\.*)([\w.]*) import (\([^)]*\)|[^#\n]*)|import ([\w., ]+))", re.MULTILINE)


@functools.cache
def of(entry: str) -> bytes:
    """A module of module_utils, such as `engine.check_client`, and all that it imports of there. Run, it calls the main() of it."""
    return packed(closure([entry], PREFIX, HOME), PREFIX + entry)


def packed(files: Mapping[str, str], main: str) -> bytes:
    """Files by their path, and the packages around them, as a program that calls the main() of a module."""
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


def closure(modules: Iterable[str], prefix: str, home: str) -> Dict[str, str]:
    """{path: source} of modules below `prefix`, whose files are in `home`, the packages around them, and what they import there."""
    files: Dict[str, str] = {}
    for module in modules:
        _collect(module, prefix, home, files)
    return files


def _collect(module: str, prefix: str, home: str, files: Dict[str, str]) -> None:
    parts = module.split(".")
    for depth in range(1, len(parts)):
        _collect(".".join(parts[:depth]), prefix, home, files)
    base = "/".join(parts)
    path = base + ("/__init__.py" if os.path.isdir(os.path.join(home, base)) else ".py")
    name = prefix.replace(".", "/") + path
    if name in files or not os.path.exists(os.path.join(home, path)):
        return
    with open(os.path.join(home, path), encoding="utf-8") as source:
        files[name] = source.read()
    inside = (prefix + module).split(".") if path.endswith("__init__.py") else (prefix + module).split(".")[:-1]
    for found in sorted(imports(files[name], prefix, inside)):
        _collect(found, prefix, home, files)


def imports(source: str, prefix: str, package: Sequence[str] = ()) -> Set[str]:
    """What of below `prefix` a source of a package imports, and the names that it takes from there, which may be modules too."""
    found: Set[str] = set()
    for above, module, names, plain in IMPORT.findall(source):
        if plain:
            found.update(f"{name.split()[0]}." for name in plain.split(","))
            continue
        parts = [*package[: len(package) - len(above) + 1], module] if above else [module]
        base = ".".join(filter(None, parts)) + "."
        found.update([base, *(f"{base}{name.split()[0]}." for name in names.strip("()").split(",") if name.split())])
    return {name[len(prefix) :].rstrip(".") for name in found if name.startswith(prefix)} - {""}
