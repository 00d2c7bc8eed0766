"""The scheduler: it receives every rank's heartbeat and ends the job.

All state is in one process and one thread: messages arrive on `Endpoint`, `poll` processes them, and nothing
blocks. The scheduler never spins: it sleeps between two polls. In a job of two ranks it has no loop of its
own; the loop of the server on the same rank polls it. In a job of one rank the worker's polls drive it, and
messages are calls (own_worker.py).

Ranks send heartbeats, and the scheduler answers each. If a rank sends no message for the job's timeout, the
scheduler ends the job. Time during which the scheduler itself was stopped does not count.

A poll without messages takes the same time for any number of ranks, and so does each message. The times of
the last messages are compared only when the oldest known one could have reached the timeout: messages only
make them later, so no rank can have exceeded it before.

Order of the end: when all workers have sent their statistics and no cut is under way, the scheduler sends
Stop to the servers. When all servers have sent theirs, after the last checkpoint, it sends Bye to every rank:
with the statistics of all ranks to the first worker, with their totals to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from mpips.errors import ProtocolError, StallError
from mpips.mpi.messages import (
    Agreed,
    Ask,
    Attachment,
    Bye,
    Done,
    Evaluated,
    Failure,
    Heartbeat,
    Leave,
    Message,
    Pong,
    Report,
    SampleDigest,
    Saved,
    StepCount,
    Stop,
    Taken,
    ToServer,
    Waits,
)
from mpips.mpi.siblings import process_state
from mpips.process import patience
from mpips.scheduler.job_failure import JobFailure
from mpips.scheduler.job_statistics import JobStatistics
from mpips.scheduler.sample_digests import SampleDigests
from mpips.scheduler.step_counts import StepCounts
from mpips.snapshot.coordinator import Coordinator

if TYPE_CHECKING:
    from mpips.mpi.control import Endpoint
    from mpips.mpi.roles import Assignment
    from mpips.scheduler.own_worker import OwnWorker
    from mpips.scheduler.rank_table import RankTable

# Share of the timeout. Once a rank has exceeded the timeout, all that are silent for so long are suspects.
_SUSPECT_SHARE = 0.7
_MOST_NAMED = 16  # silent ranks that a message names
# s between two polls: after a message, the same per rank, its limit; and the limit while there are none
_PAUSE_S, _PAUSE_PER_RANK_S, _MOST_PAUSE_S = 0.001, 5e-6, 0.005
_IDLE_PAUSE_S = 0.02

OnReport = Callable[[int, Report], None]
OnPoll = Callable[[Coordinator | None, Mapping[int, int]], None]
ToOneWorker = Callable[[int, Message], None]
ToAllServers = Callable[[ToServer], None]
MakeCoordinator = Callable[[ToOneWorker, ToAllServers], Coordinator]


class Scheduler:
    """The state of the job on the scheduler's rank. Not thread-safe; `poll` drives it and does not block.

    Attributes:
        finished: True once all ranks have sent their statistics.
        summary: Statistics of all ranks as JSON, once `finished`.
        clocks: The clock of every worker at its last message, by rank.
    """

    def __init__(
        self,
        endpoint: Endpoint | OwnWorker,
        assignment: Assignment,
        pids: list[int],
        timeout_s: float,
        on_report: OnReport | None,
        rank_table: RankTable | None = None,
        visible: Collection[int] = (),
        signalled: Callable[[], Ask | None] = lambda: None,
        make_coordinator: MakeCoordinator | None = None,
        on_poll: OnPoll | None = None,
    ) -> None:
        """Begin to measure the silence of all ranks.

        Args:
            endpoint: Sends and receives the control messages.
            assignment: Roles of all ranks.
            pids: Process id of every rank, by rank.
            timeout_s: Seconds without a message after which a rank counts as failed.
            on_report: Called with worker index and message for every progress report; None: nothing is.
            rank_table: Receives all heartbeats and evaluations; None: nothing does.
            visible: Ranks whose processes this process can see in /proc.
            signalled: Returns what signals to this process have requested since the last call; see
                mpips.mpi.signals.
            make_coordinator: Makes the coordinator, which decides on cuts, from the two functions that send
                to a worker and to all servers; None: there are no checkpoints.
            on_poll: Called at every poll with the coordinator and the workers' clocks, by rank; None:
                nothing is called.
        """
        self._endpoint = endpoint
        self._assignment = assignment
        self._pids = pids
        self._timeout_s = timeout_s
        self._on_report = on_report
        self._rank_table = rank_table
        self._visible = frozenset(visible)
        # Ranks from which messages must come, and the running s of the last one of each.
        self._watched = {*assignment.servers, *assignment.workers} - {assignment.scheduler}
        now = patience.running_s()
        self._last_seen = dict.fromkeys(self._watched, now)
        # Running s before which no rank can have been silent for too long.
        self._next_check = now + timeout_s
        ranks = (*assignment.servers, *assignment.workers)
        self._states = dict.fromkeys(ranks, ("starting", 0))  # activity and clock, by rank
        self._speeds: dict[int, float] = {}  # inner steps per second of workers, by rank
        self._statistics = JobStatistics()
        self._step_counts = StepCounts(len(assignment.workers))
        self._sample_digests = SampleDigests(len(assignment.workers))
        # Ranks of the workers that still work, and of servers whose statistics have not come yet.
        self._working = set(assignment.workers)
        self._serving = set(assignment.servers)
        self._stop_sent = False
        self._last_poll = now
        self._work = {"messages": 0, "polls": 0}
        self._signalled = signalled
        self._on_poll = on_poll
        self._own_server: Callable[[ToServer], None] | None = None
        self._coordinator = (
            make_coordinator(self.send_to_worker, self.send_to_servers)
            if make_coordinator
            else None
        )
        self.finished = False
        self.summary: bytes = b"{}"
        self.clocks: dict[int, int] = dict.fromkeys(assignment.workers, 0)

    def join_server(self, take: Callable[[ToServer], None]) -> None:
        """Send messages about cuts also to the server on this rank, by a call of `take`. Called once."""
        self._own_server = take

    def leave_server(self) -> None:
        """Undo `join_server`, if it was called, when all is saved."""
        self._own_server = None

    def poll(self) -> bool:
        """Process all messages that have arrived, then check for silent ranks. Does not block.

        Returns:
            True if a message had arrived.

        Raises:
            JobFailure: A rank has failed, or has sent nothing for `timeout_s`.
            LeavingError: The checkpoint after which the job was to end is durable.
            ConfigError: Workers have made different numbers of steps at the same place, or steps with
                different hyperparameters, or read different streams.
            ProtocolError: A rank sent a message of a wrong type.
        """
        messages = self._endpoint.receive()
        self._work["messages"] += len(messages)
        self._work["polls"] += 1
        now = patience.running_s()
        for source, message in messages:
            self._last_seen[source] = now
            self.take(source, message)
        # Measure silence anew if a call has blocked this process meanwhile.
        if now - self._last_poll > self._timeout_s / 2:
            self._last_seen = dict.fromkeys(self._last_seen, now)
        self._last_poll = now
        if now > self._next_check:
            self._check_silence(now)
        self._advance()
        if self._rank_table is not None:
            self._rank_table.look()
        if self._on_poll is not None:
            self._on_poll(self._coordinator, self.clocks)
        return bool(messages)

    def poll_for(self, rank: int, state: str, clock: int) -> None:
        """Store activity and clock of the worker on this rank, and poll. Raises as `poll`."""
        self._note_state(rank, state, clock)
        self.poll()

    def _advance(self) -> None:
        """Let the coordinator begin checkpoints; stop the servers when all workers have finished.

        Servers are not stopped while a cut is under way, because they need their loops to write it.
        """
        ask = self._signalled()
        if self._coordinator is not None:
            if ask is not None:
                self._coordinator.ask(ask)
            self._coordinator.poll()
        if self._working or self._stop_sent:
            return
        if self._coordinator is None or not self._coordinator.busy:
            self._stop_sent = True
            for server in self._others(self._assignment.servers):
                self._endpoint.send(server, Stop())

    def send_to_worker(self, worker: int, message: Message) -> None:
        """Send a message to the worker of this index; return at once."""
        self._endpoint.send(self._assignment.workers[worker], message)

    def send_to_servers(self, message: ToServer) -> None:
        """Send a message to all servers, also to the one on this rank; return at once."""
        for server in self._others(self._assignment.servers):
            self._endpoint.send(server, message)
        if self._own_server is not None:
            self._own_server(message)

    def _pass_on(self, message: Attachment) -> None:
        """Send server 0 a part of what checkpoints contain beside the tables."""
        server = self._assignment.servers[0]
        if server != self._assignment.scheduler:
            self._endpoint.send(server, message)
        elif self._own_server is not None:
            self._own_server(message)

    def take_cut(self, server: int, message: Message) -> None:
        """Pass a server's message about a cut to the coordinator.

        Args:
            server: Index of the server.
            message: Taken or Saved.

        Raises:
            LeavingError: The checkpoint after which the job was to end is durable.
        """
        assert self._coordinator is not None
        if isinstance(message, Taken):
            self._coordinator.taken(server, message)
        elif isinstance(message, Saved):
            self._coordinator.saved(server, message)

    def run(self) -> None:
        """Poll until the job is over; sleep between polls, longer while no messages arrive.

        With many ranks some message has nearly always arrived, so the shortest sleep grows with their number,
        up to the interval at which the ranks look for messages.

        Raises:
            JobFailure, LeavingError, ConfigError, ProtocolError: See `poll`.
        """
        shortest = min(max(_PAUSE_S, len(self._pids) * _PAUSE_PER_RANK_S), _MOST_PAUSE_S)
        pause = shortest
        while not self.finished:
            pause = shortest if self.poll() else min(pause * 1.5, _IDLE_PAUSE_S)
            time.sleep(pause)

    @property
    def workers_done(self) -> bool:
        """True once every worker has finished and the servers are to stop."""
        return self._stop_sent

    def take_own(self, rank: int, statistics: bytes) -> None:
        """Store the statistics of the server on the scheduler's own rank, in a job of one or two ranks.

        Args:
            rank: That rank.
            statistics: Its statistics as JSON.
        """
        self._server_done(rank, statistics)

    def take(self, source: int, message: object) -> None:
        """Process one message from a rank; from the scheduler's own rank it is one of the worker there.

        Raises:
            JobFailure, ConfigError, ProtocolError, LeavingError: See `poll`.
        """
        a = self._assignment
        if isinstance(message, Heartbeat):
            self._note_state(source, message.state, message.clock)
            if self._rank_table is not None:
                self._rank_table.note_heartbeat(source, message)
            if message.speed:
                self._speeds[source] = message.speed
            fastest = max(self._speeds.values(), default=0.0)
            self._endpoint.send(source, Pong(time.monotonic_ns(), fastest))
        elif isinstance(message, Report):
            self._note_state(source, self._states[source][0], message.clock)
            if self._on_report is not None:
                self._on_report(a.worker_of[source], message)
        elif isinstance(message, Evaluated):
            if self._rank_table is not None:
                self._rank_table.evaluated(message)
        elif isinstance(message, StepCount):
            self._step_counts.note(a.worker_of[source], message.place, message.steps, message.rates)
        elif isinstance(message, SampleDigest):
            self._sample_digests.note(a.worker_of[source], message.place, message.digest)
        elif isinstance(message, Done):
            self._take_done(source, message)
        elif isinstance(message, Failure):
            raise JobFailure(message.message, message.exit_code, source)
        elif isinstance(message, Ask):
            if self._coordinator is not None:
                self._coordinator.ask(message.across(time.monotonic()))
        elif isinstance(message, Agreed) and self._coordinator is not None:
            self._coordinator.agreed(a.worker_of[source], message)
        elif isinstance(message, Waits) and self._coordinator is not None:
            self._coordinator.waits(a.worker_of[source], message)
        elif isinstance(message, Taken | Saved):
            self.take_cut(a.server_of[source], message)
        elif isinstance(message, Attachment):
            self._pass_on(message)
        else:
            raise ProtocolError(
                f"rank {source} sent an unexpected {type(message).__name__}; run the same mpips on all ranks "
                "(check by `mpips doctor --mpi`)"
            )

    def _note_state(self, rank: int, state: str, clock: int) -> None:
        """Store the activity and, of a worker, the clock of a rank."""
        # A progress report may be older than the last heartbeat.
        clock = max(clock, self._states[rank][1])
        self._states[rank] = (state, clock)
        worker = self._assignment.worker_of.get(rank)
        if worker is not None:
            self.clocks[rank] = clock
            if self._coordinator is not None:
                self._coordinator.note_clock(worker, clock)

    def _take_done(self, source: int, done: Done) -> None:
        """Store the statistics of a rank that has finished; end the job when all have."""
        worker = self._assignment.worker_of.get(source)
        if worker is None:
            self._server_done(source, done.statistics)
            return
        self._watched.discard(source)
        self._working.discard(source)
        self._speeds.pop(source, None)
        self._statistics.add_worker(worker, done.statistics)
        if self._coordinator is not None:
            self._coordinator.worker_done(worker)
        self._end_if_done()

    def _server_done(self, rank: int, statistics: bytes) -> None:
        """Store the statistics of the server on a rank, which has saved; end the job when all have."""
        self._watched.discard(rank)
        self._serving.discard(rank)
        self._statistics.add_server(self._assignment.server_of[rank], statistics)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._working and not self._serving:
            self._send_bye()

    def _send_bye(self) -> None:
        """Send the statistics of all ranks to the first worker, and their totals to all other ranks."""
        a, own = self._assignment, self.statistics()
        self.summary = self._statistics.complete(own)
        others = self._others((*a.workers, *a.servers))
        self._endpoint.send_to_all(others[:1], Bye(self.summary, complete=True))
        self._endpoint.send_to_all(others[1:], Bye(self._statistics.brief(own)))
        self.finished = True

    def send_leave(self, why: str, in_memory: bool) -> None:
        """Send all ranks that the job ends after its last checkpoint; return at once.

        Args:
            why: Reason, for the error of each rank.
            in_memory: The checkpoint is in shared memory; see LeavingError.
        """
        a = self._assignment
        self._endpoint.send_to_all(self._others((*a.servers, *a.workers)), Leave(why, in_memory))

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the scheduler, by name."""
        cuts = {} if self._coordinator is None else {"checkpoints": self._coordinator.statistics}
        return {**self._work, **cuts}

    def _others(self, ranks: tuple[int, ...]) -> list[int]:
        """Return these ranks without the scheduler's."""
        return [rank for rank in ranks if rank != self._assignment.scheduler]

    def _check_silence(self, now: float) -> None:
        """Raise JobFailure if a rank has sent nothing for the timeout; else set the next check."""
        oldest = min((self._last_seen[rank] for rank in self._watched), default=now)
        self._next_check = oldest + self._timeout_s
        if not any(
            patience.is_over(self._last_seen[rank], self._timeout_s) for rank in self._watched
        ):
            return
        raise self._silence(now)

    def _silence(self, now: float) -> JobFailure:
        """Return the failure of the rank that explains the silence best, with the other silent ranks."""
        a = self._assignment
        silent = {rank: now - self._last_seen[rank] for rank in self._watched}
        # A worker that is blocked in MPI by a stopped server is silent, too. Name processes whose state
        # explains the silence first, then servers, because a server waits for no other rank.
        suspects = [rank for rank, s in silent.items() if s > _SUSPECT_SHARE * self._timeout_s]
        suspects.sort(key=lambda r: (not self._process_state(r), r not in a.server_of, r))
        message = self._describe(suspects[0], silent[suspects[0]])
        if len(suspects) > 1:
            others = ", ".join(a.roles_of(rank) for rank in suspects[1:_MOST_NAMED])
            more = len(suspects) - _MOST_NAMED
            message += f"; also silent: {others}" + (f" and {more} more" if more > 0 else "")
        message += (
            "; look at its process and host, or raise cluster.timeout_s if a step takes longer"
        )
        return JobFailure(message, StallError.exit_code, suspects[0], silent=True)

    def _process_state(self, rank: int) -> str:
        """Return the state of a rank's process if it is visible and explains silence ("stopped"), else ""."""
        return process_state(self._pids[rank]) if rank in self._visible else ""

    def _describe(self, rank: int, silent_s: float) -> str:
        """Return the message about a silent rank."""
        a = self._assignment
        state, clock = self._states[rank]
        node = a.node_of[rank]
        reason = self._process_state(rank)
        return (
            f"{a.roles_of(rank)} (rank {rank} on {a.node_names[node]}, pid {self._pids[rank]}"
            f"{', ' + reason if reason else ''}) has sent no heartbeat for {silent_s:.1f} s; "
            f"it was {state} at clock {clock}"
        )
