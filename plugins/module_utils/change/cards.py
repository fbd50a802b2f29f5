"""What the SDK sees of the cards in the new container, asked before it takes the place of the one that serves."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import ContainerError, Docker

# An SDK that cannot say it is not asked
PROGRAM = """
import json, rebel
count, name = (getattr(rebel, function, None) for function in ("device_count", "get_npu_name"))
npus = count() if count else None
print(json.dumps({"npus": npus, "names": [name(npu) for npu in range(npus)] if name and npus else []}))
"""
SHAPE = {"npus": (int, shapes.NULL), "names": [shapes.TEXT_OR_NULL]}
# Seconds for the SDK to start and to look
LIMIT = 120.0


def prove(engine: Docker, name: str, wanted: Mapping[str, Any]) -> None:
    """Raise ContainerError unless the SDK in `<name>-next` sees `wanted`: {"npus": how many, "card": their type}."""
    judge(*_ask(engine, name), wanted, "the new container")


def judge(code: int, said: str, wanted: Mapping[str, Any], where: str) -> None:
    """Raise ContainerError unless PROGRAM, which ended with `code`, has said that the SDK in `where` sees what is wanted."""
    seen = _answer(code, said, where)
    if seen["npus"] is not None and seen["npus"] != wanted["npus"]:
        raise ContainerError(
            f"found {seen['npus']} NPUs by the SDK in {where}, wanted {wanted['npus']}: see that the host has /dev/rsd0 "
            "and the driver's files (docs/troubleshooting/driver.md)"
        )
    other = sorted({card for card in seen["names"] if card and card != wanted["card"]})
    if other:
        raise ContainerError(
            f"found {', '.join(other)} by the SDK in {where}, wanted {wanted['card']}: set npufleet_card, or see "
            "which cards the host has"
        )


def _ask(engine: Docker, name: str) -> Tuple[int, str]:
    upcoming = engine.inspect(name + "-next")
    if upcoming is None:
        raise ContainerError(f"found no container {name}-next, wanted it made before it takes the place of {name}")
    config, host = upcoming["Config"], upcoming["HostConfig"]
    asked = {
        "Image": upcoming["Image"],
        "Env": config.get("Env"),
        "User": config.get("User"),
        "Entrypoint": ["python3", "-c", PROGRAM],
        "Healthcheck": {"Test": ["NONE"]},
        # Mounts, devices and limits are those of the server
        "HostConfig": {
            **host,
            "PortBindings": {},
            "NetworkMode": "none",
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {}},
        },
    }
    try:
        return engine.run(name + "-cards", asked, LIMIT)
    except OSError as error:
        raise ContainerError(f"the SDK in the new container could not be asked which cards it sees: {error}") from None


def _answer(code: int, said: str, where: str) -> Dict[str, Any]:
    try:
        answer: Dict[str, Any] = shapes.parse_as(said.strip().rpartition("\n")[2], SHAPE)
    except ValueError:
        answer = {}
    if code or not answer:
        words = " ".join(said.split())[-500:]
        raise ContainerError(f"the SDK in {where} does not tell which cards it sees (it ended with {code}): {words}")
    return answer
