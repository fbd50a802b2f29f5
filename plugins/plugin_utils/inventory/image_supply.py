# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The supply of an image build (base image and wheels), its comparison with the lock file, and the calls of pip.

A supply is {"base": {"reference", "id", "content"}, "requirements": [requirements of pip], "wheels": {file: SHA-256}}.
The lock file contains the reviewed supply of an earlier build.
"""

from __future__ import annotations

import io
import re
import shlex
import string
import urllib.parse
from typing import Any, List, Mapping, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import shapes

SHAPE = {"base": {"reference": str, "id": str, "content?": str}, "requirements": [str], "wheels": {re.compile(".+"): str}}
# Options of pip for sources of packages. pip also accepts abbreviations of these options.
SOURCE_OPTIONS = ("--index-url", "--pypi-url", "--extra-index-url", "--find-links", "--requirement")
# The first Python whose netrc module knows quotes and backslashes
QUOTES_SINCE = (3, 11)
# The maximum number of characters of a user name or a password
MAX_LOGIN = 1024


def differences(actual: Mapping[str, Any], locked: Mapping[str, Any], lock_file: str, release: str) -> List[str]:
    """Return the differences between the actual supply of a build and the locked supply, which is {} before the first build."""
    if not locked:
        return []
    shape_error = shapes.mismatch(locked, SHAPE)
    if shape_error:
        return [f"{lock_file}: `supply` of release {release}: {shape_error}. Restore the reviewed file, or remove `supply`"]
    reasons = []
    base = locked["base"]
    # An image's ID depends on the engine's image store, so the digest of the content is preferred. Old lock files lack this digest.
    key = "content" if "content" in base else "id"
    if base["reference"] == actual["base"]["reference"] and base[key] != actual["base"][key]:
        reasons.append(f"base image {base['reference']} is {actual['base'][key]}, expected {base[key]}")
    all_listed = same_requirements(actual["requirements"], locked)
    for name in sorted({*actual["wheels"], *locked["wheels"]}):
        digest, locked_digest = actual["wheels"].get(name), locked["wheels"].get(name)
        if all_listed and digest is None:
            reasons.append(f"{name} is missing, expected SHA-256 {locked_digest}")
        elif all_listed and locked_digest is None:
            reasons.append(f"{name} has SHA-256 {digest}, expected no such file")
        elif None not in (digest, locked_digest) and digest != locked_digest:
            reasons.append(f"{name} has SHA-256 {digest}, expected {locked_digest}")
    if reasons:
        reasons.append(
            f"Compare with their source. If the change is right, remove `supply` of release {release} from {lock_file}, "
            "and the next build records it again"
        )
    return reasons


def same_requirements(requirements: Sequence[str], locked: Mapping[str, Any]) -> bool:
    """Return True if the locked supply has the same requirements, and thus lists all wheels of this build."""
    return shapes.mismatch(locked, SHAPE) is None and sorted(requirements) == sorted(locked["requirements"])


def constraints(requirements: Sequence[str], locked: Mapping[str, Any]) -> str:
    """Return the locked versions as a constraints file of pip, or "" if the requirements differ from the lock file."""
    if not same_requirements(requirements, locked):
        return ""
    wheels = [name.split("-") for name in sorted(locked["wheels"]) if name.endswith(".whl")]
    return "".join(f"{parts[0]}=={parts[1]}\n" for parts in wheels)


def package(requirement: str) -> str:
    """Return the canonical name of the package in a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]).lower()


def wheel_call(
    requirements: Sequence[str],
    vendor: Sequence[str],
    index: str,
    others: Sequence[str] = (),
    options: Sequence[str] = (),
    wheels: Sequence[str] = (),
    directory: str = "",
) -> List[str]:
    """Return the arguments of one call of pip, which writes to `directory`/wheels and reads `directory`/vendor. Raises ValueError.

    Without `others`, all packages come from the vendor's `index`. With other indexes, a first call downloads the `vendor` packages
    from the vendor's index. A second call gets these files as `wheels`, so that no other index can replace them.
    """
    sources = [option for option in options if _names_a_source(option)]
    if sources:
        raise ValueError(
            f"triton_image_pip_options contains {', '.join(sources)}, expected no option that names another source of packages. "
            "Use triton_image_extra_index_urls."
        )
    call = [
        "download",
        "--quiet",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--only-binary=:all:",
        f"--dest={directory}/wheels",
    ]
    if not others:
        return [*call, f"--index-url={index}", f"--constraint={directory}/vendor/constraints.txt", *options, *requirements]
    names = {package(name) for name in vendor}
    vendor_requirements = [requirement for requirement in requirements if package(requirement) in names]
    if not vendor_requirements:
        raise ValueError(
            f"triton_image_vendor_packages is {', '.join(vendor) or 'empty'}, expected packages of the vendor's index that "
            "triton_image_requirements contains. Correct it."
        )
    if not wheels:
        return [*call, "--no-deps", f"--index-url={index}", *options, *vendor_requirements]
    return [
        *call,
        f"--index-url={others[0]}",
        *(f"--extra-index-url={other}" for other in others[1:]),
        f"--constraint={directory}/vendor/constraints.txt",
        *options,
        *wheels,
        *(requirement for requirement in requirements if requirement not in vendor_requirements),
    ]


def _names_a_source(option: str) -> bool:
    name = option.partition("=")[0]
    if name.startswith("--"):
        return len(name) > 2 and any(word.startswith(name) for word in SOURCE_OPTIONS)
    return name.startswith(("-i", "-f", "-r"))


# pip reads the login to an index from a netrc file. Python 3.11 and newer know quotes and backslashes in this file, older Pythons
# do not (https://docs.python.org/3/library/netrc.html). Therefore the file is written for the Python that runs pip. With quotes,
# every login of printable ASCII can be written. Without quotes, a login is accepted if an older Python would read it correctly.


def login_file(address: str, user: str, password: str, python: str) -> str:
    """Return a netrc file with the login to an index, for pip of this Python version. Raises ValueError if that is impossible."""
    flaw = login_flaw(user, password, python)
    if flaw:
        raise ValueError(f"the login to {address} cannot be written for pip: {flaw}")
    return _netrc([urllib.parse.urlsplit(address).hostname or "", user, password], python)


def login_flaw(user: str, password: str, python: str) -> str:
    """Return why pip of a Python version cannot read a login from a netrc file, or "". The text does not contain the password."""
    for name, value in (("user", user), ("password", password)):
        if not value or not value.isascii() or not value.isprintable() or len(value) > MAX_LOGIN:
            return f"its {name} is empty, longer than {MAX_LOGIN}, or has other characters than printable ASCII"
    words = ["index", user, password]
    if not _knows_quotes(python) and _words_without_quotes(_netrc(words, python)) != words:
        return f"pip of Python {python} reads another login from a netrc file, because of a space in the login"
    return ""


def _knows_quotes(python: str) -> bool:
    return tuple(int(part) for part in python.split(".")[:2]) >= QUOTES_SINCE


def _netrc(words: List[str], python: str) -> str:
    if _knows_quotes(python):
        words = ['"{}"'.format(word.replace("\\", "\\\\").replace('"', '\\"')) for word in words]
    return "machine {} login {} password {}\n".format(*words)


def _words_without_quotes(text: str) -> List[str]:
    """Return [machine, user, password] as the netrc module reads them until Python 3.10, or [] for any other content."""
    reader = shlex.shlex(io.StringIO(text))
    reader.wordchars += string.punctuation
    reader.commenters = ""
    keys, words = ["machine", "login", "password"], list(reader)
    return words[1::2] if words[::2] == keys and len(words) == 6 else []
