"""Switch at a plateau: server 0 decides, and all servers and workers switch at the clock that it names."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from harness import Rig, dense, rows
from recovery_rig import Launches

from mpips import _native
from mpips.errors import ConfigError, StallError
from mpips.model.consistency import ASP, BSP, Switch
from mpips.model.optimizer import SGD
from mpips.model.python_rule import PythonRule
from mpips.server import switch_control
from mpips.server.server import Server
from mpips.worker.agreed_switch import LEAD
from mpips.worker.worker import connection_of

AUTO = Switch(BSP("sum"), ASP(), "plateau")
DIM = 6


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pair of clocks decides: the clock of the switch is 2 + LEAD."""
    monkeypatch.setattr(switch_control, "EVERY", 4)
    monkeypatch.setattr(switch_control, "PAIRS", 1)
    monkeypatch.setattr(switch_control, "RATIO", 0.0)


def rig_of(*tables, n_workers=2) -> Rig:
    return Rig(*(tables or (dense(2, consistency=AUTO),)), n_workers=n_workers, n_slots=64)


def one(worker, value=1.0):
    """Push the same value to all elements, and end the clock."""
    worker.table("w").push(np.full(2, -value, np.float32))
    worker.clock()


class Simulated:
    """The measure and its decision, by its definition: over all tables, elements of rows by key.

    A gradient is a mapping from places to values, so a row that only one clock of a pair has adds nothing
    to the inner product.
    """

    def __init__(self, every: int, pairs: int) -> None:
        self.every, self.pairs = every, pairs
        self.sums: list[dict[object, float]] = []
        self.found: list[tuple[float, float]] = []
        self.decision = 0

    def close(self, gradient: dict[object, float]) -> None:
        """End a clock with this sum of all workers' gradients."""
        self.sums.append(gradient)
        n = len(self.sums)
        if n % self.every != 2:
            return
        a, b = self.sums[-2:]
        inner = sum(a[place] * b.get(place, 0.0) for place in a)
        own = (sum(x * x for x in a.values()) + sum(x * x for x in b.values())) / 2
        self.found.append((inner, own))
        if len(self.found) < self.pairs:
            return
        inner, own = (sum(column) / self.pairs for column in zip(*self.found, strict=True))
        self.found.clear()
        self.estimate = inner, own - inner
        if own - inner >= inner and not self.decision:
            self.decision = n + LEAD


@pytest.mark.parametrize("seed", range(3))
def test_the_decision_is_that_of_a_simulation_of_least_squares(seed: int) -> None:
    """SGD on |x - 10|^2 / 2 with noise: first the gradient is large, and at the end it is noise alone."""
    n_workers, rate = 3, 0.02
    model = replace(AUTO, first=BSP("mean"))
    rig = Rig(
        dense(DIM, consistency=model, optimizer=SGD(lr=rate)),
        rows(2, consistency=model, optimizer=SGD(lr=rate)),
        n_workers=n_workers,
        n_slots=64,
    )
    workers = [rig.worker(w) for w in range(n_workers)]
    draws = np.random.default_rng(seed)
    simulated = Simulated(switch_control.EVERY, switch_control.PAIRS)
    clock = 0
    while not rig.core.switch_at():
        assert clock < 1000, "no plateau was found"
        total: dict[object, float] = {}
        for worker in workers:
            noise = 2 * draws.standard_normal(DIM)
            gradient = (worker.table("w").pull() - 10 + noise).astype(np.float32)
            keys = np.sort(draws.choice(5, 2, replace=False))
            of_rows = draws.standard_normal((2, 2)).astype(np.float32)
            worker.table("w").push(gradient)
            worker.table("e").push(keys, of_rows)
            worker.clock()
            for i, value in enumerate(gradient):
                total[i] = total.get(i, 0.0) + float(value)
            for key, row in zip(keys, of_rows, strict=True):
                for column, value in enumerate(row):
                    place = (int(key), column)
                    total[place] = total.get(place, 0.0) + float(value)
        rig.drain()
        clock += 1
        simulated.close(total)
        assert rig.core.switch_at() == simulated.decision
    assert clock > 2 * switch_control.EVERY * switch_control.PAIRS, "it was no plateau at first"
    assert rig.core.plateau() == pytest.approx(simulated.estimate, rel=1e-5)
    (line,) = rig.server.poll_decisions()
    assert f"is {clock + LEAD}: from this step of the run on consistency is ASP" in line
    assert rig.server.statistics()["switch"][0][0] == clock + LEAD
    assert not rig.core.has_switched()


def test_gradients_without_noise_are_no_plateau() -> None:
    rig = rig_of()
    workers = [rig.worker(w) for w in range(2)]
    for clock in range(3 * switch_control.EVERY * switch_control.PAIRS):
        [one(worker, 1.0 + clock) for worker in workers]
        rig.drain()
    assert rig.core.switch_at() == 0
    signal, noise = rig.core.plateau()
    assert noise < 1e-3 * signal


def test_all_see_whole_clocks_up_to_the_decided_switch_and_single_pushes_after_it(quick) -> None:
    rig, at = rig_of(), 2 + LEAD
    workers = [rig.worker(w) for w in range(2)]
    for clock in range(at):
        assert rig.core.switch_at() == (at if clock >= 2 else 0)
        workers[0].table("w").push(-np.ones(2, np.float32))
        rig.drain()
        assert rig.values().tolist() == [2.0 * clock] * 2  # a sum is applied as a whole
        assert workers[1].table("w").pull().tolist() == [2.0 * clock] * 2
        workers[0].clock()
        one(workers[1])
        rig.drain()
    assert rig.core.has_switched()
    for ahead in range(1, 5):
        one(workers[0])
        rig.drain()
        assert workers[0].table("w").pull().tolist() == [2.0 * at + ahead] * 2


def test_a_worker_ends_no_clock_before_it_is_known_whether_the_next_one_is_under_asp(quick) -> None:
    rig = rig_of()
    ahead, late = (rig.worker(w, local=False, timeout_s=0.2) for w in range(2))
    for _ in range(LEAD):
        one(ahead)
    ahead.table("w").push(np.zeros(2, np.float32))
    with pytest.raises(StallError, match=r"not known whether .* at clock 4 before all .* clock 1"):
        ahead.clock()
    one(late)
    rig.drain()
    ahead.clock()


def test_the_direct_path_waits_as_the_model_of_the_clock_demands(quick) -> None:
    rig, at = rig_of(), 2 + LEAD
    workers = [rig.worker(w, local=False, timeout_s=5.0) for w in range(2)]
    with rig.serving():
        direct = workers[0].table("w")._direct
        out = np.empty(2, np.float32)
        for clock in range(at):
            one(workers[0])
            assert not direct.port.pull(out, direct), clock
            one(workers[1])
            workers[1].flush()
            assert direct.port.pull(out, direct), clock
        # Behind the switch no pull waits, although the version is less than the worker's clock.
        workers[0].clock()
        workers[0].clock()
        assert direct.port.pull(out, direct)
        assert out.tolist() == [2.0 * at] * 2


def test_another_server_takes_the_clock_from_ticks_and_keeps_it_over_a_restart(quick) -> None:
    tables = dense(2, consistency=AUTO), rows(2, consistency=AUTO)
    launches, at = Launches(*tables, n_servers=2, n_workers=2), 2 + LEAD
    try:
        first, second = (server.core for server in launches.servers)
        assert second.plateau() is None
        for clock in range(at):
            assert (first.switch_at(), second.switch_at()) == (at * (clock > 1), at * (clock > 2))
            [one_of_rows(worker) for worker in launches.workers]
            launches.drain()
            if clock in (1, 2, at - 2):
                before = [server.core.switch_at() for server in launches.servers]
                del first, second
                launches.again()
                first, second = (server.core for server in launches.servers)
                assert [first.switch_at(), second.switch_at()] == before
        assert first.has_switched()
        assert second.has_switched()
        one_of_rows(launches.workers[1])  # alone
        launches.drain()
        keys, values = (
            np.concatenate(found) for found in zip(*map(rows_of, (first, second)), strict=True)
        )
        assert values[np.argsort(keys)].tolist() == [[2.0 * at + 1] * 2] * len(KEYS)
        del first, second
        assert launches.again().servers[1].core.has_switched()
    finally:
        launches.close()


KEYS = np.arange(6)


def one_of_rows(worker) -> None:
    """Push to rows on all servers, and end the clock."""
    worker.table("e").push(KEYS, -np.ones((len(KEYS), 2), np.float32))
    worker.clock()


def rows_of(core: _native.ServerCore) -> tuple[np.ndarray, np.ndarray]:
    return core.embedding_rows(1)


def test_a_tick_that_is_owed_names_the_switch(quick) -> None:
    """Server 1 lacks the tick of the last clock under BSP when its worker and it are started again."""
    tables = dense(2, consistency=AUTO), rows(2, consistency=AUTO)
    launches, at = Launches(*tables, n_servers=2), 2 + LEAD
    try:
        (worker,) = launches.workers
        for _ in range(2):
            one_of_rows(worker)
            launches.drain()
        assert launches.servers[0].core.switch_at() == at
        # The ticks so far have named no switch. The next one reaches server 0 alone.
        worker.table("e").push(KEYS, -np.ones((len(KEYS), 2), np.float32))
        connection = connection_of(worker)
        connection.agreed_switch.before_tick()
        connection._ticks._write_position()
        connection.channels[0].writer.tick(connection.now)
        launches.drain()
        assert launches.servers[1].core.switch_at() == 0
        del worker, connection
        launches.again()
        (worker,) = launches.workers
        assert worker.now == 3
        launches.drain()
        assert launches.servers[1].core.switch_at() == at
    finally:
        launches.close()


def test_a_launch_begins_with_the_decision_of_its_checkpoint(quick) -> None:
    for before, switched in ((6, False), (7, True), (8, True)):
        rig = rig_of()
        server = Server(
            0, rig.tables, rig.placement, rig.regions, 0, True, None, clocks_before=before
        )
        assert server.switch_control is not None
        assert server.switch_control.decided == -1
        server.switch_control.set(7)
        assert server.switch_control.decided == 7
        assert server.core.has_switched() == switched
        assert server.poll_decisions() == []


def test_a_server_without_a_part_of_any_table_cannot_decide() -> None:
    tables = [dense(8, name, consistency=AUTO, partition="layer") for name in "ab"]
    refused = "server 0, which measures it, has no part of a table with an optimizer of mpips"
    with pytest.raises(ConfigError, match=refused):
        rig_of(dense(2, consistency=AUTO, optimizer=PythonRule(replaced)))
    core = rig_of(*tables).core
    switch_control.SwitchControl(core, 0, AUTO, tables)
    absent = mock.Mock(optimizer=lambda table: None)
    with pytest.raises(ConfigError, match=refused):
        switch_control.SwitchControl(absent, 0, AUTO, tables)
    switch_control.SwitchControl(absent, 1, AUTO, tables)  # another server measures nothing


def replaced(values, state, update, step) -> None:
    """Replace the values by what is pushed, which is no gradient."""
    values[:] = update


def test_pushes_for_a_rule_in_python_are_not_measured(quick) -> None:
    tables = (
        dense(2, consistency=AUTO),
        dense(2, "values", consistency=AUTO, optimizer=PythonRule(replaced)),
    )
    rig = rig_of(*tables, n_workers=1)
    worker = rig.worker()
    for clock in range(2):
        worker.table("w").push(np.array([1.0, 2.0 * clock], np.float32))
        worker.table("values").push(np.full(2, 100.0, np.float32))
        worker.clock()
    rig.drain()
    assert rig.core.plateau() == (1.0, 2.0)  # of (1, 0) and (1, 2)


def test_workers_count_the_clocks_of_the_run(quick) -> None:
    rig = rig_of()
    worker = rig.worker()
    connection = connection_of(worker)
    connection.clock_state.now = 9
    assert connection.minimum_clock(rig.tables[0]) == (9, 0)
    rig.server.switch_control.set(7)
    other = connection_of(rig.worker(1))
    other.position.steps_before, other.clock_state.now = 5, 9
    assert other.minimum_clock(rig.tables[0]) == (2, 0)


def test_the_measure_refuses_pairs_that_overlap() -> None:
    with pytest.raises(ValueError, match="every = 1 and pairs = 1: must be 2 and 1 at least"):
        rig_of().core.find_plateau(1, 1, 1.0)
    assert isinstance(rig_of().core, _native.ServerCore)
