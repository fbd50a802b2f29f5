"""inference_check as a whole: check files, the module and its container, and ansible-playbook with an engine that stands in."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.action import inference_check as action
from ansible_collections.npufleet.triton.plugins.module_utils.change import accepted_checks
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import probe
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.inference import packing, questions
from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import unpack_check
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import clock
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.programs import archive
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.modules import inference_check
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import check_files, inputs
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from helpers import ROOT, FakeEngine, ansible_playbook, run_module
from helpers import fleet as inventory
from small_triton import certificates

# Check files


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site's own check files and data: eight rows of four values, whose label is the row's number modulo four."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "golden/m").mkdir(parents=True)
    rows = np.arange(32, dtype=np.float32).reshape(8, 4)
    np.save(tmp_path / "golden/m/rows.npy", rows)
    np.save(tmp_path / "golden/m/scores.npy", np.eye(8, 4, dtype=np.float32)[np.arange(8) % 4])
    np.save(tmp_path / "golden/m/words.npy", np.array(["a"] * 8))
    np.save(tmp_path / "golden/m/bytes.npy", np.array([b"a"] * 8))
    np.save(tmp_path / "golden/m/dates.npy", np.zeros(8, "M8[D]"))
    (tmp_path / "golden/m/four.bin").write_bytes(bytes(range(4)))
    (tmp_path / "golden/m/five.bin").write_bytes(bytes(range(5)))
    (tmp_path / "golden/m/p.jpg").write_bytes(b"\xff\xd8\xff\x00")
    (tmp_path / "golden/m/text.npy").write_text("no array")
    (tmp_path / "golden/m/empty.npy").write_text("")
    np.save(tmp_path / "golden/m/scalar.npy", np.float32(1))
    np.save(tmp_path / "golden/m/none.npy", np.empty((8, 0), np.float32))
    np.save(tmp_path / "golden/m/nan.npy", np.where(rows == 5, np.float32(np.nan), rows))
    np.savez(tmp_path / "golden/m/many.npz", rows=rows)
    return tmp_path


def good_check(**changes: Any) -> dict[str, Any]:
    check = {
        "name": "row",
        "protocols": ["http", "grpc"],
        "inputs": {"IN": {"npy": "rows.npy"}},
        "rows": {"first": 0, "count": 2, "spread": True},
        "expect": {"OUT": {"argmax": [0, 1, 2, 3, 0, 1], "values": {"npy": "scores.npy", "atol": 0.1}}},
    }
    return {key: value for key, value in {**check, **changes}.items() if value is not None}


def documents(site: Path, whole: Any, host_index: int = 0, model: str = "m") -> dict[str, Any]:
    text = whole if isinstance(whole, str) else yaml.safe_dump(whole)
    (site / f"checks/{model}.yml").write_text(text)
    return check_files.read_checks([model], [str(site / "checks")], [str(site / "golden")], host_index)


def findings(site: Path, whole: Any) -> list[str]:
    """What is wrong with a check file, without its path."""
    with pytest.raises(Refusal) as refused:
        documents(site, whole)
    prefix = f"{site}/checks/m.yml: "
    assert all(reason.startswith(prefix) for reason in refused.value.reasons)
    return [reason[len(prefix) :] for reason in refused.value.reasons]


def test_a_good_file_becomes_a_document_with_the_rows_of_this_host(site: Path) -> None:
    (found,) = documents(site, {"model": "m", "checks": [good_check()]}, host_index=1)["checks"]
    (check,) = found["checks"]
    assert (found["model"], check["name"], check["protocols"]) == ("m", "row", ["http", "grpc"])
    # Three blocks of two: the second host's HTTP takes the third, its gRPC the first again.
    assert check["rows"]["total"] == 6
    assert check["inputs"]["IN"]["rows"] == check["expect"]["OUT"]["values"]["rows"] == [0, 1, 4, 5]
    sent = packing.unpack(check["inputs"]["IN"]).take([0, 1, 4, 5])
    assert sent.tolist() == [[4 * row + number for number in range(4)] for row in (0, 1, 4, 5)]
    json.dumps(found)


@pytest.mark.parametrize(
    ("rows", "argmax", "total"),
    [
        ({"first": 3, "count": 2}, [3, 0], 2),
        ({"first": 0, "count": 4, "batch": True}, [0, 1, 2, 3], 4),
        ({"first": 0, "count": 2, "spread": True}, [0, 1, 2, 3], 4),
        ({"first": 3, "count": 2, "spread": True}, None, 4),
        ({"first": 0, "count": 8, "spread": False}, None, 8),
    ],
)
def test_how_many_rows_there_are_to_take_from(site: Path, rows: Any, argmax: Any, total: int) -> None:
    check = good_check(rows=rows, expect={"OUT": {"finite": True, **({"argmax": argmax} if argmax else {})}})
    (found,) = documents(site, {"model": "m", "checks": [check]})["checks"]
    assert found["checks"][0]["rows"]["total"] == total


def test_the_first_directory_that_has_a_file_wins(site: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "m").mkdir(parents=True)
    np.save(own / "m/rows.npy", np.full((8, 4), 7, np.float32))
    documents(site, {"model": "m", "checks": [good_check()]})
    found = check_files.read_checks(["m"], [str(own), str(site / "checks")], [str(own), str(site / "golden")], 0)
    check = found["checks"][0]["checks"][0]
    assert packing.unpack(check["inputs"]["IN"]).take([0]).tolist() == [[7, 7, 7, 7]]
    assert packing.unpack(check["expect"]["OUT"]["values"]).take([1]).tolist() == [[0, 1, 0, 0]]


def test_a_model_without_a_file_is_a_failed_check(site: Path) -> None:
    found = check_files.read_checks(["words"], [str(site / "a"), str(site / "checks")], [str(site)], 0)
    assert found["checks"] == []
    (entry,) = found["no_check_file"]
    assert (entry["name"], entry["model"], entry["ok"], entry["ms"]) == ("words/check file", "words", False, None)
    assert entry["why"].startswith(f"the check file is missing, expected {site}/a/words.yml or {site}/checks/words.yml. Write one ")


CHECK0 = "checks[0]."


@pytest.mark.parametrize(
    ("whole", "wrong"),
    [
        ("model: [", ["is not a YAML file: while parsing a flow node "]),
        ("", ["the file is null, expected a map that is not empty"]),
        ({"checks": [good_check()]}, ["model is missing, expected a value"]),
        ({"model": "n", "golden": "m", "checks": [good_check()]}, ["model is n, expected m, the name of the file"]),
        ({"model": "m"}, ["checks is missing, expected a value"]),
        ({"model": "m", "checks": []}, ["checks is [], expected a list that is not empty"]),
        ({"model": "m", "checks": {"a": 1}}, ['checks is {"a": 1}, expected a list that is not empty']),
        ({"model": "m", "checks": ["x"]}, ["checks[0] is x, expected a map that is not empty"]),
        ({"model": "m", "golden": 3, "checks": [good_check()]}, ["golden is 3, expected a text"]),
        ({"model": "m", "kind": 3, "checks": [good_check()]}, ["kind is an unknown key, expected one of model, golden, checks"]),
        (
            {"model": "m", "checks": [good_check(), good_check()]},
            ["checks[1].name is row, expected a unique name"],
        ),
    ],
)
def test_a_malformed_file_is_refused(site: Path, whole: Any, wrong: list[str]) -> None:
    found = findings(site, whole)
    assert [finding.startswith(start) for finding, start in zip(found, wrong, strict=True)] == [True] * len(wrong), found


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"name": None}, ["name is missing, expected a value"]),
        ({"name": ["x"]}, ['name is ["x"], expected a text']),
        ({"note": "x"}, ["note is an unknown key, expected one of name, protocols, inputs, rows, expect, error, "]),
        ({"protocols": None}, ["protocols is missing, expected a value"]),
        ({"protocols": []}, ["protocols is [], expected a list"]),
        ({"protocols": "http"}, ["protocols is http, expected a list"]),
        ({"protocols": ["smtp"]}, ["protocols is smtp, expected each of http, grpc, stream, raw at most once"]),
        ({"protocols": ["http", "http"]}, ["protocols is http, expected each of http, grpc, stream, raw at most once"]),
        ({"inputs": None}, ["inputs is missing, expected a value"]),
        ({"inputs": {}}, ["inputs is {}, expected a map that is not empty"]),
        ({"inputs": {"IN": {}}}, ["inputs.IN is empty, expected exactly one of npy, raw, text, numbers, file, image, generated"]),
        ({"inputs": {"IN": {"npy": 3}}}, ["inputs.IN.npy is 3, expected a text"]),
        (
            {"inputs": {"IN": {"npy": "rows.npy", "raw": 1}}},
            ["inputs.IN is set with npy and raw, expected exactly one of npy, raw, "],
        ),
        ({"inputs": {"IN": {"npx": "rows.npy", "npy": "rows.npy"}}}, ["inputs.IN.npx is an unknown key, expected one of npy, "]),
        ({"inputs": {3: {"npy": "rows.npy"}}}, ["inputs.3 is 3, expected a text"]),
        (
            {"inputs": {"IN": {"npy": "gone.npy"}}},
            ["inputs.IN.npy is gone.npy, which does not exist, expected {golden}/m/gone.npy"],
        ),
        ({"inputs": {"IN": {"npy": "text.npy"}}}, ["inputs.IN.npy is {golden}/m/text.npy, which is not an .npy file, expected "]),
        ({"inputs": {"IN": {"npy": "empty.npy"}}}, ["inputs.IN.npy is {golden}/m/empty.npy, which is not an .npy file, expected "]),
        (
            {"inputs": {"IN": {"npy": "scalar.npy"}}},
            ["inputs.IN.npy is {golden}/m/scalar.npy, a single value without rows, expected "],
        ),
        ({"inputs": {"IN": {"npy": "many.npz"}}}, ["inputs.IN.npy is {golden}/m/many.npz, an .npz of the arrays rows, "]),
        ({"inputs": {"IN": {"npy": "dates.npy"}}}, ["inputs.IN.npy is datetime64[D] in {golden}/m/dates.npy, expected numbers"]),
        ({"rows": {"count": 2}}, ["rows.first is missing, expected a value"]),
        (
            {"rows": {"first": -1, "count": 0}},
            ["rows.first is -1, expected a whole", "rows.count is 0, expected a whole number of at least 1"],
        ),
        (
            {"rows": {"first": 1.5, "count": True}},
            ["rows.first is 1.5, expected a whole", "rows.count is true, expected a whole"],
        ),
        ({"rows": {"first": 0, "count": 6, "spread": 1}}, ["rows.spread is 1, expected true or false"]),
        ({"rows": {"first": 0, "count": 6, "batch": "yes"}}, ["rows.batch is yes, expected true or false"]),
        (
            {"rows": {"first": 0, "count": 6, "step": 1}},
            ["rows.step is an unknown key, expected one of first, count, spread, batch"],
        ),
        ({"rows": {"first": 0, "count": 5}}, ["expect.OUT.argmax is a list of 6 labels, expected 5, one for each row"]),
        ({"rows": {"first": 0, "count": 4, "spread": True}}, ["expect.OUT.argmax is a list of 6 labels, expected a multiple of 4"]),
        (
            {"rows": {"first": 3, "count": 6}},
            [
                "inputs.IN.npy is an array of 8 rows, expected at least 9",
                "expect.OUT.values.npy is an array of 8 rows, expected at least 9",
            ],
        ),
        ({"expect": {}}, ["expect is {}, expected a map that is not empty"]),
        ({"expect": {"OUT": {}}}, ["expect.OUT is {}, expected at least one of dtype, shape, finite, argmax, values, text, "]),
        (
            {"expect": {"OUT": {"max": 1}}},
            ["expect.OUT.max is an unknown key, expected one of dtype, shape, finite, argmax, values, text, "],
        ),
        ({"expect": {"OUT": {"dtype": "float"}}}, ["expect.OUT.dtype is float, expected one of BOOL, "]),
        ({"expect": {"OUT": {"shape": [1, "x"]}}}, ['expect.OUT.shape is [1, "x"], expected whole numbers']),
        ({"expect": {"OUT": {"shape": 10}}}, ["expect.OUT.shape is 10, expected a list"]),
        ({"expect": {"OUT": {"finite": "very"}}}, ["expect.OUT.finite is very, expected true, or no such key"]),
        ({"expect": {"OUT": {"finite": False}}}, ["expect.OUT.finite is false, expected true, or no such key"]),
        (
            {"expect": {"OUT": {"shape": [1, 0], "finite": True}}},
            ["expect.OUT.finite is set together with shape [1, 0], expected one of the two, as an empty output has no values"],
        ),
        (
            {"expect": {"OUT": {"values": {"npy": "none.npy"}}}},
            ["expect.OUT.values is without a value in shape [8, 0], expected one value or more"],
        ),
        ({"expect": {"OUT": {"values": {"npy": "nan.npy"}}}}, ["expect.OUT.values is 1 values that are nan, expected numbers"]),
        (
            {"expect": {"OUT": {"values": {"npy": "scores.npy", "atol": 1}}}},
            ["expect.OUT.values.atol is 1, expected a tolerance that an output of zeros does not pass"],
        ),
        (
            {"expect": {"OUT": {"values": {"npy": "scores.npy", "rtol": 1}}}},
            ["expect.OUT.values.rtol is 1, expected a tolerance that an output of zeros does not pass"],
        ),
        ({"expect": {"OUT": {"argmax": [0, -1]}}}, ["expect.OUT.argmax is [0, -1], expected whole numbers"]),
        (
            {"expect": {"A": {"argmax": [0, 1]}, "B": {"argmax": [0, 1, 2, 3]}}},
            ["expect.B.argmax is a list of 4 labels, expected a multiple of 2, in consecutive blocks, as many as "],
        ),
        ({"expect": {"OUT": {"values": {"atol": 1}}}}, ["expect.OUT.values is empty, expected exactly one of npy, numbers, file"]),
        (
            {"expect": {"OUT": {"values": {"npy": "scores.npy", "atol": -1, "rtol": "x"}}}},
            ["expect.OUT.values.atol is -1, expected a number", "expect.OUT.values.rtol is x, expected a number"],
        ),
    ],
)
def test_a_malformed_check_is_refused(site: Path, changes: dict[str, Any], wrong: list[str]) -> None:
    found = findings(site, {"model": "m", "checks": [good_check(**changes)]})
    if changes.keys() & {"name", "note"}:
        assert len(found) == 1
    wanted = [CHECK0 + entry.replace("{golden}", f"{site}/golden") for entry in wrong]
    assert [finding.startswith(start) for finding, start in zip(found, wanted, strict=True)] == [True] * len(wanted), found


def whole_check(**changes: Any) -> dict[str, Any]:
    """A check of arrays as they are."""
    return good_check(**{"rows": None, "expect": {"OUT": {"dtype": "FP32"}}, **changes})


STREAM = {"protocols": ["stream"], "expect": None}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"expect": None}, ["expect is missing, expected a value, or one of error, responses, cancel, latency"]),
        (
            {"inputs": {"IN": {"text": [["a"], "b"]}}},
            ["inputs.IN.text is nested lists of different lengths, expected texts in lists of"],
        ),
        ({"inputs": {"IN": {"text": []}}}, ["inputs.IN.text is an empty list, expected texts"]),
        ({"inputs": {"IN": {"text": [1]}}}, ["inputs.IN.text is 1, expected texts"]),
        ({"inputs": {"IN": {"text": "a", "dtype": "BYTES"}}}, ["inputs.IN.dtype is BYTES, expected no dtype together with text"]),
        ({"inputs": {"IN": {"numbers": [1]}}}, ["inputs.IN.dtype is missing, expected a value, as numbers needs one"]),
        (
            {"inputs": {"IN": {"numbers": [256], "dtype": "UINT8"}}},
            ["inputs.IN.numbers is 256, expected numbers that UINT8 can represent"],
        ),
        (
            {"inputs": {"IN": {"numbers": [-1], "dtype": "UINT64"}}},
            ["inputs.IN.numbers is -1, expected numbers that UINT64 can represent"],
        ),
        (
            {"inputs": {"IN": {"numbers": [0.5], "dtype": "INT8"}}},
            ["inputs.IN.numbers is 0.5, expected numbers that INT8 can represent"],
        ),
        (
            {"inputs": {"IN": {"numbers": [1e9], "dtype": "FP16"}}},
            ["inputs.IN.numbers is 1000000000.0, expected numbers that FP16"],
        ),
        ({"inputs": {"IN": {"numbers": ["1"], "dtype": "INT8"}}}, ["inputs.IN.numbers is '1', expected numbers"]),
        (
            {"inputs": {"IN": {"numbers": [1], "dtype": "BYTES"}}},
            ["inputs.IN.numbers is BYTES, expected a dtype of numbers, or text"],
        ),
        ({"inputs": {"IN": {"numbers": [1], "dtype": "INT"}}}, ["inputs.IN.dtype is INT, expected one of BOOL, "]),
        (
            {"inputs": {"IN": {"numbers": [1], "dtype": "INT8", "shape": [1]}}},
            ["inputs.IN.shape is [1], expected no shape together with numbers"],
        ),
        (
            {"inputs": {"IN": {"npy": "rows.npy", "dtype": "FP64"}}},
            ["inputs.IN.dtype is FP64 for float32 in rows.npy, expected no dtype"],
        ),
        (
            {"inputs": {"IN": {"raw": "four.bin"}}},
            ["inputs.IN.dtype is missing, expected a value, as raw", "inputs.IN.shape is missing, expected a value, as raw"],
        ),
        (
            {"inputs": {"IN": {"raw": "five.bin", "dtype": "FP32", "shape": [1, 1]}}},
            ["inputs.IN.raw is 5 bytes, expected 4, 1 values of FP32 for shape [1, 1]"],
        ),
        (
            {"inputs": {"IN": {"raw": "gone", "dtype": "FP32", "shape": [1]}}},
            ["inputs.IN.raw is gone, which does not exist, expected {golden}/m/gone"],
        ),
        (
            {"inputs": {"IN": {"raw": "four.bin", "dtype": "BYTES", "shape": [1]}}},
            ["inputs.IN.raw is BYTES, expected another dtype"],
        ),
        ({"inputs": {"IN": {"file": "gone"}}}, ["inputs.IN.file is gone, which does not exist, expected {golden}/m/gone"]),
        ({"inputs": {"IN": {"file": "four.bin", "dtype": "FP32"}}}, ["inputs.IN.file is FP32, expected BYTES or UINT8"]),
        (
            {"inputs": {"IN": {"file": ["four.bin", "five.bin"], "dtype": "UINT8"}}},
            ["inputs.IN.file is a list of files of 4 and 5 bytes, expected one length"],
        ),
        (
            {"inputs": {"IN": {"image": "four.bin"}}},
            ["inputs.IN.image is {golden}/m/four.bin, which has another format, expected a JPEG or PNG"],
        ),
        (
            {"inputs": {"IN": {"image": "p.jpg", "dtype": "FP32"}}},
            ["inputs.IN.shape is missing, expected a value, as image needs one"],
        ),
        (
            {"inputs": {"IN": {"image": "p.jpg", "dtype": "FP32", "shape": [4, 8, 8]}}},
            ["inputs.IN.image is shape [4, 8, 8], expected [3, H, W] for the pixels of a picture"],
        ),
        (
            {"inputs": {"IN": {"image": "p.jpg", "dtype": "FP32", "shape": [3, 8, 8]}}},
            ["inputs.IN.image is p.jpg (UnidentifiedImageError), expected a picture that Pillow reads"],
        ),
        (
            {"inputs": {"IN": {"image": "p.jpg", "dtype": "INT8"}}},
            ["inputs.IN.image is INT8, expected BYTES or UINT8 for the bytes of a file, or FP32 and shape [3, H, W]"],
        ),
        (
            {"inputs": {"IN": {"generated": {"seed": -1}, "dtype": "FP32", "shape": [1]}}},
            ["inputs.IN.generated.seed is -1, expected a whole number from 0"],
        ),
        (
            {"inputs": {"IN": {"generated": {"low": 5, "high": 300}, "dtype": "UINT8", "shape": [1]}}},
            ["inputs.IN.generated is low 5 and high 300, expected low below high, both within UINT8"],
        ),
        (
            {"inputs": {"IN": {"generated": {}, "dtype": "UINT8", "shape": [0]}}},
            ["inputs.IN.shape is [0], expected whole numbers above 0"],
        ),
        (
            {"expect": {"O": {"text": ["a"], "values": {"numbers": [1]}}}},
            ["expect.O.text is set together with values, expected one of the two"],
        ),
        ({"expect": {"O": {"text": [3]}}}, ["expect.O.text is 3, expected texts"]),
        ({"expect": {"O": {"label": [3]}}}, ["expect.O.label is 3, expected a text"]),
        ({"expect": {"O": {"class_count": 0}}}, ["expect.O.class_count is 0, expected a whole number of at least 1"]),
        (
            {"expect": {"O": {"label": ["a"], "finite": True}}},
            ["expect.O.finite is set together with class_count or label, expected a check"],
        ),
        ({"ms": 0, "timeout": "x"}, ["ms is 0, expected a number above 0", "timeout is x, expected a number above 0"]),
        ({"responses": 1}, ["responses is set for protocols other than stream, expected protocols: [stream]"]),
        ({**STREAM, "responses": -1}, ["responses is -1, expected a whole number of at least 0"]),
        ({**STREAM, "cancel": {}}, ["cancel.after is missing, expected a value"]),
        ({**STREAM, "cancel": {"after": 0, "times": 1.5}}, ["cancel.after is 0, expected", "cancel.times is 1.5, expected"]),
        (
            {**STREAM, "cancel": {"after": 1}, "responses": 1},
            ["cancel is set together with responses, expected no responses together with it"],
        ),
        ({"expect": None, "error": {}}, ["error is {}, expected at least one of status, contains"]),
        ({"expect": None, "error": {"status": 400}}, ["error.status is 400, expected one of INVALID_ARGUMENT, "]),
        ({**STREAM, "error": {"status": "INTERNAL"}}, ["error.contains is missing, expected a value, as not every server sends"]),
        (
            {"expect": None, "error": {"status": "UNAVAILABLE"}},
            ["error.contains is missing, expected a value, as a broken connection"],
        ),
        ({"expect": None, "error": {"contains": ""}}, ["error.contains is , expected a text"]),
        (
            {"error": {"contains": "x"}},
            ["expect is set together with error, expected one of the two, as only a stream responds before it fails"],
        ),
        ({"instances": 1}, ["instances is 1, expected true or false"]),
        (
            {"expect": None, "error": {"contains": "x"}, "instances": True},
            ["instances is set together with error, expected no error together with it"],
        ),
    ],
)
def test_a_malformed_check_of_any_model_is_refused(site: Path, changes: dict[str, Any], wrong: list[str]) -> None:
    found = findings(site, {"model": "m", "checks": [whole_check(**changes)]})
    wanted = [CHECK0 + entry.replace("{golden}", f"{site}/golden") for entry in wrong]
    assert [finding.startswith(start) for finding, start in zip(found, wanted, strict=True)] == [True] * len(wanted), found


@pytest.mark.parametrize(
    ("given", "dtype", "array"),
    [
        ({"text": "가"}, "BYTES", ["가".encode()]),
        ({"text": [["a", "b"]]}, "BYTES", [[b"a", b"b"]]),
        ({"npy": "words.npy"}, "BYTES", [b"a"] * 8),
        ({"npy": "rows.npy", "dtype": "BF16"}, "BF16", np.arange(32).reshape(8, 4).tolist()),
        ({"numbers": [[1, 2]], "dtype": "INT8"}, "INT8", [[1, 2]]),
        ({"numbers": [True], "dtype": "BOOL"}, "BOOL", [True]),
        ({"numbers": 2**64 - 1, "dtype": "UINT64"}, "UINT64", [2**64 - 1]),
        ({"raw": "four.bin", "dtype": "UINT16", "shape": [2]}, "UINT16", [0x0100, 0x0302]),
        ({"file": "five.bin"}, "BYTES", [bytes(range(5))]),
        ({"file": "four.bin", "dtype": "UINT8"}, "UINT8", [0, 1, 2, 3]),
        ({"file": ["four.bin"], "dtype": "UINT8"}, "UINT8", [[0, 1, 2, 3]]),
        ({"image": [["p.jpg"]]}, "BYTES", [[b"\xff\xd8\xff\x00"]]),
    ],
)
def test_where_an_input_comes_from(site: Path, given: dict[str, Any], dtype: str, array: Any) -> None:
    (found,) = documents(site, {"model": "m", "checks": [whole_check(inputs={"IN": given})]})["checks"]
    found = json.loads(json.dumps(found))
    check = unpack_check("m", found["checks"][0])
    (request,) = questions.requests("m", {**found["checks"][0], "protocols": ["http"]}, 0)
    assert request.rows is None
    sent_as, sent = check.question(request).inputs["IN"]
    assert (sent_as, sent.tolist()) == (dtype, array)


def test_the_check_of_every_dtype_is_good_and_leaves_none_out(site: Path) -> None:
    """What model `types` of the scenario `serving` is asked: each dtype that a check can name, but BF16, which numpy has not."""
    (found,) = documents(site, (ROOT / "molecule/serving/checks/types.yml").read_text(), model="types")["checks"]
    for raw in found["checks"]:
        check = unpack_check("types", json.loads(json.dumps(raw)))
        (request, *_more) = questions.requests("types", raw, 0)
        sent = {dtype for dtype, _array in check.question(request).inputs.values()}
        assert sent == set(questions.NUMPY) - {"BF16"}
        assert {wanted["dtype"] for wanted in check.expect.values()} == sent


def test_made_up_inputs_are_the_same_in_every_run(site: Path) -> None:
    for dtype in questions.NUMPY:
        entry = {"IN": {"generated": {"seed": 5}, "dtype": dtype, "shape": [2, 3]}}
        sent = []
        for _run in range(2):
            (found,) = documents(site, {"model": "m", "checks": [whole_check(inputs=entry)]})["checks"]
            sent.append(unpack_check("m", found["checks"][0]).inputs["IN"][1].array)
        assert sent[0].shape == (2, 3)
        assert sent[0].tolist() == sent[1].tolist()
        assert len(set(sent[0].flatten().tolist())) > 1


def test_what_is_made_up_is_made_where_it_is_asked(site: Path) -> None:
    """A request of some MB is a line in the document."""
    entry = {"IN": {"generated": {"seed": 5, "low": 3}, "dtype": "INT32", "shape": [1000, 1000]}}
    rows = {"first": 2, "count": 3}
    (found,) = documents(site, {"model": "m", "checks": [whole_check(inputs=entry, rows=rows, expect={"OUT": {"finite": True}})]})[
        "checks"
    ]
    assert len(json.dumps(found)) < 1000
    made = unpack_check("m", json.loads(json.dumps(found["checks"][0]))).inputs["IN"][1]
    whole = packing.generated("INT32", [1000, 1000], 5, 3)
    assert made.take([4, 2]).tolist() == whole[[4, 2]].tolist()


def test_texts_and_literal_numbers_are_golden_values_by_row(site: Path) -> None:
    expect = {"A": {"text": [["a"], ["b"], ["c"], ["d"]]}, "B": {"values": {"numbers": [[1], [2], [3], [4]], "atol": 1}}}
    (found,) = documents(site, {"model": "m", "checks": [good_check(rows={"first": 2, "count": 2}, expect=expect)]})["checks"]
    check = unpack_check("m", json.loads(json.dumps(found["checks"][0])))
    assert check.expect["A"]["values"]["rows"].take([2, 3]).tolist() == [[b"c"], [b"d"]]
    assert (check.expect["B"]["values"]["rows"].take([3]).tolist(), check.expect["B"]["values"]["atol"]) == ([[4]], 1)
    short = {"A": {"text": [["a"], ["b"]]}}
    assert findings(site, {"model": "m", "checks": [good_check(rows={"first": 2, "count": 2}, expect=short)]}) == [
        "checks[0].expect.A.text is an array of 2 rows, expected at least 4"
    ]


def test_labels_of_the_server_spread_as_numbers_do(site: Path) -> None:
    check = good_check(expect={"OUT": {"label": ["a", "b", "c", "d"]}})
    (found,) = documents(site, {"model": "m", "checks": [check]})["checks"]
    assert found["checks"][0]["rows"]["total"] == 4


def test_limits_reach_the_library(site: Path) -> None:
    changes = {
        "protocols": ["stream"], "expect": None, "responses": 2, "error": {"contains": "x"}, "ms": 5, "timeout": 0.5,
    }  # fmt: skip
    (found,) = documents(site, {"model": "m", "checks": [whole_check(**changes)]})["checks"]
    check = unpack_check("m", found["checks"][0])
    assert (check.responses, check.error, check.most_ms, check.timeout) == (2, {"contains": "x"}, 5, 0.5)


def test_all_findings_of_all_files_come_at_once(site: Path) -> None:
    (site / "checks/n.yml").write_text("model: x\n")
    with pytest.raises(Refusal) as refused:
        documents(site, {"model": "m", "checks": [good_check(name=None, protocols=["a"]), good_check(rows={"first": -1})]})
    assert len(refused.value.reasons) == 4
    (site / "checks/m.yml").write_text(yaml.safe_dump({"model": "m", "checks": []}))
    with pytest.raises(Refusal) as refused:
        check_files.read_checks(["m", "n"], [str(site / "checks")], [str(site / "golden")], 0)
    assert [Path(reason.split(":")[0]).name for reason in refused.value.reasons] == ["m.yml", "n.yml", "n.yml"]


@pytest.mark.parametrize("host_index", [0, 1, 7])
def test_the_files_of_the_collection_are_good(host_index: int) -> None:
    models = sorted(path.stem for path in (ROOT / "files/checks").glob("*.yml"))
    assert "digits" in models
    found = check_files.read_checks(models, [inputs.CHECKS_DIR], [inputs.GOLDEN_DIR], host_index)
    assert [len(check["checks"]) > 0 for check in found["checks"]] == [True] * len(models)


# The module and its container

PROGRAM = base64.b64encode(archive.program(check_client.ENTRY)).decode()
DOCUMENT = {"host": "npu1", "host_index": 0, "checks": [{"model": "m", "checks": []}], "no_check_file": []}


def result(name: str, ok: bool = True, why: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "why": why, "ms": 1.0}


def call(
    answer: Any, docker: str | None = "/usr/bin/docker", check: bool = False, **arguments: Any
) -> tuple[dict[str, Any], list[Any]]:
    """(what the module ends with, the commands that it ran), the engine answering (code, out, err)."""
    ran: list[Any] = []

    def capture(command: list[str], seconds: float, given: str) -> subprocess.CompletedProcess[str]:
        ran.append((command, {"input": given, "timeout": seconds}))
        return subprocess.CompletedProcess(command, *answer)

    with (
        mock.patch.object(check_client, "which", lambda name, beside: docker if name == "docker" and beside else None),
        mock.patch.object(check_client, "capture", capture),
    ):
        given = {"image": "sha256:abc", "program": PROGRAM, "document": DOCUMENT, **arguments}
        return run_module(inference_check, given, check=check), ran


def answers(*results: dict[str, Any], before: str = "") -> tuple[int, str, str]:
    return 0, before + json.dumps({"host": "npu1", "checks": list(results)}) + "\n", ""


def test_the_client_runs_in_a_container_that_leaves_nothing() -> None:
    found, ran = call(answers(result("a")))
    (((command), options),) = ran
    assert command[:2] == ["/usr/bin/docker", "run"]
    assert command[2:8] == ["--rm", "--interactive", "--pull", "never", "--network", "host"]
    assert command[8:15] == ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    assert command[15:-3] == ["--name", f"npufleet-check-{os.getpid()}", "--entrypoint", "python3"]
    assert command[-3:] == ["sha256:abc", "-c", check_client.START]
    given = json.loads(options["input"])
    assert given["program"] == PROGRAM
    assert given["document"]["server"] == {"address": "127.0.0.1", "http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}
    assert (given["document"]["timeout"], given["document"]["host"]) == (30, "npu1")
    assert found == {
        "failed": False,
        "changed": False,
        "msg": "npu1: 1 of 1 checks passed",
        "proven": True,
        "passed": 1,
        "checks": [result("a")],
    }


def test_the_server_may_listen_elsewhere() -> None:
    _found, ran = call(answers(result("a")), server={"address": "::1", "http_port": 9}, timeout=3)
    document = json.loads(ran[0][1]["input"])["document"]
    assert document["server"] == {"address": "::1", "http_port": 9, "grpc_port": 8001, "metrics_port": 8002}
    assert document["timeout"] == 3


def test_what_starts_in_the_container_runs_the_program(tmp_path: Path) -> None:
    """The real program in a real process, with a client that refuses."""
    package = tmp_path / "tritonclient"
    package.mkdir()
    (package / "__init__.py").write_text("")
    down = (
        "class InferenceServerClient:\n"
        "  def __init__(self, *a, **b): pass\n"
        "  def is_server_live(self, **a): raise ConnectionRefusedError(111, 'no')\n"
    )
    for protocol in ("http", "grpc"):
        (package / f"{protocol}.py").write_text("print('hello')\n" + down)
    (package / "utils.py").write_text("")
    check = {"name": "row", "protocols": ["http", "grpc"], "rows": {"first": 0, "count": 1, "total": 1}, "inputs": {}, "expect": {}}
    document = {
        **DOCUMENT,
        "timeout": 1,
        "server": {"address": "a", "http_port": 1, "grpc_port": 2},
        "checks": [{"model": "m", "checks": [check]}],
    }
    done = subprocess.run(
        [sys.executable, "-c", check_client.START],
        input=json.dumps({"program": PROGRAM, "document": document}),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [entry["why"] for entry in json.loads(done.stdout)["checks"]] == [
        "no Triton answers http at a:1: [Errno 111] no",
        "no Triton answers grpc at a:2: [Errno 111] no",
    ]
    assert "hello" in done.stderr


def test_failed_checks_fail_the_module_with_every_result() -> None:
    results = [result("a"), result("b", False, "OUT: label is 1, expected 2"), result("c", False, "no answer")]
    found, _ran = call(answers(*results))
    lines = ["npu1: 1 of 3 checks passed", "  - b: OUT: label is 1, expected 2", "  - c: no answer"]
    assert found == {"failed": True, "msg": "\n".join(lines), "proven": False, "passed": 1, "checks": results}


@pytest.mark.parametrize(("failing", "last"), [(20, "  - b19: x"), (21, "  - and 1 more"), (25, "  - and 5 more")])
def test_the_message_names_the_first_twenty(failing: int, last: str) -> None:
    found, _ran = call(answers(result("a"), *(result(f"b{number}", False, "x") for number in range(failing))))
    lines = found["msg"].split("\n")
    assert lines[0] == f"npu1: 1 of {failing + 1} checks passed"
    assert lines[1:21] == [f"  - b{number}: x" for number in range(20)]
    assert lines[-1] == last
    assert len(lines) == (21 if failing == 20 else 22)


def test_a_model_without_a_file_fails_beside_those_that_passed() -> None:
    found, _ran = call(
        answers(result("a")), document={**DOCUMENT, "no_check_file": [result("words/check file", False, "found no file")]}
    )
    assert (found["failed"], found["msg"]) == (
        True,
        "npu1: 1 of 2 checks passed\n  - words/check file: found no file",
    )
    assert [check["name"] for check in found["checks"]] == ["words/check file", "a"]


INVENTORY_CHECKS = "checks of the inventory, because the host has stored none for its current releases"
STORED_CHECKS = "checks that the host stored when it accepted its current releases"
# The published ports of the container that serves. The inventory and the accepted checks have other ones.
BINDINGS = {"8000/tcp": "9000", "8001/tcp": "9001", "8002/tcp": "9002"}


class Accepted:
    """A host that has stored checks for its releases. Its container may differ from the inventory."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.path = root, root / "accepted.json"
        self.releases = {"m": {"release": "a" * 64}}
        self.command = ["tritonserver", "--http-port=8000"]
        self.addresses = dict.fromkeys(BINDINGS, "0.0.0.0")
        self.images = {"sha256:old"}
        monkeypatch.setattr(accepted_checks, "PATH", str(self.path))
        monkeypatch.setattr(accepted_checks.store, "current_models", lambda _root, _desired: self.releases)
        monkeypatch.setattr(accepted_checks, "Engine", lambda: FakeEngine(self.answers()))

    def answers(self) -> dict[str, Any]:
        bindings = {port: [{"HostIp": self.addresses[port], "HostPort": to}] for port, to in BINDINGS.items()}
        container = {
            "Id": "1",
            "State": {"Status": "running", "Running": True},
            "Config": {"Cmd": self.command},
            "HostConfig": {"PortBindings": bindings},
        }
        layers = {"RootFS": {"Layers": ["sha256:1"]}, "Config": {}}
        return {"/containers/triton/json": container, **{f"/images/{name}/json": {"Id": name, **layers} for name in self.images}}

    def store(self, key: dict[str, str] | None = None, **server: Any) -> None:
        server = {"address": "127.0.0.1", "http_port": 8000, "grpc_port": 8001, "metrics_port": 8002, **server}
        document = {**DOCUMENT, "server": server, "timeout": 5, "key": key, "bound": float("inf")}
        accepted_checks.write(str(self.root), {"image": "sha256:old", "program": "old", "document": document})

    def prove(self, **arguments: Any) -> tuple[dict[str, Any], str, dict[str, Any]]:
        """Return the result of the module, the image of its client, and the standard input of its client."""
        server = {"http_port": 9500, "grpc_port": 9501, "metrics_port": 9502, **arguments.pop("server", {})}
        given = {"accepted": True, "root": str(self.root), "container": "triton", "server": server, **arguments}
        found, (((command), options),) = call(answers(result("a")), **given)
        return found, command[-3], json.loads(options["input"])


@pytest.fixture
def accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Accepted:
    return Accepted(tmp_path, monkeypatch)


@pytest.mark.parametrize("given", ["accepted", "other releases", "changed", "none"])
def test_restored_releases_run_the_checks_that_they_have_passed(accepted: Accepted, given: str) -> None:
    if given != "none":
        accepted.store()
        assert accepted.path.stat().st_mode & 0o777 == 0o600
    if given == "changed":
        accepted.path.write_text(accepted.path.read_text().replace("sha256:old", "sha256:bad"))
    if given == "other releases":
        accepted.releases["n"] = {"release": "b" * 64}
    found, image, sent = accepted.prove()
    assert (found["proven"], found["accepted"]) == (True, given == "accepted")
    assert (image, sent["program"]) == (("sha256:old", "old") if given == "accepted" else ("sha256:abc", PROGRAM))
    assert ("bound" in sent["document"], sent["document"]["timeout"]) == ((True, 5) if given == "accepted" else (False, 30))
    assert found["msg"] == f"npu1: 1 of 1 checks passed ({STORED_CHECKS if given == 'accepted' else INVENTORY_CHECKS})"
    # Only a proof after a failed change runs them.
    found, image, _sent = accepted.prove(accepted=False)
    assert "accepted" not in found and (image, found["msg"]) == ("sha256:abc", "npu1: 1 of 1 checks passed")


def test_accepted_checks_reach_a_container_that_was_changed_without_checks(accepted: Accepted) -> None:
    accepted.store()
    _found, _image, sent = accepted.prove()
    expected = {"http_port": 9000, "grpc_port": 9001, "metrics_port": 9002}
    local = {"address": "127.0.0.1", "metrics_url": "http://127.0.0.1:9002/metrics"}
    assert sent["document"]["server"] == {**expected, **local}
    accepted.addresses = {"8000/tcp": "192.0.2.1", "8001/tcp": "192.0.2.1", "8002/tcp": "::1"}
    _found, _image, sent = accepted.prove()
    assert sent["document"]["server"] == {**expected, "address": "192.0.2.1", "metrics_url": "http://[::1]:9002/metrics"}
    # A proxy or a name of the certificate, which the inventory sets
    _found, _image, sent = accepted.prove(server={"address": "proxy.example.com"}, fixed_address=True)
    assert sent["document"]["server"] == {**expected, "address": "proxy.example.com"}


def test_accepted_checks_use_the_headers_and_certificates_of_the_inventory(accepted: Accepted) -> None:
    """They are not part of the container, and may have been renewed."""
    accepted.store(http_tls={"ca": "old"}, grpc_tls={"ca": "old"}, headers={"proxy": "old"})
    tls = {"ca": "new", "cert": None, "key": None}
    new = {"http_tls": tls, "grpc_tls": tls, "headers": {"proxy": "new"}}
    server = accepted.prove(server=new)[2]["document"]["server"]
    assert {name: server[name] for name in new} == new
    assert not {"http_tls", "headers"} & set(accepted.prove()[2]["document"]["server"])


@pytest.mark.parametrize("secured", [True, False])
@pytest.mark.parametrize("side", ["accepted", "inventory"])
def test_container_decides_if_only_one_side_has_tls_for_grpc(accepted: Accepted, secured: bool, side: str) -> None:
    tls = {"grpc_tls": {"ca": "pem", "cert": None, "key": None}}
    accepted.store(**(tls if side == "accepted" else {}))
    accepted.command.append(f"--grpc-use-ssl={str(secured).lower()}")
    server = accepted.prove(server=tls if side == "inventory" else {})[2]["document"]["server"]
    assert server.get("grpc_tls") == (tls["grpc_tls"] if secured else None)


def test_accepted_checks_send_the_key_that_the_container_requires(
    accepted: Accepted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_text(f"the {name} key")
    accepted.store(key={"name": "old-key", "path": str(tmp_path / "old")})
    monkeypatch.setattr(server_key, "START", server_key.START.replace(server_key.FILE, str(tmp_path / "old")))
    monkeypatch.setattr(keys, "FILE", str(tmp_path / "old"))
    accepted.command = server_key.command(inventory(triton_server_api_key_name="older-key"), accepted.command)
    server = accepted.prove(key={"name": "new-key", "path": str(tmp_path / "new")})[2]["document"]["server"]
    assert server["headers"] == {"older-key": "the old key"}


def test_accepted_checks_run_in_the_image_of_the_inventory_if_theirs_was_removed(accepted: Accepted) -> None:
    accepted.store()
    accepted.images = set()
    found, image, sent = accepted.prove()
    assert (found["accepted"], image, sent["program"]) == (True, "sha256:abc", "old")


def test_no_key_and_no_header_is_stored_with_accepted_checks(accepted: Accepted) -> None:
    accepted.store(
        key={"name": "k", "path": "/key"}, headers={"proxy": "s3cret"}, http_tls={"ca": "c", "cert": "c", "key": "s3cret"}
    )
    stored = accepted_checks.read(str(accepted.root))
    assert stored and stored["document"]["server"] == {}
    assert "key" not in stored["document"] and "s3cret" not in accepted.path.read_text()


def test_accepted_checks_without_an_engine_fail_with_a_reason(accepted: Accepted, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted.store()
    monkeypatch.setattr(accepted_checks, "Engine", lambda: FakeEngine(None))
    found, ran = call(answers(result("a")), accepted=True, root=str(accepted.root), container="triton")
    assert (found["failed"], found["msg"], ran) == (True, "npu1: the engine does not answer (no engine)", [])


class Action(action.ActionModule):
    """The action over a host that records its request."""

    def __init__(self, given: Any, **arguments: Any) -> None:
        self._task = SimpleNamespace(args=arguments)  # type: ignore[assignment]
        self.given, self.request = given, {}

    def variables(self, _task_vars: Any) -> Any:
        return self.given

    def validate_argument_spec(self, *_given: Any, **_options: Any) -> Any:
        return None, dict(self._task.args)

    def call_module(self, _module: str, _arguments: Any, _task_vars: Any, request: Any = None) -> dict[str, Any]:
        self.request = request
        return {"msg": "1 of 1 checks passed", "checks": []}


@pytest.mark.parametrize(
    ("variable", "argument", "fixed"),
    [("", {}, False), ("proxy.example.com", {}, True), ("", {"address": "::1"}, True), ("", {"http_port": 9}, False)],
)
def test_action_sends_the_container_and_whether_the_address_is_fixed(variable: str, argument: Any, fixed: bool) -> None:
    variables = inventory(triton_server_name="mine", inference_check_address=variable, inference_check_image="sha256:1")
    asked = Action(variables, models=[], keep=None, results_dir=None, **({"server": argument} if argument else {}))
    asked.act("npu1", {})
    assert (asked.request["container"], asked.request["fixed_address"]) == ("mine", fixed)


def test_without_anything_to_ask_no_container_runs() -> None:
    found, ran = call(None, document={**DOCUMENT, "checks": []})
    assert (found["failed"], found["proven"], found["msg"], ran) == (False, True, "npu1: no model to check", [])
    found, ran = call(answers(), document={**DOCUMENT, "checks": [], "unchecked": ["words"]})
    assert (found["proven"], found["msg"], ran) == (True, "npu1: no checks ran for words", [])


@pytest.mark.parametrize(
    ("said", "starts"),
    [
        ({"checks": [{"name": "m/http/a", "ok": False, "why": "wrong"}]}, 1),
        ({"checks": [], "unavailable": {"reason": "time", "why": "late"}}, 1),
        ({"checks": [{"name": "m/http/a", "ok": True, "why": ""}]}, 0),
        (None, 0),
    ],
)
def test_a_proof_renews_what_the_probe_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any] | None, starts: int
) -> None:
    config, state = tmp_path / "config.json", tmp_path / "probe.json"
    config.write_text(json.dumps({"root": str(tmp_path)}))
    monkeypatch.setattr(probe, "CONFIG", str(config))
    if said is not None:
        state.write_text(json.dumps({"at": 1, "interval": 3600, "paused": None, "unavailable": None, **said}))
    started: list[tuple[str, ...]] = []

    def systemctl(*words: str) -> tuple[int, str]:
        started.append(words)
        state.write_text(json.dumps({"at": time.time(), "interval": 3600, "paused": None, "unavailable": None, "checks": []}))
        return 0, ""

    monkeypatch.setattr(probe, "run", systemctl)
    # A look changes nothing, and a server that fails has renewed nothing.
    call(answers(result("a")), check=True)
    call(answers(result("a", False, "wrong")))
    assert started == []
    found, _ran = call(answers(result("a")))
    assert started == [("systemctl", "start", "npufleet-probe.service")] * starts
    assert (found["proven"], found.get("warnings", [])) == (True, [])
    call(answers(result("a")))
    assert len(started) == starts, "what was renewed says nothing wrong any more"


def test_a_probe_that_was_under_way_is_asked_once_more_and_one_that_cannot_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, state = tmp_path / "config.json", tmp_path / "probe.json"
    config.write_text(json.dumps({"root": str(tmp_path)}))
    bad = {"at": 1, "interval": 3600, "checks": [{"name": "m/http/a", "ok": False, "why": "wrong"}]}
    state.write_text(json.dumps(bad))
    monkeypatch.setattr(probe, "CONFIG", str(config))
    moments = iter([2, 12])

    def systemctl(*_words: str) -> tuple[int, str]:
        state.write_text(json.dumps({**bad, "at": next(moments)}))
        return 0, ""

    monkeypatch.setattr(probe, "run", systemctl)
    monkeypatch.setattr(probe.time, "time", lambda: 10.0)
    assert probe.renew() is None
    assert next(moments, None) is None
    monkeypatch.setattr(probe, "run", lambda *_words: (0, ""))
    monkeypatch.setattr(probe.time, "time", lambda: 20.0)
    assert probe.renew() == "the repeated probe has no result. See journalctl --unit npufleet-probe"
    monkeypatch.setattr(probe, "run", lambda *_words: (1, "Unit npufleet-probe.service not found.\n" * 50))
    told = str(probe.renew())
    assert told.startswith("the probe cannot be repeated: Unit npufleet-probe.service not found. ")
    assert len(told) < 200


def test_a_probe_that_was_asked_anew_is_known_by_a_clock_that_does_not_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, state = tmp_path / "config.json", tmp_path / "probe.json"
    config.write_text(json.dumps({"root": str(tmp_path)}))
    bad = {"at": 1, "interval": 3600, "checks": [{"name": "m/http/a", "ok": False, "why": "wrong"}]}
    state.write_text(json.dumps(bad))
    monkeypatch.setattr(probe, "CONFIG", str(config))
    calls: list[tuple[str, ...]] = []

    def systemctl(*words: str) -> tuple[int, str]:
        calls.append(words)
        # Its clock was set back meanwhile
        state.write_text(json.dumps({**bad, **clock.mark(), "at": 2}))
        return 0, ""

    monkeypatch.setattr(probe, "run", systemctl)
    assert probe.renew() is None
    assert len(calls) == 1


def test_check_mode_asks_all_the_same() -> None:
    found, ran = call(answers(result("a", False, "x")), check=True)
    assert (found["failed"], len(ran)) == (True, 1)


@pytest.mark.parametrize(
    ("answer", "docker", "msg"),
    [
        (None, None, "npu1: docker is not installed, expected an engine to run the client. Apply the role docker_engine"),
        (
            (125, "", "docker: Error response from daemon: No such image: sha256:abc.\nSee 'docker run --help'."),
            "/usr/bin/docker",
            "npu1: image sha256:abc is not on the host. Apply the role triton_image, or name another image",
        ),
        (
            (125, "", "docker: Cannot connect to the Docker daemon at unix:///x.\nIs the docker daemon running?"),
            "/usr/bin/docker",
            "npu1: the engine does not run the client in image sha256:abc: docker: Cannot connect to the Docker daemon "
            "at unix:///x. Is the docker daemon running?",
        ),
        (
            (137, "", "Killed"),
            "/usr/bin/docker",
            "npu1: the client in image sha256:abc ended with 137 and without a result: Killed",
        ),
        ((0, "[]\n", "odd"), "/usr/bin/docker", "npu1: the client in image sha256:abc ended with 0 and without a result: odd"),
        (
            (0, '{"error": "No module named x"}\n', ""),
            "/usr/bin/docker",
            "npu1: image sha256:abc has no client (No module named x), expected numpy and tritonclient[http,grpc]",
        ),
    ],
)
def test_what_keeps_the_client_from_running(answer: Any, docker: str | None, msg: str) -> None:
    found, _ran = call(answer, docker)
    assert found == {"failed": True, "msg": msg}


def test_the_result_is_found_below_what_an_image_prints() -> None:
    found, _ran = call(answers(result("a"), before="Welcome {}\n\n"))
    assert found["proven"] is True


def test_the_module_alone_says_how_to_call_it() -> None:
    found = run_module(inference_check, {})
    assert found["failed"]
    assert "missing required arguments: document, program: only the controller sets it. Call the module as " in found["msg"]


def test_documentation_and_arguments_agree() -> None:
    arguments = inference_check.OPTIONS
    documented = yaml.safe_load(inference_check.DOCUMENTATION)["options"]
    assert documented.keys() == arguments.keys()
    for name, argument in arguments.items():
        kept = {key: documented[name].get(key) for key in ("type", "elements", "default", "required")}
        assert kept == {key: argument.get(key) for key in kept}, name
    assert documented["server"]["suboptions"].keys() == arguments["server"]["options"].keys()


# ansible-playbook itself

CLIENT = '''
"""A server of labels: row r of `digits` is r modulo ten, told apart by what the images are."""
import os
import numpy as np

IMAGES = np.load(os.environ["GOLDEN"] + "/images.npy")
SCORES = np.load(os.environ["GOLDEN"] + "/scores.npy")


class InferInput:
    def __init__(self, name, shape, dtype):
        assert (name, dtype) == ("INPUT__0", "FP32")

    def set_data_from_numpy(self, array):
        self.array = array


class Result:
    def __init__(self, array):
        self.array = array

    def get_response(self):
        return {"outputs": [{"name": "OUTPUT__0", "datatype": "FP32", "shape": list(self.array.shape)}]}

    def as_numpy(self, name):
        return self.array


class InferenceServerClient:
    def __init__(self, url, **options):
        self.url = url
        self.options = options

    def is_server_live(self, **options):
        if self.url.endswith(":9"):
            raise ConnectionRefusedError(111, "Connection refused")
        return True

    def infer(self, model, inputs, version, outputs, **options):
        if self.url.endswith(":6") and ("ssl" not in self.options or options.get("headers") != {"triton-key": os.environ["KEY"]}):
            raise ValueError("refused")
        rows = [int(np.flatnonzero((IMAGES == row).all(1))[0]) for row in inputs[0].array]
        answer = SCORES[rows].copy()
        if ":7" in self.url and len(rows) == 4:
            answer[2] = answer[2][::-1]
        return Result(answer)
'''


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hosts: a right server, one that answers the largest batch wrong over HTTP, one that is down, one out of reach."""
    place = tmp_path_factory.mktemp("fleet")
    package = place / "client/tritonclient"
    package.mkdir(parents=True)
    for name in ("http", "grpc"):
        (package / f"{name}.py").write_text(CLIENT)
    (package / "__init__.py").write_text("")
    (package / "utils.py").write_text("def np_to_triton_dtype(dtype):\n    return {'float32': 'FP32'}[str(dtype)]\n")
    (place / "bin").mkdir()
    engine = place / "bin/docker"
    engine.write_text(
        f"""#!/bin/sh
echo "$*" >> {place}/ran
case "$*" in *image:1*) ;; *) echo "docker: No such image: x" >&2; exit 125 ;; esac
while [ $# -gt 2 ]; do shift; done
export KEY=key-of-the-api
PYTHONPATH={place}/client GOLDEN={ROOT}/files/golden/digits exec {sys.executable} "$@"
"""
    )
    engine.chmod(0o755)
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {
        "right": {**local, "npufleet_http_port": 8},
        "wrong": {**local, "npufleet_http_port": 7},
        "down": {**local, "npufleet_http_port": 9},
        "away": {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_extra_args": "-o ConnectTimeout=1"},
    }
    shared = {
        "ansible_become": False,
        "rbln_release": "site",
        "npufleet_npus": 1,
        "npufleet_card": "RBLN-CA12",
        "npufleet_lock_file": str(place / "lock.json"),
        "inference_check_results_dir": str(place / "results"),
        "triton_models": [{"name": "digits"}, {"name": "others", "hosts": ["elsewhere"]}],
    }
    (place / "lock.json").write_text('{"site": {"id": "image:1"}}')
    (place / "hosts.yml").write_text(yaml.safe_dump({"npu_hosts": {"hosts": hosts, "vars": shared}}))
    return place


def play(
    fleet: Path, *options: str, limit: str = "all", playbook: Path = ROOT / "playbooks/check.yml"
) -> subprocess.CompletedProcess[str]:
    arguments = ["-i", fleet / "hosts.yml", "--limit", limit, playbook, "-e", f"npufleet_report_file={fleet}/report.html"]
    return ansible_playbook(fleet, *arguments, *options, PATH=f"{fleet}/bin:{os.environ['PATH']}")


def results(fleet: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in (fleet / "results").iterdir()}


def test_one_host_that_fails_leaves_the_others_their_proof(fleet: Path) -> None:
    (fleet / "results").mkdir(exist_ok=True)
    (fleet / "results/away.json").write_text('{"host": "away", "checks": [{"ok": true}]}')
    run = play(fleet)
    # Ansible's own code for a host out of reach, which is more than one that failed.
    assert run.returncode == 4, run.stdout + run.stderr
    found = results(fleet)
    # No file of an earlier run speaks for a host that nobody could ask: its own says why.
    away = found.pop("away")
    assert (away["checks"], "Connection refused" in away["msg"]) == ([], True), away
    assert sorted(found) == ["down", "right", "wrong"]
    assert {host: [check["ok"] for check in result["checks"]].count(True) for host, result in found.items()} == {
        "right": 22,
        "wrong": 21,
        "down": 11,
    }
    assert all(len(result["checks"]) == 22 and result["host"] == host for host, result in found.items())
    (wrong,) = [check for check in found["wrong"]["checks"] if not check["ok"]]
    assert wrong["name"] == "digits/http/largest batch"
    assert wrong["why"].startswith("OUTPUT__0: label is [0, 1, 7, 3], expected [0, 1, 2, 3]; OUTPUT__0: ")
    assert found["right"]["msg"] == "right: 22 of 22 checks passed"
    assert len(found["right"]["checks"][0]["image"]) == 64
    assert "msg: 'right: 22 of 22 checks passed'" in run.stdout
    assert (
        "wrong: 21 of 22 checks passed\n  - digits/http/largest batch: OUTPUT__0: label is [0, 1, 7, 3]" in run.stdout + run.stderr
    )
    assert "down: 11 of 22 checks passed\n  - digits/http/digit 0: no Triton answers http at 127.0.0.1:9" in run.stdout + run.stderr
    # A failure is its message.
    assert "protocol:" not in run.stdout
    assert re.findall(r"^(\w+) +: .*failed=(\d)", run.stdout, re.MULTILINE) == [
        ("away", "0"),
        ("down", "1"),
        ("right", "0"),
        ("wrong", "1"),
    ]
    assert re.findall(r"changed=(\d)", run.stdout) == ["0"] * 4


@pytest.mark.parametrize(
    ("listens", "asked"),
    [
        # As the example inventory has it
        ("{{ ansible_host }}", "127.0.0.3:9"),
        ("::", "[::1]:9"),
        ("", "127.0.0.1:9"),
    ],
)
def test_the_proof_asks_where_the_server_listens(fleet: Path, listens: str, asked: str) -> None:
    given = {"triton_server_listen_address": listens, "ansible_host": "127.0.0.3"}
    run = play(fleet, "-e", json.dumps(given), limit="down")
    assert f"down: 11 of 22 checks passed\n  - digits/http/digit 0: no Triton answers http at {asked}" in run.stdout + run.stderr


def test_variables_of_another_type_are_refused_before_anything_is_asked(fleet: Path) -> None:
    models = [{"name": "digits", "hosts": "right"}]
    given = {"triton_models": models, "inference_check_golden_dir": "/a", "npufleet_no_proxy": "a,b"}
    (fleet / "ran").unlink(missing_ok=True)
    run = play(fleet, "-e", json.dumps(given), limit="right")
    assert run.returncode == 2, run.stdout + run.stderr
    said = results(fleet)["right"]["msg"].splitlines()
    assert said[0] == "right: no request was sent:"
    assert [line.split(" is ")[0] for line in said[1:]] == [
        "  - inference_check_golden_dir",
        "  - npufleet_no_proxy",
        "  - triton_models[digits].hosts",
    ]
    assert not (fleet / "ran").exists()


def test_hosts_ask_different_rows(fleet: Path) -> None:
    play(fleet, limit="right,wrong")
    first = {host: result["checks"][0]["image"] for host, result in results(fleet).items() if host in ("right", "wrong")}
    assert first["right"] != first["wrong"]


def test_a_host_that_passes_ends_with_0_also_in_check_mode(fleet: Path) -> None:
    (fleet / "results/right.json").unlink(missing_ok=True)
    run = play(fleet, "--check", "--diff", "-v", limit="right")
    assert run.returncode == 0, run.stdout + run.stderr
    # Results are shown, the rows that were sent are for reports alone.
    assert ("label: 0" in run.stdout, "image:" in run.stdout) == (True, False)
    assert len(results(fleet)["right"]["checks"]) == 22
    assert "right: 22 of 22 checks passed" in run.stdout


def test_a_wrong_label_of_a_site_fails_and_a_right_one_passes(fleet: Path, tmp_path: Path) -> None:
    text = (ROOT / "files/checks/digits.yml").read_text()
    (tmp_path / "digits.yml").write_text(text.replace("          0, 1, 2,", "          7, 1, 2,", 1))
    run = play(fleet, "-e", json.dumps({"inference_check_checks_dir": [str(tmp_path)]}), limit="right")
    assert run.returncode == 2
    assert [check["name"] for check in results(fleet)["right"]["checks"] if not check["ok"]] == ["digits/http/digit 0"]
    assert "OUTPUT__0: label is 0, expected 7" in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"inference_check_image": "gone:1"}, "right: image gone:1 is not on the host"),
        (
            {"npufleet_lock_file": "/nowhere"},
            "right: no request was sent:\n  - image is empty, expected the image that .npufleet.lock.json has for the release row",
        ),
        (
            {"triton_models": [{"name": "digits"}, {"name": "words"}]},
            "right: 22 of 23 checks passed\n  - words/check file: the check file is missing, expected ",
        ),
        ({"inference_check_timeout": "soon"}, "inference_check_timeout"),
    ],
)
def test_what_keeps_a_host_from_its_proof(fleet: Path, variables: dict[str, Any], said: str) -> None:
    run = play(fleet, "-e", json.dumps(variables), limit="right")
    assert run.returncode == 2
    assert said in run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_a_malformed_file_is_refused_before_anything_is_sent(fleet: Path, tmp_path: Path) -> None:
    (tmp_path / "digits.yml").write_text("model: digits\nmodels: 1\nchecks: []\n")
    (fleet / "ran").write_text("")
    run = play(fleet, "-e", json.dumps({"inference_check_checks_dir": [str(tmp_path)]}), limit="right")
    assert run.returncode == 2
    for words in (
        "models is an unknown key, expected one of model, golden, checks",
        "checks is [], expected a list that is not empty",
    ):
        assert f"  - {tmp_path}/digits.yml: {words}" in run.stdout + run.stderr
    assert (fleet / "ran").read_text() == ""
    assert (results(fleet)["right"]["checks"], "no request was sent" in results(fleet)["right"]["msg"]) == ([], True)


def test_a_model_that_need_not_be_proven_is_named(fleet: Path) -> None:
    variables = {"inference_check_require_checks": False, "triton_models": [{"name": "digits"}, {"name": "words"}]}
    run = play(fleet, "-e", json.dumps(variables), limit="right")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "right: models without a check file are not proven: words" in run.stdout + run.stderr


def test_a_model_whose_loads_are_left_out_is_not_proven(fleet: Path, tmp_path: Path) -> None:
    load = {"name": "fast", "protocols": ["http"], "latency": {"requests": 100, "p99_ms": 1000}}
    load["inputs"] = {"INPUT__0": {"generated": {}, "dtype": "FP32", "shape": [1, 64]}}
    (tmp_path / "digits.yml").write_text(yaml.safe_dump({"model": "digits", "checks": [load]}))
    given = {"inference_check_checks_dir": [str(tmp_path)], "inference_check_latency": False}
    run = play(fleet, "-e", json.dumps(given), limit="right")
    assert run.returncode == 2, run.stdout + run.stderr
    assert "digits/checks: no check ran: all checks of its file are load tests" in run.stdout + run.stderr
    assert [check["ok"] for check in results(fleet)["right"]["checks"]] == [False]


def test_tls_and_key_reach_the_client_and_no_output(fleet: Path, tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    files = {"ca": tls["ca"], "cert": tls["client"], "key": tls["client_key"]}
    secure = {"inference_check_http_tls": files, "inference_check_headers": {"triton-key": "key-of-the-api"}}
    run = play(fleet, "-vvv", "-e", json.dumps({"npufleet_http_port": 6, **secure}), limit="right")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "right: 22 of 22 checks passed" in run.stdout
    said = run.stdout + run.stderr + (fleet / "ran").read_text() + (fleet / "results/right.json").read_text()
    # Ansible shows what is given on its own command line.
    said = said.replace(json.dumps({"npufleet_http_port": 6, **secure}), "")
    assert ("PRIVATE KEY" in said, "key-of-the-api" in said) == (False, False)
    run = play(fleet, "-e", json.dumps({"npufleet_http_port": 6, **secure, "inference_check_headers": {}}), limit="right")
    assert run.returncode == 2
    run = play(fleet, "-e", json.dumps({"inference_check_grpc_tls": {"ca": "/none", "cert": "/none"}}), limit="right")
    assert run.returncode == 2
    assert "right: no request was sent:\n  - grpc_tls has only one of cert and key, expected both" in run.stdout + run.stderr


def test_checks_are_kept_by_the_play_as_the_concern_wants_them(fleet: Path, tmp_path: Path) -> None:
    """The tasks of the role hand the digest on; here they are one task."""
    task = {
        "image": "image:1",
        "models": ["digits"],
        "latency": False,
        "keep": {"path": str(tmp_path / "checks.json"), "digest": "d1"},
    }
    tasks = [{"name": "Keep", "npufleet.triton.inference_check": task}]
    (tmp_path / "keep.yml").write_text(yaml.safe_dump([{"hosts": "right", "gather_facts": False, "tasks": tasks}]))
    (fleet / "ran").write_text("")
    run = play(fleet, playbook=tmp_path / "keep.yml", limit="right")
    assert (run.returncode, re.findall(r"changed=(\d)", run.stdout)) == (0, ["1"]), run.stdout + run.stderr
    assert (fleet / "ran").read_text() == ""
    head, body = (tmp_path / "checks.json").read_bytes().split(b"\n", 1)
    assert json.loads(head)["checks"] == "d1"
    document = json.loads(body)["document"]
    assert (document["host"], document["latency"], document["no_check_file"]) == ("right", False, [])
    assert [check["model"] for check in document["checks"]] == ["digits"]
    run = play(fleet, playbook=tmp_path / "keep.yml", limit="right")
    assert re.findall(r"changed=(\d)", run.stdout) == ["0"]


def test_the_client_may_print_a_picture_with_each_of_many_requests() -> None:
    checks = [{"name": f"m/http/row {number}", "ok": True, "why": "", "picture": "A" * 16384} for number in range(1100)]
    done = subprocess.CompletedProcess(["docker"], 0, "Welcome\n" + json.dumps({"checks": checks}) + "\n", "")
    assert check_client._results(done, "image x") == checks
