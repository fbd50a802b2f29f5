"""Patterns that are compiled by whoever asks one first: a call on a host takes a tenth of a second, and asks few of them."""

from __future__ import annotations

import re
from typing import Any, List, Pattern, cast

# What a pattern is asked
METHODS = ("search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn")
_MADE: List[_Pattern] = []


class _Pattern:
    def __init__(self, text: str, flags: int) -> None:
        self.pattern, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)
        self.compile()
        return self.__dict__[name]

    def compile(self) -> None:
        """From now on it answers as fast as any."""
        compiled = re.compile(self.pattern, self._flags)
        self.__dict__.update({name: getattr(compiled, name) for name in METHODS})


def pattern(text: str, flags: int = 0) -> Pattern[str]:
    """As re.compile, later."""
    made = _Pattern(text, flags)
    _MADE.append(made)
    return cast(Pattern[str], made)


def compile_all() -> None:
    """Once, for all processes that are made of this one."""
    for made in _MADE:
        made.compile()
