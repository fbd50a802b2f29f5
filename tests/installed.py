"""Runs a playbook of the collection as people have it: installed from its archive into an empty directory, called by its name.

installed.py PLAYBOOK [arguments of ansible-playbook], where PLAYBOOK is such as npufleet.triton.site. Nobody may write into it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/faults"))
from crash import crashed  # noqa: E402

PLACE = ROOT / "build/installed"
BIN = Path(sys.executable).parent
PLAYBOOK = [str(BIN / "ansible-playbook")]


def install(place: Path) -> Path:
    """The collection below `place`, made anew. Returns where its files are."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    galaxy = [str(BIN / "ansible-galaxy"), "collection"]
    # Nowhere else: what a checkout's own settings know would count as installed already
    environment = {
        **{name: value for name, value in os.environ.items() if name != "ANSIBLE_CONFIG"},
        "ANSIBLE_COLLECTIONS_PATH": str(place),
    }
    for command in (
        ["build", str(ROOT), "--output-path", str(place)],
        ["install", "--no-deps", "--offline", "--collections-path", str(place)],
    ):
        archive = [str(path) for path in place.glob("*.tar.gz")]
        subprocess.run([*galaxy, *command, *archive], cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL)
    return place / "ansible_collections/npufleet/triton"


def content(place: Path) -> dict[str, str]:
    """{path: digest} of every file but Python's own bytecode."""
    return {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def main() -> int:
    """Entry point."""
    installed = install(PLACE)
    before = content(installed)
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(PLACE)}
    for _ in range(2):
        done = subprocess.run([*PLAYBOOK, *sys.argv[1:]], env=environment, capture_output=True, text=True, check=False)
        print(done.stdout + done.stderr, flush=True)
        if not crashed(done.stdout):
            break
    after = content(installed)
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    if changed:
        print(
            f"installed: found {len(changed)} files written into {installed}, wanted none: {', '.join(changed[:10])}",
            file=sys.stderr,
        )
    return done.returncode or int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
