# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""The linter for whole repositories on the controller: their models, and other files and directories.

A variant of a config is a file below configs/. Triton uses a variant if the option --model-config-name names it.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.kernel import trees
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import compiled
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import check, effects, ensemble, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import (
    ERROR,
    WARNING,
    Finding,
    Row,
    file_error,
    listed,
    store_errors,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import CONFIG, Model, directory_version
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import BROKEN_LINK, listing, walk


class Linted(NamedTuple):
    """The models that could be read, by name, and all findings."""

    models: Dict[str, Model]
    findings: List[Finding]


def lint(repositories: Sequence[str], only: Sequence[str] = (), row: Optional[Row] = None) -> Linted:
    """Return the models and findings. Raises Refusal for a wrong argument.

    If `only` is not empty, the findings are limited to these models, and broken links beside the models are not reported.
    """
    missing = [path for path in repositories if not os.path.isdir(path)]
    if missing:
        raise Refusal([f"{path!r} is no directory, expected a Triton repository. Correct the path" for path in missing])
    single = [path for path in repositories if _is_model(path)]
    if single:
        todo = "Name the directory above it, as Triton would read 1/ as a model"
        raise Refusal([f"{path} is a model, as it has a {CONFIG}, expected a directory of models. {todo}" for path in single])
    by_name: Dict[str, List[str]] = {}
    findings: List[Finding] = []
    for repository in repositories:
        for name in sorted(os.listdir(repository)):
            path = os.path.join(repository, name)
            if os.path.isdir(path):
                by_name.setdefault(name, []).append(path)
            elif not os.path.exists(path) and not only:
                actual, todo = f"{BROKEN_LINK} ({os.readlink(path)})", "Remove it, or correct its target"
                findings.append(file_error(name, path, actual, "a model", todo, "stray", effects.LOADS_NOTHING))
    unknown = sorted(set(only) - set(by_name))
    if unknown:
        actual, expected = f"not in {listed(repositories)}", "a directory of that name"
        raise Refusal([f"model {name!r} is {actual}, expected {expected}. Correct it" for name in unknown])
    models: Dict[str, Model] = {}
    for name, paths in sorted(by_name.items()):
        for directory in paths:
            model_findings = []
            if len(paths) > 1:
                actual, expected, todo = f"one of {listed(paths)}", "a model in one repository only", "Keep one of them"
                model_findings.append(file_error(name, directory, actual, expected, todo, "duplicate", "serves none of them"))
            # Triton ignores a config that is a broken link.
            if os.path.exists(os.path.join(directory, CONFIG)):
                model, read_findings = _read(name, directory, row)
                model_findings += [*read_findings, *_caches(name, directory)]
                if model:
                    models.setdefault(name, model)
            else:
                model_findings += _without_config(name, directory, row)
            findings += model_findings if not only or name in only else []
    refused = {finding.model for finding in findings if finding.severity == ERROR and finding.triton}
    step_findings = ensemble.check(models, [name for name in by_name if name not in models], refused)
    findings += [finding for finding in step_findings if not only or finding.model in only]
    return Linted(models, findings)


def _read(name: str, directory: str, row: Optional[Row]) -> Tuple[Optional[Model], List[Finding]]:
    """Return (a model or None, the findings about the model and about the variants of its config)."""
    main_model: Optional[Model] = None
    content = listing(directory, os.path.dirname(directory))
    # layout.py reports broken links directly in the directory of the model. So they are not reported a second time here.
    reported = {os.path.join(directory, path) for path, kind in content.special.items() if kind == BROKEN_LINK and "/" not in path}
    problems = [problem for problem in walk(directory, os.path.dirname(directory)).problems if problem.path not in reported]
    findings = store_errors(name, problems)
    if CONFIG in content.outside or "" in content.outside:
        # Files outside the repository are never read.
        return None, findings
    record, record_findings = _record(name, directory, content.files)
    findings += record_findings
    readable = [path for path in content.files if path not in content.outside]
    variants = [path for path in readable if os.path.dirname(path) == "configs" and path.endswith(".pbtxt")]
    for file in [CONFIG, *variants]:
        config, fields, model_findings = schema.read(os.path.join(directory, file), name)
        if config is not None:
            model = Model(name, directory, config, fields, frozenset(content.files), record, False, file, content, row)
            model_findings += check(model)
            main_model = model if file == CONFIG else main_model
        findings += model_findings if file == CONFIG else _variant_findings(model_findings, file)
    return main_model, findings


def _variant_findings(findings: Sequence[Finding], file: str) -> List[Finding]:
    """Return only the findings about the file of a variant, because the main config has the same findings about other files."""
    condition = f", if it starts with --model-config-name={os.path.basename(file)[: -len('.pbtxt')]}"
    return [finding._replace(triton=finding.triton + condition) for finding in findings if finding.file.endswith(file)]


def _record(name: str, directory: str, files: Sequence[str]) -> Tuple[Optional[Mapping[str, Any]], List[Finding]]:
    """Return (the record of the first compiled file with a record, or None; the findings about the record)."""
    for path in files:
        if path.endswith(".rbln") and path + compiled.SUFFIX in files:
            file, record, flaw = compiled.valid_record({"file": os.path.join(directory, path)})
            if flaw:
                expected, todo = compiled.EXPECTED_RECORD, "Compile the model again"
                return None, [file_error(name, file, flaw, expected, todo, "compiled file", "does not read it")]
            if record:
                return record, []
    return None, []


def _without_config(name: str, directory: str, row: Optional[Row]) -> List[Finding]:
    """Return the findings about a directory without a config. It is no model, or a model for which Triton creates the config."""
    content = listing(directory, os.path.dirname(directory))
    config_class, _since = schema.load()
    model = Model(name, directory, config_class(), [], frozenset(content.files), listing=content, row=row)
    inner_models = _models_in(directory)
    # Names such as Config.pbtxt and config.pbtxt.txt are probably mistakes.
    similar = (CONFIG, CONFIG + ".txt", "config.pbtx", "config.pbtext", "config.prototxt", "model_config.pbtxt")
    misnamed = [file for file in sorted(os.listdir(directory)) if file.lower() in similar]
    if name.startswith(".") or name == "lost+found":
        actual, todo = "a directory that is no model", "Move it out of the repository"
    elif inner_models:
        actual, todo = f"a directory of models, {listed(inner_models)}", "Name this directory as the repository"
    elif misnamed:
        actual, todo = f"a directory with {listed(misnamed)} and no {CONFIG}", f"Rename {misnamed[0]} to {CONFIG}"
    else:
        actual, todo = f"a directory without a {CONFIG}", "Add its config, or move it out of the repository"
    errors = [finding for finding in check(model) if finding.severity == ERROR]
    backend_writes_config = model.backend == "python" or model.python_runtime or model.backend_facts.completes
    if model.backend and backend_writes_config and not errors:
        actual += f", which Triton serves with backend {model.backend}"
        return [file_error(name, directory, actual, f"a directory with a {CONFIG}", todo, "stray", "", effects.STORE_REFUSES)]
    triton = "reads it as a model and does not start, except in explicit mode"
    # An error that makes Triton crash is worse than the missing config, so it is reported, too.
    return [
        file_error(name, directory, actual, "a model", todo, "stray", triton),
        *(error for error in errors if error.triton == effects.CRASHES),
    ]


def _is_model(directory: str) -> bool:
    """Return True if a directory is a model and not a repository."""
    names = os.listdir(directory)
    return CONFIG in names and not _models_in(directory) and any(directory_version(name) is not None for name in names)


def _models_in(directory: str) -> List[str]:
    return [name for name in sorted(os.listdir(directory)) if os.path.lexists(os.path.join(directory, name, CONFIG))]


def _caches(name: str, directory: str) -> Iterator[Finding]:
    """Yield a warning for each directory of Python's bytecode, which the store does not copy."""
    for base, names, _files in trees.walk(directory):
        if "__pycache__" in names:
            path, actual, expected = os.path.join(base, "__pycache__"), "a directory of Python's bytecode", "no such directory"
            todo = "Delete it, and let servers read the repository read-only"
            triton = "loads the model again because of it, if Triton reads this repository itself"
            yield file_error(name, path, actual, expected, todo, "bytecode", triton)._replace(severity=WARNING)
