"""Check files: what each model is asked and what it has to answer, read and validated. Controller only.

A file that is not right is refused as a whole, with every finding, its file and its field; nothing is sent before.

Its lines: the grammar of one kind of file, which is read from top to bottom.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils import inference
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import tensors
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import found_in, is_inside, is_line
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import yaml_of

DTYPES = tuple(inference.NUMPY)
# Where arrays come from, in a check file's inputs and in the values that it expects
SOURCES = ("npy", "raw", "text", "numbers", "file", "image", "generated")
GOLDEN_SOURCES = ("npy", "numbers", "file")
# Sources that need a dtype and a shape beside them, and those that may have a dtype
SHAPED = ("raw", "generated")
TYPED = (*SHAPED, "numbers", "file", "image", "npy")
# Keys of each mapping in a check file, and whether it has to be there
FILE = {"model": True, "golden": False, "checks": True}
CHECK = {
    "name": True, "protocols": True, "inputs": True, "rows": False, "expect": False, "error": False, "responses": False,
    "cancel": False, "instances": False, "ms": False, "timeout": False, "latency": False,
}  # fmt: skip
ROWS = {"first": True, "count": True, "spread": False, "batch": False}
INPUT = dict.fromkeys((*SOURCES, "dtype", "shape"), False)
GENERATED = {"seed": False, "low": False, "high": False}
EXPECT = dict.fromkeys(("dtype", "shape", "finite", "argmax", "values", "text", "class_count", "label"), False)
VALUES = dict.fromkeys((*GOLDEN_SOURCES, "atol", "rtol"), False)
ERROR = {"status": False, "contains": False}
CANCEL = {"after": True, "times": False}
# How long a load lasts, and the limits that it is held against
LENGTHS = ("seconds", "requests")
LIMITS = (*inference.PERCENTILES, "infer_per_s")
LATENCY = {"clients": False, **dict.fromkeys((*LENGTHS, *LIMITS), False)}
# Seconds and requests that a load has at most: it keeps a server from others
LONGEST = {"seconds": 600, "requests": 1000000}
# Checks of a file, a number that counts something, elements of a made-up array (of bytes each is an object), dimensions, seconds
CHECKS, MOST, ELEMENTS, OBJECTS, DIMENSIONS, DAY = 1000, 1000000, 1 << 26, 1 << 20, 32, 86400
# Bytes of the name of a check, which is a label of metrics and part of a file name, and of a file of golden data
NAME_BYTES, FILE_BYTES = 200, 1 << 30
# Characters of a value in a message
SHOWN = 1000
# Any of these is something that an answer can fail by.
PROOFS = ("expect", "error", "responses", "cancel", "latency")
# What is judged by the values of an output
OF_VALUES = ("finite", "argmax", "values", "text", "class_count", "label")
# Statuses with which a client of gRPC itself speaks of a connection that broke off, or of a proxy
CLIENTS_OWN = ("INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED")
# What cannot be judged by where classes were asked for: the output holds those instead.
NOT_WITH_CLASSES = ("finite", "argmax", "values", "text")


class CheckFile:
    """One check file; `findings` collects everything that is wrong with it, each with file and field."""

    def __init__(self, model: str, path: str, golden_dirs: Sequence[str]) -> None:
        self.model = model
        self.path = path
        self.golden_dirs = golden_dirs
        self.golden = model
        self.findings: List[str] = []
        self.arrays: Dict[str, Any] = {}
        # Of each field that is made up: what of
        self.generated: Dict[str, Dict[str, Any]] = {}

    def read(self, host_index: int) -> Dict[str, Any]:
        """{"model", "checks"} with the rows that this host sends. Good for nothing when there are findings."""
        try:
            whole = yaml_of(self.path)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            self.findings.append(f"{self.path}: is not a YAML file: {' '.join(str(error).split())}")
            return {}
        document = self._mapping(whole, FILE, "")
        if "model" in document and document["model"] != self.model:
            self._finding("model", document["model"], f"{self.model}, which the file is named after")
        self.golden = self._text(document.get("golden", self.model), "golden") or self.model
        if not is_inside(self.golden):
            self._finding("golden", self.golden, "the name of a directory of golden data, without ..")
            self.golden = self.model
        checks: List[Dict[str, Any]] = []
        names: List[str] = []
        listed = self._list(document["checks"], "checks") if "checks" in document else []
        if len(listed) > CHECKS:
            self._finding("checks", f"{len(listed)} checks", f"at most {CHECKS}")
        for number, raw in enumerate(listed[:CHECKS]):
            field = f"checks[{number}]"
            check = self._mapping(raw, CHECK, field)
            name = self._text(check["name"], f"{field}.name") if "name" in check else ""
            if not is_line(name) or len(name.encode()) > NAME_BYTES:
                self._finding(f"{field}.name", ascii(name[:40]), f"one line of at most {NAME_BYTES} bytes")
            if name in names:
                self._finding(f"{field}.name", name, "a name that no other check of the file has")
            names += [name] if name else []
            checks.append(self._check(check, field, host_index))
        return {"model": self.model, "checks": checks}

    def _check(self, check: Mapping[str, Any], field: str, host_index: int) -> Dict[str, Any]:
        protocols = self._list(check.get("protocols", ["http"]), f"{field}.protocols")
        for protocol in protocols:
            if protocol not in inference.PROTOCOLS or protocols.count(protocol) > 1:
                self._finding(f"{field}.protocols", protocol, f"each of {', '.join(inference.PROTOCOLS)} at most once")
        rows = self._rows(check["rows"], f"{field}.rows") if "rows" in check else None
        found = {"name": check.get("name"), "protocols": protocols, **self._limits(check, field, protocols)}
        if check and not any(key in check for key in PROOFS):
            self._finding(f"{field}.expect", "nothing", f"a value, or one of {', '.join(PROOFS[1:])}")
        arrays: Dict[str, Any] = {}
        inputs = self._mapping(check["inputs"], None, f"{field}.inputs") if "inputs" in check else {}
        dtypes: Dict[str, str] = {}
        for name, raw in inputs.items():
            where = f"{field}.inputs.{name}"
            entry = self._mapping(raw, INPUT, where)
            arrays[where] = self._array(entry, where, SOURCES)
            # What numpy has no name for is said beside the array.
            dtypes[name] = "BF16" if entry.get("dtype") == "BF16" else ""
        found["expect"], labels = {}, {}
        for name, raw in self._mapping(check["expect"], None, f"{field}.expect").items() if "expect" in check else ():
            where = f"{field}.expect.{name}"
            wanted = found["expect"][name] = self._expectation(raw, where)
            for key in ("values", "text"):
                if key in wanted:
                    arrays[f"{where}.{key}"] = self._golden(wanted, key, where)
            labels.update({f"{where}.{key}": len(wanted[key]) for key in ("argmax", "label") if isinstance(wanted.get(key), list)})
        sent = self._sent(rows, found, labels, arrays, host_index)
        if self.findings:
            return {}
        found["inputs"] = {}
        for name in inputs:
            where = f"{field}.inputs.{name}"
            made_of = self.generated.get(where)
            packed = inference.pack_generated(made_of, sent) if made_of else inference.pack(arrays[where], sent)
            found["inputs"][name] = {**packed, "dtype": dtypes[name]}
        for name, wanted in found["expect"].items():
            for key in ("values", "text"):
                if key in wanted:
                    golden = inference.pack(arrays[f"{field}.expect.{name}.{key}"], sent)
                    wanted["values"] = {**(wanted[key] if key == "values" else {}), **golden}
        return found

    def _sent(
        self,
        rows: Optional[Dict[str, Any]],
        found: Dict[str, Any],
        labels: Mapping[str, int],
        arrays: Mapping[str, Any],
        index: int,
    ) -> Optional[List[int]]:
        """The rows that this host sends, None for whole arrays. Sees to it that arrays and labels have enough."""
        if not rows:
            return None
        rows["total"] = self._total(rows, labels, [len(array) for array in arrays.values() if array is not None])
        for where, array in arrays.items():
            if array is not None and len(array) < rows["first"] + rows["total"]:
                source = "" if where.endswith(".text") else ".npy"
                self._finding(f"{where}{source}", f"{len(array)} rows", f"at least {rows['first'] + rows['total']}")
        if self.findings:
            return None
        found["rows"] = rows
        return sorted({row for request in inference.requests(self.model, found, index) for row in request.rows or []})

    def _limits(self, check: Mapping[str, Any], field: str, protocols: Sequence[Any]) -> Dict[str, Any]:
        """Checked `error`, `responses`, `cancel`, `instances`, `ms` and `timeout` of a check, as far as they are there."""
        found = {key: check[key] for key in ("responses", "instances", "ms", "timeout") if key in check}
        for key, most in (("ms", 1000 * DAY), ("timeout", DAY)):
            if key in found and not (_is_number(found[key]) and found[key] > 0):
                self._finding(f"{field}.{key}", found[key], "a number above 0")
            elif key in found and not found[key] <= most:
                self._finding(f"{field}.{key}", found[key], f"at most {most}")
        self._whole(found, "responses", 0, field)
        if not isinstance(found.get("instances", True), bool):
            self._finding(f"{field}.instances", found["instances"], "true or false")
        if "cancel" in check:
            found["cancel"] = dict(self._mapping(check["cancel"], CANCEL, f"{field}.cancel"))
            for key in CANCEL:
                self._whole(found["cancel"], key, 1, f"{field}.cancel")
        if "error" in check:
            error = found["error"] = dict(self._mapping(check["error"], ERROR, f"{field}.error"))
            if not error:
                self._finding(f"{field}.error", error, f"at least one of {', '.join(ERROR)}")
            if "status" in error and error["status"] not in inference.STATUS:
                self._finding(f"{field}.error.status", error["status"], f"one of {', '.join(inference.STATUS)}")
            if "contains" in error:
                self._text(error["contains"], f"{field}.error.contains")
            elif error.get("status") != "DEADLINE_EXCEEDED" and "stream" in protocols:
                # Older servers tell no status there: any error at all would do.
                self._finding(f"{field}.error.contains", "nothing", "a value, as not every server tells a status over stream")
            elif error.get("status") in CLIENTS_OWN and {"grpc", "raw"} & {str(protocol) for protocol in protocols}:
                self._finding(
                    f"{field}.error.contains",
                    "nothing",
                    f"a value: over gRPC a connection that breaks off may be {error['status']}, too",
                )
        if "latency" in check:
            found["latency"] = self._latency(check["latency"], f"{field}.latency", protocols)
        for key in ("responses", "cancel"):
            if key in check and any(protocol != "stream" for protocol in protocols):
                self._finding(f"{field}.{key}", "protocols other than stream", "protocols: [stream]")
        if "error" in check and "expect" in check and any(protocol != "stream" for protocol in protocols):
            self._finding(f"{field}.expect", "it beside error", "one of the two: only a stream answers before it fails")
        alone = {
            "cancel": ("error", "responses", "ms"),
            "instances": ("error", "responses", "cancel"),
            "latency": ("error", "responses", "cancel", "instances", "ms"),
        }
        for key, others in alone.items():
            both = [other for other in others if check.get(key) and other in check]
            if both:
                self._finding(f"{field}.{key}", f"it beside {', '.join(both)}", "it without")
        return found

    def _latency(self, raw: Any, field: str, protocols: Sequence[Any]) -> Dict[str, Any]:
        """Checked `latency`: how long the load lasts, how many clients it has, and what it must not miss."""
        limits = {"clients": 1, **self._mapping(raw, LATENCY, field)}
        self._whole(limits, "clients", 1, field)
        self._whole(limits, "requests", 1, field)
        if _is_whole(limits["clients"]) and limits["clients"] > inference.WIDEST:
            self._finding(f"{field}.clients", limits["clients"], f"at most {inference.WIDEST}")
        for key in ("seconds", *LIMITS):
            if key in limits and not (_is_number(limits[key]) and 0 < limits[key] < float("inf")):
                self._finding(f"{field}.{key}", limits[key], "a number above 0")
        for key, most in LONGEST.items():
            if _is_number(limits.get(key)) and limits[key] > most:
                self._finding(f"{field}.{key}", limits[key], f"at most {most}")
        lengths = [key for key in LENGTHS if key in limits]
        if len(lengths) != 1:
            self._finding(field, " and ".join(lengths) or "no length", f"exactly one of {', '.join(LENGTHS)}")
        if not any(key in limits for key in LIMITS):
            self._finding(field, "no limit", f"at least one of {', '.join(LIMITS)}")
        for name, share in inference.PERCENTILES.items():
            # Of fewer it is the slowest one, whatever its name.
            least = 100 // (100 - share)
            if name in limits and _is_whole(limits.get("requests")) and limits["requests"] < least:
                self._finding(f"{field}.requests", limits["requests"], f"at least {least} for {name}")
        if "stream" in protocols:
            self._finding(f"{field}", "it beside protocol stream", "any of http, grpc, raw: a stream's answers come as they like")
        return limits

    def _golden(self, wanted: Dict[str, Any], key: str, field: str) -> Any:
        """The array that an output is compared with, None when there is none."""
        if key == "text":
            text = wanted["text"]
            wanted["text"] = True
            if "values" in wanted:
                self._finding(f"{field}.text", "it beside values", "one of the two")
            try:
                return tensors.of_text(text)
            except tensors.Unfit as unfit:
                self._finding(f"{field}.text", unfit.found, unfit.wanted)
                return None
        array = self._array(wanted["values"], f"{field}.values", GOLDEN_SOURCES)
        for source in GOLDEN_SOURCES[1:]:
            wanted["values"].pop(source, None)
        if array is not None:
            self._provable(array, wanted["values"], f"{field}.values")
        return array

    def _provable(self, golden: Any, wanted: Mapping[str, Any], field: str) -> None:
        """Refuse golden values that every output passes, or none."""
        import numpy as np

        if not golden.size:
            self._finding(field, f"no value in shape {list(golden.shape)}", "one at least; for an empty output say its shape")
        if golden.dtype.kind not in inference.NUMBERS:
            return
        values = np.abs(golden.astype(np.float64))
        if np.isnan(values).any():
            self._finding(field, f"{int(np.isnan(values).sum())} values that are nan", "numbers: nothing equals nan")
        limits = [wanted.get(key, 0) for key in ("atol", "rtol")]
        if all(_is_number(limit) for limit in limits) and values.any() and (values <= limits[0] + limits[1] * values).all():
            self._finding(
                f"{field}.{'atol' if limits[0] else 'rtol'}",
                f"a tolerance of {' and '.join(f'{limit:g}' for limit in limits if limit)}",
                "one that an output of zeros does not pass",
            )

    def _rows(self, raw: Any, field: str) -> Dict[str, Any]:
        """Checked `rows`, empty when they are of no use."""
        before = len(self.findings)
        rows = dict(self._mapping(raw, ROWS, field))
        for key, least in (("first", 0), ("count", 1)):
            self._whole(rows, key, least, field)
        for key in ("spread", "batch"):
            if not isinstance(rows.get(key, False), bool):
                self._finding(f"{field}.{key}", rows[key], "true or false")
        return rows if len(self.findings) == before else {}

    def _total(self, rows: Mapping[str, Any], labels: Mapping[str, int], lengths: Sequence[int]) -> int:
        """How many rows there are to take blocks from: as many as labels, without any as many as all arrays have."""
        count = int(rows["count"])
        if not rows.get("spread"):
            for field, found in labels.items():
                if found != count:
                    self._finding(field, f"{found} labels", f"{count}, one for each row")
            return count
        for field, found in labels.items():
            if not found or found % count or found != min(labels.values()):
                more = "" if found == min(labels.values()) else " and as many as the other outputs have"
                self._finding(field, f"{found} labels", f"a multiple of {count}, one block after the other{more}")
        least = min(labels.values()) if labels else min(lengths, default=0) - int(rows["first"])
        return max(least // count * count, count)

    def _expectation(self, raw: Any, field: str) -> Dict[str, Any]:
        wanted = dict(self._mapping(raw, EXPECT, field))
        if "dtype" in wanted and wanted["dtype"] not in DTYPES:
            self._finding(f"{field}.dtype", wanted["dtype"], f"one of {', '.join(DTYPES)}")
        for key in ("shape", "argmax"):
            if key in wanted and not all(_is_whole(entry) and entry >= 0 for entry in self._list(wanted[key], f"{field}.{key}")):
                self._finding(f"{field}.{key}", wanted[key], "whole numbers of at least 0")
        if "label" in wanted:
            for element in self._list(wanted["label"], f"{field}.label"):
                self._text(element, f"{field}.label")
        self._whole(wanted, "class_count", 1, field)
        if "finite" in wanted and wanted["finite"] is not True:
            self._finding(f"{field}.finite", wanted["finite"], "true, or the key left out: nothing else is judged")
        of_values = [key for key in OF_VALUES if key in wanted]
        if of_values and isinstance(wanted.get("shape"), list) and 0 in wanted["shape"]:
            self._finding(
                f"{field}.{of_values[0]}", f"it beside shape {wanted['shape']}", "one of the two: an empty output has no values"
            )
        both = [key for key in NOT_WITH_CLASSES if key in wanted and wanted.keys() & {"class_count", "label"}]
        if both:
            self._finding(
                f"{field}.{both[0]}", "it beside class_count or label", "it in a check of its own: classes replace the values"
            )
        if "values" in wanted:
            wanted["values"] = dict(self._mapping(wanted["values"], VALUES, f"{field}.values"))
            for key in ("atol", "rtol"):
                limit = wanted["values"].get(key, 0)
                if not _is_number(limit) or not 0 <= limit < float("inf"):
                    self._finding(f"{field}.values.{key}", limit, "a number of at least 0")
        return wanted

    def _array(self, entry: Mapping[str, Any], field: str, sources: Sequence[str]) -> Any:
        """The array of an input or of values; None when there is none."""
        before = len(self.findings)
        try:
            source = tensors.source_of(entry, sources)
        except tensors.Unfit as unfit:
            self._finding(field, unfit.found, unfit.wanted)
            return None
        dtype, shape = entry.get("dtype"), entry.get("shape", [])
        if dtype is not None and (dtype not in DTYPES or source not in TYPED):
            self._finding(
                f"{field}.dtype", dtype, f"none beside {source}" if source not in TYPED else f"one of {', '.join(DTYPES)}"
            )
        if "shape" in entry and not all(_is_whole(size) and size > 0 for size in self._list(shape, f"{field}.shape")):
            self._finding(f"{field}.shape", shape, "whole numbers above 0")
        elif "shape" in entry and (len(shape) > DIMENSIONS or math.prod(shape) > (OBJECTS if dtype == "BYTES" else ELEMENTS)):
            most = OBJECTS if dtype == "BYTES" else ELEMENTS
            self._finding(f"{field}.shape", shape, f"at most {DIMENSIONS} sizes, and at most {most} values")
        pixels = source == "image" and dtype == "FP32"
        for key, needed in (("dtype", (*SHAPED, "numbers")), ("shape", (*SHAPED, "image") if pixels else SHAPED)):
            if key not in entry and source in needed and sources is SOURCES:
                self._finding(f"{field}.{key}", "nothing", f"a value, as {source} needs one")
        if "shape" in entry and source not in SHAPED and not pixels:
            self._finding(f"{field}.shape", shape, f"none beside {source}, which has its own")
        if len(self.findings) > before:
            return None
        try:
            return self._of(source, entry[source], dtype, shape, field)
        except tensors.Unfit as unfit:
            self._finding(f"{field}.{source}", unfit.found, unfit.wanted)
            return None

    def _of(self, source: str, value: Any, dtype: Optional[str], shape: List[int], field: str) -> Any:
        """The array of one source. Raises Unfit."""
        where = f"{field}.{source}"
        if source == "npy":
            path = self._path(self._text(value, where), where)
            if path and path not in self.arrays:
                self.arrays[path] = tensors.of_npy(path)
            array = self.arrays[path] if path else None
            if array is not None and dtype and (dtype, array.dtype.name) != ("BF16", "float32"):
                self._finding(f"{field}.dtype", f"{dtype} beside {array.dtype} in {value}", "none, or BF16 beside float32")
            return array
        if source == "text":
            return tensors.of_text(value)
        if source == "numbers":
            return tensors.of_numbers(value, dtype)
        if source == "generated":
            given = self._mapping(value, GENERATED, where)
            for key in GENERATED:
                if key in given and not (_is_number(given[key]) if key != "seed" else _is_seed(given[key])):
                    self._finding(
                        f"{where}.{key}", given[key], "a number" if key != "seed" else "a whole number from 0 to 4294967295"
                    )
                    return None
            self.generated[field] = {"dtype": str(dtype), "shape": shape, **given}
            return tensors.generated(**self.generated[field])
        if source == "raw":
            path = self._path(self._text(value, where), where)
            return tensors.of_raw(_content(path), str(dtype), shape) if path else None
        if source == "image" and dtype == "FP32":
            return tensors.of_pictures(value, lambda name: self._file(name, where, True), shape)
        if dtype not in (None, "BYTES", "UINT8"):
            pixels = ", or FP32 and shape [3, H, W] for the pixels of a picture" * (source == "image")
            raise tensors.Unfit(dtype, f"BYTES or UINT8 for the bytes of a file{pixels}")
        return tensors.of_files(value, lambda name: self._file(name, where, source == "image"), dtype or "BYTES")

    def _file(self, name: str, field: str, image: bool) -> bytes:
        """The bytes of a file, which for an image is JPEG or PNG; empty when there are none."""
        path = self._path(name, field)
        content = _content(path) if path else b""
        if path and image and not content.startswith(inference.PICTURES):
            raise tensors.Unfit(f"{path}, which is neither", "a JPEG or PNG file; any other is a `file`")
        return content

    def _path(self, name: str, field: str) -> Optional[str]:
        """Where a file of the golden data is: the first directory that has it wins."""
        if not name:
            return None
        if not is_inside(name):
            self._finding(field, ascii(name[:80]), "the name of a file of the golden data, without ..")
            return None
        path = found_in(self.golden_dirs, self.golden, name)
        if path is None:
            self._finding(
                field, "no such file", " or ".join(os.path.join(directory, self.golden, name) for directory in self.golden_dirs)
            )
        return path

    def _whole(self, entry: Mapping[str, Any], key: str, least: int, field: str) -> None:
        if key in entry and (not _is_whole(entry[key]) or entry[key] < least):
            self._finding(f"{field}.{key}", entry[key], f"a whole number of at least {least}")
        elif key in entry and entry[key] > MOST:
            self._finding(f"{field}.{key}", entry[key], f"at most {MOST}")

    def _mapping(self, value: Any, keys: Optional[Mapping[str, bool]], field: str) -> Mapping[str, Any]:
        """`value` as a mapping: of these keys, or of at least one entry where `keys` is None."""
        if not isinstance(value, dict) or not (value or keys):
            self._finding(field or "the file", value, "a mapping that is not empty")
            return {}
        unknown = sorted(str(key) for key in value if keys is not None and key not in keys)
        prefix = f"{field}." if field else ""
        for key in unknown:
            self._finding(prefix + key, "an unknown key", f"one of {', '.join(keys or ())}")
        if keys is None:
            for key in value:
                self._text(key, f"{field}.{key}")
        for key, needed in (keys or {}).items():
            if needed and key not in value:
                self._finding(prefix + key, "nothing", "a value")
        if keys is EXPECT and not value:
            self._finding(field, value, f"at least one of {', '.join(EXPECT)}")
        return value

    def _list(self, value: Any, field: str) -> List[Any]:
        if not isinstance(value, list) or not value:
            self._finding(field, value, "a list that is not empty")
            return []
        return value

    def _text(self, value: Any, field: str) -> str:
        if not isinstance(value, str) or not value.strip():
            self._finding(field, value, "a text (quote what YAML takes for a number)")
            return ""
        return value

    def _finding(self, field: str, found: Any, wanted: str) -> None:
        shown = found if isinstance(found, str) else json.dumps(found, default=str)
        shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
        line = f"{self.path}: {field}: found {shown}, wanted {wanted}"
        if line not in self.findings:
            self.findings.append(line)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_seed(value: Any) -> bool:
    return _is_whole(value) and 0 <= value < 2**32


def _content(path: str) -> bytes:
    """The bytes of a file. Raises Unfit."""
    try:
        with open(path, "rb") as source:
            content = source.read(FILE_BYTES + 1)
    except OSError as error:
        raise tensors.Unfit(f"{path}: {error}", "a file that can be read") from None
    if len(content) > FILE_BYTES:
        raise tensors.Unfit(f"{path} of more than {FILE_BYTES} bytes", "a smaller file")
    return content


def documents(models: Sequence[str], checks_dirs: Sequence[str], golden_dirs: Sequence[str], host_index: int) -> Dict[str, Any]:
    """{"host_index", "checks", "unproven"} for these models; unproven are failed results of those without a file.

    Raises Refusal with every finding in every file.
    """
    checks, unproven, findings = [], [], []
    for model in models:
        path = found_in(checks_dirs, f"{model}.yml")
        if path is None:
            places = " or ".join(os.path.join(directory, f"{model}.yml") for directory in checks_dirs)
            why = f"found no {places}: write one as ansible-doc npufleet.triton.inference_check shows, or set require_checks: false"
            entry = {"name": f"{model}/check file", "model": model, "check": "check file", "protocol": None}
            unproven.append({**entry, "ok": False, "why": why, "ms": None})
            continue
        file = CheckFile(model, path, golden_dirs)
        checks.append(file.read(host_index))
        findings += file.findings
    if findings:
        raise Refusal(findings)
    return {"host_index": host_index, "checks": checks, "unproven": unproven}
