# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rules about a model.py, which is parsed but never run: it has the class and the methods that Triton's Python backend calls."""

from __future__ import annotations

import ast
import builtins
import os
import sys
from typing import Iterator, List, Optional, Union

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, python_source
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model

RULE = "python model"
CLASS = "TritonPythonModel"
# Git LFS leaves a small pointer in place of a file that it has not fetched.
POINTER_START, MAX_POINTER_BYTES = b"version https://git-lfs", 1024
FAILS = "starts the model's process, which ends, and refuses the model"
MAX_BYTES = 1 << 20  # A larger file is not read
# Expressions with parts that Python evaluates only in some cases
CONDITIONAL = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.BoolOp, ast.Compare)
EXIT_CALLS = ("exit", "quit", "sys.exit", "os._exit")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


def _error(model: Model, path: str, actual: str, expected: str, todo: str, line: Optional[int] = None) -> Finding:
    """Return an error of a model.py that makes the model's process end when it starts."""
    return model.file_error(RULE, path, actual, expected, todo, FAILS)._replace(line=line)


def check(model: Model, path: str) -> Iterator[Finding]:
    """Yield the findings about the model.py of a served version. `path` is relative to the model's directory."""
    name = model.identity.file or backends.MODEL_PY
    stem = name[:-3] if name.endswith(".py") else ""
    if not stem or "." in stem:
        expected = "a name that ends in .py and has no other dot, as Triton imports it"
        yield _error(model, path, f"{name} as default_model_filename", expected, "Rename it")
        return
    raw = content(model, path)
    if raw is None:
        return
    if is_pointer(raw):
        yield _error(model, path, "a pointer of Git LFS", "the file", "Fetch it: git lfs pull")
        return
    if not raw.strip():
        yield _error(model, path, "an empty file", f"a class {CLASS}", "Write it")
        return
    try:
        tree, rewritten = python_source.parsed(raw, image_python(model))
    except python_source.ERRORS as error:
        yield _parser_error(model, path, error)
        return
    raising = _raises(tree.body)
    if raising:
        actual = "a module that always raises when it is imported"
        yield _error(model, path, actual, f"a module that defines {CLASS}", "Remove the line", raising.lineno)
        return
    for unknown in () if rewritten else _undefined(tree):
        actual, expected = f"a module with the undefined name {unknown.id}", "names that are defined when it is imported"
        yield _error(model, path, actual, expected, "Import or define it", unknown.lineno)
    yield from _class_findings(model, path, tree)


def content(model: Model, path: str) -> Optional[bytes]:
    """Return the content of a file of the model, or None if it is outside the repository, unreadable or too large."""
    # Only a regular file is opened, because opening a named pipe would wait for a writer.
    if not model.readable(path) or not os.path.isfile(os.path.join(model.directory, path)):
        return None
    try:
        with open(os.path.join(model.directory, path), "rb") as source:
            raw = source.read(MAX_BYTES + 1)
    except OSError:
        return None
    return raw if len(raw) <= MAX_BYTES else None


def is_pointer(raw: bytes) -> bool:
    """Return True for a pointer of Git LFS."""
    return raw.startswith(POINTER_START) and len(raw) <= MAX_POINTER_BYTES


def image_python(model: Model) -> Optional[python_source.Version]:
    """Return the Python version of the release's image, or None if it is unknown."""
    if not model.row or not model.row.python:
        return None
    major, minor = model.row.python.split(".")[:2]
    return int(major), int(minor)


def completes(model: Model) -> bool:
    """Return True if the backend or the model's model.py can add inputs and outputs to the config."""
    program = model.identity.file or backends.MODEL_PY
    versions = model.served() if model.backend == "python" else []
    programs = (content(model, f"{version}/{program}") or b"" for version in versions)
    return model.backend_facts.completes or any(b"auto_complete_config" in raw for raw in programs)


def _parser_error(model: Model, path: str, error: BaseException) -> Finding:
    image = image_python(model)
    python = ".".join(map(str, image or sys.version_info[:2]))
    # Python's exception for a too deeply nested program has no message.
    actual = f"not valid for Python {python} ({getattr(error, 'msg', None) or str(error) or 'nested too deeply'})"
    expected = f"a program for Python {python} of the image" if image else "a Python program"
    return _error(model, path, actual, expected, "Correct the line", getattr(error, "lineno", None))


def _raises(body: List[ast.stmt]) -> Optional[ast.stmt]:
    """Return the first statement that always runs and always raises, or None."""
    for node in body:
        if _always_raises(node):
            return node
        if any(isinstance(inner, (ast.Return, ast.Yield, ast.YieldFrom)) for inner in [node, *_own_nodes(node)]):
            return None
    return None


def _always_raises(node: ast.stmt) -> bool:
    """Return True for `raise`, a false `assert`, and a call that ends the process."""
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant) and not node.test.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func) in EXIT_CALLS
    return isinstance(node, ast.Raise)


def _undefined(tree: ast.Module) -> Iterator[ast.Name]:
    """Yield the undefined names that Python evaluates whenever it imports the module."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {*_bound_names(tree.body), *dir(builtins), "__file__", "__path__", "__builtins__", "__annotations__"}
    defined |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    if "*" in defined or defined & {"globals", "exec", "vars"} & {node.id for node in names}:
        return
    for node in tree.body:
        if isinstance(node, (ast.Expr, ast.Assign)):
            expressions = [node.value]
        else:
            # Only classes have bases. Only classes and functions have decorators.
            expressions = [*getattr(node, "bases", ()), *getattr(node, "decorator_list", ())]
        for value in expressions:
            yield from (inner for inner in _always_evaluated(value) if isinstance(inner, ast.Name) and inner.id not in defined)


def _always_evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression that Python evaluates whenever it evaluates the expression."""
    if not isinstance(node, CONDITIONAL):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _always_evaluated(child)


def _class_findings(model: Model, path: str, tree: ast.Module) -> Iterator[Finding]:
    names = _bound_names(tree.body)
    last = next((node for node in reversed(tree.body) if CLASS in _bound_or_deleted(node)), None)
    if isinstance(last, ast.Delete) or (isinstance(last, ast.Assign) and isinstance(last.value, ast.Constant)):
        actual = f"a module without {CLASS} because of `{ast.unparse(last)}`"
        yield _error(model, path, actual, f"a class {CLASS}", "Remove the line", last.lineno)
    if CLASS not in names and "*" not in names:
        similar = next((name for name in names if name.lower().replace("_", "") == CLASS.lower()), "")
        todo = f"Did you mean {similar}? Rename it" if similar else "Write the class, or import it by this name"
        yield _error(model, path, f"a module without {CLASS}", "a class of that name, with a method execute", todo)
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != CLASS or node.keywords or node.decorator_list:
            continue
        yield from _methods(model, path, node)
        # A class with a base class can inherit the method.
        if not node.bases and "execute" not in _bound_names(node.body):
            expected, triton = "a method execute(self, requests)", "loads the model and answers every request with an error"
            warning = model.file_warning(RULE, path, f"a {CLASS} without execute", expected, "Write it", triton)
            yield warning._replace(line=node.lineno)


# {method that Triton calls: (True if it is called on the class, number of passed arguments, a definition that fits the call)}
TRITON_CALLS = {
    "__init__": (False, 0, "__init__(self)"),
    "initialize": (False, 1, "initialize(self, args)"),
    "auto_complete_config": (True, 1, "@staticmethod, and auto_complete_config(auto_complete_model_config)"),
}


def _methods(model: Model, path: str, node: ast.ClassDef) -> Iterator[Finding]:
    """Yield the errors of the methods that Triton calls when it loads a model."""
    methods = {element.name: element for element in node.body if isinstance(element, FUNCTIONS)}
    yield from _assigned(model, path, node)
    names = [name for statement in node.body for name in _bound_names([statement])]
    for name, (on_class, arguments, expected) in TRITON_CALLS.items():
        method = methods.get(name)
        # The linter cannot tell which of several bindings of a name applies.
        if method is None or names.count(name) > 1:
            continue
        kinds = [decorator.id if isinstance(decorator, ast.Name) else "" for decorator in method.decorator_list]
        if kinds not in ([], ["staticmethod"], ["classmethod"]):
            continue
        count = arguments + (kinds == ["classmethod"] or (not kinds and not on_class))
        actual, todo = "", f"Write {expected}"
        returned = [inner.value for inner in _own_nodes(method) if isinstance(inner, ast.Return)]
        if not _accepts(method.args, count):
            definition = f"{name}({ast.unparse(method.args)}){f' as {kinds[0]}' if kinds else ''}"
            actual = f"{definition}, which cannot be called with {count} argument{'s' * (count != 1)}"
        elif name == "__init__" and any(isinstance(value, ast.Constant) and value.value is not None for value in returned):
            actual, todo = "__init__ with a return value", "Return nothing"
        elif name == "auto_complete_config" and not _returns_a_value(method, returned):
            actual, todo = f"{name} without a return value", "Return the config from its argument"
        elif _raises(method.body):
            actual, todo = f"{name}, which always raises", "Remove the raise"
        if actual:
            yield _error(model, path, f"a {CLASS} with {actual}", expected, todo, method.lineno)


def _assigned(model: Model, path: str, node: ast.ClassDef) -> Iterator[Finding]:
    """Yield an error for each method name to which the class assigns a value that Triton cannot call."""
    for statement in node.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
            continue
        name, value = statement.targets[0].id, statement.value
        if name not in TRITON_CALLS or isinstance(value, ast.Constant) is isinstance(value, ast.Lambda):
            continue
        on_class, arguments, expected = TRITON_CALLS[name]
        if isinstance(value, ast.Constant) or not _accepts(value.args, arguments + (not on_class)):  # type: ignore[attr-defined]
            actual = f"a {CLASS} with {name} = {ast.unparse(value)}"
            yield _error(model, path, actual, expected, f"Write {expected}", statement.lineno)


def _accepts(arguments: ast.arguments, count: int) -> bool:
    """Return True if a function can be called with this number of positional arguments."""
    positional = len(arguments.posonlyargs) + len(arguments.args)
    if any(default is None for default in arguments.kw_defaults):
        return False
    return positional - len(arguments.defaults) <= count and (count <= positional or arguments.vararg is not None)


def _returns_a_value(method: Function, returned: List[Optional[ast.expr]]) -> bool:
    """Return True if a function can return a value that is not a constant. A coroutine or a generator returns no such value."""
    if isinstance(method, ast.AsyncFunctionDef) or any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _own_nodes(method)):
        return False
    return any(value is not None and not isinstance(value, ast.Constant) for value in returned)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, except the nodes of inner functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _own_nodes(child)


def _bound_or_deleted(node: ast.stmt) -> List[str]:
    deleted = [target.id for target in node.targets if isinstance(target, ast.Name)] if isinstance(node, ast.Delete) else []
    return [*_bound_names([node]), *deleted]


def _bound_names(body: List[ast.stmt]) -> List[str]:
    """Return the names that statements bind, also in the blocks of `if` and `try`. `from m import *` binds "*"."""
    names: List[str] = []
    for node in body:
        # Names that are bound inside a class or a function are not names of the module.
        for inner in [node] if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else ast.walk(node):
            if isinstance(inner, (*FUNCTIONS, ast.ClassDef)):
                names.append(inner.name)
            elif isinstance(inner, (ast.Import, ast.ImportFrom)):
                names += [(name.asname or name.name).split(".")[0] for name in inner.names]
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                names.append(inner.id)
            # A program can bind the class as globals()["TritonPythonModel"].
            elif isinstance(inner, ast.Constant) and inner.value == CLASS:
                names.append(CLASS)
    return names
