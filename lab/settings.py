"""Paths, names and helpers that all files of `lab/` share."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "lab"
ARTEFACTS = BUILD / "artefacts"
LABEL = "npufleet.lab"
# Code name of each Debian release, by the name of the system in release rows
SYSTEMS = {"debian-12": "bookworm", "debian-13": "trixie"}
# System of the operations host and of the images of Triton
FIRST_SYSTEM = "debian-12"
# Name of the lab that `make lab` and `make demo` start
FIRST_LAB = "lab"
OPS_USER = "ops"
ARTEFACT_PORT = 8480


class LabError(Exception):
    """A refusal or a failure, with the actual value, the expected value and the next step."""


@dataclass(frozen=True)
class Lab:
    """A lab: its name, its network, the directories of its keys and state, and its CPU shares."""

    name: str
    subnet: str
    # CPU shares of each host. Docker's default is 1024.
    shares: int = 1024

    @property
    def state(self) -> Path:
        """Directory of this lab's ssh key, passwords and facts for its inventory."""
        return BUILD / "labs" / self.name

    @property
    def cache(self) -> Path:
        """Directory of the cache and lock file of the controller. It stays when the lab stops, so that the next start is quick."""
        return BUILD / "cache" / self.name

    @property
    def output(self) -> Path:
        """Output directory of playbooks. It is separate for each lab, because labs have hosts with the same names."""
        return ROOT / "build" if self.name == FIRST_LAB else BUILD / "output" / self.name

    @property
    def network(self) -> str:
        return f"npufleet-{self.name}"

    @property
    def bridge(self) -> str:
        """Name of the network's bridge interface, at most 15 characters. The firewall rules of the network contain this name."""
        return f"nfl-{self.name}"[:15]

    def address(self, number: int) -> str:
        """Return the address of host `number` (0 is the operations host) in the lab's /24."""
        return f"{self.subnet.rsplit('.', 1)[0]}.{10 + number}"

    @property
    def copied(self) -> str:
        """Name of the image from which copies of a host are created."""
        return f"npufleet-lab/copied:{self.name}"

    def container(self, host: str) -> str:
        return f"npufleet-{self.name}-{host}"


def current_lab() -> Lab:
    """Return the lab of the environment variables LAB, LAB_SUBNET (a /24; the default depends on the name) and LAB_CPU_SHARES."""
    name = os.environ.get("LAB") or FIRST_LAB
    third_bytes = {FIRST_LAB: 240, "molecule": 241, "bench": 242, "production": 244}
    third_bytes.update(models=245, runfile=246, rollout=247, monitoring=248)
    subnet = os.environ.get("LAB_SUBNET") or f"172.31.{third_bytes.get(name, 243)}.0/24"
    if not subnet.endswith(".0/24"):
        raise LabError(f"LAB_SUBNET is {subnet}, expected an IPv4 /24 such as 172.31.240.0/24")
    shares = os.environ.get("LAB_CPU_SHARES") or "1024"
    if not shares.isdigit() or int(shares) < 2:
        raise LabError(f"LAB_CPU_SHARES is {shares}, expected a number of 2 or more")
    return Lab(name, subnet, int(shares))


def base_image(system: str) -> str:
    return f"npufleet-lab/base:{SYSTEMS[system]}"


def host_image(system: str) -> str:
    return f"npufleet-lab/host:{SYSTEMS[system]}"


def say(message: str) -> None:
    print(f"lab: {message}", flush=True)


def run(*command: str, stdin: str | bytes | None = None, cwd: Path | None = None, check: bool = True) -> str:
    """Run a command and return its output. If it fails and `check` is true, raise LabError with the last lines of its output."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(command, input=data, capture_output=True, cwd=cwd, check=False)
    if check and done.returncode:
        words = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-12:]
        raise LabError(f"`{' '.join(command[:6])}` ended with {done.returncode}:\n  " + "\n  ".join(words))
    return done.stdout.decode(errors="replace").strip()


def die(error: LabError) -> None:
    print(f"lab: {error}", file=sys.stderr, flush=True)
    sys.exit(1)
