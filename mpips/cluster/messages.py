"""What ranks and the scheduler tell each other: small msgpack values, never pickled.

Control messages carry no gradients and no parameters; their number per step is zero.
"""

from __future__ import annotations

import msgspec


class Heartbeat(msgspec.Struct, tag="beat"):
    """A sign of life, about once a second from every rank."""

    state: str
    clock: int


class Pong(msgspec.Struct, tag="pong"):
    """The scheduler's answer to a heartbeat."""


class Report(msgspec.Struct, tag="report"):
    """Progress of a worker since its last report."""

    epoch: int
    step: int
    samples: int
    loss_sum: float


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


class Failure(msgspec.Struct, tag="fail"):
    """A rank cannot go on. The scheduler prints it and ends the job with its exit code."""

    message: str
    exit_code: int


Message = Heartbeat | Pong | Report | Contribution | Gathered | Done | Stop | Bye | Failure

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Message).decode
