"""push_pull: updates and values by first use have the values of the clock, whatever the orders of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playing import SIZE, Session, counts, noise, workers_with

import mpips
from mpips import ASP, BSP, SSP, DenseTable, Worker
from mpips.errors import ConfigError
from mpips.worker.worker import connection_of

N_CLOCKS = 5
# Values of a table: one record, several, and a rendezvous, also with a part that is shorter than a segment.
LENGTHS = (5, 700, 40_000, 70_001, 600_000)
SMALL_RINGS = {"slot_kib": 1, "ring_slots": 4}


def exact_tables() -> list[DenseTable]:
    return [
        DenseTable(f"t{i}", (n,), mpips.SGD(1.0), consistency=BSP(reduce="sum"))
        for i, n in enumerate(LENGTHS)
    ]


def uneven(seed: int) -> Any:
    """Return a program whose workers push different tables in different orders, and wait in others."""

    def main(worker: Worker) -> int:
        n_looks, names = 0, [f"t{i}" for i in range(len(LENGTHS))]
        totals = [np.zeros(n, np.float32) for n in LENGTHS]
        staged = [worker.allocate(n) for n in LENGTHS]
        pulls = None
        for clock in range(N_CLOCKS):
            takes_part = [
                np.random.default_rng([w, clock, seed]).random(len(LENGTHS)) < 0.8
                for w in range(worker.n_workers)
            ]
            random = np.random.default_rng([worker.index, clock, seed, 1])
            own = [int(i) for i in random.permutation(len(LENGTHS)) if takes_part[worker.index][i]]
            updates = {names[i]: counts(worker.index, clock, LENGTHS[i]) for i in own}
            if pulls is not None and random.random() < 0.5:
                pulls.finish()
                for i in own:
                    staged[i][...] = updates[names[i]]
                    updates[names[i]] = staged[i]
            if own and random.random() < 0.3:
                extra = counts(9, clock, LENGTHS[own[-1]])
                worker.table(names[own[-1]]).push(extra)
                worker.table(names[own[-1]]).push(-extra)
            if random.random() < 0.3:
                # The general way, in the middle of the orders of others.
                requests = [
                    worker.table(name).push(update, closes=bool(random.random() < 0.5))
                    for name, update in updates.items()
                ]
                worker.clock()
                for request in requests:
                    request.wait()
                pulls = None
            else:
                pulls = worker.push_pull(updates)
            for i, n in enumerate(LENGTHS):
                totals[i] -= sum(
                    counts(w, clock, n) for w in range(worker.n_workers) if takes_part[w][i]
                )
            if clock % 2:
                worker.barrier("in the middle")
            for i in random.permutation(len(LENGTHS))[: int(random.integers(0, len(LENGTHS) + 1))]:
                is_own = pulls is not None and names[i] in updates and random.random() < 0.8
                values = pulls.wait(names[i]) if is_own else worker.table(names[i]).pull()
                assert (values == totals[i]).all()
                n_looks += 1
        for i, name in enumerate(names):
            assert (worker.table(name).pull() == totals[i]).all()
        return n_looks

    return main


@pytest.mark.several_workers
@pytest.mark.one_of("rings")
@pytest.mark.parametrize("rings", [{}, SMALL_RINGS])
def test_workers_with_different_orders_get_the_values_of_the_clock(
    session: Session, transport: str, servers: int, rings: dict[str, int]
) -> None:
    played = session(uneven(3), exact_tables(), servers=servers, transport=transport, **rings)
    assert len(played.values) == workers_with(servers)
    assert sum(played.values) > 0


def test_without_a_progress_thread_nothing_waits_for_ever(
    session: Session, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPIPS_PROGRESS", "0")
    transport = "local" if SIZE == 1 else "p2p"
    played = session(uneven(8), exact_tables(), servers=servers, transport=transport)
    assert len(played.values) == workers_with(servers)


def mixed_tables() -> list[DenseTable]:
    """Return tables of all kinds; half of them cannot be ordered, or cannot be asked for."""
    n = 70_001
    return [
        DenseTable("plain", (n,), mpips.Adam(0.1)),
        DenseTable("small", (9,), mpips.Adam(0.1)),
        DenseTable("encoded", (n,), mpips.SGD(0.1), compression="int8", pull_compression="bf16"),
        DenseTable("feedback", (n,), mpips.SGD(0.1), compression="topk"),
        DenseTable("differences", (n,), mpips.SGD(0.1), pull_compression="onebit"),
        DenseTable("shared", (n,), mpips.SGD(0.1), compression="shared_int8"),
        DenseTable("clipped", (n,), mpips.SGD(0.1), clip_norm=0.5),
        DenseTable("ssp", (n,), mpips.SGD(0.0), consistency=SSP(1)),
        DenseTable("asp", (n,), mpips.SGD(0.0), consistency=ASP()),
    ]


def test_all_kinds_of_tables_have_the_bits_of_pushes_and_pulls(
    session: Session, transport: str, servers: int
) -> None:
    tables = mixed_tables()

    def main(worker: Worker, by_use: bool) -> list[bytes]:
        found = []
        for clock in range(N_CLOCKS):
            updates = {
                t.name: noise(worker.index, 10 * clock + i, t.shape[0])
                for i, t in enumerate(tables)
            }
            if by_use:
                pulls = worker.push_pull(updates)
                found += [pulls.wait(t.name).tobytes() for t in reversed(tables)]
                continue
            for name, update in updates.items():
                worker.table(name).push(update, closes=True)
            worker.clock()
            found += [worker.table(t.name).pull().tobytes() for t in reversed(tables)]
        return found

    sides = [
        session(lambda w, b=b: main(w, b), tables, servers=servers, transport=transport).values
        for b in (True, False)
    ]
    assert sides[0] == sides[1]
    assert len(sides[0]) == workers_with(servers)


def test_bad_use_is_refused_before_anything_is_sent(session: Session, transport: str) -> None:
    def main(worker: Worker) -> int:
        update = np.ones(4, np.float32)
        for updates, out, wrong in (
            ({"e": update}, None, "must be a dense table"),
            ({"w": update}, {"x": update}, "has no update"),
            ({"none": update}, None, "no table has the name"),
        ):
            with pytest.raises(ConfigError, match=wrong):
                worker.push_pull(updates, out)
        with pytest.raises(ValueError, match="shape"):
            worker.push_pull({"w": update}, {"w": np.ones(5, np.float32)})
        pulls = worker.push_pull({"w": update}, {"w": np.empty(4, np.float32)})
        with pytest.raises(ConfigError, match="must be one of the tables"):
            pulls.wait("e")
        assert (pulls.wait("w") == -1.0).all()
        assert pulls.test("w")
        pulls.finish()
        return worker.now

    tables = [
        DenseTable("w", (4,), mpips.SGD(1.0), consistency=BSP(reduce="mean")),
        mpips.EmbeddingTable("e", 4),
    ]
    assert set(session(main, tables, transport=transport).values) == {1}


def test_an_update_that_is_refused_leaves_the_clock_as_it_was(
    session: Session, transport: str, servers: int
) -> None:
    names = ["a", "b", "c"]

    def main(worker: Worker) -> bool:
        values = {name: np.full(3000, 7.0, np.float32) for name in names}
        updates = {name: np.ones(3000, np.float32) for name in names}
        channels = connection_of(worker).channels
        is_apart = all(channel.orders is not None for channel in channels)
        refused = updates | {"b": np.full(3000, np.nan, np.float32)}
        with pytest.raises(ValueError, match="'b' contains nan"):
            worker.push_pull(refused, values)
        if is_apart:
            # Nothing was sent, so the same clock can be tried again.
            pulls = worker.push_pull(updates, values)
            for name in reversed(names):
                assert (pulls.wait(name) == -worker.n_workers).all()
            worker.push_pull(updates)
        else:
            worker.clock()
            assert (worker.table("c").pull() == 0).all()
        worker.clock()
        if is_apart:
            assert (values["a"] == -worker.n_workers).all()
            assert all((worker.table(n).pull() == -2 * worker.n_workers).all() for n in names)
        return is_apart

    tables = [DenseTable(n, (3000,), mpips.SGD(1.0), BSP(reduce="sum")) for n in names]
    played = session(main, tables, servers=servers, transport=transport)
    assert all(played.values) == (transport in ("p2p", "rma") and SIZE > 1)


def test_arrays_for_values_must_not_share_memory(session: Session, transport: str) -> None:
    def main(worker: Worker) -> int:
        updates = {name: np.ones(4, np.float32) for name in ("a", "b")}
        memory = np.zeros(9, np.float32)
        for outs in (
            {"a": memory[:4], "b": memory[:4]},
            {"a": memory[3:7], "b": memory[:4]},
        ):
            with pytest.raises(ConfigError, match="share memory"):
                worker.push_pull(updates, outs)
        read_only = np.zeros(4, np.float32)
        read_only.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            worker.push_pull(updates, {"b": read_only})
        pulls = worker.push_pull(updates, {"a": memory[4:8], "b": memory[:4]})
        pulls.finish()
        assert (memory == [-worker.n_workers] * 8 + [0]).all()
        return worker.now

    tables = [DenseTable(name, (4,), mpips.SGD(1.0), BSP(reduce="sum")) for name in ("a", "b")]
    assert set(session(main, tables, transport=transport).values) == {1}


def test_a_clock_ends_only_when_the_values_of_the_one_before_are_there(
    session: Session, transport: str, servers: int
) -> None:
    n = 600_000

    def main(worker: Worker) -> int:
        pulls = worker.push_pull({"w": np.ones(n, np.float32)})
        worker.table("w").push(np.ones(n, np.float32))
        worker.clock()
        assert connection_of(worker).coming is None
        assert (worker.table("w").pull() == -2 * worker.n_workers).all()
        assert (pulls.wait("w") == -worker.n_workers).all()
        return worker.now

    tables = [DenseTable("w", (n,), mpips.SGD(1.0), BSP(reduce="sum"))]
    assert set(session(main, tables, servers=servers, transport=transport).values) == {2}


@pytest.mark.parametrize("first", ["held", "w"])
def test_values_are_those_of_their_clock_whatever_table_is_closed_next(
    session: Session, transport: str, servers: int, first: str
) -> None:
    def main(worker: Worker) -> int:
        updates = {name: np.ones(5000, np.float32) for name in ("held", "w")}
        pulls = worker.push_pull(updates)
        for name in sorted(updates, key=lambda name: name != first):
            worker.table(name).push(updates[name], closes=True)
        worker.clock()
        for name in updates:
            assert (pulls.wait(name) == -worker.n_workers).all()
            assert (worker.table(name).pull() == -2 * worker.n_workers).all()
        return worker.now

    tables = [
        DenseTable("held", (5000,), mpips.SGD(1.0), BSP(reduce="sum"), placement="replicated"),
        DenseTable("w", (5000,), mpips.SGD(1.0), BSP(reduce="sum")),
    ]
    assert set(session(main, tables, servers=servers, transport=transport).values) == {2}


def test_values_between_outer_steps_are_those_of_their_clock(
    session: Session, transport: str
) -> None:
    def main(worker: Worker) -> int:
        pulls = worker.push_pull({"w": np.ones(9, np.float32)})
        worker.table("w").push(np.ones(9, np.float32))
        worker.clock()
        assert (pulls.wait("w") == -1).all()
        assert (worker.table("w").pull() == -2).all()
        return worker.now

    tables = [DenseTable("w", (9,), mpips.SGD(1.0), mpips.LocalSGD(4))]
    assert set(session(main, tables, transport=transport).values) == {2}
