"""The memory of embedding tables whose number of rows is declared: a start with too little is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mpips.errors import RegionError
from mpips.model.placement import embedding_memory
from mpips.model.table import EmbeddingTable, Table
from mpips.process.memory import free_bytes

SHM = "/dev/shm"


def declared(tables: Sequence[Table]) -> list[EmbeddingTable]:
    """Return the tables whose number of rows is declared."""
    return [t for t in tables if isinstance(t, EmbeddingTable) and t.expected_rows]


def server_bytes(tables: Sequence[Table], n_servers: int) -> tuple[int, int]:
    """Return the bytes of all expected rows on one server, and of the private maps to them.

    Rows are in equal shares, which hashed keys nearly have.
    """
    sizes = [embedding_memory(t, t.expected_rows, n_servers) for t in declared(tables)]
    return sum(s.row_bytes + s.key_bytes for s in sizes), sum(s.map_bytes for s in sizes)


def describe(tables: Sequence[Table], n_servers: int) -> str:
    """Return a line on the expected rows and their memory; "" without any."""
    found = declared(tables)
    if not found:
        return ""
    n_bytes = n_servers * sum(server_bytes(tables, n_servers))
    names = ", ".join(f"{t.name} {t.expected_rows:,}" for t in found)
    servers = f"{n_servers} servers" if n_servers > 1 else "1 server"
    return f"expected rows: {names}; {n_bytes / 2**20:,.1f} MiB on {servers}"


def check_room(tables: Sequence[Table], n_servers: int, here: int, shared: bool) -> None:
    """Refuse a start whose expected rows do not fit into the memory of this node.

    Nothing is reserved: what is free is compared, when the servers of this node are made.

    Args:
        tables: Tables of the job.
        n_servers: Number of servers.
        here: Shards, with replicas, that this node has.
        shared: Rows lie in /dev/shm, not in private memory.

    Raises:
        RegionError: There is too little memory.
    """
    rows, maps = server_bytes(tables, n_servers)
    if not rows:
        return
    free = free_bytes()[0]
    shm = _free_shm() if shared else None
    for needed, available, where in (
        (here * (rows + maps), free or None, "memory"),
        (here * rows, shm, "/dev/shm"),
    ):
        if available is not None and needed > available:
            names = ", ".join(f"{t.name} ({t.expected_rows:,})" for t in declared(tables))
            raise RegionError(
                f"{where} is too small: the rows that tables are expected to have ({names}) need "
                f"{needed / 2**20:,.0f} MiB on this node, {available / 2**20:,.0f} MiB are free; expect "
                "fewer rows (a stream: less capacity), or use servers on several nodes"
            )


def _free_shm() -> int | None:
    """Return the free bytes of /dev/shm; None if they are unknown."""
    try:
        space = os.statvfs(SHM)
    except OSError:
        return None
    return space.f_frsize * space.f_bavail
