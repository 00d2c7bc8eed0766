"""The history check finds every planted break, and no break in records of right jobs (test_replay.py)."""

from __future__ import annotations

import pytest
from record_rig import content, varint, zigzag

from mpips.errors import ConfigError
from mpips.record.files import End, RecordedTable
from mpips.record.history import check_history

DENSE, ROWS, SUMS = (
    RecordedTable("w", "dense", "asp", max_staleness=2),
    RecordedTable("e", "embedding", "ssp", bound=1),
    RecordedTable("b", "dense", "bsp"),
)
TABLES = [DENSE, ROWS, SUMS]
PUSH, PUSH_ROWS, PULL, TICK, FINISH = 1, 2, 3, 4, 5
APPLIED, REJECTED, SUMMED, ANSWERED = 1, 4, 6, 7


def push(worker, staleness=0, outcome=APPLIED):
    return bytes([PUSH | outcome << 4]) + varint(worker) + varint(0) + varint(staleness) + b"\x55"


def push_rows(worker):
    return bytes([PUSH_ROWS | APPLIED << 4]) + varint(worker) + varint(1) + varint(0) + b"\x55"


def push_sum(worker):
    return bytes([PUSH | SUMMED << 4]) + varint(worker) + varint(2) + b"\x55"


def pull_rows(worker):
    return bytes([PULL | ANSWERED << 4]) + varint(worker) + varint(1)


def tick(worker):
    return bytes([TICK | ANSWERED << 4]) + varint(worker)


def finish(worker):
    return bytes([FINISH | ANSWERED << 4]) + varint(worker)


def jump(worker, sequence, clock):
    return b"\x0f" + varint(worker) + varint(sequence) + varint(clock)


def saw(own, version, before, runs=()):
    """A pull of table w, `own` records after the last entry, with a version and the one before it."""
    head = b"\x02" if runs else b"\x01"
    data = head + varint(0) + varint(0) + varint(own) + zigzag(version - before)
    if runs:
        data += varint(len(runs)) + b"".join(varint(n) + zigzag(u - version) for n, u in runs)
    return data


def saw_rows(sequence, before, version, version_before):
    return (
        b"\x04"
        + varint(1)
        + varint(0)
        + zigzag(sequence - before)
        + zigzag(version - version_before)
    )


def ended(own, clock_difference=0):
    return b"\x03" + zigzag(clock_difference) + varint(own)


def last(own):
    return b"\x05" + zigzag(0) + varint(own)


# Two workers, two clocks each. Worker 0: push, pull, tick | push rows, pull rows, tick | end.
ORDER = [
    push(0),  # record 0 of worker 0: version 1
    push(1),  # record 0 of worker 1: version 2
    tick(0),  # 1
    tick(1),  # 1
    push_sum(0),  # 2
    push_rows(0),  # 3
    push_sum(1),  # 2
    pull_rows(0),  # 4
    tick(0),  # 5
    push(1, staleness=3, outcome=REJECTED),  # 3
    tick(1),  # 4
    finish(0),  # 6
    finish(1),  # 5
]
STEPS = [
    [saw(1, 2, 0), ended(0), saw_rows(4, 0, 1, 0), ended(4), last(1)],
    [ended(1), saw(1, 2, 0, [(1, 2)]), ended(2), last(1)],
]


def breaks(order=ORDER, steps=STEPS, end=End()):  # noqa: B008 (frozen)
    servers = [content("server", 0, b"".join(order), TABLES, n_workers=2, end=end)]
    workers = [
        content("worker", w, b"".join(of), TABLES, n_workers=2, end=end)
        for w, of in enumerate(steps)
    ]
    return check_history(servers, workers)


def edited(which, *changes):
    """Return a list with some entries replaced, left out (None) or followed by others (a list)."""
    found = [[entry] for entry in which]
    for at, new in changes:
        found[at] = [] if new is None else new if isinstance(new, list) else [new]
    return [entry for entries in found for entry in entries]


def of_worker(w, *changes):
    return [edited(steps, *changes) if i == w else steps for i, steps in enumerate(STEPS)]


def test_the_record_of_a_right_job_has_no_break():
    found = breaks()
    assert (found.breaks, found.notes) == ([], [])
    assert (found.n_records, found.n_pulls) == (13, 2)


PLANTED = {
    # One push twice, and one not at all: the worker's own numbers are against it.
    "a push applied twice": ("once", {"order": edited(ORDER, (0, [push(0), push(0)]))}),
    "a push that was lost": ("once", {"order": edited(ORDER, (1, None))}),
    "a repeated record": (
        "once: server 0: record 0 of worker 0 (push, clock 1) was consumed again",
        {"order": edited(ORDER, (5, [jump(0, 0, 1), push_rows(0)]))},
    ),
    "a gap": (
        "once: server 0: record 9 of worker 0 (push, clock 1) was consumed without record 3",
        {"order": edited(ORDER, (5, [jump(0, 9, 1), push_rows(0)]))},
    ),
    "an end that was lost": (
        "once: server 0 has not consumed record 5 of worker 1, its end of clock 2",
        {"order": edited(ORDER, (12, None))},
    ),
    "a clock that is left out": (
        "clocks",
        {"order": edited(ORDER, (4, [jump(0, 2, 3), push_sum(0)]))},
    ),
    "a stale push applied": ("reject", {"order": edited(ORDER, (9, push(1, staleness=3)))}),
    "a fresh push rejected": (
        "reject",
        {"order": edited(ORDER, (9, push(1, staleness=2, outcome=REJECTED)))},
    ),
    "a sum of an open clock": ("bsp", {"order": edited(ORDER, (3, push_sum(0)), (4, tick(1)))}),
    "rows beyond the bound": (
        "ssp",
        {
            "order": edited(
                ORDER, (3, [push_sum(0), push_rows(0), tick(0), jump(0, 5, 2), pull_rows(0)])
            )
        },
    ),
    "an own push that is not seen": ("own pushes", {"steps": of_worker(0, (0, saw(1, 0, 0)))}),
    "a version that goes back": (
        "monotonic",
        {"steps": of_worker(0, (0, [saw(1, 2, 0), saw(0, 1, 2)]))},
    ),
    "a block that goes back": (
        "monotonic",
        {"steps": of_worker(0, (0, [saw(1, 1, 0, [(1, 2)]), saw(0, 1, 1)]))},
    ),
    "a block older than the head": (
        "monotonic",
        {"steps": of_worker(1, (1, saw(1, 2, 0, [(1, 1)])))},
    ),
    "a value from the future": ("future", {"steps": of_worker(1, (1, saw(1, 2, 0, [(1, 3)])))}),
    "rows from the future": ("future", {"steps": of_worker(0, (2, saw_rows(4, 0, 2, 0)))}),
    "rows without an own push": ("own pushes", {"steps": of_worker(0, (2, saw_rows(4, 0, 0, 0)))}),
    "a tick that is another record": ("once", {"steps": of_worker(0, (3, ended(3)), (4, last(2)))}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_break_is_found(name):
    rule, changed = PLANTED[name]
    found = breaks(**changed).breaks
    start = rule if ":" in rule else f"{rule}: "
    assert any(line.startswith(start) for line in found), found


def test_a_pull_of_a_dense_table_beyond_the_bound_of_ssp_is_found():
    table = RecordedTable("w", "dense", "ssp", bound=0)
    order = [tick(0), push(0), tick(0), finish(0), tick(1), finish(1)]
    steps = [[ended(0), saw(1, 0, 0), ended(1), last(1)], [ended(0), last(1)]]

    def checked(bound):
        tables = [RecordedTable("w", "dense", "ssp", bound=bound)]
        servers = [content("server", 0, b"".join(order), tables, n_workers=2)]
        workers = [
            content("worker", w, b"".join(of), tables, n_workers=2) for w, of in enumerate(steps)
        ]
        return check_history(servers, workers).breaks

    assert table.bound == 0
    assert [line.partition(":")[0] for line in checked(0)] == ["ssp"]
    assert checked(1) == []


@pytest.mark.parametrize(
    ("bounds", "is_broken"),
    [
        (((1, 1),), False),  # 1 from the clock of the pull on
        (((0, 2), (1, 1), (2, 0)), False),
        (((2, 1),), True),  # too late
        (((0, 1), (1, 0)), True),
        ((), True),  # 0 before any decision
        (None, False),  # unknown: only the greatest bound is checked
    ],
)
def test_a_pull_is_checked_with_the_bound_in_force_at_its_clock(bounds, is_broken):
    tables = [RecordedTable("w", "dense", "ssp", bound=3, is_adaptive=True)]
    order = [tick(0), push(0), tick(0), finish(0), tick(1), finish(1)]
    steps = [[ended(0), saw(1, 0, 0), ended(1), last(1)], [ended(0), last(1)]]
    end = End(bounds=bounds)
    servers = [content("server", 0, b"".join(order), tables, n_workers=2, end=end)]
    workers = [
        content("worker", w, b"".join(of), tables, n_workers=2) for w, of in enumerate(steps)
    ]
    found = [line.partition(":")[0] for line in check_history(servers, workers).breaks]
    assert found == ["ssp"] * is_broken


def sum_of(worker):
    return bytes([PUSH | SUMMED << 4]) + varint(worker) + varint(0) + b"\x55"


# One clock under BSP, then pushes that count alone.
SWITCH_ORDER = [
    sum_of(0),
    tick(0),
    sum_of(1),
    tick(1),
    push(0),
    tick(0),
    push(1, staleness=1),
    finish(0),
    finish(1),
]


@pytest.mark.parametrize(
    ("changes", "pulls", "broken"),
    [
        ([], (1, 2, 1), []),
        ([], (1, 3, 2), []),
        # A push behind the switch is consumed while a worker is at the clock before it.
        ([(3, None), (4, [push(0), tick(1)])], (1, 2, 1), ["bsp", "future", "bsp"]),
        ([], (0, 2, 1), ["bsp"]),  # a pull behind the switch lacks the clock before it
        ([], (1, 1, 1), ["own pushes"]),
        ([], (1, 2, 3), ["future"]),
        ([], (2, 2, 1), ["future"]),
    ],
)
def test_each_pull_over_a_switch_is_checked_with_the_model_of_its_clock(changes, pulls, broken):
    tables = [RecordedTable("w", "dense", "switch", switch_at=1)]
    first, second, other = pulls
    steps = [
        [ended(1), saw(1, first, 0), ended(1), saw(1, second, first), last(0)],
        [ended(1), saw(1, other, 0), last(1)],
    ]
    order = edited(SWITCH_ORDER, *changes)
    servers = [content("server", 0, b"".join(order), tables, n_workers=2)]
    workers = [
        content("worker", w, b"".join(of), tables, n_workers=2) for w, of in enumerate(steps)
    ]
    found = [line.partition(":")[0] for line in check_history(servers, workers).breaks]
    assert found == broken


def test_a_pull_under_bsp_of_a_switch_sees_whole_clocks_only():
    tables = [RecordedTable("w", "dense", "switch", switch_at=2)]
    order = [sum_of(0), tick(0), finish(0)]
    servers = [content("server", 0, b"".join(order), tables, n_workers=1)]
    for version, broken in ((0, []), (1, ["bsp", "future"])):
        steps = [saw(0, version, 0), ended(1), last(1)]
        workers = [content("worker", 0, b"".join(steps), tables, n_workers=1)]
        found = [line.partition(":")[0] for line in check_history(servers, workers).breaks]
        assert found == broken


def test_a_threshold_that_servers_estimate_is_not_checked():
    tables = [RecordedTable("w", "dense", "asp", max_staleness=-2)]
    order = [push(0, staleness=9, outcome=REJECTED), tick(0), finish(0)]
    servers = [content("server", 0, b"".join(order), tables, n_workers=1)]
    workers = [content("worker", 0, ended(1) + last(1), tables, n_workers=1)]
    assert check_history(servers, workers).breaks == []


def test_a_record_without_ends_is_checked_as_far_as_it_goes():
    found = breaks(order=ORDER[:6], end=None)
    assert found.breaks == []
    assert len(found.notes) == 3


def test_a_limited_record_is_noted():
    assert "ends early" in breaks(end=End(limited_at=3)).notes[0]


@pytest.mark.parametrize(
    "data", [b"\x01", b"\x19\x00", b"\x14\x02", b"\x11\x00\x03\x00\x55", b"\xf4\x00"]
)
def test_damaged_entries_of_a_server_are_refused(data):
    with pytest.raises(ConfigError, match=r"server-0\.rec"):
        breaks(order=[data])


@pytest.mark.parametrize(
    "data", [b"\x01", b"\x00", b"\x06", b"\x01\x03\x00\x00\x00", b"\x01\x00\x01"]
)
def test_damaged_entries_of_a_worker_are_refused(data):
    with pytest.raises(ConfigError, match=r"worker-0\.rec"):
        breaks(steps=[[data], STEPS[1]])
