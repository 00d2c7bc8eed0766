"""Producers that are programs in C, Fortran or Python: a worker takes their samples from queues.

A program on the worker's node copies samples into a queue in shared memory, by libmpips_client or by
mpips.attach (native/src/queue/sample_queue.hpp). The worker pushes them, so that the promises of `Producer`
hold. The program is not a rank of the job, and waits only for room in its queue.

Exactly once. Each sample is pushed, with its counts, in a clock of its own. The queue notes the clock before
the push, so a worker that continues in memory repeats the push from the same queue. A sample leaves the queue
when servers have applied its counts, and the server of the counts has consumed the end of that clock: the
answer to a later pull from that server proves both, since a server consumes the records of a worker in their
order. Until then the sample is in the queue, which the next launch takes over. A launch from an older
checkpoint may begin with fewer samples than have left the queue. Its worker replaces the queue, and calls of
the program return MPIPS_REPLACED until it opens the producer again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ConfigError, RegionError, StallError
from mpips.insitu.layout import DTYPES
from mpips.insitu.producer import Producer
from mpips.model.consistency import ASP
from mpips.process.patience import Patience
from mpips.terminal.screen import say
from mpips.transport.region import TOUCH_S
from mpips.worker.dense import DenseHandle
from mpips.worker.worker import connection_of

if TYPE_CHECKING:
    from mpips.insitu.declared import DeclaredStream
    from mpips.worker.worker import Worker

_SIGN_S = 10.0  # seconds between signs of life while no sample comes
_POLL_S = (50e-6, 2e-3)  # shortest and longest sleep between two looks at the queues
_STEER_S = 0.05  # seconds between pulls of the table by which programs are steered
MOST_SLOTS = 1 << 20


class ProgramQueue:
    """The queue of one producer, and the producer.

    Attributes:
        producer: The producer that pushes the program's samples.
        memory: The worker's end of the queue.
        is_ended: True if servers hold the end of the producer.
    """

    def __init__(
        self,
        stream: DeclaredStream,
        worker: Worker,
        name: str,
        number: int,
        slots: int,
        n_steer: int,
    ) -> None:
        """Take over the queue of an earlier launch, or make one.

        Raises:
            ConfigError: The name, the number or a field is not accepted.
            RegionError: The memory cannot be had, or another worker serves the queue.
        """
        self.producer, self.is_ended = Producer(stream, worker, number), False
        fields = [
            (field.name, 1 + DTYPES.index(field.dtype.name), list(field.shape))
            for field in stream.layout.fields
        ]
        try:
            self.memory = _native.QueueServer(
                name,
                self.producer.number,
                fields,
                slots,
                n_steer,
                stream.declaration,
                stream.invalid == "error",
                self.producer.produced,
                worker.index,
            )
        except ValueError as error:
            raise ConfigError(f"stream {stream.name!r}: {error}") from None
        except RuntimeError as error:
            raise RegionError(f"stream {stream.name!r}: {error}") from None
        self._most_pending = max(1, slots // 2)
        self._table, self._key = stream.handles(worker)[1], np.array([number], np.int64)
        self._arrays = [self._views(stream, n) for n in range(slots)]
        # An earlier launch may have stored the end at the servers but not in the queue.
        self._closes = self.producer.counts.is_closed

    def _views(self, stream: DeclaredStream, number: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of a slot, which the queue owns."""
        slot, arrays = self.memory.slot(number), {}
        for i, field in enumerate(stream.layout.fields):
            at = self.memory.offset(i)
            part = slot[at : at + field.count * field.dtype.itemsize]
            arrays[field.name] = part.view(field.dtype).reshape(field.shape)
        return arrays

    def advance(self, worker: Worker, clock: int) -> bool:
        """Push the next sample, or the end, in a clock of its own; return False if neither has come.

        `clock`: The worker's clock.
        """
        is_closed = self.memory.is_closed  # read before `written`: no sample follows the end
        number = self.producer.produced
        has_sample = number < self.memory.written
        if self.is_ended or self._closes or not (has_sample or is_closed):
            return False
        self.memory.note_push(clock)
        if has_sample:
            self.producer.push(self._arrays[number % len(self._arrays)])
            self.producer.flush()
        else:
            self.producer.close()
            self._closes = True
        worker.clock()
        if self._closes or self.producer.produced - self.memory.taken >= self._most_pending:
            self.confirm()
        return True

    def confirm(self) -> None:
        """Free the slots of all samples that were pushed. Blocks for a pull if there are any."""
        produced = self.producer.produced
        if produced == self.memory.taken and not self._closes:
            return
        self._table.pull(self._key)
        self.memory.take(produced)
        if self._closes and not self.is_ended:
            self.memory.end()
            self.is_ended = True

    def state(self) -> str:
        """Return producer and program in words."""
        if self.memory.is_attached:
            return f"{self.producer.number} (process {self.memory.program_pid})"
        return f"{self.producer.number} (no program is attached)"


class ProgramServer:
    """Serves programs until all of their producers have ended; see `StreamTable.serve`."""

    def __init__(
        self,
        stream: DeclaredStream,
        worker: Worker,
        name: str,
        producers: Sequence[int],
        slots: int,
        steer: str,
        patience_s: float,
    ) -> None:
        """Check the arguments, and make the queues."""
        where = f"stream {stream.name!r}: serve"
        if not producers or len({*producers}) < len(producers):
            raise ConfigError(
                f"{where}: producers = {producers!r}: must be numbers of producers, each once"
            )
        is_number = isinstance(slots, int) and not isinstance(slots, bool)
        if not is_number or not 1 <= slots <= MOST_SLOTS:
            raise ConfigError(f"{where}: slots = {slots!r}: must be 1 to {MOST_SLOTS} samples")
        self._stream, self._worker, self._connection = stream, worker, connection_of(worker)
        self._patience_s = patience_s
        self._steer = _steering(where, worker, steer)
        n_steer = 0 if self._steer is None else self._steer.pull().size
        self._values: NDArray[np.float32] | None = None
        self._pulled_at = -np.inf
        self._untouched = Patience(TOUCH_S)
        self.queues = [
            ProgramQueue(stream, worker, name, number, slots, n_steer) for number in producers
        ]

    def run(self) -> None:
        """Take samples until all producers have ended, and remove the queues."""
        # The stream and the queues have all that a restart needs, but it requires a cursor of each worker.
        if not self._worker.cursor:
            self._worker.set_cursor({"serves": self._stream.name})
        # The queue from which an earlier launch pushed in the clock that this one repeats comes first.
        now = self._connection.now
        if self._connection.repeats:
            self.queues.sort(key=lambda queue: not queue.memory.has_pushed_in(now))
        while not all(queue.is_ended for queue in self.queues):
            self._touch()
            self._publish()
            if not self._advance():
                for queue in self.queues:
                    queue.confirm()
                self._await_sample()
        for queue in self.queues:
            queue.memory.unlink()

    def _advance(self) -> bool:
        """Push at most one sample of each queue; return False if no queue had one."""
        pushed = [queue.advance(self._worker, self._connection.now) for queue in self.queues]
        return any(pushed)

    def _touch(self) -> None:
        """Renew the times of the queues, from which their retention counts; see mpips.transport.region."""
        if self._untouched.is_over:
            self._untouched = Patience(TOUCH_S)
            for queue in self.queues:
                queue.memory.touch()

    def _publish(self) -> None:
        """Copy the table by which programs are steered into the queues, if it has changed."""
        if self._steer is None or time.monotonic() - self._pulled_at < _STEER_S:
            return
        values = self._steer.pull().reshape(-1)
        self._pulled_at = time.monotonic()
        if self._values is None or not np.array_equal(values, self._values):
            self._values = values.copy()
            for queue in self.queues:
                queue.memory.publish(self._values)

    def _is_there(self) -> bool:
        return any(
            queue.memory.is_closed or queue.producer.produced < queue.memory.written
            for queue in self.queues
            if not queue.is_ended
        )

    def _await_sample(self) -> None:
        """Wait for a sample or the end of a producer, and take part in checkpoints meanwhile.

        Raises:
            StallError: None has come for `patience_s`.
        """
        wait, sign = Patience(self._patience_s), Patience(_SIGN_S)
        pause_s, most_s = _POLL_S
        with self._waiting():
            while not self._is_there() and not all(queue.is_ended for queue in self.queues):
                if wait.is_over:
                    raise StallError(
                        f"stream {self._stream.name!r}: no sample for {self._patience_s:g} s from the "
                        f"programs of producers {self._late()}"
                    )
                if sign.is_over:
                    sign = Patience(_SIGN_S)
                    say(
                        f"mpips: worker {self._worker.index} waits for samples of stream "
                        f"{self._stream.name!r} from the programs of producers {self._late()}"
                    )
                self._connection.check_cut_in_wait()
                self._touch()
                self._publish()
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, most_s)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Show the activity of a wait. Other workers that have come to a cut are not held meanwhile."""
        self._connection.control.state = f"waiting for samples of stream {self._stream.name!r}"
        try:
            yield
        finally:
            self._connection.snapshot.end_gather()
            self._connection.control.state = "computing"

    def _late(self) -> str:
        late = [queue.state() for queue in self.queues if not queue.is_ended]
        return ", ".join(late[:8]) + (f" and {len(late) - 8} more" if len(late) > 8 else "")


def _steering(where: str, worker: Worker, name: str) -> Any:
    """Return the handle of the table by which programs are steered; None if there is no name.

    Raises:
        ConfigError: It is not a dense table under ASP.
    """
    if not name:
        return None
    handle = worker.table(name)
    if not isinstance(handle, DenseHandle) or not isinstance(handle.consistency, ASP):
        raise ConfigError(
            f"{where}: steer = {name!r}: must be a dense table with consistency = mpips.ASP(), so that no "
            "pull of it waits for a clock"
        )
    return handle
