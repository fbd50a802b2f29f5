"""Repositories as they lie on the controller's disk: their models, what else is in them, and every finding about both."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import check, check_together, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.ensemble import Place
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import (
    ERROR,
    WARNING,
    Finding,
    Row,
    listed,
    no_files,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import CONFIG, Model, version_of
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import LEFT_OUT, walk

HERE = Place("in the repository", "add it, or correct the name")
VARIANTS = "configs"


class Linted(NamedTuple):
    """The models that could be read, by name, and every finding."""

    models: Dict[str, Model]
    findings: List[Finding]


def lint(repositories: Sequence[str], only: Sequence[str] = (), row: Optional[Row] = None) -> Linted:
    """Look at all models, or at `only` these of them; what lies beside the models counts where all are looked at."""
    missing = [path for path in repositories if not os.path.isdir(path)]
    if missing:
        raise Refusal([f"{digest}: found no such directory, wanted a Triton repository: correct the path" for digest in missing])
    single = [path for path in repositories if _model_itself(path)]
    if single:
        above = "a directory of models: name the directory above it, as Triton takes 1/ for a model here"
        raise Refusal([f"{path}: found a model, with its {CONFIG}, wanted {above}" for path in single])
    places: Dict[str, List[str]] = {}
    for repository in repositories:
        for name in sorted(os.listdir(repository)):
            if os.path.isdir(os.path.join(repository, name)):
                places.setdefault(name, []).append(os.path.join(repository, name))
    unknown = sorted(set(only) - set(places))
    if unknown:
        raise Refusal([f"model {path}: found none in {listed(repositories)}, wanted a directory of that name" for path in unknown])
    models: Dict[str, Model] = {}
    findings: List[Finding] = []
    for name, directories in sorted(places.items()):
        wanted = not only or name in only
        for directory in directories:
            more = list(_stray(name, directory, directories))
            if os.path.lexists(os.path.join(directory, CONFIG)):
                read, found = _read(name, directory, row)
                more += [*found, *_caches(name, directory)]
                if read:
                    models.setdefault(name, read)
            findings += more if wanted else []
    together = check_together(models, [place for place in places if place not in models], HERE)
    findings += [finding for finding in together if not only or finding.model in only]
    return Linted(models, findings)


def _read(name: str, directory: str, row: Optional[Row]) -> Tuple[Optional[Model], List[Finding]]:
    """One model and its findings, those of its variants too."""
    main: Optional[Model] = None
    files, problems = walk(directory, os.path.dirname(directory))
    findings = no_files(name, problems)
    if CONFIG not in files:
        return None, findings
    directories = [
        label for label in os.listdir(directory) if label not in LEFT_OUT and os.path.isdir(os.path.join(directory, label))
    ]
    record, found = _record(name, directory, files)
    findings += found
    for file in [CONFIG, *(path for path in files if os.path.dirname(path) == VARIANTS and path.endswith(".pbtxt"))]:
        config, text, found = schema.read(os.path.join(directory, file), name)
        findings += found
        if config is not None:
            model = Model(name, directory, config, text, files, directories, record, complete=False, file=file)
            of_files = check(model, row)
            # A variant has the files of the main config: what is wrong with them is told once.
            findings += of_files if file == CONFIG else [path for path in of_files if path.file.endswith(file)]
            if file == CONFIG:
                main = model
    return main, findings


def _record(name: str, directory: str, files: Sequence[str]) -> Tuple[Optional[Mapping[str, Any]], List[Finding]]:
    """What the compile step wrote beside a compiled file that is in the repository itself."""
    for path in files:
        if path.endswith(".rbln") and path + compiled.SUFFIX in files:
            record, flaw = compiled.record_beside(os.path.join(directory, path))
            where = os.path.join(directory, path + compiled.SUFFIX)
            if flaw:
                wanted, do = "a record as playbooks/compile.yml writes it", "compile the model again"
                return None, [Finding(name, where, None, "", flaw, wanted, do, ERROR, "compiled file", "does not read it")]
            if record:
                return record, []
    return None, []


def _stray(name: str, directory: str, directories: Sequence[str]) -> Iterator[Finding]:
    """Directories that are no models, and models that are there twice."""
    if not os.path.lexists(os.path.join(directory, CONFIG)):
        hidden = name.startswith(".") or name == "lost+found"
        found = "a directory that is no model" if hidden else f"a directory without a {CONFIG}"
        do = "move it out of the repository" if hidden else "write its config, or move it out of the repository"
        misnamed = [] if hidden else _misnamed(directory)
        if not hidden and os.path.isdir(directory) and _models_inside(directory):
            found, do = f"a directory of models, {listed(_models_inside(directory))}", "name this directory as the repository"
        elif misnamed:
            found, do = f"a directory with {listed(misnamed)} and no {CONFIG}", f"rename {misnamed[0]} to {CONFIG}"
        triton = "takes it for a model and does not start, but in explicit mode"
        yield Finding(name, directory, None, "", found, "models alone", do, ERROR, "stray", triton)
    elif len(directories) > 1:
        found = f"the model in {listed(directories)}"
        wanted, triton = "each model in one repository", "serves none of them"
        yield Finding(name, directory, None, "", found, wanted, "keep one of them", ERROR, "duplicate", triton)


def _model_itself(directory: str) -> bool:
    """Whether somebody named a model where a repository is wanted."""
    names = os.listdir(directory)
    return CONFIG in names and not _models_inside(directory) and any(version_of(name) is not None for name in names)


def _models_inside(directory: str) -> List[str]:
    """The models right in a directory."""
    return [name for name in sorted(os.listdir(directory)) if os.path.lexists(os.path.join(directory, name, CONFIG))]


def _misnamed(directory: str) -> List[str]:
    """Files that were meant to be the config: Config.pbtxt, config.pbtxt.txt."""
    wanted = (CONFIG, CONFIG + ".txt", "config.pbtx", "config.pbtext", "config.prototxt", "model_config.pbtxt")
    return [name for name in sorted(os.listdir(directory)) if name.lower() in wanted]


def _caches(name: str, directory: str) -> Iterator[Finding]:
    """Python's bytecode, which the store leaves out."""
    for base, names, _files in trees.walk(directory):
        if "__pycache__" in names:
            wanted, triton = "none", "loads the model again for it, where it reads the repository itself"
            do = "delete it, and let servers read the repository read-only"
            yield Finding(
                name, os.path.join(base, "__pycache__"), None, "", "Python's bytecode", wanted, do, WARNING, "bytecode", triton
            )
