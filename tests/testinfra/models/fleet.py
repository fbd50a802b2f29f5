"""The three hosts of this lab: playbooks on all of them at once, and what is done to each."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients import Asked, Clients, doubling
from conftest import LAB, ROOT, Run, connect, inspect, lose_power, playbook, playbook_process
from test_3_reboot import wait_for
from tritonclient import grpc as triton

HOSTS = {"none": "npu1", "poll": "npu2", "explicit": "npu3"}
REPOSITORY = ROOT / "tests/faults/models"
INVENTORY = ("--inventory", str(ROOT / "molecule/models/inventory/hosts.yml"))
BUILD = ROOT / "build/models"
STORE = "/var/lib/npufleet"
TRANSACTION = f"{STORE}/transaction.json"
# An edit of a model, by which its load takes a while
INITIALIZE = '        """There is nothing to load."""\n'
SLOW_LOAD = ("1/model.py", INITIALIZE, INITIALIZE + "        threading.Event().wait(10)\n")


def digit(number: int) -> Asked:
    """Of `digits`, which has but one edition."""
    images, scores = (np.load(ROOT / f"files/golden/digits/{entry}.npy") for entry in ("images", "scores"))
    row = number % 40
    image = triton.InferInput("INPUT__0", [1, 64], "FP32")
    image.set_data_from_numpy(images[row : row + 1].astype(np.float32))

    def judge(answer: triton.InferResult) -> tuple[int, str]:
        found = answer.as_numpy("OUTPUT__0")
        return 1, "" if np.allclose(found[0], scores[row], atol=0.01) else f"{found.tolist()} for row {row}"

    return [image], judge


def address(host: str) -> str:
    """Where a host of the lab is reached from here."""
    return str(LAB["_meta"]["hostvars"][host]["ansible_host"])


def said_of(host: str, output: str) -> str:
    """What an output says of one host, in one line: the lines that name it, or all, each with what is indented below it."""
    taken, here = [], False
    for line in output.splitlines():
        named = re.findall(r"\bnpu\d\b", line)
        every = line.strip().startswith("- every host: ")
        here = every or (host in named if named else here and line.startswith(" "))
        if here:
            taken.append(line.strip())
    return " ".join(taken)


class Fleet:
    """The hosts by mode, their clients, and runs on all of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hosts = {mode: connect(name) for mode, name in HOSTS.items()}
        requests = {"alpha": doubling, "beta": doubling, "gamma": doubling, "cached": lambda _number: doubling(7), "digits": digit}
        # For ten minutes and more, beside other tests
        self.clients = Clients({mode: f"{address(name)}:8001" for mode, name in HOSTS.items()}, requests, pause=0.5)
        self.models = tuple(requests)

    def run(self, name: str, limit: str = "npu_hosts", **variables: Any) -> Run:
        """A playbook. What `status.yml` writes lies apart from what other scenarios write meanwhile."""
        files = {"npufleet_status_file": str(BUILD / "status.json"), "npufleet_report_file": str(BUILD / "report/index.html")}
        return playbook(
            name,
            *INVENTORY,
            "--limit",
            f"{limit},localhost",
            "-e",
            json.dumps({**(files if name == "status.yml" else {}), **variables}),
        )

    def told(self, run: Run) -> dict[str, str]:
        """{mode: what it says of that host}."""
        return {mode: said_of(name, run.output) for mode, name in HOSTS.items()}

    def refused(self, name: str, **variables: Any) -> dict[str, str]:
        """What a run says that has to fail, by mode."""
        run = self.run(name, **variables)
        assert run.code == 2, run.output
        assert "no further batch starts" in run.output or "nothing was changed" in run.output, run.output
        return self.told(run)

    def repair(self) -> None:
        """One ordinary run."""
        run = self.run("models.yml")
        if run.code:
            self.run("site.yml")
        assert run.code == 0, run.output

    def edited(self, edition: int = 2, **changes: list[tuple[str, str, str]]) -> str:
        """A copy of the repository in which these models are of another edition, with each (file, old text, new text) replaced."""
        repository = self.directory / f"models-{time.monotonic_ns()}"
        shutil.copytree(REPOSITORY, repository)
        for name, edits in changes.items():
            for path, old, new in [("1/model.py", "EDITION = 1", f"EDITION = {edition}"), *edits]:
                file = repository / name / path
                assert file.read_text().count(old) == 1, (name, path, old)
                file.write_text(file.read_text().replace(old, new))
        return str(repository)

    def lives(self) -> dict[str, str]:
        """{mode: which run of which container answers}."""
        found = {mode: inspect(host) for mode, host in self.hosts.items()}
        return {mode: container["Id"] + container["State"]["StartedAt"] for mode, container in found.items()}

    def everywhere(self, command: str) -> None:
        """A command on every host, at once."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: host.check_output(command), self.hosts.values()))

    def wait_until_answered(self, edition: int | None = None, model: str | None = None) -> None:
        """Until a request to each model, sent from now on, has a good answer."""
        since = time.monotonic()
        for mode in HOSTS:
            for entry in [model] if model else self.models:
                wait_for(lambda m=mode, o=entry: self.clients.answered(m, o, since, edition))

    def begin(self, sign: str, name: str, **variables: Any) -> subprocess.Popen[str]:
        """A run that is in the midst of it: a shell command has found the sign of that on every host."""
        process = playbook_process(name, *INVENTORY, "-e", json.dumps(variables))
        with ThreadPoolExecutor() as pool:
            seen = (lambda h=host: h.run(sign).rc == 0 or process.poll() is not None for host in self.hosts.values())
            list(pool.map(wait_for, seen))
        assert process.poll() is None, f"{name} was over before {sign}"
        return process

    def kill_once(self, sign: str, name: str, **variables: Any) -> None:
        """Kill a run in the midst of it: its controller lost power."""
        lose_power(self.begin(sign, name, **variables))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The hosts as they are, and clients that ask every model of theirs from now on."""
    found = Fleet(tmp_path_factory.mktemp("models"))
    with found.clients:
        found.wait_until_answered(edition=1)
        yield found
