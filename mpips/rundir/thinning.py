"""Merge old lines of metrics.jsonl, so that the file of a run of any length stays small.

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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from mpips.rundir.series import EVALUATIONS

_FULL_S = 3600.0  # s, age to which lines stay as they are
_FIRST_S = 10.0  # s, shortest interval of merged lines
_FACTOR = 6  # growth of age and interval from one range of ages to the next
_RATES = ("push_bytes_per_s", "pull_bytes_per_s")
_NEEDED = ("time_s", "generation", "samples", "loss", "samples_per_s")


class _Line(msgspec.Struct):
    """A line of progress, and the samples and time that it stands for."""

    encoded: bytes  # as it is in the file
    fields: dict[str, Any]
    n_samples: int
    seconds: float
    # Generation, length and begin of the interval into which it merges; None: it is too young to merge.
    interval: tuple[int, float, float] | None


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


def thin(lines: Iterable[bytes], now: float) -> Iterator[bytes]:
    """Yield the lines of metrics.jsonl with old ones merged, in their order and without newlines.

    Args:
        lines: Lines in the order in which they were written, with or without newlines.
        now: Unix time, seconds.
    """
    done: dict[int, int] = {}  # samples at the last line of progress, by generation
    pending: list[_Line] = []  # lines of one interval
    for encoded in lines:
        line = _read(encoded.rstrip(b"\n"), done, now)
        if line is None:
            # Keep the order of lines: an evaluation stands behind the progress before it.
            yield from _merged(pending)
            pending = []
            if encoded.strip():
                yield encoded.rstrip(b"\n")
            continue
        if pending and (line.interval is None or line.interval != pending[-1].interval):
            yield from _merged(pending)
            pending = []
        pending.append(line)
    yield from _merged(pending)


def _read(encoded: bytes, done: dict[int, int], now: float) -> _Line | None:
    """Return a line of progress; None for any other line.

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
            return None
        interval = interval_of(time_s, now)
        place = (generation, *interval) if interval is not None else None
        line = _Line(encoded, fields, n, n / rate if rate else 0.0, place)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, OverflowError):
        return None
    done[generation] = samples
    return line


def _merged(lines: list[_Line]) -> Iterator[bytes]:
    """Yield the line of an interval; a single line stays as it is."""
    if len(lines) < 2:
        yield from (line.encoded for line in lines)
        return
    n = sum(line.n_samples for line in lines)
    seconds = sum(line.seconds for line in lines)
    fields = dict(lines[-1].fields)
    losses = [line.fields["loss"] for line in lines]
    # A loss that is no number makes the mean no number, too.
    known = None not in losses
    weighted = (loss * line.n_samples for loss, line in zip(losses, lines, strict=True))
    fields["loss"] = sum(weighted) / n if known else None
    fields["samples_per_s"] = n / seconds if seconds else 0.0
    fields["staleness"] = _mean(lines, "staleness", lambda line: line.n_samples)
    for name in _RATES:
        fields[name] = _mean(lines, name, lambda line: line.seconds)
    yield msgspec.json.encode(fields)


def _are_numbers(fields: dict[str, Any]) -> bool:
    """Return True if all values that are averaged are numbers or unknown."""
    values = (fields.get(name) for name in ("loss", "staleness", *_RATES))
    return all(value is None or isinstance(value, int | float) for value in values)


def _mean(lines: list[_Line], name: str, weight: Callable[[_Line], float]) -> float | None:
    """Return the weighted mean of a value over the lines in which it is known; None without such lines."""
    known = [
        (line.fields[name], weight(line)) for line in lines if line.fields.get(name) is not None
    ]
    total = sum(w for _, w in known)
    return round(sum(value * w for value, w in known) / total, 6) if total else None


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
