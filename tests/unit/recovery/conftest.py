"""Fixtures of the recovery tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from recovery_rig import Launches


@pytest.fixture
def make_launches() -> Iterator[Callable[..., Launches]]:
    """Make runs of several launches; all are closed when the test ends."""
    made: list[Launches] = []

    def make(*tables, **options):
        made.append(Launches(*tables, **options))
        return made[-1]

    yield make
    for launches in made:
        launches.close()
