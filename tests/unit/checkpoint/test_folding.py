"""Chains that are made whole beside a run: nothing is lost at any point, and what is not needed goes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chains import History, check
from checkpoints import flip
from msgspec.structs import replace

from mpips.checkpoint import (
    Retention,
    find_newest,
    folding,
    list_checkpoints,
    open_checkpoint,
    retain,
)
from mpips.checkpoint import compact as compaction
from mpips.checkpoint.compact import compact
from mpips.checkpoint.folding import ChainFolding, adopt, write_folded
from mpips.checkpoint.plan import ChainEnd
from mpips.errors import CheckpointError, ConfigError

LIMIT_S = 120.0


def evolved(history: History, folder: Path, folds: ChainFolding) -> ChainEnd:
    """Write the next checkpoint as a server would, and wait for the process before it follows."""
    before = history.written[-1][1]
    assert before.place is not None
    history.evolve()
    place = folds.continued(before.place)
    history.written[-1] = history.written[-1][0], replace(before, place=place)
    info = history.write(folder)
    assert info.place is not None
    if folds._process is not None:
        folds._process.wait(LIMIT_S)
    folds.written(info.place)
    assert folds.failure == ""
    return info.place


def all_right(history: History) -> None:
    """All checkpoints that are there are read as the tables at their cuts."""
    there = 0
    for columns, info in history.written:
        if info.path.exists():
            there += 1
            with open_checkpoint(info.path) as checkpoint:
                assert checkpoint.damage() == []
                check(checkpoint, columns)
    assert there


def test_a_chain_goes_on_from_each_link_that_was_made_whole(tmp_path):
    history, folds = History(4), ChainFolding(tmp_path, 3)
    history.write(tmp_path)
    folds.written(history.written[-1][1].place)
    lengths, n_left = [], []
    for _ in range(5):
        place = evolved(history, tmp_path, folds)
        lengths.append(folds.length(place))
        retain(tmp_path, Retention(keep_last=1))
        all_right(history)
        n_left.append(len(list_checkpoints(tmp_path)))
    folds.close()
    # The third checkpoint of a chain is made whole while the next one is written.
    assert lengths == [2, 3, 2, 3, 2]
    assert n_left == [2, 3, 2, 3, 2]
    assert place.index == 5
    with open_checkpoint(history.written[-1][1].path) as checkpoint:
        assert checkpoint.chain is not None
        (base,) = checkpoint.chain.parts
        link = checkpoint.manifest.link
        assert link is not None
        assert (base.path.name, link.index) == (history.written[-2][1].path.name, 5)
    files = {path.name for path in tmp_path.glob("step-*/*")}
    assert not any(name.startswith(".folded") for name in files)
    found = find_newest(tmp_path)
    assert found.checkpoint is not None
    with found.checkpoint:
        assert found.checkpoint.path == history.written[-1][1].path


def test_a_new_base_ends_the_process_and_removes_its_files(tmp_path):
    history, folds = History(1), ChainFolding(tmp_path, 2)
    history.write(tmp_path)
    history.evolve()
    link = history.write(tmp_path)
    folds.written(link.place)
    process = folds._process
    assert process is not None
    history.evolve()
    folds.written(history.write(tmp_path, whole=True).place)
    assert process.returncode is not None
    assert {path.name for path in link.path.iterdir()} == {"manifest.json", "changes.h5"}
    folds.close()
    all_right(history)


# Passages: within the tables, after the state, between the renames, and before the link's file is removed.
@pytest.mark.parametrize("passage", ["write 4", "synced 1", "named 1", "named 2"])
def test_a_kill_at_any_point_leaves_the_link_or_the_whole_checkpoint(tmp_path, passage):
    history = History(2)
    history.write(tmp_path)
    for _ in range(3):
        history.evolve()
        history.write(tmp_path)
    path = history.written[2][1].path
    name, number = passage.split()
    child = os.fork()
    if child == 0:
        left = [int(number)]

        def end(passed: str) -> None:
            left[0] -= passed == name
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        put = compaction.write_all

        def write(*arguments: Any) -> None:
            end("write")
            put(*arguments)

        compaction.write_all = write
        folding._native.fault_point = end
        write_folded(path)
        adopt(path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    all_right(history)
    with open_checkpoint(path) as checkpoint:
        assert (checkpoint.manifest.link is None) == (passage == "named 2")
    # The next compaction completes it.
    if passage == "named 2":
        with pytest.raises(ConfigError, match="is whole already"):
            compact(path)
    else:
        compact(path)
    assert {p.name for p in path.iterdir()} == {"manifest.json", "state.h5"}
    retain(tmp_path, Retention(keep_last=2))
    assert [info.path.exists() for _, info in history.written] == [False, False, True, True]
    all_right(history)


def test_a_damaged_chain_stays_and_the_failure_is_known(tmp_path):
    history, folds = History(3), ChainFolding(tmp_path, 2)
    base = history.write(tmp_path)
    flip(base.path / "state.h5", 5000)
    history.evolve()
    link = history.write(tmp_path)
    folds.written(link.place)
    assert folds._process is not None
    folds._process.wait(LIMIT_S)
    history.evolve()
    folds.written(history.write(tmp_path).place)
    assert f"the chain's checkpoint {base.path.name}" in folds.failure
    folds.close()
    assert {path.name for path in link.path.iterdir()} == {"manifest.json", "changes.h5"}


def test_what_was_written_for_another_link_is_not_adopted(tmp_path):
    history = History(5)
    history.write(tmp_path)
    for _ in range(2):
        history.evolve()
        history.write(tmp_path)
    first, second = (info.path for _, info in history.written[1:])
    write_folded(first)
    for name in (folding.FOLDED, folding.FOLDED_MANIFEST):
        os.rename(first / name, second / name)
    with pytest.raises(CheckpointError, match="has been replaced by another checkpoint meanwhile"):
        adopt(second)
    all_right(history)


@pytest.mark.parametrize("place", ["tables", "manifest"])
def test_a_full_disk_is_not_kept_full_by_what_was_written(tmp_path, monkeypatch, place):
    history = History(7)
    history.write(tmp_path)
    history.evolve()
    path = history.write(tmp_path).path
    calls = [0]

    def full(*_: Any) -> None:
        calls[0] += 1
        if place == "manifest" or calls[0] == 3:
            assert (path / folding.FOLDED).exists()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if place == "tables":
        monkeypatch.setattr(compaction, "write_all", full)
    else:
        monkeypatch.setattr(folding, "write_manifest", full)
    with pytest.raises(OSError, match="No space left"):
        write_folded(path)
    assert {p.name for p in path.iterdir()} == {"manifest.json", "changes.h5"}
    all_right(history)


@pytest.mark.parametrize("passage", ["synced", "named"])
def test_the_next_launch_removes_what_a_killed_one_has_left(tmp_path, monkeypatch, passage):
    history = History(8)
    history.write(tmp_path)
    history.evolve()
    link = history.write(tmp_path).path

    class KilledError(BaseException):
        pass

    def kill(name: str) -> None:
        if name == passage:
            raise KilledError

    def work() -> None:
        write_folded(link)
        adopt(link)

    with monkeypatch.context() as patch:
        patch.setattr(folding._native, "fault_point", kill)
        patch.setattr(folding, "discard", lambda _: None)
        with pytest.raises(KilledError):
            work()
    left = {"synced": [".folded-state"], "named": [".folded-manifest", "state.h5"]}[passage]
    assert sorted(p.name for p in link.iterdir()) == sorted(["manifest.json", "changes.h5", *left])
    history.evolve()
    ChainFolding(tmp_path, 2).written(history.write(tmp_path, whole=True).place)
    assert {p.name for p in link.iterdir()} == {"manifest.json", "changes.h5"}
    all_right(history)


def test_signals_to_the_ranks_do_not_reach_the_process(tmp_path):
    """mpirun sends SIGUSR1, which requests a checkpoint, to the process group of each rank."""
    history, folds = History(9), ChainFolding(tmp_path, 2)
    history.write(tmp_path)
    history.evolve()
    folds.written(history.write(tmp_path).place)
    assert folds._process is not None
    try:
        assert os.getpgid(folds._process.pid) == folds._process.pid
    finally:
        folds.close()


def test_a_request_for_a_checkpoint_does_not_end_the_process(tmp_path):
    """As by `scancel --signal=USR1`, which sends the signal to each process of a step."""
    code = (
        "import os, signal, sys\n"
        "from mpips.checkpoint import folding\n"
        "folding.write_folded = lambda path: os.kill(os.getpid(), signal.SIGUSR1)\n"
        "sys.exit(folding.main('nowhere'))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        assert process.wait(LIMIT_S) == 0


def test_the_process_ends_with_its_parent():
    code = (
        "import sys, threading\n"
        "from mpips.checkpoint import folding\n"
        "folding.write_folded = lambda path: (print('begun', flush=True), threading.Event().wait())\n"
        "sys.exit(folding.main('nowhere'))\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"begun\n"
            # As when the parent is killed.
            process.stdin.close()
            assert process.wait(LIMIT_S) == 1
        finally:
            process.kill()


def test_the_state_is_durable_before_the_manifest_that_names_it(tmp_path, monkeypatch):
    """A machine that loses its power may forget each rename that was not synced."""
    history = History(10)
    history.write(tmp_path)
    history.evolve()
    link = history.write(tmp_path).path
    write_folded(link)
    calls: list[str] = []
    rename = os.rename

    def renaming(old: Path, new: Path) -> None:
        calls.append(new.name)
        rename(old, new)

    monkeypatch.setattr(folding.os, "rename", renaming)
    monkeypatch.setattr(folding, "sync_folder", lambda path: calls.append("sync"))
    monkeypatch.setattr(folding.os, "unlink", lambda path: calls.append(f"no {path.name}"))
    adopt(link)
    assert calls == ["state.h5", "sync", "manifest.json", "sync", "no changes.h5"]
    all_right(history)


def test_what_the_disk_has_not_taken_is_not_adopted(tmp_path, monkeypatch):
    history = History(11)
    history.write(tmp_path)
    history.evolve()
    link = history.write(tmp_path).path
    put = compaction.write_all

    def write(fd: int, data: Any, offset: int) -> None:
        other = bytearray(data)
        other[0] ^= 1
        put(fd, memoryview(other), offset)

    monkeypatch.setattr(compaction, "write_all", write)
    with pytest.raises(CheckpointError, match="the file of whole tables is damaged"):
        write_folded(link)
    assert {p.name for p in link.iterdir()} == {"manifest.json", "changes.h5"}
    all_right(history)
