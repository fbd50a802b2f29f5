"""Answers after execute() returned, as Triton 24.10 lets a model do: what runs when, in which order, and how much waits."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from played import NPU, Families, Serve, TritonError, is_answer, request, requests, until

pytestmark = pytest.mark.parametrize("release", ["24.10"], indirect=True)


class Gate(NPU):
    """An NPU whose runs end when they are let go, one by one, in the order in which their requests came."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.turn = threading.Condition()
        self.open = 0
        self.ended: list[float] = []
        self.closed = False
        self.answer = self._answer

    def _answer(self, a: np.ndarray, b: np.ndarray) -> Any:
        if self.closed:
            mine = float(a[0, 0])
            with self.turn:
                assert self.turn.wait_for(lambda: self.open and mine == self._first(), timeout=300)
                self.open -= 1
                self.ended.append(mine)
                self.turn.notify_all()
        return b * b, a * 2

    def _first(self) -> float:
        """What the run begins with whose turn it is: two that are under way may reach the gate in any order."""
        under_way = sorted(float(a[0, 0]) for a, _b in list(self.runs))
        for entry in self.ended:
            under_way.remove(entry)
        return under_way[0]

    def close(self) -> None:
        """From here on, runs wait."""
        self.closed = True

    def let(self, runs: int) -> None:
        with self.turn:
            self.open += runs
            self.turn.notify_all()

    def sizes(self) -> list[int]:
        """Rows of the runs that began, the largest of each run's requests: padding is zeros."""
        return [int((a[:, 0] != 0).sum()) for a, _b in self.runs]


@pytest.fixture
def gate(serve: Serve) -> tuple[Gate, Any]:
    npu = Gate()
    model = serve(npu)
    npu.close()
    return npu, model


class TestFlow:
    def test_execute_returns_before_the_answer(self, gate: tuple[Gate, Any]) -> None:
        npu, model = gate
        entry = request(1)
        assert model.execute([entry]) is None
        until(lambda: npu.runs)
        assert not entry.sender.responses
        npu.let(1)
        until(lambda: entry.sender.responses)
        assert is_answer(entry.sender.response, entry)

    def test_a_busy_npu_has_the_next_batch_and_the_rest_gathers(self, gate: tuple[Gate, Any]) -> None:
        npu, model = gate
        asked = requests(*[1] * 8)
        model.execute(asked[:1])  # idle: at once, alone
        until(lambda: len(npu.runs) == 1)
        model.execute(asked[1:3])  # not full yet: waits for more
        model.execute(asked[3:5])  # full: goes behind the one that runs
        until(lambda: len(npu.runs) == 2)
        model.execute(asked[5:])  # gathers
        assert npu.sizes() == [1, 4]
        npu.let(1)
        until(lambda: asked[0].sender.responses)
        assert len(npu.runs) == 2, "three rows are not full, and one batch is behind"
        npu.let(2)
        until(lambda: all(question.sender.responses for question in asked))
        assert npu.sizes() == [1, 4, 3]
        assert all(is_answer(question.sender.response, question) for question in asked)
        order = [question.sender.at for question in asked]
        assert order == sorted(order)

    def test_what_waits_is_bounded(self, gate: tuple[Gate, Any]) -> None:
        """Two batches with the NPU and one behind them; more stays in Triton's queue, whose limits and timeouts count."""
        npu, model = gate
        asked = requests(*[4] * 4)
        for question in asked[:3]:
            model.execute([question])
        blocked = threading.Thread(target=model.execute, args=([asked[3]],), daemon=True)
        blocked.start()
        until(lambda: len(npu.runs) == 2)
        blocked.join(0.2)
        assert blocked.is_alive() and len(npu.runs) == 2
        npu.let(1)
        blocked.join(300)
        assert not blocked.is_alive()
        npu.let(3)
        until(lambda: all(question.sender.responses for question in asked))
        assert all(is_answer(question.sender.response, question) for question in asked)

    def test_many_clients_get_their_own_answers(self, serve: Serve) -> None:
        """Lanes are used again and again, and never while something of theirs is under way."""
        npu = NPU()
        model = serve(npu)
        wrong = []

        def client(seed: int) -> None:
            for turn in range(60):
                entry = request(1 + (seed + turn) % 4, seed * 100 + turn)
                lock.acquire()
                model.execute([entry])
                lock.release()
                until(lambda entry=entry: entry.sender.responses)
                if not is_answer(entry.sender.response, entry):
                    wrong.append((seed, turn))

        lock = threading.Lock()  # Triton calls execute() of an instance once at a time
        clients = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
        for entry in clients:
            entry.start()
        for entry in clients:
            entry.join()
        assert wrong == []

    def test_a_model_without_a_batch(self, serve: Serve) -> None:
        npu = NPU(batches=(0,))
        model = serve(npu, batches="1", max_batch_size=0)
        asked = [type(question)({name: array[0] for name, array in question.items()}) for question in requests(*[1] * 7)]
        for question in asked:
            model.execute([question])
        until(lambda: all(question.sender.responses for question in asked))
        assert all(is_answer(question.sender.response, question) for question in asked)


class TestWhoIsGone:
    def test_a_cancelled_request_that_waited_is_not_run(self, gate: tuple[Gate, Any], backend: Any) -> None:
        npu, model = gate
        asked = requests(1, 1, 1, 1)
        model.execute(asked[:1])
        until(lambda: len(npu.runs) == 1)
        model.execute(asked[1:])
        asked[2].cancelled = True
        time.sleep(backend.CANCEL_AFTER_S)
        npu.let(2)
        until(lambda: all(question.sender.responses for question in asked))
        assert asked[2].sender.response.error.code == TritonError.CANCELLED
        assert npu.sizes() == [1, 2]
        assert all(is_answer(entry.sender.response, entry) for entry in (asked[0], asked[1], asked[3]))

    def test_a_batch_of_cancelled_requests_does_not_run_at_all(self, gate: tuple[Gate, Any], backend: Any) -> None:
        npu, model = gate
        asked = requests(1, 2)
        model.execute(asked[:1])
        until(lambda: len(npu.runs) == 1)
        model.execute(asked[1:])
        asked[1].cancelled = True
        time.sleep(backend.CANCEL_AFTER_S)
        npu.let(1)
        until(lambda: asked[1].sender.responses)
        assert asked[1].sender.response.error.code == TritonError.CANCELLED
        npu.let(1)
        later = request(1)
        model.execute([later])
        until(lambda: later.sender.responses)
        assert npu.sizes() == [1, 1]

    def test_a_client_that_is_gone_costs_its_neighbours_nothing(self, gate: tuple[Gate, Any], log: list[str]) -> None:
        npu, model = gate
        npu.let(9)
        asked = requests(1, 1, 1)
        asked[1].sender.gone = True
        model.execute(asked)
        until(lambda: asked[2].sender.responses)
        assert is_answer(asked[0].sender.response, asked[0]) and is_answer(asked[2].sender.response, asked[2])
        assert log == ["model two: an answer could not be sent: the client is gone"]


def test_what_is_counted(gate: tuple[Gate, Any], families: Families) -> None:
    npu, model = gate
    asked = requests(1, 2, 5)
    npu.let(1)
    model.execute(asked)
    until(lambda: all(question.sender.responses for question in asked))
    model.finalize()
    labels = {"model": "two", "version": "1", "npu": "0", "instance": "two_0_0"}
    found = {name: families.value(f"rbln_{name}_total", **labels) for name in ("batches", "requests", "rows", "padding_rows")}
    assert found == {"batches": 1, "requests": 2, "rows": 3, "padding_rows": 1}
    assert families.value("rbln_errors_total", kind="too_large", **labels) == families.value("rbln_errors_total") == 1
    assert families.value("rbln_device_seconds_total", **labels) > 0
    assert families.value("rbln_model_info", **labels) == 1
