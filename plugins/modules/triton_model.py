#!/usr/bin/python
"""Module triton_model: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: triton_model
short_description: Have a Triton server in explicit mode serve exactly these models, and read them back
description:
  - Compares what the server has loaded with O(models), unloads what is not wanted, loads what is not there or of another release,
    and leaves every other model alone.
  - Steps are loaded before their ensembles, and unloaded after them. An ensemble whose step was unloaded is loaded again.
  - A load counts when the release digest is read back from the config that the server has in memory. The server answers 200 also
    where it saw no reason to reload, or keeps a config that somebody gave it by hand; such a model is unloaded and loaded.
  - All models that Triton refuses are named in one message, each with Triton's own reason. What served before goes on where Triton
    can load beside it.
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  models:
    description:
      - The wanted models by name, each with C(versions), C(release) and C(steps).
      - C(switch) is V(beside) or V(unload_first), C(memory) are bytes on each NPU. Without them it is loaded beside its old one.
      - M(npufleet.triton.host_state) tells them as C(desired.server.models).
    type: dict
    required: true
  linked:
    description: Take releases and versions from the links of the store instead, as it is right for a server that is put back.
    type: bool
    default: false
  root:
    description: Root of the store, for O(linked).
    type: path
    default: /var/lib/npufleet
  address:
    description: Address of the server, as the host sees it.
    type: str
    default: 127.0.0.1
  port:
    description: HTTP port of the server.
    type: int
    default: 8000
  container:
    description: Name of the server's container, inside of which its image's own client asks.
    type: str
    default: triton
  grpc:
    description:
      - Ask for loads and unloads over gRPC. V(false) is for a server without it, or with TLS on it; a load over HTTP keeps waiting
        whoever has a connection to the same thread of Triton.
    type: bool
    default: true
  key:
    description: The key of the server's restricted APIs, for a server that has some.
    type: dict
    suboptions:
      name:
        description: Name of the header.
        type: str
        required: true
      path:
        description: File that holds the key, on the host and in the container alike.
        type: path
        required: true
  timeout:
    description: Seconds that the load of one model may take. One that takes longer hangs, and only a restart of the server ends it.
    type: int
    default: 300
attributes:
  check_mode:
    support: full
    description: Reports what would be loaded and unloaded, and asks the server for nothing but its index and configs.
"""

EXAMPLES = r"""
- name: Have the server serve what is wanted
  npufleet.triton.triton_model:
    models: "{{ state.desired.server.models }}"
"""

RETURN = r"""
loaded:
  description: Models that were loaded, or loaded again.
  returned: always
  type: list
  elements: str
unloaded:
  description: Models that were unloaded and are not wanted.
  returned: always
  type: list
  elements: str
unchanged:
  description: Models that served the wanted release already and were left alone.
  returned: always
  type: list
  elements: str
reasons:
  description: For each model that Triton would not load or unload, its own words.
  returned: always
  type: dict
hung:
  description: Models whose load did not end in time. The server has to be restarted.
  returned: always
  type: list
  elements: str
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.triton import control
from ansible_collections.npufleet.triton.plugins.module_utils.triton.repository import Change, Refused, Server


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "dict", "required": True},
            "linked": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/var/lib/npufleet"},
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 8000},
            "container": {"type": "str", "default": "triton"},
            "grpc": {"type": "bool", "default": True},
            "key": {
                "type": "dict",
                "no_log": False,
                "options": {
                    "name": {"type": "str", "required": True},
                    "path": {"type": "path", "required": True},
                },
            },
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    params = module.params
    models: Dict[str, Any] = params["models"]
    try:
        if params["linked"]:
            models = store.linked(params["root"], models)
        run = control.inside(params["container"]) if params["grpc"] else None
        server = Server(params["address"], params["port"], float(params["timeout"]), params["key"], run)
        change = Change(server, models)
        if module.check_mode:
            change.loaded, change.unloaded = change.up, change.gone
        else:
            # However many slow loads there are, the lease of the run does not end meanwhile
            with lease.working(params["root"]):
                change.apply()
    except (Refused, store.StoreError) as error:
        empty: Dict[str, Any] = {"loaded": [], "unloaded": [], "unchanged": [], "reasons": {}, "hung": []}
        module.fail_json(msg=str(error), **empty)
    answer = change.answer()
    if change.reasons:
        lines = "".join(f"\n  - model {name}: {why.strip()}" for name, why in change.reasons.items())
        module.fail_json(msg=f"Triton on port {params['port']} refused:{lines}", **answer)
    words = [("loaded", change.loaded), ("unloaded", change.unloaded), ("left alone", change.unchanged)]
    msg = "; ".join(f"{what} {', '.join(names)}" for what, names in words if names)
    module.exit_json(changed=bool(change.loaded or change.unloaded), msg=msg or "nothing to serve", **answer)


if __name__ == "__main__":
    main()
