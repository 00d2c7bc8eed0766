"""How a server with remote peers enters MPI: again at once while bytes come, and not for ever."""

from __future__ import annotations

import time

from harness import dense

from mpips.placement import place
from mpips.server import PROGRESS_INTERVAL_S, Server
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


def test_a_message_ends_it():
    entries = []

    def progress():
        entries.append(1)
        busy(20e-6)
        return 3

    assert server_with(progress)._enter_mpi()[:2] == (3, 1)
    assert len(entries) == 1
