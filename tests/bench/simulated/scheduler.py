"""The real scheduler with imitated workers and servers: its processor time, its files, its last messages.

The imitated ranks send heartbeats and progress reports, encoded, in real time and at the intervals of a job
of this size. The scheduler decodes them and encodes its answers. At the end all ranks send their statistics.
If the scheduler cannot follow, the messages wait, so its time per second of the job may exceed one second.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from mpips.mpi.intervals import heartbeat_interval_s, report_interval_s
from mpips.mpi.messages import (
    Bye,
    Done,
    Figures,
    Heartbeat,
    Message,
    Report,
    Stop,
    decode,
    encode,
)
from mpips.mpi.roles import Assignment
from mpips.rundir.directory import RunFolder, Supervised, replace_json
from mpips.rundir.files import Lease, RankPlace, StartPoint
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import RunRecorder
from mpips.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from mpips.mpi.control import Endpoint

_TIMEOUT_S = 300.0  # s, the default of a job
_REPORTS_PER_S = 4.0  # of a worker of a job with few ranks; see mpips.training.epochs
_RANKS_PER_NODE = 48
_TABLES = ("dense", "rows")
_GOLDEN_RATIO = 0.6180339887498949
_BINS = 65  # of the histogram of staleness in the statistics of a table

_Due = tuple[float, int, bytes]  # seconds from the beginning, rank, encoded message


def measure(n_workers: int, n_servers: int, seconds: float = 4.0) -> dict[str, float]:
    """Return what a job of this size costs its scheduler. Blocks for about `seconds`, or more under load.

    Args:
        n_workers: Number of imitated workers.
        n_servers: Number of imitated servers.
        seconds: Seconds of the job for which messages are sent.

    Returns:
        `cpu_s_per_s`, seconds of processor time per second of the job, for messages and polls;
        `messages_per_s`, messages that the scheduler receives; `end_cpu_s`, processor time from the
        statistics of the first rank to the last Bye; `bye_bytes_per_rank`, mean size of Bye, and `bye_bytes`,
        their sum; `status_cpu_s_per_s` and `status_bytes_per_s`, time and bytes for the files of a
        supervised run.
    """
    assignment = _assign(n_workers, n_servers)
    rank_table = RankTable(_places(assignment))
    endpoint = ImitatedRanks(assignment, seconds)
    scheduler = Scheduler(
        cast("Endpoint", endpoint),
        assignment,
        [1] * (n_workers + n_servers + 1),
        _TIMEOUT_S,
        lambda worker, report: None,
        rank_table,
    )
    scheduler.run()
    end = time.thread_time()
    return {
        "cpu_s_per_s": (endpoint.ending_at - endpoint.begun_at) / seconds,
        "messages_per_s": endpoint.n_sent / seconds,
        "end_cpu_s": end - endpoint.ending_at,
        "bye_bytes_per_rank": endpoint.bye_bytes / (n_workers + n_servers),
        "bye_bytes": float(endpoint.bye_bytes),
        **_measure_files(assignment, rank_table),
    }


class ImitatedRanks:
    """The messages of all ranks but the scheduler; used in place of mpips.mpi.control.Endpoint.

    Attributes:
        n_sent: Number of heartbeats and reports that are sent in all.
        bye_bytes: Bytes of all Bye that the scheduler has sent.
        begun_at: Processor time at the first look for messages, seconds.
        ending_at: Processor time at which the scheduler has processed all heartbeats and reports, seconds.
    """

    def __init__(self, assignment: Assignment, seconds: float) -> None:
        """Encode all messages, so that it takes no time later.

        Args:
            assignment: Roles of the ranks.
            seconds: Seconds for which messages are sent.
        """
        self._assignment = assignment
        self._due = sorted(_messages(assignment, seconds))
        self._next = 0  # index of the next message
        self._begin = 0.0  # monotonic s
        self._ready: list[tuple[int, bytes]] = []  # statistics of ranks
        self.n_sent = len(self._due)
        self.bye_bytes = 0
        self.begun_at = self.ending_at = 0.0

    def receive(self) -> list[tuple[int, Message]]:
        """Return the messages that are due, and the workers' statistics when all have been returned."""
        now = time.monotonic()
        if not self.begun_at:
            self.begun_at, self._begin = time.thread_time(), now
        first = self._next
        while self._next < len(self._due) and self._due[self._next][0] <= now - self._begin:
            self._next += 1
        arrived = [(rank, decode(data)) for _, rank, data in self._due[first : self._next]]
        if first == len(self._due) and not self.ending_at:
            self.ending_at = time.thread_time()
            self._ready = [(r, _done_of_worker(w)) for w, r in enumerate(self._assignment.workers)]
        ready, self._ready = self._ready, []
        return arrived + [(rank, decode(data)) for rank, data in ready]

    def send(self, rank: int, message: Message) -> None:
        """Encode a message as for sending; a server that is stopped answers with its statistics."""
        self.send_to_all((rank,), message)

    def send_to_all(self, ranks: Iterable[int], message: Message) -> None:
        """Encode a message as for sending to each of these ranks."""
        data = encode(message)
        for rank in ranks:
            if isinstance(message, Bye):
                self.bye_bytes += len(data)
            elif isinstance(message, Stop):
                self._ready.append((rank, _done_of_server(self._assignment.server_of[rank])))


def _assign(n_workers: int, n_servers: int) -> Assignment:
    """Return roles: rank 0 is the scheduler, servers come before workers."""
    size = 1 + n_servers + n_workers
    node_of = tuple(rank // _RANKS_PER_NODE for rank in range(size))
    names = tuple(f"node{i}" for i in range(node_of[-1] + 1))
    servers = tuple(range(1, 1 + n_servers))
    return Assignment(node_of, names, 0, servers, tuple(range(1 + n_servers, size)))


def _places(a: Assignment) -> list[RankPlace]:
    return [
        RankPlace(rank=r, role=a.roles_of(r), host=a.node_names[node], pid=100_000 + r)
        for r, node in enumerate(a.node_of)
    ]


def _messages(a: Assignment, seconds: float) -> Iterator[_Due]:
    """Yield heartbeats of all ranks and reports of workers, each rank at its own times."""
    n_ranks = len(a.node_of)
    beat_s = heartbeat_interval_s(n_ranks, _TIMEOUT_S)
    report_s = max(report_interval_s(n_ranks), 1 / _REPORTS_PER_S)
    for rank in range(1, n_ranks):
        for at in _times(rank, beat_s, seconds):
            yield at, rank, encode(Heartbeat("computing", int(10 * at), _figures(at)))
        if rank in a.worker_of:
            for at in _times(rank, report_s, seconds):
                yield at, rank, encode(Report(0, int(10 * at), 640, 320.5, int(10 * at)))


def _times(rank: int, interval_s: float, seconds: float) -> Iterator[float]:
    """Yield the times at which a rank sends: ranks of each role are spread over the interval evenly."""
    at = interval_s * (rank * _GOLDEN_RATIO % 1)
    while at < seconds:
        yield at
        at += interval_s


def _figures(at: float) -> Figures:
    n = int(1000 * at)
    return Figures(at, 64 * n, 3 * n, 4096 * n, 4096 * n, 2 * n, n, 5, 3, 1 << 30)


def _done_of_worker(worker: int) -> bytes:
    outcomes = ["pushed", "applied", "scaled", "compensated", "rejected", "late", "max_staleness"]
    others = ["staleness_sum", "credit_stalls", "pushed_bytes", "pulled_bytes"]
    pushes = dict.fromkeys(outcomes + others, 123_456_789)
    return encode(Done(msgspec.json.encode({"worker": worker, "clock": 123_456, "pushes": pushes})))


def _done_of_server(server: int) -> bytes:
    names = ("pushed", "applied", "scaled", "compensated", "rejected", "late", "updates")
    table = {**dict.fromkeys(names, 123_456_789), "staleness": [123_456] * _BINS, "version": 99}
    counters = dict.fromkeys(("records", "retries", "clocks", "bytes_in", "bytes_out"), 123_456_789)
    tables = dict.fromkeys(_TABLES, table)
    return encode(
        Done(msgspec.json.encode({"server": server, "counters": counters, "tables": tables}))
    )


def _measure_files(a: Assignment, rank_table: RankTable) -> dict[str, float]:
    """Return the processor time and the bytes that the files of a supervised run take per second.

    The time of the recorder passes in steps of one second, without a wait, until the file that is written
    least often has been written twice.
    """
    clocks = dict.fromkeys(a.workers, 40)
    passed, seconds = 0.0, max(10, 2 + 2 * len(a.node_of) // 500)
    with tempfile.TemporaryDirectory() as folder:
        run = _begin_run(Path(folder))
        recorder = RunRecorder(
            run, rank_table, StartPoint(), clock=lambda: passed, timeout_s=_TIMEOUT_S
        )
        start, before = time.thread_time(), _written_bytes()
        for second in range(1, seconds + 1):
            passed = float(second)
            recorder.report(0, 640, 320.5)
            recorder.look(clocks)
        return {
            "status_cpu_s_per_s": (time.thread_time() - start) / seconds,
            "status_bytes_per_s": (_written_bytes() - before) / seconds,
        }


def _begin_run(folder: Path) -> Supervised:
    """Make the directory of a run whose first attempt begins."""
    run = RunFolder.create(folder, "simulated")
    replace_json(run.lease_file, Lease(generation=0, host="here", pid=1, time_s=time.time()))
    info = run.info()
    return Supervised(run, info.run_id, info.token, 0)


def _written_bytes() -> int:
    """Return the bytes that this process has written to files, pipes and sockets since its start."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
