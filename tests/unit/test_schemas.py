"""The published JSON Schemas, by which editors complete check files and release rows: they say what the project itself reads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ansible_collections.npufleet.triton.plugins.module_utils.inference import clients, errors, load
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import arrays, check_files, fields
from ansible_collections.npufleet.triton.plugins.plugin_utils.inventory import values
from helpers import ROOT

CHECKS, RELEASES = (json.loads((ROOT / f"files/schemas/{name}.schema.json").read_text()) for name in ("check", "releases"))
CHECK = CHECKS["properties"]["checks"]["items"]
FILES = sorted(
    path
    for place in ("files/checks", "lab/checks", "molecule/serving/checks", "molecule/models/checks")
    for path in (ROOT / place).rglob("*.yml")
)
GOOD: dict[str, Any] = {
    "model": "m",
    "checks": [{"name": "row", "protocols": ["http"], "inputs": {"IN": {"npy": "x.npy"}}, "expect": {"OUT": {"argmax": [1]}}}],
}


def flaws(schema: dict[str, Any], document: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("schema", [CHECKS, RELEASES], ids=["check", "releases"])
def test_they_are_schemas(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_check_files_fit(path: Path) -> None:
    assert flaws(CHECKS, yaml.safe_load(path.read_text())) == []


def test_there_are_check_files() -> None:
    assert len(FILES) > 15


def test_release_rows_fit() -> None:
    rows = yaml.safe_load((ROOT / "files/releases.yml").read_text())
    assert flaws(RELEASES, rows) == []
    del rows["npufleet_releases"]["24.01"]["systems"]
    assert flaws(RELEASES, rows) == ["'systems' is a required property"]


def test_rows_stand_alone_and_clear_what_they_say() -> None:
    """Each name is the Triton's, with the SDK's line where another row has that Triton; bulletins are those that are not fixed."""
    rows = yaml.safe_load((ROOT / "files/releases.yml").read_text())["npufleet_releases"]
    for name, row in rows.items():
        triton, _, line = name.partition("-sdk")
        assert f":{triton}-" in row["triton"]["image"], name
        assert line in ("", row["sdk"]["shape"]), name
        assert row["sdk"]["version"].startswith(row["sdk"]["shape"] + "."), name
        assert (row["driver"]["form"] == "run") == (int(row["driver"]["version"].split(".")[0]) >= 3), name
        known = row["vulnerabilities"]
        # Open to what a later Triton fixes, and to all of what any older row is open to and this Triton does not fix
        assert all(fix > triton for fix in known["bulletins"].values()), name
        older = [other for other in rows.values() if other["triton"]["version"] < row["triton"]["version"]]
        left = {number: fix for other in older for number, fix in other["vulnerabilities"]["bulletins"].items() if fix > triton}
        assert left.items() <= known["bulletins"].items(), name
        assert set(row.get("untested_systems", [])) <= set(row["systems"]), name
        assert ("llm" in row) == ("vllm" in row["triton"]["image"]), name
        # Of one Triton the bulletins are one list
        for other in rows.values():
            if other["triton"]["version"] == row["triton"]["version"]:
                assert other["vulnerabilities"] == known, name
        # A pair that the vendor does not name says so
        assert bool(row.get("untested")) == bool(line), name


def test_keys_are_those_of_the_reader() -> None:
    inputs, expect = CHECK["properties"]["inputs"]["additionalProperties"], CHECK["properties"]["expect"]["additionalProperties"]
    parts = [
        (CHECKS, check_files.FILE_KEYS),
        (CHECK, check_files.CHECK_KEYS),
        (CHECK["properties"]["rows"], check_files.ROWS_KEYS),
        (inputs, check_files.INPUT_KEYS),
        (inputs["properties"]["generated"], arrays.GENERATED_KEYS),
        (expect, check_files.EXPECT_KEYS),
        (expect["properties"]["values"], check_files.VALUES_KEYS),
        (CHECK["properties"]["error"], check_files.ERROR_KEYS),
        (CHECK["properties"]["cancel"], check_files.CANCEL_KEYS),
        (CHECK["properties"]["latency"], check_files.LATENCY_KEYS),
    ]
    for part, keys in parts:
        assert {key: key in part.get("required", []) for key in part["properties"]} == keys
        assert part["additionalProperties"] is False
    assert inputs["properties"]["dtype"]["enum"] == expect["properties"]["dtype"]["enum"] == list(arrays.DTYPES)
    assert set(CHECK["properties"]["protocols"]["items"]["enum"]) == set(clients.PROTOCOLS)
    assert CHECK["properties"]["error"]["properties"]["status"]["enum"] == list(errors.STATUS)
    assert [entry["required"] for entry in CHECK["anyOf"]] == [[proof] for proof in check_files.EXPECTATION_FIELDS]
    latency = CHECK["properties"]["latency"]["properties"]
    assert {key: latency[key]["maximum"] for key in ("clients", "seconds", "requests")} == {
        "clients": load.WIDEST,
        "seconds": check_files.MAX_LOAD_SECONDS,
        "requests": fields.MAX_COUNT,
    }


def test_bounds_are_those_of_the_reader() -> None:
    most = fields.MAX_COUNT
    assert {CHECK["properties"]["rows"]["properties"][key]["maximum"] for key in ("first", "count")} == {most}
    assert {entry["maximum"] for entry in CHECK["properties"]["cancel"]["properties"].values()} == {most}
    assert CHECK["properties"]["responses"]["maximum"] == most
    assert CHECK["properties"]["timeout"]["maximum"] * 1000 == CHECK["properties"]["ms"]["maximum"] == 1000 * check_files.DAY
    assert CHECKS["properties"]["checks"]["maxItems"] == check_files.MAX_CHECKS
    assert CHECK["properties"]["name"]["maxLength"] == check_files.MAX_NAME_BYTES


def test_keys_of_a_row_are_those_of_the_inventory() -> None:
    row, spec = RELEASES["$defs"]["row"], values.ROW["options"]
    assert set(row["properties"]) == set(spec)
    for name, part in row["properties"].items():
        if "properties" in part:
            assert set(part["properties"]) == set(spec[name]["options"]), name


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (">=5.10", True),
        ("==5.14.0,<=5.14.0-570.116.1", True),
        ("<=5.14.0-570.", False),
        ("==6.8.0,<=6.8.0-138", True),
        ("6.8.0", False),
        ("==6.8.0,", False),
        ("==6.8.0 <=6.8.0-138", False),
        ("<6.9", False),
        ("", False),
    ],
)
def test_rules_of_kernels_are_read_alike(rule: str, fits: bool) -> None:
    rows = yaml.safe_load((ROOT / "files/releases.yml").read_text())
    rows["npufleet_releases"]["24.01"]["systems"] = {"ubuntu-22.04": rule}
    assert (flaws(RELEASES, rows) == []) is fits
    row, spec = rows["npufleet_releases"]["24.01"], values.inventory_specs()["npufleet_extra_releases"]
    if fits:
        assert values.converted("npufleet_extra_releases", {"site": row}, spec)["site"] == row
        return
    with pytest.raises(Refusal) as refusal:
        values.converted("npufleet_extra_releases", {"site": row}, spec)
    found = rule or '""'
    assert refusal.value.reasons == [
        f"npufleet_extra_releases[site].systems[ubuntu-22.04] is {found}, expected a rule such as ==6.8.0,<=6.8.0-138. Correct it."
    ]


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("note",), 1),
        (("checks",), []),
        (("checks", 0, "protocols"), ["ftp"]),
        (("checks", 0, "inputs", "IN", "dtype"), "FLOAT"),
        (("checks", 0, "rows"), {"first": 0}),
        (("checks", 0, "expect", "OUT", "finite"), False),
        (("checks", 0, "expect"), {}),
        (("checks", 0, "timeout"), 0),
    ],
)
def test_what_is_refused_by_the_reader_does_not_fit(where: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    document = copy.deepcopy(GOOD)
    part: Any = document
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    assert flaws(CHECKS, GOOD) == [] and flaws(CHECKS, document) != []
    (tmp_path / "m.yml").write_text(yaml.safe_dump(document))
    reader = check_files.CheckFile("m", str(tmp_path / "m.yml"), [])
    reader.read(0)
    assert any("does not exist" not in finding for finding in reader.errors)
