"""NPUs in groups: the tool numbers them for each group, so that cards are told apart by device node, group and address."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.filter.recovery import recovery
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import driver
from ansible_collections.npufleet.triton.plugins.module_utils.driver import vendor_tool
from ansible_collections.npufleet.triton.plugins.module_utils.engine import contexts
from ansible_collections.npufleet.triton.plugins.module_utils.preflight import memory
from helpers import FakeEngine
from test_concern_driver import WANTED, found, host, script

CASES = Path(__file__).parent / "fixtures/npu_groups"
TOOL = json.loads((CASES / "tool.json").read_text())
OWN = json.loads((CASES / "own_groups.json").read_text())
GROUPS = {"rbln0": "0", "rbln1": "1", "rbln2": "1", "rbln3": "2"}
NODES = ["rbln0", "rbln1", "rbln2", "rbln3"]


def grouped(answer: dict[str, Any], groups: dict[str, Any]) -> dict[str, Any]:
    """The same answer with `-g`."""
    devices = [{**device, "group_id": groups[device["device"]]} for device in answer["devices"] if device["device"] in groups]
    return {**answer, "devices": devices}


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """vendor_tool.query_tool with a tool that prints this, and this with `-g`, on a host with so many group nodes."""

    def asked(plain: Any, groups: Any = None, group_nodes: int = 3) -> dict[str, Any]:
        for name, answer in (("plain", plain), ("groups", groups)):
            (tmp_path / name).write_text(answer if isinstance(answer, str) else json.dumps(answer))
        by_groups = "echo 'unrecognized option: g' >&2; exit 2" if groups is None else f"cat {tmp_path}/groups"
        tool = script(tmp_path / "rbln-smi", f"if [ \"$*\" = '-g -j' ]; then {by_groups}; else cat {tmp_path}/plain; fi\n")
        monkeypatch.setattr(vendor_tool, "TOOLS", (tool,))
        monkeypatch.setattr(vendor_tool, "GROUP_NODES", str(tmp_path / "rsd[0-9]*"))
        for number in range(group_nodes):
            (tmp_path / f"rsd{number}").touch()
        return vendor_tool.query_tool()

    return asked


def cards(tool: dict[str, Any]) -> list[tuple[int, list[str]]]:
    return [(holder["pid"], holder["cards"]) for holder in tool["holders"]]


def test_contexts_are_on_the_cards_of_one_group(ask: Any) -> None:
    tool = ask(TOOL, grouped(TOOL, GROUPS))
    assert [device["group"] for device in tool["devices"]] == [0, 1, 1, 2]
    # Process 11 has the numbers 0 and 1, and one group alone has both; the group of process 12 is not known
    assert cards(tool) == [(11, ["rbln1"]), (11, ["rbln2"]), (12, ["rbln0", "rbln1", "rbln3"])]
    told = grouped(TOOL, GROUPS)
    told["contexts"] = [{**context, "group_id": "2"} if context["pid"] == "12" else context for context in told["contexts"]]
    assert cards(ask(TOOL, told))[2] == (12, ["rbln3"])


@pytest.mark.parametrize(
    "groups",
    [
        None,
        "not JSON",
        "[" * 100000,
        {"devices": None},
        [],
        grouped(TOOL, {**GROUPS, "rbln3": None}),
        grouped(TOOL, {**GROUPS, "rbln3": "one"}),
        grouped(TOOL, {**GROUPS, "rbln3": [1]}),
        grouped(TOOL, {**GROUPS, "rbln3": -1}),
        TOOL,
    ],
    ids=["no -g", "text", "deep", "no devices", "list", "null", "word", "a list", "negative", "no groups"],
)  # fmt: skip
def test_no_card_is_named_by_its_number_alone(ask: Any, groups: Any) -> None:
    tool = ask(TOOL, groups)
    assert cards(tool) == [(11, ["rbln0", "rbln1", "rbln3"]), (11, ["rbln2"]), (12, ["rbln0", "rbln1", "rbln3"])]
    assert tool["groups_error"]
    wanted = {**WANTED, "version": "3.0.0", "npus": 4, "cards": ["RBLN-CA22"]}
    bus = [device["bus_id"] for device in tool["devices"]]
    state = host(package={"version": "3.0.0", "held": True}, module="3.0.0", bus=bus, nodes=NODES, tool=tool)
    (entry,) = driver.diff(wanted, state)
    assert (entry["name"], entry["desired"], entry["action"]) == ("groups", "the group of every NPU", "inspect")
    # Nobody reloads the driver for it
    assert recovery({"plan": [entry], "actual": {"server": {"engine": True}}})["steps"] == []
    # A host with one group node has no groups
    assert "groups_error" not in ask_one(ask, groups)


def ask_one(ask: Any, groups: Any) -> dict[str, Any]:
    for path in Path(vendor_tool.GROUP_NODES).parent.glob("rsd[12]"):
        path.unlink()
    tool: dict[str, Any] = ask(TOOL, groups, group_nodes=1)
    return tool


def test_groups_are_asked_for_only_where_numbers_repeat(ask: Any, tmp_path: Path) -> None:
    plain = {**TOOL, "devices": TOOL["devices"][1:3], "contexts": TOOL["contexts"][:2]}
    tool = ask(plain, "a call that nobody makes")
    assert cards(tool) == [(11, ["rbln1"]), (11, ["rbln2"])]
    assert "groups_error" not in tool and "group" not in tool["devices"][0]


def test_npus_in_groups_of_their_own_are_not_lost(ask: Any) -> None:
    plain = {**OWN, "devices": [{key: device[key] for key in device if key != "group_id"} for device in OWN["devices"]]}
    for tool in (ask(OWN), ask(plain, OWN)):
        assert driver.stale(tool, ["rbln0", "rbln1"]) is None
    wanted = {**WANTED, "version": "3.0.0", "cards": ["RBLN-CA22"]}
    state = host(package={"version": "3.0.0", "held": True}, module="3.0.0", bus=["0000:01:00.0", "0000:02:00.0"], tool=ask(OWN))
    assert driver.diff(wanted, state) == []
    # The tool cannot tell: a reload would end what serves
    assert driver.stale(ask(plain), ["rbln0", "rbln1"]) is None


def test_cards_of_a_group_that_are_all_number_0_are_lost(ask: Any) -> None:
    devices = [{**device, "npu": 0} for device in grouped(TOOL, GROUPS)["devices"]]
    tool = ask({**TOOL, "devices": devices, "contexts": []})
    assert driver.stale(tool, NODES) == "the vendor's tool numbers each of 2 cards of group 1 0"
    state = host(tool={**tool, "version": "1.2.92"}, nodes=NODES)
    assert found("module", "stale: the vendor's tool numbers each of 2 cards of group 1 0", "reloaded", "reload") in driver.diff(
        WANTED, state
    )


def test_open_device_nodes_tell_cards_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has opened nodes under other names, as a container may have them."""
    nodes = {"rbln0": "/dev/null", "rbln1": "/dev/zero", "rbln3": "/dev/full"}
    (tmp_path / "12/fd").mkdir(parents=True)
    for name, device in nodes.items():
        (tmp_path / name).symlink_to(device)
    for number, target in enumerate(["/dev/full", "/etc/hostname", "/nowhere", "/dev/urandom"]):
        (tmp_path / f"12/fd/{number}").symlink_to(target)
    monkeypatch.setattr(contexts, "NODES", str(tmp_path / "rbln[0-9]*"))
    monkeypatch.setattr(contexts, "PROC", str(tmp_path))
    assert contexts.open_cards(12) == {"rbln3"}
    assert contexts.open_cards(13) == set()
    monkeypatch.setattr(contexts, "owner_of", lambda holder: {"gone": holder["pid"] != 12, "container": None})
    monkeypatch.setattr(contexts, "Engine", FakeEngine(None))
    monkeypatch.setattr(contexts, "query_tool", lambda: vendor_tool.parse_tool(json.dumps(TOOL)))
    first, second = contexts.read_use("triton")["reasons"]
    assert first.startswith("rbln2, one of rbln0, rbln1, rbln3 held by engine (pid 11), which has ended")
    assert second == "rbln3 held by worker (pid 12): end it (`kill 12`)"


def test_a_context_of_a_card_that_is_not_listed_is_told() -> None:
    answer = {**TOOL, "contexts": [{"npu": 7, "pid": 5, "process": "x"}]}
    (holder,) = vendor_tool.parse_tool(json.dumps(answer))["holders"]
    (reason,) = contexts.describe([{**holder, "gone": False, "container": None, "open": set()}], {})
    assert reason == "an NPU that the tool does not list (number 7) held by x (pid 5): end it (`kill 5`)"


def test_device_memory_is_that_of_the_card_with_the_number() -> None:
    gib = 2**30
    devices = [{"npu": npu, "device": f"rbln{3 - npu}", "memory_total": (npu + 1) * gib} for npu in (2, 0, 1)]
    (line,) = memory({"models": {"m": [2 * gib, 2 * gib, 2 * gib]}}, {"tool": {"devices": devices}})
    assert line.startswith("device memory of NPU 0 is 1.0 GiB, expected 2.0 GiB ")
    # Cards with several NPUs number them anew without groups: their order is all that there is
    repeated = [{"npu": npu, "memory_total": total} for npu, total in ((0, 1), (1, 2), (0, 3), (1, 4))]
    assert vendor_tool.in_process_order(repeated) == repeated
    assert [
        card["memory_total"]
        for card in vendor_tool.in_process_order([{**card, "group": 9 - card["memory_total"] // 3} for card in repeated])
    ] == [3, 4, 1, 2]
    assert os.path.basename(vendor_tool.GROUP_NODES).startswith("rsd")
