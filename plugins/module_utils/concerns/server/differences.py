# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The differences between the desired server and the actual one."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping

from ansible_collections.npufleet.triton.plugins.module_utils.plan import INSPECT, Item, item
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import describe_versions, in_sync, versions_in

CONCERN = "server"
HANGING, VERSION = "loads", "version"
# Names of the items about paths and devices that a new container could not mount or open
TO_MOUNT = (ABSENT, DRIVER_FILES, ACCESS) = ("volumes", "driver files", "device access")


def diff(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    """Return the differences of the server's files, of its container, and of the models that it serves."""
    plan = list(_diff_files(desired, actual))
    if actual["container"] is None:
        return [*plan, item(CONCERN, "container", None, "running " + desired["name"], "create")]
    driver_files, access = actual["driver_files"], actual["access"]
    if driver_files["missing"]:
        plan.append(item(CONCERN, DRIVER_FILES, None, ", ".join(driver_files["missing"]), INSPECT))
    access_problems = [*access["missing"], *access["mismatches"]]
    if access_problems:
        plan.append(item(CONCERN, ACCESS, "; ".join(access_problems), "cards and files that the server can open", INSPECT))
    replace = list(_diff_container(desired["container"], actual))
    return [*plan, *replace, *_diff_state(desired, actual, bool(replace))]


def _diff_files(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[Item]:
    """Yield the differences of the key files, and the missing sources of mounts."""
    key_readers = desired["key_readers"]
    readers = "for root and group {}".format(key_readers["group"]) if key_readers["group_must_read"] else "for root alone"
    if actual.get("credentials"):
        expected_file = "SHA-256 {}, {}".format(desired["credentials"]["sha256"][:12], readers)
        yield item(CONCERN, "credentials", actual["credentials"], expected_file, "write")
    if actual.get("key"):
        owner = "the operator's key" if desired["key_fingerprint"] else "a key of this host"
        yield item(CONCERN, "key", actual["key"]["flaw"], f"{owner}, {readers}", "key")
    if actual["absent"]:
        yield item(CONCERN, ABSENT, "nothing at " + ", ".join(actual["absent"]), "the sources of the mounts", INSPECT)


def _diff_container(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[Item]:
    """Yield the differences that require a new container."""
    found = actual["container"]
    expected: Dict[str, Any] = {
        **desired,
        "volumes": sorted({*desired["volumes"], *actual["driver_files"]["binds"]}),
        "devices": actual["access"]["devices"],
        "groups": actual["access"]["groups"],
    }
    for key in sorted(expected):
        value = expected[key]
        if key == "environment":
            # `container_facts` leaves out variables that the image sets to the same value.
            value = dict(set(value.items()) - set(actual.get("inherited", {}).items()))
        if key == "ports":
            # Some engines record no address for 0.0.0.0, so both forms count as equal.
            value = {
                port: where if found[key].get(port) == where else where.replace("0.0.0.0", "") for port, where in value.items()
            }
        if found[key] != value:
            yield item(CONCERN, "container." + key, found[key], expected[key], "replace")


def _diff_state(desired: Mapping[str, Any], actual: Mapping[str, Any], replaced: bool) -> Iterator[Item]:
    """Yield the differences of the server in its container: its state, its models, and the key that it uses."""
    if actual["state"] != "running":
        log = ": " + actual["log"] if actual.get("log") else ""
        yield item(CONCERN, "container", actual["state"] + log, "running", "start")
        return
    if ((actual.get("key") or {}).get("rewrite") or actual.get("key_refused")) and not replaced:
        # A server reads its key only when it starts, so a new key needs a restart, unless the plan replaces the container.
        path = (desired["key"] or {}).get("path", "no file")
        yield item(CONCERN, "key in use", "another key", f"the key in {path}", "restart")
        yield from _diff_hanging(actual)
    else:
        yield from diff_serving(desired, actual)


def diff_serving(desired: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[Item]:
    """Yield the differences of a running server: no answer, its models, and loads that hang."""
    if actual["served"] is None:
        restarts = ", restart count {}".format(actual["restarts"]) if actual.get("restarts") else ""
        log = ": " + actual["log"] if actual.get("log") else ""
        port = actual.get("http_port", desired["http_port"])
        yield item(CONCERN, "http", f"no answer on port {port}{restarts}{log}", "the model index", "wait")
    else:
        yield from diff_models(desired, actual["served"])
    yield from _diff_hanging(actual)


def _diff_hanging(actual: Mapping[str, Any]) -> Iterator[Item]:
    if actual.get("hung"):
        yield item(CONCERN, HANGING, f"a load that hangs: {', '.join(actual['hung'])}", "a server that can load", "restart")


def diff_models(desired: Mapping[str, Any], served: Mapping[str, Any]) -> List[Item]:
    """Return an item for each desired model that is not in sync, and for each READY model that is not desired."""
    actions = {"none": ("restart", "restart"), "poll": ("wait", "wait"), "explicit": ("load", "unload")}
    load, unload = actions[desired["mode"]]
    plan = []
    for name, model in sorted(desired["models"].items()):
        versions = served.get(name) or {}
        if not in_sync(versions, model):
            plan.append(item(CONCERN, name, describe_versions(versions), _desired_versions(model), load))
    for name in sorted(set(served) - set(desired["models"])):
        if versions_in(served[name], "READY"):
            plan.append(item(CONCERN, name, describe_versions(served[name]), None, unload))
    return plan


def _desired_versions(model: Mapping[str, Any]) -> str:
    if model["release"] is None:
        return "READY out of its object store"
    return ", ".join("version {} READY {}".format(version, model["release"][:12]) for version in model["versions"])
