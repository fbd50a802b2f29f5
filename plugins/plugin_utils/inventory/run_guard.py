# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A guard against runs that would report success for hosts that they never queried, or bypass their own gates. Controller only.

If ansible-core cannot start the process of a task for a host, it silently drops the host. Therefore the callback
playbooks/callback_plugins/npufleet_steps.py records in STEPS when each step begins and ends. The main process reads STEPS before
every play, because the lookups `fleet_group` and `guarded` are in `hosts`. The actions that begin and end the change of a host
read the copy of STEPS that their process has inherited.
"""

from __future__ import annotations

import functools
import glob
import os
import resource
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Sequence, Tuple

import yaml
from ansible import context
from ansible.errors import AnsibleError
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION

# The most open files of a run for each fork, and in addition to those of the forks
FILES_PER_FORK, FILES_BESIDE = 4, 64
# Groups that playbooks fill, so that an inventory must not have them
GROUPS = ("npufleet_build", "npufleet_change_maintenance", "npufleet_change_planned", "npufleet_change_yes")
# Files of the collection whose tasks set variables
TASKS = ("playbooks/*.yml", "playbooks/*/*.yml", "roles/*/tasks/*.yml")
ROLE_VARIABLES = "roles/*/vars/main.yml"
SECTIONS = ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always")
# Ansible's variables that describe a failure. Extra variables would override them.
OF_ANSIBLE = ("ansible_failed_result", "ansible_failed_task")
# Variables that playbooks set, but that users may also set
FREE = (
    "adopt_place",
    "adopt_seen",
    "ansible_python_interpreter",
    "npufleet_report_file",
    "npufleet_rolled",
    "npufleet_status_file",
    "rbln_release",
)
PROTECTED, CONFIRM = "npufleet_protected", "npufleet_confirm"
# Variables that Ansible itself sets in every play
MAGIC = ("environment", "groups", "hostvars", "inventory_dir", "inventory_file", "omit", "play_hosts", "playbook_dir", "vars")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A YAML loader that reads `!unsafe` as plain text."""


_Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def own_variables() -> FrozenSet[str]:
    """Return all variables that playbooks and roles set by `register`, `set_fact`, `vars` or a loop.

    An extra variable would override each of them.
    """
    names = set(OF_ANSIBLE)
    for pattern in TASKS:
        for path in glob.glob(os.path.join(COLLECTION, pattern)):
            names.update(_set_by(_read(path)))
    names |= kept_variables()
    for path in glob.glob(os.path.join(COLLECTION, ROLE_VARIABLES)):
        names.update(_read(path) or {})
    return frozenset(names - set(FREE))


@functools.cache
def kept_variables() -> FrozenSet[str]:
    """Return all variables that tasks set by `register` or `set_fact`. They persist in later playbooks of the same run."""
    paths = [path for pattern in TASKS for path in glob.glob(os.path.join(COLLECTION, pattern))]
    return frozenset(name for path in paths for name in _kept_by(_read(path)))


def _kept_by(node: Any) -> Iterator[str]:
    """Yield the variables that these tasks set by `register` or `set_fact`."""
    for entry in node if isinstance(node, list) else []:
        yield from [entry["register"]] if "register" in entry else []
        yield from entry.get("ansible.builtin.set_fact") or {}
        for section in SECTIONS:
            yield from _kept_by(entry.get(section))


def _read(path: str) -> Any:
    with open(path, encoding="utf-8") as source:
        return yaml.load(source, _Loader)


def _set_by(node: Any) -> Iterator[str]:
    """Yield the variables that these plays and tasks set by `vars` or by a loop."""
    for entry in node if isinstance(node, list) else []:
        yield from entry.get("vars") or {}
        loop = entry.get("loop_control") or {}
        yield from (loop[key] for key in ("loop_var", "index_var") if key in loop)
        for section in SECTIONS:
            yield from _set_by(entry.get(section))


class Steps:
    """A record of the steps that have begun on hosts and have no result yet."""

    def __init__(self) -> None:
        self._open: Dict[Tuple[str, str], str] = {}
        self._lost: List[Tuple[str, str]] = []

    def begin(self, host: str, task: str, name: str) -> None:
        """Record that a task begins on a host."""
        self._open[host, task] = name

    def end(self, host: str, task: str) -> None:
        """Record that a task has a result on a host."""
        self._open.pop((host, task), None)

    def settle(self) -> None:
        """Count every step without a result as lost. The caller makes sure that no task is running."""
        self._lost += [(host, name) for (host, _task), name in self._open.items()]
        self._open.clear()

    def lost(self, hosts: Sequence[str] = ()) -> List[Tuple[str, str]]:
        """Return (host, reason) for each lost step of these hosts, or of all hosts."""
        return [
            (host, f'the step "{name}" has no result, expected one: its process could not start on the controller')
            for host, name in self._lost
            if not hosts or host in hosts
        ]

    def message(self) -> str:
        """Return a message with all lost steps and the next step, or "" if no step was lost."""
        return ". ".join([*(f"{host}: {why}" for host, why in self.lost()), TODO]) if self._lost else ""


class _Run:
    """The state of this guard in the main process."""

    begun = False  # True after the checks before the first play


STEPS = Steps()
# The next step after a lost step
TODO = "See `ulimit -n`, `ulimit -u` and the free memory of the controller, and run again with fewer --forks"


def check(variables: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """End the run by AnsibleError if it has lost a step, may open too few files, or has extra variables that playbooks set.

    The main process calls this before each play. `variables` do not contain those of hosts. `defaults` are the roles' defaults,
    which `variables` contain in a play that imports a role.
    """
    if "inventory_hostname" in variables:
        # The call comes from a task. Its host may have variables that playbooks have set by now.
        return
    _refuse(_unprotected(variables))
    if not _Run.begun:
        _Run.begun = True
        _refuse([*_partial(), *_foreign(variables, defaults), *_files(variables)])
    STEPS.settle()
    _refuse(list(filter(None, [STEPS.message()])))


def _refuse(reasons: List[str]) -> None:
    if reasons:
        raise AnsibleError(f"{'. '.join(reasons)}. The run ends here.")


def _unprotected(variables: Mapping[str, Any]) -> List[str]:
    """Return [the error] of an extra variable that would switch the inventory's protection off, or []."""
    # In a play that imports a role, both variables have the role's defaults. CONFIRM shows this.
    if str(variables.get(PROTECTED, "x")).strip() or CONFIRM in variables:
        return []
    return [f"The extra variable {PROTECTED} is empty, expected the value of the inventory. Remove it, and set {CONFIRM}"]


def _partial() -> List[str]:
    """Return [the error] of options that skip steps on which later steps depend, or []. Such a run would report success."""
    start, skipped = context.CLIARGS.get("start_at_task"), context.CLIARGS.get("skip_tags") or ()
    options = [f'--start-at-task "{start}"'] if start else []
    options += ["--skip-tags always"] if "always" in skipped else []
    words = "expected none, as later steps depend on all steps. Run without it: steps that are in sync are not repeated"
    return [f"The command line has {' and '.join(options)}, {words}"] if options else []


def _foreign(variables: Mapping[str, Any], defaults: Mapping[str, Any]) -> List[str]:
    """Return the errors of variables and groups that playbooks set, but that exist before the first play."""
    reasons = []
    present = [
        name
        for name in variables
        if (name in OF_ANSIBLE or not name.startswith("ansible_"))
        and name not in MAGIC
        and not (name in defaults and defaults[name] == variables[name])
    ]
    # Reading the playbooks takes as long as a small task. Therefore they are read only if there are names to compare.
    names = sorted(own_variables().intersection(present)) if present else []
    if names:
        reasons.append(f"Extra variables are {', '.join(names)}, expected no names that playbooks set themselves. Remove them")
    groups = [name for name in GROUPS if name in (variables.get("groups") or {})]
    if groups:
        reasons.append(f"The inventory has the groups {', '.join(groups)}, which playbooks fill themselves. Rename them")
    return reasons


def _files(variables: Mapping[str, Any]) -> List[str]:
    """Raise the soft limit of open files to the number that the forks need. Return [the reason] if the hard limit is lower."""
    hosts = len(variables.get("ansible_play_hosts_all") or [])
    forks = int(variables.get("ansible_forks") or 5)
    workers = min(forks, hosts) if hosts else forks
    needed = FILES_PER_FORK * workers + FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return []
    if hard == resource.RLIM_INFINITY or hard >= needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return []
    most = max(1, (hard - FILES_BESIDE) // FILES_PER_FORK)
    return [
        f"The limit of open files (RLIMIT_NOFILE) is {hard}, expected {needed} for {workers} processes at once (forks is {forks}, "
        f"for {hosts} hosts). Run with --forks {most} or fewer, or raise `ulimit -n`. Nothing was changed"
    ]
