"""Sessions of several sides of a comparison, one after the other and again from the first one.

What changes in a machine with time then reaches all sides alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from mpips.bench.launching import Options

Side = TypeVar("Side")
Value = TypeVar("Value")


def alternate(
    options: Options, sides: Iterable[Side], session: Callable[[Side], Value | None]
) -> dict[Side, list[Value]]:
    """Run a session of each side in turn, as often as the options say. Collective.

    Args:
        options: Options of the measurement.
        sides: The sides, hashable.
        session: Runs the session of a side; returns its value on workers, None on other ranks.

    Returns:
        For each side the values of its sessions, one per repetition; empty on ranks that are no workers.
    """
    found: dict[Side, list[Value]] = {side: [] for side in sides}
    for _ in range(options.repetitions):
        for side, values in found.items():
            value = session(side)
            if value is not None:
                values.append(value)
    return found
