"""Whether a container is one that this can serve in: every reason why not, before anything is changed."""

from __future__ import annotations

import glob
import json
import os
import re
import resource
import shutil
import socket
from typing import Any, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.system import free_space, read_text, run

# Where the vendor's images have the server, and where they say which one it is
HOME = "/opt/tritonserver"
# Where the container's own programs are, whatever Ansible itself runs in
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEVICES, SYSFS, SHARED = "/dev", "/sys/module/rebellions/version", "/dev/shm"
MIB = 1 << 20
# A line of the server's help
OPTION = re.compile(r"(?m)^\s*--([a-z-]+)")
# What python3 is asked: its version, and which of these requirements are not met by what it has
ASK = """
import json, sys
from importlib import metadata
from pip._vendor.packaging.requirements import Requirement
def lacks(text):
    wanted = Requirement(text)
    try:
        return not wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return True
print(json.dumps({"python": "%d.%d" % sys.version_info[:2], "lacks": [one for one in json.loads(sys.argv[1]) if lacks(one)]}))
"""


def tritonserver() -> Optional[str]:
    """The server's program, None where there is none."""
    return shutil.which("tritonserver", path=f"{PATHS}:{HOME}/bin")


def own_python() -> str:
    """The Python of the container, which Triton's stub is of."""
    return shutil.which("python3", path=f"/usr/bin:{PATHS}") or "python3"


def server_home(program: str) -> str:
    """The directory that has `bin` and `backends`."""
    return os.path.dirname(os.path.dirname(os.path.realpath(program)))


def options(program: str) -> List[str]:
    """Options that the server knows."""
    return OPTION.findall(run(program, "--help")[1])


def python(path: str, requirements: List[str]) -> Tuple[Optional[str], List[str]]:
    """(version of this Python, the requirements that it does not meet); None and all of them where it cannot be asked."""
    code, said = run(path, "-c", ASK, json.dumps(requirements))
    try:
        found = shapes.parse(said.rpartition("\n")[2])
        return str(found["python"]), [str(entry) for entry in found["lacks"]]
    except (ValueError, KeyError, TypeError):
        return None, list(requirements) if code else []


def refusals(wanted: Mapping[str, Any], root: str, runs: bool) -> List[str]:
    """Why nothing can be served here. `runs`: a server of this project has the ports."""
    return [*_of_server(wanted), *_of_cards(wanted), *_of_place(wanted, root), *([] if runs else _of_ports(wanted))]


def warnings(wanted: Mapping[str, Any]) -> List[str]:
    """What this container was given too little of, which only whoever starts it can change."""
    found = []
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft != resource.RLIM_INFINITY:
        found.append(
            f"found a memlock limit of {soft} bytes, wanted none: the NPU's runtime pins memory; start the container with it"
        )
    shared = os.statvfs(SHARED).f_frsize * os.statvfs(SHARED).f_blocks if os.path.isdir(SHARED) else 0
    if shared < wanted["shm_size"]:
        found.append(
            f"found {shared // MIB} MiB in {SHARED}, wanted {wanted['shm_size'] // MIB}: large batches fail without; start the "
            "container with them (triton_server_shm_size)"
        )
    return found


def _of_server(wanted: Mapping[str, Any]) -> Iterator[str]:
    program = tritonserver()
    if program is None:
        yield f"found no tritonserver in {HOME}/bin and none in {PATHS}, wanted a container of Triton {wanted['triton']}"
        return
    told = (read_text(os.path.join(server_home(program), "TRITON_VERSION")) or "").strip()
    if told and told != wanted["triton"]:
        yield f"found Triton {told}, wanted {wanted['triton']}: take another image, or choose another rbln_release"
    code, said = run(program, "--help")
    if "model-repository" not in OPTION.findall(said):
        words = " ".join(said.split())[-200:]
        yield f"found that {program} --help names no options ({words}), wanted a server that runs: see LD_LIBRARY_PATH"
    here = own_python()
    code, said = run(here, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if code or said != wanted["python"]:
        found = said.splitlines()[-1][:80] if said else f"exit code {code}"
        yield (
            f"found Python {found} as {here}, wanted {wanted['python']}, that of SDK and Triton's stub: take another image, "
            "or choose another rbln_release"
        )
    code, said = run(here, "-m", "pip", "--version")
    if code:
        yield f"found no pip for {here} ({said[-80:]}), wanted it: it installs the SDK; install python3-pip"


def _of_cards(wanted: Mapping[str, Any]) -> Iterator[str]:
    cards = wanted["cards"]
    nodes = glob.glob(os.path.join(DEVICES, "rbln[0-9]*"))
    if len(nodes) < cards["npus"]:
        yield (
            f"found {len(nodes)} of {DEVICES}/rbln*, wanted {cards['npus']}: give them to the container, or correct npufleet_npus"
        )
    if not os.path.exists(os.path.join(DEVICES, "rsd0")):
        yield f"found no {DEVICES}/rsd0, wanted it: without it the SDK sees no NPU; start the container with it"
    driver = (read_text(SYSFS) or "").strip()
    if driver and not (driver + "-").startswith(wanted["driver"] + "-"):
        yield f"found driver {driver} on this machine, wanted {wanted['driver']}: choose the rbln_release of that driver"
    # Where there is no tool, the SDK tells it
    devices = vendor_tool.query_tool().get("devices") or [] if vendor_tool.find_tool() else []
    other = sorted({device["name"] for device in devices} - {cards["card"]})
    if other:
        yield f"found cards {', '.join(other)}, wanted {cards['card']}: correct npufleet_card"


def _of_place(wanted: Mapping[str, Any], root: str) -> Iterator[str]:
    place = root
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    if not os.access(place, os.W_OK | os.X_OK):
        yield f"found that user {os.getuid()} may not write to {place}, wanted a directory of its own: set npufleet_root"
    elif free_space(place)[1] < wanted["room"]:
        free = free_space(place)[1] // MIB
        yield f"found {free} MiB free at {place}, wanted {wanted['room'] // MIB} for the SDK and the models: make room"


def _of_ports(wanted: Mapping[str, Any]) -> Iterator[str]:
    for port in wanted["ports"]:
        with socket.socket(socket.AF_INET6 if ":" in wanted["listen"] else socket.AF_INET) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                door.bind((wanted["listen"], port))
            except OSError as error:
                yield (
                    f"port {port} cannot be had ({error.strerror}), wanted it free: end what has it, or set npufleet_http_port, "
                    "npufleet_grpc_port and npufleet_metrics_port"
                )
