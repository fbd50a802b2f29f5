"""Rules about a model.py, read as text and never run: that it is there, parses, and has what Triton's Python backend looks for."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from typing import Iterator, List, Optional

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model

RULE = "python model"
CLASS = "TritonPythonModel"
# The first line of what Git leaves in the place of a large file that was not fetched; the whole is never longer than this
POINTER, POINTER_LARGEST = b"version https://git-lfs", 1024
FAILS = "starts the model's process, which ends, and refuses the model"
# Python of the oldest Triton's image (24.01); an older one here may not know a newer syntax
IMAGE_PYTHON = (3, 10)
LARGEST = 1 << 20


def check(model: Model, path: str) -> Iterator[Finding]:
    """Findings of a model.py at this path below the model, which is served."""
    raw = content(model, path)
    if raw is None:
        return
    if is_pointer(raw):
        found, wanted = "a pointer that Git LFS left there", "the file itself"
        yield model.file_error(RULE, path, found, wanted, "fetch it: git lfs pull", FAILS)
        return
    if not raw.strip():
        yield model.file_error(RULE, path, "an empty file", f"a class {CLASS}", "write it", FAILS)
        return
    try:
        tree = parsed(raw)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield _unparsed(model, path, error)
        return
    yield from _class(model, path, tree)


def content(model: Model, path: str) -> Optional[bytes]:
    """What is in a file of the model; None for one that comes from elsewhere, or is too large to be a program."""
    try:
        with open(os.path.join(model.directory, path), "rb") as source:
            raw = source.read(LARGEST + 1)
    except OSError:
        return None
    return raw if len(raw) <= LARGEST else None


def is_pointer(raw: bytes) -> bool:
    """Whether Git LFS left this in the place of a file."""
    return raw.startswith(POINTER) and len(raw) <= POINTER_LARGEST


def parsed(raw: bytes) -> ast.Module:
    """The program; raises SyntaxError, ValueError and what else `ast.parse` does."""
    with warnings.catch_warnings():
        # What Python thinks of an escape in somebody's string is no finding.
        warnings.simplefilter("ignore")
        return ast.parse(raw)


def completes(model: Model) -> bool:
    """Whether the model.py of a served version has auto_complete_config, which may say what its config does not."""
    for version in model.served():
        raw = content(model, f"{model.versions()[version]}/model.py") if model.backend == "python" else None
        if raw and b"auto_complete_config" in raw:
            return True
    return False


def _unparsed(model: Model, path: str, error: BaseException) -> Finding:
    """A program that this Python does not read."""
    line = getattr(error, "lineno", None)
    found = f"no Python {sys.version_info[0]}.{sys.version_info[1]}: {getattr(error, 'msg', None) or error or type(error).__name__}"
    make = model.file_error if sys.version_info >= IMAGE_PYTHON else model.file_warning
    return make(RULE, path, found, "a program that Python can read", "correct the line", FAILS)._replace(line=line)


def _class(model: Model, path: str, tree: ast.Module) -> Iterator[Finding]:
    """The class that Triton looks for by its name, and the method that answers."""
    found = _bound(tree.body)
    if CLASS not in found and "*" not in found:
        near = next((name for name in found if name.lower().replace("_", "") == CLASS.lower()), "")
        do = f"did you mean {near}? rename it" if near else "write the class, or import it by this name"
        yield model.file_error(RULE, path, f"no {CLASS}", "a class of that name, with a method execute", do, FAILS)
    for node in (element for element in tree.body if isinstance(element, ast.ClassDef)):
        # A base class may have it.
        own = node.name == CLASS and not (node.bases or node.keywords or node.decorator_list)
        if own and "execute" not in _bound(node.body):
            wanted, triton = "a method execute(self, requests)", "loads the model and answers every request with an error"
            entry = model.file_warning(RULE, path, f"a {CLASS} without execute", wanted, "write it", triton)
            yield entry._replace(line=node.lineno)


def _bound(body: List[ast.stmt]) -> List[str]:
    """Names that these statements bind, also those inside of if, try, with and loops; * for an import of everything."""
    names: List[str] = []
    for node in body:
        defines = isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        # What a class or a function binds within itself is not bound here.
        for inner in [node] if defines else ast.walk(node):
            if isinstance(inner, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                names.append(inner.name)
            elif isinstance(inner, (ast.Import, ast.ImportFrom)):
                names += [(name.asname or name.name).split(".")[0] for name in inner.names]
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                names.append(inner.id)
            # globals()["TritonPythonModel"] = ...
            elif isinstance(inner, ast.Constant) and inner.value == CLASS:
                names.append(CLASS)
    return names
