# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rules about the parameters of Python models: the execution environment, and the options of the Python backend.

Sources: triton-inference-server/python_backend (python_be.cc, pb_env.cc, stub_launcher.cc) and core (backend_model.cc).
"""

from __future__ import annotations

import os
import tarfile
import zlib
from typing import Iterator, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import effects
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import nearest
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import is_within

ENVIRONMENT, MODEL_DIRECTORY = "EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY"
CPU_ONLY, BATCH_STRATEGY = "FORCE_CPU_ONLY_INPUT_TENSORS", "TRITON_BATCH_STRATEGY_PATH"
ACTIVATE = "bin/activate"
ARCHIVE = f"a tar archive, plain or gzip, with {ACTIVATE} in it"
# The search for ACTIVATE in an archive ends at this position.
MAX_SEARCHED_BYTES = 256 << 20


def check(model: Model) -> Iterator[Finding]:
    """Yield the findings about the parameters of a Python model, and about a library that forms the batches of a model."""
    parameters = model.config.parameters
    if model.ensemble:
        return
    if BATCH_STRATEGY in parameters:
        yield from _batching(model)
    if model.backend != "python" and not model.python_runtime:
        return
    for key in sorted(parameters):
        option = nearest(key, (ENVIRONMENT, CPU_ONLY))
        if option and option != key:
            todo = f"Did you mean {option}? Rename it"
            yield model.warning("files", f"parameters[{key}]", key, option, todo, effects.IGNORES)
    if ENVIRONMENT in parameters and parameters[ENVIRONMENT].string_value:
        yield from _environment(model, parameters[ENVIRONMENT].string_value)
    if CPU_ONLY in parameters and parameters[CPU_ONLY].string_value not in ("yes", "no"):
        actual = parameters[CPU_ONLY].string_value or "empty"
        yield model.error("parameters", f"parameters[{CPU_ONLY}]", actual, "yes or no", "Write one of them")


def _batching(model: Model) -> Iterator[Finding]:
    field, path = f"parameters[{BATCH_STRATEGY}]", model.config.parameters[BATCH_STRATEGY].string_value
    if model.config.HasField("sequence_batching"):
        yield model.error("parameters", field, path or "empty", "not set with sequence_batching", "Remove one of them")
    elif not path.startswith("/"):
        yield model.error("parameters", field, path or "empty", "an absolute path", "Write the path of the library in the image")


def _environment(model: Model, path: str) -> Iterator[Finding]:
    """Yield the finding about an execution environment. An absolute path is in the container, which the linter cannot read."""
    field = f"parameters[{ENVIRONMENT}]"
    if path.startswith("/"):
        return
    if not path.startswith(MODEL_DIRECTORY):
        expected = f"an absolute path, or one that begins with {MODEL_DIRECTORY}/"
        yield model.error("files", field, path, expected, f"Did you mean {MODEL_DIRECTORY}/{os.path.basename(path)}?")
        return
    inner = path[len(MODEL_DIRECTORY) :]
    path = model.directory + inner
    # A path outside the model's directory is never read. Only its existence is checked.
    outside = os.path.exists(path) and not is_within(path, model.directory)
    flaw = None if outside else _environment_flaw(path)
    if flaw:
        problem, expected, triton = flaw
        text = os.path.normpath(inner.lstrip("/")) if inner else "the model's directory"
        yield model.error("files", field, f"{text}, {problem}", expected, "Add it, or correct the path", triton)
    elif _leaves_model(inner):
        actual, expected = f"{inner.lstrip('/')}, which is outside the model", "a path in the model"
        make, triton = (model.error, "does not find it on a host") if model.complete else (model.warning, "")
        finding = make("files", field, actual, expected, "Move it into the model's directory", triton)
        yield finding._replace(store="keeps each model in its own directory, without the files beside it")


def _leaves_model(path: str) -> bool:
    """Return True if a part of a path leaves the directory of the model, even if a later part returns to it."""
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    # Without a slash at its beginning, the path continues the name of the model's directory, so it names another directory.
    return not path.startswith("/") and path != ""


def _environment_flaw(path: str) -> Optional[Tuple[str, str, str]]:
    """Return (the problem of an environment, the expected environment, the effect on Triton), or None."""
    if not os.path.exists(path):
        return "which does not exist", "an archive or a directory in the model", effects.REFUSES
    if os.path.isdir(path):
        if os.path.isdir(os.path.join(path, ACTIVATE)):
            return f"with a directory {ACTIVATE}", f"a script {ACTIVATE}, such as conda-pack writes it", effects.HANGS
        if os.path.exists(os.path.join(path, ACTIVATE)):
            return None
        return f"a directory without {ACTIVATE}", f"an environment with {ACTIVATE}, such as conda-pack writes it", effects.REFUSES
    if not os.path.isfile(path):
        return "which is no regular file", ARCHIVE, effects.HANGS
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with tarfile.open(fileobj=raw, mode="r|gz" if packed else "r|") as archive:
                for member in archive:
                    if os.path.normpath(member.name) == ACTIVATE or member.offset_data + member.size > MAX_SEARCHED_BYTES:
                        return None
    except (tarfile.TarError, EOFError, OSError, zlib.error):
        return "which cannot be read as an archive", ARCHIVE, effects.REFUSES
    return f"an archive without {ACTIVATE}", ARCHIVE, effects.REFUSES
