"""Rules about a model.py, read as text and never run: that it is there, parses, and has what Triton's Python backend looks for."""

from __future__ import annotations

import ast
import builtins
import os
import sys
from typing import Iterator, List, NamedTuple, Optional, Union

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, python_source
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model

RULE = "python model"
CLASS = "TritonPythonModel"
# The first line of what Git leaves in the place of a large file that was not fetched; the whole is never longer than this
POINTER, POINTER_LARGEST = b"version https://git-lfs", 1024
FAILS = "starts the model's process, which ends, and refuses the model"
LARGEST = 1 << 20
UNCERTAIN = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.BoolOp, ast.Compare)
EXITS = ("exit", "quit", "sys.exit", "os._exit")
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


def check(model: Model, path: str) -> Iterator[Finding]:
    """Findings of a model.py at this path below the model, which is served."""
    name = model.identity.file or backends.PROGRAM
    stem = name[:-3] if name.endswith(".py") else ""
    if not stem or "." in stem:
        wanted = "a name that ends in .py, with no other dot, as Triton imports it as a module"
        found = f"{name} as default_model_filename"
        yield model.file_error(RULE, path, found, wanted, "rename it", FAILS)
        return
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
        tree, rewritten = python_source.parsed(raw, image_python(model))
    except python_source.ERRORS as error:
        yield _unparsed(model, path, error)
        return
    raised = _raises(tree.body)
    if raised:
        found, wanted = "a line that ends its import", f"a module that defines {CLASS}"
        yield model.file_error(RULE, path, found, wanted, "take it out", FAILS)._replace(line=raised.lineno)
        return
    for unknown in () if rewritten else _undefined(tree):
        found, wanted = f"{unknown.id}, which nothing defines", "names that are defined when the module is imported"
        yield model.file_error(RULE, path, found, wanted, "import or define it", FAILS)._replace(line=unknown.lineno)
    yield from _class(model, path, tree)


def content(model: Model, path: str) -> Optional[bytes]:
    """What is in a file of the model; None for one that comes from elsewhere, or is too large to be a program."""
    # To open a named pipe is to wait for whoever writes to it.
    if not model.readable(path) or not os.path.isfile(os.path.join(model.directory, path)):
        return None
    try:
        with open(os.path.join(model.directory, path), "rb") as source:
            raw = source.read(LARGEST + 1)
    except OSError:
        return None
    return raw if len(raw) <= LARGEST else None


def is_pointer(raw: bytes) -> bool:
    """Whether Git LFS left this in the place of a file."""
    return raw.startswith(POINTER) and len(raw) <= POINTER_LARGEST


def image_python(model: Model) -> Optional[python_source.Version]:
    """Return the Python of the release's image; None where no release is given."""
    if not model.row or not model.row.python:
        return None
    major, minor = model.row.python.split(".")[:2]
    return int(major), int(minor)


def completes(model: Model) -> bool:
    """Return True if the model's backend may add inputs and outputs to its config: by itself, or by the model's model.py."""
    known = backends.ALL.get(model.backend)
    if known and known.completes:
        return True
    program = model.identity.file or backends.PROGRAM
    for version in model.served():
        raw = content(model, f"{model.versions()[version]}/{program}") if model.backend == "python" else None
        if raw and b"auto_complete_config" in raw:
            return True
    return False


def writes_config(model: Model) -> bool:
    """Return True if the model's backend writes a config where there is none."""
    known = backends.ALL.get(model.backend)
    return model.backend == "python" or model.program or bool(known and known.completes)


def _unparsed(model: Model, path: str, error: BaseException) -> Finding:
    """A program that the image's Python does not read."""
    line = getattr(error, "lineno", None)
    image = image_python(model)
    python = ".".join(map(str, image or sys.version_info[:2]))
    # Python says nothing where its parser has no room left
    found = f"no Python {python}: {getattr(error, 'msg', None) or str(error) or 'nested too deeply'}"
    wanted = f"a program that Python {python} of the image can read" if image else "a program that Python can read"
    return model.file_error(RULE, path, found, wanted, "correct the line", FAILS)._replace(line=line)


def _raises(body: List[ast.stmt]) -> Optional[ast.stmt]:
    """Return the statement that these reach in any case and that raises: `raise`, a false `assert`, sys.exit(); else None."""
    for node in body:
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Assert) and _is_false(node.test)) or _exits(node):
            return node
        if any(isinstance(inner, (ast.Return, ast.Yield, ast.YieldFrom)) for inner in [node, *_own(node)]):
            return None
    return None


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _exits(node: ast.stmt) -> bool:
    """Return True if a statement is a call of exit(), quit() or sys.exit()."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in EXITS


def _undefined(tree: ast.Module) -> Iterator[ast.Name]:
    """Yield the names that a module reads when it is imported, in any case, and that nothing in it binds."""
    known = {*_bound(tree.body), *dir(builtins), "__file__", "__path__", "__builtins__", "__annotations__"}
    known |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    if "*" in known or known & {"globals", "exec", "vars"} & {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}:
        return
    for node in tree.body:
        if isinstance(node, (ast.Expr, ast.Assign)):
            read = [node.value]
        elif isinstance(node, ast.ClassDef):
            read = [*node.bases, *node.decorator_list]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            read = list(node.decorator_list)
        else:
            continue
        for value in read:
            yield from (inner for inner in _certain(value) if isinstance(inner, ast.Name) and inner.id not in known)


def _certain(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression that are evaluated whenever it is."""
    if not isinstance(node, UNCERTAIN):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _certain(child)


def _class(model: Model, path: str, tree: ast.Module) -> Iterator[Finding]:
    """The class that Triton looks for by its name, and the method that answers."""
    found = _bound(tree.body)
    last = next((node for node in reversed(tree.body) if CLASS in _touched(node)), None)
    if isinstance(last, ast.Delete) or (isinstance(last, ast.Assign) and isinstance(last.value, ast.Constant)):
        words, do = f"{ast.unparse(last)} as the last word about it", "take it out"
        yield model.file_error(RULE, path, words, f"a class {CLASS}", do, FAILS)._replace(line=last.lineno)
    if CLASS not in found and "*" not in found:
        near = next((name for name in found if name.lower().replace("_", "") == CLASS.lower()), "")
        do = f"did you mean {near}? rename it" if near else "write the class, or import it by this name"
        yield model.file_error(RULE, path, f"no {CLASS}", "a class of that name, with a method execute", do, FAILS)
    for node in (element for element in tree.body if isinstance(element, ast.ClassDef)):
        if node.name != CLASS or node.keywords or node.decorator_list:
            continue
        yield from _methods(model, path, node)
        # A base class may have it.
        if not node.bases and "execute" not in _bound(node.body):
            wanted, triton = "a method execute(self, requests)", "loads the model and answers every request with an error"
            entry = model.file_warning(RULE, path, f"a {CLASS} without execute", wanted, "write it", triton)
            yield entry._replace(line=node.lineno)


class _Call(NamedTuple):
    """How Triton calls a method: on the class or on an object, with how many arguments, and what has to be written."""

    on_class: bool
    arguments: int
    wanted: str


CALLS = {
    "__init__": _Call(False, 0, "__init__(self)"),
    "initialize": _Call(False, 1, "initialize(self, args)"),
    "auto_complete_config": _Call(True, 1, "@staticmethod, and auto_complete_config(auto_complete_model_config)"),
}


def _methods(model: Model, path: str, node: ast.ClassDef) -> Iterator[Finding]:
    """The methods that Triton calls when it loads a model."""
    last = {element.name: element for element in node.body if isinstance(element, (ast.FunctionDef, ast.AsyncFunctionDef))}
    yield from _assigned(model, path, node)
    # A name that is bound again, or only in some cases, is nothing to judge.
    names = [name for statement in node.body for name in _bound([statement])]
    for name, call in CALLS.items():
        method = last.get(name)
        if method is None or names.count(name) > 1:
            continue
        kinds = [decorator.id if isinstance(decorator, ast.Name) else "" for decorator in method.decorator_list]
        if kinds not in ([], ["staticmethod"], ["classmethod"]):
            continue
        given = call.arguments + (kinds == ["classmethod"] or (not kinds and not call.on_class))
        found, do = "", f"write {call.wanted}"
        if not _takes(method.args, given):
            found = f"{name}({ast.unparse(method.args)}){f' as {kinds[0]}' if kinds else ''}, which cannot be called with {given}"
            found += " argument" if given == 1 else " arguments"
        elif name == "__init__" and _answers_a_constant(method):
            found, do = "__init__ with a return value", "return nothing"
        elif name == "auto_complete_config" and not _answers(method):
            found, do = f"{name} without a return value", "return the config that it is given"
        elif _raises(method.body):
            found, do = f"{name}, which raises in any case", "take the raise out"
        if found:
            yield model.file_error(RULE, path, found, call.wanted, do, FAILS)._replace(line=method.lineno)


def _assigned(model: Model, path: str, node: ast.ClassDef) -> Iterator[Finding]:
    """Names of methods that are bound to what cannot be called as Triton does."""
    for statement in node.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
            continue
        name, value = statement.targets[0].id, statement.value
        if name not in CALLS or isinstance(value, ast.Constant) is isinstance(value, ast.Lambda):
            continue
        given = CALLS[name].arguments + (not CALLS[name].on_class)
        if isinstance(value, ast.Constant) or not _takes(value.args, given):  # type: ignore[attr-defined]
            wanted = CALLS[name].wanted
            entry = model.file_error(RULE, path, f"{name} = {ast.unparse(value)}", wanted, f"write {wanted}", FAILS)
            yield entry._replace(line=statement.lineno)


def _takes(arguments: ast.arguments, count: int) -> bool:
    """Return True if a function can be called with this many arguments by position."""
    positional = len(arguments.posonlyargs) + len(arguments.args)
    if any(default is None for default in arguments.kw_defaults):
        return False
    return positional - len(arguments.defaults) <= count and (count <= positional or arguments.vararg is not None)


def _answers(method: Function) -> bool:
    """Return True if a function may return something that is no constant. That of a coroutine or generator is the object itself."""
    nodes = list(_own(method))
    if isinstance(method, ast.AsyncFunctionDef) or any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes):
        return False
    values = [node.value for node in nodes if isinstance(node, ast.Return)]
    return any(value is not None and not isinstance(value, ast.Constant) for value in values)


def _answers_a_constant(method: Function) -> bool:
    values = [node.value for node in _own(method) if isinstance(node, ast.Return)]
    return any(isinstance(value, ast.Constant) and value.value is not None for value in values)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _own(child)


def _touched(node: ast.stmt) -> List[str]:
    """Return the names that a statement binds or deletes."""
    deleted = [target.id for target in node.targets if isinstance(target, ast.Name)] if isinstance(node, ast.Delete) else []
    return [*_bound([node]), *deleted]


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
