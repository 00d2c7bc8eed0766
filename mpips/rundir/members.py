"""Members of an elastic run: hosts that are lent to it, as files of its run directory.

    joins/NAME.json   written by one `mpips join`, which renews it every `RENEW_S` seconds
    members.json      written by the supervisor: what became of every source of hosts

Each file has one writer and is replaced by a rename. A join reads in members.json when its hosts are free
again; the supervisor reads in the record of a join that they must leave. Times that one host writes are for
people only: each side judges the other one by changes of its file in its own running time, because clocks of
two hosts cannot be compared.

A user who may write into the run directory may lend hosts to it; the files need no other protection.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder, read_json, replace_json
from mpips.rundir.reading import DAMAGED, names_in, read_regular

RENEW_S = 2.0  # seconds between two renewals of the record of a join
_HOST = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST = 4096  # records of joins that are read

MemberState: TypeAlias = Literal[
    "checking", "unreachable", "ready", "in use", "leaving", "left", "refused"
]
HostName: TypeAlias = Annotated[str, msgspec.Meta(pattern=_HOST, max_length=255)]
Slots: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=999_999)]


class JoinRecord(msgspec.Struct, frozen=True, kw_only=True):
    """joins/NAME.json: hosts that a process lends to a run.

    Attributes:
        hosts: Names of the hosts with their numbers of slots.
        host: Host of the process.
        pid: Process id there.
        job: Number of the Slurm job that has the hosts; "": they are reached as those of the run.
        left_s: Seconds until the hosts are gone, at the time of this renewal; None: no limit is known.
        leaving: The hosts must be given back now.
        renewals: Number of times that the record has been written; a change of it is a sign of life.
    """

    hosts: Annotated[tuple[tuple[HostName, Slots], ...], msgspec.Meta(min_length=1)]
    host: str
    pid: int
    job: Annotated[str, msgspec.Meta(pattern=r"^[0-9_]*$", max_length=32)] = ""
    left_s: float | None = None
    leaving: bool = False
    renewals: int = 0


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """A source of hosts, in members.json.

    Attributes:
        source: "hosts" (of `mpips run`, its hostfile or its allocation), or the name of a join.
        hosts: Names of its hosts.
        slots: Sum of their slots.
        state: "checking" (are they reachable?), "unreachable" (asked again later), "ready" (not needed now),
            "in use", "leaving" (the job still has ranks there), "left" or "refused".
        since_s: Unix time, by the supervisor's clock, since which the source is known.
        until_s: Unix time at which its time limit ends, by the supervisor's clock; None: no limit is known.
        cause: A sentence on the state, or "".
    """

    source: str
    hosts: tuple[str, ...]
    slots: int
    state: MemberState
    since_s: float = 0.0
    until_s: float | None = None
    cause: str = ""


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """members.json of an elastic run.

    Attributes:
        n_ranks: Ranks of the last attempt; 0: none has begun.
        rows: All sources of hosts.
    """

    n_ranks: int = 0
    rows: tuple[MemberRow, ...] = ()


def members_file(run: RunFolder) -> Path:
    """Return the path of members.json."""
    return run.path / "members.json"


def read_members(run: RunFolder) -> Members | None:
    """Return the members of a run; None: the run is not elastic, or its supervisor has not begun.

    Raises:
        ConfigError: The file is damaged or cannot be read.
    """
    return read_json(members_file(run), Members)


class JoinFolder:
    """The records of joins of a run."""

    def __init__(self, run: RunFolder) -> None:
        """Take the folder of `run`, which need not exist yet."""
        self._run = run
        self.path = run.path / "joins"

    def write(self, name: str, record: JoinRecord) -> None:
        """Write or renew the record of a join.

        Raises:
            ConfigError: The folder cannot be written to.
        """
        try:
            self.path.mkdir(exist_ok=True)
            replace_json(self.path / f"{name}.json", record)
        except OSError as error:
            raise ConfigError(
                f"{self.path}: cannot be written: {error.strerror}; join as the owner of the run"
            ) from None

    def remove(self, name: str) -> None:
        """Remove the record of a join, if it is there."""
        with contextlib.suppress(OSError):
            (self.path / f"{name}.json").unlink(missing_ok=True)

    def read(self) -> dict[str, JoinRecord]:
        """Return the records by name, in the order of the names. Other files are left out."""
        found: dict[str, JoinRecord] = {}
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = names_in(self.path, within=self._run.path)
        for file in names[:_MOST]:
            name, dot, kind = file.rpartition(".")
            if not dot or kind != "json" or not _NAME.fullmatch(name):
                continue
            with contextlib.suppress(OSError, *DAMAGED):
                text = read_regular(self.path / file, within=self._run.path)
                found[name] = msgspec.json.decode(text, type=JoinRecord)
        return found
