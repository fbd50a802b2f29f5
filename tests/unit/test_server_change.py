"""The whole change of a server as one module: begun, waited for and told; and its controller, which asks until it has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleAuthenticationFailure, AnsibleConnectionFailure
from ansible_collections.npufleet.triton.plugins.action import server_change as action
from ansible_collections.npufleet.triton.plugins.module_utils.change import detached, host_change, lease, proof
from ansible_collections.npufleet.triton.plugins.module_utils.plan import item
from ansible_collections.npufleet.triton.plugins.modules import server_change
from ansible_collections.npufleet.triton.plugins.plugin_utils import action as contact
from helpers import fleet, run_module

ALICE = {"run": "alice/1/1", "by": "alice@ops1"}
RIGHT = {"name": "digits/http/one", "ok": True, "why": ""}
WRONG = {"name": "digits/http/one", "ok": False, "why": "label is 3, expected 7"}
SERVES: dict[str, Any] = {**host_change.Outcome(["loaded digits"], checks=[RIGHT])._asdict(), "refused": None}
SETTINGS = {"free_timeout": 60, "stop_timeout": 45, "ready_timeout": 300}
DECIDE = detached.decide
STEPS = [{"at": "2026-01-01T00:00:00Z", "step": "load and unload"}]


class Process:
    """The process of a change, played: the order that it got, and what becomes of it."""

    def __init__(self, result: dict[str, Any] | None) -> None:
        self.result = result
        self.orders: list[dict[str, Any]] = []
        self.waits: list[tuple[str, bool]] = []
        # What waits to be accepted, and what it was told
        self.shown: dict[str, Any] | None = None
        self.decisions: list[tuple[bool, str]] = []

    def begin(self, _root: str, order: dict[str, Any]) -> None:
        self.orders.append(order)

    def wait(self, _root: str, ident: str, _seconds: float, proven: bool = False) -> dict[str, Any] | None:
        self.waits.append((ident, proven))
        return self.result

    def waiting(self, _root: str) -> dict[str, Any] | None:
        return self.shown

    def decide(self, _root: str, accepted: bool, why: str = "", _by: str = "") -> None:
        self.decisions.append((accepted, why))


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Process]:
    played = Process(SERVES)
    for name in ("begin", "wait", "waiting", "decide"):
        monkeypatch.setattr(detached, name, getattr(played, name))
    monkeypatch.setattr(detached, "steps", lambda _root: STEPS)
    monkeypatch.setattr(lease, "WATCHDOG", str(tmp_path / "watchdog"))
    lease.acquire(str(tmp_path), lease.Holder(**ALICE), 60.0, {})
    yield played


def call(root: Path, check: bool = False, **given: Any) -> dict[str, Any]:
    wanted = {"models": {"root": str(root), "models": {}}, "server": {"root": str(root), "models": {}}}
    arguments = {"root": str(root), "id": "1", "host": "npu1", **ALICE, "desired": wanted, **given}
    return run_module(server_change, arguments, check)


def test_a_change_that_is_proven_tells_what_was_done(process: Process, tmp_path: Path) -> None:
    found = call(tmp_path, current_releases=True)
    assert (found["failed"], found["changed"], found["proven"], found["under_way"]) == (False, True, True, False)
    assert (found["did"], found["checks"], found["steps"]) == (["loaded digits"], [RIGHT], STEPS)
    (order,) = process.orders
    assert order["store_change"] is None
    assert (order["serve_current"], order["rollback_reason"], order["root"]) == (True, "", str(tmp_path))
    assert set(order) == set(host_change.Order.__annotations__)


def test_what_is_to_be_served_is_handed_on(process: Process, tmp_path: Path) -> None:
    call(tmp_path, releases={"digits": {}}, release=["digits"], withdraw=["faces"], incoming="/incoming")
    call(tmp_path, current_releases=True, rollback={"models": ["digits"], "why": "wrong"})
    assert [order["store_change"] for order in process.orders] == [
        {"state": "released", "releases": {"digits": {}}, "withdraw": ["faces"], "incoming": "/incoming"},
        {"state": "rolled_back", "models": ["digits"], "to": "previous", "why": "wrong"},
    ]
    assert "expected true" in call(tmp_path, rollback={})["msg"]


def test_a_server_that_is_as_wanted_is_no_change(process: Process, tmp_path: Path) -> None:
    process.result = {**SERVES, "did": []}
    assert call(tmp_path)["changed"] is False


def test_a_change_that_takes_longer_is_asked_again_and_not_begun_again(process: Process, tmp_path: Path) -> None:
    process.result = None
    assert call(tmp_path) == {"failed": False, "changed": False, "under_way": True, "id": "1", "steps": STEPS}
    assert call(tmp_path, only_wait=True)["under_way"] is True
    assert len(process.orders) == 1


@pytest.mark.parametrize(("replaces", "what"), [(False, "the server"), (True, "the new container")])
def test_a_change_that_is_not_proven_says_why_and_what_serves_now(
    process: Process, tmp_path: Path, replaces: bool, what: str
) -> None:
    back = "the previous releases serve again"
    process.result = {**SERVES, "why": "label is 3, expected 7", "back": back, "restored": True, "replaces": replaces}
    found = call(tmp_path)
    assert (found["failed"], found["proven"], found["back"], found["restored"]) == (True, False, back, True)
    words = "does not serve what it should (the previous releases serve again): label is 3, expected 7"
    assert found["msg"] == f"npu1: {what} {words}"


def test_a_change_that_did_not_begin_says_only_why(process: Process, tmp_path: Path) -> None:
    process.result = {**SERVES, "why": "the cards are not free", "back": "nothing was changed", "replaces": True}
    assert call(tmp_path)["msg"] == "npu1: the cards are not free"


def test_what_is_proven_waits_to_be_accepted(process: Process, tmp_path: Path) -> None:
    process.result = process.shown = {**SERVES, "id": "first", "seconds_to_accept": 60.0}
    found = call(tmp_path, accept_within=60, unanswered="kept")
    assert (found["failed"], found["proven"], found["accepted"], found["seconds_to_accept"]) == (False, True, False, 60.0)
    assert [(order["acceptance_timeout"], order["keep_unanswered"]) for order in process.orders] == [(60, True)]
    process.result = {**SERVES, "accepted": True}
    assert call(tmp_path, state="accepted", id="2")["accepted"] is True
    process.result = {**SERVES, "accepted": False, "why": "slow", "back": "the previous releases serve again"}
    msg = call(tmp_path, state="restored", why="slow", id="3")["msg"]
    assert msg == "npu1: the change was not accepted (the previous releases serve again): slow"
    assert (process.decisions, len(process.orders)) == ([(True, "it was rejected"), (False, "slow")], 1)
    # Only whoever begins it hears of what is not accepted yet
    assert process.waits == [("1", True), ("first", False), ("first", False)]


def test_a_change_that_has_released_the_host_tells_what_came_of_it(process: Process, tmp_path: Path) -> None:
    process.result = None
    call(tmp_path, release_host=True)
    assert process.orders[0]["release_host"] is True
    lease.release(str(tmp_path), lease.Holder(**ALICE))
    process.result = {**SERVES, "released": True}
    found = call(tmp_path, only_wait=True)
    assert (found["failed"], found["released"]) == (False, True)


def test_a_decision_that_takes_longer_is_asked_for_by_the_changes_own_id(process: Process, tmp_path: Path) -> None:
    process.shown, process.result = {"id": "first"}, None
    assert call(tmp_path, state="accepted", id="2")["id"] == "first"


@pytest.mark.parametrize("last", [None, {**SERVES, "run": "bob/1/1", "id": "0", "accepted": True}, {**SERVES, **ALICE, "id": "0"}])
def test_what_does_not_wait_cannot_be_accepted(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(detached, "last", lambda _root: last)
    assert "found no change of this run that waits to be accepted" in call(tmp_path, state="accepted")["msg"]
    assert process.orders == []


def test_what_became_of_it_at_its_deadline_is_told_to_whoever_comes_too_late(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = {**SERVES, **ALICE, "id": "first", "accepted": False, "why": "nobody accepted it within 60 s", "back": "put back"}
    monkeypatch.setattr(detached, "last", lambda _root: late)
    process.result = late
    assert "nobody accepted it within 60 s" in call(tmp_path, state="accepted")["msg"]


def test_what_failed_before_is_handed_on_as_the_reason_to_put_back(process: Process, tmp_path: Path) -> None:
    call(tmp_path, state="restored", why="no space is left")
    call(tmp_path, state="restored")
    assert [order["rollback_reason"] for order in process.orders] == ["no space is left", "the change failed"]


def test_a_run_that_does_not_hold_the_host_begins_nothing(process: Process, tmp_path: Path) -> None:
    found = call(tmp_path, run="bob/1/1")
    assert found["failed"] and found["msg"].startswith("npu1: this run has lost the lease of the host (alice@ops1 has it since ")
    assert process.orders == []


def test_a_host_that_was_taken_out_is_told_as_such(process: Process, tmp_path: Path) -> None:
    process.result = {**SERVES, "refused": "the host is in maintenance: card 2"}
    assert call(tmp_path)["msg"] == "npu1: the host is in maintenance: card 2"


def test_it_is_no_module_without_its_controller(process: Process, tmp_path: Path) -> None:
    result = run_module(server_change, {"root": str(tmp_path)})
    assert "_request: missing required arguments: id: only the controller sets it" in result["msg"]
    assert process.orders == []


@pytest.mark.parametrize("plan", [[], [item("server", "digits", "a", "b", "load")]])
def test_check_mode_says_whether_anything_differs(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: list[Any]
) -> None:
    monkeypatch.setattr(proof, "observe", lambda *_given, **_more: proof.Observation({}, plan, {}))
    assert call(tmp_path, check=True)["changed"] is bool(plan)
    assert process.orders == []


# The controller


class Action(action.ActionModule):
    """The action over a host that answers in turn."""

    def __init__(self, place: Path, *answers: Any, **arguments: Any) -> None:
        self._task = SimpleNamespace(args=arguments)  # type: ignore[assignment]
        self.lines: list[str] = []
        self.warned: list[str] = []
        self._display = SimpleNamespace(display=self.lines.append, warning=self.warned.append)  # type: ignore[assignment]
        self._loader = SimpleNamespace(path_dwim=str)
        self.results = place / "check"
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    def variables(self, _task_vars: Any) -> Any:
        lock = {"24.01": {"id": "sha256:1", "options": []}}
        return fleet(
            npufleet_lock=lock,
            groups={"npu_hosts": ["npu1"]},
            inference_check_image="sha256:1",
            inference_check_results_dir=str(self.results),
            inference_check_headers={"Authorization": "Bearer s3cret"},
        )

    def call_module(self, module: str, _arguments: Any, _task_vars: Any, request: Any = None) -> dict[str, Any]:
        assert module == "server_change"
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def go(self) -> dict[str, Any]:
        return self.act("npu1", {"inventory_hostname": "npu1", "group_names": ["npu_hosts"]})


ENDED = {"changed": True, "proven": True, "did": ["loaded digits"], "checks": [RIGHT], "steps": [], "under_way": False}
UNDER_WAY = {"changed": False, "under_way": True, "steps": STEPS}


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    time = SimpleNamespace(now=100.0)

    def sleep(seconds: float) -> None:
        time.now += seconds

    monkeypatch.setattr(contact, "time", SimpleNamespace(monotonic=lambda: time.now, sleep=sleep))
    return time


def test_one_call_hands_over_everything_and_keeps_the_answers_for_reports(tmp_path: Path) -> None:
    entry = Action(tmp_path, ENDED)
    assert entry.go() == {**ENDED, "answered": True}
    (request,) = entry.requests
    # Every field is one that the module takes
    assert set(request) <= set(server_change.REQUEST)
    document = request["checks"]["document"]
    assert (document["host"], document["checks"], document["server"]["http_port"]) == ("npu1", [], 8000)
    assert request["secrets"] == ["Bearer s3cret"]
    assert set(request["desired"]) == {"models", "server"}
    assert (request["releases"], request["incoming"]) == ({}, "/var/lib/npufleet/incoming")
    assert json.loads((entry.results / "npu1.json").read_text())["checks"] == [RIGHT]
    assert entry.lines == []


@pytest.mark.parametrize("arguments", [{"run_checks": False}, {"state": "restored", "why": "x"}])
def test_checks_are_only_asked_of_a_change_that_wants_them(tmp_path: Path, arguments: dict[str, Any]) -> None:
    entry = Action(tmp_path, {**ENDED, "checks": []}, **arguments)
    entry.go()
    assert "checks" not in entry.requests[0]
    assert not entry.results.exists()


def test_a_model_that_is_not_placed_here_is_refused(tmp_path: Path) -> None:
    entry = Action(tmp_path, release=["words"])
    with pytest.raises(AnsibleActionFail, match="triton_models does not place words on this host"):
        entry.go()
    assert entry.requests == []


def test_a_change_that_takes_longer_is_told_line_by_line(tmp_path: Path) -> None:
    entry = Action(tmp_path, UNDER_WAY, {**UNDER_WAY, "steps": [{"at": "now", "step": "keep\n[it]"}]}, ENDED)
    assert entry.go()["proven"] is True
    assert entry.lines == ["npu1: load and unload, since 2026-01-01T00:00:00Z", "npu1: keep [it], since now"]
    first, *others = entry.requests
    # What is asked again is small, and is about the same change
    assert [(again["id"], again["only_wait"], again["run"]) for again in others] == [(first["id"], True, first["run"])] * 2
    assert all("desired" not in again and "checks" not in again for again in others)


def test_a_change_that_waited_is_asked_for_by_its_own_id(tmp_path: Path) -> None:
    entry = Action(tmp_path, {**UNDER_WAY, "id": "first"}, ENDED, state="accepted")
    entry.go()
    assert entry.requests[1]["id"] == "first"


LOST = [
    "Failed to connect to the host via ssh: Connection reset by peer",
    "Timeout (12s) waiting for privilege escalation prompt: ",
    "Failed to connect to the host via ssh: No route to host",
]


@pytest.mark.parametrize("why", LOST)
def test_a_connection_that_comes_back_finds_what_became_of_the_change(tmp_path: Path, why: str) -> None:
    lost = AnsibleConnectionFailure(why)
    entry = Action(tmp_path, UNDER_WAY, lost, lost, ENDED)
    assert entry.go()["proven"] is True
    first, back = entry.warned
    assert (
        first.startswith("npu1: contact was lost. The change continues on the host. The host is called again for ")
        and why.strip() in first
    )
    assert back == "npu1: contact is restored"


@pytest.mark.parametrize("why", LOST)
def test_contact_that_is_lost_while_the_change_begins_is_no_failure(tmp_path: Path, why: str) -> None:
    lost = AnsibleConnectionFailure(why)
    entry = Action(tmp_path, lost, lost, UNDER_WAY, ENDED)
    assert entry.go()["proven"] is True
    # The same change, which the host knows by its id
    assert len({request["id"] for request in entry.requests}) == 1
    assert [request.get("only_wait", False) for request in entry.requests] == [False, False, False, True]


def test_contact_is_retried_until_the_limit_of_the_change(tmp_path: Path, pauses: SimpleNamespace) -> None:
    entry = Action(tmp_path, UNDER_WAY, *[AnsibleConnectionFailure("npu1 is gone")] * 2000, accept_within=600)
    with pytest.raises(AnsibleConnectionFailure):
        entry.go()
    times = entry.requests[0]["container"]
    limit = action._limit(entry.requests[0], 600)
    assert limit <= pauses.now - 100 <= limit + 2 * contact.RETRY_SECONDS
    # More than there and back: the cards, the old container, the new one, its models, and the time to accept it
    assert limit > 600 + 2 * (times["free_timeout"] + times["stop_timeout"] + times["ready_timeout"])
    assert len(entry.warned) == 1


def test_contact_that_is_lost_at_the_end_of_the_limit_may_come_back(tmp_path: Path, pauses: SimpleNamespace) -> None:
    lost = AnsibleConnectionFailure("npu1 is gone")

    class Late(Action):
        def call_module(self, *given: Any, **more: Any) -> dict[str, Any]:
            if len(self.requests) == 1:
                pauses.now += action._limit(self.requests[0], 0)
            return super().call_module(*given, **more)

    assert Late(tmp_path, UNDER_WAY, *[lost] * 10, ENDED).go()["proven"] is True
    started = pauses.now
    with pytest.raises(AnsibleConnectionFailure):
        Late(tmp_path, UNDER_WAY, *[lost] * 100).go()
    assert pauses.now - started < action._limit({"container": SETTINGS}, 0) + 3 * contact.RECONNECT_SECONDS


def test_a_login_that_is_refused_is_not_tried_again(tmp_path: Path) -> None:
    entry = Action(tmp_path, UNDER_WAY, AnsibleAuthenticationFailure("Invalid/incorrect password"), ENDED)
    with pytest.raises(AnsibleAuthenticationFailure):
        entry.go()
    assert len(entry.requests) == 2


def test_a_call_that_was_killed_is_made_again_a_few_times(tmp_path: Path) -> None:
    killed = {"failed": True, "msg": "server_change ended with 137 and without an answer", "module_stderr": ""}
    assert Action(tmp_path, killed, UNDER_WAY, killed, killed, ENDED).go()["proven"] is True
    entry = Action(tmp_path, *[killed] * 100)
    assert entry.go()["failed"] is True
    assert len(entry.requests) == 1 + contact.MAX_RETRIES


def test_longer_checks_take_a_longer_limit() -> None:
    def limit(timeout: int, count: int) -> float:
        return action._limit({"container": SETTINGS, "checks": {"document": {"timeout": timeout, "checks": [{}] * count}}}, 0)

    assert limit(60, 10) - limit(60, 9) == 60
    assert limit(60, 0) > action._limit({"container": SETTINGS}, 0)


def test_a_call_that_is_repeated_begins_and_decides_once(process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was lost: the host knows the id of what it has begun."""
    monkeypatch.setattr(detached, "decide", DECIDE)
    (tmp_path / detached.LOCK).write_text("1")
    assert call(tmp_path)["proven"] is True
    assert process.orders == []
    process.shown = {"id": "1"}
    call(tmp_path, state="accepted", id="2")
    # It has taken the decision, and waits no more
    process.shown = None
    assert call(tmp_path, state="accepted", id="2")["proven"] is True
    assert [ident for ident, _proven in process.waits] == ["1", "1", "1"]
    assert "found no change of this run that waits" in call(tmp_path, state="accepted", id="3")["msg"]
    assert call(tmp_path, id="4")["proven"] is True
    assert [order["id"] for order in process.orders] == ["4"]
    # Also where the change has released the host meanwhile
    lease.release(str(tmp_path), lease.Holder(**ALICE))
    assert call(tmp_path)["proven"] is True
    assert call(tmp_path, id="5")["failed"] is True


def test_a_change_that_failed_is_its_message_alone(tmp_path: Path) -> None:
    failed = {
        "failed": True,
        "changed": True,
        "msg": "npu1: wrong",
        "back": "as before",
        "checks": [WRONG],
        "did": [],
        "steps": STEPS,
    }
    entry = Action(tmp_path, failed)
    assert entry.go() == {"failed": True, "changed": True, "msg": "npu1: wrong", "back": "as before", "did": []}
    assert json.loads((entry.results / "npu1.json").read_text())["msg"] == "npu1: wrong"


@pytest.mark.parametrize(
    "liar", [{"under_way": True, "steps": 3}, {"proven": True, "checks": 3}, {"under_way": True, "steps": [3]}]
)
def test_an_answer_of_another_shape_is_refused(tmp_path: Path, liar: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="npu1 gave an answer that cannot be used"):
        Action(tmp_path, liar, ENDED).go()
