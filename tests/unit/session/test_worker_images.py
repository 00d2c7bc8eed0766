"""Where residuals and the state of local training come from at a start: a checkpoint, or memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import dense

import mpips
from mpips import (
    ASP,
    BSP,
    SGD,
    Adam,
    CheckpointError,
    DenseTable,
    DiLoCo,
    LocalSGD,
    RegionError,
    TopK,
    Worker,
)
from mpips.checkpoint import open_checkpoint
from mpips.checkpoint.manifest import WorkerState
from mpips.checkpoint.worker_files import write_file
from mpips.checkpoint.worker_image import RESIDUALS, PartImage
from mpips.model.consistency import Consistency
from mpips.model.placement import place
from mpips.model.table import Table
from mpips.recovery.memory import Memory
from mpips.recovery.saving import Saving
from mpips.transport.region import Regions, new_token, persistent, unlink_job
from mpips.worker.image.memory import ImageHalves
from mpips.worker.image.start import _make, notes_of, start_image, take_over, taking_of
from mpips.worker.local.state import LocalHead, LocalState, image_of, load
from mpips.worker.start import MadeParts

N = 37
FORMAT2 = Path(__file__).parents[2] / "support" / "format2"


def coded(model: Consistency | None = None) -> list[Table]:
    model = model or ASP()
    return [
        DenseTable("a", (2, 3), consistency=model, compression=TopK(0.5)),
        DenseTable("plain", (4,), consistency=model),
        DenseTable("b", (5,), consistency=model, compression=mpips.OneBit()),
    ]


def values(worker: int) -> dict[str, np.ndarray]:
    return {
        "a": np.arange(6, dtype=np.float32) + 100 * worker,
        "b": np.full(5, worker + 1, np.float32),
    }


def table(n: int = N) -> DenseTable:
    return DenseTable("w", (n,), Adam(), LocalSGD(4))


def state(value: float) -> LocalState:
    found = LocalState.of(table())
    for i, array in enumerate(found.arrays.values()):
        array[:] = value + i
    found.updates = int(value)
    return found


def saved(folder: Path, n_workers: int, head: LocalHead | None = None) -> Saving:
    """A start from a checkpoint of so many workers, whose states are 0, 10, 20 and so on."""
    head = head or LocalHead(steps=8)
    states = []
    for w in range(n_workers):
        image = {RESIDUALS: PartImage(b"{}", values(w)), **image_of(head, [state(10.0 * w)])}
        states.append(WorkerState(worker=w, files=(write_file(folder, f"f{w}", image),)))
    origin: Any = SimpleNamespace(workers=states)
    return Saving(None, "", start=folder, origin=origin)


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "groups", [(), ((0, 1),), ((1, 2),), ((0, 2), (1, 3, 4)), ((0, 1, 2, 3, 4),)]
)
def test_the_leader_of_a_group_takes_the_residuals_of_its_workers(
    tmp_path: Path, n_workers: int, groups: tuple[tuple[int, ...], ...]
) -> None:
    groups = tuple(group for group in groups if max(group) < n_workers)
    saving, taking = saved(tmp_path, 3), taking_of(groups, n_workers, {"a"})
    found = [
        start_image(saving, coded(), {}, w, n_workers, taking).residuals for w in range(n_workers)
    ]
    for name in ("a", "b"):
        assert (
            sum(f[name] for f in found if name in f) == sum(values(w)[name] for w in range(3))
        ).all()
    led = {worker for group in groups for worker in group[1:]}
    assert all("a" not in found[worker] for worker in led)


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("model", [ASP(), BSP(reduce="sum"), BSP(reduce="mean")], ids=str)
def test_another_number_of_workers_keeps_what_the_residuals_contribute(
    tmp_path: Path, model: Consistency, n_workers: int
) -> None:
    saving = saved(tmp_path, 3)
    found = [
        start_image(saving, coded(model), {}, w, n_workers).residuals for w in range(n_workers)
    ]
    if n_workers == 3:
        assert all((f["a"] == values(w)["a"]).all() for w, f in enumerate(found))
    for name in ("a", "b"):
        before = sum(values(worker)[name] for worker in range(3))
        after = sum(f[name] for f in found if name in f)
        if isinstance(model, BSP) and model.reduce == "mean":
            assert np.allclose(after / n_workers, before / 3, rtol=1e-6)
        else:
            assert (after == before).all()


def test_other_numbers_of_workers_share_the_stored_states(tmp_path: Path) -> None:
    saving = saved(tmp_path, 2)
    for n_workers, expected in ((1, [0]), (2, [0, 1]), (5, [0, 1, 0, 1, 0])):
        for worker, source in enumerate(expected):
            start = start_image(saving, coded(), {0: table()}, worker, n_workers)
            assert start.is_own == (n_workers == 2)
            assert start.local is not None
            found = LocalState.of(table())
            assert load(start.local, [found], False).steps == 8
            assert [array.tolist() for array in found.arrays.values()] == [
                [10.0 * source + i] * N for i in range(3)
            ]
            assert found.updates == 10 * source
        notes = notes_of(saving, n_workers, [table()], coded())
        assert ["inner states of 2 workers" in note for note in notes] == [True] * (n_workers != 2)
    assert start_image(Saving(None, ""), coded(), {0: table()}, 0, 2) == ({}, None, True)
    data = bytearray((tmp_path / "f1").read_bytes())
    data[-100] ^= 4
    (tmp_path / "f1").write_bytes(data)
    with pytest.raises(CheckpointError, match="f1: the checksum does not match"):
        start_image(saving, [], {0: table()}, 1, 2)


def test_a_note_names_what_the_job_does_not_take(tmp_path: Path) -> None:
    """The job has another codec for one table, and none under LocalSGD."""
    saving = saved(tmp_path, 3, LocalHead(steps=8, synchronized=5))
    now: list[Table] = [coded()[0], DenseTable("b", (5,), compression="int8")]
    assert start_image(saving, now, {}, 0, 3).residuals.keys() == {"a"}
    local, residuals = notes_of(saving, 3, now, now)
    assert "has values and inner states of workers for 'w'" in local
    assert "the last outer step of each table (3 at most)" in local
    assert residuals.startswith("table 'b' has no codec with error feedback now: ")


@pytest.fixture
def token() -> Iterator[str]:
    found = persistent(new_token())
    yield found
    unlink_job(found)


def launch(
    token: str,
    generation: int,
    served: int,
    tables: Sequence[Table] = (),
    local: DenseTable | None = None,
    clock: int = 0,
    origin: int = 0,
    saving: Saving | None = None,
) -> Any:
    """Start as worker 1 in the memory of a run of two servers; the second attempt and later ones go on.

    Returns the start, and the number of lost residuals.
    """
    tables = list(tables)
    placement = place(tables, 2, 2, 4, 1024, [[0, 1], [0, 1]], 0)
    memory = Memory(generation=origin, served=served, tables="", shape=(2, 2))
    saving = saving or Saving(None, token)
    if generation > origin:
        where: Any = (None, SimpleNamespace(clock=clock))
        saving = replace(saving, places=where, origin=memory)
    parts: Any = SimpleNamespace(
        ranks=SimpleNamespace(worker=1, assignment=SimpleNamespace(workers=(2, 3))),
        saving=saving, tables=tables, placement=placement, warm=True,
        regions=Regions(token, True, True), local={} if local is None else {0: local},
        generation=generation, made=MadeParts(), at=[SimpleNamespace(sequence=0)] * 2,
        groups=(), grouped_tables={}, worker_memory=None,
    )  # fmt: skip
    if generation > origin:
        take_over(parts, 1, clock, memory)
    return parts, _make(parts)


TABLES: list[Table] = [
    dense(200, compression=TopK(0.1)),
    dense(90, "v", compression=TopK(0.1)),
]


def test_residuals_of_the_last_launch_go_on_and_older_ones_are_lost(token: str) -> None:
    first = launch(token, 0, 0, TABLES)[0].made.residuals
    given = {t.name: np.arange(1, 1 + t.n_elements, dtype=np.float32) for t in TABLES}
    first.fill(given)
    del first
    parts, lost = launch(token, 1, 0, TABLES)
    again = parts.made.residuals
    assert lost == again.settle([0, 0]) == 0
    assert parts.worker_memory.generation == 1
    assert {n: v.tolist() for n, v in again.values().items()} == {
        n: v.tolist() for n, v in given.items()
    }
    del parts, again
    # Launch 2, on other nodes, has come to work since.
    parts, lost = launch(token, 3, 2, TABLES)
    late = parts.made.residuals
    assert lost == late.settle([0, 0]) == 2 * len(TABLES)
    assert all((v == 0).all() for v in late.values().values())
    assert parts.worker_memory.generation == 3


def test_residuals_that_are_not_on_the_node_are_lost(token: str) -> None:
    parts, lost = launch(token, 4, 3, TABLES)
    assert lost == parts.made.residuals.settle([0, 0]) == 2 * len(TABLES)
    assert parts.worker_memory is None
    del parts
    # The launch after it finds the memory that this one has made.
    parts, lost = launch(token, 5, 4, TABLES)
    assert (lost, parts.worker_memory.generation) == (0, 5)


def test_memory_holds_the_images_of_two_clocks_and_no_unfinished_one(token: str) -> None:
    parts, _ = launch(token, 5, 0, TABLES, table(), origin=5)
    images: ImageHalves = parts.made.local.memory
    assert [images.holds(clock) for clock in range(3)] == [True, False, False]
    for clock in range(1, 4):
        images.write(clock, image_of(LocalHead(steps=4 * clock), [state(clock)]))
    assert [images.holds(clock) for clock in range(5)] == [False, False, True, True, False]
    del parts, images
    parts, lost = launch(token, 6, 5, TABLES, table(), clock=2, origin=5)
    part, read = parts.made.local, LocalState.of(table())
    assert (part.is_warm, part.is_own, lost) == (True, True, 0)
    assert load(part.image, [read], True).steps == 8
    assert np.array_equal(read.values, state(2.0).values)
    # A node may have memory whose clocks count from an earlier launch than those of the job, or in which no
    # worker was in the last launch.
    del parts, part
    with pytest.raises(RegionError, match="i1g6"):
        launch(token, 7, 6, TABLES, table(), clock=2, origin=6)
    with pytest.raises(RegionError, match="worker 1 at clock 2 are not there"):
        launch(token, 8, 7, TABLES, table(), clock=2, origin=5)
    with pytest.raises(RegionError, match="worker 1 at clock 1 are not there"):
        launch(token, 7, 6, TABLES, table(), clock=1, origin=5)
    # A process that ends while it writes leaves no image of that clock.
    parts, _ = launch(token, 7, 6, TABLES, table(), clock=2, origin=5)
    parts.made.local.memory._tags[0] = 0
    del parts
    with pytest.raises(RegionError, match="worker 1 at clock 2 are not there"):
        launch(token, 8, 7, TABLES, table(), clock=2, origin=5)
    with pytest.raises(RegionError, match=r"has [\d,]+ bytes instead of"):
        launch(token, 8, 7, TABLES, table(5000), clock=3, origin=5)


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_new_memory_continues_also_before_the_first_use(
    tmp_path: Path, from_checkpoint: bool, token: str
) -> None:
    """A launch continues at clock 0 with the worker's own state, or takes the servers' values then."""
    head = LocalHead(steps=11, period=3, synchronized=8)
    saving = saved(tmp_path, 2, head) if from_checkpoint else None
    del launch(token, 0, 0, TABLES, table(), saving=saving)[0].made
    parts, read = launch(token, 1, 0, TABLES, table())[0], LocalState.of(table())
    again = load(parts.made.local.image, [read], True)
    assert again.is_new != from_checkpoint
    assert read.updates == (10 if from_checkpoint else 0)
    if from_checkpoint:
        assert (again.steps, again.period, again.synchronized) == (0, 3, -3)
        assert read.values.tolist() == [10.0] * N


def test_a_job_goes_on_from_a_checkpoint_of_format_2(tmp_path: Path) -> None:
    """Written by mpips at the commit before format 3, with both files of the worker, at clock 20 of 40."""
    n, starts = 12, []

    def main(worker: Worker) -> list[bytes]:
        w, b = worker.table("w"), worker.table("b")
        starts.append(int(worker.cursor.get("step", 0)))
        for step in range(starts[-1], 40):
            w.push(np.arange(n, dtype=np.float32) - step + w.pull())
            b.push(np.full(n, step, np.float32))
            worker.set_cursor({"step": step + 1})
            worker.clock()
        return [w.pull().tobytes(), b.pull().tobytes(), b.residual().tobytes()]

    def run(folder: Path) -> Any:
        tables = [
            DenseTable("w", (n,), Adam(0.1), DiLoCo(4, SGD(1.0))),
            DenseTable("b", (n,), SGD(1.0), ASP(), compression=TopK(0.25)),
        ]
        return mpips.run(main, tables, save=folder, verbose=False).value

    calm = run(tmp_path / "calm")
    shutil.copytree(FORMAT2 / "one", tmp_path / "old")
    assert run(tmp_path / "old") == calm
    assert starts == [0, 20]
    with open_checkpoint(tmp_path / "old" / "step-000000000040") as checkpoint:
        checkpoint.verify()
        assert [f.name for s in checkpoint.manifest.workers for f in s.files] == [
            "worker-00000.image"
        ]
