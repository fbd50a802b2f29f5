"""The library: this collection's code as a host keeps it, compiled. A module that is called finds it there, and with it the host
ends a change by itself.

Each version lies in a directory of its own, under its digest, and is never changed; `current` is a link to the one that was brought
last. A Python runs it by its directory: see change/commands.py for what it can be told.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import List, Optional

HOME = "/usr/local/lib/npufleet/library"
CURRENT = "current"
# What the library prints before a module runs: without it nothing was run
CALLED = "npufleet library: called"
# What hosts had before there was a library
FORMER = "/usr/local/lib/npufleet/npufleet_change.pyz"


def path(version: str = CURRENT) -> str:
    """What a Python is told to run."""
    return os.path.join(HOME, version)


def install(version: str, packed: Optional[bytes]) -> bool:
    """Bring a version to the host that this runs on, where it is not the current one. Returns whether it was not.

    `packed` is the archive of it; None where this very version runs. The one before stays, for what is still at work with it.
    """
    if os.path.realpath(path()) == path(version) and os.path.isdir(path(version)):
        return False
    if not os.path.isdir(path(version)):
        if packed is None:
            raise OSError(f"found no {path(version)}, wanted the library that this call came with: run again")
        _unpack(packed, path(version))
    # Here, as most calls find it there
    import shutil

    before = os.path.basename(os.path.realpath(path()))
    draft = path(f".{CURRENT}.new")
    with suppress(FileNotFoundError):
        os.unlink(draft)
    os.symlink(version, draft)
    os.replace(draft, path())
    for name in _versions():
        if name not in (version, before):
            shutil.rmtree(path(name), ignore_errors=True)
    with suppress(FileNotFoundError):
        os.unlink(FORMER)
    return True


def _versions() -> List[str]:
    return [name for name in os.listdir(HOME) if os.path.isdir(path(name)) and not os.path.islink(path(name))]


def _unpack(packed: bytes, place: str) -> None:
    """Unpack and compile; it is there whole, on the disk, or not at all."""
    import compileall
    import io
    import py_compile
    import shutil
    import zipfile

    draft = f"{place}.new"
    shutil.rmtree(draft, ignore_errors=True)
    os.makedirs(draft, mode=0o755)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(draft)
    # Nobody changes a file of it, so that no date has to be compared
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(draft, quiet=2, ddir=place, invalidation_mode=mode)
    for directory, _names, files in os.walk(draft):
        for name in files:
            _flush(os.path.join(directory, name), 0o644)
        _flush(directory, 0o755)
    os.rename(draft, place)


def _flush(name: str, mode: int) -> None:
    """Readable whatever the umask was, and on the disk."""
    os.chmod(name, mode)
    handle = os.open(name, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
