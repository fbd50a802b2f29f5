"""An error while the plan of one host is computed keeps every host from its change: the real playbooks on simulated hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stage import MODEL, Run, run
from test_protected import CHANGING

# Modules that read
READS = ("adoption", "host_state", "inference_check")
FAULTY, SOUND = "npu-1", "npu-2"
# Every playbook that plans before it changes
PLANNING = [name for name in CHANGING if name != "in_container.yml"]
# {kind of error: a template that fails with this error}
BROKEN = {
    "a division by zero": "1 / 0",
    "a lookup of a file that is missing": "lookup('ansible.builtin.file', '/nonexistent')",
    "a lookup that does not exist": "lookup('no.such.lookup')",
    "a filter that does not exist": "[] | no_such_filter",
    "a lookup that raises an unusual error": "lookup('ansible.builtin.url', 'http://[::1/x')",
    "an endless loop": "npufleet_root",
    "text that is no UTF-8": "'gA==' | b64decode | from_json",
}


def of_faulty(template: str, sound: str) -> str:
    """Return a variable whose template fails only on the faulty host."""
    return f"{{{{ ({template}) if inventory_hostname == '{FAULTY}' else {sound} }}}}"


def refused(ran: Run) -> None:
    """Assert that the run was refused with the name of the faulty host, and changed no host."""
    assert ran.code == 2, ran.output
    assert [call for call in ran.calls if call.split()[1] not in READS] == [], ran.output
    assert "of 2 hosts refused" in ran.words, ran.output
    assert f"- {FAULTY}: " in ran.output
    assert "Traceback" not in ran.output


def fleet(plan: list[dict[str, Any]]) -> dict[str, Any]:
    return {FAULTY: {"plan": plan}, SOUND: {"plan": plan}}


@pytest.mark.parametrize("playbook", PLANNING)
def test_a_template_that_fails_on_one_host_changes_no_host(tmp_path: Path, playbook: str) -> None:
    options, plan = CHANGING[playbook]
    root = of_faulty("1 / 0", "'/var/lib/npufleet'")
    refused(run(tmp_path, playbook, fleet(plan), *options, npufleet_root=root))


@pytest.mark.parametrize("broken", BROKEN)
def test_every_kind_of_template_error_is_a_reason(tmp_path: Path, broken: str) -> None:
    refused(run(tmp_path, "models.yml", fleet(MODEL), npufleet_root=of_faulty(BROKEN[broken], "'/var/lib/npufleet'")))


@pytest.mark.parametrize("playbook", ["models.yml", "teardown.yml"])
def test_a_connection_variable_that_fails_on_one_host_changes_no_host(tmp_path: Path, playbook: str) -> None:
    ran = run(tmp_path, playbook, fleet(MODEL), ansible_user=of_faulty("1 / 0", "'root'"))
    refused(ran)
    assert "division by zero" in ran.words


@pytest.mark.parametrize("content", ["{", "[]", '{"25.08": 3}', '{"25.08": {"id": 5}}', "\udcff"])
def test_invalid_lock_file_is_one_reason_with_its_path(tmp_path: Path, content: str) -> None:
    lock = tmp_path / "broken.json"
    lock.write_bytes(content.encode("utf-8", "surrogateescape"))
    ran = run(tmp_path, "site.yml", fleet(MODEL), npufleet_lock_file=of_faulty(f"'{lock}'", f"'{tmp_path}/none.json'"))
    refused(ran)
    assert "1 of 2 hosts refused, 1 reason" in ran.words
    assert f"- {FAULTY}: {lock}" in ran.words and "Restore the reviewed file" in ran.words, ran.output


def test_lock_file_of_a_build_is_accepted(tmp_path: Path) -> None:
    texts = dict.fromkeys(("id", "content", "archive"), "sha256:" + 64 * "0")
    entry = {**texts, "reference": "npufleet/triton:1", "recipe": "0", "options": ["a"], "versions": {}, "supply": {"wheels": {}}}
    (tmp_path / "lock.json").write_text(json.dumps({"25.08": entry}))
    variables = {
        "triton_image_delivery_repository": "registry.example.com/npufleet/triton",
        "inference_check_image": "{{ npufleet_image }}",
    }
    assert run(tmp_path, "site.yml", fleet(MODEL), **variables).code == 0


def test_the_reasons_found_before_an_error_are_reported_with_it(tmp_path: Path) -> None:
    ran = run(tmp_path, "models.yml", fleet(MODEL), npufleet_root=of_faulty("1 / 0", "'/x'"), npufleet_http_prot=8000)
    refused(ran)
    assert "npufleet_http_prot is set, but there is no such variable" in ran.words
    assert "npufleet_root cannot be evaluated: " in ran.words and "division by zero" in ran.words


def test_an_invalid_run_id_is_no_error(tmp_path: Path) -> None:
    """The controller parses the run ID in the lease that a host reports."""
    held = {"run": "somewhere/²/1", "by": "kim@desk", "since": "2026-01-01T00:00:00Z"}
    ran = run(tmp_path, "models.yml", {FAULTY: {"plan": MODEL, "held_by": held}, SOUND: {"plan": MODEL}}, "--check")
    assert ran.code == 0, ran.output
    assert "another run is changing this host: kim@desk" in ran.words


@pytest.mark.parametrize("playbook", ["models.yml", "teardown.yml", "recover.yml"])
def test_an_unreachable_host_does_not_stop_the_others(tmp_path: Path, playbook: str) -> None:
    options, plan = CHANGING[playbook]
    scenario = fleet(plan)
    scenario[FAULTY]["lost"] = "host_state"
    ran = run(tmp_path, playbook, scenario, *options)
    assert ran.code in (2, 4), ran.output
    assert "hosts refused" not in ran.words
    assert ran.touched() == [FAULTY, SOUND], ran.output
    assert ran.calls_on(FAULTY) == ["LOST"]
