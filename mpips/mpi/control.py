"""Control messages: non-blocking messages between every rank and the scheduler.

All of this runs in the main thread of each rank, called from that rank's own loop. The only call that blocks
is the receipt of a message that has begun to arrive, and a guard of the watchdog bounds it. A rank that has
sent a heartbeat and receives nothing from the scheduler for `timeout_s` ends with a StallError.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import msgspec
from mpi4py import MPI

from mpips.errors import LeavingError, ProtocolError, StallError
from mpips.mpi.clock_offset import ClockOffset
from mpips.mpi.intervals import heartbeat_interval_s, report_interval_s
from mpips.mpi.messages import (
    Abandon,
    Ask,
    Attachment,
    BestProgress,
    Bye,
    Commit,
    Done,
    Evaluated,
    Failure,
    Heartbeat,
    Leave,
    Message,
    Pong,
    Propose,
    Report,
    ReportDetails,
    Stop,
    ToServer,
    ToWorker,
    Trace,
    TraceEnd,
    Write,
    decode,
    encode,
)
from mpips.mpi.pending import PendingCut
from mpips.mpi.reports import PendingReport
from mpips.mpi.role_work import RoleWork
from mpips.process.patience import Patience

TAG = 21
POLL_INTERVAL_S = 0.005  # s, least time between two looks for messages


class Endpoint:
    """Sends and receives control messages on a communicator of its own."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        guard: Callable[[str], AbstractContextManager[None]],
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        """Use `comm` for control messages; nothing else may use TAG on it.

        Args:
            comm: Communicator of the job's ranks.
            guard: `guard(what)` bounds a call that may never return; see mpips.mpi.watchdog.
            enter: Called before MPI; see mpips.transport.gate.
        """
        self.comm = comm
        self._enter = enter
        self._guard = guard
        self._status = MPI.Status()
        self._sends: deque[tuple[MPI.Request, bytes]] = deque()

    def send(self, rank: int, message: Message) -> None:
        """Start to send a message to a rank; return at once."""
        self.send_to_all((rank,), message)

    def send_to_all(self, ranks: Iterable[int], message: Message) -> None:
        """Start to send one message to each of these ranks; return at once. It is encoded once."""
        data = encode(message)
        self._enter()
        for rank in ranks:
            self._sends.append((self.comm.Isend([data, MPI.BYTE], rank, TAG), data))

    def receive(self) -> list[tuple[int, Message]]:
        """Return all messages that have arrived, each with the rank of its sender.

        Calls MPI; blocks only until the rest of a message has arrived whose beginning is here.
        """
        self._enter()
        arrived: list[tuple[int, Message]] = []
        while self.comm.Iprobe(MPI.ANY_SOURCE, TAG, self._status):
            source = self._status.Get_source()
            buffer = bytearray(self._status.Get_count(MPI.BYTE))
            with self._guard(f"receiving a message from rank {source}"):
                self.comm.Recv([buffer, MPI.BYTE], source, TAG)
            arrived.append((source, decode(bytes(buffer))))
        while self._sends and self._sends[0][0].Test():
            self._sends.popleft()
        return arrived

    def receive_none(self) -> None:
        """Complete sends without receiving anything."""
        self._enter()
        while self._sends and self._sends[0][0].Test():
            self._sends.popleft()


class Client:
    """The control messages of one worker or server. Main thread only.

    Attributes:
        stopped: True once the scheduler has sent Stop.
        final_statistics: Statistics of the job as JSON, from the scheduler's Bye; None before it. See
            `mpips.scheduler.job_statistics` for their form.
        state: Current activity of this rank, as heartbeats show it.
        clock: Clock of this rank, as heartbeats show it.
        cut: The next cut of a worker.
        offset: Difference between this rank's clock and the scheduler's.
        speed, fastest: See mpips.worker.control_plane.ControlPlane.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        scheduler: int,
        where: str,
        timeout_s: float,
        signalled: Callable[[], Ask | None] = lambda: None,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        """Make the client of one rank; not collective.

        Args:
            endpoint: Sends and receives the messages.
            scheduler: Rank of the scheduler.
            where: Host name of the scheduler's node, for errors.
            timeout_s: Time that the scheduler has to answer a heartbeat, seconds.
            signalled: Returns what signals have requested since the last call; see mpips.mpi.signals.
            rank: This rank.
            n_ranks: Number of ranks of the job, from which intervals of messages follow.
        """
        self._endpoint = endpoint
        self._scheduler = scheduler
        self._where = where
        self._timeout_s = timeout_s
        self._beat_s = heartbeat_interval_s(n_ranks, timeout_s)
        # The first interval is shorter, by rank, so that the ranks send at different times from then on.
        self._first_beat_s = self._beat_s * (rank + 1) / n_ranks
        self._next_poll = self._next_beat = 0.0
        self._reports = PendingReport(report_interval_s(n_ranks), self._send)
        self._own_statistics = b"{}"
        self._waiting: Patience | None = None  # for the answer to a heartbeat
        self.speed = self.fastest = 0.0
        self.stopped = False
        self.final_statistics: bytes | None = None
        self.state = "starting"
        self.clock = 0
        self.cut = PendingCut()
        self._signalled = signalled
        self._work = RoleWork()
        self.offset = ClockOffset()
        self._beat_ns = 0  # monotonic time of the last heartbeat, ns
        self._held: Trace | None = None  # an order that has come before the role's work

    def begin(self, work: RoleWork) -> None:
        """Serve the work of this rank's role from here on; at its end that of a new RoleWork."""
        self._work = work
        if self._held is not None and work.take_trace is not None:
            order, self._held = self._held, None
            work.take_trace(order)

    def hurry(self) -> None:
        """Make the next `poll` look for messages, however short the time since the last one."""
        self._next_poll = 0.0

    def poll(self) -> None:
        """Receive messages, and send a heartbeat when one is due. Does not block; cheap, so call it often.

        Raises:
            StallError: The scheduler has not answered a heartbeat for `timeout_s`.
            ProtocolError: The scheduler sent a message of a wrong type.
            LeavingError: The scheduler ended the job after a requested checkpoint.
        """
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_INTERVAL_S
        for _, message in self._endpoint.receive():
            self._take(message)
        # Pass on what signals have requested.
        ask = self._signalled()
        if ask is not None:
            self.tell(ask)
        self._reports.poll(now)
        # Send a heartbeat. The scheduler answers each; its silence counts from the first unanswered one.
        if now >= self._next_beat and self.final_statistics is None:
            beat = self.heartbeat()
            self._beat_ns = time.monotonic_ns()
            self._send(beat)
            self._next_beat = now + (self._beat_s if self._next_beat else self._first_beat_s)
            self._work.each_heartbeat()
            if self._waiting is None:
                self._waiting = Patience(self._timeout_s)
        if self._waiting is not None and self._waiting.is_over:
            raise StallError(
                f"the scheduler (rank {self._scheduler} on {self._where}) has not answered for "
                f"{self._waiting.age_s:.1f} s; look at that rank's log and host"
            )

    def beat(self) -> None:
        """Send a heartbeat now, before a call that may last long: others then know what this rank does.

        Raises:
            StallError, ProtocolError, LeavingError: As `poll`.
        """
        self._next_beat = time.monotonic()
        self.hurry()
        self.poll()

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat of this moment."""
        work = self._work
        return Heartbeat(work.activity() or self.state, self.clock, work.figures(), self.speed)

    def _take(self, message: Message) -> None:
        self._waiting = None
        if isinstance(message, Stop):
            self.stopped = True
        elif isinstance(message, Bye):
            self.final_statistics = self._statistics_in(message)
        elif isinstance(message, Leave):
            raise LeavingError(message.why, message.in_memory)
        elif isinstance(message, Propose | Commit | Abandon | Write | Attachment | BestProgress):
            self._take_cut(message)
        elif isinstance(message, Trace | TraceEnd):
            self._take_trace(message)
        elif isinstance(message, Pong):
            self.offset.add(self._beat_ns, message.at_ns, time.monotonic_ns())
            self.fastest = message.fastest
        else:
            raise ProtocolError(
                f"the scheduler sent an unexpected {type(message).__name__}; run the same mpips on all "
                "ranks (check by `mpips doctor --mpi`)"
            )

    def _take_trace(self, message: Trace | TraceEnd) -> None:
        if self._work.take_trace is not None:
            self._work.take_trace(message)
        else:
            self._held = message if isinstance(message, Trace) else None

    def _take_cut(self, message: ToServer | ToWorker) -> None:
        if self._work.take_cut is not None and not isinstance(message, Propose | BestProgress):
            self._work.take_cut(message)
        elif not isinstance(message, Write | Attachment):
            answer = self.cut.take(message, self.clock)
            if answer is not None:
                self.tell(answer)

    def _statistics_in(self, message: Bye) -> bytes:
        """Return the statistics of the job; where they are totals, with the statistics of this rank."""
        if message.complete:
            return message.statistics
        found = msgspec.json.decode(message.statistics, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({**found, "own": msgspec.Raw(self._own_statistics)})

    def _send(self, message: Message) -> None:
        self._endpoint.send(self._scheduler, message)

    def tell(self, message: Message) -> None:
        """Send a message to the scheduler; return at once."""
        if isinstance(message, Ask):
            message = message.across(time.monotonic())
        if isinstance(message, Evaluated):
            self._reports.flush()  # the progress that the evaluation is about comes first
        self._send(message)

    def report(
        self,
        epoch: int,
        step: int,
        samples: int,
        loss_sum: float,
        details: ReportDetails | None = None,
    ) -> None:
        """Add to this worker's progress, which is sent to the scheduler when it is due; return at once."""
        self._reports.add(Report(epoch, step, samples, loss_sum, self.clock, details))

    def done(self, statistics: bytes) -> None:
        """Send the scheduler that this rank has finished, with its statistics as JSON."""
        self._own_statistics = statistics
        self._reports.flush()
        self._send(Done(statistics))

    def fail(self, message: str, exit_code: int, patience_s: float) -> None:
        """Report an error of this rank to the scheduler, which then ends the job. Blocking.

        Args:
            message: The error.
            exit_code: Exit code of the job.
            patience_s: Seconds that the scheduler has; the call returns after them if the job still runs.
        """
        self._reports.flush()
        self._send(Failure(message, exit_code))
        wait = Patience(patience_s)
        while not wait.is_over:
            self._endpoint.receive_none()
            time.sleep(0.01)
