"""Lines of a run over time in one row of characters, from metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mpips.rundir.reading import DAMAGED, read_regular
from mpips.rundir.thinning import even_places, gathered, weighted_mean

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-=+*%#"  # where the output cannot have blocks


class Point(msgspec.Struct, frozen=True):
    """A line of metrics.jsonl.

    Attributes:
        time_s: Unix time.
        loss: Mean loss of the samples since the line before; None: unknown, or no finite number.
        samples_per_s: Samples per second; None: the line is an evaluation.
    """

    time_s: float
    loss: float | None = None
    samples_per_s: float | None = None


def read_points(path: Path) -> list[Point]:
    """Return the lines of metrics.jsonl in their order; lines of another form are left out.

    Args:
        path: The file; if it does not exist, or is not a regular file, there are no lines.
    """
    try:
        lines = read_regular(path).split(b"\n")
    except OSError:
        return []
    decoder, found = msgspec.json.Decoder(Point), []
    for line in lines:
        # The last line may be cut off: it is being written.
        try:
            found.append(decoder.decode(line))
        except DAMAGED:
            continue
    return found


def over_time(points: Sequence[tuple[float, float | None]], width: int) -> list[float | None]:
    """Return the means of a value in `width` equal intervals of time; None for one without a value.

    Args:
        points: Time and value of each point; None and values that are not finite are left out.
        width: Number of intervals, at least 1.
    """
    known = [(t, v) for t, v in points if v is not None and math.isfinite(v) and math.isfinite(t)]
    known.sort(key=lambda point: point[0])
    found: list[float | None] = [None] * width
    places = even_places([(0, time_s) for time_s, _ in known], width)
    values = [value for _, value in known]
    for together in gathered(zip(zip(values, places, strict=True), places, strict=True)):
        mean = weighted_mean([value for value, _ in together], [1.0] * len(together))
        if mean is not None and math.isfinite(mean):
            found[together[0][1][1]] = mean
    return found


def sparkline(values: Sequence[float | None], levels: str = BLOCKS) -> str:
    """Return a character for each value, the lowest and the highest level for the extremes; None is a space.

    Args:
        values: Finite numbers or None.
        levels: Characters, from the lowest to the highest.
    """
    known = [value for value in values if value is not None]
    if not known:
        return " " * len(values)
    low, high = min(known), max(known)
    # Halves, because the difference of two finite numbers can be infinite. A line of equal values is in the
    # middle.
    span = high / 2 - low / 2
    scale = (len(levels) - 1) / span if span > 0 else 0.0
    middle = len(levels) // 2 - 1
    return "".join(
        " " if value is None else levels[round((value / 2 - low / 2) * scale) if scale else middle]
        for value in values
    )
