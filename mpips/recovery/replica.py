"""Replicas: a copy of each server on another node, so that acknowledged updates survive the loss of a node.

Each server has a partner, the next server on another node. The partner's process runs a *copy* of the server:
a second server core over segments of its own, which consumes the same records
(native/src/server/server_replica.cpp). `mirror` transports the records. `replica_memory` names segments and
moves them to other nodes. `replica_start` makes the copies at the start of a launch, and finds the memory to
continue in after a failure.

Names. `s<i>...` are the segments of server i. `r<i>g<g>...` are the segments of its copy made in launch g. A
set of segments is valid only with its mark: a small file that is written last and contains the generation
number of the launch that served from the set. `memory.json` contains the number of the last launch that
completed its start-up. Only sets with the mark of that launch, or of a later launch that did not complete its
start-up, hold everything. So neither an incomplete copy nor the memory of a node that was absent for a launch
is ever used.

A server consumes a record, and so acknowledges it, only when its partner has it. So the copy has whatever was
acknowledged, and each push counts exactly once after the loss of a node. Records that are in the server's
ring and not consumed may be missing in the copy.

Under BSP, and in jobs with groups (mpips.worker.groups.tables), a worker also waits, before it ticks, until
its pushes have arrived at the partners. So the invariant of mpips.recovery.memory, that all servers have the
pushes of a clock if one server has its tick, holds for copies as well: repeated steps see the same
parameters, and the bits are those of an undisturbed run. The worker waits until its records have *arrived*,
not until they are consumed: arrival depends on no other worker, while consumption may. Under SSP and ASP
without groups it does not wait. After the loss of a node it may then go back to a clock whose pushes other
servers have, and repeat it.

The copy decides by itself which updates are applied. With backup workers, or with the policy "reject", its
decision may differ from the server's: an update that was acknowledged as applied could then be missing in the
copy. With partners such tables are refused. Large updates go through the rings, because everything to which a
record points (staging memory, rendezvous buffers) would be lost with the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpips.errors import ConfigError
from mpips.model.consistency import ASP, BSP, SSP, Reject, Switch
from mpips.model.table import Table


@dataclass(frozen=True)
class Partners:
    """The partners of all servers, as workers need them.

    Attributes:
        of: Index of the partner, by index of the server; only for servers that have one.
        waits: True if a worker waits before each tick until its pushes have arrived at the partners.
    """

    of: Mapping[int, int] = field(default_factory=dict)
    waits: bool = False


def find_partners(node_of_server: Sequence[int]) -> dict[int, int]:
    """Return the partner of each server: the next server on another node.

    Args:
        node_of_server: Node index of each server.

    Returns:
        Index of the partner by index of the server, without servers for which there is no other node.
    """
    n = len(node_of_server)
    found = {}
    for i, node in enumerate(node_of_server):
        others = ((i + k) % n for k in range(1, n))
        partner = next((j for j in others if node_of_server[j] != node), None)
        if partner is not None:
            found[i] = partner
    return found


def check_tables(tables: Sequence[Table]) -> None:
    """Raise ConfigError for tables whose updates a copy may apply otherwise than its server.

    Raises:
        ConfigError: A table has backup workers, policy "reject" or Switch.
    """
    for table in tables:
        model = table.consistency
        if isinstance(model, BSP) and model.backup:
            what, rest = f"backup = {model.backup!r}", "backup = 0"
        elif isinstance(model, SSP | ASP) and isinstance(model.policy, Reject):
            what, rest = "policy = 'reject'", "policy 'accept', 'scale' or 'compensate'"
        elif isinstance(model, Switch):
            what, rest = f"Switch at {model.place}", "BSP, SSP or ASP"
        else:
            continue
        raise ConfigError(
            f"redundancy.partner = true and table {table.name!r} with {what}: a copy may treat a late update "
            f"otherwise than its server; use {rest}"
        )
