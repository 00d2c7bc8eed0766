"""The position of a worker in its program: the part of the worker in a checkpoint, which a restart needs.

A worker's part of a checkpoint is its clock, its data cursor and its random state. All three are those of one
tick; before the first tick, those of the worker's start. Under BSP and SSP the cut record is written at that
tick. Under ASP it may be written later, while the worker waits for others and has pushed nothing since the
tick. The record must then still contain the state at the tick, so `note_tick` stores it.

A cut record contains the part as msgpack, or, if that is longer than a record, compressed by zlib: cursors of
torch scripts repeat the same entries for hundreds of param groups. The first byte tells the two forms apart.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from mpips.checkpoint.manifest import ImageFile, WorkerState
from mpips.checkpoint.random_state import pack_random, unpack_random

_STREAM = "worker"
_DEFLATED = b"\x78"  # first byte of data compressed by zlib; a msgpack map begins with 0x80 or more
_LEVEL = 1  # of zlib; higher ones take longer and make repetitive positions hardly shorter
_FREE_KINDS = frozenset((str, bool, type(None)))  # types of which a cursor holds every value


class PositionPart(msgspec.Struct, frozen=True):
    """The payload of a cut record.

    Attributes:
        clock: Clock of the worker, counted from the start of this launch, or from the launch that created
            the memory in which this one continues.
        cursor: Argument of the last `set_cursor`.
        random: State of the worker's random generator; see `pack_random`.
        steps: Number of clocks that its program has ended, if that is another number: tables under LocalSGD
            and DiLoCo end a clock of the servers at outer steps only. None: `clock`.
        image: The file with the worker's image; None: it keeps nothing of its own, or the record is of no
            cut.
        in_memory: The position at the tick that began this clock, where this one is that of an inner step
            after it: memory has the worker's values of the tick, so a launch that continues in memory begins
            there. None: this position.
    """

    clock: int = 0
    cursor: dict[str, Any] = {}
    random: dict[str, Any] = {}
    steps: int | None = None
    image: ImageFile | None = None
    in_memory: PositionPart | None = None

    @property
    def n_steps(self) -> int:
        """Number of clocks that the worker's program has ended."""
        return self.clock if self.steps is None else self.steps


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PositionPart).decode


def checked_copy(values: Any, *place: object) -> Any:
    """Return a copy of a dict, list or tuple, also of those in it: the program may change its own later.

    Raise TypeError or ValueError if an entry would be another after a restart. A restart in memory reads it
    from msgpack, one from a checkpoint from JSON, which has no NaN, no infinity and no keys that are numbers.
    `place` contains the keys and indices that lead to `values` in the cursor.
    """
    is_dict = type(values) is dict
    found = values.copy() if is_dict else list(values)
    for key, entry in values.items() if is_dict else enumerate(values):
        if is_dict and type(key) is not str:
            raise TypeError(f"{_name(place)} has the key {key!r}: keys must be text")
        kind = type(entry)
        if kind is float:
            if not math.isfinite(entry):
                raise ValueError(
                    f"{_name((*place, key))} is {entry!r}, which a checkpoint cannot hold: store it as text"
                )
        elif kind is int:
            if not -(1 << 63) <= entry < 1 << 64:
                raise ValueError(
                    f"{_name((*place, key))} is {entry}, which has more than 64 bits: store it as text"
                )
        elif kind is dict or kind is list or kind is tuple:
            found[key] = checked_copy(entry, *place, key)
        elif kind not in _FREE_KINDS:
            raise TypeError(
                f"{_name((*place, key))} is a {kind.__module__}.{kind.__qualname__}: must be int, float, "
                "bool, str, None, or a list or dict of them"
            )
    return tuple(found) if type(values) is tuple else found


def _name(place: Sequence[object]) -> str:
    """Return the name of a value in a cursor, for errors."""
    return "cursor" + "".join(f"[{key!r}]" for key in place)


def compressed(part: bytes) -> bytes:
    """Return the payload of a cut record in its short form."""
    return zlib.compress(part, _LEVEL)


def decode_part(data: bytes) -> PositionPart:
    """Decode the payload of a cut record; an empty payload means the start of the worker."""
    if data[:1] == _DEFLATED:
        data = zlib.decompress(data)
    return _decode(data) if data else PositionPart()


class WorkerStart(msgspec.Struct, frozen=True):
    """The state of a worker in the checkpoint from which the job started.

    Attributes:
        step: Step of the checkpoint: the greatest number of clocks that any worker had ended.
        clock: Clock of this worker; `step` if the number of workers has changed.
        cursor: Argument of this worker's last `set_cursor`; None if the number of workers has changed, so
            that no worker of the checkpoint corresponds to this one.
        workers: States of all workers in the checkpoint.
    """

    step: int
    clock: int
    cursor: Mapping[str, Any] | None
    workers: Sequence[WorkerState]


class Position:
    """One worker's cursor, random stream and state at its last tick. Not thread-safe.

    Attributes:
        start: State in the checkpoint from which the job started; None without a checkpoint.
        seed: Seed of the job.
        steps_before: Step of the run at which clocks are 0.
        known: True if a cut record can describe the worker's position. It is False until the first tick of a
            worker that started from a checkpoint of another number of workers, without a cursor of its own:
            an empty cursor in the next checkpoint would mean the beginning of the run.
    """

    def __init__(
        self,
        seed: int,
        worker: int,
        n_workers: int,
        step: int = 0,
        workers: Sequence[WorkerState] = (),
        clock: int = 0,
        begin: WorkerState | None = None,
        steps: int | None = None,
    ) -> None:
        """Make the position at the worker's start.

        Args:
            seed: Seed of the job.
            worker: Index of the worker.
            n_workers: Number of workers.
            step: Step of the checkpoint from which the job starts; 0 without one.
            workers: States of the workers in that checkpoint; empty without one.
            clock: Clock of the worker in the memory of the launch before; 0 without it.
            begin: State of the worker at its start, if it differs from the one in `workers`.
            steps: Number of clocks that its program has ended in that memory; None: `clock`.
        """
        self.start: WorkerStart | None = None
        self.seed = seed
        self.steps_before = step
        self._seeds = [seed, worker, step]
        self._restored: dict[str, Any] = {}
        if step or workers:
            same = len(workers) == n_workers
            own = workers[worker] if same else WorkerState(worker=worker, clock=step)
            cursor = dict(own.cursor) if same else None
            self.start = WorkerStart(step, own.clock, cursor, tuple(workers))
            self._restored = own.random.get(_STREAM, {})
        self._cursor = checked_copy(dict(self.start.cursor or {})) if self.start is not None else {}
        self.known = self.start is None or self.start.cursor is not None
        if begin is not None:
            self._restored = begin.random.get(_STREAM, {})
            self._cursor, self.known = checked_copy(dict(begin.cursor)), True
        self._random: np.random.Generator | None = None
        self._steps: int | None = (
            None  # clocks of the program at the last tick; None: those of the tick
        )
        # Store the random state of the start: numbers drawn before the first tick belong to the first step.
        random = self._raw_random()
        self._tick: tuple[int, dict[str, Any], dict[str, Any] | None] = (
            clock,
            self._cursor,
            random,
        )
        # Position after the last tick that began a clock, for PositionPart.in_memory.
        self._in_memory = self._part(clock, steps, random)

    @property
    def random(self) -> np.random.Generator:
        """Random stream of this worker: from seed, worker and step, or as it was at the cut."""
        if self._random is None:
            philox = np.random.Philox(np.random.SeedSequence(self._seeds))
            if self._restored:
                state: Any = unpack_random(self._restored)
                philox.state = state
            self._random = np.random.Generator(philox)
        return self._random

    @property
    def cursor(self) -> Mapping[str, Any]:
        """Argument of the last `set_cursor`."""
        return self._cursor

    def set_cursor(self, cursor: Mapping[str, Any]) -> int:
        """Store a cursor, which Worker.set_cursor describes; return its bytes in a part, not compressed."""
        plain = checked_copy(dict(cursor))
        n_bytes = len(_encode(plain))
        self._cursor = plain
        return n_bytes

    def entry_bytes(self) -> dict[str, int]:
        """Return the bytes of each entry of the cursor in a part that is not compressed."""
        return {name: len(_encode(name)) + len(_encode(e)) for name, e in self._cursor.items()}

    def note_tick(self, clock: int, keep: bool, steps: int | None = None) -> None:
        """Store the position at the end of a clock.

        Args:
            clock: Clock of the worker after the tick.
            keep: True if `part` may be called later, when random numbers have been drawn again; the random
                state is then stored now.
            steps: Number of clocks that the worker's program has ended; None: `clock`.
        """
        random = self._raw_random() if keep else None
        self._steps = None if steps == clock else steps
        self._tick = clock, self._cursor, random
        self.known = True

    @property
    def tick(self) -> int:
        """Clock of the worker after its last tick, which `part` describes."""
        return self._tick[0]

    def part(self, image: ImageFile | None = None) -> bytes:
        """Return the payload of a cut record for the last tick; `image`: see PositionPart."""
        clock, cursor, random = self._tick
        random = self._raw_random() if random is None else random
        packed = {_STREAM: pack_random(random)} if random else {}
        found = PositionPart(clock, cursor, packed, self._steps, image)
        tick = self._in_memory
        if tick.clock == clock and tick.n_steps != found.n_steps:
            found = msgspec.structs.replace(found, in_memory=tick)
        return _encode(found)

    def coming_part(self, clock: int, steps: int | None = None) -> bytes:
        """Return the payload of a cut record for the coming tick, after which the worker is at `clock`.

        `steps`: clocks that its program has ended then; None: `clock`.
        """
        self._in_memory = self._part(clock, steps, self._raw_random())
        return _encode(self._in_memory)

    def longest_part(self, inner: bool) -> bytes:
        """Return a part as long as that of the next cut record can be, with the present cursor.

        `inner`: the record may be that of an inner step, and then also contain the position at the tick.
        """
        clock, tick = self._tick[0], self._in_memory
        part = self._part(clock + 1, None, self._raw_random())
        if inner and tick.clock == clock:
            part = msgspec.structs.replace(part, in_memory=tick)
        return _encode(part)

    def _part(self, clock: int, steps: int | None, random: dict[str, Any]) -> PositionPart:
        """Return the position with the present cursor."""
        packed = {_STREAM: pack_random(random)} if random else {}
        return PositionPart(clock, self._cursor, packed, None if steps == clock else steps)

    def _raw_random(self) -> dict[str, Any]:
        """Return the generator's state; the restored state if the stream is unused, {} without either."""
        if self._random is not None:
            return dict(self._random.bit_generator.state)
        return unpack_random(self._restored)
