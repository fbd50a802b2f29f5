"""Run ansible-test sanity on the shipped files, in a copy below build/sanity. Arguments are those of ansible-test."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build/sanity/ansible_collections/npufleet/triton"
BIN = Path(sys.executable).parent
# Files that are not in the archive of the collection
LEFT_OUT = ("lab/", "molecule/", "collections/", "inventories/lab/", ".")
# The exceptions. ansible-test reads them from a file whose name contains the version of ansible-core.
EXCEPTIONS = ROOT / "tests/sanity/ignore.txt"
# A script that installs pip. ansible-test would download such a script from a host of Ansible, but Python contains pip.
BOOTSTRAP = """import subprocess, sys
pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
subprocess.check_call([sys.executable, "-m", "ensurepip", "--default-pip"], stdout=subprocess.DEVNULL)
subprocess.check_call([*pip, *(word for word in sys.argv[1:] if not word.startswith("--"))])
"""


def ships(name: str) -> bool:
    """Return True if a tracked file is tested."""
    return not name.startswith((*LEFT_OUT, "tests/"))


def bootstrap(home: Path) -> None:
    """Write the script that installs pip into the cache of ansible-test, so that ansible-test does not download a script."""
    spec = importlib.util.find_spec("ansible_test")
    if spec is None or spec.origin is None:
        raise SystemExit("sanity: ansible_test is missing, expected it beside ansible-core: run `make venv`")
    requirements = (Path(spec.origin).parent / "_internal/python_requirements.py").read_text()
    cache = home / ".ansible/test/cache"
    cache.mkdir(parents=True, exist_ok=True)
    for version in re.findall(r"pip='([\d.]+)'", requirements):
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(BOOTSTRAP)


def main() -> int:
    """Copy the shipped files, and run ansible-test."""
    shutil.rmtree(COPY, ignore_errors=True)
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in filter(ships, names):
        target = COPY / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    core = ".".join(metadata.version("ansible-core").split(".")[:2])
    (COPY / "tests/sanity").mkdir(parents=True)
    shutil.copy2(EXCEPTIONS, COPY / f"tests/sanity/ignore-{core}.txt")
    # ansible-test tests the files that git tracks.
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=COPY, check=True)
    # ansible-test has its cache in the home directory. In this home, `make clean` also removes the cache.
    home = ROOT / "build/sanity/home"
    bootstrap(home)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [str(BIN / "ansible-test"), "sanity", "--python", version, *sys.argv[1:]]
    return subprocess.run(command, cwd=COPY, env={**os.environ, "HOME": str(home), "LC_ALL": "C.UTF-8"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
