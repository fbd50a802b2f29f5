"""Every client of this project against a server that lies: one deadline and one limit of size for each exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import exchange as exchanges
from ansible_collections.npufleet.triton.plugins.module_utils import http_probe
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.support import readers
from ansible_collections.npufleet.triton.plugins.module_utils.triton import http_api, served
from hostile_server import ENDLESS, MODES, WRONG, Hostile, hostile

# Seconds and bytes of an exchange here; seconds in which it has surely ended, however busy the machine is
SECONDS, SIZE, SURELY = 0.5, 1 << 20, 60.0
# Bytes that may be on their way to a client that reads no more
ON_THE_WAY = 16 << 20


def ended(call: Callable[[], Any]) -> Any:
    """What a call has returned or raised, which has to end."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SURELY)
    assert not thread.is_alive(), "it still waits"
    return found[0]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_probe, "SECONDS", SECONDS)
    monkeypatch.setattr(http_probe, "SIZE", SIZE)
    monkeypatch.setattr(exchanges, "BODY", SIZE)


def probe(server: Hostile) -> Any:
    return http_probe.web(server.url, ("", ""), {}, None)


def registry(server: Hostile) -> Any:
    return http_probe._manifest(server.url, "a", "b", ("", ""), {}, None)


def by_proxy(server: Hostile) -> Any:
    return http_probe.web("https://elsewhere.invalid/", ("", ""), {"https": server.url}, None)


def behind_tls(server: Hostile) -> Any:
    return http_probe.web(server.url.replace("http:", "https:"), ("", ""), {}, None)


def page(server: Hostile) -> Any:
    return http_probe._exchange(server.url, ("", ""), {}, None, {}, "GET")


def triton(server: Hostile) -> Any:
    return http_api.http_json("127.0.0.1", server.port, "GET", "/v2", SECONDS)


def bundle(server: Hostile) -> Any:
    budget = exchanges.Budget(SECONDS)
    limits = readers.Limits(SECONDS, SIZE // 8, 10)
    return readers.answer(exchanges.connect("127.0.0.1", server.port, budget), "GET", "/", limits, budget)


CLIENTS = [probe, page, registry, by_proxy, behind_tls, triton, bundle]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_every_exchange_ends_in_time_and_size(client: Callable[[Hostile], Any], mode: str) -> None:
    with hostile(mode) as server:
        ended(lambda: client(server))
    assert server.sent < ON_THE_WAY
    assert server.requests <= 12


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "redirect loop"])
def test_no_lie_is_an_answer_of_triton(mode: str) -> None:
    with hostile(mode) as server:
        status, why = ended(lambda: triton(server))
    assert status in (0, 302) and why


def test_a_supplier_that_leads_in_circles_is_no_supplier() -> None:
    with hostile("redirect loop") as server:
        assert "found no answer (status 302)" in ended(lambda: probe(server))


@pytest.mark.parametrize("mode", MODES)
def test_every_exchange_with_the_engine_ends(mode: str, tmp_path: Path) -> None:
    with hostile(mode, tmp_path / "engine.sock") as server:
        found = ended(lambda: Engine(str(tmp_path / "engine.sock"), SECONDS).get("/info"))
    assert isinstance(found, OSError) and server.sent < ON_THE_WAY


def test_a_server_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "SECONDS", SECONDS)
    with hostile("a byte of the body at a time") as server:
        wanted = {"address": "127.0.0.1", "http_port": server.port, "key": None}
        assert ended(lambda: served.read_served(wanted)) is None


def test_modes_are_told_apart() -> None:
    assert not set(ENDLESS) & set(WRONG)
