#!/usr/bin/env python3
"""Write the dashboards of Grafana (10 and later) from the descriptions below, as one JSON file for each dashboard.

    python files/monitoring/dashboards/make.py          writes *.json next to this file
    python files/monitoring/dashboards/make.py --check  exits with 1 if a committed file differs

To change a panel, change its description here, run this file, and run tests/unit/test_dashboards.py. That test runs each query on a
real Prometheus.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
DOCS = "https://github.com/npufleet/npufleet/blob/main/docs/monitoring.md#dashboards"
SCHEMA = 39
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
RED, GREEN, BLUE = "red", "green", "blue"
# Columns that tables do not show
HIDDEN = ("Time", "Value", "__name__", "job", "instance", "alertstate", "npufleet_group")
# Headings of columns whose label has another name
RENAMED = {"inventory_host": "host", "sloth_slo": "objective"}


class Query(NamedTuple):
    """A query and the legend of its series."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """A panel of a dashboard.

    limits   pairs (colour, value). From this value on, the panel has this colour
    value    the heading for the values of a table. Without a heading, the table shows only the labels
    minimum  the value at which the axis of a graph begins. With None, the axis begins at the smallest value
    maximum  the value at which the axis of a graph ends

    A table has one row for each set of labels. A table with several queries shows the values of the last query.
    """

    kind: str
    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    width: int = 8
    height: int = 8
    limits: Sequence[tuple[str, float]] = ()
    stacked: bool = False
    maximum: float | None = None
    value: str = ""
    minimum: float | None = 0


class Row(NamedTuple):
    """A heading and its panels, from left to right."""

    title: str
    panels: Sequence[Panel]


class Dashboard(NamedTuple):
    """A dashboard.

    variables    the query for the values of each variable, by name
    annotations  the query, colour and text of each annotation, by name
    """

    name: str
    title: str
    description: str
    variables: dict[str, str]
    annotations: dict[str, tuple[str, str, str]]
    rows: Sequence[Row]


def graph(title: str, unit: str, description: str, *queries: Query, **options: Any) -> Panel:
    """Return a panel with lines over time."""
    return Panel("timeseries", title, description, unit, queries, **options)


def count(title: str, description: str, expr: str, unit: str = "none", **options: Any) -> Panel:
    """Return a panel with one number, which is red if it is 1 or more."""
    return Panel("stat", title, description, unit, [Query(expr)], 3, 4, **{"limits": [(RED, 1)], **options})


def table(title: str, description: str, *exprs: str, unit: str = "none", **options: Any) -> Panel:
    """Return a panel with a row for each series."""
    return Panel("table", title, description, unit, [Query(expr) for expr in exprs], **{"width": 12, **options})


def states(title: str, description: str, *queries: Query, **options: Any) -> Panel:
    """Return a panel with a bar over time for each series. The bar is green while the value is 1, and red while it is 0."""
    return Panel("state-timeline", title, description, "bool_on_off", queries, **{"limits": [(GREEN, 1)], "width": 12, **options})


FIRING = 'ALERTS{alertstate="firing", alertname=~"Npufleet.*", host=~"$host"}'
NOT_AS_DESIRED = "npufleet_model_desired{%s} unless on (host, model, digest) npufleet_model_loaded"
SUCCESS = "rate(nv_inference_request_success{%s}[$__rate_interval])"
FAILURE = 'rate(nv_inference_request_failure{%s, reason!="CANCELED"}[$__rate_interval])'
DURATION = "rate(nv_inference_%s_duration_us{%s}[$__rate_interval])"
# File systems in memory are excluded, and also read-only images, because these are always full.
DISKS = 'fstype!~"tmpfs|ramfs|overlay|squashfs|iso9660|erofs", host=~"$host"'
USED_DISK = f"1 - node_filesystem_avail_bytes{{{DISKS}}} / node_filesystem_size_bytes{{{DISKS}}}"
# Annotations, which mark changes and alerts on all panels of a dashboard
CHANGES = ('max by (host) (npufleet_change_running{host=~"$host"}) == 1', BLUE, "{{host}}: a change is running")
ALERTS = (FIRING, RED, "{{host}}: {{alertname}}")
HOSTS = 'label_values(up{job="npufleet-triton"}, host)'


def failure_ratio(labels: str, by: str) -> str:
    """Return the query for the share of requests that failed, for each combination of the labels `by`."""
    failed, good = f"sum by ({by}) ({FAILURE % labels})", f"sum by ({by}) ({SUCCESS % labels})"
    return f"{failed} / ({failed} + {good} > 0)"


def per_request(part: str, labels: str, by: str) -> str:
    """Return the query of the mean time that a request spends in one part of Triton, in microseconds."""
    return f"sum by ({by}) ({DURATION % (part, labels)}) / (sum by ({by}) ({SUCCESS % labels}) > 0)"


def certificates(host_variable: str) -> Panel:
    """Return a panel with the days until certificates expire."""
    return table(
        "Certificates",
        "Days until the first certificate of a file expires; negative after that. HAProxy and Triton's gRPC read these files.",
        f'sort((npufleet_certificate_expiry_timestamp_seconds{{host=~"${host_variable}"}} - time()) / 86400)',
        unit="d",
        value="left",
    )


# The rules of rules/slo.yml aggregate all hosts, so their series have no label `host`.
MODEL_FILTER = 'sloth_service="npufleet", model=~"$model"'
BUDGET_LEFT = "slo:period_error_budget_remaining:ratio{%s}"
BURN_RATE = (
    'max by (model) (slo:sli_error:ratio_rate1h{%s, sloth_slo="%s"}) '
    '/ on () group_left () max(slo:error_budget:ratio{sloth_service="npufleet", sloth_slo="%s"})'
)
FLEET_MODEL = 'host=~"$host", model=~"$model"'
FLEET = Dashboard(
    "fleet",
    "npufleet / Fleet",
    "All hosts of the fleet. Problems come first.",
    {"host": HOSTS, "model": "label_values(nv_inference_request_success, model)"},
    {"Changes": CHANGES},
    [
        Row(
            "Problems",
            [
                count(
                    "Critical alerts",
                    "Firing alerts with severity critical.",
                    f'count({FIRING[:-1]}, severity="critical"}}) or vector(0)',
                ),
                count(
                    "Hosts down",
                    "Hosts whose Triton cannot be scraped.",
                    'count(up{job="npufleet-triton", host=~"$host"} == 0) or vector(0)',
                ),
                count(
                    "Wrong answers", "Checks of the probe that fail.", 'count(npufleet_check_ok{host=~"$host"} == 0) or vector(0)'
                ),
                count(
                    "Models not as desired",
                    "Models that are not loaded or that have another digest, counted for each host.",
                    f"count({NOT_AS_DESIRED % FLEET_MODEL}) or vector(0)",
                ),
                count(
                    "Faulted cards", "Cards that are not healthy.", 'count(npufleet_card_healthy{host=~"$host"} == 0) or vector(0)'
                ),
                count(
                    "Missing cards",
                    "Cards that the inventory expects and the host does not find.",
                    'sum(clamp_min(npufleet_cards_expected{host=~"$host"} - npufleet_cards_found{host=~"$host"}, 0))',
                ),
                count(
                    "Lost processes",
                    "Processes of models that are missing or hang.",
                    'sum(npufleet_stubs{host=~"$host", state!="running"})',
                ),
                count(
                    "Hosts with drift",
                    "Hosts that differed from the inventory when status.yml last ran.",
                    'count(max by (inventory_host) (npufleet_drift_items{inventory_host=~"$host"})) or vector(0)',
                ),
                table("Firing alerts", "Each alert that fires now. Empty if no alert fires.", FIRING),
                table(
                    "Models not as desired",
                    "Each host that does not serve the desired digest of a model. In a rollout, these hosts are not changed yet.",
                    NOT_AS_DESIRED % FLEET_MODEL,
                ),
                states(
                    "Answers of each host",
                    "Green if all checks of the probe on this host pass.",
                    Query('min by (host) (npufleet_check_ok{host=~"$host"})', "{{host}}"),
                ),
                table(
                    "Hosts without traffic",
                    "Hosts that a rollout or an operator has drained, and for how long.",
                    'time() - npufleet_drained_since_timestamp_seconds{host=~"$host"}',
                    unit="s",
                    value="for",
                ),
                table(
                    "Differences from the inventory",
                    "Differences that the last run of status.yml found. It writes them if monitoring_status_metrics is true.",
                    'max by (inventory_host, concern) (npufleet_drift_items{inventory_host=~"$host"})',
                    value="differences",
                ),
                certificates("host"),
                table(
                    "Smallest error budgets",
                    "The ten objectives of models with the smallest error budget left. A negative budget is overspent.",
                    f"bottomk(10, max by (model, sloth_slo) ({BUDGET_LEFT % MODEL_FILTER}))",
                    unit="percentunit",
                    value="left",
                ),
            ],
        ),
        Row(
            "Traffic",
            [
                graph(
                    "Requests",
                    "reqps",
                    "Successful requests of each model, over all hosts.",
                    Query(f"sum by (model) ({SUCCESS % FLEET_MODEL})", "{{model}}"),
                    stacked=True,
                ),
                graph(
                    "Failed requests",
                    "percentunit",
                    "Failed share of all requests of a model. Requests that the client cancelled do not count.",
                    Query(failure_ratio(FLEET_MODEL, "model"), "{{model}}"),
                ),
                graph(
                    "Mean time of a request",
                    "µs",
                    "Time of a request in Triton, from its arrival to its answer. Ignore it for models that stream.",
                    Query(per_request("request", FLEET_MODEL, "model"), "{{model}}"),
                ),
                graph(
                    "Slowest hosts",
                    "µs",
                    "The ten hosts with the longest mean time of a request.",
                    Query(f"topk(10, {per_request('request', FLEET_MODEL, 'host')})", "{{host}}"),
                ),
                graph(
                    "Hosts with the most waiting requests",
                    "none",
                    "The ten hosts with the most requests that wait for an instance.",
                    Query(f"topk(10, sum by (host) (nv_inference_pending_request_count{{{FLEET_MODEL}}}))", "{{host}}"),
                ),
                graph(
                    "Hottest cards",
                    "celsius",
                    "The ten hottest cards.",
                    Query('topk(10, npufleet_card_temperature_celsius{host=~"$host"})', "{{host}} {{device}}"),
                ),
            ],
        ),
        Row(
            "Hosts",
            [
                graph(
                    "Fullest disks",
                    "percentunit",
                    "Used share of the fullest file system of each host. The panel shows the ten fullest hosts.",
                    Query(
                        f"topk(10, max by (host) ({USED_DISK}))",
                        "{{host}}",
                    ),
                    maximum=1,
                ),
                graph(
                    "CPU",
                    "percentunit",
                    "Busy share of all cores of each host. The panel shows the ten busiest hosts.",
                    Query(
                        'topk(10, 1 - avg by (host) (rate(node_cpu_seconds_total{mode="idle", host=~"$host"}[$__rate_interval])))',
                        "{{host}}",
                    ),
                    maximum=1,
                ),
                graph(
                    "Memory",
                    "percentunit",
                    "Used share of the memory of each host. The panel shows the ten fullest hosts.",
                    Query(
                        'topk(10, 1 - node_memory_MemAvailable_bytes{host=~"$host"} / node_memory_MemTotal_bytes{host=~"$host"})',
                        "{{host}}",
                    ),
                    maximum=1,
                ),
                graph(
                    "Shared memory",
                    "percentunit",
                    "Used share of the container's shared memory, through which Triton exchanges tensors with its models.",
                    Query('topk(10, npufleet_shm_used_bytes{host=~"$host"} / npufleet_shm_size_bytes{host=~"$host"})', "{{host}}"),
                    maximum=1,
                ),
                graph(
                    "Age of the last probe",
                    "s",
                    "Time since the probe of each host last ran. The panel shows the ten hosts with the longest time.",
                    Query('topk(10, time() - npufleet_probe_last_attempt_timestamp_seconds{host=~"$host"})', "{{host}}"),
                ),
                graph(
                    "Age of the last status",
                    "s",
                    "Time since status.yml last wrote the differences of the fleet. The panels show differences of that age.",
                    Query("min by (host) (time() - npufleet_status_timestamp_seconds)", "{{host}}"),
                ),
            ],
        ),
    ],
)

MODEL_LABELS = 'host=~"$host", model=~"$model"'
BY_MODEL = "model, version"
SHORT_DIGEST = 'label_replace(%s, "short", "$1", "digest", "(?:sha256:)?(.{12}).*")'
MODEL = Dashboard(
    "model",
    "npufleet / Model",
    "One model on all hosts: traffic, time, batches, failures and versions.",
    {"model": "label_values(nv_inference_request_success, model)", "host": HOSTS},
    {
        "Rollouts": CHANGES,
        "New digests": (
            f"count by (model, version, digest) (npufleet_model_loaded{{{MODEL_LABELS}}}) unless "
            f"count by (model, version, digest) (npufleet_model_loaded{{{MODEL_LABELS}}} offset 2m)",
            GREEN,
            "{{model}} {{version}}: {{digest}} is new",
        ),
        "Alerts": ALERTS,
    },
    [
        Row(
            "Traffic",
            [
                graph(
                    "Requests",
                    "reqps",
                    "Successful requests by host.",
                    Query(f"sum by (host) ({SUCCESS % MODEL_LABELS})", "{{host}}"),
                    stacked=True,
                ),
                graph(
                    "Failures by reason",
                    "reqps",
                    "Failed requests. If a step of an ensemble fails, OTHER counts this failure as well.",
                    Query(
                        f"sum by (reason) (rate(nv_inference_request_failure{{{MODEL_LABELS}}}[$__rate_interval]))",
                        "{{reason}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Failed requests",
                    "percentunit",
                    "Failed share of all requests by host. Requests that the client cancelled do not count.",
                    Query(failure_ratio(MODEL_LABELS, "host"), "{{host}}"),
                ),
            ],
        ),
        Row(
            "Time",
            [
                graph(
                    "Parts of the time of a request",
                    "µs",
                    "Mean time that a request spends in the queue, in reading inputs, in computing and in writing outputs.",
                    *(
                        Query(per_request(part, MODEL_LABELS, "model"), legend)
                        for part, legend in (
                            ("queue", "queue"),
                            ("compute_input", "input"),
                            ("compute_infer", "compute"),
                            ("compute_output", "output"),
                        )
                    ),
                    stacked=True,
                ),
                graph(
                    "Mean and quantiles",
                    "µs",
                    "Time of a request in Triton. Quantiles need Triton's option summary_latencies=true.",
                    Query(per_request("request", MODEL_LABELS, "model"), "mean"),
                    Query(
                        f"max by (quantile) (nv_inference_request_summary_us{{{MODEL_LABELS}}})", "{{quantile}} on the slowest host"
                    ),
                ),
                graph(
                    "Queue compared with compute",
                    "percentunit",
                    "Time in the queue divided by the computing time. Above 100 %, the model needs more instances or hosts.",
                    Query(
                        f"sum by (host) ({DURATION % ('queue', MODEL_LABELS)}) "
                        f"/ (sum by (host) ({DURATION % ('compute_infer', MODEL_LABELS)}) > 0)",
                        "{{host}}",
                    ),
                ),
            ],
        ),
        Row(
            "Objectives",
            [
                graph(
                    "Burn rate of the availability",
                    "none",
                    "Failed share of the requests of the last hour, over all hosts, compared with the error budget. "
                    "At 1, the budget lasts for its 30 days. An alert fires at 14.4.",
                    Query(BURN_RATE % (MODEL_FILTER, "availability", "availability"), "{{model}}"),
                ),
                graph(
                    "Burn rate of the latency",
                    "none",
                    "Share of the last hour in which requests took longer than the objective, compared with the error budget. "
                    "At 1, the budget lasts for its 30 days. An alert fires at 14.4.",
                    Query(BURN_RATE % (MODEL_FILTER, "latency", "latency"), "{{model}}"),
                ),
                graph(
                    "Error budget left",
                    "percentunit",
                    "Share of the error budget of 30 days that is left. Below 0, it is overspent. "
                    "If Prometheus keeps data for fewer days, the share is over these days.",
                    Query(f"max by (model, sloth_slo) ({BUDGET_LEFT % MODEL_FILTER})", "{{model}}: {{sloth_slo}}"),
                    maximum=1,
                    minimum=None,
                ),
            ],
        ),
        Row(
            "Batches",
            [
                graph(
                    "Batch size",
                    "none",
                    "Mean number of inferences in one execution.",
                    Query(
                        f"sum by (host) (rate(nv_inference_count{{{MODEL_LABELS}}}[$__rate_interval])) "
                        f"/ (sum by (host) (rate(nv_inference_exec_count{{{MODEL_LABELS}}}[$__rate_interval])) > 0)",
                        "{{host}}",
                    ),
                ),
                graph(
                    "Executions",
                    "ops",
                    "Executions of the model, each with one batch.",
                    Query(f"sum by (host) (rate(nv_inference_exec_count{{{MODEL_LABELS}}}[$__rate_interval]))", "{{host}}"),
                ),
                graph(
                    "Waiting requests",
                    "none",
                    "Requests that wait for an instance of the model.",
                    Query(f"sum by (host) (nv_inference_pending_request_count{{{MODEL_LABELS}}})", "{{host}}"),
                ),
            ],
        ),
        Row(
            "Versions",
            [
                graph(
                    "Hosts by version and digest",
                    "none",
                    "Number of hosts that have loaded each version and digest. During a rollout, hosts move to the new digest.",
                    Query(
                        f"count by ({BY_MODEL}, short) ({SHORT_DIGEST % f'npufleet_model_loaded{{{MODEL_LABELS}}} == 1'})",
                        "{{model}} {{version}} {{short}}",
                    ),
                    stacked=True,
                    width=12,
                ),
                table(
                    "Not as desired",
                    "Hosts that do not serve the desired digest. Empty if all hosts serve it.",
                    NOT_AS_DESIRED % MODEL_LABELS,
                ),
                states(
                    "Answers",
                    "Green if all checks of the model on this host pass.",
                    Query(f"min by (host) (npufleet_check_ok{{{MODEL_LABELS}}})", "{{host}}"),
                    width=8,
                ),
                graph(
                    "Time of the checks",
                    "s",
                    "Time of the slowest request of the probe's checks on a host.",
                    Query(f"max by (host) (npufleet_check_duration_seconds{{{MODEL_LABELS}}})", "{{host}}"),
                ),
                graph(
                    "Failed loads",
                    "none",
                    "1 for each host on which the last load of the model failed.",
                    Query(f"npufleet_model_load_failed{{{MODEL_LABELS}}}", "{{host}}"),
                    maximum=1,
                ),
            ],
        ),
    ],
)

CARD_LABELS = 'host=~"$host", npu=~"$npu"'
CARD_NAME = "{{host}} {{device}}"
CARD = Dashboard(
    "card",
    "npufleet / Card",
    "The NPUs of hosts: health, temperature, power, memory, utilization and link.",
    {"host": "label_values(npufleet_card_healthy, host)", "npu": 'label_values(npufleet_card_healthy{host=~"$host"}, npu)'},
    {"Changes": CHANGES, "Alerts": ALERTS},
    [
        Row(
            "Health",
            [
                states(
                    "Healthy",
                    "Green if the vendor tool reports the card as healthy.",
                    Query(f"npufleet_card_healthy{{{CARD_LABELS}}}", CARD_NAME),
                ),
                graph(
                    "Cards expected and found",
                    "none",
                    "Cards that the inventory expects and cards that the hosts find.",
                    Query('sum(npufleet_cards_expected{host=~"$host"})', "expected"),
                    Query('sum(npufleet_cards_found{host=~"$host"})', "found"),
                    width=12,
                ),
            ],
        ),
        Row(
            "Load",
            [
                graph(
                    "Temperature",
                    "celsius",
                    "Temperature of each card.",
                    Query(f"npufleet_card_temperature_celsius{{{CARD_LABELS}}}", CARD_NAME),
                ),
                graph("Power", "watt", "Power of each card.", Query(f"npufleet_card_power_watts{{{CARD_LABELS}}}", CARD_NAME)),
                graph(
                    "Utilization",
                    "percentunit",
                    "Busy share of each card.",
                    Query(f"npufleet_card_utilization_ratio{{{CARD_LABELS}}}", CARD_NAME),
                    maximum=1,
                ),
                graph(
                    "Memory",
                    "percentunit",
                    "Used share of the memory of each card.",
                    Query(
                        f"npufleet_card_memory_used_bytes{{{CARD_LABELS}}} / npufleet_card_memory_size_bytes{{{CARD_LABELS}}}",
                        CARD_NAME,
                    ),
                    maximum=1,
                ),
                graph(
                    "Used memory",
                    "bytes",
                    "Used memory of each card.",
                    Query(f"npufleet_card_memory_used_bytes{{{CARD_LABELS}}}", CARD_NAME),
                ),
                graph(
                    "Age of the reading",
                    "s",
                    "Time since the vendor tool was last read on a host. If it grows, the other panels show old values.",
                    Query('time() - npufleet_cards_last_read_timestamp_seconds{host=~"$host"}', "{{host}}"),
                ),
            ],
        ),
        Row(
            "Hardware",
            [
                graph(
                    "Link speed",
                    "none",
                    "Speed of the PCIe link of each card in GT/s for each lane.",
                    Query(f"npufleet_card_pcie_link_speed_gts{{{CARD_LABELS}}}", CARD_NAME),
                ),
                graph(
                    "Link width",
                    "none",
                    "Lanes of the PCIe link of each card.",
                    Query(f"npufleet_card_pcie_link_width{{{CARD_LABELS}}}", CARD_NAME),
                ),
                table("Drivers", "Loaded and expected driver of each host.", 'npufleet_driver_info{host=~"$host"}', width=8),
                table("Cards", "Name, firmware, address and group of each card.", f"npufleet_card_info{{{CARD_LABELS}}}", width=24),
            ],
        ),
    ],
)

PROXY = 'host=~"$balancer", proxy=~"npufleet_.*"'
SERVER = f'{PROXY}, server=~"$server"'
SERVER_NAME = "{{server}} {{proxy}}"
DRAINED = 'host=~"$balancer", server=~"$server"'
BALANCER = Dashboard(
    "balancer",
    "npufleet / Balancer",
    "The load balancers: servers in the traffic, requests, failures and times.",
    {
        "balancer": 'label_values(haproxy_server_status{proxy=~"npufleet_.*"}, host)',
        "server": 'label_values(haproxy_server_status{host=~"$balancer", proxy=~"npufleet_.*"}, server)',
    },
    {"Changes": ("max by (host) (npufleet_change_running) == 1", BLUE, "{{host}}: a change is running")},
    [
        Row(
            "Servers",
            [
                states(
                    "Servers in the traffic",
                    "Green if the balancer sends requests to the server.",
                    Query(f'min by (host, server) (haproxy_server_status{{{SERVER}, state="UP"}})', "{{server}}"),
                ),
                table(
                    "Servers without traffic",
                    "Servers that are down, drained or in maintenance, and their state. Empty if all servers get traffic.",
                    f'haproxy_server_status{{{SERVER}, state=~"DOWN|DRAIN|MAINT|NOLB"}} == 1',
                ),
                table(
                    "Drained servers",
                    "Servers that a rollout, maintenance or an operator has drained, and since when. "
                    "The time of a drain on the socket of HAProxy is unknown.",
                    f"max by (host, server, kind) (npufleet_balancer_server_drained{{{DRAINED}}})",
                    f"time() - max by (host, server, kind) (npufleet_balancer_drained_since_timestamp_seconds{{{DRAINED}}})",
                    unit="s",
                    value="for",
                ),
                certificates("balancer"),
                graph(
                    "Servers by state",
                    "none",
                    "Number of servers in each state.",
                    Query(f"sum by (state) (haproxy_server_status{{{SERVER}}})", "{{state}}"),
                    stacked=True,
                ),
                graph(
                    "Failed health checks",
                    "cps",
                    "Health checks that failed.",
                    Query(f"rate(haproxy_server_check_failures_total{{{SERVER}}}[$__rate_interval])", SERVER_NAME),
                ),
                graph(
                    "Requests in flight",
                    "none",
                    "Sessions of clients with each server.",
                    Query(f"sum by (server) (haproxy_server_current_sessions{{{SERVER}}})", "{{server}}"),
                ),
            ],
        ),
        Row(
            "Requests",
            [
                graph(
                    "Responses by status",
                    "reqps",
                    "Responses to clients over HTTP and gRPC.",
                    Query(f"sum by (code) (rate(haproxy_server_http_responses_total{{{SERVER}}}[$__rate_interval]))", "{{code}}"),
                    stacked=True,
                ),
                graph(
                    "Server errors",
                    "percentunit",
                    "Share of the responses of each server that have a status of 500 or above.",
                    Query(
                        f'sum by (server) (rate(haproxy_server_http_responses_total{{{SERVER}, code="5xx"}}[$__rate_interval])) '
                        f"/ (sum by (server) (rate(haproxy_server_http_responses_total{{{SERVER}}}[$__rate_interval])) > 0)",
                        "{{server}}",
                    ),
                ),
                graph(
                    "Lost requests",
                    "reqps",
                    "Connections that failed, responses that were invalid, and requests that were sent to another server.",
                    Query(f"sum(rate(haproxy_server_connection_errors_total{{{SERVER}}}[$__rate_interval]))", "connection errors"),
                    Query(f"sum(rate(haproxy_server_response_errors_total{{{SERVER}}}[$__rate_interval]))", "response errors"),
                    Query(f"sum(rate(haproxy_server_retry_warnings_total{{{SERVER}}}[$__rate_interval]))", "retries"),
                    Query(
                        f"sum(rate(haproxy_server_redispatch_warnings_total{{{SERVER}}}[$__rate_interval]))",
                        "sent to another server",
                    ),
                ),
            ],
        ),
        Row(
            "Time",
            [
                graph(
                    "Response time",
                    "s",
                    "Mean response time of the last 1,024 requests of each server.",
                    Query(f"haproxy_server_response_time_average_seconds{{{SERVER}}}", SERVER_NAME),
                ),
                graph(
                    "Queue time",
                    "s",
                    "Mean time in the balancer's queue of the last 1,024 requests of each server.",
                    Query(f"haproxy_server_queue_time_average_seconds{{{SERVER}}}", SERVER_NAME),
                ),
                graph(
                    "Queue",
                    "none",
                    "Requests that wait in the balancer, because all servers are busy.",
                    Query(f"sum by (proxy) (haproxy_backend_current_queue{{{PROXY}}})", "{{proxy}}"),
                ),
            ],
        ),
    ],
)

DASHBOARDS = (FLEET, MODEL, CARD, BALANCER)


def variable(name: str, query: str) -> dict[str, Any]:
    """Return the definition of a variable. All its values are selected by default."""
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        # Series without the label match this value, too.
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "regex": "",
        "hide": 0,
    }


def annotation(name: str, query: tuple[str, str, str]) -> dict[str, Any]:
    """Return the definition of an annotation, which marks all panels of a dashboard."""
    expr, colour, text = query
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": expr,
        "step": "30s",
        "titleFormat": name,
        "textFormat": text,
        "useValueForTime": False,
    }


def field_config(panel: Panel) -> dict[str, Any]:
    """Return the unit, colours and drawing style of the values of a panel."""
    base = RED if panel.kind == "state-timeline" else GREEN
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": "none" if panel.kind in ("table", "stat") else "no data",
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": base, "value": None}, *({"color": colour, "value": limit} for colour, limit in panel.limits)],
        },
    }
    if panel.kind == "timeseries":
        if panel.minimum is not None:
            defaults["min"] = panel.minimum
        if panel.maximum is not None:
            defaults["max"] = panel.maximum
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": stacking,
        }
    elif panel.kind == "state-timeline":
        defaults["mappings"] = [
            {
                "type": "value",
                "options": {"0": {"text": "no", "color": RED, "index": 0}, "1": {"text": "yes", "color": GREEN, "index": 1}},
            }
        ]
        defaults["custom"] = {"fillOpacity": 70, "lineWidth": 0}
    return {"defaults": defaults, "overrides": []}


OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background",
        "graphMode": "none",
        "textMode": "value",
        "justifyMode": "auto",
        "orientation": "auto",
    },
    "table": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "fields": ""}},
    "state-timeline": {
        "showValue": "never",
        "mergeValues": True,
        "rowHeight": 0.9,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "tooltip": {"mode": "single", "sort": "none"},
    },
}


def panel_json(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    """Return the JSON model of a panel, at the given position of the grid."""
    # Tables and numbers show the current value, other panels the values over time.
    instant = panel.kind in ("table", "stat")
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "format": "table" if panel.kind == "table" else "time_series",
            "instant": instant,
            "range": not instant,
        }
        for place, query in enumerate(panel.queries)
    ]
    found: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": field_config(panel),
        "options": OPTIONS[panel.kind],
        "targets": targets,
    }
    if panel.kind == "table":
        # Grafana names the values of several queries after their letters.
        values = [f"Value #{target['refId']}" for target in targets] if len(targets) > 1 else ["Value"]
        hidden = {name: True for name in dict.fromkeys([*HIDDEN, *values]) if not (name == values[-1] and panel.value)}
        names = {**RENAMED, **({values[-1]: panel.value} if panel.value else {})}
        organize = {"excludeByName": hidden, "indexByName": {}, "renameByName": names}
        merge = [{"id": "merge", "options": {}}] if len(targets) > 1 else []
        found["transformations"] = [*merge, {"id": "organize", "options": organize}]
    return found


def panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the headings and panels of a dashboard, each with its position in the grid."""
    found: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        found.append(
            {
                "id": len(found) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        y, x, height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                y, x, height = y + height, 0, 0
            found.append(panel_json(panel, len(found) + 1, x, y))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return found


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """Return the JSON model of a dashboard."""
    datasource = {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "current": {},
        "options": [],
        "regex": "",
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
    }
    links = [
        {
            "type": "dashboards",
            "title": "npufleet",
            "tags": ["npufleet"],
            "asDropdown": True,
            "includeVars": True,
            "keepTime": True,
        },
        {"type": "link", "title": "Documentation", "url": DOCS, "icon": "doc", "targetBlank": True},
    ]
    return {
        "uid": f"npufleet-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["npufleet"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": links,
        "templating": {"list": [datasource, *(variable(name, query) for name, query in dashboard.variables.items())]},
        "annotations": {"list": [annotation(name, query) for name, query in dashboard.annotations.items()]},
        "panels": panels(dashboard.rows),
    }


def main() -> int:
    """Write the files, or compare them with --check. Return 1 if a file differs."""
    differs = []
    for dashboard in DASHBOARDS:
        path = HERE / f"{dashboard.name}.json"
        text = json.dumps(dashboard_json(dashboard), indent=1, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            differs.append(path.name)
    if differs:
        print(f"{', '.join(differs)} differ from make.py: run {Path(__file__).name} without --check")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
