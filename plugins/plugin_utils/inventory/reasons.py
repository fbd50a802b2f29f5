# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Conversion of exceptions to reasons, which become rows of the table of refusals. Controller only."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import Iterator, List

from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleUndefinedVariable
from ansible.utils.display import Display
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.secret import replace_logins
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

# The most characters of one reason
LONGEST = 600
# Errors of this collection's classes and of the DESCRIPTIVE types are reported by their text, other errors with their type.
OWN = "ansible_collections.npufleet."
DESCRIPTIVE = (OSError, TypeError, ValueError)


def of_error(error: Exception) -> List[str]:
    """Return the reasons of an error, and display the traceback of an unexpected one with -vvv."""
    if isinstance(error, Refusal):
        return error.reasons
    if type(error).__module__.startswith(OWN):
        return [str(error)]
    Display().vvv("".join(traceback.format_exception(error)))
    if isinstance(error, AnsibleUndefinedVariable):
        return [f"{_line(error.message)}. Set it in the inventory."]
    if isinstance(error, AnsibleError):
        return [_line(error.message)]
    text = _line(error)
    return [text if text and isinstance(error, DESCRIPTIVE) else f"{type(error).__name__}: {text}".rstrip(": ")]


def _line(text: object) -> str:
    """Return a text as one line without logins, cut to LONGEST characters."""
    line = replace_logins(host_text.line(text), "***@")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


@contextmanager
def collected(reasons: List[str], about: str = "") -> Iterator[None]:
    """Catch an exception of the `with` block, and append its reasons to `reasons` without duplicates.

    `about` is put before the texts of errors that do not name their subject. AnsibleConnectionFailure is raised again, as Ansible
    itself reports unreachable hosts.
    """
    try:
        yield
    except AnsibleConnectionFailure:
        raise
    # A host with an unknown plan must stop the run before other hosts change, whatever the error is.
    except Exception as error:
        added = of_error(error)
        if about and not isinstance(error, (Refusal, AnsibleError)):
            added = [f"{about}: {entry}" for entry in added]
        reasons += [entry for entry in added if entry not in reasons]
