"""Hyperparameters that change while training goes on: when they take effect, and which record counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from configure_rig import configure
from harness import Rig, clock_of, dense, push_all, rows

from mpips import _native
from mpips.errors import ConfigError
from mpips.kernels import reference
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    Momentum,
)

Outcome = _native.Outcome
RULES = sorted(OPTIMIZERS)
NEW = {"lr": 0.3, "weight_decay": 0.25, "clip_value": 1.25}
OWN = {
    "momentum": 0.5,
    "beta1": 0.75,
    "beta2": 0.5,
    "rho": 0.25,
    "eps": 1e-3,
    "l1": 0.125,
    "l2": 0.5,
}


class Plain:
    """A table in NumPy, with values, state and steps."""

    def __init__(self, optimizer, n):
        config = optimizer.native()
        self.config, self.steps = config, 0
        self.values = np.zeros(n, np.float32)
        self.state = np.zeros((config.n_state, n), np.float32)
        for k in range(config.n_state):
            self.state[k] = config.initial_state(k)

    def apply(self, update, scale=1.0):
        self.steps += 1
        reference.update(self.config, self.values, self.state, update, self.steps, scale, 1.0)


def changed(rule):
    """Return the rule with other values for all hyperparameters that may change."""
    own = {name: value for name, value in OWN.items() if hasattr(rule, name)}
    return replace(rule, **NEW, **own)


def lr_of(rig, table=0):
    return rig.core.optimizer(table).lr


def updates(n, times, seed=0):
    return np.random.default_rng(seed).normal(size=(times, n)).astype(np.float32)


# The values.


@pytest.mark.parametrize("name", RULES)
def test_dense_values_after_a_change_are_those_of_the_reference(name):
    rule, n = OPTIMIZERS[name](lr=0.05), 77
    rig, plain = Rig(dense(n, optimizer=rule)), Plain(rule, n)
    for i, update in enumerate(updates(n, 8)):
        if i == 4:
            configure(rig, changed(rule))
            plain.config = changed(rule).native()
        push_all(rig.writers[0], 0, update, rig.drain)
        rig.drain()
        plain.apply(update)
        assert rig.values().tobytes() == plain.values.tobytes()


@pytest.mark.parametrize("name", RULES)
def test_rows_after_a_change_are_those_of_the_reference_with_steps_of_their_own(name):
    rule, dim = OPTIMIZERS[name](lr=0.05), 5
    rig = Rig(rows(dim, optimizer=rule))
    plain: dict[int, Plain] = {}
    config, rng = rule.native(), np.random.default_rng(1)
    for i in range(12):
        if i == 5:
            configure(rig, changed(rule))
            config = changed(rule).native()
        keys = rng.choice(20, 6, replace=False)
        update = rng.normal(size=(6, dim)).astype(np.float32)
        assert rig.writers[0].push_rows(0, 0, keys, update, None, 0) == 6
        rig.drain()
        for key, gradient in zip(keys.tolist(), update, strict=True):
            row = plain.setdefault(key, Plain(rule, dim))
            row.config = config
            row.apply(gradient)
    assert rig.table_rows() == {key: row.values.tolist() for key, row in plain.items()}


def test_betas_may_change_again_and_again():
    rule, n = Adam(0.1), 33
    rig, plain = Rig(dense(n, optimizer=rule)), Plain(rule, n)
    for i, update in enumerate(updates(n, 20)):
        rule = replace(rule, lr=0.1 / (1 + i), beta1=0.85 + 0.005 * (i % 7), beta2=0.9 + 0.004 * i)
        configure(rig, rule, ordinal=i)
        push_all(rig.writers[0], 0, update, rig.drain)
        rig.drain()
        plain.config = rule.native()
        plain.apply(update)
    assert rig.values().tobytes() == plain.values.tobytes()


def test_a_change_alone_moves_nothing_and_counts_no_update():
    rig = Rig(dense(optimizer=Momentum(1.0)))
    clock_of(rig, 0, 0, [3.0], tick=False)
    rig.drain()
    before, stats = rig.values(), rig.core.stats(0)
    sequence = configure(rig, Momentum(0.5, momentum=0.0))
    rig.drain()
    assert rig.writers[0].result(sequence)[0] == Outcome.ANSWERED
    assert (rig.values() == before).all()
    assert (rig.core.stats(0), rig.core.steps(0)) == (stats, 1)
    assert rig.writers[0].counters()["pushed"] == 1


def test_rows_made_after_a_change_begin_with_the_declared_accumulator():
    rule = Adagrad(1.0, initial_accumulator=15.0)
    rig = Rig(rows(1, optimizer=rule))
    configure(rig, replace(rule, lr=2.0))
    assert rig.writers[0].push_rows(0, 0, np.array([4]), np.ones((1, 1), np.float32), None, 0) == 1
    rig.drain()
    assert rig.table_rows() == {4: [-0.5]}  # 2 / sqrt(15 + 1)


# The clock of a change, under BSP.


def bsp_rig(backup=0, n_workers=2, **options):
    model = BSP("sum", backup=backup)
    return Rig(dense(3, consistency=model, **options), n_workers=n_workers, n_slots=16)


def test_a_change_is_held_until_its_clock():
    rig = bsp_rig()
    clock_of(rig, 0, 0, [1.0])
    held = configure(rig, SGD(0.5), 1)
    clock_of(rig, 0, 1, [8.0])
    rig.drain()
    assert (lr_of(rig), rig.core.applied(0)) == (1.0, held)
    clock_of(rig, 1, 0, [2.0])
    rig.drain()
    assert rig.values().tolist() == [-3.0] * 3  # clock 0 has the old rate
    assert (lr_of(rig), rig.core.configured_at(0)) == (0.5, 2)
    configure(rig, SGD(0.5), 1, worker=1)
    clock_of(rig, 1, 1, [16.0])
    rig.drain()
    assert rig.values().tolist() == [-15.0] * 3


@pytest.mark.parametrize("first", [0, 1])
def test_a_clock_closes_with_its_change_whichever_worker_is_first(first):
    rig = bsp_rig()
    for worker in (first, 1 - first):
        configure(rig, SGD(0.25), 0, worker=worker)
        # Worker 1 is not in its turn: its change takes effect and its push waits.
        clock_of(rig, worker, 0, [4.0])
        rig.drain()
        assert lr_of(rig) == 0.25
    assert rig.values().tolist() == [-2.0] * 3


def test_a_change_does_not_disturb_the_open_push_of_another_worker():
    rig = Rig(dense(1000, consistency=BSP("sum")), n_workers=2, n_slots=4)
    update = np.full(1000, 3.0, np.float32)
    done = rig.writers[0].push_dense(0, 0, update, None, 0)
    rig.drain()
    assert 0 < done < 1000
    configure(rig, SGD(0.5), worker=1)
    rig.drain()
    assert lr_of(rig) == 0.5
    while done < 1000:
        done = rig.writers[0].push_dense(0, 0, update, None, done)
        rig.drain()
    for writer in rig.writers:
        assert writer.tick(0)
    rig.drain()
    assert (rig.values() == -1.5).all()


def test_with_backup_workers_the_change_of_a_late_worker_is_ignored():
    rig = bsp_rig(backup=1, n_workers=3)
    for worker in (0, 1):
        configure(rig, SGD(0.5), 0, worker=worker)
        clock_of(rig, worker, 0, [1.0])
    rig.drain()
    configure(rig, SGD(0.25), 1, worker=0)
    rig.drain()
    late = configure(rig, SGD(0.5), 0, worker=2)
    rig.drain()
    assert rig.writers[2].result(late) == (Outcome.LATE, 1)
    assert (lr_of(rig), rig.core.configured_at(0)) == (0.25, 2)
    assert rig.values().tolist() == [-1.0] * 3


def test_a_slow_worker_of_a_clock_does_not_set_back_its_second_change():
    """With backup workers the clock may close between the slow worker's first and second change."""
    rig = bsp_rig(backup=1, n_workers=3)
    for worker in (0, 1):
        configure(rig, SGD(8.0), 0, worker=worker)
        configure(rig, SGD(0.5), 0, worker=worker, ordinal=1)
    rig.drain()
    configure(rig, SGD(8.0), 0, worker=2)
    rig.drain()
    for worker in (0, 1):
        clock_of(rig, worker, 0, [1.0])
    rig.drain()
    assert rig.values().tolist() == [-1.0] * 3


def test_workers_that_finish_leave_the_change_to_the_others():
    rig = bsp_rig()
    configure(rig, SGD(0.5), 0)
    assert rig.writers[0].finish(0)
    clock_of(rig, 1, 0, [6.0])
    rig.drain()
    assert rig.values().tolist() == [-3.0] * 3


@pytest.mark.parametrize("make", [dense, rows])
@pytest.mark.parametrize("first", [0, 1])
def test_workers_with_different_values_for_one_clock_are_refused(first, make):
    rig = Rig(make(3, "w", consistency=BSP("sum")), n_workers=2, n_slots=16)
    configure(rig, SGD(0.5), 0, worker=first)
    rig.drain()
    configure(rig, SGD(0.25), 0, worker=1 - first)
    with pytest.raises(
        ConfigError,
        match=f"workers {first} and {1 - first} have different hyperparameters for table 'w' at clock 0",
    ):
        rig.drain()


def test_a_worker_may_repeat_its_change_with_other_values():
    rig = bsp_rig()
    for lr in (0.5, 0.25):
        configure(rig, SGD(lr), 0)
        rig.drain()
        assert lr_of(rig) == lr


def test_a_worker_may_change_its_own_values_again_in_a_clock():
    rig = bsp_rig()
    for worker in range(2):
        configure(rig, SGD(0.5), 0, worker=worker)
        configure(rig, SGD(0.25), 0, worker=worker, ordinal=1)
        clock_of(rig, worker, 0, [4.0])
    rig.drain()
    assert (lr_of(rig), rig.values().tolist()) == (0.25, [-2.0] * 3)


# Other models.


@pytest.mark.parametrize("model", [ASP(), SSP(5)])
def test_of_different_values_for_one_clock_the_last_ones_count(model):
    rig = Rig(dense(3, consistency=model), n_workers=2, n_slots=16)
    for worker, lr in enumerate((0.5, 0.25)):
        configure(rig, SGD(lr), 0, worker=worker)
        rig.drain()
        assert lr_of(rig) == lr


@pytest.mark.parametrize("model", [ASP(), SSP(5)])
def test_a_slow_worker_does_not_set_the_rate_back(model):
    rig = Rig(dense(3, consistency=model), n_workers=2, n_slots=16)
    for clock in range(2):
        configure(rig, SGD(2.0**-clock), clock, worker=0)
        clock_of(rig, 0, clock, [4.0])
    rig.drain()
    assert (lr_of(rig), rig.values()[0]) == (0.5, -6.0)
    behind = configure(rig, SGD(1.0), 0, worker=1)
    clock_of(rig, 1, 0, [4.0])
    rig.drain()
    assert rig.writers[1].result(behind) == (Outcome.LATE, 1)
    assert (lr_of(rig), rig.values()[0]) == (0.5, -8.0)
    configure(rig, SGD(0.25), 1, worker=1, ordinal=1)
    clock_of(rig, 1, 1, [4.0])
    rig.drain()
    assert (lr_of(rig), rig.values()[0]) == (0.25, -9.0)


def test_an_asynchronous_table_beside_a_bsp_one_does_not_wait():
    tables = dense(3, consistency=BSP("sum")), dense(3, "a", consistency=ASP())
    rig = Rig(*tables, n_workers=2, n_slots=16)
    clock_of(rig, 0, 0, [1.0])
    configure(rig, SGD(0.5), 1, table=1)
    configure(rig, SGD(0.5), 1, table=0)
    rig.drain()
    assert (lr_of(rig, 0), lr_of(rig, 1)) == (1.0, 0.5)


# Cuts.


@pytest.mark.parametrize("model", [BSP("sum"), ASP()])
def test_a_change_behind_a_cut_waits_for_the_copy(model):
    rig = Rig(dense(3, consistency=model), n_slots=16)
    clock_of(rig, 0, 0, [1.0])
    rig.core.expect_cut(1)
    assert rig.writers[0].cut(1, 1, 1, b"here")
    configure(rig, SGD(0.5), 1)
    rig.drain()
    assert rig.core.cut_ready()
    assert lr_of(rig) == 1.0
    rig.core.release_cut(1)
    rig.drain()
    assert lr_of(rig) == 0.5
