# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a model for a host: the model's files, rendered on the controller for this host, and two digests.

`source` is the digest of the files on the controller, and is equal for all hosts. `release` is the digest of the rendered files.
The served config.pbtxt contains both digests as the parameters `npufleet_source` and `npufleet_release`, so that the server itself
can report the loaded release.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import re
from typing import Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, TypedDict

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import tree_digest
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import size_of
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled, digests, lint
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import ensemble, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.config import KIND_MODEL
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding, reasons, row_of, store_errors
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import CONFIG, Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import walk

# Files of this size or more, and all compiled files, are blobs: a host stores each blob once, and releases link to it.
BLOB_BYTES = 1 << 20
# The largest number of requests that wait in the batcher of a model. Triton refuses further requests, which would fill the memory.
MAX_QUEUE = 256
# The values that each `profile` in `triton_models` sets for a rbln model: its instances on each NPU, and the microseconds that its
# batcher waits for a full batch. While one instance computes on the NPU, the other instance assembles the next batch.
PROFILES = {"throughput": {"instances": 2, "delay_us": 3000}, "latency": {"instances": 2, "delay_us": 0}}
# Prefixes of the object stores from which Triton itself reads models
CLOUD_PREFIXES = ("s3://", "gs://", "as://")


class Source(NamedTuple):
    """A model on the controller, with the compiled file for a host, before its config is rendered.

    `files`, `contents` and `origins` have the form of a Manifest. `findings` are the linter's findings. `reasons` are the errors of
    the record.
    """

    model: Model
    digest: str
    files: Dict[str, Dict[str, Any]]
    contents: Dict[str, bytes]
    origins: Dict[str, Dict[str, str]]
    findings: List[Finding]
    reasons: List[str]


class Manifest(TypedDict):
    """The manifest of a model for one host."""

    name: str
    # `source` is the digest of the files on the controller, `release` the digest of the files for this host
    source: str
    release: str
    # Served version numbers
    versions: List[str]
    # {path: {"sha256", "blob": True for a blob}} of all files
    files: Dict[str, Dict[str, Any]]
    # {path: bytes} of the files that are not blobs
    contents: Dict[str, bytes]
    # {sha256 of a blob: {"file": path on the controller} or {"url": address}}
    origins: Dict[str, Dict[str, str]]
    # Bytes of device memory, on each NPU of the host
    memory: List[int]
    # Names of the models in the steps of an ensemble
    steps: List[str]
    # True if responses can come from a cache
    cached: bool
    # Digest of the config before `source` and `release` are added as parameters
    shape: str
    # `beside` loads a new release before the old release is unloaded. `unload_first` unloads the old release first.
    switch: str


class Unreadable(Refusal):
    """The refusal of a model that cannot be read, with the linter's findings."""

    def __init__(self, findings: List[Finding]) -> None:
        super().__init__(reasons(findings))
        self.findings = findings


def read_model(entry: Mapping[str, Any], variables: Mapping[str, Any]) -> Source:
    """Read and lint a model. Raises Refusal if it cannot be read."""
    name = entry["name"]
    directory = os.path.normpath(os.path.join(entry.get("repository") or variables["npufleet_model_repository"], name))
    if not os.path.lexists(os.path.join(directory, CONFIG)):
        raise Refusal(f"model {name}: {directory}/config.pbtxt is missing, expected a config for each model. Add it")
    walked = walk(directory, os.path.dirname(directory))
    findings = store_errors(name, walked.problems)
    if CONFIG not in walked.files:
        raise Unreadable(findings)
    artefacts = {key: compiled.with_digest(element) for key, element in (entry.get("artefacts") or {}).items()}
    artefact = _artefact(name, artefacts, variables)
    cache = os.path.join(variables["npufleet_cache"], "digests") if variables.get("npufleet_cache") else ""
    files, contents, origins = _files(directory, walked.files, cache)
    artefact_digests = {key: element["sha256"] for key, element in artefacts.items()}
    source_digest = tree_digest({path: file["sha256"] for path, file in files.items()}, artefact_digests)
    if artefact:
        path = artefact.get("path", "1/model.rbln")
        conflicts = [file for file in files if file.startswith(path + "/") or path.startswith(file + "/")]
        if conflicts:
            expected = f"expected a path that is neither above nor below {conflicts[0]} of the model's directory"
            raise Refusal(f"model {name}: the path of its compiled file is {path}, {expected}. Correct `path`.")
        files[path] = {"sha256": artefact["sha256"], "blob": True}
        origins[artefact["sha256"]] = {key: artefact[key] for key in ("file", "url", "size") if key in artefact}
    config, fields, config_findings = schema.read(os.path.join(directory, CONFIG), name, contents[CONFIG])
    findings += config_findings
    if config is None:
        raise Unreadable(findings)
    record: Optional[Dict[str, Any]] = None
    record_errors: List[str] = []
    if config.backend == "rbln" and artefact:
        record, record_errors = compiled.record_of(artefact, variables["npufleet_card"])
        if record:
            if isinstance(record.get("size"), int):
                origins[artefact["sha256"]].setdefault("size", record["size"])
            content = json.dumps(record, indent=1, sort_keys=True).encode()
            contents[path + compiled.SUFFIX] = content
            files[path + compiled.SUFFIX] = {"sha256": _digest(content), "blob": False}
    row = row_of(str(variables["rbln_release"]), variables["npufleet_release_row"])
    model = Model(name, directory, config, fields, frozenset(files), record=record, row=row)
    findings += lint.check(model)
    return Source(model, source_digest, files, contents, origins, findings, record_errors)


def repository_facts(model: Model) -> Dict[str, Any]:
    """Return the part of a model's manifest that is the same on all hosts. `release` depends on the host, so it is None."""
    files, _contents, _origins = _files(model.directory, walk(model.directory, os.path.dirname(model.directory)).files)
    digest = tree_digest({path: file["sha256"] for path, file in files.items()}, {})
    return {"source": digest, "release": None, "versions": [str(entry) for entry in model.served()], "files": files}


def _files(
    directory: str, paths: Collection[str], cache: str = ""
) -> Tuple[Dict[str, Dict[str, Any]], Dict[str, bytes], Dict[str, Dict[str, str]]]:
    """Return ({path: facts of a file}, {path: content of a small file}, {digest: source of a large file})."""
    files: Dict[str, Dict[str, Any]] = {}
    contents: Dict[str, bytes] = {}
    origins: Dict[str, Dict[str, str]] = {}
    for path in paths:
        full = os.path.join(directory, path)
        # The config is never a blob, because it is rendered for each host.
        if path != CONFIG and os.path.getsize(full) >= BLOB_BYTES:
            digest = digests.digest(full, cache)
            files[path] = {"sha256": digest, "blob": True}
            origins[digest] = {"file": full}
        else:
            with open(full, "rb") as source_file:
                contents[path] = source_file.read()
            files[path] = {"sha256": _digest(contents[path]), "blob": False}
    return files, contents, origins


def _rendered(model_source: Source, entry: Mapping[str, Any], variables: Mapping[str, Any]) -> Tuple[Manifest, List[str]]:
    """Return (the manifest of a model, errors other than the linter's findings). `model_source` is not changed."""
    name = model_source.model.name
    config = copy.deepcopy(model_source.model.config)
    config.name = name
    memory, placement_errors = _place(config, entry, model_source.model.record, variables)
    shape = _digest(print_config(config))
    config.parameters["npufleet_source"].string_value = model_source.digest
    digests_of_files = {path: facts["sha256"] for path, facts in model_source.files.items()}
    release_digest = tree_digest({**digests_of_files, CONFIG: _digest(print_config(config))}, {})
    config.parameters["npufleet_release"].string_value = release_digest
    content = print_config(config)
    result: Manifest = {
        "name": name,
        "source": model_source.digest,
        "release": release_digest,
        "versions": [str(version) for version in model_source.model.served()],
        "files": {**model_source.files, CONFIG: {"sha256": _digest(content), "blob": False}},
        "contents": {**model_source.contents, CONFIG: content},
        "origins": model_source.origins,
        "memory": memory,
        "steps": sorted({step.model_name for step in config.ensemble_scheduling.step}),
        "cached": config.response_cache.enable,
        "shape": shape,
        "switch": str(entry.get("switch") or "beside"),
    }
    return result, [f"model {name}: {reason}" for reason in [*model_source.reasons, *placement_errors]]


def is_cloud_model(entry: Mapping[str, Any]) -> bool:
    """Return True if Triton itself reads this model from an object store."""
    return str(entry.get("repository") or "").startswith(CLOUD_PREFIXES)


def cloud_models(variables: Mapping[str, Any]) -> List[str]:
    """Return the names of the models on this host that Triton reads from an object store."""
    return [entry["name"] for entry in placed_here(variables) if is_cloud_model(entry)]


def _cloud_errors(entry: Mapping[str, Any], variables: Mapping[str, Any]) -> Iterator[str]:
    subject = f"model {entry['name']}: repository is {entry['repository']}"
    repositories = variables["triton_server_model_repositories"]
    if entry["repository"].rstrip("/") not in [repository.rstrip("/") for repository in repositories]:
        yield f"{subject}, expected one of triton_server_model_repositories ({', '.join(repositories)}). Add it there"
    if entry.get("artefacts"):
        yield f"{subject} and it has `artefacts`, expected none, as Triton reads all files there. Remove them"


def placed_here(variables: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """Return the entries of `triton_models` without `hosts`, or with this host or one of its groups in `hosts`."""
    names = {variables["inventory_hostname"], *variables["group_names"]}
    return [entry for entry in variables["triton_models"] if not entry.get("hosts") or names & set(entry["hosts"])]


def _artefact(name: str, artefacts: Mapping[str, Any], variables: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    """Return the artefact for this host's card and SDK, or None if the model has no artefacts. Raises Refusal."""
    if not artefacts:
        return None
    # A bundle can deliver the file of an artefact that has neither `url` nor `file`.
    bundled = bool(variables["model_repository_bundle"])
    key = "{}/{}".format(variables["npufleet_card"].replace("RBLN-", ""), variables["npufleet_release_row"]["sdk"]["shape"])
    if key not in artefacts:
        todo = "Compile it for this card and SDK, and list the file under `artefacts`"
        raise Refusal(f"model {name} has compiled files for {', '.join(sorted(artefacts))}, expected one for {key}. {todo}")
    errors = [
        f"model {name}: artefact {other} is incomplete, expected `url` or `file`, and `sha256` (64 hex digits) or a record. Add it"
        for other, element in sorted(artefacts.items())
        if not re.fullmatch("[0-9a-f]{64}", str(element.get("sha256"))) or not ("url" in element or "file" in element or bundled)
    ]
    if errors:
        raise Refusal(errors)
    return artefacts[key]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def config_of(served: Mapping[str, Any]) -> bytes:
    """Return the text of config.pbtxt for a config that Triton returned over HTTP."""
    from google.protobuf import json_format

    return print_config(json_format.ParseDict(dict(served), schema.load()[0](), ignore_unknown_fields=True))


def print_config(config: Any) -> bytes:
    """Return a ModelConfig as text. Fields are in schema order and maps are sorted, so that equal configs have equal bytes."""
    from google.protobuf import text_format

    return text_format.MessageToString(config).encode()


def _place(
    config: Any, entry: Mapping[str, Any], record: Optional[Mapping[str, Any]], variables: Mapping[str, Any]
) -> Tuple[List[int], List[str]]:
    """Set the NPUs and instances in a model's config. Return (bytes of device memory on each NPU of the host, errors).

    A rbln model without an instance group gets a group. Each group of KIND_MODEL gets the same number of instances.
    """
    total = int(variables["npufleet_npus"])
    npus = [int(npu) for npu in entry.get("npus") or range(total)]
    npus_per_instance = record["devices"] if record else 1
    absent = [number for number in npus if not 0 <= number < total]
    if absent:
        return [], [f"npus contains {', '.join(map(str, absent))}, expected numbers from 0 to {total - 1} of this host. Correct it"]
    if npus_per_instance > len(npus):
        expected = f"at most {len(npus)}. Compile it for fewer, or set more in npus"
        return [], [f"one instance spans {npus_per_instance} NPUs, expected {expected}"]
    instances = _profile(config, entry, variables)
    if config.backend == "rbln" and not config.instance_group:
        config.instance_group.add().kind = KIND_MODEL
    groups_of_npus = len(npus) // npus_per_instance
    for group in config.instance_group:
        if group.kind == KIND_MODEL:
            group.count = groups_of_npus * instances
    if entry.get("npus"):
        config.parameters["npus"].string_value = ",".join(map(str, npus))
    if npus_per_instance > 1:
        config.parameters["npus_per_instance"].string_value = str(npus_per_instance)
    memory = [0] * total
    # Only models of the rbln backend have a record.
    recorded = record["device_memory"] if record else []
    for index in range(groups_of_npus * npus_per_instance):
        recorded_bytes = recorded[index % npus_per_instance] if recorded else 0
        memory[npus[index]] += (size_of(entry, "device_memory") if entry.get("device_memory") else recorded_bytes) * instances
    return memory, []


def _profile(config: Any, entry: Mapping[str, Any], variables: Mapping[str, Any]) -> int:
    """Return the number of instances on each NPU. For a rbln model with a profile, also configure the dynamic batcher.

    Values of the dynamic batcher in the model's own config are kept.
    """
    profile = PROFILES.get(entry.get("profile") or "")
    if profile is None or config.backend != "rbln":
        return int(entry.get("instances") or 1)
    batcher = config.dynamic_batching
    if config.max_batch_size > 1 and not batcher.preferred_batch_size and not batcher.max_queue_delay_microseconds:
        batcher.SetInParent()
        if profile["delay_us"]:
            batcher.preferred_batch_size.append(config.max_batch_size)
            batcher.max_queue_delay_microseconds = profile["delay_us"]
        if not batcher.HasField("default_queue_policy"):
            batcher.default_queue_policy.max_queue_size = MAX_QUEUE
    return int(entry.get("instances") or profile["instances"])


def manifests(
    variables: Mapping[str, Any], placed: Optional[List[Mapping[str, Any]]] = None
) -> Tuple[Dict[str, Manifest], List[str]]:
    """Return (manifests by model, errors). `placed` are entries of `triton_models`, by default the entries for this host."""
    by_name, findings, other_errors = lint_and_render(variables, placed=placed)
    return by_name, [*reasons(findings), *other_errors]


def lint_and_render(
    variables: Mapping[str, Any], only: Collection[str] = (), placed: Optional[List[Mapping[str, Any]]] = None
) -> Tuple[Dict[str, Manifest], List[Finding], List[str]]:
    """Return (manifests by model, the linter's findings, other errors). `placed` is the same argument as in `manifests`.

    If `only` is not empty, the result is limited to these models. All models are read, because an ensemble can contain them.
    """
    placed = placed_here(variables) if placed is None else placed
    by_name: Dict[str, Manifest] = {}
    findings: List[Finding] = []
    other_errors: List[str] = []
    read_models: Dict[str, Model] = {}
    for entry in placed:
        name = entry["name"]
        selected = not only or name in only
        if is_cloud_model(entry):
            other_errors += _cloud_errors(entry, variables)
            continue
        try:
            model_source = read_model(entry, variables)
        except Refusal as refusal:
            if selected:
                findings += refusal.findings if isinstance(refusal, Unreadable) else []
                other_errors += [] if isinstance(refusal, Unreadable) else refusal.reasons
            continue
        read_models[name] = model_source.model
        if selected:
            result, errors = _rendered(model_source, entry, variables)
            findings += model_source.findings
            other_errors += errors
            if not errors and not reasons(model_source.findings):
                by_name[name] = result
    unread = [entry["name"] for entry in placed if entry["name"] not in read_models]
    step_findings = ensemble.check(read_models, unread)
    return by_name, findings + [finding for finding in step_findings if not only or finding.model in only], other_errors


def to_release(manifest: Manifest) -> Dict[str, Any]:
    """Return the release in a manifest as data for a host, with small files in Base64."""
    files = {path: dict(facts) for path, facts in manifest["files"].items()}
    for path, content in manifest["contents"].items():
        files[path]["content"] = base64.b64encode(content).decode()
    keys = ("source", "release", "versions", "steps", "cached", "shape")
    return {**{key: value for key, value in manifest.items() if key in keys}, "files": files}
