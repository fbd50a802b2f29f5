"""The emulated NPU: its time and ledger, its faults and its memory, by one process and by several."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import rebel
from rebel import _device
from rebel.core.exception import RBLNRuntimeError

SDK = Path(rebel.__file__).resolve().parents[1]
Compile = Callable[..., Path]
# A test that hangs is a defect: everything here is over long before.
LONG = 300


def inputs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((rows, 3), np.float32), np.ones((rows, 2), np.int64)


def other(code: str, dev: Path, **settings: Any) -> subprocess.Popen[str]:
    """Another process with the SDK; `inputs(rows)` is there too."""
    begin = (
        "import sys, time, numpy as np, rebel\n"
        "def inputs(rows): return np.zeros((rows, 3), np.float32), np.ones((rows, 2), np.int64)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(SDK), "RBLN_LAB_DEV_ROOT": str(dev)}
    env.update({f"RBLN_LAB_{name}": str(value) for name, value in settings.items()})
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    return subprocess.Popen([sys.executable, "-c", begin + code], **pipes)


def ended(process: subprocess.Popen[str]) -> str:
    told = process.communicate(timeout=LONG)[0]
    assert process.returncode == 0
    return told.strip()


def ledger(directory: Path) -> list[dict[str, Any]]:
    """All intervals, by NPU and begin."""
    found = [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(found, key=lambda entry: (entry["npu"], entry["begin"]))


def gaps(intervals: list[dict[str, Any]]) -> list[float]:
    """Seconds between the end of an interval and the begin of the next; negative where they overlap."""
    return [after["begin"] - before["end"] for before, after in zip(intervals, intervals[1:])]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def change(**values: Any) -> None:
        for name, value in values.items():
            monkeypatch.setenv("RBLN_LAB_" + name, str(value))

    return change


@pytest.fixture
def faults(tmp_path: Path, settings: Callable[..., None]) -> Callable[..., None]:
    """Puts these faults in the place of what the file had, at once, as the lab does."""
    path = tmp_path / "faults.json"
    settings(FAULTS=path)

    def put(*found: dict[str, Any]) -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(found))
        partial.rename(path)

    return put


class TestTime:
    def test_a_run_takes_the_device_time_and_returns_at_its_end(
        self, dev: Path, compiled: Compile, settings: Callable[..., None], tmp_path: Path
    ) -> None:
        settings(DEVICE_MS=5, LEDGER=tmp_path / "ledger")
        runtime = rebel.Runtime(compiled(4), device=1)
        late = []
        for _number in range(20):
            runtime.run(*inputs(4))
            late.append(time.monotonic())
        spans = ledger(tmp_path / "ledger")
        assert [(span["npu"], span["rows"], span["pid"]) for span in spans] == [(1, 4, os.getpid())] * 20
        assert all(span["end"] - span["begin"] >= 0.005 - 1e-7 for span in spans)
        assert all(returned >= span["end"] for returned, span in zip(late, spans))

    def test_two_processes_share_an_npu_without_overlap_and_without_gap(self, dev: Path, compiled: Compile, tmp_path: Path) -> None:
        code = f"""
runtime = rebel.Runtime({str(compiled(2))!r}, device=0)
print("ready", flush=True)
sys.stdin.readline()
for _number in range(25):
    runtime.run(*inputs(2))
"""
        processes = [other(code, dev, DEVICE_MS=20, LEDGER=tmp_path / "ledger") for _number in range(2)]
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            ended(process)
        spans = ledger(tmp_path / "ledger")
        assert len(spans) == 50
        assert len({span["pid"] for span in spans}) == 2
        assert min(gaps(spans)) >= 0
        assert min(span["end"] - span["begin"] for span in spans) > 0.02 - 1e-7
        # With a run queued the NPU goes from one to the next at once, and only then is there no gap at all.
        assert 0 in gaps(spans)

    def test_npus_run_beside_each_other(self, dev: Path, compiled: Compile, settings: Callable[..., None], tmp_path: Path) -> None:
        settings(DEVICE_MS=1000, LEDGER=tmp_path / "ledger")
        path = compiled(1)
        runtimes = [rebel.Runtime(path, device=number) for number in (0, 1)]
        threads = [threading.Thread(target=runtime.run, args=inputs(1)) for runtime in runtimes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        first, second = ledger(tmp_path / "ledger")
        assert (first["npu"], second["npu"]) == (0, 1)
        assert first["begin"] < second["end"] and second["begin"] < first["end"]

    def test_a_model_over_two_npus_holds_both(
        self, dev: Path, two_onnx: bytes, settings: Callable[..., None], tmp_path: Path
    ) -> None:
        settings(DEVICE_MS=20, LEDGER=tmp_path / "ledger")
        info = [("A", [1, 3], "float32"), ("B", [1, 2], "int64")]
        wide = rebel.compile_from_onnx(two_onnx, info, tensor_parallel_size=2).create_runtime(device=[1, 0])
        narrow = rebel.compile_from_onnx(two_onnx, info).create_runtime(device=1)
        threads = [threading.Thread(target=runtime.run, args=inputs(1)) for runtime in (wide, narrow, wide)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        spans = ledger(tmp_path / "ledger")
        assert [span["npu"] for span in spans] == [0, 0, 1, 1, 1]
        assert {(span["begin"], span["end"]) for span in spans if span["npu"] == 0} <= {
            (span["begin"], span["end"]) for span in spans[2:]
        }
        assert min(gaps(spans[2:])) >= 0

    def test_a_process_that_is_killed_leaves_the_npu_usable(
        self, dev: Path, compiled: Compile, settings: Callable[..., None]
    ) -> None:
        path = compiled(1)
        code = f"""
from rebel import _device
runtime = rebel.Runtime({str(path)!r}, device=0)
runtime._npus[0].lock()
print("holding", flush=True)
time.sleep({LONG})
"""
        process = other(code, dev)
        assert process.stdout is not None and process.stdout.readline() == "holding\n"
        runtime = rebel.RBLNCompiledModel(path)  # to make a runtime takes the lock already
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(runtime.create_runtime().run(*inputs(1))), daemon=True)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive(), "the other process has the lock"
        process.kill()
        process.communicate()
        thread.join(LONG)
        assert len(answers) == 1

    def test_a_runtime_of_before_a_fork_takes_turns_with_its_child(self, dev: Path, compiled: Compile) -> None:
        code = f"""
import os
runtime = rebel.Runtime({str(compiled(1))!r}, device=0)
child = os.fork()
for _number in range(30):
    runtime.run(*inputs(1))
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
        directory = dev.parent / "ledger"
        ended(other(code, dev, DEVICE_MS=2, LEDGER=directory))
        spans = ledger(directory)
        assert len({span["pid"] for span in spans}) == 2
        assert (len(spans), min(gaps(spans)) >= 0) == (60, True)

    def test_two_async_runs_in_flight_keep_the_npu_busy(
        self, dev: Path, compiled: Compile, settings: Callable[..., None], tmp_path: Path
    ) -> None:
        settings(DEVICE_MS=15, LEDGER=tmp_path / "ledger")
        runtime = rebel.AsyncRuntime(compiled(1), parallel=2)
        tasks = [runtime.run(*inputs(1)) for _number in range(40)]
        for task in tasks:
            task.wait(LONG)
        found = gaps(ledger(tmp_path / "ledger"))
        assert min(found) == 0

    def test_answers_come_in_order_where_one_run_is_in_flight(
        self, dev: Path, compiled: Compile, settings: Callable[..., None]
    ) -> None:
        settings(DEVICE_MS=3)
        # Of two in flight either may be answered first
        runtime = rebel.AsyncRuntime(compiled(1), parallel=1)
        tasks = [runtime.run(*inputs(1)) for _number in range(10)]
        for before, after in zip(tasks, tasks[1:]):
            after.wait(LONG)
            assert before.done()


class TestFaults:
    @pytest.mark.parametrize("kind", ["501", "503"])
    def test_a_run_fails_as_often_as_asked_on_its_npu_alone(
        self, dev: Path, compiled: Compile, faults: Callable[..., None], kind: str
    ) -> None:
        path = compiled(1)
        faults({"npu": 1, "kind": kind, "times": 2})
        runtimes = [rebel.Runtime(path, device=1) for _number in range(2)]
        for runtime in runtimes:
            with pytest.raises(RBLNRuntimeError, match=f"^Inference failed: {kind}$"):
                runtime.run(*inputs(1))
        runtimes[0].run(*inputs(1))
        rebel.Runtime(path, device=0).run(*inputs(1))

    def test_times_count_over_processes_and_anew_when_the_file_changes(
        self, dev: Path, compiled: Compile, faults: Callable[..., None]
    ) -> None:
        path = compiled(1)
        faults({"npu": 0, "kind": "501", "times": 1})
        code = f"""
try:
    rebel.Runtime({str(path)!r}).run(*inputs(1))
except rebel.RBLNRuntimeError as error:
    print(error)
"""
        assert ended(other(code, dev)) == "Inference failed: 501"
        runtime = rebel.Runtime(path)
        runtime.run(*inputs(1))
        faults({"npu": 0, "kind": "503", "times": 1})
        with pytest.raises(RBLNRuntimeError, match="503"):
            runtime.run(*inputs(1))
        runtime.run(*inputs(1))

    def test_without_times_it_lasts_until_it_is_taken_away(self, dev: Path, compiled: Compile, faults: Callable[..., None]) -> None:
        faults({"npu": 0, "kind": "501", "times": None})
        runtime = rebel.Runtime(compiled(1))
        for _number in range(3):
            with pytest.raises(RBLNRuntimeError, match="501"):
                runtime.run(*inputs(1))
        faults()
        runtime.run(*inputs(1))

    def test_no_memory_when_a_runtime_is_made(self, dev: Path, compiled: Compile, faults: Callable[..., None]) -> None:
        path = compiled(1)
        faults({"npu": 0, "kind": "no_memory", "times": 1})
        with pytest.raises(RBLNRuntimeError, match="Lack of device memory"):
            rebel.Runtime(path)
        rebel.Runtime(path).run(*inputs(1))

    @pytest.mark.parametrize("kind", [rebel.Runtime, rebel.AsyncRuntime])
    def test_a_hang_ends_at_the_timeout_of_the_runtime(
        self, dev: Path, compiled: Compile, faults: Callable[..., None], kind: Any
    ) -> None:
        runtime = kind(compiled(1), timeout=1)
        faults({"npu": 0, "kind": "hang", "times": None})
        with pytest.raises(RBLNRuntimeError, match="no answer of NPU 0 within the timeout of 1 s"):
            found = runtime.run(*inputs(1))
            found.wait()

    def test_a_hang_without_timeout_ends_when_the_fault_is_taken_away(
        self, dev: Path, compiled: Compile, faults: Callable[..., None]
    ) -> None:
        runtime = rebel.AsyncRuntime(compiled(1))
        faults({"npu": 0, "kind": "hang", "times": None})
        task = runtime.run(*inputs(1))
        with pytest.raises(TimeoutError):
            task.wait(0.2)
        faults()
        np.testing.assert_array_equal(task.wait(LONG)[0], inputs(1)[1])

    def test_a_queue_that_is_longer_than_the_timeout_is_a_timeout(
        self, dev: Path, compiled: Compile, settings: Callable[..., None]
    ) -> None:
        settings(DEVICE_MS=1100)
        runtime = rebel.Runtime(compiled(1), timeout=1)
        with pytest.raises(RBLNRuntimeError, match="within the timeout of 1 s"):
            runtime.run(*inputs(1))

    def test_a_native_call_that_never_returns_is_ended_by_a_kill_alone(
        self, dev: Path, compiled: Compile, faults: Callable[..., None], tmp_path: Path
    ) -> None:
        faults({"npu": 0, "kind": "hang_forever", "times": 1})
        path = compiled(1)
        code = f"""
import os, signal, threading
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
def alive():
    while True:
        time.sleep(0.001)
        os.write(1, b".")
threading.Thread(target=alive, daemon=True).start()
rebel.Runtime({str(path)!r}, timeout=1).run(*inputs(1))
"""
        process = other(code, dev, FAULTS=tmp_path / "faults.json")
        try:
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            silent_since, deadline = time.monotonic(), time.monotonic() + LONG
            seen = 0
            while not (seen and time.monotonic() - silent_since > 2) and time.monotonic() < deadline:
                try:
                    seen += len(os.read(process.stdout.fileno(), 65536))
                    silent_since = time.monotonic()
                except BlockingIOError:
                    time.sleep(0.01)
            assert time.monotonic() < deadline, "its other thread still runs"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
        finally:
            process.kill()
            process.communicate()
        rebel.Runtime(path).run(*inputs(1))

    def test_a_file_that_is_half_written_changes_nothing(
        self, dev: Path, compiled: Compile, faults: Callable[..., None], tmp_path: Path
    ) -> None:
        faults({"npu": 0, "kind": "501"})
        runtime = rebel.Runtime(compiled(1))
        for text in ('[{"npu": 0, "ki', ""):
            with pytest.raises(RBLNRuntimeError, match="501"):
                runtime.run(*inputs(1))
            (tmp_path / "faults.json").write_text(text)
        with pytest.raises(RBLNRuntimeError, match="501"):
            runtime.run(*inputs(1))
        (tmp_path / "faults.json").unlink()
        runtime.run(*inputs(1))

    def test_a_kind_that_is_not_known_is_refused(self, dev: Path, compiled: Compile, faults: Callable[..., None]) -> None:
        faults({"npu": 0, "kind": "hung"})
        with pytest.raises(RBLNRuntimeError, match=r"RBLN_LAB_FAULTS: .*hung.*, expected at most 64 of no_memory, 501"):
            rebel.Runtime(compiled(1))


class TestMemory:
    def test_the_weights_count_once_and_buckets_each(
        self, dev: Path, compiled: Compile, settings: Callable[..., None], two_onnx: bytes
    ) -> None:
        path = compiled(1, 2, 4)
        model = rebel.RBLNCompiledModel(path)
        settings(DEVICE_MEMORY=model.get_total_device_alloc())
        runtimes = [model.create_runtime(input_info_index=index) for index in range(3)]
        with pytest.raises(RBLNRuntimeError, match="Lack of device memory: NPU 0 has 0 bytes free"):
            model.create_runtime(input_info_index=0)
        rebel.Runtime(path, device=1)
        runtimes.pop().close()
        model.create_runtime(input_info_index=0).close()
        with pytest.raises(RBLNRuntimeError, match="Lack of device memory"):
            rebel.Runtime(path)  # a second copy of the weights

    @pytest.mark.parametrize("queued", [False, True])
    def test_a_runtime_takes_what_the_file_says_of_its_kind(
        self, dev: Path, compiled: Compile, settings: Callable[..., None], queued: bool
    ) -> None:
        model = rebel.RBLNCompiledModel(compiled(1, 2))
        (taken,) = model.get_alloc_per_node(non_blocking_mode=queued)
        assert (taken > model.get_alloc_per_node()[0]) == queued
        create = model.create_async_runtime if queued else model.create_runtime
        settings(DEVICE_MEMORY=taken)
        kept = [create(input_info_index=index) for index in (0, 1)]
        with pytest.raises(RBLNRuntimeError, match="Lack of device memory: NPU 0 has 0 bytes free"):
            create(input_info_index=0)
        del kept

    def test_a_refused_model_over_two_npus_takes_nothing(
        self, dev: Path, compiled: Compile, settings: Callable[..., None], two_onnx: bytes
    ) -> None:
        info = [("A", [1, 3], "float32"), ("B", [1, 2], "int64")]
        wide = rebel.compile_from_onnx(two_onnx, info, tensor_parallel_size=2)
        entry = rebel.compile_from_onnx(two_onnx, info)
        settings(DEVICE_MEMORY=entry.get_total_device_alloc())
        second = entry.create_runtime(device=1)
        with pytest.raises(RBLNRuntimeError, match="Lack of device memory: NPU 1"):
            wide.create_runtime()
        entry.create_runtime(device=0)
        second.close()
        assert wide.create_runtime().run(*inputs(1))

    def test_memory_of_another_process_counts_until_it_dies(
        self, dev: Path, compiled: Compile, settings: Callable[..., None]
    ) -> None:
        path = compiled(1)
        settings(DEVICE_MEMORY=rebel.RBLNCompiledModel(path).get_total_device_alloc())
        code = f"runtime = rebel.Runtime({str(path)!r})\nprint('loaded', flush=True)\ntime.sleep({LONG})"
        process = other(code, dev)
        assert process.stdout is not None and process.stdout.readline() == "loaded\n"
        with pytest.raises(RBLNRuntimeError, match="Lack of device memory"):
            rebel.Runtime(path)
        process.kill()
        process.communicate()
        rebel.Runtime(path)

    def test_a_runtime_that_is_dropped_gives_its_memory_back(
        self, dev: Path, compiled: Compile, settings: Callable[..., None]
    ) -> None:
        path = compiled(1)
        settings(DEVICE_MEMORY=rebel.RBLNCompiledModel(path).get_total_device_alloc())
        for _number in range(3):
            rebel.Runtime(path).run(*inputs(1))
        settings(DEVICE_MEMORY=rebel.RBLNCompiledModel(path).get_total_device_alloc(non_blocking_mode=True))
        runtime = rebel.AsyncRuntime(path, parallel=2)
        runtime.run(*inputs(1)).wait(LONG)
        del runtime
        deadline = time.monotonic() + LONG
        while memory_held(dev) and time.monotonic() < deadline:
            time.sleep(0.01)
        rebel.Runtime(path)


def memory_held(dev: Path) -> int:
    """Bytes that this process holds on NPU 0."""
    npu = _device.npu_at(dev / "rbln0")
    places = range(_device.MEMORY_USERS, _device.SIZE, _device.MEMORY_USER.size)
    holders = [_device.MEMORY_USER.unpack_from(npu._map, place) for place in places]
    return sum(held for pid, _start, held in holders if pid == os.getpid())
