#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: model_manifest
short_description: Lint Triton repositories, and return files and digests of their models
description:
  - Reads models on the controller, and reports everything that is wrong with them before a server reads them. If at least one
    finding is an error, the task fails with all findings of all models. A finding has file, line, field, actual and expected value,
    and the next step.
  - The linter parses a C(config.pbtxt) with Triton's own schema, and lints the models of each host with the variables of the host.
    Linting needs no connection to the host.
  - Without O(repositories), the task renders the models that the variable C(triton_models) places on the host, with the compiled
    files for the host. With O(repositories), the task reads directories without the inventory, so compiled files that an inventory
    would add may be missing.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.controller
options:
  repositories:
    description:
      - Directories of models on the controller. The task reports a model that is in two directories, and a subdirectory without a
        model, as findings.
      - Default is the repositories that C(triton_models) and C(npufleet_model_repository) declare for the host.
    type: list
    elements: path
  models:
    description: Names of the models to lint. The models that an ensemble calls are also read. Default is every model.
    type: list
    elements: str
  release:
    description:
      - Row of C(files/releases.yml) or C(npufleet_extra_releases). The linter reports the fields of a config that the Triton
        version of this row does not know.
      - Default is C(rbln_release) if it is set. Otherwise the newest schema is used.
    type: str
"""

EXAMPLES = r"""
- name: Lint the models of this host
  npufleet.triton.model_manifest:

- name: Lint a repository for a release
  npufleet.triton.model_manifest:
    repositories: [model_repository]
    release: "26.07"
  delegate_to: localhost
"""

RETURN = r"""
findings:
  description: All findings. They are warnings, because the task fails if there is an error.
  returned: success
  type: list
  elements: dict
  contains:
    model: {description: Name of the model., type: str}
    file: {description: The file or directory., type: str}
    line: {description: "Number of the line, or null for a finding about the whole file.", type: int}
    field: {description: "The field of the config, such as C(input[0].dims). Empty for a finding about files.", type: str}
    actual: {description: The actual value., type: str}
    expected: {description: The expected value., type: str}
    todo: {description: The next step., type: str}
    severity: {description: "C(error) or C(warning).", type: str}
    rule: {description: "Name of the rule, such as C(ensemble).", type: str}
models:
  description: Files and digests of each model, by its name.
  returned: success
  type: dict
  contains:
    source: {description: "Digest of the model's own files and its compiled files, which is the same on all hosts.", type: str}
    release:
      description: Digest of the model as it is rendered for the host. Null with O(repositories), which belong to no host.
      type: str
    versions: {description: The versions that the version policy selects., type: list, elements: str}
    files:
      description: For each file, its C(sha256). C(blob) is true for a large or compiled file, which several releases can share.
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Fail, because the action does the work on the controller."""
    module = AnsibleModule(
        argument_spec={
            "repositories": {"type": "list", "elements": "path"},
            "models": {"type": "list", "elements": "str"},
            "release": {"type": "str"},
        },
        supports_check_mode=True,
    )
    module.fail_json(msg="model_manifest runs on the controller. Call it as npufleet.triton.model_manifest.")


if __name__ == "__main__":
    main()
