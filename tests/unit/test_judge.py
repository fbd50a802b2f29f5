"""The judge of a change: windows of traffic that are good, bad, or too small for a verdict."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.rollout import judge as subject


def traffic(requests: int, latency: dict[str, int] | None = None, model: str = "digits", **failed: int) -> dict[str, Any]:
    """The traffic of one protocol. `failed` has the failures by kind."""
    counted = {
        "requests": requests,
        "failed": {kind.lstrip("_"): number for kind, number in failed.items()},
        "latency": latency if latency is not None else {"4": requests},
    }
    return {**counted, "streams": 0, "by_model": {model: counted}, "other": {"requests": 0, "failed": {}}}


def model(requests: int, **failed: int) -> dict[str, Any]:
    """The traffic of one model."""
    found: dict[str, Any] = traffic(requests, **failed)["by_model"]["digits"]
    return found


def window(complete: bool = True, **hosts: dict[str, Any]) -> dict[str, Any]:
    """Return the report of one balancer with the HTTP traffic of each host."""
    return {"servers": {host: {"traffic": {"http": part}} for host, part in hosts.items()}, "complete": complete, "now": 1.0}


def verdict(*windows: dict[str, Any], **options: Any) -> subject.Verdict:
    return subject.verdict_of_host(windows, "npu1", ["npu1"], options.pop("needed", 100), **options)


def test_change_without_failures_is_good() -> None:
    found = verdict(window(npu1=traffic(200), npu2=traffic(2000)))
    assert found[:2] == ("good", "0 of 200 requests failed; reference: 0 of 2000")
    assert found.numbers["p50_ms"] == found.numbers["reference_p50_ms"] == 4


@pytest.mark.parametrize("kind", ["4xx", "5xx", "connect", "aborted", "grpc"])
def test_failures_of_each_kind_are_bad(kind: str) -> None:
    found = verdict(window(npu1=traffic(200, **{"_" + kind: 20}), npu2=traffic(2000)))
    assert found[:2] == ("bad", "20 of 200 requests failed; reference: 0 of 2000")


def test_failures_that_the_reference_has_too_are_good() -> None:
    assert verdict(window(npu1=traffic(200, _5xx=10), npu2=traffic(2000, _5xx=100))).verdict == "good"


def test_single_failures_are_no_evidence() -> None:
    assert verdict(window(npu1=traffic(200, _5xx=2), npu2=traffic(2000))).verdict == "good"


def test_client_errors_of_unknown_models_do_not_count() -> None:
    wrong = traffic(200, model="typo", _4xx=200)
    assert verdict(window(npu1=wrong, npu2=traffic(2000))).verdict == "good"


def test_client_errors_of_a_dead_engine_count() -> None:
    """A dead engine answers 400 to requests for a model that answered before."""
    assert verdict(window(npu1=traffic(200, _4xx=200), npu2=traffic(2000))).verdict == "bad"


def test_requests_that_clients_cancel_do_not_count() -> None:
    assert verdict(window(npu1=traffic(200, client=100, closed=50), npu2=traffic(2000))).verdict == "good"


def test_one_failing_model_among_many_is_named() -> None:
    mixed = traffic(10000, _5xx=40)
    mixed["by_model"] = {"digits": model(9950), "faces": model(50, _5xx=40)}
    other = traffic(10000)
    other["by_model"] = {"digits": model(9950), "faces": model(50)}
    found = verdict(window(npu1=mixed, npu2=other))
    assert found[:2] == ("bad", "model faces: 40 of 50 requests failed; reference: 0 of 50")


def test_slower_answers_are_bad() -> None:
    found = verdict(window(npu1=traffic(200, {"16": 200}), npu2=traffic(2000)))
    assert found[0] == "bad" and "50% of the requests were answered within 16 ms; reference: 4 ms" in found[1]


def test_one_slow_client_is_no_evidence() -> None:
    assert verdict(window(npu1=traffic(200, {"4": 190, "30000": 10}), npu2=traffic(2000))).verdict == "good"


def test_small_differences_of_fast_answers_are_noise() -> None:
    assert verdict(window(npu1=traffic(200, {"2": 200}), npu2=traffic(2000, {"1": 2000}))).verdict == "good"


@pytest.mark.parametrize(("requests", "expected"), [(60, "good"), (100, "good"), (2000, "bad")])
def test_slow_answers_of_a_share_are_evidence_only_in_many_requests(requests: int, expected: str) -> None:
    """A sixth of the answers is slow. A busy machine slows down a few answers, too."""
    slow = requests // 6
    changed = traffic(requests, {"21": requests - slow, "44": slow})
    found = verdict(window(npu1=changed, npu2=traffic(2000, {"21": 2000})), needed=20)
    assert (found.verdict, found.numbers["p90_ms"]) == (expected, 44)


def test_few_requests_of_the_reference_are_no_evidence_that_a_change_is_slower() -> None:
    changed = traffic(2000, {"21": 1667, "44": 333})
    assert verdict(window(npu1=changed, npu2=traffic(60, {"21": 60})), needed=20).verdict == "good"


def test_slow_answers_to_all_requests_are_evidence_in_few_requests() -> None:
    found = verdict(window(npu1=traffic(20, {"400": 20}), npu2=traffic(80, {"21": 80})), needed=20)
    assert found.verdict == "bad"


def test_little_traffic_is_not_judged() -> None:
    found = verdict(window(npu1=traffic(7), npu2=traffic(90)))
    assert found[:2] == ("not judged", "7 requests, expected at least 100")


def test_no_traffic_is_not_judged() -> None:
    assert verdict(window(npu1=traffic(0), npu2=traffic(0))).text == "0 requests, expected at least 100"
    assert verdict({"servers": {}}).verdict == "not judged"
    assert verdict().verdict == "not judged"


def test_little_traffic_that_fails_is_bad() -> None:
    assert verdict(window(npu1=traffic(8, _5xx=7), npu2=traffic(90))).verdict == "bad"


def test_restart_of_the_balancer_is_reported() -> None:
    found = verdict(window(complete=False, npu1=traffic(7), npu2=traffic(90)))
    assert found.text == "7 requests, expected at least 100, and the balancer lost a part of the window"


def test_several_balancers_are_added() -> None:
    parts = [window(npu1=traffic(60, _5xx=10), npu2=traffic(900)) for _balancer in range(2)]
    assert verdict(*parts)[:2] == ("bad", "20 of 120 requests failed; reference: 0 of 1800")


def test_protocols_are_added() -> None:
    both = window(npu1=traffic(60), npu2=traffic(900))
    for server in both["servers"].values():
        server["traffic"]["grpc"] = server["traffic"]["http"]
    assert verdict(both).text == "0 of 120 requests failed; reference: 0 of 1800"


def test_fleet_of_one_host_is_compared_with_its_own_past() -> None:
    before = [window(npu1=traffic(1000, _5xx=1))]
    assert verdict(window(npu1=traffic(200)), before=before).text == "0 of 200 requests failed; reference: 1 of 1000"
    assert verdict(window(npu1=traffic(200, _5xx=50)), before=before).verdict == "bad"


def test_hosts_of_the_same_batch_are_no_reference() -> None:
    windows = [window(npu1=traffic(200, _5xx=50), npu2=traffic(2000, _5xx=500))]
    found = subject.verdict_of_host(windows, "npu1", ["npu1", "npu2"], 100, before=[window(npu1=traffic(1000))])
    assert found[:2] == ("bad", "50 of 200 requests failed; reference: 0 of 1000")


def test_without_any_reference_failures_are_bad() -> None:
    assert verdict(window(npu1=traffic(200, _5xx=50))).verdict == "bad"


# The counters of Triton


def counts(success: float, pending: float = 0, **failed: float) -> dict[str, Any]:
    return {"models": {"digits": {"success": success, "failed": failed, "pending": pending}}, "now": 1.0}


def test_failures_that_only_triton_counts_are_bad() -> None:
    good = window(npu1=traffic(200), npu2=traffic(2000))
    found = verdict(good, counters=[counts(5000), counts(0), counts(100, BACKEND=20)])
    assert found[:2] == ("bad", "model digits: Triton counts 20 failures in 120 requests; reference: 0 in 5000")


def test_cancelled_requests_of_triton_do_not_count() -> None:
    good = window(npu1=traffic(200), npu2=traffic(2000))
    assert verdict(good, counters=[counts(5000), counts(0), counts(100, CANCELED=20)]).verdict == "good"


def test_waiting_requests_without_success_are_bad() -> None:
    found = verdict(window(npu1=traffic(0)), counters=[counts(5000), counts(10, pending=3), counts(10, pending=9)])
    assert found[:2] == ("bad", "model digits: requests wait, and none was answered")


def test_restart_of_the_server_resets_its_counters() -> None:
    found = subject.counted(counts(5000, BACKEND=7), counts(50, BACKEND=1))
    assert found["digits"] == (50, 1, False)


def test_host_behind_another_balancer_is_judged_by_its_own_counters() -> None:
    assert verdict(counters=[counts(5000), counts(0), counts(200)])[:2] == (
        "good",
        "0 of 200 requests failed; reference: 0 of 5000",
    )
    assert verdict(counters=[counts(5000), counts(0), counts(20)]).verdict == "not judged"
    assert verdict(counters=[counts(5000), counts(0), counts(150, BACKEND=50)]).verdict == "bad"


# Input of a balancer that lies


@pytest.mark.parametrize(
    "lie",
    [
        {"servers": []},
        {"servers": {"npu1": {"traffic": {"http": {**traffic(5), "requests": "many"}}}}},
        {"servers": {"npu1": {"traffic": {"http": {**traffic(5), "latency": {"fast": 5}}}}}},
        {"servers": {"npu1": {"traffic": {"telnet": traffic(5)}}}},
        {"servers": {"npu1": {"traffic": {"http": {**traffic(5), "failed": {"5xx": 1.5}}}}}},
    ],
)
def test_windows_of_another_shape_are_rejected(lie: dict[str, Any]) -> None:
    with pytest.raises(subject.InvalidWindow):
        verdict(lie)


def test_counters_of_another_shape_are_rejected() -> None:
    with pytest.raises(subject.InvalidWindow):
        subject.counted({"models": {"digits": {"success": "x", "failed": {}, "pending": 0}}}, counts(1))
