"""The series of the report's charts: what is read from Prometheus, and what is drawn of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import fleet_series
import pytest
from ansible_collections.npufleet.triton.plugins.module_utils import chart_series, system
from ansible_collections.npufleet.triton.plugins.modules import chart_series as module
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import charts
from helpers import http_server, run_module
from prometheus_server import Prometheus, prometheus

NOW = 1_795_800_000.0
GRID = chart_series.grid(NOW, 6)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    hosts = [f"npu{number}" for number in range(1, 6)]
    fleet = fleet_series.Fleet(float(int(time.time())), hosts, sick=["npu5"], seconds=6 * 3600, step=150)
    with prometheus(tmp_path_factory.mktemp("prometheus"), fleet_series.series(fleet)) as running:
        yield running


def test_series_of_models_and_chosen_cards_are_read(server: Prometheus) -> None:
    found = run_module(module, {"port": server.port, "hours": 6})
    assert (found["failed"], found["changed"], found["flaw"], found["step"]) == (False, False, None, 300)
    series = found["series"]
    assert set(series) == set(chart_series.QUERIES)
    assert all(series.values())
    assert {entry["labels"]["model"] for entry in series["rate"]} == set(fleet_series.MODELS)
    assert len(series["temperature"]) == chart_series.MAX_CARDS < series["cards"][0]["values"][-1] == 20
    # The faulted card and the hot ones of its host are chosen, and the same cards in each query.
    chosen = [
        {(entry["labels"]["host"], entry["labels"]["npu"]) for entry in series[name]}
        for name in ("temperature", "memory", "healthy")
    ]
    assert chosen[0] == chosen[1] == chosen[2]
    assert {("npu5", str(npu)) for npu in range(4)} <= chosen[0]
    for entries in series.values():
        assert {len(entry["values"]) for entry in entries} == {chart_series.STEPS + 1}
    drawn = charts.view({"mon": found})
    assert drawn["cards"][0]["title"] == "npu5 NPU 1"
    assert drawn["cards"][0]["level"] == "wrong"


@pytest.mark.parametrize("hours", [0, 721])
def test_hours_out_of_range_are_refused(hours: int) -> None:
    found = run_module(module, {"port": 1, "hours": hours})
    assert found == {"failed": True, "msg": f"hours is {hours}, expected a number from 1 to 720"}


def read(status: int, answer: Any) -> dict[str, Any]:
    """Return what is read of a program that answers each query like this."""
    path = f"/api/v1/query_range?query=up&start={GRID.start}&end={GRID.end}&step={GRID.step}"
    with (
        mock.patch.object(chart_series, "QUERIES", {"rate": "up"}),
        http_server({f"GET {path}": (status, answer), path: (status, answer)}) as running,
    ):
        return chart_series.read(running.port, NOW, 6)


def matrix(*values: list[Any], **labels: str) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": labels, "values": list(values)}]}}


def test_values_are_placed_on_the_grid() -> None:
    first, last, step = GRID.start, GRID.end, GRID.step
    answer = matrix(
        [first, "1"],
        [first + step, "NaN"],
        [first + 2 * step + 0.4, "2.5e1"],
        [last, "+Inf"],
        [last + step, "9"],
        model="m",
        instance="x",
    )
    (series,) = read(200, answer)["series"]["rate"]
    assert series["labels"] == {"model": "m"}
    assert {place: value for place, value in enumerate(series["values"]) if value is not None} == {0: 1.0, 2: 25.0}


@pytest.mark.parametrize(
    ("status", "answer", "flaw"),
    [
        (503, {"status": "error"}, "answers with the status 503, expected 200"),
        (200, [], "does not answer as Prometheus does: it is a list, expected an object"),
        (200, {"data": {"resultType": "vector", "result": []}}, "data.resultType"),
        (200, matrix([GRID.start, "one"]), "does not answer as Prometheus does"),
        (200, matrix([GRID.start, {}]), "does not answer as Prometheus does"),
        (200, matrix([GRID.start, "1"], **{"__name__\n": "x"}), "does not answer as Prometheus does"),
    ],
)
def test_other_answers_are_a_flaw(status: int, answer: Any, flaw: str) -> None:
    found = read(status, answer)
    assert found["series"] == {}
    assert flaw in found["flaw"]


def test_an_answer_that_is_too_long_is_a_flaw() -> None:
    with mock.patch.object(chart_series, "MAX_BYTES", 1000):
        found = read(200, matrix(*([GRID.start, "1"] for _number in range(100))))
    assert found["flaw"].startswith("Prometheus does not answer on port")


def result(**series: Any) -> dict[str, Any]:
    return {"start": GRID.start, "step": GRID.step, "flaw": None, "series": series, "changed": False}


def line(*values: float | None, **labels: str) -> dict[str, Any]:
    return {"labels": labels, "values": [*([None] * (chart_series.STEPS + 1 - len(values))), *values]}


@pytest.mark.parametrize(
    ("hosts", "note"),
    [
        ({}, "the inventory has no host in monitoring_hosts"),
        ({"mon": None}, charts.NOT_READ),
        ({"mon": {"unreachable": True, "msg": "No route"}}, "mon: No route"),
        ({"mon": {"failed": True, "msg": "no Python"}, "mon2": None}, "mon: no Python"),
        ({"mon": result()}, "mon: Prometheus has no series of the fleet"),
        ({"mon": {**result(), "flaw": "it is off"}}, "mon: it is off"),
        ({"mon": {**result(rate=[line(1.0, model="m")]), "step": 0}}, "mon: the times of the series are out of range"),
        ({"mon": {**result(), "series": {"rate": [{"labels": {}, "values": ["1"]}]}}}, "mon: series.rate[0].values[0] is text"),
        ({"mon": "text"}, "mon: the result is not a JSON object"),
    ],
)
def test_the_page_says_why_there_are_no_charts(hosts: dict[str, Any], note: str) -> None:
    assert charts.view(hosts)["note"].startswith(note)


def test_the_first_monitoring_host_with_series_is_drawn() -> None:
    drawn = charts.view({"mon1": {"failed": True, "msg": "x"}, "mon2": result(rate=[line(1.0, 2.0, model="m")])})
    assert drawn["note"] == ""
    assert [model["title"] for model in drawn["models"]] == ["m"]


def test_failing_models_come_first_then_busy_ones() -> None:
    rates = [line(10.0 * number, model=f"m{number}") for number in range(1, 11)]
    drawn = charts.view({"mon": result(rate=rates, failures=[line(1.0, model="m2"), line(0.0, model="m5")])})
    assert [model["title"] for model in drawn["models"]] == ["m2", "m10", "m9", "m8", "m7", "m6", "m5"]
    assert (drawn["models"][0]["level"], drawn["more_models"]) == ("wrong", 3)
    assert [entry["name"] for entry in drawn["models"][0]["charts"][0]["legend"]] == ["requests", "failed"]


def test_a_gap_divides_a_line() -> None:
    drawn = charts.view({"mon": result(rate=[line(1.0, 2.0, None, 4.0, model="m")])})
    (chart, latency) = drawn["models"][0]["charts"]
    assert chart["lines"][0]["parts"] == ["230.0,35.5 233.3,24.0", "240.0,1.0 240.0,1.0"]
    assert (chart["top"], chart["legend"][0]["now"]) == ("4.0/s", "4.0/s")
    assert (latency["lines"][0]["parts"], latency["legend"][0]["now"]) == ([], "no data")


def test_changes_become_bands() -> None:
    changes = [line(*([0.0] * 60), 1.0, 2.0, 1.0, *([0.0] * 9), 1.0)]
    drawn = charts.view({"mon": result(rate=[line(1.0, model="m")], changes=changes)})
    assert drawn["bands"] == [{"x": "198.3", "width": "10.0"}, {"x": "238.3", "width": "3.3"}]


def rollout(at: float, *hosts: str) -> dict[str, Any]:
    ended = system.timestamp(at)
    return {"playbook": "site.yml", "by": "kim", "began": ended, "batches": [{"ended": ended, "hosts": dict.fromkeys(hosts)}]}


def test_recorded_rollouts_are_marked_at_their_first_batch() -> None:
    records = [rollout(GRID.end + 60, "a"), rollout(GRID.start + 3600, "a", "b"), rollout(GRID.start - 60, "a")]
    drawn = charts.view({"mon": result(rate=[line(1.0, model="m")])}, records)
    text = f"{system.timestamp(GRID.start + 3600)[11:16]} UTC site.yml by kim, 2 hosts"
    assert drawn["rollouts"] == [{"x": "40.0", "text": text}]


def test_numbers_that_cannot_be_drawn_are_left_out() -> None:
    drawn = charts.view({"mon": result(rate=[line(-1.0, 1e300, 3.0, model="m")], cards=[line(1e300)])})
    assert drawn["models"][0]["charts"][0]["lines"][0]["parts"] == ["240.0,1.0 240.0,1.0"]
    assert json.dumps(drawn, allow_nan=False)
