"""Hyperparameters that change while training goes on: when they take effect, and which record counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import Rig, clock_of, dense, make_writer, push_all, rows

from mpips import _native
from mpips.errors import ConfigError
from mpips.kernels import reference
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import (
    FTRL,
    HYPERPARAMETERS,
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    Momentum,
    PythonRule,
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


def configure(rig, optimizer, clock=0, *, worker=0, ordinal=0, table=0):
    """Write a change into a worker's ring; returns the record's sequence number."""
    writer = rig.writers[worker]
    assert writer.configure(table, clock, ordinal, optimizer.native())
    return writer.next_sequence - 1


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


@pytest.mark.parametrize("first", [0, 1])
def test_workers_with_different_values_for_one_clock_are_refused(first):
    rig = bsp_rig()
    configure(rig, SGD(0.5), 0, worker=first)
    rig.drain()
    configure(rig, SGD(0.25), 0, worker=1 - first)
    with pytest.raises(
        ConfigError,
        match=f"workers {first} and {1 - first} have different hyperparameters for table 'w' at clock 0",
    ):
        rig.drain()


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


# Records that no correct worker sends.


def config(kind, **values):
    """Return a config that no optimizer of mpips.model would make."""
    names = [*HYPERPARAMETERS, "lr", "weight_decay", "clip_value"]
    zeros = dict.fromkeys(names, 0.0)
    return _native.OptimizerConfig(kind=kind, **{**zeros, **values})


ADAM = {"lr": 0.1, "beta1": 0.5, "beta2": 0.5, "eps": 1e-8}
BAD = {
    "kind": (SGD(), Adam().native(), "optimizer adam, expected sgd"),
    "lr": (SGD(), config("sgd", lr=-1.0), "lr = -1"),
    "NaN": (SGD(), config("sgd", lr=float("nan")), "lr = -?nan"),
    "infinity": (SGD(), config("sgd", weight_decay=float("inf")), "weight_decay = inf"),
    "clip": (SGD(), config("sgd", clip_value=2e18), "clip_value = 2"),
    "not its own": (SGD(), config("sgd", momentum=0.5), "momentum = 0.5"),
    "momentum": (Momentum(), config("momentum", momentum=1.0), "momentum = 1"),
    "beta1": (Adam(), config("adam", **{**ADAM, "beta1": 1.0}), "beta1 = 1"),
    "beta2": (Adam(), config("adam", **{**ADAM, "beta2": -0.5}), "beta2 = -0.5"),
    "eps": (Adam(), config("adam", **{**ADAM, "eps": 0.0}), "eps = 0"),
    "rho": (OPTIMIZERS["rmsprop"](), config("rmsprop", rho=1.5, eps=1.0), "rho = 1.5"),
    "ftrl": (FTRL(), config("ftrl", lr=0.0, beta=1.0), "lr = 0"),
    "beta": (FTRL(), config("ftrl", lr=1.0), "beta = 0"),
    "l1": (FTRL(), config("ftrl", lr=1.0, beta=1.0, l1=-1.0), "l1 = -1"),
    "l2": (FTRL(), config("ftrl", lr=1.0, beta=1.0, l2=-1.0), "l2 = -1"),
    "accumulator": (
        Adagrad(),
        Adagrad(initial_accumulator=1.0).native(),
        "another initial_accumulator, with which state has begun",
    ),
    "python": (PythonRule(print), SGD().native(), "whose rule is a Python function"),
}


@pytest.mark.parametrize("make", [dense, rows])
@pytest.mark.parametrize("name", BAD)
def test_a_change_that_the_rule_cannot_have_is_refused(name, make):
    rule, record, match = BAD[name]
    rig = Rig(make(optimizer=rule))
    assert rig.writers[0].configure(0, 0, 0, record)
    with pytest.raises(_native.ProtocolViolation, match=match):
        rig.drain()


def test_the_ends_of_the_ranges_are_accepted():
    ends = {
        "sgd": {"lr": 0.0, "weight_decay": 1e18, "clip_value": 1e18},
        "momentum": {"momentum": float(np.nextafter(1.0, 0.0))},
        "adam": {"beta1": 0.0, "beta2": float(np.nextafter(1.0, 0.0)), "eps": 1e-30},
        "rmsprop": {"rho": 0.0, "eps": 1e18},
        "adagrad": {"eps": 1e-30},
        "ftrl": {"lr": 1e-18, "beta": 1e-18, "l1": 1e18, "l2": 1e18},
    }
    for name, values in ends.items():
        rig = Rig(dense(optimizer=OPTIMIZERS[name]()))
        configure(rig, OPTIMIZERS[name](**values))
        rig.drain()
        found = rig.core.optimizer(0)
        assert {key: getattr(found, key) for key in values} == values


def test_a_table_that_the_server_does_not_have_is_refused():
    rig = Rig(dense())
    writer = make_writer(rig.region, rig.layout, 0, 3)
    assert writer.configure(2, 0, 0, SGD().native())
    with pytest.raises(
        _native.ProtocolViolation, match="table 2, of which this server has no part"
    ):
        rig.drain()


def test_a_record_of_another_length_is_refused():
    rig = Rig(dense(), checksums=False)
    configure(rig, SGD())
    at = rig.layout.mailbox_offset(0) + rig.layout.geometry.slots_offset
    rig.region.view(at + 52, 4, True).view(np.uint32)[0] -= 8
    with pytest.raises(_native.ProtocolViolation, match="in 104 bytes, expected 112"):
        rig.drain()


def test_a_change_in_the_middle_of_a_bsp_push_is_refused():
    rig = Rig(dense(1000, consistency=BSP("sum")), n_slots=4)
    assert rig.writers[0].push_dense(0, 0, np.ones(1000, np.float32), None, 0) < 1000
    rig.drain()
    configure(rig, SGD())
    with pytest.raises(_native.ProtocolViolation, match="before its last push was complete"):
        rig.drain()


def test_a_change_of_an_ended_clock_is_refused():
    rig = Rig(dense())
    assert rig.writers[0].tick(0)
    configure(rig, SGD(), 0)
    with pytest.raises(_native.ProtocolViolation, match="clock 0 after it had ended clock 0"):
        rig.drain()


def test_without_room_nothing_is_written():
    rig = Rig(dense(), n_slots=2)
    for _ in range(2):
        configure(rig, SGD())
    before = rig.writers[0].next_sequence
    assert not rig.writers[0].configure(0, 0, 0, SGD().native())
    assert rig.writers[0].next_sequence == before
