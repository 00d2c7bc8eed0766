"""The history of measured figures: one line of JSON for each run of a suite that was recorded.

The first lines, up to 2026-11-27, are figures that pages of docs stated when the history began.
"""

from __future__ import annotations

import subprocess
from datetime import date
from pathlib import Path

import msgspec

import mpips
from mpips.bench.measure import Findings
from mpips.doctor.description import describe_machine

ROOT = Path(__file__).parents[2]
PATH = Path(__file__).with_name("history.jsonl")


class Entry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A run of a suite.

    Attributes:
        suite: Name of the suite. version: Version of mpips. commit: Commit that was measured, with "-dirty"
        if files had been changed since. In lines of figures that were taken from docs/benchmarks.md, the
        commit that put them there. date: Date of the run, or of that commit, as YYYY-MM-DD. machine:
        Processor and number of cores. conditions: Sizes, repetitions and other load; "": as in the suite's
        description, nothing else running. ratios: Median of each ratio by its name. figures: Median of each
        figure without a baseline by its name.
    """

    suite: str
    version: str
    commit: str
    date: str
    machine: str
    conditions: str = ""
    ratios: dict[str, float] = {}
    figures: dict[str, float] = {}


def entry_of(suite: str, found: Findings, conditions: str) -> Entry:
    """Return the entry of a run that has just ended."""
    machine = describe_machine()
    return Entry(
        suite=suite,
        version=mpips.__version__,
        commit=commit(),
        date=date.today().isoformat(),
        machine=f"{machine['cpu']}, {machine['cores']} cores",
        conditions=conditions,
        ratios={c.name: _rounded(c.ratio) for c in found.comparisons},
        figures={f.name: _rounded(f.median) for f in found.figures},
    )


def append(entry: Entry, path: Path = PATH) -> None:
    """Append an entry to the history.

    Raises:
        ValueError: The entry has neither ratios nor figures.
    """
    if not entry.ratios and not entry.figures:
        raise ValueError(f"nothing to record: the suite '{entry.suite}' has measured nothing here")
    with path.open("ab") as file:
        file.write(msgspec.json.encode(entry) + b"\n")


def read(path: Path = PATH) -> list[Entry]:
    """Return all entries in the order in which they were appended.

    Raises:
        ValueError: A line is no entry.
    """
    entries = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    return entries


def commit(root: Path = ROOT) -> str:
    """Return the commit of a repository, with "-dirty" if files that it has differ; "": it is none.

    The history itself does not count, or each run would change what the next one is called.
    """
    git = ["git", "-C", str(root)]
    this = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if this.returncode:
        return ""
    changed = subprocess.run(
        [*git, "diff", "--quiet", "HEAD", "--", ".", f":!{PATH.relative_to(ROOT)}"], check=False
    )
    return this.stdout.strip() + ("-dirty" if changed.returncode else "")


def _rounded(value: float) -> float:
    """Return a value with four significant digits."""
    return float(f"{value:.4g}")
