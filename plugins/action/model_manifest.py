"""Action of model_manifest: lints on the controller what the host's variables place on it, or repositories as they lie."""

from __future__ import annotations

from collections import ChainMap
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import validate
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import repository
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Finding, Row, row_of

# The module's options
SPEC = {
    "repositories": {"type": "list", "elements": "path"},
    "models": {"type": "list", "elements": "str"},
    "release": {"type": "str"},
}


# (models by name, findings, what else stands against them)
Found = Tuple[Dict[str, Any], List[Finding], List[str]]


class ActionModule(FleetAction):
    """Everything happens here: no host is asked."""

    _requires_connection = False

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        _validation, wanted = self.validate_argument_spec(SPEC)
        only = wanted["models"] or []
        variables = self.variables(task_vars)
        with self.refusing(host):
            if variables.type_errors:
                raise Refusal(variables.type_errors)
            row = self._row(wanted["release"], variables)
            if wanted["repositories"]:
                directories = [self._loader.path_dwim(path) for path in wanted["repositories"]]
                models, findings, more = self._in_directories(directories, only, row)
            else:
                models, findings, more = self._placed(only, row, variables)
        result = self._result(host, models, findings, more)
        if row and row.remark():
            result["warnings"].append(row.remark())
        return result

    @staticmethod
    def _row(given: Optional[str], variables: Mapping[str, Any]) -> Optional[Row]:
        """The release to lint for; None where nothing names one."""
        name = given or variables.get("rbln_release")
        if name is None:
            return None
        rows = variables["npufleet_release_rows"]
        if str(name) not in rows:
            raise Refusal([f"release is {name}, there are rows for {', '.join(sorted(rows))}: name one of them"])
        return row_of(str(name), rows[str(name)])

    @staticmethod
    def _in_directories(directories: List[str], only: List[str], row: Optional[Row]) -> Found:
        """Models as they lie in directories: files and the digest of their sources."""
        linted = repository.lint(directories, only, row)
        models = {name: manifest.unplaced(model) for name, model in linted.models.items() if not only or name in only}
        return models, linted.findings, []

    @staticmethod
    def _placed(only: List[str], row: Optional[Row], variables: Mapping[str, Any]) -> Found:
        """Models as this host would get them."""
        over: Dict[str, Any] = {}
        if row:
            over = {"rbln_release": row.name, "npufleet_row": variables["npufleet_release_rows"][row.name]}
        host = ChainMap(over, variables)  # type: ignore[arg-type]
        validate(host, ["models"])
        placed = manifest.placed_here(host)
        unknown = sorted(set(only) - {entry["name"] for entry in placed})
        if unknown:
            raise Refusal([f"model {name}: triton_models places none of that name on this host: correct it" for name in unknown])
        models, findings, more = manifest.linted(host, only)
        keys = ("source", "release", "versions", "files")
        told = {name: {key: value for key, value in model.items() if key in keys} for name, model in models.items()}
        return told, findings, more

    @staticmethod
    def _result(host: str, models: Dict[str, Any], findings: List[Finding], more: List[str]) -> Dict[str, Any]:
        """The result; every error of every model in one message."""
        errors = [*(finding.sentence() for finding in findings if finding.severity == ERROR), *more]
        warnings = [finding.sentence() for finding in findings if finding.severity != ERROR]
        if errors:
            lines = "".join("\n  - " + error for error in errors)
            # The message says it all; the records would bury it.
            return {"failed": True, "msg": f"{host}: {len(errors)} errors in models:{lines}", "warnings": warnings}
        return {"changed": False, "models": models, "findings": [finding._asdict() for finding in findings], "warnings": warnings}
