"""One worker's part in the tables under LocalSGD and DiLoCo: inner steps, outer steps, what survives.

The worker's clock counts inner steps; the clock of its connection, and so of the servers, counts outer steps.
`Connection.clock` calls `step`, and ticks only where that returns True. For each table the worker has its
values, the values of the servers that it had last (the base), and the state of the inner rule.

    inner step   the inner rule is applied to the sum of the pushes since the last clock
    outer step   the base minus the values is pushed, for the tables of one fragment; then the tick
    settling     `delay` inner steps later, at the first use: the new values of the fragment are pulled; they
                 become the base, and values = mix * values + (1 - mix) * base

`synchronize` is an outer step of all tables at once, and a new period begins.

Restarts. The state between an outer step and its settling is an image (mpips.worker.image). A job that
starts from a checkpoint may have other steps, fragments and delays than the one that wrote the images. Their
fragments are not those of the job, so an image names each table whose outer step is not settled. These tables
are settled before the job's first outer step, as the old job would have mixed them: what a worker pushes
counts from values of the servers that contain its earlier outer steps. All other tables have their own inner
steps since their last outer step, which the next one pushes, whichever fragment they are in. A worker
that continues in memory starts from the image of its clock and repeats the inner steps up to the next outer
step. If it had ended that step before, the image of the next clock is there: then its content replaces what
the repetition has computed, since servers may have had newer values during the repetition. Servers have the
push of the first time, or that of the repetition where it still waited in a ring at the restart: both are of
the same samples. Without that image no server has the tick of the step, and none has applied it.

Asynchronous outer steps. The tick of a worker has no effect on others, and settling waits for no other
worker, except with a bound: then the worker first waits until no other one is more outer steps behind.
Servers may apply differences of others at any time, so the base cannot be pulled again: it is in the image. A
repetition starts from the same image, and may take newer values at the settling: also values with its own
differences of the first time, which servers apply when they come, before the image of that step is complete.
Until the outer step the repetition has these inner steps twice then; servers have them once. It has the same
number of inner steps, since the length of a period is decided at the outer step before, and is in that step's
image. So the differences that a server has of the first time, and those that another one gets of the
repetition, are those of the same samples, and each server applies one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import kernels
from mpips.checkpoint.worker_image import LOCAL, PartImage
from mpips.errors import ConfigError, StallError
from mpips.model.local_sgd import mix_of
from mpips.model.optimizer import Optimizer
from mpips.model.served import fragments_of, local_of, times_of
from mpips.worker.local.pace import Pace
from mpips.worker.local.state import (
    ALL_TABLES,
    LocalHead,
    LocalState,
    image_of,
    load,
)
from mpips.worker.table_part import TablePart
from mpips.worker.whole import Whole

if TYPE_CHECKING:
    from mpips.worker.data_plane import DataPlane
    from mpips.worker.local.part import LocalPart

Float32 = NDArray[np.float32]

_CHUNK = 1 << 16  # values that are mixed at a time, so that they stay in the caches


class ServedTable(Protocol):
    """A table on the servers: its DenseHandle."""

    shape: tuple[int, ...]

    def push(self, update: Float32) -> object:
        """Push an update; see DenseHandle.push."""

    def pull(self, out: Float32) -> Float32:
        """Fill `out` with the values; see DenseHandle.pull."""


@dataclass
class _Table:
    """A table of this worker.

    Attributes:
        state: Values, inner state and inner rule.
        base: The servers' values that the worker had last.
        gradient: Sum of the pushes since the last clock; then memory for differences.
        handle: The table on the servers.
        fragment: Its fragment.
        mix: Share of the worker's own values when those of an outer step of this job come.
        n_pushes: Pushes since the last clock.
    """

    state: LocalState
    base: Float32
    gradient: Float32
    handle: ServedTable
    fragment: int
    mix: float
    n_pushes: int = 0


@dataclass
class LocalTables(TablePart):
    """The tables under LocalSGD and DiLoCo of one worker. Not thread-safe.

    Attributes:
        steps: Inner steps of the worker since its clocks were 0.
        pace: The worker's speed, which decides the inner steps of a period with steps_by_speed.
    """

    connection: DataPlane
    part: LocalPart
    steps: int = 0
    _tables: dict[int, _Table] = field(default_factory=dict)
    _handles: dict[int, ServedTable] = field(default_factory=dict)
    _is_averaged: bool = False

    def __post_init__(self) -> None:
        """Take the times of outer steps; `steps` is that of the start."""
        self._fragments = fragments_of(self.part.tables)
        first = next(iter(self.part.tables.values()))
        self._times = self._declared = times_of(first)
        self.pace = Pace(self.connection, self._declared)
        self._period = 0  # inner steps of the current period
        self._synchronized = 0  # `steps` at the newest outer step of all tables together
        # Fragment whose new values are not taken yet, or ALL_TABLES; each of its tables has state.pending.
        self._pending: int | None = None
        self._due = 0  # `steps` at which they are taken

    def add(self, index: int, handle: ServedTable) -> None:
        """Take the table on the servers of the table with this index in the job."""
        self._handles[index] = handle

    def table(self, index: int) -> _Table:
        """Return a table, ready for use: values whose time has come are taken. May block for them."""
        self.settle()
        return self._tables[index]

    def values(self, index: int) -> Float32:
        """Return the worker's values, shape (n,); within `averaged` those from the servers. May block."""
        table = self.table(index)
        return table.base if self._is_averaged else table.state.values

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within the block pulls return the values that this worker had from the servers last."""
        before, self._is_averaged = self._is_averaged, True
        try:
            yield
        finally:
            self._is_averaged = before

    def push(self, index: int, update: Float32) -> None:
        """Add an update, shape (n,), to the sum of this clock."""
        table = self.table(index)
        with Whole(self.connection, f"push to table {table.state.table.name!r}"):
            if table.n_pushes:
                kernels.add(table.gradient, update)
            else:
                np.copyto(table.gradient, update)
            table.n_pushes += 1

    @property
    def has_pushed(self) -> bool:
        """True if there were pushes since the last clock, to which no inner rule is applied yet."""
        return any(table.n_pushes for table in self._tables.values())

    def set_rule(self, index: int, rule: Optimizer) -> None:
        """Let the inner steps of this clock and later ones use these hyperparameters."""
        self.table(index).state.rule = rule

    def step(self) -> bool:
        """Make an inner step, after `settle`; push the differences if an outer step follows. May block.

        Returns:
            True if the connection must tick: an outer step ends.
        """
        for table in self._tables.values():
            if table.n_pushes:
                table.state.update(table.gradient)
                table.n_pushes = 0
        self.steps += 1
        self._period += 1
        fragment = self._times.ended(self._period)
        if fragment is None:
            return False
        if self._declared.by_speed:
            self.pace.end(self.steps)
        self._push_differences(fragment, self._times.delay)
        if self._period == self._times.steps:
            self._period = 0
            if self._declared.by_speed:
                self._set_length(self.pace.choose())
        return True

    def _set_length(self, n_steps: int) -> None:
        self._times = replace(self._declared, steps=n_steps)

    @property
    def inner_steps(self) -> int:
        """Inner steps of the current period."""
        return self._times.steps

    def ticks_within(self, steps: int) -> int:
        """Return the most outer steps by which a worker that is so many inner steps behind may be."""
        return self._declared.most_behind(steps)

    def begin_synchronize(self) -> bool:
        """Prepare an outer step of all tables, if there were inner steps since the last one. May block.

        At the next use all workers have the values of the servers.

        Returns:
            True if the connection must call `push_all`, and then tick.

        Raises:
            ConfigError: There were pushes since the last clock.
        """
        if self.has_pushed:
            names = [repr(t.state.table.name) for t in self._tables.values() if t.n_pushes]
            raise ConfigError(
                f"synchronize: worker {self.connection.index} has pushed to {', '.join(names)} since its "
                "last clock; call clock() first, which applies the pushes"
            )
        self._begin()
        self._due = self.steps
        if self._synchronized == self.steps:
            # All differences are pushed, but new values may not be taken yet.
            self._pending = None if self._pending is None else ALL_TABLES
            return False
        # The differences count from the newest values.
        self.settle()
        return True

    def push_all(self) -> None:
        """Push the differences of all tables, and begin a period."""
        self._push_differences(ALL_TABLES, 0)
        self._period = 0

    def _push_differences(self, fragment: int, delay: int) -> None:
        for table in self._tables.values():
            if fragment in (ALL_TABLES, table.fragment):
                np.subtract(table.base, table.state.values, out=table.gradient)
                table.handle.push(table.gradient.reshape(table.handle.shape))
                table.state.pending, table.state.mix = True, table.mix
        self._pending, self._due = fragment, self.steps + delay
        if fragment == ALL_TABLES or self._times.fragments == 1:
            self._synchronized = self.steps

    def settle(self) -> None:
        """Take the new values of a fragment if their time has come. Blocks for them; may be repeated."""
        self._begin()
        if self._pending is None or self.steps < self._due:
            return
        # Wait while the values are still pending: a cut during the wait is one of this outer step.
        if self._times.bound is not None:
            self.connection.keep_pace(self._times.bound)
        fragment = self._pending
        tables = [table for table in self._tables.values() if table.state.pending]
        for table in tables:
            self._pull(table, fragment)
        with Whole(self.connection, "outer step"):
            self._pending = None
            for table in tables:
                state = table.state
                _mix(state.values, table.base, 0.0 if fragment == ALL_TABLES else state.mix)
                state.pending = False
            if self._declared.by_speed:
                self.pace.begin(self.steps)

    def _pull(self, table: _Table, fragment: int) -> None:
        try:
            table.handle.pull(table.base.reshape(table.handle.shape))
        except StallError as error:
            if fragment != ALL_TABLES:
                raise
            raise StallError(
                f"{error}; after synchronize: a worker without a clock since its last outer step sends "
                "nothing there, so either all workers or none must have ended one"
            ) from None

    def _begin(self) -> None:
        """Make the tables at the first use, from the image or from the servers' values. Blocks then.

        The persistent memory of a new job has an image of clock 0 already (mpips.worker.image.start).
        """
        if self._tables:
            return
        part = self.part
        states = {i: LocalState.of(table) for i, table in part.tables.items()}
        head = LocalHead()
        if part.image is not None:
            head = load(part.image, list(states.values()), part.is_warm)
        is_own = part.image is not None and part.is_own and not head.is_new
        for i, table in part.tables.items():
            gradient, stored = np.zeros(table.n_elements, np.float32), states[i].base
            base = np.zeros_like(gradient) if stored is None else stored
            mix = mix_of(local_of(table))
            handle = self._handles[i]
            # The image of this worker has the base of asynchronous outer steps.
            if stored is None or not is_own:
                handle.pull(base.reshape(handle.shape))
            if not is_own:
                np.copyto(states[i].values, base)
                states[i].pending = False
            self._tables[i] = _Table(states[i], base, gradient, handle, self._fragments[i], mix)
        if is_own:
            self._restore(head, part.is_warm)
        if self._declared.by_speed:
            self.pace.begin(self.steps)
        # The image of a checkpoint takes as much memory as all tables.
        self.part = replace(part, image=None)

    def _restore(self, head: LocalHead, counts: bool) -> None:
        """Take the times of a head whose tables are loaded.

        Args:
            head: The head.
            counts: Clocks count on; else they begin at 0.
        """
        before = 0 if counts else head.steps
        self.steps = head.steps - before
        if self._declared.by_speed and head.length:
            least, most = self._declared.fragments, self._declared.steps
            self._set_length(max(least, min(head.length, most)))
        # A checkpoint may be of longer periods.
        self._period = min(head.period, self._times.steps - 1)
        is_pending = any(table.state.pending for table in self._tables.values())
        self._pending = head.pending if is_pending else None
        self._synchronized, self._due = head.synchronized - before, head.due - before
        # No effect in a job with the times of the image.
        self._due = min(self._due, self.steps + min(self._times.delay, self._steps_before_outer))

    @property
    def _steps_before_outer(self) -> int:
        """Inner steps that come before the one with the next outer step, 0 or more."""
        first = self._period + 1
        return next(n for n in range(self._times.steps) if self._times.ended(first + n) is not None)

    def store(self, clock: int) -> None:
        """Write the image of a clock to persistent memory, or take the one that is there; see the module."""
        memory = self.part.memory
        if memory is None:
            return
        if not memory.holds(clock):
            memory.write(clock, image_of(self._head(), self._states))
            return
        self._restore(load(memory.read(clock)[LOCAL], self._states, True), True)

    def image(self) -> dict[str, PartImage]:
        """Return the state of this clock. May block for the servers' values at the first use."""
        self._begin()
        return image_of(self._head(), self._states)

    def _head(self) -> LocalHead:
        length = self._times.steps if self._declared.by_speed else 0
        return LocalHead(
            self.steps, self._period, self._synchronized, self._pending, self._due, length
        )

    @property
    def _states(self) -> Sequence[LocalState]:
        return [table.state for table in self._tables.values()]


def _mix(values: Float32, base: Float32, mix: float) -> None:
    """Compute values = mix * values + (1 - mix) * base, rounded to float32 after each operation."""
    if mix == 0:
        np.copyto(values, base)
        return
    own, other = np.float32(mix), np.float32(1 - mix)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        values[part] *= own
        values[part] += other * base[part]
