"""What bad input gets: one message that says host, found, wanted, what to do; nothing changed, the old state still serving."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import LAB, NPU_HOSTS, ROOT, ROWS, Run, ask, connect, inspect, playbook

FIRST, LAST = (NPU_HOSTS[0], NPU_HOSTS[-1]) if NPU_HOSTS else ("", "")
FACTS = LAB.get("all", {}).get("vars", {})
ARTEFACTS = FACTS.get("lab_artefact_url", "")
CARDS = "/etc/npufleet-lab/cards.json"


def site(*arguments: str, **given: Any) -> Run:
    """site.yml with these variables."""
    return playbook("site.yml", "-e", json.dumps(given), *arguments)


def refused(run: Run, *reasons: tuple[str, ...], code: int = 2) -> None:
    """The run ends with `code`, changed nothing, and has a line with all the words of each reason."""
    assert run.code == code, run.output
    assert set(run.changed().values()) == {0}, run.output
    lines = [" ".join(line.split()) for line in run.output.splitlines()]
    for words in reasons:
        assert any(all(word in line for word in words) for line in lines), (words, run.output)


@pytest.fixture(scope="module", autouse=True)
def still_serving() -> Iterator[None]:
    """No refusal restarts the first host's server, and the fleet is as wanted afterwards."""
    host = connect(FIRST)
    before = inspect(host)["State"]["StartedAt"]
    yield
    assert inspect(host)["State"]["StartedAt"] == before
    assert {model["state"] for model in ask(host, "/v2/repository/index", "POST")} == {"READY"}
    run = playbook("site.yml")
    assert run.code == 0, run.output
    assert playbook("status.yml").code == 0


def row(**changes: Any) -> dict[str, Any]:
    """The lab's release rows with the row in use changed."""
    flaws = {"as_of": "2026-08-18", "bulletins": {"5816": "26.02"}}
    return {FACTS["lab_release"]: {**ROWS[FACTS["lab_release"]], "vulnerabilities": flaws, **changes}}


def systems() -> dict[str, list[str]]:
    """The NPU hosts by their system."""
    found: dict[str, list[str]] = {}
    for name in NPU_HOSTS:
        found.setdefault(LAB["_meta"]["hostvars"][name]["lab_system"], []).append(name)
    return found


def test_another_system_kernel_and_card_all_at_once() -> None:
    run = site(
        npufleet_extra_releases=row(systems={"ubuntu-22.04": "==4.4.0"}, cards=["RBLN-CA22"]),
        npufleet_card="RBLN-CA22",
        triton_server_log_verbose=1,
    )
    refused(
        run,
        *(
            (f"- {', '.join(names)}: the system is {system}, expected ubuntu-22.04 for release lab-24.01. Install one of them",)
            for system, names in systems().items()
        ),
        ("the kernel is", "expected ==4.4.0 for release lab-24.01"),
        ("the bus has RBLN-CA12, expected RBLN-CA22 for release lab-24.01. Choose release 24.01",),
        ("model digits has compiled files for CA12/0.6, expected one for CA22/0.6. Compile it",),
    )
    said = "1 known vulnerabilities as of 2026-08-18 (NVIDIA security bulletins 5816): release 26.05 fixes them"
    assert said in " ".join(run.output.split())


def test_a_driver_that_somebody_else_installs_is_proven_and_never_installed() -> None:
    run = playbook("status.yml", "-e", "rbln_driver_form=present")
    assert run.code == 0, run.output
    host = connect(LAST)
    module = host.check_output("modinfo --field filename rebellions")
    host.check_output("mv %s /root/module.ko && depmod", module)
    try:
        version = ROWS[FACTS["lab_release"]]["driver"]["version"]
        words = f"- {LAST}: installed module: missing, expected {version}. Install the vendor's driver"
        refused(site(rbln_driver_form="present"), (words,))
    finally:
        host.check_output("mv /root/module.ko %s && depmod", module)


@contextmanager
def listening(port: int) -> Iterator[None]:
    """A process of the first host that listens on a port."""
    host = connect(FIRST)
    script = f"import http.server as h; h.HTTPServer(('0.0.0.0', {port}), h.BaseHTTPRequestHandler).serve_forever()"
    host.check_output("systemd-run --quiet --unit npufleet-taken python3 -c %s", script)
    for _attempt in range(100):
        if f":{port:04X} " in host.check_output("cat /proc/net/tcp"):
            break
    try:
        yield
    finally:
        host.check_output("systemctl stop npufleet-taken")


def test_suppliers_port_disk_and_archive_all_at_once(tmp_path: Path) -> None:
    """A wrong login of the index, no base image, no such driver, a port that is taken, too little disk: one table."""
    with listening(18000):
        run = site(
            npufleet_extra_releases=row(driver={"package": "rebellions", "version": "1.2.92", "form": "deb"}),
            rbln_driver_package_url=f"{ARTEFACTS}/drivers/none.deb",
            npufleet_lock_file=str(tmp_path / "lock.json"),
            triton_image_index_password="wr0ng-secret",
            triton_image_base_archive=f"{ARTEFACTS}/none.tar",
            preflight_disk_engine=100000,
            npufleet_http_port=18000,
        )
    refused(
        run,
        (f"- {FIRST}: package index {ARTEFACTS}/simple/rebel-compiler/: status 401: it refuses the login of lab",),
        (f"- {FIRST}: archive of the base image {ARTEFACTS}/none.tar: status 404",),
        (f"- {', '.join(NPU_HOSTS)}: driver package {ARTEFACTS}/drivers/none.deb: status 404",),
        (f"- {FIRST}: port 18000 is taken by process", "(python3)", "set another npufleet_http_port"),
        ("free space of /var/lib/docker", " GiB, expected 10000", ". Make room"),
    )
    assert "wr0ng-secret" not in run.output


def test_unreachable_index_missing_files_and_wrong_digest(tmp_path: Path) -> None:
    package = tmp_path / "driver.deb"
    package.write_bytes(b"another driver")
    run = site(
        npufleet_extra_releases=row(driver={"package": "rebellions", "version": "1.2.92", "form": "deb"}),
        rbln_driver_package_url="",
        rbln_driver_package_file=str(package),
        npufleet_lock_file=str(tmp_path / "lock.json"),
        triton_image_index_url=f"{ARTEFACTS.rsplit(':', 1)[0]}:9/simple/",
        triton_image_base_archive="/no/such/base.tar",
    )
    digest = hashlib.sha256(b"another driver").hexdigest()
    refused(
        run,
        ("package index", ":9/simple/rebel-compiler/: no answer (", "refused", "expected one"),
        ("the controller has no /no/such/base.tar, expected the archive of the base image",),
        (f"the driver package has SHA-256 {digest}, expected",),
    )


def test_no_driver_package_and_no_base_image_in_the_registry(tmp_path: Path) -> None:
    run = site(
        npufleet_extra_releases=row(driver={"package": "rebellions", "version": "1.2.92", "form": "deb"}),
        rbln_driver_package_url="",
        rbln_driver_package_sha256="",
        npufleet_lock_file=str(tmp_path / "lock.json"),
        triton_image_base_archive="",
        triton_image_base_archive_sha256="",
        triton_image_base=f"{ARTEFACTS.split('//')[1]}/nvidia/tritonserver:24.01-py3",
    )
    refused(
        run,
        ("the driver package is missing, expected rebellions 1.2.92 (.deb). Get it from the vendor's portal",),
        ("base image", "nvidia/tritonserver:24.01-py3: no answer ("),
    )


def test_names_kinds_and_contradictions_all_at_once() -> None:
    run = site(
        npufleet_htpp_port=8000,
        npufleet_metrics_port="many",
        triton_image_index_password="{{ vault_index_pasword }}",
        npufleet_grpc_port=8000,
        triton_models=[{"name": "digits", "hosts": ["npu99"]}],
    )
    refused(
        run,
        ("- every host: npufleet_htpp_port is set, but there is no such variable. Did you mean npufleet_http_port?",),
        ("npufleet_metrics_port is many, expected a whole number. Correct it.",),
        ("triton_image_index_password cannot be evaluated: 'vault_index_pasword' is undefined. Set it in the inventory.",),
        ("npufleet_http_port and npufleet_grpc_port are all 8000",),
        ("model digits: `hosts` contains npu99, expected hosts or groups of this inventory",),
    )


def test_models_that_triton_would_refuse(tmp_path: Path) -> None:
    """A config.pbtxt that does not parse, and a directory without a compiled file: both named, in one run."""
    for name, config in (("broken", 'name: "broken"\nmax_batch_sice: 4\n'), ("empty", 'backend: "rbln"\nmax_batch_size: 4\n')):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
    models = [{"name": name, "repository": str(tmp_path)} for name in ("broken", "empty")]
    refused(
        site(triton_models=models),
        (f"{tmp_path}/broken/config.pbtxt:2: max_batch_sice: a field that no Triton knows", "Triton refuses the whole file"),
        (
            f"{tmp_path}/empty/config.pbtxt: version_policy is without a version directory",
            "Compile the model for this card and SDK",
        ),
    )


def test_a_compiled_file_of_another_card_leaves_the_old_one_serving(tmp_path: Path) -> None:
    """Its place in the list is right and its content is not: only the SDK can tell, and the old release goes on."""
    key, path = FACTS["lab_models"]["digits"]["key"], FACTS["lab_models"]["digits"]["path"]
    compiled = (ROOT / "build/lab/artefacts" / path).read_bytes()
    other = tmp_path / "other.rbln"
    with zipfile.ZipFile(io.BytesIO(compiled)) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b'"RBLN-CA12"', b'"RBLN-CA22"'))
    artefact = {"file": str(other), "sha256": hashlib.sha256(other.read_bytes()).hexdigest()}
    guide = {key: {"url": f"{ARTEFACTS}/{path}", "sha256": hashlib.sha256(compiled).hexdigest()}}
    models = [{"name": "digits", "artefacts": {key: artefact}}, {"name": "digits_guide", "artefacts": guide}]
    run = site("--limit", f"{FIRST},localhost", triton_models=models)
    assert run.code == 2, run.output
    assert "compiled for RBLN-CA22" in run.output
    assert "no further batch starts" in run.output
    host = connect(FIRST)
    assert {model["name"]: model["state"] for model in ask(host, "/v2/repository/index", "POST")}["digits"] == "READY"
    assert playbook("site.yml", "--limit", f"{FIRST},localhost").code == 0


def test_no_sudo_password_and_a_wrong_one() -> None:
    for given in ("", "wr0ng-secret"):
        run = site(ansible_become_password=given)
        refused(run, ("- every host: sudo refuses to become root (", "Give the password with --ask-become-pass"))
        assert "wr0ng-secret" not in run.output


def test_an_unreachable_host_does_not_keep_the_others(tmp_path: Path) -> None:
    """The others are brought back to what is wanted, and the exit code says that one could not be asked."""
    address = connect(FIRST).check_output("hostname -I").split()[0].rsplit(".", 1)[0] + ".253"
    inventory = tmp_path / "more.yml"
    inventory.write_text(f"npu_hosts: {{hosts: {{npu99: {{ansible_host: {address}, ansible_ssh_timeout: 3}}}}}}\n")
    connect(LAST).check_output("docker kill triton")
    run = playbook("site.yml", "--inventory", str(inventory), "--limit", f"{LAST},npu99")
    assert run.code == 4, run.output
    assert run.recap["npu99"]["unreachable"] == 1
    assert run.changed()[LAST] > 0
    assert inspect(connect(LAST))["State"]["Running"] is True


def test_a_protected_environment_asks_before_it_changes() -> None:
    """Nobody answers here, so nothing is changed; the name given beforehand is an answer, and a look needs none."""
    given = {"triton_server_log_verbose": 1, "npufleet_protected": "production"}
    refused(
        site(**given), ("production is protected: the answer is", 'expected "production" before', "-e npufleet_confirm=production")
    )
    refused(site(**given, npufleet_confirm="staging"), ("production is protected",))
    assert site("--check", **given).code == 0
    assert site(npufleet_protected="production").code == 0, "no change, no question"


# What is wrong with the cards themselves, on the last host


RELOAD = (
    "set -e; modprobe -r rebellions; umount --lazy /sys/bus/pci/devices; "
    f"cat > {CARDS}; python3 /usr/local/lib/npufleet-lab/cards.py bus"
)


@pytest.fixture(scope="module")
def bare() -> Iterator[Callable[..., None]]:
    """The last host with its server stopped; called, it gets other cards. Put back afterwards, and started by site.yml."""
    host = connect(LAST)
    before = json.loads(host.file(CARDS).content_string)

    def change(load: bool = True, **changes: Any) -> None:
        then = "; modprobe rebellions" if load else ""
        host.check_output("printf %%s %s | sh -c %s", json.dumps({**before, **changes}), RELOAD + then)

    host.check_output("docker stop triton")
    yield change
    change()


def look() -> Run:
    return playbook("preflight.yml", "--limit", LAST)


def test_fewer_cards_in_the_tool_than_on_the_bus(bare: Callable[..., None]) -> None:
    bare(faults=[{"kind": "missing", "npu": 1}, {"kind": "no_rsd0"}])
    refused(
        look(),
        (f"- {LAST}: cards: 1 listed, 0000:82:00.0 not listed, expected 2 listed `normal`. See the vendor's tool",),
        (f"- {LAST}: /dev/rsd0: missing, expected a character device. Without it the SDK sees no device",),
    )


def test_no_card_on_the_bus(bare: Callable[..., None]) -> None:
    bare(count=0)
    refused(look(), (f"- {LAST}: bus: no card, expected 2 NPUs. Check seat and power of the card with `lspci -d 1eff:`",))


def test_a_module_that_does_not_load(bare: Callable[..., None]) -> None:
    """Only modprobe can tell: the run stops there with the kernel's words, before anything else of the host is touched."""
    bare(load=False, faults=[{"kind": "module_does_not_load"}])
    run = playbook("site.yml", "--limit", LAST)
    connect(LAST).check_output("sed -i s/module_does_not_load/no_rsd0/ %s; modprobe rebellions", CARDS)
    assert run.code == 2, run.output
    words = " ".join(run.output.split())
    assert f"{LAST}: module rebellions 1.1.67 does not load under kernel" in words
    assert "Exec format error" in words
    assert "dkms status" in words
