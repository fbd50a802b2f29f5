"""Tests of the report's charts in a browser, with series from a real Prometheus: small and large fleets, and missing charts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import fleet_series
import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import record
from browser import Browser
from fleet import HOSTILE, make, troubles
from prometheus_server import prometheus
from test_report import CONTRAST, PICTURES, fits

WIDTHS = [1920, 1280, 390]
# The metrics of the charts
NAMES = (
    *(f"nv_inference_request_{name}" for name in ("success", "failure", "duration_us")),
    *(f"npufleet_card_{name}" for name in ("temperature", "memory", "healthy")),
    "npufleet_change_running",
)
HOURS = 6
# Points of lines that are outside of their picture
OUTSIDE = """
return [...document.querySelectorAll('.tile polyline')].flatMap((line) => {
  const box = line.ownerSVGElement.viewBox.baseVal;
  return [...line.points].filter((point) => !(point.x >= 0 && point.x <= box.width && point.y >= 0 && point.y <= box.height));
}).length;
"""


def series(count: int, **more: object) -> Iterator[fleet_series.Series]:
    hosts = [f"npu{number}" for number in range(1, count + 1)]
    settings = {"sick": ["npu3"], "seconds": HOURS * 3600, "step": 150, **more}
    return fleet_series.series(fleet_series.Fleet(float(int(time.time())), hosts, **settings), NAMES)


@pytest.fixture(scope="module")
def charted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with charts of three hosts. npu3 has a faulted card. The first of two monitoring hosts has no Prometheus."""
    home = tmp_path_factory.mktemp("charted")
    records = home / "fleet" / record.DIRECTORY
    owner = record.Owner("run", "<b>kim", "models.yml")
    record.add(str(records), owner, {"npu1": record.host_entry({}, ["models"], 0)}, time.time() - 3 * 3600)
    with prometheus(home / "prometheus", series(3)) as server:
        return make(home / "fleet", ["", "unreachable", "wrong answer"], monitoring=[1, server.port])


@pytest.fixture(scope="module")
def large_charted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with charts of two hundred hosts with 800 cards and 30 models."""
    home = tmp_path_factory.mktemp("large_charted")
    models = [*fleet_series.MODELS, *(f"model_{number}" for number in range(27))]
    of_cards = series(200, sick=["npu7", "npu77"], step=300)
    # The models are on eight hosts.
    few = series(8, sick=["npu7"], models=models, cards=0)
    cards = (entry for entry in of_cards if entry[0].startswith("npufleet_"))
    requests = (entry for entry in few if entry[0].startswith("nv_"))
    with prometheus(home / "prometheus", [*cards, *requests]) as server:
        return make(home / "fleet", troubles(200), models=30, monitoring=[server.port])


@pytest.mark.parametrize("width", WIDTHS)
def test_charts_of_three_hosts(browser: Browser, charted: Path, width: int) -> None:
    browser.open(charted, width, height=1100)
    browser.element("#charts summary").click()
    PICTURES.mkdir(parents=True, exist_ok=True)
    browser.picture(PICTURES / f"charts-{width}.png")
    titles = [head.text for head in browser.all(".tile h3")]
    # All models fail on npu3. The faulted card comes before the hot cards.
    assert sorted(titles[:3]) == sorted(f"✕ {model}" for model in fleet_series.MODELS)
    assert titles[3] == "All 12 cards"
    assert titles[4] == "✕ npu3 NPU 1"
    assert {title.partition(" NPU")[0] for title in titles[5:8]} == {"npu3"}
    assert len(titles) == 4 + 12
    shown = browser.element("#charts").text
    for words in (
        "requests",
        "failed",
        "latency",
        "temperature",
        "memory",
        "hottest card",
        "a change was running",
        "6 hours before",
    ):
        assert words in shown, words
    assert "no data" not in shown
    assert browser.js(OUTSIDE) == 0
    assert fits(browser)
    # Each picture has a text for people who do not see it.
    labels = [picture.get_attribute("aria-label") for picture in browser.all(".tile svg")]
    assert len(labels) == 2 * len(titles)
    assert all(" °C" in label or " %" in label or " ms" in label or "/s" in label for label in labels)


@pytest.mark.parametrize("width", WIDTHS)
def test_charts_of_two_hundred_hosts_show_aggregates_first(browser: Browser, large_charted: Path, width: int) -> None:
    # The charts are a small part of the page.
    assert len(large_charted.read_text().partition('id="charts"')[2].partition('<form class="tools"')[0]) < 150_000
    browser.open(large_charted, width, height=1100)
    # The table of the hosts begins on the first screen of a wide browser.
    assert width < 1000 or browser.element("main .wide").location["y"] < 1000
    browser.picture(PICTURES / f"charts-200-hosts-{width}.png")
    browser.element("#charts summary").click()
    titles = [head.text for head in browser.all(".tile h3")]
    assert titles[7] == "All 800 cards"
    assert titles[8:10] == ["✕ npu7 NPU 1", "✕ npu77 NPU 1"]
    assert len(titles) == 8 + 12
    shown = browser.element("#charts").text
    assert "23 more models have fewer requests and no chart." in shown
    assert "2 faulted, and the hottest cards: 12 of 800" in shown
    assert browser.js(OUTSIDE) == 0
    assert fits(browser)


@pytest.mark.parametrize("dark", [False, True])
def test_texts_of_charts_have_enough_contrast(browser: Browser, charted: Path, dark: bool) -> None:
    browser.open(charted, dark=dark)
    browser.element("#charts summary").click()
    assert browser.js(CONTRAST) == []


def test_changes_are_marked_in_each_chart(browser: Browser, charted: Path) -> None:
    browser.open(charted)
    bands = browser.js(
        "return [...document.querySelectorAll('.tile svg')].map((one) => one.querySelectorAll('rect.change').length)"
    )
    assert set(bands) == {1}
    lines = browser.js(
        "return [...document.querySelectorAll('.tile svg')].map((one) => one.querySelectorAll('line.rollout').length)"
    )
    assert set(lines) == {1}
    assert browser.element("#rollouts").text.endswith(" UTC models.yml by <b>kim, 1 host")
    # The rollout ran from half to four fifths of the time.
    x, width = browser.js(
        "const one = document.querySelector('rect.change'); return [one.x.baseVal.value, one.width.baseVal.value]"
    )
    assert 110 < x < 130
    assert 180 < x + width < 205


def test_a_page_without_monitoring_hosts_names_the_reason(browser: Browser, small: Path) -> None:
    browser.open(small)
    assert browser.element("#charts").text == "No charts: the inventory has no host in monitoring_hosts."
    assert browser.all(".tile") == []


def test_a_page_without_prometheus_names_the_error(browser: Browser, tmp_path: Path) -> None:
    browser.open(make(tmp_path / "fleet", [""], monitoring=[1]))
    assert browser.element("#charts").text.startswith("No charts: mon1: Prometheus does not answer on port 1 (")
    assert browser.shown() == ["mon1", "npu1"]


def test_hostile_labels_stay_texts(browser: Browser, tmp_path: Path) -> None:
    with prometheus(tmp_path / "prometheus", series(1, models=[HOSTILE, "{{ 7 * 7 }}"], cards=1)) as server:
        page = make(tmp_path / "fleet", [""], monitoring=[server.port])
    browser.open(page)
    assert browser.driver.title.endswith("fleet report")
    assert [head.text for head in browser.all(".tile h3")][:2] in ([HOSTILE, "{{ 7 * 7 }}"], ["{{ 7 * 7 }}", HOSTILE])
    assert browser.all("[onerror]") == []
    assert len(browser.all("script")) == 2
