"""What the controller hands to a module beside its options."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.npufleet.triton.plugins.module_utils import request
from helpers import ansible_playbook

FIELDS: dict[str, Any] = {**request.HOLDER_OPTIONS, "secrets": {"type": "dict", "default": {}, "no_log": True}}


def module(handed: Any) -> Any:
    def fail_json(msg: str) -> None:
        raise SystemExit(msg)

    return SimpleNamespace(params={"root": "/srv", "_request": handed}, no_log_values=set(), fail_json=fail_json)


def test_options_and_what_was_handed_over_are_one() -> None:
    assert request.merge_request(module({"host": "npu1"}), FIELDS) == {
        "root": "/srv",
        "run": "",
        "by": "unknown",
        "host": "npu1",
        "secrets": {},
    }
    assert request.merge_request(module(None), FIELDS)["host"] == ""


def test_a_secret_is_masked_in_every_result_and_nothing_else_is() -> None:
    given = module({"host": "npu1", "secrets": {"models": "artefact-p4ss"}})
    assert request.merge_request(given, FIELDS)["secrets"] == {"models": "artefact-p4ss"}
    assert given.no_log_values == {"artefact-p4ss"}


# A host's answer, and passwords that are words, numbers and switches of it
ANSWER: dict[str, Any] = {
    "changed": False,
    "plan": [{"concern": "driver", "name": "models", "current": "17", "desired": None, "action": "load"}],
    "actual": {"models": {"served": {}}, "driver": {"module": "1.2.17"}},
    "maintenance": {"reason": "driver", "by": "kim", "since": "17:00"},
    "moves": {"driver": {"from": "0017-a", "to": "0018-b"}},
    "checks": [{"name": "driver/http", "model": "driver", "ok": True, "ms": 17.5, "why": "driver gave 17"}],
    "refusals": ["found no driver with driver"],
    "report": ["driver models: found 17"],
    "clock": 1717.17,
    "taken": True,
}
SHOWN = {
    **ANSWER,
    "checks": [{"name": "driver/http", "model": "driver", "ok": True, "ms": 17.5, "why": "******** gave ********"}],
    "refusals": ["found no ******** with ********"],
    "report": ["******** ********: found ********"],
}
WORDS = ["driver", "models", "17", "True", "False", "load"]


def test_a_password_that_is_a_word_of_control_data_masks_what_is_displayed_alone() -> None:
    assert request.mask_result(ANSWER, WORDS) == SHOWN
    assert request.mask_result(ANSWER, []) == ANSWER
    assert request.mask_result({"msg": "driver", "list": ["a driver"]}, ["", "driver"]) == {
        "msg": "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER",
        "list": ["a ********"],
    }


def test_so_does_a_module_that_ansible_has_sent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _self, warning: warned.append(warning))
    handed = {"secrets": dict(enumerate(WORDS))}
    with patch_module_args({"_request": handed}):
        sent = request.ansible_module({})
        request.merge_request(sent, FIELDS)
        sent.warn("the driver")
        with pytest.raises(SystemExit):
            sent.exit_json(**ANSWER)
    told = json.loads(capsys.readouterr().out)
    assert warned == ["the ********"]
    assert told.pop("invocation") == {}
    assert told == SHOWN


@pytest.mark.parametrize(("handed", "words"), [({"hots": "npu1"}, "_request: hots"), ({"secrets": [1]}, "dict")])
def test_what_no_controller_hands_over_ends_the_module(handed: Any, words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        request.merge_request(module(handed), FIELDS)


PLAYBOOK = """
- name: Pretend to be the controller
  hosts: localhost
  gather_facts: false
  vars:
    npufleet_root: "{{ playbook_dir }}/root"
  tasks:
    - name: Hold the host as somebody else
      npufleet.triton.host_lease:
        install: false
        _request: {run: "bob/1/1", by: bob}
    - name: Say it
      ansible.builtin.slurp:
        src: "{{ npufleet_root }}/lease.json"
      register: lease
    - name: Fail unless it is this run's
      ansible.builtin.assert:
        that: "'bob' not in lease.content | b64decode"
"""


def test_a_playbook_cannot_take_the_place_of_the_controller(tmp_path: Any) -> None:
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    (tmp_path / "root").mkdir()
    (tmp_path / "hosts").write_text(f"localhost ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    done = ansible_playbook(tmp_path, "-i", tmp_path / "hosts", tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
