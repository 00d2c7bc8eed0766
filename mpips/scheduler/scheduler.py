"""The scheduler: hears every rank's heartbeat, collects what workers gather, ends the job.

It never spins: between polls it sleeps. Where a job has two ranks only, the server's loop polls it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from mpips.errors import ProtocolError, StallError
from mpips.mpi.control import Endpoint
from mpips.mpi.messages import (
    Agreed,
    Ask,
    Bye,
    Contribution,
    Done,
    Evaluated,
    Failure,
    Gathered,
    Heartbeat,
    Leave,
    Message,
    Pong,
    Report,
    Saved,
    Stop,
    Taken,
    ToServer,
    Waits,
)
from mpips.mpi.roles import Assignment
from mpips.mpi.siblings import process_state
from mpips.scheduler.rank_table import RankTable
from mpips.snapshot.coordinator import Coordinator

_SUSPECT_SHARE = 0.7  # of the timeout: silent this long, when another is called stalled

OnReport = Callable[[int, Report], None]
OnLook = Callable[[dict[int, int]], None]


class JobFailure(Exception):
    """What ends the job: a sentence and an exit code."""

    def __init__(self, message: str, exit_code: int, rank: int, silent: bool = False) -> None:
        """The sentence names the rank that failed; `silent`: it did not say so itself."""
        super().__init__(message)
        self.exit_code = exit_code
        self.rank = rank
        self.silent = silent


class Scheduler:
    """State of the job as the scheduler knows it. Not blocking; `poll` drives it."""

    def __init__(
        self,
        endpoint: Endpoint,
        assignment: Assignment,
        pids: list[int],
        timeout_s: float,
        on_report: OnReport | None,
        rank_table: RankTable | None = None,
        visible: Collection[int] = (),
    ) -> None:
        """`pids` by rank; `on_report` shows progress; `rank_table` hears all heartbeats; `visible`: the ranks
        whose processes can be looked at from here.

        Attributes that may be set: `coordinator`, where there are checkpoints; `on_cut`, where messages
        about cuts go to the server on this rank; `signalled`, see mpips.mpi.control.Client;
        `on_look`, which gets the workers' clocks at every poll.
        """
        self._endpoint = endpoint
        self._assignment = assignment
        self._pids = pids
        self._timeout_s = timeout_s
        self._on_report = on_report
        self._rank_table = rank_table
        self._visible = frozenset(visible)
        self.on_look: OnLook | None = None
        self._watched = {*assignment.servers, *assignment.workers} - {assignment.scheduler}
        now = time.monotonic()
        self._last_seen = dict.fromkeys(self._watched, now)
        self._states = dict.fromkeys(self._watched, ("starting", 0))
        self._parts: dict[str, dict[int, bytes]] = {}
        self._statistics: dict[int, msgspec.Raw] = {}
        self._stop_sent = False
        self._last_look = now
        self._work = {"messages": 0, "polls": 0}
        self.coordinator: Coordinator | None = None
        self.on_cut: Callable[[ToServer], None] | None = None
        self.signalled: Callable[[], Ask | None] = lambda: None
        self.finished = False
        self.summary: bytes = b"{}"

    def poll(self) -> bool:
        """Take messages and look for silent ranks; True if anything arrived.

        Raises:
            JobFailure: A rank failed or has gone silent.
            LeavingError: The checkpoint after which the job was to end is durable.
        """
        messages = self._endpoint.receive()
        self._work["messages"] += len(messages)
        self._work["polls"] += 1
        now = time.monotonic()
        for source, message in messages:
            self._last_seen[source] = now
            self._take(source, message)
        # Time in which this process itself was stopped says nothing about the others.
        if now - self._last_look > self._timeout_s / 2:
            self._last_seen = dict.fromkeys(self._last_seen, now)
        self._last_look = now
        self._look_for_silence(now)
        self._conduct()
        if self._rank_table is not None:
            self._rank_table.look()
        if self.on_look is not None:
            self.on_look(self.clocks)
        return bool(messages)

    def _conduct(self) -> None:
        """Begin checkpoints; end the job when workers and the last of them are done."""
        ask = self.signalled()
        if self.coordinator is not None:
            if ask is not None:
                self.coordinator.ask(ask)
            self.coordinator.poll()
        all_done = all(w in self._statistics for w in self._assignment.workers)
        if all_done and not self._stop_sent and not (self.coordinator and self.coordinator.busy):
            self._stop_sent = True
            for server in self._others(self._assignment.servers):
                self._endpoint.send(server, Stop())

    def tell_worker(self, worker: int, message: Message) -> None:
        """Send a worker a message; returns at once."""
        self._endpoint.send(self._assignment.workers[worker], message)

    def tell_servers(self, message: ToServer) -> None:
        """Send all servers a message; returns at once."""
        for server in self._others(self._assignment.servers):
            self._endpoint.send(server, message)
        if self.on_cut is not None:
            self.on_cut(message)

    def take_cut(self, server: int, message: Message) -> None:
        """What a server says of a cut.

        Raises:
            LeavingError: The checkpoint after which the job was to end is durable.
        """
        assert self.coordinator is not None
        if isinstance(message, Taken):
            self.coordinator.taken(server, message)
        elif isinstance(message, Saved):
            self.coordinator.saved(server, message)

    def run(self) -> None:
        """Poll until the job is over; sleeps between polls, longer when nothing happens."""
        pause = 0.001
        while not self.finished:
            pause = 0.001 if self.poll() else min(pause * 1.5, 0.02)
            time.sleep(pause)

    @property
    def clocks(self) -> dict[int, int]:
        """The last clock heard of every worker, by its rank."""
        return {rank: self._states[rank][1] for rank in self._assignment.workers}

    @property
    def workers_done(self) -> bool:
        """True when every worker has finished."""
        return self._stop_sent

    def take_own(self, rank: int, statistics: bytes) -> None:
        """The statistics of the server on the scheduler's own rank (jobs of two ranks)."""
        self._take_done(rank, Done(statistics))

    def _take(self, source: int, message: object) -> None:
        if isinstance(message, Heartbeat):
            self._states[source] = (message.state, message.clock)
            if self._rank_table is not None:
                self._rank_table.hear(source, message)
            if self.coordinator is not None and source in self._assignment.workers:
                self.coordinator.hear(self._assignment.workers.index(source), message.clock)
            self._endpoint.send(source, Pong())
        elif isinstance(message, Report):
            self._states[source] = (self._states[source][0], message.clock)
            if self._on_report is not None:
                self._on_report(self._assignment.workers.index(source), message)
        elif isinstance(message, Evaluated):
            if self._rank_table is not None:
                self._rank_table.evaluated(message)
        elif isinstance(message, Contribution):
            self._gather(source, message)
        elif isinstance(message, Done):
            self._take_done(source, message)
        elif isinstance(message, Failure):
            raise JobFailure(message.message, message.exit_code, source)
        elif isinstance(message, Ask):
            if self.coordinator is not None:
                self.coordinator.ask(message.across(time.monotonic()))
        elif isinstance(message, Agreed) and self.coordinator is not None:
            self.coordinator.agreed(self._assignment.workers.index(source), message)
        elif isinstance(message, Waits) and self.coordinator is not None:
            self.coordinator.waits(self._assignment.workers.index(source), message)
        elif isinstance(message, Taken | Saved):
            self.take_cut(self._assignment.servers.index(source), message)
        else:
            raise ProtocolError(f"rank {source} sent an unexpected {type(message).__name__}")

    def _gather(self, source: int, part: Contribution) -> None:
        parts = self._parts.setdefault(part.name, {})
        parts[source] = part.payload
        workers = self._assignment.workers
        if len(parts) < len(workers):
            return
        whole = Gathered(part.name, [parts[w] for w in workers])
        for worker in workers if part.everyone else workers[:1]:
            self._endpoint.send(worker, whole)
        del self._parts[part.name]

    def _take_done(self, source: int, done: Done) -> None:
        self._statistics[source] = msgspec.Raw(done.statistics)
        self._watched.discard(source)
        if self.coordinator is not None and source in self._assignment.workers:
            self.coordinator.worker_done(self._assignment.workers.index(source))
        everyone = {*self._assignment.servers, *self._assignment.workers}
        if everyone <= self._statistics.keys():
            self._say_bye()

    def _say_bye(self) -> None:
        a = self._assignment
        self.summary = msgspec.json.encode(
            {
                "servers": [self._statistics[r] for r in a.servers],
                "workers": [self._statistics[r] for r in a.workers],
                "scheduler": self._scheduler_statistics(),
            }
        )
        for rank in self._others((*a.servers, *a.workers)):
            self._endpoint.send(rank, Bye(self.summary))
        self.finished = True

    def say_leave(self, why: str) -> None:
        """Tell everybody that the job ends here; returns at once."""
        a = self._assignment
        for rank in self._others((*a.servers, *a.workers)):
            self._endpoint.send(rank, Leave(why))

    def _scheduler_statistics(self) -> dict[str, Any]:
        cuts = {} if self.coordinator is None else {"checkpoints": self.coordinator.statistics}
        return {**self._work, **cuts}

    def _others(self, ranks: tuple[int, ...]) -> list[int]:
        return [rank for rank in ranks if rank != self._assignment.scheduler]

    def _look_for_silence(self, now: float) -> None:
        silent = {rank: now - self._last_seen[rank] for rank in self._watched}
        if max(silent.values(), default=0.0) <= self._timeout_s:
            return
        # A worker that is stuck in MPI because of a stopped server is silent, too. Processes that the
        # kernel calls stopped come first, then servers, which wait for nobody.
        suspects = [rank for rank, s in silent.items() if s > _SUSPECT_SHARE * self._timeout_s]
        suspects.sort(key=lambda r: (not self._seen_as(r), r not in self._assignment.servers, r))
        message = self._describe(suspects[0], silent[suspects[0]])
        if len(suspects) > 1:
            others = ", ".join(self._assignment.roles_of(rank) for rank in suspects[1:])
            message += f"; silent as well: {others}"
        raise JobFailure(message, StallError.exit_code, suspects[0], silent=True)

    def _seen_as(self, rank: int) -> str:
        """What the kernel says of a rank's process, where it can be looked at; "" otherwise."""
        return process_state(self._pids[rank]) if rank in self._visible else ""

    def _describe(self, rank: int, silent_s: float) -> str:
        a = self._assignment
        state, clock = self._states[rank]
        node = a.node_of[rank]
        seen = self._seen_as(rank)
        return (
            f"{a.roles_of(rank)} (rank {rank} on {a.node_names[node]}, pid {self._pids[rank]}"
            f"{', ' + seen if seen else ''}) has sent no heartbeat for {silent_s:.1f} s; "
            f"it was {state} at clock {clock}"
        )
