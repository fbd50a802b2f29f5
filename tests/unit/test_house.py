"""The rules of the house: names of variables, tasks and files, the frame of playbooks, and what may know of the lab."""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import signal
import subprocess
import symtable
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ansible_collections.npufleet.triton.plugins.module_utils.plan as imported
import pytest
import yaml
from ansible.module_utils.compat.version import LooseVersion
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import run_guard
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import own_yaml
from helpers import ANSIBLE_PLAYBOOK, ROOT, imports, load_program

ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
MODULES = sorted(path for path in (ROOT / "plugins/modules").glob("*.py") if path.stem != "__init__")
TASK_FILES = sorted((ROOT / "roles").glob("*/tasks/*.yml")) + sorted((ROOT / "roles").glob("*/handlers/*.yml"))
PLAYBOOKS = sorted((ROOT / "playbooks").glob("**/*.yml"))
PLUGINS = sorted(path for path in (ROOT / "plugins").rglob("*.py"))
# What is built or installed, and what belongs to tools
PASSED_OVER = {"build", "collections", ".venv", ".git", "__pycache__", ".ansible", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
# Who may speak of the lab: itself, its inventory, tests, documents, and what drives and checks the checkout
MAY_NAME_THE_LAB = ("lab/", "inventories/lab/", "molecule/", "tests/", "docs/", ".ci/", ".github/")
MAY_NAME_THE_LAB_TOO = ("Makefile", ".ansible-lint", ".gitignore", ".yamllint", "galaxy.yml", "pyproject.toml")
NAMES_THE_LAB = re.compile(r"(?<![\w-])lab/|npufleet[-_.]lab\b|\blab_\w|\blab-\d")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def checkout() -> Iterator[Path]:
    """Every file of the checkout that a person wrote."""
    for directory, names, files in os.walk(ROOT):
        names[:] = sorted(name for name in names if name not in PASSED_OVER)
        yield from (Path(directory) / name for name in sorted(files) if not name.endswith(".pyc"))


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with Ansible's tags, whose values do not matter here."""


Loader.add_multi_constructor("!", lambda *_arguments: None)


def load(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader)


def tasks_of(tasks: Any) -> Iterator[dict[str, Any]]:
    """Tasks and blocks, those inside blocks too."""
    for task in tasks or []:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks_of(task.get(part))


def tasks_of_playbook(path: Path) -> Iterator[dict[str, Any]]:
    for play in load(path):
        for part in ("pre_tasks", "tasks", "post_tasks", "handlers"):
            yield from tasks_of(play.get(part))


# Roles, modules, the collection


def test_there_is_something_to_look_at() -> None:
    assert len(TASK_FILES) > 20
    assert "common" in ROLES
    assert ROOT / "plugins/modules/host_state.py" in MODULES
    assert ROOT / "plugins/module_utils/concerns/driver.py" in PLUGINS
    assert ROOT / "files/releases.yml" in set(checkout())


# Names that tools and commands have
NOT_SNAKE_CASE = re.compile(
    r"\..*|[A-Z]+\.md|README(\..*)?|LICENSE|Makefile|Dockerfile(\.j2)?|requirements-dev\.txt|execution-environment\.yml"
    r"|ignore-[0-9.]+\.txt|.*\.service|[a-z-]+"
)


def test_file_names_are_snake_case() -> None:
    """The pages of docs/ are addresses and have hyphens."""
    names = [relative(path) for path in checkout() if not relative(path).startswith("docs/")]
    wrong = [name for name in names if not re.fullmatch(r"[a-z0-9_.]+", name.rpartition("/")[2])]
    assert [name for name in wrong if not NOT_SNAKE_CASE.fullmatch(name.rpartition("/")[2])] == []


def test_the_group_of_actions_has_every_module_with_that_option() -> None:
    having = [path.stem for path in MODULES if '"root": {"type": "path"' in path.read_text()]
    assert load(ROOT / "meta/runtime.yml")["action_groups"] == {"root": having}


def test_every_module_that_an_action_calls_runs_in_the_library_of_the_host() -> None:
    """The library calls the function `run` of a module, and Ansible its function `main`."""
    actions = {path.stem for path in (ROOT / "plugins/action").glob("*.py")}
    modules = {path.stem: path for path in (ROOT / "plugins/modules").glob("*.py") if path.stem in actions}
    functions = {
        name: {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        for name, path in modules.items()
        if f'call_module("{name}"' in (ROOT / "plugins/action" / path.name).read_text()
    }
    assert "triton_requests" in functions
    assert [name for name, found in functions.items() if "run" not in found] == []


def test_ansible_doc_shows_every_module_without_private_options(tmp_path: Path) -> None:
    names = [f"npufleet.triton.{path.stem}" for path in MODULES]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path)}
    command = [str(ANSIBLE_PLAYBOOK.with_name("ansible-doc")), "--json", "--type", "module", *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    shown = {name: entry["doc"].get("options", {}) for name, entry in json.loads(done.stdout).items()}
    assert sorted(shown) == names
    assert [name for name, options in shown.items() if any(option.startswith("_") for option in options)] == []


@pytest.mark.parametrize("path", PLUGINS, ids=relative)
def test_no_plugin_was_added_after_the_version_of_the_collection(path: Path) -> None:
    current = LooseVersion(load(ROOT / "galaxy.yml")["version"])
    added = re.findall(r"^ *version_added: (.*)$", path.read_text(), re.MULTILINE)
    assert [version for version in added if LooseVersion(version.strip("\"'")) > current] == []


def test_collection_is_this_checkout() -> None:
    link = ROOT / "collections/ansible_collections/npufleet/triton"
    assert link.is_symlink()
    assert os.readlink(link) == "../../.."
    assert link.resolve() == ROOT
    assert Path(str(imported.__file__)).resolve() == ROOT / "plugins/module_utils/plan.py"


@pytest.mark.parametrize("role", ROLES)
def test_variables_carry_the_name_of_their_role(role: str) -> None:
    path = ROOT / "roles" / role / "defaults/main.yml"
    names = list(load(path) or {}) if path.exists() else []
    prefixes = ("npufleet_", "__") if role == "common" else (role + "_", "__")
    assert [name for name in names if not name.startswith(prefixes)] == []


def test_a_variable_has_one_home() -> None:
    homes: dict[str, list[str]] = {}
    for role in ROLES:
        for kind in ("defaults", "vars"):
            path = ROOT / "roles" / role / kind / "main.yml"
            for name in (load(path) or {}) if path.exists() else {}:
                homes.setdefault(name, []).append(f"{role}/{kind}")
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


# Tasks


@pytest.mark.parametrize("path", TASK_FILES, ids=relative)
def test_every_task_of_a_role_has_a_name(path: Path) -> None:
    tasks = list(tasks_of(load(path)))
    assert tasks, "no tasks"
    # A block may stand without one: its tasks have theirs.
    assert [task for task in tasks if not task.get("name") and "block" not in task] == []


@pytest.mark.parametrize("path", PLAYBOOKS, ids=relative)
def test_every_play_and_task_of_a_playbook_has_a_name(path: Path) -> None:
    assert [play for play in load(path) if not play.get("name") and "import_playbook" not in play] == []
    assert [task for task in tasks_of_playbook(path) if not task.get("name") and "block" not in task] == []


def test_playbooks_change_hosts_in_batches_through_the_frame_alone() -> None:
    """rollout.yml has the gates; site.yml changes balancers, one after the other."""
    plays = {path.stem: load(path) for path in PLAYBOOKS if path.parent.name != "tasks"}
    imported_by = {name: [play.get("ansible.builtin.import_playbook") for play in found] for name, found in plays.items()}
    assert {"adopt", "models", "recover", "rollback", "site"} <= {
        name for name, files in imported_by.items() if "frame/rollout.yml" in files
    }
    assert sorted(name for name, found in plays.items() if any("serial" in play for play in found)) == ["rollout", "site"]
    frame = plays["rollout"][0]
    assert frame["max_fail_percentage"] == 0 and "rollout_batches" in frame["serial"]
    begin, change, end = frame["tasks"]
    assert [task["tags"] for task in (begin, *change["block"], *change["rescue"], end)] == [["always"]] * 11


def test_errors_are_not_ignored() -> None:
    for path in TASK_FILES + PLAYBOOKS:
        tasks = tasks_of(load(path)) if path in TASK_FILES else tasks_of_playbook(path)
        found = list(tasks)
        assert [task for task in found if "ignore_errors" in task] == [], relative(path)
        # A balancer that cannot be reached fails the host that changes, with a message of its own.
        for number, task in enumerate(found):
            if "ignore_unreachable" in task:
                assert "delegate_to" in task, relative(path)
                assert {"ansible.builtin.include_tasks": "reached.yml"}.items() <= found[number + 1].items(), relative(path)
    word = "ignore_" + "errors"
    named = [relative(path) for path in checkout() if path.suffix in (".yml", ".yaml", ".j2", ".cfg") and word in path.read_text()]
    assert named == []


# Containers that get no secret of the inventory
THROW_AWAY = ("npufleet-compile", "npufleet-image-proof", "npufleet-wheels")


def test_tasks_whose_result_is_a_container_do_not_tell_it() -> None:
    """Its environment and command line are in the result, whatever the task was to do with it."""
    told, kept = [], 0
    for path in TASK_FILES + PLAYBOOKS + sorted((ROOT / "playbooks/tasks").glob("*.yml")):
        for task in tasks_of(load(path)) if "tasks" in path.parts else tasks_of_playbook(path):
            container = task.get("community.docker.docker_container")
            if container and container.get("state") != "absent" and container["name"] not in THROW_AWAY:
                kept += 1
                # Playbooks do not see the defaults of roles
                wanted = "{{ npufleet_no_log }}" if path in TASK_FILES else "{{ npufleet_no_log | default(true) }}"
                told += [f"{relative(path)}: {task['name']}"] if task.get("no_log") != wanted else []
    assert told == []
    assert kept > 3


# The lab


def test_nothing_outside_the_lab_knows_of_it() -> None:
    knowing = []
    for path in checkout():
        name = relative(path)
        if name.startswith(MAY_NAME_THE_LAB) or name in MAY_NAME_THE_LAB_TOO or ("/" not in name and name.endswith(".md")):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        knowing += [f"{name}:{number}: {line}" for number, line in enumerate(text.splitlines(), 1) if NAMES_THE_LAB.search(line)]
    assert knowing == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("lab/cards.py", True),
        ("see ./lab/hosts.py", True),
        ("{{ lab_release }}", True),
        ("/etc/npufleet-lab/cards.json", True),
        ("npufleet.lab", True),
        ("lab-24.01", True),
        ("label_x: labels.txt", False),
        ("collab/x", False),
        ("npufleet.labels", False),
    ],
)
def test_what_names_the_lab(text: str, names: bool) -> None:
    assert bool(NAMES_THE_LAB.search(text)) is names


def python_of_the_lab() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / "lab").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            head = path.read_bytes()[:64]
            if path.suffix == ".py" or (head.startswith(b"#!") and b"python" in head.splitlines()[0]):
                yield path, ast.parse(path.read_text(), str(path))


def test_the_lab_imports_nothing_of_roles_and_plugins() -> None:
    found = []
    for path, tree in python_of_the_lab():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                words = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom):
                words = [node.module or ""]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                words = [node.value]
            else:
                continue
            found += [f"{relative(path)}:{node.lineno}: {word}" for word in words if _of_the_house(word)]
    assert found == []
    assert len(list(python_of_the_lab())) > 5


def _of_the_house(word: str) -> bool:
    """Whether a module's name or a path leads into roles/ or plugins/."""
    return word.startswith("ansible_collections") or re.search(r"(^|[/.])(roles|plugins)([/.]|$)", word) is not None


@pytest.mark.parametrize(
    ("word", "leads"),
    [
        ("ansible_collections.npufleet.triton.plugins.module_utils.plan", True),
        ("plugins", True),
        ("../roles/common/defaults/main.yml", True),
        ("plugins.module_utils", True),
        ("the plugins of others", False),
        ("playbooks/site.yml", False),
    ],
)
def test_what_leads_into_the_house(word: str, leads: bool) -> None:
    assert _of_the_house(word) is leads


# Mutants

mutants = load_program("tests/mutants.py")


def test_every_mutant_can_be_seeded() -> None:
    errors = []
    for mutant in mutants.load():
        try:
            mutants.seeded(mutant, (ROOT / mutant["file"]).read_text())
        except LookupError as error:
            errors.append(f"{mutant['name']}: {error}")
    assert errors == []
    assert len(mutants.load()) > 100


def undefined_names(source: str) -> set[str]:
    """Return the global names that a Python source uses and neither defines nor imports."""
    module = symtable.symtable(source, "mutant", "exec")
    known = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    used, tables = set(), [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced() and symbol.is_global()}
    return used - known - set(dir(builtins)) - {"__file__"}


def test_undefined_names_are_found() -> None:
    source = "import os\nA = [b for b in os.sep]\ndef f(c):\n    d = len(c) + A\n    return d + e\nf(g)\n"
    assert undefined_names(source) == {"e", "g"}


def test_no_mutant_fails_its_tests_by_an_undefined_name() -> None:
    """Such a mutant is always killed, and shows nothing about the tests of the promise."""
    errors = {}
    for mutant in mutants.load():
        if mutant["file"].endswith(".py"):
            errors[mutant["name"]] = undefined_names(mutants.seeded(mutant, (ROOT / mutant["file"]).read_text()))
    assert {name: names for name, names in errors.items() if names} == {}


def test_every_mutant_breaks_a_promise_and_has_tests() -> None:
    for mutant in mutants.load():
        page, _colon, promise = mutant["promise"].partition(": ")
        assert page in ("docs/reliability.md", "docs/scale.md", "docs/security.md") and promise in (ROOT / page).read_text(), (
            mutant["name"]
        )
        assert mutant["tests"], mutant["name"]
        for test in mutant["tests"]:
            path, *names = test.partition("[")[0].split("::")
            source = (ROOT / path).read_text()
            assert [name for name in names if not re.search(rf"(def|class) {name}\b", source)] == [], test


SOURCE = "def f():\n    return 1\n\n\nclass C:\n    def f(self):\n        return 1\n"
TASKS = "- name: One\n  a: 1\n- name: Two\n  a: 1\n"


@pytest.mark.parametrize(
    ("mutant", "line"),
    [
        ({"file": "a.py", "in": "f", "find": "return 1"}, 2),
        ({"file": "a.py", "in": "C.f", "find": "return 1"}, 7),
        ({"file": "a.py", "in": "C", "find": "return 1"}, 7),
        ({"file": "a.py", "find": "class C"}, 5),
        ({"file": "a.yml", "in": "One", "find": "a: 1"}, 2),
        ({"file": "a.yml", "in": "Two", "find": "a: 1"}, 4),
    ],
)
def test_a_mutant_is_seeded_in_its_function(mutant: dict[str, str], line: int) -> None:
    source = TASKS if mutant["file"].endswith(".yml") else SOURCE
    lines = mutants.seeded({**mutant, "replace": "X"}, source).splitlines()
    assert [number for number, text in enumerate(lines, 1) if "X" in text] == [line]


@pytest.mark.parametrize(
    "mutant",
    [
        {"file": "a.py", "find": "return 1"},
        {"file": "a.py", "in": "f", "find": "return 2"},
        {"file": "a.py", "in": "g", "find": "return 1"},
        {"file": "a.yml", "in": "Three", "find": "a: 1"},
    ],
)
def test_a_mutant_without_a_unique_place_is_refused(mutant: dict[str, str]) -> None:
    with pytest.raises(LookupError):
        mutants.seeded({**mutant, "replace": "X"}, TASKS if mutant["file"].endswith(".yml") else SOURCE)


@pytest.mark.parametrize(
    ("body", "code"), [("pass", 0), ("assert False", 1), ("import threading; threading.Event().wait()", -signal.SIGKILL)]
)
def test_only_a_test_that_fails_in_time_kills_a_mutant(tmp_path: Path, body: str, code: int) -> None:
    (tmp_path / "test_body.py").write_text(f"def test_body():\n    {body}\n")
    assert mutants.run_tests(tmp_path, ["test_body.py"], 600.0 if code >= 0 else 3.0) == code


# Licenses


def test_every_shipped_python_file_names_its_owner_and_its_license() -> None:
    (owner,) = load(ROOT / "galaxy.yml")["authors"]
    header = f"# SPDX-FileCopyrightText: {owner}\n# SPDX-License-Identifier: Apache-2.0\n"
    patterns = ("roles/*/files/*.py", "playbooks/callback_plugins/*.py", "bin/*")
    paths = [*PLUGINS, *(path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())]
    texts = {relative(path): path.read_text() for path in paths}
    assert [name for name, text in texts.items() if text and header not in text[:200]] == []
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]


# Words


def test_texts_are_plain_and_no_local_name_hides_another() -> None:
    words = load_program("tests/words.py")
    assert len(words.files(ROOT, ["plugins"])) > 200
    assert list(words.problems(ROOT)) == []


# What runs on hosts


@pytest.mark.parametrize("path", PLUGINS, ids=relative)
def test_plugins_are_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), str(path), feature_version=(3, 9))
    imported_names = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    # The module that carries its arguments imports nothing before it has cleaned its path.
    has_code = len(tree.body) > 1
    assert ("__future__" in imported_names or not has_code) is (path.stem != "library_call")


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_modules_need_nothing_but_the_standard_library_on_the_host(module: Path) -> None:
    own = "ansible_collections.npufleet.triton."
    queue, seen, foreign = [module], set(), []
    while queue:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imports(path):
            if name.startswith(own):
                parts = name[len(own) :].split(".")
                queue += [
                    entry
                    for entry in (ROOT.joinpath(*parts[:end]).with_suffix(".py") for end in (-1, len(parts)))
                    if entry.is_file()
                ]
            elif name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("ansible.module_utils."):
                foreign.append(f"{relative(path)}: {name}")
    assert foreign == []
    assert module in seen


def test_the_walk_over_imports_follows_the_concerns() -> None:
    names = imports(ROOT / "plugins/module_utils/change/proof.py")
    assert "ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry.CONCERNS" in names


# Ansible lets registered variables and facts override variables of these, in every later task of the host
INCLUDES = ("ansible.builtin.include_tasks", "ansible.builtin.include_role")


def _kept_and_local(node: Any) -> tuple[set[str], set[str]]:
    """Return the names that tasks keep on a host, and those of variables that such a name would override."""
    kept: set[str] = set()
    local: set[str] = set()
    for entry in node if isinstance(node, list) else []:
        kept |= {entry["register"]} if "register" in entry else set()
        kept |= set(entry.get("ansible.builtin.set_fact") or {})
        local |= set() if any(name in entry for name in INCLUDES) else set(entry.get("vars") or {})
        for section in run_guard.TASK_SECTIONS:
            more_kept, more_local = _kept_and_local(entry.get(section))
            kept, local = kept | more_kept, local | more_local
    return kept, local


def test_no_variable_of_a_task_or_block_is_overridden_by_a_registered_one() -> None:
    kept: set[str] = set()
    local: set[str] = set()
    for path in [path for pattern in run_guard.TASK_FILES for path in ROOT.glob(pattern)]:
        more_kept, more_local = _kept_and_local(own_yaml(str(path)))
        kept, local = kept | more_kept, local | more_local
    assert len(kept) > 50 and len(local) > 50
    assert kept & local == set()


def test_plugins_assign_one_name_at_a_time() -> None:
    """ansible-doc warns of a tuple among the assignments of a plugin, and ansible-test takes each warning for an error."""
    documented = [path for path in PLUGINS if path.parent.name in ("modules", "action", "lookup", "filter", "callback")]
    assert documented
    tuples = [
        f"{relative(path)}:{node.lineno}"
        for path in documented
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Tuple) for target in node.targets)
    ]
    assert tuples == []


def test_every_lookup_is_excepted_from_the_license_of_ansible() -> None:
    listed = (ROOT / "tests/sanity/ignore.txt").read_text()
    names = [path.name for path in (ROOT / "plugins/lookup").glob("*.py") if path.stem != "__init__"]
    assert [name for name in names if f"plugins/lookup/{name} validate-modules:missing-gplv3-license" not in listed] == []
