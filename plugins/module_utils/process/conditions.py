# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The preconditions of a server in this container, in which Ansible runs. All problems are reported before the first change."""

from __future__ import annotations

import glob
import json
import os
import re
import resource
import shutil
from contextlib import suppress
from functools import cache
from typing import Any, Iterator, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.system import bind_error, free_space, read_text, run

# The directory of Triton in the vendor's images
HOME = "/opt/tritonserver"
# The PATH of the container's own programs, and of the server. Ansible's environment can have another PATH.
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEVICES, SYSFS, SHARED = "/dev", "/sys/module/rebellions/version", "/dev/shm"
MIB = 1 << 20
# An option in the output of `tritonserver --help`
OPTION = re.compile(r"(?m)^\s*--([a-z-]+)")
# A program that prints which requirements the packages of its Python do not meet
PROGRAM = """
import json, sys
from importlib import metadata
from pip._vendor.packaging.requirements import Requirement
def lacks(text):
    required = Requirement(text)
    try:
        return not required.specifier.contains(metadata.version(required.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return True
print(json.dumps({"lacks": [one for one in json.loads(sys.argv[1]) if lacks(one)]}))
"""


def tritonserver() -> Optional[str]:
    """Return the path of the server's program, or None if it is missing."""
    return shutil.which("tritonserver", path=f"{PATHS}:{HOME}/bin")


def own_python() -> str:
    """Return the path of the container's own Python, which the stub of Triton's python backend uses."""
    return shutil.which("python3", path=f"/usr/bin:{PATHS}") or "python3"


def server_home(program: str) -> str:
    """Return the directory of Triton, which contains `bin` and `backends`."""
    return os.path.dirname(os.path.dirname(os.path.realpath(program)))


@cache
def options(program: str) -> List[str]:
    """Return the options that a tritonserver program supports."""
    return OPTION.findall(run(program, "--help")[1])


def missing_packages(path: str, requirements: List[str]) -> Tuple[List[str], List[str]]:
    """Return the requirements that the Python at `path` does not meet, and a list with a message if it prints invalid output.

    If the Python fails, all packages count as missing: the role creates its virtual environment, or pip reports the error later.
    """
    code, output = run(path, "-c", PROGRAM, json.dumps(requirements))
    if code:
        return list(requirements), []
    with suppress(ValueError):
        return shapes.parse_as(output.rpartition("\n")[2], {"lacks": [str]})["lacks"], []
    tail = " ".join(output.split())[-200:] or "nothing"
    return list(requirements), [
        f"{path} printed {tail}, expected a list of missing packages as JSON. Correct what this Python prints, or remove its "
        "virtual environment, and the next run creates it again"
    ]


def refusals(desired: Mapping[str, Any], root: str, runs: bool) -> List[str]:
    """Return the reasons why this container cannot serve. `runs` is True if a server of this project already uses the ports."""
    return [
        *_server_refusals(desired),
        *_card_refusals(desired),
        *_directory_refusals(desired, root),
        *([] if runs else _port_refusals(desired)),
    ]


def warnings(desired: Mapping[str, Any]) -> List[str]:
    """Return a warning for each limit of this container that is too low. Only a new container can have higher limits."""
    found = []
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft != resource.RLIM_INFINITY:
        found.append(
            f"the memlock limit is {soft} bytes, expected no limit, because the NPU's runtime pins memory. Start the container "
            "with --ulimit memlock=-1"
        )
    shared = os.statvfs(SHARED).f_frsize * os.statvfs(SHARED).f_blocks if os.path.isdir(SHARED) else 0
    if shared < desired["shm_size"]:
        found.append(
            f"{SHARED} has {shared // MIB} MiB, expected {desired['shm_size'] // MIB}. Large batches need this memory: start "
            "the container with more (triton_server_shm_size)"
        )
    return found


def _server_refusals(desired: Mapping[str, Any]) -> Iterator[str]:
    program = tritonserver()
    if program is None:
        yield f"tritonserver is missing in {HOME}/bin and {PATHS}, expected a container of Triton {desired['triton']}"
        return
    version = (read_text(os.path.join(server_home(program), "TRITON_VERSION")) or "").strip()
    if version and version != desired["triton"]:
        yield f"Triton is {version}, expected {desired['triton']}. Use another image, or another rbln_release"
    output = run(program, "--help")[1]
    if "model-repository" not in OPTION.findall(output):
        tail = " ".join(output.split())[-200:]
        yield f"{program} --help lists no options ({tail}), expected a server that runs. See LD_LIBRARY_PATH"
    path = own_python()
    code, output = run(path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if code or output != desired["python"]:
        found = output.splitlines()[-1][:80] if output else f"exit code {code}"
        yield (
            f"{path} is Python {found}, expected {desired['python']}, which SDK and Triton's stub use. Use another image, "
            "or another rbln_release"
        )
    code, output = run(path, "-m", "pip", "--version")
    if code:
        yield f"{path} has no pip ({output[-80:]}), expected pip to install the SDK. Install python3-pip"


def _card_refusals(desired: Mapping[str, Any]) -> Iterator[str]:
    cards = desired["cards"]
    nodes = glob.glob(os.path.join(DEVICES, "rbln[0-9]*"))
    if len(nodes) < cards["npus"]:
        yield (
            f"{len(nodes)} devices {DEVICES}/rbln* exist, expected {cards['npus']}. Give them to the container, or "
            "correct npufleet_npus"
        )
    if not os.path.exists(os.path.join(DEVICES, "rsd0")):
        yield f"{DEVICES}/rsd0 is missing, and without it the SDK sees no NPU. Start the container with this device"
    driver = (read_text(SYSFS) or "").strip()
    if driver and not (driver + "-").startswith(desired["driver"] + "-"):
        yield f"the driver of this machine is {driver}, expected {desired['driver']}. Use the rbln_release of that driver"
    # If the vendor's tool is missing, change/cards.py checks the cards later with the SDK.
    devices = vendor_tool.query_tool().get("devices") or [] if vendor_tool.find_tool() else []
    other_cards = sorted({device["name"] for device in devices} - {cards["card"]})
    if other_cards:
        yield f"the cards are {', '.join(other_cards)}, expected {cards['card']}. Correct npufleet_card"


def _directory_refusals(desired: Mapping[str, Any], root: str) -> Iterator[str]:
    directory = root
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    free = free_space(directory)[1]
    if not os.access(directory, os.W_OK | os.X_OK):
        yield f"user {os.getuid()} may not write to {directory}, expected a directory of its own. Set npufleet_root"
    elif free < desired["room"]:
        yield f"{directory} has {free // MIB} MiB free, expected {desired['room'] // MIB} for the SDK and the models. Make room"


def _port_refusals(desired: Mapping[str, Any]) -> Iterator[str]:
    for port in desired["ports"]:
        why = bind_error(desired["listen"], port)
        if why:
            yield (
                f"port {port} is in use ({why}), expected it free. End the process that has it, or set npufleet_http_port, "
                "npufleet_grpc_port and npufleet_metrics_port"
            )
