"""How the checks run on a host: in a short-lived container of the release image, which carries its client."""

from __future__ import annotations

# Runs in programs too, which have no run_command of a module. pylint: disable=ansible-bad-function
import json
import os
import subprocess
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.system import OUTPUT, TooMuch, capture, untranslated, which

# What the client writes at its end
ANSWER = {"error?": str, "checks?": [{"name": str, "ok": bool, "why": str}]}
ENTRY = "inference.runner"
# Failed checks that a message names
SHOWN = 20
# Seconds for a container to start and to be taken away; a check asks over both protocols, and may ask again
ENGINE_SECONDS, ASKED_PER_CHECK = 300.0, 4
# What the engine itself answers with when it cannot run a container
ENGINE_FAILED = 125
# Where it may lie beside the paths of whoever asks
ALSO = "/sbin:/usr/sbin:/usr/local/sbin"
# What such a container may do: ask, and write what it was given to a file
LEAST = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
# What python3 in the container starts with: program and document come together on standard input. numpy's own threads, one for each
# core, have nothing to do but to wait busily. Nearly all that it makes are imports, which stay: it seldom looks for what can
# be freed, and does not take them apart at its end.
START = f"""
import base64, gc, json, os, sys, tempfile
gc.set_threshold(50000)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
given = json.load(sys.stdin)
with tempfile.NamedTemporaryFile(suffix=".pyz") as program:
    program.write(base64.b64decode(given["program"]))
    program.flush()
    sys.path.insert(0, program.name)
    from {archive.PREFIX}{ENTRY} import main
    main(given["document"])
os._exit(0)
"""


def given(document: Mapping[str, Any], program: str) -> bytes:
    """What such a container takes on standard input; `program` is the archive as base64."""
    return json.dumps({"program": program, "document": document}, sort_keys=True).encode()


def command(docker: str, image: str, more: Sequence[str] = ()) -> List[str]:
    """The command line of such a container; what it is to ask comes on standard input.

    Without a look at registries: what was not brought here on purpose is not what was proven.
    """
    options = ["--rm", "--interactive", "--pull", "never", "--network", "host", *LEAST, *more, "--entrypoint", "python3"]
    return [docker, "run", *options, image, "-c", START]


class Unasked(Exception):
    """Why the checks could not be asked at all."""


def seconds(document: Mapping[str, Any]) -> float:
    """Return the seconds that asking a document may take."""
    return ENGINE_SECONDS + ASKED_PER_CHECK * float(document.get("timeout", 30)) * len(document["checks"])


def ask(image: str, document: Mapping[str, Any], program: str) -> List[Dict[str, Any]]:
    """The results of a document, from a container that is gone afterwards. Raises Unasked."""
    docker = which("docker", ALSO)
    if not docker:
        raise Unasked("found no docker, wanted the engine to run the client in: apply the role docker_engine")
    # An engine that refuses at once does not read what it is given, and its words count
    asked = given(document, program).decode()
    limit = seconds(document)
    name = f"npufleet-check-{os.getpid()}"
    line = command(docker, image, ["--name", name])
    try:
        done = capture(line, limit, asked)
    except (subprocess.TimeoutExpired, TooMuch) as error:
        with suppress(subprocess.SubprocessError):
            subprocess.run([docker, "rm", "--force", name], capture_output=True, timeout=60, check=False, env=untranslated())
        late = isinstance(error, subprocess.TimeoutExpired)
        what = f"has not ended within {limit:.0f} s" if late else f"is no client: {error}"
        raise Unasked(f"the client in image {image} {what}, wanted its answers: see `docker ps`") from None
    words = " ".join(done.stderr.split())[-600:]
    if done.returncode == ENGINE_FAILED and "no such image" in done.stderr.lower():
        raise Unasked(f"image {image} is not on the host: apply the role triton_image, or name another image")
    if done.returncode == ENGINE_FAILED:
        raise Unasked(f"the engine does not run the client in image {image}: {words}")
    return _answers(done, f"image {image}")


def ask_here(python: str, document: Mapping[str, Any], program: str) -> List[Dict[str, Any]]:
    """The results of a document by this Python, which has to have the client. Raises Unasked."""
    limit = seconds(document)
    asked = given(document, program).decode()
    try:
        line = [python, "-c", START]
        done = capture(line, limit, asked)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unasked(f"the client of {python} gave no answer: {error}") from None
    return _answers(done, python)


def _answers(done: subprocess.CompletedProcess[str], of: str) -> List[Dict[str, Any]]:
    """What the client has written at its end. Raises Unasked."""
    words = " ".join(done.stderr.split())[-600:]
    try:
        # All that may be printed: with each request comes its picture
        answer = shapes.fitted(done.stdout.strip().rpartition("\n")[2], ANSWER, OUTPUT)
        if "error" in answer:
            raise Unasked(f"{of} lacks the client: {answer['error']}; wanted numpy and tritonclient[http,grpc]")
        checks: List[Dict[str, Any]] = answer["checks"]
        return checks
    except (ValueError, KeyError):
        raise Unasked(f"the client in {of} ended with {done.returncode} and without a result: {words}") from None


def report(host: str, results: List[Dict[str, Any]], unasked: Sequence[str] = ()) -> Dict[str, Any]:
    """The module's return values; `unasked` are models that nobody has to prove."""
    failed = [result for result in results if not result["ok"]]
    passed = len(results) - len(failed)
    lines = [f"  - {check['name']}: {check['why']}" for check in failed[:SHOWN]]
    if len(failed) > SHOWN:
        lines.append(f"  - and {len(failed) - SHOWN} more")
    nothing = "nothing was asked of " + ", ".join(unasked) if unasked else "no model to check"
    count = f"{passed} of {len(results)} checks passed" if results else nothing
    return {"msg": "\n".join([f"{host}: {count}", *lines]), "proven": not failed, "passed": passed, "checks": results}


def prove(
    client: str,
    document: Mapping[str, Any],
    program: str,
    headers: Mapping[str, str],
    by: Optional[Callable[[str, Mapping[str, Any], str], List[Dict[str, Any]]]] = None,
) -> Dict[str, Any]:
    """Ask a document's checks, with these headers where it names no others, and report them. Raises Unasked.

    `client` is the image that has it, or what `by` takes in the place of `ask`.
    """
    server = document["server"]
    asked = {key: value for key, value in document.items() if key != "unproven"}
    if headers:
        asked["server"] = {**server, "headers": {**headers, **(server.get("headers") or {})}}
    answers = (by or ask)(client, asked, program) if asked["checks"] else []
    return report(asked["host"], [*document.get("unproven", []), *answers], asked.get("unasked", []))
