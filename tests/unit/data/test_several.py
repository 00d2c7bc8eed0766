"""Several files that are read as one: the samples of every share, in order, are those of one file."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from thread_ranks import prepared

from mpips.config.schema import load_config, parse_assignment
from mpips.data import DenseData, Part, ReadOptions, SparseData, files_of, read
from mpips.data.options import FileList
from mpips.errors import ConfigError, DataError
from mpips.training.preflight import preflight
from mpips.training.train import train as train_job

SIZES = (5, 1, 7, 4)  # samples of each file: no multiple of a number of workers
CUTS = np.cumsum(SIZES)[:-1]


def svm(folder: Path, base: int = 1) -> list[str]:
    rng = np.random.default_rng(3)
    rows = []
    for i in range(sum(SIZES)):
        keys = np.sort(rng.choice(30 + i, 4, replace=False)) + base
        rows.append(f"{i % 2} " + " ".join(f"{k}:{k % 5 + 1}" for k in keys))
    return rows


def dense_table(folder: Path) -> list[str]:
    rng = np.random.default_rng(4)
    return [f"{x:.3f},{y:.3f},{i % 3}" for i, (x, y) in enumerate(rng.normal(size=(17, 2)))]


def text_table(folder: Path) -> list[str]:
    # The second file has one class only, and the first one lacks a class.
    kinds = [
        "yes",
        "no",
        "yes",
        "yes",
        "no",
        "no",
        "maybe",
        "yes",
        "maybe",
        "no",
        "no",
        "yes",
        "maybe",
        "no",
        "yes",
        "yes",
        "no",
    ]
    return [f"{i * 1.5},{'red' if i % 3 else 'blue'},{kind}" for i, kind in enumerate(kinds)]


def write_text(header: str) -> Callable[[Path, list[str]], None]:
    def write(path: Path, rows: list[str]) -> None:
        text = "".join(line + "\n" for line in ([header] if header else []) + rows)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)

    return write


def numbers(folder: Path) -> Any:
    rng = np.random.default_rng(5)
    return np.column_stack([rng.normal(size=(17, 3)).astype(np.float32), np.arange(17) % 2])


def write_npz(path: Path, rows: Any) -> None:
    np.savez(path, x=rows[:, :3], y=rows[:, 3])


def write_hdf5(path: Path, rows: Any) -> None:
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = rows[:, :3], rows[:, 3]


def write_parquet(path: Path, rows: list[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    amounts, colours, labels = zip(*(line.split(",") for line in rows), strict=True)
    amount = list(map(float, amounts))
    parquet.write_table(pyarrow.table({"amount": amount, "colour": colours, "label": labels}), path)


FORMATS = {
    "svm": (svm, write_text(""), "svm"),
    "zero-based svm": (lambda folder: svm(folder, 0), write_text(""), "svm"),
    "csv": (dense_table, write_text("a,b,label"), "csv"),
    "csv.gz": (dense_table, write_text("a,b,label"), "csv.gz"),
    "csv with text": (text_table, write_text("amount,colour,label"), "csv"),
    "parquet": (text_table, write_parquet, "parquet"),
    "npz": (numbers, write_npz, "npz"),
    "hdf5": (numbers, write_hdf5, "h5"),
}


def parts_of(folder: Path, name: str) -> tuple[str, str]:
    """A pattern of files, and one file with the content of all."""
    make, write, ending = FORMATS[name]
    rows = make(folder)
    whole = folder / f"whole.{ending}"
    write(whole, rows)
    begin = 0
    for i, size in enumerate(SIZES):
        write(folder / f"part-{i}.{ending}", rows[begin : begin + size])
        begin += size
    return str(folder / f"part-?.{ending}"), str(whole)


def same(first: Part, other: Part) -> None:
    assert first.info == other.info
    a, b = first.data, other.data
    assert type(a) is type(b)
    np.testing.assert_array_equal(a.labels, b.labels)
    if isinstance(a, SparseData) and isinstance(b, SparseData):
        assert a.n_fields == b.n_fields
        assert (a.fields is None) == (b.fields is None)
        for name in ("indptr", "indices", "values", "fields")[: 3 if a.fields is None else 4]:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
            assert getattr(a, name).dtype == getattr(b, name).dtype
    elif isinstance(a, DenseData) and isinstance(b, DenseData):
        assert a.x.dtype == b.x.dtype
        np.testing.assert_array_equal(a.x, b.x)


@pytest.mark.parametrize("shares", ["mixed", "interleaved"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_share_is_that_of_one_file(tmp_path: Path, name: str, shares: Any) -> None:
    pattern, whole = parts_of(tmp_path, name)
    for stride in (1, 2, 3, 5):
        for offset in range(stride):
            place = {"stride": stride, "offset": offset, "shares": shares}
            same(read(pattern, **place), read(whole, **place))
    training = read(whole)
    same(read(pattern, like=training.info), read(whole, like=training.info))
    assert read(pattern).notes[0].startswith(f"{pattern}: 4 files, ")


def test_index_0_in_one_file_counts_for_all(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:1 2:1\n")
    (tmp_path / "b.svm").write_text("0 0:1 1:1\n")
    (tmp_path / "c.svm").write_text("0 4:1\n")
    part = read(str(tmp_path / "*.svm"))
    assert (part.info.index_base, part.info.n_features) == (0, 5)
    assert isinstance(part.data, SparseData)
    assert part.data.indices.tolist() == [1, 2, 0, 1, 4]


def test_which_files_a_pattern_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("day_10.csv", "day_2.csv", "[x].csv", "deep/down/day_3.csv"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("a,label\n1,1\n")
    assert files_of("day_*.csv") == ["day_10.csv", "day_2.csv"]
    assert files_of("**/day_*.csv") == ["day_10.csv", "day_2.csv", "deep/down/day_3.csv"]
    # The name of an existing file is no pattern, and a name without magic may be of no file.
    assert files_of("[x].csv") == ["[x].csv"]
    assert files_of("none.csv") == ["none.csv"]
    # A folder is no file.
    for pattern in ("night_*.csv", "dee?"):
        with pytest.raises(DataError, match="no file matches this pattern"):
            files_of(pattern)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("a,b,label\n1,2,0\n", "a,label\n1,0\n", "b.csv.*'b'"),
        ("a,label\n1,0\n", "a,label\n1,yes\n", "b.csv: its labels are text, those of .*a.csv are"),
        ("a,label\n1,no\n", "a,label\n1,1\n", "a.csv: its labels are text, those of .*b.csv are"),
        ("a,label\n1,0\n", "a,label\nred,1\n", "b.csv.*red"),
        ("a,label\n1,0\n", "a,label\n", "b.csv: contains no samples"),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    tmp_path: Path, first: str, second: str, message: str
) -> None:
    (tmp_path / "a.csv").write_text(first)
    (tmp_path / "b.csv").write_text(second)
    with pytest.raises(DataError, match=message):
        read(str(tmp_path / "?.csv"))


def test_a_job_trains_on_a_pattern_with_the_result_of_one_file(tmp_path: Path) -> None:
    pattern, whole = parts_of(tmp_path, "csv")

    def trained(data: str) -> dict[str, float]:
        pairs = [("task", "softmax"), ("data.train", data), ("data.test", data)]
        config = load_config(None, [*pairs, ("train.epochs", 2)])
        return train_job(config, "none", verbose=False).value.metrics

    assert trained(pattern) == trained(whole)
    with pytest.raises(DataError, match="no file matches this pattern"):
        trained(str(tmp_path / "none-*.csv"))


def test_a_list_is_read_in_its_order_and_patterns_in_it_in_theirs(tmp_path: Path) -> None:
    for name in ("b", "a2", "a1"):
        (tmp_path / f"{name}.csv").write_text(f"x,y\n{ord(name[0])},0\n{len(name)},1\n")
    paths = [str(tmp_path / "b.csv"), str(tmp_path / "a*.csv")]
    found = read(FileList(paths), options=ReadOptions())
    assert found.data.x[:, 0].tolist() == [98, 1, 97, 2, 97, 2]
    assert files_of(FileList(paths)) == [str(tmp_path / f"{n}.csv") for n in ("b", "a1", "a2")]
    with pytest.raises(DataError, match=r"the list names .*a1\.csv twice"):
        files_of(FileList([str(tmp_path / "a1.csv"), *paths]))


@pytest.mark.parametrize("memory_mib", [1024.0, 0.001])
def test_a_job_takes_lists(tmp_path: Path, memory_mib: float) -> None:
    for name in ("b", "a"):
        lines = [f"{i},{i % 2}" for i in range(100)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    lists = [str(tmp_path / "b.csv"), str(tmp_path / "a.csv")]
    pairs = [("task", "softmax"), ("data.train", lists), ("data.test", lists[:1])]
    config = load_config(None, [*pairs, ("data.memory_mib", memory_mib)])
    assert config.data.train == tuple(lists)
    (inputs,) = prepared(config, 1)
    assert (inputs.info.n_samples_total, inputs.n_test) == (200, 100)
    assert any(f"{lists[0]}, {lists[1]}: 2 files" in note for note in inputs.notes)
    assert parse_assignment('data.train=["a.csv", "b.csv"]') == ("data.train", ["a.csv", "b.csv"])
    missing = load_config(None, [("task", "softmax"), ("data.train", [*lists, "none.csv"])])
    with pytest.raises(ConfigError, match=r"none\.csv: no such file"):
        preflight(missing)
