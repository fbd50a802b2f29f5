#!/usr/bin/python
"""Module model_manifest: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_manifest
short_description: Lint Triton repositories, and tell files and digests of their models
description:
  - Reads models on the controller and says everything that is wrong with them before a server reads them. Fails with all findings
    of all models where one is an error; a finding says file, line and field, what was found, what is wanted, and what to do.
  - A C(config.pbtxt) is parsed with Triton's own schema. Every host that the task runs for is judged by its own variables, and no
    connection to it is made.
  - Without O(repositories) it takes the models that the variable C(triton_models) places on the host, with the compiled file that
    the host would get, and renders them as the host would get them. With O(repositories) it takes directories as they lie there; a
    compiled file that an inventory adds is not missed then.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project.controller
options:
  repositories:
    description:
      - Directories of models on the controller. A model that is in two of them is a finding, as is a directory that is no model.
      - Default is where the entries of C(triton_models) and C(npufleet_model_repository) say that the host's models are.
    type: list
    elements: path
  models:
    description: Names of the models to look at. What they have as steps is read too. Default is every model.
    type: list
    elements: str
  release:
    description:
      - Row of C(files/releases.yml), or of C(npufleet_extra_releases), whose Triton has to know every field of the configs.
      - Default is C(rbln_release) where it is set. Without either, the newest schema decides.
    type: str
"""

EXAMPLES = r"""
- name: Lint what this host would serve
  npufleet.triton.model_manifest:

- name: Lint a repository for a release
  npufleet.triton.model_manifest:
    repositories: [model_repository]
    release: "26.07"
  delegate_to: localhost
"""

RETURN = r"""
findings:
  description: Warnings. An error fails the task, with all findings in its message.
  returned: success
  type: list
  elements: dict
  contains:
    model: {description: The model that it is about., type: str}
    file: {description: The file or directory., type: str}
    line: {description: "Its line, null where the file says nothing of it.", type: int}
    field: {description: "The field of the config, such as C(input[0].dims); empty for a finding about files.", type: str}
    found: {description: What was found., type: str}
    wanted: {description: What is wanted., type: str}
    do: {description: What to do about it., type: str}
    severity: {description: "C(error) or C(warning).", type: str}
    rule: {description: "The rule that found it, such as C(ensemble).", type: str}
models:
  description: What each model is made of, by name.
  returned: success
  type: dict
  contains:
    source: {description: Digest of what was written by hand and compiled. It is equal on all hosts., type: str}
    release:
      description: Digest of what a host gets after rendering. Null with O(repositories), which are nobody's yet.
      type: str
    versions: {description: The versions that the version policy selects., type: list, elements: str}
    files: {description: "C(sha256) and C(blob), which is kept once a host, of each file.", type: dict}
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Entry point. The work is the action's, on the controller."""
    module = AnsibleModule(
        argument_spec={
            "repositories": {"type": "list", "elements": "path"},
            "models": {"type": "list", "elements": "str"},
            "release": {"type": "str"},
        },
        supports_check_mode=True,
    )
    module.fail_json(msg="model_manifest runs on the controller, wanted the call as npufleet.triton.model_manifest")


if __name__ == "__main__":
    main()
