"""What of a model goes to a host: its files, rendered for that host, and the two digests. Runs on the controller.

`source` is equal on every host; `release` is what this host gets after rendering. Both travel inside the served
config.pbtxt as parameters, so the server itself can be asked what it has loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypedDict

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.store.records import tree_digest
from ansible_collections.npufleet.triton.plugins.plugin_utils.desired.container import size
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled, digests, lint
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.ensemble import Place
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding, reasons, row_of, store_errors
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import CONFIG, Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import walk

# Files of this size and more, and compiled files of any size, are kept once per host and linked.
BLOB_BYTES = 1 << 20
SOURCE = "npufleet_source"
RELEASE = "npufleet_release"
ARTEFACT_PATH = "1/model.rbln"
# Requests that may wait for a model whose batcher a profile sets: what comes then is refused, and does not fill the memory
MAX_QUEUE = 256
# How a rbln model is served where answers leave only when `execute` returns: the next batch is joined by another instance
# while one is on the NPU, and throughput waits a little for a full batch.
PROFILES = {"throughput": {"instances": 2, "delay_us": 3000}, "latency": {"instances": 2, "delay_us": 0}}
HERE = Place("placed on this host", "Add it to `triton_models` for the same hosts")
# Repositories that Triton reads itself
CLOUD = ("s3://", "gs://", "as://")


class Source(NamedTuple):
    """One model as it lies on the controller, with the compiled file for this host, before it is rendered."""

    model: Model
    digest: str
    files: Dict[str, Dict[str, Any]]
    contents: Dict[str, bytes]
    origins: Dict[str, Dict[str, str]]
    findings: List[Finding]
    reasons: List[str]


class Manifest(TypedDict):
    """One model for one host."""

    name: str
    # Digests of what lies here, equal on every host, and of what this host gets
    source: str
    release: str
    # Served version numbers
    versions: List[str]
    # {path: {"sha256", "blob"}}, and the bytes of what is not a blob
    files: Dict[str, Dict[str, Any]]
    contents: Dict[str, bytes]
    # {sha256: {"file": path} or {"url": address}} of blobs
    origins: Dict[str, Dict[str, str]]
    # Bytes of device memory on each NPU of the host
    memory: List[int]
    # Names of the models that an ensemble has as its steps
    steps: List[str]
    # Whether answers may come from a response cache
    cached: bool
    # Digest of the config without the two digests
    shape: str
    # `beside` or `unload_first`
    switch: str


class Unreadable(Refusal):
    """A config that is none, with the linter's findings."""

    def __init__(self, findings: List[Finding]) -> None:
        super().__init__(reasons(findings))
        self.findings = findings


def manifest(entry: Mapping[str, Any], variables: Mapping[str, Any]) -> Manifest:
    """One model for one host. Raises Refusal with every reason."""
    model = source(entry, variables)
    made, more = _rendered(model, entry, variables)
    against = [*reasons(model.findings), *more]
    if against:
        raise Refusal(against)
    return made


def source(entry: Mapping[str, Any], variables: Mapping[str, Any]) -> Source:
    """Read one model and lint it. Raises Refusal where there is nothing to lint."""
    name = entry["name"]
    directory = os.path.normpath(os.path.join(entry.get("repository") or variables["npufleet_model_repository"], name))
    if not os.path.lexists(os.path.join(directory, CONFIG)):
        raise Refusal([f"model {name}: found no {directory}/config.pbtxt: every model is a directory with one"])
    walked = walk(directory, os.path.dirname(directory))
    findings = store_errors(name, walked.problems)
    if CONFIG not in walked.files:
        raise Unreadable(findings)
    artefacts = {key: compiled.digested(element) for key, element in (entry.get("artefacts") or {}).items()}
    artefact = _artefact(name, artefacts, variables, bool(variables["model_repository_bundle"]))
    files, contents, origins = _files(directory, walked.files, _cache(variables))
    table = {key: element["sha256"] for key, element in sorted(artefacts.items())}
    source_digest = tree_digest({path: file["sha256"] for path, file in files.items()}, table)
    if artefact:
        path = artefact.get("path", ARTEFACT_PATH)
        compiled.refuse_in_the_way(name, path, files)
        files[path] = {"sha256": artefact["sha256"], "blob": True}
        origins[artefact["sha256"]] = {key: artefact[key] for key in ("file", "url", "size") if key in artefact}
    config, text, more = schema.read(os.path.join(directory, CONFIG), name, contents[CONFIG])
    findings += more
    if config is None:
        raise Unreadable(findings)
    record: Optional[Dict[str, Any]] = None
    against: List[str] = []
    if config.backend == "rbln" and artefact:
        record, against = compiled.record_of(artefact, variables["npufleet_card"])
        if record and isinstance(record.get("size"), int):
            origins[artefact["sha256"]].setdefault("size", record["size"])
        if record and not against:
            beside = artefact.get("path", ARTEFACT_PATH) + compiled.SUFFIX
            contents[beside] = json.dumps(record, indent=1, sort_keys=True).encode()
            files[beside] = {"sha256": _digest(contents[beside]), "blob": False}
    row = row_of(str(variables["rbln_release"]), variables["npufleet_row"])
    model = Model(name, directory, config, text, sorted(files), record=None if against else record, row=row)
    findings += lint.check(model, row)
    return Source(model, source_digest, files, contents, origins, findings, [f"model {name}: {reason}" for reason in against])


def unplaced(model: Model) -> Dict[str, Any]:
    """What there is to tell of a model that no host gets yet."""
    files, _contents, _origins = _files(model.directory, walk(model.directory, os.path.dirname(model.directory)).files)
    digest = tree_digest({path: file["sha256"] for path, file in files.items()}, {})
    return {"source": digest, "release": None, "versions": [str(entry) for entry in model.served()], "files": files}


def _cache(variables: Mapping[str, Any]) -> str:
    """Where digests of large files are remembered."""
    return os.path.join(variables["npufleet_cache"], "digests") if variables.get("npufleet_cache") else ""


def _files(
    directory: str, paths: Collection[str], cache: str = ""
) -> Tuple[Dict[str, Dict[str, Any]], Dict[str, bytes], Dict[str, Dict[str, str]]]:
    """(facts of each file by path, contents of small ones, where large ones are by digest)."""
    files: Dict[str, Dict[str, Any]] = {}
    contents: Dict[str, bytes] = {}
    origins: Dict[str, Dict[str, str]] = {}
    for path in paths:
        full = os.path.join(directory, path)
        # The config is rendered for each host
        if path != CONFIG and os.path.getsize(full) >= BLOB_BYTES:
            digest = digests.digest(full, cache)
            files[path] = {"sha256": digest, "blob": True}
            origins[digest] = {"file": full}
        else:
            with open(full, "rb") as opened:
                contents[path] = opened.read()
            files[path] = {"sha256": _digest(contents[path]), "blob": False}
    return files, contents, origins


def _rendered(found: Source, entry: Mapping[str, Any], variables: Mapping[str, Any]) -> Tuple[Manifest, List[str]]:
    """Return the manifest of a model, and the reasons against it beside the linter's findings. `found` stays as it is."""
    name = found.model.name
    config = type(found.model.config)()
    config.CopyFrom(found.model.config)
    config.name = name
    memory, more = _place(config, entry, found.model.record, variables)
    shape = _digest(print_config(config))
    config.parameters[SOURCE].string_value = found.digest
    digests_of_files = {path: facts["sha256"] for path, facts in found.files.items()}
    release_digest = tree_digest({**digests_of_files, CONFIG: _digest(print_config(config))}, {})
    config.parameters[RELEASE].string_value = release_digest
    content = print_config(config)
    made: Manifest = {
        "name": name,
        "source": found.digest,
        "release": release_digest,
        "versions": [str(version) for version in found.model.served()],
        "files": {**found.files, CONFIG: {"sha256": _digest(content), "blob": False}},
        "contents": {**found.contents, CONFIG: content},
        "origins": found.origins,
        "memory": memory,
        "steps": sorted({step.model_name for step in config.ensemble_scheduling.step}),
        "cached": config.response_cache.enable,
        "shape": shape,
        "switch": str(entry.get("switch") or "beside"),
    }
    return made, [*found.reasons, *(f"model {name}: {reason}" for reason in more)]


def cloud(entry: Mapping[str, Any]) -> bool:
    """Whether Triton itself reads this model out of an object store."""
    return str(entry.get("repository") or "").startswith(CLOUD)


def cloud_models(variables: Mapping[str, Any]) -> List[str]:
    """Names of those that are placed on this host."""
    return [entry["name"] for entry in placed_here(variables) if cloud(entry)]


def _unread(entry: Mapping[str, Any], variables: Mapping[str, Any]) -> List[str]:
    """Why Triton would not come by a model that it reads itself."""
    read = variables["triton_server_model_repositories"]
    against = []
    if entry["repository"].rstrip("/") not in [element.rstrip("/") for element in read]:
        against.append(
            "model {}: found repository {}, wanted one of triton_server_model_repositories ({}): list it there".format(
                entry["name"], entry["repository"], ", ".join(read)
            )
        )
    if entry.get("artefacts"):
        against.append(
            "model {}: found `artefacts` beside repository {}, wanted none: Triton reads all of it there".format(
                entry["name"], entry["repository"]
            )
        )
    return against


def placed_here(variables: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """The entries of `triton_models` that name this host or one of its groups, or name none."""
    here = {variables["inventory_hostname"], *variables["group_names"]}
    return [entry for entry in variables["triton_models"] if not entry.get("hosts") or here & set(entry["hosts"])]


def _artefact(name: str, artefacts: Mapping[str, Any], variables: Mapping[str, Any], bundled: bool) -> Optional[Mapping[str, Any]]:
    """The compiled file for this host's card and SDK; none fitting is a refusal. One of a bundle needs no other source."""
    if not artefacts:
        return None
    key = "{}/{}".format(variables["npufleet_card"].replace("RBLN-", ""), variables["npufleet_row"]["sdk"]["shape"])
    if key not in artefacts:
        raise Refusal(
            [
                "model {}: found compiled files for {}, wanted one for {}: compile it for this card and SDK and list it under "
                "`artefacts`".format(name, ", ".join(sorted(artefacts)), key)
            ]
        )
    against = [
        f"model {name}: artefact {place} needs `url` or `file`, and `sha256` (64 hex digits) where no record of it tells"
        for place, found in sorted(artefacts.items())
        if not re.fullmatch("[0-9a-f]{64}", str(found.get("sha256"))) or not ("url" in found or "file" in found or bundled)
    ]
    if against:
        raise Refusal(against)
    return artefacts[key]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def config_of(served: Mapping[str, Any]) -> bytes:
    """The config.pbtxt of a config as Triton's HTTP service tells it."""
    from google.protobuf import json_format

    return print_config(json_format.ParseDict(dict(served), schema.load()[0](), ignore_unknown_fields=True))


def parse_config(text: str, path: str) -> Any:
    """config.pbtxt as Triton's ModelConfig. Raises Refusal where Triton could not parse it."""
    config, findings = schema.parse(text, os.path.basename(os.path.dirname(path)), path)
    if findings:
        raise Refusal(reasons(findings))
    return config


def print_config(config: Any) -> bytes:
    """ModelConfig as text: fields in schema order and maps sorted, so that equal configs are equal bytes."""
    from google.protobuf import text_format

    return text_format.MessageToString(config).encode()


def _place(
    config: Any, entry: Mapping[str, Any], record: Optional[Mapping[str, Any]], variables: Mapping[str, Any]
) -> Tuple[List[int], List[str]]:
    """Give the model its NPUs and instances; returns the bytes that it takes on each NPU of the host, and reasons why not.

    Every KIND_MODEL group gets the instances, and a rbln model without a group gets one group.
    """
    total = int(variables["npufleet_npus"])
    npus = [int(npu) for npu in entry.get("npus") or range(total)]
    span = record["devices"] if record else 1
    absent = [number for number in npus if not 0 <= number < total]
    if absent:
        return [], [f"npus names {', '.join(map(str, absent))}, this host has {total} NPUs, 0 to {total - 1}"]
    if span > len(npus):
        return [], [f"one instance spans {span} NPUs, it may use {len(npus)}: compile it for fewer or give it more under npus"]
    instances = _profile(config, entry, variables)
    kind_model = config.instance_group.add().KIND_MODEL
    del config.instance_group[-1]
    if config.backend == "rbln" and not config.instance_group:
        config.instance_group.add().kind = kind_model
    places = len(npus) // span
    for group in config.instance_group:
        if group.kind == kind_model:
            group.count = places * instances
    if entry.get("npus"):
        config.parameters["npus"].string_value = ",".join(map(str, npus))
    if span > 1:
        config.parameters["npus_per_instance"].string_value = str(span)
    memory = [0] * total
    # Only models of the rbln backend have a record.
    taken = record["device_memory"] if record else []
    for place in range(places * span):
        known = taken[place % span] if taken else 0
        memory[npus[place]] += (size(entry["device_memory"]) if entry.get("device_memory") else known) * instances
    return memory, []


def _profile(config: Any, entry: Mapping[str, Any], variables: Mapping[str, Any]) -> int:
    """Instances on each NPU; a profile also sets the dynamic batcher of a rbln model that does not set it itself."""
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
    """Manifests of all models placed on this host, and the reasons why some cannot be; of other models, where they are given."""
    found, findings, more = linted(variables, placed=placed)
    return found, [*reasons(findings), *more]


def linted(
    variables: Mapping[str, Any], only: Collection[str] = (), placed: Optional[List[Mapping[str, Any]]] = None
) -> Tuple[Dict[str, Manifest], List[Finding], List[str]]:
    """(manifests of the models placed on this host, what the linter finds of them, other reasons against them).

    `only` are the models that are asked for; the others are read for what they are to those. `placed` are those of this host.
    """
    placed = placed_here(variables) if placed is None else placed
    found: Dict[str, Manifest] = {}
    findings: List[Finding] = []
    more: List[str] = []
    here: List[Mapping[str, Any]] = []
    for entry in placed:
        if cloud(entry):
            more += _unread(entry, variables)
        else:
            here.append(entry)
    read: Dict[str, Model] = {}
    for entry in here:
        name = entry["name"]
        wanted = not only or name in only
        try:
            model_source = source(entry, variables)
        except Refusal as refusal:
            if wanted:
                findings += refusal.findings if isinstance(refusal, Unreadable) else []
                more += [] if isinstance(refusal, Unreadable) else refusal.reasons
            continue
        read[name] = model_source.model
        if wanted:
            made, against = _rendered(model_source, entry, variables)
            findings += model_source.findings
            more += against
            if not against and not reasons(model_source.findings):
                found[name] = made
    unread = [entry["name"] for entry in placed if entry["name"] not in read]
    shared = lint.check_together(read, unread, HERE)
    return found, findings + [finding for finding in shared if not only or finding.model in only], more


def to_release(manifest: Manifest) -> Dict[str, Any]:
    """What a host makes a release of: its facts, and its files with the content of small ones in Base64."""
    files: Dict[str, Any] = {}
    for path, facts in manifest["files"].items():
        files[path] = dict(facts)
        if not facts["blob"]:
            files[path]["content"] = base64.b64encode(manifest["contents"][path]).decode()
    keys = ("source", "release", "versions", "steps", "cached", "shape")
    return {**{key: value for key, value in manifest.items() if key in keys}, "files": files}
