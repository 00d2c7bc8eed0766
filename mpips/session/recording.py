"""The begin of a record, or of the replay of one, when start-up is over. Collective over the job's ranks.

Both need that the order of records at servers and the pulls of dense tables are all that timing decides. Work
of workers for each other in shared memory (groups, replicated tables, ...) has an order of its own, so jobs
with it are refused, as are transports that read values by messages.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from mpips import _native
from mpips.config.monitoring import MonitorConfig
from mpips.config.triggers import Triggers
from mpips.errors import ConfigError, DifferenceError
from mpips.model.consistency import BSP, SSP, Reject, Switch, bsp_until, is_adaptive
from mpips.model.served import local_tables
from mpips.model.table import DenseTable, EmbeddingTable, Table, replicated_tables
from mpips.record.files import (
    ESTIMATED,
    FORMAT,
    NO_STOP,
    RecordContent,
    RecordedSwitch,
    RecordedTable,
    RecordHead,
    ReplayOrder,
    Role,
    break_folder,
    read_all,
    read_record,
    record_file,
    record_folder,
    why_not_whole,
    with_switch,
)
from mpips.record.writer import RecordFile
from mpips.recovery.saving import Saving, SavingPlan
from mpips.rundir.directory import RunFolder
from mpips.transport.region import attach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpips.session.parts import Parts


class ReplayPlan:
    """The SavingPlan of a replay.

    A launch that repeats an attempt to its end saves nothing. One that repeats it as far as a checkpoint
    writes that checkpoint at its end, into the folder of its own run: the next launch begins from it.
    """

    def __init__(self, plan: SavingPlan, order: ReplayOrder, run: RunFolder) -> None:
        """`plan`: that of the program; `order`: what is repeated; `run`: the run of the replay."""
        self._plan, self._order, self._run = plan, order, run

    def draft(self) -> Saving:
        """Return what the program saves, without triggers."""
        return self._changed(self._plan.draft())

    def choose(self, exchange: Path | None = None) -> Saving:
        """Return the program's choice, without triggers. Collective, blocking.

        Raises:
            DifferenceError: It starts otherwise than the recorded attempt, or has checkpoints elsewhere.
        """
        saving = self._plan.choose(exchange)
        if self._order.begins and saving.start is not None:
            raise DifferenceError(
                f"the program starts from the checkpoint {saving.start}, the recorded run began anew"
            )
        if not self._order.begins and saving.start is None:
            raise DifferenceError(
                "the program begins anew, the recorded attempt began from a checkpoint"
            )
        return self._changed(saving)

    def _changed(self, saving: Saving) -> Saving:
        folder = self._run.checkpoints
        is_own = saving.folder is not None and saving.folder.absolute() == folder.absolute()
        if not (self._order.begins and not self._order.stops) and not is_own:
            raise DifferenceError(
                f"the program has its checkpoints in {saving.folder}, not in the directory of its run: a "
                "replay over restarts would write there"
            )
        own = saving.folder if self._order.stops else None
        if self._order.until is not None:
            own = break_folder(self._run, self._order.until)
        return dataclasses.replace(saving, folder=own, triggers=Triggers())


def begin(
    parts: Parts, monitor: MonitorConfig, replay: ReplayOrder | None, fingerprint: str
) -> None:
    """Begin a record or a replay if the job has one: set `record` of `parts`. Collective; blocks.

    Args:
        parts: The parts of the started job.
        monitor: Section [monitor] of the job.
        replay: The record to repeat, or None.
        fingerprint: Checksum of tables and options.

    Raises:
        MpipsError: The job cannot be recorded, or does not fit the record; the same error on all ranks.
    """
    if not monitor.record and replay is None:
        return
    p, c = parts, parts.cluster
    refuse(p, is_replay=replay is not None)
    if replay is None:
        c.agree("beginning the record", lambda: _record(p, monitor, fingerprint))
        return
    p.stops = replay.stops
    p.ends_at = replay.until.number if replay.until is not None else None
    c.agree("reading the record", lambda: _replay(p, replay, fingerprint))
    c.agree("attaching the words of the replay", lambda: _join_replay(p, replay))


def refuse(p: Parts, is_replay: bool) -> None:
    """Refuse a job that cannot be repeated from its record. Equal on all ranks.

    Raises:
        ConfigError: Names the reason and the way out.
    """
    why = _why_not(p)
    if why and is_replay:
        raise DifferenceError(f"the job differs from the recorded one: {why}")
    if why:
        raise ConfigError(f"monitor.record = true: {why}, or set monitor.record = false")


def _why_not(p: Parts) -> str:
    """Return why the job cannot be repeated, and the way out; "" if it can."""
    if set(p.links.transports) - {"shm"}:
        used = ", ".join(sorted(p.links.transports))
        return (
            f"transport {used}: only jobs whose ranks all share the memory of one node are recorded; start "
            "all ranks on one node with transport = auto or shm"
        )
    if p.has_partners:
        return "redundancy.partner = true: replicas are not recorded; set it to false"
    if p.groups:
        return "groups of workers sum updates outside of servers; set cluster.topology = flat"
    if replicated_tables(list(p.declared)) or replicated_tables(p.tables):
        return "replicated tables are updated outside of servers; set placement = servers"
    if local_tables(p.declared):
        return "tables under LocalSGD and DiLoCo are not recorded; use BSP, SSP or ASP"
    for table in p.tables:
        if why := _why_not_table(table):
            return f"table {table.name!r} has {why}"
    return ""


def _why_not_table(table: Table) -> str:
    if isinstance(table.consistency, BSP) and table.consistency.backup:
        return "backup workers, which skip clocks by time; set backup = 0"
    if isinstance(table, EmbeddingTable) and table.storage is not None:
        return "storage, whose files are not recorded; leave it out"
    if table.compression is not None:
        return (
            f"compression = {table.compression}: tables with codecs are not recorded; leave it out"
        )
    if table.pull_compression is not None:
        return (
            f"pull_compression = {table.pull_compression}: tables with codecs are not recorded; leave it "
            "out"
        )
    return ""


def _head(p: Parts, role: Role, index: int, fingerprint: str) -> RecordHead:
    """Return the head of a rank's file."""
    a, saving = p.cluster.assignment, p.saving
    start, origin = "new", -1
    begin = (0,) * len(a.workers)
    if saving.start is not None and saving.origin is not None:
        start = f"checkpoint {saving.start.name}"
        origin = saving.origin.generation
        states = saving.origin.workers
        if len(states) == len(a.workers):
            begin = tuple(state.clock for state in states)
        else:
            begin = (saving.origin.step,) * len(a.workers)
    return RecordHead(
        format=FORMAT,
        role=role,
        index=index,
        n_servers=len(a.servers),
        n_workers=len(a.workers),
        tables=tuple(_recorded(table, saving.steps_before) for table in p.tables),
        start=start,
        fingerprint=fingerprint,
        begin=begin,
        writes=saving.checkpoint_generation(p.run.generation if p.run is not None else 0),
        origin=origin,
    )


def _recorded(table: Table, clocks_before: int = 0) -> RecordedTable:
    model = table.consistency
    is_switch = isinstance(model, Switch)
    policy = model.then.policy if isinstance(model, Switch) else getattr(model, "policy", None)
    return RecordedTable(
        table.name,
        "embedding" if isinstance(table, EmbeddingTable) else "dense",
        model.name,
        model.most_bound if isinstance(model, SSP) else 0,
        _recorded_staleness(policy),
        is_adaptive(model),
        bsp_until(model, clocks_before) if is_switch else -1,
    )


def _recorded_staleness(policy: object) -> int:
    if not isinstance(policy, Reject):
        return -1
    return ESTIMATED if isinstance(policy.max_staleness, str) else policy.max_staleness


def _record(p: Parts, monitor: MonitorConfig, fingerprint: str) -> None:
    """Make the files of this rank, and begin to record."""
    c = p.cluster
    assert p.run is not None, "MonitorConfig.check refuses a record without a run directory"
    folder = record_folder(p.run.folder, p.run.generation)

    def file(role: Role, index: int) -> RecordFile:
        head = _head(p, role, index, fingerprint)
        return RecordFile(record_file(folder, role, index), head, monitor.record_mib)

    if c.server is not None:
        from mpips.server.recorded import RecordingServer

        assert p.server is not None
        p.server_record = RecordingServer(p.server, file("server", c.server), p.saving.steps_before)
    if c.worker is not None:
        from mpips.worker.recorded import RecordingWorker

        n_servers = len(c.assignment.servers)
        p.worker_record = RecordingWorker(file("worker", c.worker), n_servers, len(p.tables))


def _words(server: int) -> str:
    """Return the name of the memory in which a server sees what workers have read."""
    return f"s{server}-replay"


def _replay(p: Parts, replay: ReplayOrder, fingerprint: str) -> None:
    """Read the record, compare it with this job, and let this rank's server follow it."""
    c, folder, stops = p.cluster, Path(replay.record), replay.stops
    servers, workers = read_all(folder)
    if not stops and (why := why_not_whole([*servers, *workers])):
        raise ConfigError(f"{folder}: {why}")
    switch = servers[0].switch
    _compare(p, servers[0].head, fingerprint, switch)
    if c.server is None:
        return
    from mpips.server.recorded import ReplayingServer

    assert p.server is not None
    n_workers, n_tables, names = len(workers), len(p.tables), [t.name for t in p.tables]
    words = p.regions.create(_words(c.server), _native.pull_words_bytes(n_tables, n_workers))
    own = servers[c.server]
    try:
        order = _native.RecordedOrder(own.data, n_workers, names, stops)
        gate = _native.PullGate(words, n_tables, n_workers, c.server, p.options.timeout_s)
        for i, table in enumerate(p.tables):
            if _is_gated(table) and _has_part(p, table, c.server):
                gate.add_table(p.server.region, p.server.layout, i, table.name)
        for w, file in enumerate(workers):
            gate.add_pulls(w, _steps(file, stops), order)
    except _native.RecordDifference as error:
        raise ConfigError(f"{folder}: {error}") from None
    digests = own.end.digests if own.end is not None else {}
    copier = None
    if replay.breaks:
        from mpips.session.breaks import BreakCopier

        copier = BreakCopier(p, replay.breaks, order, servers[0].head.begin)
    p.server_record = ReplayingServer(p.server, order, gate, digests, copier, switch)


def _is_gated(table: Table) -> bool:
    return isinstance(table, DenseTable) and not isinstance(table.consistency, BSP)


def _has_part(p: Parts, table: Table, server: int) -> bool:
    return any(part.server == server for part in p.placement.dense[table.name])


def _steps(file: RecordContent, stops: Sequence[int]) -> _native.PullSteps:
    head = file.head
    stop = stops[head.index] if stops else NO_STOP
    return _native.PullSteps(file.data, head.n_servers, len(head.tables), stop)


def _compare(
    p: Parts, head: RecordHead, fingerprint: str, switch: RecordedSwitch | None = None
) -> None:
    """Compare the shape of this job with the recorded one.

    Args:
        p: The parts of this job.
        head: Head of a file of the record, with the decision on the clock of a Switch.
        fingerprint: Checksum of tables and options of this job.
        switch: That decision.

    Raises:
        DifferenceError: Names the first difference.
    """
    own = with_switch(_head(p, "server", 0, fingerprint), switch)
    pairs: Sequence[tuple[str, object, object]] = (
        ("workers", own.n_workers, head.n_workers),
        ("servers", own.n_servers, head.n_servers),
        ("tables", [t.name for t in own.tables], [t.name for t in head.tables]),
        ("consistency of its tables", own.tables, head.tables),
        ("checksum of tables and options", own.fingerprint, head.fingerprint),
        ("clocks of the workers at its start", own.begin, head.begin),
    )
    for what, mine, recorded in pairs:
        if mine != recorded:
            raise DifferenceError(
                f"the job differs from the recorded one in its {what}: {mine}, recorded {recorded}"
            )


def _join_replay(p: Parts, replay: ReplayOrder) -> None:
    """Let this rank's worker repeat its pulls."""
    c, folder, stops = p.cluster, Path(replay.record), replay.stops
    if c.worker is None:
        return
    from mpips.worker.recorded import ReplayingWorker

    file = read_record(record_file(folder, "worker", c.worker))
    n_servers, names = len(c.assignment.servers), [t.name for t in p.tables]
    orders = [read_record(record_file(folder, "server", s)).data for s in range(n_servers)]
    try:
        records = _native.WorkerRecords(orders, c.worker, file.head.n_workers, len(names), stops)
        ends_early = bool(stops) and stops[c.worker] != NO_STOP
        pulls = _native.RecordedPulls(_steps(file, stops), c.worker, names, records, ends_early)
    except _native.RecordDifference as error:
        raise ConfigError(f"{file.path}: {error}") from None
    n_bytes = _native.pull_words_bytes(len(names), file.head.n_workers)
    words = [attach(c.token, _words(s), n_bytes) for s in range(n_servers)]
    p.worker_record = ReplayingWorker(c.worker, pulls, words)
