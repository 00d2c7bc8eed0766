"""Where a worker's values of tables under LocalSGD and DiLoCo come from at a start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpips import Adam, CheckpointError, DenseTable, LocalSGD, RegionError
from mpips.checkpoint.manifest import WorkerState
from mpips.transport.region import Regions, new_token, persistent
from mpips.worker.local.start import notes_of, reopen, start_image, write_first
from mpips.worker.local.state import (
    LocalHead,
    LocalMemory,
    LocalState,
    image_bytes,
    load,
    memory_bytes,
    write_file,
)

N = 37


def table(n: int = N) -> DenseTable:
    return DenseTable("w", (n,), Adam(), LocalSGD(4))


def state(value: float) -> LocalState:
    found = LocalState.of(table())
    for i, array in enumerate(found.arrays):
        array[:] = value + i
    found.updates = int(value)
    return found


def test_other_numbers_of_workers_share_the_stored_states(tmp_path: Path) -> None:
    head = LocalHead(steps=8)
    workers = [
        WorkerState(worker=w, local=write_file(tmp_path, f"f{w}", head, [state(10.0 * w)]))
        for w in range(2)
    ]
    for n_workers, expected in ((1, [0]), (2, [0, 1]), (5, [0, 1, 0, 1, 0])):
        for worker, source in enumerate(expected):
            image, is_own = start_image(tmp_path, workers, worker, n_workers)
            assert is_own == (n_workers == 2)
            assert image is not None
            found = LocalState.of(table())
            assert load(image, [found], False).steps == 8
            assert [array.tolist() for array in found.arrays] == [
                [10.0 * source + i] * N for i in range(3)
            ]
            assert found.updates == 10 * source
        notes = notes_of(tmp_path, workers, n_workers, [table()])
        assert ["inner states of 2 workers" in note for note in notes] == [True] * (n_workers != 2)
    assert start_image(None, workers, 0, 2) == (None, True)
    data = bytearray((tmp_path / "f1").read_bytes())
    data[-100] ^= 4
    (tmp_path / "f1").write_bytes(data)
    with pytest.raises(CheckpointError, match="f1: the checksum does not match"):
        start_image(tmp_path, workers, 1, 2)


def test_memory_holds_the_images_of_two_clocks_and_no_unfinished_one() -> None:
    regions = Regions(persistent(new_token()), shared=True, supervised=True)
    tables = {0: table()}
    try:
        memory = LocalMemory(
            regions.create("l3g5", memory_bytes([table()])), image_bytes([table()])
        )
        assert not memory.holds(0)
        for clock in range(4):
            memory.write(clock, LocalHead(steps=4 * clock), [state(clock)])
        assert [memory.holds(clock) for clock in range(5)] == [False, False, True, True, False]
        del memory
        found = reopen(regions, tables, 3, 2, 5)
        read = LocalState.of(table())
        assert load(found.image(2), [read], True).steps == 8
        assert np.array_equal(read.values, state(2.0).values)
        # A node may have memory whose clocks count from an earlier launch than those of the job.
        with pytest.raises(RegionError, match="l3g6"):
            reopen(regions, tables, 3, 2, 6)
        # A process that ends while it writes leaves no image of that clock.
        found._marks[0][0] = 0
        del found
        with pytest.raises(RegionError, match="worker 3 at clock 2 are not there"):
            reopen(regions, tables, 3, 2, 5)
        with pytest.raises(RegionError, match="have another size"):
            reopen(regions, {0: table(5000)}, 3, 2, 5)
        with pytest.raises(RegionError):
            reopen(regions, tables, 4, 2, 5)
    finally:
        regions.unlink()


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_new_memory_continues_also_before_the_first_use(
    tmp_path: Path, from_checkpoint: bool
) -> None:
    """A launch continues at clock 0 with the worker's own state, or takes the servers' values then."""
    regions = Regions(persistent(new_token()), shared=True, supervised=True)
    tables, image = {0: table()}, None
    if from_checkpoint:
        head = LocalHead(steps=11, period=3, synchronized=8)
        workers = [WorkerState(worker=0, local=write_file(tmp_path, "f", head, [state(5.0)]))]
        image, _ = start_image(tmp_path, workers, 0, 1)
    try:
        memory = LocalMemory(
            regions.create("l0g0", memory_bytes([table()])), image_bytes([table()])
        )
        write_first(memory, tables, image, True)
        del memory
        found, read = reopen(regions, tables, 0, 0, 0), LocalState.of(table())
        again = load(found.image(0), [read], True)
        assert again.is_new != from_checkpoint
        assert read.updates == (5 if from_checkpoint else 0)
        if from_checkpoint:
            assert (again.steps, again.period, again.synchronized) == (0, 3, -3)
            assert read.values.tolist() == [5.0] * N
        del found
    finally:
        regions.unlink()
