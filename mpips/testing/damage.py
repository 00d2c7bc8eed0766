"""The effects of the kills on a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Damage:
    """The kills and other ends of a run, and its recovery.

    Attributes:
        kills: Number of ended launches by the role that was killed, or by fault point.
        early: Kills of attempts that had made no step yet.
        missed: Planned ends that did not happen, since the run was done before.
        causes: Causes of launches that ended without a planned end.
        warm: Attempts that continued in memory.
        back_s: For each kill the seconds until the next attempt makes steps.
        given_up: Number of times that the supervisor gave up and was started again.
    """

    kills: Counter[str] = field(default_factory=Counter)
    early: int = 0
    missed: int = 0
    causes: list[str] = field(default_factory=list)
    warm: int = 0
    back_s: list[float] = field(default_factory=list)
    given_up: int = 0
