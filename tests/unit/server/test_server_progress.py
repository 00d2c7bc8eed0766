"""A server with remote peers enters MPI again at once while bytes arrive, for a bounded time."""

from __future__ import annotations

import time

import numpy as np
import pytest
from harness import Rig, dense, make_writer

from mpips.model.consistency import ASP
from mpips.model.optimizer import PythonRule
from mpips.model.placement import place
from mpips.model.table import DenseTable
from mpips.server.server import PROGRESS_INTERVAL_S, Server
from mpips.transport.region import Regions, new_token


def server_with(progress) -> Server:
    tables = [dense(8)]
    regions = Regions(new_token(), shared=False)
    return Server(0, tables, place(tables, 1, 1, 4, 1024), regions, 0, True, progress)


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_one_entry_where_there_is_nothing_to_do():
    entries = []
    served, long, left = server_with(lambda: entries.append(1) or 0)._enter_mpi()
    # An interruption of this process may make one entry look long.
    assert len(entries) == long + 1
    assert served == 0
    assert left <= time.perf_counter()


def test_entries_follow_each_other_while_they_are_long_but_for_a_limited_time():
    entries = []

    def progress():
        entries.append(1)
        busy(20e-6)
        return 0

    start = time.perf_counter()
    served, long, left = server_with(progress)._enter_mpi()
    assert (served, long) == (0, len(entries))
    assert left - start > PROGRESS_INTERVAL_S
    assert len(entries) <= PROGRESS_INTERVAL_S / 20e-6 + 1


def test_an_mpi_whose_entries_are_all_long_leaves_the_server_idle():
    """Else it would neither pause nor sleep."""
    lengths = [20e-6] * 1020
    server = server_with(lambda: busy(lengths.pop(0)) or 0)
    while len(lengths) > 20:
        server._enter_mpi()
    # An interruption of this process may make one entry look long.
    assert 0 in [server._enter_mpi()[1] for _ in range(5)]
    lengths[:] = [200e-6] * 30
    assert server._enter_mpi()[1] > 0


def test_a_message_ends_it():
    entries = []

    def progress():
        entries.append(1)
        busy(20e-6)
        return 3

    assert server_with(progress)._enter_mpi()[:2] == (3, 1)
    assert len(entries) == 1


@pytest.mark.parametrize("n", [8, 1 << 20])
def test_a_push_interrupts_its_server_for_mpi_only_if_it_takes_long(n):
    """The server has entered MPI just before; a second entry would come before the acknowledgement."""
    entries = []
    tables = [dense(n, consistency=ASP())]
    placement = place(tables, 1, 1, 4, 2 << 20)
    regions = Regions(new_token(), shared=False)
    server = Server(0, tables, placement, regions, 0, True, lambda: entries.append(1) or 0)
    writer = make_writer(server.region, placement.layouts[0], 0, 1)
    update, n_pushes = np.ones(n, np.float32), 10
    for step in range(1, n_pushes + 1):
        assert writer.push_dense(0, 0, update, None, 0) == n
        time.sleep(2 * PROGRESS_INTERVAL_S)
        while server.core.applied(0) < writer.next_sequence:
            server.core.consume(60.0)
        assert server.core.stats(0)["applied"] == step
    if n > 8:
        assert len(entries) >= n_pushes
    else:
        # An interruption of this process makes a push look long.
        assert len(entries) < n_pushes // 2


class Endless:
    """Make a server whose rule writes the next record while it applies one, so that records never end.

    After `most_s` it gives up, or a server that never looks up would run for ever.
    """

    def __init__(self, progress=None, most_s: float = 3.0) -> None:
        def apply(values, state, update, step) -> None:
            values -= update
            self.gave_up = self.gave_up or time.monotonic() > end
            if not self.enough and not self.gave_up:
                self.feed()

        table = DenseTable("w", (8,), PythonRule(apply), ASP())
        placement = place([table], 1, 1, 4, 1024)
        regions = Regions(new_token(), shared=False)
        self.server = Server(0, [table], placement, regions, 0, True, progress)
        layout = placement.layouts[0]
        self.writer = make_writer(self.server.region, layout, 0, 1)
        self.enough = self.gave_up = False
        end = time.monotonic() + most_s

    def feed(self) -> None:
        assert self.writer.push_dense(0, 0, np.ones(8, np.float32), None, 0) == 8


@pytest.mark.parametrize("remote", [True, False])
def test_a_server_to_which_records_always_come_looks_at_the_scheduler_and_at_mpi(remote):
    entries, polls = [], []
    endless = Endless(lambda: entries.append(1) or 0)
    endless.feed()

    def poll() -> bool:
        polls.append(len(entries))
        endless.enough = len(polls) >= 5
        return False

    endless.server.serve(remote, poll, lambda: endless.enough)
    assert not endless.gave_up
    assert len(polls) == 5
    if remote:
        # The server has entered MPI between two polls of the scheduler.
        assert polls == sorted(set(polls))
        assert polls[0] > 0


def test_all_rings_have_their_turns_however_short_the_time_is():
    rig = Rig(dense(16_000), n_workers=3, n_slots=4, slot_bytes=65_536)
    update = np.ones(16_000, np.float32)
    for writer in rig.writers:
        for _ in range(3):
            assert writer.push_dense(0, 0, update, None, 0) == update.size
    taken = []
    for _ in range(9):
        assert rig.core.consume(0.0) == 1
        taken.append([rig.core.applied(w) for w in range(3)])
    assert taken[2] == [1, 1, 1]
    assert taken[5] == [2, 2, 2]
    assert taken[8] == [3, 3, 3]
    assert rig.core.consume(0.0) == 0
    assert (rig.values() == -9).all()


def test_without_a_limit_everything_is_consumed():
    rig = Rig(dense(16_000), n_workers=3, n_slots=4, slot_bytes=65_536)
    for writer in rig.writers:
        for _ in range(3):
            writer.push_dense(0, 0, np.ones(16_000, np.float32), None, 0)
    assert rig.core.consume(60.0) == 9
    assert rig.core.consume(60.0) == 0
