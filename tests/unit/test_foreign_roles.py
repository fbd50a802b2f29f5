"""Roles and files that another account wrote: what the code of a source, or the connecting user, can leave for root."""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled
from helpers import ROOT, ansible_playbook
from hostile_user import HostileUser
from test_house import PLAYBOOKS, TASK_FILES, load, relative, tasks_of, tasks_of_playbook

SECRET = "HASH-OF-ROOT"
COMPILED = b"a compiled file"
TENSOR = {"name": "x", "shape": [1, 4], "dtype": "float32"}
RECORD = {
    "format": 1,
    "sha256": hashlib.sha256(COMPILED).hexdigest(),
    "npu": "RBLN-CA22",
    "compiler_version": "0.9.1",
    "devices": 1,
    "device_memory": [1000],
    "buckets": [{"inputs": [TENSOR], "outputs": [TENSOR]}],
    "source": {"kind": "onnx", "sha256": "1", "spec": "2"},
}
# Stands for rsync, which copies from this machine to this machine here
RSYNC = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
exec cp "$1" "$2"
"""


def play(place: Path, tasks: list[dict[str, Any]], *options: str, **variables: Any) -> tuple[int, str]:
    """Tasks on this machine, as the user that the tests run as."""
    given = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "ansible_user": "root",
        "npufleet_root": str(place / "host"),
        "rbln_release": "25.08",
        "npufleet_npus": 1,
        "npufleet_card": "RBLN-CA22",
        "triton_models": [],
        **variables,
    }
    (place / "hosts.json").write_text(json.dumps({"npu_hosts": {"hosts": {"npu1": {}}, "vars": given}}))
    (place / "play.yml").write_text(json.dumps([{"hosts": "npu_hosts", "gather_facts": False, "tasks": tasks}]))
    (place / "bin").mkdir(exist_ok=True)
    (place / "bin/rsync").write_text(RSYNC)
    (place / "bin/rsync").chmod(0o755)
    done = ansible_playbook(
        place,
        *("-i", place / "hosts.json", place / "play.yml", *options),
        ANSIBLE_COLLECTIONS_PATH=f"{ROOT}/collections:{Path(sys.prefix)}/lib/python3.11/site-packages",
        ANSIBLE_REMOTE_TEMP=str(place / "home"),
        PATH=f"{place}/bin:{os.environ['PATH']}",
    )
    return done.returncode, done.stdout + done.stderr


def tasks_from(role: str, file: str) -> dict[str, Any]:
    return {"ansible.builtin.include_role": {"name": f"npufleet.triton.{role}", "tasks_from": file, "rolespec_validate": False}}


# What the code of a compile source leaves


class Build:
    """The build host after a compilation, and the controller."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.there = place / "host/compile/shared"
        self.there.mkdir(parents=True)
        self.user = HostileUser(self.there, place / "elsewhere")
        self.user.secret.write_text(SECRET)
        self.file = place / "controller/model.rbln"
        (self.there / "model.rbln").write_bytes(COMPILED)
        self.record(RECORD)

    def record(self, record: Any) -> None:
        (self.there / "model.rbln.json").write_text(record if isinstance(record, str) else json.dumps(record))

    def fetch(self) -> tuple[int, str]:
        item = {"name": "m", "key": "CA22/0.9", "file": str(self.file), "spec": {"output": "model.rbln"}}
        incoming = str(self.place / "host/incoming")
        code, output = play(
            self.place, [tasks_from("model_compile", "fetch")], "--diff", model_compile_item=item, npufleet_incoming=incoming
        )
        return code, output

    def kept(self) -> list[str]:
        return sorted(os.listdir(self.file.parent)) if self.file.parent.exists() else []


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path)


def test_a_compiled_file_and_its_record_come_to_the_controller(build: Build) -> None:
    code, output = build.fetch()
    assert code == 0, output
    assert build.file.read_bytes() == COMPILED
    assert json.loads(Path(f"{build.file}.json").read_text()) == RECORD
    assert "compiler_version" not in output


@pytest.mark.parametrize("name", ["model.rbln", "model.rbln.json"])
@pytest.mark.parametrize("what", ["link to a file of root's", "second name", "pipe", "directory"])
def test_nothing_of_the_host_is_fetched_that_a_source_leads_to(build: Build, what: str, name: str) -> None:
    (build.there / name).unlink()
    build.user.plant(what, name)
    code, output = build.fetch()
    assert code == 2
    assert "found a link or a directory in its place" in " ".join(output.split())
    assert SECRET not in output
    assert build.kept() == []
    assert build.user.secret.read_text() == SECRET


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ({**RECORD, "sha256": "0" * 64}, "is for SHA-256 000"),
        ({**RECORD, "sha256": 7}, "sha256 is a whole number"),
        ({**RECORD, "buckets": [{"inputs": [[]], "outputs": [TENSOR]}]}, "buckets[0].inputs[0] is a list"),
        ("[" * 100000, "it is not JSON"),
        (json.dumps(RECORD).replace("1000", "Infinity"), "it is not JSON"),
        ("root:$y$j9T$HASH-OF-ROOT:19000:0:99999:7:::", "it is not JSON"),
        ([], "it is a list"),
    ],
)
def test_a_record_that_is_none_is_refused(record: Any, found: str) -> None:
    text = record if isinstance(record, str) else json.dumps(record)
    judged = compiled.validate_sent_record(base64.b64encode(text.encode()).decode(), RECORD["sha256"])
    assert found in judged["flaw"]
    assert judged["text"] == ""
    assert SECRET not in judged["flaw"]


def test_a_record_larger_than_a_mebibyte_is_refused(build: Build) -> None:
    build.record(json.dumps(RECORD) + " " * (1 << 20))
    code, output = build.fetch()
    assert (code, build.kept()) == (2, [])
    assert "larger than 1048576 bytes" in " ".join(output.split())


# What the connecting user keeps open


class Kept(threading.Thread):
    """A connecting user that opens for writing whatever arrives in its home, and changes it when root has judged it."""

    def __init__(self, home: Path, ends: str) -> None:
        super().__init__(daemon=True)
        self.pattern = f"{home}/**/*"
        self.ends = ends
        self.handles: dict[int, Any] = {}
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            for path in glob.glob(self.pattern, recursive=True, include_hidden=True):
                try:
                    found = os.stat(path)
                    if stat.S_ISREG(found.st_mode) and found.st_ino not in self.handles and path.endswith(self.ends):
                        self.handles[found.st_ino] = open(path, "r+b")  # noqa: SIM115 (kept open on purpose)
                except OSError:
                    pass
            time.sleep(0.001)

    def change(self) -> None:
        self.stop.set()
        self.join()
        for handle in self.handles.values():
            handle.seek(0)
            handle.write(b"OWNED")
            handle.close()


def test_pushed_wheels_are_copies_that_only_root_wrote(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "a-1-py3-none-any.whl").write_bytes(b"a wheel" * 100000)
    (tmp_path / "host/build/wheels").mkdir(parents=True)
    user = Kept(tmp_path / "home", "")
    user.start()
    code, output = play(tmp_path, [tasks_from("triton_image", "wheels_pushed")], triton_image_wheelhouse=str(house))
    assert code == 0, output
    assert user.handles
    user.change()
    (wheel,) = (tmp_path / "host/build/wheels").iterdir()
    assert wheel.read_bytes() == b"a wheel" * 100000


def test_a_driver_package_that_its_sender_keeps_open_is_not_installed(tmp_path: Path) -> None:
    package = tmp_path / "driver.run"
    package.write_bytes(b"#!/bin/sh\n" + b"#" * 200000)
    user = Kept(tmp_path / "home", "")
    user.start()
    code, output = play(
        tmp_path, [tasks_from("rbln_driver", "fetch_package")], **driver(tmp_path, rbln_driver_package_file=str(package))
    )
    user.change()
    assert user.handles
    assert code == 2
    assert "somebody still has it open for writing" in " ".join(output.split())
    assert os.listdir(tmp_path / "host/packages") == []


def driver(place: Path, **more: Any) -> dict[str, Any]:
    """Variables of a driver that comes as an installer."""
    digest = hashlib.sha256(b"#!/bin/sh\n" + b"#" * 200000).hexdigest()
    return {
        "rbln_driver_package_sha256": digest,
        "rbln_driver_form": "deb",
        "npufleet_proxy_python": sys.executable,
        "npufleet_release_row": {"driver": {"package": "rbln", "version": "1", "form": "deb"}},
        **more,
    }


def test_a_driver_package_comes_to_its_place(tmp_path: Path) -> None:
    package = tmp_path / "driver.deb"
    package.write_bytes(b"#!/bin/sh\n" + b"#" * 200000)
    code, output = play(
        tmp_path, [tasks_from("rbln_driver", "fetch_package")], **driver(tmp_path, rbln_driver_package_file=str(package))
    )
    assert code == 0, output
    found = (tmp_path / "host/packages/driver.deb").stat()
    assert (stat.S_IMODE(found.st_mode), os.listdir(tmp_path / "host/packages")) == (0o644, ["driver.deb"])


# Logins and redirects


def test_a_login_does_not_go_where_a_redirect_leads(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def log_message(self, *_words: Any) -> None:
            pass

        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization")))
            if self.path == "/driver.deb":
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{port}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = b"#!/bin/sh\n" + b"#" * 200000
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        variables = driver(
            tmp_path,
            rbln_driver_package_url=f"http://127.0.0.1:{port}/driver.deb",
            rbln_driver_package_user="fleet",
            rbln_driver_package_password="s3cret-word",
        )
        code, output = play(tmp_path, [tasks_from("rbln_driver", "fetch_package")], **variables)
    finally:
        server.shutdown()
        server.server_close()
    assert code == 0, output
    login = "Basic " + base64.b64encode(b"fleet:s3cret-word").decode()
    assert seen == [("/driver.deb", login), ("/elsewhere", None)]


@pytest.mark.parametrize("path", [*TASK_FILES, *PLAYBOOKS], ids=relative)
def test_downloads_keep_their_login_from_redirects(path: Path) -> None:
    """Ansible sends every header on to the host of a redirect that is not named here, one of a netrc file too."""
    whole = load(path)
    tasks = tasks_of_playbook(path) if whole and "hosts" in whole[0] else tasks_of(whole)
    leaking = [
        task["name"]
        for task in tasks
        for module, given in task.items()
        if module in ("ansible.builtin.get_url", "ansible.builtin.uri")
        and "Authorization" not in given.get("unredirected_headers", [])
    ]
    assert leaking == []


# What other accounts see of a command


PROXY = "http://fleet:Pr0xy-Word@proxy.example.com:3128"
# Stands for pip: says what other accounts see of it, and what it has in its environment and its netrc file
PIP = """#!{python}
import json, os, subprocess, sys
seen = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
netrc = os.environ.get("NETRC", "")
mode = oct(os.stat("{root}/build/login/proxy.env").st_mode & 0o777)
known = open(netrc).read() if os.path.isfile(netrc) else ""
with open("{root}/calls", "a") as calls:
    calls.write(json.dumps([sys.argv[3], "Pr0xy-Word" in seen, os.environ.get("https_proxy"), mode, known]) + "\\n")
"""


def test_a_proxy_login_is_in_no_command_line_of_pip(tmp_path: Path) -> None:
    root = tmp_path / "host"
    python = root / "venv/bin/python3"
    python.parent.mkdir(parents=True)
    (root / "venv/lib/python3.12/site-packages").mkdir(parents=True)
    # Modules are run by this Python too, so that only the calls of pip are of interest
    python.write_text(f'#!/bin/sh\n[ "$2" = pip ] || exit 0\nexec {tmp_path}/pip "$@"\n')
    python.chmod(0o755)
    (tmp_path / "pip").write_text(PIP.format(python=sys.executable, root=root))
    (tmp_path / "pip").chmod(0o755)
    code, output = play(
        tmp_path,
        [tasks_from("triton_image", "in_container")],
        npufleet_https_proxy=PROXY,
        triton_image_container_python=sys.executable,
        triton_image_index_url="https://pypi.example.com/simple/",
        triton_image_index_user="fleet",
        triton_image_index_password="two words",
        triton_image_requirements=["rebel-compiler", "numpy"],
        triton_image_vendor_packages=["rebel-compiler"],
        triton_image_extra_index_urls=["https://other.example.com/simple/"],
    )
    assert code == 0, output
    calls = [json.loads(line) for line in (root / "calls").read_text().splitlines()]
    login = 'machine "pypi.example.com" login "fleet" password "two words"\n'
    assert calls == [
        ["download", False, PROXY, "0o600", login],
        ["download", False, PROXY, "0o600", ""],
        ["install", False, None, "0o600", ""],
    ]
    assert "Pr0xy-Word" not in output


@pytest.mark.parametrize("path", [*TASK_FILES, *PLAYBOOKS], ids=relative)
def test_no_task_has_a_secret_in_its_environment(path: Path) -> None:
    """`environment` of a task becomes a part of the command line of a shell, which every account sees."""
    whole = load(path)
    tasks = list(tasks_of_playbook(path) if whole and "hosts" in whole[0] else tasks_of(whole))
    variables = [task.get("vars") or {} for task in tasks] + [load(file) for file in sorted(ROOT.glob("roles/*/vars/main.yml"))]
    known = {name: str(value) for group in variables for name, value in group.items()}
    words = re.compile("prox|password|secret|token|credential|api_key")
    for task in tasks:
        text = str(task.get("environment", ""))
        text += " ".join(value for name, value in known.items() if name in text)
        assert not words.search(text.lower()), task["name"]


# Modules that bring a file by way of the connecting user's directory, whose inode it then is; and that read what a path leads to
BY_WAY_OF_THE_USER = re.compile(r"ansible\.builtin\.(copy|template|unarchive|assemble|script|fetch|slurp)")
TAKEN_OVER = {
    "roles/model_compile/tasks/model.yml: Copy the source of the model from the controller": "taken over by the next task",
    "roles/model_compile/tasks/fetch.yml: Read the record of the compiled file": "in a directory of root, where it was taken over",
    "roles/rbln_driver/tasks/fetch_package.yml: Copy the driver package from the controller": "taken over in the same block",
    "roles/triton_image/tasks/base_archive.yml: Copy the archive of the base image from the controller": "taken over there",
    "roles/triton_image/tasks/wheels_pushed.yml: Copy the wheelhouse from the controller": "taken over by the next task",
    "roles/docker_engine/tasks/configure.yml: Read daemon.json": "in a directory of root's",
    "roles/load_balancer/tasks/apply.yml: Read the previous configuration": "in a directory of root's",
}
# Ansible runs in the container itself there, by no connection
WITHOUT_A_USER = ("roles/triton_image/tasks/in_container.yml", "roles/triton_server/tasks/in_container.yml")


def of_hosts(tasks: Any) -> Iterator[dict[str, Any]]:
    """Tasks that run on hosts."""
    for task in tasks or []:
        if task.get("delegate_to") != "localhost":
            yield task
            for part in ("block", "rescue", "always"):
                yield from of_hosts(task.get(part))


@pytest.mark.parametrize("path", [*TASK_FILES, *PLAYBOOKS], ids=relative)
def test_root_uses_no_file_that_the_connecting_user_may_hold_open(path: Path) -> None:
    whole = load(path)
    plays = [play for play in whole if "hosts" in play] if whole else []
    parts = ("pre_tasks", "tasks", "post_tasks", "handlers")
    tasks = [task for play in plays for part in parts for task in play.get(part) or []] if plays else whole
    bringing = [task for task in of_hosts(tasks) if any(map(BY_WAY_OF_THE_USER.fullmatch, task))]
    found = {f"{relative(path)}: {task.get('name')}" for task in bringing}
    if relative(path) not in WITHOUT_A_USER:
        assert found <= set(TAKEN_OVER)


def test_what_a_container_can_write_to_is_below_a_directory_of_roots() -> None:
    """Its root can make files that run as root, and open the directory that it has to every account of the host."""
    tasks = {task["name"]: task for task in tasks_of(load(ROOT / "roles/model_compile/tasks/model.yml"))}
    making = tasks["Create an empty directory with the compile program and its spec"]
    compiling = tasks["Compile the model in a container"]
    made = {entry["path"]: entry["mode"] for entry in making["npufleet.triton.host_files"]["directories"]}
    (volume,) = compiling["community.docker.docker_container"]["volumes"]
    mounted = volume.partition(":")[0]
    assert made[mounted] == made[os.path.dirname(mounted)] == "0700"
