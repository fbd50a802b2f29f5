# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rules about the names of a model, its backend, its runtime, its repository agents, and the tags of its metrics."""

from __future__ import annotations

import os
import re
from typing import Iterator, Set

from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import is_url_safe
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, effects
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import nearest, with_suggestion

# Repository agents of NVIDIA's images
AGENTS = ("checksum",)


def check(model: Model) -> Iterator[Finding]:
    """Yield the findings about names."""
    yield from _model(model)
    yield from _backend(model)
    yield from _runtime(model)
    yield from _tags(model)
    yield from _agents(model)


def _model(model: Model) -> Iterator[Finding]:
    """Yield the error of a name that no request can contain, or that a shell misreads when Triton starts a Python model."""
    python = model.backend in ("python", "rbln")
    if not is_url_safe(model.name):
        expected = "no space, control character, ? or #, as no HTTP request can contain them"
        triton = effects.HANGS if python else "loads it, and no request reaches it"
    elif python and not re.fullmatch(r"[\w.+=@,:%~-]+", model.name, re.ASCII):
        expected = "ASCII letters, digits and . _ - + = @ , : % ~ in the name of a Python model, as a shell reads it"
        triton = f"refuses the model, or {effects.HANGS}"
    else:
        return
    yield model.file_error("model name", "", f"{model.name!r}", expected, "Rename its directory", triton)


def _own_libraries(model: Model) -> Set[str]:
    """Return the names of the libraries in the directories of the model where Triton looks for a backend."""
    directories = ["", *map(str, model.served())]
    return {os.path.basename(path) for path in model.files if path.endswith(".so") and os.path.dirname(path) in directories}


def _backend(model: Model) -> Iterator[Finding]:
    """Yield the findings about a backend that is neither in NVIDIA's images nor in the model."""
    name, backend_names = model.backend, backends.image_backends(model.triton_version)
    library = f"libtriton_{name}.so"
    if model.ensemble or not name:
        return
    if library in _own_libraries(model):
        path = min(path for path in model.files if os.path.basename(path) == library)
        if model.readable(path) and not _is_elf(os.path.join(model.directory, path)):
            yield model.file_error("backend", path, "no library", "the backend's library", "Build it again")
        return
    if name in backend_names:
        return
    elsewhere = [path for path in sorted(model.files) if os.path.basename(path) == library]
    if elsewhere:
        expected = "the library beside config.pbtxt or in a served version, where Triton looks for it"
        yield model.file_error("backend", elsewhere[0], "where Triton does not look", expected, "Move it")
        return
    expected = f"one of {listed(backend_names)}, or another one of your image"
    suggestion = nearest(name, backend_names)
    field = "backend" if model.config.backend else "platform"
    if name in backends.ALL_BACKENDS and model.row:
        actual = f"{name}, which images of release {model.row.name} do not have"
        yield model.error("backend", field, actual, expected, "Serve the model with another backend")
    elif suggestion:
        yield model.error("backend", field, name, expected, f'Did you mean {suggestion}? Write backend: "{suggestion}"')
    else:
        triton = "refuses the model, unless its image has this backend"
        yield model.warning("backend", field, name, expected, "Correct it, or make sure that the image has it", triton)


def _is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as source:
            return source.read(4) == b"\x7fELF"
    except OSError:
        return True


def platform_todo(name: str, triton: str) -> str:
    """Return the next step for a platform that Triton does not know."""
    backend_names = backends.image_backends(triton)
    suggestion = name if name in backend_names else nearest(name, backend_names)
    if suggestion:
        return f'Write backend: "{suggestion}" instead of platform'
    return with_suggestion(name, [*backends.platforms(triton), backends.ENSEMBLE], 'Add the backend, such as backend: "rbln"')


def _runtime(model: Model) -> Iterator[Finding]:
    runtime, name = model.config.runtime, model.backend
    if not runtime or model.ensemble or runtime in _own_libraries(model):
        return
    runtimes = model.backend_facts.runtimes or (f"libtriton_{name}.so", backends.MODEL_PY)
    if runtime not in runtimes:
        todo = f"Did you mean {runtimes[0]}? Write it, or remove the field, which has the same effect"
        yield model.error("backend", "runtime", runtime, f"{' or '.join(runtimes)}, the file of backend {name}", todo)


def _agents(model: Model) -> Iterator[Finding]:
    """Yield the errors of repository agents, which Triton calls before it reads the model."""
    agents = model.config.model_repository_agents
    if model.config.HasField("model_repository_agents") and not agents.agents:
        yield model.error("agents", "model_repository_agents", "empty", "one agent or more", "Remove the field", effects.CRASHES)
    for index, agent in enumerate(agents.agents):
        if agent.name not in AGENTS:
            expected = f"{listed(AGENTS)}, the only agent of NVIDIA's images"
            todo = with_suggestion(agent.name, AGENTS, "Correct the name, or remove it")
            field = f"model_repository_agents.agents[{index}].name"
            yield model.error("agents", field, agent.name or "missing", expected, todo)


def _tags(model: Model) -> Iterator[Finding]:
    """Yield the errors of metric tags. A tag becomes a label of Prometheus, and an invalid label raises an exception in Triton."""
    for key in sorted(model.config.metric_tags):
        if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_]*)?", key):
            expected = "ASCII letters, digits and _, without a _ at its beginning, as it becomes a label of Prometheus"
            yield model.error("metrics", f"metric_tags[{key}]", f"{key!r}", expected, "Rename it", effects.CRASHES)
