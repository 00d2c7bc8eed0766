"""The lines that a recorder adds to history.jsonl, from heartbeats to checkpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from job_entries import complete_statistics

from mpips.mpi.messages import Figures, Heartbeat
from mpips.rundir import history
from mpips.rundir.directory import RunFolder, Supervised, replace_json
from mpips.rundir.files import Lease, RankPlace, StartPoint
from mpips.rundir.history import AttemptHead, Checkpointed, Counts, HistoryLine, read_line
from mpips.scheduler import history_file as module
from mpips.scheduler.history_file import JobTables, job_tables
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import RunRecorder

PLACES = [
    RankPlace(rank=0, role="scheduler", host="a", pid=1),
    RankPlace(rank=1, role="server 0", host="a", pid=2),
    RankPlace(rank=2, role="worker 0", host="b", pid=3),
]
TABLES = JobTables(("w", "e"), (("shm",),), ((4096,), (-1,)))
STATISTICS = complete_statistics(
    [{"server": 0, "checkpoint": {"path": "/x/step-50"}}], [{"worker": 0, "clock": 12}], {}
)


class Recorded:
    """A recorder whose clock the test sets, and the ranks that it records."""

    def __init__(self, parent: Path, generation: int = 2) -> None:
        folder = RunFolder.create(parent, "job")
        replace_json(
            folder.lease_file, Lease(generation=generation, host="h", pid=1, time_s=time.time())
        )
        info = folder.info()
        self.run = Supervised(folder, info.run_id, info.token, generation)
        self.now = 100.0
        self.ranks = RankTable(PLACES)
        self.recorder = RunRecorder(
            self.run, self.ranks, StartPoint(step=7), clock=lambda: self.now, tables=TABLES
        )

    def beat(self, rank: int, clock: int, **figures: Any) -> None:
        self.ranks.note_heartbeat(rank, Heartbeat("computing", clock, Figures(**figures)))

    def pass_seconds(self, n: int, clock: int = 0) -> None:
        for _ in range(n):
            self.now += 1.0
            self.recorder.look({2: clock})

    def lines(self) -> list[HistoryLine]:
        found = map(read_line, self.run.folder.history_file.read_bytes().splitlines())
        return [line for line in found if line is not None]


def test_the_head_names_ranks_tables_and_transports_once(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.pass_seconds(5)
    head, *rest = recorded.lines()
    assert isinstance(head, AttemptHead)
    assert head.roles == ("scheduler", "server 0", "worker 0")
    assert head.hosts == ("a", "a", "b")
    assert (head.generation, head.tables) == (2, ("w", "e"))
    assert (head.transports, head.placement) == (TABLES.transports, TABLES.placement)
    # A line every two seconds, the first one at once.
    assert [type(line) for line in rest] == [Counts] * 3


def test_counts_are_those_of_the_last_heartbeats(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.beat(
        1,
        0,
        records=9,
        queue=3,
        memory_bytes=4096,
        heap_bytes=50,
        shm_used_bytes=7,
        shm_total_bytes=70,
        tables={0: 5, 1: 6},
    )
    recorded.beat(
        2,
        11,
        samples=64,
        pushed_bytes=100,
        pulled_bytes=200,
        push_saved_bytes=300,
        pull_saved_bytes=-4,
        judged=8,
        staleness_sum=12,
        elapsed_s=10.0,
        wait_s=1.0,
        push_s=2.0,
        pull_s=3.0,
        snapshot_s=0.5,
    )
    recorded.pass_seconds(2, clock=11)
    last = recorded.lines()[-1]
    assert isinstance(last, Counts)
    assert (last.step, last.clock, last.samples) == (18, (0, 0, 11), (0, 0, 64))
    assert (last.pushed, last.pulled) == ((0, 0, 100), (0, 0, 200))
    assert (last.push_saved, last.pull_saved) == ((0, 0, 300), (0, 0, -4))
    assert (last.judged, last.staleness) == ((0, 0, 8), (0, 0, 12))
    assert (last.records[1], last.queue[1], last.memory[1], last.heap[1]) == (9, 3, 4096, 50)
    times = (last.elapsed[2], last.wait[2], last.push[2], last.pull[2], last.snapshot[2])
    assert times == (10.0, 1.0, 2.0, 3.0, 0.5)
    assert last.updates == {0: 5, 1: 6}
    assert (last.shm_used, last.shm_total) == ({"a": 7}, {"a": 70})
    assert last.disk_total > last.disk_free > 0


def test_each_checkpoint_has_one_line_and_the_end_has_counts(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.recorder.saved("/some/where/step-40")
    recorded.pass_seconds(3, clock=33)
    recorded.beat(2, 40, samples=99)
    recorded.recorder.finish(STATISTICS)
    saved = [line for line in recorded.lines() if isinstance(line, Checkpointed)]
    assert [(line.name, line.step) for line in saved] == [("step-40", 40), ("step-50", 19)]
    last = recorded.lines()[-1]
    assert isinstance(last, Counts)
    assert last.samples == (0, 0, 99)


def test_old_lines_are_left_out_while_the_lease_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_THIN_S", 100.0)
    monkeypatch.setattr(history, "_FULL_S", 60.0)
    now = 1_700_000_000.0
    monkeypatch.setattr(module.time, "time", lambda: now)
    recorded = Recorded(tmp_path)
    for _ in range(330):
        now += 1.0
        recorded.pass_seconds(1)
    times = [line.time_s for line in recorded.lines() if isinstance(line, Counts)]
    # A minute at two seconds, what came since the last rewrite, and the rest at twelve or more.
    assert 20 < len(times) < 30 + 50 + 25
    assert times == sorted(times)
    size = recorded.run.folder.history_file.stat().st_size
    replace_json(
        recorded.run.folder.lease_file, Lease(generation=3, host="h", pid=1, time_s=time.time())
    )
    with pytest.raises(Exception, match="replaced"):
        recorded.pass_seconds(1)
    assert recorded.run.folder.history_file.stat().st_size == size


def test_places_of_tables_are_bytes_on_each_server() -> None:
    from mpips import DenseTable, EmbeddingTable
    from mpips.model.placement import place

    tables = [DenseTable("w", (100,)), EmbeddingTable("e", dim=4)]
    placement = place(tables, 2, 1, 4, 1024)
    found = job_tables(tables, placement, [["shm", "rma"]])
    assert found.tables == ("w", "e")
    assert sum(found.placement[0]) == 400
    assert found.placement[1] == (-1, -1)
    assert found.transports == (("shm", "rma"),)
    # Too many pairs are left out.
    assert job_tables(tables, placement, [["shm"] * 5000]).transports == ()
