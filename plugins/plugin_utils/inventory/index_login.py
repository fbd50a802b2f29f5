"""The login to a package index as a netrc file, which is where pip looks for one. Controller only.

Two readers of the standard library differ: from Python 3.11 on a word may be quoted and a backslash escapes, before that both are
characters like any other and a space ends a word (https://docs.python.org/3/library/netrc.html). A file is written for the Python
that runs pip, and read back as that one reads it.
"""

from __future__ import annotations

import io
import netrc
import os
import shlex
import string
import urllib.parse
from typing import List

# Where quotes and backslashes begin to mean something
QUOTES = (3, 11)
# Characters of a login; more than a pipe holds could not be read back
LONGEST = 1024


def file_of(address: str, user: str, password: str, python: str) -> str:
    """Return the netrc file of an index for the pip of this Python. Raises ValueError for a login that it cannot hold."""
    found = flaw(user, password, python)
    if found:
        raise ValueError(f"the login to {address} cannot be written for pip: {found}")
    return _written([urllib.parse.urlsplit(address).hostname or "", user, password], python)


def flaw(user: str, password: str, python: str) -> str:
    """Return why pip of this Python cannot read a login from a netrc file, or "". Says nothing of the password itself."""
    for name, value in (("user", user), ("password", password)):
        if not value or not value.isascii() or not value.isprintable() or len(value) > LONGEST:
            return f"its {name} is empty, longer than {LONGEST}, or has other characters than printable ASCII"
    words = ["index", user, password]
    if _read(_written(words, python), python) != words:
        return f"pip of Python {python} reads it from a netrc file as another one, because of a space in it"
    return ""


def _quotes(python: str) -> bool:
    return tuple(int(part) for part in python.split(".")[:2]) >= QUOTES


def _written(words: List[str], python: str) -> str:
    if _quotes(python):
        words = ['"{}"'.format(word.replace("\\", "\\\\").replace('"', '\\"')) for word in words]
    return "machine {} login {} password {}\n".format(*words)


def _read(text: str, python: str) -> List[str]:
    """Return [machine, user, password] as the netrc module of this Python reads them, [] for anything else."""
    if _quotes(python):
        return _read_by_netrc(text)
    # As that module did until 3.10
    reader = shlex.shlex(io.StringIO(text))
    reader.wordchars += string.punctuation
    reader.commenters = ""
    keys, words = ["machine", "login", "password"], list(reader)
    return words[1::2] if words[::2] == keys and len(words) == 6 else []


def _read_by_netrc(text: str) -> List[str]:
    # Through a pipe, as the module takes a path alone and a password belongs in no file of the controller
    begin, end = os.pipe()
    try:
        with os.fdopen(end, "w", encoding="utf-8") as sink:
            sink.write(text)
        hosts = netrc.netrc(f"/dev/fd/{begin}").hosts
    except netrc.NetrcParseError:
        return []
    finally:
        os.close(begin)
    return [word for host, login in hosts.items() for word in (host, login[0], login[2])]
