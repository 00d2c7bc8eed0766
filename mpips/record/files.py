"""The files of a record, in the run directory.

    record/attempt-N/server-S.rec   the records that server S consumed, in order
    record/attempt-N/worker-W.rec   what the pulls of worker W have seen, and its clocks
    replay.json                     the record that this run repeats; written by `mpips replay`
    replayed-S.json                 result of the replay on server S

A file is a sequence of blocks: 16 bytes (tag, number of bytes, XXH3-64 of tag and bytes) and the bytes. The
first block is a `RecordHead`, the last one an `End`, both as JSON; without an `End` the rank did not end its
record. The entries of all "data" blocks follow each other; docs/reference/record.md describes them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal

import msgspec

from mpips import _native
from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder, read_json

FORMAT = 2
ESTIMATED = -2  # max_staleness of a table whose servers estimate it
HEAD, DATA, END = b"head", b"data", b"end "
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
        switch_at: Switch: clock of this attempt at which BSP ends; -1: another model.
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


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """replay.json.

    Attributes:
        record: Folder of the record to repeat.
        stops: Clock of each worker, counted from the start of the attempt, at which this launch writes a
            checkpoint and ends; NO_STOP: the worker had ended before. Empty: it repeats the attempt to its
            end.
        begins: The launch begins with initial values; False: from the checkpoint of the launch before.
    """

    record: str
    stops: tuple[int, ...] = ()
    begins: bool = True


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
    """

    path: Path
    head: RecordHead
    data: bytes
    end: End | None


def record_folder(run: RunFolder, generation: int) -> Path:
    """Return the folder of the record of an attempt."""
    return run.path / "record" / f"attempt-{generation}"


def recorded_attempts(run: RunFolder) -> list[int]:
    """Return the generation numbers of the attempts that have a record, ascending.

    An attempt that ended before all its ranks had begun to record has none.

    Raises:
        ConfigError: No attempt has one.
    """
    parent = run.path / "record"
    names = [path.name.partition("-")[2] for path in parent.glob("attempt-*")]
    found = sorted(int(name) for name in names if name.isdecimal())
    found = [n for n in found if _has_all(record_folder(run, n))]
    if not found:
        raise ConfigError(
            f"{parent}: contains no record; set monitor.record = true for a run to record"
        )
    return found


def _has_all(folder: Path) -> bool:
    """Return True if every rank of an attempt has made its file."""
    try:
        head = read_record(record_file(folder, "server", 0)).head
    except ConfigError:
        return False
    shape: list[tuple[Role, int]] = [("server", head.n_servers), ("worker", head.n_workers)]
    return all(record_file(folder, role, i).exists() for role, n in shape for i in range(n))


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


def read_record(path: Path) -> RecordContent:
    """Return the content of a file, as far as its checksums are right.

    Raises:
        ConfigError: The file cannot be read, has another format, or is damaged at its beginning.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    head: RecordHead | None = None
    end: End | None = None
    data: list[bytes] = []
    for tag, content in _blocks(raw):
        try:
            if head is None:
                head = msgspec.json.decode(content, type=RecordHead) if tag == HEAD else None
                if head is None or head.format != FORMAT:
                    break
            elif tag == DATA and end is None:
                data.append(content)
            elif tag == END and end is None:
                end = msgspec.json.decode(content, type=End)
        except msgspec.MsgspecError:
            break
    if head is None or head.format != FORMAT:
        raise ConfigError(f"{path}: is damaged, or no record of this version of mpips")
    return RecordContent(path, head, b"".join(data), end)


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
    """Return the files of the servers and of the workers of a record, by index.

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
