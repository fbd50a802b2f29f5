# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Information from the vendor's own files: the options of the installer, and the API of the SDK in the running image.

The developers of npufleet need this information to support a new driver or SDK, because the vendor does not publish it.
"""

from __future__ import annotations

import glob
import os
import re
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.support import readers
from ansible_collections.npufleet.triton.plugins.module_utils.support.readers import Limits

# Largest size in bytes of the script at the beginning of an installer. A binary archive follows the script.
SCRIPT_BYTES = 1 << 16
# An installer that does not know the option --help might begin to install. So the installer gets no right except to read files.
READ_ONLY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search", "--bounding-set=-all,+dac_read_search"),
)
# Time limit of PROGRAM in seconds. On a busy host, the SDK starts slowly.
SDK_SECONDS = 60.0
NAME = "npufleet-support"
# A program that prints as JSON the API of the SDK, and the result of the SDK's `inspect` for a compiled file
PROGRAM = """
import inspect, json, sys
def callables(owner, accept):
    found = {}
    for name in sorted(filter(accept, dir(owner))):
        value = getattr(owner, name)
        if callable(value):
            try:
                signature = str(inspect.signature(value))
            except (TypeError, ValueError):
                signature = None
            found[name] = {"signature": signature, "doc": (getattr(value, "__doc__", None) or "")[:4000]}
    return found
def plain(value, depth=6):
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    kind = type(value).__module__ + "." + type(value).__qualname__
    if depth and isinstance(value, dict):
        return {str(name): plain(part, depth - 1) for name, part in list(value.items())[:100]}
    if depth and isinstance(value, (list, tuple)):
        return [plain(part, depth - 1) for part in value[:100]]
    if depth and hasattr(value, "__dict__"):
        return {"is a": kind, **{str(name): plain(part, depth - 1) for name, part in list(vars(value).items())[:100]}}
    return {"is a": kind, "repr": repr(value)[:300]}
report = {"python": sys.version}
try:
    import rebel
    report["version"] = str(getattr(rebel, "__version__", None))
    report["names"] = sorted(name for name in dir(rebel) if not name.startswith("_"))
    owners = ("Runtime", "AsyncRuntime", "RBLNCompiledModel")
    report["rebel"] = callables(rebel, lambda name: name in owners or name.startswith("compile_"))
    for owner in owners:
        report[owner] = callables(getattr(rebel, owner, None), lambda name: not name.startswith("_"))
    # inspect() exists from SDK 0.9 on.
    if len(sys.argv) > 1 and hasattr(rebel.RBLNCompiledModel, "inspect"):
        report["inspect"] = {"file": sys.argv[1]}
        inspected = rebel.RBLNCompiledModel.inspect(sys.argv[1])
        report["inspect"].update({"is a": str(type(inspected)), "gives": plain(inspected)})
except BaseException as error:
    report["error"] = type(error).__name__ + ": " + str(error)[:2000]
print(json.dumps(report))
"""


def installer(root: str) -> str:
    """Return the path of the newest installer on this host. Raises Missing if there is no installer."""
    found = sorted(glob.glob(os.path.join(root, "packages", "*.run")), key=os.path.getmtime)
    if not found:
        raise readers.Missing("the host has no installer of the driver")
    return found[-1]


def installer_script(root: str) -> str:
    """Return the script at the beginning of an installer. The script parses the installer's options."""
    path = installer(root)
    with open(path, "rb") as source:
        head = source.read(SCRIPT_BYTES)
    if not head.startswith(b"#!"):
        raise readers.Unavailable(f"{path} is not a script")
    # The archive begins in the first line that is not text.
    script = re.split("[\0\ufffd]", head.decode("utf-8", "replace"), maxsplit=1)[0]
    return script[: script.rfind("\n") + 1]


def installer_help(root: str, limits: Limits) -> str:
    """Return the output of an installer with --help."""
    installer_script(root)  # raises Unavailable for an installer that is not a script
    return readers.command(limits, *READ_ONLY, "/bin/sh", installer(root), "--help")


def cdi_spec(limits: Limits) -> str:
    """Return the CDI spec that the vendor's toolkit would write now. Raises Missing if the toolkit is not installed."""
    if not os.path.exists(cdi.TOOLKIT):
        raise readers.Missing("the host has no container toolkit")
    return readers.command(limits, *cdi.GENERATE_COMMAND, "-")


def packages(limits: Limits, patterns: List[str]) -> str:
    """Return the names and versions of the installed packages that match a pattern."""
    if os.path.exists("/var/lib/dpkg/status"):
        form = "--showformat=${db:Status-Abbrev} ${binary:Package} ${Version}\n"
        # The exit code is 1 if a pattern matches nothing.
        return readers.command(limits, "dpkg-query", "--show", form, *patterns, accept=(0, 1))
    return readers.command(limits, "rpm", "--query", "--all", "--queryformat=%{NAME} %{VERSION}-%{RELEASE} %{ARCH}\n", *patterns)


def sdk(engine: Engine, container: str, root: str, limits: Limits) -> Dict[str, Any]:
    """Return the report of PROGRAM about the SDK of the server's image and about one compiled file.

    The program runs in a container with the mounts of the server, but without network, cards and capabilities.
    """
    name = urllib.parse.quote(container)
    try:
        running = engine.get(f"/containers/{name}/json")
        if running is None:
            raise readers.Unavailable(f"the container {container} is missing, expected to read the SDK from its image")
        code, output = engine.run(NAME, _container(running, container, _smallest_compiled(root)), SDK_SECONDS)
    except OSError as error:
        raise readers.Unavailable(f"the SDK could not be run: {error}") from error
    last_line = output.strip().rpartition("\n")[2]
    try:
        report: Dict[str, Any] = shapes.parse_as(last_line, {})
    except ValueError:
        reason = f"the SDK's container ended with {code}: {readers.complete_or_length(last_line)}"
        raise readers.Partial(readers.tail(output.encode(), limits.size) or None, reason) from None
    if "error" in report:
        raise readers.Partial(report, "the SDK failed: {}".format(readers.complete_or_length(str(report["error"]))))
    return report


def _smallest_compiled(root: str) -> Optional[str]:
    """Return the path of the smallest compiled file of the served models, or None if there is no compiled file."""
    found = {os.path.realpath(path) for path in glob.glob(os.path.join(root, "served", "*", "*", "*.rbln"))}
    return min(sorted(found), key=os.path.getsize) if found else None


def _container(running: Mapping[str, Any], container: str, file: Optional[str]) -> Dict[str, Any]:
    """Return the configuration of the SDK's container; `running` is `docker inspect` of the server."""
    path = None
    for mount in running.get("Mounts") or []:
        source = str(mount.get("Source"))
        if file and file.startswith(source + "/"):
            path = str(mount.get("Destination")) + file[len(source) :]
    return {
        "Image": running["Image"],
        "Entrypoint": ["python3", "-c", PROGRAM, *([path] if path else [])],
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Tmpfs": {"/tmp": ""},
            "VolumesFrom": [f"{container}:ro"],
            "LogConfig": {"Type": "json-file", "Config": {}},
        },
    }
