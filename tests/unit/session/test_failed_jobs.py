"""A job behind a failed one in the same process, as in a notebook: exact, and nothing is left of the first.

To add a failure, add a function to FAILURES that makes a job fail.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips import BSP, SGD, DenseTable, DiLoCo, EmbeddingTable, Worker
from mpips.checkpoint import find_newest, open_checkpoint, writer
from mpips.checkpoint.residuals import read_residuals
from mpips.errors import CheckpointError, ConfigError, MpipsError
from mpips.snapshot import server_part
from mpips.worker.local import tables as local_tables
from mpips.worker.worker import connection_of

N, CLOCKS = 200, 6
KEYS = np.arange(10)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
KINDS = ["served", "local"]


class ProgramError(Exception):
    """An error of the program."""


def tables(kind: str) -> list[Any]:
    if kind == "local":
        return [DenseTable("t", (N,), SGD(1.0), DiLoCo(2, SGD(1.0)), init="zeros")]
    return [
        DenseTable("t", (N,), SGD(1.0), BSP("sum"), init="zeros", compression=mpips.TopK(0.3)),
        EmbeddingTable("e", 2, SGD(1.0), BSP("sum"), init="zeros"),
    ]


def update(clock: int) -> np.ndarray:
    return np.random.default_rng(clock).integers(-9, 10, N).astype(np.float32)


def train(worker: Worker, kind: str, fails: Callable[[Worker, int], object]) -> None:
    """Make the clocks from the worker's cursor on; `fails` is called within each, behind its pushes."""
    for clock in range(worker.cursor.get("clock", 0), CLOCKS):
        worker.table("t").push(update(clock))
        if kind == "served":
            worker.table("e").push(KEYS, np.ones((10, 2), np.float32))
        fails(worker, clock)
        worker.set_cursor({"clock": clock + 1})
        worker.clock()


def job(kind: str, folder: Path, fails: Any = lambda worker, clock: None, **options: Any) -> Any:
    return mpips.run(
        lambda worker: train(worker, kind, fails),
        tables(kind),
        save=folder,
        verbose=False,
        **options,
    )


def raising(error: BaseException) -> Callable[[Worker, int], None]:
    def fails(worker: Worker, clock: int) -> None:
        if clock == 3:
            raise error

    return fails


def in_main(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProgramError):
        job(kind, folder, raising(ProgramError()))


def by_interrupt(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        job(kind, folder, raising(KeyboardInterrupt()))


def by_exit(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        job(kind, folder, lambda worker, clock: sys.exit(3))


def wrong_option(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        job(kind, folder, servers=5)


def wrong_table(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        job(kind, folder, lambda worker, clock: worker.table("nowhere"))


def wrong_start(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError):
        job(kind, folder, resume=str(folder / "nowhere"))


def wrong_values(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"nan|NaN"):
        job(
            kind,
            folder,
            lambda worker, clock: worker.table("t").push(np.full(N, np.nan, np.float32)),
        )


def checkpoints_fail(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Every checkpoint of the job fails when all but its manifest is written."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with patch.context() as patched:
        patched.setattr(writer, "write_manifest", full)
        outcome = job(kind, folder, every_steps=2)
    assert "No space" in outcome.statistics["totals"]["servers"]["checkpoint"]["error"]


def while_a_checkpoint_is_written(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as patched:
        patched.setattr(server_part, "SMALL_BLOCK_BYTES", 64)
        with pytest.raises(ProgramError):
            job(kind, folder, raising(ProgramError()), every_steps=1)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def push_cut_off(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """The program catches Ctrl-C within a push, and pushes again."""

    def fails(worker: Worker, clock: int) -> None:
        if clock != 3:
            return
        target: Any = connection_of(worker) if kind == "served" else local_tables.kernels
        with patch.context() as patched:
            patched.setattr(target, "note_push" if kind == "served" else "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                worker.table("t").push(update(clock))
        worker.table("t").push(update(clock))

    with pytest.raises(
        MpipsError, match="an earlier push to table 't' of worker 0 was interrupted"
    ):
        job(kind, folder, fails)


def clock_cut_off(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """The program catches Ctrl-C within the end of a clock, whose tick is written, and ends it again."""

    def fails(worker: Worker, clock: int) -> None:
        if clock != 3:
            return
        with patch.context() as patched:
            patched.setattr(connection_of(worker).control, "poll", interrupted)
            with pytest.raises(KeyboardInterrupt):
                worker.clock()
        worker.clock()

    with pytest.raises(MpipsError, match=r"an earlier clock\(\) of worker 0 was interrupted"):
        job(kind, folder, fails, every_steps=2)


FAILURES = [
    in_main,
    by_interrupt,
    by_exit,
    wrong_option,
    wrong_table,
    wrong_start,
    wrong_values,
    checkpoints_fail,
    while_a_checkpoint_is_written,
    push_cut_off,
    clock_cut_off,
]


def held() -> dict[str, Any]:
    """Return what a job may leave in this process and in shared memory."""
    gc.collect()
    return {
        "handlers": [signal.getsignal(number) for number in SIGNALS],
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in _open_files()),
        "memory": sorted(path.name for path in Path("/dev/shm").iterdir()),
    }


def _open_files() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_a_job_behind_a_failed_one_is_exact(
    failure: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(kind, tmp_path / "first")  # loads what jobs load once
    before = held()
    for _ in range(2):
        failure(kind, tmp_path / "c", monkeypatch)
        assert held() == before
    assert job(kind, tmp_path / "c").statistics["totals"]["servers"]["checkpoint"]["path"]
    assert held() == before
    found = find_newest(tmp_path / "c").checkpoint
    assert found is not None
    with open_checkpoint(found.path) as checkpoint:
        checkpoint.verify()
        values = checkpoint.read_dense("t")[0]
        left = read_residuals(checkpoint.path, checkpoint.manifest, 0).get("t", 0.0)
    assert found.path.name == f"step-{CLOCKS:012d}"
    assert (values - left == -sum(update(clock) for clock in range(CLOCKS))).all()
    assert not [p.name for p in (tmp_path / "c").glob(".worker-*")]
