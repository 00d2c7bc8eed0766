"""The catalogue of messages: what they mean and what to do. Read from messages.txt beside this file."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("messages.txt")
_ANY = "..."
_LEAST_LETTERS = 4  # of a message that count as recognised


@dataclass(frozen=True)
class Code:
    """An exit code: its name, the error classes that end with it, and what it means."""

    number: int
    name: str
    errors: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class Entry:
    """A message ("..." stands for anything), its exit code, what it means and what to do."""

    code: int
    text: str
    meaning: str
    cure: str

    @functools.cached_property
    def parts(self) -> tuple[str, ...]:
        """What is always the same in it, lower case, in order."""
        parts = (" ".join(part.lower().split()) for part in self.text.split(_ANY))
        return tuple(part for part in parts if part)

    @property
    def weight(self) -> int:
        """Letters that a message must have to be this one: the more, the surer."""
        return sum(len(re.sub(r"\W", "", part)) for part in self.parts)

    def matches(self, message: str) -> bool:
        """Whether the parts occur in a message, given in lower case with single spaces, in order."""
        at = 0
        for part in self.parts:
            found = message.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return True


@functools.cache
def catalogue() -> tuple[tuple[Code, ...], tuple[Entry, ...]]:
    """All codes and all messages, in the order of the file."""
    codes: list[Code] = []
    entries: list[Entry] = []
    for block in re.split(r"\n\s*\n", FILE.read_text(encoding="utf-8")):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if not lines:
            continue
        parts = dict.fromkeys("?!", "")
        for line in lines[1:]:
            parts[line[0]] = line[1:].strip()
        if lines[0].startswith("="):
            number, name, *errors = re.split(r"\s{2,}", lines[0][1:].strip())
            classes = tuple(errors[0].split()) if errors else ()
            codes.append(Code(int(number), name, classes, parts["?"]))
        else:
            entries.append(Entry(codes[-1].number, lines[0].strip(), parts["?"], parts["!"]))
    return tuple(codes), tuple(entries)


def find(message: str) -> list[Entry]:
    """Entries that a message is an instance of, the surest first.

    Args:
        message: As it was printed, whole or in part, in one line or several.
    """
    plain = " ".join(message.lower().split())
    found = [e for e in catalogue()[1] if e.weight >= _LEAST_LETTERS and e.matches(plain)]
    return sorted(found, key=lambda e: -e.weight)


def search(words: str) -> list[Entry]:
    """Entries that hold all of some words, in the message, its meaning or its cure."""
    wanted = words.lower().split()
    return [
        e
        for e in catalogue()[1]
        if all(word in f"{e.text} {e.meaning} {e.cure}".lower() for word in wanted)
    ]


def of_code(number: int) -> tuple[Code, list[Entry]] | None:
    """An exit code with its messages, or None."""
    codes, entries = catalogue()
    code = next((c for c in codes if c.number == number), None)
    return None if code is None else (code, [e for e in entries if e.code == number])


def of_class(name: str) -> Code | None:
    """The exit code that an error class ends with, or None."""
    return next((c for c in catalogue()[0] if name in c.errors), None)
