#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Module library_call: see DOCUMENTATION. Ansible inserts the arguments into this file, so a call sends only this file.

Other accounts may be able to write to directories in the import path. Until main() has removed these directories, the module
imports only os and sys.
"""

DOCUMENTATION = r"""
module: library_call
short_description: Run a module of this collection from the library on a host
description:
  - Every action of this collection runs its module through C(library_call). Playbooks need not call it.
  - The controller validates the options of the module and masks secrets in its result.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  library:
    description: Directory of the library on the host. The name of the directory is the version that the controller expects.
    type: path
    required: true
  module:
    description: Name of the module in this collection.
    type: str
    required: true
  parameters:
    description: Validated options of the module.
    type: dict
    required: true
attributes:
  check_mode:
    support: full
    description: Check mode is passed to the module.
  diff_mode:
    support: full
    description: Diff mode is passed to the module.
"""

EXAMPLES = r"""
- name: Read the history of the model store
  npufleet.triton.host_state:
    concerns: []
    store: true
"""

RETURN = r"""
library_missing:
  description: True, because the host lacks the library and no module was run. Otherwise the result of the module is returned.
  returned: when the library is missing
  type: bool
as_root:
  description: Whether the module would have run as root. Only root may install the library.
  returned: when the library is missing
  type: bool
"""

import os
import sys

OPTIONS: dict = {
    "library": {"type": "path", "required": True},
    "module": {"type": "str", "required": True},
    "parameters": {"type": "dict", "required": True},
}


def main() -> None:
    """Run the module that the arguments name, or report that its library is missing."""
    # Imports must not search the directory of this file, or the working directory if the file is standard input, because other
    # accounts may be able to write to these directories.
    script_directory = os.path.dirname(os.path.realpath(sys.argv[0])) if sys.argv[0] else ""
    sys.path[:] = [entry for entry in sys.path if entry not in ("", script_directory)]
    import importlib
    import json

    text = r"""<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>"""
    if text[:1] != "{":
        # Ansible always inserts the arguments. Only linters run the file without arguments, to compare OPTIONS with DOCUMENTATION.
        importlib.import_module("ansible.module_utils.basic").AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
        return
    arguments = json.loads(text)
    if not os.path.isdir(arguments["library"]):
        sys.stdout.write(json.dumps({"changed": False, "library_missing": True, "as_root": os.geteuid() == 0}))
        return
    sys.path.insert(0, arguments["library"])
    request = importlib.import_module("ansible_collections.npufleet.triton.plugins.module_utils.request")
    request.run_module(
        arguments["module"],
        arguments["parameters"],
        bool(arguments.get("_ansible_check_mode")),
        bool(arguments.get("_ansible_diff")),
    )


if __name__ == "__main__":
    main()
