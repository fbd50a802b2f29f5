"""What hosts of one task have in common is computed once, and nothing else is."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleUndefinedVariable
from ansible.parsing.vault import EncryptedString
from ansible.template import trust_as_template
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import values
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.common import KEPT, Origins, in_common, of_template
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory.variables import Templated, rows, survey
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from helpers import fleet
from linting import PYTHON, write


class Host(dict[str, Any]):
    """Variables of a host that is at a task."""

    def __init__(self, moment: Path | str, **variables: Any) -> None:
        super().__init__(variables)
        self.moment = str(moment)


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
        assert in_common(variables, "models", make) == {"card": "RBLN-CA22", "npus": 2}
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
        assert in_common(Host(tmp_path / "task", **given), "models", make) == {"npus": given.get("npus")}
    assert make.asked == 2


def test_what_no_variable_tells_counts_too(tmp_path: Path) -> None:
    make = Maker()
    for placed in (["digits"], ["faces"], ["digits"]):
        in_common(Host(tmp_path / "task"), "models", make, placed)
    assert make.asked == 2


def test_another_task_and_another_thing_are_asked_anew(tmp_path: Path) -> None:
    make = Maker("npus")
    for moment, what in (("task", "models"), ("task", "image"), ("other", "models")):
        in_common(Host(tmp_path / moment, npus=2), what, make)
    assert make.asked == 3


def test_outside_of_a_task_nothing_is_kept(tmp_path: Path) -> None:
    make = Maker("npus")
    for variables in ({"npus": 2}, Host("", npus=2), Templated({"npus": 2}, lambda value: value)):
        in_common(variables, "models", make)
    assert make.asked == 3
    assert list(tmp_path.iterdir()) == []


def test_what_it_raises_is_not_kept(tmp_path: Path) -> None:
    def refuse(variables: Mapping[str, Any]) -> dict[str, Any]:
        raise Refusal([f"npus is {variables['npus']}"])

    with pytest.raises(Refusal):
        in_common(Host(tmp_path / "task", npus=0), "models", refuse)
    assert in_common(Host(tmp_path / "task", npus=0), "models", Maker("npus")) == {"npus": 0}


@pytest.mark.parametrize("error", [Refusal(["npus is two"]), AnsibleUndefinedVariable("npus"), ValueError("npus")])
def test_a_host_whose_variable_cannot_be_read_has_nothing_in_common(tmp_path: Path, error: Exception) -> None:
    class Crooked(Host):
        def __getitem__(self, name: str) -> Any:
            raise error

    make = Maker("npus")
    in_common(Host(tmp_path / "task", npus=2), "models", make)
    # How it is refused is for whoever makes it
    assert in_common(Crooked(tmp_path / "task", npus=2), "models", lambda _variables: "its own") == "its own"


def test_a_value_without_a_text_is_asked_anew(tmp_path: Path) -> None:
    make = Maker("npus")
    for _host in range(2):
        in_common(Host(tmp_path / "task", npus={1, 2}), "models", make)
    assert make.asked == 2


def test_a_result_that_cannot_be_handed_over_is_each_ones_own(tmp_path: Path) -> None:
    made = [in_common(Host(tmp_path / "task", npus=2), "models", lambda some: lambda: some["npus"]) for _host in range(2)]
    assert [entry() for entry in made] == [2, 2]
    assert made[0] is not made[1]


def test_what_reads_all_variables_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        in_common(Host(tmp_path / "task", npus=2), "models", dict)


def test_what_a_killed_process_has_left_is_passed_over(tmp_path: Path) -> None:
    make = Maker("npus")
    in_common(Host(tmp_path / "task", npus=2), "models", make)
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole + whole[:20])
    assert in_common(Host(tmp_path / "task", npus=2), "models", make) == {"npus": 2}
    assert in_common(Host(tmp_path / "task", npus=4), "models", make) == {"npus": 4}
    assert make.asked == 2


def test_who_comes_while_it_is_made_waits_for_it(tmp_path: Path) -> None:
    def make(variables: Mapping[str, Any]) -> int:
        with (tmp_path / "asked").open("a") as asked:
            asked.write("x")
        time.sleep(0.2)
        return int(variables["npus"])

    def host() -> None:
        assert in_common(Host(tmp_path / "task", npus=2), "models", make) == 2

    hosts = [multiprocessing.get_context("fork").Process(target=host) for _ in range(4)]
    for process in hosts:
        process.start()
    for process in hosts:
        process.join()
    assert [process.exitcode for process in hosts] == [0] * 4
    assert (tmp_path / "asked").read_text() == "x"


# The value of a template


def trusted(value: Any) -> Any:
    """As the inventory has it, templates where it looks like them."""
    if isinstance(value, dict):
        return {name: trusted(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [trusted(entry) for entry in value]
    return trust_as_template(value) if isinstance(value, str) and "{{" in value else value


def origins(foreign: Any = None, **variables: Any) -> Origins:
    """Of the templates of somebody else."""
    given = trusted(variables)
    return Origins(given, "password".__eq__, {"rows": ["more"]}, given if foreign is None else foreign)


SAME: dict[str, Any] = {
    "a": "{{ b }}-{{ c.d }}",
    "b": "{{ e | default('x') }}",
    "c": {"d": ["{{ f }}"]},
    "f": 1,
    "inventory_hostname": "npu1",
}


@pytest.mark.parametrize(
    "other",
    [{"b": "another"}, {"c": {"d": ["{{ f }}", 2]}}, {"f": "1"}, {"f": True}, {"e": "of this host"}, {"a": "{{ b }}-{{ c.d  }}"}],
)
def test_a_template_follows_from_all_that_it_names(other: dict[str, Any]) -> None:
    first = origins(**SAME).of("a")
    assert first is not None
    assert origins(**{**SAME, "inventory_hostname": "npu2", "g": 3}).of("a") == first
    assert origins(**{**SAME, **other}).of("a") not in (None, first)


def test_what_is_no_template_there_is_another_thing() -> None:
    """The same text of a host, which nobody templates."""
    given = {"a": trust_as_template("{{ b }}"), "b": trust_as_template("{{ 1 }}")}
    told = [Origins({**given, "b": text}, "password".__eq__, {}, ()).of("a") for text in (given["b"], "{{ 1 }}")]
    assert None not in told and len(set(told)) == 2


@pytest.mark.parametrize(
    "mine",
    [
        {"f": "{{ hostvars.npu2.f }}"},
        {"f": "{{ vars['b'] }}"},
        {"f": "{{ lookup('pipe', 'date') }}"},
        {"f": "{{ query('file', 'x') | first }}"},
        {"f": "{{ 9 | random }}"},
        {"f": "{{ now() }}"},
        # Neither a secret, nor what is still encrypted, nor a login is put anywhere
        {"f": "{{ password }}", "password": "s3cret"},
        {"f": EncryptedString(ciphertext="$ANSIBLE_VAULT;1.1;AES256\n00")},
        {"f": "http://{{ user }}:{{ b }}@proxy:3128"},
        {"f": {1, 2}},
    ],
)
def test_what_may_be_each_ones_own_or_secret_is_made_for_each(mine: dict[str, Any], tmp_path: Path) -> None:
    origin = origins(**{**SAME, **mine}).of("a")
    assert origin is None
    made = [of_template(str(tmp_path / "task"), "a", origin, lambda number=number: number) for number in range(2)]
    assert (made, list(tmp_path.iterdir())) == ([0, 1], [])


def test_a_secret_that_is_empty_and_a_lookup_of_this_collection_are_no_hindrance() -> None:
    assert origins(a="{{ password }}", password="").of("a") is not None
    lock = {"a": "{{ lookup('file', b) }}", "b": "/lock"}
    assert origins(foreign=(), **lock).of("a") is not None
    assert origins(foreign=(), **{**lock, "a": "{{ lookup('vars', b) }}"}).of("a") is None
    assert origins(foreign=("b",), **{**lock, "b": "{{ lookup('env', 'B') }}"}).of("a") is None


def test_what_is_made_follows_from_what_it_is_made_of() -> None:
    told = [origins(a="{{ rows }}", rows="{{ lookup('file') }}", more=more).of("a") for more in (1, 1, 2)]
    assert told[0] == told[1] is not None and told[2] not in (None, told[0])


def test_a_template_of_equal_origins_is_made_once(tmp_path: Path) -> None:
    moment, made = str(tmp_path / "task"), []

    def value(origin: str) -> Any:
        return of_template(moment, "a", origin, lambda: made.append(origin) or {"of": origin})

    for _host in range(3):
        assert [value(origin) for origin in ("x", "y")] == [{"of": "x"}, {"of": "y"}]
    assert made == ["x", "y"]
    # Who has something else on each host does not look through all of it
    for number in range(2 * KEPT):
        value(str(number))
    size = (tmp_path / "task.of.a").stat().st_size
    assert value("z") == {"of": "z"}
    assert (tmp_path / "task.of.a").stat().st_size == size
    with pytest.raises(ZeroDivisionError):
        of_template(moment, "b", "x", lambda: 1 / 0)
    assert of_template(moment, "b", "x", lambda: 2) == 2


def test_variables_of_two_hosts_take_one_template(tmp_path: Path) -> None:
    asked: list[Any] = []
    for host in ("npu1", "npu2"):
        raw: dict[str, Any] = {
            "a": trust_as_template("{{ b ~ 'x' }}"),
            "b": 1,
            "own": trust_as_template("{{ inventory_hostname ~ 'x' }}"),
        }
        raw["inventory_hostname"] = host
        variables = Templated(raw, lambda value: asked.append(value) or f"<{value}>", moment=str(tmp_path / "task"))
        assert (variables["a"], variables["own"]) == ("<{{ b ~ 'x' }}>", "<{{ inventory_hostname ~ 'x' }}>")
    assert asked == ["{{ b ~ 'x' }}", "{{ inventory_hostname ~ 'x' }}", "{{ inventory_hostname ~ 'x' }}"]


def test_rows_of_releases_are_looked_at_once_and_refused_on_each_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, asked = values.fitted, []
    monkeypatch.setattr(values, "fitted", lambda name, *given: asked.append(name) or fitted(name, *given))
    extra = {"site": {"cards": ["RBLN-CA22"]}}

    def host(**more: Any) -> Any:
        raw = {"npufleet_extra_releases": extra, "npufleet_release_rows": {}, **more}
        return Templated(raw, lambda raw: raw, [], {"npufleet_release_rows": rows}, str(tmp_path / "task"))

    with pytest.raises(Refusal, match="site"):
        host()["npufleet_release_rows"]
    with pytest.raises(Refusal, match="site"):
        host()["npufleet_release_rows"]
    asked.clear()
    first, second = (host(npufleet_extra_releases={})["npufleet_release_rows"] for _ in range(2))
    assert (first == second, first != {}, asked) == (True, True, ["npufleet_extra_releases", "npufleet_release_rows"])


def test_models_are_read_once_for_all_hosts_that_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models"
    config = 'backend: "python"\nmax_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: 4 }\n'
    config += 'output { name: "y" data_type: TYPE_FP32 dims: 4 }\n'
    for name in ("digits", "faces"):
        write(repository / name, {"config.pbtxt": config, "1/model.py": PYTHON})
    read: list[str] = []
    source = manifest.source
    monkeypatch.setattr(manifest, "source", lambda entry, variables: read.append(entry["name"]) or source(entry, variables))
    models = [{"name": "digits"}, {"name": "faces", "hosts": ["npu4"]}]

    def releases(host: str, npus: int) -> dict[str, str]:
        given = {"npufleet_model_repository": str(repository), "triton_models": models, "npufleet_npus": npus}
        variables = fleet(inventory_hostname=host, **given)
        variables.moment = str(tmp_path / "task")
        return {name: made["release"] for name, made in survey(variables, ["models"])[1].items()}

    first = releases("npu1", 2)
    assert releases("npu2", 2) == first
    assert read == ["digits"]
    # It has another number of NPUs, and one has another model
    releases("npu3", 4)
    assert sorted(releases("npu4", 2)) == ["digits", "faces"]
    assert read == ["digits", "digits", "digits", "faces"]
