#!/usr/bin/python
"""Module host_files: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_files
short_description: Make some small files and directories of a host as wanted, in one call
description:
  - Compares what is there with what is wanted, and writes what differs, each file as a whole or not at all. All of it belongs to
    whoever the task becomes, which is root in this collection.
  - A link in the place of a file is replaced, never followed. Something of another kind is refused before anything is written.
  - For files of kilobytes. M(ansible.builtin.copy) brings one file in a call, and large ones.
version_added: 0.2.0
author: The npufleet developers (@npufleet)
options:
  directories:
    description: Directories, each after those that it is in.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Its path from the root. A link to a directory counts as one.
        type: str
        required: true
      mode:
        description: Its mode, in quotes. Without one a directory that is there stays as it is, and one that is made has V(0755).
        type: str
      empty:
        description:
          - Whether nothing may be in it. What is in its place is removed, whatever it is, and what is wanted below it is made anew.
        type: bool
        default: false
  files:
    description:
      - Files, of which each has O(files[].content) or O(files[].src). Directories that they are in are made where they are missing.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Its path from the root; of a directory in O(files[].src) the directory that all below it is brought to.
        type: str
        required: true
      content:
        description: What it holds.
        type: str
      src:
        description:
          - A file of the controller, or a directory of which all files are brought except for bytecode. Is looked for as
            M(ansible.builtin.copy) does.
        type: path
      mode:
        description: Its mode, in quotes.
        type: str
        default: "0644"
      validate:
        description:
          - A command that is run before anything is written, if the file differs. V(%s) stands for the path of a copy with the new
            content. If it fails, nothing is written.
        type: list
        elements: str
        default: []
      group:
        description: Name or number of its group on the host. Default is that of whoever the task becomes.
        type: str
  absent:
    description: Paths from the root of which nothing is to be there. A directory goes with all that is in it.
    type: list
    elements: str
    default: []
  restart:
    description:
      - Units of systemd that read the files. If any file differs, they are restarted in this order after all files are written.
      - If a unit does not start, the previous files are restored, the units are restarted again, and the task fails.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Tells what would change.
  diff_mode:
    support: full
    description: Shows the text of files before and after.
"""

EXAMPLES = r"""
- name: Make a clean place, whatever was there
  npufleet.triton.host_files:
    directories:
      - {path: /var/lib/npufleet/build, mode: "0700", empty: true}

- name: Bring a service
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
  description: What was not as wanted.
  returned: success
  type: list
  elements: str
restarted:
  description: Units that were restarted, also when one did not start.
  returned: when files differed, or a unit did not start
  type: list
  elements: str
"""

import base64
import grp
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.npufleet.triton.plugins.module_utils import host_files, request

# The action plugin reads the task's arguments by the same specification.
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
    "directories": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "mode": {"type": "int"},
            "empty": {"type": "bool", "default": False},
        },
    },
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            # In Base64
            "content": {"type": "str", "required": True},
            "mode": {"type": "int", "required": True},
            "validate": {"type": "list", "elements": "str", "default": []},
            "group": {"type": "str"},
        },
    },
    "absent": {"type": "list", "elements": "str", "default": []},
    "restart": {"type": "list", "elements": "str", "default": []},
}


def _group(module: request.Module, entry: Mapping[str, Any]) -> Optional[int]:
    """Return the number of the group that a file is to have, None for the caller's."""
    name = entry["group"]
    if not name or name.isdigit():
        return int(name) if name else None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        module.fail_json(msg=f"{entry['path']}: group: found no group {name} on this host, wanted one that is there")


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    if not module.params["_request"]:
        module.fail_json(msg="what files hold is read on the controller: call it as npufleet.triton.host_files")
    params = request.merge_request(module, REQUEST)
    wanted = host_files.Wanted(
        [host_files.Directory(entry["path"], entry["mode"], entry["empty"]) for entry in params["directories"]],
        [
            host_files.File(
                entry["path"], base64.b64decode(entry["content"]), entry["mode"], entry["validate"], _group(module, entry)
            )
            for entry in params["files"]
        ],
        params["absent"],
    )
    units: List[str] = []
    try:
        found = host_files.differences(wanted)
        if not module.check_mode:
            reasons = host_files.invalid(wanted, found)
            if reasons:
                raise host_files.Unfit(reasons)
            units = params["restart"] if found else []
            if units:
                host_files.apply_and_restart(wanted, found, units)
            else:
                host_files.apply(wanted, found)
    except host_files.Unfit as unfit:
        module.fail_json(msg="nothing was written:" + "".join("\n  - " + reason for reason in unfit.reasons))
    except host_files.NotStarted as why:
        module.fail_json(msg=str(why), changed=True, restarted=units)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: could not be made as wanted: {error.strerror}")
    shown = {"diff": [difference.told() for difference in found]} if module._diff else {}
    module.exit_json(changed=bool(found), paths=[difference.path for difference in found], restarted=units, **shown)


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
