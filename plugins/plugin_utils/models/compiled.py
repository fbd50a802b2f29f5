"""What a compiled file says of itself, in the record that the compile step wrote beside it, and the config that follows.

Record: {"format": 1, "sha256": of the compiled file, "npu": such as "RBLN-CA12", "compiler_version", "devices": NPUs that one
instance spans, "device_memory": [bytes on each of them], "buckets": [{"inputs": [{"name", "shape", "dtype"}], "outputs":
[...]}, ...]} with buckets in the file's order, shapes with the batch dimension and dtypes by numpy's names. A name may be
null where the SDK does not keep it. Runs on the controller, where no SDK is.
"""

from __future__ import annotations

import json
import os
from typing import Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

FORMAT = 1
# Bytes of a record, NPUs of one instance, bytes of device memory; buckets, tensors of a side, dimensions of a tensor and their size
MOST_BYTES, MOST_DEVICES, MOST_MEMORY = 1 << 24, 256, 1 << 50
MOST_BUCKETS, MOST_TENSORS, MOST_DIMENSIONS, MOST_SIZE = 1000, 1000, 32, (1 << 31) - 1
# Characters of a flaw in a message
SHOWN = 120
SUFFIX = ".json"
# numpy's name -> data type of config.pbtxt
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
    """(the record of an artefact, reasons against it); no record is no reason.

    `record` of the artefact is the record itself or its path on the controller; without it, it is looked for beside `file`.
    """
    where, raw, error = _read(artefact)
    if error:
        return None, [f"{where}: {error}, wanted the record that the compile step wrote beside the compiled file"]
    if raw is None:
        return None, []
    flaw = _flaw(raw)
    if flaw:
        return None, [f"{where}: found {flaw}, wanted a record as playbooks/compile.yml writes it: compile the model again"]
    reasons = []
    if raw["sha256"] != artefact["sha256"]:
        reasons.append(
            f"{where} is of a file with SHA-256 {raw['sha256']}, the artefact has {artefact['sha256']}: take both of one compile"
        )
    if raw["npu"] != card:
        reasons.append(f"{where}: compiled for {raw['npu']}, npufleet_card is {card}: compile it for this card")
    return dict(raw), reasons


def record_beside(file: str) -> Tuple[Optional[Dict[str, Any]], str]:
    """(the record beside a compiled file or None, what makes it none or "")."""
    _where, raw, error = _read({"file": file})
    flaw = error or (_flaw(raw) if raw is not None else "")
    return (None if flaw else raw), flaw or ""


def digested(artefact: Mapping[str, Any]) -> Dict[str, Any]:
    """An artefact with its digest, which is the record's where the inventory does not say it."""
    raw = None if artefact.get("sha256") else _read(artefact)[1]
    return {**artefact, "sha256": raw.get("sha256")} if isinstance(raw, dict) else dict(artefact)


def refuse_in_the_way(model: str, path: str, files: Collection[str]) -> None:
    """Raise Refusal where the path of a compiled file is a directory of the model, or a file of the model is one of its."""
    in_the_way = [file for file in files if file.startswith(path + "/") or path.startswith(file + "/")]
    if in_the_way:
        expected = f"expected one beside {in_the_way[0]} of the model's directory"
        raise Refusal([f"model {model}: the path of its compiled file is {path}, {expected}. Correct `path`."])


def _read(artefact: Mapping[str, Any]) -> Tuple[str, Any, str]:
    """(where the record of an artefact is, the record or None, why it cannot be read or "")."""
    raw = artefact.get("record")
    if raw is None and os.path.isfile(str(artefact.get("file", "")) + SUFFIX):
        raw = artefact["file"] + SUFFIX
    if not isinstance(raw, str):
        return "its record", raw, ""
    try:
        with open(raw, "rb") as source:
            content = source.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            return raw, None, f"more than {MOST_BYTES} bytes"
        return raw, json.loads(content), ""
    except (OSError, ValueError, RecursionError) as error:
        return raw, None, str(error)


def _flaw(raw: Any) -> Optional[str]:
    """What makes this no record; None when it is one."""
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        return "format {}".format(raw.get("format") if isinstance(raw, dict) else type(raw).__name__)
    for key, kind in (("sha256", str), ("npu", str), ("devices", int), ("device_memory", list), ("buckets", list)):
        if not isinstance(raw.get(key), kind):
            return f"{key}: {_shown(raw.get(key))}"
    if not _are_sizes([raw["devices"]], 1, MOST_DEVICES) or not 1 <= len(raw["buckets"]) <= MOST_BUCKETS:
        return f"{_shown(raw['devices'])} devices and {len(raw['buckets'])} buckets"
    sizes = raw["device_memory"]
    if not _are_sizes(sizes, 0, MOST_MEMORY):
        return f"device_memory: {_shown(sizes)}"
    if len(sizes) not in (0, raw["devices"]):
        return f"device_memory: {len(sizes)} sizes of {raw['devices']} devices"
    for bucket in raw["buckets"]:
        for side in ("inputs", "outputs"):
            tensors = bucket.get(side) if isinstance(bucket, dict) else None
            if not isinstance(tensors, list) or not 1 <= len(tensors) <= MOST_TENSORS:
                return f"a bucket without {side}"
            for tensor in tensors:
                if not _is_tensor(tensor):
                    return f"{side}: {_shown(tensor)}"
    return None


def _is_tensor(value: Any) -> bool:
    """Return True for {"name", "shape", "dtype"} that a config can say; a name may be null."""
    if not isinstance(value, dict) or value.get("dtype") not in list(DTYPES):
        return False
    name, shape = value.get("name"), value.get("shape", [])
    named = name is None or (isinstance(name, str) and 0 < len(name) <= MOST_TENSORS)
    return named and _are_sizes(shape, 1, MOST_SIZE) and len(shape) <= MOST_DIMENSIONS


def _are_sizes(value: Any, least: int, most: int) -> bool:
    """Return True for a list of whole numbers within these limits."""
    whole = isinstance(value, list) and all(isinstance(size, int) and not isinstance(size, bool) for size in value)
    return whole and all(least <= size <= most for size in value)


def _shown(value: Any) -> str:
    """Return a value of a record as one short line."""
    line = repr(value)
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."


def batches(record: Mapping[str, Any]) -> Optional[List[int]]:
    """Batch size of each bucket, in the file's order; None where the buckets do not differ in a leading batch alone."""
    sizes, rest = [], []
    for bucket in record["buckets"]:
        shapes = [entry["shape"] for side in ("inputs", "outputs") for entry in bucket[side]]
        leading = {tuple(shape[:1]) for shape in shapes}
        if len(leading) != 1 or () in leading:
            return None
        sizes.append(shapes[0][0])
        rest.append([shape[1:] for shape in shapes])
    return sizes if all(word == rest[0] for word in rest) and len(set(sizes)) == len(sizes) else None


class Contradiction(NamedTuple):
    """A field of the config that is not what the compiled file is."""

    field: str
    found: str
    wanted: str


def complete(config: Any, record: Mapping[str, Any]) -> List[Contradiction]:
    """Fill in what the model's config does not say of inputs, outputs and batches; returns where the two disagree."""
    sizes = batches(record)
    if not config.input and not config.output and not config.max_batch_size and sizes:
        config.max_batch_size = max(sizes)
    found = []
    batched = config.max_batch_size > 0
    # Whether the compiled shapes have a dimension that the config leaves out
    cut = batched and sizes is not None
    if batched and sizes is None:
        found.append(Contradiction("max_batch_size", str(config.max_batch_size), "0, as the compiled file has no batch dimension"))
    elif batched and sizes and config.max_batch_size > max(sizes):
        wanted = f"at most {max(sizes)}, as the compiled file has batches of {_listed(sizes)}"
        found.append(Contradiction("max_batch_size", str(config.max_batch_size), wanted))
    for side in ("inputs", "outputs"):
        said, compiled = getattr(config, side[:-1]), record["buckets"][0][side]
        if said:
            found += _compare(side, said, compiled, cut)
        elif any(not entry.get("name") for entry in compiled):
            found.append(Contradiction(side[:-1], "nothing", f"the {side}, as the compiled file's record has no names for them"))
        else:
            for bucket in compiled:
                added = said.add()
                added.name = bucket["name"]
                added.data_type = (
                    added.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name[DTYPES[bucket["dtype"]]].number
                )
                added.dims.extend(bucket["shape"][1:] if cut else bucket["shape"])
    if batched and sizes:
        known = config.parameters["batches"].string_value
        if known and known.replace(" ", "") != _listed(sizes):
            found.append(Contradiction("parameters[batches]", known, f"{_listed(sizes)}, the compiled file's"))
        config.parameters["batches"].string_value = _listed(sizes)
    return found


def _compare(side: str, said: Any, compiled: List[Mapping[str, Any]], cut: bool) -> Iterator[Contradiction]:
    """Where tensors of the config are not those of the compiled file, which are matched by name, else by place."""
    named = all(record.get("name") for record in compiled)
    names = [entry.name for entry in said]
    if len(said) != len(compiled) or (named and {record["name"] for record in compiled} != set(names)):
        known = ", ".join(str(record.get("name")) for record in compiled)
        yield Contradiction(side[:-1], ", ".join(names), f"{known}, the compiled file's")
        return
    by_name = {record["name"]: record for record in compiled} if named else dict(zip(names, compiled))
    for index, word in enumerate(said):
        other = by_name[word.name]
        kind = word.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[word.data_type].name
        # A missing `reshape` is not an empty one
        dims = list(word.reshape.shape if word.HasField("reshape") else word.dims)
        wanted = other["shape"][1:] if cut else other["shape"]
        same = len(dims) == len(wanted) and all(size in (-1, known) for size, known in zip(dims, wanted))
        if kind != DTYPES[other["dtype"]] or not same:
            found = f"{word.name} as {kind} {dims}"
            yield Contradiction(f"{side[:-1]}[{index}]", found, f"{DTYPES[other['dtype']]} {wanted}, the compiled file's")


def _listed(sizes: List[int]) -> str:
    return ",".join(str(size) for size in sizes)
