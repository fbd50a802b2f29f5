"""Each variable that changes the command line or the container of the server reaches it, and adoption reads options back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.triton import options
from ansible_collections.npufleet.triton.plugins.plugin_utils.adopt import arguments
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.values import inventory_specs
from helpers import ROOT, fleet

LOCKED = {"id": "sha256:1", "reference": "npufleet/triton:1", "content": None}
# Values of texts that have a form, but no list of choices
VALUES = {
    "triton_server_listen_address": "10.0.0.5",
    "triton_server_metrics_listen_address": "10.0.0.5",
    "triton_server_api_key": "a-key-of-16-byte",
}
# In this mode, the command line has an option for each variable of the other modes, too.
BASE = {"triton_server_model_control_mode": "poll"}


def other_value(name: str, spec: dict[str, Any]) -> Any:
    """Return a value of a variable that differs from its default."""
    if name in VALUES:
        return VALUES[name]
    if "choices" in spec:
        return next(choice for choice in spec["choices"] if choice not in (spec["default"], BASE.get(name)))
    return {"bool": lambda: not spec["default"], "int": lambda: int(spec["default"]) + 1}.get(spec["type"], lambda: "2g")()


CHANGES = {
    name: other_value(name, spec)
    for name, spec in inventory_specs().items()
    if name.startswith("triton_server_") and spec["type"] in ("bool", "int", "str") and "default" in spec
}


def container(**variables: Any) -> dict[str, Any]:
    found = server.desired(fleet(**{**BASE, **variables}), Context(image=lambda: LOCKED))["container"]
    return dict(found)


def line(**variables: Any) -> list[str]:
    """Return the arguments of tritonserver without a key."""
    return list(container(triton_server_restricted_apis=[], **variables)["command"][1:])


COMMAND = {name: value for name, value in CHANGES.items() if line(**{name: value}) != line()}


def test_the_variables_of_the_command_line_are_found() -> None:
    assert {"triton_server_log_verbose", "triton_server_poll_seconds", "triton_server_auto_complete_config"} <= set(COMMAND)


def test_every_variable_of_the_server_is_read() -> None:
    """The variables of the watchdog are read by their common beginning."""
    patterns = ("plugins/**/*.py", "playbooks/**/*.yml", "roles/*/tasks/*.yml", "roles/*/vars/*.yml", "roles/*/templates/*")
    # These tables list variables, and read none.
    tables = ("bounds.py", "arguments.py")
    paths = [path for pattern in patterns for path in ROOT.glob(pattern) if path.name not in tables]
    words = set(re.findall(r"\w+", " ".join(path.read_text() for path in paths)))
    names = [name for name in CHANGES if not name.startswith("triton_server_watchdog_")]
    assert len(names) > 20
    assert [name for name in names if name not in words] == []


@pytest.mark.parametrize("name", COMMAND)
def test_adoption_reads_an_option_back_into_its_variable(name: str) -> None:
    given, strange = options.options(line(**{name: COMMAND[name]}))
    translation = arguments.Translation({}, [], {})
    arguments.translate_arguments(given, "npu-1", translation)
    assert strange == []
    assert translation.variables.get(name) == COMMAND[name], "add the option to VARIABLES of adopt/arguments.py"


def facts(name: str) -> set[str]:
    """Return the facts of the container, except for its command, that a variable changes."""
    usual, other = container(), container(**{name: CHANGES[name]})
    return {fact for fact in other if other[fact] != usual[fact]} - {"command"}


CREATED = {name: found for name in CHANGES if (found := facts(name))}


def test_the_variables_of_the_container_are_found() -> None:
    assert {"triton_server_shm_size", "triton_server_cpuset", "triton_server_listen_address"} <= set(CREATED)


@pytest.mark.parametrize("name", CREATED)
def test_the_task_that_creates_the_container_uses_each_variable(name: str) -> None:
    text = (ROOT / "roles/triton_server/tasks/container.yml").read_text()
    assert [fact for fact in CREATED[name] if not re.search(rf"\b{name}\b|\.(published_)?{fact}\b", text)] == []
