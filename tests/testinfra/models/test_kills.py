"""Runs of site.yml and models.yml that are killed with all their processes, at moments that a seed tells, while clients ask.

`make soak` runs this alone, for an hour.
"""

from __future__ import annotations

import collections
import json
import os
import random
import re
import subprocess
import time
from typing import Any

from clients import Sample
from conftest import LEASE, NPU_HOSTS, ROOT, connect, lose_power, playbook_process
from fleet import INVENTORY, STORE, TRANSACTION, Fleet
from test_3_reboot import REPLACEMENT

# The fixture `place`
pytest_plugins = ["fleet"]
SEED = int(os.environ.get("SOAK_SEED", "20261122"))
# Without minutes, so many kills
MINUTES, KILLS = float(os.environ.get("SOAK_MINUTES", "0")), 2
# Seconds within which a run is killed: it plans in the first few, and switches, exchanges and proves in the rest
LATEST = {"models.yml": 40.0, "site.yml": 60.0}
# Ordinary runs that a host may need until all is as wanted
RUNS = 2


def variables(place: Fleet, playbook: str, number: int) -> dict[str, Any]:
    """What the run brings: models of another edition, or a container with another option."""
    if playbook == "models.yml":
        return {"models_repository": place.edited(edition=2 + number % 2, alpha=[], beta=[])}
    return {"triton_server_log_verbose": 1 + number % 2}


def left_over(host: Any) -> list[str]:
    """What a run that was killed may leave, and the next one has to end."""
    names = host.check_output("docker ps --all --format '{{.Names}} {{.State}}'").splitlines()
    files = [one for one in (LEASE, REPLACEMENT, TRANSACTION) if host.file(one).exists]
    return files + [one for one in names if one != "triton running" and one.startswith("triton")]


def outcome(sample: Sample) -> str:
    """Right, wrong, or the status that an error begins with, such as UNAVAILABLE."""
    if sample.error:
        words = sample.error.partition(": ")[2]
        status = re.match(r"\[(?:StatusCode\.)?(\w+)\]", words)
        return status[1] if status else words[:40] or "error"
    return "wrong" if sample.wrong else "right"


def test_no_kill_is_more_than_a_run_can_repair(place: Fleet) -> None:
    chance, began, ends = random.Random(SEED), time.monotonic(), time.monotonic() + MINUTES * 60
    figures: dict[str, Any] = {"seed": SEED, "kills": 0, "ended_before": 0, "runs_to_converge": collections.Counter()}
    number = 0
    while number < KILLS if not MINUTES else time.monotonic() < ends:
        number += 1
        playbook = ("site.yml", "models.yml")[number % 2]
        given = variables(place, playbook, number)
        run = playbook_process(playbook, *INVENTORY, "--limit", "npu_hosts,localhost", "-e", json.dumps(given))
        try:
            run.wait(chance.uniform(1.0, LATEST[playbook]))
            figures["ended_before"] += 1
        except subprocess.TimeoutExpired:
            lose_power(run)
            figures["kills"] += 1
        needed = 0
        while needed < RUNS:
            needed += 1
            again = place.run("site.yml", **given)
            if not again.code and not any(left_over(connect(name)) for name in NPU_HOSTS):
                break
        assert again.code == 0, again.output
        assert {name: left_over(connect(name)) for name in NPU_HOSTS} == {name: [] for name in NPU_HOSTS}
        figures["runs_to_converge"][needed] += 1
        place.wait_until_answered()
    as_before = place.run("site.yml")
    assert as_before.code == 0, as_before.output
    place.wait_until_answered(edition=1, model="alpha")
    heard = [place.clients.heard(mode, model, began, time.monotonic()) for mode, model in place.clients.each]
    answers = collections.Counter(outcome(one) for each in heard for one in each.samples)
    figures["answers"] = dict(answers)
    path = ROOT / "build/bench/kills.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures))
    assert figures["kills"] > 0
    assert [one.wrong for one in heard if one.wrong] == []
    assert answers["right"] > 0
    assert all(connect(name).file(f"{STORE}/served").is_directory for name in NPU_HOSTS)
