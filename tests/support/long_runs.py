"""The daily run of the tests and the long one (`bash tests/run.sh long`).

A test or a parameter set with the marker `long` runs only in the long one. A test with the marker `sampled`
runs in both and takes `by_day` of its cases in the daily one, or `taking_turns`: then each commit runs other
cases, and a few consecutive commits run all of them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

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


def taking_turns(
    cases: Sequence[T], every: int, always: Callable[[T], bool] = lambda case: False
) -> list[T]:
    """Return all cases in the long run, and by day every `every`-th one, from another one on for each commit.

    Args:
        cases: In an order that stays.
        every: After so many commits all cases have run.
        always: True for a case that runs each time.
    """
    mine = turn() % every
    return [case for i, case in enumerate(cases) if LONG or i % every == mine or always(case)]


def in_turn(number: int, every: int) -> pytest.MarkDecorator:
    """Return the mark of a whole test that takes turns with others: by day each `every`-th commit runs it.

    Args:
        number: Which of the commits, counted modulo `every`.
        every: Number of commits.
    """
    is_mine = LONG or turn() % every == number % every
    return pytest.mark.sampled if is_mine else pytest.mark.long
