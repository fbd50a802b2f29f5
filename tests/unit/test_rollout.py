"""What a rollout is about to do, in words, out of what was found; and the record of how long turns took."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.npufleet.triton.plugins.action import rollout as action
from ansible_collections.npufleet.triton.plugins.filter.rollout_groups import rollout_groups
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.run import host_text, rollout
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.rollout import Duration, PlannedHost
from helpers import ROOT

HOSTS = [f"npu{number}" for number in range(1, 10)]


@pytest.mark.parametrize(
    ("serial", "sizes"),
    [
        ([1, "25%", "100%"], [1, 2, 6]),
        (["100%"], [9]),
        ("30%", [2, 2, 2, 2, 1]),
        (4, [4, 4, 1]),
        ("4", [4, 4, 1]),
        (["5%"], [1] * 9),
        ('[2, "50%"]', [2, 4, 3]),
        (" 100% ", [9]),
    ],
)
def test_batches_are_those_that_ansible_makes(serial: Any, sizes: list[int]) -> None:
    found = rollout.batches(HOSTS, rollout.parse_serial(serial))
    assert [len(batch) for batch in found] == sizes
    assert [host for batch in found for host in batch] == HOSTS


@pytest.mark.parametrize(
    ("serial", "words"),
    [
        (0, "0"),
        (-1, "-1"),
        ([], "an empty list"),
        ("[]", "an empty list"),
        ([1, 0, "100%"], "0"),
        (None, "nothing"),
        ("", '""'),
        (True, "true"),
        ([1, False], "false"),
        (2.5, "2.5"),
        ("0%", "0%"),
        ("101%", "101%"),
        ("12.5%", "12.5%"),
        ("-5%", "-5%"),
        ("١%", "١%"),
        ("half", "half"),
        ("1, 2", "1, 2"),
        ("[1, 2", "[1, 2"),
        ({"a": 1}, '{"a": 1}'),
        ([[1]], "[1]"),
        ([0, -1, "x"], "0, -1, x"),
    ],
)
def test_a_serial_that_is_no_size_is_refused(serial: Any, words: str) -> None:
    with pytest.raises(Refusal, match=r"npufleet_rollout_serial is ") as refusal:
        rollout.parse_serial(serial)
    assert f"npufleet_rollout_serial is {words}, expected numbers of hosts of 1 or more" in refusal.value.reasons[0]


def test_hosts_that_change_together_have_one_serial() -> None:
    assert rollout.common_serial({"npu1": [1, "50%"], "npu2": [1, "50%"]}) == [1, "50%"]
    assert rollout.common_serial({}) == ["100%"]
    with pytest.raises(Refusal, match=r'is \[1, "50%"\] of npu1, npu3; \["100%"\] of npu2, expected one value'):
        rollout.common_serial({"npu1": [1, "50%"], "npu2": ["100%"], "npu3": [1, "50%"]})


def test_what_lies_ahead_is_told_with_bytes_and_an_estimate() -> None:
    first, second, third = (PlannedHost(host, ["models", "server"], 3 << 20) for host in HOSTS[:3])
    before = {host: Duration(seconds, ["models", "server", "probe"]) for host, seconds in (("npu1", 10), ("npu2", 5), ("npu3", 8))}
    assert rollout.announcement([[first], [second, third]], before, 3) == (
        "the rollout changes 3 hosts: npu1; then npu2, npu3 (models, server; 9.0 MiB to copy); about 18 s, as the last time"
    )
    assert rollout.announcement([[second, third]], {}, 3) == (
        "the rollout continues with 2 of 3 hosts: npu2, npu3 (models, server; 6.0 MiB to copy); "
        "an unknown time for npu2, npu3, which had no such change yet"
    )
    # A turn that changed less says nothing of this one
    less = {**before, "npu3": Duration(1, ["probe"])}
    words = rollout.announcement([[first], [third]], less, 2)
    assert words.endswith("about 10 s and an unknown time for npu3, which had no such change yet")


def test_many_hosts_are_announced_by_size_and_listed_in_a_file(tmp_path: Path) -> None:
    known = {f"npu{number}": state() for number in range(1, 22)}
    first = Action(tmp_path, serial=[1, "100%"])
    first.go(known, ["npu1"])
    assert first.lines == [
        "the rollout changes 21 hosts: npu1; then 20 hosts from npu2 to npu21 (models, server; nothing to copy); an unknown time "
        f"for 21 hosts, which had no such change yet; all names: {tmp_path}/rollout.txt"
    ]
    batches = (tmp_path / "rollout.txt").read_text().splitlines()
    assert batches == ["batch 1: npu1", "batch 2: " + ", ".join(list(known)[1:])]
    # The names of the remaining hosts fit into the line.
    last = Action(tmp_path, serial=[1, "100%"])
    last.go(known, list(known)[1:])
    assert last.lines[0].startswith("the rollout continues with 20 of 21 hosts: npu2, npu3, ")
    (tmp_path / "file").touch()
    warning, record = Action(tmp_path / "file").go(known, ["npu1"])["warnings"]
    assert record.startswith("The rollout cannot be recorded: ")
    assert warning.startswith("The names of the hosts cannot be written: ")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([0, 0], "nothing to copy"),
        ([None, 0], "files of unknown size to copy"),
        ([1 << 20, None], "1.0 MiB and files of unknown size to copy"),
    ],
)
def test_bytes_that_nobody_knows_are_told_as_such(sizes: list[int | None], words: str) -> None:
    assert words in rollout.announcement([[PlannedHost("npu1", ["models"], size) for size in sizes]], {}, 2)


@pytest.mark.parametrize("content", [None, "", "[]", "{", '{"npu1": 3}', '{"npu1": {"seconds": "x", "concerns": []}}'])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "below/durations.json"
    if content is not None:
        path.parent.mkdir()
        path.write_text(content)
    assert rollout.read(str(path)) == {}
    rollout.write(str(path), {"npu2": Duration(2.5, ["models"])})
    assert rollout.read(str(path)) == {"npu2": Duration(2.5, ["models"])}
    assert path.stat().st_mode & 0o777 == 0o600
    rollout.write(str(path), {"npu1": Duration(1, [])})
    assert sorted(rollout.read(str(path))) == ["npu1", "npu2"]


class Action(action.ActionModule):
    """The action in a run on these hosts."""

    def __init__(self, place: Path, **arguments: Any) -> None:
        self._task = SimpleNamespace(  # type: ignore[assignment]
            args={"output_dir": str(place), **arguments}, async_val=0, check_mode=False, diff=False
        )
        self._loader = SimpleNamespace(path_dwim=str)
        self.lines: list[str] = []
        self._display = SimpleNamespace(display=self.lines.append)  # type: ignore[assignment]
        self._supports_check_mode = True
        self._supports_async = False
        self._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))

    def go(self, known: dict[str, Any], batch: list[str]) -> dict[str, Any]:
        everybody = {"ansible_play_batch": batch, "ansible_play_hosts_all": list(known)}
        return self.run(task_vars={"inventory_hostname": batch[0], "hostvars": known, **everybody})


def state(*missing: str, **origins: dict[str, Any]) -> dict[str, Any]:
    plan = [{"concern": "models"}, {"concern": "server"}]
    return {"npufleet_state": {"plan": plan, "actual": {"models": {"missing": list(missing)}}, "origins": origins}}


def test_what_was_found_on_each_host_is_what_lies_ahead(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"x" * (1 << 20))
    known = {
        "npu1": state("a", "b", a={"file": str(tmp_path / "weights")}, b={"url": "https://x/b", "size": 2 << 20}),
        "npu2": state(),
        "npu3": state(),
        "npu4": state(),
    }
    unknown = "which had no such change yet"
    first = Action(tmp_path, serial=[1, 2, "100%"])
    first.go(known, ["npu1"])
    assert first.lines == [
        "the rollout changes 4 hosts: npu1; then npu2, npu3; then npu4 (models, server; 3.0 MiB to copy); "
        f"an unknown time for npu1, npu2, npu3, npu4, {unknown}"
    ]
    # npu3 was lost before its turn
    second = Action(tmp_path, serial=[1, 2, "100%"])
    second.go(known, ["npu2"])
    assert second.lines == [
        "the rollout continues with 3 of 4 hosts: npu2; then npu3; then npu4 (models, server; nothing to copy); "
        f"an unknown time for npu2, npu3, npu4, {unknown}"
    ]
    last = Action(tmp_path, serial=[1, 2, "100%"])
    last.go(known, ["npu4"])
    assert last.lines == [
        f"the rollout continues with 1 of 4 hosts: npu4 (models, server; nothing to copy); an unknown time for npu4, {unknown}"
    ]


@pytest.mark.parametrize(
    "lie",
    [
        {"plan": 3},
        {"plan": [3], "actual": {}},
        {"plan": [], "actual": {"models": {"missing": [{}]}}, "origins": {}},
        {"plan": [], "actual": {"models": {"missing": ["of nobody"]}}, "origins": {}},
    ],
)
def test_a_host_that_lies_is_one_of_which_nothing_is_known(tmp_path: Path, lie: dict[str, Any]) -> None:
    entry = Action(tmp_path)
    assert "files of unknown size" in entry.go({"npu1": {"npufleet_state": lie}}, ["npu1"])["msg"]


def test_only_turns_that_went_well_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "time", SimpleNamespace(time=lambda: 112.0))
    known = {
        "npu1": {**state(), "npufleet_began": "100.0", "npufleet_failed": ""},
        "npu2": {**state(), "npufleet_began": "100.0", "npufleet_failed": "Change: no"},
        "npu3": state(),
        # The controller's clock was set back meanwhile
        "npu4": {**state(), "npufleet_began": "113.0", "npufleet_failed": ""},
    }
    assert Action(tmp_path, state="ended").go(known, list(known))["changed"] is False
    assert json.loads((tmp_path / "durations.json").read_text()) == {"npu1": {"seconds": 12.0, "concerns": ["models", "server"]}}
    (tmp_path / "file").touch()
    durations, record = Action(tmp_path / "file", state="ended").go(known, ["npu1"])["warnings"]
    assert durations.startswith("The durations cannot be recorded: ")
    assert record.startswith("The rollout cannot be recorded: ")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, []),
        ("", []),
        ("digits", ["digits"]),
        (" digits ,\tfaces,,\n", ["digits", "faces"]),
        (["digits", "a,b", 7], ["digits", "a", "b", "7"]),
        # No model has such a name, which the hosts refuse
        ("digits faces", ["digits faces"]),
    ],
)
def test_which_models_are_rolled_back(given: Any, names: list[str]) -> None:
    look = DataLoader().load_from_file(str(ROOT / "playbooks/rollback.yml"), trusted_as_template=True)[0]
    variables = {} if given is None else {"rollback_models": given}
    assert Templar(DataLoader(), variables=variables).template(look["vars"]["npufleet_rolled"]) == names


FAILED = "npu1 failed the gate, no further batch starts. Wrong."
LOST = "became unreachable during the change, no further batch starts. Check the host, and run again"


class Ending(Action):
    """The end of the turn of npu1, whose release comes out as it is told."""

    def __init__(self, place: Path, released: Any, **arguments: Any) -> None:
        super().__init__(place, state="ended", **arguments)
        self.released, self.asked = released, []  # type: ignore[var-annotated]

    def variables(self, _task_vars: Any) -> Any:
        return {"npufleet_root": "/r"}

    def call_module(self, module: str, arguments: Any, *_more: Any) -> dict[str, Any]:  # type: ignore[override]
        self.asked.append((module, arguments))
        if isinstance(self.released, Exception):
            raise self.released
        return dict(self.released)


@pytest.mark.parametrize(
    ("released", "arguments", "words"),
    [
        ({"released": True}, {"release": True}, None),
        ({"released": True}, {"release": True, "failed": "Wrong."}, FAILED),
        ({"released": True}, {"release": True, "lost": ["npu2", "npu3"]}, f"npu2, npu3 {LOST}. npu1 itself is in sync"),
        ({"released": True}, {"release": "yes", "failed": "Wrong.", "lost": "npu2"}, f"{FAILED}; npu2 {LOST}"),
        ({"failed": True, "msg": "npu1: held"}, {"release": True, "failed": "Wrong."}, f"{FAILED}; npu1: held"),
        (
            AnsibleConnectionFailure("timed out"),
            {"release": True},
            "npu1 became unreachable before its lease was released, no further batch starts. Check the host, and run again"
            ": timed out",
        ),
        (
            host_text.InvalidAnswer("npu1: found no data"),
            {"release": True, "failed": "Wrong."},
            f"{FAILED}; npu1: found no data",
        ),
    ],
)
def test_a_turn_ends_with_the_release_of_its_host_and_with_every_reason_to_stop(
    tmp_path: Path, released: Any, arguments: dict[str, Any], words: str | None
) -> None:
    ending = Ending(tmp_path, released, **arguments)
    found = ending.go({"npu1": {**state(), "npufleet_began": "100.0"}}, ["npu1"])
    end = {"failure": "", "verdict": None, "in_flight": None, "closed": None}
    assert ending.asked == [("host_lease", {"state": "released", "root": "/r", "rollout": end})]
    assert (found.get("failed", False), found.get("msg")) == (words is not None, words)
    assert (tmp_path / "durations.json").exists()


def test_a_host_that_its_change_has_released_is_not_asked(tmp_path: Path) -> None:
    ending = Ending(tmp_path, {}, release=False, failed="Wrong.")
    found = ending.go({"npu1": {}, "npu2": {}}, ["npu1", "npu2"])
    assert (ending.asked, found["failed"], found["msg"]) == ([], True, FAILED)


def test_what_a_batch_took_is_written_by_its_first_host(tmp_path: Path) -> None:
    known = {name: {**state(), "npufleet_began": "100.0"} for name in ("npu1", "npu2")}
    variables = {"inventory_hostname": "npu2", "hostvars": known, "ansible_play_batch": list(known)}
    assert Ending(tmp_path, {}).run(task_vars=variables) == {"changed": False}
    assert not (tmp_path / "durations.json").exists()


def test_a_host_is_in_the_groups_of_what_it_needs() -> None:
    build = {"concern": "image", "action": "build"}
    hosts = {
        "npu1": {"npufleet_state": {"plan": [build], "maintenance": None}},
        "npu2": {"npufleet_state": {"plan": [build], "maintenance": None}},
        "npu3": {"npufleet_state": {"plan": [], "maintenance": None}},
        "npu4": {"npufleet_state": {"plan": [build], "maintenance": {"reason": "x"}}, "npufleet_build_host": "npu4"},
        "npu5": {"npufleet_state": {"plan": [], "maintenance": {"reason": "x"}}},
        # Asked what a rollback would move
        "npu6": {"npufleet_state": {"plan": [build], "maintenance": None, "moves": {}}},
        "npu8": {"npufleet_state": {"plan": [{**build, "action": "publish"}], "maintenance": None}, "npufleet_build_host": "npu8"},
        "npu7": {"npufleet_state": {"plan": [], "maintenance": None, "moves": {"digits": {}}}},
        # A rollout has not restored its share of the traffic.
        "npu9": {"npufleet_state": {"plan": [{"concern": "traffic", "action": "undrain"}], "maintenance": None, "moves": {}}},
    }
    changes, out, builds = "npufleet_in_rollout", "npufleet_in_maintenance", "npufleet_build"
    assert rollout_groups(hosts, "npu1") == [
        {"name": "npu1", "groups": [builds, changes]},
        {"name": "npu2", "groups": [changes]},
        {"name": "npu4", "groups": [builds, out]},
        {"name": "npu5", "groups": [out]},
        {"name": "npu8", "groups": [builds, changes]},
        {"name": "npu7", "groups": [changes]},
        {"name": "npu9", "groups": [changes]},
    ]
    assert rollout_groups(hosts, "npu1", True) == [{"name": "npu4", "groups": [out]}, {"name": "npu5", "groups": [out]}]
