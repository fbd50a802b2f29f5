"""The rooms of plugins/: which room may import which, the length of files, and the rooms that know Ansible."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.metrics import cards, drained, host
from ansible_collections.npufleet.triton.plugins.module_utils.watch import probe_page
from helpers import ROOT, imports

PLUGINS = ROOT / "plugins"
OWN = "ansible_collections.npufleet.triton.plugins."
# From the ground up; a room knows those below its own floor, and a file its neighbours. A file beside rooms is a room of its own.
FLOORS = [
    ["module_utils.failures", "module_utils.kernel", "module_utils.programs"],
    [
        "module_utils.exchange",
        "module_utils.request",
        "module_utils.secret",
        "module_utils.shapes",
        "module_utils.system",
        "module_utils.textfile",
    ],
    ["module_utils.web_client"],
    [
        "module_utils.balancer",
        "module_utils.driver",
        "module_utils.host_files",
        "module_utils.http_probe",
        "module_utils.plan",
        "module_utils.redact",
    ],
    ["module_utils.engine"],
    ["module_utils.triton"],
    ["module_utils.chart_series", "module_utils.store"],
    ["module_utils.fetch", "module_utils.inference"],
    ["module_utils.concerns"],
    ["module_utils.process"],
    ["module_utils.change", "module_utils.preflight", "module_utils.support"],
    ["module_utils.balancer_preflight", "module_utils.watch"],
    ["module_utils.metrics"],
    ["module_utils.commands"],
    ["modules"],
    ["plugin_utils.host_secrets", "plugin_utils.run"],
    ["plugin_utils.desired"],
    ["plugin_utils.compose", "plugin_utils.library", "plugin_utils.models", "plugin_utils.rollout"],
    ["plugin_utils.checks"],
    ["plugin_utils.inventory"],
    ["plugin_utils.adopt", "plugin_utils.report", "plugin_utils.transfer"],
    ["plugin_utils.action"],
    ["action", "callback", "doc_fragments", "filter", "lookup"],
]
# What runs where no Ansible is: the commands, programs on hosts, clients in containers
WITHOUT_ANSIBLE = (
    "module_utils.",
    "plugin_utils.checks.",
    "plugin_utils.models.",
    "plugin_utils.rollout.",
    "plugin_utils.run.",
)
# Reads what Ansible gave to a module, and is in none of those programs
OF_MODULES = "module_utils.request"
# Lines of a file, without the documentation of a plugin
LONGEST = 400
FILES = sorted(path for path in PLUGINS.rglob("*.py"))


def name_of(path: Path) -> str:
    """A file as it is imported, below plugins/."""
    name = path.relative_to(PLUGINS).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


def room_of(name: str) -> str:
    """The room of a module: the first two parts of its name, or the kind of plugin that it is."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0].endswith("_utils") else parts[0]


def upward() -> Iterator[str]:
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    for path in FILES:
        here = room_of(name_of(path))
        for name in imports(path, inside=True):
            there = room_of(name[len(OWN) :]) if name.startswith(OWN) else here
            if there != here and floor[there] >= floor[here]:
                yield f"{here} -> {there}: {path.relative_to(ROOT)}"


def test_every_room_has_its_floor() -> None:
    rooms = {room_of(name_of(path)) for path in FILES}
    assert sorted(rooms) == sorted(room for rooms in FLOORS for room in rooms)


def test_arrows_go_downwards_only() -> None:
    assert list(upward()) == []


def test_modules_and_what_runs_on_hosts_know_nothing_of_the_controller() -> None:
    on_hosts = [path for path in FILES if name_of(path).startswith(("modules.", "module_utils."))]
    of_controller = OWN + "plugin_utils"
    known = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in on_hosts
        for name in imports(path, inside=True)
        if name.startswith(of_controller)
    ]
    assert known == []
    assert len(on_hosts) > 50


ALONE = [path for path in FILES if name_of(path).startswith(WITHOUT_ANSIBLE) and name_of(path) != OF_MODULES]


@pytest.mark.parametrize("path", ALONE, ids=name_of)
def test_what_runs_without_ansible_imports_nothing_of_it(path: Path) -> None:
    assert [name for name in imports(path, inside=True) if name == "ansible" or name.startswith("ansible.")] == []


def variables_read(tree: ast.Module) -> Iterator[str]:
    """Yield each parameter named `variables`, and each inventory variable that is read by its name."""
    prefixes = (
        "npufleet_",
        "triton_server_",
        "triton_image_",
        "monitoring_",
        "docker_engine_",
        "rbln_",
        "model_repository_",
        "inference_check_",
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg == "variables":
            yield node.arg
        key = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get" and node.args:
            key = node.args[0]
        if isinstance(key, ast.BinOp):
            key = key.left
        if isinstance(key, ast.JoinedStr) and key.values:
            key = key.values[0]
        if isinstance(key, ast.Constant) and str(key.value).startswith(prefixes):
            yield str(key.value)


def test_code_of_hosts_reads_no_variables_of_the_inventory() -> None:
    """The digests of a model are parameters in its config.pbtxt, and the names of metrics are no variables."""
    found = {
        f"{path.relative_to(PLUGINS)}: {name}"
        for path in FILES
        if name_of(path).startswith("module_utils.")
        for name in variables_read(ast.parse(path.read_text()))
    }
    records = {f"module_utils/store/records.py: {name}" for name in ("npufleet_release", "npufleet_source")}
    pages = {"watch/probe_page": probe_page, "metrics/cards": cards, "metrics/drained": drained, "metrics/host": host}
    metrics = {f"module_utils/{path}.py: {name}" for path, page in pages.items() for name in page.HELP}
    faults = {f"module_utils/{path}.py: rbln_device_fault" for path in ("watch/judge", "metrics/host")}
    assert found - records - metrics - faults == set()


@pytest.mark.parametrize(
    "source",
    [
        "def f(variables): pass",
        "x['npufleet_root']",
        "x.get('triton_server_name')",
        "x['monitoring_probe_' + name]",
        "x[f'npufleet_{name}_port']",
    ],
)
def test_reading_a_variable_is_seen(source: str) -> None:
    assert len(list(variables_read(ast.parse(source)))) == 1


def reachable_from(names: list[str]) -> set[str]:
    """Return the files of module_utils that the given files import, directly or through others."""
    paths = {name_of(path): path for path in FILES}
    queue, seen = list(names), set()
    while queue:
        name = queue.pop()
        if name in seen or name not in paths:
            continue
        seen.add(name)
        for found in imports(paths[name], inside=True):
            if found.startswith(OWN):
                inner = found[len(OWN) :]
                queue += [inner, inner.rpartition(".")[0], inner.partition(".")[0]]
    return seen


# Programs on a host beside the modules: the commands of the library, the supervisor of a server, and the client in a container
STARTS = ("commands", "process.supervisor", check_client.ENTRY)


def test_every_file_of_the_host_library_is_used_on_hosts() -> None:
    modules = [name_of(path) for path in FILES if name_of(path).startswith("modules.")]
    used = reachable_from([*modules, *(f"module_utils.{name}" for name in STARTS)])
    library = {name_of(path) for path in FILES if name_of(path).startswith("module_utils.") and path.stem != "__init__"}
    assert library - used == set()


def test_files_are_short() -> None:
    long = set()
    for path in FILES:
        text = path.read_text()
        documentation = sum(
            (node.end_lineno or 0) - node.lineno + 1
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("DOCUMENTATION", "EXAMPLES", "RETURN")
        )
        header = text.count("# SPDX-")
        if len(text.splitlines()) - documentation - header > LONGEST:
            long.add(str(path.relative_to(ROOT)))
    assert long == set()


def test_json_from_elsewhere_is_parsed_at_one_place() -> None:
    """Beside shapes.py only the project's own files: an order, checks with a proven digest, and a round trip of parsed data."""
    calls = {
        str(path.relative_to(PLUGINS / "module_utils"))
        for path in (PLUGINS / "module_utils").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("load", "loads") and getattr(node.value, "id", "") == "json"
    }
    assert calls == {
        "shapes.py",
        "change/accepted_checks.py",
        "change/detached.py",
        "change/drivers.py",
        "triton/http_api.py",
        "watch/probe.py",
    }


# The documentation

CONCEPTS = (ROOT / "docs/concepts.md").read_text()


def test_the_picture_shows_every_room() -> None:
    picture = CONCEPTS[CONCEPTS.index("## The structure of the code") : CONCEPTS.index("| Where is ...")]
    names = [room.rpartition(".")[2] for rooms in FLOORS for room in rooms]
    assert [name for name in names if not re.search(rf"(?<![\w/]){name}(?=[/\s])", picture)] == []


def test_a_newcomer_finds_the_place_in_two_steps() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(plugins/[^`]+/)` \| `(\w+\.py)`: `(\w+)` \|$", CONCEPTS, re.MULTILINE)
    assert len(rows) >= 10
    for room, file, name in rows:
        tree = ast.parse((ROOT / room / file).read_text())
        assert any(name in (getattr(node, "name", ""), getattr(getattr(node, "target", None), "id", "")) for node in tree.body), (
            name
        )
