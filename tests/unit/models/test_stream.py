"""Model `stream` with Triton's utilities played: as many answers as asked for, none, refusals, and what is cancelled."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import served
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import check_files, inputs
from helpers import ROOT, fleet
from manifests import manifest_of, parse_config

MODEL = ROOT / "model_repository/stream"
FINAL = 1


class Sender:
    """What a stream sends: (word, index) or an error, and the mark of its end. Breaks or is cancelled after so many."""

    def __init__(self, breaks: int | None = None, cancelled_after: int | None = None) -> None:
        self.sent: list[Any] = []
        self.ended = threading.Event()
        self.breaks, self.cancelled_after = breaks, cancelled_after

    def send(self, response: Any = None, flags: int = 0) -> None:
        assert not self.ended.is_set(), "nothing may come after the mark of the end"
        if len(self.sent) == self.breaks and not flags:
            raise RuntimeError("a path of the host")
        if response is not None and response.error is not None:
            self.sent.append((response.error.code, response.error.message))
        elif response is not None:
            self.sent.append(tuple(tensor.as_numpy()[0] for tensor in response.tensors))
        if flags == FINAL:
            self.ended.set()

    def is_cancelled(self) -> bool:
        return self.cancelled_after is not None and len(self.sent) >= self.cancelled_after


@pytest.fixture
def log() -> list[str]:
    """What the model wrote to the server's log."""
    return []


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> Iterator[Any]:
    """The model's class; what it made is unloaded at the end."""
    module = served.module_of(
        "stream",
        monkeypatch,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Logger=SimpleNamespace(log_info=log.append, log_error=log.append),
        get_input_tensor_by_name=lambda asked, name: served.tensor(name, asked.inputs[name]) if name in asked.inputs else None,
    )
    made = []

    def load(streams: str = "2", waiting: str = "8") -> Any:
        entry = module.TritonPythonModel()
        config = json.dumps({"parameters": {"streams": {"string_value": streams}, "waiting": {"string_value": waiting}}})
        entry.initialize({"model_name": "stream", "model_config": config})
        made.append(entry)
        return entry

    yield load
    for entry in made:
        entry.finalize()


def request(sender: Sender, text: str, count: int, wait: int | None = None) -> Any:
    inputs = {"TEXT": np.array([text.encode()], object), "COUNT": np.array([count], np.int32)}
    if wait is not None:
        inputs["WAIT_MS"] = np.array([wait], np.int32)
    return SimpleNamespace(inputs=inputs, get_response_sender=lambda: sender)


def answers(model: Any, text: str, count: int, wait: int | None = None, sender: Sender | None = None) -> list[Any]:
    sender = sender or Sender()
    assert model.execute([request(sender, text, count, wait)]) is None
    assert sender.ended.wait(300), "the stream has no end"
    return sender.sent


def test_words_come_in_order_over_and_over(model: Any) -> None:
    words = ["하나".encode(), "둘".encode()]
    assert answers(model(), "하나 둘", 5) == [(words[index % 2], index) for index in range(5)]


def test_streams_that_find_no_place_to_wait_are_refused_and_places_become_free(model: Any) -> None:
    """The first stream is held open by a sender that waits; each after those that may wait is refused at once."""
    go_on = threading.Event()

    class Held(Sender):
        def is_cancelled(self) -> bool:
            go_on.wait(10)
            return False

    entry = model(streams="1", waiting="2")
    running, waiting, refused = Held(), [Sender(), Sender()], Sender()
    entry.execute([request(sender, "a", 1) for sender in (running, *waiting, refused)])
    assert refused.ended.is_set() and refused.sent == [("unavailable", "stream: no more streams can wait, try again later")]
    assert not any(sender.ended.is_set() for sender in (running, *waiting))
    go_on.set()
    assert all(sender.ended.wait(10) and sender.sent == [(b"a", 0)] for sender in (running, *waiting))
    entry.streams.shutdown(wait=True)
    assert [entry.capacity.acquire(blocking=False) for _place in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(("count", "wait"), [(1_000_001, None), (2**31 - 1, 0), (3601, 1000), (2, 2_000_000)])
def test_stream_without_an_end_in_sight_is_refused(model: Any, count: int, wait: int | None) -> None:
    ((code, message),) = answers(model(), "a", count, wait)
    assert code == served.TritonError.INVALID_ARG
    assert message == f"stream: COUNT is {count} and WAIT_MS {wait or 0}, expected at most 1000000 answers and 3600 s"


def test_none_at_all_still_ends(model: Any) -> None:
    assert answers(model(), "word", 0) == []


def test_a_wrong_request_is_refused_alone_with_every_reason(model: Any) -> None:
    bad, good = Sender(), Sender()
    model().execute([request(bad, " ", -1, -2), request(good, "a", 1)])
    assert good.ended.wait(300) and bad.ended.is_set()
    assert good.sent == [(b"a", 0)]
    reasons = "TEXT has no word, expected one at least; COUNT is -1, expected 0 or more; WAIT_MS is -2, expected 0 or more"
    assert bad.sent == [(served.TritonError.INVALID_ARG, f"stream: {reasons}")]


def test_a_cancelled_stream_ends_and_says_how_far_it_came(model: Any) -> None:
    sent = answers(model(), "a", 1000, 1, Sender(cancelled_after=3))
    assert sent == [(b"a", 0), (b"a", 1), (b"a", 2), (served.TritonError.CANCELLED, "stream: cancelled after 3 of 1000")]


def test_a_cancellation_does_not_wait_for_the_next_answer(model: Any) -> None:
    sent = answers(model(), "a", 1, 3_600_000, Sender(cancelled_after=0))
    assert sent == [(served.TritonError.CANCELLED, "stream: cancelled after 0 of 1")]


def test_as_many_streams_at_once_as_there_is_room_for(model: Any) -> None:
    """Two that wait fill it; the third begins when one of them is let go of."""
    loaded = model("2")
    first, second, third = Sender(), Sender(), Sender()
    loaded.execute([request(first, "a", 1, 3_600_000), request(second, "b", 1, 3_600_000), request(third, "c", 1)])
    assert not third.ended.wait(0.2)
    first.cancelled_after = 0
    assert third.ended.wait(300) and third.sent == [(b"c", 0)]
    second.cancelled_after = 0
    assert second.ended.wait(300)


def test_a_stream_that_breaks_still_ends_and_its_sender_learns_no_path(model: Any, log: list[str]) -> None:
    sent = answers(model(), "a b", 5, sender=Sender(breaks=2))
    assert sent == [(b"a", 0), (b"b", 1), (served.TritonError.INTERNAL, "stream: RuntimeError")]
    assert "a path of the host" in log[-1]


@pytest.mark.parametrize("streams", ["0", "-1", "many", ""])
def test_a_parameter_that_is_no_number_keeps_it_from_loading(model: Any, streams: str) -> None:
    with pytest.raises(served.TritonModelException, match=f"streams is '{streams}', expected a number of at least 1"):
        model(streams)


def test_unload_waits_for_its_streams(model: Any, log: list[str]) -> None:
    loaded, sender = model(), Sender()
    loaded.execute([request(sender, "a", 3, 20)])
    loaded.finalize()
    assert sender.ended.is_set() and len(sender.sent) == 3
    assert log[-1] == "model stream: unloaded"


def test_it_can_be_placed_and_proven() -> None:
    """The manifest takes it as it is, for a host of any NPUs, and its check file has no finding."""
    found = manifest_of({"name": "stream"}, fleet(npufleet_npus=4))
    config = parse_config(found["contents"]["config.pbtxt"].decode(), "config.pbtxt")
    assert [(group.kind, group.count) for group in config.instance_group] == [(config.instance_group[0].KIND_CPU, 1)]
    assert config.model_transaction_policy.decoupled
    document = check_files.read_checks(["stream"], [inputs.CHECKS_DIR], [inputs.GOLDEN_DIR], 0)
    assert document["no_check_file"] == []
    checks = {check["name"]: check for check in document["checks"][0]["checks"]}
    # Cancelling proves something only where it is done more often than the model has room for.
    assert checks["cancelled"]["cancel"]["times"] > int(config.parameters["streams"].string_value)
