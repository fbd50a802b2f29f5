"""A local name hides no import of its file: the module of that name would be gone for the whole function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ROOT

SHIPPED = sorted(path for pattern in ("plugins/**/*.py", "roles/*/files/**/*.py", "files/**/*.py") for path in ROOT.glob(pattern))
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def imported(tree: ast.Module) -> set[str]:
    """Names that the imports of a file bind, wherever in its top level they are."""
    nodes = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    found = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def bound(scope: ast.AST) -> Iterator[str]:
    """Names that a function binds: parameters, assignments, loops, exceptions, definitions."""
    for node in ast.walk(scope):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.ExceptHandler, *SCOPES[:2])) and node is not scope and node.name:
            yield node.name


def hidden(source: str) -> list[str]:
    tree = ast.parse(source)
    names = imported(tree)
    return sorted({name for scope in ast.walk(tree) if isinstance(scope, SCOPES) for name in bound(scope) if name in names})


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_local_name_hides_an_import(path: Path) -> None:
    assert hidden(path.read_text()) == []


@pytest.mark.parametrize(
    "body",
    ["os = 1", "for os in []: pass", "[os for os in []]", "with open('x') as os: pass", "lambda os: os", "def os(): pass",
     "try: pass\n  except OSError as os: pass", "(os := 1)"],
)  # fmt: skip
def test_a_hidden_import_is_found(body: str) -> None:
    assert hidden(f"import os\ndef f():\n  {body}\n") == ["os"]
    assert hidden("import os\ndef f():\n  os.x = 1\n  import sys\n") == []
