"""Chains of checkpoints that a job writes: each is read as the tables that the server had at its cut."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import Rig, dense, rows
from local_job import run_local

import mpips
from mpips.checkpoint import (
    DenseShardData,
    folding,
    list_checkpoints,
    open_checkpoint,
    writer,
)
from mpips.checkpoint.changes import common_place
from mpips.checkpoint.folding import ChainFolding
from mpips.checkpoint.manifest import LinkRef
from mpips.checkpoint.plan import ChainEnd, Hello
from mpips.config.options import SessionOptions
from mpips.config.triggers import Triggers
from mpips.errors import ConfigError, DiskFullError
from mpips.model.best_value import BestValue
from mpips.mpi.messages import Commit
from mpips.recovery.saving import Saving
from mpips.snapshot import copy, server_part
from mpips.snapshot.copy import ServerCopy, shards_in_place
from mpips.snapshot.server_part import ServerPart

TABLES: list[Any] = [
    mpips.DenseTable("w", (50, 61), mpips.Momentum(1.0)),
    mpips.EmbeddingTable("e", 6, mpips.SGD(1.0), evict=mpips.MaxRows(450, by="lru")),
    mpips.EmbeddingTable("a", 3, mpips.Adam(0.1), row_dtype="bf16"),
    mpips.EmbeddingTable("none", 2),
]
LIMIT_S = 60.0  # most seconds for a checkpoint


class Recorder:
    """Copies of a server's shards at each cut, made without the memory that cuts use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cuts: list[dict[str, dict[str, np.ndarray]]] = []
        make_copy = ServerCopy.copy

        def recording(own: Any) -> Any:
            shards = shards_in_place(own._server, own._placement, own._tables)
            self.cuts.append({shard.table: columns(shard) for shard in shards})
            return make_copy(own)

        monkeypatch.setattr(ServerCopy, "copy", recording)
        monkeypatch.setattr(server_part, "retain", lambda *_: None)


def columns(shard: Any) -> dict[str, np.ndarray]:
    """All arrays of a shard by role, rows ascending by key, as copies."""
    found = {"values": shard.values, **{f"state/{k}": v for k, v in shard.state.items()}}
    if isinstance(shard, DenseShardData):
        return {role: array.copy() for role, array in found.items()}
    found |= {"keys": shard.keys, "steps": shard.steps, "uses": shard.uses}
    order = np.argsort(shard.keys)
    return {role: array[order] for role, array in found.items() if array is not None}


def update(worker: Any, random: np.random.Generator, step: int) -> None:
    """Push to a part of each table; the first time to many rows."""
    update = np.zeros(50 * 61, np.float32)
    start = int(random.integers(0, 3000))
    update[start : start + 50] = step + 1
    if step % 3 == 0:
        worker.table("w").push(update.reshape(50, 61))
    for name, dim in (("e", 6), ("a", 3)):
        n = 600 if step == 0 else int(random.integers(0, 40))
        keys = np.unique(random.integers(0, 2000, n))
        worker.table(name).push(keys, np.ones((len(keys), dim), np.float32))


def await_checkpoint(worker: Any, folder: Path, n: int) -> None:
    """End clocks until the folder has `n` checkpoints."""
    end, tick = time.monotonic() + LIMIT_S, 0
    while len(list_checkpoints(folder)) < n:
        assert time.monotonic() < end, "no checkpoint was written"
        # A request while a cut is under way is only counted.
        if tick % 50 == 0:
            worker.checkpoint()
        worker.clock()
        tick += 1


def job(folder: Path, n: int, incremental: int, *, compact: bool = False, **options: Any) -> None:
    """Make a job of so many checkpoints, each after other updates."""

    def main(worker: Any) -> None:
        random = np.random.default_rng(5)
        for step in range(n):
            update(worker, random, step)
            await_checkpoint(worker, folder, step + 1)

    folder.mkdir(exist_ok=True)
    saving = Saving(
        folder, "run", triggers=Triggers(incremental=incremental, compact=compact), **options
    )
    run_local(main, TABLES, SessionOptions(), saving=saving)


def check(path: Path, cut: dict[str, dict[str, np.ndarray]]) -> int:
    """Compare a checkpoint with the tables of its cut; return its number in the chain."""
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.damage() == []
        for table in checkpoint.manifest.tables:
            for dataset in table.datasets:
                expected = cut[table.name][dataset.role]
                n = dataset.n_units
                for size in (max(n, 1), 97):
                    parts = [
                        checkpoint.read_stored(dataset, at, min(at + size, n))
                        for at in range(0, n, size)
                    ]
                    got = np.concatenate(parts) if parts else expected[:0]
                    assert got.tobytes() == np.ascontiguousarray(expected).tobytes(), dataset.path
        link = checkpoint.manifest.link
        return 0 if link is None else link.index


def test_each_checkpoint_of_a_chain_has_the_tables_of_its_cut(tmp_path, monkeypatch):
    cuts = Recorder(monkeypatch).cuts
    job(tmp_path, 12, 5)
    paths = [name.path for name in list_checkpoints(tmp_path)]
    assert len(cuts) >= 12
    numbers = [check(path, cut) for path, cut in zip(paths, cuts, strict=False)]
    assert numbers == [i % 5 for i in range(len(numbers))]
    # The last one, at the end of the job, is whole.
    assert (paths[-1] / "state.h5").exists()
    removed = 0
    for path in paths:
        with open_checkpoint(path) as checkpoint:
            link = checkpoint.manifest.link
            removed += 0 if link is None else link.table("e/removed").shape[0]
    assert removed > 0


def test_a_job_writes_no_whole_tables_while_its_chain_is_made_whole_beside_it(
    tmp_path, monkeypatch
):
    cuts, written = Recorder(monkeypatch).cuts, ChainFolding.written

    def waiting(own: Any, place: Any) -> None:
        if own._process is not None:
            own._process.wait(LIMIT_S)
        written(own, place)
        assert own.failure == ""

    monkeypatch.setattr(ChainFolding, "written", waiting)
    job(tmp_path, 7, 3, compact=True)
    paths = [name.path for name in list_checkpoints(tmp_path)]
    numbers = [check(path, cut) for path, cut in zip(paths, cuts, strict=False)]
    # The third checkpoint of a chain is made whole while the next one is written.
    assert numbers[:7] == [0, 1, 0, 3, 0, 5, 6]
    # The last one, at the end of the job, is whole; the process that made the one before whole is gone.
    assert (paths[-1] / "state.h5").exists()
    assert list(tmp_path.glob("*/.folded*")) == []


def test_a_chain_that_is_not_made_whole_in_time_ends(tmp_path, monkeypatch):
    cuts = Recorder(monkeypatch).cuts
    monkeypatch.setattr(ChainFolding, "written", lambda *_: None)
    job(tmp_path, 6, 2, compact=True)
    paths = [name.path for name in list_checkpoints(tmp_path)]
    numbers = [check(path, cut) for path, cut in zip(paths, cuts, strict=False)]
    assert numbers[:6] == [0, 1, 2, 3, 0, 1]


def test_a_chain_that_cannot_be_made_whole_is_a_note_and_goes_on(tmp_path, monkeypatch):
    Recorder(monkeypatch)
    notes: list[str] = []
    follow = ServerPart._follow
    begin = ChainFolding._begin

    def beginning(own: Any, place: Any) -> None:
        monkeypatch.setattr(folding.sys, "executable", "/nowhere/python")
        begin(own, place)

    monkeypatch.setattr(ChainFolding, "_begin", beginning)
    monkeypatch.setattr(
        ServerPart, "_follow", lambda own, info: notes.append(follow(own, info)) or notes[-1]
    )
    job(tmp_path, 3, 2, compact=True)
    assert any("could not be made whole: [Errno 2]" in note for note in notes)
    assert all(open_checkpoint(name.path).damage() == [] for name in list_checkpoints(tmp_path))


def test_a_checkpoint_that_fails_ends_the_process_which_may_have_filled_the_disk(
    tmp_path, monkeypatch
):
    Recorder(monkeypatch)
    failed: list[Any] = []
    write, steps = ServerPart._write, server_part.CheckpointWriter.steps

    def failing(own: Any) -> Any:
        if not failed and list(tmp_path.glob("*/.folded*")):
            failed.append(own)
            raise DiskFullError("the disk is full")
        yield from steps(own)

    def waiting(own: Any, writer: Any, number: int) -> Any:
        if not failed and own._folding._process is not None:
            # Not before the process has written something.
            own._folding._process.wait(LIMIT_S)
        yield from write(own, writer, number)
        if failed == [writer]:
            failed.append((own._folding._process, list(tmp_path.glob("*/.folded*"))))

    monkeypatch.setattr(server_part.CheckpointWriter, "steps", failing)
    monkeypatch.setattr(ServerPart, "_write", waiting)
    job(tmp_path, 4, 2, compact=True)
    assert failed[1:] == [(None, [])]


def test_servers_go_on_with_the_base_of_server_0():
    one, two = (LinkRef(f"step-{i:012d}", i, f"{i:016x}") for i in (1, 2))
    ends = ChainEnd(5, one, two), ChainEnd(5, two, two)
    hellos = [Hello(("r", 0, 9), "serial", {}, [], place=end, total_bytes=9) for end in ends]
    assert common_place(hellos) == ends[0]
    assert common_place(hellos[::-1]) == ends[1]
    hellos[1] = msgspec.structs.replace(hellos[1], place=ChainEnd(5, one, one))
    assert common_place(hellos) is None
    hellos[1] = msgspec.structs.replace(hellos[1], place=None)
    assert common_place(hellos) is None
    assert common_place(hellos[::-1]) is None


def test_compact_needs_chains():
    with pytest.raises(
        ConfigError, match=r"checkpoint\.compact = true needs checkpoint\.incremental = 2 or more"
    ):
        Triggers(compact=True, incremental=1).check("checkpoint.")
    assert Triggers(compact=True, incremental=2).check().compact


def test_a_job_continues_from_a_link_and_begins_with_a_whole_checkpoint(tmp_path, monkeypatch):
    cuts = Recorder(monkeypatch).cuts
    job(tmp_path / "first", 3, 10)
    path = list_checkpoints(tmp_path / "first")[2].path
    assert check(path, cuts[2]) == 2
    with open_checkpoint(path) as checkpoint:
        manifest = checkpoint.manifest

    def main(worker: Any) -> None:
        expected = cuts[2]
        assert np.array_equal(worker.table("w").pull().reshape(-1), expected["w"]["values"])
        rows = worker.table("e").pull(expected["e"]["keys"])
        assert np.array_equal(rows, expected["e"]["values"])
        for number in range(2):
            update(worker, np.random.default_rng(number), number + 1)
            await_checkpoint(worker, tmp_path / "second", number + 1)

    (tmp_path / "second").mkdir()
    before = len(cuts)
    saving = Saving(tmp_path / "second", "b", path, manifest, triggers=Triggers(incremental=10))
    run_local(main, TABLES, SessionOptions(), saving=saving)
    made = [name.path for name in list_checkpoints(tmp_path / "second")]
    numbers = [check(path, cut) for path, cut in zip(made, cuts[before:], strict=False)]
    assert numbers[:2] == [0, 1]


def test_without_the_option_all_checkpoints_are_whole(tmp_path, monkeypatch):
    cuts = Recorder(monkeypatch).cuts
    job(tmp_path, 2, 1)
    made = [name.path for name in list_checkpoints(tmp_path)]
    assert [check(path, cut) for path, cut in zip(made, cuts, strict=False)] == [0] * len(cuts)


def test_a_table_that_outgrows_the_memory_of_its_copy_begins_a_new_chain():
    rig = Rig(dense(600), rows(name="e"))
    copied = ServerCopy(rig.server, rig.placement, rig.tables, compares=True)
    worker = rig.worker()

    def push(keys: range) -> None:
        n = len(keys)
        worker.table("e").push(np.array(keys), np.ones((n, 4), np.float32)).wait()

    push(range(10))
    copied.copy()
    assert copied.changed is None
    push(range(5, 50))
    update = np.zeros(600, np.float32)
    update[[3, 599]] = 1
    worker.table("w").push(update).wait()
    copied.copy()
    assert copied.changed is not None
    assert copied.changed["e"].places.tolist() == list(range(5, 50))
    assert copied.changed["w"].places.tolist() == [0, 2]
    # There was memory for some thousand rows more.
    push(range(20_000))
    copied.copy()
    assert copied.changed is None
    copied.copy()
    assert copied.changed is not None
    assert [len(one.places) for one in copied.changed.values()] == [0, 0]
    # Memory that is allocated between two cuts is not that of the last copy.
    push(range(27_000))
    for _ in copied.make_room():
        pass
    copied.copy()
    assert copied.changed is None


def test_what_changed_before_a_checkpoint_that_failed_is_in_the_next_one(tmp_path, monkeypatch):
    cuts = Recorder(monkeypatch).cuts
    write, calls = writer.write_manifest, []

    def second_fails(*arguments: Any) -> str:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        return write(*arguments)

    monkeypatch.setattr(writer, "write_manifest", second_fails)
    job(tmp_path, 3, 10)
    paths = [name.path for name in list_checkpoints(tmp_path)]
    del cuts[1]
    numbers = [check(path, cut) for path, cut in zip(paths, cuts, strict=False)]
    assert numbers[:3] == [0, 0, 1]


@pytest.mark.parametrize("kind", ["best", "exchange"])
def test_the_best_checkpoint_and_an_exchange_are_whole(tmp_path, monkeypatch, kind):
    """The third cut is a special one; an exchange is no checkpoint, so nothing continues it."""
    cuts, elsewhere = Recorder(monkeypatch).cuts, tmp_path / "exchange"
    elsewhere.mkdir()
    best = BestValue(metric="auc", value=0.5, higher=True, epoch=3)
    special = {"best": best} if kind == "best" else {"folder": str(elsewhere)}
    take = ServerPart.take

    def taken(own: ServerPart, message: Any) -> None:
        if isinstance(message, Commit) and message.id == 3:
            message = msgspec.structs.replace(message, **special)
        take(own, message)

    monkeypatch.setattr(ServerPart, "take", taken)
    job(tmp_path / "checkpoints", 5, 10)
    paths = [name.path for name in list_checkpoints(tmp_path / "checkpoints")]
    paths[2:2] = [name.path for name in list_checkpoints(elsewhere)]
    numbers = [check(path, cut) for path, cut in zip(paths, cuts, strict=False)]
    assert numbers[:5] == ([0, 1, 0, 1, 2] if kind == "best" else [0, 1, 0, 0, 1])
    with open_checkpoint(paths[2]) as checkpoint:
        assert checkpoint.manifest.best == special.get("best")
    assert (paths[2].parent == elsewhere) == (kind == "exchange")


def test_a_copy_that_has_failed_in_part_is_no_basis_for_the_next_one(monkeypatch):
    rig = Rig(dense(600), rows(name="e"))
    copied = ServerCopy(rig.server, rig.placement, rig.tables, compares=True)
    copied.copy()

    def fails(*arguments: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(copy._native, "copy_changed", fails)
        with pytest.raises(MemoryError):
            copied.copy()
    copied.copy()
    assert copied.changed is None
    copied.copy()
    assert copied.changed is not None


def test_a_row_of_which_only_the_uses_differ_has_changed():
    memory = np.array([1, 2, 3]), np.ones((3, 2), np.float32), np.zeros((3, 2), np.uint32)
    uses = np.array([[0, 0], [7, 1], [0, 0]], np.uint32)
    found = copy._copy_rows(memory, (memory[0].copy(), memory[1].copy(), uses), 3)
    assert found.places.tolist() == [1]
    assert np.array_equal(memory[2], uses)


def test_a_row_at_the_place_of_an_equal_one_has_changed():
    memory = np.array([1, 2, 3, 0, 0, 0]), np.ones((6, 2), np.float32)
    held = np.array([1, 3, 4, 2, 5]), np.ones((5, 2), np.float32)
    found = copy._copy_rows(memory, held, 3)
    assert found.places.tolist() == [1, 2, 3, 4]
    assert found.removed.tolist() == []
    assert memory[0].tolist() == [1, 3, 4, 2, 5, 0]
    held = np.array([5, 3]), np.ones((2, 2), np.float32)
    found = copy._copy_rows(memory, held, 5)
    assert found.places.tolist() == [0]
    assert sorted(found.removed.tolist()) == [1, 2, 4]


def test_the_memory_of_a_copy_is_half_a_page_from_the_servers() -> None:
    """Places of a few bytes behind make a copy take twice the time on some processors."""
    rig = Rig(dense(9000), rows(4), n_workers=1)
    worker = rig.worker()
    worker.table("e").push(np.arange(500), np.ones((500, 4), np.float32))
    rig.drain()
    (values, found) = ServerCopy(rig.server, rig.placement, rig.tables).copy()
    there = shards_in_place(rig.server, rig.placement, rig.tables)
    for copied, own in ((values.values, there[0].values), (found.keys, there[1].keys)):
        assert np.array_equal(copied, own)
        assert copied.base is not None
        assert (copied.ctypes.data - own.ctypes.data) % 4096 == 2048
