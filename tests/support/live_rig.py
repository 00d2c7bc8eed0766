"""The servers of a run at work in this process, as `mpips serve` finds them: no workers, no MPI."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from mpips.inference.live import LiveRun
from mpips.model.placement import place
from mpips.model.table import Table
from mpips.server.look_ups import answering
from mpips.server.server import Server
from mpips.transport.region import Regions


class LiveJob:
    """The servers of one attempt. A thread drains them while the block of `at_work` runs.

    Attributes:
        servers: The servers.
        lock: Is held by the thread while it drains; hold it to change tables, or to stop all answers.
    """

    def __init__(
        self, token: str, tables: Sequence[Table], n_servers: int = 1, generation: int = 0
    ) -> None:
        self.tables = list(tables)
        self.generation = generation
        self.placement = place(self.tables, n_servers, 1, 4, 4096)
        self.regions = Regions(token, shared=True, supervised=True)
        self.lock = threading.Lock()
        self.servers = []
        for i in range(n_servers):
            server = Server(i, self.tables, self.placement, self.regions, 0, True, None)
            self.servers.append(server)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[LiveJob]:
        """Answer look-ups during the block; then remove all memory of the job."""
        stop = threading.Event()

        def drain() -> None:
            while not stop.is_set():
                with self.lock:
                    for server in self.servers:
                        server.core.drain(0.0005, 50)

        thread = threading.Thread(target=drain)
        try:
            with contextlib.ExitStack() as blocks:
                for server in self.servers:
                    parts = (self.tables, self.placement, self.regions, self.generation)
                    blocks.enter_context(answering(server, *parts))
                thread.start()
                try:
                    yield self
                finally:
                    stop.set()
                    thread.join(60)
        finally:
            self.regions.unlink()

    def set_rows(self, name: str, keys: Sequence[int], values: np.ndarray) -> None:
        """Give rows their values, at the servers that own them."""
        index = [table.name for table in self.tables].index(name)
        of = self.tables[index].stored_keys(np.array(keys, np.int64))
        owners = self.placement.partitioners[name].owners(of)
        with self.lock:
            for server in self.servers:
                mine = owners == server.index
                if mine.any():
                    part = np.ascontiguousarray(values[mine], np.float32)
                    server.core.set_rows(index, of[mine], part)

    def set_dense(self, name: str, values: np.ndarray) -> None:
        """Give a dense table its values."""
        index = [table.name for table in self.tables].index(name)
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        with self.lock:
            for part in self.placement.dense[name]:
                self.servers[part.server].core.set_dense(index, flat[part.start : part.stop])


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def live_run(token: str) -> tuple[LiveRun, Clock]:
    """Return the memory of a run as a client sees it, and the clock of its searches."""
    clock = Clock()
    return LiveRun(token, clock), clock
