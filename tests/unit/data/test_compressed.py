"""Text that is compressed is read as the text itself; what is damaged is one sentence."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mpips.data import ReadOptions, read
from mpips.errors import CapabilityError, DataError

CSV = "label;a;b\n" + "".join(f"{i % 2};{i};{i * 0.5}\n" for i in range(500))
SVM = "".join(f"{i % 2} {i + 1}:{i + 0.25}\n" for i in range(500))
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", CSV), ("a.svm", SVM), ("plain", SVM), ("table", CSV)]
)
def test_compressed_text_is_read_as_the_text(
    tmp_path: Path, ending: str, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / f"{name}{ending}").write_bytes(COMPRESS[ending](text.encode()))
    for stride in (1, 3):
        for offset in range(stride):
            first = read(tmp_path / name, stride=stride, offset=offset, shares="mixed")
            second = read(
                tmp_path / f"{name}{ending}", stride=stride, offset=offset, shares="mixed"
            )
            assert first.info == second.info
            for array in ("x", "indptr", "indices", "values", "labels"):
                if hasattr(first.data, array):
                    assert np.array_equal(getattr(first.data, array), getattr(second.data, array))


def test_zstandard_is_read_where_its_library_is(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "a.csv.zst").write_bytes(zstandard.compress(CSV.encode()))
    assert read(tmp_path / "a.csv.zst").info.n_samples_total == 500
    (tmp_path / "b.csv.zst").write_bytes(b"no zstandard")
    with pytest.raises(DataError, match="is damaged, or not what its ending says"):
        read(tmp_path / "b.csv.zst")


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.csv.zst").write_bytes(b"")
    with pytest.raises(
        CapabilityError, match=r"reading .zst needs zstandard \(pip install zstandard\)"
    ):
        read(tmp_path / "a.csv.zst")


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("name", ["a.csv", "a.svm", "unnamed"])
def test_damaged_and_cut_off_files_are_one_sentence(tmp_path: Path, ending: str, name: str) -> None:
    whole = COMPRESS[ending]((SVM if name != "a.csv" else CSV).encode())
    path = tmp_path / f"{name}{ending}"
    for content in (b"this is text\n", whole[: len(whole) // 2], b"\0" * 100):
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=f"{name}{ending}: is damaged, or not what its ending says"
        ):
            read(path)


def test_an_empty_compressed_file_contains_no_samples(tmp_path: Path) -> None:
    for ending, compress in COMPRESS.items():
        path = tmp_path / f"a.svm{ending}"
        path.write_bytes(compress(b""))
        with pytest.raises(DataError, match="contains no samples"):
            read(path)


def test_archives_are_not_compressed_once_more(tmp_path: Path) -> None:
    path = tmp_path / "a.npz.gz"
    path.write_bytes(gzip.compress(b"x"))
    with pytest.raises(DataError, match="npz is read in place and cannot be compressed as a whole"):
        read(path)
    with pytest.raises(DataError, match="hdf5 is read in place"):
        read(tmp_path / "a.gz", options=ReadOptions(format="hdf5"))


def test_a_line_that_expands_without_end_is_refused_in_little_memory(tmp_path: Path) -> None:
    # 200 MB of one line become 200 kB.
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b"label,a\n1,")
        for _ in range(200):
            file.write(b"1" * (1 << 20))
    with pytest.raises(DataError, match=r"is not CSV: field larger than field limit \(131072\)"):
        read(path)
