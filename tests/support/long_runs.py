"""The daily run of the tests and the long one (`bash tests/run.sh long`).

A test or a parameter set with the marker `long` runs only in the long one. A test with the marker `sampled`
runs in both and takes `by_day` of its cases in the daily one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

LONG = os.environ.get("MPIPS_TEST_LONG") == "1"


def by_day(cases: Sequence[T], every: int, first: int = 0) -> Sequence[T]:
    """Return all cases in the long run, and every `every`-th one from `first` on by day."""
    return cases if LONG else cases[first::every]
