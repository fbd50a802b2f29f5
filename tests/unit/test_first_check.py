"""The first check of a model: a request that a server can take, and today's answer as what is expected of the next server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.inference import judge, packing, questions
from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import http_json
from ansible_collections.npufleet.triton.plugins.modules import adoption
from ansible_collections.npufleet.triton.plugins.plugin_utils.adopt import first_check
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.check_files import CheckFile

RESNET = {
    "max_batch_size": 1,
    "input": [{"name": "INPUT__0", "data_type": "TYPE_FP32", "dims": ["3", "4", "4"]}],
    "output": [{"name": "OUTPUT__0", "data_type": "TYPE_FP32", "dims": ["3"]}],
}


def config(*inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"max_batch_size": 0, "input": list(inputs), **more}


def tensor(name: str, kind: str, *dims: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": "TYPE_" + kind, "dims": list(dims), **more}


def answer(data: list[Any], kind: str = "FP32", shape: tuple[int, ...] = (1, 3)) -> tuple[int, Any]:
    return 200, {"outputs": [{"name": "OUTPUT__0", "datatype": kind, "shape": list(shape), "data": data}]}


def test_a_request_fits_the_config_and_is_the_same_every_time() -> None:
    arrays, body = first_check.request(RESNET)
    (sent,) = json.loads(body)["inputs"]
    assert (sent["name"], sent["datatype"], sent["shape"]) == ("INPUT__0", "FP32", [1, 3, 4, 4])
    assert len(sent["data"]) == 48
    assert 0 <= min(sent["data"]) < max(sent["data"]) < 1
    assert np.array_equal(np.array(sent["data"], "float32").reshape(1, 3, 4, 4), arrays["INPUT__0"])
    assert first_check.request(RESNET)[1] == body


def test_kinds_of_inputs() -> None:
    whole = config(
        tensor("a", "INT64", -1), tensor("b", "STRING", 1), tensor("c", "BOOL", 1), tensor("d", "FP32", 1, optional=True)
    )
    sent = {entry["name"]: entry for entry in json.loads(first_check.request(whole)[1])["inputs"]}
    assert sorted(sent) == ["a", "b", "c"]
    assert (sent["a"]["datatype"], sent["a"]["shape"]) == ("INT64", [1])
    assert (sent["b"]["datatype"], sent["b"]["data"]) == ("BYTES", ["1"])
    assert isinstance(sent["c"]["data"][0], bool)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "does not return its config"),
        (config(), "names no input"),
        (config(tensor("a", "FP16", 1)), "a is FP16"),
        (config(tensor("a", "FP32", 2), tensor("b", "FP32", 3)), "differ in their first dimension"),
        (config(tensor("a", "FP32", 1), model_transaction_policy={"decoupled": True}), "streams"),
        (config(*(tensor(f"a{number}", "FP32", 1) for number in range(65))), "has 65 inputs, expected at most 64"),
        (config(*(tensor(f"a{number}", "FP32", 1 << 20) for number in range(5))), "inputs up to a4 have more than 4194304 values"),
        (config(tensor("a", "FP32", 1 << 40)), "inputs up to a have more than 4194304 values"),
        (config(tensor("a", "FP32", *[1] * 33)), "a has 33 dimensions, expected at most 32"),
        (config(tensor("a", "FP32", 1), sequence_batching={"max_sequence_idle_microseconds": 1}), "sequences"),
    ],
)
def test_no_request_can_be_made_up(given: Any, why: str) -> None:
    with pytest.raises(first_check.NoRequest, match=why):
        first_check.request(given)


def judged(tmp_path: Any, recorded: list[Any], now: list[float]) -> list[str]:
    """What the project's own check says of an answer of the server, after the check file was written and read as any other."""
    arrays, _body = first_check.request(RESNET)
    document, files = first_check.check("words", arrays, recorded, ["http"])
    (tmp_path / "words.yml").write_text(yaml.safe_dump(document))
    (tmp_path / "words").mkdir()
    for name, array in files.items():
        np.save(tmp_path / "words" / name, array)
    file = CheckFile("words", str(tmp_path / "words.yml"), [str(tmp_path)])
    (check,) = file.read(0)["checks"]
    assert file.errors == []
    (request,) = questions.requests("words", check, 0)
    got = questions.Output("FP32", [1, 3], np.array([now], "float32"))
    return judge.judge({"OUTPUT__0": got}, request, packing.with_rows(check["expect"]))


def test_the_recorded_answer_passes_and_another_does_not(tmp_path: Any) -> None:
    recorded = [answer([0.25, -8.0, 2.0])] * 2
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert judged(tmp_path / "a", recorded, [0.2501, -8.001, 2.0]) == []
    (why,) = judged(tmp_path / "b", recorded, [0.25, -8.0, 2.1])
    assert "1 of 3 values are off" in why


def test_an_answer_that_differs_each_time_is_judged_by_its_form(tmp_path: Any) -> None:
    recorded = [answer([1.0, 2.0, 3.0]), answer([1.0, 2.0, 4.0])]
    assert judged(tmp_path, recorded, [9.0, 9.0, 9.0]) == []


@pytest.mark.parametrize(
    ("kind", "shape", "data"),
    [("BYTES", (1, 3), ["a", "b", "c"]), ("FP32", (3,), [1.0, 2.0, 3.0]), ("FP32", (1, 3), [1.0, None, 2.0])],
)
def test_what_cannot_be_compared_is_judged_by_its_form(kind: str, shape: tuple[int, ...], data: list[Any]) -> None:
    arrays, _body = first_check.request(RESNET)
    document, files = first_check.check("words", arrays, [answer(data, kind, shape)] * 2, ["http", "grpc"])
    (check,) = document["checks"]
    assert check["expect"]["OUTPUT__0"] == {"dtype": kind, "shape": list(shape)}
    assert check["protocols"] == ["http", "grpc"]
    assert sorted(files) == ["INPUT__0.npy"]


def answered(data: str) -> tuple[int, Any]:
    """What is made of a server's answer with these numbers."""
    body = f'{{"outputs": [{{"name": "OUTPUT__0", "datatype": "FP32", "shape": [1], "data": [{data}]}}]}}'.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_given: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = http_json("127.0.0.1", server.server_port, "POST", "/v2/models/m/infer", 60.0, "{}", size=adoption.MAX_ANSWER)
        server.shutdown()
    return said


def test_an_answer_that_is_no_data_leaves_one_model_without_a_check() -> None:
    """What Triton writes for NaN is no JSON."""
    said = answered("NaN")
    assert said[0] == 200
    with pytest.raises(first_check.NoRequest, match="a number that JSON lacks"):
        first_check.check("m", {"INPUT__0": np.zeros((1, 3))}, [said, said], ["http"])


def test_an_answer_is_data_up_to_the_size_that_is_asked_for() -> None:
    count = shapes.MAX_SIZE // 15 + 1
    status, found = answered(",".join(["0.123456789012"] * count))
    assert (status, len(found["outputs"][0]["data"])) == (200, count)


def test_a_server_that_refuses_the_request() -> None:
    arrays, _body = first_check.request(RESNET)
    with pytest.raises(first_check.NoRequest, match=r"request is 500: .*no such token"):
        first_check.check("words", arrays, [answer([1.0] * 3), (500, {"error": "no such token"})], ["http"])


@pytest.mark.parametrize("shape", [(1, 0), (0,)])
def test_an_empty_answer_is_expected_by_its_shape_and_by_no_values(tmp_path: Any, shape: tuple[int, ...]) -> None:
    """As a detector answers that finds nothing."""
    arrays, _body = first_check.request(RESNET)
    document, files = first_check.check("words", arrays, [answer([], shape=shape)] * 2, ["http"])
    assert document["checks"][0]["expect"] == {"OUTPUT__0": {"dtype": "FP32", "shape": list(shape)}}
    assert list(files) == ["INPUT__0.npy"]
