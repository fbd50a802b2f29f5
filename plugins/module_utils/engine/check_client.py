# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Runs of the client that sends the checks to a server. The client runs in a short-lived container, or in a process."""

from __future__ import annotations

# Programs without an AnsibleModule import this file, too. pylint: disable=ansible-bad-function
import json
import os
import subprocess
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.system import MAX_OUTPUT, OutputTooLarge, capture, untranslated, which

Results = List[Dict[str, Any]]
# The last line of the client's output
ANSWER = {"error?": str, "checks?": [{"name": str, "ok": bool, "why": str}]}
ENTRY = "inference.runner"
# Largest number of failed checks in a message
MAX_SHOWN = 20
# ENGINE_SECONDS: time to start and remove a container. REQUESTS_PER_CHECK: at most two requests over each of two protocols.
ENGINE_SECONDS, REQUESTS_PER_CHECK = 300.0, 4
# The exit code of `docker run` if the engine cannot run the container
ENGINE_FAILED = 125
# Directories in which docker is searched in addition to PATH
EXTRA_PATH = "/sbin:/usr/sbin:/usr/local/sbin"
# Options of the container. They forbid a pull, because only the existing image was verified. The client needs only the network,
# and /tmp for its own program.
OPTIONS = (
    *("--rm", "--interactive", "--pull", "never", "--network", "host"),
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
)
# The program that starts in the container. It reads the client and its document from standard input. It limits numpy to one thread,
# because more threads only use CPU time while they wait. Rare garbage collection and an exit without cleanup save time.
START = f"""
import base64, gc, json, os, sys, tempfile
gc.set_threshold(50000)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
payload = json.load(sys.stdin)
with tempfile.NamedTemporaryFile(suffix=".pyz") as program:
    program.write(base64.b64decode(payload["program"]))
    program.flush()
    sys.path.insert(0, program.name)
    from {archive.PREFIX}{ENTRY} import main
    main(payload["document"])
os._exit(0)
"""


def standard_input(document: Mapping[str, Any], program: str) -> bytes:
    """Return the standard input of the container; `program` is the client as a base64 archive."""
    return json.dumps({"program": program, "document": document}, sort_keys=True).encode()


class ClientError(Exception):
    """The reason why the checks have no results. `cause` is "engine", "image", "client" or "time"."""

    def __init__(self, message: str, cause: str = "client") -> None:
        super().__init__(message)
        self.cause = cause


def time_limit(document: Mapping[str, Any]) -> float:
    """Return the seconds that the checks of a document can take at most."""
    return ENGINE_SECONDS + REQUESTS_PER_CHECK * float(document.get("timeout", 30)) * len(document["checks"])


def run_in_container(image: str, document: Mapping[str, Any], program: str, name: str = "", limit: float = 0.0) -> Results:
    """Run the checks in a container, remove the container, and return the results. Raises ClientError.

    A caller uses its `name` for one container at a time. So an older container with this name is a leftover and is removed.
    """
    docker = which("docker", EXTRA_PATH)
    if not docker:
        raise ClientError("docker is not installed, expected an engine to run the client. Apply the role docker_engine", "engine")
    limit = limit or time_limit(document)
    own_name = name or f"npufleet-check-{os.getpid()}"
    line = [docker, "run", *OPTIONS, "--name", own_name, "--entrypoint", "python3", image, "-c", START]
    request = standard_input(document, program).decode()
    try:
        done = capture(line, limit, request)
        if name and done.returncode == ENGINE_FAILED and "is already in use" in done.stderr:
            _remove(docker, name)
            done = capture(line, limit, request)
    except (subprocess.TimeoutExpired, OutputTooLarge) as error:
        _remove(docker, own_name)
        is_timeout = isinstance(error, subprocess.TimeoutExpired)
        failure = f"did not end within {limit:.0f} s" if is_timeout else f"failed: {error}"
        raise ClientError(f"the client in image {image} {failure}. See `docker ps`", "time" if is_timeout else "client") from None
    if done.returncode == ENGINE_FAILED and "no such image" in done.stderr.lower():
        raise ClientError(f"image {image} is not on the host. Apply the role triton_image, or name another image", "image")
    if done.returncode == ENGINE_FAILED:
        raise ClientError(f"the engine does not run the client in image {image}: {_end(done.stderr)}", "engine")
    return _results(done, f"image {image}")


def _remove(docker: str, name: str) -> None:
    """Remove a container whose `docker run` was killed or did not end in time."""
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run([docker, "rm", "--force", name], capture_output=True, timeout=60, check=False, env=untranslated())


def run_in_process(python: str, document: Mapping[str, Any], program: str) -> Results:
    """Run the checks with a Python interpreter that has the client's packages, and return the results. Raises ClientError."""
    try:
        done = capture([python, "-c", START], time_limit(document), standard_input(document, program).decode())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClientError(f"the client of {python} did not run: {error}") from None
    return _results(done, python)


def _end(output: str) -> str:
    return " ".join(output.split())[-600:]


def _results(done: subprocess.CompletedProcess[str], source: str) -> Results:
    """Return the results that the client has printed. Raises ClientError."""
    try:
        # The size limit is large (MAX_OUTPUT), because each result may include a picture.
        answer = shapes.parse_as(done.stdout.strip().rpartition("\n")[2], ANSWER, MAX_OUTPUT)
        if "error" in answer:
            raise ClientError(f"{source} has no client ({answer['error']}), expected numpy and tritonclient[http,grpc]")
        checks: Results = answer["checks"]
        return checks
    except (ValueError, KeyError):
        message = f"the client in {source} ended with {done.returncode} and without a result: {_end(done.stderr)}"
        raise ClientError(message) from None


def report(host: str, results: Results, excluded: Sequence[str] = ()) -> Dict[str, Any]:
    """Return {"msg", "proven", "passed", "checks"} for the result of a module. The `excluded` models need no checks."""
    failed = [result for result in results if not result["ok"]]
    passed = len(results) - len(failed)
    lines = [f"  - {check['name']}: {check['why']}" for check in failed[:MAX_SHOWN]]
    if len(failed) > MAX_SHOWN:
        lines.append(f"  - and {len(failed) - MAX_SHOWN} more")
    no_checks = "no checks ran for " + ", ".join(excluded) if excluded else "no model to check"
    count = f"{passed} of {len(results)} checks passed" if results else no_checks
    return {"msg": "\n".join([f"{host}: {count}", *lines]), "proven": not failed, "passed": passed, "checks": results}


def prove(
    client: str,
    document: Mapping[str, Any],
    program: str,
    headers: Mapping[str, str],
    run: Optional[Callable[[str, Mapping[str, Any], str], Results]] = None,
) -> Dict[str, Any]:
    """Run the checks of a document with these default headers, and return their report. Raises ClientError.

    `run` runs the checks, by default `run_in_container`. `client` is its first argument: an image or an interpreter.
    """
    server = document["server"]
    request = {key: value for key, value in document.items() if key != "no_check_file"}
    if headers:
        request["server"] = {**server, "headers": {**headers, **(server.get("headers") or {})}}
    results = (run or run_in_container)(client, request, program) if request["checks"] else []
    return report(request["host"], [*document.get("no_check_file", []), *results], request.get("unchecked", []))
