"""An archive that a host made, read within bounds: its size on the way and unpacked, its number, names and types of files.

Nothing is unpacked to the disk, and no archive of a host is kept: what was read is packed anew. Controller only.
"""

from __future__ import annotations

import io
import resource
import tarfile
import zlib
from contextlib import contextmanager
from typing import Dict, Iterator, NamedTuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.run.host_text import NoData, below, line


class Bounds(NamedTuple):
    """What an archive may be, in bytes and in files."""

    packed: int
    unpacked: int
    files: int


@contextmanager
def no_larger_file(most: int) -> Iterator[None]:
    """Within it no file of this process, or of one that it starts, grows beyond so many bytes: the kernel sees to that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files(raw: bytes, root: str, bounds: Bounds) -> Dict[str, bytes]:
    """{name: content} of the files of a .tar.gz below its one directory; raises NoData for anything that is not such a file."""
    found: Dict[str, bytes] = {}
    try:
        # Data that is whole in memory: a header cannot make tarfile read more than there is
        with tarfile.open(fileobj=io.BytesIO(_inflated(raw, bounds.unpacked)), mode="r:") as archive:
            for member in archive:
                if len(found) == bounds.files:
                    raise NoData(f"found more than {bounds.files} files in it")
                name = _name(member, root)
                if name in found:
                    raise NoData(f"found {name} in it twice")
                content = archive.extractfile(member)
                found[name] = content.read() if content else b""
                if len(found[name]) != member.size:
                    raise NoData(f"found {name} cut off in it")
    except tarfile.TarError as error:
        raise NoData(f"found an archive that cannot be read: {line(error)[:200]}") from None
    return found


def _inflated(raw: bytes, most: int) -> bytes:
    """What is packed, and never more of it than `most` bytes and one."""
    reader = zlib.decompressobj(wbits=31)
    try:
        whole = reader.decompress(raw, most + 1)
    except zlib.error as error:
        raise NoData(f"found an archive that cannot be unpacked: {error}") from None
    if len(whole) > most:
        raise NoData(f"found more than {most} bytes in it")
    if not reader.eof or reader.unused_data:
        raise NoData("found an archive that is cut off" if not reader.eof else "found data behind the archive's end")
    return whole


def _name(member: tarfile.TarInfo, root: str) -> str:
    """The name of an ordinary file below the root."""
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise NoData(f"found {line(member.name)[:80]!r} in it, which is no ordinary file")
    base, slash, name = member.name.partition("/")
    if base != root or not slash:
        raise NoData(f"found {line(member.name)[:80]!r} in it, wanted files below {root}")
    below(root, name)
    return name
