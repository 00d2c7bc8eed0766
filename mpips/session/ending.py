"""How a rank leaves a job that does not end by itself: what it says, what it removes, with which code.

Only the scheduler prints; others tell it, and print themselves if it does not answer. Segments whose names
outlive a launch stay for the next one.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from mpi4py import MPI

from mpips.checkpoint.start import newest_name
from mpips.errors import LeavingError, MpipsError, ProtocolError, RecoveryError, ReplayError
from mpips.mpi import failure_report, launch
from mpips.mpi.cluster import Cluster
from mpips.mpi.control import Client
from mpips.mpi.signals import SignalRequests
from mpips.recovery.memory import refuse_memory
from mpips.rundir.directory import Supervised
from mpips.scheduler.scheduler import JobFailure, Scheduler
from mpips.transport.region import Regions

_PARTING_S = 5.0  # for all ranks to hear that the job ends by request
_LINGER_S = 0.5  # for the others to see that all have heard: MPI fails them when a rank is gone


class Ending:
    """This rank's last words and acts. Its methods do not return.

    Attributes:
        signal_requests: What signals have asked for.
    """

    def __init__(
        self,
        cluster: Cluster,
        regions: Regions,
        folder: Path | None,
        run: Supervised | None = None,
    ) -> None:
        """Nothing happens yet.

        Args:
            cluster: All ranks.
            regions: The segments of this rank.
            folder: Of the run's checkpoints, if there are any.
            run: The run whose memory outlives this launch; None: no memory does.
        """
        self._run = run
        self._cluster = cluster
        self._regions = regions
        self.folder = folder
        self.signal_requests = SignalRequests(False)

    def die(self, error: BaseException) -> None:
        """Interrupted or told to end: clean up and leave at once, without MPI."""
        self._regions.leave()
        self._cluster.last_rites()
        given = error.code if isinstance(error, SystemExit) else 130
        code = given if isinstance(given, int) else 1
        if self._cluster.is_scheduler:
            self.signal_requests.say_end(code, newest_name(self.folder))
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

    def fail(self, error: BaseException, client: Client, scheduler: Scheduler | None) -> None:
        """Get the error printed once and the job ended. Does not return."""
        if isinstance(error, LeavingError):
            self._part(error, scheduler)
        self._regions.leave()
        self._cluster.last_rites()
        message, code = self._verdict(error)
        self._refuse_memory(error, message)
        self._speak(error, code, client)
        if scheduler is None:
            client.fail(message, code, patience_s=3.0)
        launch.print_error(message)
        self._cluster.abort(code)

    def _refuse_memory(self, error: BaseException, message: str) -> None:
        """Let the next launch start from the checkpoint if this one found its memory wrong."""
        if self._run is None or not isinstance(error, ProtocolError | RecoveryError | ReplayError):
            return
        try:
            refuse_memory(self._run, message.partition(";")[0])
        except OSError as failure:
            print(
                f"mpips: warning: {self._run.folder.path}: cannot be written to ({failure.strerror}), so "
                "the next attempt goes on in the same memory",
                file=sys.stderr,
                flush=True,
            )

    def _part(self, error: LeavingError, scheduler: Scheduler | None) -> None:
        """Leave when everybody is about to, since a launcher ends all ranks when one has left.

        What had to be written is durable, and what comes last here is the cleaning. Whoever computes for
        long hears of it late, and is not waited for. Does not return.
        """
        self._cluster.ignore_signals()
        self._regions.leave()
        self._cluster.last_rites()
        failure_report.write(
            kind=failure_report.LEAVING, message=str(error), exit_code=error.exit_code
        )
        if scheduler is not None:
            print(f"mpips: leaving: {error}", file=sys.stderr, flush=True)
            launch.explain_launcher()
            scheduler.say_leave(str(error))
        together = self._come_together()
        sys.stdout.flush()
        if not together:
            self._cluster.abort(error.exit_code)
        time.sleep(_LINGER_S)
        os._exit(error.exit_code)

    def _come_together(self) -> bool:
        """Whether all ranks have come here in time, or one has gone already, for it had seen them all."""
        deadline = time.monotonic() + _PARTING_S
        try:
            request = self._cluster.comm.Ibarrier()
            while not request.Test():
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.001)
        except MPI.Exception:
            return True
        return True

    def _speak(self, error: BaseException, code: int, client: Client) -> None:
        words = {**failure_report.fields_of(error), "exit_code": code}
        about = self._cluster.rank
        if isinstance(error, JobFailure):
            # Whoever failed has spoken for itself, unless it is silent.
            about = error.rank
            words |= {"secondary": not error.silent, "traceback": ""}
            words["kind"] = "silent" if error.silent else "Failure"
        else:
            words |= {"state": client.state, "clock": client.clock}
        failure_report.write(about=about, role=self._cluster.assignment.roles_of(about), **words)

    def _verdict(self, error: BaseException) -> tuple[str, int]:
        if isinstance(error, JobFailure):
            return str(error), error.exit_code
        who = self._cluster.name_of(self._cluster.rank)
        if isinstance(error, MpipsError):
            return f"{who}: {error}", error.exit_code
        if isinstance(error, MemoryError) and self._cluster.worker is None:
            # Elsewhere the traceback tells which line of the user's asked for it.
            return f"{who}: out of memory: {error}", 1
        text = "".join(traceback.format_exception(error)).rstrip()
        if isinstance(error, MPI.Exception):
            return f"{who}: MPI failed: {error.Get_error_string()}\n{text}", 1
        return f"{who} raised {type(error).__name__}: {error}\n{text}", 1
