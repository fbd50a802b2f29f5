"""Rules about what several models have to agree on: ensembles and their steps, and models that are there twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.repository import lint
from linting import GOOD, PYTHON, findings, short, write


def step(name: str, reads: str, writes: str, key: str = "A", output: str = "B", version: str = "-1") -> str:
    maps = f'input_map {{ key: "{key}" value: "{reads}" }} output_map {{ key: "{output}" value: "{writes}" }}'
    return f'  {{ model_name: "{name}" model_version: {version} {maps} }}'


def ensemble(*steps: str, more: str = "", largest: int = 4) -> str:
    head = 'platform: "ensemble"\n' + GOOD.split("\n", 1)[1].replace("max_batch_size: 4", f"max_batch_size: {largest}")
    return head + "ensemble_scheduling { step [\n" + ",\n".join(steps) + "\n] }\n" + more


STEPS = {"first": GOOD, "second": GOOD}
CHAIN = (step("first", "A", "middle"), step("second", "middle", "B"))


def repository(config: str, steps: Mapping[str, str] = STEPS) -> dict[str, str]:
    files = {"e/config.pbtxt": config, "e/1/README": "A version for Triton\n"}
    for name, text in steps.items():
        files.update({f"{name}/config.pbtxt": text, f"{name}/1/model.py": PYTHON})
    return files


def wrong(place: Path, config: str, steps: Mapping[str, str] = STEPS) -> list[tuple[int | None, str, str, str]]:
    found = findings(place, repository(config, steps))
    assert {(entry.severity, entry.model) for entry in found} <= {("error", "e")}
    return [(entry.line, entry.field, entry.actual, entry.expected) for entry in found]


def test_an_ensemble_that_fits(tmp_path: Path) -> None:
    assert wrong(tmp_path, ensemble(*CHAIN)) == []


@pytest.mark.parametrize(
    ("steps", "line", "field", "found"),
    [
        (
            (step("first", "A", "middle"), step("third", "middle", "B")),
            7,
            "step[1].model_name",
            "third, which is not in the repository",
        ),
        ((CHAIN[0], step("second", "middle", "B", version="2")), 7, "step[1].model_version", "2"),
        ((step("first", "A", "middle", key="X"), CHAIN[1]), 6, "step[0].input_map", "without A"),
        ((CHAIN[0], step("second", "middle", "B", output="Y")), 7, "step[1].output_map[Y]", "Y"),
        ((*CHAIN, step("first", "A", "B")), 8, "step[2].output_map[B]", "B, which is also the output of step second"),
        ((*CHAIN, step("first", "A", "more")), 8, "step[2].output_map[B]", "more, which nothing reads"),
        ((step("first", "A", "middle"), step("second", "midle", "B")), 7, "step[1].input_map[A]", "midle, which nothing writes"),
        (
            (*CHAIN, '{ model_name: "first" model_version: -1 output_map { key: "B" value: "C" } }'),
            8,
            "step[2].input_map",
            "missing",
        ),
        ((*CHAIN, step("", "A", "C")), 8, "step[2].model_name", "missing"),
    ],
)
def test_a_step_that_is_wrong(tmp_path: Path, steps: tuple[str, ...], line: int, field: str, found: str) -> None:
    told = [(at, where, words) for at, where, words, _wanted in wrong(tmp_path, ensemble(*steps))]
    assert (line, f"ensemble_scheduling.{field}", found) in told


def test_every_finding_of_a_broken_wiring(tmp_path: Path) -> None:
    told = wrong(tmp_path, ensemble(step("first", "X", "middle"), step("second", "middle", "X")))
    assert [(field, found) for _line, field, found, _wanted in told] == [
        ("input[0].name", "A, which no step reads"),
        ("output[0].name", "B, which no step writes"),
        ("ensemble_scheduling.step", "circular: first, second wait for each other"),
    ]


def second_step(dims: str, dtype: str, largest: int) -> str:
    """A step that takes A like this."""
    text = GOOD.replace('"A" data_type: TYPE_FP32 dims: [ 3 ]', f'"A" data_type: TYPE_{dtype} dims: {dims}')
    text = text.replace("max_batch_size: 4", f"max_batch_size: {largest}")
    # Without batches the batch dimension is one of its own.
    return text if largest else text.replace('"B" data_type: TYPE_FP32 dims: [ 3 ]', '"B" data_type: TYPE_FP32 dims: [ -1, 3 ]')


@pytest.mark.parametrize(
    ("dims", "dtype", "largest", "fits"),
    [
        ("[ 3 ]", "FP32", 4, True),
        ("[ -1 ]", "FP32", 4, True),
        ("[ 4 ]", "FP32", 4, False),
        ("[ 3, 1 ]", "FP32", 4, False),
        ("[ 3 ]", "FP16", 4, False),
        # A step without batches that takes the batch dimension as one of its own
        ("[ -1, 3 ]", "FP32", 0, True),
        ("[ -1, 4 ]", "FP32", 0, False),
    ],
)
def test_both_ends_of_a_tensor(tmp_path: Path, dims: str, dtype: str, largest: int, fits: bool) -> None:
    second = second_step(dims, dtype, largest)
    told = wrong(tmp_path, ensemble(*CHAIN), {"first": GOOD, "second": second})
    whole = "[-1, 3]"
    assert [(line, field, wanted) for line, field, _found, wanted in told] == (
        [] if fits else [(7, "ensemble_scheduling.step[1].input_map[A]", f"TYPE_FP32 {whole} of first")]
    )


def test_batch_of_a_step(tmp_path: Path) -> None:
    told = wrong(tmp_path, ensemble(*CHAIN, largest=8))
    assert told == [
        (2, "max_batch_size", "8", "at most 4, the max_batch_size of step first"),
        (2, "max_batch_size", "8", "at most 4, the max_batch_size of step second"),
    ]


def test_optional_inputs_and_unsaid_tensors_need_no_map(tmp_path: Path) -> None:
    optional = GOOD.replace("input [ ", 'input [ { name: "O" data_type: TYPE_FP32 dims: 1 optional: true }, ')
    files = repository(ensemble(*CHAIN), {"first": optional, "second": 'backend: "python" max_batch_size: 4'})
    assert {finding.model for finding in findings(tmp_path / "a", files)} == {"e"}
    files["second/1/model.py"] += "    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    assert findings(tmp_path / "b", files) == []


@pytest.mark.parametrize(("second", "third", "fits"), [("B", "C", False), ("B", "A", False), ("C", "A", True), ("B", "B", True)])
def test_branches_of_decoupled_steps(tmp_path: Path, second: str, third: str, fits: bool) -> None:
    """A decoupled step makes B of A; C is A by a step that answers once; `join` takes two of them."""
    two = '{ name: "Q" data_type: TYPE_FP32 dims: [ 3 ] }'
    steps = {
        "many": GOOD + "model_transaction_policy { decoupled: true }",
        "once": GOOD,
        "join": GOOD.replace("input [ ", f"input [ {two}, "),
    }
    joined = step("join", second, "end").replace("input_map", f'input_map {{ key: "Q" value: "{third}" }} input_map', 1)
    sinks = [step("join", "C", "sink").replace("input_map", 'input_map { key: "Q" value: "C" } input_map', 1)]
    sinks += [step("join", "B", "last").replace("input_map", 'input_map { key: "Q" value: "B" } input_map', 1)]
    text = ensemble(step("many", "A", "B"), step("once", "A", "C"), joined, *sinks)
    text = text.replace("output [ ", "output [ " + ", ".join(two.replace("Q", entry) for entry in ("end", "sink", "last")) + ", ")
    told = [
        (field, found.partition(" with ")[0]) for _line, field, found, _wanted in wrong(tmp_path, text, steps) if field != "output"
    ]
    assert told == ([] if fits else [("ensemble_scheduling.step[2]", "join")])


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("instance_group { kind: KIND_CPU }", "instance_group"),
        ("optimization { }", "optimization"),
        ('model_warmup { name: "w" }', "model_warmup"),
        ('backend: "python"', "backend"),
    ],
)
def test_what_an_ensemble_may_not_have(tmp_path: Path, more: str, field: str) -> None:
    ((line, at, _found, _wanted),) = wrong(tmp_path, ensemble(*CHAIN, more=more))
    assert (line, at) == (9, field)


def test_an_ensemble_that_says_it_by_half(tmp_path: Path) -> None:
    ((_line, field, _found, _wanted),) = wrong(tmp_path, ensemble(*CHAIN).replace('platform: "ensemble"', ""))
    assert field == "platform"
    bare = 'platform: "ensemble"\n' + GOOD.split("\n", 1)[1]
    assert [finding.field for finding in findings(tmp_path, {"e/config.pbtxt": bare})] == ["ensemble_scheduling"]


def test_ensembles_within_each_other(tmp_path: Path) -> None:
    files = {
        "e/config.pbtxt": ensemble(step("f", "A", "B")),
        "e/1/README": "",
        "f/config.pbtxt": ensemble(step("e", "A", "B")),
        "f/1/README": "",
    }
    assert [(finding.model, finding.actual) for finding in findings(tmp_path, files)] == [
        ("e", "e -> f -> e"),
        ("f", "f -> e -> f"),
    ]


def test_a_model_in_two_repositories(tmp_path: Path) -> None:
    for place in ("one", "two"):
        write(tmp_path / place, {"m/config.pbtxt": GOOD, "m/1/model.py": PYTHON})
    linted = lint([str(tmp_path / "one"), str(tmp_path / "two")])
    assert short(linted.findings, tmp_path) == ["error duplicate: one/m", "error duplicate: two/m"]


def test_steps_of_the_models_that_are_asked_for_are_read(tmp_path: Path) -> None:
    write(tmp_path, repository(ensemble(*CHAIN), {"first": GOOD, "second": GOOD + "instance_group { kind: KIND_GPU }"}))
    assert lint([str(tmp_path)], ["e"]).findings == []
    assert short(lint([str(tmp_path)], ["second"]).findings, tmp_path) == [
        "error npu host: second/config.pbtxt instance_group[0].kind"
    ]
