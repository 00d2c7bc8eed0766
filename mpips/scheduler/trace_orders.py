"""The scheduler's part in traces: it finds requests in the run directory and orders the ranks to record.

One trace at a time: the oldest request without a result. The workers end their parts by themselves, after the
number of clocks in the order. When the files of all workers are there, the servers are ordered to end. When
the servers' files are also there, the trace is complete. A request that is removed meanwhile is given up. An
attempt that begins while a request has no result begins that trace again.

No request blocks later ones for longer than its own timeout, even if the command that requested it was killed
or a rank cannot write its part: then all ranks are ordered to end, and the trace is completed with the parts
that are there PARTS_S later. A request whose time is over before its turn is removed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection

from mpips.mpi.messages import Trace, TraceEnd
from mpips.process.patience import running_s
from mpips.rundir.directory import Supervised, replace_json
from mpips.rundir.tracing import PARTS_S, TraceFolder, TraceIndex, TraceRequest, traces
from mpips.terminal.screen import say

_LOOK_S = 0.25  # s between two looks at the folder while a trace is under way
_IDLE_S = 1.0  # s, the same while there is none

Send = Callable[[int, Trace | TraceEnd], None]


class TraceOrders:
    """Orders the traces of one attempt. One per job, on the scheduler's rank; no method blocks for long."""

    def __init__(
        self,
        run: Supervised,
        workers: Collection[int],
        servers: Collection[int],
        send: Send,
        first_steps: int = 0,
        clock: Callable[[], float] = running_s,
    ) -> None:
        """Order nothing yet.

        Args:
            run: The run and this attempt of it.
            workers: Ranks of the workers.
            servers: Ranks of the servers; a rank may be both.
            send: Sends an order to a rank; returns at once.
            first_steps: Clocks to trace from the begin of the attempt on; 0: none.
            clock: Returns the running time of this process, seconds.
        """
        self._run = run
        self._workers, self._servers = set(workers), set(servers)
        self._send = send
        self._clock = clock
        self._next = 0.0  # monotonic s of the next look
        self._under_way: tuple[TraceFolder, TraceRequest] | None = None
        self._parts_by: float | None = (
            None  # monotonic s, after the order to end; None: not yet ordered
        )
        self._late = False  # the order to end came by the timeout
        self._failed: set[str] = set()  # traces whose index cannot be written, or that are given up
        self._seen: dict[
            str, float
        ] = {}  # monotonic s of the first look at a request without a result
        self._next_queue = 0.0  # monotonic s of the next look at all requests
        if first_steps:
            try:
                TraceFolder(run.folder, f"begin-{run.generation}").ask(first_steps)
            except OSError as error:
                self._warn(f"cannot be asked for: {error.strerror or error}")

    def _warn(self, what: str) -> None:
        say(f"mpips: warning: a trace {what}; training continues")

    def poll(self) -> None:
        """Look at the folder if it is time. Call it often."""
        now = self._clock()
        if now < self._next:
            return
        if now >= self._next_queue:
            self._next_queue = now + _IDLE_S
            waiting = self._waiting(now)
            if self._under_way is None and waiting:
                self._begin(waiting[0])
        if self._under_way is not None:
            self._look(now)
        self._next = now + (_IDLE_S if self._under_way is None else _LOOK_S)

    def _waiting(self, now: float) -> list[TraceFolder]:
        """Return the requests without a result, the oldest first; remove those whose time is over."""
        found = []
        for folder in traces(self._run.folder):
            request = folder.request()
            done = folder.index_file.exists() or folder.name in self._failed
            if request is None or done:
                continue
            seen = self._seen.setdefault(folder.name, now)
            is_under_way = self._under_way is not None and self._under_way[0].name == folder.name
            if is_under_way or now < seen + request.timeout_s:
                found.append(folder)
                continue
            self._failed.add(folder.name)
            with contextlib.suppress(OSError):
                folder.request_file.unlink()
        return found

    def _begin(self, folder: TraceFolder) -> None:
        """Begin a trace."""
        request = folder.request()
        if request is None:
            return
        folder.clear()
        self._under_way, self._parts_by, self._late = (folder, request), None, False
        for rank in sorted(self._workers | self._servers):
            self._send(rank, Trace(folder.name, request.steps))

    def _look(self, now: float) -> None:
        """Look whether the trace under way has ended."""
        assert self._under_way is not None
        folder, request = self._under_way
        everyone = self._workers | self._servers
        if folder.request() is None:
            self._end(everyone)
            self._under_way = None
            return
        if self._parts_by is None:
            self._late = now >= self._seen[folder.name] + request.timeout_s
            if self._missing(self._workers) and not self._late:
                return
            self._parts_by = now + PARTS_S
            self._end(self._missing(everyone) if self._late else self._servers - self._workers)
        if not self._missing(everyone) or now >= self._parts_by:
            self._complete()

    def _end(self, ranks: Collection[int]) -> None:
        """Order these ranks to end their parts of the trace under way."""
        assert self._under_way is not None
        for rank in sorted(ranks):
            self._send(rank, TraceEnd(self._under_way[0].name))

    def _missing(self, ranks: Collection[int]) -> set[int]:
        """Return those of these ranks whose files are not there."""
        assert self._under_way is not None
        folder = self._under_way[0]
        return {rank for rank in ranks if not folder.rank_file(rank).exists()}

    def _complete(self) -> None:
        """Write the index of the trace under way."""
        assert self._under_way is not None
        folder, request = self._under_way
        everyone = self._workers | self._servers
        missing = self._missing(everyone)
        index = TraceIndex(
            generation=self._run.generation,
            steps=request.steps,
            time_s=time.time(),
            ranks=tuple(sorted(everyone - missing)),
            missing=tuple(sorted(missing)),
            late=self._late,
        )
        try:
            replace_json(folder.index_file, index)
        except OSError as error:
            self._failed.add(folder.name)
            self._warn(f"({folder.name}) cannot be completed: {error.strerror or error}")
        self._under_way = None

    def close(self) -> None:
        """Complete the trace under way with the files that are there, after the end of all ranks."""
        if self._under_way is not None:
            self._complete()
