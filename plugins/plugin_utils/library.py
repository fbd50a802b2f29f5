"""The library that hosts keep (module_utils/programs/library.py), on the controller: its version, and its archive."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Dict

from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.plugin_utils.paths import COLLECTION

MAIN = archive.PREFIX + "change.commands"
ROOMS = ("module_utils", "modules")
OWN = "ansible_collections/npufleet/triton/plugins/"


@functools.cache
def version() -> str:
    """A digest over each file that it is made of."""
    whole = hashlib.sha256()
    for path, source in sorted(_own().items()):
        whole.update(f"{path}\0{source}\0".encode())
    return whole.hexdigest()[:16]


def packed(place: str) -> bytes:
    """The archive of it, made once for all processes of a run, which share this place. Needed for a host that lacks it alone."""
    path = os.path.join(place, f"library-{version()}")
    if not os.path.exists(path):
        with open(f"{path}.{os.getpid()}", "wb") as sink:
            sink.write(archive.packed(_own(), MAIN))
        os.replace(f"{path}.{os.getpid()}", path)
    with open(path, "rb") as source:
        return source.read()


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
