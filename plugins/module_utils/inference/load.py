"""Loads: clients that ask at the same time, and the limits that their times are held against."""

from __future__ import annotations

import itertools
import math
import threading
import time
from typing import Any, Dict, List, Mapping, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import Check, judge_answer, service_of
from ansible_collections.npufleet.triton.plugins.module_utils.inference.errors import reason
from ansible_collections.npufleet.triton.plugins.module_utils.inference.questions import Request, Result

# Percentiles that a load is judged by
PERCENTILES = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}
# Cores of a client that measures itself and no longer the server: Python runs one thread at a time.
SATURATED = 0.9


class Load:
    """A load: clients that ask one after the other, each in a thread of its own, as tritonclient's HTTP needs it."""

    def __init__(self, document: Mapping[str, Any], check: Check, asked: Sequence[Request]) -> None:
        self.document, self.check, self.asked, self.limits = document, check, asked, check.latency or {}
        self.ms: List[float] = []
        self.why: List[str] = []
        self.seconds = self.cores = self.began = self.cpu = 0.0
        self._numbers = itertools.count()
        self._ready = threading.Barrier(self.limits["clients"], self._begin)

    def _begin(self) -> None:
        self.began, self.cpu = time.monotonic(), time.process_time()

    def run(self) -> None:
        """Until it is over, or a request failed."""
        threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(self.limits["clients"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - self.began
        self.cores = (time.process_time() - self.cpu) / self.seconds if self.began else 0.0

    def _client(self, number: int) -> None:
        try:
            request = self.asked[number % len(self.asked)]
            question = self.check.question(request)
            service = service_of(request.protocol, self.document)
            # The first answer is judged and not counted: it has the connection in it.
            answer = service.infer(question, self.check.timeout)
            self._fail([reason(answer.error)] if answer.error is not None else judge_answer(self.check, request, answer))
            self._ready.wait()
            while self._goes_on():
                answer = service.infer(question, self.check.timeout)
                if answer.error is not None:
                    self._fail([f"request {len(self.ms) + 1} of the load failed: {reason(answer.error)}"])
                    return
                self.ms.append(answer.ms)
        except threading.BrokenBarrierError:
            # Another one has said why
            return
        except Exception as error:
            self._fail([reason(error)])

    def _fail(self, reasons: Sequence[str]) -> None:
        self.why += [more for more in reasons if more not in self.why]
        if reasons:
            self._ready.abort()

    def _goes_on(self) -> bool:
        if self.why:
            return False
        if "requests" in self.limits:
            return next(self._numbers) < self.limits["requests"]
        return time.monotonic() - self.began < self.limits["seconds"]

    def figures(self) -> Dict[str, Any]:
        """What was measured; a batch counts as its rows."""
        ordered = sorted(self.ms)
        rows = len(self.asked[0].rows or [0])
        found = {name: round(percentile(ordered, share), 2) for name, share in PERCENTILES.items()}
        return {
            "clients": self.limits["clients"],
            "requests": len(ordered),
            "seconds": round(self.seconds, 2),
            **found,
            "max_ms": round(ordered[-1], 2),
            "infer_per_s": round(len(ordered) * rows / self.seconds, 1),
            "client_cores": round(self.cores, 2),
        }


def percentile(ordered: Sequence[float], share: int) -> float:
    """The smallest value that so many percent of the values do not exceed: one that was measured, none between two."""
    return ordered[max(math.ceil(len(ordered) * share / 100), 1) - 1]


def ask_latency(document: Mapping[str, Any], check: Check, asked: Sequence[Request], result: Result) -> None:
    """Ask for a while with several clients at once, and hold what it took against the check's limits. `ms` is the median."""
    load = Load(document, check, asked)
    load.run()
    why = load.why
    if not why and not load.ms:
        why = [f"no request ended within {load.limits.get('seconds', 0):g} s"]
    if load.ms:
        result["latency"] = figures = load.figures()
        result["ms"] = figures["p50_ms"]
        why = why or judge_latency(figures, load.limits)
    result["ok"], result["why"] = not why, "; ".join(why)


def judge_latency(figures: Mapping[str, Any], limits: Mapping[str, Any]) -> List[str]:
    """Every limit that a load missed."""
    of = "{} client{}, {} requests".format(figures["clients"], "s" * (figures["clients"] > 1), figures["requests"])
    why = []
    for name in PERCENTILES:
        if name in limits and figures[name] > limits[name]:
            why.append(f"{name[:-3]} found {figures[name]:g} ms, wanted at most {limits[name]:g} ms, {of}")
    if "infer_per_s" in limits and figures["infer_per_s"] < limits["infer_per_s"]:
        why.append("infer/s found {:g}, wanted at least {:g}, {}".format(figures["infer_per_s"], limits["infer_per_s"], of))
    if why and figures["client_cores"] >= SATURATED:
        why.append(f"the client itself used {figures['client_cores']:g} cores, so its own work is in these figures: ask with fewer")
    return why
