"""Click logs of Criteo are read as the CSV file with the same cells and a header."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click_logs import COLUMNS, click_lines, write_clicks

import mpips
from mpips.config.schema import load_config
from mpips.data import ReadOptions, SparseData, read
from mpips.data.by_content import format_of
from mpips.data.criteo import is_criteo
from mpips.data.file_blocks import blocks
from mpips.data.stream import conversion
from mpips.errors import DataError
from mpips.training.drafting import draft
from mpips.training.train import train
from tests.support.streaming import streamed, whole

DATA = Path(os.environ.get("MPIPS_TEST_DATA") or Path(__file__).parents[4] / "shared" / "data")
SAMPLE = DATA / "criteo_sample.csv"
N = 173


def lines(n: int = N, seed: int = 1) -> list[list[str]]:
    return click_lines(n, seed)


def write_csv(path: Path, rows: list[list[str]]) -> Path:
    path.write_text("\n".join(",".join(row) for row in [COLUMNS, *rows]) + "\n")
    return path


def same(found: Any, expected: Any) -> None:
    assert isinstance(found, SparseData)
    for name in ("indptr", "indices", "values", "fields", "labels"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, err_msg=name)


NAMES = ["train.txt", "day_0", "a.tsv", "train.txt.gz", "a.tsv.bz2"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_the_samples_are_those_of_csv_with_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, n_workers: int
) -> None:
    monkeypatch.setattr(conversion, "_LEAST_PIECE", 3000)
    path, csv = write_clicks(tmp_path / name, lines()), write_csv(tmp_path / "b.csv", lines())
    # Categories are text, whatever they look like.
    options = ReadOptions(categorical=("C*",))
    for worker in range(n_workers):
        found = read(path, stride=n_workers, offset=worker, shares="mixed")
        expected = read(csv, stride=n_workers, offset=worker, shares="mixed", options=options)
        same(found.data, expected.data)
        assert found.info == expected.info
    assert found.info.columns == tuple(COLUMNS[1:])
    assert found.info.categorical == tuple(COLUMNS[14:])
    shares = streamed([path], tmp_path / "cache", n_workers=n_workers, memory=1 << 12)
    assert len(shares[0].index.pieces) > 5
    same(whole(shares), read(path).data)


def test_a_number_has_its_logarithm_and_an_empty_cell_no_entry(tmp_path: Path) -> None:
    row = ["1", "7", "-2", *[""] * 10, "0", "0a1b2c3d", *[""] * 25]
    data = read(write_clicks(tmp_path / "a", [row])).data
    assert isinstance(data, SparseData)
    assert data.fields is not None
    assert data.fields.tolist() == [0, 1, 12, 13]
    np.testing.assert_allclose(data.values, [np.log(8), -np.log(3), 0, 1], rtol=1e-6)


def test_samples_without_labels_are_predicted(tmp_path: Path) -> None:
    info = read(write_clicks(tmp_path / "train.txt", lines())).info
    whole_file = list(blocks(write_clicks(tmp_path / "a.txt", lines(seed=2)), ReadOptions(), info))
    bare = write_clicks(tmp_path / "b.txt", lines(seed=2), with_label=False)
    for form in ("auto", "criteo"):
        for block, expected in zip(
            blocks(bare, ReadOptions(format=form), info), whole_file, strict=True
        ):
            same(block, expected)
    with pytest.raises(DataError, match="its first line has 39 cells, so it has no labels"):
        read(bare)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda rows: rows[3].pop(), r":4: 39 cells, lines of this file have 40"),
        (lambda rows: rows[3].__setitem__(2, "x"), r":4: column 'I2' contains 'x'"),
        (lambda rows: rows[3].__setitem__(0, ""), r":4: column 'label' contains an empty cell"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_an_error_names_line_and_column(
    tmp_path: Path, change: Callable[[list[list[str]]], object], text: str, name: str
) -> None:
    rows = lines()
    change(rows)
    path = write_clicks(tmp_path / name, rows)
    options = ReadOptions(format="criteo")
    with pytest.raises(DataError, match=text):
        read(path, options=options)
    with pytest.raises(DataError, match=text):
        streamed([path], tmp_path / "cache", options=options, form="criteo")
    # Or the line is left out.
    skip = ReadOptions(format="criteo", on_bad="skip")
    shares = streamed([path], tmp_path / "cache", options=skip, form="criteo")
    same(whole(shares), read(write_clicks(tmp_path / "b.txt", rows[:3] + rows[4:])).data)


def test_a_table_with_a_header_is_no_click_log(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("\t".join(COLUMNS) + "\n" + "".join("\t".join(r) + "\n" for r in lines()))
    options = ReadOptions(categorical=("C*",))
    same(read(path, options=options).data, read(write_clicks(tmp_path / "b.tsv", lines())).data)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="its first line has 1 cells: lines of Criteo's"):
        read(path, options=ReadOptions(format="criteo"))


def test_no_lines_are_no_click_log(tmp_path: Path) -> None:
    assert not is_criteo([])
    assert is_criteo(["\t".join(row) for row in lines()])
    path = tmp_path / "empty"
    for content in ("", "\n\n"):
        path.write_text(content)
        assert format_of(str(path)) is None


def test_a_byte_order_mark_is_no_label(tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "a.txt", lines())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    same(read(path).data, read(write_clicks(tmp_path / "b.txt", lines())).data)


def test_options_of_columns_apply(tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "a.txt", lines())
    options = ReadOptions(ignore=("C*", "I1?"), empty="zero")
    info = read(path, options=options).info
    assert info.kind == "dense"
    assert info.columns == tuple(f"I{i}" for i in range(1, 10))
    info = read(path, options=ReadOptions(categorical=("*",))).info
    assert info.categorical == tuple(COLUMNS[1:])


@pytest.mark.parametrize("task", ["logistic", "deepfm", "dcnv2", "wide_deep"])
def test_tasks_learn_from_a_pattern_of_days(tmp_path: Path, task: str) -> None:
    for day in range(2):
        write_clicks(tmp_path / f"day_{day}.gz", lines(600, seed=day + 1))
    test = write_clicks(tmp_path / "test.txt", lines(400, seed=9))
    config = load_config(
        None,
        [
            ("task", task),
            ("data.train", str(tmp_path / "day_*.gz")),
            ("data.test", str(test)),
            ("train.epochs", 8),
            ("checkpoint.folder", str(tmp_path / "model")),
        ],
    )
    train(config, "none", verbose=False)
    model = mpips.load(tmp_path / "model")
    auc = model.evaluate(test)["auc"]
    assert auc > 0.75
    assert 'categorical = ["C1", "C2"' in draft(str(tmp_path / "day_*.gz"))


def test_the_sample_of_the_challenge_is_read(tmp_path: Path) -> None:
    if not SAMPLE.is_file():
        pytest.skip(f"no {SAMPLE.name} in {DATA}; set MPIPS_TEST_DATA to the folder that holds it")
    header, *rows = (line.split(",") for line in SAMPLE.read_text().splitlines())
    assert header == COLUMNS
    # That file has numbers such as 260.0, which the challenge writes as 260.
    raw = [[cell.removesuffix(".0") for cell in row[:14]] + row[14:] for row in rows]
    path = write_clicks(tmp_path / "train.txt", raw)
    part = read(path)
    assert part.info.n_samples_total == len(rows) == 200
    same(part.data, read(SAMPLE, options=ReadOptions(categorical=("C*",))).data)
