"""The legs of a run that restarted from checkpoints: each ends with the values of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from record_rig import Job, content, draw_tables, read_files, varint

from mpips.errors import ConfigError, DifferenceError
from mpips.model.consistency import ASP, SSP
from mpips.model.optimizer import Adam
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.record.files import (
    DATA,
    END,
    HEAD,
    NO_STOP,
    End,
    RecordedTable,
    block,
    recorded_attempts,
)
from mpips.record.history import check_history
from mpips.record.legs import legs_of, stops_at
from mpips.record.reading import read_order
from mpips.record.restarts import RecordedAttempt, check_restarts
from mpips.rundir.directory import RunFolder

TABLES = [
    DenseTable("w", (40,), optimizer=Adam(0.1), consistency=ASP()),
    EmbeddingTable("e", 3, optimizer=Adam(0.1), consistency=ASP()),
]


def shape_of(seed):
    """Tables, servers, workers and clocks; and the clocks of a cut."""
    rng = np.random.default_rng([seed, 11])
    tables = draw_tables(rng)
    shape = tables, int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(4, 9))
    cuts = rng.integers(1, shape[3], shape[2]).tolist()
    if any(isinstance(table.consistency, SSP) for table in tables):
        cuts = [cuts[0]] * shape[2]
    return shape, cuts


@pytest.mark.parametrize("seed", range(12))
def test_a_leg_ends_with_the_values_of_the_checkpoint(seed, tmp_path):
    shape, cuts = shape_of(seed)
    job = Job(*shape, turns=seed, folder=tmp_path, cuts=cuts)
    digests = job.run()
    assert len(job.at_cut) == shape[1]
    expected = [job.at_cut[s] for s in range(shape[1])]
    record = read_files(tmp_path, job)
    stops = stops_at([read_order(file) for file in record[0]], cuts)
    assert stops == tuple(cuts)
    for turns in (200, 201):
        assert Job(*shape, turns=turns, record=record, stops=stops).run() == expected
    assert Job(*shape, turns=202, record=record).run() == digests


def test_the_values_at_a_checkpoint_are_others_than_at_the_end(tmp_path):
    # Without this, a replay that ignores its stops might pass the test above.
    job = Job(TABLES, 2, 2, 6, turns=1, folder=tmp_path, cuts=[3, 3])
    assert job.run() != [job.at_cut[s] for s in range(2)]


def test_a_worker_that_finished_before_the_copy_ends_in_the_leg(tmp_path):
    # Worker 0 writes no record of the cut: its last clock comes before it.
    job = Job(TABLES, 1, 2, 4, turns=3, folder=tmp_path, cuts=[99, 4])
    job.run()
    record = read_files(tmp_path, job)
    orders = [read_order(file) for file in record[0]]
    stops = stops_at(orders, [4, 4])
    found = Job(TABLES, 1, 2, 4, turns=5, record=record, stops=stops).run()
    assert found == [job.at_cut[0]]


def entry(kind, worker, table=None):
    return bytes([kind, worker]) + (varint(table) if table is not None else b"")


PULL, TICK, FINISH = 0x73, 0x74, 0x75
ONE = [RecordedTable("e", "embedding", "asp")]


@pytest.mark.parametrize(
    ("order", "stops"),
    [
        # Worker 1 had ended before a record of worker 0 that is in the checkpoint.
        ([(1, TICK), (1, FINISH), (0, PULL), (0, TICK)], (1, NO_STOP)),
        ([(1, TICK), (0, PULL), (0, TICK), (1, FINISH)], (1, 1)),
        # What follows is behind the checkpoint.
        ([(1, TICK), (0, TICK), (1, FINISH), (0, PULL)], (1, 1)),
    ],
)
def test_a_worker_stops_at_its_clock_or_had_ended_before(order, stops):
    data = b"".join(entry(kind, w, 0 if kind == PULL else None) for w, kind in order)
    file = content("server", 0, data, ONE, n_workers=2)
    assert stops_at([read_order(file)], [1, 1]) == stops


# Which attempts count.


def order_of(clocks, pulls=1):
    """The record of a server whose workers took turns, as far as these clocks."""
    data = b""
    for clock in range(max(clocks)):
        for w, end in enumerate(clocks):
            if clock < end:
                data += entry(PULL, w, 0) * pulls + entry(TICK, w)
    return data


def steps_of(clock):
    return b"".join(b"\x03" + varint(0) + varint(2) for _ in range(clock))


def write(run, attempt, clocks, *, ended=False, n_servers=1, **head):
    """Write the record of an attempt of one server and two workers."""
    files = [("server", s, order_of(clocks)) for s in range(n_servers)]
    files += [("worker", w, steps_of(clock)) for w, clock in enumerate(clocks)]
    folder = run.path / "record" / f"attempt-{attempt}"
    folder.mkdir(parents=True)
    for role, index, data in files:
        made = content(role, index, data, ONE, n_servers, 2).head
        made = msgspec.structs.replace(made, writes=attempt, begin=(0, 0))
        made = msgspec.structs.replace(made, **head)
        blocks = block(HEAD, msgspec.json.encode(made)) + block(DATA, data)
        blocks += block(END, msgspec.json.encode(End())) if ended else b""
        (folder / f"{role}-{index}.rec").write_bytes(blocks)


def from_checkpoint(origin, *begin):
    return {"start": f"checkpoint step-{max(begin)}", "origin": origin, "begin": begin}


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def test_legs_follow_the_checkpoints_from_which_attempts_began(run):
    write(run, 0, (6, 5))
    write(run, 1, (3, 2), **from_checkpoint(0, 4, 3))  # killed before its first checkpoint
    write(run, 2, (5, 5), **from_checkpoint(0, 4, 3))
    write(run, 3, (4, 4), ended=True, **from_checkpoint(2, 6, 7))
    legs = legs_of(run)
    assert [leg.attempt for leg in legs] == [0, 2, 3]
    assert [leg.stops for leg in legs] == [(4, 3), (2, 4), ()]


def test_one_attempt_that_began_anew_is_one_leg(run):
    write(run, 0, (2, 2))
    write(run, 1, (4, 4), ended=True)
    [leg] = legs_of(run)
    assert (leg.attempt, leg.stops) == (1, ())


def test_an_attempt_without_all_files_has_no_record(run):
    write(run, 0, (2, 2), ended=True)
    write(run, 1, (2, 2))
    (run.path / "record" / "attempt-1" / "worker-1.rec").unlink()
    assert recorded_attempts(run) == [0]
    with pytest.raises(ConfigError, match=r"there are records of the attempts 0"):
        legs_of(run, 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"origin": 7}, "which no recorded attempt of .* has written"),
        ({"begin": (8, 3)}, r"server-0\.rec: ends before clock 8 of worker 0"),
        ({"n_servers": 2}, "a run that changes its size is not repeated"),
    ],
)
def test_a_chain_that_is_not_whole_is_refused_with_the_reason(change, named, run):
    write(run, 0, (6, 5))
    n_servers = change.get("n_servers", 1)
    head = from_checkpoint(0, 4, 3) | change
    head.pop("n_servers", None)
    write(run, 1, (4, 4), ended=True, n_servers=n_servers, **head)
    with pytest.raises(ConfigError, match=named):
        legs_of(run)


def test_a_worker_file_that_ends_before_the_checkpoint_is_named(run):
    write(run, 0, (6, 5))
    write(run, 1, (4, 4), ended=True, **from_checkpoint(0, 4, 3))
    path = run.path / "record" / "attempt-0" / "worker-1.rec"
    head = content("worker", 1, b"", ONE, 1, 2).head
    made = msgspec.structs.replace(head, writes=0, begin=(0, 0))
    path.write_bytes(block(HEAD, msgspec.json.encode(made)) + block(DATA, steps_of(2)))
    with pytest.raises(ConfigError, match=r"worker-1\.rec: ends before clock 3 of worker 1"):
        legs_of(run)


def test_the_last_attempt_must_have_ended(run):
    write(run, 0, (2, 2))
    with pytest.raises(ConfigError, match="has no end"):
        legs_of(run)


# The history check over restarts.


def attempts_of(*data, **heads):
    """Attempts of one server and two workers, from the entries of the server."""
    found = []
    for i, order in enumerate(data):
        servers = [content("server", 0, order, ONE, 1, 2)]
        workers = [content("worker", w, b"", ONE, 1, 2) for w in range(2)]
        head = {"writes": i, "begin": (0, 0), **heads.get(f"head_{i}", {})}
        made = [
            msgspec.structs.replace(f, head=msgspec.structs.replace(f.head, **head))
            for f in (*servers, *workers)
        ]
        found.append(RecordedAttempt(i, made[:1], made[1:]))
    return found


def test_a_restart_from_a_cut_has_no_break():
    head = from_checkpoint(0, 2, 2)
    assert check_restarts(attempts_of(order_of((4, 3)), order_of((2, 2)), head_1=head)) == []


def test_a_record_of_a_lost_clock_is_a_gap():
    head = from_checkpoint(0, 3, 4)
    [found] = check_restarts(attempts_of(order_of((4, 3)), b"", head_1=head))
    assert found.startswith("restart: server 0 of attempt 0 has not consumed the tick of clock 3")


def test_a_start_before_the_attempt_is_a_gap():
    early = {**from_checkpoint(0, 1, 2)}
    attempts = attempts_of(order_of((2, 2)), b"", head_0={"begin": (2, 2)}, head_1=early)
    assert "begins at clock 1, before attempt 0 began" in check_restarts(attempts)[0]


def test_a_push_behind_the_cut_that_came_before_it_is_named():
    # A store changes values as a push does.
    ahead = entry(TICK, 0) + entry(0x18, 0, 0) + entry(TICK, 1) + entry(TICK, 0)
    [found] = check_restarts(attempts_of(ahead, b"", head_1=from_checkpoint(0, 1, 1)))
    assert "cut: server 0 of attempt 0 consumed record 1 of worker 0 (clock 1)" in found
    assert "before record 0 of worker 1 (clock 0)" in found
    behind = entry(TICK, 0) + entry(TICK, 1) + entry(0x18, 0, 0)
    assert check_restarts(attempts_of(behind, b"", head_1=from_checkpoint(0, 1, 1))) == []


def test_a_server_that_comes_to_its_checkpoint_too_early_is_named(tmp_path):
    job = Job(TABLES, 1, 2, 4, turns=1, folder=tmp_path, cuts=(3, 3))
    job.run()
    again = Job(TABLES, 1, 2, 4, turns=2, record=read_files(tmp_path, job), stops=(3, 3))
    with pytest.raises(DifferenceError, match="came to the checkpoint after 0 records"):
        again.server_records[0].note_copy()
    again.run()
    again.server_records[0].note_copy()


def test_flushed_entries_are_in_the_file(tmp_path):
    from mpips.record.files import read_record
    from mpips.record.writer import RecordFile

    head = content("worker", 0, b"", ONE).head
    file = RecordFile(tmp_path / "worker-0.rec", head, 1)
    for n in range(1, 50):
        assert file.put(b"x")
        file.flush()
        assert read_record(Path(tmp_path / "worker-0.rec")).data == b"x" * n
    assert file.close(End()) == ""


@pytest.mark.parametrize(("server_ended", "n_breaks"), [(True, 1), (False, 0)])
def test_the_lost_end_of_a_killed_server_is_no_break(server_ended, n_breaks):
    # The worker has ended two clocks; the file of the server has the first one.
    tick = b"\x03" + varint(0) + varint(1)
    server = content("server", 0, entry(TICK, 0), ONE, end=End() if server_ended else None)
    first = b"\x03" + varint(0) + varint(0)
    checked = check_history([server], [content("worker", 0, first + tick, ONE)])
    assert len(checked.breaks) == n_breaks
    assert bool(checked.notes) != server_ended
