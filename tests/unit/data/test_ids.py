"""`mpips.ids`: an id has the key that a reader gives its cell in a file."""

from __future__ import annotations

import math

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


def test_a_list_of_text_and_numbers_keeps_its_numbers() -> None:
    assert mpips.ids(["x", 1e6])[1] == mpips.ids([1000000])[0]


@pytest.mark.parametrize("value", ["", "  ", "n/a", None, math.nan, "NaN", "?"])
def test_missing_ids_are_refused(value) -> None:
    with pytest.raises(DataError, match="stands for a missing one, which has no key"):
        mpips.ids(["a", value])


def test_other_values_are_refused() -> None:
    with pytest.raises(TypeError, match="no text in UTF-8"):
        mpips.ids([b"\xff"])
    with pytest.raises(TypeError, match="masked array"):
        mpips.ids(np.ma.masked_array([1, 2], [True, False]))
    ragged = np.empty(1, object)
    ragged[0] = [1, 2]
    with pytest.raises(TypeError, match="is no id"):
        mpips.ids(ragged)
