"""Rules about one config: what Triton's own validation refuses, and what no NPU host can serve."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, names, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import REFUSES, REFUSES_TEXT, Finding, Row, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.python_model import completes

# Numbers of enum values; the schema's are what they are for ever
KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL = range(4)
FORMAT_NHWC, FORMAT_NCHW = 1, 2
DELAY = 1
CORRID = 3
# Backends that are Python, and the first Triton that gives it bfloat16
TAKES_DLPACK = ("python", "rbln")
BFLOAT16_FROM = (2, 49)
CORRID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def check(model: Model, row: Optional[Row]) -> Iterator[Finding]:
    """Every finding about a model's config."""
    if row:
        yield from _release(model, row)
    # First, so that the other rules see the config that is served
    if model.record:
        for entry in compiled.complete(model.config, model.record):
            do = "compile the model for what the config says, or correct the config"
            yield model.error("compiled file", entry.field, entry.found, entry.wanted, do, "loads it, and its requests fail")
    yield from _identity(model)
    if model.ensemble:
        yield from _ensemble(model)
    else:
        yield from _instances(model)
    yield from _tensors(model)
    if row and model.backend in TAKES_DLPACK:
        yield from _bfloat16(model, row)
    yield from _batching(model)
    yield from _sequences(model)
    yield from _cache(model)
    yield from _metrics(model)


def _release(model: Model, row: Row) -> Iterator[Finding]:
    for place, name, first in schema.unknown(model.text, row.triton):
        found, wanted = f"{name}, known from Triton {first} on", f"what release {row.name} knows, its Triton is {row.triton}"
        do = "take it out, or choose a newer release"
        yield model.error("release", place.path, found, wanted, do, REFUSES_TEXT)


def _identity(model: Model) -> Iterator[Finding]:
    """Name, platform, backend, largest batch."""
    config, identity = model.config, model.identity
    platforms = backends.platforms(model.triton)
    if config.name and config.name != model.name:
        yield model.error("name", "name", config.name, f"{model.name}, its directory's", "rename one of the two")
    if model.ensemble:
        if model.backend:
            field = "backend" if config.backend else "default_model_filename"
            yield model.error("backend", field, config.backend or identity.file, "none in an ensemble", "take it out")
        if config.platform != "ensemble":
            found = config.platform or "no platform"
            yield model.error("backend", "platform", found, "ensemble beside ensemble_scheduling", 'write platform: "ensemble"')
    elif not model.backend:
        field = "platform" if config.platform else "backend"
        found = config.platform or "neither backend nor platform, and no file that tells"
        do = names.platform(config.platform, model.triton) if config.platform else 'write it down, such as backend: "rbln"'
        yield model.error("backend", field, found, "the backend that serves it", do)
    elif model.backend in platforms.values() and platforms.get(identity.platform) != model.backend:
        right = [platform for platform, backend in platforms.items() if backend == model.backend]
        found = identity.platform or "nothing, and no file that tells"
        do = "take the platform out" if config.platform else "write the platform down"
        yield model.error("backend", "platform", found, f"{' or '.join(right)}, a platform of backend {model.backend}", do)
    if model.backend == "tensorrt":
        field, found = ("platform", config.platform) if config.platform else ("backend", "tensorrt")
        wanted = "a backend that needs no NVIDIA GPU, as an NPU host has none"
        yield model.error("npu host", field, found, wanted, "compile the model for the NPU, or serve its ONNX")
    if config.max_batch_size < 0:
        yield model.error("batch", "max_batch_size", str(config.max_batch_size), "0 or more", "correct it")


def _ensemble(model: Model) -> Iterator[Finding]:
    """What Triton does not let an ensemble have."""
    config = model.config
    for field, there in (
        ("instance_group", bool(config.instance_group)),
        ("optimization", config.HasField("optimization")),
        ("model_warmup", bool(config.model_warmup)),
    ):
        if there:
            yield model.error("ensemble", field, "one", "none in an ensemble", "take it out: its steps have their own")


def _instances(model: Model) -> Iterator[Finding]:
    """Instance groups that cannot be on a host with NPUs and no GPU."""
    groups = model.config.instance_group
    if groups and all(group.passive for group in groups):
        wanted, do = "one group or more that is not passive, or no request is ever answered", "take passive out of one"
        yield model.error("passive", "instance_group", "passive groups alone", wanted, do, "loads the model and never answers")
    shared: Dict[str, bool] = {}
    for index, group in enumerate(groups):
        for place, resource in enumerate(group.rate_limiter.resources):
            if shared.setdefault(resource.name, getattr(resource, "global")) != getattr(resource, "global"):
                where = f"instance_group[{index}].rate_limiter.resources[{place}]"
                found, wanted = f"{resource.name} as global and as a device's", "one of the two"
                triton = "refuses the model where it starts with --rate-limit=execution_count, else it passes it over"
                yield model.error("instances", where, found, wanted, "write the same in both", triton)
        field = f"instance_group[{index}]"
        if group.kind not in (KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL):
            wanted = "KIND_MODEL for a model on the NPU, else KIND_CPU"
            yield model.error("instances", f"{field}.kind", str(group.kind), wanted, "change it")
        if group.kind == KIND_GPU:
            wanted = "KIND_MODEL for a model on the NPU, else KIND_CPU, as an NPU host has no GPU"
            yield model.error("npu host", f"{field}.kind", "KIND_GPU", wanted, "change it")
        if group.gpus:
            found, wanted = listed(group.gpus), "none, as an NPU host has no GPU"
            yield model.error("npu host", f"{field}.gpus", found, wanted, "take it out, `npus` in triton_models places a model")
        if group.profile and model.identity.platform != "tensorrt_plan":
            wanted = "none, as only TensorRT has them"
            yield model.error("instances", f"{field}.profile", listed(group.profile), wanted, "take it out")
        if model.backend == "rbln" and group.kind in (KIND_CPU, KIND_AUTO):
            found = "KIND_CPU" if group.kind == KIND_CPU else "no kind, which becomes KIND_CPU"
            wanted = "KIND_MODEL, as only those groups get an instance for each NPU"
            yield model.warning("npu host", f"{field}.kind", found, wanted, "change it")


def _tensors(model: Model) -> Iterator[Finding]:
    """Names, dtypes and shapes of inputs and outputs."""
    config = model.config
    tensorrt = model.identity.platform == "tensorrt_plan"
    for side in ("input", "output"):
        tensor_names = [given.name for given in getattr(config, side)]
        for index, tensor in enumerate(getattr(config, side)):
            field = f"{side}[{index}]"
            if not tensor.name:
                yield model.error("tensor", f"{field}.name", "nothing", "a name", "write it down")
            elif tensor.name in tensor_names[:index]:
                yield model.warning(
                    "tensor", f"{field}.name", f"{tensor.name} a second time", "each name once", "rename one of the two"
                )
            # auto_complete_config may say what the config does not.
            if not (tensor.data_type and tensor.dims) and completes(model):
                continue
            if not tensor.data_type:
                yield model.error("tensor", f"{field}.data_type", "nothing", "a data type such as TYPE_FP32", "write it down")
            if not tensor.dims:
                yield model.error("tensor", f"{field}.dims", "nothing", "one size or more, without the batch", "write them down")
            yield from _shape(model, field, tensor)
            if side == "input" and tensor.format in (FORMAT_NHWC, FORMAT_NCHW) and len(tensor.dims) != 3:
                yield model.error(
                    "tensor", f"{field}.dims", f"{len(tensor.dims)} dims", "3 for its format", "correct one of the two"
                )
            for flag in ("is_shape_tensor", "is_non_linear_format_io"):
                if getattr(tensor, flag) and not tensorrt:
                    yield model.error("tensor", f"{field}.{flag}", "true", "false, as only TensorRT has them", "take it out")


def _bfloat16(model: Model, row: Row) -> Iterator[Finding]:
    """bfloat16, which Python gets as DLPack alone, and in no release before (python_backend, PR 371)."""
    if schema.number(row.triton) >= BFLOAT16_FROM:
        return
    for side in ("input", "output"):
        for index, tensor in enumerate(getattr(model.config, side)):
            if schema.word(tensor, "data_type") == "TYPE_BF16":
                wanted = (
                    f"a type that release {row.name} gives to Python: its Triton is {row.triton}, TYPE_BF16 comes with 2.49 (24.08)"
                )
                do = "compile the model for another type, or choose a newer release"
                served = REFUSES if model.backend == "rbln" else "loads it, and its requests fail"
                yield model.error("release", f"{side}[{index}].data_type", "TYPE_BF16", wanted, do, served)


def _shape(model: Model, field: str, entry: Any) -> Iterator[Finding]:
    """Sizes of dims and reshape, and whether both hold as many elements."""
    shapes = [("dims", list(entry.dims))]
    if entry.HasField("reshape"):
        shapes.append(("reshape.shape", list(entry.reshape.shape)))
    for name, sizes in shapes:
        if any(size < 1 and size != -1 for size in sizes):
            wanted = "sizes of 1 and more, or -1 for any"
            yield model.error("tensor", f"{field}.{name}", str(sizes), wanted, "correct it, without the batch dimension")
            return
    if len(shapes) < 2:
        return
    dims, shape = shapes[0][1], shapes[1][1]
    if not shape and model.config.max_batch_size == 0:
        wanted = "a shape, as without batches a scalar cannot be"
        yield model.error("tensor", f"{field}.reshape", "an empty one", wanted, "take it out")
    elif _trunks(dims) != _trunks(shape):
        found = f"{shape} for dims {dims}"
        wanted = "as many elements between sizes of -1"
        yield model.error("tensor", f"{field}.reshape", found, wanted, "correct one of the two")


def _trunks(sizes: List[int]) -> List[int]:
    """Elements of the parts between sizes of -1."""
    counts = [1]
    for size in sizes:
        if size == -1:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts


def _batching(model: Model) -> Iterator[Finding]:
    """The dynamic batcher, and batch sizes against those that were compiled."""
    config = model.config
    batcher = config.dynamic_batching
    if not config.HasField("dynamic_batching"):
        return
    largest = config.max_batch_size
    yield from _preferred(model, "dynamic_batching", batcher.preferred_batch_size)
    if largest == 0 and not batcher.preferred_batch_size:
        found = "a batcher with max_batch_size 0, which joins nothing"
        yield model.warning("batch", "dynamic_batching", found, "max_batch_size above 0", "set it, or take the batcher out")
    levels = batcher.priority_levels
    if levels and not 1 <= batcher.default_priority_level <= levels:
        found = str(batcher.default_priority_level)
        field = "dynamic_batching.default_priority_level"
        yield model.error("batch", field, found, f"1 to {levels}, the priority_levels", "correct it")
    policies = [("default_queue_policy", batcher.default_queue_policy)]
    for level, policy in sorted(batcher.priority_queue_policy.items()):
        policies.append((f"priority_queue_policy[{level}]", policy))
        if levels and not 1 <= level <= levels:
            field = f"dynamic_batching.priority_queue_policy[{level}]"
            yield model.error("batch", field, f"level {level}", f"1 to {levels}, the priority_levels", "correct it")
    if batcher.preserve_ordering:
        if levels > 1:
            field = "dynamic_batching.priority_levels"
            yield model.error("batch", field, str(levels), "1 with preserve_ordering", "take one of the two out")
        for name, policy in policies:
            if policy.default_timeout_microseconds and policy.timeout_action == DELAY:
                field = f"dynamic_batching.{name}.timeout_action"
                yield model.error("batch", field, "DELAY", "REJECT with preserve_ordering", "change one of the two")


def _preferred(model: Model, where: str, sizes: Any) -> Iterator[Finding]:
    """Preferred batch sizes: within the largest, and compiled."""
    field = f"{where}.preferred_batch_size"
    largest = model.config.max_batch_size
    wrong = [size for size in sizes if not 1 <= size <= largest]
    if wrong:
        yield model.error("batch", field, listed(wrong), f"1 to {largest}, the max_batch_size", "correct it")
    known = _compiled_batches(model)
    odd = [size for size in sizes if size not in known and size not in wrong]
    if known and odd:
        do = "take compiled sizes: others are filled up to the next one, and the NPU computes what nobody asked for"
        yield model.warning("batch", field, listed(odd), f"some of {listed(known)}, the compiled batches", do)


def _compiled_batches(model: Model) -> List[int]:
    """The batch sizes that the file was compiled for, as the config's parameter says them; [] where they are not known."""
    if "batches" not in model.config.parameters:
        return []
    text = model.config.parameters["batches"].string_value
    return [int(number) for number in re.findall(r"\d+", text)]


def _sequences(model: Model) -> Iterator[Finding]:
    """The sequence batcher's controls and sizes."""
    if not model.config.HasField("sequence_batching"):
        return
    batcher = model.config.sequence_batching
    tensor_names: List[str] = []
    kinds: List[int] = []
    for index, tensor in enumerate(batcher.control_input):
        field = f"sequence_batching.control_input[{index}]"
        if not tensor.name or tensor.name in tensor_names:
            found = f"{tensor.name} a second time" if tensor.name else "nothing"
            yield model.error("sequence", f"{field}.name", found, "a name of its own", "correct it")
        tensor_names.append(tensor.name)
        for place, entry in enumerate(tensor.control):
            inner = f"{field}.control[{place}]"
            kind = schema.word(entry, "kind")
            if entry.kind in kinds:
                yield model.error("sequence", f"{inner}.kind", f"{kind} a second time", "each control once", "take one out")
            kinds.append(entry.kind)
            yield from _control(model, inner, kind, entry)
    if batcher.HasField("oldest"):
        yield from _preferred(model, "sequence_batching.oldest", batcher.oldest.preferred_batch_size)
    share = batcher.direct.minimum_slot_utilization
    # Triton lets NaN pass.
    if share < 0 or share > 1:
        field = "sequence_batching.direct.minimum_slot_utilization"
        yield model.error("sequence", field, f"{share:g}", "0 to 1", "correct it")


def _control(model: Model, field: str, kind: str, entry: Any) -> Iterator[Finding]:
    """The values of one control tensor."""
    lists = {name: len(getattr(entry, name)) for name in ("int32_false_true", "fp32_false_true", "bool_false_true")}
    given = {name: count for name, count in lists.items() if count}
    if entry.kind != CORRID:
        if list(given.values()) != [2]:
            found = listed(f"{name} of {count}" for name, count in given.items())
            wanted = f"one list of two values for {kind}"
            yield model.error("sequence", field, found, wanted, "write what is false and what is true")
        return
    dtype = schema.word(entry, "data_type")
    if given:
        yield model.error("sequence", field, listed(given), f"a data_type alone for {kind}", "take the list out")
    elif dtype not in CORRID_TYPES:
        yield model.error("sequence", f"{field}.data_type", dtype, f"one of {listed(CORRID_TYPES)}", "change it")


def _cache(model: Model) -> Iterator[Finding]:
    """The response cache, whose key is the model's name, its version and the inputs."""
    config = model.config
    if not config.response_cache.enable:
        return
    refused: List[Tuple[str, bool]] = [
        ("sequence batching", config.HasField("sequence_batching")),
        ("a decoupled model", config.model_transaction_policy.decoupled),
    ]
    for what, there in refused:
        if there:
            wanted = f"no response cache with {what}, which Triton refuses"
            yield model.error("response cache", "response_cache.enable", "true", wanted, "take one of the two out")
    if not any(there for _what, there in refused):
        found = "a cache by name, version and inputs: after a change in place old answers come back, even after a new load"
        do = "give every change a new version directory, or turn the cache off"
        triton = "gives old answers"
        yield model.warning("response cache", "response_cache.enable", found, "a version that changes with the model", do, triton)


def _metrics(model: Model) -> Iterator[Finding]:
    """Histograms need a family and buckets."""
    for index, entry in enumerate(model.config.model_metrics.metric_control):
        field = f"model_metrics.metric_control[{index}]"
        if not entry.metric_identifier.family:
            yield model.error("metrics", f"{field}.metric_identifier.family", "nothing", "the metric's name", "write it down")
        if not entry.histogram_options.buckets:
            yield model.error("metrics", f"{field}.histogram_options.buckets", "none", "the histogram's limits", "write them down")
