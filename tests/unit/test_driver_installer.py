"""The vendor's installer is run with nobody to answer it, within its time, and all that it says is kept."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.driver import installer as subject
from ansible_collections.npufleet.triton.plugins.modules import driver_installer
from helpers import run_module


@pytest.fixture
def installer(tmp_path: Path) -> Path:
    return tmp_path / "rebellions-x86_64-3.2.2.run"


def run(installer: Path, script: str, **params: Any) -> dict[str, Any]:
    installer.write_text("#!/bin/sh\n" + script)
    installer.chmod(0o700)
    return run_module(driver_installer, {"path": str(installer), **params})


@pytest.fixture
def somebody_answers() -> Iterator[None]:
    """Whoever runs the module has something to say on standard input."""
    kept = os.dup(0)
    reader, writer = os.pipe()
    os.write(writer, b"yes\n")
    os.dup2(reader, 0)
    yield
    os.dup2(kept, 0)
    for descriptor in (kept, reader, writer):
        os.close(descriptor)


@pytest.mark.usefixtures("somebody_answers")
def test_nobody_answers_and_all_is_kept_for_root(installer: Path) -> None:
    script = 'echo "to $1"; read -r answer || echo "no answer"; echo "to screen" >&2; echo $$ $(ps -o sid= $$)\n'
    answer = run(installer, script, arguments=["a b"])
    assert (answer["changed"], answer["log"]) == (True, f"{installer}.log")
    *lines, session = Path(answer["log"]).read_text().splitlines()
    assert lines == ["to a b", "no answer", "to screen"]
    assert len(set(session.split())) == 1, "it has a session of its own"
    assert os.stat(answer["log"]).st_mode & 0o777 == 0o600


def test_one_that_fails_is_told_by_the_end_of_its_words(installer: Path) -> None:
    answer = run(installer, "seq 100; echo; echo 'no headers' >&2; exit 3\n")
    head, *words = answer["msg"].splitlines()
    assert (answer["failed"], head) == (
        True,
        f"the installer ended with exit code 3. The whole output is in {installer}.log. The last lines:",
    )
    assert words == [*(str(number) for number in range(72, 101)), "no headers"]
    assert Path(f"{installer}.log").read_text().startswith("1\n2\n")


def test_one_that_hangs_is_ended_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch, installer: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(subject, "MAX_WAIT_SECONDS", 0.2)
    child = f'trap "" TERM; echo $$ > {tmp_path}/child; for round in $(seq 300); do sleep 0.05; done'
    script = f"trap '' TERM; sh -c '{child}' & echo begun; wait\n"
    began = time.monotonic()
    answer = run(installer, script, timeout=1)
    assert answer["msg"].splitlines()[0].startswith("the installer was killed after 1 s. The whole output")
    assert answer["msg"].splitlines()[-1] == "begun"
    assert time.monotonic() - began < 20
    stat = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_one_that_cannot_be_run(installer: Path) -> None:
    answer = run_module(driver_installer, {"path": str(installer)})
    assert answer["msg"].startswith("the installer could not be run: [Errno 2]")


def test_its_words_go_into_no_file_that_somebody_else_has_chosen(installer: Path, tmp_path: Path) -> None:
    Path(f"{installer}.log").symlink_to(tmp_path / "victim")
    assert run(installer, "echo words\n")["msg"].startswith("the installer could not be run: ")
    assert not (tmp_path / "victim").exists()


def test_an_installer_that_another_account_can_change_is_not_run(installer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, ran = "touch $0.ran\n", Path(f"{installer}.ran")
    monkeypatch.setattr(driver_installer.os, "geteuid", lambda: os.getuid() + 1)
    answer = run(installer, script)
    assert f"the installer was not run: {installer} belongs to user {os.getuid()}, expected" in answer["msg"]
    monkeypatch.undo()
    installer.rename(installer.with_name("theirs"))
    installer.symlink_to("theirs")
    answer = run_module(driver_installer, {"path": str(installer)})
    assert "is a link, expected a regular file" in answer["msg"]
    assert not ran.exists()
