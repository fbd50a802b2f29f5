# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The choice of the models to compile, made on the controller from the specs of models and the records of existing compiled files.

A spec describes how to compile one model. Its required keys are "name", "source" and "inputs". `source` is {"onnx": file} or
{"torch": "module:function", "path": directory}. `inputs` is [{"name", "shape" without the batch dimension, "dtype"}]. Optional keys
are "outputs" (in the form of "inputs"), "batches" (batch sizes), "devices" (the number of NPUs that one instance spans), "npu" (the
card), and "output" (the directory for compiled files). files/compile/rbln_compile.py compiles a model and writes its record.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.module_utils.store.blobs import file_digest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.compiled import DTYPES
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import walk

SPEC_KEYS = ("name", "source", "inputs", "outputs", "batches", "devices", "npu", "output")
COMPILED_FILE = "model.rbln"


def plan(models: Sequence[Any], card: str, sdk: Mapping[str, str], directory: str) -> List[Dict[str, Any]]:
    """Return an entry for each spec. `card` is for specs without "npu". `sdk` is the SDK of the release row. Raises Refusal.

    An entry has these keys:
      "name" and "target": the model, and its card and SDK, such as "CA22/0.9"
      "why": the reason to compile the model, or ""
      "push": the file or directory on the controller that the compile program needs
      "file": the path of the compiled file on the controller
      "artefacts": the value of `artefacts` in `triton_models`, or {} if the model has to be compiled
      "spec": the input of the compile program
    """
    reasons: List[str] = []
    for number, model in enumerate(models):
        reasons += _errors(model, f"model {model['name']}" if isinstance(model, dict) and model.get("name") else f"entry {number}")
    names = [model.get("name") for model in models if isinstance(model, dict)]
    duplicates = sorted({str(name) for name in names if names.count(name) > 1})
    reasons += [f"model {name} is listed several times, expected once. Remove the others" for name in duplicates]
    if reasons:
        raise Refusal(reasons)
    return [_entry(model, card, sdk, directory) for model in models]


def _entry(model: Mapping[str, Any], card: str, sdk: Mapping[str, str], directory: str) -> Dict[str, Any]:
    source = model["source"]
    npu = model.get("npu") or card
    target = "{}/{}".format(npu.replace("RBLN-", ""), sdk["shape"])
    file = os.path.join(full_path(model.get("output") or directory), model["name"], target.replace("/", "-"), COMPILED_FILE)
    push = full_path(source["onnx"] if "onnx" in source else source["path"])
    spec: Dict[str, Any] = {
        "name": model["name"],
        "npu": npu,
        "sdk": sdk["version"],
        "devices": model.get("devices", 1),
        "batches": model.get("batches", [1]),
        "inputs": model["inputs"],
        "outputs": model.get("outputs"),
        "output": COMPILED_FILE,
    }
    if "onnx" in source:
        spec["source"] = {"kind": "onnx", "path": "source/" + os.path.basename(push)}
    else:
        module, function = source["torch"].split(":")
        spec["source"] = {"kind": "torch", "path": "source", "module": module, "function": function}
    content = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    spec["digests"] = {"sha256": tree_digest(push), "spec": content}
    why, digest = _reason_to_compile(file, spec)
    artefacts = {target: {"file": file, "sha256": digest}} if digest else {}
    return {"name": model["name"], "target": target, "why": why, "push": push, "file": file, "artefacts": artefacts, "spec": spec}


def _reason_to_compile(path: str, spec: Mapping[str, Any]) -> Tuple[str, Optional[str]]:
    """Return (the reason to compile a model, None), or ("", the digest of its compiled file)."""
    if not os.path.isfile(path):
        return "it has no compiled file yet", None
    try:
        with open(path + ".json", encoding="utf-8") as source:
            record = json.load(source)
        source_record, npu, sha256 = record["source"], record["npu"], record["sha256"]
        content, options = source_record["sha256"], source_record["spec"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{path} has no record beside it", None
    if npu != spec["npu"]:
        return f"it is compiled for {npu}, expected {spec['npu']}", None
    if content != spec["digests"]["sha256"]:
        return "its source changed", None
    if options != spec["digests"]["spec"]:
        return f"its spec or the SDK changed: it is compiled with {record.get('compiler_version')}, expected {spec['sdk']}", None
    if file_digest(path) != sha256:
        return f"{path} has another digest than its record", None
    return "", sha256


def full_path(path: str) -> str:
    """Return the absolute form of a path. A task would resolve a relative path in another directory than the user's shell."""
    return os.path.abspath(os.path.expanduser(path))


def tree_digest(path: str) -> str:
    """Return the SHA-256 of a file, or of the contents and paths of all files in a directory."""
    if os.path.isfile(path):
        return file_digest(path)
    digest = hashlib.sha256()
    for file in sorted(walk(path, path).files, key=_files_first):
        digest.update(f"{file_digest(os.path.join(path, file))} {file}\n".encode())
    return digest.hexdigest()


def _files_first(path: str) -> List[Tuple[bool, str]]:
    """Return a sort key by which the files of a directory come before the files of its subdirectories."""
    return [(level < path.count("/"), part) for level, part in enumerate(path.split("/"))]


def _errors(model: Any, location: str) -> Iterator[str]:
    if not isinstance(model, dict):
        yield f"{location} is {_json_text(model)}, expected a map with {', '.join(SPEC_KEYS[:3])}. Correct it"
        return
    for key in sorted(set(model) - set(SPEC_KEYS)):
        yield f"{location}: {key} is an unknown key, expected one of {', '.join(SPEC_KEYS)}. Remove it"
    if not re.fullmatch(r"\w[\w.-]*", str(model.get("name", ""))):
        yield f"{location}: name is {_json_text(model.get('name'))}, expected letters, digits, `.`, `_` and `-`. Correct it"
    yield from _source_errors(model.get("source"), location)
    names: Set[str] = set()
    for side in ("inputs", "outputs"):
        if side == "inputs" or model.get(side) is not None:
            yield from _tensor_errors(model.get(side), f"{location}: {side}", names)
    batches = model.get("batches", [1])
    if not isinstance(batches, list) or not all(_is_count(batch) for batch in batches) or len(set(batches)) != len(batches):
        expected = "different sizes such as [1, 4], or [] for no batch dimension"
        yield f"{location}: batches is {_json_text(batches)}, expected {expected}. Correct it"
    if not _is_count(model.get("devices", 1)):
        expected = "the number of NPUs that one instance spans"
        yield f"{location}: devices is {_json_text(model['devices'])}, expected {expected}. Correct it"
    for key in ("npu", "output"):
        if not isinstance(model.get(key, ""), str):
            yield f"{location}: {key} is {_json_text(model[key])}, expected a text. Correct it"


def _tensor_errors(tensors: Any, location: str, names: Set[str]) -> Iterator[str]:
    """Yield the errors of the inputs or of the outputs, and add their names to `names`."""
    if not isinstance(tensors, list) or not tensors:
        yield f"{location} is {_json_text(tensors)}, expected a list such as [{{name: x, shape: [64], dtype: float32}}]. Correct it"
        return
    for tensor in tensors:
        name, shape, dtype = (tensor.get(key) if isinstance(tensor, dict) else None for key in ("name", "shape", "dtype"))
        if not isinstance(name, str) or set(tensor) != {"name", "shape", "dtype"} or name in names:
            yield f"{location} contains {_json_text(tensor)}, expected a unique name, shape and dtype. Correct it"
            continue
        names.add(name)
        if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
            yield f"{location}: {name} has shape {_json_text(shape)}, expected sizes of 1 or more, without the batch. Correct it"
        if dtype not in DTYPES:
            yield f"{location}: {name} has dtype {_json_text(dtype)}, expected one of {', '.join(DTYPES)}. Correct it"


def _source_errors(source: Any, location: str) -> Iterator[str]:
    kinds = [kind for kind in ("onnx", "torch") if isinstance(source, dict) and isinstance(source.get(kind), str)]
    if len(kinds) != 1 or set(source) != ({"onnx"} if kinds == ["onnx"] else {"torch", "path"}):
        forms = "{onnx: file} or {torch: 'module:function', path: directory}"
        yield f"{location}: source is {_json_text(source)}, expected {forms}. Correct it"
    elif kinds == ["onnx"]:
        if not os.path.isfile(full_path(source["onnx"])):
            actual = f"{source['onnx']}, which is not on the controller"
            yield f"{location}: source is {actual}, expected the ONNX file. Correct its path"
    else:
        if not re.fullmatch(r"[\w.]+:\w+", source["torch"]):
            expected = "module:function, where the function returns the module to compile"
            yield f"{location}: source: torch is {source['torch']}, expected {expected}. Correct it"
        path = full_path(str(source["path"]))
        if not os.path.isdir(path):
            expected = "the directory of the Python module"
            yield f"{location}: source: path is {source['path']}, which is not on the controller, expected {expected}. Correct it"
            return
        for problem in walk(path, path).problems:
            yield f"{location}: source: {problem.path} is {problem.actual}, expected {problem.expected}. {problem.todo}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


def _json_text(value: Any) -> str:
    return "missing" if value is None else json.dumps(value, default=str)
