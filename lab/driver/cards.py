#!/usr/bin/python3
"""The emulated NPU cards of a lab host: cards.py bus | load VERSION | unload.

`bus` puts the cards of /etc/npufleet-lab/cards.json on the PCI bus at boot. modprobe runs `load` and `unload` for the module
`rebellions`. sysfs cannot be written to. So the files of the cards are in directories of their own, which are
mounted as read-only overlays over the directories of sysfs. Every command can be
repeated. With --root DIR, all paths are below DIR, with copies in place of mounts and files in place of device nodes.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, FrozenSet, List, Mapping, Union

PCI_VENDOR = 0x1EFF
PCI_CLASS = 0x120000  # processing accelerator
FIRST_BUS = 0x81  # PCI bus of the first card
MOST_CARDS = 64
MEMORY_BYTES = 16877879296
BAR_BYTES = 1 << 34  # Size of the memory region of an NPU on the PCI bus
# The device number of /dev/null. Any process can open such a node without causing harm.
NODE_DEVICE = os.makedev(1, 3)
# Message of modprobe for a module that was built for another kernel
DOES_NOT_LOAD = "modprobe: ERROR: could not insert 'rebellions': Exec format error"
IN_USE = "modprobe: FATAL: Module rebellions is in use."
# {kind of fault: True if it applies to one NPU, which the fault has to name}
FAULTS = {"missing": True, "fault": True, "no_rsd0": False, "module_does_not_load": False}
STATUS_READY, STATUS_FAULT = 0, 3  # Values of the file `status` in sysfs


class CardsError(Exception):
    """A failure, with the actual value, the expected value and the next step."""


@dataclass(frozen=True)
class CardType:
    """PCI device id of a card type and its NPUs. Each NPU is assumed to be a separate PCI function."""

    device: int
    npus: int


CARD_TYPES = {"RBLN-CA12": CardType(0x1120, 1), "RBLN-CA22": CardType(0x1220, 1), "RBLN-CA25": CardType(0x1250, 4)}


@dataclass(frozen=True)
class Npu:
    """An NPU: `rbln<number>` at a PCI address such as 0000:81:00.0."""

    number: int
    card: str
    address: str
    missing: bool  # The NPU is on the bus, but the driver does not find it.
    faulty: bool

    @property
    def name(self) -> str:
        return f"rbln{self.number}"


@dataclass(frozen=True)
class Cards:
    """Content of cards.json: the NPUs, and the kinds of their faults."""

    npus: List[Npu]
    kinds: FrozenSet[str]  # Kinds of all faults


def read_cards(path: Path) -> Cards:
    """Return the cards of {"type": card, "count": cards, "faults": [{"kind", "npu"}]}. Raises CardsError if it is invalid."""
    try:
        text = json.loads(path.read_text())
        name, count, faults = text["type"], text["count"], text.get("faults", [])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CardsError(f'{path} is invalid ({error!r}), expected {{"type": ..., "count": ..., "faults": []}}') from error
    if name not in CARD_TYPES:
        raise CardsError(f"{path}: type is {name!r}, expected one of {', '.join(CARD_TYPES)}")
    if type(count) is not int or not 0 <= count <= MOST_CARDS:
        raise CardsError(f"{path}: count is {count!r}, expected 0 to {MOST_CARDS} cards")
    total = count * CARD_TYPES[name].npus
    hit: Dict[str, List[int]] = {kind: [] for kind in FAULTS}
    for fault in faults:
        kind = fault.get("kind") if isinstance(fault, dict) else None
        if kind not in FAULTS:
            raise CardsError(f"{path}: fault is {fault!r}, expected a kind out of {', '.join(FAULTS)}")
        if FAULTS[kind] and fault.get("npu") not in range(total):
            raise CardsError(f"{path}: fault is {fault}, expected an npu from 0 to {total - 1}")
        hit[kind].append(fault.get("npu"))
    npus = []
    for number in range(total):
        card, function = divmod(number, CARD_TYPES[name].npus)
        address = f"0000:{FIRST_BUS + card:02x}:00.{function}"
        npus.append(Npu(number, name, address, number in hit["missing"], number in hit["fault"]))
    return Cards(npus, frozenset(kind for kind in hit if hit[kind]))


class Host:
    """The host whose sysfs and /dev show the cards."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.is_real = root == Path("/")
        self.state = root / "run/npufleet-lab"
        self.remove_rule = root / "run/modprobe.d/npufleet-lab.conf"

    def cards(self) -> Cards:
        return read_cards(self.root / "etc/npufleet-lab/cards.json")

    def bus(self) -> None:
        """Put all cards on the PCI bus. They stay there whether or not the driver is loaded."""
        files: Dict[str, Union[str, bytes]] = {}
        for npu in self.cards().npus:
            files.update({f"{npu.address}/{name}": value for name, value in pci_files(npu).items()})
        self._show("bus/pci/devices", files)

    def load(self, version: str) -> None:
        """Load the module. As with a real kernel, a loaded module stays, even if its version differs."""
        if (self.root / "sys/module/rebellions/initstate").exists():
            return
        cards = self.cards()
        if "module_does_not_load" in cards.kinds:
            raise CardsError(DOES_NOT_LOAD)
        found = [npu for npu in cards.npus if not npu.missing]
        self._show_class({f"{npu.name}/{name}": value for npu in found for name, value in class_files(npu, version).items()})
        for name in [npu.name for npu in found] + ([] if "no_rsd0" in cards.kinds else ["rsd0"]):
            self._make_node(self.root / "dev" / name)
        # This rule of modprobe is not in the driver package, because the module can be unloaded after the package was removed.
        write(self.remove_rule, f"remove rebellions {os.path.abspath(__file__)} unload\n")
        # The files of the module are shown last, because `initstate` reports that the module is live.
        self._show("module", {f"rebellions/{name}": value for name, value in module_files(version).items()})

    def unload(self) -> None:
        """Unload the module. As with the real module, this fails while a process has a card open."""
        if self._is_in_use():
            raise CardsError(IN_USE)
        self._hide("module")
        for path in [*(self.root / "dev").glob("rbln[0-9]*"), self.root / "dev/rsd0", self.remove_rule]:
            if path.exists():
                path.unlink()
        self._hide("class")
        # `stale` emulates a driver without its cards (lab/README.md). With `stale-until-reboot`, only a reboot ends this state.
        if not (self.state / "stale-until-reboot").exists():
            (self.state / "stale").unlink(missing_ok=True)

    def _show_class(self, files: Mapping[str, Union[str, bytes]]) -> None:
        """Show the device class, and keep the real network interfaces visible in the overlay.

        An overlay caches that a file does not exist, so an interface that is added later would not appear.
        """
        if not self.is_real or os.path.ismount("/sys/class"):
            self._show("class", {f"rebellions/{name}": value for name, value in files.items()})
            return
        aside = self.state / "net"
        aside.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", "/sys/class/net", str(aside))
        try:
            self._show("class", {f"rebellions/{name}": value for name, value in files.items()})
            run("mount", "--bind", str(aside), "/sys/class/net")
        finally:
            run("umount", str(aside))

    def _show(self, name: str, files: Mapping[str, Union[str, bytes]]) -> None:
        """Add `files` to the directory /sys/<name> beside its existing files."""
        target = self.root / "sys" / name
        if self.is_real and os.path.ismount(target):
            return
        if not target.is_dir():
            raise CardsError(f"{target} is missing, expected a kernel with sysfs and a PCI bus for the emulated cards")
        tree = self._tree(name)
        if tree.exists():
            shutil.rmtree(tree)
        tree.mkdir(parents=True)
        for path, content in files.items():
            write(tree / path, content)
        if self.is_real:
            run("mount", "-t", "overlay", "-o", f"ro,lowerdir={tree}:{target}", "npufleet-lab", str(target))
        else:
            shutil.copytree(tree, target, dirs_exist_ok=True)

    def _hide(self, name: str) -> None:
        target, tree = self.root / "sys" / name, self._tree(name)
        if self.is_real:
            # With a lazy unmount, a monitor that reads sysfs at this moment does not keep the module loaded.
            while os.path.ismount(target):
                run("umount", "--lazy", str(target))
        elif tree.exists():
            for entry in tree.iterdir():
                shutil.rmtree(target / entry.name, ignore_errors=True)
        if tree.exists():
            shutil.rmtree(tree)

    def _tree(self, name: str) -> Path:
        return self.state / name.replace("/", "-")

    def _make_node(self, path: Path) -> None:
        if path.exists():
            return
        if self.is_real:
            os.mknod(path, stat.S_IFCHR | 0o666, NODE_DEVICE)
            path.chmod(0o666)  # The umask may have removed permissions.
        else:
            write(path, "")

    def _is_in_use(self) -> bool:
        for descriptor in glob.iglob(f"{self.root}/proc/[0-9]*/fd/*"):
            try:
                target = os.readlink(descriptor)
            except OSError:  # The file was closed, or its process has ended.
                continue
            if re.fullmatch(r"/dev/(rbln|rsd)\d+", target):
                return True
        return False


def pci_files(npu: Npu) -> Dict[str, Union[str, bytes]]:
    """Return {name: content} of the sysfs files of the NPU's PCI function."""
    card = CARD_TYPES[npu.card]
    start = (0x3800 << 32) + npu.number * BAR_BYTES
    ids = f"{PCI_VENDOR:04X}:{card.device:04X}"
    bar = f"{start:#018x} {start + BAR_BYTES - 1:#018x} {0x14220C:#018x}"
    return {
        "vendor": f"{PCI_VENDOR:#06x}\n",
        "device": f"{card.device:#06x}\n",
        "subsystem_vendor": f"{PCI_VENDOR:#06x}\n",
        "subsystem_device": f"{card.device:#06x}\n",
        "class": f"{PCI_CLASS:#08x}\n",
        "revision": "0x01\n",
        "irq": "0\n",
        "numa_node": "0\n",
        "current_link_speed": "16.0 GT/s PCIe\n",
        "current_link_width": "16\n",
        "max_link_speed": "16.0 GT/s PCIe\n",
        "max_link_width": "16\n",
        "modalias": f"pci:v{PCI_VENDOR:08X}d{card.device:08X}sv{PCI_VENDOR:08X}sd{card.device:08X}bc12sc00i00\n",
        "uevent": f"PCI_CLASS={PCI_CLASS:X}\nPCI_ID={ids}\nPCI_SUBSYS_ID={ids}\nPCI_SLOT_NAME={npu.address}\n",
        "resource": "\n".join([bar] + 12 * [" ".join(3 * [f"{0:#018x}"])]) + "\n",
        "config": config_space(card, start),
    }


def config_space(card: CardType, start: int) -> bytes:
    """Return 256 bytes of PCI configuration: one 64-bit prefetchable region at `start`, and no capabilities."""
    space = bytearray(256)
    struct.pack_into("<HHHH", space, 0x00, PCI_VENDOR, card.device, 0x0006, 0x0000)
    struct.pack_into("<I", space, 0x08, PCI_CLASS << 8 | 0x01)
    space[0x0E] = 0x80 if card.npus > 1 else 0x00
    struct.pack_into("<Q", space, 0x10, start | 0xC)
    struct.pack_into("<HH", space, 0x2C, PCI_VENDOR, card.device)
    return bytes(space)


def class_files(npu: Npu, version: str) -> Dict[str, str]:
    """Return the files of an NPU in /sys/class/rebellions: files of the real driver, and files for rbln-stat."""
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"{npu.address}.{socket.gethostname()}")
    return {
        "status": f"{STATUS_FAULT if npu.faulty else STATUS_READY}\n",
        "kernel_version": f"{version}-{hashlib.sha256(version.encode()).hexdigest()[:8]}\n",
        "pci_addr": f"{npu.address}\n",
        "name": f"{npu.card}\n",
        "uuid": f"{identity}\n",
        "sid": f"{identity.int % 10**16:016d}\n",
        "fw_ver": f"{version}\n",
        "memory_total": f"{MEMORY_BYTES}\n",
        "board_info": "0005000c\n",
        "location": f"{npu.number}\n",
    }


def module_files(version: str) -> Dict[str, str]:
    """Return {name: content} of the files of the loaded module in /sys/module/rebellions."""
    return {"version": f"{version}\n", "refcnt": "0\n", "initstate": "live\n"}


def write(path: Path, content: Union[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def run(*command: str) -> None:
    """Run a command. Raises CardsError with the output of a command that fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise CardsError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stdout.strip()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("/"))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("bus")
    commands.add_parser("load").add_argument("version")
    commands.add_parser("unload")
    arguments = parser.parse_args()
    host = Host(arguments.root)
    os.umask(0o022)
    try:
        if arguments.command == "load":
            host.load(arguments.version)
        else:
            {"bus": host.bus, "unload": host.unload}[arguments.command]()
    except (CardsError, OSError) as error:
        message = str(error)
        print(message if message.startswith("modprobe: ") else f"npufleet-lab-cards: {message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
