"""The code blocks of README and docs, and how each of them is tested.

A block's language says it: python is run, toml is loaded as a job, console is run command by command and its
output is compared with what the block shows. A comment above the block, which no reader
sees, says more or something else:

    <!-- test: file job.toml -->       the block is also left as this file for the blocks after it
    <!-- test: usage -->               the commands and the options that it names are there
    <!-- test: shows summary -->       an example of an output, by tests/unit/test_documents.py
    <!-- test: paths -->               the files and folders that it names are there
    <!-- test: with NAME -->           python: run with the values of NAME in tests/unit/test_documents.py
    <!-- test: not run: REASON -->     nothing is tested
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "jobs/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"
]
_MARK = re.compile(r"<!-- test: (\S+) ?(.*?) *-->")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        path: The document.
        line: Number of its first line there.
        language: "python", "toml", "console" or "".
        text: Its lines.
        kind: First word of the comment above it, or "".
        argument: The rest of that comment.
    """

    path: Path
    line: int
    language: str
    text: str
    kind: str = ""
    argument: str = ""

    @property
    def name(self) -> str:
        """Where it is, for people."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """The code blocks of a document in their order."""
    return list(_blocks(path))


def _blocks(path: Path) -> Iterator[Block]:
    lines = path.read_text().splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        mark = _MARK.fullmatch(lines[start - 1]) if start else None
        text = "\n".join(lines[start + 1 : number]) + "\n"
        language = lines[start].removeprefix("```").strip()
        kind, argument = mark.groups() if mark else ("", "")
        yield Block(path, start + 2, language, text, kind, argument)
        start = None


def commands(block: Block) -> list[tuple[str, str]]:
    """Each command of a console block with the output that is shown after it."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, shown = found[-1]
            found[-1] = command, f"{shown}{line}\n"
    return found


_PARTS = re.compile(r"(\.\.\.|\d+\.\d+|\s+)")


def same_output(shown: str, got: str) -> bool:
    """True if an output is as shown: "..." stands for any text, 0.904 for any number from 0.884 to 0.924.

    The last bits of a sum depend on the processor, so one sample more or less may be classified rightly.
    """
    pattern, expected = "", []
    for part in _PARTS.split(shown.strip()):
        if part == "...":
            pattern += r".*?"
        elif re.fullmatch(r"\d+\.\d+", part):
            pattern += r"(\d+\.\d+)"
            expected.append(float(part))
        else:
            pattern += r"\s+" if part.isspace() else re.escape(part)
    match = re.fullmatch(pattern, got.strip(), re.DOTALL)
    if match is None:
        return False
    return all(abs(float(n) - e) <= 0.02 for n, e in zip(match.groups(), expected, strict=True))
