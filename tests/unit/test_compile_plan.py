"""Which models have to be compiled: every reason to, none without one, and specs that are refused as a whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.store.blobs import file_digest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compile_plan
from helpers import ROOT

SDK = {"version": "0.9.4", "shape": "0.9"}


@pytest.fixture
def model(tmp_path: Path) -> dict[str, Any]:
    source = tmp_path / "net.onnx"
    source.write_bytes(b"onnx")
    tensor = {"name": "x", "shape": [3, 8], "dtype": "float32"}
    return {"name": "net", "source": {"onnx": str(source)}, "inputs": [tensor], "batches": [1, 4]}


def plan(model: dict[str, Any], directory: Path, card: str = "RBLN-CA22", sdk: dict[str, str] = SDK) -> dict[str, Any]:
    (found,) = compile_plan.plan([model], card, sdk, str(directory))
    return found


@pytest.fixture
def compiled(model: dict[str, Any], tmp_path: Path) -> Path:
    """`model`, as the program leaves it behind."""
    item = plan(model, tmp_path)
    path = Path(item["file"])
    path.parent.mkdir(parents=True)
    path.write_bytes(b"compiled")
    spec = item["spec"]
    record = {"npu": spec["npu"], "source": {"kind": "onnx", **spec["digests"]}, "sha256": file_digest(str(path))}
    Path(item["file"] + ".json").write_text(json.dumps({**record, "compiler_version": "0.9.4"}))
    return path


def test_a_model_that_was_never_compiled(model: dict[str, Any], tmp_path: Path) -> None:
    item = plan(model, tmp_path)
    assert (item["target"], item["why"], item["artefacts"]) == ("CA22/0.9", "it has no compiled file yet", {})
    assert (item["file"], item["push"]) == (str(tmp_path / "net/CA22-0.9/model.rbln"), model["source"]["onnx"])
    spec = item["spec"]
    assert (spec["npu"], spec["sdk"], spec["devices"], spec["batches"]) == ("RBLN-CA22", "0.9.4", 1, [1, 4])
    assert spec["source"] == {"kind": "onnx", "path": "source/net.onnx"}
    assert spec["digests"]["sha256"] == file_digest(item["push"])


def test_places_are_relative_to_where_the_playbook_is_called(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    item = plan({**model, "source": {"onnx": "net.onnx"}}, Path("out"))
    assert (item["push"], item["file"]) == (str(tmp_path / "net.onnx"), str(tmp_path / "out/net/CA22-0.9/model.rbln"))


def test_a_compiled_model_is_left_alone_and_says_what_to_list(model: dict[str, Any], tmp_path: Path, compiled: Path) -> None:
    item = plan(dict(reversed(model.items())), tmp_path)
    assert item["why"] == ""
    assert item["artefacts"] == {"CA22/0.9": {"file": str(compiled), "sha256": file_digest(str(compiled))}}


@pytest.mark.parametrize(
    "change, why",
    [
        ({"batches": [1, 2]}, "its spec or the SDK changed: it is compiled with 0.9.4, expected 0.9.4"),
        ({"devices": 2}, "its spec or the SDK changed"),
        ({"outputs": [{"name": "y", "shape": [8], "dtype": "float32"}]}, "its spec or the SDK changed"),
        ({"inputs": [{"name": "x", "shape": [3, 9], "dtype": "float32"}]}, "its spec or the SDK changed"),
    ],
)
def test_another_spec(model: dict[str, Any], tmp_path: Path, compiled: Path, change: dict[str, Any], why: str) -> None:
    assert plan({**model, **change}, tmp_path)["why"].startswith(why)


def test_another_sdk_of_the_same_line(model: dict[str, Any], tmp_path: Path, compiled: Path) -> None:
    item = plan(model, tmp_path, sdk={"version": "0.9.5", "shape": "0.9"})
    assert item["why"] == "its spec or the SDK changed: it is compiled with 0.9.4, expected 0.9.5"


def test_another_card_or_line_is_another_file(model: dict[str, Any], tmp_path: Path, compiled: Path) -> None:
    assert plan(model, tmp_path, card="RBLN-CA25")["why"] == "it has no compiled file yet"
    assert plan({**model, "npu": "RBLN-CA12"}, tmp_path)["target"] == "CA12/0.9"
    assert plan(model, tmp_path, sdk={"version": "0.11.2", "shape": "0.11"})["target"] == "CA22/0.11"


def test_a_record_of_another_card_is_not_believed(model: dict[str, Any], tmp_path: Path, compiled: Path) -> None:
    record = Path(f"{compiled}.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "npu": "RBLN-CA25"}))
    assert plan(model, tmp_path)["why"] == "it is compiled for RBLN-CA25, expected RBLN-CA22"


def test_another_source(model: dict[str, Any], tmp_path: Path, compiled: Path) -> None:
    Path(model["source"]["onnx"]).write_bytes(b"other")
    assert plan(model, tmp_path)["why"] == "its source changed"


def test_a_source_of_links(model: dict[str, Any], tmp_path: Path) -> None:
    module = tmp_path / "source"
    (module / "shared").mkdir(parents=True)
    (module / "shared/net.py").write_text("one")
    (module / "lib").symlink_to("shared")
    torch = {**model, "source": {"torch": "net:build", "path": str(module)}}
    seen = {plan(torch, tmp_path)["spec"]["digests"]["sha256"]}
    (module / "lib").unlink()
    (module / "lib").mkdir()
    (module / "lib/net.py").write_text("one")
    seen.add(plan(torch, tmp_path)["spec"]["digests"]["sha256"])
    assert len(seen) == 1, "what is behind a link is no part of it"
    (module / "key").symlink_to("/etc/shadow")
    os.mkfifo(module / "pipe")
    with pytest.raises(Refusal) as refusal:
        plan(torch, tmp_path)
    assert [reason.replace(str(module), "") for reason in refusal.value.reasons] == [
        "model net: source: /key is a link to /etc/shadow, expected a link that stays in . Copy its target there",
        "model net: source: /pipe is a named pipe, expected a file. Remove it",
    ]


def test_a_file_that_is_not_the_one_of_its_record(model: dict[str, Any], tmp_path: Path, compiled: Path) -> None:
    compiled.write_bytes(b"half")
    assert plan(model, tmp_path)["why"] == f"{compiled} has another digest than its record"


@pytest.mark.parametrize("record", [None, "{", "[]", '{"npu": "RBLN-CA22"}'])
def test_no_usable_record(model: dict[str, Any], tmp_path: Path, compiled: Path, record: str | None) -> None:
    beside = Path(f"{compiled}.json")
    beside.unlink() if record is None else beside.write_text(record)
    assert plan(model, tmp_path)["why"] == f"{compiled} has no record beside it"


def test_a_place_of_its_own(model: dict[str, Any], tmp_path: Path) -> None:
    assert plan({**model, "output": str(tmp_path / "mine")}, tmp_path)["file"] == str(tmp_path / "mine/net/CA22-0.9/model.rbln")


def test_paths_are_of_the_shells_directory(model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = compile_plan.plan([{**model, "source": {"onnx": "net.onnx"}}], "RBLN-CA22", SDK, "compiled")
    assert found["push"] == str(tmp_path / "net.onnx")
    assert found["file"] == str(tmp_path / "compiled/net/CA22-0.9/model.rbln")


def test_a_torch_source_is_its_directory(model: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "torch/parts").mkdir(parents=True)
    (tmp_path / "torch/net.py").write_text("one")
    (tmp_path / "torch/parts/block.py").write_text("two")
    torch = {**model, "source": {"torch": "net:make", "path": str(tmp_path / "torch")}}
    item = plan(torch, tmp_path)
    assert item["spec"]["source"] == {"kind": "torch", "path": "source", "module": "net", "function": "make"}
    digests = [item["spec"]["digests"]["sha256"]]
    (tmp_path / "torch/__pycache__").mkdir()
    (tmp_path / "torch/__pycache__/net.pyc").write_text("made by a run")
    assert plan(torch, tmp_path)["spec"]["digests"]["sha256"] == digests[0]
    changes: list[Callable[[], Any]] = [
        lambda: (tmp_path / "torch/parts/block.py").write_text("changed"),
        lambda: os.rename(tmp_path / "torch/parts/block.py", tmp_path / "torch/block.py"),
    ]
    for change in changes:
        change()
        digests.append(plan(torch, tmp_path)["spec"]["digests"]["sha256"])
    assert len(set(digests)) == 3


def test_all_that_is_wrong_is_said_at_once(model: dict[str, Any], tmp_path: Path) -> None:
    tensor = model["inputs"][0]
    wrong = [
        {**model, "name": "../net", "batch": [1]},
        {**model, "name": "a", "source": {"onnx": str(tmp_path / "none.onnx")}},
        {**model, "name": "b", "source": {"onnx": "x", "torch": "y:z"}},
        {**model, "name": "c", "source": {"torch": "net", "path": str(tmp_path / "none")}},
        {**model, "name": "d", "inputs": []},
        {**model, "name": "e", "inputs": [{**tensor, "shape": [0]}, {**tensor, "name": "y", "dtype": "FP32"}, tensor]},
        {**model, "name": "f", "outputs": [{"name": "y"}], "batches": [1, 1], "devices": 0, "npu": 22},
        {**model, "name": "f"},
        "net",
    ]
    with pytest.raises(Refusal) as refusal:
        compile_plan.plan(wrong, "RBLN-CA22", SDK, str(tmp_path))
    text = "\n".join(refusal.value.reasons)
    for reason in (
        "model ../net: batch is an unknown key, expected one of name, source",
        'model ../net: name is "../net", expected letters',
        "model a: source is .*none.onnx, which is not on the controller",
        "model b: source is .*, expected {onnx: file} or {torch:",
        "model c: source: torch is net, expected module:function",
        "model c: source: path is .*none, which is not on the controller",
        r"model d: inputs is \[\], expected a list",
        r"model e: inputs: x has shape \[0\], expected sizes of 1 or more",
        'model e: inputs: y has dtype "FP32", expected one of bool',
        "model e: inputs contains {.*, expected a unique name",
        'model f: outputs contains {"name": "y"}, expected a unique name, shape and dtype',
        r"model f: batches is \[1, 1\], expected different sizes",
        "model f: devices is 0, expected the number of NPUs",
        "model f: npu is 22, expected a text",
        "model f is listed several times",
        'entry 8 is "net", expected a map',
    ):
        assert re.search(reason, text), reason
    assert len(refusal.value.reasons) == 16


@pytest.mark.parametrize(
    "change, said",
    [
        ({}, "it has no compiled file yet"),
        ({"batches": 4, "devices": "two"}, 'model net: devices is "two", expected the number of NPUs that one instance spans'),
    ],
)
def test_the_lookup_gives_the_plan_or_the_reasons(model: dict[str, Any], tmp_path: Path, change: dict[str, Any], said: str) -> None:
    call = (
        "lookup('npufleet.triton.compile_plan', *models, card='RBLN-CA22', sdk={'version': '0.9.4', 'shape': '0.9'}, "
        f"directory='{tmp_path}')"
    )
    (tmp_path / "models.json").write_text(json.dumps({"models": [{**model, **change}]}))
    message = f"msg={{{{ ({call}).models | map(attribute='why') | join or ({call}).reasons | last }}}}"
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-i", "localhost,", "-m", "ansible.builtin.debug"]
    done = subprocess.run(
        [*command, "-a", message, "-e", f"@{tmp_path}/models.json"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in " ".join(done.stdout.split())
