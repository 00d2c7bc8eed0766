"""Traces in a run directory: who asks for one, the files of the ranks, and the mark that it is complete.

    traces/NAME/request.json    asks for a trace; written by `mpips trace`, or by the scheduler at the
    start of an attempt (monitor.trace_steps); removing it gives the trace up, and
                                the scheduler removes it if its time is over before the trace has begun
    traces/NAME/rank-R.trace    events of one rank; written by that rank when its part has ended
    traces/NAME/index.json      the trace is complete; written by the scheduler, last of all

A file of a rank begins with one line of JSON (`TraceHead`), followed by the events as they lie in memory (see
native/src/trace/trace_ring.hpp). All files are written by a rename.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder, read_json, replace_json
from mpips.rundir.reading import DAMAGED, names_in, read_regular

EVENT = np.dtype(
    [
        ("begin_ns", "<u8"),
        ("end_ns", "<u8"),
        ("sequence", "<u8"),
        ("clock", "<u8"),
        ("kind", "<u2"),
        ("table", "<u2"),
        ("peer", "<u2"),
        ("unused", "<u2"),
    ]
)
Events = NDArray[Any]
PARTS_S = 30.0  # s after the order to end, within which ranks write their parts
_DEFAULT_S = 3600.0  # s, timeout of a trace that nobody waits for
_LONGEST_S = 1e9  # s; JSON has no infinity
_MOST_BYTES = 1 << 30  # bytes of the file of a rank, whose ring has a few MiB


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """request.json.

    Attributes:
        steps: Number of clocks of each worker to trace.
        time_s: Unix time of the request.
        timeout_s: Seconds after which all ranks end their parts, measured by the scheduler from its
            first read of the request on, because the hosts' clocks may differ.
    """

    steps: int
    time_s: float
    timeout_s: float = _DEFAULT_S


class TraceHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a file of a rank.

    Attributes:
        rank, role, host: As in RankPlace.
        clock_id: Ranks with the same text have the same monotonic clock.
        offset_ns: Number to add to the rank's clock to get the scheduler's, by the best round trip.
        error_ns: Greatest error of it; -1: there was no round trip.
        tables: Names of all tables, by index.
        dropped: Number of events that were overwritten because there were too many.
    """

    rank: int
    role: str
    host: str
    clock_id: str
    offset_ns: int
    error_ns: int
    tables: tuple[str, ...]
    dropped: int = 0


class TraceIndex(msgspec.Struct, frozen=True, kw_only=True):
    """index.json.

    Attributes:
        generation: Generation number of the traced attempt.
        steps: Number of clocks that were asked for.
        time_s: Unix time of the end.
        ranks: Ranks whose files are there.
        missing: Ranks that should have written a file and have not, because the job has ended, or because
            they could not or were late.
        late: The time of the request was over before all workers had done their steps.
    """

    generation: int
    steps: int
    time_s: float
    ranks: tuple[int, ...]
    missing: tuple[int, ...] = ()
    late: bool = False


class TraceFolder:
    """The files of one trace."""

    def __init__(self, run: RunFolder, name: str) -> None:
        """Take the folder of the trace `name`, which need not exist."""
        self.name = name
        self._within = run.path
        self.path = run.path / "traces" / name
        self.request_file = self.path / "request.json"
        self.index_file = self.path / "index.json"

    def rank_file(self, rank: int) -> Path:
        """Return the file of a rank."""
        return self.path / f"rank-{rank}.trace"

    def ask(self, steps: int, timeout_s: float = _DEFAULT_S) -> None:
        """Write the request.

        Args:
            steps: As in TraceRequest.
            timeout_s: As in TraceRequest.

        Raises:
            OSError: The folder cannot be written to.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        timeout_s = timeout_s if timeout_s < _LONGEST_S else _LONGEST_S
        request = TraceRequest(steps=steps, time_s=time.time(), timeout_s=timeout_s)
        replace_json(self.request_file, request)

    def request(self) -> TraceRequest | None:
        """Return the request; None if the file is missing or no request."""
        try:
            found = read_json(self.request_file, TraceRequest, self._within)
        except ConfigError:
            return None
        return found if found is not None and found.steps > 0 else None

    def index(self) -> TraceIndex | None:
        """Return the mark of a complete trace; None: it is not complete.

        Raises:
            ConfigError: It is damaged.
        """
        return read_json(self.index_file, TraceIndex, self._within)

    def clear(self) -> None:
        """Remove the files of ranks that an earlier attempt has written."""
        for path in self.path.glob("rank-*.trace"):
            with contextlib.suppress(OSError):
                path.unlink()

    def write(self, head: TraceHead, events: bytes) -> None:
        """Write the file of a rank.

        Raises:
            OSError: The folder cannot be written to, or the disk is full.
        """
        path = self.rank_file(head.rank)
        new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        try:
            with new.open("xb") as file:
                file.write(msgspec.json.encode(head) + b"\n")
                file.write(events)
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)

    def read(self, rank: int) -> tuple[TraceHead, Events]:
        """Return what a rank has written.

        Raises:
            ConfigError: The file is not there or damaged.
        """
        path = self.rank_file(rank)
        try:
            line, _, events = read_regular(path, _MOST_BYTES, self._within).partition(b"\n")
            head = msgspec.json.decode(line, type=TraceHead)
            found: Events = np.frombuffer(events, EVENT)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except (*DAMAGED, ValueError) as error:
            raise ConfigError(f"{path}: is damaged ({error}); trace the run again") from None
        return head, found


def traces(run: RunFolder) -> list[TraceFolder]:
    """Return all traces of a run, the first requested ones first."""
    found = []
    try:
        names = names_in(run.path / "traces", run.path)
    except OSError:
        return []
    for name in names:
        folder = TraceFolder(run, name)
        request = folder.request()
        if request is not None:
            found.append((request.time_s, folder.name, folder))
    return [folder for _, _, folder in sorted(found, key=lambda entry: entry[:2])]


def clock_id() -> str:
    """Return a text that is the same in all processes with this process's monotonic clock."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = os.uname().nodename
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        namespace = ""
    return f"{boot} {namespace}"
