"""Replicated tables that continue in memory: the bits of a run that is ended anywhere, several times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from durable_rig import N_SERVERS, Launch, Servers
from reduction_rig import Plain

from mpips import _native
from mpips.model.optimizer import SGD, Adagrad, Adam
from mpips.recovery.memory import Place
from mpips.recovery.node_tables import base_of

TABLES = [(70, SGD(0.1)), (1500, Adam(0.01)), (33, Adagrad(0.1))]
CLOCKS = 6
LINE = 64


def pushes(w: int, clock: int, table: int) -> list[np.ndarray]:
    random = np.random.default_rng([w, clock, table])
    n = TABLES[table][0]
    count = int(random.choice([0, 0, 0, 1, 2]))
    return list(random.standard_normal((count, n)).astype(np.float32))


def rule_at(table: int, clock: int) -> Any:
    rule = TABLES[table][1]
    return replace(rule, lr=rule.lr / (1 + clock)) if clock % 2 else rule


def step(launch: Launch, w: int, clock: int) -> Iterator[None]:
    """Changes of hyperparameters, pulls, pushes and closes; the same in each repetition."""
    random = np.random.default_rng([w, clock])
    for table in random.permutation(len(TABLES)):
        if clock % 3:
            launch.configure(w, table, rule_at(table, clock))
        if random.random() < 0.2:
            yield from launch.pull(w, table)
        for update in pushes(w, clock, table):
            yield from launch.push(w, table, update)
            yield
        if random.random() < 0.7:
            launch.close(w, table)
        yield


def expected(ends: Sequence[int], values: Sequence[np.ndarray]) -> list[Plain]:
    found = [Plain(rule, n, True, value) for (n, rule), value in zip(TABLES, values, strict=True)]
    for clock in range(max(ends)):
        there = [w for w, end in enumerate(ends) if end > clock]
        for t, plain in enumerate(found):
            if clock % 3:
                plain.rule = rule_at(t, clock)
            plain.apply([pushes(w, clock, t) for w in there], len(there))
    return found


def versions(launch: Launch, memory: Any) -> np.ndarray:
    """Return one more than the number of clocks of each version of each table."""
    start = launch.n * LINE * (1 + len(TABLES))
    raw = memory.view(start, 2 * LINE * len(TABLES), False).view(np.uint64)
    return raw.reshape(len(TABLES), 2, LINE // 8)[:, :, 0]


def scribble(launch: Launch, memory: Any, base: int) -> None:
    """Overwrite all versions that no continuation may use: a kill can leave any bytes in them."""
    for t, after in enumerate(versions(launch, memory)):
        for version in range(2):
            if after[version] > base + 1 or after[version] == 0:
                at = launch.layout.array(t, 0, version)
                memory.view(at, 4 * TABLES[t][0], True)[:] = 0xFF


def contents(launch: Launch, found: Any) -> bytes:
    """Return what a node makes of the memory that is left there."""
    memory = _native.SharedMemory.anonymous(launch.layout.total_bytes, 0)
    found.write(memory)
    found.copy_contributions(memory)
    return memory.view(0, launch.layout.total_bytes, False).tobytes()


def finished(launch: Launch, ends: Sequence[int]) -> bool:
    last = [w for w, end in enumerate(ends) if end == max(ends)]
    return all(launch.ends[w].clock == max(ends) and launch.ends[w].settled for w in last)


@pytest.mark.parametrize(
    ("nodes", "lost"),
    [([[0, 1, 2]], 0), ([[0, 1], [2], [3, 4]], 0), ([[0, 1], [2], [3, 4]], 1), ([[0], [1]], 1)],
    ids=str,
)
def test_runs_that_are_ended_anywhere_have_the_bits_of_an_undisturbed_one(
    nodes: list[list[int]], lost: int
) -> None:
    seen = {"continued": 0, "completed": 0, "ahead": 0, "repeats": 0}
    for seed in range(24):
        random = np.random.default_rng(seed)
        values = [random.standard_normal(n).astype(np.float32) for n, _ in TABLES]
        n = sum(map(len, nodes))
        ends = [CLOCKS, *random.integers(2, CLOCKS + 1, n - 1).tolist()]
        servers = Servers(n)
        launch = Launch(TABLES, nodes, servers, seed, values)
        while True:
            programs = [launch.program(w, ends[w], step) for w in range(n)]
            for _ in range(int(random.integers(1, 150 * n))):
                next(programs[random.integers(n)])
            if finished(launch, ends):
                break
            del programs
            launch = restarted(launch, lost, random, seen)
        plains = expected(ends, values)
        for w in [w for w, end in enumerate(ends) if end == max(ends)]:
            for t, plain in enumerate(plains):
                assert launch.ends[w].steps(t) == plain.steps
                for slot, array in enumerate([plain.values, *plain.state]):
                    assert launch.ends[w].values(t, slot).tobytes() == array.tobytes()
    assert min(seen.values()) > 0, seen


def restarted(launch: Launch, lost: int, random: Any, seen: dict[str, int]) -> Launch:
    """Return the next launch; all nodes but `lost` ones that have what is needed agree on it."""
    places = launch.servers.places()
    base = base_of(places)
    firsts = [node[0] for node in launch.nodes]
    gone = set(random.choice(len(firsts), lost, replace=False).tolist())
    left = []
    for i, node in enumerate(launch.nodes):
        memory = launch.memory[node[0]]
        scribble(launch, memory, base)
        found = launch.left_by(memory)
        # Every node with a worker that has not finished has everything.
        if not found.lacks():
            if i not in gone:
                left.append(found)
            continue
        assert all(places[w].finished and places[w].clock < base for w in node), found.lacks()
    if not left:
        left = [
            found
            for node in launch.nodes
            if not (found := launch.left_by(launch.memory[node[0]])).lacks()
        ]
    assert len({contents(launch, found) for found in left}) == 1
    new = Launch(TABLES, launch.nodes, launch.servers, int(random.integers(1 << 30)), None, left)
    seen["continued"] += 1
    seen["ahead"] += any(p.clock > base for p in places if not p.finished)
    seen["repeats"] += any(p.ahead > p.clock for p in places)
    after = [versions(launch, launch.memory[first]) for first in firsts]
    seen["completed"] += any((a == base + 1).any() for a in after)
    return new


def test_a_repeated_clock_with_other_pushes_is_refused() -> None:
    servers = Servers(2)
    values = [np.zeros(n, np.float32) for n, _ in TABLES]
    launch = Launch(TABLES, [[0, 1]], servers, 0, values)
    update = np.ones(70, np.float32)
    for _ in launch.push(0, 0, update):
        raise AssertionError
    program = launch.clock(0)
    while servers.clocks[0, 0] == 0:
        next(program)
    assert servers.clocks[:, 0].tolist() == [1] + [0] * (N_SERVERS - 1)
    left = launch.left_by(launch.memory[0])
    for wrong in (0, 2):
        again = Launch(TABLES, [[0, 1]], servers, 0, None, [left])
        end = again.ends[0]
        assert end.repeats
        message = rf"worker 0 repeats clock 0 and makes {wrong} pushes to .* 't0', but had made 1"
        with pytest.raises(_native.ReplayMismatch, match=message):
            repeat(end, wrong)
    again = Launch(TABLES, [[0, 1]], servers, 0, None, [left])
    end = again.ends[0]
    assert end.push(0, 5 * update, True)  # the values of the first time count
    end.tick()
    again.ends[1].tick()
    again.poll(0)
    again.poll(1)
    assert (end.values(0, 0) == np.float32(-0.05)).all()


def repeat(end: Any, n_pushes: int) -> None:
    for _ in range(n_pushes):
        end.push(0, np.ones(70, np.float32), True)
    end.tick()


def test_a_worker_that_had_finished_makes_no_clock() -> None:
    servers = Servers(2)
    launch = Launch(TABLES, [[0, 1]], servers, 0, [np.zeros(n, np.float32) for n, _ in TABLES])
    servers.ended[:, 1] = True
    again = Launch(TABLES, [[0, 1]], servers, 0, None, [launch.left_by(launch.memory[0])])
    with pytest.raises(_native.ReplayMismatch, match="ends it, but had finished"):
        again.ends[1].tick()
    with pytest.raises(_native.ReplayMismatch, match=r"makes 1 pushes .* but had made 0"):
        again.ends[1].push(0, np.ones(70, np.float32), True)


def test_what_a_memory_lacks_is_named() -> None:
    servers = Servers(2)
    launch = Launch(TABLES, [[0], [1]], servers, 0, [np.zeros(n, np.float32) for n, _ in TABLES])
    memory = launch.memory[0]
    servers.clocks[:, 0] = 2
    assert launch.left_by(memory).lacks() == "worker 0 is at clock 2, and another worker is at 0"
    servers.clocks[:, 0] = 1
    assert launch.left_by(memory).lacks() == "the updates of worker 0 in clock 0 are missing"
    servers.clocks[:, :] = 1
    missing = "table 't0': the updates of worker 0 in clock 0 are missing"
    assert launch.left_by(memory).lacks() == missing
    servers.clocks[:, :] = 2
    assert "values at clock 2 are not complete" in launch.left_by(memory).lacks()
    with pytest.raises(ValueError, match="not complete"):
        launch.left_by(memory).write(launch.memory[1])


def test_the_base_is_the_least_clock_of_the_workers_that_go_on() -> None:
    def place(clock: int, finished: bool) -> Place:
        return Place(clock, state=None, finished=finished)  # type: ignore[arg-type]

    assert base_of([place(3, False), place(1, True), place(4, False)]) == 3
    assert base_of([place(3, True), place(1, True)]) == 3
