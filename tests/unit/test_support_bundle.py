"""The support bundle: every item goes through redaction, each is bounded, and one that cannot be got costs no other."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import struct
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.engine.docker import Engine
from ansible_collections.npufleet.triton.plugins.module_utils.redact import Redactor
from ansible_collections.npufleet.triton.plugins.module_utils.support import collect
from ansible_collections.npufleet.triton.plugins.module_utils.support.collect import Item
from ansible_collections.npufleet.triton.plugins.module_utils.support.readers import Limits, Partial, Unavailable
from ansible_collections.npufleet.triton.plugins.modules import support_bundle
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import engine as desired_engine
from helpers import fleet, http_server, run_module, unix_server

LIMITS = Limits(seconds=2, size=4096, lines=50)
EVERY = ["driver", "engine", "image", "models", "server", "watchdog", "probe", "metrics", "monitoring"]
SECRET = "hunter2/hunter2+ä"


def arguments(tmp_path: Path, **more: Any) -> dict[str, Any]:
    (tmp_path / "fetch").mkdir(exist_ok=True)
    given = {
        "host": "npu1",
        "stamp": "20260102T030405Z",
        "archive": str(tmp_path / "fetch/bundle.tar.gz"),
        "concerns": EVERY,
        "root": str(tmp_path / "root"),
        "http_port": 1,
        "metrics_port": 1,
        "prometheus_port": 1,
        "address": "127.0.0.1",
        "container": "triton",
        "timeout": 2,
        "secrets": [SECRET],
        "names": ["npufleet_artefact_password"],
    }
    return {**given, **more}


def unpacked(path: Path) -> dict[str, str]:
    """Texts of an archive by their names below its one directory."""
    with tarfile.open(path) as archive:
        found = {}
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None and member.mode == 0o600
            root, name = member.name.split("/", 1)
            assert root == "npu1-20260102T030405Z"
            found[name] = content.read().decode()
        return found


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host with no engine, no tool and not one command."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(collect.vendor_tool, "TOOLS", ("/nowhere/rbln-stat",))
    monkeypatch.setattr(collect, "Engine", lambda timeout: Engine(str(tmp_path / "no.sock"), timeout))


# The bundle


def test_bare_host_gives_a_bundle_and_says_what_is_missing(bare: None, tmp_path: Path) -> None:
    result = run_module(support_bundle, arguments(tmp_path))
    assert result["failed"] is False and result["changed"] is False
    found = unpacked(tmp_path / "fetch/bundle.tar.gz")
    assert {"README.txt", "errors.txt", "redaction.txt", "host/system.txt", "host/memory.txt"} <= set(found)
    assert sorted(found) == result["files"]
    errors = found["errors.txt"].splitlines()
    assert "driver/tool.json: /nowhere/rbln-stat is not installed" in errors
    assert "journal/docker.txt: journalctl is not installed" in errors
    assert any(error.startswith("engine/info.json: the engine does not answer: ") for error in errors)
    assert f"models/store.txt: there is no {tmp_path}/root" in errors
    assert any(error.startswith("server/index.json: POST /v2/repository/index at 127.0.0.1:1: ") for error in errors)
    assert result["errors"] == errors
    names = {error.split(":")[0] for error in errors}
    tried = {entry.name for entry in collect.items(arguments(tmp_path, desired={}), LIMITS)}
    optional = {
        entry
        for entry in tried
        if "previous" in entry
        or entry.startswith(("driver/installer", "driver/cdi"))
        or entry in ("engine/login.json", "host/maintenance.json", "host/watchdog.json", "host/probe.json")
    }
    assert tried - optional == (set(found) | names) - {"README.txt", "errors.txt", "redaction.txt"} - optional


def test_archive_is_for_its_owner_alone_and_nothing_else_is_left(bare: None, tmp_path: Path) -> None:
    run_module(support_bundle, arguments(tmp_path))
    path = tmp_path / "fetch/bundle.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "fetch") == ["bundle.tar.gz"]


def test_archive_belongs_to_the_owner_of_its_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owners = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _handle, *owner: owners.append(owner))
    support_bundle.write(str(tmp_path / "a"), b"x")
    assert owners == [(tmp_path.stat().st_uid, tmp_path.stat().st_gid)]
    with pytest.raises(FileExistsError):
        support_bundle.write(str(tmp_path / "a"), b"x")


def test_place_that_cannot_be_written_is_a_clear_failure(bare: None, tmp_path: Path) -> None:
    result = run_module(support_bundle, arguments(tmp_path, archive=str(tmp_path / "none/bundle.tar.gz")))
    assert result["failed"] is True
    assert result["msg"].startswith("npu1: the bundle cannot be written on the host: ")


def test_secret_in_every_item_in_every_form_does_not_survive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = [SECRET, json.dumps(SECRET), "hunter2%2Fhunter2%2B%C3%A4", base64.b64encode(f"u:{SECRET}".encode()).decode()]
    wanted = arguments(tmp_path, desired={}, about={"row": SECRET}, errors=[f"lookup: {SECRET}"])
    real = [entry.name for entry in collect.items(wanted, LIMITS)]
    planted: dict[str, Any] = {}
    for number, name in enumerate(real):
        text = f"line\nx={written[number % 4]}\nPASSWORD=an0ther-one\n"
        planted[name] = text if number % 2 else {"a": [text], SECRET: 1, "password": "an0ther-one"}
    # Sentences are cut in the middle of a secret
    item = {
        "concern": "engine",
        "name": "x",
        "current": "x" * 285 + " " + SECRET,
        "desired": "PASSWORD=an0ther-one",
        "action": "start",
    }
    planted["state/engine.json"] = {"plan": [item], "actual": {}}
    monkeypatch.setattr(support_bundle, "collect", lambda _items, _limits, _deadline: (planted, [f"x: https://u:{SECRET}@h"]))
    result = run_module(support_bundle, wanted)
    found = unpacked(tmp_path / "fetch/bundle.tar.gz")
    assert set(planted) < set(found)
    for name, text in found.items():
        assert not [entry for entry in [*written, "an0ther-one", "hunter2"] if entry in text], (name, text)
    assert result["redacted"] >= 2 * len(real)
    assert "hunter2" not in json.dumps(result)
    assert "npufleet_artefact_password" in found["redaction.txt"]


def test_check_mode_names_the_items_and_writes_nothing(bare: None, tmp_path: Path) -> None:
    result = run_module(support_bundle, arguments(tmp_path), check=True)
    assert (result["failed"], result["changed"]) == (False, False)
    assert result["msg"] == f"npu1: would collect {len(result['files'])} items"
    assert {"driver/tool.json", "server/index.json", "kernel/journal.txt"} <= set(result["files"])
    assert os.listdir(tmp_path / "fetch") == []


def test_without_the_controller_it_says_so(tmp_path: Path) -> None:
    result = run_module(support_bundle, {"archive": str(tmp_path / "a")})
    assert "_request: missing required arguments: host, stamp: only the controller sets it" in result["msg"]


def test_host_without_npus_is_not_asked_for_them(tmp_path: Path) -> None:
    names = {entry.name for entry in collect.items(arguments(tmp_path, concerns=["monitoring"], desired={}), LIMITS)}
    assert "monitoring/targets.json" in names
    assert not [name for name in names if name.startswith(("driver/", "engine/", "server/", "models/"))]


PROMETHEUS = """\
scrape_configs:
  - job_name: site
    basic_auth: {username: site, password: Basic-Auth-1}
    authorization:
      credentials: Bearer-Word-2
  - job_name: other
    basic_auth:
      password: |
        Block-Word-3
    params:
      token:
        - List-Word-4
    static_configs: [{targets: ["a:1"]}]
  - job_name: login
    static_configs: [{targets: ["https://site:Url-Word-5@b/"]}]
"""


def test_only_named_files_of_prometheus_are_bundled(tmp_path: Path) -> None:
    place = tmp_path / "prometheus"
    (place / "npufleet").mkdir(parents=True)
    (place / "prometheus.yml").write_text(PROMETHEUS)
    (place / "npufleet/triton.json").write_text("[]")
    (place / "npufleet/probe.yml").write_text("groups: []\n")
    for name in ("web.yml", "site.key", "password", "npufleet/other.json"):
        (place / name).write_text("Beside-Word-6")
    (place / "npufleet/node.json").write_text("[]")
    rules = str(place / "npufleet/probe.yml")
    targets = {str(place / f"npufleet/{job}.json"): "[]" for job in ("triton", "node")}
    config = str(place / "prometheus.yml")
    desired = {"monitoring": {"config": config, "targets": targets, "rules": {rules: "groups: []\n"}}}
    items = {entry.name: entry for entry in collect.items(arguments(tmp_path, concerns=["monitoring"], desired=desired), LIMITS)}
    found = items["monitoring/files.json"].get()
    assert sorted(found) == sorted([config, rules, *targets])
    cleaned = json.dumps(Redactor([]).clean(found))
    assert [word for word in re.findall(r"\w+-Word-\d|Basic-Auth-1", PROMETHEUS) if word in cleaned] == []
    assert "job_name: other" in cleaned
    assert "static_configs" in cleaned


def test_a_link_in_the_place_of_the_bundle_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "fetch").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        support_bundle.write(str(tmp_path / "fetch/bundle.tar.gz"), b"x")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_state_of_a_concern_is_its_plan(tmp_path: Path) -> None:
    wanted = {
        "engine": desired_engine.sealed(desired_engine.desired(fleet(docker_engine_packages=["npufleet-no-such-package"])), "key")
    }
    items = {entry.name: entry for entry in collect.items(arguments(tmp_path, desired=wanted, concerns=[]), LIMITS)}
    state = items["state/engine.json"].get()
    assert {"concern": "engine", "name": "packages"}.items() <= state["plan"][0].items()
    assert set(state) == {"plan", "actual"}


# One item


def collected(*items: Item, total: float = 60) -> tuple[dict[str, Any], list[str]]:
    return collect.collect(list(items), Limits(0, 4096, 50), time.monotonic() + total)


def _raise(error: Exception) -> Any:
    raise error


def test_item_that_fails_costs_no_other() -> None:
    found, errors = collected(
        Item("a", lambda: _raise(Unavailable("there is no a"))),
        Item("b", lambda: _raise(ValueError("b"))),
        Item("c", lambda: _raise(Partial("half", "only half"))),
        Item("d", lambda: "whole"),
        Item("e", lambda: None),
    )
    assert found == {"c": "half", "d": "whole"}
    assert errors == ["a: there is no a", "b: ValueError('b')", "c: only half"]


def test_item_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "GRACE_SECONDS", 1.0)
    answered = threading.Event()
    found, errors = collected(Item("a", lambda: answered.wait() and "a"), Item("b", lambda: "b"))
    assert (found, errors) == ({"b": "b"}, ["a: no answer within 0 s"])
    answered.set()


def test_nothing_begins_after_the_end() -> None:
    assert collected(Item("a", lambda: "a"), total=0) == ({}, ["a: not read, because the time for the whole bundle was over"])


# What answers


def test_engine_and_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = "/containers/triton/logs?stdout=1&stderr=1&timestamps=1&tail=50"
    answers: dict[str, tuple[int, Any]] = {
        "GET /info": (200, {"ServerVersion": "20"}),
        "GET /containers/triton/json": (200, {"Config": {"Env": ["A=1"]}}),
        f"GET {log}": (200, struct.pack(">BxxxI", 1, 4) + b"out\n"),
        "GET /images/json": (500, {"message": "no"}),
    }
    monkeypatch.setattr(collect, "Engine", lambda timeout: Engine(str(tmp_path / "s"), timeout))
    with unix_server(tmp_path / "s", answers):
        items = collect.items(arguments(tmp_path, concerns=["engine"], desired={}), LIMITS)
        found, errors = collect.collect(
            [item for item in items if item.name.startswith(("engine/i", "container/"))], LIMITS, time.monotonic() + 60
        )
    assert found["engine/info.json"] == {"ServerVersion": "20"}
    assert found["container/triton-log.txt"] == "out\n"
    assert "container/triton-previous.json" not in found
    assert errors == [
        'engine/images.json: GET /images/json returned 500: {"message": "no"}',
        "container/triton-processes.json: there is nothing at /containers/triton/top",
    ]


NAMES = [{"name": "\ubaa8\ub378"}, {"name": "with space"}]


def test_server(tmp_path: Path) -> None:
    answers: dict[str, tuple[int, Any]] = {
        "GET /v2/health/ready": (200, b""),
        "GET /v2": (200, {"version": "2.42.0"}),
        "POST /v2/repository/index": (200, [{"name": "digits", "version": "1", "state": "READY"}, {"name": "broken"}, *NAMES]),
        "GET /v2/models/digits/versions/1/config": (200, {"name": "digits"}),
        "GET /v2/models/\ubaa8\ub378/versions/1/config": (200, {"name": "\ubaa8\ub378"}),
        "GET /v2/models/stats": (403, {"error": "restricted"}),
        "GET /metrics": (200, b"nv_inference_count 1\n"),
    }
    with http_server(answers) as server:
        wanted = arguments(tmp_path, concerns=["server"], desired={}, http_port=server.port, metrics_port=server.port)
        items = [entry for entry in collect.items(wanted, LIMITS) if entry.name.startswith("server/")]
        found, errors = collect.collect(items, LIMITS, time.monotonic() + 60)
    assert found["server/ready.json"] == {"status": 200}
    assert found["server/metrics.txt"] == "nv_inference_count 1\n"
    assert found["server/configs.json"] == {
        "/v2/models/digits/versions/1/config": {"name": "digits"},
        "/v2/models/broken/versions/1/config": {"error": "there is nothing at /v2/models/broken/versions/1/config"},
        "/v2/models/\ubaa8\ub378/versions/1/config": {"name": "\ubaa8\ub378"},
        "/v2/models/with space/versions/1/config": {"error": collect.URL_UNSAFE},
    }
    assert errors == ['server/statistics.json: GET /v2/models/stats returned 403: {"error": "restricted"}']


def test_a_server_with_a_key_is_asked_with_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123456789-own-key\n")
    with http_server({"POST /v2/repository/index": (200, [])}) as server:
        desired = {"server": {"key": {"name": "npufleet-key", "path": str(tmp_path / "key")}}}
        wanted = arguments(tmp_path, concerns=["server"], desired=desired, http_port=server.port, metrics_port=1)
        items = [entry for entry in collect.items(wanted, LIMITS) if entry.name in ("server/index.json", "server/configs.json")]
        collect.collect(items, LIMITS, time.monotonic() + 60)
        assert [header.get("npufleet-key") for header in server.headers] == ["0123456789-own-key"] * 2


def test_the_hosts_own_key_is_taken_out_wherever_it_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("0123456789-own-key\n")
    said = collect.Item("container/triton-log.txt", lambda: "somebody printed 0123456789-own-key here\n")
    monkeypatch.setattr(support_bundle, "items", lambda _params, _limits: [said])
    desired = {"server": {"key": {"name": "npufleet-key", "path": str(tmp_path / "key")}}}
    wanted = arguments(tmp_path, concerns=["server"], desired=desired)
    run_module(support_bundle, wanted)
    with tarfile.open(wanted["archive"]) as archive:
        texts = [archive.extractfile(member).read().decode() for member in archive]  # type: ignore[union-attr]
    assert "somebody printed <redacted> here" in "".join(texts)
    assert "own-key" not in "".join(texts)


def test_archive_can_be_read_by_tar() -> None:
    raw = support_bundle.pack("r", {"b": "ü\n", "a/c": ""})
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        assert archive.getnames() == ["r/a/c", "r/b"]
