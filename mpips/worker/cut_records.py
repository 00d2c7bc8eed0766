"""The records of cuts that a worker writes into the rings of all servers; see mpips.snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mpips.worker.data_plane import DataPlane

if TYPE_CHECKING:
    from mpips.worker.recorded import WorkerRecord
    from mpips.worker.table_part import TablePart


class CutWorker(DataPlane, Protocol):
    """A worker's connection with what belongs before a cut record.

    Attributes:
        parts: The parts of the worker's tables.
        record: The worker's part in a record or in a replay; None: the job has none.
    """

    parts: list[TablePart]
    record: WorkerRecord | None


class CutRecords:
    """Writes the cut records of one worker. Not thread-safe."""

    def __init__(self, connection: CutWorker) -> None:
        """Take the connection, which has its channels."""
        self._connection = connection
        # Records up to the last cut record, by server.
        self._ends = [0] * len(connection.channels)

    def write(self, number: int, clock: int, payload: bytes) -> None:
        """Write a record into the ring of every server, and send it; blocks while a ring is full.

        Args:
            number: Number of the cut; 0: the record belongs to none.
            clock: Clock of the worker that the payload describes.
            payload: The worker's position (mpips.checkpoint.position).
        """
        c = self._connection
        if number and not all(part.before_cut(number) for part in c.parts):
            return
        if number and c.record is not None:
            c.record.note_cut()
        for server, channel in enumerate(c.channels):
            c.write(
                server,
                lambda to=channel: to.writer.cut(c.now, number, clock, payload),  # type: ignore[misc]
            )
            self._ends[server] = channel.writer.next_sequence
        c.publish(range(len(c.channels)))

    def is_behind(self) -> bool:
        """Return whether some server has not consumed the last cut record, as last read by this worker."""
        ends = zip(self._connection.channels, self._ends, strict=True)
        return any(channel.writer.applied < end for channel, end in ends)
