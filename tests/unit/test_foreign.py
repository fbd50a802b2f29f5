"""Files that another account may have made: what is opened of them, and what is refused unopened."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.store import foreign
from hostile_user import PLANTS, HostileUser

CONTENT = b"a record"


@pytest.fixture
def user(tmp_path: Path) -> HostileUser:
    (tmp_path / "place").mkdir()
    return HostileUser(tmp_path / "place", tmp_path / "elsewhere")


def test_a_regular_file_is_read(user: HostileUser) -> None:
    path = user.incoming / "record"
    path.write_bytes(CONTENT)
    assert foreign.read(str(path), len(CONTENT), owner=os.geteuid()) == CONTENT
    with foreign.open_file(str(path)) as source:
        assert foreign.digest(source) == foreign.digest(source) == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize("what", PLANTS)
def test_what_is_planted_is_not_read(user: HostileUser, what: str) -> None:
    user.plant(what, "record")
    with pytest.raises((foreign.NotRegular, FileNotFoundError), match="expected a regular file with one name"):
        foreign.read(str(user.incoming / "record"), 1000)


def test_a_device_node_is_refused_unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = os.open

    def seen(path: str, flags: int, *more: int, **where: int) -> int:
        if not flags & os.O_PATH:
            opened.append(path.endswith("null"))
        return real(path, flags, *more, **where)

    monkeypatch.setattr(foreign.os, "open", seen)
    with pytest.raises(foreign.NotRegular, match="is a device or a socket"):
        foreign.open_file("/dev/null")
    assert not any(opened)


def test_a_file_of_somebody_else_is_refused(user: HostileUser) -> None:
    path = user.incoming / "record"
    path.write_bytes(CONTENT)
    with pytest.raises(foreign.Untrusted, match=rf"belongs to user {os.geteuid()}, expected 12345"):
        foreign.open_file(str(path), owner=12345)


def test_a_file_larger_than_its_limit_is_refused(user: HostileUser) -> None:
    path = user.incoming / "record"
    path.write_bytes(CONTENT)
    with pytest.raises(foreign.Untrusted, match="is larger than 7 bytes"):
        foreign.open_file(str(path), limit=7)


def test_a_file_that_grows_beyond_its_limit_is_refused(user: HostileUser) -> None:
    path = user.incoming / "record"
    path.write_bytes(CONTENT)
    with foreign.open_file(str(path), limit=8) as source:
        with path.open("ab") as writer:
            writer.write(b"more")
        with pytest.raises(foreign.Untrusted, match="is larger than 8 bytes"):
            foreign.digest(source, 8)


def test_no_link_is_followed_below_the_base(user: HostileUser) -> None:
    base = user.incoming
    (base / "inner").mkdir()
    (base / "inner/record").write_bytes(CONTENT)
    assert foreign.read(str(base / "inner/record"), 100, base=str(base)) == CONTENT
    (base / "linked").symlink_to(user.elsewhere)
    for path in ("linked/secret", "inner/../linked/secret", "../elsewhere/secret"):
        with pytest.raises(foreign.Untrusted, match="expected"):
            foreign.read(str(base / path), 100, base=str(base))


def test_the_judged_file_is_read_whatever_its_name_leads_to(user: HostileUser) -> None:
    path = user.incoming / "record"
    path.write_bytes(CONTENT)
    with foreign.open_file(str(path)) as source:
        path.unlink()
        path.symlink_to(user.secret)
        assert source.read() == CONTENT
