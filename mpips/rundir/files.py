"""Records of the files of a run directory; see `mpips.rundir.directory`."""

from __future__ import annotations

from typing import Any

import msgspec

from mpips.model.buffers import BufferShares
from mpips.model.build import Build


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """The activity of a rank. Rates are means over the last few seconds.

    Attributes:
        rank, role, host, pid: As in RankPlace.
        state: "computing", "pulling 'w'", "serving", ...
        clock: Clock of a worker, counted from the start of this launch, or of the launch whose memory it
            took over.
        clocks_per_s: Clocks of a worker per second.
        samples_per_s: Samples per second that a worker trains on.
        records_per_s: Records per second that a worker writes to rings, or that a server takes from rings.
        push_bytes_per_s: Bytes per second that a worker pushes, or that a server takes.
        pull_bytes_per_s: Bytes per second that a worker pulls, or with which a server answers. A server takes
            no part in pulls of dense tables, so these are not counted.
        staleness: Mean staleness, in updates, of the updates judged lately; None: no such updates.
        max_staleness: Greatest staleness since the start, in updates.
        queue: Records in rings that were not consumed at the last heartbeat.
        memory_bytes: Bytes of shards and rings of a server.
        links: Bytes that a worker has pushed to and pulled from each server since the start of this launch;
            empty: there are too many pairs.
        heard_s: Unix time of the last heartbeat; 0: none yet.
        samples, records, pushed_bytes, pulled_bytes: Numbers since the start of this launch, of which the
            rates above are.
        judged: Updates that have been applied, rejected or discarded as late, since the start.
        staleness_sum: Sum of their staleness.
    """

    rank: int
    role: str
    host: str
    pid: int
    state: str = "starting"
    clock: int = 0
    clocks_per_s: float = 0.0
    samples_per_s: float = 0.0
    records_per_s: float = 0.0
    push_bytes_per_s: float = 0.0
    pull_bytes_per_s: float = 0.0
    staleness: float | None = None
    max_staleness: int = 0
    queue: int = 0
    memory_bytes: int = 0
    links: tuple[tuple[int, int], ...] = ()
    heard_s: float = 0.0
    samples: int = 0
    records: int = 0
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    judged: int = 0
    staleness_sum: int = 0


class TableLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The updates of one table, on all servers.

    Attributes:
        name: Name of the table.
        updates: Updates of its values since the start of this launch; each server's part of a dense table
            counts its own.
        updates_per_s: The same per second, lately.
        rows_made, rows_refused, rows_evicted, rows_returned: Counts of an embedding table with limits since
            the start of this launch: rows that were made; keys that were pushed and got no row, once for
            each clock; rows that have left; rows that were made again soon after they had left, an estimate.
        rows_cold: Rows of a table with storage that lie in files now.
        rows_promoted, rows_demoted: Rows that have moved from files to memory, and from memory to files,
            since the start of this launch.
    """

    name: str
    updates: int
    updates_per_s: float = 0.0
    rows_made: int = 0
    rows_refused: int = 0
    rows_evicted: int = 0
    rows_returned: int = 0
    rows_cold: int = 0
    rows_promoted: int = 0
    rows_demoted: int = 0


class RowLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Accesses to one row of an embedding table over about the last minute, estimated from a sample.

    Attributes:
        table: Name of the table.
        key: Key of the row.
        pulls_per_s, pushes_per_s: Pulls and pushes that have the row, per second. A push or pull has a row
            once, however often the samples of its batch have the key.
        share: The row's part of all rows of the table that are pulled and pushed, 0 to 1.
    """

    table: str
    key: int
    pulls_per_s: float = 0.0
    pushes_per_s: float = 0.0
    share: float = 0.0


class LinkLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes between the workers of one host and the servers of one host.

    Attributes:
        worker_host, server_host: Names of the hosts; the same name: they share memory.
        pushed_bytes, pulled_bytes: Bytes since the start of this launch.
        push_bytes_per_s, pull_bytes_per_s: Bytes per second lately.
    """

    worker_host: str
    server_host: str
    pushed_bytes: int
    pulled_bytes: int
    push_bytes_per_s: float = 0.0
    pull_bytes_per_s: float = 0.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a job by table and by link, and the staleness of its updates.

    Attributes:
        tables: The tables with most updates lately, these first.
        rows: The rows of embedding tables with most pulls and pushes lately, at most 8 of a table: table by
            table, the hottest first.
        links: The links with most bytes lately, these first; empty with very many servers.
        staleness: Number of updates by their staleness from 0 on, since the start of this launch.
        bound: The bound of SSP("auto") that was decided on last; None: no table has such a bound.
        switched: True: tables under Switch are under ASP, False: under BSP; None: no table is under Switch.
        backup: The greatest number of backup workers that a server has decided on last; None: it is fixed.
    """

    tables: tuple[TableLoad, ...] = ()
    links: tuple[LinkLoad, ...] = ()
    staleness: tuple[int, ...] = ()
    rows: tuple[RowLoad, ...] = ()
    bound: int | None = None
    switched: bool | None = None
    backup: int | None = None


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """ranks.json.

    Attributes:
        generation: Generation number of the attempt.
        time_s: Unix time of this content.
        ranks: One row for each rank.
        interval_s: Seconds between two writes of this file; more for many ranks.
        heartbeat_s: Seconds between two heartbeats of a rank; more for many ranks.
        load: Load by table and by link.
    """

    generation: int
    time_s: float
    ranks: tuple[RankRow, ...] = ()
    interval_s: float = 1.0
    heartbeat_s: float = 1.0
    load: Load = Load()


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of events.jsonl.

    Attributes:
        time_s: Unix time of the event.
        generation: Generation number of the attempt.
        event: "failed" (an attempt ended and another can follow), "began" (an attempt has started to train),
            "scaled" (an attempt ended and one of another size follows) or "not scaled" (that was refused).
        step: Step of the run that the failed attempt had reached, or with which this attempt begins.
        source: Source that an attempt began from; see StartPoint. For "scaled" what carries the job to the
            attempt of another size: "shared memory", or "a checkpoint", with the reason if there is one.
        cause: One sentence on the cause of a failure or refusal, or on the new size.
    """

    time_s: float
    generation: int
    event: str
    step: int = 0
    source: str = ""
    cause: str = ""


class PlacementChoice(msgspec.Struct, frozen=True, kw_only=True):
    """placement.json: the decision about placement = "auto", about codecs that are Auto, and about groups.

    Attributes:
        digest: Digest of the tables and of the numbers of workers and servers, as hexadecimal text. Another
            digest makes the decision void.
        replicated: Names of the tables that are replicated; the others lie on servers.
        reasons: Sentences for people, with the estimated times.
        codecs: For each table with Auto, by name: "compression" or "pull_compression" -> name and options of
            the codec, or null for none.
        groups: Workers of each group whose updates are summed before they are sent.
        subgroups: Workers of each subgroup of a group, whose updates are summed first.
    """

    digest: str
    replicated: tuple[str, ...]
    reasons: tuple[str, ...]
    codecs: dict[str, dict[str, dict[str, Any] | None]] = {}
    groups: tuple[tuple[int, ...], ...] = ()
    subgroups: tuple[tuple[int, ...], ...] = ()


class StagesChoice(msgspec.Struct, frozen=True, kw_only=True):
    """stages.json: where a model is cut into stages by a measurement. Checkpoints also contain it.

    Attributes:
        digest: Digest of the model, the example and the limit, as hexadecimal text. Another one makes the
            choice void.
        ends: For each stage the number of modules in front of its end.
        reasons: Sentences for people, with the measured times.
    """

    digest: str
    ends: tuple[int, ...]
    reasons: tuple[str, ...] = ()


class BuffersChoice(msgspec.Struct, frozen=True, kw_only=True):
    """buffers.json: the sizes of the buffers of a run with `cluster.node_buffers_mib`.

    Attributes:
        digest: Checksum of tables, options and groups, and the numbers of servers and workers. Another one
            makes the decision void.
        shares: The sizes.
    """

    digest: str
    shares: BufferShares


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """run.json.

    Attributes:
        run_id: Name of the run directory, which is also the name of the run in its checkpoints.
        token: 128 random bits as hexadecimal text; part of the names of the run's regions in all
            generations.
        created_s: Unix time at which the directory was made.
        cwd: Folder to which relative paths of the configuration are relative.
        build: The mpips that made the directory.
    """

    run_id: str
    token: str
    created_s: float
    cwd: str
    build: Build = Build()


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """lease.json: the generation that may publish, and its supervisor.

    Attributes:
        generation: Generation number of the attempt that may publish.
        host: Host of the supervisor.
        pid: Process id of the supervisor.
        time_s: Unix time of the last renewal, for people only.
        released: The supervisor has released the lease.
        renewals: Number of times that this supervisor has written the lease. Another host detects a living
            supervisor by a change of this number, because clocks of two hosts cannot be compared.
    """

    generation: int
    host: str
    pid: int
    time_s: float
    released: bool = False
    renewals: int = 0


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Role and place of a rank of an attempt.

    Attributes:
        rank: Rank in the launch.
        role: Roles of the rank as text, such as "worker 2" or "scheduler + server 0".
        host: Name of the host.
        pid: Process id on that host.
    """

    rank: int
    role: str
    host: str
    pid: int


class StartPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The start of an attempt.

    Attributes:
        source: "nothing", "checkpoint" or "memory".
        path: Path of the checkpoint; "" for other sources.
        step: Step of the run.
        epoch: Epoch of the run.
        note: Servers whose memory came from another node; "": none.
        has_epochs: The program counts epochs, so `epoch` has a meaning.
    """

    source: str = "nothing"
    path: str = ""
    step: int = 0
    epoch: int = 0
    note: str = ""
    has_epochs: bool = True


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a run.

    Attributes:
        epoch: Greatest epoch that a worker has reported, from 0.
        step: Steps of the run: those before the start of this attempt, plus the greatest clock of a worker
            since.
        updates: Sum of the clocks of all workers since the start of this attempt.
        samples: Number of samples trained on in this attempt.
        loss: Mean over the last report interval; None: not known.
        learning_rate: Rate of the newest step, of several the first one; None: not known.
        share: Part of the whole run that is done, 0 to 1; 0 if its length is not known.
        n_epochs: Epochs of the whole run; 0: not known.
        has_epochs: Workers count epochs; `n_epochs` may be unknown even so.
        left_s: Seconds to the end at the rate of this attempt; None: not known.
        staleness: Mean staleness, in updates, of the updates judged lately; None: not known.
        push_bytes_per_s, pull_bytes_per_s: Bytes per second of all workers lately; None: not known.
        samples_per_s: Samples per second over the last report interval.
        recoverable: Steps that the next attempt would recover of all workers from memory; 0: only from
            checkpoints, or a worker has not ended a step yet.
        in_memory: The next attempt can continue in memory, if that survives.
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    samples: int = 0
    loss: float | None = None
    learning_rate: float | None = None
    share: float = 0.0
    n_epochs: int = 0
    left_s: float | None = None
    staleness: float | None = None
    push_bytes_per_s: float | None = None
    pull_bytes_per_s: float | None = None
    samples_per_s: float = 0.0
    recoverable: int = 0
    in_memory: bool = False
    has_epochs: bool = False


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """status.json.

    Attributes:
        state: "starting", "running", "restarting", "done", "preempted", "failed", "stalled".
        generation: Generation number of the attempt.
        time_s: Unix time of this content.
        restarts: Number of restarts by this supervisor until now.
        start: The start of the attempt.
        progress: Progress of the run.
        checkpoint: Newest checkpoint that this attempt has written; "": none.
        ranks: Role and place of each rank. Not in this file but in places.json; only mpips 0.2 and earlier
            wrote them here.
        message: A sentence on the state, for people.
        paths: Number of workers by the name of a path that their dense updates take (mpips.worker.paths).
        checkpoints: Number of cuts of this attempt by result: "written", "failed", "given_up", "skipped".
        test: Metrics of the last evaluation of this attempt by name.
        metrics: Address at which the scheduler answers GET /metrics; "": none.
    """

    state: str
    generation: int
    time_s: float
    restarts: int = 0
    start: StartPoint = StartPoint()
    progress: Progress = Progress()
    checkpoint: str = ""
    ranks: tuple[RankPlace, ...] = ()
    message: str = ""
    paths: dict[str, int] = {}
    checkpoints: dict[str, int] = {}
    test: dict[str, float | None] = {}
    metrics: str = ""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """places.json, which is written once for each attempt.

    Attributes:
        generation: Generation number of the attempt.
        ranks: Role and place of each rank.
    """

    generation: int
    ranks: tuple[RankPlace, ...]


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """finished.json: the mark that the run is done and all of it is durable.

    Attributes:
        generation: Generation number of the attempt that finished the run.
        time_s: Unix time of the end.
        step: Steps of the run.
        checkpoint: Last checkpoint; "": none.
    """

    generation: int
    time_s: float
    step: int
    checkpoint: str = ""
