"""What of a model goes to a host: digests, rendering, versions, artefacts, and every refusal."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest as subject
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import schema
from helpers import ROW, fleet
from linting import PYTHON
from manifests import manifest_of, parse_config

RBLN = 'name: "digits"\nbackend: "rbln"\nmax_batch_size: 4\n'
SHA, OTHER = "a" * 64, "b" * 64
ARTEFACTS = {
    "CA12/0.6": {"url": "https://models.example.com/digits-ca12.rbln", "sha256": SHA},
    "CA22/0.9": {"file": "/srv/digits-ca22.rbln", "sha256": OTHER},
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one model of two small files and no compiled file."""
    write(tmp_path / "digits/config.pbtxt", RBLN)
    write(tmp_path / "digits/labels.txt", "zero\none\n")
    return tmp_path


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def made(repository: Path, entry: dict[str, Any] | None = None, **host: Any) -> dict[str, Any]:
    entry = {"name": "digits", "artefacts": ARTEFACTS, **(entry or {})}
    return manifest_of(entry, fleet(npufleet_model_repository=str(repository), **host))


def config_of(manifest: dict[str, Any]) -> Any:
    return parse_config(manifest["contents"]["config.pbtxt"].decode(), "config.pbtxt")


def groups_of(manifest: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(group.name, group.count, group.Kind.Name(group.kind)) for group in config_of(manifest).instance_group]


def refused(repository: Path, entry: dict[str, Any] | None = None, **host: Any) -> list[str]:
    with pytest.raises(Refusal) as refusal:
        made(repository, entry, **host)
    return refusal.value.reasons


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Files


def test_manifest_of_a_model(repository: Path) -> None:
    item = made(repository)
    rendered = item["contents"]["config.pbtxt"]
    assert (item["name"], item["versions"]) == ("digits", ["1"])
    assert item["files"] == {
        "1/model.rbln": {"sha256": SHA, "blob": True},
        "config.pbtxt": {"sha256": sha256(rendered), "blob": False},
        "labels.txt": {"sha256": sha256(b"zero\none\n"), "blob": False},
    }
    assert item["contents"] == {"config.pbtxt": rendered, "labels.txt": b"zero\none\n"}
    assert item["origins"] == {SHA: {"url": "https://models.example.com/digits-ca12.rbln"}}


def test_files_of_one_mebibyte_and_more_are_blobs(repository: Path) -> None:
    write(repository / "digits/1/small.bin", b"x" * (2**20 - 1))
    write(repository / "digits/1/large.bin", b"y" * 2**20)
    item = made(repository)
    digest = sha256(b"y" * 2**20)
    assert item["files"]["1/large.bin"] == {"sha256": digest, "blob": True}
    assert item["origins"][digest] == {"file": str(repository / "digits/1/large.bin")}
    assert item["files"]["1/small.bin"] == {"sha256": sha256(b"x" * (2**20 - 1)), "blob": False}
    assert "1/large.bin" not in item["contents"]


def test_bytecode_and_git_are_left_out(repository: Path) -> None:
    before = made(repository)
    write(repository / "digits/.git/config", "[core]\n")
    write(repository / "digits/1/__pycache__/model.cpython-310.pyc", b"bytecode")
    write(repository / "digits/old.pyc", b"bytecode")
    after = made(repository)
    assert sorted(after["files"]) == ["1/model.rbln", "config.pbtxt", "labels.txt"]
    assert (after["source"], after["release"]) == (before["source"], before["release"])


def test_a_model_may_have_a_repository_of_its_own(repository: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/digits/config.pbtxt", 'backend: "python"\n')
    write(tmp_path / "elsewhere/digits/3/model.py", PYTHON)
    item = made(repository, {"repository": str(tmp_path / "elsewhere"), "artefacts": None})
    assert sorted(item["files"]) == ["3/model.py", "config.pbtxt"]


# Digests


def test_source_is_equal_on_hosts_of_another_size_and_release_is_not(repository: Path) -> None:
    small, large, again = made(repository, npufleet_npus=2), made(repository, npufleet_npus=8), made(repository, npufleet_npus=2)
    assert small["source"] == large["source"]
    assert small["release"] != large["release"]
    assert again == small


def test_source_is_equal_on_hosts_with_another_card(repository: Path) -> None:
    row = {**ROW, "sdk": {**ROW["sdk"], "shape": "0.9"}, "cards": ["RBLN-CA22"]}
    other = made(repository, npufleet_card="RBLN-CA22", npufleet_release_row=row)
    assert other["files"]["1/model.rbln"] == {"sha256": OTHER, "blob": True}
    assert other["origins"] == {OTHER: {"file": "/srv/digits-ca22.rbln"}}
    item = made(repository)
    assert other["source"] == item["source"]
    assert other["release"] != item["release"]


def test_every_change_of_the_model_changes_both_digests(repository: Path) -> None:
    seen = [made(repository)]
    changes = [
        lambda: write(repository / "digits/labels.txt", "one\nzero\n"),
        lambda: (repository / "digits/labels.txt").rename(repository / "digits/names.txt"),
        lambda: write(repository / "digits/1/model.py", PYTHON),
        lambda: write(repository / "digits/config.pbtxt", RBLN + "response_cache { enable: true }\n"),
    ]
    for change in changes:
        change()
        seen.append(made(repository))
    recompiled = {**ARTEFACTS, "CA12/0.6": {"url": "https://models.example.com/new.rbln", "sha256": "c" * 64}}
    seen.append(made(repository, {"artefacts": recompiled}))
    for key in ("source", "release"):
        assert len({name[key] for name in seen}) == len(seen), key


def test_a_compiled_file_for_another_card_changes_only_source(repository: Path) -> None:
    before = made(repository)
    more = made(repository, {"artefacts": {**ARTEFACTS, "CA25/0.10": {"url": "https://x.example.com/y", "sha256": "d" * 64}}})
    assert more["source"] != before["source"]


def test_where_a_compiled_file_comes_from_does_not_count(repository: Path) -> None:
    moved = {**ARTEFACTS, "CA12/0.6": {"url": "https://mirror.example.com/digits.rbln", "sha256": SHA}}
    before, after = made(repository), made(repository, {"artefacts": moved})
    assert (before["source"], before["release"]) == (after["source"], after["release"])


def test_digests_can_be_computed_by_anyone(repository: Path) -> None:
    """The form of the digests: another one would make every host reload every model after an upgrade of the controller."""
    write(repository / "digits/1/model.py", PYTHON)
    item = made(repository)
    lines = [
        f"{sha256(PYTHON.encode())} 1/model.py",
        f"{sha256(RBLN.encode())} config.pbtxt",
        f"{sha256(b'zero' + bytes([10]) + b'one' + bytes([10]))} labels.txt",
        f"{SHA} artefact CA12/0.6",
        f"{OTHER} artefact CA22/0.9",
    ]
    assert item["source"] == sha256("".join(line + "\n" for line in lines).encode())
    config = config_of(item)
    del config.parameters["npufleet_release"]
    lines = [f"{sha256(subject.print_config(config))} config.pbtxt" if "config" in line else line for line in lines[:3]]
    lines.insert(1, f"{SHA} 1/model.rbln")
    assert item["release"] == sha256("".join(line + "\n" for line in lines).encode())


def test_the_order_of_the_file_system_does_not_count(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("b/1", "b/2", "a/1", "c"):
        write(repository / "digits" / path, path)
    before = made(repository)
    real = os.walk

    def backwards(top: str) -> Any:
        for base, names, files in real(top):
            names.sort(reverse=True)
            yield base, names, sorted(files, reverse=True)

    monkeypatch.setattr(subject.os, "walk", backwards)
    assert made(repository) == before


def test_both_digests_are_inside_the_served_config(repository: Path) -> None:
    item = made(repository)
    parameters = config_of(item).parameters
    assert {key: parameters[key].string_value for key in parameters} == {
        "npufleet_source": item["source"],
        "npufleet_release": item["release"],
    }


def test_own_parameters_stay(repository: Path) -> None:
    write(repository / "digits/config.pbtxt", RBLN + 'parameters { key: "tuned" value { string_value: "yes" } }\n')
    parameters = config_of(made(repository)).parameters
    assert sorted(parameters) == ["npufleet_release", "npufleet_source", "tuned"]
    assert parameters["tuned"].string_value == "yes"


def test_equal_configs_are_equal_bytes() -> None:
    def text(keys: str) -> str:
        return RBLN + "".join(f'parameters {{ key: "{key}" value {{ string_value: "{key}" }} }}\n' for key in keys)

    printed = {subject.print_config(parse_config(text(keys), "config.pbtxt")) for keys in ("abcdef", "fedcba", "cafebd")}
    assert len(printed) == 1


# Rendering


def test_rbln_model_without_a_group_gets_one(repository: Path) -> None:
    assert groups_of(made(repository, npufleet_npus=3)) == [("", 3, "KIND_MODEL")]
    assert groups_of(made(repository, {"instances": 2}, npufleet_npus=3)) == [("", 6, "KIND_MODEL")]


def test_every_kind_model_group_is_sized_and_kind_cpu_is_not(repository: Path) -> None:
    groups = (
        'instance_group [{ name: "npu" count: 1 kind: KIND_MODEL }, { name: "cpu" count: 5 kind: KIND_CPU }, { kind: KIND_MODEL }]'
    )
    write(repository / "digits/config.pbtxt", RBLN + groups)
    assert groups_of(made(repository, npufleet_npus=2)) == [("npu", 2, "KIND_MODEL"), ("cpu", 5, "KIND_CPU"), ("", 2, "KIND_MODEL")]


def test_python_model_without_a_group_is_left_alone(repository: Path) -> None:
    write(repository / "digits/config.pbtxt", 'backend: "python"\n')
    write(repository / "digits/1/model.py", PYTHON)
    assert groups_of(made(repository, {"artefacts": {}})) == []


def test_a_source_is_rendered_for_two_hosts(repository: Path) -> None:
    entry = {"name": "digits", "artefacts": ARTEFACTS}
    small, large = (fleet(npufleet_model_repository=str(repository), npufleet_npus=npus) for npus in (1, 4))
    source = subject.read_model(entry, small)
    config, files = source.model.config.SerializeToString(), dict(source.files)
    for variables in (small, large):
        made, reasons = subject._rendered(source, entry, variables)
        assert (made, reasons) == (manifest_of(entry, variables), [])
    assert (source.model.config.SerializeToString(), source.files) == (config, files)


def test_name_is_the_directory_s(repository: Path) -> None:
    write(repository / "digits/config.pbtxt", 'backend: "rbln"\n')
    assert config_of(made(repository)).name == "digits"


# Versions


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", ["10"]),
        ("version_policy { latest { num_versions: 1 } }", ["10"]),
        ("version_policy { latest { num_versions: 2 } }", ["3", "10"]),
        ("version_policy { latest { num_versions: 9 } }", ["1", "3", "10"]),
        ("version_policy { all { } }", ["1", "3", "10"]),
        ("version_policy { specific { versions: [3] } }", ["3"]),
        ("version_policy { specific { versions: [10, 1, 7] } }", ["1", "10"]),
    ],
)
def test_versions_under_the_policy(repository: Path, policy: str, expected: list[str]) -> None:
    for version in ("3", "10"):
        write(repository / f"digits/{version}/model.rbln", "")
    # Neither is a version directory for Triton.
    write(repository / "digits/02/model.py", "")
    write(repository / "digits/configs/7", "")
    write(repository / "digits/config.pbtxt", RBLN + policy)
    assert made(repository)["versions"] == expected


def test_policy_that_selects_no_version_is_refused(repository: Path) -> None:
    write(repository / "digits/config.pbtxt", RBLN + "version_policy { specific { versions: [7] } }")
    assert refused(repository) == [
        f"model digits: {repository}/digits/config.pbtxt:4: version_policy.specific is a policy that selects none of "
        "versions 1, expected one version or more. Correct the policy, or the directories. Triton refuses the model."
    ]


def test_latest_without_a_number_is_none(repository: Path) -> None:
    """As for Triton, which takes the schema's 0."""
    write(repository / "digits/config.pbtxt", RBLN + "version_policy { latest { } }")
    (reason,) = refused(repository)
    assert "is a policy that selects none of versions 1" in reason


def test_model_without_a_version_directory_is_refused(repository: Path) -> None:
    config = repository / "digits/config.pbtxt"
    config.write_text(config.read_text().replace('"rbln"', '"python"'))
    reasons = refused(repository, {"artefacts": {}})
    assert reasons == [
        f"model digits: {repository}/digits/config.pbtxt: version_policy is without a version directory, expected one "
        "version or more. Add a version directory with a file in it, as git and the store do not keep an empty one. Triton refuses "
        "the model."
    ]


# Refusals


def test_model_without_a_compiled_file_is_refused(repository: Path) -> None:
    (reason,) = refused(repository, {"artefacts": {}})
    assert reason == (
        f"model digits: {repository}/digits/config.pbtxt: version_policy is without a version directory, expected one "
        "version or more. Compile the model for this card and SDK, and list the file under `artefacts`. Triton refuses the model."
    )


def test_model_without_config_is_refused(repository: Path) -> None:
    assert refused(repository, {"name": "faces"}) == [
        f"model faces: {repository}/faces/config.pbtxt is missing, expected a config for each model. Add it"
    ]


def test_config_with_another_name_is_refused(repository: Path) -> None:
    write(repository / "digits/config.pbtxt", 'name: "faces"\nbackend: "rbln"\n')
    assert refused(repository) == [
        f"model digits: {repository}/digits/config.pbtxt:1: name is faces, expected digits, the name of its directory. "
        "Rename one of them. Triton refuses the model."
    ]


def test_config_that_triton_cannot_parse_is_refused_with_its_line(repository: Path) -> None:
    write(repository / "digits/config.pbtxt", 'name: "digits"\nbackend: "rbln"\nmax_batch_sise: 4\n')
    (reason,) = refused(repository)
    assert reason.startswith(f"model digits: {repository}/digits/config.pbtxt:3: max_batch_sise: a field that no Triton knows")
    assert reason.endswith("Triton refuses the whole file.")


def test_controller_without_protobuf_is_told_what_to_install(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.load.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    assert refused(repository) == ["the controller has no protobuf. Run `pip install -r requirements.txt`"]


def test_no_compiled_file_for_this_card_and_sdk_is_refused(repository: Path) -> None:
    row = {**ROW, "sdk": {**ROW["sdk"], "shape": "0.10"}}
    assert refused(repository, npufleet_card="RBLN-CA25", npufleet_release_row=row) == [
        "model digits has compiled files for CA12/0.6, CA22/0.9, expected one for CA25/0.10. Compile it for this card and SDK, "
        "and list the file under `artefacts`"
    ]


@pytest.mark.parametrize(
    "artefact",
    [
        {"sha256": SHA},
        {"url": "https://models.example.com/x"},
        {"url": "https://models.example.com/x", "sha256": "abc"},
        {"url": "https://models.example.com/x", "sha256": SHA.upper()},
    ],
)
def test_incomplete_artefact_is_refused(repository: Path, artefact: dict[str, str]) -> None:
    assert refused(repository, {"artefacts": {"CA12/0.6": artefact}}) == [
        "model digits: artefact CA12/0.6 is incomplete, expected `url` or `file`, and `sha256` (64 hex digits) or a record. Add it"
    ]


def test_incomplete_artefact_of_another_card_is_refused_too(repository: Path) -> None:
    artefacts = {**ARTEFACTS, "CA22/0.9": {"url": "https://models.example.com/x"}}
    assert refused(repository, {"artefacts": artefacts}) == [
        "model digits: artefact CA22/0.9 is incomplete, expected `url` or `file`, and `sha256` (64 hex digits) or a record. Add it"
    ]


def test_artefact_goes_where_it_is_asked_to(repository: Path) -> None:
    write(repository / "digits/config.pbtxt", RBLN + 'default_model_filename: "resnet.rbln"\n')
    item = made(repository, {"artefacts": {"CA12/0.6": {"file": "/srv/x", "sha256": SHA, "path": "2/resnet.rbln"}}})
    assert item["files"]["2/resnet.rbln"] == {"sha256": SHA, "blob": True}
    assert item["versions"] == ["2"]


# Placement


@pytest.mark.parametrize(
    ("hosts", "here"),
    [(None, True), ([], True), (["npu1"], True), (["edge"], True), (["npu2", "lab"], False), (["npu", "npu11"], False)],
)
def test_placement_by_host_and_group(hosts: list[str] | None, here: bool) -> None:
    entry = {"name": "digits", "hosts": hosts}
    host = {"inventory_hostname": "npu1", "group_names": ["npu_hosts", "edge"], "triton_models": [entry]}
    assert subject.placed_here(host) == ([entry] if here else [])


def test_reasons_of_all_models_come_at_once(repository: Path) -> None:
    write(repository / "faces/config.pbtxt", 'name: "digits" backend: "python"\n')
    write(repository / "faces/1/model.py", PYTHON)
    entries = [
        {"name": "digits", "artefacts": ARTEFACTS},
        {"name": "faces"},
        {"name": "words"},
        {"name": "elsewhere", "hosts": ["npu2"]},
    ]
    found, reasons = subject.manifests(fleet(npufleet_model_repository=str(repository), triton_models=entries))
    assert list(found) == ["digits"]
    assert reasons == [
        f"model faces: {repository}/faces/config.pbtxt:1: name is digits, expected faces, the name of its directory. "
        "Rename one of them. Triton refuses the model.",
        f"model words: {repository}/words/config.pbtxt is missing, expected a config for each model. Add it",
    ]


# Repositories that Triton reads itself


def test_model_of_an_object_store_is_not_read_here(repository: Path) -> None:
    write(repository / "digits/1/model.rbln", b"compiled")
    entries = [{"name": "digits"}, {"name": "far", "repository": "s3://bucket/models/"}, {"name": "off", "hosts": ["other"]}]
    given: dict[str, Any] = {"npufleet_model_repository": str(repository), "triton_models": entries}
    read = ["/var/lib/npufleet/served", "s3://bucket/models"]
    variables = fleet(**given, triton_server_model_repositories=read)
    assert [list(manifest) for manifest in subject.manifests(variables)] == [["digits"], []]
    assert subject.cloud_models(variables) == ["far"]
    entries[1]["artefacts"] = ARTEFACTS
    _found, reasons = subject.manifests(fleet(**given))
    assert reasons == [
        "model far: repository is s3://bucket/models/, expected one of triton_server_model_repositories "
        "(/var/lib/npufleet/served). Add it there",
        "model far: repository is s3://bucket/models/ and it has `artefacts`, expected "
        "none, as Triton reads all files there. Remove them",
    ]


def test_compiled_file_of_a_bundle_needs_no_address(repository: Path) -> None:
    entry = {"artefacts": {"CA12/0.6": {"sha256": SHA, "size": 7}}}
    assert made(repository, entry, model_repository_bundle="/srv/bundle.tar")["origins"] == {SHA: {"size": 7}}
    assert "is incomplete, expected `url` or `file`" in refused(repository, entry)[0]


# Links, and what is no file


def test_links_that_stay_inside_the_repository_are_followed_with_all_that_is_behind(repository: Path) -> None:
    write(repository / "shared/2/model.py", PYTHON)
    write(repository / "shared/2/deep/weights.bin", b"w" * 2**20)
    write(repository / "digits/config.pbtxt", 'backend: "python"\nversion_policy { all {} }\n')
    write(repository / "digits/1/model.py", PYTHON)
    (repository / "digits/2").symlink_to("../shared/2")
    (repository / "digits/names.txt").symlink_to(repository / "digits/labels.txt")
    before = made(repository, {"artefacts": None})
    assert sorted(before["files"]) == [
        "1/model.py",
        "2/deep/weights.bin",
        "2/model.py",
        "config.pbtxt",
        "labels.txt",
        "names.txt",
    ]
    assert before["versions"] == ["1", "2"]
    assert before["origins"] == {sha256(b"w" * 2**20): {"file": str(repository / "digits/2/deep/weights.bin")}}
    for path, content in (("shared/2/model.py", PYTHON.encode() + b"# 2\n"), ("shared/2/deep/weights.bin", b"v" * 2**20)):
        write(repository / path, content)
        after = made(repository, {"artefacts": None})
        assert after["source"] != before["source"] and after["release"] != before["release"]
        before = after


def test_what_leads_out_or_nowhere_or_is_no_file_is_refused_by_name_and_never_opened(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(elsewhere / "2/model.py", "pass\n")
    write(repository / ".git/config", "[remote]\n")
    links = {
        "2": elsewhere / "2",
        "passwords": "/etc/shadow",
        "gone": "nowhere",
        "itself": "itself",
        "loop": ".",
        "history": "../.git/config",
        "sent": "/dev/zero",
    }
    for name, target in links.items():
        (repository / "digits" / name).symlink_to(target)
    os.mkfifo(repository / "digits/pipe")
    write(repository / "digits/two\nlines", "")
    (repository / os.fsdecode(b"digits/\xff")).mkdir()
    place = f"{repository}/digits/"
    found = refused(repository)
    store = ". The fleet's store refuses the model."
    assert all(entry.endswith(store) for entry in found)
    assert [entry.replace(f"model digits: {place}", "").replace(store, "") for entry in found] == [
        f"2 is a link to {elsewhere}/2, expected a link that stays in {repository}. Copy its target there",
        "\\udcff is a name that cannot be printed, expected printable characters. Rename it",
        "gone is a broken link (nowhere: No such file or directory), expected a file. Correct or remove it",
        "history is a link into .git, expected a link to a file that is sent. Copy its target there",
        "itself is a broken link (itself: Too many levels of symbolic links), expected a file. Correct or remove it",
        "loop is a link to one of its parent directories, expected no circular link. Remove it",
        f"passwords is a link to /etc/shadow, expected a link that stays in {repository}. Copy its target there",
        "pipe is a named pipe, expected a file. Remove it",
        f"sent is a link to /dev/zero, expected a link that stays in {repository}. Copy its target there",
        "two\\nlines is a name that cannot be printed, expected printable characters. Rename it",
    ]


@pytest.mark.parametrize("what", ["model", "config", "pipe"])
def test_a_model_or_a_config_that_leads_out_is_not_read(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, what: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "other"
    (repository / "digits").rename(elsewhere)
    if what == "model":
        (repository / "digits").symlink_to(elsewhere)
        found = f"is a link to {elsewhere}, expected a link that stays in {repository}"
    else:
        (repository / "digits").mkdir()
        (repository / "digits/config.pbtxt").symlink_to(elsewhere / "config.pbtxt")
        found = f"digits/config.pbtxt is a link to {elsewhere}/config.pbtxt, expected a link that stays in {repository}"
    if what == "pipe":
        (repository / "digits/config.pbtxt").unlink()
        os.mkfifo(repository / "digits/config.pbtxt")
        found = "digits/config.pbtxt is a named pipe"
    reasons = refused(repository)
    assert len(reasons) == 1
    assert found in reasons[0]
    assert "rbln" not in reasons[0]


def test_the_repository_itself_may_be_a_link(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("link") / "models"
    link.symlink_to(repository)
    (repository / "digits/names.txt").symlink_to("labels.txt")
    assert made(link)["source"] == made(repository)["source"]


def test_a_config_that_is_no_text_or_large_is_a_message_or_a_config(repository: Path) -> None:
    write(repository / "digits/config.pbtxt", b"\xff\xfe")
    assert "digits/config.pbtxt:1: bytes that are no UTF-8" in refused(repository)[0]
    write(repository / "digits/config.pbtxt", RBLN + "#" * 2**20 + "\n")
    assert made(repository)["files"]["config.pbtxt"]["blob"] is False
