"""The part of the backend that uses the NPU: it loads the compiled file, and runs the batches that the stub submits.

A stub is the Python process in which Triton runs a model instance. The worker runs in its own process, which the stub can kill if
a call of the SDK never returns, or in a thread of the stub. A bucket is one set of shapes that the file was compiled for.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from . import compiled
from .compiled import memory_dtype
from .errors import Fault, first_line, vendor
from .sdk import SDK, Run, sdk_array
from .shared import ENDED, START, Views, allocate, attach

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


class Worker:
    """A loaded model. `job` is {"config", "path", "instance", "timeout_s"}, which model.py creates."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.npu = "?"
        self.npus: List[int] = []
        config = job["config"]
        sdk = SDK()
        npus_per_instance = compiled.number(config, "npus_per_instance", 1)
        named = compiled.parameter(config, "npus")
        count = sdk.count()
        usable = compiled.numbers(named, "npus") if named else list(range(count))
        self.npus = compiled.npus_of(job["instance"], usable, npus_per_instance)
        self.npu = ",".join(str(npu) for npu in self.npus)
        if max(self.npus) >= count:
            raise Fault(f"parameter npus names NPU {max(self.npus)}, {count} are visible")
        try:
            inspected = sdk.inspect(job["path"])
        except Exception as error:  # the vendor's errors have no common base
            raise Fault(first_line(error)) from error
        facts = compiled.facts_of(job["path"], config, inspected)
        per_bucket = sdk.per_bucket(compiled.parameter(config, "runtime_per_bucket"))
        wrong = compiled.sdk_mismatches(facts, sdk.version)
        wrong += compiled.card_mismatches(facts, {npu: sdk.card(npu) for npu in self.npus}, npus_per_instance)
        try:
            self.plan = compiled.plan_of(config, facts)
        except Fault as error:
            wrong.append(str(error))
        if wrong:
            raise Fault("; ".join(wrong))
        try:
            self._runs = sdk.load(job["path"], len(facts.buckets), self.npus, job["timeout_s"], per_bucket)
            if not facts.buckets[0].outputs:
                buckets = [self._run_for_outputs(run, bucket) for run, bucket in zip(self._runs, facts.buckets)]
                self.plan = compiled.plan_of(config, replace(facts, source="a test run", buckets=tuple(buckets)))
        except Exception as error:  # the vendor's errors have no common base
            raise vendor(error, self.npu) from error
        self._running = threading.Lock()
        self.descriptor = allocate(self.plan)
        self.memory = attach(os.dup(self.descriptor))
        self.source = f"{facts.source}, as {facts.flaw}" if facts.flaw else facts.source
        # Inputs that the stub passes by reference. The list stays empty if this worker runs in its own process.
        self.passed: List[Sequence[np.ndarray]] = []

    def _run_for_outputs(self, run: Run, bucket: compiled.Bucket) -> compiled.Bucket:
        """Run a bucket with zeros as inputs, and return the bucket with the outputs of that run."""
        outputs = run([sdk_array(np.zeros(tensor.shape, memory_dtype(tensor.dtype)), tensor.dtype) for tensor in bucket.inputs])
        return replace(bucket, outputs=tuple(compiled.Tensor(None, tensor.shape, tensor.dtype.name) for tensor in outputs))

    def hello(self) -> Dict[str, Any]:
        """Return the message to the stub after a successful load."""
        return {"plan": self.plan.as_dict(), "npu": self.npu, "source": self.source}

    def close(self) -> None:
        """Wait at most one second for the end of the current run."""
        self._running.acquire(timeout=1)

    def serve(self, channel: socket.socket) -> None:
        """Run each batch that the stub submits, until the stub closes its end of the channel."""
        views = Views(self.memory, self.plan)
        while True:
            try:
                message = channel.recv(START.size)
            except OSError:
                return
            if not message:
                return
            (bucket,) = START.unpack(message)
            began = time.monotonic()
            try:
                self._run(bucket, self.passed.pop() if self.passed else views.inputs[bucket], views.outputs[bucket])
                answer = ENDED.pack(0, began, time.monotonic())
            except Exception as error:  # an uncaught exception would end the thread
                fault = vendor(error, self.npu)
                details = {"message": str(fault), "kind": fault.kind, "trace": traceback.format_exc()[-16000:]}
                answer = ENDED.pack(1, began, time.monotonic()) + json.dumps(details).encode()
            try:
                channel.send(answer)
            except OSError:
                return

    def _run(self, bucket: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run the inputs of a bucket and copy the results into its outputs."""
        with self._running:
            results = self._runs[bucket](
                [sdk_array(value, entry.dtype) for value, entry in zip(inputs, self.plan.buckets[bucket].inputs)]
            )
        expected = self.plan.buckets[bucket].outputs
        if len(results) != len(expected):
            raise Fault(f"the compiled file returned {len(results)} outputs, expected {len(expected)}")
        for entry, result, into in zip(expected, results, outputs):
            if result.dtype.name != entry.dtype or result.shape != into.shape:
                kinds = f"{result.dtype}{list(result.shape)}", f"{entry.dtype}{list(into.shape)}"
                raise Fault(f"output {entry.name} of the compiled file is {kinds[0]}, expected {kinds[1]}")
            np.copyto(sdk_array(into, entry.dtype), result)


def refusal(error: BaseException) -> Dict[str, Any]:
    """Return the message to the stub if a worker could not be created."""
    if isinstance(error, Fault):
        # Only an error of the SDK, which is the cause of the Fault, needs a traceback.
        trace = traceback.format_exc()[-16000:] if error.__cause__ else ""
        return {"refused": str(error), "kind": error.kind, "trace": trace}
    return {"refused": f"{type(error).__name__}: {first_line(error)}", "kind": "internal", "trace": traceback.format_exc()[-16000:]}


def main(arguments: Sequence[str]) -> None:
    """Run the device process.

    The first argument has the descriptors of two sockets, separated by a comma: the control channel and the channel for batches.
    The second argument is the PID of the stub.
    """
    control, channel = (socket.socket(fileno=int(part)) for part in arguments[0].split(","))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NAME, b"rbln-device", 0, 0, 0)
    if os.getppid() != int(arguments[1]):
        os._exit(1)  # The stub ended before prctl() took effect.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the stub ends this process
    try:
        worker = Worker(json.loads(control.recv(1 << 20)))
    except BaseException as error:
        control.send(json.dumps(refusal(error)).encode())
        sys.exit(1)
    threading.Thread(target=worker.serve, args=(channel,), name="runs", daemon=True).start()
    rights = array.array("i", [worker.descriptor])
    control.sendmsg([json.dumps(worker.hello()).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(worker.descriptor)
    control.recv(1)  # returns when the stub closes its end, because the stub sends no further message
    worker.close()
    os._exit(0)  # Threads of the vendor may still run.
