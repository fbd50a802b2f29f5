#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: host_files
short_description: Manage several small files and directories of a host in one call
description:
  - Writes the files and directories that differ from the desired state. A file is written completely or not at all. All files and
    directories belong to the user that the task becomes.
  - A symbolic link at the path of a file is replaced and never followed. If a path has another type, such as a directory at the
    path of a file, the task fails before anything is written.
  - Use M(ansible.builtin.copy) for files that are larger than some kilobytes.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  directories:
    description: Directories to create. List parents before their children.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path. A link to a directory counts as a directory.
        type: str
        required: true
      mode:
        description: Octal mode in quotes. Without a mode, an existing directory keeps its mode, and a new directory gets V(0755).
        type: str
      empty:
        description: Remove everything at the path first. Then create the directory, and write the desired files into it.
        type: bool
        default: false
  files:
    description: Files to write, each with O(files[].content) or O(files[].src). Missing parent directories are created.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path of the file, or of the directory for the files if O(files[].src) is a directory.
        type: str
        required: true
      content:
        description: Content of the file.
        type: str
      src:
        description: File or directory on the controller, as in O(ansible.builtin.copy#module:src). Bytecode is not copied.
        type: path
      mode:
        description: Octal mode in quotes.
        type: str
        default: "0644"
      validate:
        description: Command that validates a copy of the new content at V(%s). If it fails, no file of the task is written.
        type: list
        elements: str
        default: []
      group:
        description: Name or number of the group of the file. Default is the group of the user that the task becomes.
        type: str
  absent:
    description: Absolute paths to remove. A directory is removed with its content.
    type: list
    elements: str
    default: []
  restart:
    description:
      - Systemd units that read the files. If any file differs, all units are restarted in this order after the files are written.
      - If a unit does not start, the previous files are restored, the units are restarted again, and the task fails.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Reports what would change.
  diff_mode:
    support: full
    description: Shows the text of the files before and after the change.
"""

EXAMPLES = r"""
- name: Install a service
  npufleet.triton.host_files:
    directories:
      - {path: /etc/npufleet, mode: "0755"}
    files:
      - {path: /usr/local/lib/npufleet/served.py, src: served.py, mode: "0755"}
      - {path: /etc/systemd/system/served.service, content: "{{ unit }}"}
    absent: [/etc/systemd/system/served.timer]
"""

RETURN = r"""
paths:
  description: Paths that differed.
  returned: success
  type: list
  elements: str
restarted:
  description: Units that were restarted, including a unit that did not start.
  returned: when files differed, or a unit did not start
  type: list
  elements: str
"""

import base64
import grp
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import host_files, request

# The action plugin validates the arguments of the task with this specification, too.
OPTIONS: Dict[str, Any] = {
    "directories": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "mode": {"type": "str"},
            "empty": {"type": "bool", "default": False},
        },
    },
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "content": {"type": "str"},
            "src": {"type": "path"},
            "mode": {"type": "str", "default": "0644"},
            "validate": {"type": "list", "elements": "str", "default": []},
            "group": {"type": "str"},
        },
        "required_one_of": [("content", "src")],
        "mutually_exclusive": [("content", "src")],
    },
    "absent": {"type": "list", "elements": "str", "default": []},
    "restart": {"type": "list", "elements": "str", "default": []},
}
REQUEST: Dict[str, Any] = {
    **OPTIONS,
    "directories": {**OPTIONS["directories"], "options": {**OPTIONS["directories"]["options"], "mode": {"type": "int"}}},
    "files": {
        **OPTIONS["files"],
        "options": {
            **OPTIONS["files"]["options"],
            # Content in Base64
            "content": {"type": "str", "required": True},
            "mode": {"type": "int", "required": True},
        },
    },
}


def _group(module: request.Module, entry: Mapping[str, Any]) -> Optional[int]:
    """Return the number of the group of a file, or None for the group of the caller."""
    name = entry["group"]
    if not name or name.isdigit():
        return int(name) if name else None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        actual = f"{name}, which does not exist on this host"
        module.fail_json(msg=f"the group of {entry['path']} is {actual}, expected an existing group.")


def run(module: request.Module) -> None:
    if not module.params["_request"]:
        module.fail_json(msg="host_files starts on the controller. Call it as npufleet.triton.host_files.")
    params = request.merge_request(module, REQUEST)
    directories = [host_files.Directory(entry["path"], entry["mode"], entry["empty"]) for entry in params["directories"]]
    files = []
    for entry in params["files"]:
        content, group = base64.b64decode(entry["content"]), _group(module, entry)
        files.append(host_files.File(entry["path"], content, entry["mode"], entry["validate"], group))
    desired = host_files.Desired(directories, files, params["absent"])
    units: List[str] = []
    try:
        differences = host_files.differences(desired)
        if not module.check_mode:
            reasons = host_files.invalid(desired, differences)
            if reasons:
                raise host_files.Conflict(reasons)
            units = params["restart"] if differences else []
            if units:
                host_files.apply_and_restart(desired, differences, units)
            else:
                host_files.apply(desired, differences)
    except host_files.Conflict as conflict:
        module.fail_json(msg="nothing was written:" + "".join("\n  - " + reason for reason in conflict.reasons))
    except host_files.NotStarted as failure:
        module.fail_json(msg=str(failure), changed=True, restarted=units)
    except OSError as error:
        module.fail_json(msg=f"{error.filename} could not be written: {error.strerror}")
    diff = {"diff": [difference.as_diff() for difference in differences]} if module._diff else {}
    module.exit_json(changed=bool(differences), paths=[difference.path for difference in differences], restarted=units, **diff)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
