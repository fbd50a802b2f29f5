"""Guard of a run: what would make it report success for hosts that it never queried, or pass by its own gates. Controller only.

ansible-core drops a host without a word where it cannot start the process of a task for it. The callback
playbooks/callback_plugins/npufleet_steps.py records here each step that begins and each that ends. The main process reads the
record before every play (the lookups `fleet_group` and `guarded`, in `hosts` of each play), and the actions that begin and end the
change of a host read it as their process has inherited it.
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

# Of each process of a task, and of everything else that a run has open
FILES_PER_FORK, FILES_BESIDE = 4, 64
# Groups that playbooks fill themselves
GROUPS = ("npufleet_build", "npufleet_change_maintenance", "npufleet_change_planned", "npufleet_change_yes")
# Files whose tasks set variables, below the collection
TASKS = ("playbooks/*.yml", "playbooks/tasks/*.yml", "roles/*/tasks/*.yml")
ROLE_VARIABLES = "roles/*/vars/main.yml"
SECTIONS = ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always")
# Variables of Ansible that its extra variables win over, and that decide what is kept of a failure
OF_ANSIBLE = ("ansible_failed_result", "ansible_failed_task")
# What playbooks set and the command line may set, too: a release, an interpreter, names of models, and files of the controller
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
# Of every play
MAGIC = ("environment", "groups", "hostvars", "inventory_dir", "inventory_file", "omit", "play_hosts", "playbook_dir", "vars")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads `!unsafe` as the text that it is."""


_Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def own_variables() -> FrozenSet[str]:
    """Return every variable that playbooks and roles set themselves, by `register`, `set_fact`, `vars` or a loop.

    An extra variable would win over all of these, and decide in their place.
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
    """Return every variable that tasks leave on a host, by `register` or `set_fact`: a later playbook of the run finds them."""
    paths = [path for pattern in TASKS for path in glob.glob(os.path.join(COLLECTION, pattern))]
    return frozenset(name for path in paths for name in _kept_by(_read(path)))


def _kept_by(node: Any) -> Iterator[str]:
    """Yield the variables that tasks leave on a host."""
    for entry in node if isinstance(node, list) else []:
        yield from [entry["register"]] if "register" in entry else []
        yield from entry.get("ansible.builtin.set_fact") or {}
        for section in SECTIONS:
            yield from _kept_by(entry.get(section))


def _read(path: str) -> Any:
    with open(path, encoding="utf-8") as source:
        return yaml.load(source, _Loader)


def _set_by(node: Any) -> Iterator[str]:
    """Yield the variables that plays and tasks set for themselves."""
    for entry in node if isinstance(node, list) else []:
        yield from entry.get("vars") or {}
        loop = entry.get("loop_control") or {}
        yield from (loop[key] for key in ("loop_var", "index_var") if key in loop)
        for section in SECTIONS:
            yield from _set_by(entry.get(section))


class Steps:
    """A record of the steps of hosts that have begun and have no result."""

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
        """Count every step without a result as lost. For a moment at which no process is at work."""
        self._lost += [(host, name) for (host, _task), name in self._open.items()]
        self._open.clear()

    def lost(self, hosts: Sequence[str] = ()) -> List[Tuple[str, str]]:
        """Return (host, what is wrong) for each step that was lost, of these hosts or of all."""
        return [
            (host, f'the step "{name}" has no result, expected one: its process could not start on the controller')
            for host, name in self._lost
            if not hosts or host in hosts
        ]

    def words(self) -> str:
        """Return every step that was lost, and what to do; nothing where none was."""
        return ". ".join([*(f"{host}: {why}" for host, why in self.lost()), TODO]) if self._lost else ""


class _Run:
    """What the main process has checked already."""

    begun = False


STEPS = Steps()
# What to do about a step without a result
TODO = "See `ulimit -n`, `ulimit -u` and the free memory of the controller, run again with fewer --forks"


def check(variables: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that has lost a step, cannot open its files, or was given variables that are its own.

    For the main process, before each play, whose `variables` are without those of any host. `defaults` are those of the roles,
    which are among them where a play imports a role. Raises AnsibleError, which ends the run.
    """
    if "inventory_hostname" in variables:
        # In a task, whose host may have these variables by now
        return
    _refuse(_unprotected(variables))
    if not _Run.begun:
        _Run.begun = True
        _refuse([*_partial(), *_foreign(variables, defaults), *_files(variables)])
    STEPS.settle()
    _refuse(list(filter(None, [STEPS.words()])))


def _refuse(reasons: List[str]) -> None:
    if reasons:
        raise AnsibleError(f"{'. '.join(reasons)}. The run ends here.")


def _unprotected(variables: Mapping[str, Any]) -> List[str]:
    """Return why a protected environment must not be made an unprotected one from outside: the inventory's value is no play's."""
    # A play that imports a role has all of its defaults
    if str(variables.get(PROTECTED, "x")).strip() or CONFIRM in variables:
        return []
    return [f"The extra variable {PROTECTED} is empty, expected the inventory's: leave it out, and give {CONFIRM}"]


def _partial() -> List[str]:
    """Return which options of the command line leave out what later steps rely on: a run of what is left would be green."""
    start, skipped = context.CLIARGS.get("start_at_task"), context.CLIARGS.get("skip_tags") or ()
    found = [f'--start-at-task "{start}"'] if start else []
    found += ["--skip-tags always"] if "always" in skipped else []
    words = "expected none: it leaves out what later steps rely on. Run without it: what is as wanted is not done again"
    return [f"The command line has {' and '.join(found)}, {words}"] if found else []


def _foreign(variables: Mapping[str, Any], defaults: Mapping[str, Any]) -> List[str]:
    """Return what was given from outside and belongs to the playbooks: before the first play there is nothing of theirs."""
    reasons = []
    given = [
        name
        for name in variables
        if (name in OF_ANSIBLE or not name.startswith("ansible_"))
        and name not in MAGIC
        and not (name in defaults and defaults[name] == variables[name])
    ]
    # To read the playbooks takes as long as a small task: only where there is something to compare
    names = sorted(own_variables().intersection(given)) if given else []
    if names:
        reasons.append(
            f"Extra variables are {', '.join(names)}, expected none of the names that playbooks set themselves: leave them out"
        )
    groups = [name for name in GROUPS if name in (variables.get("groups") or {})]
    if groups:
        reasons.append(f"The inventory has the groups {', '.join(groups)}, which playbooks fill themselves: rename them")
    return reasons


def _files(variables: Mapping[str, Any]) -> List[str]:
    """Raise the soft limit of open files to what the processes of a task need. Return why that cannot be done."""
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
        f"for {hosts} hosts): run with --forks {most} or fewer, or raise `ulimit -n`. Nothing was changed"
    ]
