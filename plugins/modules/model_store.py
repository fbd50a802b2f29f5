#!/usr/bin/python
"""Module model_store: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store
short_description: Model releases of a host, and the transaction in which it switches between them
description:
  - Takes large files that were transferred into O(incoming), verifies the SHA-256 of every one and keeps them as immutable
    blobs; writes each model's release into a fresh directory; then renames the link C(served/<model>) over to it.
  - Nothing is edited in place and nothing half-made is ever below C(served/), so a server that polls never sees it.
  - A release directory is never used twice, also for content that was there before, because Triton reloads a model only
    when the newest time stamp in its tree grows.
  - Links move inside a transaction, which is written down first and stays open until what they lead to is proven
    (O(state=proven)) or what served before is linked again (O(state=restored)). A run that breaks off leaves it open, and the
    next one finishes it.
  - A file of the store that is not what it has to be is put right before anything else is done, out of the history or the release.
  - The run has to hold the host (M(npufleet.triton.host_lease)).
version_added: 0.1.0
author: The npufleet developers (@npufleet)
options:
  root:
    description: Root of the store.
    type: path
    default: /var/lib/npufleet
  state:
    description:
      - V(released) makes releases of O(models), switches to them and withdraws O(withdraw), inside a transaction. Without any of
        them it makes an empty store, which a server of no models reads.
      - V(proven) closes the open transaction, writes the history and removes releases that nothing needs.
      - V(restored) links again what served before the open transaction, in fresh directories, and moves no byte over the network.
      - V(rolled_back) switches O(models), or every served model, to the release O(to), inside a transaction, and holds them there.
      - V(forgotten) ends what holds O(models), or every model, at an older release.
      - V(told) changes nothing and tells what is here.
    type: str
    choices: [released, proven, restored, rolled_back, forgotten, told]
    default: released
  incoming:
    description: Directory on the same file system with transferred blobs, each named by its SHA-256.
    type: path
  models:
    description:
      - With O(state=released) the models to release; the controller fills in their files. One that is held at an older release is
        made anew out of that.
      - With O(state=rolled_back) and O(state=forgotten) the models that are meant. Default is every one.
    type: list
    elements: str
    default: []
  withdraw:
    description: Names of the models that are no longer to be served.
    type: list
    elements: str
    default: []
  to:
    description:
      - Where O(state=rolled_back) goes, V(previous) for the proven release before the one that is served, a release's label such as
        V(0003-0123456789ab), or at least four digits of its digest.
    type: str
    default: previous
  why:
    description: The reason, for the history and for whoever meets a hold.
    type: str
    default: ""
  hung:
    description: With O(state=restored), models whose load hangs in the server until it is started again. The next plan has that.
    type: list
    elements: str
    default: []
  keep:
    description:
      - How many different proven releases of each model stay, by their last proof. The same content made anew counts once.
      - Those that are served, held or in a transaction stay in any case, and so does the newest proven one beside the served one.
      - The controller fills in C(model_repository_keep).
    type: int
    default: 3
  releases:
    description: Files of each model to release, with digests and the content of small ones. Computed on the controller.
    type: dict
    default: {}
  transfer:
    description:
      - Only bring large files, by their SHA-256, as blobs; nothing is released or switched. In a playbook a list of digests.
      - The controller makes the steps for the host out of it, pushes with rsync, and tells every ten seconds how far it is.
    type: raw
  origins:
    description: Where each file of O(transfer) comes from, by its SHA-256. Default is what the models of the host say.
    type: dict
  secrets:
    description: >-
      What object stores and servers want to know of a host that fetches itself, and under C(addresses) what is secret in addresses,
      so that no option shows it. Filled in on the controller.
    type: dict
    default: {}
  run:
    description: Id of this run. Filled in on the controller, as are O(by) and O(host).
    type: str
    default: ""
  by:
    description: Who runs it, and where.
    type: str
    default: unknown
  host:
    description: Inventory name of the host.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Reports what would be switched.
"""

EXAMPLES = r"""
- name: Make and switch to new releases
  npufleet.triton.model_store:
    incoming: /var/lib/npufleet/incoming
    models: [digits]

- name: Bring the large files that are missing
  npufleet.triton.model_store:
    transfer: "{{ state.actual.models.missing }}"
- name: Keep them, now that they are proven
  npufleet.triton.model_store:
    state: proven

- name: Go back to what served before, because they are not
  npufleet.triton.model_store:
    state: restored
    why: digits answers wrong

- name: Roll one model back by hand
  npufleet.triton.model_store:
    state: rolled_back
    models: [digits]
    to: previous
    why: wrong labels since Friday
"""

RETURN = r"""
switched:
  description: The release that each model whose link moved is served from, null for one that is served no more.
  returned: O(state=released), O(state=restored), O(state=rolled_back)
  type: dict
open:
  description: Whether a transaction is open now, which has to be proven or put back.
  returned: success, without O(transfer)
  type: bool
transferred:
  description: Bytes of each blob that was brought, by its SHA-256.
  returned: with O(transfer)
  type: dict
bytes_moved:
  description: Their sum, without what had arrived before.
  returned: with O(transfer)
  type: int
moves:
  description: For each of these models C(from) and C(to) as labels, null for none, and C(what) is done.
  returned: O(state=released), O(state=restored), O(state=rolled_back), O(state=proven)
  type: dict
removed:
  description: What O(keep) left no room for.
  returned: O(state=proven)
  type: raw
forgotten:
  description: Models that were held and are no more.
  returned: O(state=forgotten)
  type: list
  elements: str
history:
  description:
    - "Every change that is written down, oldest first: C(when), C(who), C(model), C(what), C(from), C(to), C(result), C(why)."
  returned: O(state=told)
  type: list
  elements: dict
holds:
  description: Models that are held at an older release, with C(by), C(when) and C(why).
  returned: O(state=told)
  type: dict
transaction:
  description: The open transaction, null where there is none.
  returned: O(state=told)
  type: dict
damaged:
  description: What is wrong with files of the store, by their names. The next change puts right what can be had again.
  returned: O(state=told)
  type: dict
mended:
  description: Files of the store that were damaged and are put right; what was in one is beside it, as C(.damaged).
  returned: when there were any
  type: list
  elements: str
releases:
  description: Labels of the releases of each model, newest first.
  returned: O(state=told)
  type: dict
"""

import os
import time
from typing import Any, Dict, List, Mapping, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils import store
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.module_utils.fetch import receive
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs, damage, history

# Seconds for another process to let go of the store, such as a transfer
STORE_WAIT = 60.0


def transfer(module: AnsibleModule) -> None:
    """One step of a transfer, as the controller asks for it."""
    order, root = module.params["transfer"], module.params["root"]
    if not isinstance(order, dict):
        module.fail_json(msg="a transfer is made by the controller: call it as npufleet.triton.model_store")
    if module.check_mode:
        module.exit_json(changed=True)
    try:
        answer = receive.serve(root, module.params["incoming"], order, module.params["secrets"])
    except (store.StoreError, OSError) as error:
        module.fail_json(msg=f"model store {root}: {error}")
    module.exit_json(changed=True, **answer)


Moves = Dict[str, Dict[str, Any]]


def wanted_releases(root: str, releases: Mapping[str, Any]) -> Dict[str, Any]:
    """What is to be made: a model that is held at an older release gets that one again."""
    holds = store.read_holds(root)
    return {
        name: store.release_again(root, name, holds[name]["label"])
        if name in holds and holds[name]["source"] == entry["source"]
        else entry
        for name, entry in sorted(releases.items())
    }


def refuse_directories(root: str, names: List[str]) -> None:
    """A directory cannot be replaced by a link in one step."""
    places = {name: os.path.join(root, "served", name) for name in names}
    solid = sorted(name for name, path in places.items() if os.path.isdir(path) and not os.path.islink(path))
    if solid:
        raise store.StoreError(f"served/{', served/'.join(solid)} is a directory and no link: move it out of the store")


def switch(root: str, run: store.Run, moves: Moves, holds: Dict[str, Any], **more: Any) -> Dict[str, Optional[str]]:
    """Move links inside the transaction. What fails before the first one has moved leaves no trace."""
    before, holds_before = store.read_transaction(root), store.read_holds(root)
    targets = {name: move["to"] for name, move in moves.items()}
    try:
        store.open_transaction(root, run, moves, **more)
        store.write_holds(root, holds)
        store.move_links(root, targets)
    except (store.StoreError, OSError) as error:
        moved = [name for name, label in targets.items() if store.served_label(root, name) == label != moves[name]["from"]]
        if moved:
            raise store.StoreError(
                f"{error}; {', '.join(moved)} switched before that: run again, the open transaction tells what served before"
            ) from error
        store.write_holds(root, holds_before)
        if before is not None:
            store.write_json(root, os.path.join(root, store.TRANSACTION), before)
        elif os.path.exists(os.path.join(root, store.TRANSACTION)):
            os.unlink(os.path.join(root, store.TRANSACTION))
        raise
    return targets


def release(root: str, run: store.Run, params: Mapping[str, Any], withdraw: List[str]) -> Dict[str, Any]:
    """State released."""
    refuse_directories(root, [*params["releases"], *withdraw])
    releases = wanted_releases(root, params["releases"])
    fresh = [entry for name, entry in releases.items() if entry is params["releases"][name]]
    blobs.ingest(
        root, params["incoming"], sorted({file["sha256"] for new in fresh for file in new["files"].values() if file["blob"]})
    )
    # Every release is whole before the first link moves.
    made = {name: store.make_release(root, name, entry) for name, entry in releases.items()}
    moves: Moves = {name: {"from": store.served_label(root, name), "to": label, "what": "deploy"} for name, label in made.items()}
    moves.update({name: {"from": store.served_label(root, name), "to": None, "what": "withdraw"} for name in withdraw})
    if not moves and store.read_transaction(root) is None:
        return {"changed": False, "switched": {}, "moves": {}}
    holds = store.read_holds(root)
    ended = [name for name in moves if name in holds and holds[name]["source"] != params["releases"].get(name, {}).get("source")]
    kept = {name: hold for name, hold in holds.items() if name not in ended}
    for name in set(kept) & set(made):
        kept[name] = {**kept[name], "label": made[name]}
    # Without any move it takes over what another run left open
    return {"changed": True, "switched": switch(root, run, moves, kept), "moves": moves}


def roll_back(root: str, run: store.Run, params: Mapping[str, Any]) -> Dict[str, Any]:
    """State rolled_back."""
    found = store.rollback_moves(root, params["models"], params["to"])
    again = {name: store.release_again(root, name, move["to"]) for name, move in found.items()}
    moves: Moves = {
        name: {"from": found[name]["from"], "to": store.make_release(root, name, entry), "what": "rollback"}
        for name, entry in again.items()
    }
    if not moves:
        return {"changed": False, "switched": {}, "moves": {}}
    holds = store.holds_after(root, run, moves, params["why"])
    return {"changed": True, "switched": switch(root, run, moves, holds, why=params["why"]), "moves": moves}


def restore(root: str, run: store.Run, params: Mapping[str, Any]) -> Dict[str, Any]:
    """State restored."""
    if params["hung"]:
        store.write_json(root, os.path.join(root, store.HUNG), {"models": params["hung"], "at": time.time()})
    moves = store.put_back(root, run, params["why"])
    return {"changed": bool(moves), "switched": {name: move["to"] for name, move in moves.items()}, "moves": moves}


def prove(root: str, run: store.Run, params: Mapping[str, Any], module: AnsibleModule) -> Dict[str, Any]:
    """State proven."""
    moves = store.close_transaction(root, run, "proven", params["why"])
    removed: Any = []
    if moves:
        try:
            removed = blobs.collect(root, params["keep"])
        except (store.StoreError, OSError) as error:
            # What is proven stays proven; the next run collects again
            module.warn(f"{run.host}: old releases were not removed: {error}")
    return {"changed": bool(moves), "moves": moves, "removed": removed}


def forget(root: str, run: store.Run, params: Mapping[str, Any]) -> Dict[str, Any]:
    """State forgotten."""
    holds = store.read_holds(root)
    ended = sorted(set(holds) & set(params["models"] or holds))
    here = {name: store.served_label(root, name) for name in ended}
    moves = {name: {"from": here[name], "to": here[name], "what": history.FORGET} for name in ended}
    store.append_history(root, store.history_lines(root, run, moves, "done", params["why"]))
    store.write_holds(root, {name: hold for name, hold in holds.items() if name not in ended})
    return {"changed": bool(ended), "forgotten": ended}


def tell(root: str) -> Dict[str, Any]:
    """State told."""
    home = os.path.join(root, "releases")
    return {
        "changed": False,
        "history": store.read_history(root),
        "holds": store.read_holds(root),
        "transaction": store.read_transaction(root),
        "damaged": damage.found(root),
        "releases": {name: store.labels(root, name) for name in (sorted(os.listdir(home)) if os.path.isdir(home) else [])},
    }


def predicted(root: str, params: Mapping[str, Any], withdraw: List[str]) -> Dict[str, Any]:
    """What check mode answers."""
    state, opened = params["state"], store.read_transaction(root)
    if state == "rolled_back":
        moves = store.rollback_moves(root, params["models"], params["to"])
        return {"changed": bool(moves), "switched": {}, "moves": moves}
    if state == "forgotten":
        ended = sorted(set(store.read_holds(root)) & set(params["models"] or store.read_holds(root)))
        return {"changed": bool(ended), "forgotten": ended}
    if state == "released":
        changes = params["releases"] or withdraw or opened or damage.found(root) or not store.is_there(root)
        return {"changed": bool(changes), "switched": {}, "moves": {}}
    return {"changed": bool(opened), "switched": {}, "moves": (opened or {"models": {}})["models"]}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/var/lib/npufleet"},
            "state": {
                "type": "str",
                "choices": ["released", "proven", "restored", "rolled_back", "forgotten", "told"],
                "default": "released",
            },
            "incoming": {"type": "path"},
            "models": {"type": "list", "elements": "str", "default": []},
            "withdraw": {"type": "list", "elements": "str", "default": []},
            "to": {"type": "str", "default": "previous"},
            "why": {"type": "str", "default": ""},
            "hung": {"type": "list", "elements": "str", "default": []},
            "keep": {"type": "int", "default": 3},
            "releases": {"type": "dict", "default": {}},
            "transfer": {"type": "raw"},
            "origins": {"type": "dict"},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "run": {"type": "str", "default": ""},
            "by": {"type": "str", "default": "unknown"},
            "host": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    if module.params["transfer"] is not None:
        transfer(module)
    params = module.params
    root, state = params["root"], params["state"]
    run = store.Run(params["run"], params["by"], params["host"])
    withdraw = [name for name in params["withdraw"] if os.path.lexists(os.path.join(root, "served", name))]
    unknown = sorted(set(params["models"]) - set(params["releases"])) if state == "released" else []
    if unknown:
        module.fail_json(msg="triton_models places no {} on this host".format(", ".join(unknown)))
    new = not store.is_there(root)
    answer: Dict[str, Any] = {}
    try:
        if state == "told":
            answer = tell(root)
        elif module.check_mode:
            answer = predicted(root, params, withdraw)
        elif (
            state == "released"
            and not (params["releases"] or withdraw or new or damage.found(root))
            and store.read_transaction(root) is None
        ):
            answer = {"changed": False, "switched": {}, "moves": {}}
        else:
            with lease.working(root, lease.Holder(run.run, run.by)), store.locked(root, time.monotonic() + STORE_WAIT):
                store.prepare(root)
                anew = state == "forgotten" and not params["models"]
                undecided = damage.undecided(root)
                # A switch that is open is put back, or is as good as it was proven, whatever is held
                if undecided and not anew and state not in ("restored", "proven"):
                    raise store.StoreError(undecided)
                mended = damage.mend(root, forget=anew)
                if state == "released":
                    answer = release(root, run, params, withdraw)
                elif state == "proven":
                    answer = prove(root, run, params, module)
                elif state == "restored":
                    answer = restore(root, run, params)
                elif state == "rolled_back":
                    answer = roll_back(root, run, params)
                else:
                    answer = forget(root, run, params)
                answer["changed"] = answer["changed"] or new or bool(mended)
                if mended:
                    answer["mended"] = mended
                if state == "released" and not answer["moves"] and damage.found(root):
                    # What cannot be had again goes with its release, unless something needs it
                    blobs.collect(root, params["keep"])
        answer["open"] = store.read_transaction(root) is not None
    except lease.LeaseError as error:
        module.fail_json(msg=f"{run.host or root}: {error}")
    except (store.StoreError, OSError) as error:
        module.fail_json(msg=f"model store {root}: {error}")
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
