"""What the report says of a fleet, before it is drawn."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.action.fleet_report import ActionModule
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import drift, host_states, page, view
from ansible_collections.npufleet.triton.plugins.plugin_utils.report import status as written
from helpers import ROOT

NOW = datetime(2026, 3, 2, 12, tzinfo=timezone.utc).timestamp()
RELEASE = "a" * 64


def status(**changes: Any) -> dict[str, Any]:
    served = {"digits": {"1": {"state": "READY", "reason": "", "release": RELEASE}}}
    actual = {"server": {"served": served, "version": "2.42.0", "state": "running"}}
    good = {"host": "npu1", "when": "2026-03-02T11:00:00Z", "state": "in sync", "plan": [], "report": [], "actual": actual}
    return {**good, "models": {"digits": {"source": "b" * 64, "release": RELEASE}}, **changes}


def check(**changes: Any) -> dict[str, Any]:
    good = {"name": "digits/http/digit 1", "model": "digits", "protocol": "http", "ok": True, "why": "", "ms": 1.0}
    return {**good, "expected": 1, "got": 1, **changes}


def result(*checks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"host": "npu1", "when": "2026-03-02T11:30:00Z", "msg": "", "checks": list(checks), **changes}


def row(own_status: dict[str, Any] | None, own_result: dict[str, Any] | None) -> dict[str, Any]:
    """The row of npu1 in a fleet of two, of which the other is well."""
    statuses = {"npu2": status(), **({"npu1": own_status} if own_status else {})}
    results = {"npu2": result(check()), **({"npu1": own_result} if own_result else {})}
    whole = view.view(["npu1", "npu2"], ["npu1", "npu2"], statuses, results, NOW)
    return next(found for found in whole["hosts"] if found["host"] == "npu1")


@pytest.mark.parametrize(
    ("own_status", "own_result", "words", "level"),
    [
        (status(), result(check()), ["in sync", "proven"], "good"),
        (status(state="drift", plan=[{"concern": "server"}]), result(check()), ["drift", "proven"], "wrong"),
        (status(), result(check(ok=False)), ["wrong answers", "in sync"], "wrong"),
        (status(), result(msg="no image"), ["not proven", "in sync"], "wrong"),
        (status(state="failed", report=["why"]), result(check()), ["failed", "proven"], "wrong"),
        (status(state="unreachable", report=["why"]), result(msg="why"), ["unreachable"], "wrong"),
        (status(state="who knows"), result(check()), ["failed", "proven"], "wrong"),
        (None, result(check()), ["not read", "proven"], "unknown"),
        (status(), None, ["not checked", "in sync"], "unknown"),
    ],
)
def test_states(own_status: Any, own_result: Any, words: list[str], level: str) -> None:
    found = row(own_status, own_result)
    assert [state["word"] for state in found["states"]] == words
    assert found["level"] == level


def test_a_half_that_no_host_has_counts_for_none() -> None:
    whole = view.view(["npu1"], ["npu1"], {"npu1": status()}, {}, NOW)
    assert (whole["missing"], whole["counts"]["good"]) == (["check"], 1)
    whole = view.view(["npu1"], ["npu1"], {}, {"npu1": result(check())}, NOW)
    assert (whole["missing"], whole["counts"]["good"]) == (["status"], 1)
    whole = view.view(["npu1"], ["npu1"], {}, {}, NOW)
    assert (whole["missing"], whole["counts"]["unknown"]) == (["status", "check"], 1)


def test_a_host_that_answers_no_checks_misses_none() -> None:
    whole = view.view(["npu1", "ops1"], ["npu1"], {"npu1": status(), "ops1": status()}, {"npu1": result(check())}, NOW)
    assert whole["counts"] == {"all": 2, "wrong": 0, "unknown": 0, "good": 2, "right": 1, "checks": 1, "stale": 0}


def test_what_is_wrong_comes_first_then_names_by_their_numbers() -> None:
    names = ["npu10", "npu2", "npu1", "npu3"]
    statuses = {name: status() for name in names}
    statuses["npu3"] = status(state="unreachable", report=["why"])
    statuses["npu10"] = status(state="drift", plan=[{"concern": "server", "name": "x", "action": "start"}])
    whole = view.view(names, names, statuses, {}, NOW)
    assert [host["host"] for host in whole["hosts"]] == ["npu3", "npu10", "npu1", "npu2"]


def test_the_first_reason_and_how_many_more() -> None:
    plan = [{"concern": "server", "name": "container", "current": None, "desired": "running", "action": "start"}]
    found = row(status(state="drift", plan=plan), result(check(ok=False, why="label is 7, expected 1")))
    assert (found["first"], found["more"]) == ("digits/http/digit 1: label is 7, expected 1", 1)
    assert found["plan"] == [{"what": "server container", "actual": "nothing", "desired": "running", "action": "start"}]


def test_models_that_are_not_served_are_wrong_whatever_they_answered() -> None:
    down = {"digits": {"1": {"state": "UNAVAILABLE", "reason": "no memory", "release": None}}}
    found = row(status(actual={"server": {"served": down}}), result(check()))["models"]["digits"]
    assert (found["level"], found["word"], found["versions"][0]["reason"]) == ("wrong", "1 of 1", "no memory")
    assert row(status(), None)["models"]["digits"]["word"] == "not checked"
    assert row(status(actual={"server": {"served": None}}), None)["models"]["digits"]["word"] == "not served"


def test_a_source_is_told_only_of_the_release_that_was_made_of_it() -> None:
    assert row(status(), None)["models"]["digits"]["versions"][0]["source"] == "b" * 64
    other = {"digits": {"source": "b" * 64, "release": "c" * 64}}
    assert row(status(models=other), None)["models"]["digits"]["versions"][0]["source"] == ""


def test_what_is_old_is_marked() -> None:
    found = row(status(when="2026-03-01T11:59:59Z"), result(check()))
    assert [(time["what"], time["stale"]) for time in found["times"]] == [("read", True), ("checked", False)]
    assert found["stale"]
    assert not row(status(when="2026-03-01T12:00:00Z"), None)["stale"]
    assert row(status(when="yesterday"), None)["times"] == []


def test_a_picture_stands_there_once_and_only_as_a_picture() -> None:
    uri = "data:image/png;base64,iVBORw0KGgo="
    pictures = [uri, uri, "https://example.com/x.png", uri + '"><b>', None, "data:image/png;base64," + "A" * 40001]
    found = row(status(), result(*(check(picture=picture) for picture in pictures)))["answers"][0]["answers"]
    assert [entry["picture"] for entry in found] == [uri, "", "", "", "", ""]
    assert [entry.get("number") for entry in found] == [0, 0, None, None, None, None]


@pytest.mark.parametrize(
    "odd", [None, [], "text", 7, {"driver": {"tool": {"devices": ["x", None]}}}, {"server": {"served": ["x"]}}]
)
def test_a_reading_of_any_shape_is_no_failure(odd: Any) -> None:
    row(status(actual=odd, plan=odd, report=odd, models=odd, release=odd), result(check(ms=odd, got=odd, model=odd, name=odd)))


def test_every_text_is_escaped() -> None:
    assert view.escaped({"<a>": ["<b>", ("\"'&", 1, None, True)]}) == {
        "&lt;a&gt;": ["&lt;b&gt;", ["&quot;&#x27;&amp;", 1, None, True]]
    }


def test_only_hosts_of_the_fleet_are_read(tmp_path: Path) -> None:
    (tmp_path / "check").mkdir()
    for name in ("npu1", "gone"):
        (tmp_path / f"check/{name}.json").write_text(json.dumps(result(check(), host=name)))
    (tmp_path / "check/npu2.json").write_text("{")
    (tmp_path / "status.json").write_text(json.dumps({"hosts": [status(), status(host="gone"), "odd", {}]}))
    statuses, results = view.read(["npu1", "npu2"], f"{tmp_path}/status.json", f"{tmp_path}/check")
    assert (list(statuses), list(results)) == (["npu1"], ["npu1"])


@pytest.mark.parametrize("text", ["", "[]", '{"hosts": 7}', "{"])
def test_a_status_of_another_form_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    assert view.read(["npu1"], f"{tmp_path}/status.json", f"{tmp_path}/check") == ({}, {})


def test_numbers_that_are_none_and_names_of_digits_break_no_report() -> None:
    cards = [{"device": "rbln0", "memory_used": 10**400, "memory_total": float("nan")}]
    actual = {"driver": {"tool": {"devices": cards}}, "server": {"served": {"m": {"9" * 5000: {}, "2": {}, "10": {}}}}}
    shown = row(status(actual=actual), result(check(ms=10**400)))
    assert [version["version"][:3] for version in shown["models"]["m"]["versions"]] == ["2", "10", "999"]
    assert shown["cards"][0]["memory"] == ""


# What status.yml writes down


def test_a_reading_keeps_what_is_known_of_hosts_that_were_not_asked() -> None:
    item = {"concern": "driver", "name": "module", "current": "1", "desired": "2", "action": "reload"}
    desired = {"models": {"models": {"digits": {"source": "s", "release": "r", "files": {}}}}}
    mark = {"reason": "swap card 2", "by": "kim", "since": "then"}
    read = {
        "npu1": {
            "state": {"plan": [], "report": [], "maintenance": None, "desired": desired, "actual": {"a": 1}, "untested": "old"},
            "release": "24.01",
        },
        "npu2": {"state": {"plan": [item], "report": ["driver module: ..."], "maintenance": None}, "release": "24.01"},
        "npu3": {"state": {"plan": [item], "report": ["x"], "maintenance": mark}, "release": None},
        "npu4": {"state": {"unreachable": True, "msg": "no route"}, "release": None},
        "npu5": {"state": {"failed": True, "msg": "refused"}, "release": None},
        "npu6": {"state": None, "release": None},
    }
    before = [{"host": "npu1", "state": "drift"}, {"host": "npu7", "state": "drift"}, {"host": "gone"}, "nonsense"]
    entries = [written.host_entry("now", name, known["state"], known["release"]) for name, known in read.items()]
    found = written.document("now", before, [f"npu{number}" for number in range(1, 8)], entries)
    assert json.loads(written.text(found)) == found
    hosts = {entry["host"]: entry for entry in found["hosts"]}
    assert found["when"] == "now" and list(hosts) == ["npu7", *read]
    states = ["in sync", "drift", "maintenance", "unreachable", "failed", "failed"]
    assert [hosts[name]["state"] for name in read] == states
    assert hosts["npu1"]["models"] == {"digits": {"source": "s", "release": "r"}}
    assert [hosts[name]["untested"] for name in ("npu1", "npu2", "npu6")] == ["old", None, None]
    assert hosts["npu3"]["report"] == ["in maintenance: swap card 2 (kim, then)"]
    assert [hosts[name]["report"] for name in ("npu4", "npu5", "npu6")] == [["no route"], ["refused"], ["npu6 was not read"]]
    assert all(hosts[name]["when"] == "now" and hosts[name]["plan"] == [] for name in ("npu1", "npu4", "npu6"))


def test_a_stored_entry_is_read_once_and_only_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_states.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    name = "rack/1:npu"
    assert host_states.read(name) is None
    host_states.write({"host": name, "state": "drift"})
    assert host_states.read(name) == {"host": name, "state": "drift"}
    assert host_states.read("npu1") is None
    for _again in range(2):
        host_states.remove(name)
        assert host_states.read(name) is None


class Read(ActionModule):
    """The action after the hosts were read."""

    def __init__(self, place: Path) -> None:
        paths = {"status_file": f"{place}/status.json", "results_dir": f"{place}/check", "report_file": f"{place}/index.html"}
        self._task = SimpleNamespace(args={"state": "read", **paths}, async_val=0, check_mode=False, diff=False)  # type: ignore[assignment]
        self._loader = SimpleNamespace(path_dwim=str)
        self._supports_check_mode = True
        self._supports_async = False
        self._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))


class Hostvars(dict[str, dict[str, Any]]):
    """Variables of hosts, which record of which host they were read."""

    asked: list[str]

    def __getitem__(self, host: str) -> dict[str, Any]:
        self.asked = [*getattr(self, "asked", []), host]
        return super().__getitem__(host)


def test_only_hosts_of_the_play_that_differ_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_states.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    names = [f"npu{number}" for number in range(1, 6)]
    before = [status(host="npu5", state="drift", report=["known before"], plan=[{"concern": "models"}] * 2)]
    (tmp_path / "status.json").write_text(json.dumps({"hosts": before}))
    mark = {"reason": "swap", "by": "kim", "since": "then"}
    read = {
        "npu1": {"plan": []},
        "npu2": {"plan": [{"concern": "server"}], "report": ["server"]},
        "npu3": {"maintenance": mark, "plan": [{}]},
    }
    for name, found in read.items():
        host_states.write(written.host_entry("now", name, found, "24.01"))
    hostvars = Hostvars({"npu4": {"npufleet_state": {"unreachable": True, "msg": "no route"}}})
    variables = {"groups": {"npu_hosts": names}, "ansible_play_hosts_all": names[:4], "hostvars": hostvars}
    found = Read(tmp_path).run(task_vars=variables)
    assert found["differs"] == {"npu2": ["server"], "npu3": ["in maintenance: swap (kim, then)"], "npu4": ["no route"]}
    assert (found["hosts_not_in_sync"], hostvars.asked) == (["npu2", "npu4"], ["npu4"])
    drifted = [line for line in found["metrics"].splitlines() if line.startswith("npufleet_drift_items{")]
    assert drifted == [
        'npufleet_drift_items{inventory_host="npu2",concern="server"} 1',
        'npufleet_drift_items{inventory_host="npu5",concern="models"} 2',
    ]
    states = {entry["host"]: entry["state"] for entry in json.loads((tmp_path / "status.json").read_text())["hosts"]}
    assert states == {"npu1": "in sync", "npu2": "drift", "npu3": "maintenance", "npu4": "unreachable", "npu5": "drift"}


def test_drift_becomes_metrics() -> None:
    plan = [{"concern": "server"}, {"concern": "models"}, {"concern": "server"}]
    entries = [
        status(host="npu2", state="drift", plan=plan),
        status(host='n"pu1', state="drift", plan=plan[:1]),
        # A host in maintenance may differ, and the others have no plan.
        status(host="npu3", state="maintenance", plan=plan),
        status(host="npu4", state="unreachable", plan=[]),
        {"host": "npu5", "state": "drift"},
    ]
    assert [line for line in drift.metrics(1767323045.5, entries).splitlines() if not line.startswith("#")] == [
        'npufleet_drift_items{inventory_host="n\\"pu1",concern="server"} 1',
        'npufleet_drift_items{inventory_host="npu2",concern="models"} 1',
        'npufleet_drift_items{inventory_host="npu2",concern="server"} 2',
        "npufleet_status_timestamp_seconds 1767323045.5",
    ]


def test_the_page_is_drawn_of_what_is_there() -> None:
    for statuses, results in (({}, {}), ({"npu1": status()}, {}), ({"npu1": status()}, {"npu1": result(check())})):
        whole = view.view(["npu1"], ["npu1"], statuses, results, NOW)
        text = page.page(view.escaped(whole))
        assert text.startswith("<!doctype html>") and text.count('id="host-npu1"') == 1
        assert text.count("<script") == 2
    whole = view.view(["npu1"], ["npu1"], {"npu1": status(release="26.07-sdk0.9", untested="old <SDK>")}, {}, NOW)
    assert "26.07-sdk0.9 (untested: old &lt;SDK&gt;)" in page.page(view.escaped(whole))


class Reset(ActionModule):
    """The action before hosts are checked."""

    def __init__(self, results: Path) -> None:
        self._task = SimpleNamespace(  # type: ignore[assignment]
            args={"state": "reset", "results_dir": str(results)}, async_val=0, check_mode=True, diff=False
        )
        self._loader = SimpleNamespace(path_dwim=str)
        self._supports_check_mode = True
        self._supports_async = False
        self._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))


def test_previous_answers_are_removed_before_the_hosts_are_checked(tmp_path: Path) -> None:
    for host in ("npu1", "npu2", "npu3"):
        (tmp_path / f"{host}.json").write_text("{}")
    for _again in range(2):
        assert Reset(tmp_path).run(task_vars={"ansible_play_hosts_all": ["npu1", "npu3"]})["changed"] is False
        assert [path.name for path in tmp_path.iterdir()] == ["npu2.json"]
    first = yaml.safe_load((ROOT / "playbooks/check.yml").read_text())[0]["tasks"][0]
    assert (first["npufleet.triton.fleet_report"]["state"], first["run_once"]) == ("reset", True)
