"""Changes of hyperparameters survive kills and restarts; replicas have them, too."""

from __future__ import annotations

from dataclasses import replace

import configure_rig
import crash_rig
import numpy as np
import pytest
from configure_rig import crash, in_force
from harness import dense, rows
from journal_rig import Rig
from long_runs import taking_turns

from mpips import _native
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import SGD, Adam
from mpips.transport.region import new_token, persistent, unlink_job

LOADS = configure_rig.loads()
PAIRS = [name for name, load in LOADS.items() if load.partner]
ALONE = [name for name in LOADS if name.startswith("alone")]
OTHERS = [name for name in LOADS if name not in (*PAIRS, *ALONE)]
MODELS = {"asp": ASP(), "ssp": SSP(bound=1), "bsp": BSP("sum")}
STRIDE = 3  # `python configure_rig.py alone-bsp everywhere 1` kills at every point
ONES = np.ones(8, np.float32)


@pytest.mark.sampled
@pytest.mark.parametrize("load", ALONE)
def test_killed_all_over_the_record_the_bits_are_those_of_an_undisturbed_run(load):
    points, tried, kills = crash(load, "everywhere", STRIDE)
    assert points > 60
    assert kills > tried


@pytest.mark.sampled
@pytest.mark.parametrize("load", taking_turns([*OTHERS, *PAIRS], 4 if crash_rig.SANITIZED else 2))
def test_killed_at_many_points_the_bits_are_those_of_an_undisturbed_run(load):
    _, tried, kills = crash(load, "everywhere", 61)
    assert kills > tried


@pytest.mark.long
@pytest.mark.sampled
def test_killed_again_at_any_point_of_the_recovery():
    _, tried, kills = crash("alone-asp", "twice", 7)
    assert kills > 24 * tried


def test_many_short_lives():
    (lives,) = crash("adam-bsp", "shortly", 150)
    assert lives > 5


@pytest.mark.parametrize("name", PAIRS)
def test_the_copy_has_the_hyperparameters_of_its_server(name):
    token = persistent(new_token())
    try:
        launch = configure_rig.ChangingLife(token, LOADS[name], 0)
        launch.run()
        server = launch.result()
        launch.core = launch.pair.copy.core
        crash_rig.compare(launch.result(), server, "the copy")
        assert in_force(launch.core, 0)[0] == LOADS[name].clocks
    finally:
        unlink_job(token)


# One server, step by step.


@pytest.fixture
def make_rig():
    rigs = []

    def make(*tables, **options):
        rigs.append(Rig(*tables, **{"n_slots": 16, **options}))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.leave()
        unlink_job(rig.token)


def push(writer, clock, table=0):
    assert writer.push_dense(table, clock, ONES, None, 0) == 8


def configure(writer, optimizer, clock, ordinal=0, table=0):
    assert writer.configure(table, clock, ordinal, optimizer.native())


def lr_of(rig, table=0):
    return rig.core.optimizer(table).lr


@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_restart_continues_with_the_hyperparameters_in_force(make_rig, model, consumed):
    rule = Adam(0.5, beta1=0.0, beta2=0.0)
    rig = make_rig(dense(8, "a", consistency=model, optimizer=rule), dense(8, "b"))
    configure(rig.writer, replace(rule, lr=0.25, beta1=0.5), 0)
    push(rig.writer, 0)
    rig.writer.tick(0)
    if consumed:
        rig.drain()
    rig.again()
    rig.drain()
    found = rig.core.optimizer(0)
    assert (found.lr, found.beta1, rig.core.configured_at(0)) == (0.25, 0.5, 1)
    assert (lr_of(rig, 1), rig.core.configured_at(1)) == (1.0, 0)
    # What the next launch sets replaces it.
    configure(rig.writer, replace(rule, lr=0.125), 1)
    rig.drain()
    rig.again(2)
    assert (lr_of(rig), rig.core.configured_at(0)) == (0.125, 2)


def test_hyperparameters_in_force_count_and_not_those_that_are_declared(make_rig):
    rig = make_rig(dense(8, "a"), rows(4, "e"))
    configure(rig.writer, SGD(0.5), 0)
    rig.drain()
    rig.tables = [replace(table, optimizer=SGD(8.0)) for table in rig.tables]
    rig.again()
    assert (lr_of(rig, 0), lr_of(rig, 1)) == (0.5, 8.0)
    push(rig.writer, 0)
    rig.drain()
    assert (rig.core.dense_values(0) == -0.5).all()


def test_a_worker_that_repeats_its_clock_after_a_restart_may_bring_other_values(make_rig):
    rig = make_rig(dense(8, "a", consistency=BSP("sum")))
    configure(rig.writer, SGD(0.5), 0)
    rig.drain()
    rig.again()
    configure(rig.writer, SGD(0.25), 0)
    rig.drain()
    assert lr_of(rig) == 0.25


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_change_of_a_clock_that_has_ended_here_is_not_written_again(make_rig, model):
    rig = make_rig(dense(8, "a", consistency=model))
    configure(rig.writer, SGD(0.5), 0)
    push(rig.writer, 0)
    rig.writer.tick(0)
    (at,) = rig.repeat()
    configure(rig.writer, SGD(0.5), 0)
    push(rig.writer, 0)
    assert rig.writer.tick(0)
    assert rig.writer.next_sequence == at["sequence"]
    rig.drain()
    configure(rig.writer, SGD(0.25), 1)
    push(rig.writer, 1)
    assert rig.writer.tick(1)
    rig.drain()
    assert (rig.core.dense_values(0) == -0.75).all()


@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_repeated_clock_repeats_its_changes_without_effect(make_rig, model, consumed):
    rig = make_rig(dense(8, "a", consistency=model), n_workers=2)

    def clock(writer):
        configure(writer, SGD(8.0), 0)
        configure(writer, SGD(0.5), 0, 1)
        push(writer, 0)

    clock(rig.writer)
    if consumed:
        rig.drain()
    (at, _) = rig.repeat()
    assert (at["clock"], at["pushes"]) == (0, 1)
    # The repeated first change comes behind the second one, and the other worker pushes then.
    configure(rig.writer, SGD(8.0), 0)
    rig.drain()
    other = rig.writers[1]
    if not isinstance(model, BSP):
        push(other, 0)
        rig.drain()
        assert (rig.core.dense_values(0) == -1.0).all()
    configure(rig.writer, SGD(0.5), 0, 1)
    push(rig.writer, 0)
    assert rig.writer.next_sequence == at["sequence"] + 2
    rig.writer.tick(0)
    if isinstance(model, BSP):
        clock(other)
    other.tick(0)
    other = None
    rig.drain()
    assert (rig.core.dense_values(0) == -1.0).all()


def test_a_finished_worker_writes_no_change(make_rig):
    rig = make_rig(dense(8, "a"))
    rig.writer.finish(0)
    (at,) = rig.repeat()
    configure(rig.writer, SGD(0.5), 0)
    assert rig.writer.next_sequence == at["sequence"]


def test_no_change_follows_a_repetition_that_differs(make_rig):
    rig = make_rig(dense(8, "a"))
    push(rig.writer, 0)
    rig.repeat()
    with pytest.raises(_native.ReplayMismatch, match="makes 0 pushes"):
        rig.writer.tick(0)
    with pytest.raises(_native.ReplayMismatch, match="makes 0 pushes"):
        configure(rig.writer, SGD(0.5), 5)


def test_with_backup_workers_a_change_says_nothing_of_the_workers_clock(make_rig):
    """A worker that skipped clocks and sent only a change since is where its last tick was."""
    rig = make_rig(dense(8, "a", consistency=BSP("sum", backup=1)), n_workers=2)
    rig.writer.tick(0)
    configure(rig.writer, SGD(0.5), 3)
    (at, _) = rig.repeat(skips_clocks=True)
    assert (at["clock"], at["sequence"]) == (1, 2)
