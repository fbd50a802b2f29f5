# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The record that the compile step writes beside a compiled file, and the config fields that follow from the record.

Keys of a record: "format" (always 1), "sha256" of the compiled file, "npu" such as "RBLN-CA12", "compiler_version", "devices" (the
number of NPUs that one instance spans), "device_memory" (bytes on each of these NPUs), and "buckets". A bucket is one compiled
variant of the model, usually for one batch size: {"inputs": [{"name", "shape", "dtype"}], "outputs": [...]}. The buckets have the
order of the compiled file. Shapes include the batch dimension. Dtypes have numpy's names. A name is null if the SDK does not keep
the name. This code runs on the controller, which has no SDK.
"""

from __future__ import annotations

import base64
import json
import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import shapes
from ansible_collections.npufleet.triton.plugins.module_utils.plan import short

FORMAT = 1
# Limits of a record, in this order: its bytes, NPUs of an instance, bytes of device memory on an NPU, and buckets
MAX_BYTES, MAX_DEVICES, MAX_MEMORY, MAX_BUCKETS = 1 << 24, 256, 1 << 50, 1000
# Limits of a bucket, in this order: inputs or outputs, dimensions, and size of a dimension
MAX_TENSORS, MAX_DIMENSIONS, MAX_SIZE = 1000, 32, (1 << 31) - 1
MAX_SHOWN = 120  # Characters of a value, or of a message of the JSON parser, in a message
SUFFIX = ".json"  # The record of model.rbln is model.rbln.json
EXPECTED_RECORD = "a record that playbooks/compile.yml has written"
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
# The form of the inputs or outputs of a bucket. config.pbtxt can contain each such name and dtype.
TENSORS = [{"name?": (re.compile(".{1,1000}", re.DOTALL), shapes.NULL), "shape": [int], "dtype": re.compile("|".join(DTYPES))}]
SHAPE = {
    "format": int,
    "sha256": str,
    "npu": str,
    "devices": int,
    "device_memory": [int],
    "buckets": [{"inputs": TENSORS, "outputs": TENSORS}],
}
# The form of a record that a build host sends. Later runs read its additional fields to decide whether to compile the model again.
SENT_SHAPE = {
    **SHAPE,
    "sha256": re.compile("[0-9a-f]{64}"),
    "compiler_version": str,
    "source": {"kind": str, "sha256": str, "spec": str},
}


def record_of(artefact: Mapping[str, Any], card: str) -> Tuple[Optional[Dict[str, Any]], List[str]]:
    """Return (the record of an artefact or None, []), or (None, the errors of the record). A missing record is no error.

    The artefact's `record` is the record itself or its path on the controller. The default is the record beside `file`.
    """
    record_name, record, flaw = valid_record(artefact)
    if flaw:
        return None, [f"{record_name} is {flaw}, expected {EXPECTED_RECORD}. Compile the model again"]
    if record is None:
        return None, []
    reasons = []
    if record["sha256"] != artefact["sha256"]:
        expected = f"{artefact['sha256']} of the artefact"
        reasons.append(f"{record_name} is for SHA-256 {record['sha256']}, expected {expected}. Take both from one compilation")
    if record["npu"] != card:
        reasons.append(f"{record_name} is for {record['npu']}, expected {card}, the npufleet_card. Compile the model for this card")
    return None if reasons else record, reasons


def valid_record(artefact: Mapping[str, Any]) -> Tuple[str, Optional[Dict[str, Any]], str]:
    """Return (the path or name of an artefact's record, the record or None, its flaw or ""). A missing record is no flaw."""
    record_name, raw, error = _read(artefact)
    if error:
        return record_name, None, f"unreadable ({error})"
    flaw = _flaw(raw) if raw is not None else None
    return (record_name, None, f"not valid ({flaw})") if flaw else (record_name, raw, "")


def validate_sent_record(content: str, sha256: str) -> Dict[str, str]:
    """Return {"text", "flaw"} of a record. For a valid record, `flaw` is "". For any other record, `text` is "".

    `text` is the text of the record to write on the controller. `flaw` is the reason to refuse the record. `content` is the record
    in Base64. It comes from a build host and can be invalid. `sha256` is the digest of the compiled file.
    """
    try:
        record = json.loads(base64.b64decode(content))
        text = json.dumps(record, allow_nan=False, indent=1, sort_keys=True) + "\n"
    except (ValueError, RecursionError) as error:
        return {"text": "", "flaw": f"it is not JSON ({short(str(error), MAX_SHOWN)})"}
    flaw = shapes.mismatch(record, SENT_SHAPE) or "; ".join(record_of({"record": record, "sha256": sha256}, record["npu"])[1])
    return {"text": "" if flaw else text, "flaw": flaw}


def with_digest(artefact: Mapping[str, Any]) -> Dict[str, Any]:
    """Return an artefact with the key `sha256`. If `sha256` is not set, take the digest from the artefact's record."""
    raw = None if artefact.get("sha256") else _read(artefact)[1]
    return {**artefact, "sha256": raw.get("sha256")} if isinstance(raw, dict) else dict(artefact)


def _read(artefact: Mapping[str, Any]) -> Tuple[str, Any, str]:
    """Return (the path or name of an artefact's record for messages, the record or None, the read error or "")."""
    raw = artefact.get("record")
    if raw is None and os.path.isfile(str(artefact.get("file", "")) + SUFFIX):
        raw = artefact["file"] + SUFFIX
    record_name = raw if isinstance(raw, str) else "its record"
    try:
        if not isinstance(raw, str):
            # Values from an inventory have types of Ansible. JSON turns them into plain types.
            return record_name, json.loads(json.dumps(raw)), ""
        with open(raw, "rb") as source:
            content = source.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return record_name, None, f"more than {MAX_BYTES} bytes"
        return record_name, json.loads(content), ""
    except (OSError, TypeError, ValueError, RecursionError) as error:
        return record_name, None, str(error)


def _flaw(raw: Any) -> Optional[str]:
    """Return the error of a record as a sentence without a period, or None."""
    mismatch = shapes.mismatch(raw, SHAPE)
    if mismatch:
        return mismatch
    devices, sizes, buckets = raw["devices"], raw["device_memory"], raw["buckets"]
    if raw["format"] != FORMAT:
        return f"format is {raw['format']}, expected {FORMAT}"
    if not 1 <= devices <= MAX_DEVICES or not 1 <= len(buckets) <= MAX_BUCKETS:
        return f"it has {devices} devices and {len(buckets)} buckets, expected 1 to {MAX_DEVICES} and 1 to {MAX_BUCKETS}"
    if len(sizes) not in (0, devices) or not all(0 <= size <= MAX_MEMORY for size in sizes):
        return f"device_memory is {_shown(sizes)}, expected a size for each of {devices} devices"
    for bucket in buckets:
        for side in ("inputs", "outputs"):
            if not 1 <= len(bucket[side]) <= MAX_TENSORS:
                return f"a bucket has {len(bucket[side])} {side}, expected 1 to {MAX_TENSORS}"
            for shape in (tensor["shape"] for tensor in bucket[side]):
                if len(shape) > MAX_DIMENSIONS or not all(1 <= size <= MAX_SIZE for size in shape):
                    expected = f"at most {MAX_DIMENSIONS} sizes from 1 to {MAX_SIZE}"
                    return f"{side} contains the shape {_shown(shape)}, expected {expected}"
    return None


def _shown(value: Any) -> str:
    return short(repr(value), MAX_SHOWN)


def batches(record: Mapping[str, Any]) -> Optional[List[int]]:
    """Return the batch size of each bucket in the file's order, or None if the buckets differ in more than the batch size."""
    sizes, other_sizes = [], []
    for bucket in record["buckets"]:
        dims = [entry["shape"] for side in ("inputs", "outputs") for entry in bucket[side]]
        leading = {tuple(shape[:1]) for shape in dims}
        if len(leading) != 1 or () in leading:
            return None
        sizes.append(dims[0][0])
        other_sizes.append([shape[1:] for shape in dims])
    return sizes if all(entry == other_sizes[0] for entry in other_sizes) and len(set(sizes)) == len(sizes) else None


def complete(config: Any, record: Mapping[str, Any]) -> Iterator[Tuple[str, str, str]]:
    """Add missing inputs, outputs and batch sizes to a model's config.

    Yield (field, actual, expected) for each field of the config that contradicts the record.
    """
    sizes = batches(record)
    if not config.input and not config.output and not config.max_batch_size and sizes:
        config.max_batch_size = max(sizes)
    batched = config.max_batch_size > 0
    # The dims of a config with batches omit the batch dimension of the compiled shapes.
    omits_batch = batched and sizes is not None
    if batched and sizes is None:
        yield "max_batch_size", str(config.max_batch_size), "0, as the compiled file has no batch dimension"
    elif batched and sizes and config.max_batch_size > max(sizes):
        expected = f"at most {max(sizes)}, as the compiled file has batches of {_listed(sizes)}"
        yield "max_batch_size", str(config.max_batch_size), expected
    for side in ("inputs", "outputs"):
        tensors, compiled = getattr(config, side[:-1]), record["buckets"][0][side]
        if tensors:
            yield from _compare(side[:-1], tensors, compiled, omits_batch)
        elif any(not entry.get("name") for entry in compiled):
            expected = f"the {side}, because the compiled file's record has no names for them"
            yield side[:-1], "missing", expected
        else:
            for entry in compiled:
                dims = entry["shape"][1:] if omits_batch else entry["shape"]
                tensors.add(name=entry["name"], data_type=DTYPES[entry["dtype"]], dims=dims)
    if batched and sizes:
        configured = config.parameters["batches"].string_value
        if configured and configured.replace(" ", "") != _listed(sizes):
            yield "parameters[batches]", configured, f"{_listed(sizes)} of the compiled file"
        config.parameters["batches"].string_value = _listed(sizes)


def _compare(field: str, tensors: Any, compiled: List[Mapping[str, Any]], omits_batch: bool) -> Iterator[Tuple[str, str, str]]:
    """Yield the contradictions between the tensors of the config and of the record, in the form of `complete`.

    Tensors match by name or, if a tensor of the record has no name, by order.
    """
    named = all(entry.get("name") for entry in compiled)
    names = [tensor.name for tensor in tensors]
    if len(tensors) != len(compiled) or (named and {entry["name"] for entry in compiled} != set(names)):
        compiled_names = ", ".join(str(entry.get("name")) for entry in compiled)
        yield field, ", ".join(names), f"{compiled_names} of the compiled file"
        return
    by_name = {entry["name"]: entry for entry in compiled} if named else dict(zip(names, compiled))
    for index, tensor in enumerate(tensors):
        entry = by_name[tensor.name]
        kind = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
        # An empty `reshape` means a scalar. A missing `reshape` means the shape of `dims`.
        dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
        shape = entry["shape"][1:] if omits_batch else entry["shape"]
        if kind != DTYPES[entry["dtype"]] or not fits(shape, dims):
            expected = f"{DTYPES[entry['dtype']]} {shape} of the compiled file"
            yield f"{field}[{index}]", f"{tensor.name} as {kind} {dims}", expected


def fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Return True if a shape fits the dims of a config, in which -1 is any size."""
    return len(shape) == len(dims) and all(expected in (-1, size) for size, expected in zip(shape, dims))


def _listed(sizes: List[int]) -> str:
    return ",".join(str(size) for size in sizes)
