"""The progress thread over MPI: every call in a worker is made by the thread that may make it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from playing import SIZE, Session, noise

import mpips
from mpips import BSP, SSP, Adagrad, DenseTable, EmbeddingTable, Worker
from mpips.mpi.cluster import Cluster
from mpips.session import links
from mpips.worker.worker import connection_of

LONG_S = 60.0

pytestmark = pytest.mark.skipif(SIZE < 2, reason="a server on another rank")


class Watch:
    """What is wrong with calls of MPI, and how many each thread has made."""

    def __init__(self) -> None:
        self.gate: Any = None
        self.inside: str | None = None
        self.wrong: list[str] = []
        self.calls: dict[str, int] = {}

    def call(self, name: str, function: Any, *arguments: Any, **options: Any) -> Any:
        who = threading.current_thread().name
        if self.inside is not None:
            self.wrong.append(f"{who} calls {name} while {self.inside} is in MPI")
        if who == "mpips-progress":
            allowed = self.gate.lock.locked()
        else:
            allowed = who == "MainThread" and self.gate._is_closed
        if not allowed:
            self.wrong.append(f"{who} calls {name} while the other may")
        self.inside = who
        try:
            return function(*arguments, **options)
        finally:
            self.inside = None
            self.calls[who] = self.calls.get(who, 0) + 1


class Watched:
    """An object of MPI whose calls are watched; requests that it returns are watched, too."""

    def __init__(self, watch: Watch, target: Any) -> None:
        self._watch, self._target = watch, target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def called(*arguments: Any, **options: Any) -> Any:
            result = self._watch.call(name, found, *arguments, **options)
            return Watched(self._watch, result) if isinstance(result, MPI.Request) else result

        return called


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Watch the communicators and windows of the jobs of this test, from their making on."""
    watch = Watch()
    duplicate, make_window = Cluster.duplicate, links.make_window

    def watched(cluster: Cluster, what: str) -> Any:
        watch.gate = cluster.gate
        return Watched(watch, duplicate(cluster, what))

    def watched_window(comm: Any, memory: Any) -> Any:
        window = make_window(comm, memory)
        return None if window is None else Watched(watch, window)

    monkeypatch.setattr(Cluster, "duplicate", watched)
    monkeypatch.setattr(links, "make_window", watched_window)
    return watch


def tables(consistency: Any) -> list[Any]:
    rule = Adagrad(0.1)
    return [
        DenseTable("large", (300_000,), optimizer=rule, consistency=consistency),
        DenseTable("w", (50,), optimizer=rule, consistency=consistency, compression="int8"),
        EmbeddingTable("e", 16, rule, consistency, pull_compression="bf16"),
        EmbeddingTable("f", 4, rule, consistency),
    ]


def everything(worker: Worker) -> tuple[int, bytes]:
    """Use all that a worker has in the loop of a look-ahead; return steps of the thread, and rows."""
    random = np.random.default_rng(worker.index)
    batches = [random.zipf(1.3, 400) % 3000 for _ in range(25)]
    e, f, w, large = (worker.table(name) for name in ("e", "f", "w", "large"))
    last = b""
    loop = mpips.lookahead(batches, keys=lambda k: {"e": k, "f": k[:50]}, worker=worker, depth=3)
    for step, keys in enumerate(loop):
        compute(random)
        rows = e.pull(keys)
        compute(random)
        few = f.prefetch(keys[:20])
        e.push(keys, rows * np.float32(0.1))
        compute(random)
        # The gate is open here, as behind each push to a table of the look-ahead.
        if step % 2:
            worker.report_metrics(0, step, {"loss": 0.5})
        else:
            worker.gather("rows", b"x" * 5000)
        w.push(w.pull())
        if step % 5 == 0:
            large.push(large.pull(), closes=step % 10 == 0)
            worker.checkpoint()
        compute(random)
        f.push(keys[:20], few.wait()).test()
        worker.report(0, step, 1, 0.5)
        worker.set_cursor({"step": step})
        if step % 7 == 0:
            worker.barrier("all")
            worker.reduce("sum", np.ones(3))
            w.set_optimizer(Adagrad(0.1))
        worker.clock()
        compute(random)
        last = rows.tobytes()
    worker.flush()
    progress = connection_of(worker).progress
    return (progress.n_steps if progress is not None else 0), last


def compute(random: np.random.Generator) -> None:
    """Compute for up to two milliseconds, without the interpreter's lock for most of it."""
    end = time.perf_counter() + random.uniform(0.0, 0.002)
    while time.perf_counter() < end:
        np.sum(np.ones(20_000))


@pytest.mark.one_of("consistency")
@pytest.mark.two_ranks
@pytest.mark.parametrize("consistency", [BSP(), SSP(2)], ids=["bsp", "ssp"])
def test_one_thread_at_a_time_calls_mpi(
    session: Session,
    watch: Watch,
    folder: Path,
    servers: int,
    remote: str,
    consistency: Any,
) -> None:
    played = session(
        everything, tables(consistency), servers=servers, transport=remote, save=folder
    )
    assert watch.wrong == []
    assert all(steps > 0 for steps, _ in played.values)
    if watch.calls.get("mpips-progress"):
        assert watch.calls["MainThread"] > 0


def test_rows_of_the_next_batch_come_while_the_program_computes(
    session: Session, servers: int, remote: str
) -> None:
    """The program calls nothing of mpips; with p2p no byte of a reply would be copied without the thread."""

    def main(worker: Worker) -> bool:
        batches = [np.arange(i * 2000, (i + 1) * 2000) for i in range(3)]
        channels = connection_of(worker).channels
        came = []
        table = worker.table("e")
        for keys in mpips.lookahead(batches, keys=lambda k: k, worker=worker, depth=2):
            table.pull(keys)
            deadline = time.monotonic() + LONG_S
            writers = [channel._writer for channel in channels]  # type: ignore[attr-defined]
            while not all(w.collected_before() == w.next_sequence for w in writers):
                np.sum(np.ones(20_000))
                if time.monotonic() > deadline:
                    break
            else:
                came.append(True)
            worker.clock()
        return len(came) == 3

    table = EmbeddingTable("e", 16, mpips.SGD(1.0), BSP())
    played = session(main, [table], servers=servers, transport=remote)
    assert all(played.values)


@pytest.mark.parametrize("how", ["option", "switch", "paused"])
def test_without_the_thread_the_bits_are_equal(
    session: Session, monkeypatch: pytest.MonkeyPatch, remote: str, how: str
) -> None:
    if how == "switch":
        monkeypatch.setenv("MPIPS_PROGRESS", "0")

    def main(worker: Worker, ahead: bool = True) -> tuple[int, list[bytes]]:
        random = np.random.default_rng(worker.index)
        batches: Any = [random.zipf(1.3, 200) % 500 for _ in range(10)]
        if ahead:
            batches = mpips.lookahead(
                batches, keys=lambda k: k, worker=worker, depth=2, progress=how != "option"
            )
        found, table = [], worker.table("e")
        for keys in batches:
            with worker.paused():
                time.sleep(0.001)
            found.append(table.pull(keys).tobytes())
            with worker.paused():
                table.push(keys, np.full((len(keys), 8), worker.index + 1, np.float32))
                worker.clock()
        progress = connection_of(worker).progress
        return (progress.n_steps if progress is not None else 0), found

    table = EmbeddingTable("e", 8, Adagrad(0.1), BSP())
    plain = session(lambda worker: main(worker, False), [table], transport=remote)
    ahead = session(main, [table], transport=remote)
    assert [bits for _, bits in ahead.values] == [bits for _, bits in plain.values]
    if how != "paused":
        assert all(steps == 0 for steps, _ in ahead.values)


def test_large_pushes_leave_while_the_program_computes(
    session: Session, servers: int, remote: str
) -> None:
    def main(worker: Worker, begins: bool) -> tuple[bytes, int]:
        connection, n_left = connection_of(worker), 0
        if begins:
            connection.begin_progress()
        large, w = worker.table("large"), worker.table("w")
        for clock in range(6):
            large.push(noise(worker.index, clock, 300_000), closes=True)
            w.push(noise(worker.index, clock, 50), closes=True)
            deadline = time.monotonic() + LONG_S
            channels: Any = connection.channels if begins else []
            while any(channel.is_under_way for channel in channels):
                np.sum(np.ones(20_000))
                if time.monotonic() > deadline:
                    break
            else:
                n_left += 1
            worker.clock()
        return large.pull().tobytes() + w.pull().tobytes(), n_left

    rule, bsp = Adagrad(0.1), BSP("sum")
    found = [
        DenseTable("large", (300_000,), rule, bsp),
        DenseTable("w", (50,), rule, bsp, compression="int8"),
    ]
    options = {"servers": servers, "transport": remote}
    plain = session(lambda worker: main(worker, False), found, **options)
    early = session(lambda worker: main(worker, True), found, **options)
    assert [bits for bits, _ in early.values] == [bits for bits, _ in plain.values]
    assert all(n_left == 6 for _, n_left in early.values)
