# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The record that the compile step writes beside a compiled file, and the config fields that follow from the record.

Keys of a record: "format": 1, "sha256" of the compiled file, "npu" such as "RBLN-CA12", "compiler_version", "devices" (the number
of NPUs that one instance spans), "device_memory" (bytes on each of these NPUs), and "buckets", a list in the file's order of
{"inputs": [{"name", "shape", "dtype"}], "outputs": [...]}. Shapes include the batch dimension, dtypes are numpy's names. A name
is null if the SDK does not keep it. This code runs on the controller, which has no SDK.
"""

from __future__ import annotations

import json
import os
from typing import Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

FORMAT = 1
# Limits of a record: its bytes, NPUs of one instance, bytes of device memory, buckets, inputs or outputs, dimensions, their size
MAX_BYTES, MAX_DEVICES, MAX_MEMORY = 1 << 24, 256, 1 << 50
MAX_BUCKETS, MAX_TENSORS, MAX_DIMENSIONS, MAX_SIZE = 1000, 1000, 32, (1 << 31) - 1
# The most characters of a value in a message
MAX_SHOWN = 120
SUFFIX = ".json"  # The record of model.rbln is model.rbln.json
# {name of a dtype in numpy: its name in config.pbtxt}
DTYPES = {
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


def record_of(artefact: Mapping[str, Any], card: str) -> Tuple[Optional[Dict[str, Any]], List[str]]:
    """Return (the record of an artefact or None, the errors of the record). A missing record is no error.

    The artefact's `record` is the record itself or its path on the controller. Without it, the record beside `file` is read.
    """
    where, raw, error = _read(artefact)
    if error:
        return None, [f"{where} cannot be read ({error}), expected the record of the compile step. Compile the model again"]
    if raw is None:
        return None, []
    flaw = _flaw(raw)
    if flaw:
        return None, [f"{where} has {flaw}, expected a record in the form of playbooks/compile.yml. Compile the model again"]
    reasons = []
    if raw["sha256"] != artefact["sha256"]:
        digest = artefact["sha256"]
        reasons.append(f"{where} is for SHA-256 {raw['sha256']}, expected {digest} of the artefact. Take both from one compilation")
    if raw["npu"] != card:
        reasons.append(f"{where} is for {raw['npu']}, expected {card}, the npufleet_card. Compile the model for this card")
    return dict(raw), reasons


def record_beside(file: str) -> Tuple[Optional[Dict[str, Any]], str]:
    """Return (the record beside a compiled file or None, the error of the record or "")."""
    _where, raw, error = _read({"file": file})
    if error:
        return None, f"unreadable ({error})"
    flaw = _flaw(raw) if raw is not None else None
    return (None, f"a record with {flaw}") if flaw else (raw, "")


def with_digest(artefact: Mapping[str, Any]) -> Dict[str, Any]:
    """Return an artefact with its digest. If the inventory does not set it, it is that of the record."""
    raw = None if artefact.get("sha256") else _read(artefact)[1]
    return {**artefact, "sha256": raw.get("sha256")} if isinstance(raw, dict) else dict(artefact)


def refuse_conflicting_path(model: str, path: str, files: Collection[str]) -> None:
    """Raise Refusal if the path of a compiled file is a directory of the model, or below one of its files."""
    conflicts = [file for file in files if file.startswith(path + "/") or path.startswith(file + "/")]
    if conflicts:
        expected = f"expected one beside {conflicts[0]} of the model's directory"
        raise Refusal([f"model {model}: the path of its compiled file is {path}, {expected}. Correct `path`."])


def _read(artefact: Mapping[str, Any]) -> Tuple[str, Any, str]:
    """Return (the path or name of an artefact's record for messages, the record or None, the read error or "")."""
    raw = artefact.get("record")
    if raw is None and os.path.isfile(str(artefact.get("file", "")) + SUFFIX):
        raw = artefact["file"] + SUFFIX
    if not isinstance(raw, str):
        return "its record", raw, ""
    try:
        with open(raw, "rb") as source:
            content = source.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return raw, None, f"more than {MAX_BYTES} bytes"
        return raw, json.loads(content), ""
    except (OSError, ValueError, RecursionError) as error:
        return raw, None, str(error)


def _flaw(raw: Any) -> Optional[str]:
    """Return the error of a record as a phrase that follows "has", or None."""
    if not isinstance(raw, dict):
        return f"type {type(raw).__name__}"
    if raw.get("format") != FORMAT:
        return f"format {_shown(raw.get('format'))}"
    for key, kind in (("sha256", str), ("npu", str), ("devices", int), ("device_memory", list), ("buckets", list)):
        if not isinstance(raw.get(key), kind):
            return f"{key} {_shown(raw.get(key))}"
    if not _are_sizes([raw["devices"]], 1, MAX_DEVICES) or not 1 <= len(raw["buckets"]) <= MAX_BUCKETS:
        return f"{_shown(raw['devices'])} devices and {len(raw['buckets'])} buckets"
    sizes = raw["device_memory"]
    if not _are_sizes(sizes, 0, MAX_MEMORY):
        return f"device_memory {_shown(sizes)}"
    if len(sizes) not in (0, raw["devices"]):
        return f"{len(sizes)} sizes in device_memory for {raw['devices']} devices"
    for bucket in raw["buckets"]:
        for side in ("inputs", "outputs"):
            tensors = bucket.get(side) if isinstance(bucket, dict) else None
            if not isinstance(tensors, list) or not 1 <= len(tensors) <= MAX_TENSORS:
                return f"a bucket without {side}"
            for tensor in tensors:
                if not _is_tensor(tensor):
                    return f"{_shown(tensor)} in {side}"
    return None


def _is_tensor(value: Any) -> bool:
    """Return True for {"name", "shape", "dtype"} with values that a config can have. The name may also be null."""
    if not isinstance(value, dict) or value.get("dtype") not in list(DTYPES):
        return False
    name, shape = value.get("name"), value.get("shape", [])
    named = name is None or (isinstance(name, str) and 0 < len(name) <= MAX_TENSORS)
    return named and _are_sizes(shape, 1, MAX_SIZE) and len(shape) <= MAX_DIMENSIONS


def _are_sizes(value: Any, least: int, most: int) -> bool:
    """Return True for a list of whole numbers within these limits."""
    whole = isinstance(value, list) and all(isinstance(size, int) and not isinstance(size, bool) for size in value)
    return whole and all(least <= size <= most for size in value)


def _shown(value: Any) -> str:
    """Return a value of a record as one short line."""
    line = repr(value)
    return line if len(line) <= MAX_SHOWN else line[: MAX_SHOWN - 3] + "..."


def batches(record: Mapping[str, Any]) -> Optional[List[int]]:
    """Return the batch size of each bucket in the file's order, or None if the buckets differ in more than the first dimension."""
    sizes, rest = [], []
    for bucket in record["buckets"]:
        shapes = [entry["shape"] for side in ("inputs", "outputs") for entry in bucket[side]]
        leading = {tuple(shape[:1]) for shape in shapes}
        if len(leading) != 1 or () in leading:
            return None
        sizes.append(shapes[0][0])
        rest.append([shape[1:] for shape in shapes])
    return sizes if all(entry == rest[0] for entry in rest) and len(set(sizes)) == len(sizes) else None


class Contradiction(NamedTuple):
    """A field of the config that contradicts the record of the compiled file."""

    field: str
    actual: str
    expected: str


def complete(config: Any, record: Mapping[str, Any]) -> List[Contradiction]:
    """Add missing inputs, outputs and batch sizes to a model's config. Return the contradictions between config and record."""
    sizes = batches(record)
    if not config.input and not config.output and not config.max_batch_size and sizes:
        config.max_batch_size = max(sizes)
    contradictions = []
    batched = config.max_batch_size > 0
    # True if the compiled shapes have a batch dimension that the dims of the config omit
    omits_batch = batched and sizes is not None
    if batched and sizes is None:
        expected = "0, as the compiled file has no batch dimension"
        contradictions.append(Contradiction("max_batch_size", str(config.max_batch_size), expected))
    elif batched and sizes and config.max_batch_size > max(sizes):
        expected = f"at most {max(sizes)}, as the compiled file has batches of {_listed(sizes)}"
        contradictions.append(Contradiction("max_batch_size", str(config.max_batch_size), expected))
    for side in ("inputs", "outputs"):
        tensors, compiled = getattr(config, side[:-1]), record["buckets"][0][side]
        if tensors:
            contradictions += _compare(side, tensors, compiled, omits_batch)
        elif any(not entry.get("name") for entry in compiled):
            expected = f"the {side}, as the compiled file's record has no names for them"
            contradictions.append(Contradiction(side[:-1], "missing", expected))
        else:
            for entry in compiled:
                tensor = tensors.add()
                tensor.name = entry["name"]
                types = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name
                tensor.data_type = types[DTYPES[entry["dtype"]]].number
                tensor.dims.extend(entry["shape"][1:] if omits_batch else entry["shape"])
    if batched and sizes:
        known = config.parameters["batches"].string_value
        if known and known.replace(" ", "") != _listed(sizes):
            contradictions.append(Contradiction("parameters[batches]", known, f"{_listed(sizes)} of the compiled file"))
        config.parameters["batches"].string_value = _listed(sizes)
    return contradictions


def _compare(side: str, tensors: Any, compiled: List[Mapping[str, Any]], omits_batch: bool) -> Iterator[Contradiction]:
    """Yield the contradictions between the tensors of the config and of the record. Tensors match by name, or else by order."""
    named = all(entry.get("name") for entry in compiled)
    names = [tensor.name for tensor in tensors]
    if len(tensors) != len(compiled) or (named and {entry["name"] for entry in compiled} != set(names)):
        known = ", ".join(str(entry.get("name")) for entry in compiled)
        yield Contradiction(side[:-1], ", ".join(names), f"{known} of the compiled file")
        return
    by_name = {entry["name"]: entry for entry in compiled} if named else dict(zip(names, compiled))
    for index, tensor in enumerate(tensors):
        entry = by_name[tensor.name]
        kind = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
        # An empty `reshape` is a scalar, and differs from a missing one.
        dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
        expected = entry["shape"][1:] if omits_batch else entry["shape"]
        same = len(dims) == len(expected) and all(size in (-1, known) for size, known in zip(dims, expected))
        if kind != DTYPES[entry["dtype"]] or not same:
            actual = f"{tensor.name} as {kind} {dims}"
            yield Contradiction(f"{side[:-1]}[{index}]", actual, f"{DTYPES[entry['dtype']]} {expected} of the compiled file")


def _listed(sizes: List[int]) -> str:
    return ",".join(str(size) for size in sizes)
