"""Files that are damaged, or change while they are read: one sentence, never a signal or wrong samples."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpips.data import DenseData, ReadOptions, file_blocks, read
from mpips.data.options import FileList
from mpips.data.readers import READERS
from mpips.data.stored_arrays import Member, RowsOfFile, joined_crc, members_of
from mpips.data.stream import conversion
from mpips.errors import DataError
from tests.support.streaming import drafted, streamed, whole

N = 3000


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.integers(-99, 99, (N, 7)).astype("f4"), rng.integers(0, 2, N)


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(path: Path, *entries: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


# Reads a file that becomes shorter when the reader has opened it.
_SHORTENED = """
import os, sys
from mpips.data import ReadOptions, read
from mpips.data import arrays, npy, typed_tables
from mpips.errors import DataError

path, label = sys.argv[1:]
def before(owner, name, place):
    original = getattr(owner, name)
    def shorten(*args):
        os.truncate(path, 5000)
        return original(*args)
    setattr(owner, name, shorten)
before(npy, "check_arrays", 0)
before(arrays, "check_arrays", 0)
before(typed_tables.TypedTable, "read", 0)
try:
    read(path, options=ReadOptions(label=label or None))
except DataError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "kind", ["npz", "npy", "columns.npy", "records.npy", "arrow", "arrows", "parquet"]
)
def test_a_file_that_becomes_shorter_is_an_error_not_a_signal(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.random((50_000, 5)), rng.integers(0, 2, 50_000)
    path, label = tmp_path / f"x.{kind}", ""
    if kind == "npz":
        np.savez(path, x=x, y=y)
    elif kind.endswith("npy"):
        label = "f2" if kind == "records.npy" else "2"
        array = np.rec.fromarrays(list(x.T)) if kind == "records.npy" else x
        np.save(path, np.asfortranarray(array) if kind == "columns.npy" else array)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({"label": y, "a": x[:, 0], "b": x[:, 1]})
        if kind == "parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(table, path, row_group_size=10_000)
        else:
            new = pyarrow.ipc.new_stream if kind == "arrows" else pyarrow.ipc.new_file
            with new(str(path), table.schema) as writer:
                writer.write_table(table, 10_000)
    found = subprocess.run(
        [sys.executable, "-c", _SHORTENED, str(path), label],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"{path}: ")
    assert os.path.getsize(path) == 5000


def test_a_file_that_is_written_again_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    x, _ = arrays()
    path = tmp_path / "x.npy"
    path.write_bytes(npy(x))
    rows = RowsOfFile(str(path), Member(128, x.dtype, x.shape))
    assert rows[0:10].tolist() == x[:10].tolist()
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="has changed while it was read"):
        rows[10:20]


@pytest.mark.parametrize("n_workers", [1, 2, 3])
@pytest.mark.parametrize("name", ["x", "y"])
def test_a_flipped_bit_of_an_npz_file_is_an_error(
    tmp_path: Path, n_workers: int, name: str
) -> None:
    x, y = arrays()
    path = npz(tmp_path / "a.npz", ("x.npy", npy(x)), ("y.npy", npy(y)))
    member = members_of(str(path))[name]
    data = bytearray(path.read_bytes())
    data[member.offset + 8 * 1234] ^= 1
    path.write_bytes(data)
    for worker in range(n_workers):
        with pytest.raises(DataError, match=r"a\.npz: is damaged: the CRC"):
            read(path, stride=n_workers, offset=worker, shares="mixed")


@pytest.mark.parametrize("n_workers", [1, 3])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("name", ["x", "y"])
def test_a_conversion_in_several_spans_checks_the_crc(
    name: str, labelled: bool, n_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_LEAST_PIECE", 300)
    x, y = arrays()
    path = npz(tmp_path / "a.npz", ("x.npy", npy(x)), ("y.npy", npy(y)))
    options = ReadOptions(labelled=labelled)
    how: dict[str, Any] = {"options": options, "n_workers": n_workers, "memory": 1 << 14}
    assert len(drafted([path], options, 1 << 14, tmp_path).spans) > n_workers
    found = whole(streamed([path], tmp_path / "whole", **how))
    assert found.labels.tolist() == (y.tolist() if labelled else [0] * len(y))
    member = members_of(str(path))[name]
    data = bytearray(path.read_bytes())
    data[member.offset + member.dtype.itemsize * (len(y) - 3)] ^= 1
    path.write_bytes(data)
    if name == "y" and not labelled:
        streamed([path], tmp_path / "without", **how)
        return
    with pytest.raises(DataError, match=r"a\.npz: is damaged: the CRC of an array is"):
        streamed([path], tmp_path / "damaged", **how)


def test_the_crc_of_parts_is_that_of_the_whole() -> None:
    rng = np.random.default_rng(1)
    data = rng.bytes(5000)
    for n_parts in (0, 1, 2, 7, 40):
        ends = [0, *np.sort(rng.integers(0, 5001, max(n_parts - 1, 0))).tolist(), 5000]
        parts = [data[a:b] for a, b in itertools.pairwise(ends)] if n_parts else []
        found = joined_crc((zlib.crc32(part), len(part)) for part in parts)
        assert found == zlib.crc32(b"".join(parts))
    assert joined_crc([(zlib.crc32(b"a"), 1), (zlib.crc32(b"b"), 2)]) != zlib.crc32(b"ab")


def test_windows_and_readers_leave_other_members_of_npz_alone(tmp_path: Path) -> None:
    """Text, arrays of objects, in the order of columns or twice there: what is not read cannot be wrong."""
    x, y = arrays()
    others = [
        ("readme.txt", b"not an array"),
        ("names.npy", npy(np.array(["a", "b"]))),
        ("turned.npy", npy(np.asfortranarray(np.ones((3, 4))))),
        ("objects.npy", npy(np.array([None, 1], dtype=object))),
        ("again.npy", npy(y)),
        ("again.npy", npy(y)),
    ]
    for i, members in enumerate(([*others, "x", "y"], ["x", *others, "y"])):
        pairs = {"x": ("x.npy", npy(x)), "y": ("y.npy", npy(y))}
        named = [pairs[m] if isinstance(m, str) else m for m in members]
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # of zipfile about the name that is there twice
            path = npz(tmp_path / f"{i}.npz", *named)
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("packed.npy", npy(np.zeros(100)))
        for data in (
            read(path).data,
            whole(streamed([path], tmp_path / f"cache{i}", n_workers=2, memory=1 << 14)),
        ):
            assert isinstance(data, DenseData)
            assert data.x.tolist() == x.astype(data.x.dtype).tolist()
            assert data.labels.tolist() == y.tolist()
    with zipfile.ZipFile(tmp_path / "p.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(x))
        archive.writestr("y.npy", npy(y))
    with pytest.raises(DataError, match=r"cannot be read in windows: x\.npy is compressed"):
        streamed([tmp_path / "p.npz"], tmp_path / "packed", memory=1 << 14)


def test_the_crc_counts_blocks_in_order_only(tmp_path: Path) -> None:
    x, y = arrays()
    path = npz(tmp_path / "a.npz", ("x.npy", npy(x)), ("y.npy", npy(y)))
    rows = RowsOfFile(str(path), members_of(str(path))["x"])
    for start in (0, 1000, 500, 1000, 2000, 0, 2500, N):
        assert rows[start : start + 1000].tolist() == x[start : start + 1000].tolist()


def test_arrays_without_the_ending_of_npy_are_read_everywhere(tmp_path: Path) -> None:
    x, y = arrays()
    path = npz(tmp_path / "a.npz", ("x", npy(x)), ("y", npy(y)))
    found = [block.data for block in READERS["npz"].source(str(path), ReadOptions()).blocks()]
    assert [data.labels.tolist() for data in found] == [y.tolist()]
    for data in (
        read(path).data,
        whole(streamed([path], tmp_path / "cache", n_workers=2, memory=1 << 14)),
    ):
        assert isinstance(data, DenseData)
        assert data.x.tolist() == x.tolist()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["x.npy", "x"])
def test_two_arrays_of_one_name_are_refused(tmp_path: Path, second: str) -> None:
    x, y = arrays()
    entries = ("x.npy", npy(x)), (second, npy(2 * x)), ("y.npy", npy(y))
    path = npz(tmp_path / "a.npz", *entries)
    with pytest.raises(DataError, match="two arrays x"):
        read(path)
    with pytest.raises(DataError, match="two arrays x"):
        list(READERS["npz"].source(str(path), ReadOptions()).blocks())
    with pytest.raises(DataError, match="x"):
        streamed([path], tmp_path / "cache", n_workers=1, memory=1 << 14)


def test_an_encrypted_npz_file_is_one_sentence(tmp_path: Path) -> None:
    x, y = arrays()
    path = npz(tmp_path / "a.npz", ("x.npy", npy(x)), ("y.npy", npy(y)))
    data = bytearray(path.read_bytes())
    data[data.find(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="encrypted"):
        read(path)
    with pytest.raises(DataError, match="encrypted"):
        list(READERS["npz"].source(str(path), ReadOptions()).blocks())


def test_names_of_fields_beyond_latin_1_are_read(tmp_path: Path) -> None:
    x, y = arrays()
    path = tmp_path / "a.npy"
    with pytest.warns(UserWarning, match="format 3"):
        np.save(path, np.rec.fromarrays([y, x[:, 0], x[:, 1]], names="label,вес,b"))
    part = read(path)
    assert part.info.columns == ("вес", "b")
    assert part.data.labels.tolist() == y.tolist()


def test_a_list_refuses_a_file_under_two_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,a\n" + "0,1\n1,2\n" * 9)
    (tmp_path / "link.csv").symlink_to(path)
    for other in (f"{tmp_path}/./a.csv", f"{tmp_path}/link.csv", f"{tmp_path}/l*.csv", str(path)):
        with pytest.raises(DataError, match=r"twice.*each file can be read once"):
            read(FileList([str(path), other]))


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("part", [0, 1])
def test_a_process_that_converts_some_blocks_finds_a_flipped_bit_in_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, compression: int
) -> None:
    monkeypatch.setattr(file_blocks, "_MOST_ROWS", N // 4)
    x, y = arrays()
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x.npy", npy(x))
        archive.writestr("y.npy", npy(y))
    info = read(path).info
    assert len(list(file_blocks.blocks(path, ReadOptions(), info, part=part, parts=2))) == 2
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("x.npy")
    data = bytearray(path.read_bytes())
    # In the first block or in the last one: one that this process does not convert.
    data[entry.header_offset + (300 if part else entry.compress_size - 100)] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.npz: is (damaged|not an npz file)"):
        list(file_blocks.blocks(path, ReadOptions(), info, part=part, parts=2))


@pytest.mark.parametrize("form", ["memory", "windows", "blocks"])
def test_targets_beyond_whole_numbers_of_float64_are_read_everywhere(
    tmp_path: Path, form: str
) -> None:
    path = tmp_path / "a.svm"
    path.write_text("1e17 1:2\n-3 1:1\n")
    options = ReadOptions(wants="targets")
    part = read(path, options=options)
    found = part.data
    if form == "windows":
        found = whole(streamed([path], tmp_path / "cache", options=options))
    if form == "blocks":
        [found] = file_blocks.labelled_blocks(path, options, part.info)
    assert found.labels.tolist() == [1e17, -3.0]
