"""Records of attempts that were not run: one server or more, and two workers that take turns."""

from __future__ import annotations

from typing import Any

import msgspec
from record_rig import content, varint

from mpips.record.files import (
    DATA,
    END,
    HEAD,
    End,
    RecordedTable,
    RecordHead,
    Role,
    block,
    record_file,
    record_folder,
)
from mpips.record.restarts import RecordedAttempt
from mpips.rundir.directory import RunFolder

PULL, TICK, FINISH = 0x73, 0x74, 0x75
ONE = [RecordedTable("e", "embedding", "asp")]


def entry(kind: int, worker: int, table: int | None = None) -> bytes:
    """Return the entry of a server for a record."""
    return bytes([kind, worker]) + (varint(table) if table is not None else b"")


def order_of(clocks: tuple[int, ...], pulls: int = 1) -> bytes:
    """Return the entries of a server whose workers took turns, as far as these clocks."""
    data = b""
    for clock in range(max(clocks)):
        for w, end in enumerate(clocks):
            if clock < end:
                data += entry(PULL, w, 0) * pulls + entry(TICK, w)
    return data


def steps_of(clock: int) -> bytes:
    """Return the entries of a worker with so many clocks, each with one pull."""
    return b"".join(b"\x03" + varint(0) + varint(2 if n else 1) for n in range(clock))


def from_checkpoint(origin: int, *begin: int) -> dict[str, Any]:
    """Return the fields of the head of an attempt that began from a checkpoint at these clocks."""
    return {"start": f"checkpoint step-{max(begin)}", "origin": origin, "begin": begin}


def head_of(role: Role, index: int, attempt: int, n_servers: int = 1, **head: Any) -> RecordHead:
    """Return the head of a file of an attempt; `head`: fields that differ."""
    made = content(role, index, b"", ONE, n_servers, 2).head
    made = msgspec.structs.replace(made, writes=attempt, begin=(0, 0))
    return msgspec.structs.replace(made, **head)


def put(
    run: RunFolder, attempt: int, role: Role, index: int, data: bytes, end: End | None, **head: Any
) -> None:
    """Write one file of the record of an attempt. `head`: as in `head_of`."""
    folder = record_folder(run, attempt)
    folder.mkdir(parents=True, exist_ok=True)
    made = head_of(role, index, attempt, **head)
    blocks = block(HEAD, msgspec.json.encode(made)) + block(DATA, data)
    blocks += block(END, msgspec.json.encode(end)) if end is not None else b""
    record_file(folder, role, index).write_bytes(blocks)


def write(
    run: RunFolder,
    attempt: int,
    clocks: tuple[int, ...],
    *,
    ended: bool = False,
    n_servers: int = 1,
    **head: Any,
) -> None:
    """Write the record of an attempt that came to these clocks. `head`: as in `head_of`."""
    end = End() if ended else None
    for s in range(n_servers):
        put(run, attempt, "server", s, order_of(clocks), end, n_servers=n_servers, **head)
    for w, clock in enumerate(clocks):
        put(run, attempt, "worker", w, steps_of(clock), end, n_servers=n_servers, **head)


def attempts_of(*data: bytes, end: End | None = End(), **heads: Any) -> list[RecordedAttempt]:  # noqa: B008
    """Return attempts of one server and two workers, from the entries of the server.

    Args:
        data: Entries by attempt.
        end: Last block of the server's file of the first attempt.
        heads: head_N: fields of the heads of attempt N that differ.
    """
    found = []
    for i, order in enumerate(data):
        servers = [content("server", 0, order, ONE, 1, 2, end=End() if i else end)]
        workers = [content("worker", w, b"", ONE, 1, 2) for w in range(2)]
        head = {"writes": i, "begin": (0, 0), **heads.get(f"head_{i}", {})}
        made = [
            msgspec.structs.replace(f, head=msgspec.structs.replace(f.head, **head))
            for f in (*servers, *workers)
        ]
        found.append(RecordedAttempt(i, made[:1], made[1:]))
    return found
