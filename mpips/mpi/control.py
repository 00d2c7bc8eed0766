"""The control plane: non-blocking messages between every rank and the scheduler.

All of it runs in the main thread of each rank, called from its own loop; nothing here blocks but the
receipt of a message that has begun to arrive, and a guard bounds that. A rank that hears nothing from
the scheduler for `timeout_s`, although it asked, ends with a StallError.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from mpi4py import MPI

from mpips.errors import LeavingError, ProtocolError, StallError
from mpips.mpi.messages import (
    Abandon,
    Ask,
    Bye,
    Commit,
    Contribution,
    Done,
    Failure,
    Figures,
    Gathered,
    Heartbeat,
    Leave,
    Message,
    Pong,
    Propose,
    Report,
    Stop,
    ToServer,
    Write,
    decode,
    encode,
)
from mpips.mpi.pending import PendingCut

TAG = 21
POLL_INTERVAL_S = 0.005


class Endpoint:
    """Sends and receives control messages on a communicator of its own."""

    def __init__(
        self, comm: MPI.Intracomm, guard: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """`comm` carries nothing else on this tag; `guard(what)` bounds a call that may not return."""
        self.comm = comm
        self._guard = guard
        self._status = MPI.Status()
        self._sends: deque[tuple[MPI.Request, bytes]] = deque()

    def send(self, rank: int, message: Message) -> None:
        """Start sending; returns at once."""
        data = encode(message)
        self._sends.append((self.comm.Isend([data, MPI.BYTE], rank, TAG), data))

    def receive(self) -> list[tuple[int, Message]]:
        """All messages that have arrived, with their ranks. Enters MPI; blocks only on the rest of a
        message whose beginning is here.
        """
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
        """Complete sends without looking at arrivals."""
        while self._sends and self._sends[0][0].Test():
            self._sends.popleft()


class Client:
    """A worker's or server's side of the control plane.

    Attributes:
        cut: A worker's cut that is still to come.
        on_cut: Where a server's messages about cuts go; None on workers.
        signalled: Tells what signals have asked for since the last call; see mpips.mpi.signals.
        figures: What this rank has counted, for its heartbeats. It is asked while the rank waits for
            anything, so it looks at nothing that may be under way.
        aside: What it does beside what `state` says, or "".
        beside: Called with each heartbeat; does short work that is due now and then.
    """

    def __init__(self, endpoint: Endpoint, scheduler: int, where: str, timeout_s: float) -> None:
        """`where` names the scheduler's node; `timeout_s` bounds its silence."""
        self._endpoint = endpoint
        self._scheduler = scheduler
        self._where = where
        self._timeout_s = timeout_s
        self._beat_s = min(1.0, timeout_s / 8)
        self._next_poll = self._next_beat = 0.0
        self._waiting_since: float | None = None
        self._gathered: dict[str, list[bytes]] = {}
        self.stopped = False
        self.final_statistics: bytes | None = None
        self.state = "starting"
        self.clock = 0
        self.cut = PendingCut()
        self.on_cut: Callable[[ToServer], None] | None = None
        self.signalled: Callable[[], Ask | None] = lambda: None
        self.figures: Callable[[], Figures | None] = lambda: None
        self.aside: Callable[[], str] = lambda: ""
        self.beside: Callable[[], None] = lambda: None

    def hurry(self) -> None:
        """Let the next `poll` look at once."""
        self._next_poll = 0.0

    def poll(self) -> None:
        """Take messages, give a heartbeat when it is time. Cheap; call it often.

        Raises:
            StallError: The scheduler has been silent for too long.
            ProtocolError: A message that the scheduler does not send.
            LeavingError: The job ends here, by request.
        """
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_INTERVAL_S
        for _, message in self._endpoint.receive():
            self._take(message)
        ask = self.signalled()
        if ask is not None:
            self.tell(ask)
        if now >= self._next_beat and self.final_statistics is None:
            self._endpoint.send(self._scheduler, self.heartbeat())
            self._next_beat = now + self._beat_s
            self.beside()
            if self._waiting_since is None:
                self._waiting_since = now
        if self._waiting_since is not None and now - self._waiting_since > self._timeout_s:
            raise StallError(
                f"the scheduler (rank {self._scheduler} on {self._where}) has not answered for "
                f"{now - self._waiting_since:.1f} s"
            )

    def heartbeat(self) -> Heartbeat:
        """What this rank does now."""
        return Heartbeat(self.aside() or self.state, self.clock, self.figures())

    def _take(self, message: Message) -> None:
        self._waiting_since = None
        if isinstance(message, Gathered):
            self._gathered[message.name] = message.payloads
        elif isinstance(message, Stop):
            self.stopped = True
        elif isinstance(message, Bye):
            self.final_statistics = message.statistics
        elif isinstance(message, Leave):
            raise LeavingError(message.why)
        elif isinstance(message, Propose | Commit | Abandon | Write):
            self._take_cut(message)
        elif not isinstance(message, Pong):
            raise ProtocolError(f"the scheduler sent an unexpected {type(message).__name__}")

    def _take_cut(self, message: Propose | Commit | Abandon | Write) -> None:
        if self.on_cut is not None and not isinstance(message, Propose):
            self.on_cut(message)
        elif not isinstance(message, Write):
            answer = self.cut.take(message, self.clock)
            if answer is not None:
                self.tell(answer)

    def tell(self, message: Message) -> None:
        """Send the scheduler a message; returns at once."""
        if isinstance(message, Ask):
            message = message.across(time.monotonic())
        self._endpoint.send(self._scheduler, message)

    def contribute(self, name: str, payload: bytes, everyone: bool) -> None:
        """Give this worker's part of a gather; returns at once."""
        self._endpoint.send(self._scheduler, Contribution(name, payload, everyone))

    def take_gathered(self, name: str) -> list[bytes] | None:
        """All workers' parts if they are in."""
        return self._gathered.pop(name, None)

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Tell the scheduler of progress; returns at once."""
        self._endpoint.send(self._scheduler, Report(epoch, step, samples, loss_sum, self.clock))

    def done(self, statistics: bytes) -> None:
        """Say that this rank has finished its part."""
        self._endpoint.send(self._scheduler, Done(statistics))

    def fail(self, message: str, exit_code: int, patience_s: float) -> None:
        """Tell the scheduler that this rank cannot go on, and let it end the job.

        Returns after `patience_s` if the scheduler did not.
        """
        self._endpoint.send(self._scheduler, Failure(message, exit_code))
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            self._endpoint.receive_none()
            time.sleep(0.01)
