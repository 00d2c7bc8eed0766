"""One word for one thing: no metaphors in names, no class name twice, in Python and in C++."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from sources import ROOT, Source, expect_none, parse, sources

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


def names(source: Source) -> Iterator[tuple[int, str]]:
    """Every name that a Python file gives to something, and its line."""
    yield 1, source.path.stem
    for node in source.nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


# Names of libraries.
FOREIGN = {"loader_life_support"}


def native_names(text: str) -> Iterator[tuple[int, str]]:
    """Every word of a C++ file outside comments and strings, and its line."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r"[A-Za-z_]\w*", re.sub(r'//.*|"[^"]*"', "", line)):
            if name not in FOREIGN:
                yield number, name


def words(name: str) -> set[str]:
    """The words of a name in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Za-z][a-z]*", name)}


def metaphors(path: Path, found: Iterator[tuple[int, str]]) -> list[str]:
    """Return `file:line: name: what to use instead` of every metaphor."""
    return [
        f"{path}:{line}: {name}: use {FORBIDDEN[word]}"
        for line, name in found
        for word in sorted(words(name) & FORBIDDEN.keys())
    ]


def repeated(files: tuple[Source, ...]) -> dict[str, list[str]]:
    """Return the public classes of which there are several, and where they are."""
    # What a file keeps to itself may have the name that fits it best; tasks see the worker and its
    # handles through protocols of the same names.
    found: dict[str, list[str]] = defaultdict(list)
    for source in files:
        for node in source.nodes if source.name != "tasks.base" else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{source.path}:{node.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_name_is_a_metaphor() -> None:
    assert len(sources()) > 300
    expect_none([line for file in sources() for line in metaphors(file.path, names(file))])


def test_no_native_name_is_a_metaphor() -> None:
    assert len(NATIVE) > 100
    texts = [(path, path.read_text()) for path in NATIVE]
    expect_none([line for path, text in texts for line in metaphors(path, native_names(text))])


def test_a_class_name_exists_once() -> None:
    assert repeated(sources()) == {}


def test_a_metaphor_is_found_with_its_line() -> None:
    path = ROOT / "model/x.py"
    text = "a = 1\nclass ShadowTable:\n    def f(self, last_said): self.keeper = 1\n"
    found = metaphors(path, names(parse(path, text)))
    assert [line.split(":")[1:3] for line in found] == [
        ["2", " ShadowTable"],
        ["3", " last_said"],
        ["3", " keeper"],
    ]
    found = metaphors(path, native_names('int a; // told\nf("kept");\nint kept_rows;'))
    assert [line.split(":")[1:3] for line in found] == [["3", " kept_rows"]]
    twice = (
        parse(path, "class A: pass\nclass _B: pass"),
        parse(ROOT / "data/y.py", "class A: pass"),
    )
    assert list(repeated(twice)) == ["A"]
