# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of support_bundle: sends secrets and the desired state to the host, fetches the archive and checks it."""

from __future__ import annotations

import datetime
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

from ansible import __version__ as ansible_version
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.redact import base64_cores, forms
from ansible_collections.npufleet.triton.plugins.module_utils.secret import MIN_LENGTH, looks_secret
from ansible_collections.npufleet.triton.plugins.modules.support_bundle import pack
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import address
from ansible_collections.npufleet.triton.plugins.plugin_utils.host_secrets import secret_values
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated, desired
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import archives, host_text
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

# The options of the module that have a variable as their default
DEFAULT_VARIABLES = {
    "dest": "npufleet_support_dir",
    "lines": "npufleet_support_lines",
    "container": "triton_server_name",
    "http_port": "npufleet_http_port",
    "metrics_port": "npufleet_metrics_port",
    "prometheus_port": "monitoring_prometheus_port",
    "root": "npufleet_root",
}
OPTIONS = (*DEFAULT_VARIABLES, "concerns", "size", "timeout", "total_timeout", "address", "metrics_address")
# Limits of a bundle, because a compromised host could send anything. The limits of the packed and the unpacked size are multiples
# of the size of the largest item.
MAX_PACKED_ITEMS = 16
MAX_UNPACKED_ITEMS = 64
MAX_FILES = 500
MAX_ITEM_BYTES = 2 << 20
# Variables that Ansible sets itself. This action does not search them for secrets.
MAGIC = ("hostvars", "groups", "vars", "ansible_facts", "ansible_play_hosts", "ansible_play_hosts_all", "ansible_play_batch")


class ActionModule(FleetAction):
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        unknown = sorted(set(self._task.args) - set(OPTIONS))
        if unknown:
            raise AnsibleActionFail(f"support_bundle has no option {', '.join(unknown)}: its options are {', '.join(OPTIONS)}")
        variables = self.variables(task_vars)
        with self.refusing(host):
            arguments = {option: variables[name] for option, name in DEFAULT_VARIABLES.items()}
        with suppress(Refusal):
            # With an invalid address, the bundle lacks only the differences.
            arguments["address"] = address(variables)
            arguments["metrics_address"] = address(variables, "metrics")
        arguments.update(self._task.args)
        concerns = arguments.get("concerns") or self.concerns(variables, task_vars)
        dest = self._loader.path_dwim(arguments.pop("dest"))
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        secrets, names, errors = self._secrets(variables)
        desired_state, refusals = self._desired(variables, list(concerns), host)
        arguments["concerns"] = concerns
        request = {
            "host": host,
            "stamp": stamp,
            "about": self._about(variables),
            "desired": desired_state,
            "errors": errors + refusals,
            "names": names,
            "secrets": secrets,
        }
        if self._task.check_mode:
            return self.call_module("support_bundle", arguments, task_vars, request)
        # The connecting user has to read the archive, so it is in a temporary directory of Ansible.
        directory = self._make_tmp_path()
        try:
            request["archive"] = f"{directory}/bundle.tar.gz"
            result = self.call_module("support_bundle", arguments, task_vars, request)
            if result.get("failed"):
                return {key: result[key] for key in ("failed", "msg", "exception") if key in result}
            path = os.path.join(dest, f"{host}-{stamp}.tar.gz")
            with host_text.rejecting_invalid_answers(host):
                item_bytes = int(arguments.get("size", MAX_ITEM_BYTES))
                bounds = archives.Bounds(MAX_PACKED_ITEMS * item_bytes, MAX_UNPACKED_ITEMS * item_bytes, MAX_FILES)
                result["files"] = self._fetch(str(request["archive"]), path, result, secrets, host, bounds)
        finally:
            # Remove the directory even if Ansible is configured to keep its remote files.
            self._remove_tmp_path(directory, force=True)
        result["path"] = path
        with host_text.rejecting_invalid_answers(host):
            result["msg"] = (
                f"{os.path.relpath(path)} ({os.path.getsize(path) / 1024:.0f} KiB, {len(result['files'])} files, "
                f"{len(result['errors'])} items are missing, {int(result['redacted'])} secrets removed)"
            )
        return result

    def _secrets(self, variables: Templated) -> Tuple[List[str], List[str], List[str]]:
        """Return the secret values in the variables of the host, the names of these variables, and errors of invalid variables."""
        prompted = (self.play_context.password, self.play_context.become_pass)
        values = {entry for entry in prompted if entry and len(entry) >= MIN_LENGTH}
        names, errors = [], []
        for name in variables:
            if name in MAGIC or callable(name):
                continue
            try:
                secrets_of_variable = secret_values({name: variables.untyped(name)})
            except Exception as error:  # a lookup can fail in any way, and the bundle reports the error
                if looks_secret(name):
                    errors.append(f"redaction.txt: {name} has no value to search for: {type(error).__name__}")
                continue
            if secrets_of_variable:
                values |= secrets_of_variable
                names.append(name)
        return sorted(values), sorted(names), errors

    def _desired(self, variables: Templated, concerns: List[str], host: str) -> Tuple[Dict[str, Any], List[str]]:
        """Return the desired state, or {} and the reasons. Without the desired state, the bundle lacks only the differences."""
        try:
            with self.refusing(host):
                return desired(variables, concerns)[0], []
        except AnsibleError as error:
            return {}, [f"state: {error.message}"]

    def _about(self, variables: Templated) -> Dict[str, Any]:
        """Return the versions of the software on the controller, and the release row and the cards of the host."""
        path = os.path.join(COLLECTION, "galaxy.yml")
        galaxy = self._loader.load_from_file(path) if os.path.exists(path) else {}
        about = {"npufleet": str(galaxy.get("version", "")), "ansible-core": ansible_version}
        for name in ("rbln_release", "npufleet_release_row", "npufleet_npus", "npufleet_card"):
            try:
                about[name] = variables[name]
            except (AnsibleError, KeyError):
                about[name] = None
        return about

    def _fetch(
        self, source: str, path: str, result: Dict[str, Any], secrets: List[str], host: str, bounds: archives.Bounds
    ) -> List[str]:
        """Fetch the archive as the connecting user, pack the files of the archive again, and return the names of these files.

        Raises AnsibleActionFail if the archive is incomplete, exceeds the bounds, or contains one of the secrets.
        """
        draft = path + ".draft"
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            self._fetch_file(source, draft, host, bounds.packed)
            os.chmod(draft, 0o600)
            raw = Path(draft).read_bytes()
            digest = hashlib.sha256(raw).hexdigest()
            if digest != result["sha256"]:
                expected = result["sha256"]
                raise AnsibleActionFail(f"{host}: the bundle arrived with digest {digest}, expected {expected}: run it again")
            root = os.path.basename(path)[: -len(".tar.gz")]
            members = archives.files(raw, root, bounds)
            leaks = leaking(members, secrets)
            if leaks:
                raise AnsibleActionFail(f"{host}: a known secret could be read in {', '.join(leaks)}: the bundle is deleted")
            packed = pack(root, {name: host_text.sanitized(member.decode("utf-8", "replace")) for name, member in members.items()})
            Path(draft).write_bytes(packed)
            os.replace(draft, path)
        except OSError as error:
            raise AnsibleActionFail(f"{host}: the bundle cannot be written to {path} on the controller: {error}") from None
        finally:
            if os.path.exists(draft):
                os.remove(draft)
        result["sha256"] = hashlib.sha256(packed).hexdigest()
        return sorted(members)

    def _fetch_file(self, source: str, draft: str, host: str, max_bytes: int) -> None:
        try:
            with archives.no_larger_file(max_bytes):
                self._connection.fetch_file(source, draft)
        except (AnsibleError, OSError):
            if os.path.getsize(draft) < max_bytes:
                raise
            message = f"{host}: the bundle has more than {max_bytes} bytes, expected fewer. It was not saved"
            todo = "Set fewer lines (npufleet_support_lines), or find out who changed that host"
            raise AnsibleActionFail(f"{message}. {todo}") from None


def leaking(members: Mapping[str, bytes], secrets: List[str]) -> List[str]:
    """Return the names of the files that contain one of the secrets, plain or encoded."""
    patterns = [form.encode() for value in secrets for form in (*forms(value), *base64_cores(value))]
    return [name for name, text in sorted(members.items()) if any(word in text for word in patterns)]
