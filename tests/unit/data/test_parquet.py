"""Parquet: read as the CSV file with the same cells, and what cannot be read is named."""

from __future__ import annotations

import datetime
import decimal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_rig import mixed_csv

import mpips
from mpips.config.schema import load_config
from mpips.data import DenseData, SparseData, read
from mpips.data.options import ReadOptions
from mpips.data.shares import Shares
from mpips.errors import CapabilityError, DataError
from mpips.training.train import train

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

N = 23


def cells() -> dict[str, list[Any]]:
    """Columns of all kinds; None is a null."""
    random = np.random.default_rng(3)
    numbers = random.normal(0, 100, N).round(3).tolist()
    return {
        "size": [None if i % 5 == 2 else value for i, value in enumerate(numbers)],
        "colour": [None if i % 7 == 1 else ["red", "green", " blue"][i % 3] for i in range(N)],
        "code": random.integers(0, 4, N).tolist(),
        "flag": [i % 3 == 0 for i in range(N)],
        "kind": [["a", "", "b, c"][i % 3] for i in range(N)],
        "y": [["no", "yes"][i % 4 == 0] for i in range(N)],
    }


def write(path: Path, columns: dict[str, list[Any]], **more: Any) -> str:
    """Write Parquet in small row groups; `kind` is a dictionary, `more` are types by column."""
    arrays = {name: pa.array(values, more.get(name)) for name, values in columns.items()}
    if "kind" in arrays:
        arrays["kind"] = arrays["kind"].dictionary_encode()
    pq.write_table(pa.table(arrays), path, row_group_size=4)
    return str(path)


def write_csv(path: Path, columns: dict[str, list[Any]]) -> str:
    def text(cell: Any) -> str:
        return "" if cell is None else f'"{cell}"' if "," in str(cell) else str(cell)

    rows = [",".join(columns)]
    rows += [",".join(map(text, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def same(first: Any, other: Any) -> None:
    assert type(first) is type(other)
    np.testing.assert_array_equal(first.labels, other.labels)
    names = ("x",) if isinstance(first, DenseData) else ("indptr", "indices", "values", "fields")
    for name in names:
        a, b = getattr(first, name), getattr(other, name)
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("shares", ["mixed", "interleaved"])
@pytest.mark.parametrize("rows", [1, 5, 1 << 16])
@pytest.mark.parametrize(
    "options",
    [
        ReadOptions(numeric="raw"),
        ReadOptions(numeric="raw", categorical=("co*", "kind"), ignore=("flag",)),
        ReadOptions(numeric="raw", categorical=("code", "flag"), ignore=("colour", "kind")),
    ],
    ids=["text", "named", "numbers"],
)
def test_the_samples_are_those_of_the_csv_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: ReadOptions,
    rows: int,
    shares: Shares,
) -> None:
    monkeypatch.setattr("mpips.data.typed_tables._ROWS", rows)
    columns = cells()
    files = [write(tmp_path / "a.parquet", columns), write_csv(tmp_path / "a.csv", columns)]
    if "flag" not in (*options.ignore, *options.categorical):
        # Numbers in CSV, where true and false would be text.
        files[1] = write_csv(
            tmp_path / "b.csv", columns | {"flag": [int(f) for f in columns["flag"]]}
        )
    for offset in range(3):
        found, wanted = (
            read(file, stride=3, offset=offset, options=options, shares=shares) for file in files
        )
        same(found.data, wanted.data)
        assert found.info == wanted.info


def test_columns_of_numbers_are_dense(tmp_path: Path) -> None:
    columns = {
        "target": [1.0, 2.0, 1.0, 2.0],
        "a": [1, -2, 3, 1 << 40],
        "b": [decimal.Decimal("0.5"), decimal.Decimal("-1.25"), None, decimal.Decimal(0)],
        "c": [True, False, True, True],
    }
    path = write(tmp_path / "a.pq", columns)
    with pytest.raises(DataError, match=r"a\.pq: row 3, column 'b' is empty: set data.empty"):
        read(path)
    data = read(path, options=ReadOptions(empty="zero", categorical=())).data
    assert isinstance(data, DenseData)
    assert data.x.tolist() == [[1, 0.5, 1], [-2, -1.25, 0], [3, 0, 1], [1 << 40, 0, 1]]
    assert data.labels.tolist() == columns["target"]
    log = read(path, options=ReadOptions(empty="zero", numeric="log")).data
    assert isinstance(log, DenseData)
    np.testing.assert_allclose(log.x[:, 1], [np.log(1.5), -np.log(2.25), 0, 0], rtol=1e-6)


def test_a_file_without_a_known_ending_is_found_by_its_content(tmp_path: Path) -> None:
    path = write(tmp_path / "data", cells())
    assert isinstance(read(path).data, SparseData)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"when": [datetime.datetime(2020, 1, 1)] * N}, r"column 'when' is timestamp.*data.ignore"),
        ({"list": [[1, 2]] * N}, r"column 'list' is list.*neither numbers nor text"),
        ({"y": [None] * N}, "column 'y' is null, neither numbers nor text"),
        ({"y": ["no", None] + ["yes"] * (N - 2)}, "column 'y' contains an empty cell"),
        ({"y": [0.0] * (N - 1) + [float("nan")]}, "row 23, column 'y' contains nan: labels"),
        ({"y": [0.0] * (N - 1) + [float("inf")]}, "row 23, column 'y' contains inf: labels"),
        ({"size": [0.0] * 6 + [float("inf")] * (N - 6)}, "row 7, column 'size' contains inf"),
        ({"size": [1e300] * N}, r"row 1, column 'size' contains 1e\+300: features are finite"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "a.parquet", cells() | changes)
    with pytest.raises(DataError, match=said):
        read(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ReadOptions(categorical=("kind",)), "column 'colour' contains text.*to hash text, set"),
        (ReadOptions(categorical=("x*",)), r"categorical 'x\*' matches none of"),
        (ReadOptions(label="z"), "no label column 'z'; set data.label to one of 'size', 'colour'"),
        (ReadOptions(wants="targets"), "column 'y' contains text: targets are finite numbers"),
        (ReadOptions(label_names=("a", "no")), "label 'yes' does not occur in the training data"),
        (ReadOptions(label="code", label_names=("a",)), "'code' contains numbers, the labels of"),
        (ReadOptions(columns=("size", "weight")), "has column 'weight' that this file lacks"),
    ],
)
def test_options_that_do_not_fit_are_named(tmp_path: Path, options: ReadOptions, said: str) -> None:
    path = write(tmp_path / "a.parquet", cells())
    with pytest.raises(DataError, match=said):
        read(path, options=options)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    good = Path(write(tmp_path / "a.parquet", cells()))
    with pytest.raises(DataError, match=r"none\.parquet: cannot be read: No such file"):
        read(tmp_path / "none.parquet")
    content = good.read_bytes()
    for name, torn in {"empty": b"", "short": content[:-9], "text": b"a,y\n1,2\n" * 9}.items():
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(torn)
        with pytest.raises(DataError, match=name):
            read(path)
    empty = write(tmp_path / "none.pq", {"a": [], "y": []}, a=pa.float64(), y=pa.int64())
    with pytest.raises(DataError, match="contains no samples"):
        read(empty)


def test_without_pyarrow_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", cells())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CapabilityError, match=r"reading Parquet needs pyarrow \(pip install"):
        read(path)


def test_a_model_of_one_format_predicts_the_other(tmp_path: Path) -> None:
    pandas_free = pytest.importorskip("pyarrow.csv")
    texts = [
        mixed_csv(tmp_path / f"{name}.csv", n, n) for name, n in (("train", 300), ("test", 90))
    ]
    tables = []
    for path in texts:
        table = pandas_free.read_csv(
            path, convert_options=pandas_free.ConvertOptions(strings_can_be_null=True)
        )
        tables.append(path.with_suffix(".parquet"))
        pq.write_table(table, tables[-1])
    found = []
    for source, test in ((texts[0], tables[1]), (tables[0], texts[1])):
        folder = tmp_path / source.suffix[1:]
        job = [
            ("task", "wide_deep"),
            ("data.train", str(source)),
            ("data.test", str(test)),
            ("train.epochs", 2),
            ("checkpoint.folder", str(folder)),
        ]
        metrics = train(load_config(None, job), "none", verbose=False).value.metrics
        model = mpips.load(folder)
        assert model.evaluate(test)["auc"] == metrics["auc"]
        found.append(model.predict_proba(tables[1]))
        np.testing.assert_array_equal(found[-1], model.predict_proba(texts[1]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
