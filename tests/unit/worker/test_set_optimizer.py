"""`set_optimizer`: new hyperparameters from the worker's clock on, at all servers of a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_network import KINDS, remote
from harness import Rig, dense, floats, rows
from local_job import run_local
from recovery_rig import Launches

import mpips
from mpips.config.options import SessionOptions
from mpips.errors import ConfigError, StallError
from mpips.kernels import reference
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import FTRL, SGD, Adagrad, Adam, AdamW, Momentum, Optimizer, PythonRule
from mpips.worker.worker import Worker, connection_of

ONES = np.ones(8, np.float32)
KEYS = np.arange(6)
CLOCKS = 6
N = 3000  # elements; each server has a part


class Plain:
    """Values and state under the reference kernels."""

    def __init__(self, rule: Optimizer, shape: tuple[int, ...]) -> None:
        self.values = np.zeros(int(np.prod(shape)), np.float32)
        self.state = np.zeros((rule.n_state, self.values.size), np.float32)
        self.shape, self.steps = shape, 0

    def apply(self, rule: Optimizer, update: np.ndarray, scale: float = 1.0) -> None:
        self.steps += 1
        flat = update.reshape(-1)
        reference.update(rule.native(), self.values, self.state, flat, self.steps, scale, 1.0)

    def bits(self) -> bytes:
        return self.values.tobytes()


def schedule(rule: Optimizer, clock: int) -> Optimizer:
    """Return the hyperparameters of a clock: they change at every second one."""
    stage = clock // 2
    changed = replace(rule, lr=rule.lr / (1 + stage), weight_decay=0.1 * stage)
    return replace(changed, beta1=0.8 - 0.2 * stage) if isinstance(rule, Adam) else changed


def gradient(worker: int, clock: int, shape: tuple[int, ...]) -> np.ndarray:
    # Whole numbers: their sums over workers are exact.
    rng = np.random.default_rng([worker, clock])
    return rng.integers(-4, 5, shape).astype(np.float32)


def step(worker: Worker, rule: Optimizer) -> None:
    """One clock of a program: it changes hyperparameters before its pushes."""
    clock = worker.now
    if clock % 2 == 0:
        for name in ("w", "e"):
            worker.table(name).set_optimizer(schedule(rule, clock))
    worker.table("w").push(gradient(worker.index, clock, (N,)))
    worker.table("e").push(KEYS, gradient(worker.index, clock, (6, 4)))
    worker.clock()


def expected(rule: Optimizer, n_workers: int) -> tuple[Plain, Plain]:
    found = Plain(rule, (N,)), Plain(rule, (6, 4))
    for clock in range(CLOCKS):
        for plain in found:
            total = sum(gradient(w, clock, plain.shape) for w in range(n_workers))
            assert isinstance(total, np.ndarray)
            plain.apply(schedule(rule, clock), total, 1.0 / n_workers)
    return found


RULES = [SGD(0.5), Momentum(0.5), Adam(0.1), AdamW(0.1), Adagrad(0.5), FTRL(0.5)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("n_servers", [1, 2])
def test_two_workers_under_bsp_get_the_values_of_the_reference(n_servers, rule):
    tables = [t(consistency=BSP(), optimizer=rule) for t in (lambda **o: dense(N, **o), rows)]
    launches = Launches(*tables, n_servers=n_servers, n_workers=2, n_slots=64)
    try:
        assert len(launches.placement.dense["w"]) == n_servers
        for _ in range(CLOCKS):
            # The second worker is first, and is held where it is a clock ahead.
            for worker in reversed(launches.workers):
                step(worker, rule)
        for worker in launches.workers:
            values, table_rows = worker.table("w").pull(), worker.table("e").pull(KEYS)
            plain = expected(rule, 2)
            assert values.tobytes() == plain[0].bits()
            assert table_rows.tobytes() == plain[1].bits()
    finally:
        launches.close()


@pytest.mark.parametrize("consistency", [BSP(), SSP(), ASP()], ids=["bsp", "ssp", "asp"])
@pytest.mark.parametrize("rule", [SGD(0.5), Adam(0.1)], ids=lambda rule: rule.name)
def test_a_job_of_one_process_gets_the_values_of_the_reference(rule, consistency):
    tables = [dense(N, optimizer=rule, consistency=consistency)]
    tables.append(rows(4, optimizer=rule, consistency=consistency))

    def main(worker: Worker) -> Any:
        for _ in range(CLOCKS):
            step(worker, rule)
        return worker.table("w").pull(), worker.table("e").pull(KEYS)

    found, _ = run_local(main, tables, SessionOptions(slot_kib=1))
    assert [values.tobytes() for values in found] == [plain.bits() for plain in expected(rule, 1)]


# The order of records is that of the calls, on every path.


def pushed_between_changes(rig: Rig, worker: Worker, n: int) -> None:
    handle = worker.table("w")
    total = np.zeros(n, np.float32)
    requests = []
    for i, lr in enumerate([1.0, 0.5, 0.25, 2.0]):
        update = 8 * floats(n, i)
        handle.set_optimizer(SGD(lr))
        requests.append(handle.push(update))
        total -= np.float32(lr) * update
    for request in requests:
        request.wait()
    assert (rig.values() == total).all()


@pytest.mark.parametrize("model", [ASP(), SSP()])
@pytest.mark.parametrize("n", [8, 100_000])
def test_changes_keep_their_place_among_direct_pushes(n, model):
    """Large updates are read in bounce buffers, small ones lie in the records."""
    rig = Rig(dense(n, consistency=model), n_slots=16)
    worker = rig.worker(local=False)
    assert worker.table("w").paths == ["direct"]
    with rig.serving():
        pushed_between_changes(rig, worker, n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "path"), [(8, "ring"), (1000, "ring"), (100_000, "rendezvous")])
def test_changes_keep_their_place_between_nodes(n, path, kind):
    rig = Rig(dense(n), remote=[0], remote_staging_bytes=1 << 20)
    _, channel = remote(rig, kind=kind)
    worker = rig.worker(channel=channel)
    assert worker.table("w").paths == [path]
    pushed_between_changes(rig, worker, n)


def test_changes_keep_their_place_among_pushes_in_parts():
    rig = Rig(dense(1000, clip_norm=1e9), n_slots=8)
    worker = rig.worker(local=False)
    assert worker.table("w").paths == ["shared"]
    with rig.serving():
        pushed_between_changes(rig, worker, 1000)


def test_a_change_waits_for_room_in_the_ring():
    rig = Rig(dense(8), n_slots=2)
    worker = rig.worker()
    handle = worker.table("w")
    for lr in (0.5, 0.25, 0.125):
        handle.set_optimizer(SGD(lr))
    assert rig.core.optimizer(0).lr == 0.125
    stuck = rig.worker(local=False, timeout_s=0.05).table("w")
    for _ in range(2):
        stuck.set_optimizer(SGD(1.0))
    with pytest.raises(StallError, match="taken no record from its full ring"):
        stuck.set_optimizer(SGD(1.0))


# When it takes effect.


def test_under_bsp_a_change_travels_with_the_tick_and_under_asp_at_once():
    for model, at_once in ((BSP("sum"), False), (ASP(), True)):
        rig = Rig(dense(8, consistency=model))
        worker = rig.worker()
        worker.table("w").set_optimizer(SGD(0.5))
        assert (rig.core.optimizer(0).lr == 0.5) is at_once
        worker.table("w").push(ONES)
        worker.clock()
        assert rig.core.optimizer(0).lr == 0.5
        assert (worker.table("w").pull() == -0.5).all()


@pytest.mark.parametrize("model", [ASP(), SSP(4)])
def test_a_slow_worker_does_not_set_the_rate_back(model):
    rig = Rig(dense(8, consistency=model), n_workers=2, n_slots=16)
    fast, slow = rig.worker(0), rig.worker(1)
    for clock in range(3):
        fast.table("w").set_optimizer(SGD(2.0**-clock))
        fast.clock()
    for lr in (0.25, 0.25, 0.25, 0.125):
        slow.table("w").set_optimizer(SGD(2.0**-slow.now))
        slow.table("w").push(ONES).wait()
        assert rig.core.optimizer(0).lr == lr
        slow.clock()


def test_the_last_of_several_calls_in_a_clock_counts():
    rig = Rig(dense(8, consistency=BSP("sum")), n_workers=2, n_slots=16)
    first, second = rig.worker(0), rig.worker(1)
    for worker in (first, second):
        for lr in (4.0, 2.0, 0.5):
            worker.table("w").set_optimizer(SGD(lr))
            rig.drain()
        worker.table("w").push(ONES)
        worker.clock()
    assert (first.table("w").pull() == -1.0).all()


def test_tables_have_their_own_changes_and_only_their_servers_get_a_record():
    tables = [dense(8, name, consistency=ASP(), partition="layer") for name in ("a", "b")]
    launches = Launches(*tables, n_servers=2)
    try:
        (worker,) = launches.workers
        homes = [launches.placement.dense[name][0].server for name in ("a", "b")]
        assert sorted(homes) == [0, 1]
        worker.table("b").set_optimizer(SGD(0.5))
        at_home, other = launches.servers[homes[1]].core, launches.servers[homes[0]].core
        assert (at_home.applied(0), other.applied(0)) == (1, 0)
        assert at_home.optimizer(1).lr == 0.5
        assert other.optimizer(1) is None
        assert other.optimizer(0).lr == 1.0
    finally:
        launches.close()


def test_a_change_is_no_push():
    rig = Rig(dense(8, consistency=BSP("sum")))
    worker = rig.worker()
    worker.table("w").set_optimizer(SGD(0.5))
    connection = connection_of(worker)
    assert connection.clock_state.pushed_at != worker.now
    connection.finish()
    assert (worker.now, worker.counters()["pushed"], rig.core.version(0)) == (0, 0, 0)


# Restarts.


def test_after_a_restart_from_a_checkpoint_the_declared_rule_is_in_force_until_it_is_set(tmp_path):
    pytest.importorskip("h5py")
    declared = Adam(0.1)

    def train(until: int, sets: bool) -> np.ndarray:
        def main(worker: Worker) -> np.ndarray:
            begun = worker.start.step if worker.start is not None else 0
            for clock in range(begun, until):
                if sets:
                    worker.table("w").set_optimizer(schedule(declared, clock))
                worker.table("w").push(gradient(0, clock, (N,)))
                worker.clock()
            values: np.ndarray = worker.table("w").pull()
            return values

        tables = [mpips.DenseTable("w", (N,), declared)]
        found: np.ndarray = mpips.run(main, tables, save=tmp_path).value
        return found

    plain = Plain(declared, (N,))
    for until, sets in ((4, True), (5, False), (CLOCKS, True)):
        values = train(until, sets)
        while plain.steps < until:
            rule = schedule(declared, plain.steps) if sets else declared
            plain.apply(rule, gradient(0, plain.steps, (N,)))
        assert values.tobytes() == plain.bits()


# What is refused.


def rule(values: Any, state: Any, update: Any, step: int) -> None:
    values -= update


BAD = {
    "kind": (SGD(), Adam(), r"Adam\(.*must be an optimizer of the table's kind, SGD"),
    "subclass": (Adam(), AdamW(), "of the table's kind, Adam"),
    "name": (SGD(), "sgd", "'sgd' must be an optimizer of the table's kind, SGD"),
    "native": (SGD(), SGD().native(), "must be an optimizer of the table's kind, SGD"),
    "python": (PythonRule(rule), SGD(), "has the Python rule .*:rule, which set_optimizer cannot"),
    "to python": (SGD(), PythonRule(rule), "must be an optimizer of the table's kind, SGD"),
    "accumulator": (
        Adagrad(initial_accumulator=0.5),
        Adagrad(),
        "initial_accumulator = 0.0 must remain 0.5",
    ),
}


@pytest.mark.parametrize("make", [dense, rows])
@pytest.mark.parametrize("name", BAD)
def test_what_the_table_cannot_have_is_refused_and_nothing_is_sent(name, make):
    declared, new, match = BAD[name]
    rig = Rig(make(optimizer=declared))
    worker = rig.worker()
    handle = worker.table(rig.tables[0].name)
    with pytest.raises(ConfigError, match=match):
        handle.set_optimizer(new)
    assert rig.writers[0].next_sequence == 0


def test_adagrad_may_change_beside_its_accumulator():
    rig = Rig(dense(8, optimizer=Adagrad(1.0, initial_accumulator=3.0)))
    handle = rig.worker().table("w")
    handle.set_optimizer(Adagrad(4.0, initial_accumulator=3.0, eps=1e-30))
    handle.push(ONES).wait()
    assert (rig.values() == -2.0).all()
