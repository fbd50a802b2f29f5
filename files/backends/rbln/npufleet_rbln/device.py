"""The part of a stub that uses an NPU: the buffers of a batch, and the device process, which is restarted if it hangs.

A stub is the Python process in which Triton runs a model instance. A bucket is one set of shapes that a file was compiled for.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .compiled import Plan
from .errors import Fault
from .shared import ENDED, START, Views, attach

# Time limit of a load. A large model over a slow link takes minutes, and a wedged card never answers.
LOAD_TIMEOUT_S = 300.0
# Pauses between attempts to restart the device process. The pause doubles each time.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
# Seconds in which a killed process has to end
END_TIMEOUT_S = 5.0
CODE = "import sys; sys.path[:] = sys.argv[3].split('\\n'); from npufleet_rbln.worker import main; main(sys.argv[1:])"


class BatchBuffers:
    """The memory of one batch, and a channel to its runner. A runner in a thread gets inputs by reference in the list `passed`."""

    def __init__(self, channel: socket.socket, views: Views, passed: Optional[List[Any]]) -> None:
        self._channel, self._passed = channel, passed
        self.inputs, self.outputs = views.inputs, views.outputs
        self.since = 0.0

    def submit(self, bucket: int) -> None:
        """Start a run of the inputs in this bucket."""
        self.since = time.monotonic()
        self._channel.send(START.pack(bucket))

    def pass_inputs(self, inputs: Sequence[np.ndarray]) -> bool:
        """Pass the inputs of the next batch without a copy. Return False if the runner is another process, which needs a copy."""
        if self._passed is None:
            return False
        self._passed[:] = [[np.asarray(tensor, order="C") for tensor in inputs]]
        return True

    def wait(self, seconds: float) -> Tuple[float, float]:
        """Wait for the run, and return when it began and ended. Raises TimeoutError after `seconds`, or Fault if the run failed."""
        self._channel.settimeout(max(0.001, seconds))
        message = self._channel.recv(1 << 16)
        if len(message) < ENDED.size:
            raise ConnectionError
        self.since = 0.0
        failed, began, ended = ENDED.unpack_from(message)
        if failed:
            raise Fault(**json.loads(message[ENDED.size :]))
        return began, ended

    def wait_until_idle(self) -> None:
        """Wait until no run is in progress, without a time limit."""
        if self.since:
            self._channel.settimeout(None)
            self._channel.recv(1 << 16)
            self.since = 0.0


class Runner:
    """The part that runs batches: a device process, which can be killed, or a thread of this process, which cannot."""

    def __init__(self, job: Mapping[str, Any], isolated: bool) -> None:
        kinds = socket.AF_UNIX, socket.SOCK_SEQPACKET
        self.control, control = socket.socketpair(*kinds)
        self._channel, channel = socket.socketpair(*kinds)
        self.process: Optional[subprocess.Popen[bytes]] = None
        self._passed: Optional[List[Any]] = None
        self._job, self._isolated = job, isolated
        self._worker_ends = [control, channel]

    def start(self) -> None:
        """Load the model. The caller has to call `end` later, also after a failure, because the process may exist."""
        hello = self._start_process() if self._isolated else self._start_thread()
        self.npu: str = hello["npu"]
        self.source: str = hello["source"]
        self.plan = Plan.from_dict(hello["plan"])
        self.buffers = BatchBuffers(self._channel, Views(self._memory, self.plan), self._passed)

    def _start_process(self) -> Dict[str, Any]:
        descriptors = [entry.fileno() for entry in self._worker_ends]
        arguments = [",".join(str(descriptor) for descriptor in descriptors), str(os.getpid()), "\n".join(sys.path)]
        self.process = subprocess.Popen([_python(), "-c", CODE, *arguments], pass_fds=descriptors, stdin=subprocess.DEVNULL)
        for end in self._worker_ends:
            end.close()
        self.control.settimeout(LOAD_TIMEOUT_S)
        try:
            self.control.send(json.dumps(dict(self._job)).encode())
            message, ancillary, _flags, _address = self.control.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        except TimeoutError:
            raise Fault(
                f"loading took more than {LOAD_TIMEOUT_S:.0f} s: the NPU may be wedged, see the vendor's tool", "timeout"
            ) from None
        except OSError:
            message = b""
        if not message:
            raise Fault(f"the device process {self._how_it_ended()} while it loaded: the server's log may say more", "device")
        hello: Dict[str, Any] = json.loads(message)
        if "refused" in hello:
            raise Fault(hello["refused"], hello["kind"], hello["trace"])
        self._memory = attach(array.array("i", ancillary[0][2])[0])
        return hello

    def _start_thread(self) -> Dict[str, Any]:
        from .worker import Worker

        worker = Worker(self._job)
        self._worker_ends[0].close()
        threading.Thread(target=worker.serve, args=(self._worker_ends[1],), name="runs", daemon=True).start()
        os.close(worker.descriptor)
        self._memory, self._passed = worker.memory, worker.passed
        return worker.hello()

    def _how_it_ended(self) -> str:
        code = self.process.wait(5) if self.process else 0
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def probe(self, seconds: float) -> None:
        """Run the smallest bucket once with zeros. Raises the errors of BatchBuffers.wait."""
        buffers = self.buffers
        bucket = min(range(len(self.plan.sizes)), key=self.plan.sizes.__getitem__)
        for tensor in buffers.inputs[bucket]:
            tensor.fill(0)
        buffers.submit(bucket)
        buffers.wait(seconds)

    def end(self, seconds: float = 0.0) -> bool:
        """End the process, and kill it after `seconds`. Return False if it still exists, because it hangs in the driver."""
        for entry in (self.control, self._channel):
            with contextlib.suppress(OSError):
                entry.shutdown(socket.SHUT_RDWR)
            entry.close()
        if self.process is None:
            return True
        try:
            if seconds:
                self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.process.kill()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        return True


class Device:
    """The NPU of an instance. A keeper thread restarts its runner. `runner` is None while no runner is ready.

    `job` is passed to the worker. `report_fault(fault, message)` is called when the NPU stops answering and when it answers again.
    """

    def __init__(self, job: Mapping[str, Any], isolated: bool, timeout_s: float, report_fault: Callable[[bool, str], None]) -> None:
        self._job, self._isolated, self.timeout_s, self._report_fault = dict(job), isolated, timeout_s, report_fault
        self.runner: Optional[Runner] = None
        self.npu = "?"
        self._why: Optional[Fault] = None
        self._closing = threading.Event()
        self._broken = threading.Event()
        self._lock = threading.Lock()
        self._faulty = False
        first = threading.Event()
        # The kernel kills the device process when the thread that started it ends. So the keeper lives as long as the instance.
        self._keeper = threading.Thread(target=self._keep_running, args=(first,), name="keeper", daemon=True)
        self._keeper.start()
        first.wait()
        if self.runner is None:
            raise self._why or Fault("the NPU could not be loaded")
        self.plan = self.runner.plan

    def ready(self) -> Runner:
        """Return the current runner. Raises Fault at once if no runner is ready."""
        runner = self.runner
        if runner is None:
            raise self._why or Fault(f"NPU {self.npu} is not ready", "device")
        return runner

    def run(self, runner: Runner, buffers: BatchBuffers, bucket: int) -> Tuple[float, float]:
        """Run a bucket, and wait at most for the device timeout. Return when the run began and ended. Raises Fault."""
        if self.runner is not runner:
            raise self.mark_broken(runner, "device")
        try:
            buffers.submit(bucket)
            times = buffers.wait(self.timeout_s)
        except TimeoutError:
            raise self.mark_broken(runner, "timeout") from None
        except OSError:
            raise self.mark_broken(runner, "device") from None
        except Fault as error:
            if error.kind == "timeout":
                self._report(True, str(error))
            raise
        if self._faulty:
            self._report(False, f"NPU {self.npu} answers again")
        return times

    def mark_broken(self, runner: Runner, kind: str) -> Fault:
        """Take this runner out of service, so that the keeper starts another runner. Return the error for the requests."""
        with self._lock:
            if self.runner is runner:
                what = f"did not answer within {self.timeout_s * 1000:.0f} ms" if kind == "timeout" else "lost its process"
                self._why = Fault(f"NPU {self.npu} {what}: it is being started again, try later", kind)
                self.runner = None
                self._broken.set()
                if runner.process is not None:
                    runner.process.kill()
        if kind == "timeout":
            self._report(True, str(self._why))
        why = self._why or Fault(f"NPU {self.npu} was started again", kind)
        return Fault(str(why), why.kind)

    def _report(self, fault: bool, message: str) -> None:
        with self._lock:
            changed, self._faulty = fault != self._faulty, fault
        if changed:
            self._report_fault(fault, message)

    def _keep_running(self, first: threading.Event) -> None:
        """Start the runner, and restart it when it ends, until the instance is closed. Set `first` after the first start."""
        pause = FIRST_PAUSE_S
        while not self._closing.is_set():
            runner: Optional[Runner] = None
            self._broken.clear()
            try:
                runner = Runner(self._job, self._isolated)
                runner.start()
                self.npu = runner.npu
                if first.is_set():
                    runner.probe(self.timeout_s)
            except BaseException as error:
                why = error if isinstance(error, Fault) else self._start_fault(error)
                self._why = why
                if not first.is_set():
                    if runner is not None:
                        runner.end()
                    first.set()
                    return
                self._report(True, str(why))
                if runner is not None:
                    self._wait_for_end(runner)
                self._closing.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            pause = FIRST_PAUSE_S
            restarted = first.is_set()
            self.runner = runner
            first.set()
            if restarted:
                self._report_fault(False, f"NPU {self.npu} was started again and answers")
                self._faulty = False
            self._watch(runner)
            self.runner = None
            self._wait_for_end(runner, 5.0 if self._closing.is_set() else 0.0)

    def _wait_for_end(self, runner: Runner, seconds: float = 0.0) -> None:
        """End a runner, and wait for its process. A process that hangs in the driver would also block a new process."""
        gone = runner.end(seconds)
        if not gone and runner.process is not None:
            why = f"NPU {self.npu}: its device process {runner.process.pid} does not end, although it was killed"
            self._why = Fault(f"{why}: see the vendor's tool, and restart the host", "timeout")
            self._report(True, str(self._why))
        while not gone and not self._closing.wait(LONGEST_PAUSE_S):
            gone = runner.end()

    def _start_fault(self, error: BaseException) -> Fault:
        if isinstance(error, TimeoutError):
            return Fault(f"NPU {self.npu} was started again and did not answer within {self.timeout_s * 1000:.0f} ms", "timeout")
        return Fault(f"NPU {self.npu} could not be started again: {type(error).__name__}: {error}", "device")

    def _watch(self, runner: Runner) -> None:
        """Wait until the runner has ended or was taken out of service, or until the instance is closed."""
        runner.control.settimeout(None)
        if self._isolated:
            with contextlib.suppress(OSError):
                runner.control.recv(1)  # returns when the process ends, because it sends nothing
            if not self._closing.is_set():
                self.mark_broken(runner, "device")
            return
        self._broken.wait()
        if not self._closing.is_set():
            # A thread cannot be killed. So the keeper starts a new runner only after the call of the old runner has returned.
            runner.buffers.wait_until_idle()

    def close(self) -> None:
        """End the runner and its keeper."""
        self._closing.set()
        self._broken.set()
        runner = self.runner
        if runner is not None:
            with contextlib.suppress(OSError):
                runner.control.shutdown(socket.SHUT_RDWR)
        self._keeper.join(15)


def _python() -> str:
    """Return the path of a Python interpreter of this version. sys.executable may be the stub, which embeds Python."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, shutil.which(name), shutil.which("python3")):
        if path and os.path.basename(path).startswith("python"):
            return path
    raise Fault(f"{name}, which runs the device process, is not in PATH: install it, or set the parameter isolation to none")
