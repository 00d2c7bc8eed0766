"""The code blocks of README and of the pages in docs, and how each of them is tested.

A block's language says it: python is run, toml is loaded as a job, console is run command by command and its
output is compared with what the block shows. A comment above the block, which no reader sees, says more or
something else:

    <!-- test: file job.toml -->       the block is also written to this file, for the blocks after it
    <!-- test: example NAME.py -->     the block is a program of docs/examples, and a file for those after it
    <!-- test: usage -->               the commands and the options that it names exist
    <!-- test: shows summary -->       an example of an output, by tests/unit/test_documents.py
    <!-- test: paths -->               the files and folders that it names exist
    <!-- test: with NAME -->           python: run with the values of NAME in tests/unit/test_documents.py
    <!-- test: not run: REASON -->     nothing is tested

The commands of one page run one after the other in one folder (tests/fault/test_documents.py). A program that
they start is not run once more by itself.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
DOCUMENTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "jobs/*.md", "packaging/**/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"
]
_MARK = re.compile(r"<!-- test: (\S+) ?(.*?) *-->")
_PART, _END = re.compile(r"<!-- part \w+ -->"), "<!-- end part -->"


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        path: The document.
        line: Number of its first line there.
        language: "python", "toml", "console", "bash", "text" or "".
        text: Its lines; the program itself where the block includes one.
        kind: First word of the comment above it, or "".
        argument: The rest of that comment; of an example the name of its file.
    """

    path: Path
    line: int
    language: str
    text: str
    kind: str = ""
    argument: str = ""

    @property
    def name(self) -> str:
        """Document and line, for people."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str:
        """Name of the file that the block is, or ""."""
        return self.argument if self.kind in ("file", "example") else ""


def blocks(path: Path) -> list[Block]:
    """Return the code blocks of a document in their order."""
    return list(_blocks(path))


def _blocks(path: Path) -> Iterator[Block]:
    lines = path.read_text().splitlines()
    start: int | None = None
    is_made = False  # by docs/parts.py, from the help of commands
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            is_made = bool(_PART.fullmatch(line)) or (is_made and line != _END)
            continue
        if start is None:
            start = number
            continue
        mark = _MARK.fullmatch(lines[start - 1]) if start else None
        text = "\n".join(lines[start + 1 : number]) + "\n"
        language = lines[start].removeprefix("```").strip()
        kind, argument = mark.groups() if mark else ("", "")
        if not is_made:
            yield Block(path, start + 2, language, text, kind, argument)
        start = None


def lacking(text: str) -> str:
    """Return the framework that a program imports and that is not installed; "" if there is none."""
    if "mpips.rundir.exposition" in text and not importlib.util.find_spec("prometheus_client"):
        return "prometheus_client"
    if "to_onnx()" in text and not importlib.util.find_spec("onnx"):
        return "onnx"
    for name in ("torch", "jax", "keras", "sklearn", "onnxruntime", "lightning", "transformers"):
        used = (
            f"import {name}\n",
            f"import {name} as",
            f"from {name} import",
            f"from mpips.{name} import",
        )
        is_used = any(line in text for line in used)
        if is_used and importlib.util.find_spec(name) is None:
            return name
    return ""


def data_files(text: str) -> list[Path]:
    """Return the files of real data that a page uses, which may be missing."""
    folder = Path(os.environ.get("MPIPS_TEST_DATA", ROOT.parent / "shared" / "data"))
    names = ["bank.train.csv", "bank.valid.csv", "text8.head.txt"]
    names += [f"kg/codex-s.{part}.txt" for part in ("train", "valid", "test")]
    return [folder / name for name in names if name.rpartition("/")[2] in text]


def commands(block: Block) -> list[tuple[str, str]]:
    """Return each command of a console block with the output that is shown after it."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, shown = found[-1]
            found[-1] = command, f"{shown}{line}\n"
    return found


def is_console(block: Block) -> bool:
    """Return True for a block whose commands are run."""
    return block.language == "console" and not block.kind


def started(path: Path) -> str:
    """Return all commands of a document that are run, as one text."""
    return "\n".join(
        command for block in blocks(path) if is_console(block) for command, _ in commands(block)
    )


_PARTS = re.compile(r"(\.\.\.|\d+\.\d+|\s+)")


def same_output(shown: str, got: str) -> bool:
    """Return True if an output is as shown: "..." is any text, 0.904 any number from 0.884 to 0.924.

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


def parts() -> ModuleType:
    """Return docs/parts.py, which makes the parts of the reference that come from the code."""
    spec = importlib.util.spec_from_file_location("docs_parts", DOCS / "parts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
