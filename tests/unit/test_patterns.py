"""Patterns that are compiled when somebody asks one."""

from __future__ import annotations

import re

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.programs import patterns


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was compiled, in order."""
    done: list[str] = []
    real = re.compile
    monkeypatch.setattr(patterns, "_MADE", [])
    monkeypatch.setattr(patterns.re, "compile", lambda text, flags=0: done.append(text) or real(text, flags))
    return done


def test_whoever_asks_first_compiles_and_once(compiled: list[str]) -> None:
    digits, letters = patterns.pattern("[0-9]+"), patterns.pattern("(?P<first>[a-z])[a-z]*", re.IGNORECASE)
    assert (digits.pattern, compiled) == ("[0-9]+", [])
    assert digits.fullmatch("12") and not digits.fullmatch("12x")
    assert digits.sub("n", "a1b22") == "anbn"
    assert [found["first"] for found in letters.finditer("Ab cd")] == ["A", "c"]
    assert compiled == ["[0-9]+", "(?P<first>[a-z])[a-z]*"]


def test_all_are_compiled_before_a_process_becomes_many(compiled: list[str]) -> None:
    made = [patterns.pattern("a"), patterns.pattern("b")]
    patterns.compile_all()
    assert compiled == ["a", "b"]
    assert [bool(entry.match("b")) for entry in made] == [False, True]
    assert compiled == ["a", "b"]


def test_what_a_pattern_is_not_asked_compiles_none(compiled: list[str]) -> None:
    with pytest.raises(AttributeError):
        patterns.pattern("(").groups  # noqa: B018
    assert compiled == []
