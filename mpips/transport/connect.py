"""The choice of a transport for each pair of worker and server, with a test that it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from mpips import _native
from mpips.errors import RegionError, TransportError
from mpips.transport.channel import Channel, ShmChannel
from mpips.transport.p2p import P2pMemory, Question
from mpips.transport.region import attach, token_words
from mpips.transport.remote import RemoteChannel
from mpips.transport.rma import Guard, RmaMemory

if TYPE_CHECKING:
    from mpips.transport.gate import Gate
    from mpips.transport.remote_memory import RemoteMemory

_HEADER_BYTES = 64
NO_WINDOW = (
    "this MPI could not make a window over the servers' regions; set OMPI_MCA_osc=^ucx (Open MPI "
    "without InfiniBand), use Open MPI 5 or MPICH, or use transport = 'p2p'"
)


@dataclass
class Connector:
    """Makes a worker's channels. Not collective; the servers must enter MPI meanwhile.

    Attributes:
        worker: Index of the worker.
        name: Name of the worker in messages.
        transport: "auto", "shm", "rma", "p2p" or "local".
        token: Token of the job.
        window: Window over the servers' regions; None: no window.
        gets_need_target: Gets through it wait until the server makes MPI calls.
        p2p_comm: Communicator of workers and servers whose tags only p2p.py and p2p_service.py use.
        n_workers: Number of workers of the job.
        n_tables: Number of tables of the job.
        checksums: True if records within a node have checksums, and segments that are known to have
            arrived. Records over a network always have them.
        oversubscribed: True if the node has more ranks than cores.
        timeout_s: Seconds until a server that takes no message counts as stalled.
        guard: `guard(what)` is a context in which a call that never returns ends the process.
        idle: Called while a message waits to be taken.
        gate: The gate of this process.
        generation: Generation of this launch's records.
        notes: Why a faster transport is not used, by reason: a sentence for users about the first pair, and
            the number of pairs.
    """

    worker: int
    name: str
    transport: str
    token: str
    window: MPI.Win | None
    gets_need_target: bool
    p2p_comm: MPI.Intracomm
    n_workers: int
    n_tables: int
    checksums: bool
    oversubscribed: bool
    timeout_s: float
    guard: Guard
    idle: Callable[[], object]
    gate: Gate
    generation: int = 0
    notes: dict[str, tuple[str, int]] = field(default_factory=dict)

    def connect(
        self, server: int, server_name: str, rank: int, same_node: bool, layout: _native.Layout
    ) -> Channel:
        """Return the channel to one server, by the transport asked for or the fastest that works.

        Args:
            server: Index of the server.
            server_name: Name of the server in messages.
            rank: Rank of the server in `p2p_comm` and in the window.
            same_node: True if the server runs on this node.
            layout: Layout of the server's region.

        Raises:
            TransportError: The transport asked for cannot connect this pair.
        """
        pair = f"{self.name} and {server_name}"
        if self.transport == "local":
            raise TransportError("transport = 'local' is for one rank; use 'auto'")
        if self.transport in ("auto", "shm"):
            channel = self._by_memory(server, pair, same_node, layout)
            if channel is not None:
                return channel
        if self.transport in ("auto", "rma"):
            channel = self._by_window(server, pair, rank, layout)
            if channel is not None:
                return channel
        return self._remote(self._messages(rank), rank, layout)

    def _by_memory(
        self, server: int, pair: str, same_node: bool, layout: _native.Layout
    ) -> Channel | None:
        """Return a channel by shared memory; in mode "auto" None, with a note, if that does not work."""
        forced = self.transport == "shm"
        if not same_node:
            if forced:
                raise TransportError(
                    f"transport = 'shm', but {pair} are on different nodes; use 'auto' or 'rma'"
                )
            return None
        try:
            memory = attach(self.token, f"s{server}", layout.tables_offset)
            if not self._is_ours(memory.view(0, _HEADER_BYTES, False), server, layout):
                raise RegionError(
                    f"the region of server {server} in /dev/shm belongs to another job"
                )
        except RegionError as error:
            if forced:
                raise TransportError(
                    f"transport = 'shm' between {pair}: {error}; use transport = 'auto' (containers on one "
                    "node share memory with --ipc=host)"
                ) from None
            self._note("memory", f"no shared memory between {pair}: {error}")
            return None
        writer = _native.RingWriter(
            memory,
            layout.mailbox_offset(self.worker),
            layout.geometry,
            self.worker,
            self.generation,
            self.checksums,
            self.n_tables,
        )
        return ShmChannel(memory, layout, writer, self.n_workers, self.oversubscribed)

    def _by_window(
        self, server: int, pair: str, rank: int, layout: _native.Layout
    ) -> Channel | None:
        """Return a channel by the window; in mode "auto" None, with a note, if that does not work."""
        forced = self.transport == "rma"
        if self.window is None:
            if forced:
                raise TransportError(f"transport = 'rma' between {pair}: {NO_WINDOW}")
            self._note("window", f"no window between {pair}: {NO_WINDOW}")
            return None
        # Read the region's header through the window, to see that one-sided access works for this pair.
        messages = self._messages(rank)
        memory = RmaMemory(self.window, messages, rank, self.guard, self.gets_need_target)
        header = np.zeros(_HEADER_BYTES, np.uint8)
        try:
            memory.get(0, header)
            memory.flush()
            works = self._is_ours(header, server, layout)
        except MPI.Exception:
            works = False
        if not works:
            text = f"a test read through the window between {pair} failed"
            if forced:
                raise TransportError(f"transport = 'rma': {text}; use transport = 'p2p'")
            self._note("read", text)
            return None
        return self._remote(memory, rank, layout)

    def _note(self, reason: str, sentence: str) -> None:
        first, n = self.notes.get(reason, (sentence, 0))
        self.notes[reason] = (first, n + 1)

    def _messages(self, rank: int) -> P2pMemory:
        return P2pMemory(self.p2p_comm, rank, self.timeout_s, self.idle)

    def _remote(self, memory: RemoteMemory, rank: int, layout: _native.Layout) -> Channel:
        question = Question(self.p2p_comm, rank, layout.geometry.answer_bytes)
        writer = self._writer_of(layout)
        return RemoteChannel(
            memory,
            question,
            layout,
            self.worker,
            self.n_workers,
            writer,
            self.checksums,
            self.gate,
        )

    def _is_ours(
        self,
        header: np.ndarray[tuple[int], np.dtype[np.uint8]],
        server: int,
        layout: _native.Layout,
    ) -> bool:
        low, high = token_words(self.token)
        return _native.region_header_matches(header, layout, 0, server, low, high)

    def _writer_of(
        self, layout: _native.Layout
    ) -> Callable[[_native.SharedMemory], _native.RingWriter]:
        def make(mirror: _native.SharedMemory) -> _native.RingWriter:
            return _native.RingWriter(
                mirror, 0, layout.geometry, self.worker, self.generation, True, self.n_tables
            )

        return make
