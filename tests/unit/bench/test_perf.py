"""What perf_analyzer says, read; the texts are those of perf_analyzer 2.41.1."""

from __future__ import annotations

import pytest
from perf import WINDOWS, Unreadable, command, counter, read, requests_command

SAID = """*** Measurement Settings ***
  Batch size: 1
  Measurement window: 1500 msec

Request concurrency: 8
  Pass [1] throughput: 300.000 infer/sec. Avg latency: 18461 usec (std 3721 usec).
  Pass [2] throughput: 441.901 infer/sec. Avg latency: 18118 usec (std 1373 usec).
  Pass [3] throughput: 448.161 infer/sec. Avg latency: 17877 usec (std 1192 usec).
  Pass [4] throughput: 430.637 infer/sec. Avg latency: 18461 usec (std 3721 usec).
  Client:
    Request count: 2380
    Throughput: 440.227 infer/sec
    p50 latency: 17929 usec
  Server:
    Inference count: 2377
    Successful request count: 2377
"""
TABLE = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,Server Compute Infer,"
    "Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency,Avg latency,request/response,response wait\n"
    "8,440.227,5,481,8798,282,7927,652,1,17929,19368,20287,24176,18148,6,18125\n"
)


def test_a_reading() -> None:
    found = read(SAID, TABLE)
    assert (found.infer_per_s, found.count) == (440.227, 2380)
    assert (found.p50, found.p99, found.avg) == (17.929, 24.176, 18.148)
    assert (found.queue, found.input, found.infer, found.output, found.network) == (8.798, 0.282, 7.927, 0.652, 0.481)


def test_noise_is_that_of_the_windows_that_count() -> None:
    found = read(SAID, TABLE)
    assert found.noise == pytest.approx(100 * (440.233 - 430.637) / 440.233, rel=1e-3)
    assert found.stable


def test_windows_that_do_not_agree_are_not_stable() -> None:
    assert not read(SAID.replace("430.637", "330.637"), TABLE).stable


def test_too_few_windows_are_not_stable() -> None:
    short = "\n".join(line for line in SAID.splitlines() if "Pass [1]" not in line and "Pass [2]" not in line)
    assert not read(short, TABLE).stable


@pytest.mark.parametrize(
    ("said", "table", "words"),
    (
        (SAID, "", "0 rows"),
        (SAID, TABLE.replace("p50 latency", "median"), "missing: p50 latency"),
        (SAID.replace("Pass", "Try"), TABLE, "0 windows"),
        ("error: failed to get model metadata", TABLE, "failed to get model metadata"),
    ),
)
def test_anything_else_is_refused_in_its_own_words(said: str, table: str, words: str) -> None:
    with pytest.raises(Unreadable, match=words.replace("[", r"\[")):
        read(said, table)


def test_the_command_measures_over_grpc_with_shared_memory() -> None:
    line = " ".join(command("m", 16, 2000))
    for option in ("-m m", "-i grpc", "--shared-memory=system", "--concurrency-range=16", f"--max-trials={WINDOWS}"):
        assert option in line


def test_a_number_of_requests_is_reached_within_the_windows() -> None:
    option = next(word for word in requests_command("m", 16, 100_000) if "request-count" in word)
    assert int(option.split("=")[1]) * WINDOWS >= 100_000


def test_counters_of_a_model_are_summed_over_its_versions() -> None:
    text = """# TYPE nv_inference_request_success counter
nv_inference_request_success{model="rbln",version="1"} 12
nv_inference_request_success{model="rbln",version="2"} 3
nv_inference_request_success{model="rbln-two",version="1"} 100
nv_inference_count{model="rbln",version="1"} 40
"""
    assert counter(text, "nv_inference_request_success", "rbln") == 15
    assert counter(text, "nv_inference_count", "rbln") == 40
    assert counter(text, "nv_inference_count", "naive") == 0
