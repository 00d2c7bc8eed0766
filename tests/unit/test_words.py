"""Sentences of pages and docstrings: constructions that read oddly do not become more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import words


def test_no_folder_has_more_odd_sentences_than_before() -> None:
    most = json.loads(words.MOST.read_text())
    listed = list(words.places())
    assert len({folder for folder, _ in words.files()}) > 30
    for folder in {each[0] for each in listed}:
        here = [f"{place}: {name}: {text}" for at, place, name, text in listed if at == folder]
        assert len(here) <= most.get(folder, 0), "\n".join(here)


@pytest.mark.parametrize(
    ("pattern", "odd", "plain"),
    [
        ("as ever", "Keys are pulled as ever.", "Whatever it is."),
        ("there is none", 'The error; "": there is none.', "There is no error."),
        ("is none", "JOB is a file and is none of the run.", "None if it is missing."),
        ("Of ...", "Of two tables one is read.", "Of course it is read."),
        ("name: Of ...", "shape, dtype: Of the array.", "shape: Shape of the array."),
        ("What ... is", "What is left is read.", "What is left?"),
        ("Who ...", "Who has the address can read.", "Readers"),
        ("Whether ...", "Whether it fits depends on the push.", "How it works"),
        ("a look", "Of one look and another.", "A look-ahead or a look-up."),
        ("also if", "It is read also if it is old.", "It also reads old files."),
        ("too at the end", "Rows are read, too.", "It is too large."),
        ("code that speaks", "The server knows the clock.", "Users know the clock."),
        ("is no ...", "The file is no request.", "There is no file, and it is no longer read."),
        ("the begin", "It reads it at the begin.", "It begins."),
        ("all the same", "It is read all the same.", "They have all the same size."),
        ("nobody", "Then nobody reads it.", "No worker reads it."),
    ],
)
def test_a_pattern_finds_what_it_is_for(pattern: str, odd: str, plain: str) -> None:
    assert pattern in words.found(odd)
    assert pattern not in words.found(plain)


def test_every_pattern_is_tried() -> None:
    (mark,) = test_a_pattern_finds_what_it_is_for.pytestmark
    assert {each[0] for each in mark.args[1]} == set(words.PATTERNS)


def test_sentences_are_those_that_a_reader_sees() -> None:
    page = """# A title

First line goes
on here. Second `code. X` end.

<!-- Of nothing -->
```python
Of code
```

| a | Of a cell |
- Of an item
"""
    assert list(words.sentences(page)) == [
        (1, "A title"),
        (3, "First line goes on here."),
        (3, "Second `x` end."),
        (11, "a"),
        (11, "Of a cell"),
        (12, "Of an item"),
    ]


def test_a_docstring_is_found_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        '"""A module."""\n\n\ndef f(a):\n    """Do.\n\n    Args:\n        a: Of b.\n    """\n'
    )
    found = [(n, text) for n, text in words.docstrings(path) if words.found(text)]
    assert found == [(8, "a: Of b.")]
