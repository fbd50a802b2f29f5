"""Model `text` with Triton's utilities played: templates, lengths in characters, and errors that are their sender's alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import served
from ansible_collections.npufleet.triton.plugins.module_utils.inference import judge, questions
from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import unpack_check
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import check_files, inputs
from helpers import ROOT, fleet
from manifests import manifest_of, parse_config

MODEL = ROOT / "model_repository/text"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model, loaded."""
    module = served.module_of("text", monkeypatch, triton_string_to_numpy={"TYPE_INT32": np.int32}.__getitem__)
    return served.start(module, served.config_of("text"), served.REPOSITORY / "text")


def request(texts: list[bytes], template: bytes = b"{text}", limit: int = 0) -> dict[str, np.ndarray]:
    return {"TEXT": np.array(texts, object), "TEMPLATE": np.array([template], object), "LIMIT": np.array([limit], np.int32)}


def answer(model: Any, *asked: Any) -> tuple[list[str], list[int]]:
    (response,) = model.execute([request(*asked)])
    assert response.error is None, response.error.message
    result, length = response.tensors
    assert (result.name(), length.name(), length.as_numpy().dtype) == ("RESULT", "LENGTH", np.int32)
    return [entry.decode() for entry in result.as_numpy()], length.as_numpy().tolist()


def test_every_text_takes_its_place(model: Any) -> None:
    texts = ["세계".encode(), b"", "🙂".encode()]
    assert answer(model, texts, "안녕, {text}! {text}".encode()) == (["안녕, 세계! 세계", "안녕, ! ", "안녕, 🙂! 🙂"], [10, 6, 8])


def test_braces_of_a_text_are_its_own(model: Any) -> None:
    assert answer(model, [b"{0} {x} {text}"], b"<{text}>{y}") == (["<{0} {x} {text}>{y}"], [19])


def test_results_are_cut_by_characters_not_bytes(model: Any) -> None:
    assert answer(model, ["가나다".encode(), b"a"], b"{text}", 2) == (["가나", "a"], [2, 1])


def test_no_text_is_no_result(model: Any) -> None:
    assert answer(model, []) == ([], [])


def test_one_bad_request_does_not_fail_its_neighbours(model: Any) -> None:
    good, bad, again = model.execute([request([b"a"]), request([b"a", b"caf\xe9"], b"\xff{text}", -1), request([b"b"])])
    assert good.error is None and again.tensors[0].as_numpy().tolist() == [b"b"]
    assert bad.error.code == served.TritonError.INVALID_ARG
    reasons = [
        "TEXT[1] is not UTF-8: byte 3 is 0xe9",
        "TEMPLATE[0] is not UTF-8: byte 0 is 0xff",
        "LIMIT is -1, expected 0 for none, or more",
    ]
    assert bad.error.message == "text: " + "; ".join(reasons)


def test_a_template_without_a_place_is_refused(model: Any) -> None:
    (response,) = model.execute([request([b"a"], b"nothing")])
    assert response.error.message == "text: TEMPLATE lacks {text}, which each text replaces"


def test_request_that_would_become_too_long_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    module = served.module_of("text", monkeypatch, triton_string_to_numpy={"TYPE_INT32": np.int32}.__getitem__)
    config = served.config_of("text")
    assert config.parameters["max_characters"].string_value == "1000000"
    config.parameters["max_characters"].string_value = "20"
    small = served.start(module, config, served.REPOSITORY / "text")
    assert answer(small, ["가".encode() * 5, b"abcd"], b"{text}-{text}") == (["가가가가가-가가가가가", "abcd-abcd"], [11, 9])
    (response,) = small.execute([request([b"abcdef", b"abcd"], b"{text}-{text}", 1)])
    assert response.error.message == "text: RESULT would have 22 characters before it is cut, expected at most 20"
    # 170 GB, of ten megabytes
    (response,) = small.execute([request([b"x" * 100_000] * 100, b"{text}" * 17_000)])
    assert response.error.code == served.TritonError.INVALID_ARG
    assert "RESULT would have 170000000000 characters" in response.error.message
    config.parameters["max_characters"].string_value = "0"
    with pytest.raises(served.TritonModelException, match="model text: max_characters is '0', expected a number of at least 1"):
        served.start(module, config, served.REPOSITORY / "text")


def test_golden_data_are_this_models(model: Any) -> None:
    """What the check file expects of every request that has to be answered is what the model answers."""
    document = check_files.read_checks(["text"], [inputs.CHECKS_DIR], [inputs.GOLDEN_DIR], 0)
    assert document["no_check_file"] == []
    proven = 0
    for raw in document["checks"][0]["checks"]:
        check = unpack_check("text", raw)
        if check.error is None:
            sent = check.question(questions.Request("x", "http", None, None))
            (response,) = model.execute([{name: array for name, (_dtype, array) in sent.inputs.items()}])
            found = {}
            for tensor in response.tensors:
                array = tensor.as_numpy()
                found[tensor.name()] = questions.Output(questions.triton_dtype(array), list(array.shape), array)
            assert judge.judge(found, questions.Request("x", "http", None, None), check.expect) == []
            proven += 1
    assert proven == 2


def test_it_can_be_placed() -> None:
    """The manifest takes it as it is, for a host of any NPUs."""
    found = manifest_of({"name": "text"}, fleet(npufleet_npus=4))
    config = parse_config(found["contents"]["config.pbtxt"].decode(), "config.pbtxt")
    assert [(group.kind, group.count) for group in config.instance_group] == [(config.instance_group[0].KIND_CPU, 1)]
    assert (config.max_batch_size, len(config.input), len(config.output)) == (0, 3, 2)
    assert (found["versions"], sorted(found["files"])) == (["1"], ["1/model.py", "config.pbtxt"])
