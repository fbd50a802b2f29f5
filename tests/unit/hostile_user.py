"""A hostile connecting user: what the owner of the directory of transfers can leave there, or keep, for root to fall into."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECRET = b"root's alone"
# What is planted under the name of a transferred file
PLANTS = ("link to a file of root's", "dangling link", "link to a directory", "second name", "directory", "pipe")


class HostileUser:
    """What that user does in `incoming`; `elsewhere` is root's."""

    def __init__(self, incoming: Path, elsewhere: Path) -> None:
        self.incoming, self.elsewhere = incoming, elsewhere
        elsewhere.mkdir()
        self.secret = elsewhere / "secret"
        self.secret.write_bytes(SECRET)
        self.secret.chmod(0o600)

    def plant(self, what: str, name: str) -> None:
        place = self.incoming / name
        if what == "link to a file of root's":
            place.symlink_to(self.secret)
        elif what == "dangling link":
            place.symlink_to(self.elsewhere / "new")
        elif what == "link to a directory":
            place.symlink_to(self.elsewhere, target_is_directory=True)
        elif what == "second name":
            os.link(self.secret, place)
        elif what == "directory":
            place.mkdir()
            (place / "deep").symlink_to(self.secret)
        else:
            os.mkfifo(place)

    @contextmanager
    def writing(self, name: str, content: bytes, way: str) -> Iterator[None]:
        """A transferred file that this user can still write to, by a descriptor or by a mapping."""
        path = self.incoming / name
        path.write_bytes(content)
        with path.open("r+b") as handle:
            if way == "descriptor":
                yield
            else:
                with mmap.mmap(handle.fileno(), len(content)):
                    handle.close()
                    yield

    def untouched(self) -> bool:
        """Whether what is root's is as it was, and nothing came beside it."""
        return (
            self.secret.read_bytes() == SECRET
            and stat.S_IMODE(self.secret.stat().st_mode) == 0o600
            and os.listdir(self.elsewhere) == ["secret"]
        )
