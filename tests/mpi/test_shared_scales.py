"""SharedInt8: the same bits over transports, numbers of servers and restarts; nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from playing import SIZE, Session, workers_with

import mpips
from mpips import BSP, DenseTable, Worker
from mpips.checkpoint import find_newest, open_checkpoint

if TYPE_CHECKING:
    from mpi4py import MPI

N, STEPS, BLOCK = 5000, 4, 96


def tables(codec: Any = None, pull: Any = None) -> list[DenseTable]:
    found = codec or mpips.SharedInt8(BLOCK)
    return [
        DenseTable("w", (N,), mpips.SGD(1.0), BSP(reduce="sum"), compression=found),
        DenseTable(
            "v", (N // 3,), mpips.Adam(0.1), BSP(), compression=found, pull_compression=pull
        ),
        DenseTable("plain", (7,), mpips.SGD(1.0), BSP(reduce="sum")),
    ]


def update(worker: int, step: int, n: int) -> np.ndarray:
    """Return values with all their bits, whose size changes from step to step."""
    rng = np.random.default_rng([worker, step, n])
    return (rng.standard_normal(n) * 3.0 ** (step % 3)).astype(np.float32)


def work(worker: Worker, first: int, last: int, pushers: int = SIZE, pulls: bool = True) -> Any:
    """Make steps; return values and residuals. Workers from `pushers` on push nothing."""
    for step in range(first, last):
        if worker.index < pushers:
            worker.table("w").push(update(worker.index, step, N))
            worker.table("w").push(update(worker.index, step + 100, N))
            worker.table("v").push(update(worker.index, step, N // 3))
            worker.table("plain").push(np.ones(7, np.float32))
        worker.clock()
        if pulls:
            worker.table("v").pull()
    return {
        f"{name} {what}": getattr(worker.table(name), what)()
        for name in ("w", "v")
        for what in ("pull", "residual")
    }


def bits(values: list[Any], names: tuple[str, ...] = ("w", "v")) -> list[bytes]:
    return [v[k].tobytes() for v in values for k in sorted(v) if k[0] in names]


def test_bits_do_not_depend_on_transport_and_pulls(session: Session) -> None:
    """A push takes several records, and a ring has fewer slots."""
    options: dict[str, Any] = {"servers": 1, "slot_kib": 1, "ring_slots": 4}
    whole = session(lambda w: work(w, 0, STEPS), tables(), transport="auto", **options)
    for transport in ["p2p", "rma"] if SIZE > 1 else []:
        again = session(
            lambda w: work(w, 0, STEPS, pulls=False), tables(), transport=transport, **options
        )
        assert bits(again.values) == bits(whole.values)
    total = sum(
        update(w, s + more, N).astype(np.float64)
        for w in range(len(whole.values))
        for s in range(STEPS)
        for more in (0, 100)
    )
    rest = sum(v["w residual"].astype(np.float64) for v in whole.values)
    assert np.abs(rest - whole.values[0]["w pull"] - total).max() < 1e-3
    assert np.abs(rest).max() > 0


@pytest.mark.skipif(SIZE < 4, reason="there are too few ranks for two servers and workers")
def test_bits_do_not_depend_on_the_number_of_servers(session: Session) -> None:
    """With another server there is one worker less, so in both jobs the same ones push."""
    pushers = workers_with(2)
    one, two = (
        session(lambda w: work(w, 0, STEPS, pushers), tables(), servers=n, slot_kib=1)
        for n in (1, 2)
    )
    assert bits(two.values[:pushers], ("w",)) == bits(one.values[:pushers], ("w",))


def test_a_restart_from_a_checkpoint_continues_with_the_same_bits(
    session: Session, folder: Path, comm: MPI.Intracomm
) -> None:
    whole = session(lambda w: work(w, 0, 2 * STEPS), tables(pull="bf16"), servers=1)
    session(lambda w: work(w, 0, STEPS), tables(pull="bf16"), servers=1, save=folder)
    comm.Barrier()
    found = find_newest(folder).checkpoint
    assert found is not None
    with open_checkpoint(found.path) as checkpoint:
        checkpoint.verify()
        scales, _ = checkpoint.read_dense("w.scales", 0, -(-N // BLOCK))
        assert (scales > 0).all()
    second = session(
        lambda w: work(w, STEPS, 2 * STEPS), tables(pull="bf16"), servers=1, save=folder
    )
    assert bits(second.values) == bits(whole.values)


@pytest.mark.skipif(SIZE < 4, reason="there are too few ranks for two servers and workers")
def test_a_restart_with_another_server_and_one_worker_less_has_the_same_bits(
    session: Session, folder: Path
) -> None:
    """The worker that is gone pushed nothing; scales and residuals lie elsewhere."""
    pushers = workers_with(2)
    whole = session(lambda w: work(w, 0, 2 * STEPS, pushers), tables(), servers=1)
    session(lambda w: work(w, 0, STEPS, pushers), tables(), servers=1, save=folder)
    second = session(lambda w: work(w, STEPS, 2 * STEPS, pushers), tables(), servers=2, save=folder)
    assert bits(second.values[:pushers], ("w",)) == bits(whole.values[:pushers], ("w",))


def test_a_restart_may_change_the_codec(session: Session, folder: Path) -> None:
    """Scales of other blocks, or none, begin with a clock of floats; what was learned stays."""

    def begin(worker: Worker) -> Any:
        worker.table("w").push(update(worker.index, 0, N))
        worker.clock()
        return worker.table("w").pull()

    before = session(begin, tables(mpips.Int8()), servers=1, save=folder)
    for codec in (mpips.SharedInt8(BLOCK), mpips.SharedInt8(64), mpips.Bf16()):

        def main(worker: Worker, codec: Any = codec) -> Any:
            values = worker.table("w").pull()
            worker.table("w").push(np.ones(N, np.float32))
            worker.clock()
            worker.table("w").push(np.ones(N, np.float32))
            worker.clock()
            return values, worker.table("w").pull()

        job = [*tables(codec)[:1], *tables(mpips.Int8())[1:]]
        after = session(main, job, servers=1, save=folder)
        n = len(after.values)
        assert np.isfinite(after.values[0][1]).all()
        assert (after.values[0][1] != after.values[0][0]).any()
        if codec == mpips.SharedInt8(BLOCK):
            assert (after.values[0][0] == before.values[0]).all()
            # Powers of two are exact.
            assert np.allclose(after.values[0][0] - after.values[0][1], 2.0 * n, atol=1e-4)
