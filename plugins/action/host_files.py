"""Controller side of host_files: what the files hold."""

from __future__ import annotations

import base64
import os
from typing import Any, Dict, List, Optional

from ansible.errors import AnsibleError
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.modules.host_files import OPTIONS
from ansible_collections.npufleet.triton.plugins.plugin_utils.action import FleetAction
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import files_of


class ActionModule(FleetAction):
    """Reads them, and asks once."""

    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        _validation, given = self.validate_argument_spec(argument_spec=OPTIONS)
        # What begins with a tilde would be a directory of the controller
        paths = [*(entry["path"] for entry in (*given["directories"], *given["files"])), *given["absent"]]
        self.flaws = [f"{path}: wanted a path from the root" for path in paths if not path.startswith("/")]
        directories = [self._directory(**entry) for entry in given["directories"]]
        files: List[Dict[str, Any]] = []
        for entry in given["files"]:
            mode = self._mode(entry["path"], entry["mode"])
            found = {"": entry["content"].encode()} if entry["src"] is None else self._source(entry["path"], entry["src"])
            if "" not in found:
                below = sorted({os.path.dirname(name) for name in found} | {""})
                directories += [self._directory(os.path.join(entry["path"], name).rstrip("/"), "0755") for name in below]
            for name, content in found.items():
                path = os.path.join(entry["path"], name) if name else entry["path"]
                encoded = base64.b64encode(content).decode()
                files.append(
                    {"path": path, "content": encoded, "mode": mode, "validate": entry["validate"], "group": entry["group"]}
                )
        if self.flaws:
            raise self.refuse(host, Refusal(self.flaws))
        asked = {"directories": directories, "files": files, "absent": given["absent"], "restart": given["restart"]}
        return self.ask("host_files", {}, task_vars, asked)

    def _directory(self, path: str, mode: Optional[str], empty: bool = False) -> Dict[str, Any]:
        return {"path": path, "mode": None if mode is None else self._mode(path, mode), "empty": empty}

    def _source(self, path: str, src: str) -> Dict[str, bytes]:
        """{path below it: content}; of a file that of an empty path."""
        try:
            source = self._find_needle("files", src)
            if os.path.isdir(source):
                return files_of(source)
            with open(source, "rb") as opened:
                return {"": opened.read()}
        except (AnsibleError, OSError) as error:
            self.flaws.append(f"{path}: {error}")
            return {}

    def _mode(self, path: str, mode: str) -> int:
        try:
            return int(mode, 8)
        except ValueError:
            self.flaws.append(f"{path}: mode: found {mode!r}, wanted octal digits in quotes, as '0644'")
            return 0
