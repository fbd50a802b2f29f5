"""The real tasks that build and deliver an image, on a host that is played, beside a hostile connecting user."""

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
    "community/docker": ["docker_image_info", "docker_image_load", "docker_image", "docker_image_export", "docker_container"],
    "ansible/posix": ["synchronize"],
}
BASE, BUILT, OTHER = "sha256:" + "b" * 64, "sha256:" + "e" * 64, "sha256:" + "0" * 64
WHEELS = {"rebel_compiler-0.6.2-py3-none-any.whl": "rebel", "numpy-1.26.4-py3-none-any.whl": "numpy"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="what is taken over is given to root")


class Stage:
    """A host and its controller in one directory."""

    def __init__(self, place: Path) -> None:
        self.place, self.incoming = place, place / "host/incoming"
        self.incoming.mkdir(parents=True)
        self.user = HostileUser(self.incoming, place / "elsewhere")
        self.keep("images.json", {})
        self.keep("pip.json", [])
        self.keep("wheels.json", WHEELS)
        # One file instead of the project's own: each is a copy of its own
        self.backends = place / "backends"
        (self.backends / "rbln").mkdir(parents=True)
        (self.backends / "rbln/model.py").touch()
        self.base = place / "base.tar"
        self.base.write_text(json.dumps({"triton:base": BASE}))
        collections = place / "collections/ansible_collections"
        for name, modules in PLAYED.items():
            (collections / name / "plugins/modules").mkdir(parents=True)
            for module in modules:
                shutil.copy(ENGINE, collections / name / f"plugins/modules/{module}.py")
        mine = collections / "npufleet/triton"
        mine.mkdir(parents=True)
        for one in ("roles", "files", "meta", "galaxy.yml"):
            (mine / one).symlink_to(ROOT / one)
        shutil.copytree(ROOT / "plugins", mine / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
        (mine / "plugins/action/host_state.py").unlink()
        shutil.copy(ENGINE, mine / "plugins/modules/host_state.py")

    def keep(self, name: str, content: Any) -> None:
        (self.place / name).write_text(json.dumps(content))

    def read(self, name: str) -> Any:
        return json.loads((self.place / name).read_text())

    def run(self, tasks: str, **image: Any) -> tuple[int, str]:
        """One task file of the role; exit code and output in one line."""
        variables = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "ansible_user": getpass.getuser(),
            "rbln_release": "24.01",
            "npufleet_row": ROW,
            "npufleet_root": str(self.place / "host"),
            "npufleet_cache": str(self.place / "cache"),
            "npufleet_lock_file": str(self.place / "lock.json"),
            "npufleet_build_host": "npu1",
            "npufleet_proxy_environment": {},
            "triton_image_backends": str(self.backends),
            "triton_image_base_archive": str(self.base),
            "triton_image_base_archive_sha256": hashlib.sha256(self.base.read_bytes()).hexdigest(),
            "triton_image_extra_index_urls": ["https://pypi.example.com/simple/"],
            "triton_image_state": {"desired": {"image": {"reference": "npufleet/triton:24.01-1", "recipe": "1", **image}}},
        }
        self.keep("hosts.json", {"npu_hosts": {"hosts": {"npu1": {}}, "vars": variables}})
        included = {"name": "npufleet.triton.triton_image", "tasks_from": tasks}
        play = {"hosts": "npu_hosts", "gather_facts": False, "tasks": [{"ansible.builtin.include_role": included}]}
        self.keep("play.yml", [play])
        collections = {"ANSIBLE_COLLECTIONS_PATH": str(self.place / "collections"), "NPUFLEET_STAGE": str(self.place)}
        done = ansible_playbook(self.place, "-i", self.place / "hosts.json", self.place / "play.yml", **collections)
        return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_build_records_what_it_is_made_of_and_the_next_one_holds_to_it(stage: Stage) -> None:
    # Whoever loaded it: it has the name, and is not what the archive has
    stage.keep("images.json", {"triton:base": OTHER})
    # The export follows nothing that the connecting user planted
    stage.user.plant("link to a file of root's", "image.tar")
    code, output = stage.run("build")
    assert code == 0, output
    assert stage.user.untouched()
    lock = stage.read("lock.json")["24.01"]
    wheels = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in WHEELS.items()}
    held = {"layers": [BASE], "config": {}, "platform": ["linux", "amd64"]}
    content = "sha256:" + hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
    assert lock["supply"]["base"] == {"reference": "triton:base", "id": BASE, "content": content}
    assert lock["versions"] == {"rebel-compiler": "0.6.2"}
    assert lock["supply"]["wheels"] == wheels
    archive = stage.place / "cache/images" / f"{BUILT.removeprefix('sha256:')}.tar"
    assert lock["archive"] == "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()
    vendor, rest = stage.read("pip.json")
    assert [one for one in vendor if "index-url" in one] == ["--index-url=https://pypi.rbln.ai/simple/"]
    assert [one for one in rest if "index-url" in one] == ["--index-url=https://pypi.example.com/simple/"]

    stage.keep("wheels.json", {**WHEELS, "numpy-1.26.4-py3-none-any.whl": "hostile"})
    code, output = stage.run("build")
    assert code == 2, output
    assert f"numpy-1.26.4-py3-none-any.whl: found SHA-256 {hashlib.sha256(b'hostile').hexdigest()}, wanted" in output
    stage.base.write_text(json.dumps({"triton:base": OTHER}))
    stage.keep("images.json", {})
    code, output = stage.run("build")
    assert code == 2, output
    assert re.search(f"base image triton:base: found sha256:[0-9a-f]{{64}}, wanted {content}", output)
    assert stage.read("lock.json")["24.01"] == lock


def test_an_archive_without_the_base_image_does_not_make_another_one_good(stage: Stage) -> None:
    stage.keep("images.json", {"triton:base": OTHER})
    stage.base.write_text(json.dumps({"triton:another": BASE}))
    code, output = stage.run("build")
    assert code == 2, output
    assert "found triton:another in" in output
    assert not (stage.place / "lock.json").exists()


def test_an_archive_that_arrives_changed_is_not_pinned(stage: Stage) -> None:
    (stage.place / "tamper").touch()
    code, output = stage.run("build")
    assert code == 2, output
    assert "nothing was pinned" in output
    assert not (stage.place / "lock.json").exists()


def test_an_archive_that_was_changed_on_the_host_is_not_loaded(stage: Stage) -> None:
    archive = stage.place / "cache/images" / f"{BUILT.removeprefix('sha256:')}.tar"
    archive.parent.mkdir(parents=True)
    archive.write_text(json.dumps({"npufleet/triton:24.01-1": BUILT}))
    image = {"id": BUILT, "archive": "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()}
    (stage.place / "tamper").touch()
    code, output = stage.run("deliver", **image)
    assert code == 2, output
    assert "it was removed: transfer it again" in output
    assert stage.read("images.json") == {}
    (stage.place / "tamper").unlink()
    code, output = stage.run("deliver", **image)
    assert code == 0, output
    assert stage.read("images.json") == {"npufleet/triton:24.01-1": BUILT}
    assert os.listdir(stage.incoming) == []
