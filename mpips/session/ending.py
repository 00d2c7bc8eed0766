"""The end of a rank in a job that fails or is told to end: messages, clean-up, exit code.

Only the scheduler prints. Other ranks send it their error, and print the error themselves if it does not end
the job. Shared-memory files that outlive a launch remain for the next launch.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from mpips.checkpoint.start import newest_name
from mpips.errors import LeavingError, MpipsError, ProtocolError, RecoveryError, ReplayError
from mpips.mpi import failure_report, launch
from mpips.mpi.signals import TerminatedError
from mpips.process.patience import Patience
from mpips.recovery.memory import refuse_memory
from mpips.scheduler.job_failure import JobFailure
from mpips.scheduler.own_worker import OwnWorker
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.mpi.cluster import Cluster
    from mpips.mpi.control import Client
    from mpips.mpi.signals import SignalRequests
    from mpips.rundir.directory import Supervised
    from mpips.scheduler.scheduler import Scheduler
    from mpips.transport.region import Regions

_PARTING_S = 5.0  # until all ranks have received the request to end
_LINGER_S = 0.5  # until the others have left the barrier: MPI fails in ranks that lose a peer


class OwnEnding:
    """The end of a job of one rank that fails: the process may go on, so the error is raised to its program.

    The counterpart of Ending, whose methods do not return.
    """

    def __init__(self, folder: Path | None, signal_requests: SignalRequests) -> None:
        """Do nothing yet; see Ending."""
        self._folder = folder
        self._signal_requests = signal_requests

    def die(self, error: BaseException) -> None:
        """Print which signal interrupts the job, if one does, and the checkpoint that is there."""
        if isinstance(error, TerminatedError | KeyboardInterrupt):
            code = error.code if isinstance(error, TerminatedError) else 130
            self._signal_requests.say_end(code, newest_name(self._folder))

    def fail(
        self, error: BaseException, client: Client | OwnWorker, scheduler: Scheduler | None
    ) -> None:
        """Do nothing: the error is raised."""


class Ending:
    """The end of this rank. `die` and `fail` do not return."""

    def __init__(
        self,
        cluster: Cluster,
        regions: Regions,
        folder: Path | None,
        signal_requests: SignalRequests,
        run: Supervised | None = None,
    ) -> None:
        """Do nothing yet.

        Args:
            cluster: All ranks.
            regions: Shared-memory files of this rank.
            folder: Folder of the run's checkpoints; None: no checkpoints.
            signal_requests: Requests by signals to this process.
            run: The run whose memory outlives this launch; None: no memory does.
        """
        self._run = run
        self._cluster = cluster
        self._regions = regions
        self.folder = folder
        self._signal_requests = signal_requests

    def die(self, error: BaseException) -> None:
        """Clean up and exit at once, without MPI, after an interrupt or a request to end."""
        self._regions.leave()
        self._cluster.clean_shared_memory()
        given = error.code if isinstance(error, SystemExit) else 130
        code = given if isinstance(given, int) else 1
        if self._cluster.is_scheduler:
            self._signal_requests.say_end(code, newest_name(self.folder))
        sys.stdout.flush()
        sys.stderr.flush()
        failure_report.write(
            kind=type(error).__name__,
            message=f"ended with code {code}",
            exit_code=code,
            role=self._cluster.assignment.roles_of(self._cluster.rank),
            secondary=code > 128,
        )
        os._exit(code)

    def fail(
        self, error: BaseException, client: Client | OwnWorker, scheduler: Scheduler | None
    ) -> None:
        """Let the error be printed once and the job be ended. Does not return."""
        if isinstance(error, LeavingError):
            self._leave_together(error, scheduler)
        self._regions.leave()
        self._cluster.clean_shared_memory()
        message, code = self._verdict(error)
        self._refuse_memory(error, message)
        self._report(error, code, client)
        if scheduler is None and not isinstance(client, OwnWorker):
            client.fail(message, code, patience_s=3.0)
        launch.print_error(message)
        self._cluster.abort(code)

    def _refuse_memory(self, error: BaseException, message: str) -> None:
        """Let the next launch start from the checkpoint if this one has found an error in its memory."""
        if self._run is None or not isinstance(error, ProtocolError | RecoveryError | ReplayError):
            return
        try:
            refuse_memory(self._run, message.partition(";")[0])
        except OSError as failure:
            say(
                f"mpips: warning: {self._run.folder.path} cannot be written ({failure.strerror}), so the "
                "next attempt continues in the same memory"
            )

    def _leave_together(self, error: LeavingError, scheduler: Scheduler | None) -> None:
        """Exit together with all ranks, since a launcher ends all ranks when one has left. Does not return.

        The checkpoint is durable already, so only the clean-up is left. A rank that computes for long
        receives the request late; the others do not wait for it.
        """
        self._cluster.ignore_signals()
        self._regions.leave()
        self._cluster.clean_shared_memory()
        kind = failure_report.EXCHANGED if error.in_memory else failure_report.LEAVING
        failure_report.write(kind=kind, message=str(error), exit_code=error.exit_code)
        if scheduler is not None:
            say(f"mpips: leaving: {error}")
            launch.explain_launcher()
            scheduler.send_leave(str(error), error.in_memory)
        together = self._come_together()
        sys.stdout.flush()
        if not together:
            self._cluster.abort(error.exit_code)
        time.sleep(_LINGER_S)
        os._exit(error.exit_code)

    def _come_together(self) -> bool:
        """Wait for all ranks; False if one is late. A rank that is gone had seen all of them here."""
        from mpi4py import MPI

        wait = Patience(_PARTING_S)
        try:
            request = self._cluster.comm.Ibarrier()
            while not request.Test():
                if wait.is_over:
                    return False
                time.sleep(0.001)
        except MPI.Exception:
            return True
        return True

    def _report(self, error: BaseException, code: int, client: Client | OwnWorker) -> None:
        fields = {**failure_report.fields_of(error), "exit_code": code}
        about = self._cluster.rank
        if isinstance(error, JobFailure):
            # A rank that failed has written its own report, unless it went silent.
            about = error.rank
            fields |= {"secondary": not error.silent, "traceback": ""}
            fields["kind"] = "silent" if error.silent else "Failure"
        else:
            fields |= {"state": client.state, "clock": client.clock}
        failure_report.write(about=about, role=self._cluster.assignment.roles_of(about), **fields)

    def _verdict(self, error: BaseException) -> tuple[str, int]:
        from mpi4py import MPI

        if isinstance(error, JobFailure):
            return str(error), error.exit_code
        who = self._cluster.name_of(self._cluster.rank)
        if isinstance(error, MpipsError):
            return f"{who}: {error}", error.exit_code
        if isinstance(error, MemoryError) and self._cluster.worker is None:
            # On a worker the traceback shows which line of the program allocated.
            return (
                f"{who}: out of memory: {error}; use smaller tables or fewer ranks per node (see "
                "`mpips plan`)",
                1,
            )
        text = "".join(traceback.format_exception(error)).rstrip()
        if isinstance(error, MPI.Exception):
            return f"{who}: MPI failed: {error.Get_error_string()}\n{text}", 1
        return f"{who} raised {type(error).__name__}: {error}\n{text}", 1
