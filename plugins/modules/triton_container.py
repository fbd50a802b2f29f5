#!/usr/bin/python
"""Module triton_container: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: triton_container
short_description: Replace, put back, keep, start or restart the container of the server
description:
  - The container C(<name>-next), which M(community.docker.docker_container) has made, takes the place of C(<name>) in one call. The
    old one stays beside it, stopped, until the new one is proven (O(state=proven)) or not (O(state=put_back)).
  - Nothing that was proven is removed before something else is. A container that nobody proved gives way for good.
  - A container is stopped before it gets another name, also one that its engine starts again and again. Whether it serves is asked
    at the port that it publishes itself; a process that ends tells its exit code and its last words at once.
  - The run has to hold the host (M(npufleet.triton.host_lease)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  state:
    description:
      - V(replaced) stops what is there, puts it aside, waits for the cards and starts the new one.
      - V(put_back) gives the one that was proven last its place again, and waits until it serves.
      - V(proven) takes that one away.
      - V(stopped) stops it for something else, such as another driver. It is left to be started and proven, or put back.
      - V(started) starts the container where it does not run. V(restarted) stops and starts it.
    type: str
    choices: [replaced, put_back, proven, stopped, started, restarted]
    required: true
  inside:
    description: A server that was started inside the old container by hand, C(pid), C(options) of docker exec, and C(command).
    type: dict
    default: {}
  root:
    description: Directory of the project on the host.
    type: path
    default: /var/lib/npufleet
  _request:
    description: What the controller hands over. It is nothing for a playbook to set.
    type: dict
attributes:
  check_mode:
    support: full
    description: Reports a change and makes none.
"""

EXAMPLES = r"""
- name: Let the new container take the place of the old one
  npufleet.triton.triton_container:
    state: replaced

- name: Keep it, now that it is proven
  npufleet.triton.triton_container:
    state: proven
"""

RETURN = r"""
did:
  description: What was done, in words; null where there was nothing to do, with O(state=put_back) also where there is nothing to go
    back to.
  returned: success
  type: str
"""

from typing import Any, Mapping, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.change import container, lease

# Name of the container, and the times that it needs
REQUEST = {**request.HOLDER, "container": {"type": "dict", "required": True}}


def act(params: Mapping[str, Any], run: lease.Holder, held: Mapping[str, Any]) -> Optional[str]:
    """One state; what was done."""
    engine = container.Docker()
    state, root, settings, name = params["state"], params["root"], params["container"], params["container"]["name"]
    if state in ("replaced", "stopped", "started", "restarted"):
        # Somebody may have taken the host out since the lease was taken
        lease.refuse_maintenance(root, held["maintenance"])
    if state == "replaced":
        return "; ".join(container.replace(engine, root, run, name, settings, params["inside"]))
    if state == "put_back":
        return container.put_back(engine, root, name, settings)
    if state == "proven":
        return f"{name} is the one to go back to from now on" if container.keep(engine, root, name) else None
    if state == "stopped":
        return f"stopped {name}" if container.stop(engine, root, run, name, settings) else None
    if state == "started":
        return f"started {name}" if container.start(engine, name, settings) else None
    container.restart(engine, name, settings)
    return f"restarted {name}"


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["replaced", "put_back", "proven", "stopped", "started", "restarted"],
                "required": True,
            },
            "inside": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/var/lib/npufleet"},
            "_request": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    params = request.received(module, REQUEST)
    if module.check_mode:
        module.exit_json(changed=True, did=None)
    try:
        run = lease.Holder(params["run"], params["by"])
        with lease.working(params["root"], run) as held:
            did = act(params, run, held or {})
    except (container.ContainerError, lease.LeaseError, OSError) as error:
        module.fail_json(msg="{}: {}".format(params["host"], error))
    module.exit_json(changed=did is not None, did=did)


if __name__ == "__main__":
    main()
