"""Rules about the parameters of Python models: the environment that they run in, and the switches of the Python backend.

From triton-inference-server/python_backend (python_be.cc, pb_env.cc, stub_launcher.cc) and core (backend_model.cc).
"""

from __future__ import annotations

import os
import tarfile
import zlib
from typing import Iterator, Optional, Tuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import (
    HANGS,
    IGNORES,
    REFUSES,
    Finding,
)
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import near
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.tree import is_within

ENVIRONMENT, OWN = "EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY"
SWITCH, BATCHING = "FORCE_CPU_ONLY_INPUT_TENSORS", "TRITON_BATCH_STRATEGY_PATH"
ACTIVATE = "bin/activate"
ARCHIVE = f"a tar archive, plain or gzip, with {ACTIVATE} in it"
# Bytes of an unpacked archive that are looked through
LARGEST = 256 << 20


def check(model: Model) -> Iterator[Finding]:
    """Every finding about these parameters."""
    parameters = model.config.parameters
    if model.ensemble:
        return
    if BATCHING in parameters:
        yield from _batching(model)
    if model.backend != "python" and not model.program:
        return
    for key in sorted(parameters):
        for right in (ENVIRONMENT, SWITCH):
            if key not in (ENVIRONMENT, SWITCH) and near(key, [right]):
                yield model.warning("files", f"parameters[{key}]", key, right, f"did you mean {right}? rename it", IGNORES)
    if ENVIRONMENT in parameters and parameters[ENVIRONMENT].string_value:
        yield from _environment(model, parameters[ENVIRONMENT].string_value)
    if SWITCH in parameters and parameters[SWITCH].string_value not in ("yes", "no"):
        found = parameters[SWITCH].string_value or "nothing"
        yield model.error("parameters", f"parameters[{SWITCH}]", found, "yes or no", "write one of them")


def _batching(model: Model) -> Iterator[Finding]:
    """A library that decides about batches, which sequences do not have."""
    field, path = f"parameters[{BATCHING}]", model.config.parameters[BATCHING].string_value
    if model.config.HasField("sequence_batching"):
        yield model.error("parameters", field, path or "nothing", "none beside sequence_batching", "take one of the two out")
    elif not path.startswith("/"):
        yield model.error("parameters", field, path or "nothing", "a path from / on", "write the path of the library in the image")


def _environment(model: Model, path: str) -> Iterator[Finding]:
    """The environment is there and can be activated. What a path from / on leads to in a container is not known here."""
    field = f"parameters[{ENVIRONMENT}]"
    if path.startswith("/"):
        return
    if not path.startswith(OWN):
        wanted = f"a path from / on, or one that begins with {OWN}/"
        yield model.error("files", field, path, wanted, f"did you mean {OWN}/{os.path.basename(path)}?")
        return
    inside = path[len(OWN) :]
    place = model.directory + inside
    # Outside of the model it is looked for, and not read.
    outside = os.path.exists(place) and not is_within(place, model.directory)
    flaw = None if outside else _flaw(place)
    if flaw:
        found, wanted, triton = flaw
        shown = os.path.normpath(inside.lstrip("/")) if inside else "the model's directory"
        yield model.error("files", field, f"{shown}, {found}", wanted, "add it, or correct the path", triton)
    elif _leaves(inside):
        yield from _outside(model, field, inside)


def _leaves(path: str) -> bool:
    """Return True if a path below the model leads out of it, also where it comes back."""
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return not path.startswith("/") and path != ""


def _outside(model: Model, field: str, inside: str) -> Iterator[Finding]:
    """An environment beside the model, which Triton finds here. In the store a model has no such neighbours."""
    found, wanted = f"{inside.lstrip('/')}, which is outside of the model", "a path inside of it"
    do, store = "move it into the model's directory", "keeps each model in a directory of its own, without what is beside it"
    make = model.error if model.complete else model.warning
    triton = "does not find it on a host" if model.complete else ""
    yield make("files", field, found, wanted, do, triton)._replace(store=store)


def _flaw(path: str) -> Optional[Tuple[str, str, str]]:
    """Return (what is wrong with an environment, what is wanted, what Triton does), or None."""
    if not os.path.exists(path):
        return "which is not there", "an archive or a directory in the model's", REFUSES
    if os.path.isdir(path):
        if os.path.isdir(os.path.join(path, ACTIVATE)):
            return f"with a directory {ACTIVATE}", "a script of that name, as conda-pack makes one", HANGS
        if os.path.exists(os.path.join(path, ACTIVATE)):
            return None
        return f"a directory without {ACTIVATE}", f"an environment with {ACTIVATE}, as conda-pack makes one", REFUSES
    if not os.path.isfile(path):
        return "which is no file", ARCHIVE, HANGS
    return _unpacked(path)


def _unpacked(path: str) -> Optional[Tuple[str, str, str]]:
    """Look for what activates an environment in its archive."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with tarfile.open(fileobj=raw, mode="r|gz" if packed else "r|") as archive:
                for member in archive:
                    if os.path.normpath(member.name) == ACTIVATE:
                        return None
                    if member.offset_data + member.size > LARGEST:
                        return None
    except (tarfile.TarError, EOFError, OSError, zlib.error):
        return "which is no such archive", ARCHIVE, REFUSES
    return f"an archive without {ACTIVATE}", ARCHIVE, REFUSES
