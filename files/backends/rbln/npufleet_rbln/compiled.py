"""Inputs and outputs of a compiled file, compared with the config of a model. This file uses no NPU.

The facts come from the SDK's `inspect`, else from the record that the compile step left beside the file
(`model.rbln.json`), else from the config and its parameter `batches`.
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
# Triton's types by numpy's names; what is missing here no compiled file takes.
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
# INPUT__0, OUTPUT__1: Triton's convention for a tensor by its position, whatever the file calls it.
POSITION = re.compile(r"(?:IN|OUT)PUT__(\d+)$")


@dataclass(frozen=True)
class Tensor:
    """A tensor of one bucket: whole shape, batch included, and numpy's name of its type; the vendor may not know the name."""

    name: Optional[str]
    shape: Tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Bucket:
    """One list of fixed shapes that the file was compiled for. `outputs` is empty where nothing tells them before a run."""

    inputs: Tuple[Tensor, ...]
    outputs: Tuple[Tensor, ...]


@dataclass(frozen=True)
class Facts:
    """A compiled file: its buckets in their order, its card and compiler, and the source of these facts."""

    source: str
    buckets: Tuple[Bucket, ...]
    npu: Optional[str] = None
    compiler: Optional[str] = None
    devices: Optional[int] = None
    # Why the SDK's own word is not among it
    flaw: str = ""


@dataclass(frozen=True)
class Plan:
    """The plan of a model: tensors in the order of the file with the names of the config, and the batch size of each bucket."""

    batched: bool
    buckets: Tuple[Bucket, ...]
    sizes: Tuple[int, ...] = field(default=())

    @property
    def limit(self) -> int:
        """Rows of the largest bucket; without a batch a request is one row."""
        return max(self.sizes)

    def as_dict(self) -> Dict[str, Any]:
        """Return the plan as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Plan:
        """Return the plan of the data of `as_dict`."""
        return cls(bool(raw["batched"]), tuple(_bucket(bucket) for bucket in raw["buckets"]), tuple(raw["sizes"]))


def parameter(config: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return the text of a model parameter."""
    return str(((config.get("parameters") or {}).get(name) or {}).get("string_value", default))


def numbers(text: str, what: str) -> List[int]:
    """Numbers out of a list such as "1,2,4"."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise Fault(f"parameter {what} is {text!r}, expected numbers such as 1,2,4")
    return [int(part) for part in parts]


def number(config: Mapping[str, Any], name: str, default: int) -> int:
    """Return a parameter that is one number of 1 and above."""
    text = parameter(config, name, str(default))
    if not text.strip().isdecimal() or int(text) < 1:
        raise Fault(f"parameter {name} is {text!r}, expected a number of 1 and above")
    return int(text)


def find(directory: str, config: Mapping[str, Any]) -> str:
    """Path of the compiled file in a version directory."""
    file = config.get("default_model_filename") or COMPILED_FILE
    path = os.path.join(directory, file)
    if not os.path.isfile(path):
        raise Fault(f"version {os.path.basename(directory)} has no {file}")
    return path


def facts_of(path: str, config: Mapping[str, Any], inspected: Optional[Mapping[str, Any]]) -> Facts:
    """Return the facts of the file: `inspected` (None or a flaw if the SDK has none), else its record, else the config."""
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
    """Return the record beside the file, or None. Raises Fault if it belongs to another file or cannot be read."""
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
    """Parameter `batches`, None where it is not given."""
    if "batches" not in (config.get("parameters") or {}):
        return None
    found = numbers(parameter(config, "batches"), "batches")
    if min(found) < 1:
        raise Fault(f"parameter batches names {min(found)}, expected sizes of 1 and above")
    return found


def _spread(facts: Facts, config: Mapping[str, Any]) -> Facts:
    """Return the known bucket for each size of the parameter `batches`: only the first dimension differs."""
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
    """Return the facts of the config for a file without a description; its outputs are learnt from a run at load."""
    inputs = config.get("input") or []
    if not inputs or not config.get("output"):
        raise Fault(
            f"{flaw or 'the SDK cannot inspect compiled files'} and no record is beside this one: compile it with "
            "playbooks/compile.yml, or write inputs, outputs and the parameter batches into config.pbtxt"
        )
    sizes = (batches_of(config) or [1]) if config.get("max_batch_size") else [0]
    for given in inputs:
        if min([0, *_dims(given)]) < 0:
            raise Fault(
                f"input {given['name']} has open dims {_dims(given)}, and nothing says what the file was compiled for: write them"
            )
        if given["data_type"] not in NUMPY:
            raise Fault(f"input {given['name']} is {given['data_type']}, an NPU takes {', '.join(sorted(NUMPY))}")
    buckets = []
    for rows in sizes:
        lead = (rows,) if rows else ()
        buckets.append(
            Bucket(tuple(Tensor(tensor["name"], (*lead, *_dims(tensor)), NUMPY[tensor["data_type"]]) for tensor in inputs), ())
        )
    return Facts(CONFIG, tuple(buckets))


def memory_dtype(dtype: str) -> np.dtype[Any]:
    """Return the numpy type of a tensor in memory: bfloat16, which numpy lacks, has 16 bits."""
    return np.dtype(np.uint16 if dtype == BFLOAT16 else dtype)


def _dims(entry: Mapping[str, Any]) -> List[int]:
    """Dimensions of a config's tensor as the backend sees them."""
    return [int(size) for size in (entry.get("reshape") or {}).get("shape", entry["dims"])]


def can_batch(buckets: Sequence[Bucket]) -> bool:
    """Return True if the buckets differ only in the first dimension, which all tensors of a bucket share."""

    def rest(bucket: Bucket) -> Any:
        return [(tensor.name, tensor.shape[1:], tensor.dtype) for tensor in (*bucket.inputs, *bucket.outputs)]

    for bucket in buckets:
        leads = {tensor.shape[:1] for tensor in (*bucket.inputs, *bucket.outputs)}
        if len(leads) != 1 or leads == {()}:
            return False
    return all(rest(bucket) == rest(buckets[0]) for bucket in buckets)


def complete(config: Mapping[str, Any], facts: Facts) -> Dict[str, Any]:
    """Return the missing fields of a config: any of `max_batch_size`, `input`, `output`."""
    first = facts.buckets[0]
    rows = int(config.get("max_batch_size") or 0)
    said = [*(config.get("input") or []), *(config.get("output") or [])]
    added: Dict[str, Any] = {}
    if not rows and not said and can_batch(facts.buckets):
        rows = max(bucket.inputs[0].shape[0] for bucket in facts.buckets)
        added["max_batch_size"] = rows
    for side, prefix, tensors in (("input", "INPUT", first.inputs), ("output", "OUTPUT", first.outputs)):
        if not config.get(side) and tensors:
            added[side] = []
            for index, tensor in enumerate(tensors):
                # Buckets of a model without a batch may differ anywhere: such a dimension is open.
                same = [getattr(bucket, side + "s")[index].shape for bucket in facts.buckets]
                shape = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*same)]
                name = tensor.name or f"{prefix}__{index}"
                added[side].append({"name": name, "data_type": TYPES[tensor.dtype], "dims": shape[1:] if rows else shape})
    return added


def plan_of(config: Mapping[str, Any], facts: Facts) -> Plan:
    """Return the plan of the model. Raises Fault with every contradiction between config and file."""
    wrong: List[str] = []
    rows = int(config.get("max_batch_size") or 0)
    batches = batches_of(config)
    learnt = not facts.buckets[0].outputs
    if rows:
        sizes = [bucket.inputs[0].shape[0] if bucket.inputs and bucket.inputs[0].shape else 0 for bucket in facts.buckets]
        if not learnt and not can_batch(facts.buckets):
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
        order = _order(side, named, [getattr(bucket, side + "s") for bucket in facts.buckets], bool(rows), wrong, learnt)
        sides.append(order)
    if wrong:
        by = "" if facts.source == CONFIG else f"config.pbtxt is not what {facts.source} says of the compiled file: "
        raise Fault(by + "; ".join(wrong))
    buckets = []
    for bucket in facts.buckets:
        inputs = tuple(replace(entry, name=name) for entry, name in zip(bucket.inputs, sides[0]))
        outputs = tuple(replace(entry, name=name) for entry, name in zip(bucket.outputs, sides[1]))
        buckets.append(Bucket(inputs, outputs))
    return Plan(bool(rows), tuple(buckets), tuple(sizes))


def _shapes(buckets: Sequence[Bucket]) -> str:
    return ", ".join(str([list(tensor.shape) for tensor in (*bucket.inputs, *bucket.outputs)]) for bucket in buckets)


def _order(
    side: str, named: Sequence[Mapping[str, Any]], found: Sequence[Sequence[Tensor]], batched: bool, wrong: List[str], learnt: bool
) -> List[str]:
    """Return the names of the config in the order of the file; contradictions are added to `wrong`."""
    if learnt:
        return [name["name"] for name in named]
    first = found[0]
    if len(named) != len(first):
        theirs = [entry.name or "?" for entry in first]
        wrong.append(f"config has {len(named)} {side}s {[name['name'] for name in named]}, the file {len(first)} {theirs}")
        return []
    by_name = {name["name"]: name for name in named}
    if all(POSITION.match(name["name"]) for name in named):
        # Whatever order they are written in, their number is their place.
        places = sorted(named, key=lambda name: int(POSITION.match(name["name"]).group(1)))  # type: ignore[union-attr]
    elif all(entry.name for entry in first):
        missing = [entry.name for entry in first if entry.name not in by_name]
        if missing:
            wrong.append(f"config names {side}s {sorted(by_name)}, the file {sorted(str(entry.name) for entry in first)}")
            return []
        places = [by_name[str(entry.name)] for entry in first]
    else:
        places = list(named)
    for index, path in enumerate(places):
        for tensors in found:
            there = tensors[index]
            kind, dims = TYPES.get(there.dtype, there.dtype), list(there.shape[1:] if batched else there.shape)
            if path["data_type"] != kind:
                wrong.append(f"{side} {path['name']} is {path['data_type']}, in the file {kind}")
            wanted = _dims(path)
            if len(wanted) != len(dims) or any(mine not in (-1, size) for mine, size in zip(wanted, dims)):
                wrong.append(f"{side} {path['name']} has dims {wanted}, in the file {dims}")
            if batched:  # the others differ in the batch alone
                break
    return [place["name"] for place in places]


def against_sdk(facts: Facts, version: str) -> List[str]:
    """Return the reasons why this SDK cannot run the file: both have to belong to one minor line."""
    mine, theirs = (re.match(r"\d+\.\d+", text or "") for text in (version, facts.compiler))
    if mine and theirs and mine.group() != theirs.group():
        return [f"the file was compiled with SDK {facts.compiler}, here is {version}: compile it again with {mine.group()}"]
    return []


def against_card(facts: Facts, cards: Mapping[int, Optional[str]], wanted: int) -> List[str]:
    """Return the reasons why these NPUs do not fit the file: their type and number."""
    wrong = []
    for npu, card in cards.items():
        if facts.npu and card and facts.npu != card:
            wrong.append(f"the file was compiled for {facts.npu}, NPU {npu} is {card}")
    if facts.devices and facts.devices != wanted:
        wrong.append(f"the file was compiled for {facts.devices} NPUs together, parameter npus_per_instance is {wanted}")
    return wrong


def npus_of(instance: str, usable: Sequence[int], each: int) -> List[int]:
    """Return the NPUs of an instance: groups of `each` usable NPUs, by the trailing index of its name."""
    index = instance.rsplit("_", 1)[-1]
    if not index.isdigit():
        raise Fault(f"instance {instance} has no trailing index to choose an NPU by")
    if not usable:
        raise Fault("no NPU is visible: the container needs /dev/rbln* and /dev/rsd0")
    groups = len(usable) // each
    if not groups:
        raise Fault(f"parameter npus_per_instance is {each}, the model may use {len(usable)} NPUs: {list(usable)}")
    first = int(index) % groups * each
    return list(usable[first : first + each])
