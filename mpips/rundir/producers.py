"""The programs of [producers] in the run directory, and the variables by which they find the job.

    producers.json           state of every member; written by the process that runs them
    producers/member-K.log   what member K prints, of all its starts
    queue                    name of the queues of the run, for programs that open it by its directory

That process is a child of the supervisor (mpips.supervisor.producer_process). On a full disk it goes on, and
the file is old then.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from mpips.rundir.directory import RunFolder, read_json

# Set for programs, the first for ranks as well; libmpips_client reads them (native/src/client/client.cpp).
STREAM = "MPIPS_STREAM"  # name of the queues
FIRST = "MPIPS_PRODUCER"  # number of the first producer of a program
COUNT = "MPIPS_PRODUCERS"  # number of its producers
# Marks of the programs and of all processes that come from them.
MEMBER_OF = "MPIPS_MEMBER_OF"  # the run directory
MEMBER = "MPIPS_MEMBER"  # number of the member
MEMBER_RUNNER = "MPIPS_MEMBER_RUNNER"  # the process that has started them

MemberName = Literal[
    "waiting",  # for its queues, for its turn, or for the pause before a restart
    "running",
    "ended",  # with code 0
    "failed",  # for good
    "stopped",  # by `mpips run`, before it has ended
]


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the ensemble, in producers.json.

    Attributes:
        member: Its number.
        state: "waiting", "running", "ended", "failed" or "stopped".
        pid: Process of its command; 0: it does not run.
        starts: Number of its starts, those under earlier supervisors included.
        failures: Number of its failures that count as such; see `producers.max_restarts`.
        produced: Samples that each of its producers has put into its queue, over all starts, as far as
            this was seen.
        values: The values of its parameters.
        cause: A sentence on the last failure, or "".
    """

    member: int
    state: MemberName = "waiting"
    pid: int = 0
    starts: int = 0
    failures: int = 0
    produced: tuple[int, ...] = ()
    values: dict[str, str] = {}
    cause: str = ""


class ProducersRecord(msgspec.Struct, frozen=True, kw_only=True):
    """producers.json.

    Attributes:
        host: Host of the programs.
        pid: Process that runs them.
        time_s: Unix time of this content.
        members: All members.
    """

    host: str
    pid: int
    time_s: float
    members: tuple[MemberRecord, ...] = ()


def producers_file(run: RunFolder) -> Path:
    """Return the path of producers.json."""
    return run.path / "producers.json"


def member_log(run: RunFolder, member: int) -> Path:
    """Return the path of the log of a member."""
    return run.path / "producers" / f"member-{member}.log"


def queue_file(run: RunFolder) -> Path:
    """Return the path of the file with the name of the queues."""
    return run.path / "queue"


def read_producers(run: RunFolder) -> ProducersRecord | None:
    """Return the state of the programs; None: the run has none, or they have not been started.

    Raises:
        ConfigError: The file is damaged or cannot be read.
    """
    return read_json(producers_file(run), ProducersRecord)


def queue_name(token: str, given: str = "") -> str:
    """Return the name of the queues of a run.

    Args:
        token: That of its shared memory. The name reveals nothing of it.
        given: `producers.stream`.
    """
    return given or "run-" + hashlib.blake2b(token.encode(), digest_size=10).hexdigest()


def given_name(env: Mapping[str, str] = os.environ) -> str:
    """Return the name of queues that `mpips run` has given to this process; "": none."""
    return env.get(STREAM, "")
