#!/usr/bin/env python3
"""Builds the lab's driver packages: build.py DIRECTORY [VERSION...] [--kernel RELEASE].

A package `rebellions` per version (all the lab's without one), and with --kernel a stub of that kernel's own package.
The same input gives the same bytes: times are fixed, and nothing is compressed, because compressors differ.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Mapping

HERE = Path(__file__).resolve().parent
VERSIONS = ("1.1.67", "1.2.92", "2.0.1")
EPOCH = 1704067200  # 2024-01-01, in the past of every machine
CARDS = "/usr/local/lib/npufleet-lab/cards.py"
RULES = f"""\
# The kernel module is emulated: its cards are described in /etc/npufleet-lab/cards.json.
install rebellions {CARDS} load {{version}}
remove rebellions {CARDS} unload
"""
# Where the module lies until the package puts it where DKMS would, for the running kernel
MODULE = "/usr/lib/npufleet-lab/rebellions.ko"
# Like the vendor's, this package leaves loading the module to others.
POSTINST = f"""\
#!/bin/sh
set -e
install -D --mode=0644 {MODULE} "/lib/modules/$(uname -r)/updates/dkms/rebellions.ko"
depmod 2>/dev/null
"""
POSTRM = """\
#!/bin/sh
set -e
if [ "$1" = remove ]; then
    rm --force "/lib/modules/$(uname -r)/updates/dkms/rebellions.ko"
    depmod 2>/dev/null
fi
"""
PREINST = f"""\
#!/bin/sh
set -e
if [ ! -x {CARDS} ]; then
    echo "rebellions: found no {CARDS}, wanted a host of the npufleet lab: this package only emulates a driver;" >&2
    echo "install the vendor's package on a host with real cards." >&2
    exit 1
fi
"""


class BuildError(Exception):
    """A refusal or a failure: what was found, what was wanted, what to do next."""


def build_driver(version: str, directory: Path) -> Path:
    """Build the package `rebellions` of this version into `directory` and return its path."""
    numbers = re.fullmatch(r"(\d+)\.(\d+)\.\d+(-[0-9A-Za-z.]+)?", version)
    if not numbers:
        raise BuildError(f"driver version: found {version!r}, wanted one such as {VERSIONS[0]}")
    major, minor = int(numbers[1]), int(numbers[2])
    if major >= 3:
        raise BuildError(f"driver version: found {version}, wanted one below 3.0: from there on the vendor delivers no package")
    files: dict[str, tuple[str | bytes, int]] = {
        "etc/modprobe.d/rebellions-lab.conf": (RULES.format(version=version), 0o644),
        "usr/local/bin/rbln-stat": ((HERE / "rbln-stat").read_text(), 0o755),
        MODULE.lstrip("/"): (module(version), 0o644),
    }
    links = {"usr/local/bin/rbln-smi": "rbln-stat"} if (major, minor) >= (1, 3) else {}
    control = {
        "Package": "rebellions",
        "Version": version,
        "Section": "kernel",
        "Depends": "kmod, python3",
        "Description": "emulated NPU driver for the npufleet lab\n"
        " This is NOT the vendor's driver. It has no kernel module: `modprobe rebellions` shows emulated cards in\n"
        " sysfs and /dev of a lab host, and rbln-stat reports them. It refuses to be installed elsewhere.",
    }
    scripts = {"preinst": PREINST, "postinst": POSTINST, "postrm": POSTRM}
    return build(control, files, links, scripts, directory / f"rebel_driver_lab_{version}_amd64.deb")


def module(version: str) -> bytes:
    """An ELF object that carries nothing but what modinfo reads: sections of nothing, `.modinfo` and the names of both."""
    facts = {"version": version, "name": "rebellions", "license": "none, this is emulated"}
    modinfo = b"".join(f"{name}={value}".encode() + bytes(1) for name, value in facts.items())
    names = b"\0.modinfo\0.shstrtab\0"
    begin, end = 64 + len(modinfo), 64 + len(modinfo) + len(names)
    table = (end + 7) // 8 * 8
    # Elf64_Ehdr: a relocatable object for x86-64 with three section headers of 64 bytes each
    header = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    # Elf64_Shdr: name, type (PROGBITS, STRTAB), flags (ALLOC), address, offset, size, link, info, alignment, size of an entry
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, 64, len(modinfo), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, begin, len(names), 0, 0, 1, 0)
    return header + modinfo + names + bytes(table - end) + sections


def build_kernel(release: str, directory: Path) -> Path:
    """Build a stub of the kernel `release`, whose packages a lab host lacks: one to hold, with a place where headers would be."""
    if not re.fullmatch(r"[0-9][a-z0-9.+-]*", release):
        raise BuildError(
            f"kernel release: found {release!r}, wanted one that a package can be named after, such as 6.8.0-49-generic"
        )
    control = {
        "Package": f"linux-image-{release}",
        "Version": release,
        "Section": "kernel",
        "Description": "stub of the running kernel's package for the npufleet lab\n"
        " It has neither a kernel nor headers: the hosts of the lab run the kernel of the machine that they are on.",
    }
    headers: dict[str, tuple[str | bytes, int]] = {
        f"usr/lib/modules/{release}/build/README": ("The headers that DKMS would build with. The lab's driver needs none.\n", 0o644)
    }
    return build(control, headers, {}, {}, directory / f"linux-image-{release}_{release}_amd64.deb")


def build(
    control: Mapping[str, str],
    files: Mapping[str, tuple[str | bytes, int]],
    links: Mapping[str, str],
    scripts: Mapping[str, str],
    target: Path,
) -> Path:
    """Build a package of `files` {path: (content, mode)}, `links` {path: to} and maintainer `scripts`; returns `target`."""
    common = {"Architecture": "amd64", "Maintainer": "The npufleet developers <npufleet@localhost>", "Priority": "optional"}
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".deb-", dir=target.parent) as work:
        tree = Path(work, "tree")
        fields = "".join(f"{name}: {value}\n" for name, value in {**control, **common}.items())
        everything: dict[str, tuple[str | bytes, int]] = {
            "DEBIAN/control": (fields, 0o644),
            **{f"DEBIAN/{name}": (text, 0o755) for name, text in scripts.items()},
            **files,
        }
        for path, (content, mode) in everything.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content if isinstance(content, bytes) else content.encode())
            (tree / path).chmod(mode)
        for path, to in links.items():
            (tree / path).symlink_to(to)
        for entry in [*tree.rglob("*"), tree]:
            if entry.is_dir():
                entry.chmod(0o755)  # whatever the umask is
        package = Path(work, target.name)
        done = subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(package)],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BuildError(f"dpkg-deb ended with {done.returncode}: {done.stderr.strip()}")
        package.replace(target)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--kernel", metavar="RELEASE", help="also build the stub of this kernel's package; `uname -r` says which")
    arguments = parser.parse_args()
    try:
        for version in arguments.versions or VERSIONS:
            print(build_driver(version, arguments.directory))
        if arguments.kernel:
            print(build_kernel(arguments.kernel, arguments.directory))
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
