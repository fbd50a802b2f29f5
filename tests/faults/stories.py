"""What tests of faults share: an episode is played once, and every one of its cells is judged by what clients heard of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from clients import INSIDE, Clients

MODES = ("none", "poll", "explicit")
TABLE = yaml.safe_load((Path(__file__).parent / "faults.yml").read_text())
OUTCOMES = {entry["fault"]: entry for entry in TABLE}


def cells(by: str) -> list[tuple[str, str]]:
    """(fault, mode) of all that these tests prove: `servers` or `lab`."""
    return [(entry["fault"], mode) for entry in TABLE if entry["by"] == by for mode in MODES]


@dataclass
class Story:
    """One episode: when it began, when the operator had been told, when one ordinary run had repaired it, and what was told.

    `restarted` are the modes in which another server answered at its end than when it began.
    """

    began: float
    told_at: float
    ended: float
    told: dict[str, str]
    restarted: set[str]


class Episode:
    """Puts faults in and returns what an operator is told, by mode; `faults` is {fault: (model that is asked, patterns of it)}."""

    def __init__(self, act: Callable[[Any], dict[str, str]], faults: dict[str, tuple[str, ...]], editions: set[int]) -> None:
        self.act, self.faults, self.editions = act, faults, editions
        self.story: Story | None = None
        self.failure: BaseException | None = None

    def play(self, place: Any) -> Story:
        """Once, for all its cells; where it fails, for all of them. `place.repair` is one ordinary run with the right models.

        Before it every model has to answer again, however long that takes: what puts it back needs no hand.
        """
        if self.failure:
            raise self.failure
        if self.story is None:
            began, lives = time.monotonic(), place.lives()
            try:
                told = self.act(place)
                told_at = time.monotonic()
                place.wait_until_answered()
                place.repair()
                place.wait_until_answered(edition=1)
                restarted = {mode for mode, life in place.lives().items() if life != lives[mode]}
                self.story = Story(began, told_at, time.monotonic(), told, restarted)
            except BaseException as error:
                self.failure = error
                raise
        return self.story


EPISODES: dict[str, Episode] = {}


def tells(editions: set[int] | None = None, **faults: tuple[str, ...]) -> Callable[[Callable[[Any], dict[str, str]]], None]:
    """Makes a function an episode."""

    def keep(act: Callable[[Any], dict[str, str]]) -> None:
        EPISODES.update(dict.fromkeys(faults, Episode(act, faults, editions or {1})))

    return keep


def judge(fault: str, mode: str, place: Any) -> None:
    """Play the episode of a fault, and compare what was told and heard in a mode with the table."""
    episode = EPISODES[fault]
    story = episode.play(place)
    model, *patterns = episode.faults[fault]
    for pattern in patterns:
        assert re.search(pattern, story.told[mode], re.DOTALL), f"{pattern} is not in: {story.told[mode]}"
    clients: Clients = place.clients
    heard = clients.heard(mode, model, story.began, story.ended)
    assert heard.editions and heard.editions <= episode.editions
    assert not [error for error in heard.errors if INSIDE.search(error)], "clients see the inside"
    outcome = OUTCOMES[fault][mode]
    if outcome == "same":
        assert heard.errors == [], f"clients heard {heard.errors[:3]}; restarted: {story.restarted}"
        assert heard.wrong == []
        assert mode not in story.restarted, f"restarted: {story.restarted}"
    elif outcome == "restart":
        assert heard.wrong == []
        assert mode in story.restarted, "nothing was restarted"
    elif fault.startswith("wrong_"):
        # One name, one model: between load and proof it is the wrong one that answers.
        assert heard.wrong, "nobody was answered wrong: the cell is better than it says"
        assert all(entry.began < story.told_at for entry in heard.wrong), "after the run it still answers wrong"
    else:
        assert heard.wrong == []
