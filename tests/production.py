#!/usr/bin/env python3
"""Follow docs/production.md line by line on the running lab.

Write every file of the page and run every command, with the values of the lab, in a separate checkout below build/production.
Meanwhile, sample the command lines of all processes on this machine, which include those of the hosts. The commands run with -vvv.
No secret must be in the command lines, in the output, or in the files that remain in build/.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator

import yaml
from page import ROOT, Reader, checkout, environment

PAGE = ROOT / "docs/production.md"
SITE = ROOT / "build/production"
# A random part of the planted secrets. Other tests on this machine plant secrets, too, and the samples include their command lines.
RUN = secrets.token_hex(4)
# Secrets in the environment of the server, and in other variables that a site may set
ENVIRONMENT = {
    "HF_TOKEN": f"hf-t0ken-{RUN}",
    "LICENSE_KEY": f"l1cense-{RUN}",
    "OPENAI_KEY": f"0penai-{RUN}",
    "SIGNING_KEY": f"s1gning-{RUN}",
    "AZURE_STORAGE_KEY": f"azure-st0rage-{RUN}",
    "ALERTS": f"https://hooks.slack.com/services/T0/B0/sl4ck-{RUN}",
    "STORE": f"http://me:sl4sh/h4sh#{RUN}@store.example.com",
}
HEADERS = {"X-Fleet": f"he4der-{RUN}"}
SIGNATURE = f"s4s-{RUN}"
PLANTED = [*ENVIRONMENT.values(), *HEADERS.values(), SIGNATURE, f"sl4ck-{RUN}", f"sl4sh/h4sh#{RUN}"]


def values(lab: dict, logins: dict[str, str]) -> dict[str, str]:
    """Return {value of the page: value of the lab} for the values that differ."""
    facts = lab["all"]["vars"]
    address = {name: host["ansible_host"] for name, host in lab["_meta"]["hostvars"].items()}
    model = facts["lab_models"]["digits"]
    artefact = "{}/{}".format(facts["lab_artefact_url"], model["path"])
    driver = facts["lab_drivers"]["1.1.67"]
    package = next((ROOT / "build/lab/artefacts").glob(driver["path"]))
    return {
        "192.0.2.11": address["npu1"],
        "192.0.2.12": address["npu2"],
        "192.0.2.10": address["ops1"],
        "ansible_user: ops": f"ansible_user: {facts['ansible_user']}",
        '"26.05"': f'"{facts["lab_release"]}"',
        "npufleet_npus: 4": f"npufleet_npus: {facts['lab_npus']}",
        "RBLN-CA25": "RBLN-CA12",
        "CA25/0.11": model["key"],
        "https://artefacts.example.com/models/resnet50/ca25-0.11/model.rbln": f"{artefact}?sp=r&sig={SIGNATURE}",
        "resnet50": "digits",
        "0" * 64: model["sha256"],
        "npufleet_artefact_user: fleet": f"npufleet_artefact_user: {facts['lab_artefact_user']}",
        "/srv/fleet/packages/rebellions-x86_64-3.2.2.run": str(package),
        "1" * 64: driver["sha256"],
        "fleet@example.com": facts["lab_artefact_user"],
        "become-secret": logins["become"],
        "artefact-secret": logins["artefact"],
        "index-secret": logins["artefact"],
    }


def lab_only(lab: dict) -> str:
    """Return the variables for stand-ins of the lab: release row, index and base image."""
    facts = lab["all"]["vars"]
    url = facts["lab_artefact_url"]
    host = url.split("//")[1].split(":")[0]
    base = facts["lab_triton_archives"][facts["lab_release"]]
    rows = yaml.safe_load((ROOT / "inventories/lab/group_vars/all.yml").read_text())["npufleet_extra_releases"]
    row = rows[facts["lab_release"]]
    row["sdk"]["version"] = facts["lab_sdk"][facts["lab_release"]]
    return json.dumps(
        {
            "npufleet_extra_releases": {facts["lab_release"]: row},
            "npufleet_cache": str(SITE / "cache"),
            "triton_image_base_archive": f"{url}/{base['path']}",
            "triton_image_base_archive_sha256": base["sha256"],
            "triton_image_index_url": f"{url}/simple/",
            "triton_image_extra_index_urls": [],
            "triton_image_pip_options": [f"--trusted-host={host}"],
            "triton_server_environment": {"RBLN_LAB_NPU_NAME": "RBLN-CA12", **ENVIRONMENT},
            "inference_check_headers": HEADERS,
            "preflight_disk_engine": 4,
            "preflight_disk_transfer": 2,
            "preflight_disk_models": 1,
            "monitoring_scrape_interval": "2s",
        }
    )


class Sampler(threading.Thread):
    """A thread that reads the command lines of the machine and the lab's hosts until it is stopped, of old processes less often."""

    def __init__(self, hidden: list[str]) -> None:
        super().__init__(daemon=True)
        self.hidden = [secret.encode() for secret in hidden]
        self.ended = threading.Event()
        self.seen: set[str] = set()
        self.samples = 0

    def run(self) -> None:
        # {process ID: number of earlier samples with this process}
        known: dict[str, int] = {}
        while not self.ended.is_set():
            known = {process: known.get(process, -1) + 1 for process in filter(str.isdigit, os.listdir("/proc"))}
            for process, times in known.items():
                # A process that has run for seconds rarely starts another program.
                if times > 9 and (times + int(process)) % 10:
                    continue
                try:
                    with open(f"/proc/{process}/cmdline", "rb", buffering=0) as source:
                        line = source.read()
                except OSError:  # The process has ended meanwhile.
                    continue
                if line and any(secret in line for secret in self.hidden):
                    self.seen.add(line.replace(b"\0", b" ").decode(errors="replace")[:200])
            self.samples += 1
            self.ended.wait(0.2)


def kept() -> Iterator[tuple[str, int, str]]:
    """Yield (name, mode, content) of the results of runs: status, report, check results, files in support bundles."""
    found = [path for path in sorted((SITE / "checkout/build").rglob("*")) if path.suffix in (".json", ".html", ".gz")]
    if not {"status.json", "index.html"} <= {path.name for path in found}:
        raise SystemExit("status.json or the report is missing, expected both to search them for secrets")
    for path in found:
        mode = path.stat().st_mode & 0o777
        if path.suffix != ".gz":
            yield str(path), mode, path.read_text(errors="replace")
            continue
        with tarfile.open(path) as archive:
            for member in filter(tarfile.TarInfo.isfile, archive):
                yield f"{path}:{member.name}", mode, archive.extractfile(member).read().decode(errors="replace")  # type: ignore[union-attr]


def main() -> None:
    """Follow the page, and fail if a secret was shown."""
    lab = json.loads(subprocess.run([str(ROOT / "inventories/lab/hosts.py")], capture_output=True, text=True, check=True).stdout)
    if "all" not in lab:
        raise SystemExit("production.py: no lab runs, expected one with bare hosts: make lab")
    facts = lab["all"]["vars"]
    logins = {"become": facts["ansible_become_password"], "artefact": facts["lab_artefact_password"]}
    shutil.rmtree(SITE, ignore_errors=True)
    checkout(SITE / "checkout")
    (SITE / "lab.yml").write_text(lab_only(lab))
    log = SITE / "output.txt"
    reader = Reader(SITE / "checkout", {**environment(facts, SITE / "home"), "ANSIBLE_VERBOSITY": "3"}, log)
    hidden = [*logins.values(), *PLANTED]
    sampler = Sampler(hidden)
    sampler.start()
    try:
        reader.follow(PAGE, values(lab, logins), {"inventories/prod/group_vars/all/zz_lab.yml": SITE / "lab.yml"})
    finally:
        sampler.ended.set()
        sampler.join()
        reader.close()
    output = log.read_text()
    shown = [line[:200] for line in output.splitlines() if any(secret in line for secret in hidden)]
    if shown:
        raise SystemExit("a secret is in the output:\n  " + "\n  ".join(shown[:5]))
    if sampler.seen:
        raise SystemExit("a secret is in a process list:\n  " + "\n  ".join(sorted(sampler.seen)[:5]))
    left = sorted(
        f"{name} (mode {mode:04o})" for name, mode, found in kept() if mode & 0o077 or any(entry in found for entry in hidden)
    )
    if left:
        raise SystemExit("readable by everybody, or with a secret, in build/:\n  " + "\n  ".join(left[:5]))
    done, files = reader.commands, reader.files
    if done < 15 or files < 5 or sampler.samples < 100:
        raise SystemExit(f"{done} commands, {files} files and {sampler.samples} samples are too few: the page was not followed")
    proof = f"no secret in {len(output)} characters, {sampler.samples} samples"
    print(f"{PAGE.name}: {done} commands and {files} files as written; {proof}")


if __name__ == "__main__":
    sys.exit(main())
