# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The log of a server's container: why it ended, and why a model was refused."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Dict, List, Sequence, Set

from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine, decode_stream

# How far back the log of a container that ended is read: its usage message alone has some hundred lines.
LOG_LINES = 1000
# How each entry of Triton's log begins; what does not begin so goes on with the entry before
LOG_LINE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./]+:\d+\] ?")
REASON = 2000
ERROR_LINE = re.compile(r"E\d{4} |error:|tritonserver: |Traceback|\w*Error: ")
# A load that begins, and one that ends in either way, as Triton 2.41 to 2.51 log it
BEGUN, ENDED = re.compile(r'"?loading: (.+):\d+"?$'), re.compile(r"\"?(?:successfully loaded|failed to load) '(.+?)'")
# Where Python's frames begin in what Triton says, in one entry or, as from 2.51 on, escaped in one line
FRAMES = re.compile(r"(\\n|\n){2}At:")


def log_lines(engine: Engine, name: str, since: float = 0, until: float = 0) -> List[str]:
    """Return the last lines of a container's log, since and until a time of the host's clock."""
    span = (f"&since={since:.3f}" if since else "") + (f"&until={until:.3f}" if until else "")
    try:
        raw = engine.exchange("GET", f"/containers/{name}/logs?stdout=1&stderr=1&tail={LOG_LINES}{span}")[1]
    except OSError:
        return []
    return decode_stream(raw).decode("utf-8", "replace").strip().splitlines()


def reasons(lines: Sequence[str], names: Sequence[str]) -> Dict[str, str]:
    """Return {model: why Triton refused its new files} from lines of its log."""
    found: Dict[str, str] = {}
    for at, line in enumerate(lines):
        if not line.startswith("E"):
            continue
        for name in names:
            if LOG_LINE.match(line) and f"'{name}'" in line:
                rest = list(takewhile(lambda entry: not LOG_LINE.match(entry), lines[at + 1 :]))
                found[name] = plain("\n".join([line, *rest]))[-REASON:]
    return found


def loading(lines: Sequence[str]) -> Set[str]:
    """Return the models whose load has begun in these lines of a log, and has not ended."""
    found: Set[str] = set()
    for line in filter(LOG_LINE.match, lines):
        entry = LOG_LINE.sub("", line)
        begun, ended = BEGUN.match(entry), ENDED.match(entry)
        if begun:
            found.add(begun[1])
        if ended:
            found.discard(ended[1])
    return found


def so_far(lines: Sequence[str], names: Sequence[str]) -> str:
    """Return the progress of a server that does not answer yet: the models that it loads, else the end of its log."""
    waiting = sorted(loading(lines) & set(names))
    if waiting:
        return f"it still loads {', '.join(waiting)}"
    entries = [entry for entry in map(plain, lines) if entry]
    return f"its log ends with {entries[-1][-REASON:]!r}" if entries else "its log is empty"


def plain(entry: str) -> str:
    """Return an entry of Triton's log without its stamp, its quotes and Python's frames."""
    return FRAMES.split(LOG_LINE.sub("", entry).strip(), maxsplit=1)[0].strip('"\n ')


def last_words(engine: Engine, name: str) -> str:
    """Return why a container ended: the failed loads, else the last errors of its log, else its last lines."""
    words = log_lines(engine, name)
    errors = [plain(line) for line in words if ERROR_LINE.match(line)]
    # A container that restarts says the same again and again.
    loads = {line.split("'")[1]: line for line in errors if line.startswith("failed to load '")}
    return "\n".join(list(loads.values()) or list(dict.fromkeys(errors or words))[-6:])[-1500:]
