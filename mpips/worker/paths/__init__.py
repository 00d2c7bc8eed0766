"""The paths of dense updates from a worker to its servers. The file to open first is this one.

A handle chooses its paths once, when it is made:

    path          file            taken where
    -------------------------------------------------------------------------------------------------
    direct        direct.py       all servers of the table share this node, and an update travels as it is:
                                  no base values, no clip_norm. One native call for all servers.
    shared        shared.py       this server shares the node, but the direct path does not serve the table
    rendezvous    rendezvous.py   this server is on another node, and its part is large and fits into the
                                  worker's rendezvous buffer there
    ring          ring.py         any other server on another node: records in its ring carry the values
    encoded       encoded.py      all servers of a table with a codec: records carry encoded values
    feedback      feedback.py     the same for a codec that sends a part of the values, and keeps the rest
    shared scales shared_scales.py  the same for a codec whose scales all workers share; until there are
                                  scales, an update takes the shared, rendezvous or ring path

The direct path is per table; the others are per table and server. It remains to be decided at each
push where the caller's array lies: memory from `Worker.allocate` is read in place (direct, shared) or put
without a wait (rendezvous).

`DenseHandle.push` takes the direct path where there is one. All other updates are checked, clipped and cut
into the servers' parts in `DenseHandle._push_by_parts`. The encoded path receives the whole update instead of
a part, since the blocks of a codec are those of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mpips.model.codec import Biased, SharedInt8
from mpips.model.consistency import needs_base
from mpips.model.placement import AREA_FROM_BYTES
from mpips.model.table import DenseTable, Table
from mpips.transport.channel import Channel, MemoryChannel, ShmChannel
from mpips.worker.paths.encoded import EncodedPath
from mpips.worker.paths.feedback import FeedbackPath
from mpips.worker.paths.path import ONE_RECORD, DensePath
from mpips.worker.paths.rendezvous import RendezvousPath
from mpips.worker.paths.ring import RingPath
from mpips.worker.paths.shared import SharedPath
from mpips.worker.paths.shared_scales import SharedScalesPath

if TYPE_CHECKING:
    from mpips.model.placement import Placement, ShardRange
    from mpips.worker.connection import Connection

_SMALL_BYTES = 16 << 10  # of an update that one call checks and copies without giving up the GIL


def has_direct_path(
    table: DenseTable, parts: Sequence[ShardRange], is_remote: Sequence[bool]
) -> bool:
    """Return whether the direct path serves a table.

    Args:
        table: The table.
        parts: The servers' parts of the flattened tensor.
        is_remote: For each part, True if the worker does not use the shared memory of its server.
    """
    travels_as_it_is = (
        not needs_base(table.consistency)
        and table.clip_norm == 0
        and table.compression is None
        and table.pull_compression is None
    )
    fits = all(part.stop - part.start <= ONE_RECORD for part in parts)
    return travels_as_it_is and fits and not any(is_remote)


def path_to_server(table: DenseTable, part: ShardRange, is_remote: bool, area_bytes: int) -> str:
    """Return the name of the path to one server, of a table without a direct path.

    Args:
        table: The table.
        part: The server's part of the flattened tensor.
        is_remote: True if the worker does not use the shared memory of the server.
        area_bytes: Length of the worker's rendezvous buffer at the server.
    """
    if table.compression is not None:
        if isinstance(table.compression, SharedInt8):
            return SharedScalesPath.name
        return (FeedbackPath if isinstance(table.compression, Biased) else EncodedPath).name
    return _plain_path(table, part, is_remote, area_bytes)


def _plain_path(table: DenseTable, part: ShardRange, is_remote: bool, area_bytes: int) -> str:
    if not is_remote:
        return SharedPath.name
    n_bytes = 4 * (part.stop - part.start)
    fits = AREA_FROM_BYTES <= n_bytes <= area_bytes
    return (RendezvousPath if fits and not needs_base(table.consistency) else RingPath).name


def choose_path(
    connection: Connection, index: int, part: ShardRange, table: DenseTable
) -> DensePath:
    """Return the path of a table's updates to one server where they are not encoded.

    Args:
        connection: Connection of the worker.
        index: Index of the table.
        part: The server and its part of the flattened tensor.
        table: The table.
    """
    channel = connection.channels[part.server]
    area = channel.area_way()
    name = _over(_plain_path, channel, part, table)
    if name == SharedPath.name:
        return SharedPath(connection, index, part.server)
    if name == RendezvousPath.name and area is not None:
        return RendezvousPath(connection, index, part.server, area)
    n_bytes = 4 * (part.stop - part.start)
    is_small = n_bytes <= min(_SMALL_BYTES, channel.layout.geometry.payload_capacity)
    return RingPath(connection, index, part.server, is_small and not needs_base(table.consistency))


def _over(
    name: Callable[[DenseTable, ShardRange, bool, int], str],
    channel: Channel,
    part: ShardRange,
    table: DenseTable,
) -> str:
    area = channel.area_way()
    is_remote = not isinstance(channel, MemoryChannel)
    return name(table, part, is_remote, area.area.n_bytes if area is not None else 0)


def path_names(
    channels: Sequence[Channel], tables: Sequence[Table], placement: Placement
) -> list[str]:
    """Return the names of the paths that one worker's dense updates take, sorted.

    Args:
        channels: The worker's channel to each server.
        tables: All tables of the job.
        placement: Shards of each server.
    """
    names = set()
    for table in tables:
        if not isinstance(table, DenseTable):
            continue
        parts = placement.dense[table.name]
        is_apart = [not isinstance(channels[part.server], ShmChannel) for part in parts]
        if has_direct_path(table, parts, is_apart):
            names.add("direct")
        else:
            names.update(
                _over(path_to_server, channels[part.server], part, table) for part in parts
            )
    return sorted(names)
