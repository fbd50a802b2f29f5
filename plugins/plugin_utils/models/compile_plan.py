"""Which models have to be compiled, from their specs and the records of what was compiled before. Controller only.

A spec is {"name", "source": {"onnx": file} or {"torch": "module:function", "path": directory}, "inputs": [{"name", "shape":
without the batch, "dtype"}], and, where wanted, "outputs", "batches", "devices", "npu", "output": directory}. The program that
compiles is files/compile/rbln_compile.py; it writes the record that is read here.
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

KEYS = ("name", "source", "inputs", "outputs", "batches", "devices", "npu", "output")
FILE = "model.rbln"


def plan(models: Sequence[Any], card: str, sdk: Mapping[str, str], directory: str) -> List[Dict[str, Any]]:
    """What to do for each spec, with this card and the release row's SDK ({"version", "shape"}).

    Returns [{"name", "key": such as "CA22/0.9", "why": the reason to compile, "" without one, "push": what the program reads
    (a file, or a directory), "file": path of the compiled file on the controller, "artefacts": what a model of `triton_models`
    lists for it, {} when it has to be compiled, "spec": what the program is given}]. Raises Refusal with everything that is
    wrong with any spec.
    """
    reasons: List[str] = []
    for number, model in enumerate(models):
        reasons += _flaws(model, f"model {model['name']}" if isinstance(model, dict) and model.get("name") else f"entry {number}")
    names = [model.get("name") for model in models if isinstance(model, dict)]
    reasons += [
        f"model {name}: is listed more than once" for name in sorted({str(name) for name in names if names.count(name) > 1})
    ]
    if reasons:
        raise Refusal(reasons)
    return [_planned(model, card, sdk, directory) for model in models]


def _planned(model: Mapping[str, Any], card: str, sdk: Mapping[str, str], directory: str) -> Dict[str, Any]:
    source = model["source"]
    npu = model.get("npu") or card
    key = "{}/{}".format(npu.replace("RBLN-", ""), sdk["shape"])
    where = os.path.join(placed(model.get("output") or directory), model["name"], key.replace("/", "-"), FILE)
    push = placed(source["onnx"] if "onnx" in source else source["path"])
    spec: Dict[str, Any] = {
        "name": model["name"],
        "npu": npu,
        "sdk": sdk["version"],
        "devices": model.get("devices", 1),
        "batches": model.get("batches", [1]),
        "inputs": model["inputs"],
        "outputs": model.get("outputs"),
        "output": FILE,
    }
    if "onnx" in source:
        spec["source"] = {"kind": "onnx", "path": "source/" + os.path.basename(push)}
    else:
        module, function = source["torch"].split(":")
        spec["source"] = {"kind": "torch", "path": "source", "module": module, "function": function}
    content = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    spec["digests"] = {"sha256": tree_digest(push), "spec": content}
    why, digest = _why(where, spec)
    artefacts = {key: {"file": where, "sha256": digest}} if digest else {}
    return {"name": model["name"], "key": key, "why": why, "push": push, "file": where, "artefacts": artefacts, "spec": spec}


def _why(path: str, spec: Mapping[str, Any]) -> Tuple[str, Optional[str]]:
    """(why it has to be compiled, None), or ("", digest of the compiled file that is there)."""
    if not os.path.isfile(path):
        return "there is no compiled file yet", None
    try:
        with open(path + ".json", encoding="utf-8") as source:
            record = json.load(source)
        known = (record["npu"], record["source"]["sha256"], record["source"]["spec"], record["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"there is no record beside {path}", None
    if known[0] != spec["npu"]:
        return f"it is compiled for {known[0]}, wanted {spec['npu']}", None
    if known[1] != spec["digests"]["sha256"]:
        return "its source changed", None
    if known[2] != spec["digests"]["spec"]:
        return f"its spec or the SDK changed: compiled with {record.get('compiler_version')}, wanted {spec['sdk']}", None
    if file_digest(path) != known[3]:
        return f"{path} is not the file of its record", None
    return "", known[3]


def placed(path: str) -> str:
    """A path of the controller in full: tasks would look for one that is not elsewhere than the shell does."""
    return os.path.abspath(os.path.expanduser(path))


def tree_digest(path: str) -> str:
    """SHA-256 of a file, or over the files of a directory and their places."""
    if os.path.isfile(path):
        return file_digest(path)
    digest = hashlib.sha256()
    # The files of a directory come before what is below it
    for file in sorted(
        walk(path, path).files, key=lambda entry: [(at < entry.count("/"), part) for at, part in enumerate(entry.split("/"))]
    ):
        digest.update(f"{file_digest(os.path.join(path, file))} {file}\n".encode())
    return digest.hexdigest()


def _flaws(model: Any, where: str) -> Iterator[str]:
    """Everything that is wrong with a spec: found, wanted."""
    if not isinstance(model, dict):
        yield f"{where}: found {_shown(model)}, wanted a mapping with {', '.join(KEYS[:3])}"
        return
    for key in sorted(set(model) - set(KEYS)):
        yield f"{where}: found the key {key}, wanted only {', '.join(KEYS)}"
    if not re.fullmatch(r"\w[\w.-]*", str(model.get("name", ""))):
        yield f"{where}: name: found {_shown(model.get('name'))}, wanted letters, digits, `.`, `_` and `-`"
    yield from _flaws_of_source(model.get("source"), where)
    seen: Set[str] = set()
    for side in ("inputs", "outputs"):
        tensors = model.get(side)
        if side == "outputs" and tensors is None:
            continue
        if not isinstance(tensors, list) or not tensors:
            yield f"{where}: {side}: found {_shown(tensors)}, wanted a list such as [{{name: x, shape: [64], dtype: float32}}]"
            continue
        for tensor in tensors:
            name, shape, kind = (tensor.get(key) if isinstance(tensor, dict) else None for key in ("name", "shape", "dtype"))
            if (
                not isinstance(tensor, dict)
                or set(tensor) != {"name", "shape", "dtype"}
                or not isinstance(name, str)
                or name in seen
            ):
                yield f"{where}: {side}: found {_shown(tensor)}, wanted name, shape and dtype, and a name that no other has"
                continue
            seen.add(name)
            if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
                yield f"{where}: {side}: {name}: found shape {_shown(shape)}, wanted sizes of 1 and more, without the batch"
            if kind not in DTYPES:
                yield f"{where}: {side}: {name}: found dtype {_shown(kind)}, wanted one of {', '.join(DTYPES)}"
    batches = model.get("batches", [1])
    if not isinstance(batches, list) or not all(_is_count(batch) for batch in batches) or len(set(batches)) != len(batches):
        yield f"{where}: batches: found {_shown(batches)}, wanted different sizes such as [1, 4], or [] for no batch dimension"
    if not _is_count(model.get("devices", 1)):
        yield f"{where}: devices: found {_shown(model['devices'])}, wanted the number of NPUs that one instance spans"
    for key in ("npu", "output"):
        if not isinstance(model.get(key, ""), str):
            yield f"{where}: {key}: found {_shown(model[key])}, wanted a text"


def _flaws_of_source(source: Any, where: str) -> Iterator[str]:
    kinds = [kind for kind in ("onnx", "torch") if isinstance(source, dict) and isinstance(source.get(kind), str)]
    if len(kinds) != 1 or set(source) != ({"onnx"} if kinds == ["onnx"] else {"torch", "path"}):
        yield f"{where}: source: found {_shown(source)}, wanted {{onnx: file}} or {{torch: 'module:function', path: directory}}"
    elif kinds == ["onnx"]:
        if not os.path.isfile(placed(source["onnx"])):
            yield f"{where}: source: found no {source['onnx']} on the controller, wanted the ONNX file there"
    else:
        if not re.fullmatch(r"[\w.]+:\w+", source["torch"]):
            yield f"{where}: source: torch: found {source['torch']}, wanted module:function, which gives the module to compile"
        if not os.path.isdir(placed(str(source["path"]))):
            yield f"{where}: source: found no directory {source['path']} on the controller, wanted the one with the Python module"
            return
        # It is sent as it lies: what is behind a link would be as well
        path = placed(str(source["path"]))
        for problem in walk(path, path).problems:
            yield f"{where}: source: {problem.path}: found {problem.found}, wanted {problem.wanted}: {problem.do}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, default=str)
