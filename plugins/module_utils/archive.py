"""Files of module_utils as one archive that a Python of the standard library runs: what is shipped as a program.

It is made on the controller alone; the same files make the same bytes.
"""

from __future__ import annotations

import ast
import functools
import io
import os
import zipfile
from typing import Dict, Set

PREFIX = "ansible_collections.npufleet.triton.plugins.module_utils."
HOME = os.path.dirname(os.path.realpath(__file__))
TIME = (1980, 1, 1, 0, 0, 0)


@functools.cache
def of(entry: str) -> bytes:
    """A module of module_utils, such as `change.__main__`, and all that it imports of there. Run, it calls the main() of it."""
    files: Dict[str, str] = {}
    _collect(entry, files)
    packages = PREFIX.rstrip(".").split(".")
    names = {"/".join(packages[:depth]) + "/__init__.py": "" for depth in range(1, len(packages) + 1)}
    names.update({f"{'/'.join(packages)}/{path}": content for path, content in files.items()})
    names["__main__.py"] = f"import sys\nfrom {PREFIX}{entry} import main\n\nsys.exit(main())\n"
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(names):
            target.writestr(zipfile.ZipInfo(name, TIME), names[name], zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def _collect(module: str, files: Dict[str, str]) -> None:
    """Add a module, the packages around it, and what they import of module_utils."""
    parts = module.split(".")
    for depth in range(1, len(parts)):
        _collect(".".join(parts[:depth]), files)
    base = "/".join(parts)
    package = os.path.isdir(os.path.join(HOME, base))
    path = base + ("/__init__.py" if package else ".py")
    if path in files or not os.path.exists(os.path.join(HOME, path)):
        return
    with open(os.path.join(HOME, path), encoding="utf-8") as source:
        files[path] = source.read()
    for name in sorted(_imports(files[path])):
        _collect(name, files)


def _imports(source: str) -> Set[str]:
    """What of module_utils a source imports, and the names that it takes from there, which may be modules too."""
    found: Set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and (node.module + ".").startswith(PREFIX):
            inside = (node.module + ".")[len(PREFIX) :]
            found.update([inside.rstrip("."), *(inside + taken.name for taken in node.names)])
    return found - {""}
