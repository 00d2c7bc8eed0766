"""One worker's values and inner state between two outer steps: its share of the worker's image.

The notes are a LocalHead. The arrays of a table are its values, then each state of its inner rule and, where
outer steps are asynchronous, the values that the worker had from the servers last, which servers no longer
have. Their names are NAME/values, NAME/STATE and NAME/base.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native, kernels
from mpips.checkpoint.worker_image import LOCAL, PartImage, image_bytes
from mpips.errors import CheckpointError, ConfigError
from mpips.model.local_sgd import mix_of
from mpips.model.optimizer import Optimizer
from mpips.model.optimizer import from_config as optimizer_from_config
from mpips.model.served import fragments_of, local_of, times_of
from mpips.model.table import DenseTable

Float32 = NDArray[np.float32]

BASE = "base"
ALL_TABLES = -1  # in place of a fragment
VALUES = "values"
_HEAD_BYTES = 1024  # of the head of an image, without what each table adds
_TABLE_HEAD_BYTES = 1024
_ARRAYS = 8  # arrays of a table, at most; each has the name of the table in the head


class LocalTableHead(msgspec.Struct, frozen=True):
    """One table in the head of an image.

    Attributes:
        name: Name of the table.
        updates: Number of updates that the worker has applied.
        rule: The inner rule with the hyperparameters in force, as of `Optimizer.to_config`.
        pending: True if the new values of the table's last outer step are not taken yet. A job that starts
            from a checkpoint may have other fragments. None in images of earlier versions, which have the
            number of the fragment alone.
        mix: Share of the worker's own values when they are taken.
    """

    name: str
    updates: int
    rule: dict[str, Any]
    pending: bool | None = None
    mix: float = 0.0


class LocalHead(msgspec.Struct, frozen=True):
    """The head of an image: where a worker is between two outer steps.

    Attributes:
        steps: Inner steps of the worker since its clocks were 0.
        period: Those of the current period.
        synchronized: `steps` at the newest outer step of all tables together.
        pending: Fragment whose new values are not taken yet; -1: all tables; None: none. Fragments are those
            of the job that has written the image.
        due: `steps` at which they are taken.
        length: Inner steps of the current period; 0: as the job declares.
        tables: All tables, in the order of the job.
        is_new: The worker has not begun: at its first use it takes its values from the servers.
    """

    steps: int = 0
    period: int = 0
    synchronized: int = 0
    pending: int | None = None
    due: int = 0
    length: int = 0
    tables: tuple[LocalTableHead, ...] = ()
    is_new: bool = False

    def counted_anew(self) -> LocalHead:
        """Return the head of the same state in a job whose clocks begin at 0 there."""
        return msgspec.structs.replace(
            self, steps=0, synchronized=self.synchronized - self.steps, due=self.due - self.steps
        )


@dataclass
class LocalState:
    """A worker's part of one table.

    Attributes:
        table: The table, with the inner rule.
        values: The worker's values, shape (n,).
        states: States of the inner rule, each of shape (n,).
        updates: Number of updates that the worker has applied.
        rule: The rule with the hyperparameters in force.
        base: Asynchronous: the servers' values that the worker had last, shape (n,); else None.
        pending: True if the new values of the last outer step are not taken yet.
        mix: Share of the worker's own values when these are taken.
    """

    table: DenseTable
    values: Float32
    states: list[Float32]
    updates: int
    rule: Optimizer
    base: Float32 | None = None
    pending: bool = False
    mix: float = 0.0
    _native: tuple[Optimizer, _native.OptimizerConfig] | None = None

    @classmethod
    def of(cls, table: DenseTable) -> LocalState:
        """Return the state before the first update, with values that are not set."""
        rule = table.optimizer
        assert isinstance(rule, Optimizer)
        config = rule.native()
        states = [
            np.full(table.n_elements, config.initial_state(k), np.float32)
            for k in range(rule.n_state)
        ]
        values = np.zeros(table.n_elements, np.float32)
        base = np.zeros_like(values) if times_of(table).asynchronous else None
        return cls(table, values, states, 0, rule, base)

    @property
    def arrays(self) -> dict[str, Float32]:
        """Values and states by their names, and the base if the image has it."""
        base = {} if self.base is None else {BASE: self.base}
        states = dict(zip(self.rule.state_names, self.states, strict=True))
        return {VALUES: self.values, **states, **base}

    def update(self, gradient: Float32) -> None:
        """Apply the inner rule once, as a server does."""
        # Adam's correction table is made with the value for native code.
        if self._native is None or self._native[0] is not self.rule:
            self._native = self.rule, self.rule.native()
        self.updates += 1
        kernels.update(self._native[1], self.values, self.states, gradient, self.updates)

    def head(self) -> LocalTableHead:
        """Return the description of the table."""
        return LocalTableHead(
            self.table.name, self.updates, self.rule.to_config(), self.pending, self.mix
        )


def local_image_bytes(tables: Sequence[DenseTable]) -> int:
    """Return the bytes of the image of these tables, at most: its memory is made before its head is known."""
    names = [len(msgspec.json.encode(t.name)) for t in tables]
    head = _HEAD_BYTES + sum(_TABLE_HEAD_BYTES + (1 + _ARRAYS) * n for n in names)
    lengths = [
        t.n_elements
        for t in tables
        for _ in range(1 + t.optimizer.n_state + times_of(t).asynchronous)
    ]
    return image_bytes(head, lengths)


def image_of(head: LocalHead, states: Sequence[LocalState]) -> dict[str, PartImage]:
    """Return the share of these tables in the worker's image. No array is copied."""
    head = msgspec.structs.replace(head, tables=tuple(state.head() for state in states))
    arrays = {f"{s.table.name}/{k}": array for s in states for k, array in s.arrays.items()}
    return {LOCAL: PartImage(msgspec.json.encode(head), arrays)}


def read_head(notes: bytes) -> LocalHead:
    """Return the head from the notes of a worker's image.

    Raises:
        CheckpointError: The notes cannot be read.
    """
    try:
        return msgspec.json.decode(notes, type=LocalHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the local values of a worker cannot be read: {error}") from None


def load(image: PartImage, states: Sequence[LocalState], keeps_rules: bool) -> LocalHead:
    """Copy values and states of an image into `states`, and return its head.

    Args:
        image: Their share in an image.
        states: Receive values, states and numbers of updates.
        keeps_rules: Hyperparameters in force are those of the image; False: those of the tables.

    Raises:
        ConfigError: A table is another one in the image, or its inner rule has other states.
        CheckpointError: The image is damaged.
    """
    head = read_head(image.notes)
    there, arrays = {table.name: table for table in head.tables}, _by_table(image.arrays)
    numbers = fragments_of(dict(enumerate(state.table for state in states)))
    for i, state in enumerate(states):
        name, own = state.table.name, state.arrays
        found, theirs = there.get(name), arrays.get(name, {})
        if found is not None and (BASE in theirs) != (BASE in own):
            raise ConfigError(
                f"table {name!r}: the checkpoint has the values of workers with "
                f"{'a' if BASE in theirs else ''}synchronous outer steps: set asynchronous as then, or "
                "resume = 'never'"
            )
        if found is None or [(k, a.size) for k, a in theirs.items()] != [
            (k, a.size) for k, a in own.items()
        ]:
            raise ConfigError(
                f"table {name!r}: the checkpoint has the inner state of "
                f"{found.rule['name'] if found else 'no such table'}, but this job's optimizer is "
                f"{state.rule.name}; use the former, or resume = 'never'"
            )
        for key, array in own.items():
            array[:] = theirs[key]
        state.updates, state.mix = found.updates, found.mix
        if found.pending is None:
            state.pending = head.pending in (ALL_TABLES, numbers[i])
            state.mix = mix_of(local_of(state.table))
        else:
            state.pending = found.pending
        if keeps_rules:
            rule = optimizer_from_config(found.rule)
            assert isinstance(rule, Optimizer)
            state.rule = rule
    return head


def _by_table(arrays: Mapping[str, Float32]) -> dict[str, dict[str, Float32]]:
    found = dict[str, dict[str, Float32]]()
    for name, array in arrays.items():
        table, _, key = name.rpartition("/")
        found.setdefault(table, {})[key] = array
    return found


def first_image(
    tables: Iterable[DenseTable], image: PartImage | None, is_own: bool
) -> dict[str, PartImage]:
    """Return the image of clock 0 for new memory; see mpips.worker.image.start.

    Args:
        tables: The tables under LocalSGD and DiLoCo.
        image: Their share in the checkpoint from which the worker starts; None: no such image.
        is_own: It is that of this worker.

    Raises:
        ConfigError: The image has other tables or inner rules.
        CheckpointError: It is damaged.
    """
    states = [LocalState.of(table) for table in tables]
    head = LocalHead(is_new=True)
    if image is not None:
        found = load(image, states, False)
        head = found.counted_anew() if is_own else head
    if head.is_new:
        for state in states:
            state.pending = False
    return image_of(head, states)
