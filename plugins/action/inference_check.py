"""Controller side of inference_check: reads and validates check files, and sends along what the host needs to run them."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional

import yaml
from ansible_collections.npufleet.triton.plugins.module_utils import inference
from ansible_collections.npufleet.triton.plugins.module_utils.controller import HOME, FleetAction
from ansible_collections.npufleet.triton.plugins.module_utils.manifest import placed_here
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

KEYS = {
    "file": {"model", "golden", "checks"},
    "check": {"name", "protocols", "inputs", "rows", "expect"},
    "rows": {"first", "count", "spread", "batch"},
    "expect": {"dtype", "shape", "finite", "argmax", "values"},
    "values": {"npy", "atol", "rtol"},
}


class Reader:
    """Reads one check file; `problems` collects everything that is wrong with it, with file and field."""

    def __init__(self, path: str, golden: str) -> None:
        self.path = path
        self.golden = golden
        self.problems: List[str] = []

    def problem(self, field: str, words: str) -> None:
        """Note one problem."""
        self.problems.append(f"{os.path.basename(self.path)}: {field}: {words}")

    def mapping(self, value: Any, kind: str, field: str, needed: List[str]) -> Dict[str, Any]:
        """`value` as a mapping of known keys, with the needed ones."""
        if not isinstance(value, dict):
            self.problem(field, f"found {value!r}, wanted a mapping")
            return {}
        for key in sorted(set(value) - KEYS[kind]):
            self.problem(f"{field}.{key}", f"is not known, wanted one of {', '.join(sorted(KEYS[kind]))}")
        for key in needed:
            if key not in value:
                self.problem(f"{field}.{key}", "is missing")
        return value

    def read(self, host_index: int) -> Dict[str, Any]:
        """The document of this host with the rows that it sends; look at `problems` before use."""
        with open(self.path, encoding="utf-8") as source:
            document = self.mapping(yaml.safe_load(source), "file", "file", ["model", "checks"])
        checks = []
        for number, raw in enumerate(document.get("checks") or []):
            field = f"checks[{number}]"
            check = self.mapping(raw, "check", field, ["name", "protocols", "inputs", "rows", "expect"])
            rows = self.mapping(check.get("rows", {}), "rows", f"{field}.rows", ["first", "count"])
            unknown = sorted(set(check.get("protocols") or []) - set(inference.PROTOCOLS))
            if unknown:
                self.problem(f"{field}.protocols", f"found {unknown}, wanted some of {', '.join(inference.PROTOCOLS)}")
            if not self.problems:
                checks.append(self.check(document, check, rows, field, host_index))
        return {"model": document.get("model"), "checks": checks}

    def check(
        self, document: Mapping[str, Any], check: Mapping[str, Any], rows: Mapping[str, Any], field: str, host_index: int
    ) -> Dict[str, Any]:
        """One check with the arrays' rows in place."""
        total = rows["count"]
        for name, raw in check["expect"].items():
            wanted = self.mapping(raw, "expect", f"{field}.expect.{name}", [])
            if "argmax" in wanted:
                labels = len(wanted["argmax"])
                if labels % rows["count"] or not labels or (not rows.get("spread") and labels != rows["count"]):
                    what = f"a multiple of {rows['count']}" if rows.get("spread") else str(rows["count"])
                    self.problem(f"{field}.expect.{name}.argmax", f"has {labels} labels, wanted {what}")
                total = labels
        whole = {**check, "rows": {**rows, "total": total}}
        if self.problems:
            return whole
        used = sorted(
            {row for _n, _p, found, _l, _c in inference.expand({"model": "", "checks": [whole]}, host_index) for row in found}
        )
        whole["inputs"] = {name: self.array(one, used, f"{field}.inputs.{name}") for name, one in check["inputs"].items()}
        whole["expect"] = {}
        for name, wanted in check["expect"].items():
            whole["expect"][name] = dict(wanted)
            if "values" in wanted:
                where = f"{field}.expect.{name}.values"
                values = self.mapping(wanted["values"], "values", where, ["npy"])
                whole["expect"][name]["values"] = {**values, **self.array(values, used, where)}
        return whole

    def array(self, one: Mapping[str, Any], used: List[int], field: str) -> Dict[str, Any]:
        """{"rows", "data"} with the used rows of an .npy file."""
        import numpy as np

        path = os.path.join(self.golden, str(one.get("npy")))
        if not os.path.isfile(path):
            self.problem(f"{field}.npy", f"found no {path}")
            return {}
        array = np.load(path, allow_pickle=False)
        if used and used[-1] >= len(array):
            self.problem(f"{field}.npy", f"{path} has {len(array)} rows, wanted row {used[-1]}")
            return {}
        return {"rows": used, "data": inference.pack(array[used])}


class ActionModule(FleetAction):
    """Turns names of models into documents, then runs them through the module on the host."""

    _requires_connection = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        host = task_vars["inventory_hostname"]
        arguments = dict(self._task.args)
        checks_dir = arguments.pop("checks_dir", None) or os.path.join(HOME, "files", "checks")
        golden_dir = arguments.pop("golden_dir", None) or os.path.join(HOME, "files", "golden")
        index = int(arguments.pop("host_index", 0))
        documents, problems = [], []
        if "models" not in arguments:
            placed = placed_here(self.variables(task_vars)["triton_models"], host, list(task_vars["group_names"]))
            arguments["models"] = [one["name"] for one in placed]
        for model in arguments["models"]:
            path = os.path.join(checks_dir, f"{model}.yml")
            if not os.path.isfile(path):
                problems.append(f"model {model}: found no {path}: write one, a model without a check is not proven")
                continue
            golden = os.path.join(golden_dir, model)
            with open(path, encoding="utf-8") as source:
                golden = os.path.join(golden_dir, str((yaml.safe_load(source) or {}).get("golden", model)))
            reader = Reader(path, golden)
            documents.append(reader.read(index))
            problems += reader.problems
        if problems:
            raise self.refuse(host, Refusal(problems))
        with open(inference.__file__, encoding="utf-8") as source:
            arguments["library"] = source.read()
        arguments["document"] = {"host": host, "host_index": index, "checks": documents}
        result = self._execute_module("npufleet.triton.inference_check", module_args=arguments, task_vars=task_vars)
        result.pop("invocation", None)
        return result
