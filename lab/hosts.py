"""Lab hosts: privileged systemd containers with sshd, an unprivileged user with sudo, cards and a separate network."""

from __future__ import annotations

import io
import ipaddress
import json
import secrets
import shutil
import tarfile
import time
from pathlib import Path

from engine import capability_missing, docker, remove_rules
from settings import ARTEFACT_PORT, ARTEFACTS, LABEL, OPS_USER, Lab, LabError, host_image, run, say
from standins import kernel_package

OPS_HOST = "ops1"
# MAX_BALANCERS limits the number of load balancers. FIRST_BALANCER is the host number of lb1. NPU hosts have the numbers 1 to 200.
MAX_BALANCERS, FIRST_BALANCER = 9, 221
# This file exists on machines with control groups of version 2. On other machines, the systemd of Debian 13 needs the parameters
# CGROUP_V1.
CGROUP_V2 = Path("/sys/fs/cgroup/cgroup.controllers")
CGROUP_V1 = "SYSTEMD_PROC_CMDLINE=systemd.unified_cgroup_hierarchy=0 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"
KERNEL_PACKAGE = "/usr/local/lib/npufleet-lab/kernel.deb"  # Path on a host
# Host from which other hosts are copied (LAB_COPIES=1)
COPIED = "npu1"


def host_names(count: int) -> list[str]:
    """Return the host names by number: first the operations host (artefacts, Prometheus), then the NPU hosts."""
    return [OPS_HOST, *(f"npu{number}" for number in range(1, count + 1))]


def balancer_names(count: int) -> list[str]:
    """Return the names of the load balancers."""
    return [f"lb{number}" for number in range(1, count + 1)]


def number_of(name: str) -> int:
    """Return the number of a host, from which its address follows. The number stays the same if further hosts are added."""
    kind, number = name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
    return {"ops": 0, "npu": number, "lb": FIRST_BALANCER + number - 1}[kind]


def existing(lab: Lab) -> dict[str, str]:
    """Return {host: state} of the lab's existing containers, such as {"npu1": "running"}."""
    lines = docker("ps", "--all", "--filter", f"label={LABEL}={lab.name}", "--format", '{{.Label "npufleet.lab.host"}} {{.State}}')
    return dict(line.split() for line in lines.splitlines())


def refuse_conflicts(lab: Lab, names: list[str]) -> None:
    """Raise LabError if a name or the subnet is in use on this machine."""
    reasons = []
    ours = existing(lab)
    taken = set(docker("ps", "--all", "--format", "{{.Names}}").split())
    for name in names:
        if name not in ours and lab.container(name) in taken:
            reasons.append(f"container name {lab.container(name)} is taken: remove it, or name the lab otherwise (LAB=...)")
    if not network_exists(lab):
        subnet = ipaddress.ip_network(lab.subnet)
        for route in json.loads(run("ip", "-json", "route", "show", "table", "main")):
            if route["dst"] != "default" and subnet.overlaps(ipaddress.ip_network(route["dst"], strict=False)):
                reasons.append(
                    f"subnet {lab.subnet} is taken: {route['dst']} is on {route['dev']}; choose another with LAB_SUBNET=a.b.c.0/24"
                )
    if reasons:
        raise LabError("this lab cannot start:\n  - " + "\n  - ".join(reasons))


def network_exists(lab: Lab) -> bool:
    return lab.network in docker("network", "ls", "--format", "{{.Name}}").split()


def prepare_state(lab: Lab) -> None:
    """Create the lab's ssh key, become password and artefact password if they are missing. Only root can read them."""
    lab.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_key(lab.state / "id_ed25519")
    for name in ("become_password", "artefact_password"):
        path = lab.state / name
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(18))


def make_key(path: Path) -> None:
    """Create an ssh key without a passphrase at `path`, unless the file exists."""
    if not path.exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "npufleet lab", "-f", str(path))


def up(lab: Lab, systems: dict[str, str], cards: dict[str, dict], artefact_login: str, copies: bool = False) -> bool:
    """Create and start the hosts of `systems` {host: system}. Return True if anything changed.

    With `copies`, a new host with the same system as npu1 is a copy of npu1, including its packages, driver, engine and images.
    """
    names = list(systems)
    refuse_conflicts(lab, names)
    prepare_state(lab)
    changed = False
    if not network_exists(lab):
        bridge = f"com.docker.network.bridge.name={lab.bridge}"
        docker("network", "create", "--label", f"{LABEL}={lab.name}", "--subnet", lab.subnet, "--opt", bridge, lab.network)
        changed = True
    before = existing(lab)
    extra = sorted(set(before) - set(names))
    if extra:
        expected = ", ".join(names)
        raise LabError(f"hosts {', '.join(extra)} exist, expected {expected}: stop the lab first (make lab-down)")
    copied = [name for name in names if name not in before and copies and COPIED in before and systems[name] == systems[COPIED]]
    if copied:
        _copy(lab, copied)
    for name in names:
        if name not in before:
            _create(lab, name, systems[name], cards.get(name), artefact_login, lab.copied if name in copied else "")
        if before.get(name) != "running":
            docker("start", lab.container(name))
            changed = True
    for name in names:
        _wait_until_running(lab, name)
    if changed:
        _write_known_hosts(lab, names)
    return changed


def _copy(lab: Lab, names: list[str]) -> None:
    """Make an image of npu1. For each of these hosts, also make a volume with a copy of the data of npu1's engine."""
    say(f"copying {COPIED} for {', '.join(names)}")
    source = lab.container(COPIED)
    # The engine is stopped, because files that it writes during the copy would be incomplete.
    docker("exec", source, "systemctl", "stop", "docker.socket", "docker.service")
    try:
        docker("commit", source, lab.copied)
        for name in names:
            volumes = [_volume_path(f"{lab.container(host)}-docker") for host in (COPIED, name)]
            run("cp", "--archive", "--reflink=auto", f"{volumes[0]}/.", volumes[1])
            # Each engine needs a unique ID. If the file is missing, the engine creates a new ID.
            Path(volumes[1], "engine-id").unlink(missing_ok=True)
    finally:
        docker("exec", source, "systemctl", "start", "docker.service")


def _volume_path(volume: str) -> str:
    """Create a volume unless it exists, and return its path."""
    docker("volume", "create", volume)
    return docker("volume", "inspect", "--format", "{{.Mountpoint}}", volume)


def _create(lab: Lab, name: str, system: str, cards: dict | None, artefact_login: str, copied: str = "") -> None:
    """Create a host from the image `copied`, or from the image of its system, without starting the host."""
    address = lab.address(number_of(name))
    say(f"creating host {name} ({system}) at {address}")
    mounts = ["--volume", f"{lab.container(name)}-docker:/var/lib/docker"]
    if name == OPS_HOST:
        mounts += ["--volume", f"{ARTEFACTS}:/srv/artefacts:ro"]
    docker(
        *("create", "--name", lab.container(name), "--hostname", name, "--privileged", "--cgroupns=private"),
        *("--label", f"{LABEL}={lab.name}", "--label", f"npufleet.lab.host={name}", "--restart=no"),
        *("--network", lab.network, "--ip", address, "--cpu-shares", str(lab.shares)),
        *("--tmpfs", "/run:exec,mode=755", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec,mode=1777"),
        *([] if CGROUP_V2.exists() else ["--env", CGROUP_V1]),
        *mounts,
        copied or host_image(system),
    )
    key = lab.state / f"host-{name}"
    make_key(key)
    files = {
        "etc/ssh/ssh_host_ed25519_key": key.read_text(),
        "etc/ssh/ssh_host_ed25519_key.pub": key.with_suffix(".pub").read_text(),
    }
    if cards:
        files["etc/npufleet-lab/cards.json"] = json.dumps(cards)
    if name == OPS_HOST:
        settings = {"root": "/srv/artefacts", "address": "0.0.0.0", "port": ARTEFACT_PORT, "login": artefact_login}
        files["etc/npufleet-lab/artefacts.json"] = json.dumps(settings)
    if not copied and capability_missing():
        runtime = {"npufleet-lab": {"path": "/usr/local/lib/npufleet-lab/runc"}}
        files["etc/docker/daemon.json"] = json.dumps({"default-runtime": "npufleet-lab", "runtimes": runtime}, indent=2)
    for path, text in files.items():
        _write_file(lab, name, path, text)
    docker("cp", str(kernel_package()), f"{lab.container(name)}:{KERNEL_PACKAGE}")


def _write_file(lab: Lab, name: str, path: str, text: str) -> None:
    """Copy a file into a host, even if the host is stopped."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(path)
        entry.size = len(text.encode())
        entry.mode = 0o644 if path.endswith((".pub", "cards.json", "daemon.json")) else 0o600
        archive.addfile(entry, io.BytesIO(text.encode()))
    docker("cp", "-", f"{lab.container(name)}:/", stdin=buffer.getvalue())


def _wait_until_running(lab: Lab, name: str) -> None:
    """Wait until systemd and sshd run, and set the ssh key and the password of the user."""
    script = (
        "set -e; systemctl is-system-running --wait >/dev/null || { systemctl --failed --plain --no-legend; exit 1; }; "
        f"dpkg-query --status linux-image-$(uname -r) >/dev/null 2>&1 || dpkg --install {KERNEL_PACKAGE} >/dev/null; "
        f"read -r password; read -r key; echo {OPS_USER}:$password | chpasswd --crypt-method SHA256 --sha-rounds 1000; "
        f"install -d -m 0700 -o {OPS_USER} -g {OPS_USER} /home/{OPS_USER}/.ssh; "
        f'echo "$key" > /home/{OPS_USER}/.ssh/authorized_keys'
    )
    secret = (lab.state / "become_password").read_text()
    key = (lab.state / "id_ed25519.pub").read_text().strip()
    deadline = time.monotonic() + 600
    while not _has_systemd(lab, name):
        if time.monotonic() > deadline:
            raise LabError(f"host {name}: systemd did not come up in 600 s: `docker logs {lab.container(name)}`")
        time.sleep(0.2)
    docker("exec", "-i", lab.container(name), "sh", "-c", script, stdin=f"{secret}\n{key}\n")


def _has_systemd(lab: Lab, name: str) -> bool:
    return docker("exec", lab.container(name), "sh", "-c", "[ -S /run/systemd/private ] && echo yes", check=False) == "yes"


def _write_known_hosts(lab: Lab, names: list[str]) -> None:
    lines = []
    for name in names:
        key = (lab.state / f"host-{name}.pub").read_text().split()
        lines.append(f"{lab.address(number_of(name))} {key[0]} {key[1]}")
    (lab.state / "known_hosts").write_text("\n".join(lines) + "\n")


def down(lab: Lab) -> None:
    """Remove everything that `up` created: containers, volumes, network, keys."""
    containers = [lab.container(name) for name in existing(lab)]
    if containers:
        say(f"removing {len(containers)} hosts")
        docker("rm", "--force", "--volumes", *containers)
    volumes = docker("volume", "ls", "--quiet", "--filter", f"name=^{lab.network}-.*-docker$").split()
    if volumes:
        docker("volume", "rm", *volumes)
    if network_exists(lab):
        docker("network", "rm", lab.network)
    if docker("image", "ls", "--quiet", lab.copied):
        docker("image", "rm", lab.copied)
    remove_rules(lab.bridge)
    remove_state(lab)


def remove_state(lab: Lab) -> None:
    """Remove the keys, passwords and facts of the lab."""
    shutil.rmtree(lab.state, ignore_errors=True)
