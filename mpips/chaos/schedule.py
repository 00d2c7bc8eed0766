"""The schedule of faults: what happens when, decided by a seed before anything happens.

The times between faults have a mean: they are equal, or exponential, as those between failures of independent
parts are. Two schedules with the same arguments are equal. A schedule names no process: each
fault carries two numbers with which the loop chooses among the processes that exist then.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

Intervals = Literal["exponential", "fixed"]
Value = TypeVar("Value")


class FaultChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault that a schedule may draw.

    Attributes:
        kind: Its name.
        roles: Roles among which its process is chosen; empty: it hits no process.
    """

    kind: str
    roles: tuple[str, ...] = ()


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a schedule.

    Attributes:
        at_s: Seconds of undisturbed work from the beginning.
        kind: Name of the kind.
        role: Role of its process; "": it hits none.
        which: 0 <= which < 1; chooses the process, file or link.
        how_long: 0 <= how_long < 1; chooses the length, or the place in a file.
    """

    at_s: float
    kind: str
    role: str
    which: float
    how_long: float


def make_schedule(
    choices: Sequence[FaultChoice],
    seed: int,
    every_s: float,
    for_s: float,
    *,
    first_s: float = 0.0,
    intervals: Intervals = "exponential",
) -> list[PlannedFault]:
    """Return the faults, ordered by time.

    Args:
        choices: The kinds, each as likely as the others.
        seed: Seed of all draws.
        every_s: Mean seconds between two faults, above 0.
        for_s: Seconds in which faults happen.
        first_s: Seconds without a fault at the beginning.
        intervals: "fixed": a fault in the middle of each interval. "exponential": random intervals.
    """
    draws = random.Random(seed)
    found: list[PlannedFault] = []
    at_s = first_s
    while choices:
        if intervals == "fixed":
            at_s = first_s + (len(found) + 0.5) * every_s
        else:
            at_s += draws.expovariate(1.0 / every_s)
        if at_s >= for_s:
            break
        choice = choices[draws.randrange(len(choices))]
        role = choice.roles[draws.randrange(len(choice.roles))] if choice.roles else ""
        found.append(
            PlannedFault(
                at_s=at_s,
                kind=choice.kind,
                role=role,
                which=draws.random(),
                how_long=draws.random(),
            )
        )
    return found


def chosen(among: Sequence[Value], number: float) -> Value:
    """Return the element that a number in [0, 1) chooses; `among` is not empty."""
    return among[min(int(number * len(among)), len(among) - 1)]


def between(low: float, high: float, number: float) -> float:
    """Return the value between two bounds that a number in [0, 1) chooses."""
    return low + (high - low) * number
