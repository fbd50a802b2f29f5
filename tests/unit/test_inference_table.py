"""The table at the end of the demo: what it shows of the results, its last line, and when it fails."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import ROOT

SOURCE = ROOT / "lab/demo_table.py"
DIGEST = "04b87ec34adc" + "0" * 52
ACTUAL = {
    "driver": {
        "module": "1.1.67",
        "tool": {"devices": [{"device": "rbln0", "name": "RBLN-CA12", "status": "normal"}, {"device": "rbln1", "status": "fault"}]},
    },
    "engine": {"running": {"version": "20.10.24"}},
    "image": {"id": "sha256:" + "1ca8fa2745ef" + "0" * 52, "contents": ["numpy<2", "rebel-compiler==0.6.2+lab"]},
    "server": {
        "version": "2.42.0",
        "served": {"digits": {"1": {"state": "READY", "release": DIGEST}, "2": {"state": "UNAVAILABLE"}}},
    },
}


def check(number: int, protocol: str = "http", **changes: Any) -> dict[str, Any]:
    """One good result; the image is full below the row of its number."""
    image = [16 * (row >= number % 8) for row in range(8) for _column in range(8)]
    good = {"name": f"digits/{protocol}/digit {number}", "model": "digits", "protocol": protocol, "ok": True, "why": "", "ms": 1.25}
    return {**good, "expected": number, "got": number, "label": number, "image": image, **changes}


class Demo:
    """A build directory with the results of hosts, and the table drawn from it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "lab").mkdir()
        (place / "build/check").mkdir(parents=True)
        shutil.copy(SOURCE, place / "lab")
        self.statuses: list[dict[str, Any]] = []

    def host(self, name: str, checks: list[dict[str, Any]], **status: Any) -> None:
        whole = {"host": name, "msg": "nothing was asked", "checks": checks}
        (self.place / f"build/check/{name}.json").write_text(json.dumps(whole))
        self.statuses.append(
            {"host": name, "release": "row", "state": "in sync", "plan": [], "report": [], "actual": ACTUAL, **status}
        )
        (self.place / "build/status.json").write_text(json.dumps({"when": "2026-01-01T00:00:00Z", "hosts": self.statuses}))

    def table(self, hosts: str = "npu1,npu2") -> tuple[int, list[str]]:
        command = [sys.executable, str(self.place / "lab/demo_table.py"), "--hosts", hosts]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"}, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_table", SOURCE)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


TEN = [check(number) for number in range(10)]


def test_all_good(demo: Demo) -> None:
    demo.host("npu1", [*TEN, check(0, "grpc", name="largest batch", image=None)])
    demo.host("npu2", TEN)
    code, lines = demo.table()
    assert code == 0
    assert lines[-1] == "demo: 2 hosts serving, 21 of 21 checks passed"
    first = lines[: lines.index("")]
    assert first[:5] == [
        "npu1",
        "  driver 1.1.67   engine 20.10.24   Triton 2.42.0   SDK 0.6.2+lab   release row   image 1ca8fa2745ef",
        "  cards   rbln0 RBLN-CA12 normal, rbln1 ? fault",
        "  model   digits version 1 READY, release 04b87ec34adc",
        "  model   digits version 2 UNAVAILABLE, digest unknown",
    ]
    drawing, below = first[5:9], first[9:]
    assert [line[8:16] for line in drawing] == ["████████"] * 4
    # Of digit 3 the first three pixel rows are empty, the fourth is not.
    assert [line[38:46] for line in drawing] == ["        ", "▄▄▄▄▄▄▄▄", "████████", "████████"]
    assert [line.split() for line in below] == [
        ["read", *"0123456789"],
        ["is", *"0123456789"],
        ["ms", *["1.2"] * 10],
    ]
    assert all(line[11 + 10 * place] == str(place) for line in below[:2] for place in range(10))


def test_a_wrong_answer(demo: Demo) -> None:
    demo.host("npu1", [*TEN[:7], check(7, ok=False, label=1, why="label is 1, expected 7"), *TEN[8:]])
    code, lines = demo.table("npu1")
    assert code == 1
    assert "  WRONG   digits/http/digit 7: label is 1, expected 7" in lines
    assert next(line for line in lines if line.startswith("  read")).split() == ["read", *"0123456", "1", "!", *"89"]
    assert next(line for line in lines if line.startswith("  is")).split() == ["is", *"0123456789"]
    assert lines[-1] == "demo: 1 hosts serving, 9 of 10 checks passed"


def test_a_host_that_is_missing(demo: Demo) -> None:
    demo.host("npu1", TEN)
    code, lines = demo.table()
    assert code == 1
    assert lines[-1] == "demo: 1 hosts serving, 10 of 10 checks passed"
    assert lines[lines.index("npu2") :][3:6] == [
        "  no answer to draw",
        "  WRONG   no check was made: there is no result",
        "  DRIFT   its status was not read",
    ]


def test_a_host_that_could_not_be_asked(demo: Demo) -> None:
    demo.host("npu1", [])
    code, lines = demo.table("npu1")
    assert (code, lines[-1]) == (1, "demo: 0 hosts serving, 0 of 0 checks passed")
    assert "  WRONG   no check was made: nothing was asked" in lines


def test_a_host_that_drifts_is_not_serving(demo: Demo) -> None:
    demo.host("npu1", TEN, state="drift", plan=[{"concern": "server"}], report=["server container: found exited"])
    code, lines = demo.table("npu1")
    assert (code, lines[-1]) == (1, "demo: 0 hosts serving, 10 of 10 checks passed")
    assert "  DRIFT   server container: found exited" in lines


@pytest.mark.parametrize("text", [None, "", "{"])
def test_without_anything_to_read(demo: Demo, text: str | None) -> None:
    if text is not None:
        (demo.place / "build/status.json").write_text(text)
        (demo.place / "build/check/npu1.json").write_text(text)
    code, lines = demo.table("npu1")
    assert (code, lines[-1]) == (1, "demo: 0 hosts serving, 0 of 0 checks passed")


def test_no_host_is_no_success(demo: Demo) -> None:
    assert demo.table("") == (1, ["demo: 0 hosts serving, 0 of 0 checks passed"])


def test_checks_without_answers_are_not_drawn(demo: Demo) -> None:
    unanswered = check(0, ok=False, ms=None, why="no answer")
    del unanswered["label"]
    demo.host("npu1", [unanswered, *(check(number, "grpc") for number in range(12))])
    code, lines = demo.table("npu1")
    assert code == 1
    assert next(line for line in lines if line.startswith("  read")).split() == ["read", *"0123456789"]


def test_only_what_a_host_says_of_itself_is_shown(module: ModuleType) -> None:
    versions, cards = module.facts({})
    assert versions.count("unknown") == 6
    assert cards == "  cards   none"


def test_colours_are_greys_of_both_pixels(module: ModuleType) -> None:
    (line,) = module.draw([0, 16, 8, 99], True)
    assert line == "\033[38;5;232;48;5;243m▀\033[38;5;255;48;5;255m▀\033[0m"


def test_plain_characters_show_which_pixels_are_dark(module: ModuleType) -> None:
    assert module.draw([16, 6, 5, 0, 16, 0, 6, 5, 0, 0, 0, 0, 0, 0, 0, 0], False) == ["█▀▄ ", "    "]
