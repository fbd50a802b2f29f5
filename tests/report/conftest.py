"""One browser for all tests, and the pages that they look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from fleet import make, troubles


@pytest.fixture(scope="session")
def session() -> Iterator[Browser]:
    found = Browser()
    yield found
    found.close()


@pytest.fixture
def browser(session: Browser) -> Iterator[Browser]:
    """The browser; at the end nothing may have complained nor left the page."""
    yield session
    assert session.complaints() == []
    assert [url for url in session.requests() if not url.startswith("file:///")] == []


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hosts: npu1 well, npu2 unreachable, npu3 with a wrong answer."""
    return make(tmp_path_factory.mktemp("small") / "fleet", ["", "unreachable", "wrong answer"])


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred hosts with every trouble."""
    return make(tmp_path_factory.mktemp("large") / "fleet", troubles(200))


@pytest.fixture(scope="session", params=[(7, 8), (30, 200)], ids=["7", "30"])
def many(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Of many models: seven on eight hosts, thirty on two hundred."""
    models, hosts = request.param
    return make(tmp_path_factory.mktemp("many") / "fleet", troubles(hosts), models=models)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A well host, a drifted one, a refused one, and one whose every text is markup."""
    return make(tmp_path_factory.mktemp("hostile") / "fleet", ["", "drift", "failed"], "npu<b>4")
