"""Messages and cut records of a worker that waits while a cut is ordered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Rig, dense, rows
from late_tree import LateTree

from mpips.checkpoint.manifest import ImageFile
from mpips.checkpoint.position import Position, compressed, decode_part
from mpips.errors import ConfigError, StallError
from mpips.model.consistency import ASP, SSP
from mpips.mpi.messages import Abandon, Commit, Message, Propose, Waits
from mpips.scheduler.own_worker import OwnWorker
from mpips.snapshot.worker_part import WorkerPart
from mpips.worker.connection import Connection
from mpips.worker.connection_options import ConnectionOptions
from mpips.worker.worker import Worker, connection_of


class Recording(OwnWorker):
    """Stores the messages of a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Message] = []

    def tell(self, message: Message) -> None:
        self.sent.append(message)


def late_others(control: Recording, commit: Commit) -> Any:
    """Return a tree whose other workers come to a gather after a cut is ordered."""
    commits = [commit]

    def order() -> None:
        if commits:
            control.cut.take(commits.pop(), control.clock)

    return LateTree(3, order)


def worker_of(
    rig: Rig, control: Recording, *, drained: bool = True, commit: Commit | None = None
) -> Worker:
    connection = Connection(
        0,
        [f"worker {i}" for i in range(rig.n_workers)],
        rig.tables,
        [rig.channel(0, drained)],
        control,
        rig.staging[0],
        60.0,
        tree=late_others(control, commit) if commit is not None else None,
    )
    return Worker(connection, rig.tables, rig.placement)


def push(worker: Worker) -> None:
    worker.table("w").push(np.ones(8, np.float32))


@pytest.mark.parametrize(
    ("consistency", "pushes", "clock"),
    [(ASP(), True, 0), (ASP(), False, 2), (SSP(2), False, 2), (SSP(2), True, 2)],
    ids=["pushed", "at-one-clock", "ssp", "ssp-pushed"],
)
def test_a_gather_in_which_a_cut_cannot_be_made_is_reported_once_and_withdrawn(
    consistency, pushes, clock
):
    rig = Rig(dense(consistency=consistency), n_slots=8)
    control = Recording()
    worker = worker_of(rig, control, commit=Commit(7, clock))
    worker.clock()
    if pushes:
        push(worker)
    rig.core.expect_cut(7)
    worker.barrier("here")
    assert control.sent == [Waits(7, "before"), Waits(7, "over")]
    # The worker writes its cut record at the next tick.
    assert not rig.core.holds_cut()
    worker.clock()
    rig.drain()
    assert rig.core.holds_cut()


def test_a_gather_in_which_the_cut_can_be_made_is_not_reported():
    rig = Rig(dense(), n_slots=8)
    control = Recording()
    worker = worker_of(rig, control, commit=Commit(7, 0))
    push(worker)
    worker.clock()
    rig.core.expect_cut(7)
    worker.barrier("here")
    assert control.sent == []
    assert rig.core.holds_cut()


@pytest.mark.parametrize("pushes", [False, True])
def test_a_wait_for_pushes_of_others_takes_part_in_a_cut_and_reports_waits_behind_it(pushes):
    rig = Rig(dense(), rows(), n_workers=2, n_slots=8)
    control = Recording()
    worker = worker_of(rig, control)
    connection = connection_of(worker)
    worker.clock()
    if pushes:
        push(worker)
    rig.core.expect_cut(7)
    control.cut.take(Commit(7, 0), 1)
    for _ in range(3):
        connection.check_cut_in_wait()
    if pushes:
        # Another worker may be behind its record, so the cut may have to be given up.
        assert control.sent == [Waits(7, "before")]
        connection.snapshot.end_gather()
        assert control.sent == [Waits(7, "before"), Waits(7, "over")]
        return
    assert control.sent == []
    # Worker 1 does not come to the cut; so the reads of the wait are held.
    with pytest.raises(StallError):
        worker.table("e").prefetch(np.arange(3)).wait(0.3)
    assert control.sent == [Waits(7, "behind")]


@pytest.mark.parametrize("waits", [True, False])
def test_an_image_goes_into_the_folder_of_its_cut(waits):
    rig = Rig(dense(), n_slots=8)
    control, images = Recording(), []
    worker = worker_of(rig, control, commit=Commit(7, 0, folder="/exchange") if waits else None)

    def store(number: int, folder: str) -> ImageFile:
        images.append((number, folder))
        return ImageFile("image")

    connection_of(worker).snapshot._store_image = store
    push(worker)
    if waits:
        worker.clock()
        worker.barrier("here")
    else:
        control.cut.take(Commit(7, 0, folder="/exchange"), 0)
        worker.clock()
    control.cut.take(Commit(8, 0), 1)
    worker.clock()
    assert images == [(7, "/exchange"), (8, "")]


@pytest.mark.parametrize("what", ["pull", "flush"])
def test_a_wait_behind_a_cut_record_is_reported_once(what):
    rig = Rig(dense(), rows(), n_workers=2, n_slots=8)
    control = Recording()
    worker = worker_of(rig, control)
    rig.core.expect_cut(7)
    control.cut.take(Commit(7, 0), 0)
    push(worker)
    worker.clock()
    # Worker 1 does not come to the cut.
    request = worker.table("e").prefetch(np.arange(3))
    if what == "pull":
        for _ in range(3):
            with pytest.raises(StallError):
                request.wait(0.2)
    else:
        connection_of(worker).timeout_s = 0.3
        with pytest.raises(StallError):
            worker.flush()
    assert control.sent == [Waits(7, "behind")]
    control.cut.take(Abandon(7), 1)
    rig.core.release_cut(7)
    assert request.wait().shape == (3, 4)
    worker.flush()
    assert control.sent == [Waits(7, "behind")]


def test_a_wait_for_a_slow_server_is_not_reported_without_a_cut():
    rig = Rig(dense(), rows(), n_workers=2, n_slots=8)
    control = Recording()
    worker = worker_of(rig, control, drained=False)
    with pytest.raises(StallError):
        worker.table("e").prefetch(np.arange(3)).wait(0.3)
    assert control.sent == []


def test_a_worker_that_continues_in_memory_answers_with_its_first_clock():
    rig = Rig(dense())
    control = Recording()
    Connection(
        0,
        ["worker 0"],
        rig.tables,
        [rig.channel(0, True)],
        control,
        None,
        60.0,
        ConnectionOptions(first_clock=1000),
    )
    assert control.clock == 1000
    answer = control.cut.take(Propose(1, 2), control.clock)
    assert answer is not None
    assert not answer.ok


def test_no_cut_is_made_behind_its_clock():
    rig = Rig(dense(consistency=SSP(2)))
    control = Recording()
    worker = worker_of(rig, control)
    for _ in range(3):
        worker.clock()
    control.cut.take(Commit(7, 2), 1)
    rig.core.expect_cut(7)
    worker.clock()
    worker.flush()
    assert control.cut.pending is None
    assert not rig.core.cut_ready()


@pytest.mark.parametrize("ticks", [0, 1])
def test_a_text_holds_the_random_state_of_its_tick(ticks):
    position = Position(3, 0, 1)
    for clock in range(ticks):
        position.random.random(2)
        position.note_tick(clock + 1, keep=True)
    at_tick = position.part()
    position.random.random(5)
    assert position.part() == at_tick
    assert bool(decode_part(at_tick).random) is bool(ticks)


def test_a_cut_behind_an_inner_step_has_the_random_numbers_of_that_step():
    written = []
    control, position = Recording(), Position(3, 0, 2)
    part = WorkerPart(
        0, position, control, lambda *record: written.append(record), lambda: False, False, 0, 4032
    )
    position.random.integers(9, size=5)
    part.note_inner_step(0, 2)
    there = decode_part(position.part())
    position.random.integers(9, size=5)
    control.cut.pending = Commit(7, 0)
    assert not part.while_waiting(False)
    ((number, _, payload),) = written
    assert (number, decode_part(payload)) == (7, there)


ROOM = 4032  # bytes of a payload in the smallest slot that is chosen without slot_kib


def part_with(cursor, room, inner_at=None):
    """Return a worker part with this cursor, its position, and the list of the payloads that it writes."""
    written: list[bytes] = []
    position = Position(3, 0, 1)
    part = WorkerPart(
        0,
        position,
        Recording(),
        lambda number, clock, payload: written.append(payload),
        lambda: False,
        True,
        0,
        room,
        inner_steps=inner_at is not None,
    )
    if inner_at is not None:
        part.set_cursor(inner_at)
        part.write_position(4, 30)
        part.note_tick(5, 30)
        written.clear()
    part.set_cursor(cursor)
    return part, position, written


def test_a_position_that_fits_into_a_record_is_not_compressed():
    _, position, _ = part_with({"text": "a" * 3000}, 1 << 20)
    length = len(position.coming_part(1))
    for room in (length, length - 1):
        part, position, written = part_with({"text": "a" * 3000}, room)
        part.write_position(0)
        plain = position.coming_part(1)
        assert written == [plain if room == length else compressed(plain)]
        assert len(written[0]) <= room
        assert decode_part(written[0]) == decode_part(plain)
        assert decode_part(written[0]).cursor == {"text": "a" * 3000}


def noise(n_bytes, seed=0):
    """Return text of so many bytes that compression makes no shorter than half of it."""
    return np.random.default_rng(seed).bytes(n_bytes // 2).hex()


def test_a_cursor_that_fits_into_no_record_is_refused_when_it_is_set():
    part, position, written = part_with({"step": 3}, ROOM)
    with pytest.raises(
        ConfigError,
        match=r"^the cursor and random state of worker 0 are too large for a checkpoint: 9,0\d\d bytes, "
        r"\d,\d{3} when compressed, and a record has room for 4,032; the largest entry of the cursor is "
        r"'b' with 8,005 bytes: set slot_kib to \d or more, or store less in the cursor$",
    ):
        part.set_cursor({"a": noise(1000), "b": noise(8000), "c": 1})
    assert position.cursor == {"step": 3}
    part.write_position(0)
    assert decode_part(written[0]).cursor == {"step": 3}
    part_with({"a": noise(1000), "b": noise(8000), "c": 1}, (9 << 10) - 64)


def test_a_cursor_behind_an_inner_step_shares_its_record_with_the_one_at_the_tick():
    cursors = [{"a": noise(4000, seed)} for seed in range(2)]
    part_with(cursors[1], ROOM)
    with pytest.raises(ConfigError, match=f"{ROOM:,}; the largest entry of the cursor is 'a'"):
        part_with(cursors[1], ROOM, inner_at=cursors[0])
    part, _, written = part_with(cursors[1], 2 * ROOM, inner_at=cursors[0])
    part.note_inner_step(5, 31)
    part.leave(5, 31)
    found = decode_part(written[0])
    assert found.in_memory is not None
    assert [found.in_memory.cursor, found.cursor] == cursors


@pytest.mark.parametrize(("clock", "pushes", "first"), [(0, 0, 0), (4, 0, 4), (4, 1, 5)])
def test_no_cut_is_agreed_to_at_a_clock_that_the_worker_repeats(
    clock: int, pushes: int, first: int
) -> None:
    rig = Rig(dense(consistency=SSP(2)))
    rig.writers[0].resume(0, 0, clock, False, pushes, 0, [], False)
    control = Recording()
    worker_of(rig, control)
    for number, proposed in enumerate(range(1, 8), 1):
        answer = control.cut.take(Propose(number, proposed), 0)
        assert answer is not None
        assert answer.ok == (proposed >= first)
        assert (control.cut.pending is not None) == answer.ok
        # The next proposal is behind this clock.
        assert answer.clock == max(0, first - 1)
