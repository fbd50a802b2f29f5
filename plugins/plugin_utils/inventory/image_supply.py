"""What an image is made of: where pip may get each wheel from, and whether base and wheels are those of the reviewed build.

A supply is {"base": {"reference", "id", "content"}, "requirements": [as pip takes them], "wheels": {file: SHA-256}}. The lock
file keeps the one of the first build, which is reviewed with it.
"""

from __future__ import annotations

import io
import netrc
import os
import re
import shlex
import string
import urllib.parse
from typing import Any, List, Mapping, Sequence

from ansible_collections.npufleet.triton.plugins.module_utils import shapes

SHAPE = {"base": {"reference": str, "id": str, "content?": str}, "requirements": [str], "wheels": {re.compile(".+"): str}}
# Options of pip by which a package may come from elsewhere; pip takes their beginnings for them too
ELSEWHERE = ("--index-url", "--pypi-url", "--extra-index-url", "--find-links", "--requirement")
# Where quotes and backslashes begin to mean something
QUOTES = (3, 11)
# Characters of a login; more than a pipe holds could not be read back
LONGEST = 1024


def flaws(found: Mapping[str, Any], locked: Mapping[str, Any], lock_file: str, release: str) -> List[str]:
    """Every difference between what a build would use and what the lock file keeps; none where it keeps nothing yet."""
    if not locked:
        return []
    misfit = shapes.mismatch(locked, SHAPE)
    if misfit:
        return [
            f"{lock_file}: `supply` of release {release}: {misfit}; bring the file back as it was reviewed, or take `supply` out"
        ]
    reasons = []
    base = locked["base"]
    # The ID of an image is another one in another engine's store; a lock of before has nothing else
    kind = "content" if "content" in base else "id"
    if base["reference"] == found["base"]["reference"] and base[kind] != found["base"][kind]:
        reasons.append("base image {}: found {}, wanted {}".format(base["reference"], found["base"][kind], base[kind]))
    here, there = found["wheels"], locked["wheels"]
    for name in sorted(set(here) & set(there)):
        if here[name] != there[name]:
            reasons.append(f"{name}: found SHA-256 {here[name]}, wanted {there[name]}")
    if same_requirements(found["requirements"], locked):
        reasons += [f"{name}: found SHA-256 {here[name]}, wanted no such file" for name in sorted(set(here) - set(there))]
        reasons += [f"{name}: found none, wanted SHA-256 {there[name]}" for name in sorted(set(there) - set(here))]
    if reasons:
        reasons.append(
            f"compare with their source; where the change is right take `supply` of release {release} out of {lock_file}, "
            "and the next build records it anew"
        )
    return reasons


def same_requirements(requirements: Sequence[str], locked: Mapping[str, Any]) -> bool:
    """Whether the lock is of these requirements, and so names every wheel that there may be."""
    return shapes.mismatch(locked, SHAPE) is None and sorted(requirements) == sorted(locked["requirements"])


def constraints(requirements: Sequence[str], locked: Mapping[str, Any]) -> str:
    """The locked version of every package as pip's constraints; empty where other requirements are asked for."""
    if not same_requirements(requirements, locked):
        return ""
    wheels = [name.split("-") for name in sorted(locked["wheels"]) if name.endswith(".whl")]
    return "".join(f"{parts[0]}=={parts[1]}\n" for parts in wheels)


def package(requirement: str) -> str:
    """Canonical name of the package that a requirement is of."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]).lower()


def wheel_call(
    requirements: Sequence[str],
    vendor: Sequence[str],
    index: str,
    others: Sequence[str] = (),
    options: Sequence[str] = (),
    wheels: Sequence[str] = (),
    place: str = "",
) -> List[str]:
    """Arguments of one call of pip, with /wheels and /vendor below `place`; a container mounts them.

    Without other indexes everything comes from the vendor's. With them the vendor's packages come in a call of their own from
    its index alone, and the call for the rest gets them as files (`wheels`): no other index can put its own in their place.
    """
    elsewhere = [option for option in options if _leads_elsewhere(option)]
    if elsewhere:
        raise ValueError(
            f"triton_image_pip_options: found {', '.join(elsewhere)}, wanted no option that names another source of packages: "
            "use triton_image_extra_index_urls"
        )
    call = ["download", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--only-binary=:all:", f"--dest={place}/wheels"]
    if not others:
        return [*call, f"--index-url={index}", f"--constraint={place}/vendor/constraints.txt", *options, *requirements]
    names = {package(name) for name in vendor}
    theirs = [requirement for requirement in requirements if package(requirement) in names]
    if not theirs:
        raise ValueError(
            f"triton_image_vendor_packages: found {', '.join(vendor) or 'none'}, of which triton_image_requirements asks for none, "
            "wanted the packages that the vendor's index has: correct it"
        )
    if not wheels:
        return [*call, "--no-deps", f"--index-url={index}", *options, *theirs]
    return [
        *call,
        f"--index-url={others[0]}",
        *(f"--extra-index-url={other}" for other in others[1:]),
        f"--constraint={place}/vendor/constraints.txt",
        *options,
        *wheels,
        *(requirement for requirement in requirements if requirement not in theirs),
    ]


def _leads_elsewhere(option: str) -> bool:
    name = option.partition("=")[0]
    if name.startswith("--"):
        return len(name) > 2 and any(word.startswith(name) for word in ELSEWHERE)
    return name.startswith(("-i", "-f", "-r"))


# The login to an index is in a netrc file, where pip looks for it. Two readers of the standard library differ: from Python 3.11 on
# a word may be quoted and a backslash escapes; before that both are characters like any other, and a space ends a word
# (https://docs.python.org/3/library/netrc.html). A file is written for the Python that runs pip, and read back as that Python does.


def login_file(address: str, user: str, password: str, python: str) -> str:
    """Return the netrc file of an index for the pip of this Python. Raises ValueError for a login that it cannot hold."""
    found = login_flaw(user, password, python)
    if found:
        raise ValueError(f"the login to {address} cannot be written for pip: {found}")
    return _netrc([urllib.parse.urlsplit(address).hostname or "", user, password], python)


def login_flaw(user: str, password: str, python: str) -> str:
    """Return why pip of this Python cannot read a login from a netrc file, or "". Says nothing of the password itself."""
    for name, value in (("user", user), ("password", password)):
        if not value or not value.isascii() or not value.isprintable() or len(value) > LONGEST:
            return f"its {name} is empty, longer than {LONGEST}, or has other characters than printable ASCII"
    words = ["index", user, password]
    if _words_of(_netrc(words, python), python) != words:
        return f"pip of Python {python} reads it from a netrc file as another one, because of a space in it"
    return ""


def _knows_quotes(python: str) -> bool:
    return tuple(int(part) for part in python.split(".")[:2]) >= QUOTES


def _netrc(words: List[str], python: str) -> str:
    if _knows_quotes(python):
        words = ['"{}"'.format(word.replace("\\", "\\\\").replace('"', '\\"')) for word in words]
    return "machine {} login {} password {}\n".format(*words)


def _words_of(text: str, python: str) -> List[str]:
    """Return [machine, user, password] as the netrc module of this Python reads them, [] for anything else."""
    if _knows_quotes(python):
        return _words_by_netrc(text)
    # As that module did until 3.10
    reader = shlex.shlex(io.StringIO(text))
    reader.wordchars += string.punctuation
    reader.commenters = ""
    keys, words = ["machine", "login", "password"], list(reader)
    return words[1::2] if words[::2] == keys and len(words) == 6 else []


def _words_by_netrc(text: str) -> List[str]:
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
