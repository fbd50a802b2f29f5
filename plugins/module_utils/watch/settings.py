# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The configuration files of both programs."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Type, TypeVar

from ansible_collections.npufleet.triton.plugins.module_utils import shapes


class Watchdog(NamedTuple):
    """The settings of the watchdog. Times are in seconds."""

    container: str
    address: str
    http_port: int
    # None if the server offers no metrics. Then the watchdog only judges whether the server answers.
    metrics_port: Optional[int]
    mode: str
    root: str
    interval: float
    fault_limit: float
    stall_limit: float
    stub_limit: float
    silence_limit: float
    start_limit: float
    actions: int
    backoff: float
    load_limit: float
    stop_timeout: float
    free_limit: float
    # Name of the header, and path of the file that holds the key, on the host and in the container
    key: Optional[Dict[str, str]]
    # Loads and unloads go by gRPC, in the container.
    grpc: bool = False
    # 0 ends no load (triton/stuck_load.py).
    stuck_load_limit: float = 0.0


class Probe(NamedTuple):
    """The settings of the probe. Times are in seconds."""

    host: str
    # A line with digests, then the standard input of the client
    document: str
    image: str
    limit: float
    interval: float
    root: str
    textfile: str
    # Name of the header, and path of the file that holds the key, if the checks use restricted APIs
    key: Optional[Dict[str, str]]


Settings = TypeVar("Settings", Watchdog, Probe)


def load(path: str, kind: Type[Settings]) -> Settings:
    """Return the settings in a file. Raises OSError, ValueError or TypeError if they cannot be read.

    The library may change before the file does. So unknown fields are ignored, and a field that is added later needs a default.
    """
    with open(path, encoding="utf-8") as source:
        fields: Dict[str, Any] = shapes.parse_as(source.read(), dict)
    return kind(**{name: fields[name] for name in kind._fields if name in fields})
