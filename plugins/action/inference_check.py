"""Controller side of inference_check: reads and validates check files, sends along what the host needs, keeps the results."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from typing import Any, Dict, List, Mapping, Optional, Sequence

import yaml
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleUndefinedVariable
from ansible_collections.npufleet.triton.plugins.module_utils import inference, picture
from ansible_collections.npufleet.triton.plugins.module_utils.controller import HOME, FleetAction
from ansible_collections.npufleet.triton.plugins.module_utils.manifest import placed_here
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.modules.inference_check import new_module

CHECKS = os.path.join(HOME, "files", "checks")
GOLDEN = os.path.join(HOME, "files", "golden")
DTYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16", "BYTES",
)  # fmt: skip
# Keys of each mapping in a check file, and whether it has to be there
FILE = {"model": True, "golden": False, "checks": True}
CHECK = {"name": True, "protocols": True, "inputs": True, "rows": True, "expect": True}
ROWS = {"first": True, "count": True, "spread": False, "batch": False}
INPUT = {"npy": True}
EXPECT = {"dtype": False, "shape": False, "finite": False, "argmax": False, "values": False}
VALUES = {"npy": True, "atol": False, "rtol": False}


class CheckFile:
    """One check file; `findings` collects everything that is wrong with it, each with file and field."""

    def __init__(self, model: str, path: str, golden_dirs: Sequence[str]) -> None:
        self.model = model
        self.path = path
        self.golden_dirs = golden_dirs
        self.golden = model
        self.findings: List[str] = []
        self.arrays: Dict[str, Any] = {}

    def read(self, host_index: int) -> Dict[str, Any]:
        """{"model", "checks"} with the rows that this host sends. Good for nothing when there are findings."""
        try:
            with open(self.path, encoding="utf-8") as source:
                whole = yaml.safe_load(source)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            self.findings.append(f"{self.path}: is not a YAML file: {' '.join(str(error).split())}")
            return {}
        document = self._mapping(whole, FILE, "")
        if "model" in document and document["model"] != self.model:
            self._finding("model", document["model"], f"{self.model}, which the file is named after")
        self.golden = self._text(document.get("golden", self.model), "golden") or self.model
        checks: List[Dict[str, Any]] = []
        names: List[str] = []
        for number, raw in enumerate(self._list(document["checks"], "checks") if "checks" in document else []):
            field = f"checks[{number}]"
            check = self._mapping(raw, CHECK, field)
            name = self._text(check["name"], f"{field}.name") if "name" in check else ""
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
        rows = self._rows(check["rows"], f"{field}.rows") if "rows" in check else {}
        inputs = self._mapping(check.get("inputs", {"-": {"npy": None}}), None, f"{field}.inputs")
        expect = self._mapping(check.get("expect", {"-": {"finite": True}}), None, f"{field}.expect")
        found: Dict[str, Any] = {"inputs": {}, "expect": {}}
        arrays = []
        for name, raw in inputs.items():
            where = f"{field}.inputs.{name}"
            array = self._array(self._mapping(raw, INPUT, where), where) if "inputs" in check else None
            if array is not None and array.dtype.kind not in inference.NUMBERS + "S":
                self._finding(f"{where}.npy", f"{array.dtype} in {raw['npy']}", "numbers or bytes")
            found["inputs"][name] = array
            arrays.append((where, array))
        labels = {}
        for name, raw in expect.items():
            where = f"{field}.expect.{name}"
            wanted = self._expectation(raw, where)
            found["expect"][name] = wanted
            if "values" in wanted:
                array = self._array(wanted["values"], f"{where}.values")
                if array is not None and array.dtype.kind not in inference.NUMBERS:
                    self._finding(f"{where}.values.npy", f"{array.dtype} in {wanted['values']['npy']}", "numbers")
                wanted["values"]["array"] = array
                arrays.append((f"{where}.values", array))
            if isinstance(wanted.get("argmax"), list):
                labels[f"{where}.argmax"] = len(wanted["argmax"])
        if not rows:
            return {}
        rows["total"] = self._total(rows, labels, [len(array) for _where, array in arrays if array is not None])
        for where, array in arrays:
            if array is not None and len(array) < rows["first"] + rows["total"]:
                self._finding(f"{where}.npy", f"{len(array)} rows", f"at least {rows['first'] + rows['total']}")
        if self.findings:
            return {}
        whole = {"name": check["name"], "protocols": protocols, "rows": rows}
        sent = sorted({row for request in inference.requests(self.model, whole, host_index) for row in request.rows})
        whole["inputs"] = {name: inference.pack(array, sent) for name, array in found["inputs"].items()}
        whole["expect"] = found["expect"]
        for wanted in found["expect"].values():
            if "values" in wanted:
                wanted["values"].update(inference.pack(wanted["values"].pop("array"), sent))
        return whole

    def _rows(self, raw: Any, field: str) -> Dict[str, Any]:
        """Checked `rows`, empty when they are of no use."""
        before = len(self.findings)
        rows = dict(self._mapping(raw, ROWS, field))
        for key, least in (("first", 0), ("count", 1)):
            if key in rows and (not _is_whole(rows[key]) or rows[key] < least):
                self._finding(f"{field}.{key}", rows[key], f"a whole number of at least {least}")
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
            if key in wanted and not all(_is_whole(one) and one >= 0 for one in self._list(wanted[key], f"{field}.{key}")):
                self._finding(f"{field}.{key}", wanted[key], "whole numbers of at least 0")
        if not isinstance(wanted.get("finite", True), bool):
            self._finding(f"{field}.finite", wanted["finite"], "true or false")
        if "values" in wanted:
            wanted["values"] = dict(self._mapping(wanted["values"], VALUES, f"{field}.values"))
            for key in ("atol", "rtol"):
                limit = wanted["values"].get(key, 0)
                if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < float("inf"):
                    self._finding(f"{field}.values.{key}", limit, "a number of at least 0")
        return wanted

    def _array(self, one: Mapping[str, Any], field: str) -> Any:
        """The array of an .npy file, read as far as it is used; None when there is none."""
        import numpy as np

        name = self._text(one["npy"], f"{field}.npy") if "npy" in one else ""
        if not name:
            return None
        if name not in self.arrays:
            paths = [os.path.join(directory, self.golden, name) for directory in self.golden_dirs]
            path = next((path for path in paths if os.path.isfile(path)), None)
            self.arrays[name] = None
            if path is None:
                self._finding(f"{field}.npy", "no such file", " or ".join(paths))
                return None
            try:
                array = np.load(path, mmap_mode="r", allow_pickle=False)
                if array.ndim == 0:
                    raise ValueError("it has no rows")
                self.arrays[name] = array
            except (OSError, ValueError, EOFError, AttributeError) as error:
                self._finding(f"{field}.npy", f"{path}: {error}", "an array of rows, as numpy.save writes it")
        return self.arrays[name]

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
        line = f"{self.path}: {field}: found {shown}, wanted {wanted}"
        if line not in self.findings:
            self.findings.append(line)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class ActionModule(FleetAction):
    """Turns names of models into documents, then runs them through the module on the host."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        _validation, arguments = self.validate_argument_spec(argument_spec=new_module.keywords["argument_spec"])
        path = self._results_path(arguments.pop("results_dir"), host)
        # Before anything can fail: an old result must not outlive a host that cannot be asked.
        if path:
            _forget(path)
        try:
            result = self._prove(arguments, task_vars, host)
        except (AnsibleActionFail, AnsibleConnectionFailure) as error:
            if path:
                _write(path, {"host": host, "when": _now(), "msg": error.message, "checks": []})
            raise
        for one in result.get("checks", []):
            drawn = picture.data_uri(one.pop("picture", None))
            if drawn:
                one["picture"] = drawn
        if path:
            kept = {"host": host, "when": _now(), "msg": result.get("msg", ""), "checks": result.get("checks", [])}
            _write(path, kept)
        for one in result.get("checks", []):
            # For reports; whoever reads a failure on the screen is not helped by them.
            one.pop("image", None)
            one.pop("picture", None)
        return result

    def _prove(self, arguments: Dict[str, Any], task_vars: Dict[str, Any], host: str) -> Dict[str, Any]:
        try:
            models = arguments.pop("models")
            if models is None:
                placed = placed_here(self.variables(task_vars)["triton_models"], host, list(task_vars.get("group_names", [])))
                models = [str(one["name"]) for one in placed]
            if not arguments["image"]:
                raise Refusal(
                    ["found no image, wanted the one that is locked for the release: run playbooks/site.yml, or name one"]
                )
            checks_dirs, golden_dirs = arguments.pop("checks_dir"), arguments.pop("golden_dir")
            document = documents(models, [*checks_dirs, CHECKS], [*golden_dirs, GOLDEN], arguments["host_index"])
        except AnsibleUndefinedVariable as error:
            raise self.refuse(host, error) from None
        except KeyError as error:
            return {
                "failed": True,
                "msg": f"{host}: found no {error.args[0]} in the models to check: set triton_models, or name models",
            }
        except Refusal as refusal:
            lines = "".join(f"\n  - {one}" for one in refusal.reasons)
            return {"failed": True, "msg": f"{host}: nothing was asked:{lines}"}
        unasked = [] if arguments.pop("require_checks") else document.pop("unproven")
        arguments["document"] = {"host": host, **document}
        with open(inference.__file__, encoding="utf-8") as source:
            arguments["library"] = source.read()
        result = self.ask("inference_check", arguments, task_vars)
        if unasked:
            words = f"{host}: not proven, as they have no check file: " + ", ".join(one["model"] for one in unasked)
            result["warnings"] = [*result.get("warnings", []), words]
        return result

    def _results_path(self, directory: Optional[str], host: str) -> Optional[str]:
        return os.path.join(self._loader.path_dwim(directory), f"{host}.json") if directory else None


def documents(models: Sequence[str], checks_dirs: Sequence[str], golden_dirs: Sequence[str], host_index: int) -> Dict[str, Any]:
    """{"host_index", "checks", "unproven"} for these models; unproven are failed results of those without a file.

    Raises Refusal with every finding in every file.
    """
    checks, unproven, findings = [], [], []
    for model in models:
        paths = [os.path.join(directory, f"{model}.yml") for directory in checks_dirs]
        path = next((path for path in paths if os.path.isfile(path)), None)
        if path is None:
            places = " or ".join(paths)
            why = f"found no {places}: write one as ansible-doc npufleet.triton.inference_check shows, or set require_checks: false"
            unproven.append({"name": f"{model}/check file", "model": model, "protocol": None, "ok": False, "why": why, "ms": None})
            continue
        one = CheckFile(model, path, golden_dirs)
        checks.append(one.read(host_index))
        findings += one.findings
    if findings:
        raise Refusal(findings)
    return {"host_index": host_index, "checks": checks, "unproven": unproven}


def _now() -> str:
    """This moment in UTC, as ISO 8601 has it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _forget(path: str) -> None:
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise AnsibleActionFail(f"the results of an earlier run cannot be removed from the controller: {error}") from None


def _write(path: str, result: Mapping[str, Any]) -> None:
    """Write a result as a whole: a reader sees all of it or nothing."""
    draft = path + ".draft"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(draft, "w", encoding="utf-8") as target:
            json.dump(result, target)
        os.replace(draft, path)
    except OSError as error:
        raise AnsibleActionFail(f"the results cannot be written to {path} on the controller: {error}") from None
