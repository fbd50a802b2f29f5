# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The log of a server's container: why the container ended, why Triton refused a model, and which models are loading."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Dict, List, Sequence, Set

from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine, decode_stream

# Number of lines at the end of the log that are read. After the error, a server can log a usage message of some hundred lines.
LOG_LINES = 1000
# The beginning of an entry of Triton's log. A line that begins otherwise belongs to the previous entry.
LOG_LINE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./]+:\d+\] ?")
MAX_REASON = 2000
# The beginning of a line that reports an error
ERROR_LINE = re.compile(r"E\d{4} |error:|tritonserver: |Traceback|\w*Error: ")
# The entries with which Triton 2.41 to 2.51 log the start of a load (LOAD_STARTED), and its success or failure (LOAD_ENDED)
LOAD_STARTED, LOAD_ENDED = re.compile(r'"?loading: (.+):\d+"?$'), re.compile(r"\"?(?:successfully loaded|failed to load) '(.+?)'")
# The line after which Python's stack frames follow in an error. From Triton 2.51 on, the line breaks are escaped.
FRAMES = re.compile(r"(\\n|\n){2}At:")


def log_lines(engine: Engine, name: str, since: float = 0, until: float = 0) -> List[str]:
    """Return the last lines of a container's log. `since` and `until` are in seconds since 1970; 0 means no limit."""
    span = (f"&since={since:.3f}" if since else "") + (f"&until={until:.3f}" if until else "")
    try:
        raw = engine.exchange("GET", f"/containers/{name}/logs?stdout=1&stderr=1&tail={LOG_LINES}{span}")[1]
    except OSError:
        return []
    return decode_stream(raw).decode("utf-8", "replace").strip().splitlines()


def reasons(lines: Sequence[str], names: Sequence[str]) -> Dict[str, str]:
    """Return {model: reason why Triton refused to load it} from lines of a log, for the models with these names."""
    reasons_by_model: Dict[str, str] = {}
    for at, line in enumerate(lines):
        if not line.startswith("E"):
            continue
        for name in names:
            if LOG_LINE.match(line) and f"'{name}'" in line:
                rest = list(takewhile(lambda entry: not LOG_LINE.match(entry), lines[at + 1 :]))
                reasons_by_model[name] = plain("\n".join([line, *rest]))[-MAX_REASON:]
    return reasons_by_model


def loading(lines: Sequence[str]) -> Set[str]:
    """Return the models whose load has begun and not ended in these lines of a log."""
    loading_models: Set[str] = set()
    for line in filter(LOG_LINE.match, lines):
        entry = LOG_LINE.sub("", line)
        started, end = LOAD_STARTED.match(entry), LOAD_ENDED.match(entry)
        if started:
            loading_models.add(started[1])
        if end:
            loading_models.discard(end[1])
    return loading_models


def progress(lines: Sequence[str], names: Sequence[str]) -> str:
    """Return the progress of a server that does not answer yet: the models that it is loading, or the last entry of its log."""
    still_loading = sorted(loading(lines) & set(names))
    if still_loading:
        return f"it still loads {', '.join(still_loading)}"
    entries = [entry for entry in map(plain, lines) if entry]
    return f"its log ends with {entries[-1][-MAX_REASON:]!r}" if entries else "its log is empty"


def plain(entry: str) -> str:
    """Return an entry of Triton's log without its prefix, its quotes and Python's stack frames."""
    return FRAMES.split(LOG_LINE.sub("", entry).strip(), maxsplit=1)[0].strip('"\n ')


def ending_reason(engine: Engine, name: str) -> str:
    """Return the reason why a container ended: its failed loads, or else the last errors in its log, or else its last lines."""
    lines = log_lines(engine, name)
    errors = [plain(line) for line in lines if ERROR_LINE.match(line)]
    # A container that restarts repeatedly logs the same errors each time, so repeated errors are left out.
    loads = {line.split("'")[1]: line for line in errors if line.startswith("failed to load '")}
    return "\n".join(list(loads.values()) or list(dict.fromkeys(errors or lines))[-6:])[-1500:]
