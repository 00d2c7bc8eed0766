"""One worker's values and inner state between two outer steps, as bytes in shared memory and in checkpoints.

An image has a head, which is JSON, and behind it the arrays of each table: its values, then each state of
its inner rule and, where outer steps are asynchronous, the values that the worker had from the servers last,
which servers no longer have. They are float32, little-endian, each at a multiple of 64 bytes. The length of
the image follows from the tables alone, so memory for it can be made before there is anything to write.

Persistent memory has two images. The worker writes them by turns: the state after outer step number n (clock
n of the servers) into image n % 2, before any server gets the tick of that step. So a launch that ends at any
place leaves the image of the clock at which the worker continues: the greatest of its clocks over all
servers, or, where a server lacks pushes, the least (mpips.recovery.memory). Writers and readers: one worker
writes, and after the end of its process one worker of a later launch reads and goes on writing. The mark of
an image is removed before its bytes change and written when they are complete; the end of a process keeps the
order of its stores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native, kernels
from mpips.checkpoint.file_error import FileError
from mpips.checkpoint.manifest import LocalFile
from mpips.errors import CheckpointError, ConfigError
from mpips.model.local_sgd import mix_of
from mpips.model.optimizer import Optimizer
from mpips.model.optimizer import from_config as optimizer_from_config
from mpips.model.served import fragments_of, local_of, times_of
from mpips.model.table import DenseTable

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

BASE = "base"
ALL_TABLES = -1  # in place of a fragment
_LINE = 64
_MARK_BYTES = _LINE  # an image's mark: clock + 1 of its state as uint64; 0: it is not complete
_HEAD_BYTES = 1024  # of the head, without what each table adds
_TABLE_HEAD_BYTES = 1024


class LocalTableHead(msgspec.Struct, frozen=True):
    """One table in the head of an image.

    Attributes:
        name: Name of the table.
        n: Number of its values.
        states: Names of the states of its inner rule; then "base" if outer steps are asynchronous.
        updates: Number of updates that the worker has applied.
        rule: The inner rule with the hyperparameters in force, as of `Optimizer.to_config`.
        pending: True if the new values of the table's last outer step are not taken yet. A job that starts
            from a checkpoint may have other fragments. None in images of earlier versions, which have the
            number of the fragment alone.
        mix: Share of the worker's own values when they are taken.
    """

    name: str
    n: int
    states: tuple[str, ...]
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
    def arrays(self) -> list[Float32]:
        """Values and states, and the base if the image has it."""
        return [self.values, *self.states, *([] if self.base is None else [self.base])]

    def update(self, gradient: Float32) -> None:
        """Apply the inner rule once, as a server does."""
        # Adam's correction table is made with the value for native code.
        if self._native is None or self._native[0] is not self.rule:
            self._native = self.rule, self.rule.native()
        self.updates += 1
        kernels.update(self._native[1], self.values, self.states, gradient, self.updates)

    def head(self) -> LocalTableHead:
        """Return the description of the table."""
        t = self.table
        names = (*self.rule.state_names, *([] if self.base is None else [BASE]))
        return LocalTableHead(
            t.name, t.n_elements, names, self.updates, self.rule.to_config(), self.pending, self.mix
        )


def image_bytes(tables: Sequence[DenseTable]) -> int:
    """Return the length of the image of these tables."""
    arrays = sum(
        (1 + t.optimizer.n_state + times_of(t).asynchronous) * _padded(4 * t.n_elements)
        for t in tables
    )
    return _head_bytes([t.name for t in tables]) + arrays


def memory_bytes(tables: Sequence[DenseTable]) -> int:
    """Return the bytes of persistent memory for two images."""
    return 2 * (_MARK_BYTES + image_bytes(tables))


def _head_bytes(names: Iterable[str]) -> int:
    """Return the room of a head with tables of these names; it begins with its length as uint64."""
    return _padded(
        _HEAD_BYTES + sum(_TABLE_HEAD_BYTES + len(msgspec.json.encode(n)) for n in names)
    )


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _LINE) * _LINE


def pieces(head: LocalHead, states: Sequence[LocalState]) -> Iterator[Bytes]:
    """Yield the bytes of an image, piece by piece."""
    head = msgspec.structs.replace(head, tables=tuple(state.head() for state in states))
    text = msgspec.json.encode(head)
    room = _head_bytes(state.table.name for state in states)
    first = np.zeros(room, np.uint8)
    first[:8] = np.array([len(text)], "<u8").view(np.uint8)
    first[8 : 8 + len(text)] = np.frombuffer(text, np.uint8)
    yield first
    for state in states:
        for array in state.arrays:
            yield array.astype("<f4", copy=False).view(np.uint8)
            if padding := _padded(array.nbytes) - array.nbytes:
                yield np.zeros(padding, np.uint8)


def read_head(image: Bytes) -> LocalHead:
    """Return the head of an image.

    Raises:
        CheckpointError: `image` has no readable head.
    """
    n = int(image[:8].view("<u8")[0])
    try:
        return msgspec.json.decode(bytes(image[8 : 8 + n]), type=LocalHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the local values of a worker cannot be read: {error}") from None


def read_head_of(path: Path) -> LocalHead:
    """Return the head of a worker's file. Blocks.

    Raises:
        CheckpointError: The file cannot be read, or has no head.
    """
    try:
        with path.open("rb") as file:
            first = file.read(8)
            n = int.from_bytes(first, "little")
            image = first + file.read(min(n, path.stat().st_size))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    return read_head(np.frombuffer(image.ljust(8, b"\0"), np.uint8))


def load(image: Bytes, states: Sequence[LocalState], keeps_rules: bool) -> LocalHead:
    """Copy values and states of an image into `states`, and return its head.

    Args:
        image: The image, of the same tables.
        states: Receive values, states and numbers of updates.
        keeps_rules: Hyperparameters in force are those of the image; False: those of the tables.

    Raises:
        ConfigError: A table is another one in the image, or its inner rule has other states.
        CheckpointError: The image is damaged.
    """
    head = read_head(image)
    at = _head_bytes(table.name for table in head.tables)
    there = {table.name: table for table in head.tables}
    numbers = fragments_of(dict(enumerate(state.table for state in states)))
    fragments = {state.table.name: numbers[i] for i, state in enumerate(states)}
    offsets = {}
    for table in head.tables:
        offsets[table.name] = at
        at += (1 + len(table.states)) * _padded(4 * table.n)
    if at != len(image):
        raise CheckpointError("the local values of a worker are damaged: their length is wrong")
    for state in states:
        own = state.head()
        found = there.get(own.name)
        if found is not None and (BASE in found.states) != (BASE in own.states):
            raise ConfigError(
                f"table {own.name!r}: the checkpoint has the values of workers with "
                f"{'a' if BASE in found.states else ''}synchronous outer steps: set asynchronous as then, or "
                "resume = 'never'"
            )
        if found is None or (found.n, found.states) != (own.n, own.states):
            raise ConfigError(
                f"table {own.name!r}: the checkpoint has the inner state of "
                f"{found.rule['name'] if found else 'no such table'}, but this job's optimizer is "
                f"{state.rule.name}; use the former, or resume = 'never'"
            )
        at = offsets[own.name]
        for array in state.arrays:
            array[:] = image[at : at + array.nbytes].view("<f4")
            at += _padded(array.nbytes)
        state.updates, state.mix = found.updates, found.mix
        if found.pending is None:
            state.pending = head.pending in (ALL_TABLES, fragments[state.table.name])
            state.mix = mix_of(local_of(state.table))
        else:
            state.pending = found.pending
        if keeps_rules:
            rule = optimizer_from_config(found.rule)
            assert isinstance(rule, Optimizer)
            state.rule = rule
    return head


class LocalMemory:
    """The persistent memory of one worker: two images; see the module."""

    def __init__(self, memory: _native.SharedMemory, n_bytes: int) -> None:
        """Take memory of `memory_bytes`; `n_bytes` is that of an image."""
        part = _MARK_BYTES + n_bytes
        whole: Bytes = memory.view(0, 2 * part, True)
        self._images = [whole[i * part + _MARK_BYTES : (i + 1) * part] for i in range(2)]
        self._marks = [whole[i * part : i * part + 8].view(np.uint64) for i in range(2)]
        self._memory = memory  # the arrays refer to it

    def holds(self, clock: int) -> bool:
        """Return True if the image of this clock is there and complete."""
        return int(self._marks[clock % 2][0]) == clock + 1

    def image(self, clock: int) -> Bytes:
        """Return the image of a clock that `holds` has found."""
        return self._images[clock % 2]

    def write(self, clock: int, head: LocalHead, states: Sequence[LocalState]) -> None:
        """Write the image of a clock over that of two clocks before."""
        mark, image, at = self._marks[clock % 2], self._images[clock % 2], 0
        mark[0] = 0
        _native.fault_point("local-saving")
        for piece in pieces(head, states):
            image[at : at + len(piece)] = piece
            at += len(piece)
        mark[0] = clock + 1


def write_file(folder: Path, name: str, head: LocalHead, states: Sequence[LocalState]) -> LocalFile:
    """Write an image as a file of the folder of checkpoints, durably. Blocks.

    The file gets its name when it is complete: a checkpoint may have a link to an earlier one of this name.

    Returns:
        The description of the file, with the failure if it could not be written; there is no file then.
    """
    path, new, total, n_bytes = folder / name, folder / f"{name}.new", _native.Xxh3(), 0
    for piece in pieces(head, states):
        total.update(piece)
        n_bytes += len(piece)
    described = LocalFile(name, n_bytes, f"{total.digest():016x}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new.open("wb") as file:
            for piece in pieces(head, states):
                file.write(piece.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        failure = FileError.of(error)
        text = f"{path}: {error.strerror or failure.text}"
        return msgspec.structs.replace(described, error=text, is_full=failure.is_full)
    return described
