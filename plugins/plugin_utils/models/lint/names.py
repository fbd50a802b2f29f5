"""Rules about names: the model's own, those of backend, runtime and repository agents, and the tags of its metrics."""

from __future__ import annotations

import os
import re
from typing import Iterator, Set

from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import can_be_asked
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ENDS, HANGS, Finding, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import meant, near

# Repository agents of NVIDIA's images
AGENTS = ("checksum",)


def check(model: Model) -> Iterator[Finding]:
    """Every finding about names."""
    yield from _model(model)
    yield from _backend(model)
    yield from _runtime(model)
    yield from _tags(model)
    yield from _agents(model)


def _model(model: Model) -> Iterator[Finding]:
    """A request has to be able to name the model, and the shell by which older Tritons start a Python model has to take it."""
    rule, do = "model name", "rename its directory"
    python = model.backend in ("python", "rbln")
    if not can_be_asked(model.name):
        wanted = "no space, control character, ? or #: no request over HTTP has them"
        yield model.file_error(rule, "", f"{model.name!r}", wanted, do, HANGS if python else "loads it, and no request reaches it")
    elif python and not re.fullmatch(r"[\w.+=@,:%~-]+", model.name, re.ASCII):
        wanted = "ASCII letters, digits and . _ - + = @ , : % ~ in the name of a Python model, as a shell reads it"
        yield model.file_error(rule, "", f"{model.name!r}", wanted, do, f"refuses the model, or {HANGS}")


def _own(model: Model) -> Set[str]:
    """Return the libraries that the model brings, where Triton looks for them."""
    places = ["", *(f"{model.versions()[version]}/" for version in model.served())]
    return {
        os.path.basename(path) for path in model.files if path.endswith(".so") and path[: -len(os.path.basename(path))] in places
    }


def _backend(model: Model) -> Iterator[Finding]:
    """A backend that no image has, where the model does not bring it."""
    name, known = model.backend, backends.known(model.triton)
    library = f"libtriton_{name}.so"
    if model.ensemble or not name:
        return
    if library in _own(model):
        path = min(path for path in model.files if os.path.basename(path) == library)
        if model.readable(path) and not _is_elf(os.path.join(model.directory, path)):
            yield model.file_error("backend", path, "a file that is no library", "the backend's library", "build it again")
        return
    if name in known:
        return
    elsewhere = [path for path in sorted(model.files) if os.path.basename(path) == library]
    if elsewhere:
        wanted = "it beside config.pbtxt or in a served version, where Triton looks for it"
        yield model.file_error("backend", elsewhere[0], "the backend's library", wanted, "move it")
        return
    wanted = f"one of {listed(known)}, or one that your image has"
    entry = near(name, known)
    field = "backend" if model.config.backend else "platform"
    if name in backends.ALL and model.row:
        found = f"{name}, which images of release {model.row.name} do not have"
        yield model.error("backend", field, found, wanted, "serve the model with another backend")
    elif entry:
        yield model.error("backend", field, name, wanted, f'did you mean {entry}? write backend: "{entry}"')
    else:
        triton = "refuses the model, unless its image has this backend"
        yield model.warning("backend", field, name, wanted, "correct it, or see that the image has it", triton)


def _is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as source:
            return source.read(4) == b"\x7fELF"
    except OSError:
        return True


def platform(name: str, triton: str) -> str:
    """What to do about a platform that Triton does not know."""
    known = backends.known(triton)
    if name in known or near(name, known):
        return f'write backend: "{name if name in known else near(name, known)}" instead of platform'
    return meant(name, [*backends.platforms(triton), backends.ENSEMBLE], 'write the backend down, such as backend: "rbln"')


def _runtime(model: Model) -> Iterator[Finding]:
    """The file that is the backend: a library, or a model.py beside it."""
    runtime, name = model.config.runtime, model.backend
    if not runtime or model.ensemble or runtime in _own(model):
        return
    right = backends.ALL[name].runtimes if name in backends.ALL else (f"libtriton_{name}.so", backends.PROGRAM)
    if runtime not in right:
        do = f"did you mean {right[0]}? write it, or take the field out, which is the same"
        yield model.error("backend", "runtime", runtime, f"{' or '.join(right)}, the file of backend {name}", do)


def _agents(model: Model) -> Iterator[Finding]:
    """Repository agents, which are asked before anything else is looked at."""
    agents = model.config.model_repository_agents
    if model.config.HasField("model_repository_agents") and not agents.agents:
        do = "take the field out"
        yield model.error("agents", "model_repository_agents", "no agent", "one or more", do, ENDS)
    for index, agent in enumerate(agents.agents):
        if agent.name not in AGENTS:
            wanted = f"{listed(AGENTS)}, the one that NVIDIA's images have"
            do = meant(agent.name, AGENTS, "correct the name, or take it out")
            yield model.error("agents", f"model_repository_agents.agents[{index}].name", agent.name or "nothing", wanted, do)


def _tags(model: Model) -> Iterator[Finding]:
    """Triton makes a label of each tag by a _ before it, and Prometheus' library throws at one that is none."""
    for key in sorted(model.config.metric_tags):
        if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_]*)?", key):
            wanted = "ASCII letters, digits and _, without a _ at its beginning: it becomes a label of Prometheus"
            yield model.error("metrics", f"metric_tags[{key}]", f"{key!r}", wanted, "rename it", ENDS)
