"""In a run of ansible-playbook, and in the process that forks for it (forked.py): what each run would parse anew is parsed once.

Those are templates and the sources of modules, whose bytecode is kept in files that all runs of this checkout share, the project's
documents, and what the names of filters stand for.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import jinja2
from ansible import __version__ as version
from ansible._internal._templating import _jinja_bits as bits
from ansible.module_utils._internal._datatag import AnsibleTagHelper
from ansible.parsing import dataloader
from ansible.parsing.dataloader import DataLoader
from ansible.plugins import loader

# What makes bytecode, that of templates, too
MADE_BY = f"{sys.implementation.cache_tag} {jinja2.__version__} {version}"


class Kept:
    """Bytecode by what it was made of, in a directory that runs share."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)

    def bytecode(self, of: str, make: Callable[[], CodeType]) -> bytes:
        """A code object as `marshal` writes it, which is made where it is not there."""
        path = self.place / hashlib.sha256(f"{MADE_BY} {of}".encode()).hexdigest()
        with suppress(FileNotFoundError):
            return path.read_bytes()
        content = marshal.dumps(make())
        write(path, content)
        return content


def write(path: Path, content: bytes) -> None:
    """At once, for whoever reads it beside this."""
    descriptor, partial = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as sink:
        sink.write(content)
    os.rename(partial, path)


def keep_templates(store: Kept) -> None:
    """From now on, a template that a run has compiled is not compiled again, nor one of this process."""
    environment = bits.AnsibleEnvironment
    compile_template, compile_expression = environment.compile, environment.compile_expression
    # Of this process
    known: dict[tuple[Any, ...], CodeType] = {}

    def kept(env: Any, kind: str, source: str, make: Callable[[], CodeType]) -> CodeType:
        context = bits._TemplateCompileContext.current(optional=True)
        settings = tuple(getattr(env, name) for name in bits._TEMPLATE_OVERRIDE_FIELD_NAMES)
        key = (kind, str(source), settings, bool(context and context.escape_backslashes))
        if key not in known:
            known[key] = marshal.loads(store.bytecode(repr(key), make))
        return known[key]

    def compiled(self: Any, source: Any, *given: Any, **more: Any) -> Any:
        if isinstance(source, str) and not (given or more):
            return kept(self, "template", source, lambda: compile_template(self, source))
        # The included file of a template, or what an expression was parsed to
        return compile_template(self, source, *given, **more)

    def compiled_expression(self: Any, source: str, undefined_to_none: bool = True) -> Any:
        def make() -> CodeType:
            made: list[CodeType] = []
            compiling = self._compile
            self._compile = lambda text, filename: made.append(compiling(text, filename)) or made[-1]
            try:
                compile_expression(self, source, undefined_to_none)
            finally:
                del self._compile
            return made[-1]

        code = kept(self, "expression", source, make)
        template = self.template_class.from_code(self, code, self.make_globals(None), None)
        return jinja2.environment.TemplateExpression(template, undefined_to_none)

    environment.compile, environment.compile_expression = compiled, compiled_expression


@cache
def look_once() -> None:
    """From now on, for what a filter or a test of templates is, and for the settings that a plugin has: where there is none, too.

    Filters of Jinja itself are looked for among Ansible's by each template, and documents without settings are parsed each time.
    """
    look, filters = loader.Jinja2Loader.get_with_context, {}
    read, plugins = loader.PluginLoader._load_config_defs, set()

    def found(self: Any, name: str, *given: Any, **more: Any) -> Any:
        if (self.type, name) not in filters:
            filters[self.type, name] = look(self, name, *given, **more)
        return filters[self.type, name]

    def load(self: Any, name: str, module: Any, path: str) -> None:
        if (self.type, name, path) not in plugins:
            read(self, name, module, path)
            plugins.add((self.type, name, path))

    loader.Jinja2Loader.get_with_context, loader.PluginLoader._load_config_defs = found, load


def parse_documents(paths: Iterable[Path]) -> None:
    """Now, for what this process becomes by a fork: each is taken once, and while its file is as it was."""
    load, reader = DataLoader.load_from_file, DataLoader()
    parsed = {}
    for path in map(str, paths):
        was = state(path)
        data = load(reader, path, cache="none", unsafe=True, trusted_as_template=True)
        parsed[path] = (was, data, copied(data))

    def load_from_file(self: Any, file_name: str, cache: str = "all", **more: Any) -> Any:
        path = self.path_dwim(file_name)
        if more == {"trusted_as_template": True} and path in parsed and path not in self._FILE_CACHE:
            was, data, again = parsed.pop(path)
            if state(path) == was:
                if cache == "all":
                    self._FILE_CACHE[path] = again
                return data
        return load(self, file_name, cache, **more)

    DataLoader.load_from_file = load_from_file


def state(path: str) -> tuple[int, int, int]:
    """What changes with a file."""
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


def copied(data: Any) -> Any:
    """A document that may be changed. Its strings are shared, of which the usual copy makes new ones where they have an origin."""
    if isinstance(data, dict):
        return AnsibleTagHelper.tag_copy(data, {name: copied(value) for name, value in data.items()})
    if isinstance(data, list):
        return AnsibleTagHelper.tag_copy(data, [copied(value) for value in data])
    return data


def copy_quickly() -> None:
    """From now on."""
    dataloader.copy = SimpleNamespace(deepcopy=copied)
