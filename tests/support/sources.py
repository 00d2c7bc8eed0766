"""The sources of the package, parsed once for all tests that look at every file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mpips

ROOT = Path(mpips.__file__).parent


@dataclass(frozen=True)
class Import:
    """A module that a file imports.

    Attributes:
        line: Of the statement.
        name: Dotted.
        at_start: It is imported when the file is.
        types: Only type checkers import it.
    """

    line: int
    name: str
    at_start: bool
    types: bool


@dataclass(frozen=True)
class Source:
    """A Python file of the package: its path, its name behind "mpips.", its nodes and its imports."""

    path: Path
    name: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    imports: tuple[Import, ...]


def parse(path: Path, text: str) -> Source:
    """Return the source of a file below `ROOT` with this text."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    tree = ast.parse(text)
    imports = tuple(_imports(tree, path, at_start=True, types=False))
    return Source(path, name, tree, tuple(ast.walk(tree)), imports)


@cache
def sources() -> tuple[Source, ...]:
    """Return all Python files of the package."""
    return tuple(parse(path, path.read_text()) for path in sorted(ROOT.rglob("*.py")))


def expect_none(offences: list[str]) -> None:
    """Fail with all of these lines, if there are any."""
    assert not offences, "\n" + "\n".join(offences)


def _imports(node: ast.AST, path: Path, at_start: bool, types: bool) -> Iterator[Import]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in (node.test, *node.body):
            yield from _imports(child, path, at_start, True)
        for child in node.orelse:
            yield from _imports(child, path, at_start, types)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        at_start = False
    if isinstance(node, ast.Import):
        yield from (Import(node.lineno, alias.name, at_start, types) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}:{node.lineno}: relative import"
        # `from mpips.x import y` may name a module y.
        names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (Import(node.lineno, name, at_start, types) for name in names)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, path, at_start, types)
