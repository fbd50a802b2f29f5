"""What hosts of one task have in common is computed once, and nothing else is."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleUndefinedVariable
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import values
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.shared_results import shared_result
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated, collect_desired
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from helpers import fleet
from linting import PYTHON, write


class Host(dict[str, Any]):
    """Variables of a host that is at a task."""

    def __init__(self, prefix: Path | str, **variables: Any) -> None:
        super().__init__(variables)
        self.results_prefix = str(prefix)


class Maker:
    """Reads these variables, and counts how often it was asked."""

    def __init__(self, *names: str) -> None:
        self.names, self.asked = names, 0

    def __call__(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        self.asked += 1
        return {name: variables.get(name) for name in self.names}


def test_equal_variables_are_asked_once(tmp_path: Path) -> None:
    make = Maker("card", "npus")
    for host in ("npu1", "npu2", "npu3"):
        variables = Host(tmp_path / "task", card="RBLN-CA22", npus=2, inventory_hostname=host)
        assert shared_result(variables, "models", make) == {"card": "RBLN-CA22", "npus": 2}
    assert make.asked == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"npus": 2}, {"npus": 4}),
        ({"npus": 1}, {"npus": "1"}),
        ({"npus": 1}, {"npus": True}),
        ({}, {"npus": None}),
        ({}, {"npus": ""}),
    ],
)
def test_another_value_is_another_thing(tmp_path: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    make = Maker("npus")
    for given in (one, other, one, other):
        assert shared_result(Host(tmp_path / "task", **given), "models", make) == {"npus": given.get("npus")}
    assert make.asked == 2


def test_what_no_variable_tells_counts_too(tmp_path: Path) -> None:
    make = Maker()
    for placed in (["digits"], ["faces"], ["digits"]):
        shared_result(Host(tmp_path / "task"), "models", make, placed)
    assert make.asked == 2


def test_another_task_and_another_thing_are_asked_anew(tmp_path: Path) -> None:
    make = Maker("npus")
    for prefix, what in (("task", "models"), ("task", "image"), ("other", "models")):
        shared_result(Host(tmp_path / prefix, npus=2), what, make)
    assert make.asked == 3


def test_outside_of_a_task_nothing_is_kept(tmp_path: Path) -> None:
    make = Maker("npus")
    for variables in ({"npus": 2}, Host("", npus=2), Templated({"npus": 2}, lambda value: value)):
        shared_result(variables, "models", make)
    assert make.asked == 3
    assert list(tmp_path.iterdir()) == []


def test_what_it_raises_is_not_kept(tmp_path: Path) -> None:
    def refuse(variables: Mapping[str, Any]) -> dict[str, Any]:
        raise Refusal([f"npus is {variables['npus']}"])

    with pytest.raises(Refusal):
        shared_result(Host(tmp_path / "task", npus=0), "models", refuse)
    assert shared_result(Host(tmp_path / "task", npus=0), "models", Maker("npus")) == {"npus": 0}


@pytest.mark.parametrize("error", [Refusal(["npus is two"]), AnsibleUndefinedVariable("npus"), ValueError("npus")])
def test_a_host_whose_variable_cannot_be_read_has_nothing_in_common(tmp_path: Path, error: Exception) -> None:
    class Crooked(Host):
        def __getitem__(self, name: str) -> Any:
            raise error

    make = Maker("npus")
    shared_result(Host(tmp_path / "task", npus=2), "models", make)
    # How it is refused is for whoever makes it
    assert shared_result(Crooked(tmp_path / "task", npus=2), "models", lambda _variables: "its own") == "its own"


def test_a_value_without_a_text_is_asked_anew(tmp_path: Path) -> None:
    make = Maker("npus")
    for _host in range(2):
        shared_result(Host(tmp_path / "task", npus={1, 2}), "models", make)
    assert make.asked == 2


def test_a_result_that_cannot_be_handed_over_is_each_ones_own(tmp_path: Path) -> None:
    made = [shared_result(Host(tmp_path / "task", npus=2), "models", lambda some: lambda: some["npus"]) for _host in range(2)]
    assert [entry() for entry in made] == [2, 2]
    assert made[0] is not made[1]


def test_what_reads_all_variables_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        shared_result(Host(tmp_path / "task", npus=2), "models", dict)


def test_what_a_killed_process_has_left_is_passed_over(tmp_path: Path) -> None:
    make = Maker("npus")
    shared_result(Host(tmp_path / "task", npus=2), "models", make)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole + whole[:20])
    assert shared_result(Host(tmp_path / "task", npus=2), "models", make) == {"npus": 2}
    assert shared_result(Host(tmp_path / "task", npus=4), "models", make) == {"npus": 4}
    assert make.asked == 2


def test_who_comes_while_it_is_made_waits_for_it(tmp_path: Path) -> None:
    def make(variables: Mapping[str, Any]) -> int:
        with (tmp_path / "asked").open("a") as asked:
            asked.write("x")
        time.sleep(0.2)
        return int(variables["npus"])

    def host() -> None:
        assert shared_result(Host(tmp_path / "task", npus=2), "models", make) == 2

    hosts = [multiprocessing.get_context("fork").Process(target=host) for _ in range(4)]
    for process in hosts:
        process.start()
    for process in hosts:
        process.join()
    assert [process.exitcode for process in hosts] == [0] * 4
    assert (tmp_path / "asked").read_text() == "x"


def test_release_rows_are_validated_once_and_refused_on_each_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted, asked = values.converted, []
    monkeypatch.setattr(values, "converted", lambda name, *given: asked.append(name) or converted(name, *given))
    extra = {"site": {"cards": ["RBLN-CA22"]}}

    def host(**more: Any) -> Any:
        raw = {"npufleet_extra_releases": extra, "npufleet_release_rows": {}, **more}
        return Templated(raw, lambda raw: raw, [], str(tmp_path / "task"))

    with pytest.raises(Refusal, match="site"):
        host()["npufleet_release_rows"]
    with pytest.raises(Refusal, match="site"):
        host()["npufleet_release_rows"]
    asked.clear()
    first, second = (host(npufleet_extra_releases={})["npufleet_release_rows"] for _ in range(2))
    assert (first == second, first != {}, asked.count("npufleet_release_rows")) == (True, True, 1)


def test_models_are_read_once_for_all_hosts_that_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models"
    config = 'backend: "python"\nmax_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: 4 }\n'
    config += 'output { name: "y" data_type: TYPE_FP32 dims: 4 }\n'
    for name in ("digits", "faces"):
        write(repository / name, {"config.pbtxt": config, "1/model.py": PYTHON})
    read: list[str] = []
    original = manifest.read_model
    monkeypatch.setattr(manifest, "read_model", lambda entry, variables: read.append(entry["name"]) or original(entry, variables))
    models = [{"name": "digits"}, {"name": "faces", "hosts": ["npu4"]}]

    def releases(host: str, npus: int) -> dict[str, str]:
        given = {"npufleet_model_repository": str(repository), "triton_models": models, "npufleet_npus": npus}
        variables = fleet(inventory_hostname=host, **given)
        variables.results_prefix = str(tmp_path / "task")
        return {name: made["release"] for name, made in collect_desired(variables, ["models"])[1].items()}

    first = releases("npu1", 2)
    assert releases("npu2", 2) == first
    assert read == ["digits"]
    # It has another number of NPUs, and one has another model
    releases("npu3", 4)
    assert sorted(releases("npu4", 2)) == ["digits", "faces"]
    assert read == ["digits", "digits", "digits", "faces"]
