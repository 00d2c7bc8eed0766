"""Chains of checkpoints in the simulation: which histories have them, and what a link must have."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpips.checkpoint import DenseShardData, ManifestHead
from mpips.checkpoint.changes import PIECE, Increment
from mpips.checkpoint.manifest import LinkRef
from mpips.checkpoint.plan import ChainEnd
from mpips.checkpoint.shards import EmbeddingShardData, ShardData

if TYPE_CHECKING:
    from simulation.disk import Checkpoint

CHAINS = "chains"  # name of the feature
_SHARE, _SALT = 0.1, 158  # of the histories; chosen so that no test's seed is one of them
FAILS = 0.3  # chance that an attempt to write fails in a history with chains, at least


class Part(NamedTuple):
    """The part of a checkpoint that one server writes.

    Attributes:
        head: Description of the job.
        shards: All shards of the server.
        switch: The clock that was decided on for Switch; -1: none.
        increment: Changes since the previous checkpoint; None: the server writes whole tables.
    """

    head: ManifestHead
    shards: Sequence[ShardData]
    switch: int
    increment: Increment | None


def has_chains(seed: int) -> bool:
    """Return True if the checkpoints of this history are chains."""
    return random.Random(f"chains {_SALT} {seed}").random() < _SHARE


def longest_chain(seed: int) -> int:
    """Return checkpoint.incremental of a history."""
    return random.Random(f"length {seed}").choice((2, 3, 8)) if has_chains(seed) else 0


def place_of(parts: Iterable[Part], written: Sequence[Checkpoint], longest: int) -> ChainEnd | None:
    """Return the place that a checkpoint continues; None: it is whole.

    A server may name any checkpoint that is there, so it must name the newest one.
    """
    increments = [part.increment for part in parts]
    places = [increment.place for increment in increments if increment is not None]
    if len(places) < len(increments) or any(place != places[0] for place in places):
        return None
    place = places[0]
    assert place.last.name == written[-1].path.name, "a link continues an older checkpoint"
    assert place.index + 1 < longest, f"a chain has {place.index + 2} checkpoints"
    return place


def end_of(place: ChainEnd | None, name: str, step: int, number: int) -> ChainEnd:
    """Return the place of a new checkpoint in its chain; `number` differs for all checkpoints."""
    last = LinkRef(name, step, f"{number:016x}")
    return ChainEnd(0, last, last) if place is None else ChainEnd(place.index + 1, place.base, last)


def check_link(before: Checkpoint, found: Checkpoint, parts: Iterable[Part]) -> None:
    """Check that the changes of all servers make the tables of a checkpoint out of those of the previous one.

    Args:
        before: The previous checkpoint.
        found: The checkpoint, with whole tables.
        parts: What the servers write.
    """
    dense = {name: array.copy() for name, array in before.dense.items()}
    rows = {name: dict(table) for name, table in before.rows.items()}
    uses = {name: dict(table) for name, table in before.uses.items()}
    for part in parts:
        assert part.increment is not None
        for shard in part.shards:
            changed = part.increment.changed[shard.table]
            if isinstance(shard, DenseShardData):
                for at in (changed.places * PIECE).tolist():
                    piece = shard.values[at : at + PIECE]
                    dense[shard.table][shard.start + at : shard.start + at + len(piece)] = piece
                continue
            _apply(shard, changed, rows[shard.table], uses.get(shard.table, {}))
    for name, array in found.dense.items():
        assert dense[name].tobytes() == array.tobytes(), f"a link lacks elements of {name}"
    for name, table in found.rows.items():
        assert _bits(rows[name]) == _bits(table), f"a link lacks rows of {name}"
    assert uses == found.uses, "a link lacks uses of rows"


def _apply(
    shard: EmbeddingShardData,
    changed: Any,
    rows: dict[int, np.ndarray],
    uses: dict[int, tuple[int, int]],
) -> None:
    for key in changed.removed.tolist():
        del rows[key]
        uses.pop(key, None)
    for at in changed.places.tolist():
        key = int(shard.keys[at])
        rows[key] = np.array(shard.values[at])
        if shard.uses is not None:
            last, count = shard.uses[at].tolist()
            uses[key] = last, count


def _bits(rows: dict[int, np.ndarray]) -> dict[int, bytes]:
    return {key: row.tobytes() for key, row in rows.items()}
