# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The validation of check files, which contain the requests to each model and the expected responses."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.inference import clients, packing, questions
from ansible_collections.npufleet.triton.plugins.module_utils.inference.errors import STATUS
from ansible_collections.npufleet.triton.plugins.module_utils.inference.load import PERCENTILES, WIDEST
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.arrays import DTYPES, GOLDEN_SOURCES, SOURCES, Arrays
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.fields import is_number, is_whole
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks.inputs import found_in, is_inside, is_line
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import yaml_of

# Keys of each map in a check file, {key: True if required}
FILE_KEYS = {"model": True, "golden": False, "checks": True}
CHECK_KEYS = {
    "name": True, "protocols": True, "inputs": True, "rows": False, "expect": False, "error": False, "responses": False,
    "cancel": False, "instances": False, "ms": False, "timeout": False, "latency": False,
}  # fmt: skip
ROWS_KEYS = {"first": True, "count": True, "spread": False, "batch": False}
INPUT_KEYS = dict.fromkeys((*SOURCES, "dtype", "shape"), False)
EXPECT_KEYS = dict.fromkeys(("dtype", "shape", "finite", "argmax", "values", "text", "class_count", "label"), False)
VALUES_KEYS = dict.fromkeys((*GOLDEN_SOURCES, "atol", "rtol"), False)
ERROR_KEYS = {"status": False, "contains": False}
CANCEL_KEYS = {"after": True, "times": False}
# The keys that set the length of a load test, and the keys that set its limits
LOAD_LENGTHS = ("seconds", "requests")
LATENCY_LIMITS = (*PERCENTILES, "infer_per_s")
LATENCY_KEYS = {"clients": False, **dict.fromkeys((*LOAD_LENGTHS, *LATENCY_LIMITS), False)}
# The longest load test. A load test slows down the other clients of the server.
MAX_LOAD_SECONDS = 600
# The most checks of a file, and the most bytes of the name of a check. The name is a label of metrics and a part of file names.
MAX_CHECKS, MAX_NAME_BYTES = 1000, 200
DAY = 86400  # seconds
# Fields with the expected response. Each check needs at least one of them.
EXPECTATION_FIELDS = ("expect", "error", "responses", "cancel", "latency")
# Expectations that an empty output cannot meet, because it has no values
VALUE_EXPECTATIONS = ("finite", "argmax", "values", "text", "class_count", "label")
# Expectations that exclude `class_count` and `label`, because a response with classes has no numbers
NOT_WITH_CLASSES = ("finite", "argmax", "values", "text")
# Statuses that the gRPC client also reports for a broken connection or a failed proxy
CLIENT_STATUSES = ("INTERNAL", "UNAVAILABLE", "UNIMPLEMENTED")
# {field of a check: fields that must not be set together with this field}
EXCLUDES = {
    "cancel": ("error", "responses", "ms"),
    "instances": ("error", "responses", "cancel"),
    "latency": ("error", "responses", "cancel", "instances", "ms"),
}


class CheckFile(Arrays):
    """The check file of one model."""

    def read(self, host_index: int) -> Dict[str, Any]:
        """Return {"model", "checks"} with the rows that this host sends. The result is valid only if `errors` is empty."""
        try:
            content = yaml_of(self.path)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            self.errors.append(f"{self.path}: is not a YAML file: {' '.join(str(error).split())}")
            return {}
        document = self.as_map(content, FILE_KEYS, "")
        if "model" in document and document["model"] != self.model:
            self.error("model", document["model"], f"{self.model}, the name of the file")
        self.golden = self.as_text(document.get("golden", self.model), "golden") or self.model
        if not is_inside(self.golden):
            self.error("golden", self.golden, "the name of a directory of golden data, without ..")
            self.golden = self.model
        checks: List[Dict[str, Any]] = []
        names: List[str] = []
        entries = self.as_list(document["checks"], "checks") if "checks" in document else []
        if len(entries) > MAX_CHECKS:
            self.error("checks", f"a list of {len(entries)} checks", f"at most {MAX_CHECKS}")
        for number, raw in enumerate(entries[:MAX_CHECKS]):
            field = f"checks[{number}]"
            check = self.as_map(raw, CHECK_KEYS, field)
            name = self.as_text(check["name"], f"{field}.name") if "name" in check else ""
            if not is_line(name) or len(name.encode()) > MAX_NAME_BYTES:
                self.error(f"{field}.name", ascii(name[:40]), f"one line of at most {MAX_NAME_BYTES} bytes")
            if name in names:
                self.error(f"{field}.name", name, "a unique name")
            names += [name] if name else []
            checks.append(self._check(check, field, host_index))
        return {"model": self.model, "checks": checks}

    def _check(self, check: Mapping[str, Any], field: str, host_index: int) -> Dict[str, Any]:
        """Return one check with its packed arrays, or {} if the file has errors."""
        protocols = self.as_list(check.get("protocols", ["http"]), f"{field}.protocols")
        for protocol in protocols:
            if protocol not in clients.PROTOCOLS or protocols.count(protocol) > 1:
                self.error(f"{field}.protocols", protocol, f"each of {', '.join(clients.PROTOCOLS)} at most once")
        rows = self._rows(check["rows"], f"{field}.rows") if "rows" in check else None
        result = {"name": check.get("name"), "protocols": protocols, **self._conditions(check, field, protocols)}
        if check and not any(key in check for key in EXPECTATION_FIELDS):
            self.error(f"{field}.expect", "missing", f"a value, or one of {', '.join(EXPECTATION_FIELDS[1:])}")
        arrays: Dict[str, Any] = {}
        inputs = self.as_map(check["inputs"], None, f"{field}.inputs") if "inputs" in check else {}
        for name, raw in inputs.items():
            tensor_field = f"{field}.inputs.{name}"
            arrays[tensor_field] = self.array(self.as_map(raw, INPUT_KEYS, tensor_field), tensor_field, SOURCES)
        result["expect"], labels = {}, {}
        for name, raw in self.as_map(check["expect"], None, f"{field}.expect").items() if "expect" in check else ():
            tensor_field = f"{field}.expect.{name}"
            expectation = result["expect"][name] = self._expectation(raw, tensor_field)
            for key in ("values", "text"):
                if key in expectation:
                    arrays[f"{tensor_field}.{key}"] = self.golden_array(expectation, key, tensor_field)
            for key in ("argmax", "label"):
                if isinstance(expectation.get(key), list):
                    labels[f"{tensor_field}.{key}"] = len(expectation[key])
        sent_rows = self._sent_rows(rows, result, labels, arrays, host_index)
        if self.errors:
            return {}
        result["inputs"] = {}
        for name, entry in inputs.items():
            tensor_field = f"{field}.inputs.{name}"
            parameters = self.generated.get(tensor_field)
            packed = packing.pack_generated(parameters, sent_rows) if parameters else packing.pack(arrays[tensor_field], sent_rows)
            # numpy has no BF16, so the dtype is sent with the array.
            result["inputs"][name] = {**packed, "dtype": "BF16" if entry.get("dtype") == "BF16" else ""}
        for name, expectation in result["expect"].items():
            for key in ("values", "text"):
                if key in expectation:
                    golden = packing.pack(arrays[f"{field}.expect.{name}.{key}"], sent_rows)
                    expectation["values"] = {**(expectation[key] if key == "values" else {}), **golden}
        return result

    def _sent_rows(
        self,
        rows: Optional[Dict[str, Any]],
        check: Dict[str, Any],
        labels: Mapping[str, int],
        arrays: Mapping[str, Any],
        host_index: int,
    ) -> Optional[List[int]]:
        """Check the lengths of arrays and labels. Return the numbers of the rows that this host sends, or None for all rows."""
        if not rows:
            return None
        rows["total"] = self._total(rows, labels, [len(array) for array in arrays.values() if array is not None])
        needed = rows["first"] + rows["total"]
        for tensor_field, array in arrays.items():
            if array is not None and len(array) < needed:
                source = "" if tensor_field.endswith(".text") else ".npy"
                self.error(f"{tensor_field}{source}", f"an array of {len(array)} rows", f"at least {needed}")
        if self.errors:
            return None
        check["rows"] = rows
        return sorted({row for request in questions.requests(self.model, check, host_index) for row in request.rows or []})

    def _conditions(self, check: Mapping[str, Any], field: str, protocols: Sequence[Any]) -> Dict[str, Any]:
        """Return the fields `responses`, `instances`, `ms`, `timeout`, `cancel`, `error` and `latency` that a check sets."""
        result = {key: check[key] for key in ("responses", "instances", "ms", "timeout") if key in check}
        self.check_positive(result, "ms", 1000 * DAY, field)
        self.check_positive(result, "timeout", DAY, field)
        self.check_whole(result, "responses", 0, field)
        self.check_boolean(result, "instances", field)
        if "cancel" in check:
            result["cancel"] = dict(self.as_map(check["cancel"], CANCEL_KEYS, f"{field}.cancel"))
            for key in CANCEL_KEYS:
                self.check_whole(result["cancel"], key, 1, f"{field}.cancel")
        if "error" in check:
            result["error"] = self._error(check["error"], f"{field}.error", protocols)
        if "latency" in check:
            result["latency"] = self._latency(check["latency"], f"{field}.latency", protocols)
        other_protocols = any(protocol != "stream" for protocol in protocols)
        for key in ("responses", "cancel"):
            if key in check and other_protocols:
                self.error(f"{field}.{key}", "set for protocols other than stream", "protocols: [stream]")
        if "error" in check and "expect" in check and other_protocols:
            self.error(f"{field}.expect", "set together with error", "one of the two, as only a stream responds before it fails")
        for key, others in EXCLUDES.items():
            conflicts = [name for name in others if check.get(key) and name in check]
            if conflicts:
                expected = f"no {' and no '.join(conflicts)} together with it"
                self.error(f"{field}.{key}", f"set together with {', '.join(conflicts)}", expected)
        return result

    def _error(self, raw: Any, field: str, protocols: Sequence[Any]) -> Dict[str, Any]:
        error = dict(self.as_map(raw, ERROR_KEYS, field))
        if not error:
            self.error(field, error, f"at least one of {', '.join(ERROR_KEYS)}")
        if "status" in error and error["status"] not in STATUS:
            self.error(f"{field}.status", error["status"], f"one of {', '.join(STATUS)}")
        if "contains" in error:
            self.as_text(error["contains"], f"{field}.contains")
        elif error.get("status") != "DEADLINE_EXCEEDED" and "stream" in protocols:
            # Older servers send no status over a stream. Without `contains`, the check would accept any error.
            self.error(f"{field}.contains", "missing", "a value, as not every server sends a status over stream")
        elif error.get("status") in CLIENT_STATUSES and {"grpc", "raw"} & {str(protocol) for protocol in protocols}:
            expected = f"a value, as a broken connection over gRPC may be {error['status']}, too"
            self.error(f"{field}.contains", "missing", expected)
        return error

    def _latency(self, raw: Any, field: str, protocols: Sequence[Any]) -> Dict[str, Any]:
        load = {"clients": 1, **self.as_map(raw, LATENCY_KEYS, field)}
        self.check_whole(load, "clients", 1, field)
        self.check_whole(load, "requests", 1, field)
        if is_whole(load["clients"]) and load["clients"] > WIDEST:
            self.error(f"{field}.clients", load["clients"], f"at most {WIDEST}")
        self.check_positive(load, "seconds", MAX_LOAD_SECONDS, field)
        for key in LATENCY_LIMITS:
            self.check_positive(load, key, sys.float_info.max, field)
        lengths = [key for key in LOAD_LENGTHS if key in load]
        if len(lengths) != 1:
            actual = f"set with {' and '.join(lengths)}" if lengths else "without a length"
            self.error(field, actual, f"exactly one of {', '.join(LOAD_LENGTHS)}")
        if not any(key in load for key in LATENCY_LIMITS):
            self.error(field, "without a limit", f"at least one of {', '.join(LATENCY_LIMITS)}")
        for name, share in PERCENTILES.items():
            # With fewer requests, this percentile would be the time of the slowest request.
            minimum = 100 // (100 - share)
            if name in load and is_whole(load.get("requests")) and load["requests"] < minimum:
                self.error(f"{field}.requests", load["requests"], f"at least {minimum} for {name}")
        if "stream" in protocols:
            self.error(field, "set for protocol stream", "any of http, grpc, raw, as a stream may respond any number of times")
        return load

    def _rows(self, raw: Any, field: str) -> Dict[str, Any]:
        """Return the value of a check's `rows`, or {} if it has errors."""
        error_count = len(self.errors)
        rows = dict(self.as_map(raw, ROWS_KEYS, field))
        for key, minimum in (("first", 0), ("count", 1)):
            self.check_whole(rows, key, minimum, field)
        for key in ("spread", "batch"):
            self.check_boolean(rows, key, field)
        return rows if len(self.errors) == error_count else {}

    def _total(self, rows: Mapping[str, Any], labels: Mapping[str, int], lengths: Sequence[int]) -> int:
        """Return the number of rows that all hosts send together, from `first` on.

        Without `spread`, all hosts send the same `count` rows. With `spread`, the labels decide this number. If there are no
        labels, the shortest array decides.
        """
        count = int(rows["count"])
        if not rows.get("spread"):
            for field, length in labels.items():
                if length != count:
                    self.error(field, f"a list of {length} labels", f"{count}, one for each row")
            return count
        for field, length in labels.items():
            if not length or length % count or length != min(labels.values()):
                more = "" if length == min(labels.values()) else ", as many as the other outputs have"
                self.error(field, f"a list of {length} labels", f"a multiple of {count}, in consecutive blocks{more}")
        minimum = min(labels.values()) if labels else min(lengths, default=0) - int(rows["first"])
        return max(minimum // count * count, count)

    def _expectation(self, raw: Any, field: str) -> Dict[str, Any]:
        expectation = dict(self.as_map(raw, EXPECT_KEYS, field))
        if isinstance(raw, dict) and not raw:
            self.error(field, raw, f"at least one of {', '.join(EXPECT_KEYS)}")
        if "dtype" in expectation and expectation["dtype"] not in DTYPES:
            self.error(f"{field}.dtype", expectation["dtype"], f"one of {', '.join(DTYPES)}")
        for key in ("shape", "argmax"):
            values = self.as_list(expectation[key], f"{field}.{key}") if key in expectation else []
            if not all(is_whole(value) and value >= 0 for value in values):
                self.error(f"{field}.{key}", expectation[key], "whole numbers of at least 0")
        for label in self.as_list(expectation["label"], f"{field}.label") if "label" in expectation else ():
            self.as_text(label, f"{field}.label")
        self.check_whole(expectation, "class_count", 1, field)
        if "finite" in expectation and expectation["finite"] is not True:
            self.error(f"{field}.finite", expectation["finite"], "true, or no such key, as nothing else is judged")
        value_keys = [key for key in VALUE_EXPECTATIONS if key in expectation]
        if value_keys and isinstance(expectation.get("shape"), list) and 0 in expectation["shape"]:
            expected = "one of the two, as an empty output has no values"
            self.error(f"{field}.{value_keys[0]}", f"set together with shape {expectation['shape']}", expected)
        conflicts = [key for key in NOT_WITH_CLASSES if key in expectation and expectation.keys() & {"class_count", "label"}]
        if conflicts:
            expected = "a check without classes for it, as classes replace the values"
            self.error(f"{field}.{conflicts[0]}", "set together with class_count or label", expected)
        if "values" in expectation:
            expectation["values"] = dict(self.as_map(expectation["values"], VALUES_KEYS, f"{field}.values"))
            for key in ("atol", "rtol"):
                limit = expectation["values"].get(key, 0)
                if not is_number(limit) or not 0 <= limit < float("inf"):
                    self.error(f"{field}.values.{key}", limit, "a number of at least 0")
        return expectation


def read_checks(models: Sequence[str], checks_dirs: Sequence[str], golden_dirs: Sequence[str], host_index: int) -> Dict[str, Any]:
    """Return {"host_index", "checks", "no_check_file"} for these models. Raises Refusal with the errors of all files.

    `no_check_file` has a failed result for each model without a check file.
    """
    checks, no_check_file, errors = [], [], []
    for model in models:
        path = found_in(checks_dirs, f"{model}.yml")
        if path is None:
            candidates = " or ".join(os.path.join(directory, f"{model}.yml") for directory in checks_dirs)
            why = (
                f"the check file is missing, expected {candidates}. Write one in the form of ansible-doc "
                "npufleet.triton.inference_check, or set require_checks: false"
            )
            entry = {"name": f"{model}/check file", "model": model, "check": "check file", "protocol": None}
            no_check_file.append({**entry, "ok": False, "why": why, "ms": None})
            continue
        file = CheckFile(model, path, golden_dirs)
        checks.append(file.read(host_index))
        errors += file.errors
    if errors:
        raise Refusal(errors)
    return {"host_index": host_index, "checks": checks, "no_check_file": no_check_file}
