"""What ranks and the scheduler tell each other: small msgpack values, never pickled.

Control messages carry no gradients and no parameters; their number per step is zero.
"""

from __future__ import annotations

import msgspec


class Figures(msgspec.Struct, array_like=True):
    """What a rank has counted since its start; for people.

    Attributes:
        at: Its monotonic clock, seconds.
        samples: Trained on (workers).
        records: Written to rings (workers), consumed (servers).
        pushed_bytes: Of updates sent (workers), of records taken (servers).
        pulled_bytes: Of values fetched (workers), of rows answered (servers).
        judged, staleness_sum: Updates whose fate is known, and their staleness, summed.
        max_staleness: Of one update.
        queue: Records in rings that are not consumed yet.
        memory_bytes: Of shards and rings (servers).
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


class Heartbeat(msgspec.Struct, tag="beat"):
    """A heartbeat, about once a second from every rank."""

    state: str
    clock: int
    figures: Figures | None = None


class Pong(msgspec.Struct, tag="pong"):
    """The scheduler's answer to a heartbeat."""


class Report(msgspec.Struct, tag="report"):
    """Progress of a worker since its last report."""

    epoch: int
    step: int
    samples: int
    loss_sum: float
    clock: int


class Evaluated(msgspec.Struct, tag="evaluated"):
    """Metrics of the test data when so many epochs of the run were done; from worker 0."""

    epochs: int
    step: int
    metrics: dict[str, float]


class Contribution(msgspec.Struct, tag="part"):
    """A worker's part of a gather; `name` is unique in the run.

    The whole goes to every worker, or to worker 0 alone.
    """

    name: str
    payload: bytes
    everyone: bool


class Gathered(msgspec.Struct, tag="whole"):
    """All workers' parts, by worker index."""

    name: str
    payloads: list[bytes]


class Done(msgspec.Struct, tag="done"):
    """A worker has finished, or a server has stopped; its statistics as JSON."""

    statistics: bytes


class Stop(msgspec.Struct, tag="stop"):
    """To servers: all workers have finished."""


class Bye(msgspec.Struct, tag="bye"):
    """To all: everything is in; leave. The collected statistics as JSON."""

    statistics: bytes


class Leave(msgspec.Struct, tag="leave"):
    """To all: the checkpoint after which the job was to end is durable; leave."""

    why: str


class Failure(msgspec.Struct, tag="fail"):
    """A rank cannot go on. The scheduler prints it and ends the job with its exit code."""

    message: str
    exit_code: int


class Ask(msgspec.Struct, tag="ask"):
    """To the scheduler: somebody wants a checkpoint now.

    `reason` is "call", "signal", "end" or "steps"; `at` is a time by the monotonic clock of this process, and
    an age in seconds on the way to another; `clock` is the worker's; `why` names the signal. "end": the job
    is to end when the checkpoint is written.
    """

    reason: str
    at: float = 0.0
    clock: int = 0
    why: str = ""

    def across(self, now: float) -> Ask:
        """Return the message as it is sent to another process, or as it was before it was sent.

        Args:
            now: Monotonic time of the process that sends or receives it.
        """
        return msgspec.structs.replace(self, at=now - self.at)


class Propose(msgspec.Struct, tag="propose"):
    """To workers: can you cut at this clock? A worker that can waits there for the decision."""

    id: int
    clock: int


class Agreed(msgspec.Struct, tag="agreed"):
    """A worker's answer: whether `clock`, where it is now, is still before the one proposed."""

    id: int
    ok: bool
    clock: int


class Commit(msgspec.Struct, tag="commit"):
    """To servers and workers: cut at the first tick at or after this clock."""

    id: int
    clock: int


class Abandon(msgspec.Struct, tag="abandon"):
    """To servers and workers: forget this cut; its records hold nothing."""

    id: int


class Waits(msgspec.Struct, tag="waits"):
    """To the scheduler: a worker waits, and a committed cut has to do with it.

    Attributes:
        id: Number of the cut.
        how: "before": in a gather, where it cannot write its cut record; "over": that gather has ended;
            "behind": for a server, with its cut record written and not consumed.
    """

    id: int
    how: str


class Taken(msgspec.Struct, tag="taken"):
    """A server has its copy, or (not `ok`) has held rings for too long without coming to it."""

    id: int
    ok: bool


class Write(msgspec.Struct, tag="write"):
    """To servers: all have their copies; write them."""

    id: int


LAST = 0  # stands for the checkpoint at the end of a job, which is no cut


class Saved(msgspec.Struct, tag="saved"):
    """The end of a cut on one server, or, with id LAST, why the checkpoint at the end must wait.

    Attributes:
        id: Number of the cut, or LAST.
        path: Of the checkpoint, which is durable; "" if there is none.
        error: Why there is none; "" if there is one.
        note: What failed after the checkpoint was durable; "" if nothing did.
    """

    id: int
    path: str
    error: str
    note: str = ""


Message = (
    Heartbeat
    | Pong
    | Report
    | Evaluated
    | Contribution
    | Gathered
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
    | Write
    | Saved
)
ToWorker = Propose | Commit | Abandon
ToServer = Commit | Abandon | Write

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Message).decode
