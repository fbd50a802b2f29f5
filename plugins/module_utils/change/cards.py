# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The test that the SDK sees the desired cards in a new container, before this container replaces the serving container."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import ContainerError, Docker

# A program that prints the number and the names of the cards as JSON (SHAPE). Older SDKs lack device_count or get_npu_name. Then
# the number is null or the list of names is empty, and is not checked.
PROGRAM = """
import json, rebel
count, name = (getattr(rebel, function, None) for function in ("device_count", "get_npu_name"))
npus = count() if count else None
print(json.dumps({"npus": npus, "names": [name(npu) for npu in range(npus)] if name and npus else []}))
"""
SHAPE = {"npus": (int, shapes.NULL), "names": [shapes.TEXT_OR_NULL]}
# Time limit in seconds of PROGRAM, which starts the SDK
TIMEOUT_SECONDS = 120.0


def prove(engine: Docker, name: str, desired: Mapping[str, Any]) -> None:
    """Run PROGRAM in a copy of the container `<name>-next`, and judge its output. Raises ContainerError.

    `desired` has the desired cards: {"npus": count, "card": type}.
    """
    next_container = engine.inspect(name + "-next")
    if next_container is None:
        raise ContainerError(f"container {name}-next is missing, expected it before it replaces {name}")
    config = next_container["Config"]
    client_config = {
        "Image": next_container["Image"],
        "Env": config.get("Env"),
        "User": config.get("User"),
        "Entrypoint": ["python3", "-c", PROGRAM],
        "Healthcheck": {"Test": ["NONE"]},
        # The mounts, devices and limits are those of the new container.
        "HostConfig": {
            **next_container["HostConfig"],
            "PortBindings": {},
            "NetworkMode": "none",
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {}},
        },
    }
    try:
        code, output = engine.run(name + "-cards", client_config, TIMEOUT_SECONDS)
    except OSError as error:
        raise ContainerError(f"the SDK in the new container could not run: {error}") from None
    judge(code, output, desired, "the new container")


def judge(code: int, output: str, desired: Mapping[str, Any], where: str) -> None:
    """Raise ContainerError unless PROGRAM printed the desired cards. `code` is its exit code, `where` the container in messages."""
    try:
        reported: Dict[str, Any] = shapes.parse_as(output.strip().rpartition("\n")[2], SHAPE)
    except ValueError:
        reported = {}
    if code or not reported:
        tail = " ".join(output.split())[-500:]
        raise ContainerError(f"the SDK in {where} does not report which cards it sees (it ended with {code}): {tail}")
    if reported["npus"] is not None and reported["npus"] != desired["npus"]:
        raise ContainerError(
            f"the SDK in {where} sees {reported['npus']} NPUs, expected {desired['npus']}. Check that the host has /dev/rsd0 "
            "and the driver's files (docs/troubleshooting/driver.md)"
        )
    other_cards = sorted({card for card in reported["names"] if card and card != desired["card"]})
    if other_cards:
        raise ContainerError(
            f"the SDK in {where} sees {', '.join(other_cards)}, expected {desired['card']}. Set npufleet_card, or check "
            "which cards the host has"
        )
