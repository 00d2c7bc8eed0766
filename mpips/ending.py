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

from mpips.cluster import lastwords
from mpips.cluster.cluster import Cluster
from mpips.cluster.control import Client
from mpips.cluster.signals import Told
from mpips.errors import LeavingError, MpipsError
from mpips.saving import newest_name
from mpips.scheduler import JobFailure, Scheduler
from mpips.transport.region import Regions

_PARTING_S = 5.0  # for all ranks to hear that the job ends by request
_LINGER_S = 0.5  # for the others to see that all have heard: MPI fails them when a rank is gone


class Ending:
    """This rank's last words and acts. Its methods do not return.

    Attributes:
        told: What signals have asked for.
    """

    def __init__(self, cluster: Cluster, regions: Regions, folder: Path | None) -> None:
        """`folder`: of the run's checkpoints, if there are any."""
        self._cluster = cluster
        self._regions = regions
        self.folder = folder
        self.told = Told(False)

    def die(self, error: BaseException) -> None:
        """Interrupted or told to end: clean up and leave at once, without MPI."""
        self._regions.leave()
        self._cluster.last_rites()
        given = error.code if isinstance(error, SystemExit) else 130
        code = given if isinstance(given, int) else 1
        if self._cluster.is_scheduler:
            self.told.say_end(code, newest_name(self.folder))
        sys.stdout.flush()
        sys.stderr.flush()
        lastwords.speak(
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
        self._speak(error, code, client)
        if scheduler is None:
            client.fail(message, code, patience_s=3.0)
        print(f"mpips: error: {message}", file=sys.stderr, flush=True)
        self._cluster.abort(code)

    def _part(self, error: LeavingError, scheduler: Scheduler | None) -> None:
        """Leave when everybody is about to, since a launcher ends all ranks when one has left.

        What had to be written is durable, and what comes last here is the cleaning. Whoever computes for
        long hears of it late, and is not waited for. Does not return.
        """
        self._cluster.ignore_signals()
        self._regions.leave()
        self._cluster.last_rites()
        lastwords.speak(kind="Leaving", message=str(error), exit_code=error.exit_code)
        if scheduler is not None:
            print(f"mpips: leaving: {error}", file=sys.stderr, flush=True)
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
        words = {**lastwords.words_of(error), "exit_code": code}
        about = self._cluster.rank
        if isinstance(error, JobFailure):
            # Whoever failed has spoken for itself, unless it is silent.
            about = error.rank
            words |= {"secondary": not error.silent, "traceback": ""}
            words["kind"] = "silent" if error.silent else "Failure"
        else:
            words |= {"state": client.state, "clock": client.clock}
        lastwords.speak(about=about, role=self._cluster.assignment.roles_of(about), **words)

    def _verdict(self, error: BaseException) -> tuple[str, int]:
        if isinstance(error, JobFailure):
            return str(error), error.exit_code
        who = self._cluster.name_of(self._cluster.rank)
        if isinstance(error, MpipsError):
            return f"{who}: {error}", error.exit_code
        text = "".join(traceback.format_exception(error)).rstrip()
        if isinstance(error, MPI.Exception):
            return f"{who}: MPI failed: {error.Get_error_string()}\n{text}", 1
        return f"{who} raised {type(error).__name__}: {error}\n{text}", 1
