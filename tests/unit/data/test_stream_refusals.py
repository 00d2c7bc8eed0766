"""Files that cannot be read in windows: the message names the line, the columns, or what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from mpips.data import sources
from mpips.data.stream import conversion
from mpips.errors import DataError
from tests.support.streaming import streamed


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_LEAST_PIECE", 300)
    monkeypatch.setattr(sources, "_READ", 64)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.svm", "1 1:2\n" * 200 + "1 x:2\n", r"a.svm:201:3: found 'x:2': expected index:value"),
        ("a.csv", "y,a\n" + "1,2\n" * 200 + "1,two\n", r"a.csv:202: column 'a' contains 'two'"),
        ("a.csv", "y,a\n" + "1,2\n" * 200 + "1,2,3\n", r"a.csv:202: 3 cells, the header names 2"),
        (
            "a.csv",
            "y,a\n" + "1,2\n" * 200 + "x,2\n",
            r"a.csv:202: column 'y' contains 'x': labels",
        ),
        ("a.csv", "y,a\n", "contains no samples"),
        ("a.svm", "# nothing\n" * 100, "contains no samples"),
    ],
)
def test_an_error_names_the_line_of_the_file(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        streamed([path], tmp_path / "cache", n_workers=1, memory=1 << 10)


def test_labels_of_two_pieces_are_numbers_or_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,a\n1,2\n")
    (tmp_path / "b.csv").write_text("y,a\nx,2\n")
    with pytest.raises(
        DataError, match=r"some labels are numbers, others text \('x'\): labels are"
    ):
        streamed([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "cache")
    (tmp_path / "b.csv").write_text("y,b\nx,2\n")
    with pytest.raises(DataError, match="the training data has column 'a' that this file lacks"):
        streamed([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "cache")
    (tmp_path / "c.svm").write_text("1 1:2\n")
    with pytest.raises(DataError, match="some of its files have rows or columns, others lists"):
        streamed([tmp_path / "a.csv", tmp_path / "c.svm"], tmp_path / "cache")


def test_an_error_in_a_compressed_file_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.svm.gz"
    path.write_bytes(gzip.compress(b"1 1:2\n" * 200 + b"1 x:2\n"))
    with pytest.raises(DataError, match=r"a.svm.gz:201:3: found 'x:2'"):
        streamed([path], tmp_path / "cache", memory=1 << 10)


def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 1 << 12)
    path = tmp_path / "a.svm"
    path.write_text("1" + " 1:2" * 5000 + "\n")
    with pytest.raises(DataError, match="a line or record is longer than"):
        streamed([path], tmp_path / "cache", memory=1 << 10)
