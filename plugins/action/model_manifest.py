# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of model_manifest: lints the models of a host, or repositories of the controller."""

from __future__ import annotations

from collections import ChainMap
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.modules.model_manifest import OPTIONS
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import validate
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import repository
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Finding, Row, row_of


class ActionModule(FleetAction):
    _requires_connection = False

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        _validation, options = self.validate_argument_spec(OPTIONS)
        selected = options["models"] or []
        variables = self.variables(task_vars)
        with self.refusing(host):
            if variables.type_errors:
                raise Refusal(variables.type_errors)
            row = self._row(options["release"], variables)
            other_errors: List[str] = []
            if options["repositories"]:
                directories = [self._loader.path_dwim(path) for path in options["repositories"]]
                linted = repository.lint(directories, selected, row)
                names = set(selected or linted.models)
                models = {name: manifest.repository_facts(model) for name, model in linted.models.items() if name in names}
                findings = linted.findings
            else:
                models, findings, other_errors = self._models_of_host(selected, row, variables)
        result = self._result(host, models, findings, other_errors)
        if row and row.remark():
            result["warnings"].append(row.remark())
        return result

    @staticmethod
    def _row(release: Optional[str], variables: Mapping[str, Any]) -> Optional[Row]:
        """Return the release row for the linter, or None if no release is named. Raises Refusal for an unknown release."""
        name = release or variables.get("rbln_release")
        if name is None:
            return None
        rows = variables["npufleet_release_rows"]
        if str(name) not in rows:
            raise Refusal(f"release is {name}, expected one of {', '.join(sorted(rows))}")
        return row_of(str(name), rows[str(name)])

    @staticmethod
    def _models_of_host(
        selected: List[str], row: Optional[Row], variables: Mapping[str, Any]
    ) -> Tuple[Dict[str, Any], List[Finding], List[str]]:
        """Return (models by name, findings, further errors) of the models that the host would get. Raises Refusal."""
        overrides: Dict[str, Any] = {}
        if row:
            overrides = {"rbln_release": row.name, "npufleet_release_row": variables["npufleet_release_rows"][row.name]}
        host = ChainMap(overrides, variables)  # type: ignore[arg-type]
        validate(host, ["models"])
        placed = manifest.placed_here(host)
        unknown = sorted(set(selected) - {entry["name"] for entry in placed})
        if unknown:
            raise Refusal([f"model {name}: triton_models does not place it on this host: correct the name" for name in unknown])
        models, findings, other_errors = manifest.lint_and_render(host, selected)
        keys = ("source", "release", "versions", "files")
        facts = {name: {key: value for key, value in model.items() if key in keys} for name, model in models.items()}
        return facts, findings, other_errors

    @staticmethod
    def _result(host: str, models: Dict[str, Any], findings: List[Finding], other_errors: List[str]) -> Dict[str, Any]:
        """Return the result, with all errors of all models in one message."""
        errors = [*(finding.sentence() for finding in findings if finding.severity == ERROR), *other_errors]
        warnings = [finding.sentence() for finding in findings if finding.severity != ERROR]
        if errors:
            lines = "".join("\n  - " + error for error in errors)
            # In the output of Ansible, more fields would hide the message.
            return {"failed": True, "msg": f"{host}: {len(errors)} errors in models:{lines}", "warnings": warnings}
        return {"changed": False, "models": models, "findings": [finding._asdict() for finding in findings], "warnings": warnings}
