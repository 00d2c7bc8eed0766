"""Control messages between ranks and the scheduler: small values, encoded with msgpack, never pickled.

Control messages carry no gradients and no parameters, and a training step as such sends none.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from mpips.model.best_value import BestValue


class TableRows(msgspec.Struct, array_like=True):
    """Accesses to the rows of an embedding table on one server lately, per second.

    Attributes:
        pulls_per_s, pushes_per_s: Rows pulled and pushed.
        rows: For the hottest rows, these first: key, pulls per second, pushes per second. They are estimates
            from a sample.
    """

    pulls_per_s: float = 0.0
    pushes_per_s: float = 0.0
    rows: list[tuple[int, float, float]] = []


class Figures(msgspec.Struct, array_like=True):
    """Counts of a rank since its start, which the terminal and the run's files show.

    Attributes:
        at: Monotonic clock of the rank, seconds.
        samples: Number of samples trained on (workers).
        records: Number of records written to rings (workers) or consumed (servers).
        pushed_bytes: Bytes of updates sent (workers), or of records consumed (servers).
        pulled_bytes: Bytes of values fetched (workers), or of rows sent as replies (servers).
        judged: Number of updates that have been applied, rejected or discarded as late.
        staleness_sum: Sum of the staleness of these updates, clocks.
        max_staleness: Largest staleness of one update, clocks.
        queue: Number of records in rings that are not consumed yet.
        memory_bytes: Bytes of shards and rings (servers).
        elapsed_s: Seconds since the work began (workers).
        wait_s, push_s, pull_s, snapshot_s: Those of them in which the worker waited for others, pushed,
            pulled, and took part in a checkpoint.
        push_saved_bytes, pull_saved_bytes: Bytes by which codecs have made the bytes above fewer (workers).
        heap_bytes: Memory of this process that it shares with none.
        shm_used_bytes, shm_total_bytes: Use and size of /dev/shm on the rank's node (servers).
        staleness: Number of updates by their staleness from 0 on, without zeros at the end; the last of 65
            entries counts all greater ones, too (servers).
        tables: Updates of the values of a table by its index, for the tables with most of them (servers).
        links: Bytes pushed to and pulled from each server (workers); empty for very many servers.
        limits: Rows that were made, refused, evicted and made again, by the index of their table, for tables
            with limits (servers).
        stored: Rows that lie in a file now, and rows that have moved from there to memory and from memory to
            there, by the index of their table, for tables with storage (servers).
        rows: Accesses to rows by the index of their table, for the embedding tables with most of them
            (servers); empty if the job is not observed.
        bound: The bound of SSP("auto") that was decided on last (server 0); -1: no table has such a bound.
        switched: Tables under Switch are under ASP (1) or under BSP (0) at this server; -1: no such table.
        backup: Number of backup workers that was decided on last (servers); -1: it is fixed.
    """

    at: float = 0.0
    samples: int = 0
    records: int = 0
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    judged: int = 0
    staleness_sum: int = 0
    max_staleness: int = 0
    queue: int = 0
    memory_bytes: int = 0
    elapsed_s: float = 0.0
    wait_s: float = 0.0
    push_s: float = 0.0
    pull_s: float = 0.0
    snapshot_s: float = 0.0
    push_saved_bytes: int = 0
    pull_saved_bytes: int = 0
    heap_bytes: int = 0
    shm_used_bytes: int = 0
    shm_total_bytes: int = 0
    staleness: list[int] = []
    tables: dict[int, int] = {}
    links: list[tuple[int, int]] = []
    rows: dict[int, TableRows] = {}
    limits: dict[int, tuple[int, int, int, int]] = {}
    stored: dict[int, tuple[int, int, int]] = {}
    bound: int = -1
    switched: int = -1
    backup: int = -1


class Heartbeat(msgspec.Struct, tag="beat"):
    """A heartbeat to the scheduler from every rank; see mpips.mpi.intervals for its interval.

    Attributes:
        state: Activity of the rank.
        clock: Clock of a worker.
        figures: Counts of the rank.
        speed: Inner steps per second of a worker whose period depends on it; else 0.
    """

    state: str
    clock: int
    figures: Figures | None = None
    speed: float = 0.0


class Pong(msgspec.Struct, tag="pong"):
    """The scheduler's answer to a heartbeat.

    Attributes:
        at_ns: Monotonic clock of the scheduler when it has received the heartbeat, ns.
        fastest: Greatest speed in the newest heartbeats of workers that still work; 0: none has one.
    """

    at_ns: int = 0
    fastest: float = 0.0


class Trace(msgspec.Struct, tag="trace"):
    """An order to all ranks to record their events.

    Attributes:
        name: Name of the trace.
        steps: Number of clocks after which a worker ends its part.
    """

    name: str
    steps: int


class TraceEnd(msgspec.Struct, tag="trace-end"):
    """An order to end this trace now: to servers when all workers have, to all ranks when it is given up."""

    name: str


class ReportDetails(msgspec.Struct, array_like=True):
    """Parts of a report that only some programs send.

    Attributes:
        loss_weight: Number of samples of which `loss_sum` is the sum; of steps, where samples are not
            counted; None: all samples of the report.
        has_epoch: The program counts epochs.
        n_epochs: Epochs of the run; 0: unknown.
        share: Part of the run that this worker has done, 0 to 1.
        rates: Learning rates: one, or that of each param group where they differ; empty: unknown.
        by_library: A library of the script has found the losses. They do not count beside those that the
            script reports itself, on any worker.
    """

    loss_weight: int | None = None
    has_epoch: bool = False
    n_epochs: int = 0
    share: float = 0.0
    rates: list[float] = []
    by_library: bool = False

    def with_missing(self, before: ReportDetails) -> ReportDetails:
        """Return these details, with those parts of the report before that they lack."""
        return msgspec.structs.replace(
            self if self.n_epochs else before,
            loss_weight=self.loss_weight,
            has_epoch=self.has_epoch or before.has_epoch,
            rates=self.rates or before.rates,
            by_library=self.by_library and before.by_library,
        )


class Report(msgspec.Struct, tag="report", omit_defaults=True):
    """Progress of a worker since its last report.

    Attributes:
        epoch: Current epoch.
        step: Current step.
        samples: Number of samples since the last report.
        loss_sum: Sum of the loss of these samples.
        clock: Current clock of the worker.
        details: Further parts; None: the program sends none.
    """

    epoch: int
    step: int
    samples: int
    loss_sum: float
    clock: int
    details: ReportDetails | None = None

    @property
    def loss_weight(self) -> int:
        """Number of samples or steps of which `loss_sum` is the sum."""
        weight = self.details.loss_weight if self.details is not None else None
        return self.samples if weight is None else weight

    @property
    def is_by_library(self) -> bool | None:
        """True: a library has found the losses; False: the script; None: a program without a library."""
        return None if self.details is None else self.details.by_library

    def add(self, before: Report) -> None:
        """Add the report before, which was not sent. Its details count where this one has none.

        If one of the two has losses of a library and the other those of the script, the latter count.
        """
        own, other = self.is_by_library, before.is_by_library
        if own is not None or other is not None:
            counted = [
                one
                for one, replaced in (
                    (self, own and other is False),
                    (before, other and own is False),
                )
                if not replaced
            ]
            weight = sum(one.loss_weight for one in counted)
            loss_sum = sum(one.loss_sum for one in counted)
            details = self.details or before.details
            assert details is not None
            if self.details is not None and before.details is not None:
                details = self.details.with_missing(before.details)
            self.details = msgspec.structs.replace(details, loss_weight=weight)
            self.loss_sum = loss_sum
        else:
            self.loss_sum += before.loss_sum
        self.samples += before.samples


Evaluation: TypeAlias = Literal["validation", "test"]  # name of data that is evaluated


class Evaluated(msgspec.Struct, tag="evaluated"):
    """Metrics of validation or test data, from worker 0.

    Attributes:
        epochs: Number of epochs of the run that were done.
        step: Step of the run.
        metrics: Values by name.
        of: The data that was evaluated.
    """

    epochs: int
    step: int
    metrics: dict[str, float]
    of: Evaluation = "test"


END_OF_SCRIPT = "the end of the script"  # the last place of a StepCount


class StepCount(msgspec.Struct, tag="steps"):
    """Number of steps that a worker has made at a place of its program.

    Attributes:
        place: The place, for errors; the same on all workers.
        steps: Steps since the beginning of the run.
        rates: Hyperparameters of the newest step, as text that is equal if they are; "": unknown.
    """

    place: str
    steps: int
    rates: str = ""


class SampleDigest(msgspec.Struct, tag="samples"):
    """Digest of samples that must be the same on all workers.

    Attributes:
        place: The samples, for errors; the same on all workers.
        digest: Digest of their contents, or their number, 0 to 2^64 - 1.
    """

    place: str
    digest: int


class Done(msgspec.Struct, tag="done"):
    """Sent when a worker has finished or a server has stopped, with its statistics as JSON."""

    statistics: bytes


class Stop(msgspec.Struct, tag="stop"):
    """Sent to servers when all workers have finished."""


class Bye(msgspec.Struct, tag="bye"):
    """Sent to all ranks when all are done, so that they leave.

    Attributes:
        statistics: Statistics of the job as JSON; see mpips.scheduler.job_statistics.
        complete: True if they contain the entries of all ranks; False: totals only.
    """

    statistics: bytes
    complete: bool = False


class Leave(msgspec.Struct, tag="leave"):
    """Sent to all ranks when the checkpoint is durable after which the job ends.

    Attributes:
        why: Reason for the end, for the error of each rank.
        in_memory: The checkpoint is in shared memory; see LeavingError.
    """

    why: str
    in_memory: bool = False


class Failure(msgspec.Struct, tag="fail"):
    """An error of a rank. The scheduler prints it and ends the job with this exit code."""

    message: str
    exit_code: int


class Ask(msgspec.Struct, tag="ask"):
    """A request to the scheduler for a checkpoint now.

    Attributes:
        reason: "call", "signal", "steps", or "end": the job ends when the checkpoint is written; or "best":
            all workers wait for the checkpoint.
        at: Time of the request: monotonic seconds of this process; its age in seconds while it is sent to
            another process, because processes on two nodes have no common clock.
        clock: Clock of the worker that sends the request.
        why: Name of the signal, if any.
        best: Reason "best": the value for which the checkpoint is written.
    """

    reason: str
    at: float = 0.0
    clock: int = 0
    why: str = ""
    best: BestValue | None = None

    def across(self, now: float) -> Ask:
        """Return the message with `at` turned from a time into an age before it is sent, and back after it.

        Args:
            now: Monotonic time of the process that sends or receives it.
        """
        return msgspec.structs.replace(self, at=now - self.at)


class Propose(msgspec.Struct, tag="propose"):
    """A question to workers whether they can cut at this clock; a worker that can waits there for Commit."""

    id: int
    clock: int


class Agreed(msgspec.Struct, tag="agreed"):
    """A worker's answer to Propose.

    Attributes:
        id: Number of the cut.
        ok: True if the worker can cut at the proposed clock, because it has not reached it.
        clock: Current clock of the worker.
    """

    id: int
    ok: bool
    clock: int


HERE = -1  # `Commit.clock` of a cut at the place where all workers wait for it


class Commit(msgspec.Struct, tag="commit"):
    """An order to servers and workers to cut.

    Attributes:
        id: Number of the cut.
        clock: Workers cut at the first tick at or after this clock; HERE: where they wait.
        best: The value for which the checkpoint of this cut is marked as the best one; None: it is not.
        folder: The folder in shared memory into which the checkpoint of this cut is written
            (mpips.recovery.exchange); "": the folder of checkpoints.
    """

    id: int
    clock: int
    best: BestValue | None = None
    folder: str = ""


ONLY = Commit(
    1, 0
)  # the cut of a replay, which coordinator, servers and workers have from its record


class BestProgress(msgspec.Struct, tag="best"):
    """The progress of a checkpoint of the best values, sent to the workers that wait for it.

    Attributes:
        is_over: True: the checkpoint is durable, or is not written. False: it is still under way.
        path: Path of the checkpoint; "" if it is not written, or not yet.
    """

    is_over: bool
    path: str = ""


class Abandon(msgspec.Struct, tag="abandon"):
    """An order to servers and workers to forget this cut; its records have no effect."""

    id: int


class Waits(msgspec.Struct, tag="waits"):
    """Sent to the scheduler by a worker whose wait can delay a committed cut.

    Attributes:
        id: Number of the cut.
        how: "before": the worker waits in a gather, where it cannot write its cut record; "over": that
            gather has ended; "behind": the worker waits for a server that has not consumed its cut record.
    """

    id: int
    how: str


class Taken(msgspec.Struct, tag="taken"):
    """Sent by a server when it has its copy, or, with `ok` False, when it cannot have one.

    Attributes:
        id: Number of the cut.
        ok: True if the server has its copy.
        why: The reason if not; "": it has held rings for too long.
    """

    id: int
    ok: bool
    why: str = ""


class Write(msgspec.Struct, tag="write"):
    """An order to servers to write their copies, because all of them have one."""

    id: int


class Attachment(msgspec.Struct, tag="attachment"):
    """A part of an array that checkpoints contain beside the tables.

    Worker 0 sends it to the scheduler, which passes it on to server 0.

    Attributes:
        name: Path of the array in the HDF5 file; see `mpips.checkpoint.structure.meaning_of`.
        shape: Shape of the whole array.
        start: First byte of this part.
        data: Bytes of this part, little-endian.
        dtype: Type of the array, as NumPy names it.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    data: bytes
    dtype: str = "<f8"


LAST = 0  # `Saved.id` of the checkpoint at the end of a job, which needs no cut


class Saved(msgspec.Struct, tag="saved"):
    """The end of a cut on one server; with id LAST, the reason for which the last checkpoint must wait.

    Attributes:
        id: Number of the cut, or LAST.
        path: Path of the checkpoint, which is durable; "" if there is no checkpoint.
        error: Reason for which there is no checkpoint; "" if there is one.
        note: Failure after the checkpoint was durable; "" if there was no failure.
    """

    id: int
    path: str
    error: str
    note: str = ""


Message = (
    Heartbeat
    | Pong
    | Trace
    | TraceEnd
    | Report
    | Evaluated
    | StepCount
    | SampleDigest
    | Done
    | Stop
    | Bye
    | Leave
    | Failure
    | Ask
    | Propose
    | Agreed
    | Commit
    | Abandon
    | Waits
    | Taken
    | Attachment
    | Write
    | Saved
    | BestProgress
)
ToWorker = Propose | Commit | Abandon | BestProgress
ToServer = Commit | Abandon | Write | Attachment

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Message).decode
