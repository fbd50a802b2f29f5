"""One browser for all tests, and the reports that the tests open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from fleet import make, troubles


@pytest.fixture(scope="session")
def session() -> Iterator[Browser]:
    chromium = Browser()
    yield chromium
    chromium.close()


@pytest.fixture
def browser(session: Browser) -> Iterator[Browser]:
    """The browser. At the end of a test, its console must be empty, and the page must have requested only files."""
    yield session
    assert session.complaints() == []
    assert [url for url in session.requests() if not url.startswith("file:///")] == []


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three hosts: npu1 without a trouble, npu2 unreachable, npu3 with a wrong answer."""
    return make(tmp_path_factory.mktemp("small") / "fleet", ["", "unreachable", "wrong answer"])


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two hundred hosts with every trouble."""
    return make(tmp_path_factory.mktemp("large") / "fleet", troubles(200))


@pytest.fixture(scope="session", params=[(7, 8), (30, 200)], ids=["7", "30"])
def many(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A report with many models: seven models on eight hosts, or thirty models on two hundred hosts."""
    models, hosts = request.param
    return make(tmp_path_factory.mktemp("many") / "fleet", troubles(hosts), models=models)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a host without a trouble, a host with drift, a refused host, and a host whose texts are all markup."""
    return make(tmp_path_factory.mktemp("hostile") / "fleet", ["", "drift", "failed"], "npu<b>4")
