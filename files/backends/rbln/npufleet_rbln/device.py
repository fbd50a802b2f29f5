"""The stub's side of an NPU: the lane that transports a batch, and the device process, which is restarted if it hangs."""

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
# Time for a killed process to end
END_TIMEOUT_S = 5.0
CODE = "import sys; sys.path[:] = sys.argv[3].split('\\n'); from npufleet_rbln.worker import main; main(sys.argv[1:])"


class Lane:
    """The memory of one batch, and a channel to its runner. `given` passes inputs by reference within a process."""

    def __init__(self, channel: socket.socket, views: Views, given: Optional[List[Any]]) -> None:
        self._channel, self._given = channel, given
        self.inputs, self.outputs = views.inputs, views.outputs
        self.since = 0.0

    def submit(self, bucket: int) -> None:
        """Start a run of the inputs in this bucket."""
        self.since = time.monotonic()
        self._channel.send(START.pack(bucket))

    def give(self, inputs: Sequence[np.ndarray]) -> bool:
        """Pass the inputs of the next batch without a copy. Return False if the runner is another process, which needs a copy."""
        if self._given is None:
            return False
        self._given[:] = [[np.asarray(tensor, order="C") for tensor in inputs]]
        return True

    def wait(self, seconds: float) -> Tuple[float, float]:
        """Wait for the run, and return when it began and ended. Raises TimeoutError after `seconds`, Fault if it failed."""
        self._channel.settimeout(max(0.001, seconds))
        message = self._channel.recv(1 << 16)
        if len(message) < ENDED.size:
            raise ConnectionError
        self.since = 0.0
        failed, began, ended = ENDED.unpack_from(message)
        if failed:
            told = json.loads(message[ENDED.size :])
            raise Fault(told["message"], told["kind"], told["trace"])
        return began, ended

    def settle(self) -> None:
        """Wait, without a time limit, until no run is in progress."""
        if self.since:
            self._channel.settimeout(None)
            self._channel.recv(1 << 16)
            self.since = 0.0


class Backing:
    """The runner of a lane: a device process, which can be killed, or a thread of this process, which cannot."""

    def __init__(self, job: Mapping[str, Any], isolated: bool) -> None:
        kinds = socket.AF_UNIX, socket.SOCK_SEQPACKET
        self.control, control = socket.socketpair(*kinds)
        self._channel, channel = socket.socketpair(*kinds)
        self.process: Optional[subprocess.Popen[bytes]] = None
        self._given: Optional[List[Any]] = None
        self._job, self._isolated = job, isolated
        self._others = [control, channel]

    def start(self) -> None:
        """Load the model. The caller has to call `end` later, also after a failure, because the process may exist."""
        hello = self._process(self._job, self._others) if self._isolated else self._thread(self._job, self._others)
        self.npu: str = hello["npu"]
        self.source: str = hello["source"]
        self.plan = Plan.from_dict(hello["plan"])
        self.lane = Lane(self._channel, Views(self._memory, self.plan), self._given)

    def _process(self, job: Mapping[str, Any], others: Sequence[socket.socket]) -> Dict[str, Any]:
        descriptors = [entry.fileno() for entry in others]
        arguments = [",".join(str(descriptor) for descriptor in descriptors), str(os.getpid()), "\n".join(sys.path)]
        self.process = subprocess.Popen([_python(), "-c", CODE, *arguments], pass_fds=descriptors, stdin=subprocess.DEVNULL)
        for other in others:
            other.close()
        self.control.settimeout(LOAD_TIMEOUT_S)
        try:
            self.control.send(json.dumps(dict(job)).encode())
            message, ancillary, _flags, _address = self.control.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        except TimeoutError:
            raise Fault(
                f"loading took more than {LOAD_TIMEOUT_S:.0f} s: the NPU may be wedged, see the vendor's tool", "timeout"
            ) from None
        except OSError:
            message = b""
        if not message:
            raise Fault(f"the device process {self._obituary()} while it loaded: the server's log may say more", "device")
        hello: Dict[str, Any] = json.loads(message)
        if "refused" in hello:
            raise Fault(hello["refused"], hello["kind"], hello["trace"])
        self._memory = attach(array.array("i", ancillary[0][2])[0])
        return hello

    def _thread(self, job: Mapping[str, Any], others: Sequence[socket.socket]) -> Dict[str, Any]:
        from .worker import Worker

        worker = Worker(job)
        others[0].close()
        threading.Thread(target=worker.serve, args=(others[1],), name="runs", daemon=True).start()
        os.close(worker.descriptor)
        self._memory, self._given = worker.memory, worker.given
        return worker.hello()

    def _obituary(self) -> str:
        code = self.process.wait(5) if self.process else 0
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def probe(self, seconds: float) -> None:
        """Run the smallest bucket once with zeros. Raises the errors of Lane.wait."""
        lane = self.lane
        bucket = min(range(len(self.plan.sizes)), key=self.plan.sizes.__getitem__)
        for tensor in lane.inputs[bucket]:
            tensor.fill(0)
        lane.submit(bucket)
        lane.wait(seconds)

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
    """The NPU of an instance. A keeper thread restarts its runner. `backing` is the current runner, None while no runner is ready.

    `job` is passed to the worker. `changed(fault, message)` is called when the NPU stops answering and when it answers again.
    """

    def __init__(self, job: Mapping[str, Any], isolated: bool, timeout_s: float, changed: Callable[[bool, str], None]) -> None:
        self._job, self._isolated, self.timeout_s, self._changed = dict(job), isolated, timeout_s, changed
        self.backing: Optional[Backing] = None
        self.npu = "?"
        self._why: Optional[Fault] = None
        self._closing = threading.Event()
        self._broken = threading.Event()
        self._lock = threading.Lock()
        self._faulty = False
        first = threading.Event()
        # The kernel kills the device process when the thread that started it ends, so this thread lives as long as the instance.
        self._keeper = threading.Thread(target=self._keep, args=(first,), name="keeper", daemon=True)
        self._keeper.start()
        first.wait()
        if self.backing is None:
            raise self._why or Fault("the NPU could not be loaded")
        self.plan = self.backing.plan

    def ready(self) -> Backing:
        """Return the current runner. Raises Fault at once if no runner is ready."""
        backing = self.backing
        if backing is None:
            raise self._why or Fault(f"NPU {self.npu} is not ready", "device")
        return backing

    def run(self, backing: Backing, lane: Lane, bucket: int) -> Tuple[float, float]:
        """Run a bucket, and wait at most for the device timeout. Return when the run began and ended. Raises Fault."""
        if self.backing is not backing:
            raise self.broke(backing, "device")
        try:
            lane.submit(bucket)
            times = lane.wait(self.timeout_s)
        except TimeoutError:
            raise self.broke(backing, "timeout") from None
        except OSError:
            raise self.broke(backing, "device") from None
        except Fault as error:
            if error.kind == "timeout":
                self._tell(True, str(error))
            raise
        if self._faulty:
            self._tell(False, f"NPU {self.npu} answers again")
        return times

    def broke(self, backing: Backing, kind: str) -> Fault:
        """Take this runner out of service, so that the keeper starts another runner. Return the error for the requests."""
        with self._lock:
            if self.backing is backing:
                what = f"did not answer within {self.timeout_s * 1000:.0f} ms" if kind == "timeout" else "lost its process"
                self._why = Fault(f"NPU {self.npu} {what}: it is being started again, try later", kind)
                self.backing = None
                self._broken.set()
                if backing.process is not None:
                    backing.process.kill()
        if kind == "timeout":
            self._tell(True, str(self._why))
        why = self._why or Fault(f"NPU {self.npu} was started again", kind)
        return Fault(str(why), why.kind)

    def _tell(self, fault: bool, message: str) -> None:
        with self._lock:
            news, self._faulty = fault != self._faulty, fault
        if news:
            self._changed(fault, message)

    def _keep(self, first: threading.Event) -> None:
        """Start the runner, and restart it whenever it ends, until the instance is closed. Set `first` after the first start."""
        pause = FIRST_PAUSE_S
        while not self._closing.is_set():
            backing: Optional[Backing] = None
            self._broken.clear()
            try:
                backing = Backing(self._job, self._isolated)
                backing.start()
                self.npu = backing.npu
                if first.is_set():
                    backing.probe(self.timeout_s)
            except BaseException as error:
                why = error if isinstance(error, Fault) else self._unstarted(error)
                self._why = why
                if not first.is_set():
                    if backing is not None:
                        backing.end()
                    first.set()
                    return
                self._tell(True, str(why))
                if backing is not None:
                    self._bury(backing)
                self._closing.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            pause = FIRST_PAUSE_S
            again = first.is_set()
            self.backing = backing
            first.set()
            if again:
                self._changed(False, f"NPU {self.npu} was started again and answers")
                self._faulty = False
            self._watch(backing)
            self.backing = None
            self._bury(backing, 5.0 if self._closing.is_set() else 0.0)

    def _bury(self, backing: Backing, seconds: float = 0.0) -> None:
        """End a runner, and wait until its process is gone. A process that hangs in the driver would also block a new process."""
        gone = backing.end(seconds)
        if not gone and backing.process is not None:
            why = f"NPU {self.npu}: its device process {backing.process.pid} does not end, not even killed"
            self._why = Fault(f"{why}: see the vendor's tool, and restart the host", "timeout")
            self._tell(True, str(self._why))
        while not gone and not self._closing.wait(LONGEST_PAUSE_S):
            gone = backing.end()

    def _unstarted(self, error: BaseException) -> Fault:
        if isinstance(error, TimeoutError):
            return Fault(f"NPU {self.npu} was started again and did not answer within {self.timeout_s * 1000:.0f} ms", "timeout")
        return Fault(f"NPU {self.npu} could not be started again: {type(error).__name__}: {error}", "device")

    def _watch(self, backing: Backing) -> None:
        """Wait until the runner has ended or was taken out of service, or until the instance is closed."""
        backing.control.settimeout(None)
        if self._isolated:
            with contextlib.suppress(OSError):
                backing.control.recv(1)  # returns when the process ends, because it sends nothing
            if not self._closing.is_set():
                self.broke(backing, "device")
            return
        self._broken.wait()
        if not self._closing.is_set():
            # A thread cannot be killed. Wait for its call, and start a new runner if the call returns.
            backing.lane.settle()

    def close(self) -> None:
        """End the runner and its keeper."""
        self._closing.set()
        self._broken.set()
        backing = self.backing
        if backing is not None:
            with contextlib.suppress(OSError):
                backing.control.shutdown(socket.SHUT_RDWR)
        self._keeper.join(15)


def _python() -> str:
    """Return a Python interpreter of this version. sys.executable may be the stub, which embeds Python."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (sys.executable, shutil.which(name), shutil.which("python3")):
        if found and os.path.basename(found).startswith("python"):
            return found
    raise Fault(f"found no {name} on the path to run the device process with: install it, or set the parameter isolation to none")
