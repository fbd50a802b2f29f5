# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rules about one config: errors because of which Triton refuses a model, and settings that no NPU host can serve."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Set, Tuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, effects, names, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding, Row, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.python_model import completes

# Numbers of enum values in Triton's schema
KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL = range(4)
FORMAT_NHWC, FORMAT_NCHW = 1, 2
TIMEOUT_DELAY, CONTROL_SEQUENCE_CORRID = 1, 3
# The first Triton version that passes bfloat16 to Python (python_backend, PR 371)
BFLOAT16_FROM = (2, 49)
CORRID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
EXPECTED_KIND = "KIND_MODEL for a model on the NPU, else KIND_CPU"
FAILS_REQUESTS = "loads it, and its requests fail"


def check(model: Model) -> Iterator[Finding]:
    """Yield the findings about a model's config."""
    if model.row:
        release = f"Triton {model.row.triton}, which release {model.row.name} has"
        for unknown, name, since in schema.unknown(model.fields, model.row.triton):
            actual, todo = f"{name}, new in Triton {since}", "Remove it, or choose a newer release"
            yield model.error("release", unknown.path, actual, f"a field of {release}", todo, effects.REFUSES_TEXT)
    # `complete` changes the config, so that the other rules check the config that will be served.
    if model.record:
        for field, actual, expected in compiled.complete(model.config, model.record):
            todo = "Compile the model for the values of the config, or correct the config"
            yield model.error("compiled file", field, actual, expected, todo, FAILS_REQUESTS)
    yield from _identity(model)
    yield from _ensemble(model) if model.ensemble else _instances(model)
    yield from _tensors(model)
    if model.row and model.backend in ("python", "rbln") and backends.triton_version(model.triton_version) < BFLOAT16_FROM:
        yield from _bfloat16(model, model.row)
    yield from _batching(model)
    yield from _sequences(model)
    yield from _cache(model)
    yield from _metrics(model)


def _identity(model: Model) -> Iterator[Finding]:
    config, identity = model.config, model.identity
    platforms = backends.platforms(model.triton_version)
    if config.name and config.name != model.name:
        yield model.error("name", "name", config.name, f"{model.name}, the name of its directory", "Rename one of them")
    if model.ensemble:
        if model.backend:
            field = "backend" if config.backend else "default_model_filename"
            yield model.error("backend", field, config.backend or identity.file, "empty in an ensemble", "Remove it")
        if config.platform != "ensemble":
            actual = config.platform or "missing"
            yield model.error("backend", "platform", actual, "ensemble beside ensemble_scheduling", 'Write platform: "ensemble"')
    elif not model.backend:
        field = "platform" if config.platform else "backend"
        actual = config.platform or "missing, and neither a platform nor a file implies it"
        todo = names.platform_todo(config.platform, model.triton_version) if config.platform else 'Add it, such as backend: "rbln"'
        yield model.error("backend", field, actual, "the backend that serves the model", todo)
    elif model.backend in platforms.values() and platforms.get(identity.platform) != model.backend:
        matching = [platform for platform, backend in platforms.items() if backend == model.backend]
        actual = identity.platform or "missing, and no file implies it"
        todo = "Remove the platform" if config.platform else "Add the platform"
        yield model.error("backend", "platform", actual, f"{' or '.join(matching)}, a platform of backend {model.backend}", todo)
    if model.backend == "tensorrt":
        field, actual = ("platform", config.platform) if config.platform else ("backend", "tensorrt")
        expected = "a backend that needs no NVIDIA GPU, as an NPU host has none"
        yield model.error("npu host", field, actual, expected, "Compile the model for the NPU, or serve its ONNX")
    if config.max_batch_size < 0:
        yield model.error("batch", "max_batch_size", str(config.max_batch_size), "0 or more")


def _ensemble(model: Model) -> Iterator[Finding]:
    """Yield an error for each field that an ensemble must not have."""
    present = {field.name for field, _value in model.config.ListFields()}
    for field in ("instance_group", "optimization", "model_warmup"):
        if field in present:
            yield model.error("ensemble", field, "set", "not set in an ensemble", "Remove it, and set it in the steps")


def _instances(model: Model) -> Iterator[Finding]:
    groups = model.config.instance_group
    if groups and all(group.passive for group in groups):
        expected = "one group or more that is not passive, as passive groups answer no request"
        actual, todo = "a list of passive groups only", "Remove passive from one group"
        yield model.error("passive", "instance_group", actual, expected, todo, "loads the model and never answers")
    is_global: Dict[str, bool] = {}
    for index, group in enumerate(groups):
        field = f"instance_group[{index}]"
        for number, resource in enumerate(group.rate_limiter.resources):
            if is_global.setdefault(resource.name, getattr(resource, "global")) != getattr(resource, "global"):
                inner = f"{field}.rate_limiter.resources[{number}]"
                actual, expected = f"{resource.name}, both global and of a device", "one of the two"
                triton = "refuses the model with --rate-limit=execution_count, and ignores it otherwise"
                yield model.error("instances", inner, actual, expected, "Write the same in all groups", triton)
        if group.kind not in (KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL):
            yield model.error("instances", f"{field}.kind", str(group.kind), EXPECTED_KIND, "Change it")
        if group.kind == KIND_GPU:
            yield model.error("npu host", f"{field}.kind", "KIND_GPU", f"{EXPECTED_KIND}, as an NPU host has no GPU", "Change it")
        if group.gpus:
            todo = "Remove it. `npus` in triton_models places a model"
            yield model.error("npu host", f"{field}.gpus", listed(group.gpus), "empty, as an NPU host has no GPU", todo)
        if group.profile and model.identity.platform != "tensorrt_plan":
            expected = "empty, as only TensorRT has profiles"
            yield model.error("instances", f"{field}.profile", listed(group.profile), expected, "Remove it")
        if model.backend == "rbln" and group.kind in (KIND_CPU, KIND_AUTO):
            actual = "KIND_CPU" if group.kind == KIND_CPU else "missing, which means KIND_CPU"
            expected = "KIND_MODEL, as only those groups get an instance for each NPU"
            yield model.warning("npu host", f"{field}.kind", actual, expected, "Change it")


def _tensors(model: Model) -> Iterator[Finding]:
    tensorrt = model.identity.platform == "tensorrt_plan"
    names_seen: Set[Tuple[str, str]] = set()
    for side, field, tensor in model.tensors():
        if not tensor.name:
            yield model.missing("tensor", f"{field}.name", "a name")
        elif (side, tensor.name) in names_seen:
            yield model.warning("tensor", f"{field}.name", f"{tensor.name} again", "a unique name", "Rename one of them")
        names_seen.add((side, tensor.name))
        # The backend or the method auto_complete_config of a model.py can add the missing fields.
        if not (tensor.data_type and tensor.dims) and completes(model):
            continue
        if not tensor.data_type:
            yield model.missing("tensor", f"{field}.data_type", "a data type such as TYPE_FP32")
        if not tensor.dims:
            yield model.missing("tensor", f"{field}.dims", "one size or more, without the batch size")
        yield from _shape(model, field, tensor)
        if side == "input" and tensor.format in (FORMAT_NHWC, FORMAT_NCHW) and len(tensor.dims) != 3:
            actual = f"a list of {len(tensor.dims)} sizes"
            yield model.error("tensor", f"{field}.dims", actual, "3 sizes for its format", "Correct one of them")
        for flag in ("is_shape_tensor", "is_non_linear_format_io"):
            if getattr(tensor, flag) and not tensorrt:
                yield model.error("tensor", f"{field}.{flag}", "true", "false, as only TensorRT has such tensors", "Remove it")


def _bfloat16(model: Model, row: Row) -> Iterator[Finding]:
    for _side, field, tensor in model.tensors():
        if schema.enum_name(tensor, "data_type") == "TYPE_BF16":
            expected = f"a type that Triton {row.triton} of release {row.name} passes to Python. TYPE_BF16 needs 2.49 (24.08)"
            todo = "Compile the model for another type, or choose a newer release"
            triton = effects.REFUSES if model.backend == "rbln" else FAILS_REQUESTS
            yield model.error("release", f"{field}.data_type", "TYPE_BF16", expected, todo, triton)


def _shape(model: Model, field: str, tensor: Any) -> Iterator[Finding]:
    """Yield the errors of sizes in dims and reshape, and of a reshape to another number of elements."""
    dims, shape = list(tensor.dims), list(tensor.reshape.shape)
    for name, sizes in (("dims", dims), ("reshape.shape", shape)):
        if any(size < 1 and size != -1 for size in sizes):
            expected = "sizes of 1 or more, or -1 for any size"
            yield model.error("tensor", f"{field}.{name}", str(sizes), expected, "Correct it, without the batch dimension")
            return
    if not tensor.HasField("reshape"):
        return
    if not shape and model.config.max_batch_size == 0:
        yield model.error("tensor", f"{field}.reshape", "empty", "a shape, as a scalar needs batches", "Remove it")
    elif _products(dims) != _products(shape):
        expected = "the same number of elements between sizes of -1"
        yield model.error("tensor", f"{field}.reshape", f"{shape} for dims {dims}", expected, "Correct one of them")


def _products(sizes: List[int]) -> List[int]:
    """Return the product of each group of sizes, where the sizes of -1 separate the groups."""
    counts = [1]
    for size in sizes:
        if size == -1:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts


def _batching(model: Model) -> Iterator[Finding]:
    config, rule = model.config, "batch"
    batcher = config.dynamic_batching
    if not config.HasField("dynamic_batching"):
        return
    yield from _preferred(model, "dynamic_batching", batcher.preferred_batch_size)
    if config.max_batch_size == 0 and not batcher.preferred_batch_size:
        actual, expected = "without effect with max_batch_size 0", "max_batch_size above 0"
        yield model.warning(rule, "dynamic_batching", actual, expected, "Set it, or remove the batcher")
    levels = batcher.priority_levels
    if levels and not 1 <= batcher.default_priority_level <= levels:
        field, actual = "dynamic_batching.default_priority_level", str(batcher.default_priority_level)
        yield model.error(rule, field, actual, f"1 to {levels}, the priority_levels")
    policies = [("default_queue_policy", batcher.default_queue_policy)]
    for level, policy in sorted(batcher.priority_queue_policy.items()):
        policies.append((f"priority_queue_policy[{level}]", policy))
        if levels and not 1 <= level <= levels:
            field = f"dynamic_batching.priority_queue_policy[{level}]"
            yield model.error(rule, field, f"for level {level}", f"1 to {levels}, the priority_levels")
    if batcher.preserve_ordering:
        if levels > 1:
            field = "dynamic_batching.priority_levels"
            yield model.error(rule, field, str(levels), "1 with preserve_ordering", "Remove one of them")
        for name, policy in policies:
            if policy.default_timeout_microseconds and policy.timeout_action == TIMEOUT_DELAY:
                field = f"dynamic_batching.{name}.timeout_action"
                yield model.error(rule, field, "DELAY", "REJECT with preserve_ordering", "Change one of them")


def _preferred(model: Model, batcher: str, sizes: Any) -> Iterator[Finding]:
    """Yield the findings about preferred batch sizes that are above max_batch_size or were not compiled."""
    field = f"{batcher}.preferred_batch_size"
    largest = model.config.max_batch_size
    wrong = [size for size in sizes if not 1 <= size <= largest]
    if wrong:
        yield model.error("batch", field, listed(wrong), f"1 to {largest}, the max_batch_size")
    # The parameter `batches` has the batch sizes of the compiled file. Reading a missing parameter would add it.
    parameters = model.config.parameters
    batches = parameters["batches"].string_value if "batches" in parameters else ""
    compiled_sizes = [int(number) for number in re.findall(r"\d+", batches)]
    uncompiled = [size for size in sizes if size not in compiled_sizes and size not in wrong]
    if compiled_sizes and uncompiled:
        todo = "Choose compiled sizes. The backend pads other batches up to the next compiled size"
        yield model.warning("batch", field, listed(uncompiled), f"some of {listed(compiled_sizes)}, the compiled batches", todo)


def _sequences(model: Model) -> Iterator[Finding]:
    if not model.config.HasField("sequence_batching"):
        return
    batcher = model.config.sequence_batching
    tensor_names: List[str] = []
    kinds: List[int] = []
    for index, tensor in enumerate(batcher.control_input):
        field = f"sequence_batching.control_input[{index}]"
        if not tensor.name or tensor.name in tensor_names:
            actual = f"{tensor.name} again" if tensor.name else "missing"
            yield model.error("sequence", f"{field}.name", actual, "a unique name")
        tensor_names.append(tensor.name)
        for position, control in enumerate(tensor.control):
            inner = f"{field}.control[{position}]"
            kind = schema.enum_name(control, "kind")
            if control.kind in kinds:
                yield model.error("sequence", f"{inner}.kind", f"{kind} again", "each control once", "Remove one of them")
            kinds.append(control.kind)
            yield from _control(model, inner, kind, control)
    if batcher.HasField("oldest"):
        yield from _preferred(model, "sequence_batching.oldest", batcher.oldest.preferred_batch_size)
    utilization = batcher.direct.minimum_slot_utilization
    # Like Triton, this comparison accepts NaN.
    if utilization < 0 or utilization > 1:
        yield model.error("sequence", "sequence_batching.direct.minimum_slot_utilization", f"{utilization:g}", "0 to 1")


def _control(model: Model, field: str, kind: str, control: Any) -> Iterator[Finding]:
    lists = {name: len(getattr(control, name)) for name in ("int32_false_true", "fp32_false_true", "bool_false_true")}
    present = {name: count for name, count in lists.items() if count}
    if control.kind != CONTROL_SEQUENCE_CORRID:
        if list(present.values()) != [2]:
            actual = ", ".join(f"{name} of {count}" for name, count in present.items()) or "without values"
            expected = f"one list of two values for {kind}"
            yield model.error("sequence", field, actual, expected, "Write the values for false and true")
        return
    dtype = schema.enum_name(control, "data_type")
    if present:
        yield model.error("sequence", field, listed(present), f"only a data_type for {kind}", "Remove the list")
    elif dtype not in CORRID_TYPES:
        yield model.error("sequence", f"{field}.data_type", dtype, f"one of {listed(CORRID_TYPES)}", "Change it")


def _cache(model: Model) -> Iterator[Finding]:
    # The cache finds an answer by the model's name, its version and the inputs. If only the files of a version change, the cache
    # still returns the old answers.
    config, rule, field = model.config, "response cache", "response_cache.enable"
    if not config.response_cache.enable:
        return
    conflicts = ["sequence batching"] * config.HasField("sequence_batching")
    conflicts += ["a decoupled model"] * config.model_transaction_policy.decoupled
    for conflict in conflicts:
        yield model.error(rule, field, "true", f"false with {conflict}, which Triton refuses", "Remove one of them")
    if not conflicts:
        actual = "true, and the cache returns old answers after a version changed, even if the version was loaded again"
        todo = "Add a version directory for every change, or turn the cache off"
        yield model.warning(rule, field, actual, "false, or a new version for each change", todo, "returns old answers")


def _metrics(model: Model) -> Iterator[Finding]:
    for index, metric in enumerate(model.config.model_metrics.metric_control):
        field = f"model_metrics.metric_control[{index}]"
        if not metric.metric_identifier.family:
            yield model.missing("metrics", f"{field}.metric_identifier.family", "the name of the metric")
        if not metric.histogram_options.buckets:
            yield model.missing("metrics", f"{field}.histogram_options.buckets", "the limits of the buckets")
