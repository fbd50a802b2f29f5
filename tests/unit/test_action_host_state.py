"""ansible-playbook itself on this machine: refusals, check mode with a diff, and a store that is made, proven and left alone."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.npufleet.triton.plugins.action import host_state as action
from ansible_collections.npufleet.triton.plugins.module_utils.change import lease
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import manifests
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import host_states
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import runs
from helpers import ROOT, ROW, ansible_playbook, fleet, time_of
from linting import PYTHON
from test_model_store import change_store, hold, owners  # noqa: F401 (a fixture)

PLAYBOOK = """
- name: Look
  hosts: all
  gather_facts: false
  tasks:
    - name: Ask what differs
      npufleet.triton.host_state:
        concerns: "{{ looked_at | default(omit) }}"
"""
READ = """
    - name: Ask what happened
      npufleet.triton.host_state:
        concerns: []
        store: true
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small files, and a place for a store."""
    place = tmp_path_factory.mktemp("site")
    (place / "models/digits/1").mkdir(parents=True)
    (place / "models/digits/config.pbtxt").write_text('backend: "python"\ninstance_group [{ kind: KIND_MODEL }]\n')
    (place / "models/digits/1/model.py").write_text(PYTHON)
    return place


def variables(site: Path, **more: Any) -> dict[str, Any]:
    row = {**ROW, "driver": {"package": "rebellions", "version": "2.1.0", "form": "rpm"}}
    return {
        "rbln_release": "site",
        "npufleet_extra_releases": {"site": row},
        "npufleet_npus": 2,
        "npufleet_card": "RBLN-CA12",
        "npufleet_root": str(site / "root"),
        "npufleet_model_repository": str(site / "models"),
        "triton_models": [{"name": "digits"}],
        **more,
    }


def play(site: Path, hosts: dict[str, dict[str, Any]], playbook: str | Path, *options: str) -> dict[str, dict[str, Any]]:
    """{task: {host: result}} of one run of ansible-playbook, as its JSON callback tells it."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    inventory = {"npu_hosts": {"hosts": {name: {**local, **given} for name, given in hosts.items()}}}
    (site / "hosts.json").write_text(json.dumps(inventory))
    (site / "play.yml").write_text(playbook if isinstance(playbook, str) else "[]")
    path = playbook if isinstance(playbook, Path) else site / "play.yml"
    callback = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"}
    done = ansible_playbook(site, "-i", site / "hosts.json", path, *options, **callback)
    output = done.stdout
    assert "{" in output, done.stderr
    plays = json.loads(output[output.index("{") :])["plays"]
    return {task["task"]["name"]: task["hosts"] for entry in plays for task in entry["tasks"]}


# Refusals and check mode


@pytest.fixture(scope="module")
def looked(site: Path) -> dict[str, Any]:
    """{host: result} of one look at six hosts with `--check --diff`."""
    hosts = {
        "bare": {},
        "unset": variables(site, triton_image_name="{{ not_set_anywhere }}"),
        "npu1": variables(site, looked_at=["models"]),
        "npu2": variables(site, npufleet_card="RBLN-CA99", triton_server_model_control_mode="auto"),
        "npu3": variables(site, triton_models=[{"name": "digits"}, {"name": "words"}]),
        "npu4": variables(site, triton_models=[{"name": "digits", "hosts": "npu4"}], npufleet_npus="two", npufleet_no_proxy="a,b"),
    }
    results = play(site, hosts, PLAYBOOK, "--check", "--diff")["Ask what differs"]
    assert not (site / "root").exists()
    return results


def refused(results: dict[str, Any], host: str) -> list[str]:
    """The reasons in a host's message."""
    assert results[host]["failed"] is True
    first, *reasons = results[host]["msg"].splitlines()
    assert first == f"{host} is refused, nothing was changed:"
    assert all(reason.startswith("  - ") for reason in reasons)
    return [reason[4:] for reason in reasons]


MISSING = [
    "rbln_release is not set, expected the row of files/releases.yml that this fleet runs. Set it in the inventory.",
    "npufleet_npus is not set, expected the number of NPUs (/dev/rbln*) on the host. Set it in the inventory.",
    "npufleet_card is not set, expected the type of its cards, such as RBLN-CA22. Set it in the inventory.",
    "triton_models is not set, expected the list of models to serve. Set it in the inventory.",
]


class Preflight(action.ActionModule):
    """The action of models.yml over a host whose answers come one after the other; the last one stays."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)

    def call_module(self, module: str, arguments: Any, _task_vars: Any, _request: Any = None) -> dict[str, Any]:
        assert (module, arguments) == ("host_state", {"preflight": True})
        return self.answers.pop(0) if self.answers[1:] else self.answers[0]


ENDED = {"plan": [{"concern": "server", "name": "container", "current": "exited (0)", "desired": "running", "action": "start"}]}
BUSY = {**ENDED, "held_by": {"run": "elsewhere/1/1", "by": "bob@ops2", "since": "now"}}
RELEASED = {"plan": []}


@pytest.mark.parametrize(
    ("answers", "wait", "judged", "slept"),
    [
        # A restart by somebody else's change of a model is over in a moment
        ([BUSY, BUSY, RELEASED], 60, RELEASED, 4.0),
        ([BUSY], 3, BUSY, 4.0),
        ([BUSY], 0, BUSY, 0.0),
        # Nobody is at it, or nothing of it would be refused
        ([ENDED], 60, ENDED, 0.0),
        ([{**BUSY, "plan": []}], 60, {**BUSY, "plan": []}, 0.0),
        ([{**BUSY, "maintenance": {"by": "kim"}}], 60, {**BUSY, "maintenance": {"by": "kim"}}, 0.0),
    ],
)
def test_a_host_that_another_run_changes_is_judged_when_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], wait: int, judged: dict[str, Any], slept: float
) -> None:
    clock = time_of(action, monkeypatch)
    found = Preflight(*answers)._after_other_run({"host": "npu1"}, {}, wait)
    began, ended = found.pop("between")
    assert (found, sum(clock.slept)) == (judged, slept)
    assert began == ended


ROLLBACK = """
- name: Look
  hosts: all
  gather_facts: false
  tasks:
    - name: Ask what would go back
      npufleet.triton.host_state:
        concerns: [models, server]
        current_releases: true
        rollback: {models: [digits], to: previous}
"""


def test_of_a_rollback_that_cannot_be_every_host_says_why(site: Path) -> None:
    ran = play(site, {"npu1": variables(site), "npu2": variables(site, rbln_release="none")}, ROLLBACK)["Ask what would go back"]
    assert [result.get("failed", False) for result in ran.values()] == [False, False]
    (none,), (release,) = ran["npu1"]["refusals"], ran["npu2"]["refusals"]
    assert none.startswith(f"model store {site}/root: ")
    assert release.startswith("rbln_release is none, expected one of ")


class Rollback(action.ActionModule):
    """The action of rollback.yml over a host that answers this."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    def call_module(self, module: str, arguments: Any, _task_vars: Any, _request: Any = None) -> dict[str, Any]:
        return self.answer


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "The module interpreter '/usr/bin/python3.11' was not found.",
            "/usr/bin/python3.11 is missing, expected the Python of the last call. Run once with "
            "--flush-cache, or set ansible_python_interpreter",
        ),
        ("No space left on device", "the host could not be read: No space left on device"),
    ],
)
def test_why_a_module_did_not_run_is_said_with_what_to_do(said: str, told: str) -> None:
    assert action.ActionModule._failure_reason({"failed": True, "msg": said}) == told


# What every answer has
WHOLE: dict[str, Any] = {"plan": [], "report": [], "maintenance": None, "actual": {}, "held": {}}


def mounting(*binds: Any) -> dict[str, Any]:
    """An answer of a host that has found these for its container to mount."""
    return {**WHOLE, "refusals": [], "moves": {}, "actual": {"server": {"driver_files": {"binds": list(binds)}}}}


def opening(**found: Any) -> dict[str, Any]:
    """An answer of a host that has found these devices and groups for its container."""
    return {**WHOLE, "refusals": [], "moves": {}, "actual": {"server": {"access": found}}}


def named(image: Any) -> dict[str, Any]:
    """An answer of a host whose engine knows the image by this."""
    return {**WHOLE, "refusals": [], "moves": {}, "actual": {"server": {"image": image}}}


def test_files_of_the_driver_are_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "desired", lambda *_given: ({}, {}))
    variables: Any = {"npufleet_root": "/var/lib/npufleet"}
    answer = mounting("/usr/bin/rbln-smi:/usr/bin/rbln-smi:ro")
    nodes = ["/dev/rbln0:/dev/rbln0:rw", "/dev/rbln10:/dev/rbln10:rw", "/dev/rsd3:/dev/rsd0:rw"]
    for found in (answer, opening(devices=nodes, groups=["105"]), named("sha256:" + "0" * 64), named(None)):
        assert Rollback(found)._rollback(variables, ["server"], {"rollback": {"to": "previous"}}, {}, "npu1")["refusals"] == []


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"plan": [], "refusals": []}, "moves is missing, expected"),
        ({"plan": [], "moves": {}}, "refusals is missing, expected"),
        ({"plan": []}, "moves and refusals are missing, expected"),
        ({"plan": [], "refusals": [], "moves": []}, "moves is "),
        ({"plan": [], "refusals": "none", "moves": {}}, "refusals is none, expected a list"),
        (mounting("/:/host:rw"), "mount is /:/host:rw, expected a file of the driver"),
        (mounting({"/": "/"}), "expected a file of the driver"),
        (opening(devices=["/dev/sda:/dev/rbln0:rw"]), "device is /dev/sda:/dev/rbln0:rw, expected the node of a card"),
        (opening(devices=["/dev/rbln0:/dev/rbln0:rwm"]), "expected the node of a card"),
        (opening(groups=["0"]), "group is 0, expected the number of a group that is not root's"),
        (opening(groups=["docker"]), "group is docker"),
        (named("evil:latest"), "image is evil:latest, expected an image ID of the engine"),
        (named(["sha256:" + "0" * 64]), "expected an image ID of the engine"),
        ({**mounting(), "actual": {"server": {"driver_files": {"binds": 7}}}}, ""),
    ],
)
def test_a_host_that_does_not_say_what_it_would_move_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], found: str
) -> None:
    monkeypatch.setattr(action, "desired", lambda *_given: ({}, {}))
    variables: Any = {"npufleet_root": "/var/lib/npufleet"}
    seen = Rollback(answer)._rollback(variables, ["models", "server"], {"rollback": {"to": "previous"}}, {}, "npu1")
    (reason,) = seen["refusals"]
    assert reason.startswith("npu1 gave an answer that cannot be used (") and found in reason
    assert "moves" not in seen


# The variables of a rollout without load balancers
TRAFFIC = {
    "npufleet_drain_hook": "none",
    "npufleet_drain_commands": {},
    "groups": {},
    "npufleet_drain_timeout": 120,
    "npufleet_judge_seconds": 60,
    "npufleet_judge_wait": 600,
    "npufleet_judge_unjudged": "continue",
    "npufleet_lease_timeout": 3600,
}


def test_in_which_environment_a_host_is_does_not_the_host_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "desired", lambda *_given: ({}, {}))
    variables: Any = {"npufleet_root": "/var/lib/npufleet", "npufleet_protected": "prod", **TRAFFIC}
    looking = Rollback({**WHOLE, "refusals": [], "moves": {}, "protected": ""})
    looking._task = SimpleNamespace(check_mode=False, args={"concerns": ["server"], "rollback": {"to": "previous"}})  # type: ignore[assignment]
    monkeypatch.setattr(looking, "variables", lambda _task_vars: variables)
    seen = looking.act("npu1", {})
    assert (seen["refusals"], seen["protected"]) == ([], "prod")


@pytest.mark.parametrize("known", ["nowhere", "words", {"plan": []}])
def test_what_is_known_is_in_a_variable(known: Any) -> None:
    looking = Rollback({})
    looking._task = SimpleNamespace(check_mode=False, args={"known": known})  # type: ignore[assignment]
    with pytest.raises(AnsibleActionFail, match=r"known is .*, expected the name of a variable"):
        looking.act("npu1", {"words": "as wanted"})
    looking._task.args["known"] = "state"
    assert looking.act("npu1", {"state": {"plan": []}}) == {"plan": [], "changed": False, "known": True}


class Detailed(action.ActionModule):
    """The action with an option `details`, on a host whose module has returned a result."""

    def __init__(self, result: dict[str, Any], **arguments: Any) -> None:
        self._task = SimpleNamespace(check_mode=False, args=arguments)  # type: ignore[assignment]
        self._templar = SimpleNamespace(template=lambda value: value)
        self.result = result

    def _planned(self, _host: str, _task_vars: Any) -> dict[str, Any]:
        return self.result

    _read_state = _planned


COMPLETE = {"plan": [], "report": [], "actual": {"server": {}}, "desired": {"models": {}}, "origins": {}}
BRIEF = {"plan": [], "report": []}


@pytest.mark.parametrize(
    ("arguments", "result", "expected"),
    [
        ({"preflight": True}, {**COMPLETE, "in_sync": True}, {**COMPLETE, "in_sync": True}),
        ({"preflight": True, "details": "changes"}, {**COMPLETE, "in_sync": True}, {**BRIEF, "in_sync": True}),
        ({"preflight": True, "details": "changes"}, {**COMPLETE, "in_sync": False}, {**COMPLETE, "in_sync": False}),
        ({"details": "changes"}, COMPLETE, COMPLETE),
        ({"details": "report"}, COMPLETE, BRIEF),
    ],
)
def test_details_of_hosts_in_sync_are_left_out_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, result: Any, expected: Any
) -> None:
    monkeypatch.setattr(host_states.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    assert Detailed(result, **arguments).act("npu1", {"rbln_release": "24.01"}) == expected
    stored = host_states.read("npu1")
    assert (stored is not None) is (arguments.get("details") == "report")
    if stored:
        assert (stored["actual"], stored["release"], stored["state"]) == (COMPLETE["actual"], "24.01", "in sync")


def test_a_host_that_is_not_read_again_keeps_no_stored_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_states.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    Detailed(COMPLETE, details="report").act("npu1", {})
    failed = {"failed": True, "msg": "no"}
    assert Detailed(failed, details="report").act("npu1", {}) == failed
    assert host_states.read("npu1") is None
    with pytest.raises(AnsibleActionFail, match="details is some, expected one of always, changes, report"):
        Detailed(COMPLETE, details="some").act("npu1", {})


def test_all_missing_variables_are_named_at_once(looked: dict[str, Any]) -> None:
    reasons = refused(looked, "bare")
    assert reasons[:-1] == MISSING[:-1]
    assert reasons[-1].startswith(MISSING[-1])


def test_every_reason_is_told_once(looked: dict[str, Any]) -> None:
    assert refused(looked, "bare") == MISSING


def test_all_reasons_of_the_variables_come_at_once(looked: dict[str, Any]) -> None:
    mode, card = refused(looked, "npu2")
    assert card == "npufleet_card is RBLN-CA99, expected one of RBLN-CA12 for release site. Choose a release for this card."
    assert mode == "triton_server_model_control_mode is auto, expected none or poll or explicit. Correct it."


def test_all_reasons_of_the_concerns_come_at_once(site: Path, looked: dict[str, Any]) -> None:
    model, driver = refused(looked, "npu3")
    assert model == f"model words: {site}/models/words/config.pbtxt is missing, expected a config for each model. Add it"
    assert driver.startswith("driver 2.1.0 of release site is a .rpm package, expected .deb or .run. ")


def test_values_of_another_type_are_refused_all_at_once(looked: dict[str, Any]) -> None:
    assert refused(looked, "npu4")[:3] == [
        "npufleet_no_proxy is text, expected a list. Write it as [one, two], on a command line inside JSON.",
        "npufleet_npus is two, expected a whole number. Correct it.",
        "triton_models[digits].hosts is text, expected a list. Write it as [one, two], on a command line inside JSON.",
    ]
    assert len(refused(looked, "npu4")) == 3


@pytest.mark.parametrize("playbook", ["preflight", "models", "site"])
def test_preflight_tells_them_once_beside_all_others(site: Path, playbook: str) -> None:
    """The playbooks themselves; of one role Ansible would tell its own findings first, and no others."""
    given = variables(
        site,
        npufleet_no_proxy="a,b",
        triton_server_watchdog="soon",
        triton_server_listen_address="npu1.example.com",
        triton_models=[{"name": "digits", "hosts": "npu1"}],
        triton_image_index_user="{{ [1] }}",
        npufleet_http_prot=8000,
    )
    tasks = play(site, {"npu1": given}, ROOT / f"playbooks/{playbook}.yml", "--limit", "npu1")
    words = tasks["npufleet.triton.preflight : Refuse the run and list the reasons of each host"]["npu1"]["msg"]
    for reason in (
        "npufleet_http_prot is set, but there is no such variable. Did you mean npufleet_http_port?",
        "npufleet_no_proxy is text, expected a list",
        "triton_image_index_user is a list, expected text",
        "triton_server_watchdog is soon, expected true or false",
        "triton_models[digits].hosts is text, expected a list",
    ):
        assert words.count(reason) == 1, words


ACTIONS = """
- name: Look
  hosts: all
  gather_facts: false
  tasks:
    - name: Lint
      npufleet.triton.model_manifest:
      when: inventory_hostname == "lint"
    - name: Tell
      npufleet.triton.model_store:
        state: forgotten
      when: inventory_hostname == "tell"
    - name: Look whether it is in maintenance
      npufleet.triton.host_state:
        concerns: []
      when: inventory_hostname == "look"
"""


def test_every_action_refuses_them(site: Path) -> None:
    given = variables(site, triton_models=[{"name": "digits", "hosts": "lint"}], model_repository_keep=[3], npufleet_no_proxy="a")
    results = play(site, {"lint": given, "tell": {**given, "npufleet_root": [3]}, "look": given}, ACTIONS)
    assert [entry.split(" is ")[0] for entry in refused(results["Lint"], "lint")[:3]] == [
        "model_repository_keep",
        "npufleet_no_proxy",
        "triton_models[digits].hosts",
    ]
    # An action refuses the wrong variables that it reads, and no others.
    (reason,) = refused(results["Tell"], "tell")
    assert reason.startswith("npufleet_root is a list, ")
    assert results["Look whether it is in maintenance"]["look"].get("failed", False) is False


def test_variable_that_refers_to_nothing_is_named(looked: dict[str, Any]) -> None:
    _driver, reason = refused(looked, "unset")
    assert "'not_set_anywhere' is undefined" in reason
    assert "Set it in the inventory" in reason


def test_check_mode_reports_the_plan_as_a_change_with_a_diff(looked: dict[str, Any]) -> None:
    asked = looked["npu1"]
    digest = asked["desired"]["models"]["models"]["digits"]["release"]
    assert (asked.get("failed", False), asked["changed"]) == (False, True)
    assert asked["plan"] == [{"concern": "models", "name": "digits", "current": None, "desired": digest[:12], "action": "release"}]
    assert asked["report"] == [f"models digits is missing, expected {digest[:12]} (release)"]
    assert asked["diff"] == {
        "before_header": "actual",
        "after_header": "desired",
        "before": "models digits: nothing\n",
        "after": f"models digits: {digest[:12]}\n",
    }
    assert "invocation" not in asked


# A change


def test_another_run_that_is_not_known_to_be_over_is_a_warning(site: Path) -> None:
    root = site / "held"
    root.mkdir()
    lease.acquire(str(root), lease.Holder("elsewhere/1/1", "bob@ops2"), 3600.0, {})
    given = variables(site, looked_at=["models"], npufleet_root=str(root))
    looked = play(site, {"npu1": given}, PLAYBOOK)["Ask what differs"]["npu1"]
    assert [words.partition(" since ")[0] for words in looked["warnings"]] == ["npu1: another run is changing this host: bob@ops2"]
    assert looked["held_by"]["run"] == "elsewhere/1/1"


@pytest.fixture
def ended(site: Path, tmp_path: Path) -> dict[str, Any]:
    """Return the variables of a host whose lease belongs to a run of this machine that has ended."""
    namespace, pid, start = runs.run_id().rsplit("/", 2)
    # The process ID belongs to another process now, which started later.
    lease.acquire(str(tmp_path), lease.Holder(f"{namespace}/{pid}/{int(start) - 1}", "alice@ops1"), 3600.0, {})
    return variables(site, looked_at=["models"], npufleet_root=str(tmp_path))


def test_a_run_that_has_ended_does_not_change_the_host(site: Path, ended: dict[str, Any]) -> None:
    looked = play(site, {"npu1": ended}, PLAYBOOK)["Ask what differs"]["npu1"]
    assert "warnings" not in looked and "held_by" not in looked


LEASE = """
- name: Change
  hosts: all
  gather_facts: false
  tasks:
    - name: Hold the host
      npufleet.triton.host_lease:
        install: false
"""


@pytest.mark.parametrize("wait", [0, 60])
def test_the_lease_of_a_run_that_has_ended_is_taken_over(site: Path, ended: dict[str, Any], wait: int) -> None:
    lease_wait = {**ended, "npufleet_lease_wait": wait}
    result = play(site, {"npu1": lease_wait}, LEASE)["Hold the host"]["npu1"]
    assert result.get("msg") is None
    assert (result["taken"], result["taken_over"]["by"]) == (True, "alice@ops1")


def release(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return what a change of npu1 makes of its store: it releases the models, unless another state is asked for."""
    host = fleet(
        **given,
        npufleet_release_rows=given["npufleet_extra_releases"],
        npufleet_release_row=given["npufleet_extra_releases"]["site"],
    )
    found, reasons = manifests(host)
    assert reasons == []
    root = Path(given["npufleet_root"])
    hold(root)
    more = {"releases": {name: manifest.to_release(model) for name, model in found.items()}, **more}
    answer = change_store(root, **more)
    lease.release(str(root), lease.Holder("alice/1/1", "alice@ops1"))
    return answer


def look(site: Path, given: dict[str, Any], more: str = "") -> dict[str, dict[str, Any]]:
    """Return the result of each task on npu1."""
    results = play(site, {"npu1": {**given, "looked_at": ["models"]}}, PLAYBOOK + more)
    return {name: hosts["npu1"] for name, hosts in results.items()}


def test_store_is_made_proven_and_left_alone(site: Path) -> None:
    given = variables(site)
    asked = look(site, given)["Ask what differs"]
    wanted = asked["desired"]["models"]["models"]["digits"]
    label = "0001-" + wanted["release"][:12]
    assert asked["changed"] is False
    made = release(given)
    assert (made["changed"], made["moves"]["digits"]["to"]) == (True, label)
    config = (site / "root/served/digits/config.pbtxt").read_text()
    assert "count: 2" in config
    assert wanted["release"] in config
    assert wanted["source"] in config
    assert (site / "root/served/digits/1/model.py").read_text() == PYTHON

    asked = look(site, given)["Ask what differs"]
    (opened,) = asked["plan"]
    assert (opened["name"], opened["action"]) == ("transaction", "prove")
    assert "another run" not in str(asked)
    assert release(given, state="proven")["changed"] is True
    tasks = look(site, given, READ)
    again = tasks["Ask what differs"]
    assert (again["changed"], again["plan"], again["report"], again.get("diff", {})) == (False, [], [], {})
    assert again["actual"]["models"] == {
        "served": {"digits": {"release": label, "differs": []}},
        "missing": [],
        "transaction": None,
        "store": True,
    }
    found = tasks["Ask what happened"]["store"]
    (line,) = found["history"]
    assert (line["host"], line["model"], line["what"], line["to"], line["result"]) == ("npu1", "digits", "deploy", label, "proven")
    assert (found["releases"], found["holds"], found["transaction"]) == ({"digits": [label]}, {}, None)


def test_links_and_damage_come_through_the_playbook(site: Path, tmp_path: Path) -> None:
    """A link out of the repository is refused before the host is called; damage of the store is named, then repaired."""
    place = tmp_path / "site"
    shutil.copytree(site / "models", place / "models")
    mine = variables(place, looked_at=["models"], npufleet_root=str(tmp_path / "root"))
    for state in ("released", "proven"):
        assert release(mine, state=state)["failed"] is False
    (record,) = (tmp_path / "root/releases/digits").glob("*.json")
    whole = record.read_text()
    for path in (record, tmp_path / "root/history.jsonl"):
        path.write_bytes(path.read_bytes()[:-40])
    asked = look(place, mine)["Ask what differs"]
    names = ["history.jsonl", f"releases/digits/{record.name}"]
    assert [(item["name"], item["action"]) for item in asked["plan"]] == [(name, "mend") for name in names]
    assert all("is damaged: it is not JSON" in entry or "is damaged: line 1: it is not JSON" in entry for entry in asked["report"])
    mended = release(mine, releases={})
    assert (sorted(mended["mended"]), mended["moves"]) == (names, {})
    assert look(place, mine)["Ask what differs"]["plan"] == []
    assert record.read_text() == whole

    (place / "models/digits/2").symlink_to("/etc")
    os.mkfifo(place / "models/digits/pipe")
    asked = play(place, {"npu1": mine}, PLAYBOOK)["Ask what differs"]["npu1"]
    assert asked["failed"] is True
    for words in ("digits/2 is a link to /etc, expected a link that stays in", "digits/pipe is a named pipe"):
        assert words in asked["msg"]
