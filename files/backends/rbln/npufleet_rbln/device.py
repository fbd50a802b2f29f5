"""The stub's side of an NPU: a lane that carries a batch, and the process behind it, which is restarted when it hangs."""

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

# A large model over a slow link takes minutes; a wedged card takes for ever.
LOAD_TIMEOUT_S = 300.0
# Between attempts to start again, doubled each time.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
# For a process to be gone after it was killed.
END_TIMEOUT_S = 5.0
CODE = "import sys; sys.path[:] = sys.argv[3].split('\\n'); from npufleet_rbln.worker import main; main(sys.argv[1:])"


class Lane:
    """The memory of one batch, and a channel to the thread that runs it. `given` takes inputs by reference in the same process."""

    def __init__(self, channel: socket.socket, views: Views, given: Optional[List[Any]]) -> None:
        self._channel, self._given = channel, given
        self.inputs, self.outputs = views.inputs, views.outputs
        self.since = 0.0

    def submit(self, bucket: int) -> None:
        """Start a run of this bucket's inputs."""
        self.since = time.monotonic()
        self._channel.send(START.pack(bucket))

    def give(self, inputs: Sequence[np.ndarray]) -> bool:
        """Hand over the inputs of the next batch without a copy. Return False if another process has to read them."""
        if self._given is None:
            return False
        self._given[:] = [[np.asarray(tensor, order="C") for tensor in inputs]]
        return True

    def wait(self, seconds: float) -> Tuple[float, float]:
        """Return when the run began and ended. Raises TimeoutError if it does not end in time, Fault if it failed."""
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
        """Wait without a limit until no run is under way."""
        if self.since:
            self._channel.settimeout(None)
            self._channel.recv(1 << 16)
            self.since = 0.0


class Backing:
    """The runner of a lane: a process that can be killed, or a thread of this process that cannot."""

    def __init__(self, job: Mapping[str, Any], isolated: bool) -> None:
        kinds = socket.AF_UNIX, socket.SOCK_SEQPACKET
        self.control, control = socket.socketpair(*kinds)
        self._channel, channel = socket.socketpair(*kinds)
        self.process: Optional[subprocess.Popen[bytes]] = None
        self._given: Optional[List[Any]] = None
        self._job, self._isolated = job, isolated
        self._others = [control, channel]

    def start(self) -> None:
        """Load. Where that fails, `end` has to follow, as where it succeeds: there may be a process."""
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
        """Run once with zeros, in the smallest bucket."""
        lane = self.lane
        bucket = min(range(len(self.plan.sizes)), key=self.plan.sizes.__getitem__)
        for tensor in lane.inputs[bucket]:
            tensor.fill(0)
        lane.submit(bucket)
        lane.wait(seconds)

    def end(self, seconds: float = 0.0) -> bool:
        """End the process, after `seconds` by force; whether it is gone. One that sleeps in the driver cannot be."""
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
    """An instance's NPU, kept in service: `backing` is what runs now, None while there is nothing that would answer.

    `job` goes to the worker; `changed(fault, message)` is called when the NPU stops answering and when it answers again.
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
        # The kernel ends the device process with the thread that started it, so this one lives as long as the instance.
        self._keeper = threading.Thread(target=self._keep, args=(first,), name="keeper", daemon=True)
        self._keeper.start()
        first.wait()
        if self.backing is None:
            raise self._why or Fault("the NPU could not be loaded")
        self.plan = self.backing.plan

    def ready(self) -> Backing:
        """Return the running process. Raises Fault at once if there is none."""
        backing = self.backing
        if backing is None:
            raise self._why or Fault(f"NPU {self.npu} is not ready", "device")
        return backing

    def run(self, backing: Backing, lane: Lane, bucket: int) -> Tuple[float, float]:
        """Run a bucket and wait for it, for at most the device timeout. Return when the run began and ended."""
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
        """Take this backing out of service; the keeper starts another. The reason, for those who wait."""
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
        """Start what runs, and start it again whenever it ends, until the instance is closed."""
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
        """End it, and wait until it is gone: what sleeps in the driver holds the NPU, and another one would only join it."""
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
        """Return when the backing ended, was taken out of service, or the instance is closed."""
        backing.control.settimeout(None)
        if self._isolated:
            with contextlib.suppress(OSError):
                backing.control.recv(1)  # nothing is ever sent: it returns at the process's end
            if not self._closing.is_set():
                self.broke(backing, "device")
            return
        self._broken.wait()
        if not self._closing.is_set():
            # A thread cannot be killed. If the call returns after all, the NPU is used again.
            backing.lane.settle()

    def close(self) -> None:
        """Give the NPU back."""
        self._closing.set()
        self._broken.set()
        backing = self.backing
        if backing is not None:
            with contextlib.suppress(OSError):
                backing.control.shutdown(socket.SHUT_RDWR)
        self._keeper.join(15)


def _python() -> str:
    """Return the first interpreter of this version on the path, because the stub embeds its own."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (sys.executable, shutil.which(name), shutil.which("python3")):
        if found and os.path.basename(found).startswith("python"):
            return found
    raise Fault(f"found no {name} on the path to run the device process with: install it, or set the parameter isolation to none")
