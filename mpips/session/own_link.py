"""The connection between the worker and the server of a job of one rank: a channel in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mpips import _native
from mpips.model.table import DenseTable
from mpips.transport.channel import Channel, LocalChannel

if TYPE_CHECKING:
    from mpips.config.options import SessionOptions
    from mpips.model.placement import Placement
    from mpips.model.table import Table
    from mpips.server.server import Server
    from mpips.session.links import MpiProgress


class OwnLink:
    """The channel of the only worker, whose waits let the server consume records; see Links.

    Attributes:
        channels: The channel, once it is open.
        transports, paths, pairs, notes: See Links.
        progress: None: no MPI makes progress here.
    """

    progress: MpiProgress | None = None

    def __init__(
        self,
        options: SessionOptions,
        placement: Placement,
        tables: Sequence[Table],
        idle: Callable[[], bool],
    ) -> None:
        """Open nothing yet.

        Args:
            options: Options of the job.
            placement: Shards of the server.
            tables: All tables of the job.
            idle: Does other work of the server between two drains; returns True if it may consume more.
        """
        self._options = options
        self._layout = placement.layouts[0]
        self._n_tables = len(tables)
        self._idle: Callable[[], bool] | None = idle
        self.channels: list[Channel] = []
        self.transports = {"local": 1}
        self.pairs = [["local"]]
        has_dense = any(isinstance(table, DenseTable) for table in tables)
        self.paths = {"shared": 1} if has_dense else {}
        self.notes: list[str] = []

    def open(self, server: Server, staging: _native.SharedMemory, saves: bool) -> None:
        """Connect the worker with the server. Does not block.

        Args:
            server: The server.
            staging: Staging memory of the worker.
            saves: The job writes checkpoints, so the server has other work between two drains.
        """
        layout = self._layout
        writer = _native.RingWriter(
            server.region,
            layout.mailbox_offset(0),
            layout.geometry,
            0,
            0,
            self._options.checksums,
            self._n_tables,
        )
        server.core.set_staging(0, staging)

        def drain() -> int:
            consumed = server.drain()
            if self._idle is not None and self._idle():
                consumed += server.drain()  # records behind a cut
            return consumed

        self.channels = [
            LocalChannel(server.region, layout, writer, 1, drain if saves else server.drain)
        ]

    def close(self) -> None:
        """Drop the channel, and what `idle` refers to."""
        self.channels.clear()
        self._idle = None
