"""Calls in the background of a busy loop."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mpips import _native
from mpips.checkpoint.steps import Background, finish, in_background

LINE = np.zeros(64, np.uint8)


def wait_often(times: int) -> None:
    """Release the interpreter's lock and take it again, as a write to a disk does."""
    for _ in range(times):
        time.sleep(20e-6)


def test_a_loop_that_hardly_releases_the_interpreter_does_not_starve_a_call() -> None:
    running = Background(lambda: wait_often(100))
    checksum, looks = _native.Xxh3(), 0
    while not running.done():
        # Work in short native calls, as a server at its rings does.
        for _ in range(20):
            checksum.update(LINE)
        looks += 1
    running.result()
    # Each look gives the call time for one or two waits.
    assert looks < 1000


def test_what_it_returns_and_raises_comes_out_of_the_steps() -> None:
    def fail() -> None:
        raise OSError("no room")

    assert finish(in_background(lambda: 7)) == 7
    with pytest.raises(OSError, match="no room"):
        finish(in_background(fail))
