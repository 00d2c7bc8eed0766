"""The ranks of a job: their nodes, their roles, and how they agree on errors at start-up."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from mpi4py import MPI

from mpips import errors
from mpips.errors import MpipsError, StallError
from mpips.mpi.attendance import Attendance
from mpips.mpi.exchange import deliver, exchange
from mpips.mpi.roles import Assignment, assign
from mpips.mpi.siblings import process_state
from mpips.mpi.signals import interruption_behind
from mpips.mpi.topology import Topology, find_topology
from mpips.mpi.watchdog import Watchdog
from mpips.rundir.directory import Supervised
from mpips.rundir.files import RankPlace
from mpips.transport.gate import Gate
from mpips.transport.region import is_persistent, new_token, unlink_job

Value = TypeVar("Value")


class Cluster:
    """A communicator of its own with a role for every rank. Its construction is collective and blocking.

    Attributes:
        comm: Duplicate of the given communicator; owned by the cluster.
        token: Part of the names of this job's regions in /dev/shm; equal on all ranks.
        watchdog: Bounds blocking calls of this rank.
        gate: Says which thread of this process may call MPI.
        topology: Nodes of the ranks.
        assignment: Roles of the ranks.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        n_servers: int | None,
        timeout_s: float,
        run: Supervised | None = None,
    ) -> None:
        """Find the ranks that share a node, and assign roles. Collective over `comm`, blocking.

        Args:
            comm: Communicator of the job's ranks.
            n_servers: Number of servers; None: the default for this number of ranks.
            timeout_s: Time limit of every wait for other ranks, seconds.
            run: The supervised run to which this launch belongs; None: there is no supervisor.

        Raises:
            ConfigError: The number of servers does not fit the number of ranks (on every rank).
        """
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._run = run
        self.token = new_token() if run is None else run.token
        self.gate = Gate()
        self.watchdog = Watchdog(f"rank {self.rank}", timeout_s, self.clean_shared_memory)
        self.watchdog.start()
        self._given, self._timeout_s = comm, timeout_s
        meeting = "the beginning, where all ranks meet"
        try:
            first = Attendance(comm, timeout_s, self._late_name, self._give_up)
            self.comm, request = comm.Idup()
            first.wait(request, meeting)
            self._attendance = Attendance(self.comm, timeout_s, self._late_name, self._give_up)
            with self.watchdog.guard("start-up, where ranks of a node find each other,"):
                self.topology: Topology = find_topology(self.comm, self._waiting(meeting))
            self.token = exchange(self.comm, self.token, self._waiting(meeting))[0]
            t = self.topology
            self.assignment: Assignment = assign(t.node_of, t.node_names, n_servers)
        except BaseException as error:
            self._leave(error)
            raise

    def __enter__(self) -> Cluster:
        """Enter a block that uses the cluster; its end is collective unless an error ends it on one rank."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close the cluster."""
        self._leave(error)

    @property
    def is_scheduler(self) -> bool:
        """True on the scheduler's rank."""
        return self.rank == self.assignment.scheduler

    @property
    def server(self) -> int | None:
        """This rank's server index, or None."""
        return self.assignment.server_of.get(self.rank)

    @property
    def worker(self) -> int | None:
        """This rank's worker index, or None."""
        return self.assignment.worker_of.get(self.rank)

    @property
    def local_worker(self) -> int:
        """This worker's place among the workers of its node, from 0."""
        return self.assignment.local_worker(self.rank)

    @property
    def places(self) -> list[RankPlace]:
        """Role, host and process of every rank, by rank."""
        a, pids = self.assignment, self.topology.pids
        return [
            RankPlace(rank=r, role=a.roles_of(r), host=a.node_names[a.node_of[r]], pid=pids[r])
            for r in range(self.size)
        ]

    def name_of(self, rank: int) -> str:
        """Return the name of a rank for errors: role, rank and host."""
        a = self.assignment
        return f"{a.roles_of(rank)} (rank {rank} on {a.node_names[a.node_of[rank]]})"

    def agree(self, what: str, work: Callable[[], Value], lengthy: bool = False) -> list[Value]:
        """Run `work` on every rank and return the results of all ranks. Collective, blocking; start-up only.

        An error on any rank is raised on every rank, so that no rank waits for one that has failed.

        Args:
            what: Names this step in the error of a start-up that hangs.
            work: Returns a value that msgpack can encode.
            lengthy: True if `work` may take longer than the job's timeout, for example to read files.
                It must not call MPI then.

        Returns:
            The result of each rank, by rank.

        Raises:
            MpipsError: The error of the lowest rank that failed; it names the rank unless all ranks failed
                alike.
        """
        cause: Exception | None = None
        watched = self._attendance.lengthy(self._show_heartbeat) if lengthy else nullcontext()
        try:
            with watched:
                mine: dict[str, Any] = {"value": work()}
        except MpipsError as error:
            mine = {"error": str(error), "kind": type(error).__name__}
        except MemoryError as error:
            mine = {"error": f"out of memory while {what}: {error}", "kind": "CapabilityError"}
        except Exception as error:
            if (interruption := interruption_behind(error)) is not None:
                raise interruption from None
            text = "".join(traceback.format_exception(error)).rstrip()
            mine = {"error": f"{type(error).__name__}: {error}\n{text}", "kind": "MpipsError"}
            cause = error
        # Raise the same error on all ranks: that of the lowest rank that failed.
        rows = exchange(self.comm, mine, self._waiting(what, lengthy))
        failed = [(r, row) for r, row in enumerate(rows) if "error" in row]
        if not failed:
            return [row["value"] for row in rows]
        rank, row = failed[0]
        same = len({r["error"] for _, r in failed}) == 1 and len(failed) > 1
        prefix = "" if same else f"{self.name_of(rank)}: "
        kind = getattr(errors, row["kind"], MpipsError)
        raise kind(prefix + row["error"]) from cause

    @property
    def n_cores(self) -> int:
        """This rank's share of its node's cores, at least 1."""
        t = self.topology
        node = t.node_of[self.rank]
        return max(1, t.cores[node] // t.node_of.count(node))

    def lengthy(self) -> AbstractContextManager[None]:
        """Allow the block to take longer than the job's timeout. Not collective; start-up only.

        Other ranks wait meanwhile in `agree(..., lengthy=True)`. The block must not call MPI, and must use
        the processor now and then.
        """
        return self._attendance.lengthy(self._show_heartbeat)

    def deliver(self, what: str, values: Mapping[int, Any]) -> dict[int, Any]:
        """Send a value to each of some ranks. Collective, blocking; start-up only.

        Args:
            what: Names this step in the error of a start-up that hangs.
            values: Values that msgpack can encode, by receiver.

        Returns:
            The values that were sent to this rank, by sender.
        """
        return deliver(self.comm, values, self._waiting(what))

    def complete(self, what: str, request: MPI.Request) -> None:
        """Wait for a message between two ranks. Blocking; start-up only, between two collectives.

        Args:
            what: Names this step in the error of a start-up that hangs.
            request: The message's request.
        """
        self._attendance.wait(request, what)

    def duplicate(self, what: str) -> MPI.Intracomm:
        """Return a duplicate of the communicator, owned by the caller. Collective, blocking; start-up only.

        Args:
            what: Names this step in the error of a start-up that hangs.
        """
        comm, request = self.comm.Idup()
        self._attendance.wait(request, what)
        return comm

    def arrive(
        self,
        what: str,
        phase: str = "start-up",
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait until all ranks have called this. Collective, blocking; start-up and shutdown only.

        Does not return if a rank does not call it within the job's timeout: this process then prints the
        name of that rank and exits with code 124.

        Args:
            what: Names this step in the error.
            phase: Names the phase of the job in the error.
            meanwhile: Called while this rank waits; must not block.
        """
        self._attendance.wait(self.comm.Ibarrier(), what, phase=phase, meanwhile=meanwhile)

    def _waiting(self, what: str, lengthy: bool = False) -> Callable[[MPI.Request], None]:
        return lambda request: self._attendance.wait(request, what, lengthy)

    def _late_name(self, rank: int) -> str:
        """Return the name of a late rank for errors; before roles are assigned, its number only."""
        if not hasattr(self, "assignment"):
            return f"rank {rank}"
        t, name = self.topology, self.name_of(rank)
        here = t.node_of[rank] == t.node_of[self.rank]
        state = process_state(t.pids[rank]) if here else ""
        return f"{name}, pid {t.pids[rank]}{state and ', ' + state}"

    def _give_up(self, message: str, late: int) -> NoReturn:
        """End this process without the other ranks: with a late rank they cannot agree on an error."""
        who = self.name_of(self.rank) if hasattr(self, "assignment") else f"rank {self.rank}"
        # Files of the run directory number ranks as in COMM_WORLD.
        group, world = self._given.Get_group(), MPI.COMM_WORLD.Get_group()
        about = MPI.Group.Translate_ranks(group, [late], world)[0]
        self.watchdog.leave(f"{who}: {message}", about if about >= 0 else late)

    def clean_shared_memory(self) -> None:
        """Remove this job's files from /dev/shm of this node. Makes no MPI call.

        Persistent shared memory stays, because the next launch of the run may recover from it.
        """
        if not is_persistent(self.token):
            unlink_job(self.token)

    def ignore_signals(self) -> None:
        """Ignore SIGTERM and SIGINT from here on, because this rank is about to exit by itself."""
        self.watchdog.stop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)

    def abort(self, code: int) -> None:
        """End all ranks by MPI_Abort with this exit code. Does not return."""
        self.clean_shared_memory()
        self.comm.Abort(code)

    def close(self) -> None:
        """Free the communicator and stop the watchdog. Collective; call it only when every rank does."""
        with self.watchdog.guard("freeing the communicator"):
            self.comm.Free()
        self.watchdog.stop()

    def _leave(self, error: BaseException | None) -> None:
        """Close the cluster if every rank does: at the end, or with an error on which all ranks agreed."""
        if isinstance(error, StallError):
            # Exit without a collective call: other ranks do not know of this rank's StallError.
            self.watchdog.leave(str(error), self.rank)
        if error is None or isinstance(error, MpipsError):
            self.close()
        else:
            self.watchdog.stop()

    def _show_heartbeat(self) -> None:
        """Show the supervisor, if there is one, that the start-up makes progress."""
        if self._run is not None:
            self._run.show_heartbeat()
