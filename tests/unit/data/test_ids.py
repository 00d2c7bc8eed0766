"""`mpips.ids`: an id has the key that a reader gives its cell in a file."""

from __future__ import annotations

import array
import datetime
import enum
import math
import uuid
from collections import UserString, deque
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import mpips
from mpips.data import ReadOptions, read
from mpips.errors import DataError


def test_ids_have_the_keys_of_a_files_cells(tmp_path) -> None:
    path = tmp_path / "calls.csv"
    cells = ["admin.", "007", "1e+2", "TRUE", " services ", "18446744073709551615", "3.10"]
    lines = [f"{cell},1\n" for cell in cells]
    path.write_text("job,label\n" + "".join(lines))
    data = read(str(path), options=ReadOptions(format="csv", categorical=("job",))).data
    assert mpips.ids(cells, "job").tolist() == data.indices.tolist()
    values = ["admin.", 7, 100.0, True, b"services", np.uint64(2**64 - 1), "3.10"]
    assert mpips.ids(values, "job").tolist() == data.indices.tolist()


def test_unsigned_numbers_and_shapes() -> None:
    numbers = np.array([[0, 2**63], [2**64 - 1, 2**63]], np.uint64)
    keys = mpips.ids(numbers)
    assert keys.dtype == np.int64
    assert keys.shape == (2, 2)
    assert keys.tolist() == mpips.ids([[str(n) for n in row] for row in numbers.tolist()]).tolist()
    assert keys[0, 1] == keys[1, 1]
    assert len(np.unique(keys)) == 3
    assert mpips.ids(np.zeros((0, 3), np.uint64)).shape == (0, 3)
    assert mpips.ids("a").shape == ()


def test_keys_stay_for_ever() -> None:
    """Tables of people hold these keys: no version may change them."""
    assert mpips.ids(["a", 7], "c").tolist() == [562195116621589044, 2425684486268779936]
    assert mpips.ids(["a"]) != mpips.ids(["a"], "c")
    # The length of the name is hashed, so that ("ab", "c") and ("a", "bc") differ.
    assert mpips.ids(["c"], "ab") != mpips.ids(["bc"], "a")


def test_keys_are_spread_over_62_bits() -> None:
    keys = mpips.ids(np.arange(4096), "user")
    assert len(np.unique(keys)) == 4096
    assert keys.min() >= 0
    assert 2**61 < keys.max() < 2**62


def keys(*values: object) -> list[int]:
    """Return the key of each value as if it were alone."""
    return [int(mpips.ids(value)) for value in values]


@pytest.mark.parametrize(
    "values",
    [
        ["x", 1e6],
        [2**63 + 1, 1],
        [2**64 - 1, -1],
        [2**53 + 1, 0.5],
        [2**70, -(2**70), 5],
        [True, 2],
        [True, 0.0, False],
        [np.float32(0.1), 0.5, np.float16(0.1)],
        [np.uint64(2**64 - 1), np.int8(-1)],
        [np.array(5), np.array("five"), b"bytes"],
    ],
)
def test_each_id_of_a_list_keeps_its_own_type(values) -> None:
    alone = keys(*values)
    assert mpips.ids(values).tolist() == alone
    assert mpips.ids(tuple(values)).tolist() == alone
    assert mpips.ids([values, values]).tolist() == [alone, alone]
    assert mpips.ids([[[value]] for value in values]).tolist() == [[[key]] for key in alone]


def test_ids_are_the_words_of_their_values() -> None:
    words = ["9223372036854775809", "9007199254740993", "true", "0.1", "0.1", "7", "7"]
    values = [2**63 + 1, 2**53 + 1, np.True_, 0.1, np.float32(0.1), Decimal("7.0"), Number.seven]
    assert keys(*values) == keys(*words)
    assert mpips.ids([*values, Text.seven]).tolist() == [*keys(*words), *keys("seven")]
    when, name = datetime.date(2020, 2, 29), uuid.UUID(int=5)
    assert mpips.ids([when, name]).tolist() == keys("2020-02-29", str(name))


class Number(enum.IntEnum):
    seven = 7


class Text(str, enum.Enum):
    seven = "seven"


def test_sequences_of_arrays_have_the_keys_and_the_shape_of_one_array() -> None:
    rows = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    assert (mpips.ids(list(rows)) == mpips.ids(rows)).all()
    assert mpips.ids([rows, rows.tolist()]).shape == (2, 3, 4)
    assert mpips.ids([[rows], [rows]]).shape == (2, 1, 3, 4)
    assert (mpips.ids(memoryview(rows[0])) == mpips.ids(rows[0])).all()
    assert (mpips.ids(array.array("f", rows[0])) == mpips.ids(rows[0])).all()
    for values, shape in (([], (0,)), ([[], []], (2, 0)), (range(3), (3,)), (deque("ab"), (2,))):
        assert mpips.ids(values).shape == shape


def test_series_and_indexes_of_pandas_have_the_keys_of_their_values() -> None:
    pandas = pytest.importorskip("pandas")
    words, numbers = ["a", "b"], [2**63 + 1, 1]
    for values in (pandas.Series(words), pandas.Index(words), pandas.Categorical(words)):
        assert mpips.ids(values).tolist() == keys(*words)
    for kind in ("uint64", "UInt64", object):
        assert mpips.ids(pandas.Series(numbers, dtype=kind)).tolist() == keys(*numbers)
    frame = pandas.DataFrame({"a": numbers, "b": [0.5, 1.5]})
    assert mpips.ids(frame[["a"]]).tolist() == [[key] for key in keys(*numbers)]
    with pytest.raises(TypeError, match="columns of a frame have different types"):
        mpips.ids(frame)
    with pytest.raises(DataError, match="the value <NA> stands for a missing one"):
        mpips.ids([pandas.NA])
    with pytest.raises(DataError, match="the value NaT stands for a missing one"):
        mpips.ids([pandas.NaT])


@pytest.mark.parametrize("value", ["", "  ", "n/a", None, math.nan, "NaN", "?"])
def test_missing_ids_are_refused(value) -> None:
    with pytest.raises(DataError, match="stands for a missing one, which has no key"):
        mpips.ids(["a", value])


@pytest.mark.parametrize(
    "values",
    [
        (value for value in "ab"),
        map(str, [1, 2]),
        iter([1]),
        {"a": 1},
        {"a": 1}.keys(),
        {"a": 1}.values(),
        {1, 2},
    ],
)
def test_iterables_that_are_no_sequences_are_refused(values) -> None:
    kind = type(values).__name__
    pattern = (
        f"of type {kind}, is not an id: must be text or a real number, or pass an array or a list"
    )
    for passed in (values, [values], [[values]]):
        with pytest.raises(TypeError, match=pattern):
            mpips.ids(passed)


@pytest.mark.parametrize(
    "value", [object(), 1j, Fraction(7, 2), np.datetime64("2020"), np.void(b"ab"), int, ...]
)
def test_objects_are_refused(value) -> None:
    for passed in (value, [value], ["a", value], [[value]]):
        with pytest.raises(
            TypeError, match=r"is not an id: must be text or a real number|an array of"
        ):
            mpips.ids(passed)


@pytest.mark.parametrize("kind", ["c8", "M8[s]", "m8[s]", "V2", [("a", "i4")]])
def test_arrays_without_text_and_real_numbers_are_refused(kind) -> None:
    with pytest.raises(TypeError, match=r"ids: an array of .*: must be of text or real numbers"):
        mpips.ids(np.zeros(1, kind))


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3]],
        [["a"], "b"],
        ["b", ["a"]],
        [[], [[]]],
        [np.zeros(2), 1],
        [np.zeros((2, 1))] * 2,
    ],
)
def test_ragged_lists_are_refused(values) -> None:
    if values[0] is values[1]:
        values = [*values, np.zeros((1, 2))]
    with pytest.raises(TypeError, match="the parts of a sequence have different shapes, such as"):
        mpips.ids(values)


def test_text_without_a_form_in_utf_8_is_refused() -> None:
    for values, column in (
        (["\ud800"], ""),
        (["é\udfffx"], ""),
        (np.array(["\ud800"]), ""),
        ([1], "\ud800"),
    ):
        with pytest.raises(
            TypeError, match="has no form in UTF-8, because it has half of a surrogate"
        ):
            mpips.ids(values, column)
    assert mpips.ids(["é"]).shape == (1,)


@pytest.mark.parametrize("column", [None, 5, b"x"])
def test_a_column_is_a_str(column) -> None:
    with pytest.raises(TypeError, match="must be a str, the name of the column"):
        mpips.ids([1], column)


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="not text in UTF-8"):
        mpips.ids([b"\xff"])
    with pytest.raises(TypeError, match="masked array"):
        mpips.ids(np.ma.masked_array([1, 2], [True, False]))
    ragged = np.empty(1, object)
    ragged[0] = [1, 2]
    with pytest.raises(TypeError, match="is not an id"):
        mpips.ids(ragged)
    with pytest.raises(TypeError, match="nested in each other more than 32 times"):
        mpips.ids(UserString("abc"))
    with pytest.raises(TypeError, match="more digits than Python converts"):
        mpips.ids([10**5000])
