# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""A guard against tags that select no step of a playbook. Ansible itself would end such a run with exit code 0."""

from __future__ import annotations

import os
from typing import Any, FrozenSet, Iterable, Iterator, List

from ansible import context
from ansible.playbook.block import Block
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.run_guard import entries
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION, own_yaml

Tags = FrozenSet[str]


def errors(playbook: Any) -> List[str]:
    """Return [the error] of the tags of the command line, or [].

    Tasks with the tag `always` run with any tags, so they are no steps here. A playbook without steps accepts any tags. A playbook
    with tasks of another project also accepts any tags, because these tasks can include files with more tags.
    """
    requested, skipped = _option("tags"), _option("skip_tags")
    if requested <= {"all"} and not skipped:
        return []
    steps = _steps(playbook)
    if not steps:
        return []
    unknown = sorted(tag for tag in requested - {"all", "always"} if not any(_matches(tag, step) for step in steps))
    if unknown:
        options = {"--tags": unknown}
    elif not any(_runs(step, requested, skipped) for step in steps):
        options = {"--tags": sorted(requested - {"all"}), "--skip-tags": sorted(skipped)}
    else:
        return []
    found = {option: ",".join(tags) for option, tags in options.items() if tags}
    names = ", ".join(sorted(frozenset().union(*steps)))
    return [
        f"The command line has {' '.join(f'{option} {tags}' for option, tags in found.items())}, which selects no step of "
        f"{os.path.basename(playbook._file_name)}, expected {f'its tags {names}' if names else 'no tags, because it has none'}. "
        f"{'Correct or remove' if names else 'Remove'} {' and '.join(found)}. Nothing was changed"
    ]


def _option(name: str) -> Tags:
    return frozenset(str(tag) for tag in context.CLIARGS.get(name) or ())


def _steps(playbook: Any) -> List[Tags]:
    """Return the tags of each task that does not always run. Return [] if the playbook has tasks of another project."""
    steps: List[Tags] = []
    for play in playbook.get_plays():
        for task in _tasks(play.compile()):
            if not os.path.realpath(task.get_path()).startswith(COLLECTION + os.sep):
                return []
            steps.append(frozenset(map(str, task.tags)))
        # A rollout includes these files. The tags of their tasks are not visible in the playbook.
        for name in filter(None, (change.get("tasks") for change in play.vars.get("rollout_changes") or ())):
            included = entries(own_yaml(os.path.join(COLLECTION, "playbooks/tasks", name)))
            steps += [frozenset(entry["tags"]) for entry in included if entry.get("tags")]
    return [tags for tags in steps if "always" not in tags]


def _tasks(blocks: Iterable[Any]) -> Iterator[Any]:
    """Yield the tasks of blocks at all levels, without those that Ansible adds to each play."""
    for entry in blocks:
        if isinstance(entry, Block):
            yield from _tasks([*entry.block, *entry.rescue, *entry.always])
        elif not entry.implicit:
            yield entry


def _matches(tag: str, step: Tags) -> bool:
    """Return True if a tag of the command line applies to a step with these tags."""
    return tag in step or tag == ("tagged" if step else "untagged")


def _runs(step: Tags, requested: Tags, skipped: Tags) -> bool:
    """Return True if Ansible runs a step with the tags `step`, for the `requested` and `skipped` tags of the command line."""
    selected = "all" in requested or any(_matches(tag, step) for tag in requested)
    return selected and "all" not in skipped and not any(_matches(tag, step) for tag in skipped)
