# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Downloads from object stores with rclone. download.py describes `way` and `secrets`."""

from __future__ import annotations

# This code also runs outside of modules, without run_command. pylint: disable=ansible-bad-function
import os
import selectors
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.exchange import Budget
from ansible_collections.npufleet.triton.plugins.module_utils.fetch.source import (
    SECONDS,
    BrokeOff,
    FileBudget,
    Source,
    SourceError,
    copy,
)
from ansible_collections.npufleet.triton.plugins.module_utils.system import untranslated

STORES = {"s3": "s3://", "gs": "gs://"}
# Exit codes of rclone if the file, directory or bucket does not exist
MISSING = (3, 4)
# Largest description of an object, and largest error message, in bytes
SAID = 1 << 20


def store_of(url: str) -> Optional[str]:
    """Return `s3` or `gs` for an address of an object store, None for other addresses."""
    return next((name for name, head in STORES.items() if url.startswith(head)), None)


def size(url: str, way: Mapping[str, Any], secrets: Mapping[str, str]) -> int:
    """Return the size of an object in bytes. Raises SourceError if the object is missing or cannot be accessed."""
    budget = Budget(SECONDS, SAID)
    said = b""
    with _rclone(["lsjson", "--stat", "--no-modtime", "--no-mimetype"], url, way, secrets) as process:
        read = _reader(process, budget)
        try:
            for block in iter(lambda: read(SAID), b""):
                said += block
        except OSError as error:
            process.kill()
            raise SourceError(f"rclone: {error}") from None
        why = _ended(process)
    if why:
        raise SourceError(why)
    try:
        found = shapes.parse(said or b"null")
    except ValueError:
        raise SourceError(f"rclone says {said[:200]!a} of it, expected JSON: see its version") from None
    if not isinstance(found, dict) or found.get("IsDir"):
        raise SourceError("there is no such object, expected a file")
    count = found.get("Size")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise SourceError(f"rclone says that it has {str(count)[:40]!a} bytes, expected a number: see its version")
    return count


def fetch(
    url: str, sink: Any, source: Source, way: Mapping[str, Any], secrets: Mapping[str, str], alive: Callable[[], None]
) -> None:
    """Copy the rest of an object into `sink`."""
    source.announced(size(url, way, secrets))
    if sink.tell() > source.most:
        source.restart(sink, "what was here is more than there is")
    if sink.tell() == source.most:
        return
    # Without --no-traverse, rclone would list the whole directory of the object
    with _rclone(["cat", "--no-traverse", "--offset", str(sink.tell())], url, way, secrets) as process:
        budget = FileBudget(source)
        budget.begin()
        try:
            copy(_reader(process, budget), sink, alive, source.most)
        except BaseException:
            process.kill()
            raise
        why = _ended(process)
    if why or sink.tell() != source.most:
        raise BrokeOff(why or f"{sink.tell()} of {source.most} bytes came")


def _reader(process: Any, budget: Budget) -> Callable[[int], bytes]:
    """Return a function that reads the output of a process within a budget."""
    pipe = process.stdout.fileno()

    def read(count: int) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while not selector.select(budget.remaining()):
                pass
        block = os.read(pipe, count)
        budget.receive(len(block))
        return block

    return read


def environment(url: str, way: Mapping[str, Any], secrets: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment that configures rclone. `ps` shows options to other users, but not the environment."""
    kind = str(store_of(url))
    given = dict(way.get(kind) or {})
    options = {"type": "s3" if kind == "s3" else "google cloud storage", "endpoint": given.get("endpoint")}
    if kind == "s3":
        options.update(provider=given.get("provider"), region=given.get("region"))
        options.update(access_key_id=secrets.get("s3_access_key"), secret_access_key=secrets.get("s3_secret_key"))
        # If no keys are configured, rclone uses the credentials of the machine, such as its IAM role.
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
    """Run rclone for one object without a configuration file. `_ended` reads its exit code and error messages."""
    program = shutil.which("rclone")
    if not program:
        raise SourceError("rclone is missing on this machine, which object stores need: `apt-get install rclone`")
    kind = str(store_of(url))
    command = [program, *arguments, "--config=", "--retries=1", "--low-level-retries=2", "--contimeout=15s", "--timeout=60s"]
    settings = {**untranslated(), **environment(url, way, secrets)}
    # rclone's transport cannot work with this variable of Amazon's tools, so set its own variable instead
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
    """Yield the path of a file with the authorities of the site and of the system, because rclone takes only one file."""
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
    """Return the last error message of rclone if it failed, otherwise None."""
    try:
        code = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"rclone did not end within {SECONDS:.0f} s after its answer"
    if not code:
        return None
    process.complaints.seek(0)
    said = process.complaints.read(SAID).decode("utf-8", "replace").strip()
    for secret in process.secrets.values():
        said = said.replace(secret, "***") if secret else said
    if code in MISSING:
        return "there is no such object, expected a file"
    return "rclone: " + " ".join((said.splitlines() or [f"it ended with {code}"])[-1].split())[:400]
