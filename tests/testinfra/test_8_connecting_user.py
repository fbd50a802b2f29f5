"""A hostile connecting user on a real host: what it plants in its directory of transfers, and what it keeps open, leads nowhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import NPU_HOSTS, ROOT, connect, playbook

pytestmark = pytest.mark.skipif(not NPU_HOSTS, reason="no lab is up")
FIRST = NPU_HOSTS[0] if NPU_HOSTS else ""
INCOMING, NAME, SECRET = "/var/lib/npufleet/incoming", "planted.tar", "/root/npufleet-secret"
TAKEN = "/var/lib/npufleet/tmp/planted.tar"
CONTENT = "an archive"
BOOK = f"""
- hosts: npu_hosts
  gather_facts: false
  become: true
  tasks:
    - npufleet.triton.transferred_file:
        state: imported
        incoming: {INCOMING}
        name: {NAME}
        path: {TAKEN}
        sha256: {hashlib.sha256(CONTENT.encode()).hexdigest()}
"""


@pytest.fixture
def host() -> Iterator[Any]:
    """The first host, with a file that is root's alone; as before afterwards."""
    found = connect(FIRST)
    found.check_output("umask 077; printf root > %s", SECRET)
    yield found
    found.check_output("rm -rf %s %s/%s %s", SECRET, INCOMING, NAME, TAKEN)


def as_user(host: Any, command: str) -> str:
    """A command of the user who connects, to whom the directory belongs."""
    user = host.check_output("stat -c %%U %s", INCOMING)
    assert user != "root"
    return host.check_output("runuser -u %s -- sh -c %s", user, command)


def take() -> Any:
    book = ROOT / "build" / "taken.yml"
    book.parent.mkdir(exist_ok=True)
    book.write_text(BOOK)
    try:
        return playbook("../build/taken.yml", "--limit", FIRST)
    finally:
        book.unlink()


def test_a_planted_link_is_refused_and_what_is_behind_it_stays(host: Any) -> None:
    as_user(host, f"ln -s {SECRET} {INCOMING}/{NAME}")
    done = take()
    assert done.code == 2, done.output
    assert "found a link or a directory in its place" in " ".join(done.output.split())
    assert host.check_output("stat -c '%%U %%a' %s", SECRET) == "root 600"
    assert not host.file(TAKEN).exists


def test_a_file_that_the_user_still_has_open_is_refused_until_it_is_closed(host: Any) -> None:
    write = f"printf '%s' '{CONTENT}' > {INCOMING}/{NAME}"
    writer = as_user(host, f"{write}; exec 3>>{INCOMING}/{NAME}; tail -f /dev/null >/dev/null 2>&1 & echo $!").strip()
    try:
        done = take()
        assert done.code == 2, done.output
        assert "somebody still has it open for writing" in " ".join(done.output.split())
        assert not host.file(TAKEN).exists
    finally:
        host.check_output("kill %s", writer)
    as_user(host, write)
    done = take()
    assert done.code == 0, done.output
    assert host.check_output("stat -c '%%U %%a' %s", TAKEN) == "root 400"
