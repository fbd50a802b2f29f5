"""Rules about a model's directory: versions as Triton counts them, the files that its backend reads, and those the config names."""

from __future__ import annotations

import os
import re
from typing import Iterator, List

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import python_model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import (
    ENDS,
    HANGS_OLD,
    IGNORES,
    REFUSES,
    Finding,
    listed,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import (
    CONFIG,
    FILES,
    LARGEST,
    Model,
    version_of,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.names import BACKENDS

# How the files end that only one backend reads
ENDINGS = {".rbln": "rbln", ".onnx": "onnxruntime", ".plan": "tensorrt", ".pt": "pytorch", ".dali": "dali"}
COMPILE = "compile the model for this card and SDK and list it under `artefacts`"


def check(model: Model) -> Iterator[Finding]:
    """Every finding about a model's files."""
    yield from _directories(model)
    yield from _policy(model)
    served = set(model.served())
    for version, directory in sorted(model.versions().items()):
        yield from _version(model, directory, version in served)
    yield from _labels(model)
    yield from _named(model)


def _directories(model: Model) -> Iterator[Finding]:
    """Names that are another version than they look, and names that only look like one."""
    rule = "version directory"
    for name in model.directories:
        number = version_of(name)
        if number is not None and number > LARGEST:
            wanted = f"at most {LARGEST}"
            yield model.file_error(rule, name, "a directory of that number", wanted, "rename it", ENDS)
        # Of -1 it would look for a directory 18446744073709551615.
        elif number is not None and not (name == str(number) and number >= 0):
            found = f"a directory that Triton takes for version {number}"
            yield model.file_error(rule, name, found, f"a plain number, or no digits first in {name}", "rename it, or take it out")
        elif number is None and re.match(r"[^0-9]?[0-9]+", name):
            found = "a directory that looks like a version and is none for Triton"
            wanted = "a plain number without a zero before it"
            yield model.file_warning(rule, name, found, wanted, "rename it, or take it out", IGNORES)


def _policy(model: Model) -> Iterator[Finding]:
    """A version policy has to select something; a compiled file that is yet to come brings its directory with it."""
    versions, served = sorted(model.versions()), model.served()
    policy = model.config.version_policy
    kind = policy.WhichOneof("policy_choice")
    field = f"version_policy.{kind}" if kind else "version_policy"
    if not served and (versions or model.settled):
        found = f"a policy that selects none of versions {listed(versions)}" if versions else "no version directory"
        misplaced = sorted(path for path in model.files if path in FILES.values())
        if misplaced:
            do = f"move {listed(misplaced)} into a version directory, such as 1/"
        elif not versions and model.backend == "rbln":
            do = COMPILE
        elif not versions:
            do = "make a version directory with a file in it, as git and the store carry no empty one"
        else:
            do = "correct the policy, or the directories"
        yield model.error("version policy", field, found, "one version or more", do)
    absent = [version for version in policy.specific.versions if version not in versions] if kind == "specific" else []
    if served and absent:
        found = f"{listed(absent)}, which have no directory"
        yield model.warning("version policy", field, found, f"some of {listed(versions)}", "correct the policy, or add them")


def _version(model: Model, directory: str, served: bool) -> Iterator[Finding]:
    """The files of one version; what a version lacks that is not served stands in nobody's way yet."""
    files = model.inside(directory)
    if not files and not model.settled:
        return
    finding, triton = (model.file_error, REFUSES) if served else (model.file_warning, IGNORES)
    if served and model.backend == "python":
        triton = HANGS_OLD
    if not files:
        do = "put its file in, or for an ensemble a README" if model.ensemble or model.backend not in FILES else "put it in"
        wanted = _wanted(model) or "a file, as git and the store carry no empty directory"
        yield finding("files", directory, "an empty version directory", wanted, do, triton)
    elif not _has_its_file(model, files):
        found = listed(files[:5]) + (", ..." if len(files) > 5 else "")
        do = "add it, or name another one as default_model_filename"
        if model.backend == "rbln" and not any(file.endswith(".rbln") for file in files):
            do = COMPILE
        yield finding("files", directory, found, f"{_wanted(model)} for backend {model.backend}", do, triton)
    elif served and model.backend == "python" and _wanted(model).endswith(".py"):
        yield from python_model.check(model, f"{directory}/{_wanted(model)}")
    for path in files:
        yield from _pointer(model, f"{directory}/{path}")
        base = os.path.basename(path)
        owner = "python" if path == "model.py" else ENDINGS.get(os.path.splitext(base)[1])
        unknown = not model.ensemble and model.backend not in BACKENDS
        reads_python = unknown or model.backend == "python" or model.config.runtime == "model.py"
        if path == CONFIG:
            found, wanted = "a config that Triton does not read there", f"it beside the version, as {model.name}/{CONFIG}"
            yield model.file_warning("files", f"{directory}/{path}", found, wanted, "move it", IGNORES)
        elif owner and owner != model.backend and not reads_python and path != model.config.default_model_filename:
            what = "an ensemble" if model.ensemble else f"backend {model.backend}"
            found, wanted = f"a file for backend {owner}", f"what {what} reads"
            yield model.file_warning("files", f"{directory}/{path}", found, wanted, "take it out, or correct the backend", IGNORES)


def _pointer(model: Model, path: str) -> Iterator[Finding]:
    """What Git LFS leaves in the place of a compiled file."""
    if os.path.splitext(path)[1] in ENDINGS and python_model.is_pointer(python_model.content(model, path) or b""):
        found, do = "a pointer that Git LFS left there", "fetch it: git lfs pull"
        yield model.file_error("files", path, found, "the compiled file itself", do)


def _wanted(model: Model) -> str:
    """The file that the backend reads in each version; "" where only the backend knows."""
    if model.ensemble:
        return ""
    if model.config.default_model_filename:
        return str(model.config.default_model_filename)
    return "model.py" if model.config.runtime == "model.py" else FILES.get(model.backend, "")


def _has_its_file(model: Model, files: List[str]) -> bool:
    wanted = os.path.normpath(_wanted(model) or ".")
    if wanted == "." or model.backend not in FILES or not model.settled:
        return True
    if model.backend == "dali" and "dali.py" in files:
        return True
    # A large ONNX model is a directory with a file of that name.
    return wanted in files or (model.backend == "onnxruntime" and f"{wanted}/model.onnx" in files)


def _labels(model: Model) -> Iterator[Finding]:
    """Label files of outputs, and whether they have a line for each class."""
    for index, tensor in enumerate(model.config.output):
        if not tensor.label_filename:
            continue
        field = f"output[{index}].label_filename"
        file = os.path.normpath(tensor.label_filename)
        if file not in model.files:
            found = f"{tensor.label_filename}, which is not in the model's directory"
            yield model.error("labels", field, found, "a file with a label on each line", "add it beside config.pbtxt")
            continue
        classes = 1
        for size in tensor.dims:
            classes *= size
        path = os.path.join(model.directory, file)
        if not os.path.isfile(path):
            continue
        with open(path, "rb") as source:
            lines = len(source.read().splitlines())
        if classes > 0 and lines != classes:
            wanted = f"{classes}, one for each value of {tensor.name}"
            yield model.warning("labels", field, f"{lines} labels in {tensor.label_filename}", wanted, "correct one of the two")


def _named(model: Model) -> Iterator[Finding]:
    """Files that the config names for a GPU."""
    for capability, file in sorted(model.config.cc_model_filenames.items()):
        absent = [version for number in model.served() if file not in model.inside(version := model.versions()[number])]
        found = f"{file}, which is not in version {listed(absent)}" if absent else f"{file} for a GPU"
        wanted = "default_model_filename, as an NPU host has no GPU and never reads it"
        yield model.warning("files", f"cc_model_filenames[{capability}]", found, wanted, "take it out")
