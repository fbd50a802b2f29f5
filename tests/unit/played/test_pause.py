"""The pause of a rollout after its first batch, and the record of the rollout. Real playbooks on simulated hosts."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stage
from helpers import playbook_command
from stage import HOSTS, Run, differs, run

MODEL = [differs("models", "release", name="add", until="server_change")]
STOPPED = [differs("server", "start", name="container", until="server_change")]
PLAN: dict[str, Any] = {host: {"plan": MODEL} for host in HOSTS[:3]}
PROMPT = b"Press Enter to continue with the other hosts"
# Ctrl+C, and A at the prompt that follows
ABORT = b"\x03A"


def records(directory: Path) -> list[dict[str, Any]]:
    """Return the records of rollouts, oldest first."""
    found = [json.loads(path.read_text()) for path in (directory / "rollouts").glob("*.json")]
    return sorted(found, key=lambda record: record["began"])


def changed(record: dict[str, Any]) -> list[list[str]]:
    """Return the hosts of each batch that has ended."""
    return [sorted(batch["hosts"]) for batch in record["batches"]]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Return a function that makes the next runs use a terminal, in which these keys are pressed at the prompt."""

    def use(keys: bytes) -> None:
        def playbook(directory: Path, *arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
            command, settings = playbook_command(directory, *arguments, **environment)
            pid, terminal = pty.fork()
            if pid == 0:
                os.chdir(cwd)
                os.execve(command[0], command, settings)
            output, left, deadline = b"", keys, time.monotonic() + 300
            while True:
                assert time.monotonic() < deadline, output.decode(errors="replace")
                readable = select.select([terminal], [], [], 0.2)[0]
                if readable:
                    try:
                        output += os.read(terminal, 65536)
                    except OSError:
                        # The last process has closed its end of the terminal.
                        break
                # Ansible reads keys one by one as soon as it waits for them. A second prompt follows Ctrl+C.
                reads_keys = not termios.tcgetattr(terminal)[3] & termios.ICANON
                if left and not readable and reads_keys and PROMPT in output and (left != b"A" or b"'A' to abort" in output):
                    os.write(terminal, left[:1])
                    left = left[1:]
            os.close(terminal)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return subprocess.CompletedProcess(command, code, output.decode(errors="replace"), "")

        monkeypatch.setattr(stage, "ansible_playbook", playbook)

    return use


def test_confirmation_at_a_terminal_continues_the_rollout(tmp_path: Path, terminal: Callable[[bytes], None]) -> None:
    terminal(b"\r")
    ran = run(tmp_path, "models.yml", PLAN, npufleet_rollout_pause="confirm", npufleet_rollout_serial=[1, "100%"])
    assert ran.code == 0, ran.output
    assert ran.output.count(PROMPT.decode()) == 1
    assert ran.touched() == HOSTS[:3]
    assert "a pause after the first batch until an operator confirms" in ran.words
    (record,) = records(tmp_path)
    assert (record["pause"], changed(record)) == ("confirm", [["npu-1"], ["npu-2", "npu-3"]])


def test_abort_at_a_terminal_changes_no_further_host(tmp_path: Path, terminal: Callable[[bytes], None]) -> None:
    terminal(ABORT)
    ran = run(tmp_path, "models.yml", PLAN, npufleet_rollout_pause="confirm", npufleet_rollout_serial=[1, "100%"])
    assert ran.code != 0, ran.output
    assert ran.touched() == ["npu-1"]
    assert not [call for call in ran.calls if call in ("npu-2 host_lease", "npu-3 host_lease")]
    # The same command continues with the hosts that are left, and pauses again after the first one.
    terminal(b"\r")
    again = run(
        tmp_path,
        "models.yml",
        {**PLAN, "npu-1": {"plan": []}},
        npufleet_rollout_pause="confirm",
        npufleet_rollout_serial=[1, "100%"],
    )
    assert again.code == 0, again.output
    assert (again.output.count(PROMPT.decode()), again.touched()) == (1, ["npu-2", "npu-3"])
    assert [changed(record) for record in records(tmp_path)] == [[["npu-1"]], [["npu-2"], ["npu-3"]]]


@pytest.mark.parametrize("playbook", ["models.yml", "site.yml", "rollback.yml", "recover.yml"])
def test_confirmation_without_a_terminal_changes_nothing(tmp_path: Path, playbook: str) -> None:
    options = ("-e", "rollback_to=previous") if playbook == "rollback.yml" else ()
    plan = {host: {"plan": STOPPED} for host in HOSTS[:2]} if playbook == "recover.yml" else PLAN
    ran = run(tmp_path, playbook, plan, *options, npufleet_rollout_pause="confirm")
    assert ran.code == 2, ran.output
    assert "npufleet_rollout_pause is confirm and no terminal can confirm the rollout" in ran.words
    assert ran.touched() == [] and "host_lease" not in " ".join(ran.calls)
    assert not (tmp_path / "rollouts").exists()


def test_one_batch_needs_no_confirmation(tmp_path: Path) -> None:
    ran = run(tmp_path, "models.yml", {"npu-1": PLAN["npu-1"], "npu-2": {"plan": []}}, npufleet_rollout_pause="confirm")
    assert ran.code == 0, ran.output
    assert ran.touched() == ["npu-1"]
    (record,) = records(tmp_path)
    assert (record["pause"], changed(record)) == ("", [["npu-1"]])


def test_check_mode_does_not_pause(tmp_path: Path) -> None:
    ran = run(tmp_path, "models.yml", PLAN, "--check", npufleet_rollout_pause="confirm")
    assert ran.code == 0, ran.output
    assert not (tmp_path / "rollouts").exists()


def test_confirmation_of_one_host_counts_for_all(tmp_path: Path) -> None:
    pause = "{{ 'confirm' if inventory_hostname == 'npu-3' else '' }}"
    ran = run(tmp_path, "models.yml", PLAN, npufleet_rollout_pause=pause)
    assert ran.code == 2, ran.output
    assert ran.touched() == []


def test_pause_of_seconds_continues_by_itself(tmp_path: Path) -> None:
    ran = run(tmp_path, "models.yml", PLAN, npufleet_rollout_pause=1, npufleet_rollout_serial=1)
    assert ran.code == 0, ran.output
    assert ran.words.count("Pausing for 1 seconds") == 1
    assert "a pause after the first batch for 1 s" in ran.words
    assert ran.touched() == HOSTS[:3]


def test_interrupted_rollout_continues_with_the_hosts_that_are_left(tmp_path: Path) -> None:
    def go(scenario: dict[str, Any]) -> Run:
        return run(tmp_path, "models.yml", scenario, npufleet_rollout_pause=1, npufleet_rollout_serial=1)

    failed = go({**PLAN, "npu-2": {"plan": MODEL, "fails": "server_change"}})
    assert failed.code == 2, failed.output
    assert failed.touched() == ["npu-1", "npu-2"]
    again = go({**PLAN, "npu-1": {"plan": []}})
    assert again.code == 0, again.output
    assert again.touched() == ["npu-2", "npu-3"]
    first, last = records(tmp_path)
    assert first["planned"] == [["npu-1"], ["npu-2"], ["npu-3"]]
    assert [changed(first), changed(last)] == [[["npu-1"], ["npu-2"]], [["npu-2"], ["npu-3"]]]
    assert "npu-2 is played to fail" in first["batches"][1]["hosts"]["npu-2"]["failure"]


@pytest.mark.parametrize("pause", ["a while", "-1", "86401", "true", "1.5"])
def test_invalid_pause_changes_nothing(tmp_path: Path, pause: str) -> None:
    ran = run(tmp_path, "models.yml", PLAN, npufleet_rollout_pause=pause)
    assert ran.code == 2, ran.output
    assert f"npufleet_rollout_pause is {pause}, expected a number of seconds from 0 to 86400, or confirm" in ran.words
    assert ran.touched() == []
