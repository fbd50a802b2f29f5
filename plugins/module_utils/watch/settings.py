# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The configuration files of the watchdog, the probe and the program of metrics. Times are in seconds.

Fields that are explained for the watchdog mean the same in all programs.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Sequence, Type, TypeVar

from ansible_collections.npufleet.triton.plugins.module_utils import shapes


class Watchdog(NamedTuple):
    """The settings of the watchdog, which acts if a condition lasts longer than its timeout."""

    container: str
    address: str
    http_port: int
    # None if the server offers no metrics. The watchdog then queries whether the server is live, and finds no faults or stalls.
    metrics_port: Optional[int]
    mode: str  # The model control mode of the server: explicit, poll or none
    root: str  # The directory of the store on the host
    interval: float  # Seconds between two rounds
    fault_timeout: float  # Seconds for which an NPU may report a fault
    stall_timeout: float  # Seconds for which requests may wait while the model answers none
    process_timeout: float  # Seconds for which an instance of a READY model may have no process
    silence_timeout: float  # Seconds for which the server may give no answer
    start_timeout: float  # Seconds that the server may need from the start of its container to its first answer
    max_actions: int  # Largest number of reloads and restarts within an hour
    backoff: float  # Seconds of pause after an action. Each further action doubles the pause.
    load_timeout: float  # Seconds that one load of a model may take
    stop_timeout: float  # Seconds between the SIGTERM and the SIGKILL of a stop of the container
    cards_timeout: float  # Seconds to wait after a stop until the processes of the container have left the cards
    # The key of restricted APIs, {"name": header, "path": file with the key}. Host and container have the file at the same path.
    key: Optional[Dict[str, str]]
    # True if loads and unloads use gRPC from a process in the container instead of HTTP
    grpc: bool = False
    # Seconds after which a stuck load is ended (triton/stuck_load.py). With 0 no load is ended.
    stuck_load_limit: float = 0.0
    # The address of the metrics if it is not `address`
    metrics_address: Optional[str] = None


class Probe(NamedTuple):
    host: str
    # Path of the file with the checks. Its first line has digests. The rest is the input of the check client.
    checks_file: str
    image: str  # The image in which the client runs
    client_timeout: float  # Seconds that the client may take for all checks
    interval: float  # Seconds between two runs of the probe
    root: str
    textfile: str  # Path of the metrics that node exporter reads
    # None if the checks use no restricted APIs
    key: Optional[Dict[str, str]]


class Metrics(NamedTuple):
    """The settings of the program that writes a host's metrics. On a host without NPUs, it ignores the settings of the server."""

    container: str
    address: str
    http_port: int
    # None if the server offers no metrics. The program then finds no hung processes.
    metrics_port: Optional[int]
    key: Optional[Dict[str, str]]
    root: str
    directory: str  # The directory of the metrics that node exporter reads
    npus: int  # Cards of the host according to the inventory
    driver: str  # Version of the driver according to the inventory
    metrics_address: Optional[str] = None
    npu_host: bool = True  # The host has NPUs
    load_balancer: bool = False  # The host is a load balancer
    certificates: Sequence[str] = ()  # Paths of files with certificates


# {field: its name in the file} if the names differ. An earlier version of this project may have written the file, so the names in
# the file must stay.
FILE_NAMES = {
    "fault_timeout": "fault_limit",
    "stall_timeout": "stall_limit",
    "process_timeout": "stub_limit",
    "silence_timeout": "silence_limit",
    "start_timeout": "start_limit",
    "max_actions": "actions",
    "load_timeout": "load_limit",
    "cards_timeout": "free_limit",
    "checks_file": "document",
    "client_timeout": "limit",
}
Settings = TypeVar("Settings", Watchdog, Probe, Metrics)


def load(path: str, kind: Type[Settings]) -> Settings:
    """Return the settings in a file. Raises OSError, ValueError or TypeError if the file cannot be read.

    The version of this project that wrote the file may be older or newer than this code. So unknown fields are ignored, and a new
    field needs a default.
    """
    with open(path, encoding="utf-8") as source:
        fields: Dict[str, Any] = shapes.parse_as(source.read(), dict)
    names = {name: FILE_NAMES.get(name, name) for name in kind._fields}
    return kind(**{name: fields[key] for name, key in names.items() if key in fields})
