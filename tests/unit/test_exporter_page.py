"""Pages of the vendor's exporter in both sets of names, scraped by a real Prometheus and read by the recording rules."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from helpers import FIXTURES, ROOT, until
from prometheus_server import Prometheus, prometheus

PAGES = {path.stem: path.read_bytes() for path in sorted((FIXTURES / "exporter").glob("*.txt"))}
RULES = ROOT / "files/monitoring/rules/exporter.yml"
FIRST, SECOND = {"npu": "0", "device": "rbln0"}, {"npu": "1", "device": "rbln1"}
# {metric: values of the two cards}
EXPECTED = {
    "npufleet_card_temperature_celsius": (54, 51),
    "npufleet_card_power_watts": (18.5, 17.9),
    "npufleet_card_memory_used_bytes": (4 * 2**30, 0),
    "npufleet_card_memory_size_bytes": (16877882368, 16877882368),
    "npufleet_card_utilization_ratio": (0.125, 0),
    "npufleet_card_healthy": (1, 0),
}
# Only in the newer set of names
LINKS = {"npufleet_card_pcie_link_speed_gts": (32, 32), "npufleet_card_pcie_link_width": (8, 8)}


class Page(BaseHTTPRequestHandler):
    """An exporter whose path is the name of its page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.end_headers()
        self.wfile.write(PAGES[self.path.strip("/")])

    def log_message(self, *_words: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes each page as a host of the same name."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as exporter:
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        jobs = [
            {
                "job_name": name,
                "metrics_path": f"/{name}",
                "static_configs": [{"targets": [f"127.0.0.1:{exporter.server_port}"], "labels": {"host": name}}],
            }
            for name in PAGES
        ]
        intervals = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = json.dumps({"global": intervals, "rule_files": [str(RULES)], "scrape_configs": jobs})
        with prometheus(tmp_path_factory.mktemp("prometheus"), config=config) as running:
            # The last rule of the group
            query = "count by (host) (npufleet_cards_last_read_timestamp_seconds)"
            until(lambda: len(running.get("query", query=query)["result"]) == len(PAGES))
            yield running
        exporter.shutdown()


def values(server: Prometheus, name: str, host: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and values of a metric of a host, by the number of the NPU."""
    found = server.get("query", query=f'{name}{{host="{host}"}}')["result"]
    series = [(entry["metric"], float(entry["value"][1])) for entry in found]
    plain = [({key: value for key, value in labels.items() if key not in ("__name__", "host")}, value) for labels, value in series]
    return sorted(plain, key=lambda entry: entry[0].get("npu", ""))


def test_both_sets_of_names_have_a_page() -> None:
    assert list(PAGES) == ["legacy_names", "prometheus_names"]


@pytest.mark.parametrize("host", PAGES)
@pytest.mark.parametrize("name", EXPECTED)
def test_values_of_cards_are_recorded_in_base_units(server: Prometheus, name: str, host: str) -> None:
    first, second = EXPECTED[name]
    assert values(server, name, host) == [(FIRST, first), (SECOND, second)]


@pytest.mark.parametrize("name", LINKS)
def test_links_are_recorded_where_the_exporter_reports_them(server: Prometheus, name: str) -> None:
    first, second = LINKS[name]
    assert values(server, name, "prometheus_names") == [(FIRST, first), (SECOND, second)]
    assert values(server, name, "legacy_names") == []


@pytest.mark.parametrize("host", PAGES)
def test_identity_and_number_of_cards_are_recorded(server: Prometheus, host: str) -> None:
    infos = [labels for labels, _value in values(server, "npufleet_card_info", host)]
    card = {"name": "RBLN-CA25", "firmware": "2.0.1"}
    uuids = [f"55668c63-d739-4193-8212-ad7ba933520{number}" for number in range(2)]
    assert infos == [{**place, **card, "uuid": uuid} for place, uuid in zip((FIRST, SECOND), uuids)]
    assert values(server, "npufleet_cards_found", host) == [({}, 2.0)]
    assert values(server, "npufleet_cards_read_ok", host) == [({}, 1.0)]
