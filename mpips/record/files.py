"""The files of a record, in the run directory.

    record/attempt-N/server-S.rec   the records that server S consumed, in order
    record/attempt-N/worker-W.rec   what the pulls of worker W have seen, and its clocks
    replay.json                     the record that this run repeats; written by `mpips replay`
    replayed-S.json                 result of the replay on server S
    breaks/NAME/step-N              checkpoint of the tables at a break of the replay

A file is a sequence of blocks: 16 bytes (tag, number of bytes, XXH3-64 of tag and bytes) and the bytes. The
first block is a `RecordHead`, the last one an `End`, both as JSON; without an `End` the rank did not end its
record. A `RecordedSwitch` may be among the others. The entries of all "data" blocks follow each other;
docs/reference/record.md describes them.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.consistency import NEVER
from mpips.rundir.directory import RunFolder, read_json

FORMAT = 2
ESTIMATED = -2  # max_staleness of a table whose servers estimate it
HEAD, DATA, SWITCH, END = b"head", b"data", b"swit", b"end "
BLOCK = struct.Struct("<4sIQ")  # tag, bytes, checksum
NO_STOP = (1 << 64) - 1  # a worker's part of the record is repeated to its end
_MOST_BYTES = 1 << 30  # bytes of a block; the writer's blocks have some 100 KiB

Role = Literal["server", "worker"]


class RecordedTable(msgspec.Struct, frozen=True):
    """A table of the recorded job.

    Attributes:
        name: Its name.
        kind: "dense" or "embedding".
        consistency: "bsp", "ssp", "asp" or "switch".
        bound: Bound of SSP, in clocks; 0 under other models.
        max_staleness: The policy reject drops staler updates; -1: another policy; -2: the servers estimate
            it from the updates, as a replay does again.
        is_adaptive: SSP("auto"): `bound` is the greatest one.
        switch_at: Switch: clock of this attempt at which BSP ends, NEVER if server 0 decides on it (the
            decision is a block of its own, see RecordedSwitch); -1: another model.
    """

    name: str
    kind: str
    consistency: str
    bound: int = 0
    max_staleness: int = -1
    is_adaptive: bool = False
    switch_at: int = -1


class RecordHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first block of a file.

    Attributes:
        format: Number of the format, FORMAT.
        role: "server" or "worker".
        index: Index of the server or worker.
        n_servers, n_workers: Numbers of ranks of the recorded job.
        tables: Its tables, in the order of their indices.
        start: "new": the attempt began with initial values; else what it continued from.
        fingerprint: Checksum of tables and options.
        begin: Clock of each worker at the start of the attempt, counted from the beginning of the run.
        writes: Generation number of the checkpoints that the attempt writes.
        origin: That of the checkpoint from which it began; -1: it began from none.
    """

    format: int
    role: Role
    index: int
    n_servers: int
    n_workers: int
    tables: tuple[RecordedTable, ...]
    start: str
    fingerprint: str
    begin: tuple[int, ...] = ()
    writes: int = 0
    origin: int = -1


class RecordedSwitch(msgspec.Struct, frozen=True):
    """A block of server 0: its decision on the clock of a Switch, or that with which the attempt began.

    A replay begins with it and measures nothing: up to that clock all ranks work under BSP, whether they know
    the clock or not.

    Attributes:
        clock: Clock of the run at which ASP begins.
        of_attempt: The same, counted from the start of the attempt; 0: the attempt began under ASP.
    """

    clock: int
    of_attempt: int


def with_switch(head: RecordHead, switch: RecordedSwitch | None) -> RecordHead:
    """Return a head in which tables under a Switch that was decided on have its clock."""
    if switch is None:
        return head
    tables = (
        msgspec.structs.replace(table, switch_at=switch.of_attempt)
        if table.switch_at == NEVER
        else table
        for table in head.tables
    )
    return msgspec.structs.replace(head, tables=tuple(tables))


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The last block of a file.

    Attributes:
        limited_at: Clock of a worker, or records of a server, at which monitor.record_mib ended the record;
            -1: it is complete.
        digests: On a server, XXH3-64 of its part of each table at the end, by name: values and states.
        bounds: On server 0, the decisions on the bound of SSP("auto"): the clock from which a bound was in
            force, and the bound. Before the first one it is 0. None: there was no such table, or there were
            too many decisions.
    """

    limited_at: int = -1
    digests: dict[str, str] = {}
    bounds: tuple[tuple[int, int], ...] | None = None


class ReplayBreak(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a replay at which its servers copy tables, for a checkpoint.

    Attributes:
        table: Name of a table: each server copies its part when it has made `number` updates of it, counted
            from the beginning of the run. "": all tables, when each worker has ended `number` steps of the
            run.
        number: Updates or steps.
    """

    table: str = ""
    number: int

    @property
    def name(self) -> str:
        """The name of its folder: "until-STEP" or "TABLE-UPDATES", with %XX for unusual characters."""
        return (
            f"{quote(self.table, safe='')}-{self.number}" if self.table else f"until-{self.number}"
        )


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """replay.json.

    Attributes:
        record: Folder of the record to repeat.
        stops: Clock of each worker, counted from the start of the attempt, at which this launch writes a
            checkpoint and ends; NO_STOP: the worker had ended before. Empty: it repeats the attempt to its
            end.
        begins: The launch begins with initial values; False: from the checkpoint of the launch before.
        breaks: Places at which the tables are copied. A launch ends at the one without a table.
    """

    record: str
    stops: tuple[int, ...] = ()
    begins: bool = True
    breaks: tuple[ReplayBreak, ...] = ()

    @property
    def until(self) -> ReplayBreak | None:
        """The place at which the launch ends; None: it goes on to the end or to `stops`."""
        return next((at for at in self.breaks if not at.table), None)


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """replayed-S.json.

    Attributes:
        records: Records that the server consumed.
        digests: As in `End`; equal to those of the record.
    """

    records: int
    digests: dict[str, str]


class RecordContent(msgspec.Struct, frozen=True):
    """The content of a file.

    Attributes:
        path: The file.
        head: Its first block.
        data: The entries.
        end: Its last block; None: the rank did not end its record, or the file is damaged from here on.
        switch: The decision on the clock of a Switch, in the file of server 0; None: no decision.
    """

    path: Path
    head: RecordHead
    data: bytes
    end: End | None
    switch: RecordedSwitch | None = None

    @property
    def is_complete(self) -> bool:
        """True if it has all entries of its rank."""
        return self.end is not None and self.end.limited_at < 0


def record_folder(run: RunFolder, generation: int) -> Path:
    """Return the folder of the record of an attempt."""
    return run.path / "record" / f"attempt-{generation}"


class RecordedAttempts(msgspec.Struct, frozen=True):
    """The attempts of a run that have a record, and those that have only a part of one.

    Attributes:
        numbers: Generation numbers of the attempts with the files of all ranks, ascending.
        left_out: By generation number, why the record of another attempt cannot be read.
    """

    numbers: list[int]
    left_out: dict[int, str]

    def notes(self) -> list[str]:
        """Return a sentence for each attempt that is left out."""
        return [f"attempt {n} is left out: {why}" for n, why in self.left_out.items()]


def recorded_attempts(run: RunFolder) -> RecordedAttempts:
    """Return the attempts that have begun a record. One whose ranks all ended before has none.

    Raises:
        ConfigError: No attempt has a record that can be read.
    """
    parent = run.path / "record"
    names = [path.name.partition("-")[2] for path in parent.glob("attempt-*")]
    numbers = sorted(int(name) for name in names if name.isdecimal())
    reasons = {n: why_left_out(record_folder(run, n)) for n in numbers}
    left_out = {n: why for n, why in reasons.items() if why}
    found = RecordedAttempts([n for n in numbers if n not in left_out], left_out)
    if not found.numbers:
        why = "; ".join(found.notes()) or "set monitor.record = true for a run to record"
        raise ConfigError(f"{parent}: contains no record; {why}")
    return found


def why_left_out(folder: Path) -> str:
    """Return why the record of an attempt cannot be read; "" if each rank has begun its file."""
    first = record_file(folder, "server", 0)
    if why := _why_no_head(first):
        return why
    head = read_head(first)
    shape: list[tuple[Role, int]] = [("server", head.n_servers), ("worker", head.n_workers)]
    files = [record_file(folder, role, i) for role, n in shape for i in range(n)]
    return next((why for file in files if (why := _why_no_head(file))), "")


def _why_no_head(path: Path) -> str:
    """Return why a file has no head; "" if it has one."""
    early = "its rank had not begun to record, or the file was"
    try:
        if not path.stat().st_size:
            return f"{path}: is empty: {early} cut off"
        read_head(path)
    except FileNotFoundError:
        return f"{path}: is missing: {early} removed"
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"
    except ConfigError as error:
        return str(error)
    return ""


def break_folder(run: RunFolder, at: ReplayBreak) -> Path:
    """Return the folder of the checkpoint of a break, in the run directory of the replay."""
    return run.path / "breaks" / at.name


def record_file(folder: Path, role: Role, index: int) -> Path:
    """Return the path of a rank's file."""
    return folder / f"{role}-{index}.rec"


def replay_order(run: RunFolder) -> ReplayOrder | None:
    """Return the record that a run repeats; None: it repeats none.

    Raises:
        ConfigError: The file is damaged.
    """
    return read_json(run.path / "replay.json", ReplayOrder)


def block(tag: bytes, data: bytes) -> bytes:
    """Return a block of a file."""
    return BLOCK.pack(tag, len(data), _checksum(tag, data)) + data


def _checksum(tag: bytes, data: bytes) -> int:
    digest = _native.Xxh3()
    digest.update(tag + data)
    return digest.digest()


def read_head(path: Path) -> RecordHead:
    """Return the first block of a file.

    Raises:
        ConfigError: The file cannot be read, has another format, or is damaged at its beginning.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(BLOCK.size)
            if len(raw) == BLOCK.size:
                raw += file.read(min(BLOCK.unpack(raw)[1], _MOST_BYTES))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return _head_of(path, _blocks(raw))


def _head_of(path: Path, blocks: list[tuple[bytes, bytes]]) -> RecordHead:
    """Return the head in the blocks of a file.

    Raises:
        ConfigError: The first block is not a head of this format.
    """
    if blocks and blocks[0][0] == HEAD:
        with contextlib.suppress(msgspec.MsgspecError):
            head = msgspec.json.decode(blocks[0][1], type=RecordHead)
            if head.format == FORMAT:
                return head
    raise ConfigError(f"{path}: is damaged, or no record of this version of mpips")


def read_record(path: Path) -> RecordContent:
    """Return the content of a file, as far as its checksums are right.

    Raises:
        ConfigError: The file cannot be read, has another format, or is damaged at its beginning.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    blocks = _blocks(raw)
    head = _head_of(path, blocks)
    end: End | None = None
    switch: RecordedSwitch | None = None
    data: list[bytes] = []
    for tag, content in blocks[1:]:
        if end is not None:
            break
        try:
            if tag == DATA:
                data.append(content)
            elif tag == SWITCH:
                switch = msgspec.json.decode(content, type=RecordedSwitch)
            elif tag == END:
                end = msgspec.json.decode(content, type=End)
        except msgspec.MsgspecError:
            break
    return RecordContent(path, head, b"".join(data), end, switch)


def _blocks(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Return tag and content of the blocks before the first damage."""
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while at + BLOCK.size <= len(raw):
        tag, n_bytes, checksum = BLOCK.unpack_from(raw, at)
        content = raw[at + BLOCK.size : at + BLOCK.size + n_bytes]
        if n_bytes > _MOST_BYTES or len(content) < n_bytes or _checksum(tag, content) != checksum:
            break
        found.append((tag, content))
        at += BLOCK.size + n_bytes
    return found


def read_all(folder: Path) -> tuple[list[RecordContent], list[RecordContent]]:
    """Return the files of the servers and of the workers of a record, by index, with the clock of the switch.

    Raises:
        ConfigError: There is no record, a file is missing or damaged, or files are of different jobs.
    """
    first = record_file(folder, "server", 0)
    if not first.exists():
        raise ConfigError(
            f"{folder}: contains no record; set monitor.record = true for a run to record"
        )
    head = read_record(first).head
    servers = [read_record(record_file(folder, "server", s)) for s in range(head.n_servers)]
    workers = [read_record(record_file(folder, "worker", w)) for w in range(head.n_workers)]
    roles = [("server", servers), ("worker", workers)]
    for role, files in roles:
        for i, file in enumerate(files):
            expected = msgspec.structs.replace(head, role=role, index=i)
            if file.head != expected:
                raise ConfigError(
                    f"{file.path}: belongs to another job than {first.name} beside it"
                )
    switch = servers[0].switch
    for files in (servers, workers):
        files[:] = [
            msgspec.structs.replace(file, head=with_switch(file.head, switch)) for file in files
        ]
    return servers, workers


def why_not_whole(files: list[RecordContent]) -> str:
    """Return why a record cannot be repeated to its end; "" if it is whole."""
    for file in files:
        name = f"{file.path.name} of the record"
        if file.end is None:
            return f"{name} has no end: the recorded attempt did not finish, or the file is damaged"
        if file.end.limited_at >= 0:
            what = "clock" if file.head.role == "worker" else "record"
            return (
                f"{name} ends at {what} {file.end.limited_at} because of monitor.record_mib: record the run "
                "again with a greater one"
            )
    return ""
