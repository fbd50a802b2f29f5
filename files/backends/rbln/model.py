"""Triton backend `rbln`: serves a compiled file. The config.pbtxt of the model may leave out the fields that the file determines.

The index of an instance selects its NPU. The inputs of a batch are copied once, into memory that the device process reads (the
process that uses the NPU). The batch is padded to the next compiled size. Its output is split into one response for each request,
in the order of the requests. If two instances share an NPU, one of them assembles its next batch while a batch of the other runs.

Parameters of a model:
  npus               "0,1": NPUs on which its instances are distributed; default: all visible NPUs
  npus_per_instance  "2": number of consecutive NPUs that one instance of the model needs; default 1
  device_timeout_ms  time limit of a run, including the wait for runs of other instances. A run that exceeds it fails, and
                     the device process is restarted; default 10000
  isolation          "process" (default): the SDK runs in a process that can be killed; "none": it runs in Triton's stub
  runtime_per_bucket "true" or "false": whether each compiled size has its own runtime of the SDK; default: "true" for an SDK
                     before 0.11, else "false"
  batches            "1,2,4": compiled batch sizes in the order of the file, required if neither the SDK nor a record has them
The compiled file is `model.rbln` in the version directory, or the `default_model_filename` of the config.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import triton_python_backend_utils as pb_utils
from npufleet_rbln import bfloat16, compiled
from npufleet_rbln.batching import Batcher, Item
from npufleet_rbln.compiled import BFLOAT16, parameter
from npufleet_rbln.device import Device
from npufleet_rbln.errors import CODES, Fault, first_line
from npufleet_rbln.metrics import Metrics
from npufleet_rbln.sdk import SDK

DEVICE_TIMEOUT_MS = 10000
# Age in seconds from which a request is checked for cancellation. Each check is a message to the server.
CANCEL_AFTER_S = 0.02
# Largest number of characters of a request's ID in the log
MAX_ID = 200
# Options of mallopt, and the bytes that a stub keeps instead of returning them to the kernel. Without these options, every large
# input would cause page faults.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20


class TritonPythonModel:
    """An instance of a model: a compiled file on one NPU, or on several NPUs."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add missing inputs, outputs and batch size to the config, without using an NPU."""
        fields = config.as_dict()
        if fields.get("input") and fields.get("output"):
            return config
        try:
            path = compiled.find(pb_utils.get_model_dir(), fields)
            added = compiled.complete(fields, compiled.facts_of(path, fields, SDK().inspect(path)))
        except Fault as error:
            raise pb_utils.TritonModelException(f"model {fields['name']}: {error}") from None
        except RuntimeError as error:  # raised by the SDK if it cannot read the file
            raise pb_utils.TritonModelException(f"model {fields['name']}: {first_line(error)}") from None
        if "max_batch_size" in added:
            config.set_max_batch_size(added["max_batch_size"])
            if added["max_batch_size"] > 1 and not (fields.get("dynamic_batching") or fields.get("sequence_batching")):
                config.set_dynamic_batching()
        for tensor in added.get("input", []):
            config.add_input(tensor)
        for tensor in added.get("output", []):
            config.add_output(tensor)
        return config

    def initialize(self, args: Dict[str, str]) -> None:
        """Load the compiled file onto this instance's NPU."""
        self._name = args["model_name"]
        for entry in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(entry, KEPT_BYTES)
        try:
            self._load(args)
        except Fault as error:
            if error.trace:
                pb_utils.Logger.log_error(f"model {self._name}: {error.trace}")
            raise pb_utils.TritonModelException(f"model {self._name}: {error}") from None

    def _load(self, args: Dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        timeout_ms = compiled.number(config, "device_timeout_ms", DEVICE_TIMEOUT_MS)
        isolation = parameter(config, "isolation", "process")
        if isolation not in ("process", "none"):
            raise Fault(f"parameter isolation is {isolation!r}, expected process or none")
        job = {
            "config": config,
            "path": compiled.find(os.path.join(args["model_repository"], args["model_version"]), config),
            "instance": args["model_instance_name"],
            # The SDK's own time limit (whole seconds) should expire before device_timeout_ms, because the kill of a process may
            # wedge its card.
            "timeout_s": max(0, (timeout_ms - 500) // 1000),
        }
        self._metrics: Optional[Metrics] = None
        self._device = Device(job, isolation == "process", timeout_ms / 1000, self._report_fault)
        plan = self._device.plan
        # (name, True if the tensor is bfloat16)
        self._inputs = [(str(tensor.name), tensor.dtype == BFLOAT16) for tensor in plan.buckets[0].inputs]
        self._outputs = [(str(tensor.name), tensor.dtype == BFLOAT16) for tensor in plan.buckets[0].outputs]
        if any(is_bfloat16 for _name, is_bfloat16 in (*self._inputs, *self._outputs)) and not bfloat16.supported(pb_utils):
            self._device.close()
            raise Fault(
                "it has bfloat16 tensors, which the python backend of this Triton does not support, expected release 24.08 or newer"
            )
        labels = {
            "model": self._name,
            "version": args["model_version"],
            "npu": self._device.npu,
            "instance": args["model_instance_name"],
            # During a reload, two instances of the same name exist. Without this label they would share counters, and the server
            # would remove these counters when the old instance ends.
            "process": str(os.getpid()),
        }
        self._metrics = Metrics(pb_utils, labels, parameter(config, "npufleet_source"), parameter(config, "npufleet_release"))
        self._batcher = Batcher(plan)
        sizes = f"batches {list(plan.sizes)}" if plan.batched else "no batch"
        pb_utils.Logger.log_info(
            f"model {self._name}: {labels['instance']} on NPU {labels['npu']}, {sizes} by {self._device.ready().source}, "
            f"isolation {isolation}"
        )

    def execute(self, requests: List[Any]) -> List[Any]:
        """Return one response for each request, in order. A request that cannot be run does not affect the others."""
        responses: List[Any] = [None] * len(requests)
        arrived = time.monotonic()
        items = []
        for index, request in enumerate(requests):
            try:
                items.append(self._item(request, index, arrived))
            except Fault as error:
                responses[index] = self._failure(error, request)
        groups = self._batcher.groups(items)
        for group in groups:
            # Triton reads outputs after execute() has returned. The next run overwrites them, so all but the last are copied.
            for entry, response in zip(group, self._run(group, group is not groups[-1])):
                responses[entry.index] = response
        return responses

    def _item(self, request: Any, index: int, arrived: float) -> Item:
        """Return a request with its inputs in the order of the compiled file. Raises Fault."""
        tensors = []
        for name, is_bfloat16 in self._inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise Fault(f"input {name} is missing", "bad_request")
            tensors.append(bfloat16.read(tensor) if is_bfloat16 else tensor.as_numpy())
        return self._batcher.item(request, tensors, index, arrived)

    def _run(self, items: List[Item], copy: bool) -> List[Any]:
        """Run requests as one batch, wait for it, and return their responses. With `copy`, the responses have copied outputs."""
        kept = [item for item in items if not self._cancelled(item)]
        if len(kept) < len(items):
            responses_of_kept = iter(self._run(kept, copy) if kept else [])
            return [next(responses_of_kept) if item in kept else self._cancellation() for item in items]
        try:
            runner = self._device.ready()
            buffers = runner.buffers
            rows = sum(item.rows for item in items)
            bucket = self._batcher.bucket(items, rows)
            padding = 0
            # Without isolation, a single request that exactly fills its bucket needs no copy.
            if not (len(items) == 1 and rows == self._batcher.plan.sizes[bucket] and buffers.pass_inputs(items[0].tensors)):
                first = 0
                for item in items:
                    self._batcher.put(buffers.inputs, item, first)
                    first += item.rows
                padding = self._batcher.pad(buffers.inputs[bucket], bucket, rows)
            began, ended = self._device.run(runner, buffers, bucket)
        except Fault as error:
            if error.trace:
                pb_utils.Logger.log_error(f"model {self._name}: NPU {self._device.npu}: {error.trace}")
            # Create a response for each request, because Triton crashes if a response object is returned twice.
            return [self._failure(error, item.request) for item in items]
        assert self._metrics is not None
        self._metrics.batch(len(items), rows, padding, ended - began)
        responses = []
        first = 0
        for item in items:
            arrays = self._batcher.cut(buffers.outputs[bucket], first, item)
            responses.append(self._response([array.copy() for array in arrays] if copy else arrays))
            first += item.rows
        return responses

    def _cancelled(self, item: Item) -> bool:
        """Return True if the client has cancelled this request."""
        if time.monotonic() - item.arrived < CANCEL_AFTER_S or not hasattr(item.request, "is_cancelled"):
            return False
        return bool(item.request.is_cancelled())

    def _response(self, arrays: Sequence[np.ndarray]) -> Any:
        return pb_utils.InferenceResponse(
            output_tensors=[
                bfloat16.tensor_of(pb_utils, name, entry) if is_bfloat16 else pb_utils.Tensor(name, entry)
                for (name, is_bfloat16), entry in zip(self._outputs, arrays)
            ]
        )

    def _failure(self, error: Fault, request: Any) -> Any:
        """Count an error, log it with the ID of the request, and return its response: one line without traceback and paths."""
        identity = request.request_id() if hasattr(request, "request_id") else ""
        if identity:
            # A client chooses the ID, so it is quoted and shortened.
            pb_utils.Logger.log_info(f"model {self._name}: request {identity[:MAX_ID]!r}: {error}")
        if self._metrics is not None:
            self._metrics.error(error.kind)
        code = getattr(pb_utils.TritonError, CODES[error.kind])
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"model {self._name}: {error}", code))

    def _cancellation(self) -> Any:
        code = getattr(pb_utils.TritonError, "CANCELLED", pb_utils.TritonError.UNAVAILABLE)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"model {self._name}: the request was cancelled", code))

    def _report_fault(self, fault: bool, message: str) -> None:
        """Log that the NPU stopped answering or answers again, and set the metric."""
        (pb_utils.Logger.log_error if fault else pb_utils.Logger.log_info)(f"model {self._name}: {message}")
        if self._metrics is not None:
            self._metrics.fault(fault)

    def finalize(self) -> None:
        """Release the NPU and the metrics."""
        self._device.close()
        if self._metrics is not None:
            self._metrics.close()
