"""Rules about a model's directory: versions as Triton counts them, the files that its backend reads, and those the config names."""

from __future__ import annotations

import os
import re
from typing import Iterator

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, python_model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import (
    ENDS,
    HANGS_OLD,
    IGNORES,
    REFUSES,
    STORE_LEAVES_OUT,
    STORE_REFUSES,
    Finding,
    listed,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import (
    CONFIG,
    LARGEST,
    SMALLEST,
    Model,
    version_of,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import NOWHERE

# How the files end that only one backend reads
ENDINGS = {".rbln": "rbln", ".onnx": "onnxruntime", ".plan": "tensorrt", ".pt": "pytorch", ".dali": "dali"}
# Backends that read one file of each version
READS = ("rbln", "python", "onnxruntime", "openvino", "pytorch", "tensorrt", "tensorflow", "dali", "vllm")
COMPILE = "compile the model for this card and SDK and list it under `artefacts`"


def check(model: Model) -> Iterator[Finding]:
    """Every finding about a model's files."""
    yield from _directories(model)
    yield from _policy(model)
    served = set(model.served())
    for version, directory in sorted(model.versions().items()):
        # A directory of another name is told already.
        if directory in model.directories:
            yield from _version(model, directory, version in served)
    yield from _links(model)
    yield from _labels(model)
    yield from _named(model)


def _directories(model: Model) -> Iterator[Finding]:
    """Names that are another version than they look, and names that only look like one."""
    rule, served = "version directory", model.served()
    for name in model.directories:
        number = version_of(name)
        if number is None:
            if re.match(r"[^0-9]?[0-9]+", name):
                found = "a directory that looks like a version and is none for Triton"
                wanted = "a plain number without a zero before it"
                yield model.file_warning(rule, name, found, wanted, "rename it, or take it out", IGNORES)
        elif not SMALLEST <= number <= LARGEST:
            yield model.file_error(rule, name, "a directory of that number", f"at most {LARGEST}", "rename it", ENDS)
        elif name != str(number) or number < 0:
            found = f"a directory that Triton takes for version {number}"
            wanted, do = f"a plain number, or no digits first in {name}", "rename it, or take it out"
            real = str(number) in model.directories and number >= 0
            if number in served and not real and _reads_files(model):
                yield model.file_error(rule, name, found, wanted, do, _missing(model))
            else:
                triton = f"reads {number}/ for that version" if real else f"takes it for version {number}, in a directory {number}/"
                yield model.file_warning(rule, name, found, wanted, do, triton)


def _reads_files(model: Model) -> bool:
    """Return True if the model's backend reads something of a version, as far as is known."""
    return not model.ensemble and model.backend not in ("identity", "repeat", "square") and model.settled


def _missing(model: Model) -> str:
    """Return what Triton does where a version lacks its file."""
    return HANGS_OLD if model.backend == "python" else REFUSES


def _links(model: Model) -> Iterator[Finding]:
    """Links right in the model's directory that lead nowhere, at which Triton gives the model up. It does not look deeper."""
    for path, kind in sorted(model.others.items()):
        if "/" not in path and kind == NOWHERE:
            do = "remove it, or correct where it leads"
            entry = model.file_error("files", path, kind, "a file or a directory", do)
            yield entry._replace(store=STORE_REFUSES)


def _policy(model: Model) -> Iterator[Finding]:
    """A version policy has to select something; a compiled file that is yet to come brings its directory with it."""
    versions, served = sorted(model.versions()), model.served()
    policy = model.config.version_policy
    kind = policy.WhichOneof("policy_choice")
    field = f"version_policy.{kind}" if kind else "version_policy"
    if not served and (versions or model.settled):
        found = f"a policy that selects none of versions {listed(versions)}" if versions else "no version directory"
        names = {backend.file for backend in backends.ALL.values()}
        misplaced = sorted(path for path in model.files if path in names)
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
    if (not files and not model.settled) or directory in model.outside:
        return
    finding, triton = (model.file_error, _missing(model)) if served else (model.file_warning, IGNORES)
    if not files and not _file_in(model, directory) and not _needs(model):
        # Only git and the store lose it.
        wanted, do = "a file, as git and the store carry no empty directory", "put its file in, or a README"
        # Where it is gone, there is no version to serve, which is told of a model that is complete.
        entry = model.file_warning("files", directory, "an empty version directory", wanted, do, "")
        yield entry._replace(store=STORE_LEAVES_OUT)
    elif not files and not _file_in(model, directory):
        yield finding("files", directory, "an empty version directory", _wanted(model), "put it in", triton)
    elif not _has_its_file(model, directory):
        path = f"{directory}/{_wanted(model)}"
        found = (
            model.others.get(path, "")
            or ("a directory" if path in model.tree else "")
            or listed(files[:5]) + (", ..." if len(files) > 5 else "")
        )
        do = "add it, or name another one as default_model_filename"
        if model.backend == "rbln" and not any(file.endswith(".rbln") for file in files):
            do = COMPILE
        yield finding("files", directory, found, f"{_wanted(model)} for backend {model.backend}", do, triton)
    elif served and model.backend == "python" and _wanted(model):
        yield from python_model.check(model, f"{directory}/{_wanted(model)}")
    for path in files:
        yield from _pointer(model, f"{directory}/{path}")
        base = os.path.basename(path)
        owner = "python" if path == "model.py" else ENDINGS.get(os.path.splitext(base)[1])
        unknown = not model.ensemble and model.backend not in backends.ALL
        reads_python = unknown or model.backend == "python" or model.config.runtime == backends.PROGRAM
        if path == CONFIG:
            found, wanted = "a config that Triton does not read there", f"it beside the version, as {model.name}/{CONFIG}"
            yield model.file_warning("files", f"{directory}/{path}", found, wanted, "move it", IGNORES)
        elif owner and owner != model.backend and not reads_python and path != model.identity.file:
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
    if model.identity.file and model.backend != "vllm":
        return model.identity.file
    known = backends.ALL.get(model.backend)
    return backends.PROGRAM if model.config.runtime == backends.PROGRAM else known.file if known else ""


def _needs(model: Model) -> bool:
    """Return True if a version without the wanted file cannot be loaded."""
    return not model.ensemble and model.settled and model.backend in READS and bool(_wanted(model))


def _file_in(model: Model, directory: str) -> bool:
    """Return True if the wanted file is in a version, as a file, a directory or something else that exists."""
    if not _wanted(model):
        return False
    path = os.path.normpath(f"{directory}/{_wanted(model)}")
    other = model.others.get(path, "")
    # Python imports no directory.
    if model.backend == "python":
        return path in model.files
    return path in model.files or path in model.tree or bool(other and other != NOWHERE)


def _has_its_file(model: Model, directory: str) -> bool:
    """Return True if a version has the file that its backend reads, or another one that does as well."""
    if not _needs(model) or _file_in(model, directory):
        return True
    there = set(model.inside(directory))
    if model.backend == "dali":
        return "dali.py" in there
    if model.backend == "pytorch" and model.program:
        return bool(there & {"model.py", "model.pt"})
    return False


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
        if not os.path.isfile(path) or not model.readable(file):
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
