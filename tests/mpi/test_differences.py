"""Pulls as differences: the same bits over transports and restarts, whoever pulls when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playing import SIZE, Session, counts, workers_with

import mpips
from mpips import BSP, DenseTable, EmbeddingTable, Worker
from mpips.checkpoint import find_newest, open_checkpoint
from mpips.kernels import reference_feedback as reference
from mpips.model.placement import place

if TYPE_CHECKING:
    from mpi4py import MPI

Float32 = NDArray[np.float32]
N = 3000
CODECS = {"topk": mpips.TopK(0.1), "onebit": mpips.OneBit()}
NAMES = (*CODECS, "both", "shared")
STEPS = 5


def tables() -> list[DenseTable | EmbeddingTable]:
    """Return tables with differences, two of which encode pushes, too, beside rows of another model."""
    options: dict[str, Any] = {"consistency": BSP(reduce="sum"), "init": "normal(1.0)"}
    return [
        *(
            DenseTable(name, (N,), mpips.SGD(1.0), pull_compression=codec, **options)
            for name, codec in CODECS.items()
        ),
        DenseTable(
            "both",
            (N,),
            mpips.Momentum(0.1),
            compression=mpips.TopK(0.1),
            pull_compression=mpips.OneBit(),
            **options,
        ),
        DenseTable(
            "shared",
            (N,),
            mpips.SGD(0.1),
            compression=mpips.SharedInt8(),
            pull_compression=mpips.OneBit(),
            **options,
        ),
        EmbeddingTable("rows", 4, mpips.SGD(1.0), mpips.ASP()),
    ]


def train(worker: Worker, first: int, last: int, every: bool = True) -> list[bytes]:
    """Make steps whose updates depend on the bits of what was pulled; return the bits of all pulls."""
    found: list[bytes] = []
    for step in range(first, last):
        for name in NAMES:
            table = worker.table(name)
            update = counts(worker.index, step, N)
            if every or (step + worker.index) % 3 == 0:
                values = table.pull()
                found.append(values.tobytes())
                if every:
                    update = update + np.abs(values) / 8
            if name != "onebit" or step != 2:  # nobody pushes to it in this clock
                table.push(update)
        worker.table("rows").push(np.array([3, 5]), np.ones((2, 4), np.float32))
        worker.clock()
    found += [worker.table(name).pull().tobytes() for name in NAMES]
    return found


def test_bits_do_not_depend_on_transport_and_restart(
    session: Session, folder: Path, servers: int
) -> None:
    options: dict[str, Any] = {"servers": servers, "slot_kib": 4}
    whole = session(lambda w: train(w, 0, 2 * STEPS), tables(), transport="auto", **options)
    assert all(values == whole.values[0] for values in whole.values)
    for transport in ["rma", "p2p"] if SIZE > 1 else []:
        again = session(lambda w: train(w, 0, 2 * STEPS), tables(), transport=transport, **options)
        assert again.values == whole.values
    first = session(lambda w: train(w, 0, STEPS), tables(), save=folder, **options)
    second = session(lambda w: train(w, STEPS, 2 * STEPS), tables(), save=folder, **options)
    assert [v[-len(NAMES) :] for v in second.values] == [v[-len(NAMES) :] for v in whole.values]
    # The first pulls after the restart are the last ones before it, not the values.
    assert [v[: len(NAMES)] for v in second.values] == [v[-len(NAMES) :] for v in first.values]


def test_copies_are_those_of_the_definition(session: Session, transport: str, servers: int) -> None:
    """Workers pull in some clocks only, each in others; the parts of servers are encoded by themselves."""
    outcome = session(
        lambda w: train(w, 0, STEPS, every=False),
        tables(),
        transport=transport,
        servers=servers,
    )
    made, n_workers = tables()[:2], workers_with(servers)
    placement = place(made, servers, n_workers, None, 0)
    for t, table in enumerate(made):
        values = initial(session, table, servers)
        copy, states = values.copy(), []
        for step in range(STEPS):
            states.append(copy.tobytes())
            if table.name == "onebit" and step == 2:
                continue
            total = sum(counts(w, step, N) for w in range(n_workers))
            values = values - total
            for part in placement.dense[table.name]:
                at = slice(part.start, part.stop)
                share = getattr(table.pull_compression, "fraction", 1.0)
                codec = CODECS[table.name].name
                copy[at] = reference.difference(codec, share, values[at], copy[at])[1]
        states.append(copy.tobytes())
        for worker, found in enumerate(outcome.values):
            steps = [s for s in range(STEPS) if (s + worker) % 3 == 0] + [STEPS]
            assert found[t :: len(NAMES)] == [states[step] for step in steps]


def initial(session: Session, table: DenseTable, servers: int) -> Float32:
    """Return the values with which a table begins. Collective."""
    plain = DenseTable(table.name, (N,), mpips.SGD(1.0), BSP(), init=table.init)
    found: Float32 = session(lambda w: w.table(table.name).pull(), [plain], servers=servers).values[
        0
    ]
    return found


@pytest.mark.skipif(SIZE < 4, reason="the number of servers cannot change")
def test_another_number_of_servers_and_workers_continues_with_the_same_copy(
    session: Session, folder: Path, comm: MPI.Intracomm
) -> None:
    first = session(lambda w: train(w, 0, STEPS), tables(), servers=1, save=folder)
    comm.Barrier()
    found = find_newest(folder).checkpoint
    assert found is not None
    with open_checkpoint(found.path) as checkpoint:
        checkpoint.verify()
        for name, pulled in zip(NAMES, first.values[0][-len(NAMES) :], strict=True):
            values, state = checkpoint.read_dense(name)
            assert state["common"].tobytes() == pulled != values.tobytes()
    second = session(lambda w: train(w, STEPS, STEPS + 2), tables(), servers=2, save=folder)
    assert all(values[: len(NAMES)] == first.values[0][-len(NAMES) :] for values in second.values)
    assert all(values == second.values[0] for values in second.values)


@pytest.mark.skipif(SIZE < 4, reason="there is one worker")
def test_groups_of_workers_pull_the_same_bits(session: Session, transport: str) -> None:
    n_workers = workers_with(1)
    options: dict[str, Any] = {"servers": 1, "transport": transport}
    groups = (tuple(range(n_workers)),)

    def main(worker: Worker) -> list[bytes]:
        return train(worker, 0, STEPS, every=False)

    grouped = session(main, tables(), topology=groups, **options)
    exact = session(main, tables(), **options)
    for name in range(2):  # sums of whole numbers do not depend on groups
        assert [v[name :: len(NAMES)] for v in grouped.values] == [
            v[name :: len(NAMES)] for v in exact.values
        ]
    assert all(
        values[-len(NAMES) :] == grouped.values[0][-len(NAMES) :] for values in grouped.values
    )
