"""The pushing side of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mpips.errors import ConfigError
from mpips.insitu.counts import DECLARATION_KEY, CountsRow, ProducerCounts, row_of
from mpips.worker.worker import connection_of

if TYPE_CHECKING:
    from mpips.insitu.declared import DeclaredStream
    from mpips.worker.requests import PushResult, Request
    from mpips.worker.worker import Worker


class Producer:
    """One producer of a stream, from `StreamTable.producer`. Not thread-safe.

    Exactly once. A sample goes to the slot that follows from the counts before it, and the counts with the
    sample are pushed after the server has applied it. Whatever dies in between, the counts in memory or in a
    checkpoint are those of samples that are there. A producer that starts again reads its counts and goes on
    with the next number; a sample of which only the values had arrived is pushed to the same slot again.
    Within one worker the order of records is that of the program, so a checkpoint that contains counts
    contains the samples before them.

    Restarts in memory. A worker repeats the pushes of its last clock, which have no effect again. So a
    producer begins there at the counts with which that clock began.

    Checkpoints. A push after a clock may wait until all workers have ended their clocks of the checkpoint. So
    producers and readers must end clocks often. A reader that waits for the first samples takes part there.

    Attributes:
        number: Which producer this is.
    """

    def __init__(self, stream: DeclaredStream, worker: Worker, number: int) -> None:
        """Read the counts; see `StreamTable.producer`."""
        is_count = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not is_count or not 0 <= number < stream.producers:
            raise ConfigError(
                f"stream {stream.name!r}: producer {number!r}: must be a whole number from 0 to "
                f"{stream.producers - 1}, since producers = {stream.producers}"
            )
        self.number = int(number)
        self._stream, self._slots, self._layout = stream, stream.slots, stream.layout
        self._samples, self._table = stream.handles(worker)
        self._key = np.array([number], np.int64)
        self._row = np.empty((1, self._layout.dim), np.float32)
        rows = self._table.pull(np.array([number, DECLARATION_KEY], np.int64))
        stream.check_declared(rows)
        stored = row_of(rows[0])
        self._counts, self._owed, moments = stored.counts, False, stored.moments
        self._connection = at = connection_of(worker)
        if at.repeats and (stored.worker, stored.clock) == (at.index, at.now):
            self._counts, self._owed, moments = stored.before, stored.owed, stored.moments_before
        self._moments_layout = stream.moments_layout
        self._moments = self._moments_layout.read(self._counts.trained, moments)
        self._clock = -1
        self._before, self._owed_before = self._counts, self._owed
        self._moments_before = self._moments
        self._open: Request[PushResult] | None = None
        self._sent: Request[PushResult] | None = None

    @property
    def counts(self) -> ProducerCounts:
        """Counts of all samples so far, those of earlier launches included. The caller must not change it."""
        return self._counts

    @property
    def produced(self) -> int:
        """Number of samples pushed so far, in all launches: where a restarted simulation goes on.

        Samples that were dropped are among them, so the number of a sample is its place in the simulation.
        """
        return self._counts.produced

    def push(self, sample: Mapping[str, Any], wait: bool = True) -> bool:
        """Push one sample.

        Args:
            sample: For each field an array of its shape, of its type or of one that it can hold. Free again
                at return.
            wait: Return when a server holds the sample. False: return when it is on its way; the next call
                waits for it, and so do `flush` and `close`.

        Returns:
            True if the sample is held: False if the reservoir has left it out, or if it contains NaN or
            infinity and the stream drops such samples.

        Raises:
            TypeError: A field has values that its type cannot hold.
            ValueError: A field is missing, unknown or of another shape, or contains NaN or infinity.
            StallError: A server has taken no records for the job's timeout.
        """
        arrays = self._layout.checked(sample)
        self._note_clock()
        self._settle()
        slot, is_held_out = self._slots.of(self.number, self._counts)
        if slot is None:
            name = self._layout.first_invalid(arrays)
        else:
            ordinal = self._counts.held_out if is_held_out else self._counts.trained
            name = self._layout.encode(self.number, self.produced, ordinal, arrays, self._row)
        if name is not None:
            if self._stream.invalid == "error":
                raise ValueError(
                    f"stream {self._stream.name!r}: field {name!r} of sample {self.produced} of producer "
                    f"{self.number} contains NaN or infinity"
                )
            self._counts.produced += 1
            self._counts.dropped += 1
            self._counts.is_closed = False
            self._push_counts()
            return False
        if slot is not None:
            key = np.array([self.number * self._slots.n + slot], np.int64)
            self._open = self._samples.push(key, self._row)
        self._counts.produced += 1
        if is_held_out:
            self._counts.held_out += 1
        else:
            self._counts.trained += 1
            self._moments = self._moments_layout.with_sample(self._moments, arrays)
        self._counts.thinned += slot is None
        self._counts.is_closed = False
        if slot is None:
            self._push_counts()
        elif wait:
            self._settle()
        return slot is not None

    def flush(self) -> None:
        """Wait until servers hold all samples that were pushed, and their counts.

        From then on another worker may be this producer.

        Raises:
            StallError: A server has taken no records for the job's timeout.
        """
        self._note_clock()
        self._settle()
        if self._sent is not None:
            self._sent.wait()
            self._sent = None

    def close(self) -> None:
        """Tell readers that this producer has ended; a later push opens it again. Blocks.

        Without effect if it has ended already, as it may have before a restart.
        """
        self._note_clock()
        self._settle()
        if not self._counts.is_closed:
            self._counts.is_closed = True
            self._push_counts()
        self.flush()

    def _note_clock(self) -> None:
        """Keep the counts with which a clock begins. Call it before they change."""
        if self._clock != self._connection.now:
            self._clock = self._connection.now
            self._before = msgspec.structs.replace(self._counts)
            self._moments_before = self._moments
            self._owed_before = self._owed or self._open is not None

    def _settle(self) -> None:
        """Wait for the sample that is on its way, and push its counts."""
        if self._open is not None:
            self._open.wait()
            self._open, self._owed = None, True
        if self._owed:
            self._owed = False
            self._push_counts()

    def _push_counts(self) -> None:
        # A server applies the counts of one producer in their order, so the last push stands for all.
        row = CountsRow(
            self._counts,
            self._before,
            self._owed_before,
            self._clock,
            self._connection.index,
            self._stream.declaration,
            self._moments_layout.stored(self._moments),
            self._moments_layout.stored(self._moments_before),
        ).values()
        if self._counts.produced > 1:
            self._sent = self._table.push(self._key, row)
            return
        # With the first counts of a producer the declaration is stored; all producers push the same one.
        none, zero = ProducerCounts(), self._moments_layout.stored(self._moments_layout.zero())
        declared = CountsRow(none, none, False, 0, 0, self._stream.declaration, zero, zero).values()
        keys = np.array([self.number, DECLARATION_KEY], np.int64)
        self._sent = self._table.push(keys, np.concatenate([row, declared]))
