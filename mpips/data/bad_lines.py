"""Lines that are not samples, left out of a conversion and counted (data.on_bad = "skip").

A line is bad if it alone cannot be read: a field of LIBSVM text is malformed; a record of CSV has too many or
too few cells, is not text, or has a cell that must be a number but is not. So the same lines are bad in
whatever pieces a file is converted. Labels that do not fit to those of other lines (text among numbers) are
errors in any case.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator

import msgspec

from mpips._native import LibsvmError, count_csv_lines, csv_record_end, parse_libsvm, scan_csv
from mpips.data.columns import FLOAT32_MAX
from mpips.data.csv_dialect import is_text, number
from mpips.data.csv_labels import CsvLabels
from mpips.data.csv_plan import CsvPlan
from mpips.data.csv_rows import PlainRows
from mpips.errors import DataError

MOST_SHOWN = 3  # lines that are named
_GROUP = 32  # records of CSV that are read together where bad ones are sought
_NO_LINE_END = bytes(set(range(256)) - set(b"\r\n"))
_CHUNK = 1 << 16  # bytes of LIBSVM text in which bad lines are sought together


class BadLines(msgspec.Struct):
    """The bad lines of a file.

    Attributes:
        n: Their number.
        first: Line and sentence of the first ones, ascending.
    """

    n: int = 0
    first: list[tuple[int, str]] = []

    def add(self, line: int, sentence: str, n: int = 1) -> None:
        """Count n lines from `line` on; `sentence`: what is wrong, with file and line."""
        self.n += n
        self.first = sorted([*self.first, (line, sentence)])[:MOST_SHOWN]

    def merge(self, other: BadLines) -> None:
        """Add the lines of another part of the file."""
        self.n += other.n
        self.first = sorted([*self.first, *other.first])[:MOST_SHOWN]

    def text(self, path: str) -> str:
        """Return the count and the first lines in words."""
        shown = "; ".join(sentence for _, sentence in self.first)
        lines = "1 bad line" if self.n == 1 else f"{self.n:,} bad lines"
        return f"{path}: skipped {lines}, the first: {shown}"


def good_libsvm(
    path: str,
    text: bytes,
    base: int,
    bad: BadLines,
    lines_before: Callable[[], int],
    several: bool = False,
) -> bytes:
    """Return whole lines of LIBSVM text without the bad ones.

    Args:
        path: The file, for sentences.
        text: The lines.
        base: As of `mpips.data.libsvm.parse_text`.
        bad: The bad lines are added here.
        lines_before: Returns the number of lines of the file before these; called if one is bad.
        several: A sample has any number of labels.
    """
    good: list[bytes] = []
    done = 0  # lines of the text before the rest
    first: int | None = None  # lines of the file before the text
    for chunk in _chunks(text):
        rest = chunk
        while rest:
            try:
                parse_libsvm(rest, 1, 0, base, several=several)
            except LibsvmError as error:
                place, _, reason = str(error).partition(":")
                n = int(place)
                first = lines_before() if first is None else first
                bad.add(first + done + n, f"{path}:{first + done + n}:{reason}")
                # Leave out line n of the rest, and go on behind it.
                *lines, rest = [*rest.split(b"\n", n), b""][: n + 1]
                good += [line + b"\n" for line in lines[: n - 1]]
                done += n
            else:
                good.append(rest)
                done += rest.count(b"\n")
                rest = b""
    return b"".join(good)


def _chunks(text: bytes) -> Iterator[bytes]:
    """Yield whole lines of text in pieces."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", min(begin + _CHUNK, len(text))) + 1 or len(text)
        yield text[begin:end]
        begin = end


def good_csv(plan: CsvPlan, text: bytes, bad: BadLines, lines_before: Callable[[], int]) -> bytes:
    """Return whole records of CSV text without the bad ones.

    Args:
        plan: Meaning of the file.
        text: The records.
        bad: The lines of bad records are added here.
        lines_before: Returns the number of lines of the file before these; called if one is bad.

    Returns:
        The records; in the place of a bad one its line ends, so that lines have the same numbers.

    Raises:
        DataError: A quote is not closed, so no line behind it can be told from its cell.
    """
    ends = [0]
    while ends[-1] < len(text):
        ends.append(csv_record_end(text, ends[-1], plan.delimiter, False))
    good: list[bytes] = []
    first: int | None = None
    # Halve groups that cannot be read until single records are left, in the order of the text.
    n, at, lines = len(ends) - 1, 0, 0
    waiting = [(low, min(low + _GROUP, n)) for low in range(0, n, _GROUP)][::-1]
    while waiting:
        low, high = waiting.pop()
        part = text[ends[low] : ends[high]]
        if high - low > 1:
            if _complaint(plan, part, 0) is None:
                good.append(part)
            else:
                middle = (low + high) // 2
                waiting += [(middle, high), (low, middle)]
            continue
        if _complaint(plan, part, 0) is None:
            good.append(part)
            continue
        first = lines_before() if first is None else first
        at, lines = ends[low], lines + count_csv_lines(text[at : ends[low]])
        line = first + lines
        if scan_csv(part, 0, len(part), plan.delimiter, False)[0]:
            raise DataError(
                f"{plan.path}:{line + 1}: a quote is not closed; correct this line, or all lines behind it "
                "would be left out"
            )
        bad.add(line + 1, _complaint(plan, part, line) or "", max(1, count_csv_lines(part)))
        good.append(part.translate(None, _NO_LINE_END))
    return b"".join(good)


def _complaint(plan: CsvPlan, text: bytes, line: int) -> str | None:
    """Return what is wrong with records, beside differences between labels; None: nothing."""
    if not text.strip(b"\r\n"):
        return None
    labels = CsvLabels(plan)
    chosen = plan
    if plan.label is not None and plan.options.wants != "targets" and not plan.options.label_names:
        # Whether labels are text or numbers is decided by all lines together.
        options = msgspec.structs.replace(plan.options, labelled=False)
        chosen = msgspec.structs.replace(plan, options=options)
        labels = CsvLabels(chosen)
    try:
        rows = PlainRows(chosen, text, line)
        labels.add(rows)
        rows.cells()
        if chosen is not plan:
            texts, _ = PlainRows(plan, text, line).labels()
            wrong = [t for t in texts if not is_text(t) and not abs(number(t)) <= FLOAT32_MAX]
            if wrong:
                return f"{plan.path}:{line + 1}: label '{wrong[0]}' is neither text nor a finite number"
    except DataError as error:
        return str(error)
    except (UnicodeDecodeError, csv.Error) as error:
        return f"{plan.path}:{line + 1}: {error}"
    return None
