# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Downloads of large files from web servers, object stores and bundles, by the controller or by hosts.

A bundle is a directory or tar with blobs. An interrupted download is resumed: from web servers by a Range request, from object
stores by an offset of rclone. The caller verifies the digest.

`origin` is the source of a file: {"url"}, {"bundle": its path}, or for a file that the controller has compiled {"file": its path}.
`options` are settings that are not secret: {"user", "proxies", "ca", "s3": {"provider", "endpoint", "region"},
"gs": {"endpoint"}}. `secrets` is {"password", "s3_access_key", "s3_secret_key", "gs_credentials"}.
"""

from __future__ import annotations

# Programs without an AnsibleModule import this file, too. pylint: disable=ansible-bad-function
import errno
import lzma
import os
import re
import tarfile
import zlib
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import object_stores
from ansible_collections.npufleet.triton.plugins.module_utils.fetch.object_stores import store_of
from ansible_collections.npufleet.triton.plugins.module_utils.fetch.source import (
    ConnectionLost,
    FileBudget,
    Source,
    SourceError,
    copy,
    empty,
)
from ansible_collections.npufleet.triton.plugins.module_utils.store import foreign

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# The header Content-Range: first byte, last byte, and size of the file
RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/(?:([0-9]{1,15})|\*)")


def display_name(origin: Mapping[str, Any]) -> str:
    """Return the name of a source for messages, without a login or a signature."""
    url = origin.get("url")
    return str(origin.get("bundle") or origin.get("file") or (http_probe.public_address(url) if url else "nowhere"))


def blobs_in_bundle(path: str) -> Dict[str, int]:
    """Return {digest: size} of the blobs in a bundle: a directory with files blobs/sha256/<digest>, or a tar of that directory."""
    if not path:
        return {}
    with _source_errors(path):
        if os.path.isdir(path):
            with os.scandir(os.path.join(path, "blobs", "sha256")) as found:
                return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}
        with tarfile.open(path) as archive:
            return {_blob_digest(member): member.size for member in archive if _blob_digest(member)}


@contextmanager
def _source_errors(path: str) -> Iterator[None]:
    """Turn each error of code that reads a bundle into a SourceError."""
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceError(
            f"{path} is no complete bundle ({why}), expected a directory or tar with blobs/sha256/<digest>. Correct "
            "model_repository_bundle, or copy it again"
        ) from None


def _blob_digest(member: tarfile.TarInfo) -> str:
    """Return the digest of a blob in a tar, or an empty text for another member."""
    directory, name = os.path.split(os.path.normpath(member.name))
    return name if member.isfile() and directory == os.path.join("blobs", "sha256") else ""


def _open_blob(path: str, digest: str, closing: ExitStack) -> Any:
    """Return a blob of a bundle as an open file, or None if the bundle does not have it. `closing` closes the file."""
    if os.path.isdir(path):
        blob = os.path.join(path, "blobs", "sha256", digest)
        return closing.enter_context(open(blob, "rb")) if os.path.isfile(blob) else None
    archive = closing.enter_context(tarfile.open(path))  # noqa: SIM115 (`closing` closes it)
    member = next((member for member in archive if _blob_digest(member) == digest), None)
    return archive.extractfile(member) if member else None


def _from_bundle(path: str, digest: str, sink: Any, source: Source) -> None:
    def read(count: int) -> bytes:
        with _source_errors(path):
            return bytes(blob.read(count))

    with ExitStack() as closing:
        with _source_errors(path):
            blob = _open_blob(path, digest, closing)
            if blob is None:
                raise SourceError(f"bundle {path} has no blobs/sha256/{digest}. Make the bundle again")
            size_in_bundle = blob.seek(0, os.SEEK_END)
            if sink.tell() > size_in_bundle:
                empty(sink)
            blob.seek(sink.tell())
        copy(read, sink, source, size_in_bundle)


def size(origin: Mapping[str, Any], digest: str, options: Mapping[str, Any], secrets: Mapping[str, str]) -> Optional[int]:
    """Return the size of a file at its source, or None if the source does not report it.

    Raises SourceError if the file cannot be accessed.
    """
    if origin.get("bundle"):
        return blobs_in_bundle(origin["bundle"]).get(digest)
    if origin.get("file"):
        try:
            return os.path.getsize(origin["file"])
        except OSError as error:
            raise SourceError(f"{origin['file']} is missing ({error.strerror}), expected the compiled file") from None
    if not origin.get("url"):
        raise SourceError("it has no `url`, no `file`, and is in no bundle. Name one")
    if store_of(origin["url"]):
        return object_stores.size(origin["url"], options, secrets)
    found, why = http_probe.measure(origin["url"], http_probe.access(options, secrets.get("password")))
    if why:
        raise SourceError(why)
    return found


def fetch(
    origin: Mapping[str, Any],
    digest: str,
    target: str,
    options: Mapping[str, Any],
    secrets: Mapping[str, str],
    check_cancelled: Callable[[], None] = lambda: None,
) -> None:
    """Download a file to `target`, or the rest of a partial file. `check_cancelled` is called between blocks and can raise.

    If a connection ends too early, the download continues over a new connection, within the limits of source.py. The download
    fails if the file does not have the `size` of its origin. The partial file of a failed download stays, and the next run resumes
    it. But if the disk is full, or the file is larger than announced, the partial file is removed.
    """
    source = Source(origin.get("size"), check_cancelled)
    while True:
        with _partial(target) as sink:
            before = sink.tell()
            try:
                if origin.get("bundle"):
                    _from_bundle(origin["bundle"], digest, sink, source)
                elif store_of(origin["url"]):
                    object_stores.fetch(origin["url"], sink, source, options, secrets)
                else:
                    _from_web(origin["url"], sink, source, options, secrets)
                return
            except ConnectionLost as why:
                source.count_interruption(why, before, sink.tell())
            except OSError as error:
                if error.errno in DISK_FULL:
                    written = sink.tell()
                    os.unlink(target)
                    raise SourceError(
                        f"{os.path.dirname(target)} is full ({error.strerror}) after {written} bytes, which were removed: "
                        "make room there"
                    ) from None
                raise


@contextmanager
def _partial(target: str) -> Iterator[Any]:
    """Open a partial file at its end. Replace another type of file, such as a planted link, by an empty file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(target, flags, 0o600)
        is_planted = not foreign.is_plain(os.fstat(handle))
        if is_planted:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        is_planted = True
    if is_planted:
        os.unlink(target)
        handle = os.open(target, flags | os.O_EXCL, 0o600)
    # The file is unbuffered, so that tell() returns the number of bytes that were written.
    with os.fdopen(handle, "r+b", buffering=0) as sink:
        sink.seek(0, os.SEEK_END)
        yield sink


def _from_web(url: str, sink: Any, source: Source, options: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
    import urllib.error
    from http.client import HTTPException

    access = http_probe.access(options, secrets.get("password"))
    have = sink.tell()
    headers = {"Range": f"bytes={have}-"} if have else {}
    budget = FileBudget(source)
    try:
        with http_probe.send(url, access, headers, "GET", budget) as answer:
            start, end, total = _announced_range(answer, have)
            source.announced(total)
            tag, before = str(answer.headers.get("ETag", "")), source.tag
            source.tag = tag
            if start and before not in ("", tag):
                source.restart(sink, "its file has changed")
                raise ConnectionLost("its file has changed")
            if start != have:
                source.restart(sink, "it does not resume at the requested byte")
            budget.begin()
            copy(answer.read1, sink, source, source.most, end)
            if source.size is not None and sink.tell() != source.size:
                raise ConnectionLost(f"{sink.tell()} of {source.size} bytes arrived")
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and str(error.headers.get("Content-Range", "")) == f"bytes */{have}" and have <= source.most:
                return
            if error.code == 416:
                why = "the partial file is larger than the file at the source"
                source.restart(sink, why)
                raise ConnectionLost(why) from None
            if error.code >= 500:
                raise ConnectionLost(f"status {error.code}") from None
            raise SourceError(str(http_probe.status_error(error.code, str(error.reason), access.login))) from None
    except urllib.error.URLError as error:
        raise ConnectionLost(str(error.reason)) from None
    except http_probe.AddressError as error:
        raise SourceError(str(error)) from None
    except (HTTPException, OSError) as error:
        if getattr(error, "errno", None) in DISK_FULL:
            raise
        raise ConnectionLost(str(error) or type(error).__name__) from None


def _announced_range(answer: Any, have: int) -> Tuple[int, Optional[int], Optional[int]]:
    """Return (position of the first byte of a response, position after its last byte, size of the file). Raises SourceError."""
    if answer.status != 206:
        length = http_probe.whole_number(str(answer.headers.get("Content-Length", "")))
        return 0, length, length
    content_range = str(answer.headers.get("Content-Range", ""))
    found = RANGE.fullmatch(content_range)
    if found:
        start, end, total = int(found[1]), int(found[2]) + 1, int(found[3]) if found[3] else None
        if start in (0, have) and start < end <= (total or end):
            return start, end, total
    raise SourceError(
        f"it answers with the Content-Range {content_range[:80]!a}, expected a range from byte {have}: correct the source"
    )
