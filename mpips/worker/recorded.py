"""A worker's part in a record: it notes what its pulls have seen, or repeats the pulls of a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import DifferenceError
from mpips.record.files import End
from mpips.record.writer import BLOCK_BYTES, RecordFile
from mpips.transport.channel import MemoryChannel

Float32 = NDArray[np.float32]


class WorkerRecord(Protocol):
    """A worker's part in a record or in a replay. Only the worker's thread uses it.

    Attributes:
        is_replay: It repeats the pulls of a recorded run.
    """

    is_replay: bool

    def join(self, channels: Sequence[MemoryChannel]) -> None:
        """Begin. `channels`: the worker's channel to each server."""

    def join_port(self, port: _native.DensePort, servers: Sequence[int]) -> None:
        """Take part in the pulls of a native port of a table under SSP or ASP.

        Args:
            port: The port.
            servers: Index of the server of each of its parts.
        """

    def read_dense(self, server: int, table: int, clock: int, out: Float32, max_s: float) -> bool:
        """Read a server's part of such a table, like Channel.read_dense, at the worker's clock.

        Raises:
            DifferenceError: The recorded run has no such pull here.
        """

    def tick(self, clock: int, own: Sequence[int], is_end: bool = False) -> None:
        """Note the end of a clock, or of the worker.

        Args:
            clock: Its number.
            own: Records that the worker has written to each server before that of the tick.
            is_end: The worker has no more clocks.

        Raises:
            DifferenceError: The recorded run has something else here.
        """

    def note_cut(self) -> None:
        """Note that the worker is at a cut for a checkpoint, whose record it has not written yet."""

    def end(self) -> str:
        """End it after the last tick; return a note for people, or ""."""


class RecordingWorker:
    """Notes what the pulls of a worker have seen. Attributes as in WorkerRecord."""

    is_replay = False

    def __init__(self, file: RecordFile, n_servers: int, n_tables: int) -> None:
        """Note nothing yet. `file`: the worker's file of the record."""
        self._file = file
        self._log = _native.PullLog(n_servers, n_tables)
        self._channels: list[MemoryChannel] = []
        self._limited_at = -1
        self._clock = 0  # the last one that ended

    def join(self, channels: Sequence[MemoryChannel]) -> None:
        """Note the versions of pulled rows from here on."""
        self._channels = list(channels)
        for server, channel in enumerate(channels):
            channel.writer.set_pull_log(self._log, server)

    def join_port(self, port: _native.DensePort, servers: Sequence[int]) -> None:
        """Let the port note what its pulls see."""
        port.set_log(self._log, list(servers))

    def read_dense(self, server: int, table: int, clock: int, out: Float32, max_s: float) -> bool:
        """Read a part, and note what it has seen."""
        channel = self._channels[server]
        version = _native.copy_recorded(
            channel.memory,
            channel.layout,
            table,
            out,
            self._log,
            server,
            channel.writer.next_sequence,
            max_s,
            channel.oversubscribed,
        )
        if version is None:
            return False
        channel.writer.set_base_version(table, version)
        channel.writer.count_pulled(out.nbytes)
        return True

    def tick(self, clock: int, own: Sequence[int], is_end: bool = False) -> None:
        """Note the end of a clock, and hand entries to the thread that writes them if there are many."""
        self._log.add_tick(clock, list(own), is_end)
        self._clock = clock
        if self._log.n_bytes >= BLOCK_BYTES:
            self._put(clock)

    def note_cut(self) -> None:
        """Write all entries so far: a restart from the checkpoint needs them after a kill. Blocks."""
        self._put(self._clock)
        self._file.flush()

    def _put(self, clock: int) -> None:
        data = self._log.take()
        if self._limited_at < 0 and not self._file.put(data):
            self._limited_at = clock

    def end(self) -> str:
        """Write the rest; return why the file is not complete, or ""."""
        self._put(0)
        failure = self._file.close(End(limited_at=self._limited_at))
        return f"the record is not complete: {failure}" if failure else ""


class ReplayingWorker:
    """Repeats the pulls of dense tables of a recorded run, and compares its clocks.

    Attributes as in WorkerRecord.
    """

    is_replay = True

    def __init__(
        self, index: int, pulls: _native.RecordedPulls, words: Sequence[_native.SharedMemory]
    ) -> None:
        """Take the recorded pulls.

        Args:
            index: Index of the worker.
            pulls: The recorded pulls.
            words: For each server, the memory in which it sees what is read.
        """
        self._index = index
        self._pulls = pulls
        self._words = list(words)
        self._channels: list[MemoryChannel] = []

    def join(self, channels: Sequence[MemoryChannel]) -> None:
        """Take the channels."""
        self._channels = list(channels)

    def join_port(self, port: _native.DensePort, servers: Sequence[int]) -> None:
        """Let pulls take the general path, which is `read_dense`."""
        port.leave_pulls()

    def read_dense(self, server: int, table: int, clock: int, out: Float32, max_s: float) -> bool:
        """Read what the recorded pull has read, block by block, when the server has it."""
        channel = self._channels[server]
        try:
            self._require_written(server, channel.writer.next_sequence)
            is_read = self._pulls.read(
                channel.memory,
                channel.layout,
                table,
                server,
                clock,
                out,
                self._words[server],
                max_s,
                channel.oversubscribed,
            )
        except _native.RecordDifference as error:
            raise DifferenceError(str(error)) from None
        if is_read:
            channel.writer.set_base_version(table, self._pulls.version)
            channel.writer.count_pulled(out.nbytes)
        return is_read

    def tick(self, clock: int, own: Sequence[int], is_end: bool = False) -> None:
        """Compare the end of a clock with the recorded run."""
        try:
            for server, written in enumerate(own):
                self._require_written(server, written)
            self._pulls.tick(clock, is_end)
        except _native.RecordDifference as error:
            raise DifferenceError(str(error)) from None

    def _require_written(self, server: int, own: int) -> None:
        """Compare the number of records written to a server with the recorded run."""
        channel = self._channels[server]
        writer = channel.writer
        self._pulls.require_written(
            server,
            self._index,
            own,
            writer.next_sequence,
            writer.n_cuts,
            channel.memory,
            channel.layout,
        )

    def note_cut(self) -> None:
        """Do nothing."""

    def end(self) -> str:
        """Return ""."""
        return ""
