"""What only the vendor's own files can tell: its installer's options, and the calls of the SDK that is in the running image.

Nothing of it is public, so a ticket about a driver or an SDK that no one here has seen begins with it.
"""

from __future__ import annotations

import glob
import os
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.engine import cdi
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.support.readers import (
    Limits,
    Missing,
    Partial,
    Unavailable,
    bounded,
    command,
    whole,
)

# Of an installer that is a script, what stands before the archive that it carries
SCRIPT_BYTES = 1 << 16
# Asked as nobody who may read and do nothing else: an installer that does not know --help would begin to install
HARMLESS = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search", "--bounding-set=-all,+dac_read_search"),
)
# Seconds for the SDK to start on a host that is busy
SDK_SECONDS = 60.0
NAME = "npufleet-support"
# Prints the SDK's calls, and what its `inspect` gives of the compiled file that it is told, whatever forms both have.
PROGRAM = """
import inspect, json, sys
def calls(owner, wanted):
    found = {}
    for name in sorted(filter(wanted, dir(owner))):
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
told = {"python": sys.version}
try:
    import rebel
    told["version"] = str(getattr(rebel, "__version__", None))
    told["names"] = sorted(name for name in dir(rebel) if not name.startswith("_"))
    owners = ("Runtime", "AsyncRuntime", "RBLNCompiledModel")
    told["rebel"] = calls(rebel, lambda name: name in owners or name.startswith("compile_"))
    for owner in owners:
        told[owner] = calls(getattr(rebel, owner, None), lambda name: not name.startswith("_"))
    # The SDK has it from 0.9 on
    if len(sys.argv) > 1 and hasattr(rebel.RBLNCompiledModel, "inspect"):
        told["inspect"] = {"file": sys.argv[1]}
        given = rebel.RBLNCompiledModel.inspect(sys.argv[1])
        told["inspect"].update({"is a": str(type(given)), "gives": plain(given)})
except BaseException as error:
    told["error"] = type(error).__name__ + ": " + str(error)[:2000]
print(json.dumps(told))
"""


def installer(root: str) -> str:
    """Path of the vendor's installer on this host. Raises Missing where it has none."""
    found = sorted(glob.glob(os.path.join(root, "packages", "*.run")), key=os.path.getmtime)
    if not found:
        raise Missing("the host has no installer of the driver")
    return found[-1]


def installer_script(root: str) -> str:
    """The text that an installer begins with: a script has its options there, and is not run for them."""
    path = installer(root)
    with open(path, "rb") as source:
        begin = source.read(SCRIPT_BYTES)
    if not begin.startswith(b"#!"):
        raise Unavailable(f"{path} is no script")
    lines: List[str] = []
    for line in begin.split(b"\n")[: -1 if len(begin) == SCRIPT_BYTES else None]:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            break
        if "\0" in text:
            break
        lines.append(text)
    return "\n".join(lines) + "\n"


def installer_help(root: str, limits: Limits) -> str:
    """What an installer says to --help."""
    path = installer(root)
    with open(path, "rb") as source:
        if source.read(2) != b"#!":
            raise Unavailable(f"{path} is no script, and is not run for its help")
    return command(limits, *HARMLESS, "/bin/sh", path, "--help")


def spec(limits: Limits) -> str:
    """The spec of the NPUs for containers that the vendor's toolkit would write now. Raises Missing where there is no toolkit."""
    if not os.path.exists(cdi.TOOLKIT):
        raise Missing("the host has no container toolkit")
    return command(limits, *cdi.GENERATE_COMMAND, "-")


def packages(limits: Limits, patterns: List[str]) -> str:
    """Names and versions of the packages that fit, by the tool that the distribution has."""
    if os.path.exists("/var/lib/dpkg/status"):
        shown = "--showformat=${db:Status-Abbrev} ${binary:Package} ${Version}\n"
        # It ends with 1 where a pattern matches nothing
        return command(limits, "dpkg-query", "--show", shown, *patterns, accept=(0, 1))
    return command(limits, "rpm", "--query", "--all", "--queryformat=%{NAME} %{VERSION}-%{RELEASE} %{ARCH}\n", *patterns)


def sdk(engine: Engine, container: str, root: str, limits: Limits) -> Dict[str, Any]:
    """What the SDK of the running image says of itself and of one compiled file.

    It is asked in a container of its own, which sees what the server mounts and has neither network nor cards nor capabilities.
    """
    name = urllib.parse.quote(container)
    try:
        running = engine.get(f"/containers/{name}/json")
        if running is None:
            raise Unavailable(f"there is no container {container}, whose image has the SDK")
        code, said = engine.run(NAME, _asked(running, container, _compiled(root)), SDK_SECONDS)
    except OSError as error:
        raise Unavailable(f"the SDK could not be asked: {error}") from error
    try:
        answer = shapes.parse(said.strip().rpartition("\n")[2])
        if not isinstance(answer, dict):
            raise ValueError(said)
    except ValueError:
        last = whole(said.strip().rpartition("\n")[2])
        raise Partial(bounded(said.encode(), limits.size) or None, f"the SDK's container ended with {code}: {last}") from None
    if "error" in answer:
        raise Partial(answer, "the SDK did not answer to the end: {}".format(whole(str(answer["error"]))))
    return answer


def _compiled(root: str) -> Optional[str]:
    """The smallest compiled file that is served here."""
    found = {os.path.realpath(path) for path in glob.glob(os.path.join(root, "served", "*", "*", "*.rbln"))}
    return min(sorted(found), key=os.path.getsize) if found else None


def _asked(running: Mapping[str, Any], container: str, file: Optional[str]) -> Dict[str, Any]:
    """The container that asks, beside `running`, which is as the engine shows it."""
    inside = None
    for mount in running.get("Mounts") or []:
        source = str(mount.get("Source"))
        if file and file.startswith(source + "/"):
            inside = str(mount.get("Destination")) + file[len(source) :]
    return {
        "Image": running["Image"],
        "Entrypoint": ["python3", "-c", PROGRAM, *([inside] if inside else [])],
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
