#!/usr/bin/env python3
"""Build the lab's drivers: build.py DIRECTORY [VERSION...] [--kernel RELEASE].

Each version below 3.0 becomes a package `rebellions`, each later version an installer. The default is all versions of the lab.
--kernel also builds a stub package of this kernel release. The same input gives the same bytes: times are fixed, and nothing is
compressed, because compressors differ.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Mapping

HERE = Path(__file__).resolve().parent
VERSIONS = ("1.1.67", "1.2.92", "2.0.1", "3.2.2")
EPOCH = 1704067200  # 2024-01-01, a date in the past for every machine
CARDS = "/usr/local/lib/npufleet-lab/cards.py"
RULES = f"""\
# Instead of the kernel module, modprobe runs cards.py, which shows the cards of /etc/npufleet-lab/cards.json.
install rebellions {CARDS} load {{version}}
remove rebellions {CARDS} unload
"""
# Path of the module in the package. Its postinst script copies the module to the DKMS directory of the running kernel.
MODULE = "/usr/lib/npufleet-lab/rebellions.ko"
# Like the vendor's package, this package does not load the module.
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
    echo "rebellions: {CARDS} is missing, expected a host of the npufleet lab: this package only emulates a driver;" >&2
    echo "install the vendor's package on a host with real cards." >&2
    exit 1
fi
"""


# This installer has the known behaviour of the vendor's installer: it does not run if the package `rebellions` is installed, needs
# the build tools of DKMS, writes firmware only to unused cards, and installs packages. It also asks a question, because the
# vendor's installer may ask one.
INSTALLER = f"""\
#!/bin/sh
# The lab's stand-in for the vendor's installer: it builds with the real DKMS, and its cards are emulated.
set -eu
refuse() {{ echo "rebellions-installer: $*" >&2; exit 1; }}
[ "$(id -u)" = 0 ] || refuse "root is needed"
[ -x {CARDS} ] || refuse "{CARDS} is missing, expected a host of the npufleet lab: this installer only emulates a driver"
[ $# = 0 ] || refuse "unknown argument $1"
state=$(dpkg-query --show --showformat='${{db:Status-Status}}' rebellions 2>/dev/null || :)
[ "$state" != installed ] || refuse "found package rebellions: remove it first"
for tool in dkms make cc; do command -v $tool >/dev/null || refuse "found no $tool"; done
[ -e "/lib/modules/$(uname -r)/build/Makefile" ] || refuse "found no headers of kernel $(uname -r)"
[ ! -e /sys/module/rebellions/initstate ] || refuse "the module is loaded: firmware cannot be written"
printf 'Install driver {{version}}? [Y/n] '
if read -r answer && [ "$answer" != Y ]; then refuse "not installed"; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed '1,/^__PACKAGES__$/d' "$0" | tar -x -C "$work"
dpkg --install "$work"/*.deb
[ ! -e /etc/npufleet-lab/installer-fails ] || refuse "the firmware could not be written"
echo "rebellions-installer: driver {{version}} is installed"
exit 0
__PACKAGES__
"""
DKMS_CONF = """\
PACKAGE_NAME="rebellions-dkms"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="rebellions"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="make -C ${{kernel_source_dir}} M=${{dkms_tree}}/rebellions-dkms/{version}/build modules"
CLEAN="true"
AUTOINSTALL="yes"
"""
# C source of a module that contains only the data of modinfo
SOURCE = """\
#define MODINFO(name, value) \\
    static const char name[] __attribute__((used, section(".modinfo"), aligned(1))) = #name "=" value
MODINFO(version, "{version}");
MODINFO(name, "rebellions");
MODINFO(license, "none, this is emulated");
"""
# Makefile of the kernel headers, reduced to the needs of the lab's module
BUILD_TREE = """\
modules:
\t$(CC) -c -o $(M)/rebellions.ko $(M)/rebellions.c
"""
DKMS_POSTINST = """\
#!/bin/sh
set -e
dkms install -m rebellions-dkms -v {version}
"""
DKMS_PRERM = """\
#!/bin/sh
set -e
dkms remove -m rebellions-dkms -v {version} --all
"""
# The package of a real kernel runs depmod, too.
KERNEL_POSTINST = """\
#!/bin/sh
set -e
depmod {release} 2>/dev/null
"""
# This service keeps the module in use, like the vendor's service.
SERVICE = """\
[Unit]
Description=Emulated management service of the lab's NPUs
ConditionPathExists=/dev/rsd0

[Service]
ExecStart=/usr/bin/rbln-smd

[Install]
WantedBy=multi-user.target
"""
SERVICE_POSTINST = """\
#!/bin/sh
set -e
systemctl daemon-reload
systemctl enable --quiet rbln-smd.service
"""


class BuildError(Exception):
    """A refusal or a failure, with the actual value, the expected value and the next step."""


def build_driver(version: str, directory: Path) -> Path:
    """Build the driver of this version into `directory`, in the vendor's form (package or installer), and return its path."""
    numbers = re.fullmatch(r"(\d+)\.(\d+)\.\d+(-[0-9A-Za-z.]+)?", version)
    if not numbers:
        raise BuildError(f"driver version is {version!r}, expected one such as {VERSIONS[0]}")
    major, minor = int(numbers[1]), int(numbers[2])
    if major >= 3:
        return build_installer(version, directory)
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
        " This is NOT the vendor's driver. Its kernel module has no code: `modprobe rebellions` shows emulated cards\n"
        " in sysfs and /dev of a lab host, and rbln-stat reports them. It refuses to be installed elsewhere.",
    }
    scripts = {"preinst": PREINST, "postinst": POSTINST, "postrm": POSTRM}
    return build(control, files, links, scripts, directory / f"rebel_driver_lab_{version}_amd64.deb")


def build_installer(version: str, directory: Path) -> Path:
    """Build the installer of this version into `directory`, and return its path. The installer contains packages."""
    emulated = "\n This is NOT the vendor's driver. It refuses to be installed anywhere but on hosts of the npufleet lab."
    source, libraries = f"usr/src/rebellions-dkms-{version}", "usr/lib"
    names = ("librbln-thunk.so", "librbln-ccl.so")
    no_library = "This file is not a library. The SDK of the lab opens no library of the driver.\n"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".run-", dir=directory) as work:
        packages = [
            build(
                {
                    "Package": "rebellions-dkms",
                    "Version": version,
                    "Section": "kernel",
                    "Depends": "dkms, python3",
                    "Description": "emulated NPU driver for the npufleet lab" + emulated,
                },
                {
                    f"{source}/dkms.conf": (DKMS_CONF.format(version=version), 0o644),
                    f"{source}/rebellions.c": (SOURCE.format(version=version), 0o644),
                    "etc/modprobe.d/rebellions-lab.conf": (RULES.format(version=version), 0o644),
                },
                {},
                {
                    "preinst": PREINST,
                    "postinst": DKMS_POSTINST.format(version=version),
                    "prerm": DKMS_PRERM.format(version=version),
                },
                Path(work, "rebellions-dkms.deb"),
            ),
            build(
                {
                    "Package": "rebellions-fw",
                    "Version": version,
                    "Section": "kernel",
                    "Description": "emulated firmware for the npufleet lab" + emulated,
                },
                {f"usr/lib/firmware/rebellions/{version}": ("The emulated cards have no firmware.\n", 0o644)},
                {},
                {},
                Path(work, "rebellions-fw.deb"),
            ),
            build(
                {
                    "Package": "librbln-ml",
                    "Version": version,
                    "Section": "libs",
                    "Depends": "python3",
                    "Description": "emulated libraries and tools for the npufleet lab" + emulated,
                },
                {
                    **{f"{libraries}/{name}.{version}": (no_library, 0o644) for name in names},
                    f"{libraries}/librbln-ml.so": (no_library, 0o644),
                    "usr/bin/rbln-smi": ((HERE / "rbln-stat").read_text(), 0o755),
                    "usr/bin/rbln-smd": ("#!/bin/sh\nexec sleep infinity < /dev/rsd0\n", 0o755),
                    "lib/systemd/system/rbln-smd.service": (SERVICE, 0o644),
                },
                {f"{libraries}/{name}.{version.partition('.')[0]}": f"{name}.{version}" for name in names},
                {"postinst": SERVICE_POSTINST},
                Path(work, "librbln-ml.deb"),
            ),
        ]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for package in packages:
                entry = tarfile.TarInfo(package.name)
                entry.size, entry.mtime = package.stat().st_size, EPOCH
                archive.addfile(entry, io.BytesIO(package.read_bytes()))
        installer = Path(work, "installer")
        installer.write_bytes(INSTALLER.replace("{version}", version).encode() + packed.getvalue())
        target = directory / f"rebellions-x86_64-{version}.run"
        return installer.replace(target)


def module(version: str, name: str = "rebellions") -> bytes:
    """Return an ELF object without code. Its sections are an empty one, `.modinfo`, and one with the names of the sections."""
    facts = {"version": version, "name": name, "license": "none, this is emulated"}
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
    """Build a stub package of kernel `release` with a build directory, for `apt-mark hold`. Return its path."""
    if not re.fullmatch(r"[0-9][a-z0-9.+-]*", release):
        raise BuildError(
            f"kernel release is {release!r}, expected one that can be in the name of a package, such as 6.8.0-49-generic"
        )
    control = {
        "Package": f"linux-image-{release}",
        "Version": release,
        "Section": "kernel",
        "Description": "stub of the running kernel's package for the npufleet lab\n"
        " It has neither a kernel nor headers: the hosts of the lab run the kernel of the machine that they are on.",
    }
    tree = f"usr/lib/modules/{release}/build"
    files: dict[str, tuple[str | bytes, int]] = {
        f"{tree}/Makefile": (BUILD_TREE, 0o644),
        # DKMS recognizes a build tree by this directory.
        f"{tree}/include/README": ("The lab's module includes nothing.\n", 0o644),
        # DKMS 3.2 lists its modules only if the kernel also has a module that DKMS has not built, such as this one.
        f"usr/lib/modules/{release}/kernel/lib/npufleet-lab.ko": (module(release, "npufleet-lab"), 0o644),
    }
    return build(
        control,
        files,
        {},
        {"postinst": KERNEL_POSTINST.format(release=release)},
        directory / f"linux-image-{release}_{release}_amd64.deb",
    )


def build(
    control: Mapping[str, str],
    files: Mapping[str, tuple[str | bytes, int]],
    links: Mapping[str, str],
    scripts: Mapping[str, str],
    target: Path,
) -> Path:
    """Build a Debian package, write it to `target`, and return `target`.

    control  fields of the control file
    files    content and mode of each file, by path
    links    target of each symbolic link, by path
    scripts  text of each maintainer script, by name
    """
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
                entry.chmod(0o755)  # The umask may have removed permissions.
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
    parser.add_argument("--kernel", metavar="RELEASE", help="also build a stub package of this kernel release (see `uname -r`)")
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
