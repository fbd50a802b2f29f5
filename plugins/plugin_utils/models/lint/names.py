"""Rules about names: the model's own, those of backend, runtime and environment, and the tags of its metrics."""

from __future__ import annotations

import os
import re
from typing import Iterator

from ansible_collections.npufleet.triton.plugins.module_utils.triton.http_api import can_be_asked
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ENDS, HANGS, IGNORES, Finding, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import PLATFORMS, Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import meant, near

# Backends of NVIDIA's images and ours: those that are a library, and those that are a model.py of their own
LIBRARIES = (
    *("python", "onnxruntime", "pytorch", "tensorrt", "tensorflow", "openvino", "dali", "fil", "tensorrtllm"),
    *("identity", "repeat", "square"),
)
PROGRAMS = ("rbln", "vllm")
BACKENDS = (*LIBRARIES, *PROGRAMS)
ENVIRONMENT, OWN = "EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/"


def check(model: Model) -> Iterator[Finding]:
    """Every finding about names."""
    yield from _model(model)
    yield from _backend(model)
    yield from _runtime(model)
    yield from _tags(model)
    yield from _environment(model)


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


def _backend(model: Model) -> Iterator[Finding]:
    """A backend that no image has, where the model does not bring it."""
    name = model.config.backend
    own = {os.path.basename(path) for path in model.files}
    if model.ensemble or not name or name in BACKENDS or f"libtriton_{name}.so" in own:
        return
    wanted = f"one of {listed(BACKENDS)}, or one that your image has"
    entry = near(name, BACKENDS)
    if entry:
        yield model.error("backend", "backend", name, wanted, f'did you mean {entry}? write backend: "{entry}"')
    else:
        triton = "refuses the model, unless its image has this backend"
        yield model.warning("backend", "backend", name, wanted, "correct it, or see that the image has it", triton)


def platform(name: str) -> str:
    """What to do about a platform that Triton does not know."""
    if name in BACKENDS or near(name, LIBRARIES):
        return f'write backend: "{name if name in BACKENDS else near(name, LIBRARIES)}" instead of platform'
    return meant(name, [*PLATFORMS, "ensemble"], 'write the backend down, such as backend: "rbln"')


def _runtime(model: Model) -> Iterator[Finding]:
    """The file that is the backend: a library, or a model.py beside it."""
    runtime, name = model.config.runtime, model.config.backend
    if not runtime or model.ensemble or any(os.path.basename(path) == runtime for path in model.files if path.endswith(".so")):
        return
    if name in BACKENDS:
        right = f"libtriton_{name}.so" if name in LIBRARIES else "model.py"
        wrong = runtime != right
    else:
        right = f"libtriton_{name}.so or model.py"
        wrong = runtime not in right.split(" or ")
    if wrong:
        do = f"did you mean {right}? write it, or take the field out, which is the same"
        yield model.error("backend", "runtime", runtime, f"{right}, the file of backend {name}", do)


def _tags(model: Model) -> Iterator[Finding]:
    """Triton makes a label of each tag by a _ before it, and Prometheus' library throws at one that is none."""
    for key in sorted(model.config.metric_tags):
        if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_]*)?", key):
            wanted = "ASCII letters, digits and _, without a _ at its beginning: it becomes a label of Prometheus"
            yield model.error("metrics", f"metric_tags[{key}]", f"{key!r}", wanted, "rename it", ENDS)


def _environment(model: Model) -> Iterator[Finding]:
    """Python's environment: its key, and that it is there."""
    parameters = model.config.parameters
    for key in sorted(parameters):
        if key != ENVIRONMENT and model.backend == "python" and near(key, [ENVIRONMENT]):
            yield model.warning("files", f"parameters[{key}]", key, ENVIRONMENT, f"did you mean {ENVIRONMENT}? rename it", IGNORES)
    if ENVIRONMENT not in parameters or model.ensemble:
        return
    path, field = parameters[ENVIRONMENT].string_value, f"parameters[{ENVIRONMENT}]"
    inside = os.path.normpath(path[len(OWN) :])
    if path.startswith(OWN):
        if inside != "." and not any(file == inside or file.startswith(inside + "/") for file in model.files):
            found, wanted = f"{inside}, which is not there", "an archive or a directory in the model's"
            yield model.error("files", field, found, wanted, "add it, or correct the path")
    elif not path.startswith("/"):
        wanted = f"a path from / on, or one that begins with {OWN}"
        do = f"did you mean {OWN}{os.path.basename(path)}?" if path else "write it down"
        yield model.error("files", field, path or "nothing", wanted, do)
