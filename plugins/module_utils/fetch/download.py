"""Where a large file comes from: a web server, an object store, a bundle. For the controller, and hosts that fetch themselves.

An interrupted download is resumed: by Range over HTTP, by rclone's offset from object stores. What has come is proven by its digest
elsewhere. `way` says how to get there, and may be shown: {"user", "proxies", "ca", "s3": {"provider", "endpoint", "region"},
"gs": {"endpoint"}}. `secrets` may not: {"password", "s3_access_key", "s3_secret_key", "gs_credentials"}.
"""

from __future__ import annotations

# Runs in programs too, which have no run_command of a module. pylint: disable=ansible-bad-function
import errno
import json
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
from ansible_collections.npufleet.triton.plugins.module_utils.store import takeover
from ansible_collections.npufleet.triton.plugins.module_utils.system import untranslated

BLOCK = 1 << 20
# How often a source may break off in a row without a byte in between
TRIES = 3
SECONDS = 60.0
STORES = {"s3": "s3://", "gs": "gs://"}
FULL = (errno.ENOSPC, errno.EDQUOT)
# What rclone ends with where there is no such file or bucket
NOT_THERE = (3, 4)


class SourceError(Exception):
    """Why a file cannot be had from its source."""


class _BrokeOff(Exception):
    """The source ended before its file did."""


def store_of(url: str) -> Optional[str]:
    """`s3` or `gs` for an address that rclone takes, None for the web's."""
    return next((name for name, head in STORES.items() if url.startswith(head)), None)


def shown(origin: Mapping[str, Any]) -> str:
    """A source as a message names it, without a login or a signature."""
    return str(origin.get("bundle") or origin.get("file") or (http_probe.bare(origin["url"]) if origin.get("url") else "nowhere"))


# Bundles


def bundled(path: str) -> Dict[str, int]:
    """{digest: bytes} of a bundle: a directory, or a tar of one, with blobs/sha256/<digest>."""
    if not path:
        return {}
    with _refusing(path):
        if os.path.isdir(path):
            with os.scandir(os.path.join(path, "blobs", "sha256")) as found:
                return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}
        with tarfile.open(path) as archive:
            return {os.path.basename(member.name): member.size for member in archive if member.isfile() and _in_home(member.name)}


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    """What reading a bundle raises, whatever it is packed with, as what was found and wanted."""
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceError(
            f"found no whole bundle {path} ({why}), wanted a directory or tar with blobs/sha256/<digest>: correct "
            "model_repository_bundle, or copy it anew"
        ) from None


def _in_home(name: str) -> bool:
    return os.path.dirname(os.path.normpath(name)) == os.path.join("blobs", "sha256")


@contextmanager
def _member(path: str, digest: str) -> Iterator[Any]:
    """One file of a bundle, opened, or None."""
    if os.path.isdir(path):
        inside = os.path.join(path, "blobs", "sha256", digest)
        with open(inside, "rb") if os.path.isfile(inside) else nullcontext() as source:
            yield source
        return
    with _refusing(path):
        archive = tarfile.open(path)  # noqa: SIM115 (closed below)
    with archive:
        with _refusing(path):
            found = next(
                (
                    member
                    for member in archive
                    if member.isfile() and _in_home(member.name) and os.path.basename(member.name) == digest
                ),
                None,
            )
        yield archive.extractfile(found) if found else None


def _from_bundle(path: str, digest: str, sink: Any, alive: Callable[[], None]) -> None:
    with _member(path, digest) as source:
        if source is None:
            raise SourceError(f"found no {digest} in bundle {path}, wanted it there as blobs/sha256/{digest}: make the bundle anew")

        def read(count: int) -> bytes:
            with _refusing(path):
                return bytes(source.read(count))

        with _refusing(path):
            whole = source.seek(0, os.SEEK_END)
            if sink.tell() > whole:
                _empty(sink)
            source.seek(sink.tell())
        _copy(read, sink, alive)


# Sizes


def size(origin: Mapping[str, Any], digest: str, way: Mapping[str, Any], secrets: Mapping[str, str]) -> Optional[int]:
    """Bytes of a file at its source, None where that does not say. Raises SourceError where there is none, or no way to it."""
    if origin.get("bundle"):
        return bundled(origin["bundle"]).get(digest)
    if origin.get("file"):
        try:
            return os.path.getsize(origin["file"])
        except OSError as error:
            raise SourceError(f"found no {origin['file']} ({error.strerror}), wanted the compiled file there") from None
    if not origin.get("url"):
        raise SourceError("found neither `url` nor `file` of it, nor a bundle that has it: name one")
    if store_of(origin["url"]):
        return _stored_size(origin["url"], way, secrets)
    found, why = http_probe.measure(origin["url"], _login(way, secrets), way.get("proxies") or {}, way.get("ca"))
    if why:
        raise SourceError(why)
    return found


def _stored_size(url: str, way: Mapping[str, Any], secrets: Mapping[str, str]) -> int:
    with _rclone(["lsjson", "--stat", "--no-modtime", "--no-mimetype"], url, way, secrets) as process:
        said, _nothing = process.communicate()
        why = _ended(process)
    if why:
        raise SourceError(why)
    found = json.loads(said or b"null")
    if not isinstance(found, dict) or found.get("IsDir"):
        raise SourceError("found no such object, wanted a file there")
    return int(found["Size"])


def _login(way: Mapping[str, Any], secrets: Mapping[str, str]) -> Tuple[str, str]:
    return str(way.get("user") or ""), secrets.get("password") or ""


# Fetching


def fetch(
    origin: Mapping[str, Any],
    digest: str,
    target: str,
    way: Mapping[str, Any],
    secrets: Mapping[str, str],
    alive: Callable[[], None] = lambda: None,
) -> None:
    """Bring a file to `target`, going on with what is there. `alive` is called between blocks and may raise to end it.

    A connection that breaks off is opened again as long as bytes come. What came stays for the next run, unless the disk is full.
    """
    idle = 0
    while True:
        with _partial(target) as sink:
            before = sink.tell()
            try:
                _stream(origin, digest, sink, way, secrets, alive)
                return
            except _BrokeOff as why:
                idle = 0 if sink.tell() > before else idle + 1
                if idle >= TRIES:
                    raise SourceError(f"it broke off after {sink.tell()} bytes ({why}): run again, it goes on from there") from None
            except OSError as error:
                if error.errno in FULL:
                    written = sink.tell()
                    os.unlink(target)
                    raise SourceError(
                        f"{os.path.dirname(target)} is full ({error.strerror}) after {written} bytes, which were removed: "
                        "make room there"
                    ) from None
                raise


@contextmanager
def _partial(target: str) -> Iterator[Any]:
    """What there is of a file, to write on: never through a link that somebody else laid there."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(target, flags, 0o600)
        foreign = not takeover.plain(os.fstat(handle))
        if foreign:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        foreign = True
    if foreign:
        os.unlink(target)
        handle = os.open(target, flags | os.O_EXCL, 0o600)
    # Unbuffered: what tell() says is on the disk
    with os.fdopen(handle, "r+b", buffering=0) as sink:
        sink.seek(0, os.SEEK_END)
        yield sink


def _stream(
    origin: Mapping[str, Any],
    digest: str,
    sink: Any,
    way: Mapping[str, Any],
    secrets: Mapping[str, str],
    alive: Callable[[], None],
) -> None:
    """The rest of a file from its source into `sink`."""
    if origin.get("bundle"):
        _from_bundle(origin["bundle"], digest, sink, alive)
    elif store_of(origin["url"]):
        _from_store(origin, sink, way, secrets, alive)
    else:
        _from_web(origin["url"], sink, way, secrets, alive)


def _copy(read: Callable[[int], bytes], sink: Any, alive: Callable[[], None]) -> None:
    from http.client import HTTPException

    while True:
        alive()
        try:
            block = memoryview(read(BLOCK))
        except (HTTPException, OSError) as error:
            raise _BrokeOff(str(error) or type(error).__name__) from None
        if not block:
            return
        while block:
            block = block[sink.write(block) :]


def _from_web(url: str, sink: Any, way: Mapping[str, Any], secrets: Mapping[str, str], alive: Callable[[], None]) -> None:
    import urllib.error
    from http.client import HTTPException

    login = _login(way, secrets)
    have = sink.tell()
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        with http_probe.ask(url, login, way.get("proxies") or {}, way.get("ca"), headers, "GET", SECONDS) as answer:
            start = 0
            if answer.status == 206:
                start = int(str(answer.headers.get("Content-Range", "")).partition(" ")[2].partition("-")[0] or 0)
            if start not in (0, have):
                raise SourceError(f"found an answer from byte {start} on, wanted it from {have}: the server's Range is broken")
            if start != have:
                _empty(sink)
            length = answer.headers.get("Content-Length", "")
            _copy(answer.read, sink, alive)
            if length.isdigit() and sink.tell() - start != int(length):
                raise _BrokeOff(f"{sink.tell() - start} of {length} bytes came")
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and str(error.headers.get("Content-Range", "")) == f"bytes */{have}":
                return
            if error.code == 416:
                _empty(sink)
                raise _BrokeOff("what was here is more than there is") from None
            if error.code >= 500:
                raise _BrokeOff(f"status {error.code}") from None
            raise SourceError(str(http_probe.judge(error.code, str(error.reason), login))) from None
    except urllib.error.URLError as error:
        raise _BrokeOff(str(error.reason)) from None
    except http_probe.AddressError as error:
        raise SourceError(str(error)) from None
    except (HTTPException, OSError) as error:
        if getattr(error, "errno", None) in FULL:
            raise
        raise _BrokeOff(str(error) or type(error).__name__) from None


def _empty(sink: Any) -> None:
    sink.seek(0)
    sink.truncate()


def _from_store(
    origin: Mapping[str, Any], sink: Any, way: Mapping[str, Any], secrets: Mapping[str, str], alive: Callable[[], None]
) -> None:
    whole = _stored_size(origin["url"], way, secrets)
    if sink.tell() > whole:
        _empty(sink)
    if sink.tell() == whole:
        return
    # Without --no-traverse it would list the whole directory of the object
    with _rclone(["cat", "--no-traverse", "--offset", str(sink.tell())], origin["url"], way, secrets) as process:
        try:
            _copy(process.stdout.read, sink, alive)
        except BaseException:
            process.kill()
            raise
        why = _ended(process)
    if why or sink.tell() != whole:
        raise _BrokeOff(why or f"{sink.tell()} of {whole} bytes came")


# rclone


def environment(url: str, way: Mapping[str, Any], secrets: Mapping[str, str]) -> Dict[str, str]:
    """How rclone learns of the store: by its environment, which no `ps` of another user shows, and not by a file."""
    kind = str(store_of(url))
    given = dict(way.get(kind) or {})
    options = {"type": "s3" if kind == "s3" else "google cloud storage", "endpoint": given.get("endpoint")}
    if kind == "s3":
        options.update(provider=given.get("provider"), region=given.get("region"))
        options.update(access_key_id=secrets.get("s3_access_key"), secret_access_key=secrets.get("s3_secret_key"))
        # Without keys of ours it takes those that the machine has, such as those of its role
        options["env_auth"] = "false" if secrets.get("s3_access_key") else "true"
    else:
        options.update(service_account_credentials=secrets.get("gs_credentials"), anonymous=given.get("anonymous"))
    made = {f"RCLONE_CONFIG_{kind.upper()}_{name.upper()}": str(value) for name, value in options.items() if value}
    proxies = way.get("proxies") or {}
    made.update({f"{scheme}_proxy".upper(): proxies[scheme] for scheme in ("http", "https") if proxies.get(scheme)})
    if proxies.get("no_proxy"):
        made["NO_PROXY"] = proxies["no_proxy"]
    return made


@contextmanager
def _rclone(arguments: List[str], url: str, way: Mapping[str, Any], secrets: Mapping[str, str]) -> Iterator[Any]:
    """rclone on one object, without a file of settings; its complaints are kept for `_ended`."""
    program = shutil.which("rclone")
    if not program:
        raise SourceError("found no rclone here, wanted it for object stores: `apt-get install rclone`")
    kind = str(store_of(url))
    command = [program, *arguments, "--config=", "--retries=1", "--low-level-retries=2", "--contimeout=15s", "--timeout=60s"]
    settings = {**untranslated(), **environment(url, way, secrets)}
    # Amazon's own variable, with which rclone's transport cannot work
    bundle = settings.pop("AWS_CA_BUNDLE", None)
    if bundle:
        settings.setdefault("RCLONE_CA_CERT", bundle)
    # pylint: disable=contextmanager-generator-missing-cleanup
    with tempfile.TemporaryFile() as complaints, _authorities(way.get("ca")) as authorities:
        if authorities:
            settings["RCLONE_CA_CERT"] = authorities
        command.append(f"{kind}:{url[len(STORES[kind]) :]}")
        with subprocess.Popen(
            command, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints
        ) as process:
            process.complaints = complaints  # type: ignore[attr-defined]
            process.secrets = secrets  # type: ignore[attr-defined]
            yield process


@contextmanager
def _authorities(ca: Optional[str]) -> Iterator[Optional[str]]:
    """A file with the site's authority beside the system's, for rclone, which takes one or the other."""
    if not ca:
        yield None
        return
    import ssl

    system = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
        if os.path.isfile(system):
            with open(system, encoding="utf-8") as source:
                shutil.copyfileobj(source, both)
        both.write("\n" + ca)
        both.flush()
        yield both.name


def _ended(process: Any) -> Optional[str]:
    """Why rclone failed, in its own last words; None where it did not."""
    code = process.wait()
    if not code:
        return None
    process.complaints.seek(0)
    said = process.complaints.read().decode("utf-8", "replace").strip()
    for secret in process.secrets.values():
        said = said.replace(secret, "***") if secret else said
    if code in NOT_THERE:
        return "found no such object, wanted a file there"
    return "rclone: " + " ".join((said.splitlines() or [f"it ended with {code}"])[-1].split())[:400]
