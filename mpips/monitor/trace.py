"""A trace of a run in the format of Chrome's trace viewer, which Perfetto opens: `mpips trace`.

Each rank is a process with a track for its worker and one for its server. A flow leads from the push of an
update to its application by a server.

Clocks: ranks on one node share a clock. For the others the trace has the difference to the scheduler's clock
by the best round trip, and its greatest error. The records themselves bound it further: no server
consumes a record before it is written, and no worker detects that before it has happened. Each is a
bound on the difference of
two clocks. The differences are moved from their estimates just as far as these bounds need, by relaxation as
in the algorithm of Bellman and Ford, so that no flow points backwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips._native import TraceKind
from mpips.errors import ConfigError
from mpips.rundir.tracing import Events, TraceFolder, TraceHead

Int64 = NDArray[np.int64]
_WORKER, _SERVER = 0, 1  # tracks of a process
_NAMES = {
    TraceKind.push: "push",
    TraceKind.pull: "pull",
    TraceKind.wait: "wait",
    TraceKind.tick: "end of clock",
    TraceKind.snapshot: "snapshot",
    TraceKind.apply: "apply",
    TraceKind.segment: "segment",
    TraceKind.answer: "answer",
    TraceKind.clock: "clock",
    TraceKind.other: "record",
}
_OF_WORKERS = {TraceKind.push, TraceKind.pull, TraceKind.wait, TraceKind.tick}
_UNKNOWN_NS = 1 << 62  # error of an estimate without a round trip
_LEAST_NS = 500  # shorter gaps between two events of a worker are no computation


class RankTrace(msgspec.Struct):
    """The events of one rank.

    Attributes:
        head: The rank's description of itself.
        events: Its events, in the order in which they ended.
        worker, server: Index of its worker and of its server; None: it has none.
    """

    head: TraceHead
    events: Any
    worker: int | None
    server: int | None

    def of(self, kind: TraceKind) -> Events:
        """Return the events of a kind."""
        found: Events = self.events[self.events["kind"] == kind.value]
        return found


class Alignment(msgspec.Struct):
    """The offsets of the clocks of ranks.

    Attributes:
        offsets_ns: Number to add to a rank's clock, ns, by the rank.
        moved_ns: Greatest change of an estimate that the bounds needed, ns.
        backwards: Number of flows that still point backwards, because clocks have drifted.
    """

    offsets_ns: dict[int, int]
    moved_ns: int
    backwards: int


def read_trace(folder: TraceFolder) -> list[RankTrace]:
    """Return the events of all ranks of a complete trace, by rank.

    Raises:
        ConfigError: The trace is not complete, or a file is damaged.
    """
    index = folder.index()
    if index is None:
        raise ConfigError(f"{folder.path}: the trace is not complete (no index.json)")
    found = []
    for rank in index.ranks:
        head, events = folder.read(rank)
        order = np.argsort(events["begin_ns"], kind="stable")
        found.append(
            RankTrace(head, events[order], _index(head.role, "worker"), _index(head.role, "server"))
        )
    return found


def _index(text: str, role: str) -> int | None:
    for part in text.split(" + "):
        name, _, index = part.partition(" ")
        if name == role:
            return int(index)
    return None


class Flow(msgspec.Struct):
    """The updates of one worker to one server that both have traced.

    Attributes:
        worker, server: Ranks.
        sent_ns: Times at which records were written, on the worker's clock.
        begin_ns, end_ns: Times between which the server applied them, on its clock.
        taken: Places in these arrays of records that the worker has found to be consumed.
        taken_ns: Times at which it has learned that, on its clock.
    """

    worker: int
    server: int
    sent_ns: Int64
    begin_ns: Int64
    end_ns: Int64
    taken: Int64
    taken_ns: Int64


def flows_of(ranks: Sequence[RankTrace]) -> list[Flow]:
    """Return the flows between all workers and servers of a trace."""
    found = []
    for worker in (rank for rank in ranks if rank.worker is not None):
        sent, taken = worker.of(TraceKind.sent), worker.of(TraceKind.taken)
        for server in (rank for rank in ranks if rank.server is not None):
            applied = server.of(TraceKind.apply)
            mine = sent[sent["peer"] == server.server]
            theirs = applied[applied["peer"] == worker.worker]
            sequences, at, to = np.intersect1d(
                mine["sequence"], theirs["sequence"], return_indices=True
            )
            known = taken[taken["peer"] == server.server]
            _, place, when = np.intersect1d(sequences, known["sequence"], return_indices=True)
            found.append(
                Flow(
                    worker.head.rank,
                    server.head.rank,
                    mine["begin_ns"][at].astype(np.int64),
                    theirs["begin_ns"][to].astype(np.int64),
                    theirs["end_ns"][to].astype(np.int64),
                    place,
                    known["begin_ns"][when].astype(np.int64),
                )
            )
    return found


def align(heads: Sequence[TraceHead], flows: Iterable[Flow]) -> Alignment:
    """Return what to add to the clock of each rank, so that no flow points backwards.

    Args:
        heads: The ranks' descriptions of themselves.
        flows: The flows between them.
    """
    flows = list(flows)
    clock = {head.rank: head.clock_id for head in heads}
    # The estimate of each clock is that of the rank with the smallest error.
    best: dict[str, tuple[int, int]] = {}
    for head in heads:
        error = head.error_ns if head.error_ns >= 0 else _UNKNOWN_NS
        best[head.clock_id] = min(
            best.get(head.clock_id, (error, head.offset_ns)), (error, head.offset_ns)
        )
    offsets = {name: offset for name, (_, offset) in best.items()}
    sent = _bounds((clock[f.worker], clock[f.server], f.sent_ns - f.begin_ns) for f in flows)
    taken = _bounds(
        (clock[f.server], clock[f.worker], f.end_ns[f.taken] - f.taken_ns) for f in flows
    )
    both = dict(sent)
    for pair, least in taken.items():
        both[pair] = max(both.get(pair, least), least)
    _guess(offsets, [name for name, (error, _) in best.items() if error == _UNKNOWN_NS], both)
    estimates = dict(offsets)

    def backwards() -> int:
        return sum(
            int(
                np.count_nonzero(
                    f.begin_ns + offsets[clock[f.server]] < f.sent_ns + offsets[clock[f.worker]]
                )
            )
            for f in flows
        )

    # Where clocks have drifted while they were traced, the bounds contradict each other. The direction of
    # the flows counts more than the time at which a worker learns of an application.
    _relax(offsets, both)
    if backwards():
        offsets.update(estimates)
        _relax(offsets, sent)
    moved = max((abs(offsets[name] - estimates[name]) for name in offsets), default=0)
    return Alignment({rank: offsets[name] for rank, name in clock.items()}, moved, backwards())


def _bounds(found: Iterable[tuple[str, str, Int64]]) -> dict[tuple[str, str], int]:
    """Return for pairs of clocks the least difference of the second one's offset to the first one's, ns.

    Args:
        found: Two clocks, and differences that are all too small or just enough.
    """
    bounds: dict[tuple[str, str], int] = {}
    for first, second, least in found:
        if len(least) and first != second:
            value = int(least.max())
            bounds[first, second] = max(bounds.get((first, second), value), value)
    return bounds


def _relax(offsets: dict[str, int], bounds: dict[tuple[str, str], int]) -> None:
    """Raise offsets until they fulfil all bounds, or as often as is enough if that is possible."""
    for _ in offsets:
        for (first, second), least in bounds.items():
            offsets[second] = max(offsets[second], offsets[first] + least)


def _guess(offsets: dict[str, int], unknown: list[str], bounds: dict[tuple[str, str], int]) -> None:
    """Estimate clocks without a round trip from their bounds to others: in the middle between them.

    Args:
        offsets: Estimate of every clock; those of the unknown ones are replaced.
        unknown: Clocks without a round trip.
        bounds: Least difference of the second clock's offset to the first one's.
    """
    known = [name for name in offsets if name not in unknown] or unknown[:1]
    waiting = [name for name in unknown if name not in known]
    while waiting:
        found = []
        for name in waiting:
            least = [offsets[k] + bounds[k, name] for k in known if (k, name) in bounds]
            most = [offsets[k] - bounds[name, k] for k in known if (name, k) in bounds]
            ends = [*([max(least)] if least else []), *([min(most)] if most else [])]
            if ends:
                offsets[name] = sum(ends) // len(ends)
                found.append(name)
        known += found
        waiting = [name for name in waiting if name not in found]
        if not found:
            return


def chrome_events(ranks: Sequence[RankTrace]) -> Iterator[dict[str, Any]]:
    """Yield the events of the trace in Chrome's format, times in us from the first event on.

    Args:
        ranks: Events of all ranks.
    """
    flows = flows_of(ranks)
    offsets = align([rank.head for rank in ranks], flows).offsets_ns
    origin = min(
        (
            int(rank.events["begin_ns"].min()) + offsets[rank.head.rank]
            for rank in ranks
            if len(rank.events)
        ),
        default=0,
    )
    for rank in ranks:
        yield from _names_of(rank)
        yield from _slices(rank, offsets[rank.head.rank] - origin)
    number = 0
    for flow in flows:
        to_worker, to_server = offsets[flow.worker] - origin, offsets[flow.server] - origin
        for sent, begin in zip(flow.sent_ns.tolist(), flow.begin_ns.tolist(), strict=True):
            number += 1
            common = {"cat": "update", "name": "update", "id": number}
            at, to = (sent + to_worker) / 1000, (begin + to_server) / 1000
            yield {**common, "ph": "s", "pid": flow.worker, "tid": _WORKER, "ts": at}
            yield {**common, "ph": "f", "bp": "e", "pid": flow.server, "tid": _SERVER, "ts": to}


def _names_of(rank: RankTrace) -> Iterator[dict[str, Any]]:
    """Yield the names of a rank and of its tracks."""
    head = rank.head
    pid = {"ph": "M", "pid": head.rank}
    yield {**pid, "name": "process_name", "args": {"name": f"{head.role} on {head.host}"}}
    yield {**pid, "name": "process_sort_index", "args": {"sort_index": head.rank}}
    for tid, index, role in ((_WORKER, rank.worker, "worker"), (_SERVER, rank.server, "server")):
        if index is not None:
            args = {"name": f"{role} {index}"}
            yield {**pid, "tid": tid, "name": "thread_name", "args": args}


def _slices(rank: RankTrace, add_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a rank that have a length, and the computation between those of a worker."""
    tables = rank.head.tables
    busy_until = 0  # end of the worker's events so far, ns
    for event in rank.events:
        kind = TraceKind(int(event["kind"]))
        if kind not in _NAMES:
            continue
        is_worker = kind in _OF_WORKERS or (kind is TraceKind.snapshot and rank.server is None)
        begin, end = int(event["begin_ns"]), int(event["end_ns"])
        if is_worker:
            if busy_until and begin - busy_until >= _LEAST_NS:
                yield _slice(
                    rank, "compute", "compute", _WORKER, busy_until + add_ns, begin + add_ns
                )
            busy_until = max(busy_until, end)
        table, name = int(event["table"]), _NAMES[kind]
        of_table = kind in (TraceKind.push, TraceKind.pull, TraceKind.wait) or (
            kind in (TraceKind.apply, TraceKind.segment, TraceKind.answer)
        )
        args: dict[str, Any] = {"clock": int(event["clock"])}
        if of_table and table < len(tables):
            name = f"{name} {tables[table]}"
            args["table"] = tables[table]
        if not is_worker and kind is not TraceKind.snapshot:
            args |= {"worker": int(event["peer"]), "sequence": int(event["sequence"])}
        tid = _WORKER if is_worker else _SERVER
        yield {
            **_slice(rank, name, kind.name, tid, begin + add_ns, end + add_ns),
            "args": args,
        }


def _slice(
    rank: RankTrace, name: str, category: str, tid: int, begin_ns: int, end_ns: int
) -> dict[str, Any]:
    """Return a complete event."""
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": rank.head.rank,
        "tid": tid,
        "ts": begin_ns / 1000,
        "dur": (end_ns - begin_ns) / 1000,
    }


def write_chrome(file: BinaryIO, ranks: Sequence[RankTrace]) -> int:
    """Write a trace as a JSON object in Chrome's format; return the number of its events."""
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    n = 0
    for event in chrome_events(ranks):
        file.write((b",\n" if n else b"") + msgspec.json.encode(event))
        n += 1
    file.write(b"\n]}\n")
    return n


def shares(ranks: Sequence[RankTrace]) -> dict[str, dict[str, float]]:
    """Return seconds by kind of event for each worker and server, for people."""
    found: dict[str, dict[str, float]] = {}
    for rank in ranks:
        sums: defaultdict[str, float] = defaultdict(float)
        for kind, name in _NAMES.items():
            events = rank.of(kind)
            if len(events):
                sums[name] += float((events["end_ns"] - events["begin_ns"]).sum()) / 1e9
        found[rank.head.role] = dict(sums)
    return found
