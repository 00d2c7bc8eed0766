"""Requests to the supervisor of a run, as files of its run directory.

`mpips stop` and `mpips checkpoint` write a file into the folder `requests`, by a rename. The supervisor reads
the folder about twice a second and removes each request that it has taken, so a request whose file is gone
has been received. A request names the supervisor that it is meant for: one that an ended supervisor left is
removed by the next one and has no effect.

A user who may write into the run directory may make a request; the files need no other protection.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.reading import DAMAGED, read_regular

# Why an attempt ends so that one of another size follows, from a checkpoint or from shared memory.
SCALE, SCALE_IN_MEMORY = "mpips scale", "mpips scale in memory"
BY_FILE = ", not shared memory: "  # before the reason, where shared memory was requested
Kind: TypeAlias = Literal["checkpoint", "stop", "scale"]


class JobSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a job.

    Attributes:
        ranks: Number of ranks.
        servers: Number of servers; 0: the job chooses it.
    """

    ranks: Annotated[int, msgspec.Meta(ge=1)]
    servers: Annotated[int, msgspec.Meta(ge=0)] = 0


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the folder `requests`.

    Attributes:
        kind: "checkpoint", as SIGUSR1 to the supervisor, "stop", as SIGTERM, or "scale".
        host: Host of the supervisor.
        pid: Process id of the supervisor.
        time_s: Unix time of the request, for people only.
        shape: The new size of the job, for "scale".
    """

    kind: Kind
    host: str
    pid: int
    time_s: float
    shape: JobSize | None = None


class RequestFolder:
    """The requests to a run."""

    def __init__(self, run: RunFolder) -> None:
        """Take the folder of `run`, which need not exist yet."""
        self._run = run
        self.path = run.path / "requests"

    def make(self, kind: Kind, shape: JobSize | None = None) -> Path:
        """Write a request to the supervisor that the lease names; return its file.

        Args:
            kind: See RunRequest.
            shape: See RunRequest.

        Raises:
            ConfigError: The run has no supervisor, or its directory cannot be written to.
        """
        lease = self._run.lease()
        if lease is None or lease.released:
            raise ConfigError(f"{self._run.path}: the run is not running, nothing takes a request")
        request = RunRequest(
            kind=kind, host=lease.host, pid=lease.pid, time_s=time.time(), shape=shape
        )
        # Names sort by time, so that requests are taken in their order.
        path = self.path / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
        try:
            self.path.mkdir(exist_ok=True)
            replace_json(path, request)
        except OSError as error:
            raise ConfigError(
                f"{self.path}: cannot be written: {error.strerror}; make the request as the owner of the run"
            ) from None
        return path

    def take(self, host: str, pid: int) -> list[RunRequest]:
        """Remove all requests; return those to the supervisor `pid` on `host`, the oldest first.

        A file that is not a request is also removed. One that cannot be removed is not taken: it would be
        taken
        again and again.
        """
        found: list[RunRequest] = []
        for path in sorted(self.path.glob("*.json")):
            request = None
            with contextlib.suppress(OSError, *DAMAGED):
                request = msgspec.json.decode(
                    read_regular(path, within=self._run.path), type=RunRequest
                )
            try:
                path.unlink()
            except OSError:
                continue
            if request is not None and (request.host, request.pid) == (host, pid):
                found.append(request)
        return found
