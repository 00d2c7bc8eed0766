"""The common part of handles: checks before a push, the request after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.consistency import BSP, Consistency, judges_staleness, needs_base
from mpips.model.initializer import table_seed
from mpips.model.optimizer import Optimizer, PythonRule
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.worker.noted import NotedPulls
from mpips.worker.requests import PolledRequest, PushResult, Request
from mpips.worker.whole import Whole, is_cut_off

if TYPE_CHECKING:
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
_FLT_MAX = float(np.finfo(np.float32).max)


def norm_of(update: Float32) -> float:
    """Return the L2 norm. In float64: squares of float32 overflow long before the values do."""
    flat = update.reshape(-1)
    return math.sqrt(np.einsum("i,i->", flat, flat, dtype=np.float64))


class Handle:
    """A worker's access to one table. Not thread-safe."""

    def __init__(
        self,
        connection: Connection,
        index: int,
        table: DenseTable | EmbeddingTable,
        servers: Sequence[int],
    ) -> None:
        """`servers`: those that have a part of the table."""
        self.name = table.name
        self._pulling, self._pushing = (
            f"pulling {self.name!r}",
            f"pushing {self.name!r}",
        )  # activities
        self._servers = servers
        self._closed_at = -1  # clock of the newest push that closed the table
        self._change = (0, 0)  # clock of the newest `set_optimizer`, and their number in that clock
        self._encoded = (
            -1,
            0,
        )  # clock of the newest push with a codec, and its number in that clock
        # The newest hyperparameters. Adam's correction table is made once and lives as long as they do.
        self._hyperparameters: _native.OptimizerConfig | None = None
        self._connection = connection
        connection.add(self)
        self._index = index
        self._table = table
        self._counts: list[Callable[[int], int]] | None = None
        # Note pulls only where a policy depends on their versions: it takes 2 us of a pull.
        self._noted = NotedPulls() if judges_staleness(table.consistency) else None

    def __repr__(self) -> str:
        """Return name, values, consistency and the worker's clock. Reads nothing from servers."""
        table = self._table
        values = (
            f"float32 of shape {table.shape}"
            if isinstance(table, DenseTable)
            else f"rows of {table.dim} float32"
        )
        model, place = type(table.consistency).__name__, self._connection.describe()
        return f"<{type(self).__name__} {self.name!r}: {values}, {model}, {place}>"

    @property
    def consistency(self) -> Consistency:
        """Consistency model of the table."""
        return self._table.consistency

    def disown(self) -> None:
        """Give up operations under way, in a forked child: they belong to the parent; see process.forked."""
        raise NotImplementedError

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Change the hyperparameters of the table's rule from this worker's current clock on.

        Not collective; returns at once unless a ring is full. But every worker must make the same call, with
        the same values, at the same clock and before its pushes of that clock. Values and optimizer state do
        not change; Adam counts its steps on.

        Under BSP the change applies to the updates of this clock and later ones, on all servers, whichever
        worker is first. Under SSP and ASP it applies to all updates that a server applies after the first
        worker's call has arrived; a worker that is behind does not set later values back. Where a group sums
        the updates (`cluster.topology`), the call arrives with their sum at the end of the clock. If there
        are several calls in one clock, the last one counts.

        A checkpoint does not contain the change: in a job that starts from one, the table has its declared
        optimizer until the program calls this again. A warm restart continues with the newest change. A
        worker that repeats a clock then must make the same calls in it, as for pushes.

        Weights under FTRL follow from its state by lr, beta, l1 and l2. A change of these moves each weight
        at its next update.

        Args:
            optimizer: An optimizer of the same class as the table's, with the new values.

        Raises:
            ConfigError: It is of another class, or the table has a PythonRule, or initial_accumulator
                differs, with which the state of new rows begins.
            StallError: A server has taken no records for the job's timeout.
        """
        self._check_optimizer(optimizer)
        self._check_open("new hyperparameters of")
        connection = self._connection
        connection.control.state = f"configuring {self.name!r}"
        config = self._hyperparameters = optimizer.native()
        clock, n_changes = self._change
        ordinal = n_changes if clock == connection.now else 0
        with Whole(connection, f"set_optimizer of table {self.name!r}", connection.written):
            self._write_change(ordinal, config)
        self._change = (connection.now, ordinal + 1)
        connection.control.state = "computing"

    def _write_change(self, ordinal: int, config: _native.OptimizerConfig) -> None:
        """Write a change of hyperparameters to all servers, and start to send it.

        Args:
            ordinal: Its number among those of this worker's clock.
            config: The new hyperparameters.
        """
        connection = self._connection
        for server in self._servers:
            writer = connection.channels[server].writer
            connection.write(
                server,
                lambda w=writer: w.configure(self._index, connection.now, ordinal, config),  # type: ignore[misc]
            )
        self._start_sending(self._servers)

    def _random_key(self) -> int:
        """Return the key of the random numbers of the next push, which a codec rounds with.

        A worker that repeats a clock makes the same pushes in it, so it gets the same keys.
        """
        connection = self._connection
        clock, number = self._encoded
        number = number + 1 if clock == connection.now else 0
        self._encoded = connection.now, number
        position = connection.position
        seed = table_seed(position.seed, f"codec of {self.name}")
        step = position.steps_before + connection.step
        return _native.random_key(seed, connection.index, step, number)

    def _check_open(self, what: str) -> None:
        """Raise ConfigError if the worker has closed the table in this clock."""
        if self._closed_at == self._connection.now:
            raise self._closed_error(what, self._closed_at)

    def _check_state(self, slot: int) -> None:
        """Raise IndexError if the table's rule has no such state, ConfigError if the table is closed."""
        self._check_open("the optimizer state of")
        rule = self._table.optimizer
        if not 0 <= slot < rule.n_state:
            raise IndexError(
                f"table {self.name!r} has no optimizer state {slot}: its rule {rule.name} has {rule.n_state}"
            )

    def _closed_error(self, what: str, clock: int) -> ConfigError:
        return ConfigError(
            f"{what} table {self.name!r} at clock {clock}, which this worker had closed by a push with "
            "closes=True: push and pull before it, or after Worker.clock"
        )

    def _check_optimizer(self, optimizer: object) -> None:
        """Raise ConfigError if the table's rule cannot have these hyperparameters from now on."""
        rule = self._table.optimizer
        if isinstance(rule, PythonRule):
            raise ConfigError(
                f"table {self.name!r} has the Python rule {rule.name}, which set_optimizer cannot change: "
                "let the function compute its own hyperparameters, for example from `step`"
            )
        if not isinstance(optimizer, Optimizer) or optimizer.name != rule.name:
            raise ConfigError(
                f"set_optimizer of table {self.name!r}: {optimizer!r} must be an optimizer of the table's "
                f"kind, {type(rule).__name__}"
            )
        old, new = rule.to_config(), optimizer.to_config()
        if new.get("initial_accumulator") != old.get("initial_accumulator"):
            raise ConfigError(
                f"set_optimizer of table {self.name!r}: initial_accumulator = "
                f"{new['initial_accumulator']!r} must remain {old['initial_accumulator']!r}, with which the "
                "table's state has begun"
            )

    def _pushed(self) -> list[int]:
        """Return how much of the table is pushed to each of its servers; for `_cut_off`. Cheap."""
        if self._counts is None:
            self._counts = self._connection.pushed(self._servers)
        index = self._index
        return [count(index) for count in self._counts]

    def _cut_off(self, error: BaseException, before: list[int] | None) -> None:
        """Refuse the worker if an error has cut a push off when a part of it was sent; see worker.whole.

        Every push calls this where an error leaves it: a `with` block would take a tenth of its time.

        Args:
            error: The error.
            before: Result of `_pushed` before the push; None: the push contributes to the sum of a group.
        """
        connection = self._connection
        if is_cut_off(connection, error) and (before is None or self._pushed() != before):
            connection.refuse_after(f"push to table {self.name!r}")

    def _start_sending(self, servers: Iterable[int]) -> None:
        """Start to send the records of a push, or of new hyperparameters, to these servers."""
        # Under BSP a server applies nothing before the clock ends: the records travel with the tick.
        if not isinstance(self._table.consistency, BSP):
            self._connection.send(servers)

    def _name_base(self, base: object) -> bool:
        """Let the next push count as computed on the pull that filled `base`, if a pull did.

        Returns:
            True if the caller must call `_unname_base` after the push, even if it raises.
        """
        versions = self._noted.find(base) if self._noted is not None else None
        for server, version in (versions or {}).items():
            self._connection.channels[server].writer.name_base(self._index, version)
        return versions is not None

    def _unname_base(self) -> None:
        for channel in self._connection.channels:
            channel.writer.name_base(self._index, None)

    def _checked(self, update: Float32, base: Float32 | None) -> Float32:
        """Check an update and return the update to send, scaled down to clip_norm."""
        self._check_update(update, base)
        return self._clipped(update, norm_of(update)) if self._table.clip_norm > 0 else update

    def _checked_sums(self, plan: _native.KeyPlan, rows: Float32, base: Float32 | None) -> Float32:
        """Check a push with equal keys, of which the writer sends the sums of their rows; as `_checked`.

        This computes sums only where it needs them: for clip_norm, and where they might overflow.
        """
        table = self._table
        limit = _FLT_MAX / (2 * len(plan))
        small = table.check_finite and _native.all_within(rows.reshape(-1), limit, None)
        self._check_update(rows, base, looked_at=small)
        if table.clip_norm == 0 and (small or not table.check_finite):
            return rows
        sums = plan.sum_rows(rows)
        finite = small or _native.all_finite(sums.reshape(-1), None)
        if not finite and table.clip_norm > 0:
            # Scaling by a power of two is exact, and the scaled sums cannot overflow.
            shrunk = plan.sum_rows(rows * np.float32(2.0**-32))
            return self._clipped(rows, norm_of(shrunk) * 2.0**32)
        if not finite and table.check_finite:
            u = int(np.flatnonzero(~np.isfinite(sums).all(axis=1))[0])
            raise ValueError(
                f"the sum of the updates of key {plan.unique_keys[u]} of table {self.name!r} is beyond "
                "float32; nothing was sent (check_finite)"
            )
        return self._clipped(rows, norm_of(sums)) if table.clip_norm > 0 else rows

    def _check_update(self, update: Float32, base: Float32 | None, looked_at: bool = False) -> None:
        """Raise ValueError for values that are not finite and for base values that the policy misses.

        `looked_at`: the update is known to be finite.
        """
        if self._table.check_finite:
            if not looked_at:
                self._check_finite("the update", update)
            if base is not None:
                self._check_finite("the base", base)
        if base is None and needs_base(self._table.consistency):
            raise ValueError(
                f"table {self.name!r} compensates delays, so a push to it needs the values that the update "
                "was computed on: push(..., base=values)"
            )

    def _clipped(self, update: Float32, norm: float) -> Float32:
        """Return the update, scaled down if its L2 norm is greater than clip_norm."""
        if norm > self._table.clip_norm:
            return update * np.float32(self._table.clip_norm / norm)
        return update

    def _check_finite(self, what: str, array: Float32) -> None:
        flat = array.reshape(-1)
        if not _native.all_finite(flat, None):
            bad = int(np.flatnonzero(~np.isfinite(flat))[0])
            raise ValueError(
                f"{what} of table {self.name!r} contains {flat[bad]} at position "
                f"{bad} of {flat.size}; nothing was sent (check_finite)"
            )

    def _noted_request(self, n_servers: int) -> Request[PushResult]:
        """Return the request of a push that `n_servers` servers get when the worker ends its clock."""
        connection = self._connection
        connection.note_push()
        return PolledRequest(
            lambda _: True,
            lambda: PushResult(applied=n_servers),
            str,
            connection.timeout_s,
            connection.poll,
        )

    def _request(self, ends: dict[int, int]) -> Request[PushResult]:
        """Return the request of a push whose last records are `ends` (server -> sequence number)."""
        self._connection.note_push()
        connection = self._connection
        self._start_sending(ends)
        missing = dict(ends)

        def advance(max_s: float) -> bool:
            for server, sequence in list(missing.items()):
                if not connection.channels[server].wait_applied(sequence + 1, max_s):
                    return False
                del missing[server]
            return True

        def finish() -> PushResult:
            channels = connection.channels
            return _native.push_result(
                PushResult, [(channels[s].counting_writer, q) for s, q in ends.items()]
            )

        def late() -> str:
            server = next(iter(missing))
            return (
                f"server {server} has not taken a push of table {self.name!r}"
                + connection.blame(server)
            )

        return PolledRequest(
            advance,
            finish,
            late,
            connection.timeout_s,
            connection.poll,
            connection.spent.waited,
        )
