"""Partner copies: what a server has acknowledged survives the loss of its node.

Each server has a partner, the next server on another node. The partner's process holds a *copy* of the
server: a second server core over segments of its own, which consumes the same records
(native/src/server/server_replica.cpp). `mirror` carries them; `replica_memory` names and moves memory;
`replica_start` makes the copies when a launch begins and finds the memory to continue in after a failure.

Names. `s<i>...` are the segments of server i, `r<i>g<g>...` those of its copy made in launch g. A set of
segments counts only with its mark, a small file that is written last and names the launch that served
from it. `memory.json` says which launch served last: only sets with that mark, or a later one of a launch
that came to no service, hold everything. So neither half a copy nor the memory of a node that was away for a
launch is ever taken.

What a failure costs. *sync*: a record is consumed when the partner has it, so whatever was acknowledged is
in the copy. Under BSP a worker also waits, before it ticks, until its pushes are with the partners. So the
rule on which going on in memory rests (mpips.recovery.memory: if one server has the tick, all have the
pushes) holds for copies as well: what is done again sees the same parameters, and the bits are those of an
undisturbed run. It waits for records to *arrive*, which needs no other worker, and not to be consumed, which
may. *lag*: up to `partner_lag_records` records of each worker may be acknowledged and not in the copy. After
the loss of the node the workers go back to where the copy is and do the rest again, on the newer values of
the other servers: every push still counts exactly once, but the bits are not those of an undisturbed run.

The copy judges updates by itself. What it may judge otherwise than the server (backup workers, policy
"reject") could turn an update that was acknowledged as applied into one that was not; with partners such
tables are refused. Large updates go through the rings, since whatever a record points at (staging
memory, areas) would be lost with the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpips.errors import ConfigError
from mpips.model.consistency import BSP, Reject
from mpips.model.table import Table

SYNC = 0  # the bound on lag that means there is none


@dataclass(frozen=True)
class Partners:
    """What a worker knows of partners.

    Attributes:
        of: The partner's index of each server that has one.
        waits: Before it ticks a worker waits until its pushes are with the partners.
    """

    of: Mapping[int, int] = field(default_factory=dict)
    waits: bool = False


def find_partners(node_of_server: Sequence[int]) -> dict[int, int]:
    """The next server on another node, for each server that has one."""
    n = len(node_of_server)
    found = {}
    for i, node in enumerate(node_of_server):
        others = ((i + k) % n for k in range(1, n))
        partner = next((j for j in others if node_of_server[j] != node), None)
        if partner is not None:
            found[i] = partner
    return found


def check_tables(tables: Sequence[Table]) -> None:
    """Refuse tables whose updates a copy may judge otherwise than its server.

    Raises:
        ConfigError: Names the table and what to change.
    """
    for table in tables:
        model = table.consistency
        if isinstance(model, BSP) and model.backup:
            what, rest = f"backup = {model.backup}", "backup = 0"
        elif not isinstance(model, BSP) and isinstance(model.policy, Reject):
            what, rest = "policy = 'reject'", "policy 'accept', 'scale' or 'compensate'"
        else:
            continue
        raise ConfigError(
            f"redundancy.partner = true and table {table.name!r} with {what}: use {rest}, since a copy may "
            "judge a late update otherwise than its server"
        )
