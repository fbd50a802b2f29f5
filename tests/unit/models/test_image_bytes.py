"""Model `image_bytes`: the bytes of an image as they came, zeros at its end too, and what is too long refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from served import REPOSITORY, answers, config_of, module_of, start


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    return start(module_of("image_bytes", monkeypatch), config_of("image_bytes"), REPOSITORY / "image_bytes")


def ask(model: Any, *requests: bytes) -> list[Any]:
    rows = [np.frombuffer(request, np.uint8)[None] for request in requests]
    return list(model.execute([{"IMAGE": row} for row in rows]))


def test_bytes_go_on_unchanged(model: Any) -> None:
    for encoded, response in zip((b"\x89PNG", b"\0\xff\0\0"), ask(model, b"\x89PNG", b"\0\xff\0\0")):
        found = answers(response)["ENCODED"]
        assert (found.dtype, found.shape) == (np.object_, (1, 1))
        assert found[0, 0] == encoded


def test_rows_of_a_batch_are_elements_of_it(model: Any) -> None:
    (response,) = model.execute([{"IMAGE": np.array([[1, 2], [3, 0]], np.uint8)}])
    assert answers(response)["ENCODED"].tolist() == [[b"\x01\x02"], [b"\x03\x00"]]


def test_what_is_too_long_is_refused_alone(model: Any) -> None:
    model.max_bytes = 4
    long, short = ask(model, b"12345", b"1234")
    assert long.error.message == "image_bytes: the image has 5 bytes, expected at most 4"
    assert long.error.code == "invalid_arg"
    assert answers(short)["ENCODED"].tolist() == [[b"1234"]]


@pytest.mark.parametrize("given", ["", "-1", "0", "a lot", "1.5"])
def test_a_limit_that_is_none_keeps_it_from_loading(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    config = config_of("image_bytes")
    config.parameters["max_bytes"].string_value = given
    module = module_of("image_bytes", monkeypatch)
    with pytest.raises(module.pb_utils.TritonModelException, match="expected a whole number above 0"):
        start(module, config, REPOSITORY / "image_bytes")


def test_its_limit_is_that_of_the_step_behind_it() -> None:
    limits = {config_of(name).parameters["max_bytes"].string_value for name in ("image_bytes", "image_decode")}
    assert len(limits) == 1
