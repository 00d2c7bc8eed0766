"""Folders of caches that killed jobs have left, beside those of jobs at work, and lines about progress."""

from __future__ import annotations

import bz2
import fcntl
import gzip
import lzma
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from streaming import drafted
from thread_ranks import prepared

from mpips.config.schema import load_config
from mpips.data import ReadOptions
from mpips.data.stream import Conversion
from mpips.training import cache_folder, streaming
from mpips.training.cache_folder import CacheFolder, remove_orphans
from mpips.training.streaming import ConversionProgress

HOUR = 3600.0


def aged(folder: Path, seconds: float) -> None:
    """Let everything in a folder have its last change so long ago."""
    then = time.time() - seconds
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then, then))


def left(root: Path, key: str, age: float = 2 * HOUR) -> Path:
    """A folder as a killed job leaves it."""
    folder = root / key
    folder.mkdir(parents=True)
    for name in ("000000-0000.npz", ".000001-0000.npz-1f2e3d4c", ".lock"):
        (folder / name).write_bytes(b"piece")
    aged(folder, age)
    return folder


def converted(tmp_path: Path) -> Path:
    """A valid cache; returns its folder."""
    path = tmp_path / "data.svm"
    path.write_text("".join(f"{i % 2} 1:{i}\n" for i in range(500)))
    pairs = [("task", "softmax"), ("data.train", str(path)), ("data.memory_mib", 0.004)]
    prepared(load_config(None, [*pairs, ("data.cache", str(tmp_path / "cache"))]), 2)
    (folder,) = (f for f in (tmp_path / "cache").iterdir() if (f / "index.json").exists())
    return folder


def test_what_killed_jobs_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    old, young = left(root, "0" * 16), left(root, "1" * 16, age=HOUR / 2)
    other, half = root / "other", root / ".removing-0-1"
    for folder in (other, half):
        folder.mkdir()
        aged(folder, 9 * HOUR)
    valid = converted(tmp_path)
    # The conversion of another job has removed what was left.
    assert not old.exists()
    assert not half.exists()
    aged(valid, 9 * HOUR)
    assert remove_orphans(root) == []
    assert {p.name for p in root.iterdir()} == {young.name, other.name, valid.name}
    assert remove_orphans(tmp_path / "none") == []


def test_a_job_that_converts_now_is_left_alone_until_its_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / ("2" * 16)
    program = (
        "import sys, pathlib; from mpips.training.cache_folder import CacheFolder\n"
        f"lock = CacheFolder(pathlib.Path({str(folder)!r})); print('locked', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        (folder / "000000-0000.npz").write_bytes(b"piece")
        aged(folder, 9 * HOUR)
        assert remove_orphans(tmp_path) == []
        # A second job that writes the same cache removes nothing of the first.
        second = CacheFolder(folder)
        assert (folder / "000000-0000.npz").exists()
        second.release()
        process.kill()
    aged(folder, 9 * HOUR)
    assert remove_orphans(tmp_path) == [folder]
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_uses_the_folder_of_a_killed_one_begins_with_an_empty_one(
    tmp_path: Path,
) -> None:
    folder = left(tmp_path, "3" * 16)
    lock = CacheFolder(folder)
    assert [p.name for p in folder.iterdir()] == [".lock"]
    lock.release()
    lock.release()


def test_fresh_pieces_stay_where_locks_say_nothing(tmp_path: Path) -> None:
    """On some file systems a job of another node has a lock that is not seen here."""
    folder = left(tmp_path, "5" * 16, age=HOUR / 2)
    CacheFolder(folder).release()
    assert (folder / "000000-0000.npz").exists()


def test_a_cache_of_another_version_is_no_orphan(tmp_path: Path) -> None:
    valid = converted(tmp_path)
    index = valid / "index.json"
    for content in (index.read_bytes().replace(b'"version":', b'"version":9'), b"{", b""):
        index.write_bytes(content)
        aged(valid, 9 * HOUR)
        assert remove_orphans(tmp_path / "cache") == []
        CacheFolder(valid).release()
        assert any(valid.glob("*.npz"))


def test_a_folder_that_is_removed_while_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = left(tmp_path, "4" * 16)
    real, calls = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        # Between the opening and the lock, another job removes the folder.
        if not calls:
            calls.append(operation)
            monkeypatch.setattr(fcntl, "flock", real)
            assert remove_orphans(tmp_path) == [folder]
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = CacheFolder(folder)
    assert folder.is_dir()
    assert cache_folder._is_at(folder, lock._fd)
    lock.release()


def test_lines_about_a_conversion_come_after_two_seconds_and_then_every_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    steps = ((101.0, 0.1), (102.0, 0.2), (111.0, 0.5), (112.0, 0.6), (130.0, 1.0))
    moments = iter((100.0, *(now for now, _ in steps)))
    monkeypatch.setattr(streaming.time, "monotonic", lambda: next(moments))
    shown = ConversionProgress("data.csv", said.append)
    for _, share in steps:
        shown.note(share)
    assert said == ["converting data.csv: 20%, 0:08 left", "converting data.csv: 60%, 0:08 left"]


def test_the_progress_of_a_conversion_ends_with_all(tmp_path: Path) -> None:
    shares: list[float] = []
    path = tmp_path / "data.svm"
    path.write_text("".join(f"{i % 2} 1:{i}\n" for i in range(50_000)))
    plan = drafted([path], ReadOptions(), 1 << 16, tmp_path)
    (tmp_path / "out").mkdir()
    Conversion(plan, ReadOptions(), 1, 2).convert({}, tmp_path / "out", shares.append)
    assert len(shares) > 1
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst", "parquet", "npz"])
def test_the_progress_advances_within_a_file_that_one_worker_converts(
    tmp_path: Path, ending: str
) -> None:
    path = write_large(tmp_path, ending)
    shares: list[float] = []
    options = ReadOptions()
    plan = drafted([path], options, 1 << 17, tmp_path)
    (tmp_path / "out").mkdir()
    Conversion(plan, options, 0, 1).convert({}, tmp_path / "out", shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    inside = {round(share, 6) for share in shares if 0 < share < 1}
    assert len(inside) >= 5
    # The steps are about as large as the pieces.
    assert max(np.diff([0, *sorted(inside), 1])) < 0.5


def write_large(folder: Path, ending: str) -> Path:
    """Write one file, compressed or with one group of rows."""
    source = np.random.default_rng(1)
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        table = pyarrow.table({"a": source.random(20_000), "label": np.arange(20_000) % 2})
        parquet.write_table(table, folder / "a.parquet")
        return folder / "a.parquet"
    if ending == "npz":
        np.savez(folder / "a.npz", x=source.random((20_000, 4)), y=np.arange(20_000) % 2)
        return folder / "a.npz"
    text = "".join(f"{i % 2} 1:{v}\n" for i, v in enumerate(source.random(40_000))).encode()
    path = folder / f"a.svm.{ending}"
    if ending == "zst":
        path.write_bytes(pytest.importorskip("zstandard").compress(text))
    else:
        pack = {"gz": gzip.compress, "bz2": lambda t: bz2.compress(t, 1), "xz": lzma.compress}[
            ending
        ]
        path.write_bytes(pack(text))
    return path
