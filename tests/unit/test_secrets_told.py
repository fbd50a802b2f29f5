"""The real playbooks on this machine, told as much as they can tell: no secret of the inventory is in what they say and leave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import ROOT, ROW, ansible_playbook

SECRET = "-s3cret"
SECRETS = {
    "triton_server_environment": {
        "HF_TOKEN": "token" + SECRET,
        "NOTE": "harmless-name" + SECRET,
        "LICENSE_KEY": "license" + SECRET,
        "OPENAI_KEY": "openai" + SECRET,
        "SIGNING_KEY": "signing" + SECRET,
        "AZURE_STORAGE_KEY": "azure" + SECRET,
        "ALERTS": f"https://hooks.slack.com/services/T0/B0/slack{SECRET}",
        "SOURCE": f"https://a.blob.core.windows.net/c?sp=r&sig=sas{SECRET}",
    },
    "triton_server_extra_args": [
        f"--some-option=option{SECRET}",
        "--some-option",
        f"word{SECRET}",
        f"--cache-config=redis,host=cache1,password=redis{SECRET}",
        f"--trace-config=opentelemetry,url=http://me:a/b#trace{SECRET}@host",
    ],
    "triton_server_log_options": {"splunk-token": "splunk" + SECRET},
    "docker_engine_daemon_options": {"log-driver": "json-file", "log-opts": {"splunk-token": "engine" + SECRET}},
    "docker_engine_unit_limits": {"docker.service": {"Environment": "A=unit" + SECRET}},
    "npufleet_https_proxy": f"http://me:proxy{SECRET}@127.0.0.1:9",
    "npufleet_artefact_user": "fleet",
    "npufleet_artefact_password": "artefact" + SECRET,
    "inference_check_headers": {"X-Anything": "header" + SECRET},
    "triton_server_cloud_credentials": {"s3": {"": {"secret_key": "cloud" + SECRET}}},
}
# Tasks of roles that handle secrets in the clear
MAKING = {
    "triton_server/tasks/container.yml": [
        "Read the desired container with its secrets",
        "Create the next container while the current one serves",
    ],
    "docker_engine/tasks/apply.yml": ["Read the configuration with its secrets"],
    "docker_engine/tasks/configure.yml": [
        "Read daemon.json",
        "Write daemon.json and the limits, restart the engine, and restore the files if the engine does not start",
    ],
}
DETAILS = """
- name: Read
  hosts: all
  gather_facts: false
  tasks:
    - name: Read the state with its details
      npufleet.triton.host_state:
"""
DOWNLOADS = """
- name: Download
  hosts: all
  gather_facts: false
  tasks:
    - name: Bring the site's proxies
      ansible.builtin.include_role:
        name: npufleet.triton.common
        tasks_from: proxy
        public: true

    - name: Download through them
      ansible.builtin.get_url:
        url: http://npufleet.invalid/file
        dest: "{{ place }}/file"
        timeout: 5
      vars:
        ansible_python_interpreter: "{{ npufleet_proxy_python }}"
"""


def play(place: Path, playbook: Path, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """One run on this machine as host npu1, at the highest verbosity that people use."""
    row = {**ROW, "driver": {"package": "rebellions", "version": "1.2.92", "form": "deb"}}
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "rbln_release": "site",
        "npufleet_extra_releases": {"site": row},
        "npufleet_npus": 2,
        "npufleet_card": "RBLN-CA12",
        "npufleet_root": str(place / "root"),
        "npufleet_proxy_file": str(place / "etc/proxy.env"),
        "npufleet_model_repository": str(place / "models"),
        "triton_models": [],
        "place": str(place),
        **SECRETS,
        **more,
    }
    (place / "hosts.json").write_text(json.dumps({"npu_hosts": {"hosts": {"npu1": host}}}))
    return ansible_playbook(place, "-i", place / "hosts.json", playbook, "-vvv", *options)


def told(output: str) -> list[str]:
    """Lines with a secret in them."""
    return [line for line in output.splitlines() if SECRET in line]


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.CompletedProcess[str], Path]]:
    """(a run of status.yml, its place)."""
    place = tmp_path_factory.mktemp("told")
    files = {"npufleet_status_file": f"{place}/build/status.json", "npufleet_report_file": f"{place}/build/report/index.html"}
    yield play(place, ROOT / "playbooks/status.yml", "--diff", "-e", json.dumps(files)), place


def test_preflight_tells_no_login_on_the_way_to_a_supplier(tmp_path: Path) -> None:
    """What a module answers is shown by ssh as it comes; here its interpreter keeps it."""
    # The host that builds asks every supplier
    python, said = tmp_path / "python", tmp_path / "said"
    python.write_text(f'#!/bin/sh\n{sys.executable} "$@" | tee -a {said}\n')
    python.chmod(0o755)
    driver = f"https://store.invalid/driver.deb?sv=1&sig=url{SECRET}"
    given = {"rbln_driver_package_url": driver, "rbln_driver_package_sha256": "0" * 64, "ansible_python_interpreter": str(python)}
    done = play(tmp_path, ROOT / "playbooks/preflight.yml", **given)
    answers = said.read_text()
    assert "https://store.invalid/driver.deb" in answers, done.stdout[-3000:]
    assert told(answers + done.stdout + done.stderr) == []


def test_status_tells_what_differs_and_no_secret(looked: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, place = looked
    output = done.stdout + done.stderr
    assert done.returncode == 2, output[-3000:]
    assert told(output) == []
    # It was told as much as it can tell: the plan, and what is wanted of the container by its names
    shown = output + (place / "build/status.json").read_text()
    assert [word for word in ("daemon.json", "digest:") if word not in shown] == []
    assert f"{place}/etc/proxy.env" in shown


def test_the_key_of_the_digests_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(DETAILS)
    done = play(tmp_path, tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "digest:" in done.stdout
    assert told(done.stdout + done.stderr) == []
    assert [line for line in (done.stdout + done.stderr).splitlines() if re.search(r"\bdigest_key\b", line)] == []


@pytest.mark.parametrize("name", ["status.json", "report/index.html"])
def test_what_status_leaves_is_without_secrets_and_for_its_owner(
    looked: tuple[subprocess.CompletedProcess[str], Path], name: str
) -> None:
    path = looked[1] / "build" / name
    assert told(path.read_text()) == []
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_older_report_is_closed_too(looked: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    place = looked[1]
    for name in ("status.json", "report/index.html"):
        (place / "build" / name).chmod(0o644)
    files = {"npufleet_status_file": f"{place}/build/status.json", "npufleet_report_file": f"{place}/build/report/index.html"}
    play(place, ROOT / "playbooks/status.yml", "-e", json.dumps(files))
    assert {(place / "build" / name).stat().st_mode & 0o777 for name in ("status.json", "report/index.html")} == {0o600}


def test_a_refusal_tells_no_secret(tmp_path: Path) -> None:
    done = play(tmp_path, ROOT / "playbooks/status.yml", npufleet_https_proxy=f"http://me:'proxy{SECRET}@127.0.0.1:9")
    assert done.returncode != 0
    assert "npufleet_https_proxy has" in done.stdout
    assert told(done.stdout + done.stderr) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="the engine's configuration is root's")
def test_who_makes_the_container_is_told_its_secrets_and_nobody_else(tmp_path: Path) -> None:
    """The tasks of the roles that do, with the engine and root's files played by a directory."""
    tasks = []
    for path, names in MAKING.items():
        found = yaml.safe_load((ROOT / "roles" / path).read_text())
        found += [entry for block in found for entry in block.get("block", [])]
        tasks += [next(entry for entry in found if entry["name"] == name) for name in names]
    assert all(task["no_log"] == "{{ npufleet_no_log }}" for task in tasks)
    container = next(task for task in tasks if "community.docker.docker_container" in task)
    options = container.pop("community.docker.docker_container")
    shown = {name: options[name] for name in ("command", "env")}
    container["ansible.builtin.copy"] = {"content": shown, "dest": str(tmp_path / "container.json"), "mode": "0600"}
    (tmp_path / "daemon.json").write_text('{"debug": true, "log-opts": {"tag": "site"}}')
    for task in tasks:
        if "ansible.builtin.slurp" in task:
            task["ansible.builtin.slurp"]["src"] = str(tmp_path / "daemon.json")
        if "npufleet.triton.host_files" in task:
            # Only daemon.json is written, and to the directory of this test
            options = task["npufleet.triton.host_files"]
            chosen = f"selectattr('mode', 'defined') | map('combine', {{'path': '{tmp_path}/daemon.json'}})"
            options["files"] = f"{{{{ docker_engine_configuration.files | {chosen} }}}}"
    found_engine = {"daemon": {"debug": True}, "program": None, "private": False}
    state = {
        "docker_engine_state": {"actual": {"engine": found_engine}, "plan": [{"name": "daemon.json", "action": "configure"}]},
        "npufleet_query_timeout": 900,
        "npufleet_no_log": True,
    }
    play_ = {"name": "Make it", "hosts": "all", "gather_facts": False, "vars": state, "tasks": tasks}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play_], sort_keys=False))
    done = play(tmp_path, tmp_path / "play.yml", "--diff")
    assert done.returncode == 0, done.stdout[-3000:]
    assert told(done.stdout + done.stderr) == []
    made = json.loads((tmp_path / "container.json").read_text())
    given = SECRETS["triton_server_environment"]
    assert {name: made["env"][name] for name in given} == given  # type: ignore[attr-defined]
    assert made["command"][-len(SECRETS["triton_server_extra_args"]) :] == SECRETS["triton_server_extra_args"]  # type: ignore[arg-type]
    daemon = json.loads((tmp_path / "daemon.json").read_text())
    assert daemon["log-opts"] == {"tag": "site", "splunk-token": "engine" + SECRET} and daemon["debug"] is True
    assert (tmp_path / "daemon.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="the file of proxies is root's")
def test_a_download_goes_through_the_proxy_and_its_login_is_in_no_command_line(tmp_path: Path) -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    asked: list[tuple[str, str | None]] = []
    lines: set[str] = set()

    class Proxy(BaseHTTPRequestHandler):
        def log_message(self, *_words: Any) -> None:
            pass

        def do_GET(self) -> None:
            # While the host asks, every command line of its download is there to be read
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    lines.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:  # ended since it was listed
                    continue
            asked.append((self.path, self.headers.get("Proxy-Authorization")))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    (tmp_path / "play.yml").write_text(DOWNLOADS)
    try:
        given = f"http://me:proxy{SECRET}$(touch x);%27@127.0.0.1:{proxy.server_port}"
        done = play(tmp_path, tmp_path / "play.yml", npufleet_http_proxy=given, npufleet_https_proxy="")
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "file").read_text() == "ok", done.stdout[-3000:]
    assert [path for path, login in asked if login] == ["http://npufleet.invalid/file"]
    assert any("etc/python" in line for line in lines)
    assert [line for line in lines if SECRET in line] == []
    assert told(done.stdout + done.stderr) == []
    assert (tmp_path / "etc/proxy.env").stat().st_mode & 0o777 == 0o600
    assert not list(ROOT.glob("x")) and not (tmp_path / "x").exists()
