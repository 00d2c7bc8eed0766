"""The daily run of the tests and the long one (`bash tests/run.sh long`).

A test or a parameter set with the marker `long` runs only in the long one. A test with the marker `sampled`
always runs in both. It may take `by_day` of its cases in the daily one, or `taking_turns`: then each commit
runs other cases, and a few consecutive commits run all of them.

All other tests whose processor time in `tests/cpu.json` is above `HEAVY_S` take turns by themselves
(`resting`): the heavy tests of a stage are divided into parts of about equal time, and each commit runs one
part. A test that is not in the file yet always runs, and so does one whose file is named on the command line.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

# Processor times of an earlier run; `python tests/tally.py --store` writes them.
CPU = Path(__file__).parents[1] / "cpu.json"
# Processor seconds from which on a test takes turns, and in how many parts, by stage. The sanitizers' stage
# takes those of the unit stage, whose tests it repeats.
HEAVY_S = {"unit": 0.2, "mpi": 1.0, "fault": 2.0}
PARTS = {"unit": 8, "mpi": 4, "fault": 14}
SAME = {"sanitize": "unit"}

LONG = os.environ.get("MPIPS_TEST_LONG") == "1"
# Environment variable: the number that `turn` returns instead, to repeat the cases of another commit.
TURN = "MPIPS_TEST_TURN"


def by_day(cases: Sequence[T], every: int, first: int = 0) -> Sequence[T]:
    """Return all cases in the long run, and every `every`-th one from `first` on by day."""
    return cases if LONG else cases[first::every]


def commits(folder: Path) -> int:
    """Return the number of commits up to the one that is checked out in `folder`; 0 where there is no git."""
    command = ["git", "-C", str(folder), "rev-list", "--count", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return 0
    return int(done.stdout) if done.returncode == 0 else 0


def turn() -> int:
    """Return whose turn it is: the number of commits.

    It stays as it is found first, also in the processes that this one starts: all of them must choose alike.
    """
    if TURN not in os.environ:
        os.environ[TURN] = str(commits(Path(__file__).parent))
    return int(os.environ[TURN])


def taking_turns(cases: Sequence[T], every: int) -> list[T]:
    """Return all cases in the long run, and by day every `every`-th one, from another one on for each commit.

    Args:
        cases: In an order that stays.
        every: After so many commits all cases have run.
    """
    mine = turn() % every
    return [case for i, case in enumerate(cases) if LONG or i % every == mine]


def in_turn(number: int, every: int) -> pytest.MarkDecorator:
    """Return the mark of a whole test that takes turns with others: by day each `every`-th commit runs it.

    Args:
        number: Which of the commits, counted modulo `every`.
        every: Number of commits.
    """
    is_mine = LONG or turn() % every == number % every
    return pytest.mark.sampled if is_mine else pytest.mark.long


def parts(costs: Mapping[str, float], n: int) -> dict[str, int]:
    """Divide names into `n` parts of about equal cost: the dearest first, each to the cheapest part."""
    sums = [0.0] * n
    found = {}
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        found[name] = min(range(n), key=sums.__getitem__)
        sums[found[name]] += costs[name]
    return found


@functools.cache
def heavy_parts(stage: str) -> dict[str, int]:
    """Return the part of each heavy test of a stage, by its name in the reports.

    {} for a stage without turns.
    """
    stage = SAME.get(stage, stage)
    if stage not in PARTS or not CPU.exists():
        return {}
    times: dict[str, float] = json.loads(CPU.read_text())["tests"]
    mine = {
        name.removeprefix(f"{stage} "): cost
        for name, cost in times.items()
        if name.startswith(f"{stage} ") and cost >= HEAVY_S[stage]
    }
    return parts(mine, PARTS[stage])


def resting(stage: str, name: str) -> str:
    """Return why a test waits for another commit by day, or "" if it runs.

    Args:
        stage: unit, mpi, fault, jobs or sanitize.
        name: Of the test in the reports, such as tests.fault.test_kills::test_a.
    """
    part = heavy_parts(stage).get(name)
    n = PARTS.get(SAME.get(stage, stage), 1)
    if part is None or part == turn() % n:
        return ""
    return f"takes turns: commits {part} modulo {n} run it, and `bash tests/run.sh long`"
