"""Triton backend `rbln`: a model is a config.pbtxt and a compiled file, without a model.py of its own.

An instance runs on the NPU of its index. The requests of one call are joined into one batch, padded to the next size
that the file was compiled for, run, and sliced back in their order.

Parameters of a model: `npus` (such as "0,1") names the NPUs that its instances use, default is all that are visible;
`batches` (such as "1,2,4") names the compiled batch sizes in the file's order, default is 1 alone. The compiled file is
`model.rbln` in the version directory, or what the config calls `default_model_filename`.
"""

from __future__ import annotations

import json
import os
import re
import traceback
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

COMPILED_FILE = "model.rbln"


class ModelError(Exception):
    """Why a model cannot be loaded or a request not be answered, in words for who sent it."""


def parameter(config: Dict[str, Any], name: str, default: str) -> str:
    """String value of a model parameter."""
    return ((config.get("parameters") or {}).get(name) or {}).get("string_value", default)


def numbers(text: str, what: str) -> List[int]:
    """Numbers out of a list such as "1,2,4"."""
    parts = [one.strip() for one in text.split(",")]
    if not all(one.isdecimal() for one in parts):
        raise ModelError(f"parameter {what} is {text!r}, wanted numbers such as 1,2,4")
    return [int(one) for one in parts]


def words(error: Exception) -> str:
    """An error as one line for a client: the first line of its text, without the directories of paths."""
    text = str(error).strip()
    return re.sub(r"(?<![\w.])/(?:[^\s/]+/)+", "", text.splitlines()[0]) if text else type(error).__name__


def npu_of(instance: str, npus: Sequence[int]) -> int:
    """NPU of an instance: the trailing index of its name, around the NPUs that the model may use."""
    index = instance.rsplit("_", 1)[-1]
    if not index.isdigit():
        raise ModelError(f"instance {instance} has no trailing index to choose an NPU by")
    if not npus:
        raise ModelError("no NPU is visible: the container needs /dev/rbln* and /dev/rsd0")
    return npus[int(index) % len(npus)]


def bucket_for(rows: int, batches: Sequence[int]) -> int:
    """Index of the smallest compiled batch that holds `rows`; `batches` is in the file's order, which need not be sorted."""
    fitting = [(size, index) for index, size in enumerate(batches) if size >= rows]
    if not fitting:
        raise ModelError(f"a batch of {rows} is above the largest compiled one, {max(batches)}")
    return min(fitting)[1]


def groups(sizes: Sequence[int], limit: int) -> List[List[int]]:
    """Request indexes in order, joined into batches of at most `limit` rows."""
    joined: List[List[int]] = []
    rows = 0
    for index, size in enumerate(sizes):
        if not joined or rows + size > limit:
            joined.append([])
            rows = 0
        joined[-1].append(index)
        rows += size
    return joined


def join(parts: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Arrays [n, ...] one after the other in one of `rows` rows; what is left over is zeros."""
    if len(parts) == 1 and len(parts[0]) == rows:
        return np.ascontiguousarray(parts[0])
    batch = np.zeros((rows, *parts[0].shape[1:]), parts[0].dtype)
    np.concatenate(parts, out=batch[: sum(len(part) for part in parts)])
    return batch


class TritonPythonModel:
    """One instance: one compiled file on one NPU."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Nothing is filled in: the config that is served says everything, and no NPU is touched to read it."""
        return config

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the compiled file onto this instance's NPU."""
        try:
            self._load(args)
        except (ModelError, RuntimeError) as error:
            raise pb_utils.TritonModelException(f"model {args['model_name']}: {error}") from None

    def _load(self, args: Dict[str, str]) -> None:
        try:
            import rebel
        except ImportError as error:
            raise ModelError(f"the image has no usable SDK, rebel-compiler: {error}") from error
        config = json.loads(args["model_config"])
        self._name = args["model_name"]
        self._batched = config.get("max_batch_size", 0) > 0
        self._inputs = [one["name"] for one in config["input"]]
        self._outputs = [
            (
                one["name"],
                np.dtype(pb_utils.triton_string_to_numpy(one["data_type"])),
                [int(size) for size in (one.get("reshape") or {}).get("shape", one["dims"])],
            )
            for one in config["output"]
        ]
        self._batches = numbers(parameter(config, "batches", "1"), "batches")
        if min(self._batches) < 1:
            raise ModelError(f"parameter batches names {min(self._batches)}, wanted sizes of 1 and above")
        if self._batched and config["max_batch_size"] > max(self._batches):
            raise ModelError(f"max_batch_size is {config['max_batch_size']}, compiled batches are {self._batches}")
        visible = ",".join(str(number) for number in range(rebel.device_count()))
        npus = parameter(config, "npus", visible)
        self._npu = npu_of(args["model_instance_name"], numbers(npus, "npus") if npus else [])
        file = config.get("default_model_filename") or COMPILED_FILE
        path = os.path.join(args["model_repository"], args["model_version"], file)
        if not os.path.isfile(path):
            raise ModelError(f"version {args['model_version']} has no {file}")
        compiled = rebel.RBLNCompiledModel(path)
        self._runtimes = [
            compiled.create_runtime(input_info_index=index, tensor_type="np", device=self._npu)
            for index in range(len(self._batches))
        ]
        pb_utils.Logger.log_info(f"model {self._name}: {args['model_instance_name']} on NPU {self._npu}, batches {self._batches}")

    def execute(self, requests: List[Any]) -> List[Any]:
        """One response for each request, in order. A request that cannot be run fails alone."""
        responses: List[Any] = [None] * len(requests)
        good: List[Tuple[int, List[np.ndarray]]] = []
        for index, request in enumerate(requests):
            try:
                good.append((index, self._tensors(request)))
            except ModelError as error:
                responses[index] = self._failure(error, pb_utils.TritonError.INVALID_ARG)
        if self._batched:
            joined = groups([len(tensors[0]) for _index, tensors in good], max(self._batches))
        else:
            joined = [[number] for number in range(len(good))]
        for members in joined:
            chosen = [good[number] for number in members]
            try:
                answers = self._run([tensors for _index, tensors in chosen])
            except Exception as error:  # whatever escaped here would fail every request of this call, traceback included
                code = pb_utils.TritonError.INTERNAL if isinstance(error, ModelError) else pb_utils.TritonError.UNAVAILABLE
                pb_utils.Logger.log_error(f"model {self._name}: NPU {self._npu}: {traceback.format_exc()}")
                # A response each: one that stands for two requests crashes the whole server.
                answers = [self._failure(error, code) for _one in chosen]
            for (index, _tensors), answer in zip(chosen, answers):
                responses[index] = answer
        return responses

    def _tensors(self, request: Any) -> List[np.ndarray]:
        """Inputs of a request in the config's order; batched ones must agree on their rows."""
        tensors = []
        for name in self._inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise ModelError(f"input {name} is missing")
            tensors.append(tensor.as_numpy())
        if self._batched:
            rows = {len(tensor) for tensor in tensors}
            if len(rows) != 1:
                raise ModelError(f"inputs have different batch sizes: {sorted(rows)}")
            bucket_for(rows.pop(), self._batches)
        return tensors

    def _run(self, members: List[List[np.ndarray]]) -> List[Any]:
        """Run requests as one batch and slice the outputs back."""
        if not self._batched:
            arrays = self._call(self._runtimes[0], members[0], [])
            return [self._response(arrays)]
        sizes = [len(tensors[0]) for tensors in members]
        bucket = bucket_for(sum(sizes), self._batches)
        batch = [join([tensors[number] for tensors in members], self._batches[bucket]) for number in range(len(self._inputs))]
        arrays = self._call(self._runtimes[bucket], batch, [self._batches[bucket]])
        responses = []
        first = 0
        for size in sizes:
            responses.append(self._response([array[first : first + size] for array in arrays]))
            first += size
        return responses

    def _call(self, runtime: Any, inputs: Sequence[np.ndarray], rows: List[int]) -> List[np.ndarray]:
        """Outputs of one run as a list, whether the runtime gives one array, a list or a tuple.

        They have to be what the config says, [*rows, *dims]: Triton itself would hand anything on to the client.
        """
        found = runtime.run(*inputs)
        arrays = list(found) if isinstance(found, (list, tuple)) else [found]
        if len(arrays) != len(self._outputs):
            raise ModelError(f"the compiled file has {len(arrays)} outputs, the config names {len(self._outputs)}")
        for (name, kind, dims), array in zip(self._outputs, arrays):
            wanted = rows + dims
            same = len(wanted) == array.ndim and all(one in (-1, size) for one, size in zip(wanted, array.shape))
            if array.dtype != kind or not same:
                found = f"{array.dtype}{list(array.shape)}"
                raise ModelError(f"output {name} of the compiled file is {found}, the config says {kind}{wanted}")
        return arrays

    def _response(self, arrays: Sequence[np.ndarray]) -> Any:
        tensors = [pb_utils.Tensor(name, array) for (name, _kind, _dims), array in zip(self._outputs, arrays)]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def _failure(self, error: Exception, code: int) -> Any:
        """An error response in one line, without traceback or path; the server's log has the rest."""
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"model {self._name}: {words(error)}", code))

    def finalize(self) -> None:
        """Give the NPU back."""
        self._runtimes.clear()
