# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The check that the SDK sees the desired cards in a new container, before that container replaces the serving one."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import ContainerError, Docker

# Prints the cards as JSON of SHAPE. Older SDKs lack the two functions.
PROGRAM = """
import json, rebel
count, name = (getattr(rebel, function, None) for function in ("device_count", "get_npu_name"))
npus = count() if count else None
print(json.dumps({"npus": npus, "names": [name(npu) for npu in range(npus)] if name and npus else []}))
"""
SHAPE = {"npus": (int, shapes.NULL), "names": [shapes.TEXT_OR_NULL]}
# Seconds for the SDK to start and to list the cards
LIMIT = 120.0


def prove(engine: Docker, name: str, desired: Mapping[str, Any]) -> None:
    """Raise ContainerError unless the SDK in the container `<name>-next` sees the desired cards: {"npus": count, "card": type}."""
    judge(*_ask(engine, name), desired, "the new container")


def judge(code: int, output: str, desired: Mapping[str, Any], where: str) -> None:
    """Raise ContainerError unless PROGRAM printed the desired cards. It ran in `where` and ended with the exit code `code`."""
    seen = _answer(code, output, where)
    if seen["npus"] is not None and seen["npus"] != desired["npus"]:
        raise ContainerError(
            f"the SDK in {where} sees {seen['npus']} NPUs, expected {desired['npus']}. See that the host has /dev/rsd0 "
            "and the driver's files (docs/troubleshooting/driver.md)"
        )
    other = sorted({card for card in seen["names"] if card and card != desired["card"]})
    if other:
        raise ContainerError(
            f"the SDK in {where} sees {', '.join(other)}, expected {desired['card']}. Set npufleet_card, or see "
            "which cards the host has"
        )


def _ask(engine: Docker, name: str) -> Tuple[int, str]:
    upcoming = engine.inspect(name + "-next")
    if upcoming is None:
        raise ContainerError(f"container {name}-next is missing, expected it before it takes the place of {name}")
    config, host = upcoming["Config"], upcoming["HostConfig"]
    config_of_client = {
        "Image": upcoming["Image"],
        "Env": config.get("Env"),
        "User": config.get("User"),
        "Entrypoint": ["python3", "-c", PROGRAM],
        "Healthcheck": {"Test": ["NONE"]},
        # The mounts, devices and limits are the same as for the server
        "HostConfig": {
            **host,
            "PortBindings": {},
            "NetworkMode": "none",
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {}},
        },
    }
    try:
        return engine.run(name + "-cards", config_of_client, LIMIT)
    except OSError as error:
        raise ContainerError(f"the SDK in the new container could not run: {error}") from None


def _answer(code: int, output: str, where: str) -> Dict[str, Any]:
    try:
        answer: Dict[str, Any] = shapes.parse_as(output.strip().rpartition("\n")[2], SHAPE)
    except ValueError:
        answer = {}
    if code or not answer:
        words = " ".join(output.split())[-500:]
        raise ContainerError(f"the SDK in {where} does not tell which cards it sees (it ended with {code}): {words}")
    return answer
