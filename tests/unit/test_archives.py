"""Archives of a host: what is no bundle is told in words, before it costs more than it may."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.modules.support_bundle import pack
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import archives
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.host_text import InvalidText

BOUNDS = archives.Bounds(packed=1 << 20, unpacked=1 << 20, files=20)


def archive(*members: tuple[str, dict[str, Any]], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A .tar.gz of members of one byte, each with these attributes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=form) as target:
        for name, attributes in members:
            member = tarfile.TarInfo(name)
            member.size = 1
            for key, value in attributes.items():
                setattr(member, key, value)
            target.addfile(member, io.BytesIO(b"x" * max(member.size, 0)))
    return packed.getvalue()


def test_a_bundle_is_read() -> None:
    texts = {"README.txt": "a\n", "state/models.json": "{}", "container/triton-ä.json": "é"}
    assert archives.files(pack("npu1-x", texts), "npu1-x", BOUNDS) == {name: text.encode() for name, text in texts.items()}


@pytest.mark.parametrize(
    "name", ["/etc/cron.d/x", "../x", "r", "r/", "r/../x", "r/a/../../x", "r//etc/x", "r/a\x1b[2J", "s/x", "r/./x"]
)
def test_names_that_lead_elsewhere(name: str) -> None:
    with pytest.raises(InvalidText, match=r"the (archive|path)"):
        archives.files(archive((name, {})), "r", BOUNDS)


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE],
)
def test_types_that_are_no_files(kind: bytes) -> None:
    with pytest.raises(InvalidText, match="the archive has 'r/a', which is no ordinary file"):
        archives.files(archive(("r/a", {"type": kind, "size": 0, "linkname": "/etc/shadow"})), "r", BOUNDS)


def test_a_sparse_file_is_none() -> None:
    sparse = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40)}
    with pytest.raises(InvalidText, match="no ordinary file"):
        archives.files(archive(("r/a", {"pax_headers": sparse}), form=tarfile.PAX_FORMAT), "r", BOUNDS)


def test_too_many_files_and_one_twice() -> None:
    with pytest.raises(InvalidText, match="more than 20 files"):
        archives.files(archive(*((f"r/{number}", {}) for number in range(21))), "r", BOUNDS)
    with pytest.raises(InvalidText, match="the archive has a twice"):
        archives.files(archive(("r/a", {}), ("r/a", {})), "r", BOUNDS)


def test_what_unpacks_to_more_is_not_unpacked() -> None:
    """A hundred and twenty-eight MiB of nothing, in a file and in a header of one: neither is ever in memory."""
    squeezed = io.BytesIO()
    with gzip.GzipFile(fileobj=squeezed, mode="wb", compresslevel=1) as target:
        for kind in (tarfile.XHDTYPE, tarfile.REGTYPE):
            member = tarfile.TarInfo("r/a")
            member.type, member.size = kind, 1 << 26
            target.write(member.tobuf(tarfile.GNU_FORMAT))
            for _block in range(1 << 6):
                target.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidText, match="more than 1048576 bytes"):
            archives.files(squeezed.getvalue(), "r", BOUNDS)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "truncated"),
        (b"no archive", "cannot be unpacked"),
        (pack("r", {"a": "text"})[:-20], "truncated"),
        (pack("r", {"a": "text"}) * 2, "after its end"),
        (gzip.compress(b"no archive" * 100), "cannot be read"),
    ],
)
def test_what_is_no_archive(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidText, match=words):
        archives.files(raw, "r", BOUNDS)
