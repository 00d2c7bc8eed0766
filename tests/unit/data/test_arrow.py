"""Arrow IPC: read as the Parquet file with the same table, and what cannot be read is named."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips.config.schema import load_config
from mpips.data import DenseData, ReadOptions, SparseData, read
from mpips.data.file_blocks import blocks
from mpips.data.shares import Shares
from mpips.errors import CapabilityError, DataError, MpipsError
from mpips.training.train import train
from tests.support.streaming import streamed, whole

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
ipc = pytest.importorskip("pyarrow.ipc")
feather = pytest.importorskip("pyarrow.feather")
pq = pytest.importorskip("pyarrow.parquet")

N = 211


def table(word: Any = None) -> Any:
    source = np.random.default_rng(7)
    numbers = source.normal(0, 100, N)
    words = [None if i % 7 == 1 else ["red", "green", "bl\u00fce"][i % 3] for i in range(N)]
    return pa.table(
        {
            "size": pa.array([None if i % 5 == 2 else float(x) for i, x in enumerate(numbers)]),
            "word": pa.array(words, word or pa.string()),
            "kind": pa.array([f"k{i % 4}" for i in range(N)]).dictionary_encode(),
            "flag": pa.array([i % 3 == 0 for i in range(N)]),
            "count": pa.array(source.integers(0, 9, N).astype(np.int16)),
            "label": pa.array((source.random(N) < 0.4).astype(np.int8)),
        }
    )


def write(path: Path, table: Any, rows: int = 40, compression: str | None = None) -> Path:
    """Write the file format, or the stream format for the ending .arrows."""
    new = ipc.new_stream if path.suffix == ".arrows" else ipc.new_file
    options = ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=rows)
    return path


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    names = ("x",) if isinstance(found, DenseData) else ("indptr", "indices", "values", "fields")
    for name in (*names, "labels"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("shares", ["mixed", "interleaved"])
@pytest.mark.parametrize("rows", [1, 40, 1000])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("ending", ["arrow", "arrows", "feather"])
def test_the_samples_are_those_of_parquet(
    tmp_path: Path, ending: str, compression: str | None, rows: int, shares: Shares
) -> None:
    path = write(tmp_path / f"a.{ending}", table(), rows, compression)
    pq.write_table(table(), tmp_path / "a.parquet")
    for n_workers in (1, 2, 3):
        for worker in range(n_workers):
            found, expected = (
                read(file, stride=n_workers, offset=worker, shares=shares)
                for file in (path, tmp_path / "a.parquet")
            )
            same(found.data, expected.data)
            assert found.info == expected.info


@pytest.mark.parametrize("ending", ["arrow", "arrows"])
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_windows_have_each_sample_once(tmp_path: Path, ending: str, n_workers: int) -> None:
    path = write(tmp_path / f"a.{ending}", table(), 23)
    shares = streamed([path], tmp_path / "cache", n_workers=n_workers, memory=1 << 12)
    assert len(shares[0].index.pieces) >= N // 23
    same(whole(shares), read(path).data)


@pytest.mark.parametrize("word", ["string_view", "large_string"])
def test_other_types_of_text_have_the_same_keys(tmp_path: Path, word: str) -> None:
    if not hasattr(pa, word):
        pytest.skip(f"this pyarrow has no {word}")
    path = write(tmp_path / "a.arrow", table(getattr(pa, word)()))
    same(read(path).data, read(write(tmp_path / "b.arrow", table())).data)


@pytest.mark.parametrize("ending", ["arrow", "arrows"])
def test_a_file_without_a_known_ending_is_found_by_its_content(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.{ending}", table()).rename(tmp_path / "data")
    assert isinstance(read(path).data, SparseData)


def test_a_model_of_parquet_predicts_from_arrow(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    path = write(tmp_path / "a.feather", table().drop_columns(["label"]))
    config = load_config(
        None,
        [
            ("task", "logistic"),
            ("data.train", str(tmp_path / "a.parquet")),
            ("train.epochs", 1),
            ("checkpoint.folder", str(tmp_path / "model")),
        ],
    )
    train(config, "none", verbose=False)
    model = mpips.load(tmp_path / "model")
    found = model.predict_proba(str(path))
    assert found.tolist() == model.predict_proba(str(tmp_path / "a.parquet")).tolist()


def test_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.arrow", table())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CapabilityError, match=r"reading Arrow needs pyarrow \(pip install pyarrow"):
        read(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"no Arrow", "is no Arrow file, or a damaged one"),
        (b"ARROW1\0\0" + b"x" * 99, "is no Arrow file, or a damaged one"),
        (b"FEA1" + b"\0" * 99, "is Feather of version 1"),
        (b"\xff\xff\xff\xff\x10\0\0\0" + b"\0" * 99, "is no Arrow file, or a damaged one"),
        (b"\xff" * 99, "is no Arrow file, or a damaged one"),
    ],
)
def test_what_is_no_file_of_arrow_is_one_sentence(
    tmp_path: Path, content: bytes, text: str
) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    with pytest.raises(DataError, match=text) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(DataError, match=text):
        streamed([path], tmp_path / "cache")


@pytest.mark.parametrize("ending", ["arrow", "arrows"])
def test_damaged_bytes_are_an_error_or_other_numbers(tmp_path: Path, ending: str) -> None:
    """The reader must neither crash nor read outside of the file, whatever bytes it finds."""
    path = write(tmp_path / f"a.{ending}", table())
    content = path.read_bytes()
    source = random.Random(9)
    sentences = []
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(source.choice([1, 4, 40])):
            damaged[source.randrange(8, len(damaged))] = source.choice([0, 1, 127, 128, 255])
        if source.random() < 0.3:
            del damaged[source.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        try:
            assert read(path).data.n >= 0
        except MpipsError as error:
            sentences.append(str(error))
    assert len(sentences) > 20
    assert [text for text in sentences if not text.startswith(f"{path}: ")] == []


def test_places_beyond_a_dictionary_are_refused(tmp_path: Path) -> None:
    indices = pa.array([0, 1, 2, 99], pa.int32())
    words = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b", "c"]), safe=False)
    path = write(tmp_path / "a.arrow", pa.table({"w": words, "label": [0, 1, 0, 1]}))
    with pytest.raises(DataError, match="is no Arrow file, or a damaged one"):
        read(path)
    info = read(write(tmp_path / "b.arrow", pa.table({"w": ["a", "b"], "label": [0, 1]}))).info
    with pytest.raises(DataError, match="is no Arrow file, or a damaged one"):
        list(blocks(path, ReadOptions(), info))


def test_a_type_that_is_no_cell_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"l": [[1], [2]], "a": [1, 2], "label": [0, 1]}))
    with pytest.raises(DataError, match=r"column 'l' is list.*neither numbers nor text"):
        read(path)
    assert read(path, options=ReadOptions(ignore=("l",))).data.n == 2
