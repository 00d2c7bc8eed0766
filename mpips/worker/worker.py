"""The worker as programs see it: tables to push to and pull from, a clock, a random stream, a cursor."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from mpips.checkpoint.position import checked_copy
from mpips.errors import ConfigError
from mpips.model.arrays import check_out
from mpips.model.shared_scales import scale_tables
from mpips.model.stages import n_stages, not_of_stage, takes_part
from mpips.model.table import DenseTable, Table
from mpips.mpi.messages import Evaluated, Evaluation
from mpips.worker.by_use import PullsByUse, check_apart, check_outs
from mpips.worker.dense import DenseHandle
from mpips.worker.embedding import EmbeddingHandle
from mpips.worker.local.handle import LocalHandle
from mpips.worker.paths.shared_scales import SharedScales
from mpips.worker.replicated.handle import ReplicatedHandle

if TYPE_CHECKING:
    from mpips.checkpoint.position import WorkerStart
    from mpips.model.placement import Placement
    from mpips.worker.collectives import Combine
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]
AnyHandle: TypeAlias = DenseHandle | ReplicatedHandle | LocalHandle | EmbeddingHandle


def connection_of(worker: Worker) -> Connection:
    """Return a worker's connection. For other parts of mpips and for benchmarks; it is not public."""
    return worker._connection


def embedding_names(worker: Worker) -> list[str]:
    """Return the names of the job's embedding tables. For other parts of mpips; it is not public."""
    handles = worker._handles.items()
    return [name for name, handle in handles if isinstance(handle, EmbeddingHandle)]


class Worker:
    """One worker of a job. Not thread-safe.

    Attributes:
        index: Index of this worker, 0 .. n_workers-1.
        n_workers: Number of workers of the job.
        now: The worker's clock, the number of clocks it has ended.
        stages: Number of stages of the model, from the tables that have a stage; 1: it is not divided.
    """

    def __init__(
        self, connection: Connection, tables: Sequence[Table], placement: Placement
    ) -> None:
        """Make the handles of all tables. The worker owns `connection` from here on."""
        self.index = connection.index
        self.n_workers = connection.n_workers
        self._connection = connection
        self._handles: dict[str, AnyHandle] = {}
        self.stages = n_stages(tables)
        self._of_others: dict[str, Table] = {}  # tables of stages that this worker does not compute
        scales = scale_tables(tables)
        for i, table in enumerate(tables):
            if i in scales.values():
                continue
            if not takes_part(table, self.index, self.stages):
                self._of_others[table.name] = table
                continue
            if connection.local is not None and i in connection.local.part.tables:
                shards = placement.dense[table.name]
                assert isinstance(table, DenseTable)
                connection.local.add(i, DenseHandle(connection, i, table, shards))
                declared = connection.local.part.tables[i]
                self._handles[table.name] = LocalHandle(connection, i, declared)
            elif isinstance(table, DenseTable) and table.is_replicated:
                self._handles[table.name] = ReplicatedHandle(connection, i, table)
            elif isinstance(table, DenseTable):
                shards = placement.dense[table.name]
                shared = None
                if i in scales:
                    own = tables[scales[i]]
                    assert isinstance(own, DenseTable)
                    shared = SharedScales(connection, scales[i], own, placement.dense[own.name])
                self._handles[table.name] = DenseHandle(connection, i, table, shards, shared)
            else:
                self._handles[table.name] = EmbeddingHandle(
                    connection, i, table, placement.partitioners[table.name]
                )

    def __repr__(self) -> str:
        """Return index, clock and tables. Sends and reads nothing."""
        return f"<{self._connection.describe()}: tables {reprlib.repr([*self._handles])}>"

    @property
    def now(self) -> int:
        """Number of clocks that this worker has ended."""
        return self._connection.step

    @property
    def stage(self) -> int:
        """The stage of the model that this worker computes: index % stages."""
        return self.index % self.stages

    @property
    def pipeline(self) -> int:
        """Number of the pipeline of this worker: index // stages. Its workers compute all stages."""
        return self.index // self.stages

    def table(self, name: str) -> Any:
        """Return the handle of a table: a DenseHandle, ReplicatedHandle, LocalHandle or EmbeddingHandle.

        Raises:
            ConfigError: No table has this name; the message lists the names that exist. Or the table belongs
                to a stage of the model that this worker does not compute.
        """
        if name in self._of_others:
            raise not_of_stage(self._of_others[name], self.index, self.stages)
        if name not in self._handles:
            names = ", ".join([*self._handles, *self._of_others])
            raise ConfigError(f"no table has the name {name!r}; the job has {names}")
        return self._handles[name]

    def clock(self) -> None:
        """End this worker's current clock at all servers. Not collective.

        Under LocalSGD and DiLoCo it ends an inner step, and communicates only where an outer step follows.

        Returns at once unless a ring is full, or the worker is in a group (`cluster.topology`): then it waits
        until the workers of the group have ended the clock. Under BSP the next pull waits until all workers
        have ended this clock. With backup workers the clock may advance by more than one: it skips clocks
        that servers have closed without this worker.

        Raises:
            StallError: A server has not taken records for the job's timeout.
        """
        self._connection.clock()
        self._connection.leave()

    def push_pull(
        self, updates: Mapping[str, Float32], out: Mapping[str, Float32] | None = None
    ) -> PullsByUse:
        """Push the last updates of a clock, end the clock, and pull the new values, all by their first use.

        Not collective. The order of `updates` is the one in which the program will use the new values. The
        worker sends the first table's update first, without a wait for the values of the others. Under BSP
        servers on other nodes apply the sum of a table as soon as all workers have pushed to it, and send its
        values then. So they are there after the time of one update and of one table of values, while other
        updates travel on. See mpips.worker.by_use.

        The pushes are as by `push(closes=True)`; pushes before them add to the same clock. The worker makes
        progress within calls of mpips, and between them by its progress thread.

        Args:
            updates: By name of a dense table, as in DenseHandle.push. They are copied, but not those from
                `allocate`, which must stay as they are until `PullsByUse.finish` has returned.
            out: Arrays for values, by name; as in DenseHandle.pull. They belong to the result until its
                `wait` or `finish` has returned. Those of other tables are allocated.

        Returns:
            Waits for the values of one table at a time. Until all are there, the next `clock` blocks.

        Raises:
            ConfigError: A table is not dense, was closed in this clock, or has values but no update. Or two
                arrays of `out` share memory.
            ValueError: Wrong shape, NaN or infinity. Nothing was sent, except to tables that cannot be
                ordered (see mpips.worker.by_use) and come before this one. The clock has not ended.
            StallError: A server has taken no records for the job's timeout.
        """
        check_outs(out, updates)
        handles = [self.table(name) for name in updates]
        for handle in handles:
            if isinstance(handle, EmbeddingHandle):
                raise ConfigError(f"push_pull: table {handle.name!r} must be a dense table")
            if out is not None and handle.name in out:
                check_out(out[handle.name], handle.shape, contiguous=True)
        if out is not None and len(out) > 1:
            check_apart(out)
        if self._connection.coming is not None:
            self._connection.coming.finish()
        pulls = PullsByUse(self._connection, handles)
        pulls.push_pull(updates, out or {}, [h for h in handles if isinstance(h, DenseHandle)])
        return pulls

    @property
    def inner_steps(self) -> int:
        """Steps of this worker between its present outer steps under LocalSGD and DiLoCo; 0: no such tables.

        With DiLoCo(steps_by_speed=True) a slower worker has fewer, and the number changes at outer steps.
        """
        local = self._connection.local
        return 0 if local is None else local.inner_steps

    def synchronize(self) -> None:
        """Have an outer step of all tables under LocalSGD and DiLoCo now; every worker calls it at one clock.

        At their next use all workers have the values of the servers, and a new period of inner steps begins.
        Without such tables, and if there was no inner step since the last outer step of all tables, nothing
        is sent. The end of the job does the same. So either all workers or none must have ended a clock
        since then: the others would wait for a worker that sends nothing, up to the job's timeout.

        Under asynchronous DiLoCo no worker waits for another: for equal values, call `flush` and then
        `barrier` on all workers before the next use of a table.

        Raises:
            ConfigError: There were pushes to such a table since the last `clock`.
            StallError: A server has not taken records for the job's timeout.
        """
        self._connection.synchronize()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within the block pulls of tables under LocalSGD and DiLoCo return those of the last outer step.

        These values are those of the servers, the same on all workers at the same clock: evaluate them. Other
        tables are pulled as usual. Nothing is sent.
        """
        local = self._connection.local
        with local.averaged() if local is not None else nullcontext():
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep mpips from calling MPI in a thread of its own within the block.

        A worker in a look-ahead (`mpips.lookahead`) has such a thread if a server is on another node. With
        MPI_THREAD_SERIALIZED one thread at a time may call MPI, so a program that calls MPI itself does so in
        this block. Blocks for less
        than a millisecond; without that thread it does nothing.
        """
        progress = self._connection.progress
        with progress.paused() if progress is not None else nullcontext():
            yield

    @property
    def seed(self) -> int:
        """Seed of the job."""
        return self._connection.position.seed

    @property
    def start(self) -> WorkerStart | None:
        """This worker's state in the checkpoint that the job started from; None without a checkpoint."""
        return self._connection.position.start

    @property
    def random(self) -> np.random.Generator:
        """Random stream of this worker, seeded by the job's seed and the worker's index.

        Every checkpoint contains its state. A restart with the same number of workers restores it.
        """
        return self._connection.position.random

    @property
    def cursor(self) -> Mapping[str, Any]:
        """A copy of the newest argument of `set_cursor`, of this launch or of the one that it continues."""
        found: Mapping[str, Any] = checked_copy(dict(self._connection.position.cursor))
        return found

    def set_cursor(self, cursor: Mapping[str, Any]) -> None:
        """Set the position in the worker's program from which a restart continues after the next `clock()`.

        Call it before each `clock()`: a checkpoint contains the newest cursor before the clock at which it
        was taken. After a restart it is in `start.cursor`.

        Args:
            cursor: A dict of int (64 bits), finite float, bool, str, None, and lists and dicts of them, with
                text as keys. It must fit into a record of `slot_kib`, if need be compressed.

        Raises:
            TypeError: `cursor` is not a dict, or holds another type, such as a NumPy number.
            ValueError: It holds NaN, infinity or an integer of more than 64 bits.
            ConfigError: It is too large; the message names its largest entry and the `slot_kib` to set.
        """
        if not isinstance(cursor, Mapping):
            raise TypeError(
                f"cursor must be a dict of numbers, text, lists and dicts, not {cursor!r}"
            )
        self._connection.snapshot.set_cursor(cursor)

    def checkpoint(self) -> None:
        """Request a checkpoint at the next clock that all workers agree on. Not collective; returns at once.

        A request of one worker is enough. The scheduler only counts requests while a checkpoint is being
        written, and in a job without a folder for checkpoints.
        """
        self._connection.snapshot.ask(self.now)

    def keep_pace(self, bound: int) -> None:
        """Wait until no active worker is more than `bound` clocks behind this one. Blocks.

        Use it under ASP, where pulls do not wait: a worker that is far ahead trains on its own share of the
        data more often than the others on theirs. Under SSP and BSP pulls bound the difference themselves.
        With backup workers it waits until servers have closed the clocks: slower workers then skip them.
        Under LocalSGD and DiLoCo the bound counts inner steps, but a worker's clock is seen at its outer
        steps only: this worker waits for one that is more than `bound` and a period behind, and for none
        that is at most `bound` behind, unless periods differ (`steps_by_speed`), where outer steps count.

        Raises:
            StallError: A worker stayed behind for the job's timeout; the message names it.
        """
        self._connection.keep_pace(self._connection.ticks_within(bound))

    def allocate(self, shape: int | Sequence[int]) -> Float32:
        """Return a float32 array in staging memory, which pushes send without a copy.

        The memory is valid until the job ends. After a push do not change the array until the request's
        `wait` has returned: servers of this node read it in place, and updates to other nodes may still
        be under way when `push` returns.

        Args:
            shape: Length, or lengths of all dimensions; whole numbers of 0 or more.

        Raises:
            ConfigError: The shape is invalid, or staging memory is full; the message names the option.
            RegionError: /dev/shm has too little room.
        """
        lengths: list[Any] = list(shape) if isinstance(shape, tuple | list) else [shape]
        if not all(isinstance(n, int | np.integer) and n is not True and n >= 0 for n in lengths):
            raise ConfigError(
                f"allocate: shape = {shape!r} must contain whole numbers of 0 or more"
            )
        count = math.prod(map(int, lengths))
        staging = self._connection.staging.memory
        if staging is None:
            return np.zeros(shape, np.float32)
        offset = self._connection.staging.reserve(count * 4, 1.0)
        if offset is None:
            raise ConfigError(
                f"{4 * count} bytes do not fit into this worker's staging memory of "
                f"{staging.n_bytes >> 20} MiB: raise staging_mib or node_buffers_mib"
            )
        raw = staging.view(offset, count * 4, True)
        return raw.view(np.float32).reshape(shape)

    def gather(self, name: str, payload: bytes, everyone: bool = True) -> list[bytes]:
        """Return the payloads of all workers, by worker index. Collective over workers; blocks.

        Under BSP call this, `reduce` and `barrier` before the pushes of a clock. A full ring, and pulls of
        rows after a push, wait until workers with lower indices have ended the clock. These may wait here.
        After a restart in memory pulls of rows, and of dense tables under SSP and ASP, may also wait before
        the pushes of a clock, and in inner steps of LocalSGD and synchronous DiLoCo, in jobs with a codec
        that keeps a residual.

        Args:
            name: Name of the gather, the same on all workers.
            payload: This worker's bytes, of any length. Workers that receive payloads need memory for all of
                them; for sums use `reduce`.
            everyone: False: only worker 0 waits and receives the payloads; others receive [] at once.

        Raises:
            ConfigError: Another worker called something else at this place of its program.
            StallError: A worker did not call `gather` within the job's timeout; the message names it.
            TypeError: The payload is not bytes. Nothing was sent.
        """
        return self._connection.collectives.gather(name, payload, everyone)

    def reduce(
        self,
        name: str,
        array: npt.ArrayLike,
        combine: Combine = "sum",
        everyone: bool = True,
    ) -> npt.NDArray[Any] | None:
        """Combine the arrays of all workers along a tree. Collective over workers; blocks.

        The order of combination is fixed: the bits of the result depend on the number of workers only. Each
        worker sends and receives about log2(n_workers) arrays at most and needs memory for three, whatever
        the number of workers.

        Args:
            name: Name of the reduction, the same on all workers.
            array: Numbers, the same dtype on all workers; with "sum", "min" or "max" also the same shape.
            combine: "sum", "min", "max", elementwise in the dtype of `array`; or a function of two arrays
                that returns an array of this dtype and any shape, and changes neither. The first array is
                that of workers with lower indices, which are consecutive. The function must not raise, and
                must not call the worker.
            everyone: False: only worker 0 waits and receives the result; others receive None at once.

        Returns:
            A new array of the dtype of `array`.

        Raises:
            ConfigError: The arguments are wrong, or another worker called something else at this place.
            StallError: A worker did not call `reduce` within the job's timeout; the message names it.
        """
        return self._connection.collectives.reduce(name, array, combine, everyone)

    def send(self, array: npt.ArrayLike, *, to: int, tag: int = 0) -> None:
        """Send another worker a copy of an array, which it receives by `recv`. Not collective.

        Returns at once, unless that worker has not received more than 256 MiB of messages of this one: then
        it waits until there are fewer. So two workers may send to each other and then receive. Messages of
        one sender with one tag are received in the order in which they were sent.

        A message is received at the clock at which it was sent: a restart from a checkpoint then repeats
        whole exchanges. Under BSP send and receive before the pushes of a clock, as for `gather`. A run
        whose workers exchange arrays starts again from its newest checkpoint, never in memory.

        Args:
            array: Bools, integers, floats or complex numbers; any shape and strides, at most 32 dimensions.
            to: Index of the other worker.
            tag: A number of 0 or more that the receiver names, to tell messages apart.

        Raises:
            ConfigError: The arguments are wrong; the job has one worker; all tables are under ASP and the
                job writes checkpoints; or that worker's program ended without receiving a message.
            StallError: The worker has not received the messages before within the job's timeout.
        """
        self._connection.messages.send(array, to, tag)

    def recv(
        self, out: npt.NDArray[Any] | None = None, *, source: int, tag: int = 0
    ) -> npt.NDArray[Any]:
        """Receive the next array that another worker has sent this one with a tag. Not collective; blocks.

        Args:
            out: Where the values are put, of the message's dtype and shape, any strides; None: a new array.
            source: Index of the other worker.
            tag: The tag of the message.

        Returns:
            `out`, or a new array of the dtype and shape with which it was sent.

        Raises:
            ConfigError: The arguments are wrong, as for `send`; `out` has another dtype or shape; the message
                was sent at another clock; or that worker's program has ended without sending one.
            StallError: Nothing has come within the job's timeout; the message names the other worker, and
                what it does.
        """
        return self._connection.messages.recv(out, source, tag)

    def flush(self) -> None:
        """Wait until every server has consumed all that this worker has sent. Not collective; blocks.

        A worker in a group (`cluster.topology`) sends its pushes under BSP when it ends its clock. Then the
        first worker of the group also sends the sums of all, under BSP, SSP and ASP.
        """
        self._connection.flush()

    def barrier(self, name: str) -> None:
        """Wait until all workers have called `barrier` with this name. Collective over workers; blocks."""
        self._connection.collectives.barrier(name)

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Report progress to the scheduler, for `mpips top` and metrics.jsonl. Returns at once.

        Args:
            epoch: Index of the current epoch, from 0.
            step: Number of this worker's steps.
            samples: Number of samples since the last report.
            loss_sum: Sum of their losses.
        """
        self._connection.report(epoch, step, samples, loss_sum)

    def report_metrics(
        self, epochs: int, steps: int, metrics: Mapping[str, float], of: Evaluation = "test"
    ) -> None:
        """Report an evaluation to the scheduler, for metrics.jsonl and the terminal. Returns at once.

        Args:
            epochs: Number of complete epochs.
            steps: Number of steps of the run.
            metrics: Values by name.
            of: The data that was evaluated.
        """
        self._connection.control.tell(Evaluated(epochs, steps, dict(metrics), of))

    def counters(self) -> dict[str, int]:
        """Return the numbers of this worker's pushes by outcome, summed over servers."""
        return self._connection.counters()
