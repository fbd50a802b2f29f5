# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rules about a model's directory: its versions as Triton counts them, the backend's files, and the files that the config names."""

from __future__ import annotations

import math
import os
import re
from typing import Iterator

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, effects, python_model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import (
    CONFIG,
    MAX_VERSION,
    MIN_VERSION,
    Model,
    directory_version,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import BROKEN_LINK

# {ending of file names: the only backend that reads such files}
ENDINGS = {".rbln": "rbln", ".onnx": "onnxruntime", ".plan": "tensorrt", ".pt": "pytorch", ".dali": "dali"}
# Backends that need a file in each version directory
BACKENDS_WITH_FILES = ("rbln", "python", "onnxruntime", "openvino", "pytorch", "tensorrt", "tensorflow", "dali", "vllm")
COMPILE_FIRST = "Compile the model for this card and SDK, and list the file under `artefacts`"


def check(model: Model) -> Iterator[Finding]:
    """Yield the findings about a model's files."""
    yield from _directories(model)
    yield from _policy(model)
    served = set(model.served())
    for version in model.versions():
        # `_directories` reports a directory with another name, such as 9.bak for version 9.
        if str(version) in model.directories:
            yield from _version(model, str(version), version in served)
    yield from _links(model)
    yield from _labels(model)
    yield from _gpu_files(model)


def _directories(model: Model) -> Iterator[Finding]:
    """Yield the findings about directories that Triton reads as another version, or as no version."""
    rule, served = "version directory", model.served()
    for name in model.directories:
        number = directory_version(name)
        if number is None:
            if re.match(r"[^0-9]?[0-9]+", name):
                actual, expected = "a directory that is no version for Triton", "a plain number without a zero before it"
                yield model.file_warning(rule, name, actual, expected, "Rename it, or remove it", effects.IGNORES)
        elif not MIN_VERSION <= number <= MAX_VERSION:
            actual, expected = "a number too large for Triton", f"at most {MAX_VERSION}"
            yield model.file_error(rule, name, actual, expected, "Rename it", effects.CRASHES)
        elif name != str(number) or number < 0:
            actual = f"a directory that Triton reads as version {number}"
            expected, todo = "a plain number, or a name without digits at its beginning", "Rename it, or remove it"
            has_directory = str(number) in model.directories and number >= 0
            reads_files = not model.ensemble and model.backend not in ("identity", "repeat", "square")
            if has_directory:
                yield model.file_warning(rule, name, actual, expected, todo, f"reads {number}/ for that version")
            elif number in served and reads_files and model.has_all_files:
                yield model.file_error(rule, name, actual, expected, todo, _effect_of_missing(model))
            else:
                triton = f"counts it as version {number} and reads {number}/"
                yield model.file_warning(rule, name, actual, expected, todo, triton)


def _effect_of_missing(model: Model) -> str:
    return effects.HANGS_BEFORE_25_08 if model.backend == "python" else effects.REFUSES


def _links(model: Model) -> Iterator[Finding]:
    """Yield the errors of broken links directly in the model's directory. Triton ignores broken links in subdirectories."""
    for path, kind in sorted(model.listing.special.items()):
        if "/" not in path and kind == BROKEN_LINK:
            finding = model.file_error("files", path, kind, "a file or a directory", "Remove it, or correct its target")
            yield finding._replace(store=effects.STORE_REFUSES)


def _policy(model: Model) -> Iterator[Finding]:
    """Yield the findings about a version policy that selects no version, or that names missing versions."""
    versions, served = model.versions(), model.served()
    policy = model.config.version_policy
    kind = policy.WhichOneof("policy_choice")
    field = f"version_policy.{kind}" if kind else "version_policy"
    if not served and (versions or model.has_all_files):
        actual = f"a policy that selects none of versions {listed(versions)}" if versions else "without a version directory"
        misplaced = sorted(model.files & {backend.file for backend in backends.ALL_BACKENDS.values()})
        if misplaced:
            todo = f"Move {listed(misplaced)} into a version directory, such as 1/"
        elif not versions and model.backend == "rbln":
            todo = COMPILE_FIRST
        elif not versions:
            todo = "Add a version directory with a file in it, as git and the store do not keep an empty one"
        else:
            todo = "Correct the policy, or the directories"
        yield model.error("version policy", field, actual, "one version or more", todo)
    absent = [version for version in policy.specific.versions if version not in versions] if kind == "specific" else []
    if served and absent:
        actual = f"{listed(absent)}, which have no directory"
        yield model.warning("version policy", field, actual, f"some of {listed(versions)}", "Correct the policy, or add them")


def _version(model: Model, directory: str, served: bool) -> Iterator[Finding]:
    """Yield the findings about the files of one version. In a version that is not served, a missing file is only a warning."""
    files, file = model.below(directory), _backend_file(model)
    if (not files and not model.has_all_files) or directory in model.listing.outside:
        return
    finding, triton = (model.file_error, _effect_of_missing(model)) if served else (model.file_warning, effects.IGNORES)
    if not files and not _exists(model, directory) and not _needs_file(model):
        expected = "a directory with a file, as git and the store do not keep an empty one"
        entry = model.file_warning("files", directory, "an empty version directory", expected, "Add its file, or a README", "")
        yield entry._replace(store=effects.STORE_OMITS)
    elif not files and not _exists(model, directory):
        yield finding("files", directory, "an empty version directory", f"a directory with {file}", "Add the file", triton)
    elif not _has_file(model, directory):
        path = f"{directory}/{file}"
        content = model.listing.special.get(path, "") or ("a directory" if path in model.all_directories else "")
        few = listed(files[:5]) + (", ..." if len(files) > 5 else "")
        actual = f"a version whose {file} is {content}" if content else f"a version with {few}"
        todo = "Add the file, or set default_model_filename to another one"
        if model.backend == "rbln" and not any(name.endswith(".rbln") for name in files):
            todo = COMPILE_FIRST
        yield finding("files", directory, actual, f"{file} for backend {model.backend}", todo, triton)
    elif served and model.backend == "python" and file:
        yield from python_model.check(model, f"{directory}/{file}")
    for path in files:
        yield from _stray_files(model, directory, path)


def _stray_files(model: Model, directory: str, path: str) -> Iterator[Finding]:
    """Yield the findings about a file of a version that the backend does not read, or that Git LFS has not fetched."""
    full = f"{directory}/{path}"
    owner = ENDINGS.get(os.path.splitext(path)[1])
    if owner and python_model.is_pointer(python_model.content(model, full) or b""):
        yield model.file_error("files", full, "a pointer of Git LFS", "the compiled file", "Fetch it: git lfs pull")
    owner = "python" if path == backends.MODEL_PY else owner
    unknown = not model.ensemble and model.backend not in backends.ALL_BACKENDS
    reads_python = unknown or model.backend == "python" or model.config.runtime == backends.MODEL_PY
    if path == CONFIG:
        actual, expected = "a config that Triton does not read there", f"the config beside the version, as {model.name}/{CONFIG}"
        yield model.file_warning("files", full, actual, expected, "Move it", effects.IGNORES)
    elif owner and owner != model.backend and not reads_python and path != model.identity.file:
        reader = "an ensemble" if model.ensemble else f"backend {model.backend}"
        actual, expected = f"a file for backend {owner}", f"a file that {reader} reads"
        yield model.file_warning("files", full, actual, expected, "Remove it, or correct the backend", effects.IGNORES)


def _backend_file(model: Model) -> str:
    """Return the file that the backend reads in each version, or "" if this file is unknown."""
    if model.ensemble:
        return ""
    own_file = "" if model.backend == "vllm" else model.identity.file
    return own_file or (backends.MODEL_PY if model.config.runtime == backends.MODEL_PY else model.backend_facts.file)


def _needs_file(model: Model) -> bool:
    """Return True if Triton cannot load a version without the backend's file."""
    return not model.ensemble and model.has_all_files and model.backend in BACKENDS_WITH_FILES and bool(_backend_file(model))


def _exists(model: Model, directory: str) -> bool:
    """Return True if a version has the backend's file, as a file, a directory or another kind of entry."""
    if not _backend_file(model):
        return False
    path = os.path.normpath(f"{directory}/{_backend_file(model)}")
    # Python cannot import a directory, so it does not count as the file of a Python model.
    if model.backend == "python":
        return path in model.files
    return path in model.files or path in model.all_directories or model.listing.special.get(path, BROKEN_LINK) != BROKEN_LINK


def _has_file(model: Model, directory: str) -> bool:
    """Return True if a version has the backend's file or an alternative, or needs no file."""
    if not _needs_file(model) or _exists(model, directory):
        return True
    alternatives = {"dali": ("dali.py",), "pytorch": ("model.py", "model.pt") if model.python_runtime else ()}
    return any(file in model.below(directory) for file in alternatives.get(model.backend, ()))


def _labels(model: Model) -> Iterator[Finding]:
    """Yield the findings about label files that are missing or do not have one line for each class."""
    for index, tensor in enumerate(model.config.output):
        if not tensor.label_filename:
            continue
        field = f"output[{index}].label_filename"
        file = os.path.normpath(tensor.label_filename)
        if file not in model.files:
            actual = f"{tensor.label_filename}, which is not in the model's directory"
            yield model.error("labels", field, actual, "a file with a label on each line", "Add it beside config.pbtxt")
            continue
        classes = math.prod(tensor.dims)
        path = os.path.join(model.directory, file)
        if classes < 1 or not os.path.isfile(path) or not model.readable(file):
            continue
        with open(path, "rb") as source:
            lines = len(source.read().splitlines())
        if lines != classes:
            actual, expected = f"{tensor.label_filename} with {lines} labels", f"{classes}, one for each value of {tensor.name}"
            yield model.warning("labels", field, actual, expected, "Correct one of them")


def _gpu_files(model: Model) -> Iterator[Finding]:
    """Yield a warning for each file that the config names for a GPU."""
    for capability, file in sorted(model.config.cc_model_filenames.items()):
        absent = [version for version in model.served() if file not in model.below(str(version))]
        actual = f"{file}, which is not in version {listed(absent)}" if absent else f"{file} for a GPU"
        expected = "default_model_filename, as an NPU host has no GPU and never reads this file"
        yield model.warning("files", f"cc_model_filenames[{capability}]", actual, expected, "Remove it")
