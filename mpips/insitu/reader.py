"""The learning side of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError, ProtocolError, StallError, StreamError
from mpips.insitu.counts import (
    AGREED_KEY,
    DECLARATION_KEY,
    CountsRow,
    ProducerCounts,
    counts_of,
    moments_of,
    row_of,
)
from mpips.insitu.moments import FieldMoments, RunningMoments, merged
from mpips.insitu.uses import SampleUses
from mpips.process.patience import Patience
from mpips.terminal.screen import say
from mpips.worker.worker import connection_of

if TYPE_CHECKING:
    from mpips.insitu.declared import DeclaredStream
    from mpips.worker.connection import Connection
    from mpips.worker.worker import Worker

_POLL_S = (0.0005, 0.01)  # s between two looks of a reader that waits: at first, at most
_FRESH_S = 0.05  # s for which counts are taken as those of now
_SIGN_S = 10.0  # s between two lines of a reader that waits


class StreamCounts(msgspec.Struct, frozen=True):
    """The counts of a stream.

    Attributes:
        produced: Samples that producers have pushed, in all launches, those that are left out or dropped
            included.
        held: Samples for training that are held.
        held_out: Held-out samples that are held.
        thinned: Samples that a reservoir has left out.
        dropped: Samples that were not taken because they contain NaN or infinity.
        open: Producers that have pushed and not ended.
        ended: Producers that have ended.
    """

    produced: int
    held: int
    held_out: int
    thinned: int
    dropped: int
    open: int
    ended: int


class SampleBatch(msgspec.Struct, frozen=True):
    """Samples of a stream: `batch["x"]` has shape (n, *shape) and the type of the field. The caller's own.

    Attributes:
        arrays: The arrays by field.
        producers: The producer of each sample, int64, shape (n,).
        numbers: Its number among the samples of its producer, from 0, int64, shape (n,).
    """

    arrays: dict[str, NDArray[Any]]
    producers: NDArray[np.int64]
    numbers: NDArray[np.int64]

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the array of a field."""
        return self.arrays[name]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.numbers)


class SampleReader:
    """The reader of a stream on one worker, from `StreamTable.reader`. Not thread-safe.

    A slot that the counts name as filled holds a sample, because a producer pushes counts only after a server
    has applied the sample. A sample that is written over meanwhile is a newer one of the same producer and of
    the same kind. A row is written and read whole, so it is one sample.

    Attributes:
        used: Samples for training in all batches of this reader since it was made.
    """

    def __init__(self, stream: DeclaredStream, worker: Worker) -> None:
        """Take the handles; see `StreamTable.reader`."""
        self._stream, self._slots, self._layout = stream, stream.slots, stream.layout
        self._samples, self._table = stream.handles(worker)
        self._worker = worker
        self._keys = np.append(np.arange(stream.producers), DECLARATION_KEY)
        self._known: list[ProducerCounts] = []
        self._rows: NDArray[np.float32]  # of all producers, as `_known` has them
        self._known_at = float("-inf")
        self.used = 0
        self._uses: SampleUses | None = None  # from the first call of `batches` with `max_uses` on

    def counts(self) -> StreamCounts:
        """Return the counts of now. Blocks for one pull."""
        self._refresh()
        return self._counted()

    def _counted(self) -> StreamCounts:
        """Return the counts that the last pull has found."""
        filled = [self._slots.filled(each) for each in self._known]
        return StreamCounts(
            produced=sum(each.produced for each in self._known),
            held=sum(held for held, _ in filled),
            held_out=sum(held_out for _, held_out in filled),
            thinned=sum(each.thinned for each in self._known),
            dropped=sum(each.dropped for each in self._known),
            open=sum(_has_begun(each) and not each.is_closed for each in self._known),
            ended=sum(each.is_closed for each in self._known),
        )

    def sample(self, n: int, held_out: bool = False) -> SampleBatch:
        """Return `n` random samples of those that are held, all with the same probability. Blocks for pulls.

        No sample is twice in a batch, unless fewer than `n` are held. The choice follows from the random
        stream of the worker, which checkpoints contain.

        Args:
            n: Number of samples, at least 1.
            held_out: Draw held-out samples, not those for training.

        Raises:
            StreamError: No such sample is held yet.
            ValueError: `n` is not a whole number of at least 1.
        """
        if not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"stream {self._stream.name!r}: {n!r} samples: must be 1 or more")
        if time.monotonic() - self._known_at > _FRESH_S:
            self._refresh()
        sizes = self._filled(held_out)
        total = int(sizes.sum())
        if total < n:  # there may be more by now
            self._refresh()
            sizes = self._filled(held_out)
            total = int(sizes.sum())
        if total == 0:
            what = "held-out sample" if held_out else "sample"
            raise StreamError(f"stream {self._stream.name!r}: no {what} is held yet")
        places = self._worker.random.choice(total, n, replace=n > total)
        return self._read(places, sizes, held_out)

    def all_held_out(self) -> Iterator[SampleBatch]:
        """Yield all held-out samples of now, in batches of at most 1024. Blocks for pulls."""
        self._refresh()
        sizes = self._filled(True)
        for part in np.split(np.arange(sizes.sum()), range(1024, int(sizes.sum()), 1024)):
            if len(part):
                yield self._read(part, sizes, True)

    def moments(self) -> FieldMoments:
        """Return mean and standard deviation over the samples for training that count now.

        Blocks for one pull. Samples that are no longer held, or that a reservoir has left out, are among
        them; held-out and dropped ones are not. Readers that call it at different times see other samples;
        see `agreed_moments`.

        Raises:
            StreamError: No sample for training has been produced yet.
        """
        self._refresh()
        return self._stream.moments_layout.public(self._merged())

    def agreed_moments(
        self, *, min_seen: int = 1, by: int = 0, patience_s: float = 600.0
    ) -> FieldMoments:
        """Return the moments that all readers use, in all launches: those of the first call of worker `by`.

        Worker `by` waits until `min_seen` samples have been pushed, or all producers have ended, takes
        `moments()`, and stores them with the stream. The others wait until it has. From then on each call
        returns the stored moments at once. Each wait prints a line every 10 s. Not collective.

        Args:
            min_seen: Samples that producers must have pushed, without dropped ones; for worker `by`.
            by: Index of the worker that decides, alike on all readers.
            patience_s: Seconds without a new sample after which the wait ends. Other workers than `by` wait
                as long for its decision, from the last new sample on.

        Raises:
            ConfigError: `by` is not the index of a worker.
            StallError: The wait has ended.
            StreamError: All producers have ended and no sample is held.
        """
        if isinstance(by, bool) or not 0 <= by < self._worker.n_workers:
            raise ConfigError(
                f"stream {self._stream.name!r}: by = {by!r}: must be the index of a worker, 0 to "
                f"{self._worker.n_workers - 1}"
            )
        connection = connection_of(self._worker)
        found = self._agreed()
        if found is None and by == self._worker.index:
            self._await_samples(min_seen, patience_s)
            found = self._decision(connection)
            self._table.push(np.array([AGREED_KEY], np.int64), found.values()).wait()
        elif found is None:
            found = self._await_decision(by, patience_s)
        elif connection.repeats and (found.worker, found.clock) == (
            connection.index,
            connection.now,
        ):
            # This worker had stored them in the clock that it repeats, with the same pushes.
            self._table.push(np.array([AGREED_KEY], np.int64), found.values()).wait()
        layout = self._stream.moments_layout
        return layout.public(layout.read(found.counts.trained, found.moments))

    def _agreed(self) -> CountsRow | None:
        rows = self._table.pull(np.array([AGREED_KEY], np.int64))
        self._stream.check_declared(rows)
        found = row_of(rows[0])
        return found if found.declaration else None

    def _decision(self, connection: Connection) -> CountsRow:
        """Return the row that stores the moments of now."""
        moments = self._merged()
        stored = self._stream.moments_layout.stored(moments)
        counts = ProducerCounts(produced=moments.n, trained=moments.n)
        return CountsRow(
            counts,
            ProducerCounts(),
            False,
            connection.now,
            connection.index,
            self._stream.declaration,
            stored,
            bytes(len(stored)),
        )

    def _merged(self) -> RunningMoments:
        """Return the moments of all producers, as the last pull has them."""
        layout = self._stream.moments_layout
        total = merged(
            layout,
            [
                layout.read(counts.trained, moments_of(row))
                for counts, row in zip(self._known, self._rows, strict=True)
            ],
        )
        if not total.n:
            raise StreamError(
                f"stream {self._stream.name!r}: no sample for training has been produced yet"
            )
        return total

    def batches(
        self,
        n: int,
        *,
        min_seen: int = 1,
        limit: int = 0,
        max_uses: int = 0,
        patience_s: float = 600.0,
    ) -> Iterator[SampleBatch]:
        """Yield random batches until all producers of the stream have called `close`.

        Without a limit it goes on as long as one of `StreamTable.producers` has not begun, or not ended, and
        samples come. It waits first until the producers have pushed `min_seen` samples, or have ended, and
        prints a line every 10 s meanwhile.

        Args:
            n: Samples of a batch.
            min_seen: Samples that producers must have pushed before the first batch, without dropped ones.
            limit: Number of batches, whether producers have ended or not; 0: no limit.
            max_uses: Greatest number of uses of a sample by this reader; 0: no bound. A batch waits until
                `n` held samples have fewer uses. Once all producers have ended, the last batch has those that
                are left, perhaps fewer than `n`, and no further one comes, whatever the limit. Uses count
                from the first call with `max_uses`, those by `sample` included; a restarted reader, and each
                other reader, counts its own.
            patience_s: Seconds without a new sample after which a wait ends, and, without a limit, the
                batches: a producer that has ended without `close` would let them come for ever.

        Raises:
            StallError: No new sample has come for `patience_s`.
            StreamError: All producers have ended and no sample is held.
            ValueError: `limit` or `max_uses` is below 0, or `n` is more than can be held, with `max_uses`.
        """
        for name, value in (("limit", limit), ("max_uses", max_uses)):
            if value < 0:
                raise ValueError(
                    f"stream {self._stream.name!r}: {name} = {value}: must be 0 or more"
                )
        most = self._slots.n_train * self._stream.producers
        if max_uses and not 1 <= n <= most:
            raise ValueError(
                f"stream {self._stream.name!r}: {n!r} samples: must be 1 to {most}, which is how many are "
                "held for training, if max_uses bounds their uses"
            )
        self._await_samples(min_seen, patience_s)
        if max_uses:
            yield from self._bounded(n, max_uses, limit, patience_s)
            return
        for _ in range(limit):
            yield self.sample(n)
        news = _News(patience_s)
        while not limit:
            yield self.sample(n)
            if self._all_ended():
                return
            taken = self._taken()
            if news.are_late(taken):
                raise StallError(self._late(taken, taken + 1, patience_s))

    def _bounded(
        self, n: int, max_uses: int, limit: int, patience_s: float
    ) -> Iterator[SampleBatch]:
        """Yield batches of samples with fewer than `max_uses` uses by this reader."""
        if self._uses is None:
            self._uses = SampleUses(self._slots, self._stream.producers)
        uses, places, sizes, done = self._uses, np.empty(0, np.int64), np.empty(0, np.int64), 0

        def are_there() -> bool:
            # In this order: after the counts that show all producers as ended no sample comes.
            nonlocal places, sizes
            if time.monotonic() - self._known_at > _FRESH_S:
                self._refresh()
            uses.advance(self._known)
            sizes = self._filled(False)
            places = uses.below(max_uses, sizes)
            return len(places) >= n or all(each.is_closed for each in self._known)

        while not limit or done < limit:
            self._await(
                are_there,
                lambda: (
                    f"{n} samples of stream {self._stream.name!r} with fewer than {max_uses} uses: "
                    f"{len(places)} so far"
                ),
                lambda: self._late(len(places), n, patience_s, f" with fewer than {max_uses} uses"),
                patience_s,
            )
            if not len(places):
                return
            yield self._read(
                self._worker.random.choice(places, min(n, len(places)), replace=False), sizes, False
            )
            done += 1

    def _refresh(self) -> None:
        rows = self._table.pull(self._keys)
        self._stream.check_declared(rows)
        self._rows, self._known = rows[:-1], counts_of(rows[:-1])
        self._known_at = time.monotonic()

    def _filled(self, held_out: bool) -> NDArray[np.int64]:
        """Return the number of filled slots of each producer."""
        return np.array([self._slots.filled(each)[held_out] for each in self._known], np.int64)

    def _read(
        self, places: NDArray[np.int64], sizes: NDArray[np.int64], held_out: bool
    ) -> SampleBatch:
        """Return the samples at places among all filled slots. `sizes`: filled slots of each producer."""
        ends = np.cumsum(sizes)
        producers = np.searchsorted(ends, places, side="right")
        slots = places - (ends - sizes)[producers] + (self._slots.n_train if held_out else 0)
        rows = self._samples.pull(producers * self._slots.n + slots)
        found = self._layout.decode(rows)
        if (found.numbers < 0).any() or (found.producers != producers).any():
            raise ProtocolError(
                f"stream {self._stream.name!r}: a slot that its producer has filled holds no sample of it"
            )
        self.used += 0 if held_out else len(slots)
        if self._uses is not None and not held_out:
            self._uses.note(producers, slots, found.ordinals)
        return SampleBatch(found.arrays, found.producers, found.numbers)

    def _all_ended(self) -> bool:
        if time.monotonic() - self._known_at > _FRESH_S:
            self._refresh()
        return all(each.is_closed for each in self._known)

    def _taken(self) -> int:
        """Return the number of samples that producers have pushed, without dropped ones."""
        return sum(each.produced - each.dropped for each in self._known)

    def _await_samples(self, min_seen: int, patience_s: float) -> None:
        """Return when `min_seen` samples have been pushed, or all producers have ended."""
        self._refresh()

        def are_there() -> bool:
            counts, taken = self._counted(), self._taken()
            if counts.held and (taken >= min_seen or self._all_ended()):
                return True
            if self._all_ended():
                raise StreamError(
                    f"stream {self._stream.name!r}: all producers have ended, and no sample is held"
                )
            return False

        self._await(
            are_there,
            lambda: f"{min_seen} samples of stream {self._stream.name!r}: {self._taken()} so far",
            lambda: self._late(self._taken(), min_seen, patience_s),
            patience_s,
        )

    def _await_decision(self, by: int, patience_s: float) -> CountsRow:
        """Return the row that worker `by` stores."""
        found: list[CountsRow] = []

        self._refresh()

        def is_there() -> bool:
            row = self._agreed()
            found.extend([] if row is None else [row])
            return bool(found)

        self._await(
            is_there,
            lambda: f"the moments of stream {self._stream.name!r} that worker {by} decides on",
            lambda: (
                f"stream {self._stream.name!r}: worker {by} has stored no moments, and for {patience_s:g} s "
                f"no new sample has come; worker {by} must call agreed_moments"
            ),
            patience_s,
        )
        return found[0]

    def _await(
        self,
        is_there: Callable[[], bool],
        what: Callable[[], str],
        late: Callable[[], str],
        patience_s: float,
    ) -> None:
        """Wait for what a function finds; the others return it in words, and the error without it."""
        connection = connection_of(self._worker)
        news, sign = _News(patience_s), Patience(_SIGN_S)
        pause_s, most_s = _POLL_S
        try:
            while not is_there():
                if news.are_late(self._taken()):
                    raise StallError(late())
                if sign.is_over:
                    sign = Patience(_SIGN_S)
                    say(f"mpips: worker {self._worker.index} waits for {what()}")
                # Producers that have come to a cut are held there until this worker has come to it.
                connection.control.state = f"waiting for samples of stream {self._stream.name!r}"
                connection.check_cut_in_wait()
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, most_s)
                self._refresh()
        finally:
            connection.snapshot.end_gather()
            connection.control.state = "computing"

    def _late(self, found: int, needed: int, patience_s: float, kind: str = "") -> str:
        late = [str(i) for i, each in enumerate(self._known) if not each.is_closed]
        more = f" and {len(late) - 8} more" if len(late) > 8 else ""
        return (
            f"stream {self._stream.name!r}: no new sample for {patience_s:g} s while {found} of "
            f"{needed} samples{kind} are there; producers that have not ended: {', '.join(late[:8])}{more}"
        )


class _News:
    """Finds out that no new sample has come for some time."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s, self._seen = patience_s, -1
        self._wait = Patience(patience_s)

    def are_late(self, taken: int) -> bool:
        """Return True if there are no more samples than `patience_s` ago."""
        if taken > self._seen:
            self._seen, self._wait = taken, Patience(self._patience_s)
        return self._wait.is_over


def _has_begun(counts: ProducerCounts) -> bool:
    return counts.produced > 0
