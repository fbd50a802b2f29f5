"""The lab's driver: cards on the bus, the module, rbln-stat and the packages, below a directory instead of on a host."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.driver.vendor_tool import parse_tool

DRIVER = Path(__file__).resolve().parents[3] / "lab/driver"
# The keys that the vendor's tool prints, in its order
DEVICE_KEYS = [
    *("npu", "name", "sid", "uuid", "device", "status", "fw_ver", "pci", "temperature", "card_power", "pstate"),
    *("memory", "util", "board_info", "location"),
]
CONTEXT_KEYS = ["ctx_id", "npu", "process", "pid", "priority", "ptid", "memalloc", "status"]


def modinfo(module: bytes) -> dict[str, str]:
    """The section `.modinfo` of an ELF object, found by its section headers."""
    (table,) = struct.unpack_from("<Q", module, 40)
    size, count, names = struct.unpack_from("<HHH", module, 58)
    sections = [struct.unpack_from("<IIQQQQ", module, table + size * number) for number in range(count)]
    text = {name: module[offset : offset + length] for name, _type, _flags, _address, offset, length in sections}
    index = module[sections[names][4] :].index(b".modinfo")
    return dict(line.split("=", 1) for line in text[index].decode().split("\0") if line)


def load_script(name: str) -> ModuleType:
    """Import a file of lab/driver under a name of its own, without leaving bytecode beside it."""
    unique = f"npufleet_lab_{Path(name).stem.replace('-', '_')}"
    loader = importlib.machinery.SourceFileLoader(unique, str(DRIVER / name))
    spec = importlib.util.spec_from_loader(unique, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


cards = load_script("cards.py")
stat = load_script("rbln-stat")
build = load_script("build.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host without cards: sysfs with a neighbour in every directory that the cards join."""
    for neighbour in ("bus/pci/devices/0000:00:01.0", "class/net", "module/overlay"):
        (tmp_path / "sys" / neighbour).mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev").mkdir()
    describe(tmp_path)
    return tmp_path


def describe(root: Path, card: str = "RBLN-CA12", count: int = 2, *faults: dict[str, Any]) -> None:
    path = root / "etc/npufleet-lab/cards.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"type": card, "count": count, "faults": list(faults)}))


def started(root: Path, version: str = "1.1.67") -> Any:
    host = cards.Host(root)
    host.bus()
    host.load(version)
    return host


def open_by(root: Path, pid: int, *targets: str, command: str = "triton") -> None:
    """A process that has these files open."""
    (root / f"proc/{pid}/fd").mkdir(parents=True)
    (root / f"proc/{pid}/comm").write_text(command + "\n")
    for number, target in enumerate(targets):
        (root / f"proc/{pid}/fd/{number}").symlink_to(target)


def listing(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for part in ("sys", "dev") for path in (root / part).rglob("*")}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def devices(root: Path, **options: Any) -> list[dict[str, Any]]:
    return list(stat.report(root, **options)["devices"])


class TestBus:
    @pytest.mark.parametrize(
        ("card", "device", "addresses"),
        [
            ("RBLN-CA12", 0x1120, ["0000:81:00.0", "0000:82:00.0"]),
            ("RBLN-CA22", 0x1220, ["0000:81:00.0", "0000:82:00.0"]),
            ("RBLN-CA25", 0x1250, [f"0000:{bus}:00.{npu}" for bus in (81, 82) for npu in range(4)]),
        ],
    )
    def test_shows_a_function_per_npu(self, root: Path, card: str, device: int, addresses: list[str]) -> None:
        describe(root, card)
        cards.Host(root).bus()
        pci = root / "sys/bus/pci/devices"
        assert names(pci) == ["0000:00:01.0", *addresses]
        for address in addresses:
            text = {name: (pci / address / name).read_text() for name in ("vendor", "device", "class")}
            assert text == {"vendor": "0x1eff\n", "device": f"{device:#06x}\n", "class": "0x120000\n"}

    def test_config_space_says_what_the_files_say(self, root: Path) -> None:
        describe(root, "RBLN-CA25", 1)
        cards.Host(root).bus()
        function = root / "sys/bus/pci/devices/0000:81:00.1"
        space = (function / "config").read_bytes()
        assert len(space) == 256
        assert struct.unpack_from("<HH", space, 0x00) == (0x1EFF, 0x1250)
        assert struct.unpack_from("<HH", space, 0x2C) == (0x1EFF, 0x1250)
        assert space[0x09:0x0C] == b"\x00\x00\x12"
        assert space[0x0E] == 0x80, "a card of several functions says so"
        start, end, _ = (int(number, 16) for number in (function / "resource").read_text().split("\n")[0].split())
        assert struct.unpack_from("<Q", space, 0x10)[0] & ~0xF == start
        assert start % (end - start + 1) == 0, "a region lies at a multiple of its size"

    def test_regions_do_not_overlap(self, root: Path) -> None:
        cards.Host(root).bus()
        lines = [path.read_text().split("\n")[0].split() for path in sorted(root.glob("sys/bus/pci/devices/*/resource"))]
        assert len(lines) == 2
        assert int(lines[0][1], 16) < int(lines[1][0], 16)

    def test_does_not_load_the_module_and_may_be_repeated(self, root: Path) -> None:
        cards.Host(root).bus()
        once = listing(root)
        cards.Host(root).bus()
        assert listing(root) == once
        assert names(root / "sys/module") == ["overlay"]
        assert names(root / "dev") == []

    def test_a_machine_without_a_pci_bus_is_told(self, root: Path) -> None:
        shutil.rmtree(root / "sys/bus")
        with pytest.raises(cards.CardsError, match=r"sys/bus/pci/devices is missing, expected"):
            cards.Host(root).bus()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "JSONDecodeError"),
            ("[]", "expected"),
            ('{"type": "RBLN-CA12"}', "count"),
            ('{"type": "RBLN-CA99", "count": 1}', "'RBLN-CA99', expected one of RBLN-CA12, RBLN-CA22, RBLN-CA25"),
            ('{"type": "RBLN-CA12", "count": "2"}', "count is '2'"),
            ('{"type": "RBLN-CA12", "count": 65}', "expected 0 to 64 cards"),
            ('{"type": "RBLN-CA12", "count": 1, "faults": [{"kind": "tired"}]}', "'tired'}, expected a kind out of missing"),
            ('{"type": "RBLN-CA12", "count": 1, "faults": ["no_rsd0"]}', "fault is"),
            ('{"type": "RBLN-CA12", "count": 2, "faults": [{"kind": "fault", "npu": 2}]}', "expected an npu from 0 to 1"),
            ('{"type": "RBLN-CA12", "count": 2, "faults": [{"kind": "missing"}]}', "expected an npu from 0 to 1"),
        ],
    )
    def test_refuses_a_wrong_description(self, root: Path, text: str, message: str) -> None:
        (root / "etc/npufleet-lab/cards.json").write_text(text)
        with pytest.raises(cards.CardsError) as error:
            cards.Host(root).bus()
        assert message in str(error.value)
        assert "cards.json" in str(error.value)


class TestModule:
    def test_load_shows_module_class_and_nodes(self, root: Path) -> None:
        started(root, "1.2.92")
        assert (root / "sys/module/rebellions/version").read_text() == "1.2.92\n"
        assert (root / "sys/module/rebellions/initstate").read_text() == "live\n"
        assert (root / "sys/module/rebellions/refcnt").read_text() == "0\n"
        assert names(root / "sys/class/rebellions") == ["rbln0", "rbln1"]
        assert names(root / "dev") == ["rbln0", "rbln1", "rsd0"]
        assert (root / "sys/class/rebellions/rbln0/status").read_text() == "0\n"
        kernel_version = (root / "sys/class/rebellions/rbln0/kernel_version").read_text()
        assert kernel_version.startswith("1.2.92-"), "the kernel adds its build to the version"
        assert (root / "sys/class/rebellions/rbln1/pci_addr").read_text() == "0000:82:00.0\n"

    def test_a_loaded_module_stays_as_it_is(self, root: Path) -> None:
        host = started(root, "1.1.67")
        once = listing(root)
        host.load("2.0.1")
        assert (root / "sys/module/rebellions/version").read_text() == "1.1.67\n"
        assert listing(root) == once

    def test_unload_undoes_load_and_the_next_version_loads(self, root: Path) -> None:
        host = cards.Host(root)
        host.bus()
        before = listing(root)
        host.load("1.1.67")
        host.unload()
        assert listing(root) == before
        host.unload()
        assert listing(root) == before
        describe(root, "RBLN-CA12", 1)
        host.load("2.0.1")
        assert (root / "sys/module/rebellions/version").read_text() == "2.0.1\n"
        assert names(root / "dev") == ["rbln0", "rsd0"]

    def test_the_module_can_be_unloaded_without_its_package(self, root: Path) -> None:
        host = started(root)
        rule = root / "run/modprobe.d/npufleet-lab.conf"
        assert rule.read_text() == f"remove rebellions {DRIVER}/cards.py unload\n"
        host.unload()
        assert not rule.exists(), "an unloaded module without a package is not known to modprobe"

    @pytest.mark.parametrize("node", ["/dev/rbln1", "/dev/rsd0"])
    def test_a_module_in_use_is_not_unloaded(self, root: Path, node: str) -> None:
        host = started(root)
        open_by(root, 41, "/dev/null", "socket:[1]", node)
        before = listing(root)
        with pytest.raises(cards.CardsError, match="Module rebellions is in use"):
            host.unload()
        assert listing(root) == before
        shutil.rmtree(root / "proc/41")
        host.unload()
        assert names(root / "dev") == []

    def test_cards_of_two_slots_have_two_identities(self, root: Path) -> None:
        started(root)
        for name in ("uuid", "sid"):
            assert len({path.read_text() for path in root.glob(f"sys/class/rebellions/*/{name}")}) == 2


class TestFaults:
    def test_a_missing_npu_is_on_the_bus_alone(self, root: Path) -> None:
        describe(root, "RBLN-CA12", 2, {"kind": "missing", "npu": 0})
        started(root)
        assert len(list(root.glob("sys/bus/pci/devices/*/vendor"))) == 2
        assert names(root / "sys/class/rebellions") == ["rbln1"]
        assert names(root / "dev") == ["rbln1", "rsd0"]
        assert [device["device"] for device in devices(root)] == ["rbln1"]

    def test_a_faulty_npu_says_so(self, root: Path) -> None:
        describe(root, "RBLN-CA12", 2, {"kind": "fault", "npu": 1})
        started(root)
        assert (root / "sys/class/rebellions/rbln1/status").read_text() == "3\n"
        assert [device["status"] for device in devices(root)] == ["normal", "fault"]

    def test_rsd0_can_be_missing(self, root: Path) -> None:
        describe(root, "RBLN-CA12", 1, {"kind": "no_rsd0"})
        started(root)
        assert names(root / "dev") == ["rbln0"]

    def test_a_module_that_does_not_load_leaves_nothing(self, root: Path) -> None:
        describe(root, "RBLN-CA12", 2, {"kind": "module_does_not_load"})
        cards.Host(root).bus()
        before = listing(root)
        command = [sys.executable, str(DRIVER / "cards.py"), "--root", str(root), "load", "1.1.67"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == "modprobe: ERROR: could not insert 'rebellions': Exec format error\n"
        assert listing(root) == before

    def test_a_card_that_fails_later_is_seen_by_the_tool(self, root: Path) -> None:
        started(root)
        (root / "sys/class/rebellions/rbln0/status").write_text("3\n")
        assert [device["status"] for device in devices(root)] == ["fault", "normal"]


class TestStat:
    def test_has_the_vendors_shape(self, root: Path) -> None:
        describe(root, "RBLN-CA22")
        started(root, "2.0.1")
        answer = stat.report(root)
        assert list(answer) == ["KMD_version", "devices", "contexts"]
        assert answer["KMD_version"] == "2.0.1"
        assert answer["contexts"] == []
        item = answer["devices"][1]
        assert list(item) == DEVICE_KEYS
        assert (item["npu"], item["name"], item["device"], item["fw_ver"]) == (1, "RBLN-CA22", "rbln1", "2.0.1")
        assert item["pci"] == {
            "dev": "0x1220",
            "bus_id": "0000:82:00.0",
            "numa_node": "0",
            "link_speed": "16.0GT/s",
            "link_width": "16",
        }
        assert item["memory"] == {"used": "0", "total": "16877879296"}
        assert isinstance(item["location"], int)

    @pytest.mark.parametrize(
        ("version", "npu", "power"), [("1.1.67", "0", "6.1W"), ("2.0.1", 0, "6.1W"), ("3.0.0", 0, "6100000uW")]
    )
    def test_types_follow_the_version(self, root: Path, version: str, npu: object, power: str) -> None:
        started(root, version)
        item = devices(root)[0]
        assert item["npu"] == npu
        assert item["card_power"] == power

    def test_groups_are_shown_when_asked_for(self, root: Path) -> None:
        started(root)
        assert [device["group_id"] for device in devices(root, groups=True)] == ["0", "0"]
        assert "group_id" not in devices(root)[0]

    def test_npus_come_in_the_order_of_their_numbers(self, root: Path) -> None:
        describe(root, "RBLN-CA25", 3)
        started(root)
        assert [device["device"] for device in devices(root)] == [f"rbln{number}" for number in range(12)]

    def test_contexts_are_the_processes_that_have_an_npu_open(self, root: Path) -> None:
        started(root)
        open_by(root, 1200, "/dev/rbln1", "/dev/rbln1", "/dev/rsd0")
        open_by(root, 77, "/dev/rbln0", "/dev/rbln1", command="python3")
        open_by(root, 78, "/dev/null", "/dev/rbln1x", "/srv/dev/rbln1")
        answer = stat.report(root)
        assert all(list(context) == CONTEXT_KEYS for context in answer["contexts"])
        seen = [(context["pid"], context["npu"], context["process"]) for context in answer["contexts"]]
        assert seen == [("77", "0", "python3"), ("77", "1", "python3"), ("1200", "1", "triton")]
        used = [int(device["memory"]["used"]) for device in answer["devices"]]
        assert used == [stat.CONTEXT_BYTES, 2 * stat.CONTEXT_BYTES]
        assert used[0] > 0

    @pytest.mark.parametrize("version", ["1.1.67", "2.0.1"])
    def test_the_collection_reads_it(self, root: Path, version: str, capsys: pytest.CaptureFixture[str]) -> None:
        started(root, version)
        open_by(root, 5, "/dev/rbln1")
        assert stat.main(["-j"], root) == 0
        answer = parse_tool(capsys.readouterr().out)
        assert answer["version"] == version
        assert [device["npu"] for device in answer["devices"]] == [0, 1]
        assert [device["bus_id"] for device in answer["devices"]] == ["0000:81:00.0", "0000:82:00.0"]
        assert answer["contexts"] == 1

    def test_json_is_that_of_the_standard_library(self) -> None:
        answer = {
            "npu": 0,
            "process": 'a "b" \\ \x01 카드',
            "pci": {"bus_id": "0000:81:00.0"},
            "devices": [],
            "contexts": [{"pid": "1"}, -2],
        }
        assert stat.as_json(answer) == json.dumps(answer)

    @pytest.mark.parametrize(("lost", "numbers"), [("numbers", [0, 0]), ("none", [])])
    def test_a_stale_driver_loses_its_cards_until_it_is_loaded_anew(self, root: Path, lost: str, numbers: list[int]) -> None:
        host = started(root, "2.0.1")
        cards.write(root / "run/npufleet-lab/stale", lost + "\n")
        assert [device["npu"] for device in devices(root)] == numbers
        (root / "run/npufleet-lab/stale-until-reboot").touch()
        host.unload()
        host.load("2.0.1")
        assert [device["npu"] for device in devices(root)] == numbers
        (root / "run/npufleet-lab/stale-until-reboot").unlink()
        host.unload()
        host.load("2.0.1")
        assert [device["npu"] for device in devices(root)] == [0, 1]

    def test_table(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        started(root)
        open_by(root, 5, "/dev/rbln1")
        assert stat.main(["-g"], root) == 0
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines() if "|" in line]
        assert ["0", "1", "RBLN-CA12", "rbln1", "0000:82:00.0", "38C", "6.1W", "P14", "64.0MiB / 15.7GiB", "0.0"] in rows
        assert ["1", "triton", "5", "0", "0", "5", "64.0MiB", "run"] in rows

    def test_without_the_module_it_fails_and_prints_no_answer(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        cards.Host(root).bus()
        assert stat.main(["-j"], root) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "driver is not loaded" in printed.err
        assert "modprobe rebellions" in printed.err


def dpkg_deb(*arguments: str) -> str:
    return subprocess.run(["dpkg-deb", *arguments], check=True, capture_output=True, text=True).stdout


def unpack(package: Path, into: Path) -> Path:
    dpkg_deb("--raw-extract", str(package), str(into))
    return into


class TestPackages:
    def test_the_same_input_gives_the_same_bytes(self, tmp_path: Path) -> None:
        first = build.build_driver("1.1.67", tmp_path / "one").read_bytes()
        before = os.umask(0o077)
        try:
            second = build.build_driver("1.1.67", tmp_path / "two").read_bytes()
        finally:
            os.umask(before)
        assert first == second
        assert first[24:36].split() == [b"1704067200"], "the archive's own time is fixed"
        assert build.build_driver("1.2.92", tmp_path / "one").read_bytes() != first
        assert names(tmp_path / "one") == ["rebel_driver_lab_1.1.67_amd64.deb", "rebel_driver_lab_1.2.92_amd64.deb"]

    def test_contents(self, tmp_path: Path) -> None:
        package = build.build_driver("1.1.67", tmp_path)
        assert dpkg_deb("--field", str(package), "Package", "Version", "Architecture").split() == [
            *("Package:", "rebellions", "Version:", "1.1.67", "Architecture:", "amd64")
        ]
        assert "NOT the vendor's driver" in dpkg_deb("--field", str(package), "Description")
        tree = unpack(package, tmp_path / "tree")
        rules = (tree / "etc/modprobe.d/rebellions-lab.conf").read_text().splitlines()[1:]
        assert rules == [f"install rebellions {build.CARDS} load 1.1.67", f"remove rebellions {build.CARDS} unload"]
        assert (tree / "usr/local/bin/rbln-stat").read_bytes() == (DRIVER / "rbln-stat").read_bytes()
        assert os.access(tree / "usr/local/bin/rbln-stat", os.X_OK)
        assert not (tree / "DEBIAN/conffiles").exists(), "a removed driver leaves no rule that still loads it"
        assert modinfo((tree / build.MODULE.lstrip("/")).read_bytes())["version"] == "1.1.67"
        entries = [line.split() for line in dpkg_deb("--contents", str(package)).splitlines()]
        assert {(owner, day) for _, owner, _, day, *_ in entries} == {("root/root", "2024-01-01")}

    @pytest.mark.parametrize(("version", "has_smi"), [("1.2.92", False), ("1.3.57-g270eab8", True), ("2.0.1", True)])
    def test_rbln_smi_comes_with_1_3(self, tmp_path: Path, version: str, has_smi: bool) -> None:
        smi = unpack(build.build_driver(version, tmp_path), tmp_path / "tree") / "usr/local/bin/rbln-smi"
        assert smi.is_symlink() == has_smi
        if has_smi:
            assert smi.read_bytes() == (DRIVER / "rbln-stat").read_bytes()

    def test_is_refused_by_a_host_that_is_not_of_the_lab(self, tmp_path: Path) -> None:
        preinst = unpack(build.build_driver("1.1.67", tmp_path), tmp_path / "tree") / "DEBIAN/preinst"
        done = subprocess.run([str(preinst), "install"], capture_output=True, text=True, check=False)
        assert not Path(build.CARDS).exists(), "this test wants a machine that is not a lab host"
        assert done.returncode == 1
        assert "expected a host of the npufleet lab" in done.stderr

    @pytest.mark.parametrize(("version", "message"), [("3", "expected one such as"), ("newest", "expected one such as")])
    def test_other_versions_are_refused(self, tmp_path: Path, version: str, message: str) -> None:
        command = [sys.executable, str(DRIVER / "build.py"), str(tmp_path / "out"), version]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert message in done.stderr
        assert not (tmp_path / "out").exists()

    def test_from_3_on_it_is_an_installer(self, tmp_path: Path) -> None:
        installer = build.build_driver("3.2.2", tmp_path)
        assert (installer.name, sorted(path.name for path in tmp_path.iterdir())) == (
            "rebellions-x86_64-3.2.2.run",
            ["rebellions-x86_64-3.2.2.run"],
        )
        again = build.build_driver("3.2.2", tmp_path / "again")
        assert again.read_bytes() == installer.read_bytes()
        _script, _mark, packages = installer.read_bytes().partition(b"\n__PACKAGES__\n")
        with tarfile.open(fileobj=io.BytesIO(packages)) as archive:
            archive.extractall(tmp_path / "packages")
        fields = {
            path.name: dpkg_deb("--field", str(path), "Package", "Version").split() for path in (tmp_path / "packages").iterdir()
        }
        assert {name: (entry[1], entry[3]) for name, entry in fields.items()} == {
            f"{name}.deb": (name, "3.2.2") for name in ("rebellions-dkms", "rebellions-fw", "librbln-ml")
        }
        # Refused here, as everywhere but on hosts of the lab
        done = subprocess.run(["sh", str(installer)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert (done.returncode, "expected a host of the npufleet lab" in done.stderr or "root is needed" in done.stderr) == (
            1,
            True,
        )

    def test_kernel_stub(self, tmp_path: Path) -> None:
        package = build.build_kernel("6.8.0-49-generic", tmp_path)
        assert dpkg_deb("--field", str(package), "Package").strip() == "linux-image-6.8.0-49-generic"
        files = [line.split()[-1] for line in dpkg_deb("--contents", str(package)).splitlines() if line.startswith("-")]
        tree = "./usr/lib/modules/6.8.0-49-generic"
        built = [f"{tree}/build/{name}" for name in ("Makefile", "include/README")]
        assert sorted(files) == [*built, f"{tree}/kernel/lib/npufleet-lab.ko"], "a build tree and a module, and no kernel"
        assert "depmod 6.8.0-49-generic" in dpkg_deb("--ctrl-tarfile", str(package))
        with pytest.raises(build.BuildError, match=r"is '6\.8_Custom'"):
            build.build_kernel("6.8_Custom", tmp_path)

    def test_command_builds_the_labs_versions(self, tmp_path: Path) -> None:
        done = subprocess.run([sys.executable, str(DRIVER / "build.py"), str(tmp_path)], capture_output=True, text=True, check=True)
        packages = [f"rebel_driver_lab_{version}_amd64.deb" for version in ("1.1.67", "1.2.92", "2.0.1")]
        assert done.stdout.split() == [str(tmp_path / name) for name in (*packages, "rebellions-x86_64-3.2.2.run")]
        assert names(tmp_path) == [Path(line).name for line in done.stdout.split()]

    def test_the_unit_runs_what_the_rules_run(self) -> None:
        unit = (DRIVER / "npufleet-lab-cards.service").read_text()
        assert f"ExecStart={build.CARDS} bus\n" in unit
        assert os.access(DRIVER / "cards.py", os.X_OK)
