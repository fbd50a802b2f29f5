"""The library that hosts keep (module_utils/programs/library.py), on the controller: its version, and its archive."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Dict, Set

import ansible
import ansible.module_utils
from ansible.release import __version__
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.plugin_utils.paths import COLLECTION

MAIN = archive.PREFIX + "change.commands"
ROOMS = ("module_utils", "modules")
OWN = "ansible_collections/npufleet/triton/plugins/"
# Of Ansible itself, what a module is made of
THEIRS = "ansible.module_utils."


@functools.cache
def version() -> str:
    """A digest over all that it is made of: each file of this collection, and the version of Ansible, whose files are its own."""
    whole = hashlib.sha256(__version__.encode())
    for path, source in sorted(_own().items()):
        whole.update(f"{path}\0{source}\0".encode())
    return whole.hexdigest()[:16]


def packed(place: str) -> bytes:
    """The archive of it, made once for all processes of a run, which share this place. Needed for a host that lacks it alone."""
    path = os.path.join(place, f"library-{version()}")
    if not os.path.exists(path):
        with open(f"{path}.{os.getpid()}", "wb") as sink:
            sink.write(archive.packed(_all(), MAIN))
        os.replace(f"{path}.{os.getpid()}", path)
    with open(path, "rb") as source:
        return source.read()


def _all() -> Dict[str, str]:
    files = _own()
    home = os.path.dirname(ansible.module_utils.__file__)
    # Some of these are imported by names that are made when a module runs
    wanted: Set[str] = {
        os.path.relpath(os.path.join(directory, name[:-3]), home).replace("/", ".")
        for directory, _names, found in os.walk(os.path.join(home, "_internal"))
        for name in found
        if name.endswith(".py") and name != "__init__.py"
    }
    for source in files.values():
        wanted |= archive.imports(source, THEIRS)
    files.update(archive.closure(sorted(wanted), THEIRS, home))
    files["ansible/__init__.py"] = f"__version__ = {__version__!r}\n"
    return files


def _own() -> Dict[str, str]:
    """{path in the archive: source} of what runs on hosts."""
    files = {}
    for room in ROOMS:
        for directory, names, found in os.walk(os.path.join(COLLECTION, "plugins", room)):
            names[:] = [name for name in names if name != "__pycache__"]
            for name in (name for name in found if name.endswith(".py")):
                path = os.path.join(directory, name)
                with open(path, encoding="utf-8") as source:
                    files[OWN + os.path.relpath(path, os.path.join(COLLECTION, "plugins"))] = source.read()
    return files
