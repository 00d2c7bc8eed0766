"""Residuals of pushes: the same bits over transports and restarts, and with other numbers of ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from playing import SIZE, Session, counts, workers_with

import mpips
from mpips import BSP, DenseTable, Worker
from mpips.checkpoint import find_newest, list_checkpoints, open_checkpoint
from mpips.checkpoint.residuals import read_residuals

if TYPE_CHECKING:
    from mpi4py import MPI

N = 3000
CODECS = {"topk": mpips.TopK(0.1), "randomk": mpips.RandomK(0.1), "onebit": mpips.OneBit()}
STEPS = 4


def tables(reduce: str = "sum") -> list[DenseTable]:
    return [
        DenseTable(name, (N,), mpips.SGD(1.0), BSP(reduce=reduce), compression=codec)  # type: ignore[arg-type]
        for name, codec in CODECS.items()
    ]


def work(worker: Worker, first: int, last: int) -> dict[str, Any]:
    """Make steps; return values, and residuals before and after them."""
    found: dict[str, Any] = {"before": {name: worker.table(name).residual() for name in CODECS}}
    for step in range(first, last):
        for name in CODECS:
            worker.table(name).push(counts(worker.index, step, N))
        worker.clock()
    found["values"] = {name: worker.table(name).pull() for name in CODECS}
    found["after"] = {name: worker.table(name).residual() for name in CODECS}
    return found


def bits(values: list[Any]) -> list[bytes]:
    return [
        v[what][name].tobytes() for v in values for what in ("values", "after") for name in CODECS
    ]


def test_bits_do_not_depend_on_transport_and_restart(session: Session, folder: Path) -> None:
    """A push takes several records, and a ring has fewer slots."""
    options: dict[str, Any] = {"servers": 1, "slot_kib": 1, "ring_slots": 4}
    whole = session(lambda w: work(w, 0, 2 * STEPS), tables(), transport="auto", **options)
    others = ["p2p"] if SIZE > 1 else []
    for transport in others:
        again = session(lambda w: work(w, 0, 2 * STEPS), tables(), transport=transport, **options)
        assert bits(again.values) == bits(whole.values)
    session(lambda w: work(w, 0, STEPS), tables(), save=folder, **options)
    second = session(lambda w: work(w, STEPS, 2 * STEPS), tables(), save=folder, **options)
    assert bits(second.values) == bits(whole.values)
    assert all(np.any(v["before"][name]) for v in second.values for name in CODECS)


@pytest.mark.skipif(SIZE < 4, reason="the number of workers cannot change")
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_another_number_of_workers_keeps_what_the_residuals_contribute(
    session: Session, folder: Path, comm: MPI.Intracomm, reduce: str
) -> None:
    """One worker less, and one server more: whole numbers are summed, and scaled where the mean counts."""
    before, after = workers_with(1), workers_with(2)
    first = session(lambda w: work(w, 0, STEPS), tables(reduce), servers=1, save=folder)
    comm.Barrier()
    found = find_newest(folder).checkpoint
    assert found is not None
    with open_checkpoint(found.path) as checkpoint:
        checkpoint.verify()
        for worker, values in enumerate(first.values):
            stored = read_residuals(checkpoint.path, checkpoint.manifest, worker)
            assert all((stored[name] == values["after"][name]).all() for name in CODECS)
    second = session(lambda w: work(w, 0, 0), tables(reduce), servers=2, save=folder)
    assert len(second.values) == after
    for name in ("topk", "randomk"):
        held = sum(values["after"][name] for values in first.values)
        taken = sum(values["before"][name] for values in second.values)
        if reduce == "sum":
            assert (taken == held).all()
        else:
            assert np.allclose(taken / after, held / before, rtol=1e-6, atol=1e-6)
        assert np.any(held)


@pytest.mark.skipif(SIZE < 4, reason="there is one worker")
def test_checkpoints_are_written_after_a_worker_has_finished(
    session: Session, folder: Path
) -> None:
    """Worker 0 goes on alone until there is a checkpoint of its clocks; the others have finished by then."""

    def main(worker: Worker) -> dict[int, Any] | Any:
        table, end = worker.table("topk"), time.monotonic() + 20
        step = 0
        while step < STEPS or worker.index == 0:
            table.push(counts(worker.index, step, N))
            worker.clock()
            step += 1
            found = [c for c in list_checkpoints(folder) if c.step > STEPS]
            if worker.index == 0 and found:
                with open_checkpoint(found[-1].path) as checkpoint:
                    checkpoint.verify()
                    of = checkpoint.path, checkpoint.manifest
                    return {w: read_residuals(*of, w)["topk"] for w in range(workers)}
            assert time.monotonic() < end, "there is no checkpoint of a clock of worker 0 alone"
        return table.residual()

    workers = workers_with(1)
    outcome = session(main, tables()[:1], servers=1, save=folder, every_steps=2)
    stored = outcome.values[0]
    assert np.any(stored[0])
    for worker in range(1, workers):
        assert stored[worker].tobytes() == outcome.values[worker].tobytes()


@pytest.mark.skipif(SIZE < 4, reason="there is one worker")
def test_groups_that_change_between_launches_lose_nothing_of_a_residual(
    session: Session, folder: Path, transport: str
) -> None:
    """The worker that pushes a sum has the residual of its group; the next launch has other groups."""
    given: Any = {name: np.zeros(N, np.float32) for name in CODECS}
    launches: list[tuple[int, Any]] = [(1, "node"), (2, "flat"), (1, [[0, workers_with(1) - 1]])]
    for number, (servers, topology) in enumerate(launches):
        steps = range(number * STEPS, (number + 1) * STEPS)
        played = session(
            lambda w, first=steps.start, last=steps.stop: work(w, first, last),
            tables(),
            servers=servers,
            topology=topology,
            save=folder,
            transport=transport,
        )
        for name in CODECS:
            for step in steps:
                given[name] += sum(counts(w, step, N) for w in range(workers_with(servers)))
            values = played.values[0]["values"][name]
            kept = sum(found["after"][name] for found in played.values)
            assert np.any(kept)
            if name == "onebit":
                # Means of magnitudes are no whole numbers: float32 rounds what is left.
                assert np.allclose(values - kept, -given[name], rtol=1e-5, atol=1e-3)
            else:
                assert (values - kept == -given[name]).all()


@dataclass
class Launch:
    """One launch of a chain: servers, groups, and the clocks at which workers end, by worker."""

    servers: int
    topology: Any
    ends: list[int]


def _chains() -> list[list[Launch]]:
    """Return chains of launches for this number of ranks, by seed; the last launch of each pushes zeros."""
    found = []
    for seed in range(4):
        random = np.random.default_rng([seed, SIZE])
        chain = []
        for _ in range(3):
            servers = int(random.integers(1, max(2, SIZE - 2)))
            n = workers_with(servers)
            order = [int(w) for w in random.permutation(n)]
            listed: list[Any] = [order[: int(random.integers(2, n + 1))]] if n > 1 else []
            if n > 2 and random.random() < 0.5:
                listed = [[order[:2], *order[2:]]]
            topology = listed if listed and random.random() < 0.8 else "flat"
            chain.append(Launch(servers, topology, [int(e) for e in random.integers(0, 5, n)]))
        found.append(chain)
    return found


@pytest.mark.skipif(SIZE < 4, reason="there is one worker")
@pytest.mark.parametrize("chain", _chains(), ids=lambda chain: f"{len(chain)}-launches")
def test_chains_of_jobs_with_other_groups_and_uneven_ends_send_everything(
    session: Session, folder: Path, chain: list[Launch]
) -> None:
    """Each checkpoint has every update, in its values or in one residual; at the end all are sent.

    Worker w pushes whole numbers at each of its clocks. The last launch of a chain pushes zeros, until TopK
    must have sent all that any pushing worker held.
    """
    n_values, given = 60, np.zeros(60)
    table = DenseTable(
        "t", (n_values,), mpips.SGD(1.0), BSP("sum"), init="zeros", compression=mpips.TopK(0.1)
    )
    last = Launch(1, [list(range(workers_with(1)))], [40 + w for w in range(workers_with(1))])
    for number, launch in enumerate([*chain, last]):
        is_last = launch is last

        def main(worker: Worker, number: int = number, launch: Launch = launch) -> None:
            handle = worker.table("t")
            for clock in range(launch.ends[worker.index]):
                update = counts(worker.index, 10 * number + clock, n_values)
                handle.push(np.zeros_like(update) if launch is last else update)
                worker.set_cursor({"clock": clock})
                worker.clock()

        played = session(
            main,
            [table],
            servers=launch.servers,
            topology=launch.topology,
            save=folder,
            timeout_s=30.0,
        )
        assert len(played.values) == len(launch.ends)
        for w, end in enumerate(launch.ends if not is_last else ()):
            given += sum(counts(w, 10 * number + clock, n_values) for clock in range(end))
        found = find_newest(folder).checkpoint
        assert found is not None
        with open_checkpoint(found.path) as checkpoint:
            values = checkpoint.read_dense("t")[0].astype(float)
            of = checkpoint.path, checkpoint.manifest
            # One that has handed its residual over has none.
            held = [
                np.asarray(read_residuals(*of, w).get("t", np.zeros(n_values)), float)
                for w in range(len(launch.ends))
            ]
        assert (values - sum(held) == -given).all(), (number, launch)
        if is_last:
            assert not np.any(held)
            assert (values == -given).all()


@pytest.mark.skipif(SIZE < 4, reason="there is one worker")
@pytest.mark.parametrize("codec", [mpips.TopK(0.05), mpips.SharedInt8(16)], ids=["topk", "shared"])
@pytest.mark.parametrize("subgroups", [False, True])
def test_the_residuals_of_a_leader_that_ends_first_are_sent_by_the_next_one(
    session: Session, transport: str, codec: Any, subgroups: bool
) -> None:
    """Leaders end one after the other; the table is pushed again some clocks after the second one's end."""
    workers, n_values, scale = workers_with(1), 100, 1000.0
    everyone = list(range(workers))
    topology = [[everyone[:2], *everyone[2:]]] if subgroups and workers > 2 else [everyone]
    table = DenseTable(
        "t", (n_values,), mpips.SGD(1.0), BSP("sum"), init="zeros", compression=codec
    )

    def main(worker: Worker) -> Any:
        handle, is_last = worker.table("t"), worker.index == workers - 1
        for clock in range(3 + worker.index + 60 * is_last):
            if clock < 3:
                handle.push((1 + worker.index) * scale * counts(7, clock, n_values))
            elif clock > 2 + workers:
                handle.push(np.zeros(n_values, np.float32))
            worker.clock()
        return (handle.pull(), handle.residual()) if is_last else None

    played = session(main, [table], servers=1, topology=topology, transport=transport)
    given = (
        sum(1 + w for w in range(workers)) * scale * sum(counts(7, c, n_values) for c in range(3))
    )
    values, left = played.values[-1]
    if isinstance(codec, mpips.TopK):
        assert not np.any(left)
        assert (values == -given).all()
    else:
        assert np.abs(values - left + given).max() <= 1e-3 * np.abs(given).max()
