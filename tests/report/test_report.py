"""Tests of the report in a browser: small and large, wide and narrow, light and dark, with and without scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browser import Browser
from fleet import HOSTILE, draw
from selenium.webdriver.common.keys import Keys

WIDTHS = [1280, 390]
# A script that returns the elements whose contrast is below 4.5. The contrast is that of WCAG, between a visible text and the first
# opaque background behind it.
CONTRAST = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
  .map((one) => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4)
  .reduce((sum, one, place) => sum + one * [.2126, .7152, .0722][place], 0);
const ground = (node) => { for (; node; node = node.parentElement) {
  const found = channels(getComputedStyle(node).backgroundColor);
  if (found.length < 4 || found[3] > .9) return found; } return [255, 255, 255]; };
const low = [];
for (const node of document.querySelectorAll('body *')) {
  const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
  if (!own || !node.offsetHeight || node.closest('script')) continue;
  const [a, b] = [light(channels(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
  if ((a + .05) / (b + .05) < 4.5) low.push(node.outerHTML.slice(0, 80));
}
return low;
"""

# A script that returns the texts of the overview that need more than one line. Lines can be horizontal or vertical.
WRAPPED = """
const found = [];
const whole = '.host, .badge, .answer, .version, .summary .seen, .model small, .cards small, thead th';
for (const part of document.querySelectorAll(whole)) {
  const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    if (!texts.currentNode.data.trim() || !part.offsetHeight) continue;
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const upright = getComputedStyle(texts.currentNode.parentNode).writingMode !== 'horizontal-tb';
    const lines = new Set([...range.getClientRects()].map((one) => Math.round(upright ? one.left : one.top)));
    if (lines.size > 1) found.push(texts.currentNode.data);
  }
}
return [...new Set(found)];
"""
PICTURES = Path(__file__).resolve().parents[2] / "build/report-pictures"


def fits(browser: Browser) -> bool:
    return browser.js("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", WIDTHS)
def test_three_hosts(browser: Browser, small: Path, width: int) -> None:
    browser.open(small, width)
    assert browser.shown() == ["npu2", "npu3", "npu1"]
    for button in browser.all(".summary .host button"):
        button.click()
    assert fits(browser)
    shown = browser.element("main").text
    for words in ("unreachable", "No route to host", "wrong answers 1 of 66", "label is 1, expected 7", "in sync", "normal"):
        assert words in shown, words
    for words in ("RBLN-CA22", "firmware 2.0.1", "15.7 GiB", "27.3.1", "2.51.0", "0.9.4", "24.10", "source", "release", "READY"):
        assert words in shown, words
    assert "gone" not in shown


def test_pictures_are_shown(browser: Browser, small: Path) -> None:
    browser.open(small)
    for button in browser.all(".summary .host button"):
        button.click()
    sizes = browser.js(
        "return Promise.all([...document.querySelectorAll('.answers img')].map(async (one) => {"
        " await one.decode(); return [one.naturalWidth, one.offsetWidth]; }))"
    )
    assert len(sizes) == 120
    assert {natural for natural, _shown in sizes} == {8, 32}
    assert all(shown >= 40 for _natural, shown in sizes)
    wrong = browser.element("#host-npu3 .answers li.wrong")
    assert wrong.text.split() == ["✕", "1", "expected", "7", *wrong.text.split()[-2:]]
    assert wrong.text.endswith(" ms")


def test_tooltips_have_complete_digests(browser: Browser, small: Path) -> None:
    browser.open(small)
    titles = browser.js("return [...document.querySelectorAll('#host-npu1 dd code')].map((one) => one.title)")
    assert len(titles) == 7
    assert all(len(title.removeprefix("sha256:")) == 64 for title in titles)


@pytest.mark.parametrize("width", WIDTHS)
def test_two_hundred_hosts(browser: Browser, large: Path, width: int) -> None:
    assert large.stat().st_size < 5_000_000
    browser.open(large, width)
    levels = browser.js("return [...document.querySelectorAll('main > .wide > table > tbody')].map((one) => one.className)")
    assert len(levels) == 200
    assert levels == sorted(levels, key=["wrong", "unknown", "good"].index)
    assert fits(browser)
    assert browser.js("return innerWidth") == width


@pytest.mark.parametrize("width", [1920, 1400, 1024])
def test_texts_about_many_models_are_not_wrapped(browser: Browser, many: Path, width: int) -> None:
    browser.open(many, width)
    heads = browser.all("main > .wide > table > thead th.model")
    PICTURES.mkdir(parents=True, exist_ok=True)
    browser.picture(PICTURES / f"{len(heads)}-models-{width}.png")
    assert browser.js(WRAPPED) == []
    assert fits(browser)
    # The table needs no scrolling, except for 30 models on the narrowest screen.
    visible, needed = browser.js("const wide = document.querySelector('.wide'); return [wide.clientWidth, wide.scrollWidth]")
    assert needed <= visible or (width, len(heads)) == (1024, 30)
    # The meaning of a mark is in its tooltip, and in a text for people who do not see it.
    meanings = browser.js(
        "return [...document.querySelectorAll('.summary .model .answer.wrong')].map((one) => [one.title, one.textContent.trim()])"
    )
    assert ["resnet50: 0 of 22", "\u2715 0 of 22"] in meanings
    for head in (heads[0], heads[-1]):
        assert head.text == head.find_element("css selector", "button").get_attribute("title") != ""


def test_filters_answer_at_once(browser: Browser, large: Path) -> None:
    browser.open(large)
    # The text changes in the same turn of the event loop, without a timer.
    shown = browser.js(
        "const find = document.getElementById('find');"
        "find.value = 'npu19 resnet50'; find.dispatchEvent(new Event('input'));"
        "return document.getElementById('shown').textContent"
    )
    assert shown == f"{len(browser.shown())} of 200 hosts" != "200 of 200 hosts"
    assert all(name.startswith("npu19") for name in browser.shown())
    assert browser.element("#shown").text == f"{len(browser.shown())} of 200 hosts"
    find = browser.element("#find")
    find.clear()
    find.send_keys("No Route")
    unreachable = browser.shown()
    assert unreachable
    assert all("unreachable" in browser.element(f"#host-{name} .state").text for name in unreachable)
    find.send_keys("xyz")
    assert browser.shown() == []
    assert browser.element("#none").is_displayed()
    browser.js("document.getElementById('find').value = ''")
    browser.element("#only").click()
    wrong = browser.shown()
    assert 8 <= len(wrong) < 60
    assert browser.all("tbody.good:not([hidden])") == []


def test_sorting_by_mouse_and_by_keyboard(browser: Browser, large: Path) -> None:
    browser.open(large)
    heads = browser.all("main > .wide > table > thead th")
    assert [head.get_attribute("aria-sort") for head in heads[:3]] == ["none", "ascending", "none"]
    heads[0].find_element("css selector", "button").click()
    assert browser.shown() == [f"npu{number}" for number in range(1, 201)]
    button = heads[0].find_element("css selector", "button")
    button.send_keys(Keys.ENTER)
    assert browser.shown() == [f"npu{number}" for number in range(200, 0, -1)]
    assert [head.get_attribute("aria-sort") for head in heads[:3]] == ["descending", "none", "none"]
    # A host without a driver version comes last in both directions.
    driver = next(head for head in heads if head.text.startswith("Driver"))
    for _way in range(2):
        driver.find_element("css selector", "button").send_keys(Keys.SPACE)
        keys = browser.js("return [...document.querySelectorAll('tbody .version:nth-child(7)')].map((one) => one.dataset.key)")
        assert keys == sorted(keys, key=lambda entry: entry == "")
        assert "" in keys


def test_details_open_by_keyboard_and_by_address(browser: Browser, small: Path) -> None:
    browser.open(small)
    more = browser.element("#host-npu3 .more")
    button = browser.element("#host-npu3 .host button")
    assert (more.is_displayed(), button.get_attribute("aria-expanded")) == (False, "false")
    button.send_keys(Keys.ENTER)
    assert (more.is_displayed(), button.get_attribute("aria-expanded")) == (True, "true")
    browser.js("location.hash = '#host-npu1'; return new Promise((done) => setTimeout(done))")
    assert browser.element("#host-npu1 .more").is_displayed()


def test_hostile_texts_stay_texts(browser: Browser, hostile: Path) -> None:
    browser.open(hostile)
    for button in browser.all(".summary .host button"):
        button.click()
    assert "npu<b>4" in browser.shown()
    assert browser.driver.title.endswith("fleet report")
    assert browser.all("[onerror], [onmouseover], main b b, img[src^=http]") == []
    assert len(browser.all("script")) == 2
    shown = browser.element("main").text
    for words in (HOSTILE, '"><script>', "' onmouseover=alert(1) x='", "{{ 7 * 7 }}"):
        assert words in shown, words
    assert "npufleet_npus is 0, expected a whole number from 1 to 256" in shown


def test_the_plan_shows_actual_and_desired_values(browser: Browser, hostile: Path) -> None:
    browser.open(hostile)
    browser.element("#host-npu2 .host button").click()
    row = browser.element("#host-npu2 .plan tbody tr").text
    assert row.startswith("server container.ulimits")
    assert row.index("33554432") < row.index("67108864") < row.index("replace")


@pytest.mark.parametrize("dark", [False, True])
def test_all_texts_have_enough_contrast(browser: Browser, hostile: Path, dark: bool) -> None:
    browser.open(hostile, dark=dark)
    for button in browser.all(".summary .host button"):
        button.click()
    red = int(browser.js("return getComputedStyle(document.body).backgroundColor").split("(")[1].split(",")[0])
    assert red < 40 if dark else red > 200
    assert browser.js(CONTRAST) == []


def test_without_scripts_everything_is_shown(browser: Browser, small: Path) -> None:
    browser.open(small, 390, scripts=False)
    try:
        shown = browser.element("main").text
        assert not browser.element(".tools").is_displayed()
        for words in ("No route to host", "label is 1, expected 7", "firmware 2.0.1", "largest batch"):
            assert words in shown, words
        assert fits(browser)
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_an_old_page_shows_a_warning(browser: Browser, small: Path, tmp_path: Path) -> None:
    page = small.read_text()
    made = page.split('<p class="made">')[1].split('datetime="')[1][:20]
    old = tmp_path / "old.html"
    old.write_text(page.replace(made, "2020-01-01T00:00:00Z"))
    browser.open(small)
    assert not browser.element("#old").is_displayed()
    browser.open(old)
    assert browser.element("#old").is_displayed()


@pytest.mark.parametrize("half", ["status", "check"])
def test_a_page_with_only_one_half_names_the_missing_playbook(browser: Browser, small: Path, tmp_path: Path, half: str) -> None:
    (tmp_path / "check").mkdir()
    (tmp_path / "hosts.json").write_text((small.parent / "hosts.json").read_text())
    if half == "status":
        status = json.loads((small.parent / "status.json").read_text())
        status["hosts"][0]["when"] = "2020-01-01T00:00:00Z"
        (tmp_path / "status.json").write_text(json.dumps(status))
    else:
        (tmp_path / "check/npu3.json").write_text((small.parent / "check/npu3.json").read_text())
    browser.open(draw(tmp_path))
    shown = browser.element("body").text
    assert ("playbooks/check.yml" in shown, "playbooks/status.yml" in shown) == (half == "status", half == "check")
    if half == "status":
        assert "1 of 3 hosts was last seen more than 24 hours ago" in shown
        assert browser.shown() == ["npu2", "npu1", "npu3"]
    else:
        assert browser.shown() == ["npu3", "npu1", "npu2"]
        assert "not checked" in browser.element("#host-npu1 .state").text
