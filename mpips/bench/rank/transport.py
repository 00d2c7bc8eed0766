"""Compare pushes and pulls by RMA and by messages with raw MPI. Rank 0 is the server, rank 1 the worker.

An mpips session and the raw baseline alternate on the same two ranks. The baseline is what a careful user
would write: puts and gets into a window, in pieces of the length that is fastest here, while the owner of the
window does nothing but enter MPI.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpips import _native
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings, typical_seconds
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.consistency import ASP
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.worker.worker import Worker

SMALL, LARGE = 4 << 10, 16 << 20  # bytes
ROWS, DIM = 10_000, 64
# Lengths of one put or get that the baseline tries, in bytes.
PIECES = (LARGE, 4 << 20, 1 << 20, 512 << 10, 256 << 10, 128 << 10, 64 << 10, 32 << 10)
SERVER, WORKER = 0, 1
_TAG, _STOP_TAG = 5, 6
Bytes = NDArray[np.uint8]
Times = dict[str, float]  # name of an operation -> seconds per call

# Operation, baseline, unit, bytes per call (0: the time is reported, not a rate).
_MEASURED = (
    ("push_ack_4k", "put_flush", "us", 0),
    ("push_16m", "put", "GB/s", LARGE),
    ("push_16m", "bare", "GB/s", LARGE),
    ("pull_16m", "get", "GB/s", LARGE),
    ("push_16m_queued", "put", "GB/s", LARGE),
)
_BASELINES = {
    "put_flush": "raw put + flush",
    "put": "raw put",
    "bare": "raw put, checked for NaN, added by the owner",
    "get": "raw get",
}
_QUEUED = 8  # pushes in flight together
TRANSPORTS = ("rma", "p2p")


def ratio_name(place: str, transport: str, what: str, base: str) -> str:
    """Return the name of a ratio; it contains the transport except for RMA between nodes."""
    words = [place, what, "vs", base]
    if place != "tcp" or transport != "rma":
        words.insert(1, transport)
    return "_".join(words)


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on two ranks; return findings on the worker's rank, None on the other. Collective."""
    node = ranks.comm.Split_type(MPI.COMM_TYPE_SHARED)
    place = "tcp" if node.Get_size() == 1 else "node"
    node.Free()
    calls = (20, 2) if options.quick else (200, 10)
    with Raw(ranks.comm) as raw:
        raw.choose_pieces(2 if options.quick else 5)
        repetitions: dict[str, list[tuple[Times, Times]]] = {name: [] for name in TRANSPORTS}
        for _ in range(options.repetitions):
            for transport in TRANSPORTS:
                ours = session(ranks, transport, calls)
                repetitions[transport].append((ours, raw.measure(calls)))
        pieces = raw.pieces
    if ranks.rank != WORKER:
        return None
    return findings(place, repetitions, pieces)


def session(ranks: BenchRanks, transport: str, calls: tuple[int, int]) -> Times:
    """Run one mpips session. Collective.

    Args:
        ranks: Both ranks.
        transport: One of TRANSPORTS.
        calls: (calls of small operations, calls of large ones).

    Returns:
        Seconds per call of each operation, on the worker.
    """
    rule, consistency = SGD(1e-3), ASP()
    tables: list[Table] = [
        DenseTable("small", (SMALL // 4,), rule, consistency),
        DenseTable("large", (LARGE // 4,), rule, consistency),
        EmbeddingTable("rows", DIM, rule, consistency),
    ]
    times: Times = ranks.session(lambda w: work(w, calls), tables, transport=transport, servers=1)
    return times


def work(worker: Worker, calls: tuple[int, int]) -> Times:
    """Measure each operation on the worker until it is complete; return seconds per call. Blocks."""
    small, large, rows = (worker.table(name) for name in ("small", "large", "rows"))
    rng = np.random.default_rng(3)
    update = rng.standard_normal(SMALL // 4, np.float32)
    gradient = rng.standard_normal(LARGE // 4, np.float32)
    out = np.empty(LARGE // 4, np.float32)
    keys = rng.permutation(ROWS).astype(np.int64)
    row_update = rng.standard_normal((ROWS, DIM), np.float32)
    own = worker.allocate(LARGE // 4)
    own[:] = gradient

    def queued() -> None:
        """Push staging memory several times without waiting in between; then wait for all pushes."""
        for request in [large.push(own) for _ in range(_QUEUED)]:
            request.wait()

    many, few = calls
    operations: dict[str, tuple[Callable[[], object], int]] = {
        "push_ack_4k": (lambda: small.push(update).wait(), many),
        "push_16m": (lambda: large.push(gradient).wait(), few),
        "pull_16m": (lambda: large.pull(out), few),
        "rows_push": (lambda: rows.push(keys, row_update).wait(), few),
        "rows_pull": (lambda: rows.pull(keys), few),
    }
    times = {name: typical_seconds(operation, n) for name, (operation, n) in operations.items()}
    times["push_16m_queued"] = typical_seconds(queued, 2) / _QUEUED
    return times


def findings(
    place: str, repetitions: dict[str, list[tuple[Times, Times]]], pieces: dict[str, int]
) -> Findings:
    """Return the ratios and figures of all repetitions.

    Args:
        place: "tcp" (between nodes) or "node".
        repetitions: For each transport the seconds of mpips and of raw MPI, by repetition.
        pieces: Bytes of one put and of one get of the baseline.
    """
    found = Findings()
    where = "between nodes" if place == "tcp" else "within a node"
    for transport, pairs in repetitions.items():
        for what, base, unit, n_bytes in _MEASURED:
            how = _BASELINES[base]
            moved = "put" if base == "bare" else base
            found.comparisons.append(
                Comparison(
                    name=ratio_name(place, transport, what, base),
                    what=f"{what} by {transport} {where}, until it is complete",
                    unit=unit,
                    ours=[in_unit(ours[what], n_bytes) for ours, _ in pairs],
                    baseline=[in_unit(raw[base], n_bytes) for _, raw in pairs],
                    baseline_name=f"{how}, pieces of {pieces[moved] >> 10} KiB"
                    if moved in pieces
                    else how,
                )
            )
        for what in ("rows_push", "rows_pull"):
            values = [ROWS / ours[what] / 1e6 for ours, _ in pairs]
            text = f"{ROWS} rows of {DIM} by {transport} {where}"
            name = f"{place}_{transport}_{what}"
            found.figures.append(Figure(name=name, what=text, unit="Mrows/s", values=values))
    found.figures += link_figures(place, where, [raw for p in repetitions.values() for _, raw in p])
    return found


def link_figures(place: str, where: str, raw: list[Times]) -> list[Figure]:
    """Return latency and bandwidth of messages, which `mpips plan` uses.

    Args:
        place: "tcp" or "node".
        where: The place in words.
        raw: Seconds of raw MPI, by repetition.
    """
    latency = [1e6 * r["ping_pong_8"] / 2 for r in raw]
    round_trip = [1e6 * r["ping_pong_4k"] for r in raw]
    bandwidth = [in_unit(r["message_16m"], LARGE) for r in raw]
    half = "half a round trip of 8 bytes"
    return [
        Figure(name=f"{place}_latency", what=f"{half} {where}", unit="us", values=latency),
        Figure(
            name=f"{place}_ping_pong_4k",
            what=f"a round trip of 4 KiB {where}",
            unit="us",
            values=round_trip,
        ),
        Figure(
            name=f"{place}_bandwidth",
            what=f"messages of 16 MiB {where}",
            unit="GB/s",
            values=bandwidth,
        ),
    ]


def in_unit(seconds: float, n_bytes: int) -> float:
    """Return GB/s, or microseconds if `n_bytes` is 0."""
    return n_bytes / seconds / 1e9 if n_bytes else 1e6 * seconds


class Raw:
    """Plain MPI on the two ranks: a window on the server's rank, and messages in both directions.

    Creation, the end of the `with` block and all measurements are collective.

    Attributes:
        pieces: Bytes of one "put" and of one "get".
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Make the window. Memory is page-aligned on both ranks, as in mpips, and filled with zeros."""
        self._comm = comm.Dup()
        self._here: Bytes = np.frombuffer(mmap.mmap(-1, LARGE), np.uint8)
        self._here[:] = 0
        self._values = np.zeros(LARGE // 4, np.float32)
        exposed = self._here if comm.Get_rank() == SERVER else None
        self._window = MPI.Win.Create(exposed, disp_unit=1, comm=self._comm)
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self.pieces = {"put": LARGE, "get": LARGE}

    def __enter__(self) -> Raw:
        """Return this object; the window is open until the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Free the window. After an exception it stays open, since the other rank may not arrive here."""
        if error[0] is None:
            self._window.Unlock_all()
            self._window.Free()
            self._comm.Free()

    def choose_pieces(self, calls: int) -> None:
        """Choose the lengths of one put and one get with which 16 MiB are fastest. Collective."""
        for what, move in (("put", self._put), ("get", self._get)):
            seconds = {}
            for piece in PIECES:
                self.pieces[what] = piece
                times = [self._one_sided(move, 1) for _ in range(calls)]
                seconds[piece] = min(times)
            self.pieces[what] = min(seconds, key=lambda piece: seconds[piece])

    def measure(self, calls: tuple[int, int]) -> Times:
        """Return seconds per call of each operation, valid on the worker's rank. Collective."""
        many, few = calls
        return {
            "put_flush": self._one_sided(self._put_small, many),
            "put": self._one_sided(self._put, few),
            "bare": self._bare(few),
            "get": self._one_sided(self._get, few),
            "ping_pong_8": self._ping_pong(8, many),
            "ping_pong_4k": self._ping_pong(SMALL, many),
            "message_16m": self._messages(few),
        }

    def _one_sided(self, move: Callable[[], None], calls: int) -> float:
        if self._comm.Get_rank() == WORKER:
            seconds = typical_seconds(move, calls)
            self._comm.Send([self._here[:1], MPI.BYTE], SERVER, _TAG)
            return seconds
        while not self._comm.Iprobe(WORKER, _TAG):
            pass
        self._comm.Recv([self._here[:1], MPI.BYTE], WORKER, _TAG)
        return 1.0

    def _put_small(self) -> None:
        self._window.Put([self._here[:SMALL], MPI.BYTE], SERVER, [0, SMALL, MPI.BYTE])
        self._window.Flush(SERVER)

    def _put(self) -> None:
        step = self.pieces["put"]
        for at in range(0, LARGE, step):
            part = self._here[at : at + step]
            self._window.Put([part, MPI.BYTE], SERVER, [at, step, MPI.BYTE])
        self._window.Flush(SERVER)

    def _bare(self, calls: int) -> float:
        """Return the seconds of a push without a parameter server.

        The worker checks for NaN, puts the update and sends a message. The owner subtracts the update from
        its values and answers. The four parts run one after the other, since each needs the one before.
        """
        update, word = self._here.view(np.float32), [self._here[:1], MPI.BYTE]

        def push() -> None:
            assert _native.all_finite(update, None)
            self._put()
            self._comm.Send(word, SERVER, _TAG)
            self._comm.Recv(word, SERVER, _TAG)

        if self._comm.Get_rank() == WORKER:
            seconds = typical_seconds(push, calls)
            self._comm.Send(word, SERVER, _STOP_TAG)
            return seconds
        status = MPI.Status()
        while status.Get_tag() != _STOP_TAG:
            while not self._comm.Iprobe(WORKER, MPI.ANY_TAG, status):
                pass
            self._comm.Recv(word, WORKER, status.Get_tag())
            if status.Get_tag() == _TAG:
                np.subtract(self._values, update, out=self._values)
                self._comm.Send(word, WORKER, _TAG)
        return 1.0

    def _get(self) -> None:
        step = self.pieces["get"]
        for at in range(0, LARGE, step):
            part = self._here[at : at + step]
            self._window.Get([part, MPI.BYTE], SERVER, [at, step, MPI.BYTE])
        self._window.Flush(SERVER)

    def _ping_pong(self, n_bytes: int, calls: int) -> float:
        message = [self._here[:n_bytes], MPI.BYTE]
        start = time.perf_counter()
        for _ in range(calls):
            if self._comm.Get_rank() == WORKER:
                self._comm.Send(message, SERVER, _TAG)
                self._comm.Recv(message, SERVER, _TAG)
            else:
                self._comm.Recv(message, WORKER, _TAG)
                self._comm.Send(message, WORKER, _TAG)
        return (time.perf_counter() - start) / calls

    def _messages(self, calls: int) -> float:
        """Return the seconds of one message of 16 MiB to the server; a barrier follows the last message."""
        start = time.perf_counter()
        for _ in range(calls):
            if self._comm.Get_rank() == WORKER:
                self._comm.Send([self._here, MPI.BYTE], SERVER, _TAG)
            else:
                self._comm.Recv([self._here, MPI.BYTE], WORKER, _TAG)
        self._comm.Barrier()
        return (time.perf_counter() - start) / calls
