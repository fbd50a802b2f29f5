"""What the action plugins share: the variables of the host over the defaults of every role of the collection."""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, Optional

from ansible.errors import AnsibleActionFail, AnsibleUndefinedVariable
from ansible.plugins.action import ActionBase
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.variables import Templated, switches

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class FleetAction(ActionBase):
    """An action that computes on the controller what is wanted, then asks the host through one module call."""

    supports_raw_params = False
    _requires_connection = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        return self.act(task_vars["inventory_hostname"], task_vars)

    @abstractmethod
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        """The action's result for this host."""

    def variables(self, task_vars: Mapping[str, Any]) -> Templated:
        """The host's variables; what the inventory leaves open comes from the roles' defaults."""
        merged: Dict[str, Any] = {}
        roles = os.path.join(HOME, "roles")
        for role in sorted(os.listdir(roles)):
            path = os.path.join(roles, role, "defaults", "main.yml")
            if os.path.exists(path):
                merged.update(self._loader.load_from_file(path, cache="all", trusted_as_template=True) or {})
        on_or_off = switches(merged)
        merged.update(task_vars)
        merged["role_path"] = os.path.join(roles, "common")
        templar = self._templar.copy_with_new_env(available_variables=merged)
        return Templated(merged, templar.template, on_or_off)

    def ask(self, module: str, arguments: Dict[str, Any], task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        """One module call on the host. Its arguments carry whole files, which the host's system log is no place for."""
        quiet = {**task_vars, "ansible_no_target_syslog": True}
        result = dict(self._execute_module(f"npufleet.triton.{module}", module_args=arguments, task_vars=quiet))
        result.pop("invocation", None)
        return result

    @contextmanager
    def refusing(self, host: str) -> Iterator[None]:
        """Turns what bad input raises inside into one refusal of the host."""
        try:
            yield
        except (Refusal, AnsibleUndefinedVariable, KeyError, TypeError, ValueError) as error:
            raise self.refuse(host, error) from None

    def reasons(self, error: Exception) -> List[str]:
        """What bad input raised, as the reasons that it stands for."""
        if isinstance(error, Refusal):
            return error.reasons
        if isinstance(error, AnsibleUndefinedVariable):
            return [f"{error.message}: set it in the inventory"]
        return [str(error)]

    def refuse(self, host: str, error: Exception) -> AnsibleActionFail:
        """One message with every reason."""
        lines = "".join("\n  - " + reason for reason in self.reasons(error))
        return AnsibleActionFail(f"{host} is refused, nothing was changed:{lines}")
