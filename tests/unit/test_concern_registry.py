"""The registry of concerns: every other list agrees with it, and a new concern needs one file on each side and one entry."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.action import adoption
from ansible_collections.npufleet.triton.plugins.filter import plan_is_valid
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import CONCERNS, NPU_HOSTS, needs_site
from ansible_collections.npufleet.triton.plugins.module_utils.plan import item
from ansible_collections.npufleet.triton.plugins.modules import host_state
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import release_change
from helpers import ROOT
from test_house import load, tasks_of, tasks_of_playbook

LIST = re.compile(r"\[([^\]]*)\]")


def read_by(playbook: str) -> list[str]:
    return [name for name, concern in CONCERNS.items() if playbook in concern.playbooks]


def with_tag(tag: str) -> list[str]:
    return [name for name, concern in CONCERNS.items() if tag in concern.tags]


def queried(tasks: Iterator[dict[str, Any]]) -> list[list[str]]:
    """Return the concerns of each task that names them."""
    calls = [task.get("npufleet.triton.host_state") or {} for task in tasks]
    return [call["concerns"] for call in calls if "concerns" in call]


def test_host_state_documents_every_concern() -> None:
    documented = yaml.safe_load(host_state.DOCUMENTATION)["options"]["concerns"]
    assert documented["choices"] == host_state.OPTIONS["concerns"]["choices"] == list(CONCERNS)


@pytest.mark.parametrize("name", [name for name, concern in CONCERNS.items() if concern.role])
def test_site_applies_each_concern_by_its_role_and_tags(name: str) -> None:
    included_files = [ROOT / f"playbooks/tasks/apply_{part}.yml" for part in ("plan", "balancer")]
    tasks = [*tasks_of_playbook(ROOT / "playbooks/site.yml"), *(task for path in included_files for task in tasks_of(load(path)))]
    roles = [task for task in tasks if "ansible.builtin.include_role" in task]
    included = {(task["ansible.builtin.include_role"]["name"], *sorted(task["tags"])) for task in roles}
    concern = CONCERNS[name]
    assert (f"npufleet.triton.{concern.role}", *sorted(concern.tags)) in included


def test_playbooks_read_the_concerns_of_the_registry() -> None:
    plan = next(task for task in tasks_of_playbook(ROOT / "playbooks/models.yml") if "preflight_concerns" in task.get("vars", {}))
    assert plan["vars"]["preflight_concerns"] == read_by("models")
    assert read_by("recover") in queried(tasks_of_playbook(ROOT / "playbooks/recover.yml"))
    (rollback,) = queried(tasks_of_playbook(ROOT / "playbooks/rollback.yml"))
    assert str(read_by("rollback")) in str(rollback)
    named = {name for concern in CONCERNS.values() for name in concern.playbooks}
    assert named == {"models", "recover", "rollback"}


def test_roles_read_their_own_concerns() -> None:
    """The server's role proves with the server what its tags apply."""
    for name, concern in CONCERNS.items():
        if not concern.role:
            continue
        main = name if name in ("probe", "metrics") else "main"
        expected = with_tag("server") if concern.role == "triton_server" else [name]
        assert queried(tasks_of(load(ROOT / f"roles/{concern.role}/tasks/{main}.yml")))[0] == expected, name
    assert with_tag("server") in queried(tasks_of(load(ROOT / "roles/triton_server/tasks/hold.yml")))
    assert sorted(with_tag("server")) == sorted(plan_is_valid.SERVER_CONCERNS)


def test_every_query_names_concerns_in_their_order() -> None:
    found = 0
    for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/**/*.yml")]:
        tasks = tasks_of(load(path)) if "tasks" in path.parts else tasks_of_playbook(path)
        for names in queried(tasks):
            if isinstance(names, list):
                found += 1
                assert names == [name for name in CONCERNS if name in names], path
    assert found > 20


def test_adoption_and_upgrade_cover_each_concern_of_npu_hosts() -> None:
    units = [name for name, concern in CONCERNS.items() if concern.unit and NPU_HOSTS in concern.groups]
    assert {*adoption.ADOPTED_CONCERNS, *units} == {
        name for name, concern in CONCERNS.items() if NPU_HOSTS in concern.groups and concern.role
    }
    assert set(release_change.OMITTED_CONCERNS) < set(CONCERNS)


@pytest.mark.parametrize(
    ("concern", "action", "site"),
    [
        ("driver", "load", True),
        ("engine", "configure", True),
        ("image", "deliver", True),
        ("models", "release", False),
        ("server", "load", False),
        ("server", "restart", False),
        ("server", "replace", True),
        ("watchdog", "watch", True),
        ("probe", "probe", False),
        ("metrics", "install", True),
        ("monitoring", "configure", True),
        ("unknown", "load", True),
    ],
)
def test_a_change_of_models_ends_only_what_the_registry_allows(concern: str, action: str, site: bool) -> None:
    assert needs_site(item(concern, "x", None, "y", action)) is site


# A new concern

HOST = '''"""A toy."""
from __future__ import annotations
from typing import Any, Dict, List, Mapping, Optional
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item
CONCERN = "toy"
def read(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    return {"colour": "red"}
def diff(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> List[Item]:
    return [item(CONCERN, "colour", actual["colour"], wanted["colour"], "paint")]
def warning(actual: Mapping[str, Any]) -> Optional[str]:
    return "the toy is broken" if actual else None
'''
CONTROLLER = '''"""The desired toy."""
from __future__ import annotations
from typing import Any, Dict, Mapping
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import EMPTY, Context
def desired(variables: Mapping[str, Any], context: Context = EMPTY) -> Dict[str, Any]:
    return {"colour": "blue", "secret": "s3cret", "root": variables["npufleet_root"]}
def sealed(part: Mapping[str, Any], key: str) -> Dict[str, Any]:
    return {**part, "secret": "digest"}
'''
ENTRY = '        Concern(toy, "toy_role", ("toy",), sealed=True, warning=toy.warning),\n'
# Plans of a host as the playbooks get them: the desired state, the module's answer, and the host's part of status.json
PROGRAM = """
import json
from unittest import mock
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.registry import concerns_of
from ansible_collections.npufleet.triton.plugins.modules import host_state
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import desired
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import status
from helpers import fleet, run_module

concerns = [name for name in concerns_of(["npu_hosts"], "npu_hosts") if name == "toy"]
wanted, _manifests = desired(fleet(), concerns)
warnings = []
with mock.patch.object(AnsibleModule, "warn", lambda _self, text: warnings.append(text)):
    state = run_module(host_state, {"host": "npu1", "desired": wanted}, check=True)
entry = status.host_entry("now", "npu1", {**state, "desired": wanted}, "24.01")
print(json.dumps({"wanted": wanted, "state": state, "status": entry, "warnings": warnings}))
"""


def test_a_new_concern_is_planned_shown_and_reported(tmp_path: Path) -> None:
    copy = tmp_path / "ansible_collections/npufleet/triton"
    for name in ("plugins", "roles", "files", "meta"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.npy"))
    (copy / "plugins/module_utils/concerns/toy.py").write_text(HOST)
    (copy / "plugins/plugin_utils/desired/toy.py").write_text(CONTROLLER)
    registry = copy / "plugins/module_utils/concerns/registry.py"
    lines = registry.read_text().replace("    server,\n    traffic,\n", "    server,\n    toy,\n    traffic,\n")
    registry.write_text(lines.replace("        Concern(watchdog,", f"{ENTRY}        Concern(watchdog,"))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'tests/unit'}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    plan = [{"concern": "toy", "name": "colour", "current": "red", "desired": "blue", "action": "paint"}]
    assert found["wanted"] == {"toy": {"colour": "blue", "secret": "digest", "root": "/var/lib/npufleet"}}
    assert (found["state"]["plan"], found["state"]["changed"]) == (plan, True)
    assert (found["state"]["diff"]["before"], found["state"]["diff"]["after"]) == ("toy colour: red\n", "toy colour: blue\n")
    assert found["warnings"] == ["npu1: the toy is broken"]
    assert (found["status"]["state"], found["status"]["plan"]) == ("drift", plan)
    assert "toy colour" in found["status"]["report"][0]
