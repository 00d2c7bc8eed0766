"""Rules on the server give the bits of the reference; rules of a user; rules that fail."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, dense, push_all, rows

from mpips.kernels import reference
from mpips.model.consistency import ASP, BSP, SSP, Scale
from mpips.model.optimizer import OPTIMIZERS, PythonRule

RULES = sorted(OPTIMIZERS)
BLOCK = 16384
STEPS = 4


def optimizer(name):
    return OPTIMIZERS[name](lr=0.05, weight_decay=0.01, clip_value=1.5)


class Plain:
    """A table in NumPy, with values, state and steps."""

    def __init__(self, config, n):
        self.config, self.steps = config, 0
        self.values = np.zeros(n, np.float32)
        self.state = np.zeros((config.n_state, n), np.float32)
        for k in range(config.n_state):
            self.state[k] = config.initial_state(k)

    def apply(self, update, scale=1.0, rate=1.0):
        self.steps += 1
        reference.update(self.config, self.values, self.state, update, self.steps, scale, rate)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("n", [1, 77, 2 * BLOCK + 5])
def test_dense_rule_is_the_reference(name, n):
    rig = Rig(dense(n, optimizer=optimizer(name)), slot_bytes=32768)
    plain = Plain(optimizer(name).native(), n)
    rng = np.random.default_rng(n)
    for _ in range(STEPS):
        update = rng.normal(size=n).astype(np.float32)
        push_all(rig.writers[0], 0, update, rig.drain)
        rig.drain()
        plain.apply(update)
        assert rig.values().tobytes() == plain.values.tobytes()


@pytest.mark.parametrize("name", RULES)
def test_rows_follow_the_reference_with_steps_of_their_own(name):
    dim = 5
    rig = Rig(rows(dim, optimizer=optimizer(name)))
    handle = rig.worker().table("e")
    plain: dict[int, Plain] = {}
    rng = np.random.default_rng(1)
    for _ in range(12):
        keys = rng.choice(20, 6, replace=False)
        update = rng.normal(size=(6, dim)).astype(np.float32)
        handle.push(keys, update).wait()
        for key, row in zip(keys.tolist(), update, strict=True):
            plain.setdefault(key, Plain(optimizer(name).native(), dim)).apply(row)
    found = rig.table_rows()
    assert found.keys() == plain.keys()
    assert all(found[key] == plain[key].values.tolist() for key in found)
    assert len({row.steps for row in plain.values()}) > 2


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("consistency", [BSP("mean"), SSP(policy=Scale())], ids=["mean", "scale"])
def test_scaled_updates_are_the_reference_with_that_scale(name, consistency):
    n = 33
    rig = Rig(dense(n, optimizer=optimizer(name), consistency=consistency), n_workers=2)
    plain = Plain(optimizer(name).native(), n)
    rng = np.random.default_rng(2)
    for clock in range(STEPS):
        updates = rng.normal(size=(2, n)).astype(np.float32)
        for writer, update in zip(rig.writers, updates, strict=True):
            assert writer.push_dense(0, clock, update, None, 0) == n
            assert writer.tick(clock)
        rig.drain()
        if isinstance(consistency, BSP):
            plain.apply(updates[0] + updates[1], 0.5)
        else:
            for k in range(2):  # no worker pulls, so each push lacks all updates before it
                plain.apply(updates[k], rate=1 / (1 + 2 * clock + k))
        assert rig.values().tobytes() == plain.values.tobytes()


def remembering_rule(values, state, gradient, step):
    state[0][:] += gradient
    state[1][:] = step
    values -= state[0]


@pytest.mark.parametrize("n", [3, BLOCK + 1])
def test_python_rule_sees_the_whole_shard_its_state_and_the_step(n):
    rig = Rig(dense(n, optimizer=PythonRule(remembering_rule, n_state=2)), slot_bytes=32768)
    values, state = np.zeros(n, np.float32), np.zeros((2, n), np.float32)
    for step in range(1, 4):
        update = np.arange(n, dtype=np.float32) * step
        push_all(rig.writers[0], 0, update, rig.drain)
        rig.drain()
        remembering_rule(values, state, update, step)
        assert rig.values().tobytes() == values.tobytes()


def test_python_rule_of_rows_sees_the_touched_rows_and_keeps_their_state():
    seen = []

    def rule(values, state, gradient, step):
        seen.append((values.tolist(), [s.tolist() for s in state], gradient.tolist(), step))
        remembering_rule(values, state, gradient, step)

    rig = Rig(rows(2, optimizer=PythonRule(rule, n_state=2)))
    handle = rig.worker().table("e")
    handle.push(np.array([5, 3]), np.array([[1, 2], [3, 4]])).wait()
    handle.push(np.array([3, 8]), np.array([[1, 1], [7, 7]])).wait()
    assert seen[0] == ([0.0] * 4, [[0.0] * 4] * 2, [1.0, 2.0, 3.0, 4.0], 1)
    assert seen[1] == (
        [-3.0, -4.0, 0.0, 0.0],
        [[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]],
        [1.0, 1.0, 7.0, 7.0],
        2,
    )
    assert rig.table_rows() == {3: [-7.0, -9.0], 5: [-1.0, -2.0], 8: [-7.0, -7.0]}


def test_python_rule_gets_the_scaled_gradient():
    def rule(values, state, gradient, step):
        values += gradient

    tables = [
        dense(2, "a", optimizer=PythonRule(rule), consistency=BSP("mean")),
        rows(1, "b", optimizer=PythonRule(rule), consistency=BSP("mean")),
    ]
    rig = Rig(*tables, n_workers=2)
    for writer in rig.writers:
        writer.push_dense(0, 0, np.full(2, 3, np.float32), None, 0)
        writer.push_rows(1, 0, np.array([1]), np.full((1, 1), 5, np.float32), None, 0)
        writer.tick(0)
    rig.drain()
    assert rig.values().tolist() == [3.0, 3.0]
    assert rig.table_rows(1) == {1: [5.0]}


@pytest.mark.parametrize("error", [ZeroDivisionError, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("table", [dense, rows])
def test_error_of_a_python_rule_comes_out_as_it_is(table, error):
    def rule(values, state, gradient, step):
        raise error("in the rule")

    rig = Rig(table(optimizer=PythonRule(rule)))
    worker = rig.worker(local=False)
    if table is dense:
        worker.table("w").push(np.ones(8, np.float32))
    else:
        worker.table("e").push(np.array([1]), np.ones((1, 4), np.float32))
    with pytest.raises(error, match="in the rule"):
        rig.server.drain()
    assert rig.writers[0].applied == 0


def test_python_rule_that_returns_new_values_is_refused():
    rig = Rig(dense(2, optimizer=PythonRule(lambda v, s, g, t: v - g)))
    with pytest.raises(TypeError, match="in place"):
        rig.worker().table("w").push(np.ones(2, np.float32))


def test_state_of_one_table_is_not_that_of_another():
    names = [name for name in RULES if OPTIMIZERS[name].n_state]
    tables = [dense(9, f"{name}{k}", optimizer=optimizer(name)) for name in names for k in range(2)]
    rig = Rig(*tables)
    plain = [Plain(table.optimizer.native(), 9) for table in tables]
    rng = np.random.default_rng(3)
    for _ in range(40):
        t = int(rng.integers(len(tables)))
        update = rng.normal(size=9).astype(np.float32)
        rig.writers[0].push_dense(t, 0, update, None, 0)
        rig.drain()
        plain[t].apply(update)
    assert all(rig.values(t).tobytes() == p.values.tobytes() for t, p in enumerate(plain))
    assert isinstance(tables[0].consistency, ASP)
