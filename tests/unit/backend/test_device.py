"""The backend with the stand-in SDK behind it, in a process of its own: API shapes, hung NPUs, and what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import zlib
from pathlib import Path
from typing import Any, Callable, Iterator

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from played import (
    BACKEND,
    ROOT,
    Families,
    Request,
    TritonError,
    TritonModelException,
    arguments,
    ask,
    is_answer,
    output,
    parameters,
    request,
    requests,
    until,
)

SDK = ROOT / "lab/sdk"
SHAPES = ("0.6.2+lab", "0.9.4+lab", "0.11.2+lab")
BOTH = pytest.mark.parametrize("release", ["24.01", "24.10"], indirect=True)
PROGRAM = ROOT / "files/compile/rbln_compile.py"


def compiled(place: Path, shape: str, kind: str = "float32", devices: int = 1) -> tuple[bytes, dict[str, Any]]:
    """(a file compiled for 4, 1 and 2 by this version of the SDK, its record): B squared and A, of this kind, twice."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["B", "B"], ["SQUARE"]), helper.make_node("Add", ["A", "A"], ["TWICE"])],
        "two",
        [value("A", TensorProto.FLOAT, ["n", 3]), value("B", TensorProto.INT64, ["n", 2])],
        [value("SQUARE", TensorProto.INT64, ["n", 2]), value("TWICE", TensorProto.FLOAT, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    place.mkdir()
    (place / "two.onnx").write_bytes(model.SerializeToString())
    spec = {
        "name": "two",
        "npu": "RBLN-CA22",
        "sdk": shape,
        "devices": devices,
        "batches": [4, 1, 2],
        "outputs": None,
        "source": {"kind": "onnx", "path": "two.onnx"},
        "inputs": [{"name": "A", "shape": [3], "dtype": kind}, {"name": "B", "shape": [2], "dtype": "int64"}],
        "digests": {},
        "output": "model.rbln",
    }
    (place / "spec.json").write_text(json.dumps(spec))
    environment = {**os.environ, "PYTHONPATH": str(SDK), "RBLN_LAB_VERSION": shape, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, str(PROGRAM), str(place / "spec.json")], env=environment, check=True, stdout=subprocess.DEVNULL)
    return (place / "model.rbln").read_bytes(), json.loads((place / "model.rbln.json").read_text())


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A file compiled by each version of the SDK that has a form of its own."""
    place = tmp_path_factory.mktemp("compiled")
    return {shape: compiled(place / shape, shape)[0] for shape in SHAPES}


class Host:
    """Two NPUs of the stand-in, their faults and their ledger."""

    def __init__(self, place: Path) -> None:
        self.dev, self.faults, self.ledger = place / "dev", place / "faults.json", place / "ledger"
        self.dev.mkdir()
        self.ledger.mkdir()
        for name in ("rbln0", "rbln1", "rsd0"):
            (self.dev / name).touch()

    def fault(self, *faults: dict[str, Any]) -> None:
        partial = self.faults.with_suffix(".partial")
        partial.write_text(json.dumps(faults))
        partial.rename(self.faults)

    def runs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for path in self.ledger.glob("*.jsonl") for line in path.read_text().splitlines()]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    found = Host(tmp_path)
    monkeypatch.syspath_prepend(str(SDK))
    # The SDK reads its place once, at import: one that other tests imported looks elsewhere.
    for name in [name for name in sys.modules if name.partition(".")[0] == "rebel"]:
        monkeypatch.delitem(sys.modules, name)
    settings = {"DEV_ROOT": found.dev, "FAULTS": found.faults, "LEDGER": found.ledger, "NPU_NAME": "RBLN-CA22"}
    for name, setting in settings.items():
        monkeypatch.setenv(f"RBLN_LAB_{name}", str(setting))
    monkeypatch.delenv("RBLN_DEVICES", raising=False)
    found.fault()
    yield found
    for state in Path("/dev/shm").glob(f"npufleet-lab-{zlib.crc32(os.fsencode(found.dev.resolve())):08x}-*"):
        state.unlink()


Load = Callable[..., Any]


@pytest.fixture
def load(backend: Any, host: Host, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Load a compiled file as `two`: load(shape="0.9.4+lab", instance="two_0_0", kind="TYPE_FP32", file=b"", <parameters>=...)."""
    models = []
    before = set(sys.modules)

    def make(
        shape: str = "0.9.4+lab",
        instance: str = "two_0_0",
        rows: int = 4,
        kind: str = "TYPE_FP32",
        file: bytes = b"",
        **named: str,
    ) -> Any:
        monkeypatch.setenv("RBLN_LAB_VERSION", shape)
        if shape < "0.9":
            named.setdefault("batches", "4,1,2")
        config = {
            "name": "two",
            "max_batch_size": rows,
            "input": [{"name": "A", "data_type": kind, "dims": [3]}, {"name": "B", "data_type": "TYPE_INT64", "dims": [2]}],
            "output": [output("SQUARE", "TYPE_INT64", [2]), output("TWICE", kind, [3])],
            "parameters": parameters(**named),
        }
        (tmp_path / "two/1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "two/1/model.rbln").write_bytes(file or files[shape])
        model = backend.TritonPythonModel()
        model.initialize(arguments(tmp_path / "two", config, instance))
        models.append(model)
        return model

    yield make
    for model in models:
        model.finalize()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "rebel":
            del sys.modules[name]


def process(model: Any) -> subprocess.Popen[bytes]:
    found: subprocess.Popen[bytes] = model._device.ready().process
    return found


class TestShapes:
    @BOTH
    @pytest.mark.parametrize("shape", SHAPES)
    def test_of_the_api(self, load: Load, host: Host, shape: str) -> None:
        """The calls that the backend makes are those of the SDK, and nothing of it is in the stub."""
        model = load(shape, instance="two_0_1")
        asked = requests(1, 2, 1, 3)
        assert all(is_answer(response, question) for response, question in zip(ask(model, asked), asked))
        assert {run["npu"] for run in host.runs()} == {1}
        assert "rebel" not in sys.modules
        nodes = {Path(link).name for link in links(process(model).pid) if link.startswith(str(host.dev))}
        assert nodes == {"rbln1"}

    @pytest.mark.parametrize("shape, runtimes", [("0.6.2+lab", 3), ("0.9.4+lab", 3), ("0.11.2+lab", 1)])
    def test_as_few_runtimes_as_the_version_takes(self, load: Load, host: Host, shape: str, runtimes: int) -> None:
        """Each runtime keeps the NPU's node open: one for each bucket before 0.11, then one for all."""
        opened = [link for link in links(process(load(shape)).pid) if link == str(host.dev / "rbln0")]
        assert len(opened) == runtimes

    def test_a_form_that_the_sdk_refuses_is_told_in_its_words(self, load: Load) -> None:
        with pytest.raises(TritonModelException, match="unexpected keyword argument 'input_info_index'"):
            load("0.11.2+lab", runtime_per_bucket="true")

    @BOTH
    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_model_that_spans_npus(
        self, load: Load, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
    ) -> None:
        file, record = compiled(tmp_path / "wide", shape, devices=2)
        monkeypatch.setenv("RBLN_LAB_DEVICE_MEMORY", str(record["device_memory"][0]))
        model = load(shape, file=file, npus_per_instance="2")
        asked = requests(3, 1, 2)
        assert all(is_answer(response, question) for response, question in zip(ask(model, asked), asked))
        assert {run["npu"] for run in host.runs()} == {0, 1}

    @pytest.mark.parametrize("shape", SHAPES)
    def test_it_takes_the_device_memory_of_its_record(
        self, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
    ) -> None:
        file, record = compiled(tmp_path / "one", shape)
        (taken,) = record["device_memory"]
        monkeypatch.setenv("RBLN_LAB_DEVICE_MEMORY", str(taken - 1))
        with pytest.raises(TritonModelException, match="NPU 0 has no memory left"):
            load(shape, file=file)
        monkeypatch.setenv("RBLN_LAB_DEVICE_MEMORY", str(taken))
        assert is_answer(ask(load(shape, file=file), [request(2)])[0], request(2))

    @pytest.mark.parametrize("release", ["24.10"], indirect=True)
    @pytest.mark.parametrize("isolation", ["process", "none"])
    @pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
    def test_bfloat16(self, load: Load, tmp_path: Path, isolation: str) -> None:
        """Its bits go through the memory that stub and NPU share; Triton lends and takes them as DLPack."""
        half = np.dtype(ml_dtypes.bfloat16)
        file, record = compiled(tmp_path / "half", "0.9.4+lab", "bfloat16")
        assert record["buckets"][0]["outputs"][1]["dtype"] == "bfloat16"
        model = load(file=file, kind="TYPE_BF16", isolation=isolation)
        values = np.array([[0.5, -2, 3e30], [1, 0, 96]], half)
        asked = [Request(A=rows.view(np.uint16), B=np.full((len(rows), 2), 3)) for rows in (values, values[:1], -values)]
        for question in asked:
            question.halves = ("A",)
        for question, response in zip(asked, ask(model, asked)):
            assert response.error is None, response.error.message
            assert response.halves == {"TWICE"}
            np.testing.assert_array_equal(response.outputs["TWICE"].view(half), question["A"].view(half) * half.type(2))
            np.testing.assert_array_equal(response.outputs["SQUARE"], question["B"] ** 2)
        wrong = Request(A=asked[0]["A"][:, :2], B=asked[0]["B"])
        wrong.halves = ("A",)
        (response,) = ask(model, [wrong])
        assert response.error.message == "model two: input A is bfloat16[2, 2], expected bfloat16[rows, 3]"

    @pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
    def test_bfloat16_where_triton_has_none(self, load: Load, tmp_path: Path, host: Host) -> None:
        file, _record = compiled(tmp_path / "half", "0.9.4+lab", "bfloat16")
        with pytest.raises(TritonModelException, match=r"^model two: it has bfloat16 tensors, .* expected release 24\.08 or newer"):
            load(file=file, kind="TYPE_BF16")

    @pytest.mark.parametrize("known", [True, False])
    def test_bfloat16_that_triton_took_is_freed_once(self, known: bool) -> None:
        """Also where it takes a tensor and then refuses it. In a process of its own: freed twice, it ends."""
        code = f"""
            import sys
            sys.path[:0] = [{str(BACKEND)!r}, {str(Path(__file__).parent)!r}]
            import types, played
            from npufleet_rbln import bfloat16
            played.Tensor.halves = {known}
            utils = types.SimpleNamespace(Tensor=played.Tensor, TritonModelException=played.TritonModelException)
            print([bfloat16.supported(utils) for _number in range(3)])
        """
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{[known] * 3}\n", "")

    def test_without_a_process_of_its_own(self, load: Load) -> None:
        model = load(isolation="none")
        asked = requests(4, 1)
        assert all(is_answer(response, question) for response, question in zip(ask(model, asked), asked))
        assert model._device.ready().process is None and "rebel" in sys.modules


class TestLoading:
    @pytest.mark.parametrize(
        "setting, value, message",
        [
            ("NPU_NAME", "RBLN-CA12", "the file was compiled for RBLN-CA22, NPU 0 is RBLN-CA12"),
            (
                "VERSION",
                "0.11.2+lab",
                "the file was compiled with SDK 0.9.4+lab, the image has 0.11.2+lab: compile it again with 0.11",
            ),
        ],
    )
    def test_what_contradicts_is_named_all_at_once(
        self, load: Load, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, message: str
    ) -> None:
        set_version = monkeypatch.setenv

        def other(name: str, text: str) -> None:
            set_version(name, value if name == f"RBLN_LAB_{setting}" else text)

        other(f"RBLN_LAB_{setting}", value)
        monkeypatch.setattr(monkeypatch, "setenv", other)
        with pytest.raises(TritonModelException) as told:
            load(rows=8)
        assert str(told.value) == (
            f"model two: {message}; config.pbtxt does not match the compiled file as inspect describes it: "
            "max_batch_size is 8, compiled batches are [4, 1, 2]"
        )

    def test_no_memory(self, load: Load, host: Host, log: list[str]) -> None:
        host.fault({"npu": 0, "kind": "no_memory"})
        with pytest.raises(TritonModelException) as told:
            load()
        advice = "free some, or give the model fewer instances or smaller batches"
        assert str(told.value) == f"model two: NPU 0 has no memory left: {advice} (Lack of device memory)"
        assert "Traceback" in log[0]

    def test_a_process_that_dies_while_it_loads(self, load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "rebel.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(TritonModelException, match=r"^model two: the device process was killed by signal 11 while it loaded"):
            load()


class TestHung:
    @BOTH
    @pytest.mark.parametrize("kind", ["hang", "hang_forever"])
    def test_nobody_waits_longer_than_the_timeout_and_it_comes_back(
        self, load: Load, host: Host, families: Families, kind: str
    ) -> None:
        """`hang_forever` holds Python's lock in the device process, as a native call may; that process is killed."""
        model = load(device_timeout_ms="900")
        first = process(model).pid
        host.fault({"npu": 0, "kind": kind})
        asked = requests(1, 2, 1, 1)
        # The NPU hangs until `host.fault()`: nobody has waited for it.
        responses = ask(model, asked)
        for response in responses:
            assert response.error.code == TritonError.UNAVAILABLE
        wanted = "model two: NPU 0 did not answer within 900 ms: it is being started again, try later"
        assert responses[0].error.message == wanted
        assert families.value("rbln_device_fault") == 1
        (response,) = ask(model, requests(1))
        assert response.error.code == TritonError.UNAVAILABLE
        host.fault()
        until(lambda: families.value("rbln_device_fault") == 0)
        assert is_answer(ask(model, [request(1)])[0], request(1))
        assert process(model).pid != first
        until(lambda: not Path(f"/proc/{first}").exists())
        model._metrics.flush()
        assert families.value("rbln_errors_total", kind="timeout") == families.value("rbln_errors_total") == 5

    @pytest.mark.parametrize("kind", ["start", "probe"])
    def test_no_second_process_joins_one_that_does_not_end(
        self, load: Load, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        """It hangs while it loads, or at its first run, and sleeps in the driver, where no signal reaches it."""
        device = sys.modules["npufleet_rbln.device"]
        for name in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S", "END_TIMEOUT_S"):
            monkeypatch.setattr(device, name, 0.01)
        model = load(device_timeout_ms="900")
        asleep, started = threading.Event(), []
        asleep.set()

        class Asleep(subprocess.Popen[bytes]):
            """A process that is killed in vain for as long as it is asleep."""

            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self.killed = 0
                started.append(self)

            def kill(self) -> None:
                self.killed += 1
                if not asleep.is_set():
                    super().kill()

        monkeypatch.setattr(subprocess, "Popen", Asleep)
        hangs = tmp_path / "hangs"
        hangs.mkdir()
        monkeypatch.syspath_prepend(str(hangs))
        if kind == "start":
            monkeypatch.setattr(device, "LOAD_TIMEOUT_S", 0.4)
            (hangs / "rebel.py").write_text("import signal\nwhile True: signal.pause()\n")
        else:
            host.fault({"npu": 0, "kind": "hang_forever"})
        first = process(model)
        first.kill()
        until(lambda: started and (started[0].killed > 20 or len(started) > 1))
        assert len(started) == 1
        (response,) = ask(model, requests(1))
        assert f"device process {started[0].pid} does not end" in response.error.message
        monkeypatch.setattr(device, "LOAD_TIMEOUT_S", 300.0)
        host.fault()
        (hangs / "rebel.py").unlink(missing_ok=True)
        asleep.clear()
        until(lambda: model._device.runner is not None)
        assert is_answer(ask(model, [request(3)])[0], request(3))
        assert started[0].poll() is not None

    def test_a_process_that_dies_is_started_again(self, load: Load, families: Families) -> None:
        model = load()
        first = process(model)
        first.kill()
        until(lambda: model._device.runner is None or process(model) is not first)
        until(lambda: model._device.runner is not None)
        assert is_answer(ask(model, [request(3)])[0], request(3))
        assert families.value("rbln_device_fault") == 0

    def test_without_a_process_of_its_own_it_waits_for_the_call(self, load: Load, host: Host, families: Families) -> None:
        model = load(device_timeout_ms="900", isolation="none")
        host.fault({"npu": 0, "kind": "hang"})
        (response,) = ask(model, requests(1))
        assert response.error.message.startswith("model two: NPU 0 did not answer within 900 ms")
        assert families.value("rbln_device_fault") == 1
        host.fault()
        until(lambda: families.value("rbln_device_fault") == 0)
        assert is_answer(ask(model, [request(2)])[0], request(2))

    def test_the_vendors_own_limit_comes_first(self, load: Load, host: Host) -> None:
        """A process that is killed may leave its card wedged: a runtime that gives up by itself keeps its process."""
        model = load("0.11.2+lab", device_timeout_ms="1600")
        first = process(model).pid
        host.fault({"npu": 0, "kind": "hang", "times": 1})
        (response,) = ask(model, requests(1))
        assert "within the timeout of 1 s" in response.error.message
        assert process(model).pid == first
        assert is_answer(ask(model, [request(2)])[0], request(2))


class TestNothingIsLeft:
    def test_after_the_model(self, load: Load, host: Host) -> None:
        shared = set(os.listdir("/dev/shm"))
        model = load()
        ask(model, requests(1))
        gone = process(model).pid
        descriptors = len(os.listdir("/proc/self/fd"))
        model.finalize()
        assert not Path(f"/proc/{gone}").exists()
        assert len(os.listdir("/proc/self/fd")) < descriptors
        # The state of the played NPUs is the stand-in's, and servers on this machine have regions of their own.
        left = set(os.listdir("/dev/shm")) - shared
        assert {name for name in left if not name.startswith(("npufleet-lab-", "triton_"))} == set()

    def test_after_a_stub_that_was_killed(self, files: dict[str, bytes], host: Host, tmp_path: Path) -> None:
        """Nobody closes anything: the kernel ends the device process with its stub, even one whose call never returns."""
        (tmp_path / "model.rbln").write_bytes(files["0.9.4+lab"])
        code = f"""
            import sys, time
            sys.path[:0] = [{str(BACKEND)!r}, {str(SDK)!r}]
            from npufleet_rbln.device import Device
            tensor = lambda name, kind, dims: {{"name": name, "data_type": kind, "dims": dims}}
            config = {{"max_batch_size": 4, "input": [tensor("A", "TYPE_FP32", [3]), tensor("B", "TYPE_INT64", [2])],
                      "output": [tensor("SQUARE", "TYPE_INT64", [2]), tensor("TWICE", "TYPE_FP32", [3])]}}
            job = {{"config": config, "path": {str(tmp_path / "model.rbln")!r}, "instance": "two_0_0", "timeout_s": 0}}
            device = Device(job, True, 60.0, print)
            device.ready().buffers.submit(0)
            print(device.ready().process.pid, flush=True)
            time.sleep(60)
        """
        host.fault({"npu": 0, "kind": "hang_forever"})
        environment = {**os.environ, "RBLN_LAB_VERSION": "0.9.4+lab", "PYTHONDONTWRITEBYTECODE": "1"}
        stub = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert stub.stdout is not None
            child = int(stub.stdout.readline())
            assert Path(f"/proc/{child}").exists()
        finally:
            stub.send_signal(signal.SIGKILL)
            stub.wait()
            stub.stdout.close()  # type: ignore[union-attr]
        try:
            until(lambda: ended(child))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def ended(pid: int) -> bool:
    """Whether a process is gone, or is a dead one that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def links(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    return [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
