#!/usr/bin/python
# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: server_change
short_description: Change the server and its models, prove the change, and keep or roll it back
description:
  - Performs the whole change of a host in one task.
  - The host creates the releases of the models and switches to them. A release is a directory with the files of one model, which
    never change. Depending on the differences from the inventory, the host replaces, starts or restarts the container, or loads
    and unloads models.
  - Then the host verifies the served models and runs the checks. If the server is in sync and the checks pass, releases and
    container are kept. Otherwise the previous state is restored and verified, too.
  - With O(accept_within), a proven change waits for a second call, which accepts the change or restores the previous state. Until
    then, the run keeps the lease of the host.
  - The change runs in its own process. If the connection to the controller is lost, the host finishes the change, or restores the
    previous state, within the time limits of the inventory.
  - Before the call, the host must have the large files of the models (M(npufleet.triton.model_blobs)). If the container has to be
    replaced, the new container must exist with the name C(<name>-next) (M(community.docker.docker_container)).
  - The run must have the lease of the host (M(npufleet.triton.host_lease)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
  - npufleet.triton.project.writer
options:
  state:
    description:
      - V(changed) makes the change and proves it.
      - V(accepted) accepts a proven change that waits for acceptance. The task fails if the previous state has been restored.
      - V(restored) only restores the previous state, for the reason O(why). The task always fails, because the change has failed.
    type: str
    choices: [changed, accepted, restored]
    default: changed
  why:
    description: Reason for O(state=restored).
    type: str
    default: ""
  release:
    description:
      - Models that get a new release. In the plan of M(npufleet.triton.host_state), they have the action C(release).
      - If a model is held at an older release, its new release is a copy of the held release.
    type: list
    elements: str
    default: []
  withdraw:
    description: Models to remove from the server. In the plan, they have the action C(withdraw).
    type: list
    elements: str
    default: []
  rollback:
    description: Instead of O(release), roll models back, and hold them at the older release.
    type: dict
    suboptions:
      models:
        description: Models to roll back. Default is every served model.
        type: list
        elements: str
        default: []
      to:
        description: >-
          The release to return to. V(previous) is the last proven release before the served release. Other values are a label such
          as V(0003-0123456789ab), or the first four or more digits of the digest in a label.
        type: str
        default: previous
      why:
        description: Reason of the rollback, which the history and messages about the hold show.
        type: str
        default: ""
  current_releases:
    description: Serve the releases that the links in C(served/) point to, not those of the inventory. O(rollback) requires this.
    type: bool
    default: false
  run_checks:
    description: Before the change is kept, run the checks of every model that is placed on the host.
    type: bool
    default: true
  accept_within:
    description: Seconds that a proven change waits for a call with O(state=accepted) or O(state=restored). 0 disables the wait.
    type: int
    default: 0
  unanswered:
    description: Result of the change if no call accepts or restores it within O(accept_within).
    type: str
    choices: [kept, restored]
    default: restored
  release_host:
    description: Release the lease of the host when the change is kept, even if the connection to the controller is lost.
    type: bool
    default: false
  manual_server:
    description: >-
      The server in the container that the change replaces, if C(docker exec) has started this server. C(pid) is its process ID.
      C(options) are the options of the C(docker exec) that starts it again if the previous state is restored.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Serve the desired models, or roll back
  npufleet.triton.server_change:
"""

RETURN = r"""
did:
  description: The steps that were done, as texts.
  returned: when the change has ended
  type: list
  elements: str
back:
  description: Text about what was restored, or why the previous state could not be restored.
  returned: when the change was not proven
  type: str
restored:
  description: True if the previous state was restored and verified, or if nothing was changed.
  returned: when the change was not proven
  type: bool
proven:
  description: Whether the server is in sync and every check passed.
  returned: when the change has ended
  type: bool
answered:
  description: Whether the checks ran and passed.
  returned: when the change has ended
  type: bool
released:
  description: Whether the lease of the host was released.
  returned: when the change has ended
  type: bool
accepted:
  description: Whether the proven change was accepted. False while the change waits. Null for a change that needs no acceptance.
  returned: when the change has ended, or waits to be accepted
  type: bool
seconds_to_accept:
  description: Seconds that a proven change waits for its acceptance, counted from the proof.
  returned: when the change waits to be accepted
  type: float
checks:
  description: The results of the checks, in the form of M(npufleet.triton.inference_check).
  returned: when the change has ended
  type: list
  elements: dict
moves:
  description: For each switched model, its releases C(from) and C(to) (null for no release), and the kind of change as C(what).
  returned: when the change has ended
  type: dict
steps:
  description: The steps of the change that have begun, oldest first, with the name as C(step) and the start time as C(at).
  returned: success
  type: list
  elements: dict
under_way:
  description: True if the change is still running. Then the action calls the module again.
  returned: success
  type: bool
"""

from contextlib import nullcontext
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.change import detached, lease

OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["changed", "accepted", "restored"], "default": "changed"},
    "why": {"type": "str", "default": ""},
    "release": {"type": "list", "elements": "str", "default": []},
    "withdraw": {"type": "list", "elements": "str", "default": []},
    "rollback": {
        "type": "dict",
        "options": {
            "models": {"type": "list", "elements": "str", "default": []},
            "to": {"type": "str", "default": "previous"},
            "why": {"type": "str", "default": ""},
        },
    },
    "current_releases": {"type": "bool", "default": False},
    "run_checks": {"type": "bool", "default": True},
    "accept_within": {"type": "int", "default": 0},
    "unanswered": {"type": "str", "choices": ["kept", "restored"], "default": "restored"},
    "release_host": {"type": "bool", "default": False},
    "manual_server": {"type": "dict", "default": {}},
    "root": {"type": "path", "default": "/var/lib/npufleet"},
}
REQUEST: Dict[str, Any] = {
    **request.HOLDER_OPTIONS,
    # ID of this call. If the call begins a change, the change gets the same ID.
    "id": {"type": "str", "required": True},
    # Seconds that this call waits for the result
    "wait": {"type": "float", "default": 0},
    # True if an earlier call has begun the change. This call then only waits for the result.
    "only_wait": {"type": "bool", "default": False},
    # The next fields, up to `checks`, are passed to the class Order in module_utils/change/drivers.py.
    "desired": {"type": "dict", "default": {}},
    "container": {"type": "dict", "default": {}},
    "poll_seconds": {"type": "int", "default": 15},
    "keep": {"type": "int", "default": 3},
    "checks": {"type": "dict"},
    # Files of each model to release: digests, and the content of small files. Transferred large files are in `incoming`.
    "releases": {"type": "dict", "default": {}},
    "incoming": {"type": "str", "default": ""},
    # Secrets to remove from every result, because the output of a server can contain them
    "secrets": {"type": "list", "elements": "str", "default": [], "no_log": True},
}


def change_order(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the parameters of a host change (drivers.Order)."""
    names = ["id", "host", "root", "run", "by", "desired", "container", "manual_server", "poll_seconds", "checks", "keep"]
    store_change = None
    if params["rollback"]:
        store_change = {"state": "rolled_back", **params["rollback"]}
    elif not params["current_releases"]:
        store_change = {"state": "released", **{name: params[name] for name in ("releases", "withdraw", "incoming")}}
    return {
        **{name: params[name] for name in (*names, "release_host")},
        "serve_current": params["current_releases"],
        "acceptance_timeout": params["accept_within"],
        "keep_unanswered": params["unanswered"] == "kept",
        "rollback_reason": (params["why"] or "the change failed") if params["state"] == "restored" else "",
        "store_change": store_change,
    }


def would_change(params: Mapping[str, Any]) -> bool:
    """Return True if the server differs from the desired state, or a transaction of its models is open."""
    # Only check mode needs these imports.
    from ansible_collections.npufleet.triton.plugins.module_utils import store
    from ansible_collections.npufleet.triton.plugins.module_utils.change import proof

    desired = {name: dict(params["desired"][name]) for name in ("models", "server")}
    if params["current_releases"]:
        desired["server"]["models"] = store.current_models(params["root"], desired["server"]["models"])
    else:
        store.apply_holds(desired)
    plan = proof.observe(desired, params["root"], params["run"], serve_current=params["current_releases"]).plan
    return bool(plan or params["rollback"]) or store.read_transaction(params["root"]) is not None


def failure_message(host: str, result: Mapping[str, Any]) -> str:
    """Return the message about a failed change: the reason, and the state of the server after the change."""
    from ansible_collections.npufleet.triton.plugins.module_utils.change import host_change

    if result["back"] == host_change.NOTHING:
        return f"{host}: {result['why']}"
    outcome = "the server does not serve what it should"
    if result["accepted"] is False:
        outcome = "the change was not accepted"
    elif result["replaces"]:
        outcome = "the new container does not serve what it should"
    return f"{host}: {outcome} ({result['back']}): {result['why']}"


def begin_or_decide(params: Mapping[str, Any]) -> str:
    """Begin a change, or decide about the change that waits to be accepted. Return the ID of that change. Raises NoResult."""
    root, change_id = params["root"], str(params["id"])
    if params["only_wait"]:
        return change_id
    earlier = detached.change_begun_by(root, change_id)
    if earlier:
        return earlier
    waiting = detached.waiting(root)
    if waiting and params["state"] != "changed":
        detached.decide(root, params["state"] == "accepted", params["why"] or "it was rejected", change_id)
        return str(waiting["id"])
    if params["state"] == "accepted":
        last = detached.last(root)
        if last is None or last["run"] != params["run"] or last["accepted"] is None:
            raise detached.NoResult("found no change of this run that waits to be accepted: nothing was changed")
        # An earlier call has already accepted or rejected the change.
        return str(last["id"])
    detached.begin(root, change_order(params))
    return change_id


def run(module: request.Module) -> None:
    params = request.merge_request(module, REQUEST)
    root, host = params["root"], params["host"]
    if params["rollback"] and not params["current_releases"]:
        module.fail_json(msg="current_releases is false with rollback, expected true: the inventory names other releases")
    if module.check_mode:
        module.exit_json(changed=would_change(params), under_way=False, did=[], moves={}, proven=False, checks=[], steps=[])
    try:
        # The change may already have released the lease, so a call that only reads the result needs no lease.
        needs_no_lease = params["only_wait"] or detached.change_begun_by(root, str(params["id"]))
        with nullcontext() if needs_no_lease else lease.working(root, lease.Holder(params["run"], params["by"])):
            change_id = begin_or_decide(params)
            result = detached.wait(root, change_id, params["wait"], proven=params["state"] == "changed")
            steps = detached.steps(root)
    except (lease.LeaseError, detached.NoResult, OSError) as error:
        module.fail_json(msg=f"{host}: {error}")
    if result is None:
        module.exit_json(changed=False, under_way=True, id=change_id, steps=steps)
        return
    if result["refused"]:
        module.fail_json(msg=f"{host}: {result['refused']}")
    for warning in result["warnings"]:
        module.warn(f"{host}: {warning}")
    fields = {name: result[name] for name in ("did", "moves", "checks", "accepted", "released")}
    fields.update({"changed": bool(result["did"]), "steps": steps, "under_way": False})
    if "seconds_to_accept" in result:
        fields.update({"accepted": False, "seconds_to_accept": result["seconds_to_accept"]})
    if result["why"] is not None:
        fields.update({"back": result["back"], "restored": result.get("restored", False)})
        module.fail_json(msg=failure_message(host, result), proven=False, **fields)
    module.exit_json(proven=True, **fields)


def main() -> None:
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
