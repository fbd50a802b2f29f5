"""A host in somebody else's hands, and the real playbooks that read it, run by ansible-playbook on this machine."""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import re
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from helpers import FIXTURES, ROOT, ansible_playbook

HOSTILE, HONEST = "npu-01", "npu-02"
# What a terminal obeys or hides; a line ends by \n alone
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Words:
    """Text that does something wherever it is taken for more than text: what it does is a file below `pwned`."""

    def __init__(self, pwned: Path) -> None:
        def does(what: str) -> str:
            return f"lookup('ansible.builtin.pipe', 'touch {pwned}/{what}')"

        self.pwned = pwned
        self.template = "{{ " + does("expression") + " }}{% if " + does("statement") + " %}{% endif %}"
        # First in its text, or it is none
        self.header = "#jinja2: variable_start_string:'<<', variable_end_string:'>>'\n<< " + does("header") + " >>"
        self.lines = "\nowned: " + self.template + "\r\n- owned: true\n# \u2028owned: true\x85owned: true"
        self.shell = f"; touch {pwned}/shell; $(touch {pwned}/shell) `touch {pwned}/shell` | touch {pwned}/shell"
        self.html = "\"'></title></style></script><script>owned()</script><img src=x onerror=owned()>"
        self.terminal = "\x1b]0;owned\x07\x1b[2J\x1b[1;31mowned\x9b0m\x08\x7f\r\u202eowned\0"
        self.all = self.template + self.lines + self.shell + self.html + self.terminal
        # For modules that are not this project's: Ansible itself prints their warnings as they come
        self.seen = self.template + self.shell + self.html
        self.paths = [f"{pwned}/absolute", "../" * 6 + "pwned/relative", "a/../../../../../../pwned/inside", "..", ".", "", "a\0b"]


class Hostile(NamedTuple):
    """Where the playbooks run, and what they left."""

    site: Path
    words: Words

    def answers(self, **more: Any) -> None:
        """What the host says from now on, by module."""
        (self.site / HOSTILE / "answers.json").write_text(json.dumps({**said(self.words), **more}))

    def asked(self) -> list[str]:
        """The modules that it was asked to run."""
        path = self.site / HOSTILE / "asked"
        return path.read_text().split() if path.exists() else []

    def play(self, playbook: str, *options: str, **extra: Any) -> tuple[int, str]:
        """(exit code, output) of a playbook of the project; everything that it may write goes below `build`."""
        build = self.site / "a/b/c/d/build"
        report = {"npufleet_status_file": str(build / "status.json"), "npufleet_report_file": str(build / "report/index.html")}
        given = {
            **(report if playbook in ("status.yml", "check.yml", "report.yml") else {}),
            "npufleet_support_dir": str(build / "support"),
            "npufleet_output_dir": str(build),
            "inference_check_image": "sha256:" + 64 * "0",
            **({"adopt_dir": str(build / "adopt" / HOSTILE)} if playbook == "adopt.yml" else {}),
            **extra,
        }
        arguments = ["-i", self.site / "hosts.json", ROOT / "playbooks" / playbook, "-e", json.dumps(given), *options]
        before = self.tree()
        done = ansible_playbook(self.site, *arguments)
        output = done.stdout + done.stderr
        assert self.asked(), output
        assert not list(self.words.pwned.iterdir()), output
        assert self.tree() == before, output
        assert "Traceback" not in output, output
        assert not re.search(r"^(- )?owned", output, re.MULTILINE), output
        controls = sorted({ascii(word) for word in CONTROLS.findall(output)})
        assert not controls, (controls, output)
        return done.returncode, output

    def tree(self) -> set[str]:
        """Everything on this side of the site that no playbook has any business with."""
        own = ("a/b/c/d/build", "ansible", "cache", "host_vars", f"{HOSTILE}/asked", f"{HONEST}/asked", f"{HOSTILE}/library")
        found = {str(path.relative_to(self.site)) for path in self.site.rglob("*")}
        return {entry for entry in found if not entry.startswith(own)}


def make(site: Path) -> Hostile:
    """An inventory of a hostile host and an honest one, whose models lie on the controller."""
    hostile = Hostile(site, Words(site / "pwned"))
    hostile.words.pwned.mkdir(parents=True)
    (site / "a/b/c/d/build").mkdir(parents=True)
    (site / "models/digits/1").mkdir(parents=True)
    (site / "models/digits/config.pbtxt").write_text('backend: "python"\ninstance_group [{ kind: KIND_MODEL }]\n')
    (site / "models/digits/1/model.py").write_text("class TritonPythonModel:\n    execute = None\n")
    hosts = {}
    for name in (HOSTILE, HONEST):
        (site / name).mkdir()
        python = site / name / "python"
        python.write_text(f"#!{sys.executable} -E\n" + (ROOT / "tests/hostile/interpreter.py").read_text())
        python.chmod(0o755)
        (site / name / "library").touch()
        hosts[name] = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": str(python)}
    (site / HONEST / "answers.json").write_text(json.dumps(honest()))
    fleet = {
        "rbln_release": "24.01",
        "npufleet_npus": 2,
        "npufleet_card": "RBLN-CA12",
        "npufleet_root": str(site / "root"),
        "npufleet_model_repository": str(site / "models"),
        "npufleet_lock_file": str(site / "lock.json"),
        "npufleet_cache": str(site / "cache"),
        "triton_models": [{"name": "digits"}],
    }
    (site / "hosts.json").write_text(json.dumps({"npu_hosts": {"hosts": hosts, "vars": fleet}}))
    hostile.answers()
    return hostile


def honest() -> dict[str, Any]:
    """What a host says that is as wanted."""
    state = {
        "changed": False,
        "plan": [],
        "report": [],
        "maintenance": None,
        "actual": {},
        "held": {},
        "refusals": [],
        "clock": time.time(),
        "store": {"history": [], "transaction": None, "holds": {}},
    }
    check = {"name": "digits/http/one", "model": "digits", "protocol": "http", "ok": True, "ms": 2.5}
    return {
        "any": {"changed": False},
        "host_state": state,
        "inference_check": {"changed": False, "proven": True, "msg": "1 of 1 checks passed", "checks": [check]},
        "model_store": {"changed": False, "moves": {}, "forgotten": []},
        "support_bundle": {"failed": True, "msg": "not asked in these tests"},
    }


def said(words: Words) -> dict[str, Any]:
    """What the hostile host says, by module: every text is hostile, every number too large, and nothing is missing."""
    bad = words.all
    huge = 10**400
    version = {"state": "READY", "reason": bad, "release": bad}
    actual = {
        bad: bad,
        "driver": {
            "package": {"version": bad},
            "module": bad,
            "kernel": bad,
            "tool": {"devices": [{**dict.fromkeys(("device", "name", "status", "firmware", "bus_id"), bad),
                                  "memory_used": huge, "memory_total": huge}]},
        },
        "engine": {"running": {"version": bad}},
        "image": {"id": bad, "contents": ["rebel-compiler==" + bad, bad]},
        "server": {
            "version": bad,
            "state": bad,
            "container": {"command": [bad]},
            "served": {bad: {bad: version, "9" * 5000: version}},
        },
        "models": {
            "served": {bad: {"release": bad}},
            "missing": words.paths,
            "transaction": {"since": bad, "by": bad, "models": {bad: bad}},
            "store": True,
        },
    }  # fmt: skip
    item = dict.fromkeys(("concern", "name", "current", "desired", "action"), bad)
    hold = dict.fromkeys(("label", "by", "when", "why", "source", "release", "versions"), bad)
    state = {
        "changed": False,
        "plan": [item, {**item, "name": words.header}],
        "report": [bad, words.header],
        "maintenance": None,
        "actual": actual,
        "held": {bad: hold, "digits": hold},
        "refusals": [],
        "clock": time.time(),
        "store": {
            "history": [dict.fromkeys(("when", "who", "model", "what", "from", "to", "result", "why"), bad)],
            "transaction": {"since": bad, "by": bad, "models": {bad: bad}},
            "holds": {bad: hold},
        },
        "warnings": [bad],
        "diff": {"before": bad, "after": bad, "before_header": bad, "after_header": bad},
        "ansible_facts": {"npufleet_root": words.template, "ansible_connection": "local"},
        "add_host": {"host_name": "npu-99", "groups": ["npu_hosts"], "host_vars": {"ansible_connection": "local"}},
        "msg": bad,
    }
    check = {**dict.fromkeys(("name", "model", "protocol", "why", "picture"), bad), "ok": "yes", "ms": huge,
             "expected": {bad: bad}, "got": [bad], "image": bad}  # fmt: skip
    move = {"from": bad, "to": bad}
    return {
        "any": {
            "changed": True,
            **dict.fromkeys(("msg", "stdout", "stderr", "content"), words.seen),
            "stat": {"exists": True, "path": words.seen, "checksum": words.seen},
            "sha256": words.seen,
            "container": {"Output": words.seen, "State": {"ExitCode": 0}},
            "ansible_facts": {"npufleet_root": words.template, "ansible_connection": "local"},
            "add_host": {"host_name": "npu-99", "groups": ["npu_hosts"], "host_vars": {"ansible_connection": "local"}},
        },
        "host_state": state,
        "inference_check": {"changed": False, "proven": True, "msg": bad, "checks": [check], "warnings": [bad]},
        "model_store": {"changed": False, "moves": {bad: move}, "forgotten": [bad], "msg": bad, "warnings": [bad]},
        "support_bundle": {"changed": False, "files": [bad], "errors": [bad], "redacted": bad, "raw": bundle(words)},
        "adoption": container(words),
    }


def bundle(words: Words) -> str:
    """A support bundle that writes wherever somebody unpacks it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in words.paths[:3]:
            archive.addfile(tarfile.TarInfo(path))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(words.pwned)
        archive.addfile(link)
    return base64.b64encode(packed.getvalue()).decode()


def container(words: Words) -> dict[str, Any]:
    """What it says of a container that somebody started by hand there: names are good, every text is hostile."""
    bad = words.all
    inspect = copy.deepcopy(json.loads((FIXTURES / "hand_made_containers.json").read_text())["guide"])
    inspect["Name"] = "/triton"
    inspect["Config"]["Labels"] = {"com.docker.compose.project": bad, "com.docker.compose.service": bad}
    inspect["Config"]["Env"] = ["PROMPT=" + bad, "HEADER=" + words.header, bad + "=1", "HF_TOKEN" + bad + "=hf_12345678",
                                "HF_TOKEN=" + words.header]  # fmt: skip
    inspect["HostConfig"]["Dns"] = [bad]
    inspect["HostConfig"]["LogConfig"] = {"Type": words.header, "Config": {bad: bad, "max-file": words.header}}
    inspect["HostConfig"]["CpusetCpus"] = words.header
    inspect["Mounts"] += [{"Destination": "/" + words.template, "Source": "/srv/" + words.template, "RW": True, "Type": "bind"}]
    argv = ["tritonserver", "--model-repository=/opt/tritonserver/python_backend", "--model-control-mode=none", bad]
    for name in ("x-restricted" + words.template, "x-restricted\n" + bad, words.template, bad, words.header):
        argv += [f"--{name}={bad}", f"--{name}={words.header}"]
    argv += ["--rate-limit-resource=" + words.header, "--http-restricted-api=" + words.header, "--log-file=" + bad]
    small = b"class TritonPythonModel:\n    execute = None\n"
    paths = ["1/model.py", "1/{{ nothing_here }}.txt", "config.pbtxt"]
    contents = {path: base64.b64encode(small).decode() for path in paths}
    contents["config.pbtxt"] = base64.b64encode(b'backend: "python"\n').decode()
    files = {
        path: {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), "at": bad}
        for path, raw in ((path, base64.b64decode(content)) for path, content in contents.items())
    }
    tensor = f"{words.pwned}/tensor"
    config = {
        "max_batch_size": 0,
        "input": [{"name": name, "data_type": "TYPE_FP32", "dims": [1]} for name in (tensor, "../" * 8 + "pwned/in", bad)],
    }
    outputs = [{"name": name, "datatype": "FP32", "shape": [1], "data": [1.0]} for name in (tensor, bad, words.header)]
    model = {"home": bad, "versions": ["1"], "files": files, "contents": contents, "config": config}
    found = {
        "inspect": inspect,
        "image": {"Config": {"Env": [], "Cmd": ["bash"]}},
        "default_runtime": "runc",
        "process": {"pid": 1, "argv": argv, "environment": {bad: bad}, "directory": bad, "user": bad, "main": True},
        "managed": False,
        "server": {"version": bad, "address": bad, "port": bad},
        "models": {"words": model},
        "left_out": [bad, words.header],
    }
    return {
        "look": {"changed": False, "found": found, "warnings": [bad]},
        "requests": {"changed": False, "answers": {"words": [200, {"outputs": outputs}]}},
        "piece": {"changed": False, "data": ""},
    }
