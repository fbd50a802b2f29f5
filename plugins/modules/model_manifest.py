#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: model_manifest
short_description: Lint Triton repositories, and return files and digests of their models
description:
  - Reads models on the controller, and reports all errors in them before a server reads them. The task fails if it finds one.
  - The linter parses a C(config.pbtxt) with Triton's own schema. It needs no connection to the host.
  - Without O(repositories), the task renders the models that the variable C(triton_models) places on the host, with the compiled
    files for the host. With O(repositories), compiled files that an inventory would add may be missing.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.reader
options:
  repositories:
    description:
      - Directories of models on the controller. A model in two directories, and a subdirectory without a model, are findings.
      - Default is the repositories that C(triton_models) and C(npufleet_model_repository) declare for the host.
    type: list
    elements: path
  models:
    description: Names of the models to lint. The models that an ensemble calls are also read. Default is every model.
    type: list
    elements: str
  release:
    description:
      - Row of C(files/releases.yml) or C(npufleet_extra_releases). Fields that the Triton version of this row does not know are
        findings. Default is C(rbln_release) if it is set. Otherwise the newest schema is used.
    type: str
"""

EXAMPLES = r"""
- name: Lint a repository for a release
  npufleet.triton.model_manifest:
    repositories: [model_repository]
    release: "26.07"
  delegate_to: localhost
"""

RETURN = r"""
findings:
  description:
    - All findings. They are warnings, because the task fails if there is an error.
    - The fields are C(model), C(file), C(line), C(field), C(actual), C(expected), C(todo) (the next step), C(severity) and C(rule).
    - C(line) is null for a finding about a whole file. C(field) is a field of the config, such as C(input[0].dims), or empty.
  returned: success
  type: list
  elements: dict
models:
  description:
    - Files and digests of each model, by its name.
    - C(source) is the digest of the model's own files and its compiled files, which is the same on all hosts.
    - C(release) is the digest of the model as it is rendered for the host. It is null with O(repositories).
    - C(versions) has the versions that the version policy selects.
    - C(files) has the C(sha256) of each file. C(blob) is true for a large or compiled file, which several releases can share.
  returned: success
  type: dict
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

# The action plugin validates the arguments of the task with this specification.
OPTIONS: Dict[str, Any] = {
    "repositories": {"type": "list", "elements": "path"},
    "models": {"type": "list", "elements": "str"},
    "release": {"type": "str"},
}


def main() -> None:
    """Fail, because the action does the work on the controller."""
    message = "model_manifest runs on the controller. Call it as npufleet.triton.model_manifest."
    AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True).fail_json(msg=message)


if __name__ == "__main__":
    main()
