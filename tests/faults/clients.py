"""Clients that send requests to every model of every server without a pause, and judge the answers."""

from __future__ import annotations

import bisect
import operator
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

# Seconds from an answer to the next request, and the longest time in seconds for an answer, even on a slow machine
PAUSE, PATIENCE = 0.3, 30.0
# The inputs of a request, and a function that judges its answer: it returns (edition, what is wrong or "")
Asked = tuple[list[triton.InferInput], Callable[[triton.InferResult], tuple[int, str]]]
# Texts that no client should see: paths of the store, and code of a model
INSIDE = re.compile(r"/var/lib/|/opt/|Traceback|File \"|\.py\b")


class Sample(NamedTuple):
    """One request: its begin and its end, and either the edition of a right answer, or what was wrong, or the error."""

    began: float
    ended: float
    edition: int | None = None
    wrong: str = ""
    error: str = ""

    @property
    def good(self) -> bool:
        return not self.wrong and not self.error


def doubling(number: float) -> Asked:
    """Return a request to a model of models/, which has to double a number."""
    x = triton.InferInput("X", [1, 1], "FP32")
    x.set_data_from_numpy(np.array([[number]], np.float32))

    def judge(answer: triton.InferResult) -> tuple[int, str]:
        y = answer.as_numpy("Y")
        right = y.shape == (1, 1) and y[0, 0] == number * 2
        return int(answer.as_numpy("EDITION")[0, 0]), "" if right else f"{y.tolist()} for {number}"

    return [x], judge


class Client(threading.Thread):
    """A thread that sends requests to one model of one server, over a separate connection, until it is stopped."""

    def __init__(self, url: str, model: str, request: Callable[[int], Asked], pause: float) -> None:
        super().__init__(daemon=True)
        self.url, self.model, self.request, self.pause = url, model, request, pause
        self.samples: list[Sample] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            with triton.InferenceServerClient(self.url) as client:
                while not self.stopped.wait(self.pause):
                    number += 1
                    self.samples.append(self.sample(client, number))
                    if self.samples[-1].error:
                        # The client opens a new connection, because a late answer on this one would belong to another request.
                        break

    def sample(self, client: triton.InferenceServerClient, number: int) -> Sample:
        inputs, judge = self.request(number)
        began = time.monotonic()
        try:
            edition, wrong = judge(client.infer(self.model, inputs, client_timeout=PATIENCE))
        except InferenceServerException as error:
            return Sample(began, time.monotonic(), error=f"{type(error).__name__}: {error}")
        return Sample(began, time.monotonic(), edition, wrong)


# The samples of a client are in the order of this time.
sent = operator.attrgetter("began")


class Heard:
    """The samples of one client in a span of time."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = list(samples)

    @property
    def editions(self) -> set[int | None]:
        return {sample.edition for sample in self.samples if sample.good}

    @property
    def errors(self) -> list[str]:
        return [sample.error for sample in self.samples if sample.error]

    @property
    def wrong(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.wrong]


class Clients:
    """Clients for each model of each server. `urls` is {mode: gRPC address}, `requests` is {model: function for its requests}."""

    def __init__(self, urls: dict[str, str], requests: dict[str, Callable[[int], Asked]], pause: float = PAUSE) -> None:
        self.each = {
            (mode, model): Client(url, model, request, pause) for mode, url in urls.items() for model, request in requests.items()
        }

    def __enter__(self) -> Clients:
        for client in self.each.values():
            client.start()
        return self

    def __exit__(self, *_error: object) -> None:
        for client in self.each.values():
            client.stopped.set()
        for client in self.each.values():
            client.join()

    def heard(self, mode: str, model: str, began: float, ended: float) -> Heard:
        """Return the samples of the requests that were sent in a span of time."""
        samples = self.each[mode, model].samples
        first = bisect.bisect_left(samples, began, key=sent)
        return Heard(samples[first : bisect.bisect_right(samples, ended, first, key=sent)])

    def answered(self, mode: str, model: str, since: float, edition: int | None = None) -> bool:
        """Return True if the last request since a time had a right answer, of the given edition if any."""
        samples = self.heard(mode, model, since, time.monotonic()).samples
        return bool(samples) and samples[-1].good and edition in (None, samples[-1].edition)
