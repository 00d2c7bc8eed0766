"""Failures while writing: one typed error, no files left, the checkpoint before unchanged."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Contents, names

import mpips
from mpips.checkpoint import (
    CheckpointWriter,
    DenseShardData,
    EmbeddingShardData,
    ManifestHead,
    find_newest,
    write_checkpoint,
)
from mpips.checkpoint import sinks as sinks_module
from mpips.checkpoint.folder import FolderLock
from mpips.checkpoint.manifest import STATE
from mpips.checkpoint.steps import Peers, finish
from mpips.checkpoint.structure import load_writer
from mpips.errors import StallError

GOOD = "step-000000000100"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make a run with one undamaged checkpoint, of step 100."""
    Contents().write(tmp_path, 100)
    return tmp_path


def refused(folder: Path, match: str, contents: Contents | None = None, **options: Any) -> None:
    """Check that writing step 200 fails with this message, and that a restart finds step 100."""
    with pytest.raises(mpips.CheckpointError, match=match) as caught:
        (contents or Contents()).write(folder, 200, **options)
    assert str(caught.value).startswith(f"the checkpoint of step 200 was not written to {folder}")
    assert "\n" not in str(caught.value)
    assert names(folder) == [GOOD]
    found = find_newest(folder).checkpoint
    assert found is not None
    assert found.manifest.step == 100
    # The next checkpoint can be written.
    assert Contents().write(folder, 300).path.name == "step-000000000300"


def fail_at(call: int, error: Exception, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises an error at its n-th call and calls `real` otherwise."""
    calls = 0

    def function(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return real(*arguments, **options)

    return function


@contextlib.contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """Let writes beyond this size fail with EFBIG (Python ignores the signal)."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("early", [True, False], ids=["seen-early", "met-while-writing"])
def test_a_file_that_may_not_grow(run: Path, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    large = Contents([mpips.DenseTable("w", (1 << 20,))])
    before = names(run)
    write = sinks_module.Flusher.write

    def write_limited(self: sinks_module.Flusher, data: np.ndarray, offset: int) -> None:
        with file_size_limit(1 << 20):
            write(self, data, offset)

    with monkeypatch.context() as patch:
        if early:
            with file_size_limit(1 << 20), pytest.raises(mpips.CheckpointError, match="ulimit -f"):
                large.write(run, 200)
        else:
            patch.setattr(sinks_module.Flusher, "write", write_limited)
            with pytest.raises(mpips.CheckpointError, match="File too large"):
                large.write(run, 200, block_bytes=300_000)
    assert names(run) == before


def test_a_limit_of_the_size_of_files_refuses_only_what_is_larger(run: Path) -> None:
    """One byte less than the file needs is refused with both numbers, before HDF5 could crash."""
    n_bytes = (Contents().write(run, 200).path / STATE).stat().st_size
    with file_size_limit(n_bytes):
        Contents().write(run, 300)
    match = f"a file of {n_bytes:,} bytes is needed, but files of this process may have "
    for limit in (n_bytes - 1, n_bytes // 2, 1000):
        with file_size_limit(limit), pytest.raises(mpips.CheckpointError, match=match):
            Contents().write(run, 400)
    assert names(run) == [GOOD, "step-000000000200", "step-000000000300"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("early", [True, False], ids=["seen-early", "met-while-writing"])
def test_a_full_disk(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(prefix="test-full-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        folder.rmdir()
        pytest.skip("this container may not mount")
    try:
        Contents().write(folder, 100)
        large = Contents([mpips.DenseTable("w", (1 << 19,))])
        if not early:
            monkeypatch.setattr(CheckpointWriter, "_check_space", lambda self, n_bytes: None)
        refused(folder, "the disk is too full" if early else "No space left on device", large)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Run the block as user nobody if this is root, who may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder() -> None:
    load_writer()
    base = Path(tempfile.mkdtemp(prefix="test-read-only-"))
    try:
        base.chmod(0o555)
        with nobody(), pytest.raises(mpips.CheckpointError, match="Permission denied"):
            Contents().write(base / "checkpoints", 200)
        with nobody(), pytest.raises(mpips.CheckpointError, match="Permission denied"):
            Contents().write(base, 200)
        assert list(base.iterdir()) == []
    finally:
        shutil.rmtree(base)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(mpips.CheckpointError, match=r"File exists|Not a directory"):
        Contents().write(tmp_path / "checkpoints", 200)


@pytest.mark.parametrize("call", [1, 7])
def test_an_error_while_writing(run: Path, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sinks_module.Flusher.write
    error = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(sinks_module.Flusher, "write", fail_at(call, error, real))
    refused(run, "Input/output error", block_bytes=400)


@pytest.mark.parametrize(
    ("function", "calls"), [("fsync", range(1, 5)), ("fdatasync", range(1, 2))], ids=str
)
def test_an_error_while_bringing_it_to_the_disk(
    run: Path, function: str, calls: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks_module, "_FLUSH_BYTES", 1)
    for call in calls:
        with monkeypatch.context() as patch:
            error = OSError(errno.EIO, "Input/output error")
            patch.setattr(os, function, fail_at(call, error, getattr(os, function)))
            with pytest.raises(mpips.CheckpointError, match="Input/output error"):
                Contents().write(run, 200)
        # The fourth call is for the folder above, after the rename: the checkpoint may exist or not.
        if call < 4:
            assert names(run) == [GOOD]
    found = find_newest(run).checkpoint
    assert found is not None


def test_an_error_while_publishing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(os, "rename", fail_at(1, error, os.rename))
    refused(run, "Input/output error")


def test_a_file_that_hdf5_changed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = sinks_module.PosixSink.close

    def close_and_harm(self: sinks_module.PosixSink) -> None:
        close(self)
        (folder,) = run.glob(".writing-*")
        with open(folder / STATE, "r+b") as file:
            file.write(b"harm")

    with monkeypatch.context() as patch:
        patch.setattr(sinks_module.PosixSink, "close", close_and_harm)
        with pytest.raises(mpips.CheckpointError, match="HDF5 has changed the file's structure"):
            Contents().write(run, 200)
    assert names(run) == [GOOD]


def test_a_link_that_cannot_be_set_is_only_noted(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def symlink(*arguments: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", symlink)
    info = Contents().write(run, 200)
    assert info.notes == ("'latest' could not be set: Operation not permitted",)
    assert find_newest(run).checkpoint is not None


def test_no_h5py(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise mpips.CapabilityError("no h5py")

    monkeypatch.setattr("mpips.checkpoint.structure.load_writer", load)
    with pytest.raises(mpips.CheckpointError, match="needs h5py on server 0: pip install h5py"):
        Contents().write(run, 200)


def test_another_writer(run: Path) -> None:
    lock = FolderLock(run)
    with pytest.raises(mpips.CheckpointError, match="another process is writing"):
        Contents().write(run, 200)
    lock.release()
    Contents().write(run, 200)


def test_servers_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def Test(self) -> bool:
            return False

    with pytest.raises(StallError, match=r"waited 0.01 s for the other 0 servers"):
        finish(Peers(None, 0.01, "a checkpoint").wait(Never()))


# Shards that do not fit.


def with_key_twice() -> Contents:
    contents = Contents([mpips.EmbeddingTable("e", 1)], 0, {"e": [5, 7, 9]})
    contents.columns["e"]["keys"] = np.array([5, 7, 5])
    return contents


def test_a_key_that_occurs_twice(run: Path) -> None:
    refused(run, "table 'e': key 5 occurs twice", with_key_twice())


def dense(start: int, n: int, dtype: type = np.float32) -> DenseShardData:
    return DenseShardData("w", start, np.zeros(n, dtype))


ROWS = EmbeddingShardData("e", np.arange(3), np.zeros((3, 2), np.float32))
W = mpips.DenseTable("w", (10,))
E = mpips.EmbeddingTable("e", 2)
M = mpips.DenseTable("w", (10,), mpips.Momentum())
A = mpips.EmbeddingTable("e", 2, mpips.Adam())


@pytest.mark.parametrize(
    ("table", "shards", "sentence"),
    [
        (W, [], "elements 0 to 10 are missing"),
        (W, [dense(0, 9)], "elements 9 to 10 are missing"),
        (W, [dense(0, 4), dense(5, 5)], "elements 4 to 5 are missing"),
        (W, [dense(0, 6), dense(5, 5)], "elements 5 to 6 are held twice"),
        (W, [dense(0, 11)], "elements 0 to 11 lie outside its 10 elements"),
        (W, [dense(-1, 11)], "elements -1 to 10 lie outside its 10 elements"),
        (W, [dense(0, 10, np.float64)], "values is float64 of shape .*, expected float32"),
        (W, [ROWS], "a shard belongs to table 'e', which is not in the job's list"),
        (M, [dense(0, 10)], r"states \(\), expected \('momentum',\)"),
        (E, [ROWS, ROWS], "one server gave two sets of rows"),
        (A, [ROWS], r"states \(\), expected \('m', 'v'\)"),
        (
            mpips.EmbeddingTable("e", 3),
            [ROWS],
            r"shape \(3, 2\), expected float32 of shape \(3, 3\)",
        ),
        (
            mpips.EmbeddingTable("w", 3),
            [dense(0, 10)],
            "the shard is a DenseShardData, expected EmbeddingShardData",
        ),
    ],
)
def test_shards_that_do_not_fit_are_refused_before_anything_is_written(
    table: Any, shards: list[Any], sentence: str, tmp_path: Path
) -> None:
    head = ManifestHead("run", 1, 200, 0.0, [table])
    with pytest.raises(mpips.CheckpointError, match=sentence):
        write_checkpoint(None, tmp_path / "checkpoints", head, shards)
    assert not (tmp_path / "checkpoints").exists()


# A writer that is killed.


def _write_half(folder: Path, parent: Connection) -> None:
    contents = Contents()
    shards = contents.shards(0, 1)
    writer = CheckpointWriter(None, folder, contents.head(200), shards, block_bytes=400)
    n_worked = 0
    for worked in writer.steps():
        n_worked += worked
        if worked and n_worked == 20:
            parent.send("half way")
            parent.recv()


def test_a_writer_that_is_killed_leaves_nothing_that_counts(run: Path) -> None:
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=_write_half, args=(run, there))
    child.start()
    assert here.poll(60), "the child did not begin"
    here.recv()
    # The child holds the kernel's lock as long as it runs.
    with pytest.raises(mpips.CheckpointError, match="another process is writing"):
        Contents().write(run, 300)
    child.kill()
    child.join(60)
    (left,) = (name for name in names(run) if name != GOOD)
    assert left.startswith(".writing-000000000200-")
    assert (run / left / STATE).stat().st_size > 0
    found = find_newest(run)
    assert found.checkpoint is not None
    assert (found.checkpoint.manifest.step, found.refused) == (100, ())
    info = Contents().write(run, 300)
    assert info.removed == (left,)
    assert names(run) == [GOOD, "step-000000000300"]


def test_a_writer_that_may_not_publish_any_more_leaves_nothing(run: Path) -> None:
    def replaced() -> None:
        # Everything except the final name exists now.
        assert [p.name for p in run.glob(".writing-*/manifest.json")] == ["manifest.json"]
        raise mpips.CheckpointError("a later attempt has the run")

    refused(run, "a later attempt has the run", may_publish=replaced)
