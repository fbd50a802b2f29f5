"""Run the scenario `default` on every supported ansible-core, each with a Python that it supports: `make molecule-cores`.

Arguments are the cores to run. The default is all of them. Every core has a separate virtual environment below build/cores, with
the pins of requirements-dev.txt and the Ansible of this core. meta/runtime.yml states which cores are supported. With --install,
the program only makes the environments, for example for `make unit CORE=2.21`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build/cores"
# The newest minor version of Python 3 that all pins have wheels for
NEWEST = 13


class Core(NamedTuple):
    """A minor version of ansible-core: its pins, and the oldest minor version of Python 3 that runs it."""

    pins: dict[str, str]
    python: int


CORES = {
    "2.19": Core({"ansible": "12.3.0", "ansible-core": "2.19.14"}, 11),
    "2.20": Core({"ansible": "13.8.0", "ansible-core": "2.20.10"}, 12),
    "2.21": Core({"ansible": "14.5.0", "ansible-core": "2.21.5"}, 12),
}


def requirements(text: str, pins: dict[str, str]) -> str:
    """Return the text of a requirements file in which `pins` {name: version} replace the versions."""
    for name, version in pins.items():
        text, count = re.subn(rf"^{re.escape(name)}==\S+$", f"{name}=={version}", text, flags=re.MULTILINE)
        if count != 1:
            raise SystemExit(f"cores: requirements.txt pins {name} {count} times, expected once.")
    return text


def python_for(core: Core) -> str:
    """Return a Python of this machine that runs a core. Raises SystemExit if there is none."""
    names = [f"3.{minor}" for minor in range(core.python, NEWEST + 1)]
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin/python3"))
    candidates = [shutil.which(f"python{name}") or "" for name in names]
    candidates += [str(path) for path in pyenv if path.parents[1].name.rpartition(".")[0] in names]
    for candidate in filter(None, candidates):
        # A shim of pyenv may be on the PATH although its version is not active, so the Python has to run.
        done = subprocess.run([candidate, "-c", "import ensurepip"], capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    raise SystemExit(f"cores: found no Python {names[0]} or newer with venv. Install one: python3 of Debian 13, or pyenv.")


def environment(name: str, core: Core, python: str | None = None) -> Path:
    """Make the virtual environment of a core with this Python, unless it is complete. Return its directory of programs."""
    directory = ENVIRONMENTS / name
    python = shutil.which(python) if python else python_for(core)
    if not python:
        raise SystemExit("cores: the program of --python does not exist. Name a Python that is installed.")
    texts = {
        file: requirements((ROOT / file).read_text(), core.pins) if file == "requirements.txt" else (ROOT / file).read_text()
        for file in ("requirements.txt", "requirements-dev.txt")
    }
    settings = {**texts, "python": python}
    done = directory / "done.json"
    if not done.exists() or json.loads(done.read_text()) != settings:
        print(f"cores: installing ansible-core {core.pins['ansible-core']} with {python}", flush=True)
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(directory)], check=True)
        for file, text in texts.items():
            (directory / file).write_text(text)
        pip = [str(directory / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--requirement", str(directory / "requirements-dev.txt")], check=True)
        done.write_text(json.dumps(settings))
    return directory / "bin"


def run(name: str, core: Core) -> bool:
    """Run the scenario. Return True if it passed."""
    programs = environment(name, core)
    version = subprocess.run(
        [str(programs / "ansible-playbook"), "--version"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    if f"core {core.pins['ansible-core']}" not in version:
        raise SystemExit(
            f"cores: {programs}/ansible-playbook reports {version.splitlines()[0]}, expected {core.pins['ansible-core']}."
        )
    print("\n".join(line.strip() for line in version.splitlines() if "core" in line or "python version" in line), flush=True)
    began = time.monotonic()
    settings = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run([str(ROOT / "tests/molecule.sh"), "default"], cwd=ROOT, env=settings, check=False)
    print(
        f"cores: ansible-core {name}: {'passed' if not done.returncode else 'failed'} in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return not done.returncode


def main() -> int:
    """Run the scenario on each core, or only install the cores. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cores", nargs="*", help=f"some of {', '.join(CORES)}")
    parser.add_argument("--install", action="store_true", help="only make the environments")
    parser.add_argument("--python", help="the Python of the environments")
    arguments = parser.parse_args()
    names = arguments.cores or list(CORES)
    unknown = sorted(set(names) - set(CORES))
    if unknown:
        parser.error(f"unknown cores {', '.join(unknown)}, expected some of {', '.join(CORES)}")
    if arguments.install:
        for name in names:
            environment(name, CORES[name], arguments.python)
        return 0
    failed = [name for name in names if not run(name, CORES[name])]
    if failed:
        print(f"cores: failed on ansible-core {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
