"""Read the inputs and outputs of a compiled file, and compare them with the config of a model, without using an NPU.

A file is compiled for one or more sets of fixed shapes, called buckets. The description of the file comes from the first available
source: the `inspect` function of the SDK, the record that the compile step wrote next to the file (`model.rbln.json`), or the
config with its parameter `batches`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .errors import Fault

CONFIG = "config.pbtxt"
COMPILED_FILE = "model.rbln"
# {numpy's name of a type: Triton's type}. Compiled files support no other types.
TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
}
NUMPY = {triton: numpy for numpy, triton in TYPES.items()}
BFLOAT16 = "bfloat16"
# Triton's names for tensors by position, such as INPUT__0 and OUTPUT__1. With such names, the names in the file do not matter.
POSITION = re.compile(r"(?:IN|OUT)PUT__(\d+)$")


@dataclass(frozen=True)
class Tensor:
    """A tensor of one bucket: its name (None if unknown), its shape including the batch, and numpy's name of its type."""

    name: Optional[str]
    shape: Tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Bucket:
    """One set of fixed shapes that the file was compiled for. `outputs` is empty if the outputs are unknown before a run."""

    inputs: Tuple[Tensor, ...]
    outputs: Tuple[Tensor, ...]


@dataclass(frozen=True)
class Facts:
    """The description of a compiled file: its buckets in their order, its card, its compiler, and the source of these facts."""

    source: str
    buckets: Tuple[Bucket, ...]
    npu: Optional[str] = None
    compiler: Optional[str] = None
    # The number of NPUs that run the file together
    devices: Optional[int] = None
    # The reason why the result of the SDK's `inspect` could not be used; empty if it was used
    flaw: str = ""


@dataclass(frozen=True)
class Plan:
    """The tensors of a model, and the number of rows (entries of a batch) of each bucket (`sizes`).

    The tensors have the order of the compiled file and the names of the config.
    """

    batched: bool
    buckets: Tuple[Bucket, ...]
    sizes: Tuple[int, ...] = field(default=())

    @property
    def limit(self) -> int:
        """The number of rows of the largest bucket. It is 1 without a batch dimension."""
        return max(self.sizes)

    def as_dict(self) -> Dict[str, Any]:
        """Return the plan as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Plan:
        """Return the plan from the result of `as_dict`."""
        return cls(bool(raw["batched"]), tuple(_bucket(bucket) for bucket in raw["buckets"]), tuple(raw["sizes"]))


def parameter(config: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return the text of a model parameter."""
    return str(((config.get("parameters") or {}).get(name) or {}).get("string_value", default))


def numbers(text: str, what: str) -> List[int]:
    """Return the numbers of a list such as "1,2,4", the value of parameter `what`. Raises Fault."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise Fault(f"parameter {what} is {text!r}, expected numbers such as 1,2,4")
    return [int(part) for part in parts]


def number(config: Mapping[str, Any], name: str, default: int) -> int:
    """Return the value of a parameter that is a number of at least 1. Raises Fault."""
    text = parameter(config, name, str(default))
    if not text.strip().isdecimal() or int(text) < 1:
        raise Fault(f"parameter {name} is {text!r}, expected a number of 1 and above")
    return int(text)


def find(directory: str, config: Mapping[str, Any]) -> str:
    """Return the path of the compiled file in a version directory. Raises Fault."""
    file = config.get("default_model_filename") or COMPILED_FILE
    path = os.path.join(directory, file)
    if not os.path.isfile(path):
        raise Fault(f"version {os.path.basename(directory)} has no {file}")
    return path


def facts_of(path: str, config: Mapping[str, Any], inspected: Optional[Mapping[str, Any]]) -> Facts:
    """Return the facts from `inspected`, the record or the config.

    If the SDK reads no facts, `inspected` is None or {"flaw": reason}.
    """
    record = _record(path)
    flaw = (inspected or {}).get("flaw", "")
    if inspected is not None and not flaw:
        buckets = inspected.get("input_info") or [inspected]
        facts = Facts("inspect", tuple(_bucket(bucket) for bucket in buckets), *(_common(inspected)))
        if len(facts.buckets) > 1:
            return facts
        if record is not None and len(record.buckets) > 1 and facts.buckets[0] in record.buckets:
            return replace(facts, buckets=record.buckets, source=f"inspect and {record.source}")
        return _spread(facts, config)
    return replace(record or _from_config(config, flaw), flaw=flaw)


def _common(raw: Mapping[str, Any]) -> Tuple[Optional[str], Optional[str], Optional[int]]:
    devices = next((raw[key] for key in ("devices", "num_devices", "tensor_parallel_size") if raw.get(key)), None)
    return raw.get("npu"), raw.get("compiler_version"), devices


def _tensor(raw: Any) -> Tensor:
    return Tensor(raw.get("name"), tuple(int(size) for size in raw["shape"]), str(raw["dtype"]))


def _bucket(raw: Mapping[str, Any]) -> Bucket:
    return Bucket(tuple(_tensor(tensor) for tensor in raw["inputs"]), tuple(_tensor(tensor) for tensor in raw["outputs"]))


def _record(path: str) -> Optional[Facts]:
    """Return the record next to the file, or None without a record. Raises Fault if the record is unreadable or of another file."""
    name = os.path.basename(path) + ".json"
    try:
        with open(path + ".json", encoding="utf-8") as stream:
            raw = json.load(stream)
        if raw["format"] != 1:
            raise Fault(f"{name} has format {raw['format']!r}, this backend reads 1: compile the model again")
        facts = Facts(name, tuple(_bucket(bucket) for bucket in raw["buckets"]), *_common(raw))
        claimed = raw["sha256"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Fault(f"{name} is not a record of a compiled file ({error!r}): compile the model again") from error
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for part in iter(lambda: stream.read(1 << 20), b""):
            digest.update(part)
    if digest.hexdigest() != claimed:
        found = f"{os.path.basename(path)} has SHA-256 {digest.hexdigest()[:12]}"
        raise Fault(f"{found}, {name} describes {claimed[:12]}: the record belongs to another file")
    return facts


def batches_of(config: Mapping[str, Any]) -> Optional[List[int]]:
    """Return the parameter `batches`, or None if it is not set. Raises Fault."""
    if "batches" not in (config.get("parameters") or {}):
        return None
    found = numbers(parameter(config, "batches"), "batches")
    if min(found) < 1:
        raise Fault(f"parameter batches names {min(found)}, expected sizes of 1 and above")
    return found


def _spread(facts: Facts, config: Mapping[str, Any]) -> Facts:
    """Repeat the only known bucket for each size in the parameter `batches`, with this size as the first dimension."""
    batches = batches_of(config)
    if batches is None or not config.get("max_batch_size"):
        return facts
    (bucket,) = facts.buckets

    def sized(rows: int) -> Bucket:
        inputs, outputs = (
            [replace(tensor, shape=(rows, *tensor.shape[1:])) for tensor in side] for side in (bucket.inputs, bucket.outputs)
        )
        return Bucket(tuple(inputs), tuple(outputs))

    return replace(facts, buckets=tuple(sized(rows) for rows in batches), source=f"{facts.source} and parameter batches")


def _from_config(config: Mapping[str, Any], flaw: str) -> Facts:
    """Return the facts from the config, for a file that the SDK and a record do not describe.

    The backend finds the outputs when it loads the model, by one run.
    """
    inputs = config.get("input") or []
    if not inputs or not config.get("output"):
        raise Fault(
            f"{flaw or 'the SDK cannot inspect compiled files'} and this file has no record: compile it with "
            "playbooks/compile.yml, or write inputs, outputs and the parameter batches into config.pbtxt"
        )
    sizes = (batches_of(config) or [1]) if config.get("max_batch_size") else [0]
    for tensor in inputs:
        if min([0, *_dims(tensor)]) < 0:
            raise Fault(f"input {tensor['name']} has variable dims {_dims(tensor)}, expected those of the compiled file")
        if tensor["data_type"] not in NUMPY:
            raise Fault(f"input {tensor['name']} is {tensor['data_type']}, an NPU supports {', '.join(sorted(NUMPY))}")
    buckets = []
    for rows in sizes:
        lead = (rows,) if rows else ()
        buckets.append(
            Bucket(tuple(Tensor(tensor["name"], (*lead, *_dims(tensor)), NUMPY[tensor["data_type"]]) for tensor in inputs), ())
        )
    return Facts(CONFIG, tuple(buckets))


def memory_dtype(dtype: str) -> np.dtype[Any]:
    """Return the numpy type of a tensor in memory. It is uint16 for bfloat16, which numpy does not have."""
    return np.dtype(np.uint16 if dtype == BFLOAT16 else dtype)


def _dims(entry: Mapping[str, Any]) -> List[int]:
    """Return the dimensions of a tensor in the config, or those of its `reshape`."""
    return [int(size) for size in (entry.get("reshape") or {}).get("shape", entry["dims"])]


def can_batch(buckets: Sequence[Bucket]) -> bool:
    """Return True if buckets only differ in the first dimension, which is the same for all tensors of a bucket."""

    def rest(bucket: Bucket) -> Any:
        return [(tensor.name, tensor.shape[1:], tensor.dtype) for tensor in (*bucket.inputs, *bucket.outputs)]

    for bucket in buckets:
        leads = {tensor.shape[:1] for tensor in (*bucket.inputs, *bucket.outputs)}
        if len(leads) != 1 or leads == {()}:
            return False
    return all(rest(bucket) == rest(buckets[0]) for bucket in buckets)


def complete(config: Mapping[str, Any], facts: Facts) -> Dict[str, Any]:
    """Return the fields that a config lacks: `max_batch_size`, `input` and `output`."""
    first = facts.buckets[0]
    rows = int(config.get("max_batch_size") or 0)
    tensors = [*(config.get("input") or []), *(config.get("output") or [])]
    added: Dict[str, Any] = {}
    if not rows and not tensors and can_batch(facts.buckets):
        rows = max(bucket.inputs[0].shape[0] for bucket in facts.buckets)
        added["max_batch_size"] = rows
    for side, prefix, file_tensors in (("input", "INPUT", first.inputs), ("output", "OUTPUT", first.outputs)):
        if not config.get(side) and file_tensors:
            added[side] = []
            for index, tensor in enumerate(file_tensors):
                # Without a batch dimension, buckets may differ in any dimension. Such a dimension becomes -1 in the config.
                shapes = [getattr(bucket, side + "s")[index].shape for bucket in facts.buckets]
                shape = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes)]
                name = tensor.name or f"{prefix}__{index}"
                added[side].append({"name": name, "data_type": TYPES[tensor.dtype], "dims": shape[1:] if rows else shape})
    return added


def plan_of(config: Mapping[str, Any], facts: Facts) -> Plan:
    """Return the plan of the model. Raises Fault with all contradictions between config and compiled file."""
    wrong: List[str] = []
    rows = int(config.get("max_batch_size") or 0)
    batches = batches_of(config)
    unknown_outputs = not facts.buckets[0].outputs
    if rows:
        sizes = [bucket.inputs[0].shape[0] if bucket.inputs and bucket.inputs[0].shape else 0 for bucket in facts.buckets]
        if not unknown_outputs and not can_batch(facts.buckets):
            wrong.append(f"max_batch_size is {rows}, but the compiled shapes share no batch dimension: {_shapes(facts.buckets)}")
        elif batches is not None and sorted(batches) != sorted(sizes):
            wrong.append(f"parameter batches is {batches}, the file was compiled for {sizes}")
        if max(sizes) and rows > max(sizes):
            wrong.append(f"max_batch_size is {rows}, compiled batches are {sizes}")
    else:
        sizes = [1] * len(facts.buckets)
    sides = []
    for side in ("input", "output"):
        named = config.get(side) or []
        order = _order(side, named, [getattr(bucket, side + "s") for bucket in facts.buckets], bool(rows), wrong, unknown_outputs)
        sides.append(order)
    if wrong:
        prefix = "" if facts.source == CONFIG else f"config.pbtxt does not match the compiled file as {facts.source} describes it: "
        raise Fault(prefix + "; ".join(wrong))
    buckets = []
    for bucket in facts.buckets:
        inputs = tuple(replace(entry, name=name) for entry, name in zip(bucket.inputs, sides[0]))
        outputs = tuple(replace(entry, name=name) for entry, name in zip(bucket.outputs, sides[1]))
        buckets.append(Bucket(inputs, outputs))
    return Plan(bool(rows), tuple(buckets), tuple(sizes))


def _shapes(buckets: Sequence[Bucket]) -> str:
    return ", ".join(str([list(tensor.shape) for tensor in (*bucket.inputs, *bucket.outputs)]) for bucket in buckets)


def _order(
    side: str,
    configured: Sequence[Mapping[str, Any]],
    compiled_tensors: Sequence[Sequence[Tensor]],
    batched: bool,
    wrong: List[str],
    unknown: bool,
) -> List[str]:
    """Return the tensor names of the config in the order of the file. Add each contradiction to `wrong`.

    If the outputs of the file are `unknown`, the order of the config counts.
    """
    if unknown:
        return [name["name"] for name in configured]
    first = compiled_tensors[0]
    if len(configured) != len(first):
        file_names = [entry.name or "?" for entry in first]
        wrong.append(
            f"config has {len(configured)} {side}s {[name['name'] for name in configured]}, the file {len(first)} {file_names}"
        )
        return []
    by_name = {name["name"]: name for name in configured}
    if all(POSITION.match(name["name"]) for name in configured):
        # The number in the name is the position in the file. The order in the config does not matter.
        ordered = sorted(configured, key=lambda name: int(POSITION.match(name["name"]).group(1)))  # type: ignore[union-attr]
    elif all(entry.name for entry in first):
        missing = [entry.name for entry in first if entry.name not in by_name]
        if missing:
            wrong.append(f"config names {side}s {sorted(by_name)}, the file {sorted(str(entry.name) for entry in first)}")
            return []
        ordered = [by_name[str(entry.name)] for entry in first]
    else:
        ordered = list(configured)
    for index, named_tensor in enumerate(ordered):
        for tensors in compiled_tensors:
            actual = tensors[index]
            kind, dims = TYPES.get(actual.dtype, actual.dtype), list(actual.shape[1:] if batched else actual.shape)
            if named_tensor["data_type"] != kind:
                wrong.append(f"{side} {named_tensor['name']} is {named_tensor['data_type']}, in the file {kind}")
            expected = _dims(named_tensor)
            if len(expected) != len(dims) or any(own not in (-1, size) for own, size in zip(expected, dims)):
                wrong.append(f"{side} {named_tensor['name']} has dims {expected}, in the file {dims}")
            if batched:  # the other buckets differ only in the batch dimension
                break
    return [tensor["name"] for tensor in ordered]


def sdk_mismatches(facts: Facts, version: str) -> List[str]:
    """Return the reasons why this SDK cannot run the file. The file must have been compiled with the same minor version."""
    image_line, file_line = (re.match(r"\d+\.\d+", text or "") for text in (version, facts.compiler))
    if image_line and file_line and image_line.group() != file_line.group():
        return [
            f"the file was compiled with SDK {facts.compiler}, the image has {version}: compile it again with {image_line.group()}"
        ]
    return []


def card_mismatches(facts: Facts, cards: Mapping[int, Optional[str]], npus: int) -> List[str]:
    """Return the reasons why the type or the number of these NPUs does not fit the file."""
    wrong = []
    for npu, card in cards.items():
        if facts.npu and card and facts.npu != card:
            wrong.append(f"the file was compiled for {facts.npu}, NPU {npu} is {card}")
    if facts.devices and facts.devices != npus:
        wrong.append(f"the file was compiled for {facts.devices} NPUs together, parameter npus_per_instance is {npus}")
    return wrong


def npus_of(instance: str, usable: Sequence[int], group_size: int) -> List[int]:
    """Return the NPUs of an instance. The index at the end of its name selects a group of `group_size` usable NPUs."""
    index = instance.rsplit("_", 1)[-1]
    if not index.isdigit():
        raise Fault(f"the name of instance {instance} does not end with an index, which selects its NPU")
    if not usable:
        raise Fault("no NPU is visible: the container needs /dev/rbln* and /dev/rsd0")
    groups = len(usable) // group_size
    if not groups:
        raise Fault(f"parameter npus_per_instance is {group_size}, the model may use {len(usable)} NPUs: {list(usable)}")
    first = int(index) % groups * group_size
    return list(usable[first : first + group_size])
