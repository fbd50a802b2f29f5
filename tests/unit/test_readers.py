"""Ways to read a host: each ends in time, is bounded in size, and says in words what it cannot get."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import decode_stream
from ansible_collections.npufleet.triton.plugins.module_utils.support import readers
from ansible_collections.npufleet.triton.plugins.module_utils.support.readers import Limits, Missing, Partial, Unavailable
from hostile_user import PLANTS, HostileUser

LIMITS = Limits(seconds=2, size=4096, lines=50)
SECRET = "hunter2/hunter2+ä"


def test_long_text_is_cut_at_the_begin_of_a_line() -> None:
    raw = b"".join(b"line %d\n" % number for number in range(1000))
    text = readers.tail(raw, 100)
    first, *lines = text.splitlines()
    assert first == f"[the first {len(raw) - sum(len(line) + 1 for line in lines)} bytes are left out]"
    assert lines[-1] == "line 999" and all(line.startswith("line ") for line in lines) and len(text) < 160
    assert readers.tail(b"x" * 200 + SECRET.encode() * 20, 100).splitlines()[1:] == [], "a piece of a line is not kept"
    assert readers.tail(b"short\xff", 100) == "short\ufffd"


def test_command() -> None:
    assert readers.command(LIMITS, "sh", "-c", "echo out; echo err >&2") == "out\nerr\n"
    with pytest.raises(Unavailable, match="no-such-command is not installed"):
        readers.command(LIMITS, "no-such-command")
    with pytest.raises(Partial, match="ended with 3: sorry") as partial:
        readers.command(LIMITS, "sh", "-c", "echo sorry; exit 3")
    assert partial.value.content == "sorry\n"
    with pytest.raises(Partial, match=r"ended with 3: \(1000 characters\)"):
        readers.command(LIMITS, "sh", "-c", "echo begin; head -c 1000 /dev/zero | tr '\\0' x; exit 3")
    assert readers.command(LIMITS, "sh", "-c", "exit 1", accept=(0, 1)) == ""
    long = readers.command(LIMITS, "sh", "-c", "yes 0123456789 | head -c 1000000; echo; echo last")
    assert long.endswith("\nlast\n") and len(long) < 2 * LIMITS.size


@pytest.mark.parametrize(
    "script", ["echo begun; sleep 60", "echo begun; trap '' TERM; sleep 60 & sleep 60", "echo begun; exec >&- 2>&-; sleep 60"]
)
def test_command_that_does_not_end_is_killed(script: str, tmp_path: Path) -> None:
    with pytest.raises(Partial, match=r"did not end within 1\.5 s") as partial:
        readers.command(Limits(1.5, 4096, 50), "sh", "-c", f"{script}; touch {tmp_path}/ended")
    assert partial.value.content == "begun\n"
    assert not (tmp_path / "ended").exists(), "it was waited for"


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.txt").write_text("c\n" * 10000)
    found = readers.read_files(LIMITS, f"{tmp_path}/*.json", f"{tmp_path}/*.txt", f"{tmp_path}/*.none")
    assert found[f"{tmp_path}/a.json"] == {"a": 1}
    assert found[f"{tmp_path}/b.json"] == "{"
    assert len(found[f"{tmp_path}/c.txt"]) < LIMITS.size + 100
    with pytest.raises(Unavailable, match="there is no /nowhere/a, /nowhere/b"):
        readers.read_files(LIMITS, "/nowhere/a", "/nowhere/b")
    with pytest.raises(Missing):
        readers.read_file("/nowhere/a", LIMITS)


def test_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases/a").write_text("abc")
    (tmp_path / "served").symlink_to("releases/a")
    lines = readers.list_tree(str(tmp_path)).splitlines()
    assert len(lines) == 3
    assert [line.split(" ", 1)[0] for line in lines] == ["drwxr-xr-x", "lrwxrwxrwx", "-rw-r--r--"]
    assert lines[1].endswith(f"{tmp_path}/served -> releases/a")
    monkeypatch.setattr(readers, "MAX_ENTRIES", 2)
    with pytest.raises(Partial, match="only the first 2 entries"):
        readers.list_tree(str(tmp_path))


def test_log_of_a_container() -> None:
    raw = b"".join(struct.pack(">BxxxI", stream, len(words)) + words for stream, words in ((1, b"out\n"), (2, b"err\n")))
    assert decode_stream(raw) == b"out\nerr\n"
    assert decode_stream(raw[:-2]) == b"out\ner"
    assert decode_stream(b"of a terminal\n") == b"of a terminal\n"
    assert decode_stream(b"") == b""
    # As many as a log of a few megabytes can have, in a time that grows with their number alone
    assert decode_stream(struct.pack(">BxxxI", 1, 1) + b"x" * 1) * 1_000_000 == decode_stream(
        (struct.pack(">BxxxI", 1, 1) + b"x") * 1_000_000
    )


@pytest.mark.parametrize("what", PLANTS)
def test_what_leads_elsewhere_is_not_read(tmp_path: Path, what: str) -> None:
    (tmp_path / "place").mkdir()
    user = HostileUser(tmp_path / "place", tmp_path / "elsewhere")
    user.plant(what, "prometheus.yml")
    with pytest.raises(Unavailable, match=r"prometheus\.yml is .*, expected a regular file with one name"):
        readers.read_file(f"{tmp_path}/place/prometheus.yml", LIMITS)
    if what not in ("directory", "link to a directory"):
        found = readers.read_files(LIMITS, f"{tmp_path}/place/*.yml")
        assert list(found[f"{tmp_path}/place/prometheus.yml"]) == ["error"]
