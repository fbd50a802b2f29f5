#!/usr/bin/python
"""Module server_change: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: server_change
short_description: Have the server serve what is wanted, prove it and keep it, or put back what served before
description:
  - The whole change on the host, in one call. It makes the releases of the models and switches to them, compares the server with
    the inventory and does what differs, by replacing, starting or restarting the container, or by loading and unloading models. It
    reads back what is served, asks the checks, and keeps releases and container where all is right. Where it is not, what served
    before serves again, and that is read back too.
  - With O(accept_within) it is kept only when a second call accepts it, so that somebody can look at its traffic in between. Until
    then the host stays held, and nothing of what served before is given up.
  - The change runs in a process of its own, which no connection ends. Where the controller or its network goes away, the host
    finishes the change or puts it back, within the times of the inventory.
  - What is needed for it is there before, the large files of the models by M(npufleet.triton.model_blobs), and a new container
    under the name C(<name>-next) by M(community.docker.docker_container).
  - The run has to hold the host (M(npufleet.triton.host_lease)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
extends_documentation_fragment:
  - npufleet.triton.project
options:
  state:
    description:
      - V(changed) changes, proves and keeps, or puts back.
      - V(accepted) keeps what is proven and waits for that. It fails where it has been put back meanwhile.
      - V(put_back) only puts back what served before, because of O(why). It fails in any case, as the change that it ends has.
    type: str
    choices: [changed, accepted, put_back]
    default: changed
  why:
    description: Why nothing is to be changed any more, with O(state=put_back).
    type: str
    default: ""
  release:
    description:
      - The models to release, as C(triton_models) places them. One that is held at an older release is made anew out of that.
      - M(npufleet.triton.host_state) tells them as the action C(release), and those of O(withdraw) as C(withdraw).
    type: list
    elements: str
    default: []
  withdraw:
    description: Names of the models that are no longer to be served.
    type: list
    elements: str
    default: []
  rollback:
    description: Switch back instead, and hold the models there.
    type: dict
    suboptions:
      models:
        description: The models that are meant. Default is every served one.
        type: list
        elements: str
        default: []
      to:
        description:
          - V(previous) for the proven release before the one that is served, a release's label such as V(0003-0123456789ab), or at
            least four digits of its digest.
        type: str
        default: previous
      why:
        description: The reason, for the history and for whoever meets the hold.
        type: str
        default: ""
  linked:
    description: Serve what the store links, whatever container and models the inventory wants. O(rollback) needs it.
    type: bool
    default: false
  ask_checks:
    description: Ask the checks of every model that is placed here before the change is kept.
    type: bool
    default: true
  accept_within:
    description: Seconds for which a change that is proven waits for a call with O(state=accepted) or O(state=put_back).
    type: int
    default: 0
  unanswered:
    description: What the host does where no such call comes in that time, whether there is a controller or not.
    type: str
    choices: [kept, put_back]
    default: put_back
  release_host:
    description: >-
      Release the host when the change is kept, as M(npufleet.triton.host_lease) does: nothing of the run follows. The host does it
      also where its controller is gone.
    type: bool
    default: false
  inside:
    description: A server that was started inside the old container by hand, C(pid) and C(options) of docker exec.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Reports whether anything would be changed.
"""

EXAMPLES = r"""
- name: Serve what the inventory wants, or go on with what served before
  npufleet.triton.server_change:
"""

RETURN = r"""
did:
  description: What was done, in words.
  returned: when the change has ended
  type: list
  elements: str
back:
  description: What was put back, or why that could not be.
  returned: when the change was not proven
  type: str
proven:
  description: Whether the server serves what is wanted, and answered every check that was asked.
  returned: when the change has ended
  type: bool
answered:
  description: Whether the checks were asked, and every answer was right.
  returned: when the change has ended
  type: bool
released:
  description: Whether the host was released.
  returned: when the change has ended
  type: bool
accepted:
  description: Whether what is proven was accepted, null where it had not to be. V(false) with RV(seconds_to_accept) while it waits.
  returned: when the change has ended, or waits to be accepted
  type: bool
seconds_to_accept:
  description: For how long it waits, from the proof on.
  returned: when the change waits to be accepted
  type: float
checks:
  description: The answers to the checks, as M(npufleet.triton.inference_check) has them.
  returned: when the change has ended
  type: list
  elements: dict
moves:
  description: For each model that was switched C(from) and C(to) as labels, null for none, and C(what) was done.
  returned: when the change has ended
  type: dict
steps:
  description: Each step that the change has begun, C(step) and the time C(at), the latest last.
  returned: success
  type: list
  elements: dict
under_way:
  description: Whether the change has not ended yet. The controller asks again then.
  returned: success
  type: bool
"""

from contextlib import nullcontext
from typing import Any, Dict, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils import request
from ansible_collections.npufleet.triton.plugins.module_utils.change import detached, lease

OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["changed", "accepted", "put_back"], "default": "changed"},
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
    "linked": {"type": "bool", "default": False},
    "ask_checks": {"type": "bool", "default": True},
    "accept_within": {"type": "int", "default": 0},
    "unanswered": {"type": "str", "choices": ["kept", "put_back"], "default": "put_back"},
    "release_host": {"type": "bool", "default": False},
    "inside": {"type": "dict", "default": {}},
    "root": {"type": "path", "default": "/var/lib/npufleet"},
}
REQUEST: Dict[str, Any] = {
    **request.HOLDER,
    # What the result is known by, and seconds to wait for it in this call
    "id": {"type": "str", "default": ""},
    "wait": {"type": "float", "default": 0},
    # Whether it was begun by a call before this one, which had all the rest
    "begun": {"type": "bool", "default": False},
    # See change/host_change.py
    "desired": {"type": "dict", "default": {}},
    "container": {"type": "dict", "default": {}},
    "poll_seconds": {"type": "int", "default": 15},
    "keep": {"type": "int", "default": 3},
    "checks": {"type": "dict"},
    # Files of each model to release, with digests and the content of small ones; where large ones have arrived
    "releases": {"type": "dict", "default": {}},
    "incoming": {"type": "str", "default": ""},
    # What no result shows, whoever repeats it
    "secrets": {"type": "list", "elements": "str", "default": [], "no_log": True},
}


def order(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the order of a host change (host_change.Order)."""
    names = ["id", "host", "root", "run", "by", "desired", "linked", "container", "inside", "poll_seconds", "checks", "keep"]
    names.append("release_host")
    why = (params["why"] or "the change failed") if params["state"] == "put_back" else ""
    switch = None
    if params["rollback"]:
        switch = {"state": "rolled_back", **params["rollback"]}
    elif not params["linked"]:
        switch = {"state": "released", **{name: params[name] for name in ("releases", "withdraw", "incoming")}}
    accept = {"accept_within": params["accept_within"], "kept_unanswered": params["unanswered"] == "kept"}
    return {**{name: params[name] for name in names}, **accept, "given_up": why, "switch": switch}


def would_change(params: Mapping[str, Any]) -> bool:
    """Whether the server differs, or a switch of its models is open."""
    # Here, as who begins a change and waits for it needs nothing of what makes it
    from ansible_collections.npufleet.triton.plugins.module_utils import store
    from ansible_collections.npufleet.triton.plugins.module_utils.change import proof

    desired = {name: dict(params["desired"][name]) for name in ("models", "server")}
    if params["linked"]:
        desired["server"]["models"] = store.linked(params["root"], desired["server"]["models"])
    else:
        store.hold_back(desired)
    plan = proof.see(desired, params["root"], params["run"], linked=params["linked"]).plan
    return bool(plan or params["rollback"]) or store.read_transaction(params["root"]) is not None


def words(host: str, result: Mapping[str, Any]) -> str:
    """Why it failed, and what serves now."""
    from ansible_collections.npufleet.triton.plugins.module_utils.change import host_change

    if result["back"] == host_change.NOTHING:
        return f"{host}: {result['why']}"
    if result["accepted"] is False:
        return f"{host}: the change was not accepted ({result['back']}): {result['why']}"
    new = "the new container does not serve what was asked for"
    what = new if result["replaces"] else "the server does not serve what was asked for"
    return f"{host}: {what} ({result['back']}): {result['why']}"


def begun(params: Mapping[str, Any]) -> str:
    """The id of the change that is to be waited for: one that is begun here, or one that waited for this. Raises Ended."""
    root, ident = params["root"], str(params["id"])
    if params["begun"]:
        return ident
    before = detached.begun(root, ident)
    if before:
        return before
    open_one = detached.waiting(root)
    if open_one and params["state"] != "changed":
        detached.decide(root, params["state"] == "accepted", params["why"] or "it was not wanted", ident)
        return str(open_one["id"])
    if params["state"] == "accepted":
        last = detached.last(root)
        if last is None or last["run"] != params["run"] or last["accepted"] is None:
            raise detached.NoResult("found no change of this run that waits to be accepted: nothing was changed")
        # Its time was over before this call
        return str(last["id"])
    detached.begin(root, order(params))
    return ident


def run(module: request.Module) -> None:
    """Run the module, whether Ansible has sent it or the host library calls it."""
    params = request.merge_request(module, REQUEST)
    root, host = params["root"], params["host"]
    if params["rollback"] and not params["linked"]:
        module.fail_json(msg="found rollback without linked, wanted both: the inventory wants other releases")
    if not params["id"]:
        module.fail_json(msg="what is wanted is known on the controller: call it as npufleet.triton.server_change")
    if module.check_mode:
        module.exit_json(changed=would_change(params), under_way=False, did=[], moves={}, proven=False, checks=[], steps=[])
    try:
        # What came of a change that has released the host is there all the same
        known = params["begun"] or detached.begun(root, str(params["id"]))
        with nullcontext() if known else lease.working(root, lease.Holder(params["run"], params["by"])):
            ident = begun(params)
            result = detached.wait(root, ident, params["wait"], proven=params["state"] == "changed")
            steps = detached.steps(root)
    except (lease.LeaseError, detached.NoResult, OSError) as error:
        module.fail_json(msg=f"{host}: {error}")
    if result is None:
        module.exit_json(changed=False, under_way=True, id=ident, steps=steps)
        return
    if result["refused"]:
        module.fail_json(msg=f"{host}: {result['refused']}")
    for warning in result["warnings"]:
        module.warn(f"{host}: {warning}")
    ended = {name: result[name] for name in ("did", "moves", "checks", "accepted", "released")}
    ended.update({"changed": bool(result["did"]), "steps": steps, "under_way": False})
    if "seconds_to_accept" in result:
        ended.update({"accepted": False, "seconds_to_accept": result["seconds_to_accept"]})
    if result["why"] is not None:
        module.fail_json(msg=words(host, result), back=result["back"], proven=False, **ended)
    module.exit_json(proven=True, **ended)


def main() -> None:
    """Run the module that Ansible has sent."""
    run(request.ansible_module(OPTIONS))


if __name__ == "__main__":
    main()
