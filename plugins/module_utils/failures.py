# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Error messages of failed steps."""

from __future__ import annotations

import os
from typing import Tuple, Type

# Largest length of the message of an unexpected error
MAX_SHOWN = 300


def reason(error: BaseException, expected: Tuple[Type[BaseException], ...]) -> str:
    """Return the message of an expected error, or the type, message and source line of any other error."""
    if isinstance(error, expected):
        return str(error) or type(error).__name__
    message = " ".join(str(error).split())[:MAX_SHOWN]
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    line = f" at {os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}" if frame is not None else ""
    return (
        f"npufleet met an unexpected error: {type(error).__name__}({message}){line}. "
        "Report it with the archive of playbooks/collect.yml"
    )
