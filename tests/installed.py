"""Install the collection from its archive into an empty directory, and run one of its playbooks by name.

Usage: installed.py PLAYBOOK [arguments of ansible-playbook]. PLAYBOOK is a name such as npufleet.triton.site.
The run must not write into the collection.
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

COLLECTIONS = ROOT / "build/installed"
BIN = Path(sys.executable).parent
PLAYBOOK = [str(BIN / "ansible-playbook")]


def install(target: Path) -> Path:
    """Build and install the collection below `target`, and return the directory of its files."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    galaxy = [str(BIN / "ansible-galaxy"), "collection"]
    # With the settings of the checkout, the collection in the checkout would count as installed.
    environment = {
        **{name: value for name, value in os.environ.items() if name != "ANSIBLE_CONFIG"},
        "ANSIBLE_COLLECTIONS_PATH": str(target),
    }
    for command in (
        ["build", str(ROOT), "--output-path", str(target)],
        ["install", "--no-deps", "--offline", "--collections-path", str(target)],
    ):
        archive = [str(path) for path in target.glob("*.tar.gz")]
        subprocess.run([*galaxy, *command, *archive], cwd=target, env=environment, check=True, stdout=subprocess.DEVNULL)
    return target / "ansible_collections/npufleet/triton"


def content(directory: Path) -> dict[str, str]:
    """Return {path: digest} of every file except bytecode."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def main() -> int:
    """Run the playbook, and fail if it wrote into the collection."""
    installed = install(COLLECTIONS)
    before = content(installed)
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS)}
    for _ in range(2):
        done = subprocess.run([*PLAYBOOK, *sys.argv[1:]], env=environment, capture_output=True, text=True, check=False)
        print(done.stdout + done.stderr, flush=True)
        if not crashed(done.stdout):
            break
    after = content(installed)
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    if changed:
        print(
            f"installed: the run wrote {len(changed)} files into {installed}, expected none: {', '.join(changed[:10])}",
            file=sys.stderr,
        )
    return done.returncode or int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
