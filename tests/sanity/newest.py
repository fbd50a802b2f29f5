"""Run ansible-test sanity with the newest ansible-core, as root in a Debian 13 below build/sanity, which has a new enough Python.

Arguments are those of ansible-test.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))
from images import debian_mirror  # noqa: E402

SYSTEM = ROOT / "build/sanity/debian-13"
DONE = SYSTEM / "done"
PACKAGES = "ca-certificates,git,locales-all,python3,python3-venv"
# Files of the machine that pip needs to reach a package index: certificate authorities and resolver
NETWORK = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/resolv.conf"))
SCRIPT = """
set -e
mount --bind {checkout} {system}/mnt
mount --bind /proc {system}/proc
for directory in {directories}; do mkdir -p {system}$directory; mount --bind $directory {system}$directory; done
for file in {files}; do
  mkdir -p $(dirname {system}$file); [ -e {system}$file ] || : > {system}$file
  mount --bind $file {system}$file
done
exec chroot {system} /bin/sh -ec '
  [ -x /venv/bin/ansible-test ] || python3 -m venv /venv
  /venv/bin/pip install --quiet --requirement /mnt/tests/sanity/newest.txt
  git config --system --replace-all safe.directory "*"
  cd /mnt && exec /venv/bin/python tests/sanity/run.py "$@"' run {arguments}
"""


def system() -> None:
    """Make the Debian system, unless it exists."""
    if DONE.exists():
        return
    shutil.rmtree(SYSTEM, ignore_errors=True)
    SYSTEM.mkdir(parents=True)
    print("sanity: making a Debian 13 with debootstrap", flush=True)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", str(SYSTEM), debian_mirror()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    DONE.touch()


def pip_settings() -> tuple[str, list[str], list[Path]]:
    """Return (the machine's pip configuration, the directories that it names, the files that it names)."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    pairs = [line.partition("=") for line in listed.splitlines() if line.startswith("global.")]
    values = {name.removeprefix("global."): value.strip().strip("'") for name, _equals, value in pairs}
    words = [word.removeprefix("file://") for value in values.values() for word in value.split()]
    named = [Path(word) for word in words if word.startswith("/")]
    # A local index refers to other files, so the whole top directory is mounted.
    directories = sorted({"/" + path.parts[1] for path in named if path.is_dir()})
    content = "[global]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
    return content, directories, [path for path in named if path.is_file()]


def main() -> int:
    """Make the system, and run the sanity tests in it."""
    if os.geteuid() or not shutil.which("debootstrap"):
        print(
            "sanity: root or debootstrap is missing, expected both to make a Debian 13. Run `apt-get install debootstrap` as root.",
            file=sys.stderr,
        )
        return 1
    system()
    settings, directories, files = pip_settings()
    # Only root may read this file, because the address of an index may contain a login.
    conf = SYSTEM / "etc/pip.conf"
    conf.touch(0o600)
    conf.chmod(0o600)
    conf.write_text(settings)
    script = SCRIPT.format(
        checkout=shlex.quote(str(ROOT)),
        system=shlex.quote(str(SYSTEM)),
        directories=" ".join(map(shlex.quote, directories)),
        # These files are mounted and not copied, so that no second copy of a key for an index is stored.
        files=" ".join(shlex.quote(str(path)) for path in (*NETWORK, *files) if path.exists()),
        arguments=shlex.join(sys.argv[1:]),
    )
    # The mounts are in a separate namespace, so the kernel removes them when the command ends.
    return subprocess.run(["unshare", "--mount", "sh", "-c", script], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
