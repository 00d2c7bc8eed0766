"""Full disks and changed bits: what is filled and changed, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from checkpoints import Contents
from marked_process import begun

from mpips.chaos import storage
from mpips.chaos.errors import NotNowError
from mpips.chaos.observing import Observation
from mpips.chaos.schedule import PlannedFault
from mpips.chaos.storage import DiskFiller, FilledDisk, FlippedBit, why_not_fill
from mpips.chaos.undo import FaultGuard
from mpips.checkpoint import ManifestHead, open_checkpoint
from mpips.errors import CheckpointError
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import RankPlace

FAULT = PlannedFault(at_s=0.0, kind="flip-bits", role="any", which=0.4, how_long=0.6)
MIB = 1 << 20


def free_mib(folder: Path) -> float:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize / MIB


@contextmanager
def disk(folder: Path, size: str = "8m") -> Iterator[Path]:
    """Mount a file system of its own at `folder`; skips where the kernel refuses that."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the right to mount is missing")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_filler_takes_all_space_and_leaves_no_name(tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as folder:
        (folder / "own").write_bytes(bytes(MIB))
        filler = DiskFiller(folder)
        filler.fill()
        assert free_mib(folder) < 0.01
        with pytest.raises(OSError, match="No space"):
            (folder / "more").write_bytes(bytes(MIB))
        # What others free is taken as well while the fault lasts.
        (folder / "own").unlink()
        assert free_mib(folder) >= 1
        filler.fill()
        assert free_mib(folder) < 0.01
        filler.close()
        filler.close()
        assert free_mib(folder) == pytest.approx(8, abs=0.1)


def test_a_filler_leaves_what_it_must(tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as folder:
        filler = DiskFiller(folder, leave_bytes=3 * MIB)
        filler.fill()
        assert free_mib(folder) == pytest.approx(3, abs=0.01)
        filler.fill()
        assert free_mib(folder) == pytest.approx(3, abs=0.01)
        filler.close()


def test_only_a_file_system_of_its_own_is_filled_without_leave(tmp_path: Path) -> None:
    elsewhere = RunFolder.create(tmp_path, "job")
    assert "is not the mount point of a file system of its own" in why_not_fill(
        tmp_path, elsewhere, 0
    )
    assert why_not_fill(tmp_path, elsewhere, 64) == ""
    assert "No such file" in why_not_fill(tmp_path / "none", elsewhere, 0)
    assert "is no folder" in why_not_fill(elsewhere.info_file, elsewhere, 0)
    with disk(tmp_path / "disk") as folder:
        run = RunFolder.create(folder / "runs", "job")
        assert why_not_fill(folder, run, 0) == ""
        # A folder within it is not enough: the user must name the whole file system.
        assert "is not the mount point" in why_not_fill(folder / "runs", run, 0)
        assert "has no file on this file system" in why_not_fill(tmp_path, run, 64)
        assert "has no file on this file system" in why_not_fill(folder, elsewhere, 0)
        # A view of a folder on it would fill it for those who use the rest.
        view = tmp_path / "view"
        view.mkdir()
        subprocess.run(["mount", "--bind", str(folder / "runs"), str(view)], check=True)
        try:
            bound = RunFolder(view / run.path.name)
            assert "(it shows the folder /runs of a file system)" in why_not_fill(view, bound, 0)
            assert f"({view} shows the same file system)" in why_not_fill(folder, run, 0)
            assert why_not_fill(view, bound, 1) == ""
        finally:
            subprocess.run(["umount", "--lazy", str(view)], check=True)


def test_file_systems_that_others_need_are_not_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk(tmp_path / "disk") as folder:
        run = RunFolder.create(folder / "runs", "job")
        monkeypatch.setenv("HOME", str(folder / "runs"))
        assert "is not the mount point of a file system of its own" in why_not_fill(folder, run, 0)


def test_a_full_disk_is_freed_at_its_end(tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as folder:
        run = RunFolder.create(folder / "runs", "job")
        kind = FilledDisk(run, folder, 0, 5.0)
        seen = Observation(0.0, True, "running")
        assert kind.why_not(seen) == ""
        injected = kind.inject(FAULT, seen)
        assert injected.what == f"fill {folder} for 3.4 s"
        assert injected.length_s == pytest.approx(3.4)
        assert free_mib(folder) < 0.01
        kind.end()
        assert free_mib(folder) > 7
        kind.end()
        # A longer one would let the lease become stale.
        long = FilledDisk(run, folder, 0, 500.0)
        injected = long.inject(FAULT, seen)
        assert injected.length_s == pytest.approx(1 + 11 * 0.6)
        long.end()


def test_a_disk_is_freed_if_a_signal_comes_while_it_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = DiskFiller.fill

    def interrupted(filler: DiskFiller) -> None:
        fill(filler)
        assert free_mib(folder) < 0.01
        raise KeyboardInterrupt

    monkeypatch.setattr(DiskFiller, "fill", interrupted)
    with disk(tmp_path / "disk") as folder:
        kind = FilledDisk(RunFolder.create(folder / "runs", "job"), folder, 0, 5.0)
        with pytest.raises(KeyboardInterrupt):
            kind.inject(FAULT, Observation(0.0, True, "running"))
        assert free_mib(folder) > 7


class RunAtWork:
    """A run with checkpoints, memory and one process, which stands for its server."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = RunFolder.create(folder, "job")
        self.process = begun(self.folder.path, 0)
        self.memory = folder / "shm"
        self.memory.mkdir()
        for name in ("mpips-kept-s0-mark", "mpips-kept-s0-values", "mpips-s0-signals"):
            (self.memory / name).touch()
        files = sorted(self.memory.iterdir())
        monkeypatch.setattr(storage, "segments", lambda token: (files, []))
        place = RankPlace(rank=0, role="server 0", host="node", pid=self.process.pid)
        self.seen = Observation(0.0, True, "running", 0, places=(place,))

    def write(self, *steps: int) -> None:
        for step in steps:
            Contents().write(self.folder.checkpoints, step)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunAtWork]:
    """A run at work."""
    run = RunAtWork(tmp_path, monkeypatch)
    yield run
    run.end()


def test_a_bit_is_changed_detected_and_changed_back(at_work: RunAtWork) -> None:
    at_work.write(10, 20)
    run = at_work.folder
    newest = run.checkpoints / "step-000000000020"
    before = (newest / "state.h5").read_bytes()
    with FaultGuard() as guard:
        kind = FlippedBit(run, run.checkpoints, False, guard)
        injected = kind.inject(FAULT, at_work.seen)
        after = (newest / "state.h5").read_bytes()
        changed = [(a ^ b) for a, b in zip(before, after, strict=True) if a != b]
        assert len(changed) == 1
        assert changed[0].bit_count() == 1
        with (
            pytest.raises(CheckpointError, match="checksum does not match"),
            open_checkpoint(newest) as c,
        ):
            c.verify()
        assert (injected.damaged, injected.broken) == (str(newest), "")
        assert injected.ends_attempt
        assert not injected.spares_memory
        # The next attempt must start from a checkpoint.
        assert [path.name for path in at_work.memory.iterdir()] == ["mpips-s0-signals"]
        assert at_work.process.wait(5) == -signal.SIGKILL
        kind.end()
        assert (newest / "state.h5").read_bytes() == before


def test_a_bit_that_is_not_detected_breaks_a_promise(
    at_work: RunAtWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work.write(10, 20)
    monkeypatch.setattr(storage, "_verify", lambda path: None)
    with FaultGuard() as guard:
        kind = FlippedBit(at_work.folder, at_work.folder.checkpoints, False, guard)
        injected = kind.inject(FAULT, at_work.seen)
    assert "is not detected by mpips ckpt verify" in injected.broken


def test_no_bit_is_changed_without_an_older_good_checkpoint(at_work: RunAtWork) -> None:
    run = at_work.folder
    with FaultGuard() as guard:
        kind = FlippedBit(run, run.checkpoints, False, guard)
        at_work.write(20)
        with pytest.raises(NotNowError, match="no two checkpoints yet"):
            kind.inject(FAULT, at_work.seen)
        at_work.write(10)
        older = run.checkpoints / "step-000000000010/state.h5"
        newest = run.checkpoints / "step-000000000020/state.h5"
        before = newest.read_bytes()
        raw = bytearray(older.read_bytes())
        raw[-100] ^= 1
        older.write_bytes(raw)
        with pytest.raises(NotNowError, match="step-000000000010"):
            kind.inject(FAULT, at_work.seen)
    assert newest.read_bytes() == before
    assert at_work.process.poll() is None
    assert len(list(at_work.memory.iterdir())) == 3


class OfRun(Contents):
    """A checkpoint of a run with another name."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id

    def head(self, step: int = 1234, generation: int = 1) -> ManifestHead:
        return dataclasses.replace(super().head(step, generation), run_id=self.run_id)


@pytest.mark.parametrize("steps", [(10, 20), (20, 10)])
def test_no_bit_of_the_checkpoint_of_another_run_is_changed(
    steps: tuple[int, int], at_work: RunAtWork, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    own = at_work.folder.info().run_id
    with FaultGuard() as guard:
        kind = FlippedBit(at_work.folder, shared, False, guard)
        for step, run_id in zip(steps, (own, "other"), strict=True):
            OfRun(run_id).write(shared, step)
        before = [path.read_bytes() for path in sorted(shared.glob("*/state.h5"))]
        with pytest.raises(NotNowError, match=rf"step-0*{steps[1]} belongs to the run other: only"):
            kind.inject(FAULT, at_work.seen)
        assert [path.read_bytes() for path in sorted(shared.glob("*/state.h5"))] == before
        assert at_work.process.poll() is None
        for step in (30, 40):
            OfRun(own).write(shared, step)
        assert kind.inject(FAULT, at_work.seen).damaged.endswith("40")


def test_no_bit_is_changed_where_the_run_continues_from_other_memory(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    there = RankPlace(rank=0, role="server 0", host="elsewhere", pid=1)
    with FaultGuard() as guard:
        seen = Observation(0.0, True, "running", places=(there,))
        assert "has replicas" in FlippedBit(run, run.checkpoints, True, guard).why_not(seen)
        assert "other hosts" in FlippedBit(run, run.checkpoints, False, guard).why_not(seen)
