"""The real tasks that build and deliver an image, on a simulated host whose connecting user is hostile."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT, ROW, ansible_playbook
from hostile_user import HostileUser

ENGINE = Path(__file__).parent / "docker/engine.py"
PLAYED = {
    "community/docker": [
        *("docker_image", "docker_image_info", "docker_image_load", "docker_image_export", "docker_image_tag"),
        *("docker_image_push", "docker_image_pull", "docker_image_remove", "docker_login", "docker_container"),
    ],
    "ansible/posix": ["synchronize"],
}
REFERENCE = "npufleet/triton:24.01-1"
BASE, BUILT, OTHER = "sha256:" + "b" * 64, "sha256:" + "e" * 64, "sha256:" + "0" * 64
WHEELS = {"rebel_compiler-0.6.2-py3-none-any.whl": "rebel", "numpy-1.26.4-py3-none-any.whl": "numpy"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make root the owner of files")


class Stage:
    """The files of a host and of its controller in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.incoming = directory, directory / "host/incoming"
        self.incoming.mkdir(parents=True)
        self.user = HostileUser(self.incoming, directory / "elsewhere")
        self.keep("images.json", {})
        for name in ("pip.json", "calls.json", "login.json"):
            self.keep(name, [])
        self.keep("registry.json", {})
        self.keep("state.json", {})
        self.keep("wheels.json", WHEELS)
        # One backend file instead of all files of this project saves time, because each file is copied on its own
        self.backends = directory / "backends"
        (self.backends / "rbln").mkdir(parents=True)
        (self.backends / "rbln/model.py").touch()
        self.base = directory / "base.tar"
        self.base.write_text(json.dumps({"triton:base": BASE}))
        collections = directory / "collections/ansible_collections"
        for name, modules in PLAYED.items():
            (collections / name / "plugins/modules").mkdir(parents=True)
            for module in modules:
                shutil.copy(ENGINE, collections / name / f"plugins/modules/{module}.py")
        mine = collections / "npufleet/triton"
        mine.mkdir(parents=True)
        for entry in ("roles", "files", "meta", "galaxy.yml"):
            (mine / entry).symlink_to(ROOT / entry)
        shutil.copytree(ROOT / "plugins", mine / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
        (mine / "plugins/action/host_state.py").unlink()
        shutil.copy(ENGINE, mine / "plugins/modules/host_state.py")

    def keep(self, name: str, content: Any) -> None:
        (self.directory / name).write_text(json.dumps(content))

    def read(self, name: str) -> Any:
        return json.loads((self.directory / name).read_text())

    def run(self, *tasks: str, host: str = "npu1", more_variables: dict[str, Any] | None = None, **image: Any) -> tuple[int, str]:
        """Run task files of the role triton_image in this order. Return (exit code, output in one line)."""
        desired = {"reference": REFERENCE, "recipe": "1", "id": None, "delivery": "archive", "archive": None, "repo_digest": None}
        desired.update(image)
        variables = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "ansible_user": getpass.getuser(),
            "rbln_release": "24.01",
            "npufleet_release_row": ROW,
            "npufleet_root": str(self.directory / "host"),
            "npufleet_cache": str(self.directory / "cache"),
            "npufleet_lock_file": str(self.directory / "lock.json"),
            "npufleet_build_host": "npu1",
            "npufleet_proxy_environment": {},
            "triton_image_backends": str(self.backends),
            "triton_image_base_archive": str(self.base),
            "triton_image_base_archive_sha256": hashlib.sha256(self.base.read_bytes()).hexdigest(),
            "triton_image_extra_index_urls": ["https://pypi.example.com/simple/"],
            "triton_image_state": {"desired": {"image": desired}},
            **(more_variables or {}),
        }
        self.keep("hosts.json", {"npu_hosts": {"hosts": {host: {}}, "vars": variables}})
        included = [{"name": "npufleet.triton.triton_image", "tasks_from": task, "rolespec_validate": False} for task in tasks]
        steps = [{"ansible.builtin.include_role": entry} for entry in included]
        self.keep("play.yml", [{"hosts": "npu_hosts", "gather_facts": False, "tasks": steps}])
        collections = {"ANSIBLE_COLLECTIONS_PATH": str(self.directory / "collections"), "NPUFLEET_STAGE": str(self.directory)}
        login = f"triton_image_login_dir={self.directory}/login"
        done = ansible_playbook(
            self.directory, "-i", self.directory / "hosts.json", self.directory / "play.yml", "-e", login, **collections
        )
        return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


def content_of(ident: str) -> str:
    """Return the content digest of an image of the simulated engine."""
    content = {"layers": [ident], "config": {}, "platform": ["linux", "amd64"]}
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_build_records_its_inputs_and_the_next_requires_them(stage: Stage) -> None:
    # An image with the name of the base image is not the image of the archive
    stage.keep("images.json", {"triton:base": OTHER})
    # The export must not follow a link that the connecting user planted
    stage.user.plant("link to a file of root's", "image.tar")
    code, output = stage.run("build", "publish")
    assert code == 0, output
    assert stage.user.untouched()
    lock = stage.read("lock.json")["24.01"]
    wheels = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in WHEELS.items()}
    content = content_of(BASE)
    assert lock["supply"]["base"] == {"reference": "triton:base", "id": BASE, "content": content}
    assert lock["versions"] == {"rebel-compiler": "0.6.2"}
    assert lock["supply"]["wheels"] == wheels
    archive = stage.directory / "cache/images" / f"{BUILT.removeprefix('sha256:')}.tar"
    assert lock["archive"] == "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()
    vendor, rest = stage.read("pip.json")
    assert [word for word in vendor if "index-url" in word] == ["--index-url=https://pypi.rbln.ai/simple/"]
    assert [entry for entry in rest if "index-url" in entry] == ["--index-url=https://pypi.example.com/simple/"]

    stage.keep("wheels.json", {**WHEELS, "numpy-1.26.4-py3-none-any.whl": "hostile"})
    code, output = stage.run("build")
    assert code == 2, output
    assert f"numpy-1.26.4-py3-none-any.whl has SHA-256 {hashlib.sha256(b'hostile').hexdigest()}, expected" in output
    stage.base.write_text(json.dumps({"triton:base": OTHER}))
    stage.keep("images.json", {})
    code, output = stage.run("build")
    assert code == 2, output
    assert re.search(f"base image triton:base is sha256:[0-9a-f]{{64}}, expected {content}", output)
    assert stage.read("lock.json")["24.01"] == lock


def test_an_archive_without_the_base_image_fails_the_build(stage: Stage) -> None:
    stage.keep("images.json", {"triton:base": OTHER})
    stage.base.write_text(json.dumps({"triton:another": BASE}))
    code, output = stage.run("build")
    assert code == 2, output
    assert "base.tar has triton:another, expected" in output
    assert not (stage.directory / "lock.json").exists()


def test_an_archive_that_arrives_changed_is_not_pinned(stage: Stage) -> None:
    (stage.directory / "tamper").touch()
    code, output = stage.run("build", "publish")
    assert code == 2, output
    assert "arrived with SHA-256" in output and "The file was not used" in output
    built = stage.read("lock.json")["24.01"]
    assert (built["id"], "archive" in built) == (BUILT, False)
    # The built image is kept: the next run exports it, and builds nothing
    (stage.directory / "tamper").unlink()
    stage.keep("calls.json", [])
    code, output = stage.run("publish", id=BUILT)
    assert code == 0, output
    assert stage.read("calls.json") == ["docker_image_export", "synchronize"]
    assert stage.read("lock.json")["24.01"] == {**built, "archive": stage.read("lock.json")["24.01"]["archive"]}


def test_an_archive_that_was_changed_on_the_host_is_not_loaded(stage: Stage) -> None:
    archive = stage.directory / "cache/images" / f"{BUILT.removeprefix('sha256:')}.tar"
    archive.parent.mkdir(parents=True)
    archive.write_text(json.dumps({REFERENCE: BUILT}))
    image = {"id": BUILT, "archive": "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()}
    (stage.directory / "tamper").touch()
    code, output = stage.run("deliver", **image)
    assert code == 2, output
    assert "the file was removed: transfer it again" in output
    assert stage.read("images.json") == {}
    (stage.directory / "tamper").unlink()
    code, output = stage.run("deliver", **image)
    assert code == 0, output
    assert stage.read("images.json") == {REFERENCE: BUILT}
    assert os.listdir(stage.incoming) == []


def test_a_missing_directory_of_the_lock_file_is_created(stage: Stage) -> None:
    lock = stage.directory / "new/lock.json"
    code, output = stage.run("pin", more_variables={"npufleet_lock_file": str(lock), "triton_image_entry": LOCKED})
    assert code == 0, output
    assert json.loads(lock.read_text()) == {"24.01": LOCKED}


def test_an_invalid_archive_digest_is_not_pinned(stage: Stage) -> None:
    stage.keep("lock.json", {"24.01": {**LOCKED, "archive": "sha256:" + "a" * 63}})
    code, output = stage.run("pin", more_variables={"triton_image_entry": {**LOCKED, "archive": "sha256:" + "b" * 64 + "\n"}})
    assert code == 2, output
    assert "expected two digests. Nothing was pinned" in output
    assert stage.read("lock.json")["24.01"]["archive"] == "sha256:" + "a" * 63


# Delivery by a registry

REPOSITORY = "registry.example.com:5000/npufleet/triton"
IN_REGISTRY = f"{REPOSITORY}@sha256:{hashlib.sha256(BUILT.encode()).hexdigest()}"
LOGIN = ("fleet", "r3gistry-secret")
DELIVERY = {
    "triton_image_delivery_repository": REPOSITORY,
    "triton_image_delivery_user": LOGIN[0],
    "triton_image_delivery_password": LOGIN[1],
}
LOCKED = {"reference": REFERENCE, "recipe": "1", "id": BUILT, "content": content_of(BUILT), "archive": "sha256:" + "a" * 64}


def deliver(stage: Stage, **changes: Any) -> tuple[int, str]:
    """Deliver the image to a host on which another image has its name."""
    stage.keep("lock.json", {"24.01": {**LOCKED, "repo_digest": IN_REGISTRY}})
    stage.keep("images.json", {REFERENCE: OTHER})
    image = {"id": BUILT, "content": LOCKED["content"], "delivery": "registry", "repo_digest": IN_REGISTRY}
    return stage.run("deliver", host="npu2", more_variables={**DELIVERY, **changes}, **image)


@pytest.fixture
def registry(stage: Stage) -> Stage:
    """Return a stage whose registry has the image and requires a login."""
    stage.keep("login.json", LOGIN)
    stage.keep("registry.json", {IN_REGISTRY: BUILT})
    return stage


def test_a_built_image_is_pushed_and_pulled_again(stage: Stage) -> None:
    stage.keep("login.json", LOGIN)
    stage.keep(
        "state.json", {"plan": [{"action": "build"}], "desired": {"image": {"reference": REFERENCE, "recipe": "1", "id": None}}}
    )
    code, output = stage.run("main", more_variables=DELIVERY)
    assert code == 0, output
    calls = stage.read("calls.json")
    steps = ("host_state", "docker_image", "docker_login", "docker_image_push", "docker_image_pull")
    assert [call for call in calls if call in steps] == [*steps, "host_state"]
    lock = stage.read("lock.json")["24.01"]
    assert (lock["id"], lock["content"], lock["repo_digest"], "archive" in lock) == (BUILT, content_of(BUILT), IN_REGISTRY, False)
    assert not (stage.directory / "cache").exists(), "an archive that no task needs"
    assert stage.read("images.json") == {"triton:base": BASE, REFERENCE: BUILT}
    assert LOGIN[1] not in output
    assert not (stage.directory / "login").exists()


def test_a_locked_image_is_pushed_without_another_build(stage: Stage) -> None:
    stage.keep("lock.json", {"24.01": LOCKED})
    stage.keep("images.json", {REFERENCE: BUILT})
    stage.keep("state.json", {"plan": [{"action": "publish"}], "desired": {"image": {"reference": REFERENCE, "id": BUILT}}})
    code, output = stage.run("main", more_variables={"triton_image_delivery_repository": REPOSITORY})
    assert code == 0, output
    assert stage.read("lock.json")["24.01"] == {**LOCKED, "repo_digest": IN_REGISTRY}
    assert not {"docker_image", "docker_login"} & set(stage.read("calls.json"))


def test_a_host_pulls_the_digest_and_keeps_only_the_name(registry: Stage) -> None:
    code, output = deliver(registry)
    assert code == 0, output
    assert registry.read("images.json") == {REFERENCE: BUILT}
    assert LOGIN[1] not in output
    assert not (registry.directory / "login").exists()


def test_a_different_image_with_the_digest_gets_no_name(registry: Stage) -> None:
    registry.keep("registry.json", {IN_REGISTRY: BASE})
    code, output = deliver(registry)
    assert code == 2, output
    assert f"npu2: {IN_REGISTRY} is {content_of(BASE)}, expected {content_of(BUILT)} of" in output
    assert registry.read("images.json") == {REFERENCE: OTHER}


@pytest.mark.parametrize(
    ("changes", "gone", "words"),
    [
        (
            {"triton_image_delivery_password": "wr0ng-secret"},
            False,
            "npu2: registry.example.com:5000 gives no login to fleet (401 Unauthorized: fleet:********). "
            "Correct triton_image_delivery_user and _password",
        ),
        (
            {"triton_image_delivery_user": "", "triton_image_delivery_password": ""},
            False,
            "cannot be pulled (no basic auth credentials). Check",
        ),
        ({}, True, "cannot be pulled (connection refused). Check"),
    ],
)
def test_a_failed_pull_is_one_message(registry: Stage, changes: dict[str, Any], gone: bool, words: str) -> None:
    if gone:
        (registry.directory / "gone").touch()
    code, output = deliver(registry, **changes)
    assert code == 2, output
    assert words in output
    assert output.count("[ERROR]") == 1
    assert not any(secret in output for secret in ("wr0ng-secret", LOGIN[1]))
    assert registry.read("images.json") == {REFERENCE: OTHER}
    assert not (registry.directory / "login").exists()


def test_a_failed_push_keeps_the_built_image_pinned(stage: Stage) -> None:
    stage.keep("login.json", LOGIN)
    stage.keep("lock.json", {"24.01": LOCKED})
    stage.keep("images.json", {REFERENCE: BUILT})
    code, output = stage.run("publish", more_variables={"triton_image_delivery_repository": REPOSITORY}, id=BUILT)
    assert code == 2, output
    assert f"npu1: {REPOSITORY} does not accept the image (no basic auth credentials). Check" in output
    assert stage.read("lock.json")["24.01"] == LOCKED
    assert stage.read("images.json") == {REFERENCE: BUILT}


def test_an_invalid_registry_digest_is_not_pinned(stage: Stage) -> None:
    stage.keep("lock.json", {"24.01": LOCKED})
    stage.keep("images.json", {REFERENCE: BUILT})
    (stage.directory / "lies").touch()
    code, output = stage.run("publish", more_variables={"triton_image_delivery_repository": REPOSITORY}, id=BUILT)
    assert code == 2, output
    assert "expected one digest. Nothing was pinned" in output
    assert stage.read("lock.json")["24.01"] == LOCKED


def test_a_missing_digest_names_the_host_that_pushes_it(stage: Stage) -> None:
    stage.keep("lock.json", {"24.01": LOCKED})
    code, output = stage.run("deliver", host="npu2", more_variables=DELIVERY, id=BUILT, delivery="registry")
    assert code == 2, output
    assert "has no digest of release 24.01 in registry.example.com:5000/npufleet/triton" in output
    assert "Run playbooks/site.yml with npu1 among the hosts, which pushes the pinned image" in output
    assert stage.read("calls.json") == []
