# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Action of host_files: reads the content of the files on the controller."""

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
    def act(self, host: str, task_vars: Dict[str, Any]) -> Dict[str, Any]:
        _validation, options = self.validate_argument_spec(argument_spec=OPTIONS)
        # A path with `~` is refused as a relative path, because Ansible would expand `~` to a home directory of the controller.
        paths = [*(entry["path"] for entry in (*options["directories"], *options["files"])), *options["absent"]]
        self.flaws = [f"{path} is a relative path, expected an absolute one." for path in paths if not path.startswith("/")]
        directories = [self._directory(**entry) for entry in options["directories"]]
        files: List[Dict[str, Any]] = []
        for entry in options["files"]:
            mode = self._mode(entry["path"], entry["mode"])
            contents = {"": entry["content"].encode()} if entry["src"] is None else self._source(entry["path"], entry["src"])
            if "" not in contents:
                subdirectories = sorted({os.path.dirname(name) for name in contents} | {""})
                directories += [self._directory(os.path.join(entry["path"], name).rstrip("/"), "0755") for name in subdirectories]
            common = {"mode": mode, "validate": entry["validate"], "group": entry["group"]}
            for name, content in contents.items():
                path = os.path.join(entry["path"], name) if name else entry["path"]
                files.append({"path": path, "content": base64.b64encode(content).decode(), **common})
        if self.flaws:
            raise Refusal(self.flaws)
        request = {"directories": directories, "files": files, "absent": options["absent"], "restart": options["restart"]}
        return self.call_module("host_files", {}, task_vars, request)

    def _directory(self, path: str, mode: Optional[str], empty: bool = False) -> Dict[str, Any]:
        return {"path": path, "mode": None if mode is None else self._mode(path, mode), "empty": empty}

    def _source(self, path: str, src: str) -> Dict[str, bytes]:
        """Return {path below the source: content} of a directory, or {"": content} of a single file."""
        try:
            source = self._find_needle("files", src)
            if os.path.isdir(source):
                return files_of(source)
            with open(source, "rb") as source_file:
                return {"": source_file.read()}
        except (AnsibleError, OSError) as error:
            self.flaws.append(f"{path}: {error}")
            return {}

    def _mode(self, path: str, mode: str) -> int:
        try:
            return int(mode, 8)
        except ValueError:
            self.flaws.append(f"the mode of {path} is {mode!r}, expected octal digits in quotes, such as '0644'.")
            return 0
