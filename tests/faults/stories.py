"""Shared code of the tests of faults. An episode injects one or more faults and repairs them.

Each episode is played once for all its test cases. A case is one fault in one mode of model control. It is judged by the messages
for the operator and by the answers that clients got during the episode.
"""

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
    """Return (fault, mode) of all cases that these tests prove. `by` is `servers` or `lab`, as in faults.yml."""
    return [(entry["fault"], mode) for entry in TABLE if entry["by"] == by for mode in MODES]


@dataclass
class Story:
    """A played episode: its begin, the time of the messages for the operator, its end after the repair, and the messages by mode.

    `restarted` are the modes in which the server was restarted during the episode.
    """

    began: float
    reported_at: float
    ended: float
    messages: dict[str, str]
    restarted: set[str]


class Episode:
    """An episode. `act` injects its faults and returns the messages for the operator by mode.

    `faults` is {fault: (model whose clients are judged, patterns that the message must match)}. `editions` are the editions of this
    model that clients may get.
    """

    def __init__(self, act: Callable[[Any], dict[str, str]], faults: dict[str, tuple[str, ...]], editions: set[int]) -> None:
        self.act, self.faults, self.editions = act, faults, editions
        self.story: Story | None = None
        self.failure: BaseException | None = None

    def play(self, place: Any) -> Story:
        """Play the episode once for all its cases, and return its story. If it fails, all cases fail with the same error.

        Every model has to answer again before `place.repair`, an ordinary run with the right models. So no operator is needed for
        the restore.
        """
        if self.failure:
            raise self.failure
        if self.story is None:
            began, lives = time.monotonic(), place.lives()
            try:
                messages = self.act(place)
                reported_at = time.monotonic()
                place.wait_until_answered()
                place.repair()
                place.wait_until_answered(edition=1)
                restarted = {mode for mode, life in place.lives().items() if life != lives[mode]}
                self.story = Story(began, reported_at, time.monotonic(), messages, restarted)
            except BaseException as error:
                self.failure = error
                raise
        return self.story


EPISODES: dict[str, Episode] = {}


def tells(editions: set[int] | None = None, **faults: tuple[str, ...]) -> Callable[[Callable[[Any], dict[str, str]]], None]:
    """Return a decorator that registers a function as the episode of these faults."""

    def register(act: Callable[[Any], dict[str, str]]) -> None:
        EPISODES.update(dict.fromkeys(faults, Episode(act, faults, editions or {1})))

    return register


def judge(fault: str, mode: str, place: Any) -> None:
    """Play the episode of a fault. Compare the messages and the answers of clients in a mode with the outcome in faults.yml."""
    episode = EPISODES[fault]
    story = episode.play(place)
    model, *patterns = episode.faults[fault]
    for pattern in patterns:
        assert re.search(pattern, story.messages[mode], re.DOTALL), f"{pattern} is not in: {story.messages[mode]}"
    clients: Clients = place.clients
    heard = clients.heard(mode, model, story.began, story.ended)
    assert heard.editions and heard.editions <= episode.editions
    assert not [error for error in heard.errors if INSIDE.search(error)], "clients see paths or code"
    outcome = OUTCOMES[fault][mode]
    if outcome == "same":
        assert heard.errors == [], f"clients heard {heard.errors[:3]}; restarted: {story.restarted}"
        assert heard.wrong == []
        assert mode not in story.restarted, f"restarted: {story.restarted}"
    elif outcome == "restart":
        assert heard.wrong == []
        assert mode in story.restarted, "nothing was restarted"
    elif fault.startswith("wrong_"):
        # Between the load and the proof, the server answers with the wrong release.
        assert heard.wrong, "no client got a wrong answer: the outcome is better than faults.yml claims"
        assert all(entry.began < story.reported_at for entry in heard.wrong), "clients got wrong answers after the run"
    else:
        assert heard.wrong == []
