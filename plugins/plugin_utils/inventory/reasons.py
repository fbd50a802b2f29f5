# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Conversion of exceptions to reasons for a refusal, which the filter `refusal_table` lists."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import Iterator, List

from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleUndefinedVariable
from ansible.utils.display import Display
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, short
from ansible_collections.npufleet.triton.plugins.module_utils.secret import replace_logins
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

MAX_REASON = 600  # Characters
# Errors of this collection and errors of DESCRIPTIVE_TYPES are reported by their text, other errors by their type and text.
COLLECTION_PREFIX = "ansible_collections.npufleet."
DESCRIPTIVE_TYPES = (OSError, TypeError, ValueError)


def of_error(error: Exception) -> List[str]:
    """Return the reasons of an error. With -vvv, display the traceback of an unexpected error."""
    if isinstance(error, Refusal):
        return error.reasons
    if type(error).__module__.startswith(COLLECTION_PREFIX):
        return [str(error)]
    Display().vvv("".join(traceback.format_exception(error)))
    if isinstance(error, AnsibleUndefinedVariable):
        return [f"{_line(error.message)}. Set it in the inventory."]
    if isinstance(error, AnsibleError):
        return [_line(error.message)]
    text = _line(error)
    return [text if text and isinstance(error, DESCRIPTIVE_TYPES) else f"{type(error).__name__}: {text}".rstrip(": ")]


def _line(text: object) -> str:
    """Return a text as one line without logins, of at most MAX_REASON characters."""
    return short(replace_logins(host_text.line(text), "***@"), MAX_REASON)


@contextmanager
def collected(reasons: List[str], about: str = "") -> Iterator[None]:
    """Catch an exception of the `with` block, and append its reasons to `reasons` without duplicates.

    `about` is put before the text of an exception of Python. A Refusal or AnsibleError already names its subject.
    AnsibleConnectionFailure is not caught, because Ansible itself reports unreachable hosts.
    """
    try:
        yield
    except AnsibleConnectionFailure:
        raise
    # If the plan of a host cannot be computed, the run must stop before it changes other hosts. So any exception becomes a reason.
    except Exception as error:
        error_reasons = of_error(error)
        if about and not isinstance(error, (Refusal, AnsibleError)):
            error_reasons = [f"{about}: {entry}" for entry in error_reasons]
        reasons += [entry for entry in error_reasons if entry not in reasons]
