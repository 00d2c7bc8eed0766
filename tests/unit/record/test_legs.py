"""The legs of a run that restarted from checkpoints: each ends with the values of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from attempts_rig import (
    FINISH,
    ONE,
    PULL,
    TICK,
    entry,
    from_checkpoint,
    put,
    steps_of,
    write,
)
from record_rig import Job, content, draw_tables, read_files

from mpips.errors import ConfigError, DifferenceError
from mpips.model.consistency import ASP, SSP
from mpips.model.optimizer import Adam
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.record.files import NO_STOP, End, recorded_attempts
from mpips.record.legs import legs_of, stops_at
from mpips.record.reading import read_order
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
    found = recorded_attempts(run)
    assert (found.numbers, list(found.left_out)) == ([0], [1])
    with pytest.raises(ConfigError, match=r"worker-1\.rec: is missing: .* of the attempts 0"):
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
    put(run, 0, "worker", 1, steps_of(2), None)
    with pytest.raises(ConfigError, match=r"worker-1\.rec: ends before clock 3 of worker 1"):
        legs_of(run)


@pytest.mark.parametrize(
    ("file", "size", "named"),
    [
        ("server-0", 40, r"server-0\.rec: is damaged"),
        ("worker-1", 0, r"worker-1\.rec: is empty"),
        ("worker-0", None, r"worker-0\.rec: is missing"),
    ],
)
def test_the_file_is_named_without_which_a_start_has_no_attempt_before_it(file, size, named, run):
    write(run, 0, (6, 5))
    write(run, 1, (4, 4), ended=True, **from_checkpoint(0, 4, 3))
    path = run.path / "record" / "attempt-0" / f"{file}.rec"
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(
        ConfigError, match=rf"no recorded attempt .* attempt 0 is left out: .*{named}"
    ):
        legs_of(run)


def test_a_run_of_which_no_attempt_can_be_read_names_the_files(run):
    with pytest.raises(ConfigError, match=r"contains no record; set monitor\.record = true"):
        legs_of(run)
    put(run, 3, "server", 0, b"", None)
    with pytest.raises(ConfigError, match=r"attempt 3 is left out: .*worker-0\.rec: is missing"):
        legs_of(run)


def test_the_last_attempt_must_have_ended(run):
    write(run, 0, (2, 2))
    with pytest.raises(ConfigError, match="has no end"):
        legs_of(run)


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
