"""Repositories as they lie on the controller's disk: their models, what else is in them, and every finding about both."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import check, check_together, python_model, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.ensemble import Place
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import (
    ENDS,
    ERROR,
    LOADS_NOTHING,
    STORE_REFUSES,
    WARNING,
    Finding,
    Row,
    listed,
    unsendable,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import CONFIG, Model, version_of
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import NOWHERE, listing, walk

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
    findings: List[Finding] = []
    for repository in repositories:
        for name in sorted(os.listdir(repository)):
            path = os.path.join(repository, name)
            if os.path.isdir(path):
                places.setdefault(name, []).append(path)
            elif not os.path.exists(path) and not only:
                findings.append(_dangling(name, path))
    unknown = sorted(set(only) - set(places))
    if unknown:
        raise Refusal([f"model {path}: found none in {listed(repositories)}, wanted a directory of that name" for path in unknown])
    models: Dict[str, Model] = {}
    for name, directories in sorted(places.items()):
        wanted = not only or name in only
        for directory in directories:
            more = list(_twice(name, directory, directories))
            # Triton does not see a link that leads nowhere.
            if os.path.exists(os.path.join(directory, CONFIG)):
                read, found = _read(name, directory, row)
                more += [*found, *_caches(name, directory)]
                if read:
                    models.setdefault(name, read)
            else:
                more += _without_config(name, directory, row)
            findings += more if wanted else []
    refused = {finding.model for finding in findings if finding.severity == ERROR and finding.triton}
    together = check_together(models, [place for place in places if place not in models], HERE, refused)
    findings += [finding for finding in together if not only or finding.model in only]
    return Linted(models, findings)


def _read(name: str, directory: str, row: Optional[Row]) -> Tuple[Optional[Model], List[Finding]]:
    """One model and its findings, those of its variants too."""
    main: Optional[Model] = None
    # What Triton sees, and what the store makes of it
    there = listing(directory, os.path.dirname(directory))
    # Links that lead nowhere and are right in the model are for layout.py, as Triton minds them too.
    told = {os.path.join(directory, path) for path, kind in there.others.items() if kind == NOWHERE and "/" not in path}
    problems = [problem for problem in walk(directory, os.path.dirname(directory)).problems if problem.path not in told]
    findings = unsendable(name, problems)
    if CONFIG in there.outside or "" in there.outside:
        # What is outside is never read.
        return None, findings
    record, found = _record(name, directory, there.files)
    findings += found
    for file in [CONFIG, *(path for path in there.files if _is_variant(path) and path not in there.outside)]:
        config, text, found = schema.read(os.path.join(directory, file), name)
        findings += found if file == CONFIG else _of_variant(found, file)
        if config is not None:
            model = Model(name, directory, config, text, there.files, there.directories, record, False, file, there, row)
            of_files = check(model, row)
            # A variant has the files of the main config: what is wrong with them is told once.
            findings += of_files if file == CONFIG else _of_variant(of_files, file)
            if file == CONFIG:
                main = model
    return main, findings


def _is_variant(path: str) -> bool:
    return os.path.dirname(path) == VARIANTS and path.endswith(".pbtxt")


def _of_variant(findings: Sequence[Finding], file: str) -> List[Finding]:
    """Findings about a variant, which Triton reads only if it is told to."""
    where = f", where it starts with --model-config-name={os.path.basename(file)[: -len('.pbtxt')]}"
    return [finding._replace(triton=finding.triton + where) for finding in findings if finding.file.endswith(file)]


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


def _dangling(name: str, path: str) -> Finding:
    """A link in the root that leads nowhere, at which Triton gives up the whole repository when it starts."""
    found, wanted = f"{NOWHERE} ({os.readlink(path)})", "models alone"
    return Finding(name, path, None, "", found, wanted, "remove it, or correct where it leads", ERROR, "stray", LOADS_NOTHING)


def _without_config(name: str, directory: str, row: Optional[Row]) -> List[Finding]:
    """A directory that is no model, or a model whose config Triton has to find out."""
    there = listing(directory, os.path.dirname(directory))
    kind, _since = schema.load()
    model = Model(name, directory, kind(), "", there.files, there.directories, None, True, CONFIG, there, row)
    hidden = name.startswith(".") or name == "lost+found"
    found = "a directory that is no model" if hidden else f"a directory without a {CONFIG}"
    do = "move it out of the repository" if hidden else "write its config, or move it out of the repository"
    misnamed = [] if hidden else _misnamed(directory)
    if not hidden and _models_inside(directory):
        found, do = f"a directory of models, {listed(_models_inside(directory))}", "name this directory as the repository"
    elif misnamed:
        found, do = f"a directory with {listed(misnamed)} and no {CONFIG}", f"rename {misnamed[0]} to {CONFIG}"
    wrong = [finding for finding in check(model, row) if finding.severity == ERROR]
    if model.backend and python_model.writes_config(model) and not wrong:
        found += f", of which Triton makes a model of backend {model.backend}"
        return [Finding(name, directory, None, "", found, f"a {CONFIG}", do, ERROR, "stray", "", STORE_REFUSES)]
    triton = "takes it for a model and does not start, but in explicit mode"
    # A fault that is worse than that is told as well.
    ends = [finding for finding in wrong if finding.triton == ENDS]
    return [Finding(name, directory, None, "", found, "models alone", do, ERROR, "stray", triton), *ends]


def _twice(name: str, directory: str, directories: Sequence[str]) -> Iterator[Finding]:
    """Models that are there twice."""
    if len(directories) > 1:
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
