"""Before a new container takes its place, the SDK in it says which cards it sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.change import cards
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import ContainerError
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from helpers import unix_server
from played_engine import PlayedEngine

WANTED = {"npus": 2, "card": "RBLN-CA25"}


def prove(said: str, code: int = 0) -> PlayedEngine:
    engine = PlayedEngine()
    identity = engine.add("triton-next", "created")
    engine.containers[identity]["HostConfig"].update(Privileged=True, Binds=["/a:/b:ro"], RestartPolicy={"Name": "always"})
    engine.sees = (code, said)
    cards.prove(engine, "triton", WANTED)
    return engine


def seen(npus: Any, *names: Any) -> str:
    return "a line of the SDK\n" + json.dumps({"npus": npus, "names": names}) + "\n"


def test_it_is_asked_in_a_container_like_the_servers_without_its_ports() -> None:
    (asked,) = prove(seen(2, "RBLN-CA25", "RBLN-CA25")).asked
    assert (asked["name"], asked["Image"], asked["Entrypoint"][:2]) == ("triton-cards", "sha256:1", ["python3", "-c"])
    host = asked["HostConfig"]
    assert (host["Privileged"], host["Binds"]) == (True, ["/a:/b:ro"])
    assert (host["PortBindings"], host["RestartPolicy"], host["NetworkMode"]) == ({}, {"Name": "no"}, "none")


@pytest.mark.parametrize("said", [seen(None), seen(2), seen(2, None, "RBLN-CA25")])
def test_what_an_sdk_cannot_say_is_not_held_against_it(said: str) -> None:
    prove(said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (seen(0), "the SDK in the new container sees 0 NPUs, expected 2. Check that the host has /dev/rsd0"),
        (seen(3, *3 * ["RBLN-CA25"]), "sees 3 NPUs"),
        (seen(2, "RBLN-CA25", "RBLN-CA22"), "the SDK in the new container sees RBLN-CA22, expected RBLN-CA25. Set npufleet_card"),
        (
            "Traceback\nImportError: librbln-thunk.so",
            "does not report which cards it sees .it ended with 0.: Traceback ImportError",
        ),
        (seen("2"), "does not report which cards it sees"),
        (json.dumps([2]), "does not report which cards it sees"),
        ("", "does not report which cards it sees"),
    ],
)
def test_other_cards_are_refused(said: str, words: str) -> None:
    with pytest.raises(ContainerError, match=words):
        prove(said)


def test_an_sdk_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(ContainerError, match=r"it ended with 1\): .* no NPU"):
        prove(seen(2, "RBLN-CA25", "RBLN-CA25") + "no NPU", 1)


ORDERS = {
    "POST /containers/create?name=triton-cards": (201, {"Id": "7"}),
    "POST /containers/triton-cards/start": (204, b""),
    "POST /containers/triton-cards/wait": (200, {"StatusCode": 3}),
    "GET /containers/triton-cards/logs?stdout=1&stderr=1": (200, b"\1\0\0\0\0\0\0\2hi"),
}


def test_the_engine_runs_it_and_takes_it_away(tmp_path: Path) -> None:
    with unix_server(tmp_path / "s", ORDERS) as engine:
        assert Engine(str(tmp_path / "s")).run("triton-cards", {"Image": "i"}, 5) == (3, "hi")
    away = "DELETE /containers/triton-cards?force=true"
    assert engine.asked == [away, *ORDERS, away]


def test_one_that_the_engine_does_not_start_is_taken_away_too(tmp_path: Path) -> None:
    refused = {**ORDERS, "POST /containers/triton-cards/start": (500, {"message": "no such device"})}
    with unix_server(tmp_path / "s", refused) as engine, pytest.raises(OSError, match="no such device"):
        Engine(str(tmp_path / "s")).run("triton-cards", {"Image": "i"}, 5)
    assert engine.asked[-1] == "DELETE /containers/triton-cards?force=true"


def test_an_engine_that_does_not_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_asked: Any) -> Any:
        raise OSError("the container did not end within 120 s")

    monkeypatch.setattr(PlayedEngine, "run", fails)
    with pytest.raises(ContainerError, match="could not run: the container did not end within 120 s"):
        prove(seen(2))
