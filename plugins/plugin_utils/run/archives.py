# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The reader of archives from hosts. It limits their size, accepts only regular files, and unpacks nothing to the disk."""

from __future__ import annotations

import io
import resource
import tarfile
import zlib
from contextlib import contextmanager
from typing import Dict, Iterator, NamedTuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.run.host_text import InvalidText, line, path_below


class Bounds(NamedTuple):
    """The limits of an archive: packed bytes, unpacked bytes, and number of files."""

    packed: int
    unpacked: int
    files: int


@contextmanager
def no_larger_file(max_bytes: int) -> Iterator[None]:
    """Let the kernel limit the size of every file that this process or its children write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes if soft == resource.RLIM_INFINITY else min(max_bytes, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files(raw: bytes, root: str, bounds: Bounds) -> Dict[str, bytes]:
    """Return {name: content} of a .tar.gz whose files are all below the directory `root`. Raises InvalidText for anything else."""
    contents: Dict[str, bytes] = {}
    try:
        # The unpacked archive is in memory, so a forged size in a header cannot make tarfile read more bytes than the archive has.
        with tarfile.open(fileobj=io.BytesIO(_inflated(raw, bounds.unpacked)), mode="r:") as archive:
            for member in archive:
                if len(contents) == bounds.files:
                    raise InvalidText(f"the archive has more than {bounds.files} files")
                name = _name(member, root)
                if name in contents:
                    raise InvalidText(f"the archive has {name} twice")
                content = archive.extractfile(member)
                contents[name] = content.read() if content else b""
                if len(contents[name]) != member.size:
                    raise InvalidText(f"{name} is truncated in the archive")
    except tarfile.TarError as error:
        raise InvalidText(f"the archive cannot be read: {line(error)[:200]}") from None
    return contents


def _inflated(raw: bytes, max_bytes: int) -> bytes:
    """Return the unpacked bytes. Raises InvalidText for more than `max_bytes` bytes."""
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(raw, max_bytes + 1)
    except zlib.error as error:
        raise InvalidText(f"the archive cannot be unpacked: {error}") from None
    if len(content) > max_bytes:
        raise InvalidText(f"the archive has more than {max_bytes} bytes")
    if not reader.eof or reader.unused_data:
        raise InvalidText("the archive is truncated" if not reader.eof else "the archive has data after its end")
    return content


def _name(member: tarfile.TarInfo, root: str) -> str:
    """Return the name of a regular file below the root. Raises InvalidText for any other member."""
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise InvalidText(f"the archive has {line(member.name)[:80]!r}, which is no ordinary file")
    base, slash, name = member.name.partition("/")
    if base != root or not slash:
        raise InvalidText(f"the archive has {line(member.name)[:80]!r}, expected files below {root}")
    path_below(root, name)
    return name
