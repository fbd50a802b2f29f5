"""Simulated series of a fleet during a rollout, with the names and labels of Triton, node exporter, HAProxy and this project."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_server import Series

MODELS = ("digits", "digits_guide", "resnet50")
GIB = 2**30
# {part of a request in Triton: its share of the time}
PARTS = {"queue": 0.2, "compute_input": 0.05, "compute_infer": 0.7, "compute_output": 0.05}
STATES = ("UP", "DOWN", "MAINT", "DRAIN", "NOLB")


class Fleet(NamedTuple):
    """The fleet that the series describe. A rollout in the second half of the time changes the digest of each model."""

    end: float
    hosts: Sequence[str]
    sick: Sequence[str] = ()
    down: Sequence[str] = ()
    cards: int = 4
    models: Sequence[str] = MODELS
    seconds: int = 3 * 3600
    step: int = 30


def digest(model: str, release: int) -> str:
    """Return the first characters of the digest of a release, as the host's metrics have them."""
    return random.Random(f"{model} {release}").randbytes(6).hex()


def series(fleet: Fleet, prefixes: tuple[str, ...] = ("",)) -> Iterator[Series]:
    """Yield the series of a fleet whose names have one of these prefixes."""
    return (entry for entry in _series(fleet) if entry[0].startswith(prefixes))


def _series(fleet: Fleet) -> Iterator[Series]:
    times = [fleet.end - fleet.seconds + fleet.step * number for number in range(fleet.seconds // fleet.step + 1)]

    def of(name: str, value: Callable[[float], float] | float, /, **labels: str) -> Series:
        # `value` gets the share of the time that has passed.
        if callable(value):
            return name, labels, ((at, value(1 - (fleet.end - at) / fleet.seconds)) for at in times)
        return name, labels, ((at, value) for at in times)

    for index, host in enumerate(fleet.hosts):
        yield from _host(fleet, host, index, of)
    sick = list(fleet.sick) or list(fleet.hosts[:1])
    for host in sick:
        yield of("ALERTS", 1, alertname="NpufleetCheckFails", alertstate="firing", severity="critical", host=host, model="digits")
    yield from _balancer(fleet, of)
    yield from _status(fleet, of)
    yield from _objectives(fleet, of)


Make = Callable[..., Series]


def _host(fleet: Fleet, host: str, index: int, of: Make) -> Iterator[Series]:
    chance = random.Random(host)
    sick = host in fleet.sick
    node = {"job": "npufleet-node", "instance": f"{host}:9100", "host": host}
    triton = {"job": "npufleet-triton", "instance": f"{host}:8002", "host": host}
    # The rollout changes one host after the other.
    begin = 0.5 + 0.3 * index / len(fleet.hosts)
    end = begin + 0.3 / len(fleet.hosts)
    yield of("up", float(host not in fleet.down), **triton)
    yield of("up", 1, **node)
    for model in fleet.models:
        labels = {**triton, "model": model, "version": "1"}
        rate, milliseconds = 10 + chance.random() * 20, (2 + chance.random()) * (3 if sick else 1)

        # The load has one wave, and its integral is the number of requests.
        def requests(share: float, rate: float = rate) -> float:
            return rate * fleet.seconds * (share + 0.3 * (1 - math.cos(2 * math.pi * share)) / (2 * math.pi))

        yield of("nv_inference_request_success", requests, **labels)
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
            failing = 0.1 if sick and reason == "BACKEND" else 0.0
            yield of(
                "nv_inference_request_failure",
                lambda share, part=failing, all_=requests: all_(share) * part,
                reason=reason,
                **labels,
            )
        yield of("nv_inference_count", lambda share, all_=requests: 2 * all_(share), **labels)
        yield of("nv_inference_exec_count", lambda share, all_=requests: 0.7 * all_(share), **labels)
        yield of("nv_inference_pending_request_count", lambda share: 2 + 2 * math.sin(9 * share), **labels)
        microseconds = 1000 * milliseconds

        # Requests in the first half of the time are a little slower than in the second half.
        def spent(share: float, requests: Callable[[float], float] = requests, us: float = microseconds) -> float:
            return us * (requests(share) + 0.15 * fleet.seconds * (1 - math.cos(2 * math.pi * share)))

        yield of("nv_inference_request_duration_us", spent, **labels)
        for part, share_of in PARTS.items():
            of_part = microseconds * share_of
            yield of(f"nv_inference_{part}_duration_us", lambda share, all_=requests, us=of_part: us * all_(share), **labels)
        for quantile, factor in (("0.5", 0.9), ("0.95", 1.6), ("0.99", 2.4)):
            yield of("nv_inference_request_summary_us", microseconds * factor, quantile=quantile, **labels)
        old, new = digest(model, 1), digest(model, 2)
        desired = {**node, "model": model, "version": "1"}
        yield of("npufleet_model_desired", lambda share, change=begin: 1 if share >= change else math.nan, digest=new, **desired)
        yield of("npufleet_model_desired", lambda share, change=begin: 1 if share < change else math.nan, digest=old, **desired)
        if sick:
            yield of("npufleet_model_loaded", 1, digest=old, **desired)
        else:
            yield of("npufleet_model_loaded", lambda share, change=end: 1 if share >= change else math.nan, digest=new, **desired)
            yield of("npufleet_model_loaded", lambda share, change=end: 1 if share < change else math.nan, digest=old, **desired)
        yield of("npufleet_model_load_failed", float(sick), model=model, **node)
        for protocol in ("http", "grpc"):
            check = {"model": model, "check": "row", "protocol": protocol}
            yield of("npufleet_check_ok", float(not sick), **check, **node)
            yield of("npufleet_check_duration_seconds", 0.02, **check, **node)
    for card in range(fleet.cards):
        labels = {**node, "npu": str(card), "device": f"rbln{card}"}
        warm, phase = (84.0 if sick else 48.0 + 6 * chance.random()), 6 * chance.random()
        yield of(
            "npufleet_card_temperature_celsius",
            lambda share, warm=warm, phase=phase: warm + 3 * math.sin(12 * share + phase),
            **labels,
        )
        yield of("npufleet_card_power_watts", lambda share, phase=phase: 60 + 8 * math.sin(12 * share + phase), **labels)
        used = (12 + 2 * chance.random() if sick else 4 + 5 * chance.random()) * GIB
        yield of("npufleet_card_memory_used_bytes", lambda share, used=used, end=end: used * (1.1 if share > end else 1), **labels)
        yield of("npufleet_card_memory_size_bytes", 16 * GIB, **labels)
        yield of("npufleet_card_utilization_ratio", lambda share, phase=phase: 0.6 + 0.3 * math.sin(12 * share + phase), **labels)
        yield of("npufleet_card_healthy", float(not (sick and card == 1)), **labels)
        yield of("npufleet_card_pcie_link_speed_gts", 32, **labels)
        yield of("npufleet_card_pcie_link_width", 16, **labels)
        more = {
            "bus_id": f"0000:{0x81 + card:x}:00.0",
            "name": "RBLN-CA22",
            "uuid": f"{host}-{card}",
            "firmware": "2.0.1",
            "group": "0",
        }
        yield of("npufleet_card_info", 1, **labels, **more)
    yield of("npufleet_cards_expected", fleet.cards, **node)
    yield of("npufleet_cards_found", fleet.cards - sick, **node)
    yield of("npufleet_driver_info", 1, loaded="2.0.1", expected="2.0.1", **node)
    now = {"npufleet_cards_last_read_timestamp_seconds": 10, "npufleet_probe_last_attempt_timestamp_seconds": 20}
    for name, age in now.items():
        yield of(name, lambda share, age=age: fleet.end - fleet.seconds * (1 - share) - age, **node)
    for state in ("running", "missing", "hung"):
        yield of(
            "npufleet_stubs", float(state == "running" or (sick and state == "hung")), model=fleet.models[0], state=state, **node
        )
    yield of("npufleet_shm_size_bytes", GIB, **node)
    yield of("npufleet_shm_used_bytes", 0.2 * GIB, **node)
    yield of("npufleet_change_running", lambda share, begin=begin, end=end: float(begin <= share < end), **node)
    if sick:
        yield of("npufleet_drained_since_timestamp_seconds", fleet.end - 3600, by="rollout", **node)
    for cpu in ("0", "1"):
        yield of("node_cpu_seconds_total", lambda share: 0.8 * fleet.seconds * share, cpu=cpu, mode="idle", **node)
        yield of("node_cpu_seconds_total", lambda share: 0.2 * fleet.seconds * share, cpu=cpu, mode="user", **node)
    disk = {**node, "device": "/dev/sda1", "fstype": "ext4", "mountpoint": "/"}
    yield of("node_filesystem_size_bytes", 400 * GIB, **disk)
    yield of("node_filesystem_avail_bytes", 250 * GIB, **disk)
    yield of("node_memory_MemTotal_bytes", 256 * GIB, **node)
    yield of("node_memory_MemAvailable_bytes", 200 * GIB, **node)


def _balancer(fleet: Fleet, of: Make) -> Iterator[Series]:
    own = {"job": "npufleet-balancer", "instance": "lb1:8404", "host": "lb1"}
    for proxy in ("npufleet_http", "npufleet_grpc"):
        yield of("haproxy_backend_current_queue", 0, proxy=proxy, **own)
        for host in fleet.hosts:
            labels = {**own, "proxy": proxy, "server": host}
            state = "DRAIN" if host == fleet.hosts[0] else "UP"
            for name in STATES:
                yield of("haproxy_server_status", float(name == state), state=name, **labels)
            for code, rate in (("2xx", 20.0), ("4xx", 0.1), ("5xx", 0.02)):
                yield of(
                    "haproxy_server_http_responses_total",
                    lambda share, rate=rate: rate * fleet.seconds * share,
                    code=code,
                    **labels,
                )
            for name in ("check_failures", "connection_errors", "response_errors", "retry_warnings", "redispatch_warnings"):
                yield of(f"haproxy_server_{name}_total", lambda share: math.floor(5 * share), **labels)
            yield of("haproxy_server_current_sessions", 3, **labels)
            yield of("haproxy_server_response_time_average_seconds", 0.004, **labels)
            yield of("haproxy_server_queue_time_average_seconds", 0, **labels)
    node = {"job": "npufleet-node", "instance": "lb1:9100", "host": "lb1"}
    rollout = {"server": fleet.hosts[0], "kind": "rollout"}
    for drain in (rollout, {"server": fleet.hosts[-1], "kind": "operator"}):
        yield of("npufleet_balancer_server_drained", 1, **drain, **node)
    # The drain by the operator has no recorded time.
    yield of("npufleet_balancer_drained_since_timestamp_seconds", fleet.end - 600, **rollout, **node)
    certificate = "/etc/haproxy/npufleet/balancer.pem"
    yield of("npufleet_certificate_expiry_timestamp_seconds", fleet.end + 12 * 86400, file=certificate, **node)


def _status(fleet: Fleet, of: Make) -> Iterator[Series]:
    node = {"job": "npufleet-node", "instance": "ops1:9100", "host": "ops1"}
    yield of("npufleet_drift_items", 2, inventory_host=fleet.hosts[0], concern="models", **node)
    yield of("npufleet_status_timestamp_seconds", fleet.end - 1800, **node)


def _objectives(fleet: Fleet, of: Make) -> Iterator[Series]:
    """Yield series of the recording rules of objectives."""
    for objective, budget, used in (("availability", 0.001, 1.2), ("latency", 0.01, 0.3)):
        labels = {"sloth_id": f"npufleet-{objective}", "sloth_service": "npufleet", "sloth_slo": objective}
        yield of("slo:error_budget:ratio", budget, **labels)
        for model in fleet.models:
            yield of(
                "slo:sli_error:ratio_rate1h",
                lambda share, budget=budget: budget * (1 + math.sin(9 * share)),
                sloth_window="1h",
                model=model,
                **labels,
            )
            yield of("slo:period_error_budget_remaining:ratio", lambda share, used=used: 1 - used * share, model=model, **labels)
