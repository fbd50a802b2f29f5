"""in_container.yml in a plain container of Triton's image, as a user who is not root: no engine, no systemd, no ssh."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import INVENTORY, LAB, NPU_HOSTS, ROOT, Run
from test_3_reboot import wait_for
from test_models import RELEASE

pytestmark = pytest.mark.skipif(RELEASE != "lab-24.01", reason="another Triton changes nothing of this")

VARS = LAB["all"]["vars"] if NPU_HOSTS else {}
# The lab, whose network the session is in
PREFIX = LAB["_meta"]["hostvars"][NPU_HOSTS[0]]["lab_container"].rpartition("-")[0] if NPU_HOSTS else ""
NAME = f"{PREFIX}-inside"
HOME = "/home/work"
PLACE = f"{HOME}/npufleet"
SETTINGS = {
    "npufleet_root": PLACE,
    "npufleet_cache": f"{HOME}/cache",
    "npufleet_lock_file": f"{HOME}/lock.json",
    "npufleet_output_dir": f"{HOME}/output",
    # Beside what else listens in a session
    "npufleet_http_port": 9000,
    "npufleet_grpc_port": 9001,
    "npufleet_metrics_port": 9002,
    "triton_server_auto_complete_config": False,
}
MODELS = [{"name": "digits", "profile": "latency", "artefacts": "{{ lab_digits }}"}, {"name": "add"}]
# Somebody else's service in it
OTHER = "nohup python3 -m http.server 8999 >/dev/null 2>&1 &"
# The cards of a session, as the lab's driver makes them
CARDS = "for node in rbln0 rbln1 rsd0; do mknod --mode 0666 /dev/$node c 1 3; done; useradd --create-home --uid 1000 work"


# The image has no pgrep
SERVER = """
import glob
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        with open(path, "rb") as words:
            if words.read().split(b"\\0")[0].endswith(b"bin/tritonserver"):
                print(path.split("/")[2])
    except (FileNotFoundError, ProcessLookupError):
        pass
"""


class Session:
    """The container, and the playbook in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.docker = [*VARS["lab_docker"]]

    def up(self) -> None:
        self.down()
        mounted = (ROOT, Path(sys.base_prefix), self.place)
        mounts = [f"--volume={path}:{path}:ro" for path in mounted]
        network = f"--network={PREFIX}"
        limits = ["--privileged", "--shm-size=1g", "--ulimit=memlock=-1"]
        line = [
            "run",
            "--detach",
            f"--name={NAME}",
            network,
            *limits,
            *mounts,
            VARS["lab_triton_archives"][RELEASE]["image"],
            "sleep",
            "infinity",
        ]
        subprocess.run([*self.docker, *line], check=True, capture_output=True)
        # What lies above a mount is the engine's, and may be for root alone
        self.root("chmod", "o+x", *sorted({str(parent) for path in mounted for parent in path.parents} - {"/"}))
        self.root("sh", "-c", CARDS)
        self.root("sh", "-c", OTHER)
        # As the vendor's images say it
        self.root("sh", "-c", "echo 2.42.0 > /opt/tritonserver/TRITON_VERSION")

    def down(self) -> None:
        subprocess.run([*self.docker, "rm", "--force", NAME], check=False, capture_output=True)

    def root(self, *words: str) -> str:
        return subprocess.run([*self.docker, "exec", NAME, *words], check=True, capture_output=True, text=True).stdout

    def work(self, *words: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "HOME": HOME,
            "USER": "work",
            "LANG": "C.UTF-8",
            "ANSIBLE_CONFIG": f"{ROOT}/ansible.cfg",
            "ANSIBLE_NOCOLOR": "1",
        }
        settings.update(PYTHONDONTWRITEBYTECODE="1", ANSIBLE_HOME=f"{HOME}/.ansible", ANSIBLE_CACHE_PLUGIN="memory")
        given = [f"--env={name}={value}" for name, value in settings.items()]
        line = [*self.docker, "exec", "--user=work", f"--workdir={HOME}", *given, NAME, *words]
        return subprocess.run(line, check=False, capture_output=True, text=True)

    def inventory(self, **changes: Any) -> None:
        """The lab's variables, and what this session has of its own."""
        mine = {"ansible_connection": "local", **SETTINGS, "triton_models": MODELS, **changes}
        given = {name: value for name, value in VARS.items() if not name.startswith("ansible_")}
        (self.place / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": given}, "npu_hosts": {"hosts": {"localhost": mine}}}))
        (self.place / "group_vars").mkdir(exist_ok=True)
        shutil.copy(INVENTORY / "group_vars/all.yml", self.place / "group_vars/all.yml")

    def play(self, *arguments: str) -> Run:
        program = [sys.executable, str(Path(sys.executable).with_name("ansible-playbook"))]
        done = self.work(*program, "-i", str(self.place / "hosts.yml"), f"{ROOT}/playbooks/in_container.yml", *arguments)
        return Run(done.returncode, done.stdout + done.stderr)

    def ask(self, resource: str, method: str = "GET") -> Any:
        """One JSON answer of the server, which is sent its key."""
        script = (
            "import sys, urllib.request as u; key = {'npufleet-key': open(sys.argv[3]).read().strip()}; "
            "print(u.urlopen(u.Request('http://127.0.0.1:9000' + sys.argv[1], method=sys.argv[2], headers=key)).read().decode())"
        )
        return json.loads(self.work("/usr/bin/python3", "-c", script, resource, method, f"{PLACE}/server/key").stdout or "null")

    def served(self) -> dict[str, str]:
        return {entry["name"]: entry["state"] for entry in self.ask("/v2/repository/index", "POST") or []}

    def server(self) -> str:
        """Process id of the server, empty where none runs."""
        return self.root("python3", "-c", SERVER).strip()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    # Below /tmp others may not look
    place = tmp_path_factory.mktemp("inside")
    for directory in (place, *place.parents[:2]):
        directory.chmod(0o755)
    made = Session(place)
    made.up()
    try:
        yield made
    finally:
        made.down()


def test_what_cannot_serve_is_refused_with_all_reasons(session: Session):
    session.inventory(npufleet_npus=3, npufleet_http_port=8999, npufleet_root="/srv/nobody-may")
    run = session.play()
    assert run.code == 2, run.output
    for reason in (
        "2 devices /dev/rbln* exist, expected 3",
        "may not write to /srv, expected a directory of its own",
        "port 8999 is in use",
    ):
        assert reason in run.output, run.output
    session.inventory(rbln_release="lab-24.10", npufleet_card="RBLN-CA22", triton_models=[{"name": "add"}])
    run = session.play()
    assert run.code == 2, run.output
    assert "Triton is 2.42.0, expected 2.51.0" in run.output, run.output
    assert session.work("test", "-e", PLACE).returncode == 1, "a refusal changes nothing"


def test_check_mode_changes_nothing(session: Session):
    session.inventory()
    run = session.play("--check", "--diff")
    assert run.code == 0, run.output
    assert session.work("test", "-e", PLACE).returncode == 1


def test_it_serves_and_is_proven(session: Session):
    session.inventory()
    run = session.play()
    assert run.code == 0, run.output
    assert session.served() == {"digits": "READY", "add": "READY"}
    checks = json.loads(session.work("cat", f"{HOME}/output/check/localhost.json").stdout)["checks"]
    assert {check["model"] for check in checks} == {"digits", "add"}
    assert [check for check in checks if not check["ok"]] == []
    mine = session.root("find", "/", "-xdev", "-user", "work", "-not", "-path", f"{HOME}*", "-not", "-path", "/tmp/*").split()
    assert mine == [], "the container's own files stay as they are"
    assert session.root("stat", "--format=%U", f"{PLACE}/run/pid").split() == ["work"]


def test_a_second_run_changes_nothing(session: Session):
    before = session.server()
    for arguments in ((), ("--check",)):
        run = session.play(*arguments)
        assert run.code == 0, run.output
        assert set(run.changed().values()) == {0}, run.output
    assert session.server() == before


def test_a_server_that_dies_comes_back(session: Session):
    before = session.server()
    session.root("sh", "-c", f"kill -9 {before}")
    wait_for(lambda: session.server() not in ("", before) and session.served() == {"digits": "READY", "add": "READY"})
    assert "npufleet_supervisor: " in session.work("cat", f"{PLACE}/run/triton.log").stdout
    assert set(session.play().changed().values()) == {0}


def test_a_model_comes_and_goes_without_a_restart(session: Session):
    before = session.server()
    session.inventory(triton_models=[*MODELS, {"name": "text"}])
    run = session.play()
    assert run.code == 0, run.output
    assert session.served() == {"digits": "READY", "add": "READY", "text": "READY"}
    session.inventory()
    run = session.play()
    assert run.code == 0, run.output
    assert {name for name, state in session.served().items() if state == "READY"} == {"digits", "add"}
    assert session.server() == before


def test_a_server_that_does_not_start_gives_way(session: Session):
    before = session.served()
    session.inventory(triton_server_extra_args=["--no-such-option"])
    run = session.play()
    assert run.code == 2, run.output
    assert "the previous server serves again" in run.output, run.output
    assert session.served() == before
    session.inventory()
    assert set(session.play().changed().values()) == {0}


def test_it_is_stopped(session: Session):
    for changed in (1, 0):
        run = session.play("-e", "npufleet_stop=true")
        assert run.code == 0, run.output
        assert set(run.changed().values()) == {changed}, run.output
    assert session.served() == {}
