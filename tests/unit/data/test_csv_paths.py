"""The native parser of CSV and the csv module give the same samples; the ends of records are found."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import numpy as np
import pytest

from mpips._native import (
    count_csv_lines,
    csv_last_end,
    csv_record_end,
    csv_shift,
    scan_csv,
    signed_log,
)
from mpips.data import ReadOptions, csv_table, read
from mpips.data.csv_plan import MAX_RECORD_BYTES, CsvPlan
from mpips.data.csv_quick import QuickReader, QuickRows
from mpips.errors import DataError

NUMBERS = ["1", "2.5", "-3", "0.1", "12.75", "7.", ".5", "-3e4", "123456789012345678"]
ODD_NUMBERS = ["+1", "1_0", " 4 ", "1e-320", "NA", "", "nan", "inf", "1e400", "0x10", '"5"', "nUll"]
TEXTS = ["a", "b", "cc", "é", "z" * 30]
ODD_TEXTS = [" x ", "", "NA", 'q"r', '"a\nb"', '"a,b"', '""', '"x\ry"', '"say ""so"""', '"a"b']


def table(source: random.Random) -> bytes:
    kinds = [source.choice("nnt") for _ in range(source.randint(1, 4))]
    odd = source.choice([0, 0, 0.02, 0.2])
    end = source.choice(["\n", "\n", "\r\n", "\r"])
    lines = [",".join([*(f"c{i}" for i in range(len(kinds))), "y"])]
    for _ in range(source.randint(1, 30)):
        cells = [
            source.choice(ODD_NUMBERS if source.random() < odd else NUMBERS)
            if kind == "n"
            else source.choice(ODD_TEXTS if source.random() < odd else TEXTS)
            for kind in kinds
        ]
        label = source.choice(["2", "x", "", "nan"]) if source.random() < odd / 20 else None
        lines.append(",".join([*cells, label or source.choice("01")]))
        if source.random() < odd / 20:
            lines.append(source.choice(["", "1,2"]))
    start = source.choice(["", "\ufeff"])
    return (start + end.join(lines) + source.choice(["", end])).encode()


def outcome(path: Path, options: ReadOptions, stride: int) -> object:
    try:
        part = read(path, options=options, stride=stride, offset=0, shares="mixed")
    except DataError as error:
        return str(error)
    names = ("labels", "x", "indptr", "indices", "values", "fields")
    arrays = [getattr(part.data, name, None) for name in names]
    return part.info, part.notes, [(a.dtype, a.tobytes()) for a in arrays if a is not None]


class NoRows(QuickReader):
    """A reader that leaves all text to Python."""

    def rows(self, text: bytes) -> QuickRows | None:
        return None


def test_the_native_parser_and_the_csv_module_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small pieces, so that records of all kinds are at their ends.
    monkeypatch.setattr(csv_table, "_PIECE", 64)
    fast = []

    class CountedRows(QuickReader):
        def __init__(self, plan: CsvPlan) -> None:
            super().__init__(plan)
            # Forget texts, too.
            monkeypatch.setattr("mpips.data.csv_quick._MOST_TEXTS", source.choice([0, 2, 1 << 16]))

        def rows(self, text: bytes) -> QuickRows | None:
            found = super().rows(text)
            fast.append(found is not None)
            return found

    source, path, errors = random.Random(5), tmp_path / "a.csv", 0
    for _ in range(1000):
        path.write_bytes(table(source))
        options = ReadOptions(
            empty=source.choice(["error", "zero"]),
            numeric=source.choice(["auto", "raw", "log"]),
            wants=source.choice(["classes", "targets"]),
        )
        stride, found = source.randint(1, 3), []
        for reader in (CountedRows, NoRows):
            monkeypatch.setattr(csv_table, "QuickReader", reader)
            found.append(outcome(path, options, stride))
        assert found[0] == found[1], path.read_bytes()
        errors += isinstance(found[0], str)
    # Both ways were taken, and both outcomes occurred.
    assert sum(fast) > 300
    assert fast.count(False) > 10
    assert 100 < errors < 900


def test_a_line_far_from_the_beginning_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "_PIECE", 1 << 16)
    path = tmp_path / "a.csv"
    n = 1 << 18
    path.write_text('y,a\n"1","3"\n' + "1,3\n0,4\n" * n + "1,two\n")
    with pytest.raises(DataError, match=rf":{2 * n + 3}: column 'a' contains 'two'"):
        read(path)


@pytest.mark.parametrize("reader", [QuickReader, NoRows])
def test_text_behind_a_closing_quote_is_refused_by_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: type[QuickReader]
) -> None:
    monkeypatch.setattr(csv_table, "QuickReader", reader)
    path = tmp_path / "a.csv"
    # Behind the rows from which the columns are chosen.
    path.write_text("y,a\n" + "1,x\n" * 1200 + '1,"a"b\n')
    with pytest.raises(
        DataError, match=r"a\.csv:1202: is not CSV: ',' expected after '\"'; look for a quote"
    ):
        read(path)


@pytest.mark.parametrize("reader", [QuickReader, NoRows])
def test_an_empty_first_cell_is_a_cell_at_the_beginning_of_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: type[QuickReader]
) -> None:
    monkeypatch.setattr(csv_table, "QuickReader", reader)
    monkeypatch.setattr(csv_table, "_PIECE", 7)
    path = tmp_path / "a.csv"
    path.write_text("a\tb\ty\n" + "\tx\t1\n1\tx\t0\n" * 20)
    part = read(path)
    assert part.data.labels.tolist() == [1.0, 0.0] * 20
    assert np.diff(part.data.indptr).tolist() == [1, 2] * 20


def records(text: str) -> list[int]:
    """Return the places behind the records of text, by Python's csv module one character at a time."""
    ends, rest, at = [], io.StringIO(text, newline=""), 0
    lines = iter(rest.readline, "")

    def counted() -> object:
        nonlocal at
        for line in lines:
            at += len(line)
            yield line

    for _ in csv.reader(counted(), strict=True):
        ends.append(at)
    return ends


def test_records_are_found_from_any_place() -> None:
    source = random.Random(3)
    pieces = [
        "a",
        ",",
        '"x""y"',
        '"\n,"',
        "\r\n",
        "\n",
        "\r",
        '""',
        "ab,c",
        ',"",',
        '5" ',
        '"""q"""',
    ]
    tried = 0
    while tried < 300:
        text = "".join(source.choice(pieces) for _ in range(source.randint(1, 25)))
        try:
            ends = records(text)
        except csv.Error:
            continue
        tried += 1
        data = text.encode()
        assert scan_csv(data, 0, len(data), ",", False) == (False, -1)
        for place in range(len(data)):
            at = csv_shift(data, place)
            if at == len(data):
                continue
            inside, _ = scan_csv(data, 0, at, ",", False)
            # The same state is found in two steps, from either start if that is right.
            middle = csv_shift(data, at // 2)
            if middle <= at:
                first, _ = scan_csv(data, 0, middle, ",", False)
                assert scan_csv(data, middle, at, ",", first)[0] == inside
            end = csv_record_end(data, at, ",", inside)
            # A place between \r and \n is the end of the record before.
            between = data[at - 1 : at + 1] == b"\r\n" and not inside
            assert end in ends or between
            assert end == min(e for e in ends if e > at) or between
        complete = [e for e in ends if e < len(data) or data.endswith(b"\n")]
        # A \r at the end of the text may be half of a line end.
        assert csv_last_end(data, 0, ",") == max([0, *complete])


def test_wrong_quotes_are_found() -> None:
    assert scan_csv(b'a,"b"c\n', 0, 7, ",", False) == (False, 4)
    assert scan_csv(b'a,"b\n', 0, 5, ",", False) == (True, -1)
    assert scan_csv('\ufeff"b"\n'.encode(), 0, 7, ",", False) == (False, -1)


def test_a_quote_that_is_not_closed_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        # Far behind the lines from which columns are chosen.
        file.write("y,a\n" + "0,1\n" * 100_000 + '1,"2\n')
        file.writelines("0,1\n" * (1 << 20) for _ in range((MAX_RECORD_BYTES >> 22) + 2))
    with pytest.raises(DataError, match=r"a record is longer than 64 MiB; look for a quote"):
        read(path)


def test_lines_are_counted() -> None:
    assert count_csv_lines(b"a\nb\rc\r\nd") == 3


def test_logarithms_have_the_bits_of_the_math_library() -> None:
    import math

    values = np.random.default_rng(1).normal(0, 100, 1000)
    expected = [math.copysign(math.log1p(abs(v)), v) for v in values.tolist()]
    assert signed_log(values).tolist() == expected
    with pytest.raises(ValueError, match=r"shape \(n,\)"):
        signed_log(values.reshape(10, 100))
