"""Waits over a network: they check often at first, and then seldom."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

_SPIN_S = 2e-3  # seconds for which a wait checks without a pause
_FIRST_S, _LONGEST_S, _GROWTH = 10e-6, 200e-6, 1.5  # pauses after that
_GAP_S = 5e-3  # between two waits for the same thing, at most
_SHARE, _RAREST_S = (
    0.02,
    2e-3,
)  # a check by reads: pause as a share of the time waited, and the longest


def wait_for(done: Callable[[], bool], max_s: float) -> bool:
    """Call `done` until it returns True; return False if it has not within `max_s` seconds.

    For checks that cost the network nothing: whether a message has arrived.
    """
    return ReadPace(_LONGEST_S).wait_for(done, max_s)


class ReadPace:
    """The pace of long waits that are made of short ones: reads over the network, messages that leave.

    Reads load the link and the server. Between the short waits the caller does other work. Short waits count
    as one if they follow each other closely, so a long wait does not begin to check without pauses again and
    again. The end of a wait is noticed late by a fiftieth of the wait at most. One thread uses the object.
    """

    def __init__(self, rarest_s: float = _RAREST_S) -> None:
        """`rarest_s`: the longest pause in seconds."""
        self._rarest_s = rarest_s
        self._began = 0.0
        self._ended = -math.inf  # of the last short wait, if it was in vain
        self._pause = _FIRST_S

    def wait_for(self, done: Callable[[], bool], max_s: float) -> bool:
        """Call `done` until it returns True; return False if it has not within `max_s` seconds."""
        if done():
            self._ended = -math.inf
            return True
        start = time.monotonic()
        if start - self._ended > _GAP_S:
            self._began, self._pause = start, _FIRST_S
        while True:
            now = time.monotonic()
            waited = now - self._began
            if now - start >= max_s:
                self._ended = now
                return False
            if waited < _SPIN_S:
                os.sched_yield()
            else:
                time.sleep(self._pause)
                longest = min(max(_LONGEST_S, _SHARE * waited), self._rarest_s)
                self._pause = min(_GROWTH * self._pause, longest)
            if done():
                self._ended = -math.inf
                return True
