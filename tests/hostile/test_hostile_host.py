"""Each playbook that reads hosts meets one that says whatever hurts: nothing of it runs, is a path, or reaches a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hostile_hosts import CONTROLS, FIXTURES, HONEST, HOSTILE, ROOT, Hostile, said


class Variables(yaml.SafeLoader):
    """Reads `!unsafe` as the text that it is."""


Variables.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def build(hostile: Hostile, path: str) -> Path:
    return hostile.site / "a/b/c/d/build" / path


@pytest.mark.parametrize("library", ["kept", "installed", "refused"])
def test_status_and_its_report(hostile: Hostile, library: str) -> None:
    if library != "kept":
        (hostile.site / HOSTILE / "library").unlink()
    if library == "installed":
        (hostile.site / HOSTILE / "root").touch()
    code, output = hostile.play("status.yml")
    assert code == 2, output
    states = {host["host"]: host["state"] for host in json.loads(build(hostile, "status.json").read_text())["hosts"]}
    assert states == {HOSTILE: "drift", HONEST: "in sync"}
    page = build(hostile, "report/index.html").read_text()
    assert f'data-key="{HONEST}"' in page


def test_check_and_its_report(hostile: Hostile) -> None:
    code, output = hostile.play("check.yml")
    assert code == 0 and "inference_check" in hostile.asked(), output
    kept = {path.stem: json.loads(path.read_text())["checks"] for path in build(hostile, "check").iterdir()}
    assert [len(kept[name]) for name in (HOSTILE, HONEST)] == [1, 1]
    # What passes for a picture is drawn here, of pixels
    assert "picture" not in kept[HOSTILE][0]


def test_the_report_that_is_drawn_of_both(hostile: Hostile) -> None:
    hostile.play("status.yml")
    hostile.play("check.yml")
    code, output = hostile.play("report.yml")
    assert code == 0, output
    page = build(hostile, "report/index.html").read_text()
    assert not CONTROLS.search(page)
    # Its own scripts, and what a host said nowhere but in quotes
    assert page.count("<script") == page.count('<script nonce="') == 2
    assert page.count("<img") == 0 and "&lt;script&gt;owned()" in page


def test_history(hostile: Hostile) -> None:
    code, output = hostile.play("history.yml")
    assert code == 0, output


def test_rollback(hostile: Hostile) -> None:
    hostile.play("rollback.yml", "--check", rollback_to="previous")
    code, output = hostile.play("rollback.yml", rollback_to="previous")
    assert code == 2, output


@pytest.mark.parametrize("playbook", ["site.yml", "models.yml"])
def test_a_rollout_in_check_mode(hostile: Hostile, playbook: str) -> None:
    code, output = hostile.play(playbook, "--check", "--diff")
    # models.yml refuses differences that only site.yml ends.
    assert (code, "this playbook only changes models" in " ".join(output.split())) == (
        (0, False) if playbook == "site.yml" else (2, True)
    ), output
    hostile.answers(host_state={**said(hostile.words)["host_state"], "refusals": [hostile.words.all, hostile.words.header]})
    code, output = hostile.play(playbook, "--check", "--diff")
    assert code == 2 and "1 of 2 hosts refused" in output, output


def test_what_an_upgrade_foretells(hostile: Hostile) -> None:
    state = said(hostile.words)["host_state"]
    state["actual"] = {**state["actual"], "server": {"release": hostile.words.all}}
    hostile.answers(host_state={**state, "maintenance": None})
    code, output = hostile.play("upgrade.yml", upgrade_to="24.12")
    assert code == 0 and "to release 24.12, on 2 of 2 hosts" in output, output
    assert "\n  - npu-01: all is well" not in output
    # What preflight takes, and nothing can be foretold of
    part = {"plan": [{"concern": "engine", "action": "configure"}], "report": [hostile.words.all]}
    hostile.answers(host_state={**state, "maintenance": None, **part})
    code, output = hostile.play("upgrade.yml", upgrade_to="24.12")
    assert code == 2 and f"{HOSTILE} gave an answer that cannot be used (KeyError: 'name')" in output, output
    assert "to release 24.12" not in output and "PLAY [Run preflight]" not in output


@pytest.mark.parametrize("answer", [{"plan": "text"}, {"held": ["x"]}, {"clock": "x"}])
def test_an_answer_of_another_shape_is_a_refusal(hostile: Hostile, answer: dict[str, Any]) -> None:
    hostile.answers(host_state={**said(hostile.words)["host_state"], **answer})
    code, output = hostile.play("site.yml", "--check")
    assert code == 2 and "1 of 2 hosts refused, 1 reason" in output, output
    assert f"{HOSTILE}: {HOSTILE} gave an answer that cannot be used (" in output


def test_collect(hostile: Hostile) -> None:
    code, output = hostile.play("collect.yml", "--limit", HOSTILE)
    assert code == 2, output
    assert f"{HOSTILE} gave an answer that cannot be used (the " in output
    assert list(build(hostile, "support").iterdir()) == []


def test_adopt_looks(hostile: Hostile) -> None:
    code, output = hostile.play("adopt.yml", "--limit", HOSTILE)
    assert code == 0, output


def test_what_adopt_writes_is_data_to_every_later_run(hostile: Hostile) -> None:
    code, output = hostile.play("adopt.yml", "--limit", HOSTILE, adopt_write=True, adopt_dest=str(build(hostile, "adopt")))
    assert code == 0, output
    written = hostile.site / f"host_vars/{HOSTILE}.yml"
    text = written.read_text()
    assert not CONTROLS.search(text)
    variables = yaml.load(text, Variables)
    defaults = [yaml.load(path.read_text(), Variables) for path in ROOT.glob("roles/*/defaults/main.yml")]
    assert set(variables) <= {"triton_models"}.union(*defaults)
    assert variables["triton_server_environment"]["HEADER"] == hostile.words.header
    assert "{{" in variables["triton_server_environment"]["PROMPT"]
    # Collecting reads every variable of the host, as a template where it is one
    _code, output = hostile.play("collect.yml", "--limit", HOSTILE)
    _code, output = hostile.play("status.yml")


def test_keys_of_an_adopted_command_line_are_shown_nowhere(hostile: Hostile) -> None:
    keys = ["Adm1n-Restr1cted-Key", "Other-Restr1cted-Key", "Pr0tocol-Key"]
    answer = said(hostile.words)["adoption"]
    found = answer["look"]["found"]
    # Its container and model are as anybody's: what hurts of them has tests of its own
    found["inspect"] = {**json.loads((FIXTURES / "hand_made_containers.json").read_text())["guide"], "Name": "/triton"}
    found.update(left_out=[], server={"version": "2.42.0", "address": "127.0.0.1", "port": 8000})
    found["models"]["words"]["config"] = None
    found["process"] = {
        "pid": 4711,
        "main": False,
        "argv": [
            "tritonserver", "--model-repository=/models", f"--http-restricted-api=model-repository:admin-key={keys[0]}",
            f"--http-restricted-api=trace:other={keys[1]}", "--grpc-restricted-protocol", f"health:third={keys[2]}",
        ],
        "environment": {"LANG": "C"},
        "directory": "/",
        "user": "0",
    }  # fmt: skip
    hostile.answers(adoption=answer)
    code, output = hostile.play("adopt.yml", "--limit", HOSTILE, "-vvv")
    assert code == 0, output
    written = "".join(path.read_text(errors="replace") for path in build(hostile, "adopt").rglob("*") if path.is_file())
    assert [key for key in keys if key in output + written] == []
    assert "--http-restricted-api=trace:other=(secret)" in output and "LANG=C" in output


def test_names_that_are_paths_write_nothing(hostile: Hostile) -> None:
    """Names of models and of their files, and digests, are refused together; tests/unit/test_adoption_module.py has each alone."""
    answer = said(hostile.words)["adoption"]
    models = answer["look"]["found"]["models"]
    words = models["words"]
    for path in hostile.words.paths:
        models[path] = words
        words["files"][path], words["contents"][path] = words["files"]["1/model.py"], words["contents"]["1/model.py"]
    models["digest"] = {
        **words,
        "files": {"1/a.rbln": {"size": 5, "sha256": path, "at": path}},
        "contents": {"1/a.rbln": "cGFzcwo="},
    }
    hostile.answers(adoption=answer)
    code, output = hostile.play("adopt.yml", "--limit", HOSTILE)
    assert code == 2, output
    assert f"{HOSTILE} gave an answer that cannot be used (" in output
    assert "The answer was not used" in output
    assert not build(hostile, "adopt").exists()


PIN = """
- hosts: npu-01
  gather_facts: false
  tasks:
    - ansible.builtin.file: {path: /nowhere, state: absent}
    - ansible.builtin.include_role:
        name: npufleet.triton.triton_image
        tasks_from: pin
      vars:
        triton_image_entry: {id: "{{ triton_image_build.image.Id }}"}
"""


def test_an_image_of_the_build_host_is_no_path(hostile: Hostile) -> None:
    (hostile.site / "pin.yml").write_text(PIN)
    for name in (hostile.words.paths[1], "sha256:" + "0" * 64 + "/../../x", "sha256:" + "0" * 64 + "\n", hostile.words.template):
        code, output = hostile.play(str(hostile.site / "pin.yml"), triton_image_build={"image": {"Id": {"__ansible_unsafe": name}}})
        assert code == 2 and "expected two digests. Nothing was pinned" in output, output
