# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Downloads from object stores with rclone. download.py describes `options` and `secrets`."""

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
    INTERVAL_SECONDS,
    ConnectionLost,
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
MAX_OUTPUT = 1 << 20
# A function that returns at most the given number of bytes, and no bytes at the end
Read = Callable[[int], bytes]


def store_of(url: str) -> Optional[str]:
    """Return `s3` or `gs` for an address of an object store, or None for other addresses."""
    return next((name for name, head in STORES.items() if url.startswith(head)), None)


def size(url: str, options: Mapping[str, Any], secrets: Mapping[str, str]) -> int:
    """Return the size of an object in bytes. Raises SourceError if the object is missing or cannot be accessed."""
    blocks: List[bytes] = []
    arguments = ["lsjson", "--stat", "--no-modtime", "--no-mimetype"]
    budget = Budget(INTERVAL_SECONDS, MAX_OUTPUT)
    try:
        why = _rclone(arguments, url, options, secrets, budget, lambda read: blocks.extend(iter(lambda: read(MAX_OUTPUT), b"")))
    except OSError as error:
        raise SourceError(f"rclone: {error}") from None
    if why:
        raise SourceError(why)
    output = b"".join(blocks)
    try:
        found = shapes.parse(output or b"null")
    except ValueError:
        raise SourceError(f"rclone returned {output[:200]!a}, expected JSON: see its version") from None
    if not isinstance(found, dict) or found.get("IsDir"):
        raise SourceError("the object does not exist, expected a file")
    count = found.get("Size")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise SourceError(f"rclone returned the size {str(count)[:40]!a}, expected a number of bytes: see its version")
    return count


def fetch(url: str, sink: Any, source: Source, options: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
    """Copy the rest of an object into `sink`."""
    source.announced(size(url, options, secrets))
    if sink.tell() > source.most:
        source.restart(sink, "the partial file is larger than the object")
    if sink.tell() == source.most:
        return
    budget = FileBudget(source)
    budget.begin()
    # Without --no-traverse, rclone would list the whole directory of the object.
    arguments = ["cat", "--no-traverse", "--offset", str(sink.tell())]
    why = _rclone(arguments, url, options, secrets, budget, lambda read: copy(read, sink, source, source.most))
    if why or sink.tell() != source.most:
        raise ConnectionLost(why or f"{sink.tell()} of {source.most} bytes arrived")


def _reader(pipe: int, budget: Budget) -> Read:
    """Return a function that reads a pipe within a budget."""

    def read(count: int) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while not selector.select(budget.remaining()):
                pass
        block = os.read(pipe, count)
        budget.receive(len(block))
        return block

    return read


def environment(url: str, options: Mapping[str, Any], secrets: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment that configures rclone. Unlike the arguments of a process, it is hidden from other users."""
    kind = str(store_of(url))
    store_options = dict(options.get(kind) or {})
    rclone = {"type": "s3" if kind == "s3" else "google cloud storage", "endpoint": store_options.get("endpoint")}
    if kind == "s3":
        rclone.update(provider=store_options.get("provider"), region=store_options.get("region"))
        rclone.update(access_key_id=secrets.get("s3_access_key"), secret_access_key=secrets.get("s3_secret_key"))
        # If no keys are configured, rclone uses the credentials of the machine, such as its IAM role.
        rclone["env_auth"] = "false" if secrets.get("s3_access_key") else "true"
    else:
        rclone.update(service_account_credentials=secrets.get("gs_credentials"), anonymous=store_options.get("anonymous"))
    variables = {f"RCLONE_CONFIG_{kind.upper()}_{name.upper()}": value for name, value in rclone.items()}
    proxies = options.get("proxies") or {}
    variables.update(HTTP_PROXY=proxies.get("http"), HTTPS_PROXY=proxies.get("https"), NO_PROXY=proxies.get("no_proxy"))
    return {name: str(value) for name, value in variables.items() if value}


def _rclone(
    arguments: List[str],
    url: str,
    options: Mapping[str, Any],
    secrets: Mapping[str, str],
    budget: Budget,
    use_output: Callable[[Read], None],
) -> Optional[str]:
    """Run rclone for one object, without a configuration file. Return its last error message if it failed, or None.

    `use_output` gets a function that reads the output of rclone within the budget.
    """
    program = shutil.which("rclone")
    if not program:
        raise SourceError("rclone, which downloads from object stores, is missing on this machine: `apt-get install rclone`")
    kind = str(store_of(url))
    command = [program, *arguments, "--config=", "--retries=1", "--low-level-retries=2", "--contimeout=15s", "--timeout=60s"]
    settings = {**untranslated(), **environment(url, options, secrets)}
    # rclone fails if this variable of Amazon's tools is set, so its value moves to rclone's own variable.
    bundle = settings.pop("AWS_CA_BUNDLE", None)
    if bundle:
        settings.setdefault("RCLONE_CA_CERT", bundle)
    with tempfile.TemporaryFile() as errors, _authorities(options.get("ca")) as authorities:
        if authorities:
            settings["RCLONE_CA_CERT"] = authorities
        command.append(f"{kind}:{url[len(STORES[kind]) :]}")
        with subprocess.Popen(command, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as process:
            try:
                use_output(_reader(process.stdout.fileno(), budget))  # type: ignore[union-attr]
                code = process.wait(INTERVAL_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return f"rclone did not end within {INTERVAL_SECONDS:.0f} s after its output"
            except BaseException:
                process.kill()
                raise
        if code in (0, *MISSING):
            return "the object does not exist, expected a file" if code else None
        errors.seek(0)
        output = errors.read(MAX_OUTPUT).decode("utf-8", "replace").strip()
    for secret in filter(None, secrets.values()):
        output = output.replace(secret, "***")
    return "rclone: " + " ".join((output.splitlines() or [f"it ended with {code}"])[-1].split())[:400]


@contextmanager
def _authorities(ca: Optional[str]) -> Iterator[Optional[str]]:
    """Yield the path of one file with the certificate authorities of the site and of the system. rclone reads only one file."""
    if not ca:
        yield None
        return
    import ssl

    system = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as all_authorities:
        if os.path.isfile(system):
            with open(system, encoding="utf-8") as source:
                shutil.copyfileobj(source, all_authorities)
        all_authorities.write("\n" + ca)
        all_authorities.flush()
        yield all_authorities.name
