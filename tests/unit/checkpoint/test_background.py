"""Work in the background of a loop that never rests."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mpips import _native
from mpips.checkpoint.steps import Background, finish, in_background

LINE = np.zeros(64, np.uint8)


def wait_often(times: int) -> None:
    """What a disk does: the interpreter's lock is given away and must be had again."""
    for _ in range(times):
        time.sleep(20e-6)


def test_a_loop_that_lets_go_for_an_instant_only_does_not_starve_it() -> None:
    running = Background(lambda: wait_often(100))
    checksum, looks = _native.Xxh3(), 0
    while not running.done():
        # As a server that looks at its rings.
        for _ in range(20):
            checksum.update(LINE)
        looks += 1
    running.result()
    # Every look gives it time for one wait or two.
    assert looks < 1000


def test_what_it_returns_and_raises_comes_out_of_the_steps() -> None:
    def fail() -> None:
        raise OSError("no room")

    assert finish(in_background(lambda: 7)) == 7
    with pytest.raises(OSError, match="no room"):
        finish(in_background(fail))
