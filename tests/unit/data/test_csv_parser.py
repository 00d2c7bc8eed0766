"""The native parser of CSV against Python's csv module and float; samples from cells against NumPy."""

from __future__ import annotations

import csv
import io
import math
import random

import numpy as np
import pytest

from mpips._native import CsvParser, count_csv_lines, interleave, signed_log
from mpips.data.cells import EMPTY, NumberCells, SampleBuilder, TextCells
from mpips.data.dataset import DenseData, SparseData
from mpips.data.exact import Float64

FLOAT32_MAX = float(np.finfo(np.float32).max)


def numbers(text: bytes) -> list[float] | None:
    found = CsvParser("m", ",").parse(text)
    if found is None:
        return None
    column = found[3][0]
    assert column is not None
    return column.tolist()


def test_decimals_have_the_bits_of_float() -> None:
    source = random.Random(1)
    cells = []
    for _ in range(20_000):
        digits = "".join(source.choice("0123456789") for _ in range(source.randint(1, 19)))
        place = source.randint(0, len(digits))
        point = source.choice(["", "."])
        exponent = source.choice(["", "", "", "e3", "E-12"])
        cells.append(
            source.choice(["", "-", "+"]) + digits[:place] + point + digits[place:] + exponent
        )
    found = numbers("\n".join(cells).encode())
    assert found is not None
    assert [x.hex() for x in found] == [float(cell).hex() for cell in cells]


def test_a_number_at_each_place_of_the_text_is_read() -> None:
    # Words of eight bytes before the first cells would lie before the text.
    for length in range(1, 17):
        cell = "123456789.123456"[:length].rstrip(".")
        for before in range(20):
            text = ("1" * before + "\n" + cell).encode() if before else cell.encode()
            expected = ([float("1" * before)] if before else []) + [float(cell)]
            assert numbers(text) == expected


@pytest.mark.parametrize(
    "cell",
    [
        "1_0",
        "inf",
        "1e999",
        "-1e39",
        "0x1",
        ".",
        "-",
        "+",
        "1.2.3",
        "1e",
        "--1",
        "1-",
        "٣",
        "1 2",
        "true",
    ],
)
def test_what_is_no_plain_number_is_refused(cell: str) -> None:
    assert numbers(f"1\n{cell}\n2\n".encode()) is None


def test_missing_numbers_are_nan_where_they_may_be_missing() -> None:
    text = b'1\n NA\nnull\n?\n n/a \n""\n2\n'
    found = numbers(text)
    assert found is not None
    assert [x for x in found if not math.isnan(x)] == [1.0, 2.0]
    assert len(found) == 7
    assert CsvParser("n", ",").parse(text) is None
    assert CsvParser("n", ",").parse(b"1\n2\n") is not None


def test_texts_are_numbered_in_the_order_of_their_first_occurrence() -> None:
    source = random.Random(2)
    # Words with the same first eight bytes, of lengths around that, and of other lengths.
    words = [f"{'abcdefgh'[: i % 9]}{i}" for i in range(3000)] + [
        "abcdefgh",
        "abcdefgh\u00e9",
        "a",
        "ab",
    ]
    cells = [source.choice(words) for _ in range(20_000)]
    parser = CsvParser("t", ",")
    places: dict[str, int] = {}
    expected = [places.setdefault(cell, len(places)) for cell in cells]
    codes: list[int] = []
    for start in range(0, len(cells), 7000):
        found = parser.parse("\n".join(cells[start : start + 7000]).encode())
        assert found is not None
        column = found[3][0]
        assert column is not None
        codes += column.tolist()
    assert codes == expected
    assert parser.words(0, 0) == list(places)
    assert parser.words(0, 2990) == list(places)[2990:]
    parser.clear(0)
    again = parser.parse(b"new\nabcdefgh\nnew")
    assert again is not None
    assert again[3][0].tolist() == [0, 1, 0]  # type: ignore[union-attr]
    assert parser.words(0, 0) == ["new", "abcdefgh"]


def test_a_refused_text_leaves_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(6)
    parser, known = CsvParser("tn", ","), []
    for _ in range(300):
        words = [f"w{source.randint(0, 400)}" for _ in range(source.randint(1, 40))]
        lines = [f"{word},1" for word in words]
        refused = source.random() < 0.5
        if refused:
            lines.insert(source.randint(0, len(lines)), "bad,x")
        found = parser.parse("\n".join(lines).encode())
        if not refused and source.random() < 0.2:
            parser.undo()
            refused = True
        if not refused:
            known += [word for word in dict.fromkeys(words) if word not in known]
            assert found is not None
            codes = found[3][0]
            assert codes is not None
            assert [known[code] for code in codes.tolist()] == words
        assert parser.words(0, 0) == known
    assert len(known) > 300


def parsed_by_python(text: bytes, width: int) -> list[list[str]] | None:
    try:
        rows = list(csv.reader(io.StringIO(text.decode(), newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError):
        return None
    rows = [row for row in rows if row]
    return rows if all(len(row) == width for row in rows) else None


def test_random_bytes_are_refused_or_read_as_by_python() -> None:
    source, read = random.Random(3), 0
    pieces = [
        b"a",
        b",",
        b",",
        b"\n",
        b"\r\n",
        b"\r",
        b'"',
        b'""',
        b"\0",
        b"\xc3\xa9",
        b"word" * 20,
        b" ",
    ]
    for _ in range(30_000):
        width = source.randint(1, 3)
        text = b"".join(source.choice(pieces) for _ in range(source.randint(0, 12)))
        parser = CsvParser("t" * width, ",")
        found = parser.parse(text)
        if found is None:
            continue
        n, n_lines, is_ascii, columns = found
        rows = parsed_by_python(text, width)
        assert rows is not None, text
        cells = [
            [parser.words(i, 0)[code] for code in column.tolist()]
            for i, column in enumerate(columns)
            if column is not None
        ]
        assert [list(row) for row in zip(*cells, strict=True)] == rows, text
        assert n == len(rows)
        lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n")
        assert n_lines == count_csv_lines(text) == lines
        assert is_ascii == text.isascii()
        read += n > 0
    assert read > 1500


def test_a_cell_of_more_than_128_kib_is_left_to_python() -> None:
    assert CsvParser("t", ",").parse(b"x" * (1 << 17)) is not None
    assert CsvParser("t", ",").parse(b"x" * ((1 << 17) + 1)) is None
    assert CsvParser("-t", ",").parse(b"x" * ((1 << 17) + 1) + b",a") is None


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="kinds must consist of"):
        CsvParser("nx", ",")
    with pytest.raises(ValueError, match="at least one column"):
        CsvParser("", ",")
    with pytest.raises(IndexError, match="no such column"):
        CsvParser("t", ",").words(1, 0)
    with pytest.raises(ValueError, match="contiguous buffer of bytes"):
        CsvParser("t", ",").parse(memoryview(b"abcd")[::2])


def columns_of(source: np.random.Generator, n: int, gaps: bool) -> list[NumberCells | TextCells]:
    found: list[NumberCells | TextCells] = []
    for i in range(int(source.integers(1, 6))):
        if source.random() < 0.5:
            values = source.normal(0, 100, n).round(2)
            if gaps:
                values[source.random(n) < 0.3] = np.nan
            found.append(NumberCells(1000 + i, values))
        else:
            keys = source.integers(0, 1 << 62, 5)
            if gaps:
                keys[2] = EMPTY
            found.append(TextCells(keys, source.integers(0, 5, n).astype(np.int32)))
    return found


def entry(
    column: NumberCells | TextCells, record: int, logarithms: bool
) -> tuple[int, float] | None:
    if isinstance(column, TextCells):
        key = int(column.keys[column.codes[record]])
        return (key, 1.0) if key != EMPTY else None
    value = column.numbers[record : record + 1]
    if np.isnan(value[0]):
        return None
    return column.key, float(np.float32(signed_log(value.copy())[0] if logarithms else value[0]))


def test_hashed_samples_have_the_cells_that_are_there_in_order() -> None:
    source = np.random.default_rng(4)
    for trial in range(120):
        first = columns_of(source, 0, False)
        logarithms = [bool((trial + i // 2) % 2) for i in range(len(first))]
        builder = SampleBuilder(True, logarithms)
        if trial % 3 == 0:
            builder.expect(int(source.integers(0, 300)))
        expected, labels = [], 0
        for _ in range(int(source.integers(1, 4))):
            n = int(source.integers(0, 150))
            columns = columns_of(source, n, trial % 4 < 2)[: len(first)]
            while len(columns) < len(first):
                columns += columns_of(source, n, trial % 4 < 2)[: len(first) - len(columns)]
            own = np.flatnonzero(source.random(n) < 0.6) if trial % 5 < 2 else None
            builder.add(columns, n, own)
            records = range(n) if own is None else own.tolist()
            labels += len(records)
            for record in records:
                found = [entry(c, record, log) for c, log in zip(columns, logarithms, strict=True)]
                expected.append([(i, *e) for i, e in enumerate(found) if e is not None])
        data = builder.samples(np.zeros(labels))
        assert isinstance(data, SparseData)
        assert data.fields is not None
        assert np.diff(data.indptr).tolist() == [len(sample) for sample in expected]
        flat = [e for sample in expected for e in sample]
        assert data.fields.tolist() == [e[0] for e in flat]
        assert data.indices.tolist() == [e[1] for e in flat]
        assert data.values.tolist() == [e[2] for e in flat]


def test_dense_samples_are_rows_with_0_for_a_missing_number() -> None:
    builder = SampleBuilder(hashed=False, logarithms=[False, False])
    cells = [
        NumberCells(0, np.array([1.5, np.nan, 3.0])),
        NumberCells(0, np.array([4.0, 5.0, 6.0])),
    ]
    builder.add(cells, 3)
    builder.add(cells, 3, np.array([2]))
    data = builder.samples(np.zeros(4))
    assert isinstance(data, DenseData)
    assert data.x.tolist() == [[1.5, 4], [0, 5], [3, 6], [3, 6]]


def test_arrays_that_do_not_fit_are_refused() -> None:
    def outcome(
        numbers: Float64,
        codes: list[int],
        own: list[int] | None,
        room: int,
        logarithms: tuple[bool, ...] = (False, False),
    ) -> int:
        return interleave(
            [
                (numbers, 1, None, None),
                (None, 0, np.array(codes, np.int32), np.array([7, 8])),
            ],
            2,
            None if own is None else np.array(own, np.int64),
            logarithms,
            np.zeros(room, np.int64),
            np.zeros(room, np.float32),
            np.zeros(room, np.int32),
            np.zeros(2 if own is None else len(own), np.int64),
        )

    assert outcome(np.zeros(2), [0, 1], None, 4) == 4
    with pytest.raises(ValueError, match="no room for all cells"):
        outcome(np.zeros(2), [0, 1], None, 3)
    with pytest.raises(ValueError, match="a code lies outside"):
        outcome(np.zeros(2), [0, 2], None, 4)
    with pytest.raises(ValueError, match="a code lies outside"):
        outcome(np.zeros(2), [0, -1], None, 4)
    with pytest.raises(ValueError, match="must have the same length"):
        outcome(np.zeros(3), [0, 1], None, 4)
    with pytest.raises(ValueError, match="a record that is not there"):
        outcome(np.zeros(2), [0, 1], [0, 2], 4)
    with pytest.raises(ValueError, match="a value for each column"):
        outcome(np.zeros(2), [0, 1], None, 4, (False,))


def test_given_texts_mean_a_missing_number_in_any_letters() -> None:
    parser = CsvParser("mn", ",", ["unknown", "\\n"])
    found = parser.parse(b"Unknown,1\n 2 ,2\n\\N,3\nNA,4\n")
    assert found is not None
    assert np.isnan(found[3][0]).tolist() == [True, False, True, True]
    assert found[3][1].tolist() == [1, 2, 3, 4]
    # Where no number may be missing, the text is left to the caller.
    assert parser.parse(b"1,unknown\n") is None
    assert parser.parse(b"unknowns,1\n") is None
    assert CsvParser("m", ",").parse(b"unknown\n") is None
