"""The key of a host's Triton: which doors it closes, who can read it, and that it is in nothing that leaves the host."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import server
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import read_served
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import probe as desired_probe
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server as desired_server
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import server_key
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired import watchdog as desired_watchdog
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.context import Context
from helpers import ROOT, ansible_playbook, fleet, http_server

CLOSED = "shared-memory,model-repository,trace,logging"
CONTROL = "model-repository"
OWN = "an-operators-own-key"
IMAGE = {"id": "sha256:1", "reference": "npufleet/triton:1", "content": None}
# Of a server that is not root
GROUP = 61100


def desired(**inventory: Any) -> dict[str, Any]:
    return desired_server.desired(
        fleet(**inventory),
        Context(image=lambda: {**IMAGE, "options": []}),
    )


# Which doors


def test_what_could_run_code_is_closed_on_both_protocols_by_default() -> None:
    container = desired()["container"]
    assert container["command"][:2] == ["sh", "-c"]
    for option in ("http-restricted-api", "grpc-restricted-protocol"):
        assert f'"--{option}={CLOSED}:npufleet-key=$key"' in container["command"][2]
    assert container["command"][4] == "tritonserver"
    assert keys.HOME + ":" + keys.HOME + ":ro" in container["volumes"]


def test_what_was_modelled_by_a_site_is_what_is_closed() -> None:
    asked = desired(
        triton_server_restricted_apis=["logging", "model-repository", "inference"], triton_server_api_key_name="site-key"
    )
    assert "--http-restricted-api=inference,model-repository,logging:site-key=$key" in asked["container"]["command"][2]
    assert asked["key"] == {"name": "site-key", "path": "/etc/npufleet/server/key"}


def test_a_server_that_closes_nothing_has_no_key() -> None:
    asked = desired(triton_server_restricted_apis=[], triton_server_model_control_mode="poll")
    assert (asked["key"], asked["key_fingerprint"], asked["container"]["command"][0]) == (None, None, "tritonserver")
    assert not [volume for volume in asked["container"]["volumes"] if keys.HOME in volume]


@pytest.mark.parametrize("address", ["0.0.0.0", "", "::", "10.0.0.5", "npu1.example.com"])
def test_explicit_mode_without_a_key_is_refused_where_others_reach_it(address: str) -> None:
    with pytest.raises(Refusal, match=r"no model-repository, in mode explicit .* own code as root.* or set triton_ser"):
        desired(triton_server_restricted_apis=["trace"], triton_server_listen_address=address)


@pytest.mark.parametrize(
    "inventory",
    [
        {"triton_server_listen_address": "127.0.0.1"},
        {"triton_server_listen_address": "127.8.0.1"},
        {"triton_server_listen_address": "::1"},
        {"triton_server_allow_open_control": True},
        {"triton_server_model_control_mode": "poll"},
        {"triton_server_model_control_mode": "none"},
    ],
)
def test_it_is_allowed_on_the_loopback_in_other_modes_and_to_who_insists(inventory: dict[str, Any]) -> None:
    assert desired(triton_server_restricted_apis=[], **inventory)["key"] is None


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        (
            {"triton_server_restricted_apis": ["model-repository", "models"]},
            "is models, expected health or metadata or ",
        ),
        ({"triton_server_restricted_apis": "model-repository"}, "is text, expected a list"),
        ({"triton_server_api_key": "x-1-y"}, "triton_server_api_key is shorter than 12 characters"),
        ({"triton_server_api_key": "with a blank in it"}, "has blanks"),
        ({"triton_server_api_key": "geheimnisvoll-ü"}, "letters beyond ASCII"),
        ({"triton_server_api_key_name": 'x"; reboot; "'}, "expected the name of a header"),
        ({"triton_server_api_key_name": "Npufleet-Key"}, "of lower case letters"),
        ({"triton_server_extra_args": ["--http-restricted-api=health:k=a-secret-of-ours"]}, "has --http-restricted-api, whose key"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_telling_the_key(inventory: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal) as refusal:
        desired(**inventory)
    assert words in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert inventory.get("triton_server_api_key", "nothing") not in str(refusal.value)


def test_services_of_clouds_are_off_where_the_image_knows_them() -> None:
    def line(options: list[str]) -> list[str]:
        found = desired_server.desired(fleet(), Context(image=lambda: {**IMAGE, "options": options}))["container"]["command"]
        return [entry for entry in found if "sagemaker" in entry or "vertex" in entry]

    assert line(["allow-sagemaker", "allow-vertex-ai"]) == ["--allow-sagemaker=false", "--allow-vertex-ai=false"]
    assert line(["allow-sagemaker"]) == ["--allow-sagemaker=false"]
    assert line([]) == []


# Who knows it


def test_an_operators_key_is_in_nothing_that_leaves_the_controller_but_its_fingerprint() -> None:
    variables = fleet(triton_server_api_key=OWN, triton_server_restricted_apis=list(keys.API_GROUPS))
    wanted = [
        desired_server.desired(variables, Context(image=lambda: IMAGE)),
        desired_watchdog.desired(variables),
        desired_probe.desired(variables),
    ]
    assert OWN not in json.dumps(wanted)
    assert wanted[0]["key_fingerprint"] == server_key.digest(variables)
    assert json.loads(wanted[1]["files"]["config"])["key"] == wanted[0]["key"]
    assert json.loads(wanted[2]["files"]["config"])["key"] == wanted[0]["key"]


def test_checks_have_the_key_only_where_they_need_it() -> None:
    assert server_key.for_checks(fleet()) is None
    assert json.loads(desired_probe.desired(fleet())["files"]["config"])["key"] is None
    assert server_key.for_checks(fleet(triton_server_restricted_apis=["model-repository", "inference"])) is not None


def start(home: Path) -> subprocess.CompletedProcess[str]:
    """The container's own command, with its directory here, and a program that shows what it was given in the place of Triton."""
    shows = [sys.executable, "-c", "import sys; print('\\n'.join(sys.argv[1:]))", "--model-control-mode=explicit"]
    command = [word.replace(keys.HOME, str(home)) for word in server_key.command(fleet(), shows)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("key", ["0123456789ab", OWN, "$(touch broken)`touch broken`", "a'b\"c\\d=e:f,g"])
def test_the_server_is_given_the_key_of_the_file_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "server/key", key)
    assert start(tmp_path / "server").stdout.splitlines() == [
        "--model-control-mode=explicit",
        f"--http-restricted-api={CLOSED}:npufleet-key={key}",
        f"--grpc-restricted-protocol={CLOSED}:npufleet-key={key}",
    ]
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("content", [None, ""])
def test_without_a_key_nothing_starts(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    ended = start(tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"tritonserver: found no key in {tmp_path}/key, wanted that of this host: run playbooks/site.yml" in ended.stderr


# The file


def write(path: Path, key: str = OWN) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(key + "\n")


def play(path: Path, key: str = "", shared: bool = False, upto: int | None = None) -> str:
    """The role's own tasks, or the first of them, on this machine; what the run said. The file's owner is root, as on a host."""
    if os.geteuid() != 0:
        pytest.skip("only root makes files for root alone")
    tasks = yaml.safe_load((ROOT / "roles/triton_server/tasks/key.yml").read_text())[:upto]
    reader = {"group": GROUP, "group_must_read": shared}
    found = keys.flaw(str(path), keys.fingerprint(key) if key else None, **reader)
    asked = {"key": {"name": "npufleet-key", "path": str(path)}, "key_readers": reader}
    state = {"desired": {"server": asked}, "actual": {"server": {"key": found}}}
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars": {"npufleet_no_log": True, "triton_server_api_key": key, "triton_server_state": state},
        "vars_files": [str(ROOT / "roles/triton_server/vars/main.yml")],
        "tasks": tasks,
    }
    book = path.parent.parent / "play.yml"
    book.write_text(yaml.safe_dump([play]))
    done = ansible_playbook(path.parent.parent, "-vvv", "-i", "localhost,", book, ANSIBLE_PYTHON_INTERPRETER=sys.executable)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def modes(path: Path) -> list[int]:
    return [stat.S_IMODE(entry.stat().st_mode) for entry in (path.parent, path)]


def test_a_host_makes_a_key_of_its_own(tmp_path: Path) -> None:
    made = []
    for name in ("one", "another"):
        path = tmp_path / name / "key"
        # As an engine leaves what it was to mount and did not find
        path.mkdir(parents=True)
        said = play(path)
        assert (keys.flaw(str(path)), modes(path)) == ({"flaw": None, "rewrite": False}, [0o700, 0o600])
        made.append(path.read_text())
        assert re.fullmatch("[0-9a-f]{64}", made[-1])
        assert made[-1] not in said
    assert made[0] != made[1]


def test_a_key_is_nobody_elses_from_its_first_byte_on(tmp_path: Path) -> None:
    path = tmp_path / "server/key"
    play(path, upto=2)
    assert modes(path) == [0o700, 0o600]


def test_the_operators_key_takes_the_place_of_another_and_is_shown_nobody(tmp_path: Path) -> None:
    path = tmp_path / "server/key"
    write(path, "another-key-of-before")
    assert keys.flaw(str(path), keys.fingerprint(OWN)) == {"flaw": "another key", "rewrite": True}
    said = play(path, OWN)
    assert OWN not in said
    assert (keys.content(str(path)), keys.flaw(str(path), keys.fingerprint(OWN))["flaw"]) == (OWN, None)


def test_a_server_that_is_not_root_reads_the_key_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "server/key"
    write(path)
    found = keys.flaw(str(path), group=GROUP, group_must_read=True)
    assert (found["flaw"].split(" at ")[0], found["rewrite"]) == (f"mode 0700 of user {os.getuid()} and group {os.getgid()}", False)
    play(path, shared=True)
    assert (keys.content(str(path)), modes(path), path.stat().st_gid) == (OWN, [0o750, 0o640], GROUP)
    # Nor is it another one for a server that is root again, and nobody else is in that group
    for must_read in (True, False):
        assert keys.flaw(str(path), group=GROUP, group_must_read=must_read) == {"flaw": None, "rewrite": False}
    assert keys.flaw(str(path), group=GROUP + 1)["rewrite"]
    path.chmod(0o660)
    assert keys.flaw(str(path), group=GROUP, group_must_read=True)["rewrite"]


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_text("\n"), "no key in it"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "no key in it"),
        (_directory, "no key in it"),
        (_link, "a link"),
        (lambda path: path.chmod(0o644), "mode 0644"),
        (lambda path: path.parent.chmod(0o755), "mode 0755"),
    ],
)
def test_a_key_that_others_may_know_or_that_is_none_is_to_be_made_anew(tmp_path: Path, spoil: Any, words: str) -> None:
    path = tmp_path / "server/key"
    write(path)
    assert keys.flaw(str(path)) == {"flaw": None, "rewrite": False}
    spoil(path)
    found = keys.flaw(str(path))
    assert (found["flaw"].startswith(words), found["rewrite"]) == (True, True), found
    # The operator's own is the same afterwards: no server has to be started again for a mode.
    assert keys.flaw(str(path), keys.fingerprint(OWN))["rewrite"] is (not words.startswith(("mode", "a link")))


# What a host says of it


@pytest.fixture
def host(tmp_path: Path) -> dict[str, Any]:
    """What is wanted of a host whose key is here."""
    write(tmp_path / "server/key")
    return {"address": "127.0.0.1", "key": {"name": "npufleet-key", "path": str(tmp_path / "server/key")}}


def test_the_index_and_configs_are_read_with_the_key(host: dict[str, Any]) -> None:
    index = [{"name": "digits", "version": "1", "state": "READY"}]
    config = {"parameters": {"npufleet_release": {"string_value": "e" * 64}}}
    answers: dict[str, Any] = {
        "POST /v2/repository/index": (200, index),
        "GET /v2/models/digits/versions/1/config": (200, config),
    }
    with http_server(answers) as triton:
        served = read_served({**host, "http_port": triton.port})
        assert [header.get("npufleet-key") for header in triton.headers] == [keys.content(host["key"]["path"])] * 2
    assert served == {"digits": {"1": {"state": "READY", "reason": "", "release": "e" * 64}}}


# All is there that the container mounts, and the driver has brought nothing
MOUNTS: dict[str, Any] = {
    "absent": [],
    "driver_files": {"binds": [], "missing": []},
    "access": {"devices": [], "groups": [], "missing": [], "mismatches": []},
}


def test_a_key_that_is_missing_is_an_item_and_is_made_before_the_container() -> None:
    bare = {"engine": True, "container": None, "served": None, "key": {"flaw": "missing", "rewrite": True}, **MOUNTS}
    assert [(item["name"], item["current"], item["action"]) for item in server.diff(desired(), bare)] == [
        ("key", "missing", "key"),
        ("container", None, "create"),
    ]


@pytest.mark.parametrize(
    ("more", "plan"),
    [
        ({}, []),
        ({"key": {"flaw": "mode 0644 of user 0 at /x", "rewrite": False}}, [("key", "key")]),
        ({"key": {"flaw": "another key", "rewrite": True}}, [("key", "key"), ("key in use", "restart")]),
        ({"served": None, "key_refused": True}, [("key in use", "restart")]),
        ({"served": None}, [("http", "wait")]),
    ],
)
def test_a_server_with_another_key_than_its_hosts_is_started_again(more: dict[str, Any], plan: list[tuple[str, str]]) -> None:
    asked = desired()
    actual = {"engine": True, "container": asked["container"], "state": "running", "served": {}, **MOUNTS, **more}
    assert [(item["name"], item["action"]) for item in server.diff(asked, actual)] == plan


def test_a_container_that_is_replaced_is_not_started_again_as_well() -> None:
    asked = desired()
    container = {**asked["container"], "command": ["tritonserver"]}
    key = {"flaw": "missing", "rewrite": True}
    actual = {"engine": True, "container": container, "state": "running", "served": {}, "key": key, **MOUNTS}
    assert [item["action"] for item in server.diff(asked, actual)] == ["key", "replace"]
