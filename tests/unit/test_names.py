"""One word for one thing: no metaphors in names, no class name twice, in Python and in C++."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpips

ROOT = Path(mpips.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
NATIVE = sorted(Path(__file__).parents[2].glob("native/src/**/*.[ch]pp"))
FORBIDDEN = {
    "chronicle": "run recorder",
    "conductor": "coordinator",
    "course": "progress",
    "farewell": "acknowledgement",
    "keeper": "server part",
    "kept": "what it is: persistent, remaining, logged",
    "lastwords": "failure report",
    "life": "generation, durability",
    "panel": "rank table",
    "said": "what it is: answer, text",
    "shadow": "copy",
    "told": "signal request, message",
    "voice": "report",
}


def names(path: Path) -> Iterator[str]:
    """Every name that a Python file gives to something."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def words(name: str) -> set[str]:
    """The words of a name in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Za-z][a-z]*", name)}


def dotted(path: Path) -> str:
    return f"mpips.{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}"


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_no_name_is_a_metaphor(path: Path) -> None:
    found = {name: words(name) & FORBIDDEN.keys() for name in names(path)}
    wrong = {name: FORBIDDEN[word] for name, bad in found.items() for word in bad}
    assert not wrong, f"{path}: use instead {wrong}"


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.name)
def test_no_native_name_is_a_metaphor(path: Path) -> None:
    code = re.sub(r'//[^\n]*|"[^"\n]*"', "", path.read_text())
    wrong = {n for n in re.findall(r"[A-Za-z_]\w*", code) if words(n) & FORBIDDEN.keys()}
    assert not wrong


def test_a_class_name_exists_once() -> None:
    # What a file keeps to itself may have the name that fits it best; tasks see the worker and its
    # handles through protocols of the same names.
    found = Counter(
        node.name
        for path in FILES
        if path != ROOT / "tasks/base.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, n in found.items() if n > 1} == set()
