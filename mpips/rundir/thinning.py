"""Make long series short: the files of a run, so that they stay small, and what a page or a terminal draws.

A series is thinned in two steps. A rule gives each line the interval of time into which it
merges: `interval_of`, whose intervals grow with the age, for the files metrics.jsonl and history.jsonl, and
`even_places` for charts. `gathered` then returns the lines of each interval together. Lines of progress
become one line, with means by `weighted_mean`; of lines with counts, which are sums, the last one stays.

metrics.jsonl, by `thin`:

The scheduler adds about one line a second. Lines of the last hour stay as they are. Older lines are merged
into one line per interval, and the interval grows with the age:

    age             one line per
    to 1 hour       line as written, about 1 s
    to 6 hours      10 s
    to 36 hours     60 s
    to 9 days       6 min
    to 54 days      36 min      and so on: six times the interval for six times the age

So each range of ages has at most 1800 lines: about 2.5 MB after a month, and 0.5 MB more for each six times
of that. Intervals begin at multiples of their length in Unix time, so an interval is a union of shorter ones.
A line moves to a longer interval only when all of that interval is old enough. So the same lines are merged
however often the file is rewritten.

A merged line has the keys of the lines that it replaces. time_s, epoch, step and samples, which count from
the start of the attempt, are those of the last line. The number of samples of a line is thus the difference
to the line before it. loss and staleness are means weighted by these numbers, and rates are means weighted
by the time for which they held. Lines with an evaluation and lines of another form are never merged.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mpips.rundir.series import EVALUATIONS

_T = TypeVar("_T")
_FULL_S = 3600.0  # s, age to which lines stay as they are
_FIRST_S = 10.0  # s, shortest interval of merged lines
_FACTOR = 6  # growth of age and interval from one range of ages to the next
_RATES = ("push_bytes_per_s", "pull_bytes_per_s")
_NEEDED = ("time_s", "generation", "samples", "loss", "samples_per_s")


class _Line(msgspec.Struct):
    """A line, and if it is one of progress, the samples and time that it stands for."""

    encoded: bytes  # as it is in the file
    fields: dict[str, Any] = {}
    n_samples: int = 0
    seconds: float = 0.0
    # Generation, length and begin of the interval into which it merges; None: it does not merge.
    interval: tuple[int, float, float] | None = None


def interval_of(
    time_s: float, now: float, full_s: float | None = None, first_s: float | None = None
) -> tuple[float, float] | None:
    """Return length and begin (Unix time) of the interval into which a line merges; None: it is too young.

    Args:
        time_s: Unix time of the line.
        now: Unix time.
        full_s: Age to which lines stay as they are, seconds; None: that of metrics.jsonl.
        first_s: Shortest interval, seconds; None: that of metrics.jsonl.
    """
    length, limit, found = first_s or _FIRST_S, full_s or _FULL_S, None
    while now - time_s > limit:
        begin = time_s // length * length
        if now - (begin + length) < limit:
            break
        found = length, begin
        length, limit = length * _FACTOR, limit * _FACTOR
    return found


def even_places(times: Sequence[tuple[int, float]], n: int) -> list[tuple[int, int]]:
    """Return attempt and interval of each line, with `n` equal intervals from the first line to the last.

    Args:
        times: Generation and Unix time of each line, the oldest first.
        n: Number of intervals.
    """
    first, last = min((t for _, t in times), default=0.0), max((t for _, t in times), default=0.0)
    if last <= first:
        return [(generation, i * n // len(times)) for i, (generation, _) in enumerate(times)]
    return [(g, min(int((t - first) / (last - first) * n), n - 1)) for g, t in times]


def gathered(lines: Iterable[tuple[_T, Hashable | None]]) -> Iterator[list[_T]]:
    """Yield the lines of each interval together, in their order.

    Args:
        lines: Each line with its interval. None: the line is in no interval, and so alone.
    """
    pending: list[_T] = []
    before: Hashable | None = None
    for line, interval in lines:
        if pending and (interval is None or interval != before):
            yield pending
            pending = []
        pending.append(line)
        before = interval
    if pending:
        yield pending


def weighted_mean(values: Iterable[float | None], weights: Iterable[float]) -> float | None:
    """Return the mean of the values that are known; None without any.

    If all their weights are 0, they weigh the same.
    """
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
    total = sum(w for _, w in known)
    if total > 0:
        return sum(value * w for value, w in known) / total
    return sum(value for value, _ in known) / len(known) if known else None


def thin(lines: Iterable[bytes], now: float) -> Iterator[bytes]:
    """Yield the lines of metrics.jsonl with old ones merged, in their order and without newlines.

    Args:
        lines: Lines in the order in which they were written, with or without newlines.
        now: Unix time, seconds.
    """
    done: dict[int, int] = {}  # samples at the last line of progress, by generation
    read = (_read(line.rstrip(b"\n"), done, now) for line in lines if line.strip())
    for together in gathered((line, line.interval) for line in read):
        yield together[0].encoded if len(together) == 1 else _merged(together)


def _read(encoded: bytes, done: dict[int, int], now: float) -> _Line:
    """Return a line; one that is not of progress is in no interval.

    Args:
        encoded: The line.
        done: Samples at the last line of progress, by generation; this call updates it.
        now: Unix time, seconds.
    """
    try:
        fields = msgspec.json.decode(encoded, type=dict[str, Any])
        time_s, generation, samples, _, rate = (fields[name] for name in _NEEDED)
        # A script may count no samples: its lines then weigh the same.
        n = samples - done.get(generation, 0) or int(not samples)
        if any(key in fields for key in EVALUATIONS) or n <= 0 or not _are_numbers(fields):
            return _Line(encoded)
        interval = interval_of(time_s, now)
        place = (generation, *interval) if interval is not None else None
        line = _Line(encoded, fields, n, n / rate if rate else 0.0, place)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, OverflowError):
        return _Line(encoded)
    done[generation] = samples
    return line


def _merged(lines: list[_Line]) -> bytes:
    """Return the line that stands for those of an interval."""
    samples: list[float] = [line.n_samples for line in lines]
    seconds = [line.seconds for line in lines]
    fields = dict(lines[-1].fields)
    losses = [line.fields["loss"] for line in lines]
    # A loss that is no number makes the mean no number, too.
    fields["loss"] = weighted_mean(losses, samples) if None not in losses else None
    fields["samples_per_s"] = sum(samples) / sum(seconds) if sum(seconds) else 0.0
    for name, weights in (("staleness", samples), *((name, seconds) for name in _RATES)):
        mean = weighted_mean([line.fields.get(name) for line in lines], weights)
        fields[name] = round(mean, 6) if mean is not None else None
    return msgspec.json.encode(fields)


def _are_numbers(fields: dict[str, Any]) -> bool:
    """Return True if all values that are averaged are numbers or unknown."""
    values = (fields.get(name) for name in ("loss", "staleness", *_RATES))
    return all(value is None or isinstance(value, int | float) for value in values)


def thin_file(
    path: Path,
    now: float,
    may_replace: Callable[[], bool],
    thinned: Callable[[Iterable[bytes], float], Iterator[bytes]] | None = None,
) -> None:
    """Replace metrics.jsonl, or with `thinned` another file, by fewer lines in one step.

    Only the writer of the file may call this. Readers see either the old file or the new one.

    Args:
        path: The file; if it does not exist, nothing happens.
        now: Unix time, seconds.
        may_replace: Called directly before the file is replaced; False: leave it as it is.
        thinned: Returns the lines of the new file, as `thin` does; None: `thin`.

    Raises:
        OSError: The file cannot be read, or the new one cannot be written; the old file is unchanged.
    """
    new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with path.open("rb") as old, new.open("xb") as file:
            before = os.fstat(old.fileno())
            file.writelines(line + b"\n" for line in (thinned or thin)(old, now))
            file.flush()
            os.fsync(file.fileno())
            shrunk = file.tell() < before.st_size
        after = path.stat()
        unchanged = (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
        if shrunk and unchanged and may_replace():
            new.replace(path)
    except FileNotFoundError:
        return
    finally:
        new.unlink(missing_ok=True)
