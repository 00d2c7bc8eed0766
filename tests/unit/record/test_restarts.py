"""The history check over restarts from checkpoints: what is a break, and what a record only lacks."""

from __future__ import annotations

import pytest
from attempts_rig import ONE, TICK, attempts_of, entry, from_checkpoint, order_of
from record_rig import content, varint

from mpips.record.files import End
from mpips.record.history import check_history
from mpips.record.restarts import check_restarts

STORE = 0x18  # changes values as a push does


def test_a_restart_from_a_cut_has_no_break():
    head = from_checkpoint(0, 2, 2)
    found = check_restarts(attempts_of(order_of((4, 3)), order_of((2, 2)), head_1=head))
    assert (found.breaks, found.notes, found.n_checked) == ([], [], 1)


def test_a_record_of_a_lost_clock_is_a_gap():
    head = from_checkpoint(0, 3, 4)
    [found] = check_restarts(attempts_of(order_of((4, 3)), b"", head_1=head)).breaks
    assert found.startswith("restart: server 0 of attempt 0 has not consumed the tick of clock 3")


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (End(limited_at=9), "ends because of monitor.record_mib"),
        # It was killed, and the file was cut off.
        (None, "has no end"),
    ],
)
def test_what_a_file_lacks_because_it_ends_early_is_a_note(end, why):
    head = from_checkpoint(0, 4, 4)
    found = check_restarts(attempts_of(order_of((4, 3)), b"", head_1=head, end=end))
    assert found.breaks == []
    [note] = found.notes
    assert note.startswith(
        f"restart: the record of server 0 of attempt 0 {why}, and lacks the tick of "
    )
    assert "clock 3 of worker 1, which is before the start of attempt 1" in note
    # One note for a file, whatever number of workers it lacks.
    head = from_checkpoint(0, 9, 9)
    assert len(check_restarts(attempts_of(order_of((4, 3)), b"", head_1=head, end=end)).notes) == 1


@pytest.mark.parametrize("end", [End(limited_at=9), None])
def test_a_gap_in_a_file_that_ends_early_is_a_break(end):
    # Worker 0 goes on behind the cut without the tick before it.
    order = entry(TICK, 1) + entry(STORE, 0, 0) + bytes([15, 0, 2, 1]) + entry(STORE, 0, 0)
    found = check_restarts(attempts_of(order, b"", head_1=from_checkpoint(0, 1, 1), end=end))
    assert found.notes == []
    assert found.breaks[0].startswith("restart: server 0 of attempt 0 has not consumed the tick of")


def test_a_start_before_the_attempt_is_a_gap():
    early = {**from_checkpoint(0, 1, 2)}
    attempts = attempts_of(order_of((2, 2)), b"", head_0={"begin": (2, 2)}, head_1=early)
    assert "begins at clock 1, before attempt 0 began" in check_restarts(attempts).breaks[0]


def test_a_push_behind_the_cut_that_came_before_it_is_named():
    ahead = entry(TICK, 0) + entry(STORE, 0, 0) + entry(TICK, 1) + entry(TICK, 0)
    [found] = check_restarts(attempts_of(ahead, b"", head_1=from_checkpoint(0, 1, 1))).breaks
    assert "cut: server 0 of attempt 0 consumed record 1 of worker 0 (clock 1)" in found
    assert "before record 0 of worker 1 (clock 0)" in found
    behind = entry(TICK, 0) + entry(TICK, 1) + entry(STORE, 0, 0)
    assert check_restarts(attempts_of(behind, b"", head_1=from_checkpoint(0, 1, 1))).breaks == []


def test_a_start_from_a_checkpoint_of_no_recorded_attempt_is_a_note():
    head = from_checkpoint(7, 2, 2)
    found = check_restarts(attempts_of(order_of((4, 3)), order_of((2, 2)), head_1=head))
    assert (found.breaks, found.n_checked) == ([], 0)
    [note] = found.notes
    assert note.startswith(
        "restart: attempt 1 began from checkpoint step-2, and the attempt that wrote"
    )


def test_a_start_with_other_numbers_of_ranks_is_a_note():
    attempts = attempts_of(
        order_of((4, 3)), b"", head_1={**from_checkpoint(0, 2, 2, 2), "n_workers": 3}
    )
    found = check_restarts(attempts)
    assert (found.breaks, found.n_checked) == ([], 0)
    assert "with other numbers of ranks than attempt 0 had" in found.notes[0]


@pytest.mark.parametrize(
    ("end", "n_breaks", "note"),
    [(End(), 1, ""), (None, 0, "has no end"), (End(limited_at=1), 0, "ends early because of")],
)
def test_the_end_that_a_killed_or_full_server_lacks_is_no_break(end, n_breaks, note):
    # The worker has ended two clocks; the file of the server has the first one.
    tick = b"\x03" + varint(0) + varint(1)
    server = content("server", 0, entry(TICK, 0), ONE, end=end)
    first = b"\x03" + varint(0) + varint(0)
    checked = check_history([server], [content("worker", 0, first + tick, ONE)])
    assert len(checked.breaks) == n_breaks
    assert note in "".join(checked.notes)
