"""Where a worker is in its program: what a restart from the next cut needs of it.

A worker's part of a checkpoint is its clock, its data cursor and its random state, all as they were at one
tick; before the first tick, as the worker began. Under BSP and SSP the cut record is written at that tick.
Under ASP it may be written later, while the worker waits for others with nothing pushed since: then they are
still those of the tick, which is why `note_tick` keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from mpips.checkpoint.manifest import WorkerState, pack_random, unpack_random

_STREAM = "worker"


class PositionPart(msgspec.Struct, frozen=True):
    """What a cut record carries. `clock` counts from the start of this launch."""

    clock: int = 0
    cursor: dict[str, Any] = {}
    random: dict[str, Any] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PositionPart).decode


def decode_part(data: bytes) -> PositionPart:
    """Of the payload of a cut record; without any, the beginning."""
    return _decode(data) if data else PositionPart()


@dataclass(frozen=True)
class WorkerStart:
    """What the checkpoint that a job started from says.

    Attributes:
        step: Clocks behind it: the most of any worker.
        clock: Of this worker; `step` where the number of workers is another.
        cursor: What this worker had last given to `set_cursor`; None where the number of workers is
            another, so that nobody has this worker's place.
        workers: All workers as they were.
    """

    step: int
    clock: int
    cursor: Mapping[str, Any] | None
    workers: Sequence[WorkerState]


class Position:
    """One worker's cursor, random stream and place at its last tick. Not thread-safe.

    Attributes:
        start: Where it started from; None: from nothing.
        seed: Of the job.
        known: Whether a cut record can say where the worker is. False until its first tick where it started
            from a checkpoint of another number of workers and nothing says what of the work is its own:
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
    ) -> None:
        """`step` and `workers` as the checkpoint has them that the job starts from, if any; `clock`: of
        the worker in what the launch before has left in memory; `begin`: the worker's state at its start,
        where that is not the one in `workers`.
        """
        self.start: WorkerStart | None = None
        self.seed = seed
        self._seeds = [seed, worker, step]
        self._restored: dict[str, Any] = {}
        if step or workers:
            same = len(workers) == n_workers
            own = workers[worker] if same else WorkerState(worker=worker, clock=step)
            cursor = dict(own.cursor) if same else None
            self.start = WorkerStart(step, own.clock, cursor, tuple(workers))
            self._restored = own.random.get(_STREAM, {})
        self._cursor = dict(self.start.cursor or {}) if self.start is not None else {}
        self.known = self.start is None or self.start.cursor is not None
        if begin is not None:
            self._restored = begin.random.get(_STREAM, {})
            self._cursor, self.known = dict(begin.cursor), True
        self._random: np.random.Generator | None = None
        # What is drawn before the first tick belongs to the step that follows it.
        random = self._raw_random()
        self._tick: tuple[int, dict[str, Any], dict[str, Any] | None] = (
            clock,
            self._cursor,
            random,
        )

    @property
    def random(self) -> np.random.Generator:
        """This worker's random stream: of seed and worker, or as it was at the cut."""
        if self._random is None:
            philox = np.random.Philox(np.random.SeedSequence(self._seeds))
            if self._restored:
                state: Any = unpack_random(self._restored)
                philox.state = state
            self._random = np.random.Generator(philox)
        return self._random

    @property
    def cursor(self) -> Mapping[str, Any]:
        """What was last given to `set_cursor`."""
        return self._cursor

    def set_cursor(self, cursor: Mapping[str, Any]) -> None:
        """See Worker.set_cursor."""
        self._cursor = dict(cursor)

    def note_tick(self, clock: int, keep: bool) -> None:
        """The worker has ended a clock. `keep`: it may be asked for its part later than now."""
        random = self._raw_random() if keep else None
        self._tick = clock, self._cursor, random
        self.known = True

    @property
    def tick(self) -> int:
        """The clock at which the worker stood after its last tick; `part` describes it."""
        return self._tick[0]

    def part(self) -> bytes:
        """The payload of a cut record for the last tick."""
        clock, cursor, random = self._tick
        random = self._raw_random() if random is None else random
        packed = {_STREAM: pack_random(random)} if random else {}
        return _encode(PositionPart(clock, cursor, packed))

    def coming_part(self, clock: int) -> bytes:
        """The same for the tick to come, after which the worker is at `clock`."""
        random = self._raw_random()
        packed = {_STREAM: pack_random(random)} if random else {}
        return _encode(PositionPart(clock, self._cursor, packed))

    def _raw_random(self) -> dict[str, Any]:
        """The generator's own state; as it was restored if nobody has drawn, {} without either."""
        if self._random is not None:
            return dict(self._random.bit_generator.state)
        return unpack_random(self._restored)
