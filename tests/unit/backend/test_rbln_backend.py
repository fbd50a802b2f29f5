"""The `rbln` backend with Triton's utilities and the SDK played: joining, padding, slicing, errors, and which NPU."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Optional

import numpy as np
import pytest
from played import (
    NPU,
    Families,
    Serve,
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

BOTH = pytest.mark.parametrize("release", ["24.01", "24.10"], indirect=True)


class TestJoining:
    @pytest.mark.parametrize(
        "batches, sizes, runs",
        [
            ((1, 2, 4), [1], [1]),
            ((1, 2, 4), [1, 1], [2]),
            ((1, 2, 4), [1, 2], [4]),  # three rows, one of padding
            ((1, 2, 4), [3], [4]),
            ((1, 2, 4), [1, 2, 1, 1], [4, 1]),
            ((1, 2, 4), [2, 1, 1, 3, 1, 4, 2, 1], [4, 4, 4, 4]),
            ((4, 1, 2), [1, 1, 3, 1], [2, 4]),  # a file's order need not be sorted
            ((1, 8), [3, 4], [8]),
            ((8,), [1], [8]),
            ((3, 5), [2, 2, 2], [5, 3]),
        ],
    )
    @BOTH
    def test_each_request_gets_its_own_rows(
        self, serve: Serve, batches: tuple[int, ...], sizes: list[int], runs: list[int]
    ) -> None:
        npu = NPU(batches=batches)
        asked = requests(*sizes)
        responses = ask(serve(npu), asked)
        assert len(responses) == len(asked)
        assert all(is_answer(response, question) for response, question in zip(responses, asked))
        assert sorted(len(a) for a, _b in npu.runs) == sorted(runs)

    def test_groups_keep_order_and_limit(self, backend: ModuleType) -> None:
        random = np.random.RandomState(7)
        for _round in range(200):
            limit = int(random.randint(1, 9))
            tensor = backend.compiled.Tensor("A", (limit, 3), "float32")
            bucket = backend.compiled.Bucket((tensor,), (tensor,))
            batcher = backend.Batcher(backend.compiled.Plan(True, (bucket,), (limit,)))
            sizes = [int(size) for size in random.randint(1, limit + 1, random.randint(0, 12))]
            items = [batcher.item(None, [np.zeros((rows, 3), np.float32)], index) for index, rows in enumerate(sizes)]
            joined = batcher.groups(items)
            assert [member.index for members in joined for member in members] == list(range(len(sizes)))
            totals = [sum(member.rows for member in members) for members in joined]
            assert all(total <= limit for total in totals)
            firsts = [members[0].rows for members in joined[1:]]
            assert all(total + first > limit for total, first in zip(totals, firsts)), "joined too little"

    def test_padding_is_zeros_and_is_not_answered(self, serve: Serve) -> None:
        npu = NPU()
        asked = requests(2, 1)
        responses = ask(serve(npu), asked)
        (a, b), *more = npu.runs
        assert not more
        np.testing.assert_array_equal(a, [*asked[0]["A"], *asked[1]["A"], [0, 0, 0]])
        np.testing.assert_array_equal(b, [*asked[0]["B"], *asked[1]["B"], [0, 0]])
        assert [len(response.outputs["TWICE"]) for response in responses] == [2, 1]

    def test_no_requests_no_run(self, serve: Serve) -> None:
        npu = NPU()
        assert serve(npu).execute([]) == []
        assert npu.runs == []

    def test_a_model_without_a_batch_runs_request_by_request(self, serve: Serve) -> None:
        npu = NPU(batches=(0,))
        model = serve(npu, batches="1", max_batch_size=0)
        asked = [{name: array[0] for name, array in question.items()} for question in requests(1, 1)]
        assert all(is_answer(response, question) for response, question in zip(model.execute(asked), asked))
        assert [a.shape for a, _b in npu.runs] == [(3,), (3,)]

    def test_outputs_as_a_list_and_one_as_an_array(self, serve: Serve) -> None:
        npu = NPU()
        npu.answer = lambda a, b: [b * b, a * 2]
        assert is_answer(serve(npu).execute(requests(1))[0], request(1))
        npu = NPU()
        npu.answer = lambda a, b: a * 2
        (response,) = serve(npu, output=[output("TWICE", "TYPE_FP32", [3])]).execute(requests(1))
        np.testing.assert_array_equal(response.outputs["TWICE"], request(1)["A"] * 2)

    @pytest.mark.parametrize("version, runtimes", [("0.9.4", 3), ("0.10.3", 3), ("0.11.0", 1), ("0.11.2+lab", 1)])
    def test_one_runtime_serves_all_buckets_since_0_11(self, serve: Serve, version: str, runtimes: int) -> None:
        npu = NPU(version=version)
        model = serve(npu)
        asked = requests(1, 4, 2)
        for question in asked:
            assert is_answer(ask(model, [question])[0], question)
        assert [len(a) for a, _b in npu.runs] == [1, 4, 2]
        assert npu.devices == [0] * runtimes

    @pytest.mark.parametrize("said, runtimes", [("true", 3), ("false", 1)])
    def test_a_parameter_counts_before_the_version(self, serve: Serve, said: str, runtimes: int) -> None:
        """Nobody here has seen every version: a site may know better."""
        npu = NPU(version="0.11.2" if said == "true" else "0.9.4")
        npu.takes_buckets = said == "true"
        serve(npu, runtime_per_bucket=said)
        assert npu.of_buckets == [said == "true"] * runtimes

    def test_inputs_reach_the_sdk_contiguous(self, serve: Serve) -> None:
        """Where no other process reads them, a request that fills its bucket goes as it is."""
        entry = request(2)
        strided = type(entry)(A=np.asfortranarray(entry["A"]), B=np.repeat(entry["B"], 2, axis=1)[:, ::2])
        assert not strided["A"].flags.c_contiguous and not strided["B"].flags.c_contiguous
        assert is_answer(ask(serve(NPU()), [strided])[0], entry)

    @pytest.mark.parametrize(
        "answer, found",
        [
            (lambda a, b: {"SQUARE": b * b}, "dict"),
            (lambda a, b: None, "NoneType"),
            (lambda a, b: [b * b, (a * 2).tolist()], "list"),
        ],
    )
    def test_outputs_of_no_known_kind_are_named(self, serve: Serve, answer: Callable[..., Any], found: str) -> None:
        npu = NPU()
        model = serve(npu)
        npu.answer = answer
        (response,) = ask(model, requests(1))
        assert (
            response.error.message
            == f"model two: the SDK's runtime returned {found}, expected an array, or a list or tuple of them"
        )


class TestCancelledRequests:
    def test_a_cancelled_request_that_waited_does_not_run(
        self, serve: Serve, backend: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backend, "CANCEL_AFTER_S", 0.0)
        npu = NPU()
        model = serve(npu)
        asked = requests(1, 1, 2)
        asked[1].cancelled = True
        first, second, third = ask(model, asked)
        assert second.error is not None and second.error.code == TritonError.CANCELLED
        assert is_answer(first, asked[0]) and is_answer(third, asked[2])
        assert [int((a[:, 0] != 0).sum()) for a, _b in npu.runs] == [3]

    def test_a_batch_of_cancelled_requests_does_not_run(self, serve: Serve, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backend, "CANCEL_AFTER_S", 0.0)
        npu = NPU()
        model = serve(npu)
        asked = requests(1, 2)
        for entry in asked:
            entry.cancelled = True
        assert [response.error.code for response in ask(model, asked) if response.error] == [TritonError.CANCELLED] * 2
        assert npu.runs == []

    def test_a_request_that_has_just_arrived_is_not_queried(self, serve: Serve) -> None:
        npu = NPU()
        model = serve(npu)
        entry = request(1)
        entry.cancelled = True
        assert is_answer(ask(model, [entry])[0], entry)


class TestErrors:
    def test_a_failed_request_is_logged_with_its_id(self, serve: Serve, utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        entries: list[str] = []
        asked = requests(1, 5, 6)
        for given, identity in zip(asked, ("first", "client-7\n", "")):
            monkeypatch.setattr(given, "request_id", lambda identity=identity: identity, raising=False)
        served = serve(NPU())
        monkeypatch.setattr(utils.Logger, "log_info", entries.append)
        ask(served, asked)
        assert entries == [r"model two: request 'client-7\n': a batch of 5 is larger than the largest compiled batch, 4"]

    def test_too_many_rows_fail_alone_and_name_the_limit(self, serve: Serve) -> None:
        asked = requests(1, 5, 2)
        first, second, third = ask(serve(NPU()), asked)
        assert is_answer(first, asked[0]) and is_answer(third, asked[2])
        assert second.error.code == TritonError.INVALID_ARG
        assert second.error.message == "model two: a batch of 5 is larger than the largest compiled batch, 4"

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda entry: entry.pop("B"), "model two: input B is missing"),
            (lambda entry: entry.update(B=request(3)["B"]), "model two: inputs have different batch sizes: [1, 3]"),
        ],
    )
    def test_a_bad_request_fails_alone(self, serve: Serve, change: Callable[..., Any], message: str) -> None:
        npu = NPU()
        asked = requests(1, 1, 1)
        change(asked[1])
        first, second, third = ask(serve(npu), asked)
        assert is_answer(first, asked[0]) and is_answer(third, asked[2])
        assert (second.error.code, second.error.message) == (TritonError.INVALID_ARG, message)

    @BOTH
    @pytest.mark.parametrize("kind", [RuntimeError, ValueError, TypeError, OSError])
    def test_a_run_that_fails_fails_its_requests_only(self, serve: Serve, log: list[str], kind: type[Exception]) -> None:
        npu = NPU()
        model = serve(npu, instance="two_0_1")

        def answer(a: np.ndarray, b: np.ndarray) -> Any:
            if len(npu.runs) == 1:
                raise kind("LAUNCH_FAILED in /opt/vendor/lib/librbln.so\n  at /opt/vendor/src/run.cc:7")
            return b * b, a * 2

        npu.answer = answer
        asked = requests(2, 2, 3)
        first, second, third = ask(model, asked)
        assert is_answer(third, asked[2])
        for response in (first, second):
            assert response.error.code == TritonError.UNAVAILABLE
            assert response.error.message == "model two: NPU 1: LAUNCH_FAILED in librbln.so"
        assert len(log) == 1
        assert "NPU 1" in log[0] and "run.cc:7" in log[0] and "Traceback" in log[0]

    @BOTH
    @pytest.mark.parametrize(
        "error, code, kind, message",
        [
            (
                RuntimeError("Lack of device memory"),
                TritonError.UNAVAILABLE,
                "no_memory",
                "NPU 0 has no memory left: free some, or give the model fewer instances or smaller batches (Lack of device memory)",
            ),
            (
                MemoryError(),
                TritonError.UNAVAILABLE,
                "no_memory",
                "NPU 0 has no memory left: free some, or give the model fewer instances or smaller batches (MemoryError)",
            ),
            (
                RuntimeError("Inference failed: 503"),
                TritonError.UNAVAILABLE,
                "device",
                "NPU 0 refuses to run: the card may be wedged, end other processes that use the card or reset it "
                "(Inference failed: 503)",
            ),
            (
                RuntimeError("run timed out"),
                TritonError.UNAVAILABLE,
                "timeout",
                "NPU 0 did not answer in time (run timed out)",
            ),
        ],
    )
    def test_the_vendors_errors_say_what_to_do(
        self, serve: Serve, families: Families, error: Exception, code: str, kind: str, message: str
    ) -> None:
        npu = NPU()
        model = serve(npu)

        def answer(a: np.ndarray, b: np.ndarray) -> Any:
            raise error

        npu.answer = answer
        for response in ask(model, requests(1, 1)):
            assert (response.error.code, response.error.message) == (code, f"model two: {message}")
        assert families.value("rbln_device_fault") == (1 if kind == "timeout" else 0)
        npu.answer = lambda a, b: (b * b, a * 2)
        assert is_answer(ask(model, requests(1))[0], request(1))
        assert families.value("rbln_device_fault") == 0
        model._metrics.flush()
        assert families.value("rbln_errors_total", kind=kind) == families.value("rbln_errors_total") == 2

    def test_every_failed_request_has_a_response_of_its_own(self, serve: Serve) -> None:
        """One object for two requests crashes Triton 24.01, all of it."""
        npu = NPU()
        model = serve(npu)
        npu.answer = lambda a, b: 1 / 0
        responses = model.execute(requests(1, 1, 1, 1))
        assert len({id(response) for response in responses}) == len({id(response.error) for response in responses}) == 4

    @pytest.mark.parametrize(
        "answer, message",
        [
            (lambda a, b: b * b, "the compiled file returned 1 outputs, expected 2"),
            (lambda a, b: (a * 2, b * b), "output SQUARE of the compiled file is float32[2, 3], expected int64[2, 2]"),
            (
                lambda a, b: (b * b, (a * 2).astype(np.float64)),
                "output TWICE of the compiled file is float64[2, 3], expected float32[2, 3]",
            ),
            (lambda a, b: (b * b, a[:1]), "output TWICE of the compiled file is float32[1, 3], expected float32[2, 3]"),
            (lambda a, b: (b * b, a.ravel()), "output TWICE of the compiled file is float32[6], expected float32[2, 3]"),
        ],
    )
    def test_outputs_that_are_not_the_buckets(self, serve: Serve, answer: Callable[..., Any], message: str) -> None:
        npu = NPU()
        model = serve(npu)
        npu.answer = answer
        (response,) = model.execute([request(2)])
        assert (response.error.code, response.error.message) == (TritonError.INTERNAL, f"model two: {message}")

    @pytest.mark.parametrize(
        "answer, message",
        [
            (lambda a, b: b * b, "config has 2 outputs ['SQUARE', 'TWICE'], the file 1 ['?']"),
            (
                lambda a, b: (b * b, (a * 2).astype(np.float64)),
                "output TWICE is TYPE_FP32, in the file TYPE_FP64",
            ),
            (lambda a, b: (b * b, a[:, :1]), "output TWICE has dims [3], in the file [1]"),
        ],
    )
    def test_outputs_that_are_not_the_configs_are_found_at_load(
        self, serve: Serve, answer: Callable[..., Any], message: str
    ) -> None:
        npu = NPU()
        npu.answer = answer
        with pytest.raises(
            TritonModelException, match=r"config.pbtxt does not match the compiled file as a test run describes"
        ) as told:
            serve(npu)
        assert str(told.value).endswith(message)

    def test_open_and_reshaped_dims_of_the_config(self, serve: Serve) -> None:
        outputs = [output("SQUARE", "TYPE_INT64", [-1]), output("TWICE", "TYPE_FP32", [1, 3], reshape={"shape": [3]})]
        assert is_answer(ask(serve(NPU(), output=outputs), [request(2)])[0], request(2))


class TestWhichNPU:
    @pytest.mark.parametrize(
        "instance, count, npus, npu",
        [
            ("two_0_0", 2, None, 0),
            ("two_0_1", 2, None, 1),
            ("two_0_5", 4, None, 1),
            ("npu_3", 4, None, 3),
            ("two_0_10", 16, None, 10),
            ("two_0_0", 4, "2,3", 2),
            ("two_0_1", 4, "2,3", 3),
            ("two_0_2", 4, "2, 3", 2),
        ],
    )
    def test_by_the_instances_index(self, serve: Serve, instance: str, count: int, npus: Optional[str], npu: int) -> None:
        sdk = NPU(count=count)
        serve(sdk, instance=instance, **({"npus": npus} if npus else {}))
        assert sdk.devices == [npu] * 3

    @pytest.mark.parametrize("index, npus", [(0, [0, 1]), (1, [2, 3]), (2, [0, 1]), (3, [2, 3])])
    def test_a_model_that_spans_npus_takes_consecutive_ones(self, serve: Serve, index: int, npus: list[int]) -> None:
        sdk = NPU(count=5)
        serve(sdk, instance=f"two_0_{index}", npus_per_instance="2")
        assert sdk.devices == [npus] * 3

    def test_nothing_is_touched_before_initialize(self, backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        """The import of the SDK would fail; a config that leaves nothing out needs none."""
        monkeypatch.setitem(sys.modules, "rebel", None)  # type: ignore[arg-type]
        whole = {"name": "two", "input": [{"name": "A"}], "output": [{"name": "B"}]}
        config = SimpleNamespace(as_dict=lambda: whole)
        assert backend.TritonPythonModel.auto_complete_config(config) is config

    def test_instances_of_one_name_share_no_counter(
        self, serve: Serve, families: Families, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Triton frees a counter with the first that lets go of it, and a reload has two instances of one name for a moment."""
        for process in (1001, 1002):
            monkeypatch.setattr(os, "getpid", lambda process=process: process)
            serve(NPU())
        assert {dict(labels)["process"] for family in families.values.values() for labels in family} == {"1001", "1002"}

    def test_finalize_gives_the_npu_back(self, serve: Serve) -> None:
        sdk = NPU()
        model = serve(sdk)
        assert sdk.alive == 3
        model.finalize()
        del model
        until(lambda: gc.collect() is not None and sdk.alive == 0)


class TestLoading:
    @pytest.mark.parametrize(
        "npu, config, message",
        [
            (NPU(count=0), {}, "no NPU is visible: the container needs /dev/rbln* and /dev/rsd0"),
            (NPU(), {"npus": "5"}, "parameter npus names NPU 5, 2 are visible"),
            (NPU(), {"npus": "all"}, "parameter npus is 'all', expected numbers such as 1,2,4"),
            (NPU(), {"npus": "-1"}, "parameter npus is '-1', expected numbers such as 1,2,4"),
            (NPU(), {"batches": "1;2"}, "parameter batches is '1;2', expected numbers such as 1,2,4"),
            (NPU(), {"batches": ""}, "parameter batches is '', expected numbers such as 1,2,4"),
            (NPU(), {"batches": "0,4"}, "parameter batches names 0, expected sizes of 1 and above"),
            (NPU(), {"max_batch_size": 8}, "max_batch_size is 8, compiled batches are [1, 2, 4]"),
            (NPU(), {"runtime_per_bucket": "yes"}, "parameter runtime_per_bucket is 'yes', expected true or false"),
            (NPU(), {"npus_per_instance": "3"}, "parameter npus_per_instance is 3, the model may use 2 NPUs: [0, 1]"),
            (NPU(), {"npus_per_instance": "0"}, "parameter npus_per_instance is '0', expected a number of 1 and above"),
            (NPU(), {"device_timeout_ms": "soon"}, "parameter device_timeout_ms is 'soon', expected a number of 1 and above"),
            (NPU(), {"isolation": "thread"}, "parameter isolation is 'thread', expected process or none"),
            (NPU(), {"instance": "two"}, "the name of instance two does not end with an index, which selects its NPU"),
        ],
    )
    def test_refusals_say_why(self, serve: Serve, npu: NPU, config: dict[str, Any], message: str) -> None:
        with pytest.raises(TritonModelException) as refusal:
            serve(npu, **config)
        assert str(refusal.value) == f"model two: {message}"

    def test_no_file(self, backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rebel", NPU())  # type: ignore[arg-type]
        config = {"max_batch_size": 0, "input": [], "output": []}
        (tmp_path / "1").mkdir()
        for name, wanted in ((None, "model.rbln"), ("other.rbln", "other.rbln")):
            with pytest.raises(TritonModelException, match=f"^model two: version 1 has no {wanted}$"):
                args = arguments(tmp_path, {**config, "default_model_filename": name}, "two_0_0")
                backend.TritonPythonModel().initialize(args)

    def test_no_sdk(self, backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rebel", None)  # type: ignore[arg-type]
        with pytest.raises(TritonModelException, match=r"^model two: the image has no usable SDK, rebel-compiler: "):
            (tmp_path / "1").mkdir()
            (tmp_path / "1/model.rbln").touch()
            backend.TritonPythonModel().initialize(arguments(tmp_path, {"parameters": parameters(isolation="none")}, "two_0_0"))

    def test_file_of_another_name(self, serve: Serve, tmp_path: Path) -> None:
        model = serve(NPU(), default_model_filename="resnet.rbln")
        assert [path.name for path in (tmp_path / "two/1").iterdir()] == ["resnet.rbln"]
        assert is_answer(ask(model, requests(1))[0], request(1))
