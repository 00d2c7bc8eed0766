"""Columns that are no features as they are: row numbers, identifiers, numbers in other notations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips.data import ReadOptions, read
from mpips.errors import DataError

pandas = pytest.importorskip("pandas")
N = 150


def frame() -> Any:
    rng = np.random.default_rng(0)
    values = {"a": rng.normal(size=N).round(3), "label": np.arange(N) // (N // 2)}
    return pandas.DataFrame(values)


def test_the_row_numbers_of_pandas_are_left_out(tmp_path: Path) -> None:
    data, path = frame(), tmp_path / "a.csv"
    for rows in (data, data[data.a > 0], data.sample(frac=1, random_state=1)):
        rows.to_csv(path)
        part = read(path)
        assert part.info.columns == ("a",)
        assert any("without a name has the numbers of the rows" in note for note in part.notes)
    data.reset_index(drop=True).rename_axis(None).to_csv(path)
    pandas.read_csv(path).to_csv(path, index=False)
    part = read(path)
    assert part.info.columns == ("a",)
    assert any("column 'Unnamed: 0' has the numbers" in note for note in part.notes)
    # A model that was trained with the column finds it in other files.
    like = read(path).info
    like = type(like).from_config(
        {**like.to_config(), "columns": ["Unnamed: 0", "a"], "n_features": 2}
    )
    assert read(path, like=like).data.n_features == 2


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_the_index_that_metadata_names_is_left_out(tmp_path: Path, form: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / f"a.{form}"
    table = pyarrow.Table.from_pandas(frame().query("a > 0"))
    if form == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        with pyarrow.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    part = read(path)
    assert part.info.columns == ("a",)
    assert any("'__index_level_0__' was the index of a frame" in note for note in part.notes)


def test_columns_with_a_value_for_each_row_are_named(tmp_path: Path) -> None:
    data = frame().assign(
        row=np.arange(N) * 3, key=[f"k{i}" for i in range(N)], few=np.arange(N) % 9
    )
    path = tmp_path / "a.csv"
    data.to_csv(path, index=False)
    found = [note for note in read(path).notes if "like an identifier" in note]
    assert [note.split("'")[1] for note in found] == ["row", "key"]


NOTATIONS = {
    "decimal commas": ["0,126", "-1,5", "12,25"],
    "separators of thousands": ["1,234", "12,345,678.5", "1,000"],
    "percentages": ["1.5%", "20 %", "3%"],
    "amounts of money": ["$1.50", "€93.85", "10 EUR"],
    "dates": ["2026-02-08 08:00:19", "08.02.2026", "2026/2/8"],
}


@pytest.mark.parametrize("notation", NOTATIONS)
def test_numbers_in_other_notations_are_named_in_fit(tmp_path: Path, notation: str) -> None:
    data = frame()
    cells = NOTATIONS[notation]
    data["b"] = [cells[i % len(cells)] if i % 20 else "N/A" for i in range(N)]
    data["c"] = ["x" if i % 2 else "1,2 and more" for i in range(N)]
    data.to_csv(tmp_path / "a.csv", sep=";", index=False)
    fitted = mpips.fit("fm", str(tmp_path / "a.csv"), epochs=1)
    named = [note for note in fitted.notes if "which are words here, not numbers" in note]
    assert len(named) == 1
    assert f"column 'b' has {'numbers with ' if 'separ' in notation else ''}{notation}" in named[0]
    assert fitted.model.notes == fitted.notes


@pytest.mark.parametrize("number", [1e39, -1e39])
def test_numbers_beyond_float32_are_refused_in_all_forms(number: float) -> None:
    data = frame()
    model = mpips.fit("softmax", data, epochs=1).model
    plain = mpips.fit("softmax", (data[["a"]].to_numpy(), data["label"].to_numpy()), epochs=1).model
    data["a"] = number
    with pytest.raises(DataError, match=r"^the frame:2: column 'a' contains '-?1e\+39'"):
        model.predict(data.drop(columns="label"))
    for own in (model, plain):
        with pytest.raises(DataError, match="beyond float32"):
            own.predict(np.array([[number]]))
    with pytest.raises(DataError, match=r"^the train data:2: column 'a'"):
        mpips.fit("softmax", data, epochs=1)


def test_float32_is_named_or_refused_where_it_loses_differences() -> None:
    seconds = 1.7e9 + np.arange(N, dtype=float)[:, None]
    model = mpips.fit("softmax", (seconds, np.arange(N) // (N // 2)), epochs=1).model
    assert model.info.wide
    model.predict(seconds.astype(np.float32))
    assert "float32, which loses differences" in model.notes[0]
    model.predict(seconds)
    assert not model.notes
    torch = pytest.importorskip("torch")
    network = model.to_torch()
    assert network(torch.from_numpy(seconds)).shape == (N, 2)
    with pytest.raises(TypeError, match=r"give torch\.float64"):
        network(torch.from_numpy(seconds).float())
    with pytest.raises(ValueError, match="beyond float32"):
        network(torch.full((1, 1), float("inf"), dtype=torch.float64))


def test_codes_and_words_in_other_letters_are_named(tmp_path: Path) -> None:
    data = frame()
    data["zip"] = [f"{7900 + i % 70:05d}" for i in range(N)]
    data["ad"] = [10**15 + i % 40 for i in range(N)]
    data["plain"] = [10**6 + i % 40 for i in range(N)]
    data["device"] = [["ios", "IOS", " android", "NA", "True", "true"][i % 6] for i in range(N)]
    data["city"] = [["Ulm", "Bonn", ""][i % 3] for i in range(N)]
    path = tmp_path / "a.csv"
    data.to_csv(path, index=False)
    notes = read(path).notes
    (zips,) = [note for note in notes if "leading zeros" in note]
    assert "column 'zip' has numbers with leading zeros ('07900')" in zips
    # The option names all columns of text, also those that are text without it.
    assert 'set data.categorical = ["zip", "ad", "device", "city"]' in zips
    (ads,) = [note for note in notes if "more digits than float32" in note]
    assert f"column 'ad' has whole numbers with more digits than float32 has ('{10**15}')" in ads
    assert "40 values of the first 150 rows are 1 here" in ads
    (letters,) = [note for note in notes if "upper and lower case" in note]
    assert (
        "column 'device' has words that differ in upper and lower case only ('ios', 'IOS')"
        in letters
    )
    asked = read(path, options=ReadOptions(categorical=("zip", "ad", "device", "city"))).notes
    assert [note for note in asked if "leading zeros" in note or "digits" in note] == []
    assert any("upper and lower case" in note for note in asked)
    # A task of dense numbers has no columns of words, so it gets no such advice.
    data[["zip", "a", "label"]].to_csv(path, index=False)
    assert not any("leading zeros" in note for note in read(path).notes)


MESSY = Path(os.environ.get("MPIPS_TEST_DATA") or Path(__file__).parents[4] / "shared" / "data")


@pytest.mark.skipif(not (MESSY / "messy.csv").exists(), reason="needs shared/data/messy.csv")
def test_a_click_log_as_people_have_it_says_what_to_do_with_each_column() -> None:
    """What a newcomer reads: first the refusals, then notes on each column that is no feature as it is."""
    path = MESSY / "messy.csv"
    with pytest.raises(DataError, match="which column holds the label") as refused:
        read(path)
    assert "'clicked'" in str(refused.value)
    texts = ["user_id", "timestamp", "date_de", "device", "city", "bid", "premium", "tags"]
    with pytest.raises(DataError, match="column 'age' contains 'unknown'") as refused:
        read(path, options=ReadOptions(label="clicked"))
    assert "leave the cell empty (or NA) if its number is missing" in str(refused.value)
    assert 'to read all columns, set data.missing = ["unknown"]' in str(refused.value)
    wanted = [*texts[:5], "age", *texts[5:]]
    assert f"set data.categorical = {json.dumps(wanted)}" in str(refused.value)
    # What the sentence says is enough.
    assert read(path, options=ReadOptions(label="clicked", categorical=tuple(wanted))).data.n
    result = mpips.fit(
        "wide_deep",
        str(path),
        epochs=1,
        settings={"data.label": "clicked", "data.ignore": ["age"], "options.hidden": [4]},
    )
    signs = {
        "row_id": "like an identifier",
        "ad_id": "more digits than float32",
        "timestamp": '"timestamp" = "time_ymd"',
        "date_de": '"date_de" = "date_dmy"',
        "device": "upper and lower case",
        "zip": "leading zeros",
        "bid": '"bid" = "decimal_point"',
    }
    for name, sign in signs.items():
        assert any(f"column '{name}' " in note and sign in note for note in result.notes), name
