# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A guard against runs that would report success for hosts that they never queried, or that would bypass gates.

If ansible-core cannot start the process of a task for a host, it silently drops the host. Therefore the callback
playbooks/callback_plugins/npufleet_steps.py records in STEPS when each step begins and ends. The main process reads STEPS before
every play, through the lookups `fleet_group` and `play_hosts` in the keyword `hosts`. The actions that begin and end the change of
a host run in forks of the main process and read the copy of STEPS in their fork.
"""

from __future__ import annotations

import functools
import glob
import os
import resource
from typing import Any, ClassVar, Dict, FrozenSet, Iterator, List, Mapping, Sequence, Tuple

from ansible import context
from ansible.errors import AnsibleError
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, own_yaml

# The number of open files that a run can need for each fork, and for its main process
FILES_PER_FORK, FILES_OF_MAIN_PROCESS = 4, 64
# Groups that playbooks fill. An inventory must not have them.
PLAYBOOK_GROUPS = (
    "npufleet_build",
    "npufleet_failing",
    "npufleet_in_maintenance",
    "npufleet_in_rollout",
    "npufleet_without_rollout",
)
# Files of the collection whose tasks set variables
TASK_FILES = ("playbooks/*.yml", "playbooks/*/*.yml", "roles/*/tasks/*.yml")
TASK_SECTIONS = ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always")
# Ansible's variables that describe a failure
FAILURE_VARIABLES = ("ansible_failed_result", "ansible_failed_task")
# Variables that playbooks set, but that users may also set
ALSO_SET_BY_USERS = (
    "adopt_dir",
    "adopt_plan_dir",
    "ansible_python_interpreter",
    "npufleet_report_file",
    "npufleet_rolled",
    "npufleet_status_file",
    "rbln_release",
)
PROTECTED, CONFIRM = "npufleet_protected", "npufleet_confirm"
# Ansible's variables of every play
MAGIC_VARIABLES = (
    *("environment", "groups", "hostvars", "inventory_dir", "inventory_file"),
    *("omit", "play_hosts", "playbook_dir", "vars"),
)


def playbook_variables() -> FrozenSet[str]:
    """Return all variables that playbooks and roles set. An extra variable of the same name would override such a variable."""
    names = {*FAILURE_VARIABLES, *persistent_variables()}
    for entry in _all_entries():
        names.update(entry.get("vars") or {})
        loop = entry.get("loop_control") or {}
        names.update(loop[key] for key in ("loop_var", "index_var") if key in loop)
    for path in glob.glob(os.path.join(COLLECTION, "roles/*/vars/main.yml")):
        names.update(own_yaml(path) or {})
    return frozenset(names - set(ALSO_SET_BY_USERS))


@functools.cache
def persistent_variables() -> FrozenSet[str]:
    """Return all variables that tasks set by `register` or `set_fact`. They persist in later playbooks of the same run."""
    registered = {entry["register"] for entry in _all_entries() if "register" in entry}
    return frozenset(registered.union(*(entry.get("ansible.builtin.set_fact") or {} for entry in _all_entries())))


@functools.cache
def _all_entries() -> List[Dict[str, Any]]:
    """Return all plays, blocks and tasks of the collection."""
    paths = [path for pattern in TASK_FILES for path in glob.glob(os.path.join(COLLECTION, pattern))]
    return [entry for path in paths for entry in entries(own_yaml(path))]


def entries(node: Any) -> Iterator[Dict[str, Any]]:
    """Yield the plays, blocks and tasks of a list, at all levels."""
    for entry in node if isinstance(node, list) else []:
        yield entry
        for section in TASK_SECTIONS:
            yield from entries(entry.get(section))


class Steps:
    """The steps that have begun on hosts and have no result yet, and the steps that were lost."""

    def __init__(self) -> None:
        self._open: Dict[Tuple[str, str], str] = {}
        self._lost: List[Tuple[str, str]] = []

    def begin(self, host: str, task: str, name: str) -> None:
        """Record that a task begins on a host."""
        self._open[host, task] = name

    def end(self, host: str, task: str) -> None:
        """Record that a task has a result on a host."""
        self._open.pop((host, task), None)

    def mark_lost(self) -> None:
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
        """Return a message about all lost steps, or "" if no step was lost."""
        todo = "See `ulimit -n`, `ulimit -u` and the free memory of the controller, and run again with fewer --forks"
        return ". ".join([*(f"{host}: {why}" for host, why in self.lost()), todo]) if self._lost else ""


class _Run:
    """The state of this guard in the main process."""

    begun = False  # True after the checks before the first play
    errors: ClassVar[List[str]] = []  # Errors of the command line that the callback has found


STEPS = Steps()


def record_errors(errors: Sequence[str]) -> None:
    """Record errors of the command line. The check before the next play raises them, because callbacks cannot end a run."""
    _Run.errors += errors


def check(variables: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise AnsibleError if the run has lost a step, cannot open enough files, or has options or extra variables that bypass gates.

    The main process calls this before each play, with `variables` that belong to no host. In a play that imports a role, the
    variables contain the `defaults` of the roles.
    """
    if "inventory_hostname" in variables:
        # A task made this call. Its variables are not checked, because earlier tasks may have set them.
        return
    _refuse(_protection_errors(variables))
    if not _Run.begun:
        _Run.begun = True
        _refuse([*_option_errors(), *_name_errors(variables, defaults), *_raise_file_limit(variables)])
    _refuse(_Run.errors)
    STEPS.mark_lost()
    _refuse(list(filter(None, [STEPS.message()])))


def _refuse(reasons: List[str]) -> None:
    if reasons:
        raise AnsibleError(f"{'. '.join(reasons)}. The run ends here.")


def _protection_errors(variables: Mapping[str, Any]) -> List[str]:
    """Return [the error] of an extra variable that would switch off the inventory's protection, or []."""
    # In a play that imports a role, both variables have the defaults of the role. CONFIRM is then set, so there is no error.
    if str(variables.get(PROTECTED, "x")).strip() or CONFIRM in variables:
        return []
    return [f"The extra variable {PROTECTED} is empty, expected the value of the inventory. Remove it, and set {CONFIRM}"]


def _option_errors() -> List[str]:
    """Return [the error] of options that skip steps on which later steps depend, or []. Such a run would wrongly report success."""
    start, skipped = context.CLIARGS.get("start_at_task"), context.CLIARGS.get("skip_tags") or ()
    options = [f'--start-at-task "{start}"'] if start else []
    # `--skip-tags tagged` also skips tasks with the tag `always`.
    options += [f"--skip-tags {tag}" for tag in ("always", "tagged") if tag in skipped]
    expected = "expected none, because later steps depend on all steps. Remove it: steps in sync are not repeated"
    return [f"The command line has {' and '.join(options)}, {expected}"] if options else []


def _name_errors(variables: Mapping[str, Any], defaults: Mapping[str, Any]) -> List[str]:
    """Return the errors of variables and groups that exist before the first play, although playbooks set them."""
    reasons = []
    present = [
        name
        for name in variables
        if (name in FAILURE_VARIABLES or not name.startswith("ansible_"))
        and name not in MAGIC_VARIABLES
        and not (name in defaults and defaults[name] == variables[name])
    ]
    # Reading the playbooks takes as long as a small task, so they are read only to compare existing names.
    names = sorted(playbook_variables().intersection(present)) if present else []
    if names:
        reasons.append(f"Extra variables are {', '.join(names)}, expected no names that playbooks set themselves. Remove them")
    groups = [name for name in PLAYBOOK_GROUPS if name in (variables.get("groups") or {})]
    if groups:
        reasons.append(f"The inventory has the groups {', '.join(groups)}, which playbooks fill themselves. Rename them")
    return reasons


def _raise_file_limit(variables: Mapping[str, Any]) -> List[str]:
    """Raise the soft limit of open files to the number that the forks need. Return [the error] if the hard limit is lower."""
    hosts = len(variables.get("ansible_play_hosts_all") or [])
    forks = int(variables.get("ansible_forks") or 5)
    workers = min(forks, hosts) if hosts else forks
    needed = FILES_PER_FORK * workers + FILES_OF_MAIN_PROCESS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return []
    if hard == resource.RLIM_INFINITY or hard >= needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return []
    max_forks = max(1, (hard - FILES_OF_MAIN_PROCESS) // FILES_PER_FORK)
    return [
        f"The limit of open files (RLIMIT_NOFILE) is {hard}, expected {needed} for {workers} processes at once (forks is {forks}, "
        f"for {hosts} hosts). Run with --forks {max_forks} or fewer, or raise `ulimit -n`. Nothing was changed"
    ]
