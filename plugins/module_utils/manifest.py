"""What of a model goes to a host: its files, rendered for that host, and the two digests. Runs on the controller.

`source` is equal on every host; `release` is what this host gets after rendering. Both travel inside the served
config.pbtxt as parameters, so the server itself can be asked what it has loaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import compiled
from ansible_collections.npufleet.triton.plugins.module_utils.blobs import file_digest
from ansible_collections.npufleet.triton.plugins.module_utils.concerns.server import size
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal

# Files of this size and more, and compiled files of any size, are kept once per host and linked.
BLOB_BYTES = 1 << 20
SOURCE = "npufleet_source"
RELEASE = "npufleet_release"
ARTEFACT_PATH = "1/model.rbln"
# How a rbln model is served where answers leave only when `execute` returns: the next batch is joined by another instance
# while one is on the NPU, and throughput waits a little for a full batch.
PROFILES = {"throughput": {"instances": 2, "delay_us": 3000}, "latency": {"instances": 2, "delay_us": 0}}
# From this Triton on answers may leave from another thread: one instance keeps its NPU busy, and both profiles are one.
ANSWERS_LATER = (2, 51)
LEFT_OUT = ("__pycache__", ".git")


def manifest(entry: Mapping[str, Any], variables: Mapping[str, Any]) -> Dict[str, Any]:
    """One model for one host.

    Returns {"name", "source", "release", "versions": [served version numbers as strings],
    "files": {path: {"sha256", "blob"}}, "contents": {path: bytes} of what is not a blob,
    "origins": {sha256: {"file": path} or {"url": address}} of blobs, "memory": [bytes on each NPU of the host],
    "steps": names of the models that an ensemble has as its steps, "cached": whether its answers may come from a response cache,
    "shape": digest of its config without the two digests, "switch": `beside` or `unload_first`}. Raises Refusal with every reason.
    """
    name = entry["name"]
    directory = os.path.join(entry.get("repository") or variables["npufleet_model_repository"], name)
    if not os.path.isfile(os.path.join(directory, "config.pbtxt")):
        raise Refusal([f"model {name}: found no {directory}/config.pbtxt: every model is a directory with one"])
    artefacts = {key: compiled.digested(one) for key, one in (entry.get("artefacts") or {}).items()}
    artefact = _artefact(name, artefacts, variables)
    files: Dict[str, Dict[str, Any]] = {}
    contents: Dict[str, bytes] = {}
    origins: Dict[str, Dict[str, str]] = {}
    for path in _paths(directory):
        full = os.path.join(directory, path)
        if os.path.getsize(full) >= BLOB_BYTES:
            digest = file_digest(full)
            files[path] = {"sha256": digest, "blob": True}
            origins[digest] = {"file": full}
        else:
            with open(full, "rb") as source:
                contents[path] = source.read()
            files[path] = {"sha256": _digest(contents[path]), "blob": False}
    table = {key: one["sha256"] for key, one in sorted(artefacts.items())}
    source_digest = _tree_digest({path: one["sha256"] for path, one in files.items()}, table)
    if artefact:
        path = artefact.get("path", ARTEFACT_PATH)
        files[path] = {"sha256": artefact["sha256"], "blob": True}
        origins[artefact["sha256"]] = {key: artefact[key] for key in ("file", "url") if key in artefact}
    config = parse_config(contents["config.pbtxt"].decode(), os.path.join(directory, "config.pbtxt"))
    if config.name and config.name != name:
        raise Refusal([f"model {name}: config.pbtxt names it {config.name!r}: the two must be equal"])
    config.name = name
    if config.backend == "rbln" and not any(path.endswith(".rbln") for path in files):
        raise Refusal(
            [
                f"model {name}: found no compiled file (.rbln) in {directory} and none under `artefacts`, wanted one "
                "for backend rbln: compile it for this card and SDK and list it under `artefacts`"
            ]
        )
    record: Optional[Dict[str, Any]] = None
    reasons: List[str] = []
    if config.backend == "rbln" and artefact:
        record, reasons = compiled.record_of(artefact, variables["npufleet_card"])
        if record and not reasons:
            reasons = compiled.complete(config, record)
            beside = artefact.get("path", ARTEFACT_PATH) + compiled.SUFFIX
            contents[beside] = json.dumps(record, indent=1, sort_keys=True).encode()
            files[beside] = {"sha256": _digest(contents[beside]), "blob": False}
    memory, more = _place(config, entry, record, variables)
    reasons += more
    if reasons:
        raise Refusal([f"model {name}: {reason}" for reason in reasons])
    shape = _digest(print_config(config))
    config.parameters[SOURCE].string_value = source_digest
    files["config.pbtxt"] = {"sha256": _digest(print_config(config)), "blob": False}
    release_digest = _tree_digest({path: one["sha256"] for path, one in files.items()}, {})
    config.parameters[RELEASE].string_value = release_digest
    contents["config.pbtxt"] = print_config(config)
    files["config.pbtxt"]["sha256"] = _digest(contents["config.pbtxt"])
    return {
        "name": name,
        "source": source_digest,
        "release": release_digest,
        "versions": served_versions(config, sorted(files)),
        "files": files,
        "contents": contents,
        "origins": origins,
        "memory": memory,
        "steps": sorted({step.model_name for step in config.ensemble_scheduling.step}),
        "cached": config.response_cache.enable,
        "shape": shape,
        "switch": entry.get("switch") or "beside",
    }


def placed_here(models: List[Mapping[str, Any]], host: str, groups: List[str]) -> List[Mapping[str, Any]]:
    """The entries of `triton_models` that name this host or one of its groups, or name none."""
    return [entry for entry in models if not entry.get("hosts") or {host, *groups} & set(entry["hosts"])]


def _artefact(name: str, artefacts: Mapping[str, Any], variables: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    """The compiled file for this host's card and SDK; none fitting is a refusal."""
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
    reasons = [
        f"model {name}: artefact {place} needs `url` or `file`, and `sha256` (64 hex digits) where no record of it tells"
        for place, found in sorted(artefacts.items())
        if not re.fullmatch("[0-9a-f]{64}", str(found.get("sha256"))) or not ("url" in found or "file" in found)
    ]
    if reasons:
        raise Refusal(reasons)
    return artefacts[key]


def _paths(directory: str) -> List[str]:
    found = []
    for base, names, files in os.walk(directory):
        names[:] = sorted(one for one in names if one not in LEFT_OUT)
        found += [os.path.relpath(os.path.join(base, one), directory) for one in files if not one.endswith(".pyc")]
    return sorted(found)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _tree_digest(files: Mapping[str, str], table: Mapping[str, str]) -> str:
    lines = [f"{files[path]} {path}\n" for path in sorted(files)]
    lines += [f"{table[key]} artefact {key}\n" for key in sorted(table)]
    return _digest("".join(lines).encode())


def _schema() -> Any:
    """Triton's own schema of config.pbtxt, out of tritonclient but without its gRPC client (0.3 s of imports less)."""
    package = importlib.util.find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        raise Refusal(["the controller has no tritonclient: `pip install -r requirements.txt`"])
    path = os.path.join(next(iter(package.submodule_search_locations)), "grpc", "model_config_pb2.py")
    spec = importlib.util.spec_from_file_location("npufleet_model_config_pb2", path)
    if spec is None or spec.loader is None:
        raise Refusal([f"tritonclient has no {path}: `pip install -r requirements.txt`"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_SCHEMA: List[Any] = []


def _model_config() -> Any:
    """An empty ModelConfig."""
    if not _SCHEMA:
        _SCHEMA.append(_schema())
    return _SCHEMA[0].ModelConfig()


def config_of(served: Mapping[str, Any]) -> bytes:
    """The config.pbtxt of a config as Triton's HTTP service tells it."""
    from google.protobuf import json_format

    return print_config(json_format.ParseDict(dict(served), _model_config(), ignore_unknown_fields=True))


def parse_config(text: str, path: str) -> Any:
    """config.pbtxt as Triton's ModelConfig; what Triton could not parse is refused with the parser's line."""
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, _model_config())
    except text_format.ParseError as error:
        raise Refusal([f"{path}:{error}: Triton would refuse this file"]) from error


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
    npus = [int(one) for one in entry.get("npus") or range(total)]
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
    for place in range(places * span):
        known = record["device_memory"][place % span] if record and record["device_memory"] else 0
        memory[npus[place]] += (size(entry["device_memory"]) if entry.get("device_memory") else known) * instances
    return memory, []


def _profile(config: Any, entry: Mapping[str, Any], variables: Mapping[str, Any]) -> int:
    """Instances on each NPU; a profile also sets the dynamic batcher of a rbln model that does not set it itself."""
    profile = PROFILES.get(entry.get("profile") or "")
    if profile is None or config.backend != "rbln":
        return int(entry.get("instances") or 1)
    late = tuple(int(one) for one in variables["npufleet_row"]["triton"]["version"].split(".")[:2]) >= ANSWERS_LATER
    batcher = config.dynamic_batching
    if config.max_batch_size > 1 and not batcher.preferred_batch_size and not batcher.max_queue_delay_microseconds:
        batcher.SetInParent()
        if profile["delay_us"] and not late:
            batcher.preferred_batch_size.append(config.max_batch_size)
            batcher.max_queue_delay_microseconds = profile["delay_us"]
    return int(entry.get("instances") or (1 if late else profile["instances"]))


def served_versions(config: Any, paths: List[str]) -> List[str]:
    """The versions that Triton will serve under the model's version policy (default: the latest one)."""
    numbers = sorted({int(path.split("/")[0]) for path in paths if re.match(r"[1-9]\d*/", path)})
    policy = config.version_policy
    if policy.HasField("all"):
        chosen = numbers
    elif policy.HasField("specific"):
        chosen = [number for number in numbers if number in policy.specific.versions]
    else:
        chosen = numbers[-(policy.latest.num_versions or 1) :]
    if not chosen:
        raise Refusal(
            ["model {}: its version policy selects none of versions {}".format(config.name, numbers or "(no version directory)")]
        )
    return [str(number) for number in chosen]


def manifests(variables: Mapping[str, Any]) -> Tuple[Dict[str, Dict[str, Any]], List[str]]:
    """Manifests of all models placed on this host, and the reasons why some cannot be."""
    found: Dict[str, Dict[str, Any]] = {}
    reasons: List[str] = []
    placed = placed_here(variables["triton_models"], variables["inventory_hostname"], variables["group_names"])
    for entry in placed:
        try:
            found[entry["name"]] = manifest(entry, variables)
        except Refusal as refusal:
            reasons += refusal.reasons
    return found, reasons + _missing_steps(found, [entry["name"] for entry in placed])


def _missing_steps(found: Mapping[str, Mapping[str, Any]], placed: List[str]) -> List[str]:
    """Why ensembles could not be loaded: Triton wants every step of one beside it."""
    reasons = []
    for name, one in found.items():
        for step in sorted(set(one["steps"]) - set(placed)):
            reasons.append(
                f"model {name}: its step {step} is not placed on this host: list it in `triton_models`, for the same hosts"
            )
    return reasons
