"""The Docker engine of the lab: the engine of the machine or, if none answers, a separate engine that the lab starts and stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from settings import BUILD, LABEL, ROOT, LabError, run, say

HOME = BUILD / "engine"
SOCKET = HOME / "docker.sock"
PIDFILE = HOME / "docker.pid"
PREFIX = "nfl-"  # Prefix of the names of all network bridges of labs
BRIDGE = f"{PREFIX}engine"
BRIDGE_ADDRESS = "172.31.239.1/24"
CAP_SYS_RESOURCE = 24  # Number of the capability
NEEDED_BYTES = 12 * 2**30  # Free disk space that a lab needs
# command -> Debian package that contains it
TOOLS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "rsync": "rsync",
    "ssh": "openssh-client",
    "dpkg-deb": "dpkg",
    "gpg": "gnupg",
}


def docker(*arguments: str, stdin: str | bytes | None = None, check: bool = True) -> str:
    """Run the docker client with the lab's engine, and return its output."""
    return run(*client(), *arguments, stdin=stdin, check=check)


def client() -> list[str]:
    program = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
    return [program, "--host", f"unix://{SOCKET}"] if is_ours() else [program]


def is_ours() -> bool:
    """Return True if the lab itself started the engine that it uses."""
    return _pid() is not None


def _pid() -> int | None:
    try:
        pid = int(PIDFILE.read_text())
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except (OSError, ValueError):
        return None
    return pid if name == "dockerd" else None


def capability_missing() -> bool:
    """Return True if this machine cannot grant CAP_SYS_RESOURCE, so that runc needs the lab's wrapper."""
    status = Path("/proc/self/status").read_text()
    bounding = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd")), 16)
    return not bounding >> CAP_SYS_RESOURCE & 1


def answers() -> bool:
    probe = subprocess.run([*client(), "version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return probe.returncode == 0


def require_machine() -> None:
    """Raise LabError with all reasons why a lab cannot run on this machine."""
    reasons = []
    if os.geteuid() != 0:
        reasons.append(f"user ID is {os.geteuid()}, expected root: run it as root or with `sudo make ...`")
    HOME.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(HOME).free
    if free < NEEDED_BYTES:
        reasons.append(f"free space below {HOME} is {free / 2**30:.1f} GiB, expected {NEEDED_BYTES // 2**30}: make room")
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing and shutil.which("apt-get") is None:
        reasons.append(f"{', '.join(missing)} and apt-get are missing: install these packages manually")
    if reasons:
        raise LabError("this machine cannot run a lab:\n  - " + "\n  - ".join(reasons))
    if missing:
        say(f"installing {', '.join(missing)}")
        # The service of docker.io must not start, because the lab starts a separate engine.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for step in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
            done = subprocess.run(["apt-get", *step], env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise LabError(f"apt-get {step[0]} ended with {done.returncode}: {done.stderr.strip()[-800:]}")


def start() -> None:
    """Start an engine with its data below build/, unless an engine already answers."""
    require_machine()
    if answers():
        if capability_missing() and not is_ours():
            runtime = docker("info", "--format", "{{.DefaultRuntime}}")
            if runtime != "npufleet-lab":
                raise LabError(
                    f"the engine's runtime is {runtime} on a machine without CAP_SYS_RESOURCE, expected a runtime that "
                    "can start privileged containers here: stop that engine, then the lab starts a separate engine"
                )
        return
    others = other_engines()
    if others:
        raise LabError(
            f"an engine of another checkout's lab runs, {' and '.join(others)}, expected none, because their networks conflict: "
            "take that lab down (make lab-down there), or end that process"
        )
    _remove_leftovers()
    config = {
        "data-root": str(HOME / "data"),
        "exec-root": str(HOME / "exec"),
        "pidfile": str(PIDFILE),
        "hosts": [f"unix://{SOCKET}"],
        "bridge": BRIDGE,
        "log-level": "warn",
    }
    if capability_missing():
        config["default-runtime"] = "npufleet-lab"
        config["runtimes"] = {"npufleet-lab": {"path": str(ROOT / "lab/runtime/npufleet-lab-runc")}}
    (HOME / "daemon.json").write_text(json.dumps(config, indent=2))
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", BRIDGE_ADDRESS, "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    say("starting a Docker engine for the lab")
    with (HOME / "engine.log").open("ab") as log:
        process = subprocess.Popen(
            ["dockerd", "--config-file", str(HOME / "daemon.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    deadline = time.monotonic() + 600
    while not (is_ours() and answers()):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (HOME / "engine.log").read_text().splitlines()[-5:]
            raise LabError(f"the engine did not come up; the last lines of {HOME}/engine.log:\n  " + "\n  ".join(tail))
        time.sleep(0.2)


def stop_if_unused() -> None:
    """Stop the engine of the lab if no lab uses it, and remove everything that the engine created on the machine."""
    pid = _pid()
    if pid is None:
        return
    if docker("ps", "-aq", "--filter", f"label={LABEL}"):
        return
    say("stopping the lab's engine")
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 600
    while Path(f"/proc/{pid}").exists() and _state(pid) != "Z":
        if time.monotonic() > deadline:
            raise LabError(f"the lab's engine, process {pid}, did not end within 600 s: see {HOME}/engine.log")
        time.sleep(0.1)
    _remove_leftovers()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def other_engines() -> list[str]:
    """Return the running engines of labs of other checkouts, as `process <pid> (<configuration>)`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # The process has ended meanwhile.
            continue
        if line[0] == "dockerd" and "--config-file" in line:
            config = line[line.index("--config-file") + 1]
            if config.endswith("/build/lab/engine/daemon.json") and not config.startswith(f"{HOME}/"):
                found.append(f"process {path.parts[2]} ({config})")
    return sorted(found)


def lab_bridges() -> list[str]:
    """Return the network bridges of the labs of all checkouts. They include the bridges that a killed engine has left."""
    return sorted(link["ifname"] for link in json.loads(run("ip", "-json", "link", "show")) if link["ifname"].startswith(PREFIX))


def _remove_leftovers() -> None:
    """Remove the mounts, bridges, firewall rules and runtime files that an ended engine left."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((path for path in mounts if path.startswith(f"{HOME}/")), reverse=True):
        run("umount", "--lazy", mount)
    for bridge in lab_bridges():
        run("ip", "link", "delete", bridge)
        remove_rules(bridge)
    for leftover in (SOCKET, PIDFILE):
        leftover.unlink(missing_ok=True)
    shutil.rmtree(HOME / "exec", ignore_errors=True)


def remove_rules(bridge: str) -> None:
    """Delete all firewall rules that name a bridge of the lab."""
    if shutil.which("iptables-save") is None:
        return
    for table in ("nat", "filter"):
        saved = subprocess.run(["iptables-save", "-t", table], capture_output=True, text=True, check=False).stdout
        for rule in saved.splitlines():
            if rule.startswith("-A") and bridge in rule.split():
                run("iptables", "-t", table, "-D", *rule.split()[1:])
