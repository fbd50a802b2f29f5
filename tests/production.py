#!/usr/bin/env python3
"""Follows docs/production.md line by line against the running lab: production.py [--keep].

Writes every file that the page shows and runs every command, as they stand but for the example's values, in a checkout of
its own below build/production. Meanwhile it samples the command lines of this machine, whose containers the hosts are, and
reads all output at the highest verbosity that people use (-vvv): no secret may be in either.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/production.md"
SITE = ROOT / "build/production"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
NAMED = re.compile(r"`([\w./-]+)`:\s*$")
SECONDS = 900


@dataclass
class Step:
    """A file to write (`path`) or commands to run, with the line of the page."""

    line: int
    text: str
    path: str = ""


def steps(page: str) -> Iterator[Step]:
    """Files and commands of a page in their order; blocks of `text` are for reading only."""
    for block in BLOCK.finditer(page):
        line = page[: block.start()].count("\n") + 2
        if block[1] == "yaml":
            named = NAMED.search(page[: block.start()].rstrip())
            if not named:
                raise SystemExit(f"{PAGE.name}:{line}: found a file without a name, wanted `path`: before it")
            yield Step(line, block[2], named[1])
        elif block[1] == "sh":
            yield from (Step(line + number, command) for number, command in enumerate(block[2].splitlines()) if command)


def values(lab: dict, secrets: dict[str, str]) -> dict[str, str]:
    """What of the page's examples is otherwise on the lab: {as the page has it: as it is here}."""
    facts = lab["all"]["vars"]
    address = {name: one["ansible_host"] for name, one in lab["_meta"]["hostvars"].items()}
    model = facts["lab_models"]["digits"]
    driver = facts["lab_drivers"]["1.1.67"]
    package = next((ROOT / "build/lab/artefacts").glob(driver["path"]))
    return {
        "192.0.2.11": address["npu1"],
        "192.0.2.12": address["npu2"],
        "192.0.2.10": address["ops1"],
        "ansible_user: ops": f"ansible_user: {facts['ansible_user']}",
        '"25.08"': f'"{facts["lab_release"]}"',
        "RBLN-CA22": "RBLN-CA12",
        "CA22/0.9": model["key"],
        "https://artefacts.example.com/models/resnet50/ca22-0.9/model.rbln": f"{facts['lab_artefact_url']}/{model['path']}",
        "resnet50": "digits",
        "0" * 64: model["sha256"],
        "npufleet_artefact_user: fleet": f"npufleet_artefact_user: {facts['lab_artefact_user']}",
        "/srv/fleet/packages/rebellions_2.0.1_amd64.deb": str(package),
        "1" * 64: driver["sha256"],
        "fleet@example.com": facts["lab_artefact_user"],
        "become-secret": secrets["become"],
        "artefact-secret": secrets["artefact"],
        "index-secret": secrets["artefact"],
    }


def lab_only(lab: dict) -> str:
    """What a real site has and the lab stands in for: its release row, index and base image."""
    facts = lab["all"]["vars"]
    url = facts["lab_artefact_url"]
    host = url.split("//")[1].split(":")[0]
    rows = yaml.safe_load((ROOT / "inventories/lab/group_vars/all.yml").read_text())["npufleet_extra_releases"]
    row = {**rows[facts["lab_release"]], "driver": {"package": "rebellions", "version": "1.1.67", "form": "deb"}}
    row["sdk"] = {**row["sdk"], "version": facts["lab_sdk"][facts["lab_release"]]}
    return json.dumps(
        {
            "npufleet_extra_releases": {facts["lab_release"]: row},
            "npufleet_cache": str(SITE / "cache"),
            "triton_image_base_archive": f"{url}/{facts['lab_base']['path']}",
            "triton_image_base_archive_sha256": facts["lab_base"]["sha256"],
            "triton_image_index_url": f"{url}/simple/",
            "triton_image_extra_index_urls": [],
            "triton_image_pip_options": [f"--trusted-host={host}"],
            "triton_server_environment": {"RBLN_LAB_NPU_NAME": "RBLN-CA12"},
            "preflight_disk_engine": 4,
            "preflight_disk_transfer": 2,
            "preflight_disk_models": 1,
            "monitoring_scrape_interval": "2s",
        }
    )


class Sampler(threading.Thread):
    """Reads every command line of the machine, those inside the lab's hosts too, until it is stopped."""

    def __init__(self, secrets: list[str]) -> None:
        super().__init__(daemon=True)
        self.secrets = [one.encode() for one in secrets]
        self.ended = threading.Event()
        self.seen: set[str] = set()
        self.samples = 0

    def run(self) -> None:
        while not self.ended.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes()
                except OSError:  # ended since it was listed
                    continue
                if any(secret in line for secret in self.secrets):
                    self.seen.add(line.replace(b"\0", b" ").decode(errors="replace")[:200])
            self.samples += 1
            self.ended.wait(0.2)


def prepare(lab: dict) -> None:
    """A checkout of what is committed or about to be, as a site would have it: without the lab's inventory."""
    shutil.rmtree(SITE, ignore_errors=True)
    checkout = SITE / "checkout"
    checkout.mkdir(parents=True)
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
    copy = ["rsync", "--archive", "--from0", "--files-from=-", f"{ROOT}/", str(checkout)]
    subprocess.run(copy, input=files, check=True)
    (SITE / "lab.yml").write_text(lab_only(lab))


def environment(lab: dict) -> dict[str, str]:
    """A shell of a person at the controller: no virtual environment, a home of its own, the lab's ssh key and known hosts."""
    facts = lab["all"]["vars"]
    home = SITE / "home"
    home.mkdir()
    kept = {name: os.environ[name] for name in ("LANG", "PIP_CONFIG_FILE", "PIP_INDEX_URL", "SSL_CERT_FILE") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "USER": "root",
        "ANSIBLE_PRIVATE_KEY_FILE": facts["ansible_ssh_private_key_file"],
        "ANSIBLE_SSH_COMMON_ARGS": facts["ansible_ssh_common_args"],
        "ANSIBLE_VERBOSITY": "3",
        "ANSIBLE_NOCOLOR": "1",
    }


def main() -> None:
    lab = json.loads(subprocess.run([str(ROOT / "inventories/lab/hosts.py")], capture_output=True, text=True, check=True).stdout)
    if "all" not in lab:
        raise SystemExit("production.py: found no running lab, wanted one with bare hosts: make lab")
    facts = lab["all"]["vars"]
    secrets = {"become": facts["ansible_become_password"], "artefact": facts["lab_artefact_password"]}
    table = values(lab, secrets)
    prepare(lab)
    checkout = SITE / "checkout"
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--norc"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=checkout,
        env=environment(lab),
        text=True,
    )
    sampler = Sampler(list(secrets.values()))
    sampler.start()
    log = (SITE / "output.txt").open("w")
    done = files = 0
    try:
        for step in steps(PAGE.read_text()):
            text = step.text
            for found, here in table.items():
                text = text.replace(found, here)
            if step.path:
                target = checkout / step.path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
                shutil.copy(SITE / "lab.yml", checkout / "inventories/prod/group_vars/all/zz_lab.yml")
                files += 1
                continue
            began = time.monotonic()
            code, output = run(shell, text)
            log.write(f"$ {text}\n{output}")
            log.flush()
            print(f"{PAGE.name}:{step.line}: {text} ({time.monotonic() - began:.1f} s)", flush=True)
            if code:
                raise SystemExit(f"{PAGE.name}:{step.line}: `{text}` ended with {code}:\n{output[-6000:]}")
            done += 1
    finally:
        sampler.ended.set()
        sampler.join()
        if shell.stdin:
            shell.stdin.close()
        shell.wait(timeout=30)
        log.close()
    said = (SITE / "output.txt").read_text()
    shown = [line[:200] for line in said.splitlines() if any(secret in line for secret in secrets.values())]
    if shown:
        raise SystemExit("a secret is in the output:\n  " + "\n  ".join(shown[:5]))
    if sampler.seen:
        raise SystemExit("a secret is in a process list:\n  " + "\n  ".join(sorted(sampler.seen)[:5]))
    if done < 15 or files < 5 or sampler.samples < 100:
        raise SystemExit(f"found {done} commands, {files} files and {sampler.samples} samples: the page was not followed")
    print(
        f"{PAGE.name}: {done} commands and {files} files as written; no secret in {len(said)} characters, {sampler.samples} samples"
    )


def run(shell: subprocess.Popen, command: str) -> tuple[int, str]:
    """Exit code and output of one command of the shell, whose variables and directory stay."""
    assert shell.stdin and shell.stdout
    mark = f"--- {time.monotonic_ns()} "
    shell.stdin.write(f"{{ {command}; }} </dev/null\nprintf '\\n%s%s\\n' '{mark}' \"$?\"\n")
    shell.stdin.flush()
    lines = []
    deadline = time.monotonic() + SECONDS
    for line in shell.stdout:
        if line.startswith(mark):
            return int(line.removeprefix(mark)), "".join(lines)
        lines.append(line)
        if time.monotonic() > deadline:
            break
    raise SystemExit(f"`{command}` did not end, or ended the shell:\n{''.join(lines)[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
