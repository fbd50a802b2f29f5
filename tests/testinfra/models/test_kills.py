"""Runs of site.yml and models.yml that are killed with all their processes, at moments that a seed tells, while clients ask.

The hosts end by themselves what such a run has begun. `make soak` runs this alone, with 70 kills.
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
from fleet import HOSTS, INVENTORY, STORE, TRANSACTION, Fleet
from test_3_reboot import REPLACEMENT, wait_for

# The fixture `place`
pytest_plugins = ["fleet"]
SEED = int(os.environ.get("SOAK_SEED", "20261122"))
KILLS = int(os.environ.get("SOAK_KILLS", "2"))
# Of seven kills, two are of changes of the container
CONTAINERS = (1, 4)
# Seconds within which the first run is killed; a run that ends before that says how long one takes
LATEST = {"models.yml": 15.0, "site.yml": 30.0}
# Ordinary runs that a host may need until all is as wanted
RUNS = 2


def variables(place: Fleet, playbook: str, number: int) -> dict[str, Any]:
    """What the run brings: models of another edition, or a container with another option."""
    if playbook == "models.yml":
        return {"models_repository": place.edited(edition=2 + number % 2, alpha=[], beta=[])}
    return {"triton_server_log_verbose": 1 + number % 2}


def changing(host: Any) -> list[str]:
    """What only a change that has not ended leaves, and its process."""
    lock = f"{STORE}/change.lock"
    # Shared, as the host itself looks: it is not to take this for a change
    found = [lock] * (host.run(f"test ! -e {lock} || flock --shared --nonblock {lock} true").rc != 0)
    return found + [path for path in (REPLACEMENT, TRANSACTION) if host.file(path).exists]


def under_way(host: Any) -> list[str]:
    """The same, and modules that the run has called."""
    return changing(host) + host.run("pgrep --full 'BECOME-[S]UCCESS'").stdout.splitlines()


def editions(host: Any) -> set[str]:
    """Those of alpha and beta that the host serves, which change together."""
    return set(
        host.check_output(f"grep -h '^EDITION = ' {STORE}/served/alpha/1/model.py {STORE}/served/beta/1/model.py").splitlines()
    )


def left_over(host: Any) -> list[str]:
    """What a run that was killed may leave, and the next one has to end."""
    names = host.check_output("docker ps --all --format '{{.Names}} {{.State}}'").splitlines()
    files = [entry for entry in (LEASE, REPLACEMENT, TRANSACTION) if host.file(entry).exists]
    return files + [name for name in names if name != "triton running" and name.startswith("triton")]


def outcome(sample: Sample) -> str:
    """Right, wrong, or the status that an error begins with, such as UNAVAILABLE."""
    if sample.error:
        words = sample.error.partition(": ")[2]
        status = re.match(r"\[(?:StatusCode\.)?(\w+)\]", words)
        return status[1] if status else words[:40] or "error"
    return "wrong" if sample.wrong else "right"


def finished_by_themselves(place: Fleet) -> float:
    """Wait until each host has ended what was begun, without another run; the seconds that the slowest took."""
    began = time.monotonic()
    for mode, name in HOSTS.items():
        host = connect(name)
        wait_for(lambda h=host: not under_way(h))
        (edition,) = editions(host)
        since = time.monotonic()
        for model in place.models:
            wanted = int(edition.rpartition(" ")[2]) if model in ("alpha", "beta") else None
            wait_for(lambda m=mode, o=model, w=wanted, s=since: place.clients.answered(m, o, s, w))
    return time.monotonic() - began


def keep(figures: dict[str, Any], began: float) -> None:
    """Write the figures down after each kill, so that a soak that somebody ends has some, too."""
    figures["seconds"] = round(time.monotonic() - began)
    path = ROOT / "build/bench/kills.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")


def test_no_kill_leaves_a_host_half_way(place: Fleet) -> None:
    chance, began = random.Random(SEED), time.monotonic()
    figures: dict[str, Any] = {
        "seed": SEED,
        "kills": collections.Counter(),
        "in_a_change": 0,
        "ended_before": 0,
        "slowest_seconds": 0.0,
        "runs_to_converge": collections.Counter(),
    }
    latest, disturbed, tried = dict(LATEST), [], collections.Counter()
    given: dict[str, Any] = {}
    # A kill that no change was under way for proves little
    while (number := figures["kills"].total() + 1) <= KILLS or not figures["in_a_change"]:
        playbook = "site.yml" if number % 7 in CONTAINERS else "models.yml"
        tried[playbook] += 1
        assert tried.total() <= 20 * KILLS, figures
        # Of each try anew, or nothing would be to be changed; the rest stays, or models.yml would refuse another container
        given.update(variables(place, playbook, tried[playbook]))
        started = time.monotonic()
        run = playbook_process(playbook, *INVENTORY, "--limit", "npu_hosts,localhost", "-e", json.dumps(given))
        try:
            code = run.wait(chance.uniform(1.0, latest[playbook]))
            # One that failed early would have the kills come before any change
            assert code == 0, f"{playbook} ended with {code} before it was killed"
            figures["ended_before"] += 1
            latest[playbook] = min(latest[playbook], time.monotonic() - started)
        except subprocess.TimeoutExpired:
            lose_power(run)
            figures["kills"][playbook] += 1
            figures["in_a_change"] += any(changing(connect(name)) for name in HOSTS.values())
        figures["slowest_seconds"] = round(max(figures["slowest_seconds"], finished_by_themselves(place)), 1)
        if playbook == "models.yml":
            # A change of alpha and beta is nothing to the clients of other models, where it restarts nothing
            span = (started, time.monotonic())
            others = [(mode, model) for mode in ("poll", "explicit") for model in place.models if model not in ("alpha", "beta")]
            disturbed += [(*other, error) for other in others for error in place.clients.heard(*other, *span).errors]
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
        keep(figures, began)
    as_before = place.run("site.yml")
    assert as_before.code == 0, as_before.output
    place.wait_until_answered(edition=1, model="alpha")
    heard = [place.clients.heard(mode, model, began, time.monotonic()) for mode, model in place.clients.each]
    answers = collections.Counter(outcome(sample) for each in heard for sample in each.samples)
    figures["answers"] = dict(answers)
    keep(figures, began)
    print(json.dumps(figures))
    assert [entry.wrong for entry in heard if entry.wrong] == []
    assert disturbed == []
    assert answers["right"] > 0
