"""Reasons of errors: any exception while a host's plan is computed becomes a line of the table of refusals. Controller only."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import Iterator, List

from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleUndefinedVariable
from ansible.utils.display import Display
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.secret import replace_logins
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text

LONGEST = 600
# Errors of this collection say what is wrong.
OWN = "ansible_collections.npufleet."
# Their text is the reason already. The text of any other error means little without its type.
IN_WORDS = (OSError, TypeError, ValueError)


def of_error(error: Exception) -> List[str]:
    """Return the reasons that an error stands for; the traceback of an error that is no refusal is displayed with -vvv."""
    if isinstance(error, Refusal):
        return error.reasons
    if type(error).__module__.startswith(OWN):
        return [str(error)]
    Display().vvv("".join(traceback.format_exception(error)))
    if isinstance(error, AnsibleUndefinedVariable):
        return [f"{_line(error.message)}: set it in the inventory"]
    if isinstance(error, AnsibleError):
        return [_line(error.message)]
    words = _line(error)
    return [words if words and isinstance(error, IN_WORDS) else f"{type(error).__name__}: {words}".rstrip(": ")]


def _line(text: object) -> str:
    """Return a text as one line without logins, which is cut where it is long."""
    line = replace_logins(host_text.line(text), "***@")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


@contextmanager
def collected(reasons: List[str], about: str = "") -> Iterator[None]:
    """Append the reasons of whatever is raised inside to `reasons`, each once, and go on.

    `about` names the subject of errors that do not name it. A host that cannot be reached is no reason: AnsibleConnectionFailure
    passes.
    """
    try:
        yield
    except AnsibleConnectionFailure:
        raise
    # The kind of error does not matter: a host whose plan is not known must keep the others from their change.
    except Exception as error:
        words = of_error(error)
        if about and not isinstance(error, (Refusal, AnsibleError)):
            words = [f"{about}: {entry}" for entry in words]
        reasons += [entry for entry in words if entry not in reasons]
