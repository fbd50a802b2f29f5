"""The dashboards of Grafana: their form, and each query on a real Prometheus with the series of an invented fleet."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet_series
import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.metrics import cards, certificates, drained, host
from ansible_collections.npufleet.triton.plugins.module_utils.watch import probe_page
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import drift
from helpers import FIXTURES, ROOT, until
from prometheus_server import Prometheus, program, prometheus
from rendered_haproxy import RenderedHaproxy
from small_haproxy import free_port

DIRECTORY = ROOT / "files/monitoring/dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(DIRECTORY.glob("*.json"))}
# Variables of Grafana itself
BUILT_IN = {"$__rate_interval": "5m"}
LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)", re.DOTALL)
METRIC = re.compile(r"\b(?:nv|node|haproxy|npufleet|slo)_[a-zA-Z0-9_]+\b|\bslo:[a-z0-9_:]+\b")


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def variables(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [variable for variable in dashboard["templating"]["list"] if variable["type"] == "query"]


def filled(expr: str, dashboard: dict[str, Any]) -> str:
    """Return a query with the values that Grafana puts in for `All`."""
    values = {**BUILT_IN, **{f"${variable['name']}": variable["allValue"] for variable in variables(dashboard)}}
    for name, value in values.items():
        expr = expr.replace(name, value)
    assert "$" not in expr.replace('"$1"', ""), expr
    return expr


PANELS = [
    pytest.param(name, panel, id=f"{name}-{panel['title'].replace(' ', '_')}")
    for name, dashboard in DASHBOARDS.items()
    for panel in panels(dashboard)
]
# The metrics of the contract between the host's program and the dashboards
QUERIES = {
    name: [
        *(target["expr"] for panel in panels(dashboard) for target in panel["targets"]),
        *(mark["expr"] for mark in dashboard["annotations"]["list"]),
        *(variable["definition"] for variable in variables(dashboard)),
    ]
    for name, dashboard in DASHBOARDS.items()
}


@pytest.fixture(scope="module")
def end() -> float:
    return float(int(time.time()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, end: float) -> Iterator[Prometheus]:
    fleet = fleet_series.Fleet(end, [f"npu{number}" for number in range(1, 5)], sick=["npu2"], down=["npu3"])
    with prometheus(tmp_path_factory.mktemp("prometheus"), fleet_series.series(fleet)) as running:
        yield running


def test_the_four_dashboards_are_written_by_make() -> None:
    assert sorted(DASHBOARDS) == ["balancer", "card", "fleet", "model"]
    done = subprocess.run([sys.executable, DIRECTORY / "make.py", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_fit_every_grafana(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert dashboard["uid"] == f"npufleet-{name}"
    assert dashboard["description"]
    # An imported dashboard has no ID of a database.
    assert "id" not in dashboard
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    assert {panel["datasource"]["uid"] for panel in panels(dashboard)} == {"${datasource}"}
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_fill_the_grid_without_overlap(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARDS[name]["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert 0 <= x < 24 and (x, y) not in taken, (panel["title"], taken.get((x, y)))
                taken[x, y] = panel["title"]


@pytest.mark.parametrize(("name", "panel"), PANELS)
def test_each_panel_has_a_title_a_description_and_a_unit(name: str, panel: dict[str, Any]) -> None:
    assert panel["title"] and panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)


@pytest.mark.parametrize(("name", "panel"), PANELS)
def test_each_query_finds_data(server: Prometheus, end: float, name: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        # The fleet has every problem, so no number comes from the 0 that stands for no problem.
        query = filled(target["expr"], DASHBOARDS[name]).replace(" or vector(0)", "")
        if target["instant"]:
            found = server.get("query", query=query, time=end)["result"]
            values = [entry["value"][1] for entry in found]
        else:
            found = server.get("query_range", query=query, start=end - 3600, end=end, step=60)["result"]
            values = [value for entry in found for _time, value in entry["values"]]
        assert [value for value in values if value != "NaN"], f"no data: {query}"
        # A legend without its label would be the same for all lines.
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            assert all(entry["metric"].get(label) for entry in found), (label, query)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_variables_and_annotations_find_data(server: Prometheus, end: float, name: str) -> None:
    dashboard = DASHBOARDS[name]
    for variable in variables(dashboard):
        match = LABEL_VALUES.fullmatch(filled(variable["definition"], dashboard))
        assert match, variable["definition"]
        span = {"start": end - 3600, "end": end}
        assert server.get(f"label/{match[2]}/values", **{"match[]": match[1]}, **span), variable["definition"]
    for mark in dashboard["annotations"]["list"]:
        found = server.get("query_range", query=filled(mark["expr"], dashboard), start=end - 3 * 3600, end=end, step=30)["result"]
        assert found, mark["expr"]
        for label in re.findall(r"{{(\w+)}}", mark["textFormat"]):
            assert all(entry["metric"].get(label) for entry in found), (label, mark["expr"])


def test_mixin_imports_all_dashboards() -> None:
    command = [program("jsonnet"), "--exec", "(import 'mixin.libsonnet').grafanaDashboards"]
    done = subprocess.run(command, cwd=DIRECTORY.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {f"npufleet-{name}.json": dashboard for name, dashboard in DASHBOARDS.items()}


def test_provisioning_names_an_own_datasource_and_the_folder() -> None:
    folder = ROOT / "files/monitoring/provisioning"
    (datasource,) = yaml.safe_load((folder / "datasources/npufleet.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards/npufleet.yml").read_text())["providers"]
    defaults = yaml.safe_load((ROOT / "roles/monitoring/defaults/main.yml").read_text())
    assert (datasource["type"], datasource["url"]) == ("prometheus", f"http://localhost:{defaults['monitoring_prometheus_port']}")
    assert datasource["jsonData"]["timeInterval"] == defaults["monitoring_scrape_interval"]
    assert (provider["type"], provider["options"]) == ("file", {"path": "/var/lib/grafana/dashboards/npufleet"})


def test_a_query_without_data_is_seen(server: Prometheus, end: float) -> None:
    panel = {"targets": [{"expr": "nv_inference_compute_duration_us", "instant": True, "legendFormat": ""}]}
    with pytest.raises(AssertionError, match="no data"):
        test_each_query_finds_data(server, end, "fleet", panel)


def names_on(page: str) -> set[str]:
    return set(re.findall(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)[{ ]", page, re.MULTILINE))


def used(prefix: str) -> set[str]:
    return {name for queries in QUERIES.values() for query in queries for name in METRIC.findall(query) if name.startswith(prefix)}


def test_names_of_triton_exist_on_its_pages() -> None:
    page = "\n".join(path.read_text() for path in (FIXTURES / "metrics").glob("24.10_*.txt"))
    # Summaries are an option of Triton, and the pages were written without them.
    assert used("nv_") - names_on(page) == {"nv_inference_request_summary_us"}


def test_names_of_haproxy_exist_on_its_page(tmp_path: Path) -> None:
    balancer = RenderedHaproxy(tmp_path, {"npu1": (free_port(), free_port())})
    try:
        balancer.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{balancer.metrics_port}/metrics", timeout=10) as response:
            kind, page = response.headers["Content-Type"], response.read().decode()
    finally:
        balancer.stop()
    # Prometheus 3 requires it.
    assert kind.startswith("text/plain; version=0.0.4")
    assert used("haproxy_") - names_on(page) == set()
    for state in fleet_series.STATES:
        assert f'haproxy_server_status{{proxy="npufleet_http",server="npu1",state="{state}"}}' in page


def test_names_of_node_exporter_exist_on_its_page() -> None:
    port = free_port()
    process = subprocess.Popen(
        [program("prometheus-node-exporter"), f"--web.listen-address=127.0.0.1:{port}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def page() -> str:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                    return response.read().decode()
            except OSError:
                return ""

        until(page)
        assert used("node_") - names_on(page()) == set()
    finally:
        process.kill()
        process.wait()


def test_names_of_the_project_are_written_on_hosts() -> None:
    pages = (probe_page, cards, host, drained, certificates, drift)
    assert used("npufleet_") - {name for page in pages for name in page.HELP} == set()


def test_names_of_objectives_are_recorded() -> None:
    rules = yaml.safe_load((DIRECTORY.parent / "rules/slo.yml").read_text())
    assert used("slo:") - {rule["record"] for group in rules["groups"] for rule in group["rules"]} == set()
    assert used("slo:")
