#!/usr/bin/env python3
"""Check that texts use plain words, and that no local name hides an import or a definition of its file.

Texts are docstrings, comments, messages, names of tasks, descriptions, and the English pages. CONTRIBUTING.md has the rules.
Files that pyproject.toml exempts from the rules of docstrings (`D`) are not read, unless the command line names them.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import tomllib
import yaml

ROOT = Path(__file__).resolve().parents[1]
READ = (
    *("plugins", "roles", "playbooks", "bin", "files", "model_repository", "inventories/example", "lab", "molecule"),
    *("docs", "Makefile", "*.md", "tests/*.py", "tests/*.sh", "tests/sanity"),
)
# Pages that programs write, and this list of words
NOT_READ = ("docs/variables.md", "CHANGELOG.md", "tests/words.py")
KOREAN = ".ko.md"
HASH_COMMENTS = (".yml", ".yaml", ".sh", ".j2", ".toml", ".service", ".conf", ".cfg")
YAML_TEXTS = ("name", "msg", "fail_msg", "success_msg", "description", "short_description", "title", "summary")

# Pattern of a word -> what to write. A space of a pattern also matches the end of a line.
WORDS = {
    r"anew": "again, or re-...",
    r"once more|as ever": "again, as usual",
    r"of before": "previous, earlier",
    r"whoever|whichever": "the caller, each host, the process that ...",
    r"nobody's eyes": "secret",
    r"(by|for|to|that|since|when|only|while|with|needs?|of|where) hands": "manually, an operator",
    r"a (config|file|lock|plan|record|manifest) that is none": "a ... that does not parse",
    r"way back": "rollback, restore",
    r"put(ting|s)?( \w+){0,3} back": "restore, roll back, return",
    r"(take[ns]?|taking|took)( it| them| the \w+)? away": "remove",
    r"as wanted": "in sync",
    r"wanted(?!:)": "desired, expected",
    r"told": "reported, logged, returned; distinguished",
    r"(is|are|was|were|be|been|being) asked": "is queried, requested, called",
    r"(says?|said) so": "report, log",
    r"(lies|lie) (in|on|at|there|beside|below|under|ahead|with|as|within)": "is in, exists",
    r"stands? (in|at|there|on|beside|behind|below|until)(?! for\b)": "is in, is at",
    r"(is|are|was|were|be|been) there(?! (an?|any|no|room|enough|\w+thing)\b)": "exists, is present",
    r"(a|the|its|their|this|same|no|every|each|whose|one|\w+'s) turn": "host change",
    r"found [^.;:]{1,60}, (wanted|expected)": "is ..., expected ...",
}
SPACE = r"(?:[ \t]+|[ \t]*\n[ \t#]*)"
PATTERNS = [(re.compile(rf"\b(?:{word})\b".replace(" ", SPACE), re.IGNORECASE), plain) for word, plain in WORDS.items()]
RIDDLE = re.compile(r"(What|Whatever|Whether|Why|Who|Whoever|How|Of|Where|Wherever|Whose)\b")
NO_VERB = re.compile(
    r"(As|An?|The|Its|All|Every|Each|No|Not|Any|Both|One|Two|It|This|That|These|Those|There|Nothing|Everything|Names?|Also)\b|[({]"
)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Text(NamedTuple):
    """A piece of text, and the line where it starts. The kind is `function` (its docstring), `docstring` (any other) or `text`."""

    line: int
    text: str
    kind: str = "text"


# Texts of files


def comments(source: str) -> Iterator[Text]:
    """Yield the comments of a Python file. Comments on consecutive lines are one text."""
    start, lines = 0, []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != start + len(lines):
                yield Text(start, "\n".join(lines))
                lines = []
            start = start if lines else token.start[0]
            lines.append(token.string)
    if lines:
        yield Text(start, "\n".join(lines))


def docstring_kind(node: ast.AST) -> str:
    """Return the kind of a definition's docstring. The docstring of a property is a noun phrase, like that of a class."""
    if not isinstance(node, SCOPES[:2]):
        return "docstring"
    return "docstring" if any("property" in ast.unparse(decorator) for decorator in node.decorator_list) else "function"


def python_texts(source: str) -> Iterator[Text]:
    """Yield the docstrings, comments and strings of several words of a Python file."""
    yield from comments(source)
    tree = ast.parse(source)
    seen: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *SCOPES[:2])) and ast.get_docstring(node, clean=False):
            constant = node.body[0].value  # type: ignore[attr-defined]
            seen.add(id(constant))
            yield Text(constant.lineno, constant.value, docstring_kind(node))
        elif isinstance(node, ast.JoinedStr):
            seen |= {id(part) for part in node.values}
            words = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
            yield Text(node.lineno, words)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in seen and node.value.count(" ") > 1:
            yield Text(node.lineno, node.value)


def hash_comments(source: str) -> Iterator[Text]:
    """Yield the comments of a file of another language. Comments on consecutive lines are one text."""
    for block in re.finditer(r"(?:^[ \t]*#(?!!).*\n?)+|(?<=\s)#\s.*", source, re.MULTILINE):
        yield Text(source.count("\n", 0, block.start()) + 1, block[0])


def yaml_texts(source: str) -> Iterator[Text]:
    """Yield the names, messages and descriptions of a YAML file."""

    def values(node: yaml.Node | None, is_text: bool) -> Iterator[Text]:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                yield from values(value, key.value in YAML_TEXTS)
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                yield from values(value, is_text)
        elif is_text and isinstance(node, yaml.ScalarNode):
            yield Text(node.start_mark.line + (2 if node.style in ("|", ">") else 1), node.value)

    for document in yaml.compose_all(source, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        yield from values(document, False)


def prose(source: str) -> Text:
    """Return a Markdown page without its code and the targets of its links. The numbers of the lines stay the same."""
    without_blocks = re.sub(
        r"^( *)```.*?^\1```$", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL | re.MULTILINE
    )
    return Text(1, re.sub(r"`[^`\n]+`", "`", re.sub(r"\]\([^)\s]*\)", "]", without_blocks)))


def texts(path: Path) -> Iterator[Text]:
    """Yield the texts of a file. A file of an unknown type has no texts."""
    if path.suffix == ".md":
        yield prose(path.read_text())
    elif is_python(path):
        yield from python_texts(path.read_text())
    elif path.suffix in HASH_COMMENTS or path.name in ("Makefile", "Dockerfile"):
        yield from hash_comments(path.read_text())
        if path.suffix in (".yml", ".yaml"):
            yield from yaml_texts(path.read_text())


def is_python(path: Path) -> bool:
    """Return True for Python files, with and without a suffix."""
    return path.suffix == ".py" or (not path.suffix and re.match(rb"#!.*python", path.read_bytes()[:64]) is not None)


# Problems of a file


def word_problems(text: Text) -> Iterator[tuple[int, str]]:
    """Yield (line, message) for each word of the dialect in a text."""
    if text.kind != "text":
        opening = re.match(r"\W*\w+|[({]", text.text)
        bad = RIDDLE.match(text.text) or (text.kind == "function" and NO_VERB.match(text.text))
        if bad and opening:
            plain = "a verb (Return, Yield, Raise, ...)" if text.kind == "function" else "a noun phrase"
            yield text.line, f'the docstring starts with "{opening[0]}", expected {plain}'
    for pattern, plain in PATTERNS:
        for match in pattern.finditer(text.text):
            yield text.line + text.text.count("\n", 0, match.start()), f'"{" ".join(match[0].split())}": write {plain}'


def module_names(tree: ast.Module) -> set[str]:
    """Return the names of the imports, functions and classes of a file."""
    names: set[str] = set()
    for outer in tree.body:
        if isinstance(outer, (ast.ClassDef, *SCOPES[:2])):
            names.add(outer.name)
            continue
        for node in ast.walk(outer):
            if isinstance(node, ast.Import):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                names |= {alias.asname or alias.name for alias in node.names}
    return names


def bindings(scope: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) for what a function binds: parameters, assignments, loops, exceptions, definitions."""
    for node in ast.walk(scope):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, (ast.ExceptHandler, *SCOPES[:2])) and node is not scope and node.name:
            yield node.lineno, node.name


def hidden_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, message) for each local name that is also the name of an import, a function or a class of the file."""
    tree = ast.parse(source)
    names = module_names(tree)
    found = {entry for scope in ast.walk(tree) if isinstance(scope, SCOPES) for entry in bindings(scope) if entry[1] in names}
    for line, name in sorted(found):
        yield line, f"the local name {name} hides an import or a definition of this file"


# The checkout


def exempt(root: Path) -> list[str]:
    """Return the patterns of the files that pyproject.toml exempts from the rules of docstrings."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
    return [pattern for pattern, rules in settings.items() if "D" in rules]


def files(root: Path, prefixes: Sequence[str] = ()) -> list[Path]:
    """Return the files whose paths start with one of the prefixes. Without prefixes, return all files that are not exempt."""
    patterns = exempt(root)
    found = []
    for path in sorted(
        path for name in READ for start in root.glob(name) for path in ([start] if start.is_file() else start.rglob("*"))
    ):
        name = path.relative_to(root).as_posix()
        skipped = not name.startswith(tuple(prefixes)) if prefixes else any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        if (
            path.is_file()
            and not skipped
            and "__pycache__" not in path.parts
            and not name.endswith(KOREAN)
            and name not in NOT_READ
        ):
            found.append(path)
    return found


def problems(root: Path, prefixes: Sequence[str] = ()) -> Iterator[str]:
    """Yield `file:line: message` for each problem."""
    for path in files(root, prefixes):
        found = {problem for text in texts(path) for problem in word_problems(text)}
        if is_python(path):
            found |= set(hidden_names(path.read_text()))
        yield from (f"{path.relative_to(root).as_posix()}:{line}: {message}" for line, message in sorted(found))


def main() -> int:
    """Print the problems. Return 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", nargs="*", help="read only files whose path starts with this, such as plugins/module_utils/store")
    found = list(problems(ROOT, parser.parse_args().prefix))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
