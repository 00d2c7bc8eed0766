"""Operations that an exception of the program cuts off: repeatable if nothing is done, else refused by name.

The worker has two servers. Their rings have four slots, so operations wait for room in the middle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import TIMEOUT_S, make_writer
from local_job import run_local

from mpips import ASP, BSP, SGD, DenseTable, DiLoCo, EmbeddingTable, LocalSGD, MpipsError
from mpips.config.options import SessionOptions
from mpips.errors import StallError
from mpips.model.placement import place
from mpips.scheduler.own_worker import OwnWorker
from mpips.server.server import Server
from mpips.transport.channel import LocalChannel
from mpips.transport.region import Regions, new_token
from mpips.worker.collectives import Collectives
from mpips.worker.connection import Connection
from mpips.worker.worker import Worker, connection_of

N, ROWS = 2_000, 400
ONES = np.ones(N, np.float32)
KEYS = np.arange(ROWS)
ROW_VALUES = np.ones((ROWS, 4), np.float32)
MODELS: dict[str, Any] = {"bsp": BSP(reduce="sum"), "asp": ASP()}


class TwoServers:
    """A worker and its two servers, which consume records when the worker waits.

    Attributes:
        stopped: Servers that consume nothing.
    """

    def __init__(self, model: Any) -> None:
        self.stopped: set[int] = set()
        self.tables = [
            DenseTable("t", (N,), SGD(1.0), model, init="zeros"),
            EmbeddingTable("e", 4, SGD(1.0), model, init="zeros"),
        ]
        placement = place(self.tables, 2, 1, 4, 1024)
        regions = Regions(new_token(), shared=False)
        channels = []
        for s in range(2):
            server = Server(s, self.tables, placement, regions, 0, True, None)
            layout = placement.layouts[s]
            writer = make_writer(server.region, layout, 0, 2)
            drain = functools.partial(self._drain, server)
            channels.append(LocalChannel(server.region, layout, writer, 1, drain))
        self.connection = Connection(
            0, ["worker 0"], self.tables, channels, OwnWorker(), None, TIMEOUT_S
        )
        self.worker = Worker(self.connection, self.tables, placement)

    def _drain(self, server: Server) -> object:
        return server.drain() if server.index not in self.stopped else 0

    def values(self) -> tuple[float, float]:
        values = self.worker.table("t").pull()
        return float(values.min()), float(values.max())

    def row_values(self) -> tuple[float, float]:
        values = self.worker.table("e").pull(KEYS)
        return float(values.min()), float(values.max())

    def fill(self, server: int) -> None:
        """Leave no room in the ring of a server, and stop it until the next wait is cut off."""
        keys = self.keys_of(server)
        self.stopped.add(server)
        while self.connection.channels[server].writer.credits:
            self.worker.table("e").push(keys[:1], np.zeros((1, 4), np.float32))

    def order(self, name: str) -> list[int]:
        """Return the servers in the order in which an operation writes to them."""
        if name in ("push", "optimizer"):
            return list(self.worker.table("t")._servers)
        return [0, 1]

    def keys_of(self, server: int) -> np.ndarray:
        written = self.connection.written()
        found = []
        for key in KEYS[:50]:
            self.worker.table("e").push(KEYS[key : key + 1], np.zeros((1, 4), np.float32))
            now = self.connection.written()
            if now[server] > written[server]:
                found.append(key)
            written = now
            self.connection.flush()
        return np.array(found)


@contextmanager
def cut_off(job: TwoServers, error: BaseException, server: int) -> Iterator[None]:
    """Let the block end by `error` where it waits for room in the full ring of a server."""
    connection = job.connection
    job.fill(server)
    real = connection.wait_credit

    def wait(to: int) -> None:
        if to == server:
            raise error
        real(to)

    connection.wait_credit = wait  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        yield
    connection.wait_credit = real  # type: ignore[method-assign]
    job.stopped.clear()


OPERATIONS: dict[str, tuple[str, Callable[[Worker], object]]] = {
    "push": ("push to table 't'", lambda w: w.table("t").push(ONES)),
    "rows": ("push to table 'e'", lambda w: w.table("e").push(KEYS, ROW_VALUES)),
    "optimizer": ("set_optimizer of table 't'", lambda w: w.table("t").set_optimizer(SGD(2.0))),
    "clock": ("clock()", lambda w: w.clock()),
}
FOLLOWING: dict[str, Callable[[Worker], object]] = {
    **{name: call for name, (_, call) in OPERATIONS.items()},
    "pull": lambda w: w.table("t").pull(),
    "rows pull": lambda w: w.table("e").pull(KEYS),
    "gather": lambda w: w.gather("x", b"y"),
}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), StallError("late")], ids=["ctrl-c", "stall"]
)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("model", MODELS)
def test_what_one_server_has_and_the_other_lacks_is_named_by_everything_that_follows(
    model: str, name: str, error: BaseException
) -> None:
    what, operation = OPERATIONS[name]
    for following in FOLLOWING.values():
        job = TwoServers(MODELS[model])
        second = job.order(name)[1]
        with cut_off(job, error, second):
            operation(job.worker)
        with pytest.raises(MpipsError) as raised:
            following(job.worker)
        assert f"an earlier {what} of worker 0 was interrupted" in str(raised.value)
        assert "end the job and start it again" in str(raised.value)
        with pytest.raises(MpipsError, match="was interrupted"):
            job.connection.finish()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("model", MODELS)
def test_what_no_server_has_may_be_repeated(model: str, name: str) -> None:
    job = TwoServers(MODELS[model])
    first, operation = job.order(name)[0], OPERATIONS[name][1]
    with cut_off(job, KeyboardInterrupt(), first):
        operation(job.worker)
    operation(job.worker)
    now = job.connection.now
    assert now == (name == "clock")
    job.worker.table("t").push(ONES)
    job.worker.table("e").push(KEYS, ROW_VALUES)
    job.worker.clock()
    # SGD(2.0) concerns table 't' alone.
    dense = {"push": 2.0, "optimizer": 2.0}.get(name, 1.0)
    rows = {"rows": 2.0}.get(name, 1.0)
    assert job.values() == (-dense, -dense)
    assert job.row_values() == (-rows, -rows)
    job.connection.finish()


def test_a_clock_whose_tick_is_written_everywhere_does_not_count_twice() -> None:
    job = TwoServers(BSP(reduce="sum"))

    def poll() -> None:
        raise KeyboardInterrupt

    job.connection.control.poll = poll  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        job.worker.clock()
    with pytest.raises(MpipsError, match=r"an earlier clock\(\) of worker 0 was interrupted"):
        job.worker.clock()


@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize("model", MODELS)
def test_a_pull_of_rows_may_be_repeated(model: str, server: int) -> None:
    job = TwoServers(MODELS[model])
    rng = np.random.default_rng(1)
    expected = rng.integers(-9, 10, (ROWS, 4)).astype(np.float32)
    job.worker.table("e").push(KEYS, -expected)
    job.worker.clock()
    for _ in range(3):
        out = np.empty((ROWS, 4), np.float32)
        with cut_off(job, KeyboardInterrupt(), server):
            job.worker.table("e").pull(KEYS, out)
        assert (job.worker.table("e").pull(KEYS, out) == expected).all()
    assert job.values() == (0.0, 0.0)
    job.connection.finish()


def test_what_a_pull_of_rows_is_copied_to_is_held_when_the_request_is_cut_off() -> None:
    job = TwoServers(ASP())
    channel = job.connection.channels[0]

    class Writer:
        """The writer of the ring, behind whose record Ctrl-C comes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(writer, name)

        def pull_planned(self, *arguments: Any) -> int:
            writer.pull_planned(*arguments)
            raise KeyboardInterrupt

    writer, channel.writer = channel.writer, Writer()  # type: ignore[misc]
    keys = job.keys_of(0)
    with pytest.raises(KeyboardInterrupt):
        job.worker.table("e").pull(keys)
    held = job.connection._destinations._held
    assert any(rows.shape == (len(keys), 4) for _, _, (_, rows) in held)  # type: ignore[misc]


@pytest.mark.parametrize("name", ["t", "e"])
def test_push_pull_counts_once(name: str) -> None:
    calls: dict[str, Callable[[Worker], object]] = {
        "t": lambda w: w.table("t").push_pull(ONES),
        "e": lambda w: w.table("e").push_pull(KEYS, ROW_VALUES),
    }
    job = TwoServers(BSP(reduce="sum"))
    tick = job.connection._ticks.tick

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    def ticking() -> None:
        tick()
        # It comes behind the push and the clock.
        table = job.worker.table(name)
        setattr(table, "_start_pull" if name == "e" else "pull", interrupted)

    job.connection._ticks.tick = ticking  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        calls[name](job.worker)
    with pytest.raises(MpipsError, match=f"an earlier push_pull of table '{name}'"):
        calls[name](job.worker)


def test_the_short_path_is_cut_off_behind_its_native_call_or_in_its_wait() -> None:
    sent: list[str] = []

    class Port:
        def __init__(self, is_full: bool) -> None:
            self.is_full = is_full

        def push(self, update: Any, path: Any) -> Any:
            if self.is_full:
                return False
            raise KeyboardInterrupt

        def wait_room(self, seconds: float) -> bool:
            raise KeyboardInterrupt

    from mpips.worker.paths.direct import DirectPath

    connection: Any = SimpleNamespace(
        control=SimpleNamespace(state=""),
        refuse_after=sent.append,
        wait_until=lambda done, late: done(),
    )
    path = DirectPath(connection, [], "t", Port(True))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            path.push(ONES)
    assert sent == []
    path.port = Port(False)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        path.push(ONES)
    assert sent == ["push to table 't'"]


PLACES: dict[str, dict[str, Any]] = {
    "asp": {"consistency": ASP()},
    "bsp": {},
    "local": {"consistency": LocalSGD(2)},
    "replicated": {"placement": "replicated"},
}
ALONE = np.ones(4, np.float32)


def at_once(worker: Worker, bad: bool = False) -> Any:
    second = np.full(4, np.nan, np.float32) if bad else ALONE
    return worker.push_pull({"t": ALONE, "u": second})


def after_interrupt(
    monkeypatch: pytest.MonkeyPatch, place: str, at: str, call: Callable[[Worker], object]
) -> tuple[bool, list[float]]:
    """Interrupt a call within a job in this process; return whether the worker is refused, and its values.

    `at`: "clock", or the table whose push is interrupted before it does anything.
    """

    def interrupted(*arguments: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    def main(worker: Worker) -> tuple[bool, list[float]]:
        handle = worker.table(at) if at != "clock" else None
        with monkeypatch.context() as patch:
            if handle is None:
                patch.setattr(Connection, "clock", interrupted)
            else:
                patch.setattr(handle, "push", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call(worker)
        if connection_of(worker).is_refused:
            call(worker)
        call(worker)
        values = [float(worker.table(name).pull()[0]) for name in "tu"]
        return connection_of(worker).is_refused, values

    tables = [DenseTable(name, (4,), SGD(1.0), **PLACES[place]) for name in "tu"]
    return run_local(main, tables, SessionOptions())[0]


@pytest.mark.parametrize("place", ["local", "replicated"])
def test_push_pull_of_values_in_the_worker_counts_once(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MpipsError, match="an earlier push_pull of table 't' of worker 0 was inter"):
        after_interrupt(monkeypatch, place, "clock", lambda w: w.table("t").push_pull(ALONE))


@pytest.mark.parametrize("at", ["clock", "u"])
@pytest.mark.parametrize("place", PLACES)
def test_push_pull_of_several_tables_counts_once(
    place: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MpipsError, match="an earlier push_pull of worker 0 was interrupted"):
        after_interrupt(monkeypatch, place, at, at_once)


@pytest.mark.parametrize("place", PLACES)
def test_push_pull_of_several_tables_may_be_repeated_when_it_has_done_nothing(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert after_interrupt(monkeypatch, place, "t", at_once) == (False, [-1.0, -1.0])


@pytest.mark.parametrize("place", PLACES)
def test_an_update_that_push_pull_refuses_leaves_those_before_it(place: str) -> None:
    def main(worker: Worker) -> list[float]:
        with pytest.raises(ValueError, match="nan"):
            at_once(worker, bad=True)
        worker.clock()
        return [float(worker.table(name).pull()[0]) for name in "tu"]

    tables = [DenseTable(name, (4,), SGD(1.0), **PLACES[place]) for name in "tu"]
    assert run_local(main, tables, SessionOptions())[0] == [-1.0, 0.0]


def test_a_push_to_a_replicated_table_counts_once() -> None:
    class Reduction:
        """The worker's end of the tables, behind whose push Ctrl-C comes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real[0], name)

        def push(self, *arguments: Any) -> bool:
            real[0].push(*arguments)
            raise KeyboardInterrupt

    real: list[Any] = []

    def main(worker: Worker) -> None:
        tables = connection_of(worker).replicated
        assert tables is not None
        real.append(tables._reduction)
        tables._reduction = Reduction()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            worker.table("t").push(ALONE)
        tables._reduction = real[0]
        worker.table("t").push(ALONE)

    with pytest.raises(MpipsError, match="an earlier push to table 't' of worker 0"):
        run_local(main, [DenseTable("t", (4,), SGD(1.0), **PLACES["replicated"])], SessionOptions())


LOCAL = [DenseTable("t", (8,), SGD(1.0), DiLoCo(2, SGD(0.5)), init="zeros")]
STEP = np.ones(8, np.float32)


def local_job(disturb: Callable[[Worker, int], object]) -> float:
    def main(worker: Worker) -> float:
        for step in range(6):
            worker.table("t").push(STEP)
            disturb(worker, step)
            worker.clock()
        return float(worker.table("t").pull()[0])

    return float(run_local(main, LOCAL, SessionOptions())[0])


def test_an_outer_step_whose_values_have_not_come_goes_on_later() -> None:
    def disturb(worker: Worker, step: int) -> None:
        if step == 1:
            worker.clock()  # the outer step
            local = connection_of(worker).local
            assert local is not None
            handle = local._tables[0].handle
            real = handle.pull

            def pull(out: Any = None) -> Any:
                real(out)
                raise KeyboardInterrupt

            handle.pull = pull  # type: ignore[method-assign]
            for use in (lambda: worker.table("t").pull(), worker.clock):
                with pytest.raises(KeyboardInterrupt):
                    use()
            handle.pull = real  # type: ignore[method-assign]
            worker.table("t").push(STEP)

    def undisturbed(worker: Worker, step: int) -> None:
        if step == 1:
            worker.clock()
            worker.table("t").push(STEP)

    assert local_job(disturb) == local_job(undisturbed)


@pytest.mark.parametrize("step", [2, 3])
def test_a_clock_of_local_steps_is_cut_off_by_name(step: int) -> None:
    def disturb(worker: Worker, at: int) -> None:
        if at != step:
            return
        connection = connection_of(worker)
        real = connection.control.poll

        def poll() -> None:
            raise KeyboardInterrupt

        connection.control.poll = poll  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            worker.clock()
        connection.control.__dict__.pop("poll", None)
        assert connection.control is not real

    with pytest.raises(MpipsError, match=r"an earlier clock\(\) of worker 0 was interrupted"):
        local_job(disturb)


def test_a_gather_that_is_cut_off_refuses_the_next_ones_by_name() -> None:
    class Tree:
        waits = False
        late = staticmethod(list)

        def reduce(self, *arguments: Any) -> Any:
            return SimpleNamespace(done=False, result=None)

        def poll(self) -> None:
            raise KeyboardInterrupt

    connection: Any = SimpleNamespace(
        index=1,
        control=SimpleNamespace(state="", poll=lambda: None),
        snapshot=SimpleNamespace(end_gather=lambda: None),
        wait_until=lambda done, late: done(),
    )
    collectives = Collectives(connection, Tree(), ["worker 0", "worker 1"])  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        collectives.gather("losses", b"1", everyone=True)
    for call in (
        lambda: collectives.gather("losses", b"1", everyone=True),
        lambda: collectives.barrier("end"),
        lambda: collectives.reduce("sum", np.ones(2)),
        lambda: collectives.swap("halves", np.ones(2), 0),
    ):
        with pytest.raises(
            MpipsError, match="an earlier gather 'losses' of worker 1 was interrupted"
        ):
            call()


@pytest.mark.parametrize("payload", ["text", 5, np.ones(2), None])
def test_a_payload_that_is_not_bytes_is_refused_before_anything_is_sent(payload: Any) -> None:
    class Tree:
        waits = False

        def reduce(self, call: str, value: Any, *arguments: Any) -> Any:
            return SimpleNamespace(done=True, result=value)

        def poll(self) -> None:
            pass

    connection: Any = SimpleNamespace(
        index=0,
        control=SimpleNamespace(state="", poll=lambda: None),
        snapshot=SimpleNamespace(end_gather=lambda: None),
        wait_until=lambda done, late: done(),
    )
    names = ["worker 0", "worker 1"]
    for tree in (None, Tree()):
        collectives = Collectives(connection, tree, names)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="gather 'losses': the payload must be bytes, not "):
            collectives.gather("losses", payload, everyone=True)
        assert collectives.gather("losses", bytearray(b"1"), everyone=True) == [b"1"]
