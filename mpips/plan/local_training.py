"""Tables under LocalSGD and DiLoCo in a plan: memory of a worker, and bytes of a period."""

from __future__ import annotations

from collections.abc import Sequence

from mpips.model.codec import Codec, PushCodec
from mpips.model.served import local_tables, times_of
from mpips.model.table import EmbeddingTable, Table
from mpips.terminal.units import binary_size
from mpips.worker.local.state import local_image_bytes


def period_bytes(tables: Sequence[Table]) -> tuple[int, int]:
    """Return the bytes that a worker pushes and pulls in a period of inner steps, without headers."""
    pushed = pulled = 0
    for table in local_tables(tables).values():
        pushed += round(_per_value(table.compression) * table.n_elements)
        pulled += round(_per_value(table.pull_compression) * table.n_elements)
    return pushed, pulled


def _per_value(codec: PushCodec | str | None) -> float:
    """Return the bytes of a value; the job decides about Auto at its start, so that counts as float32."""
    return codec.bytes_per_value(None) if isinstance(codec, Codec) else 4.0


def as_text(tables: Sequence[Table]) -> str:
    """Return what a worker sends in a period, in place of a rehearsal; "" without such tables."""
    found = list(local_tables(tables).values())
    if not found:
        return ""
    times, (pushed, pulled) = times_of(found[0]), period_bytes(tables)
    rows = any(isinstance(t, EmbeddingTable) for t in tables)
    return (
        f"outer steps: {times.fragments} in {times.steps} steps of a worker, in which it pushes "
        f"{binary_size(pushed)} and pulls {binary_size(pulled)} of dense tables"
        + ("; rows travel in each step" if rows else "")
        + f"\na checkpoint has {binary_size(local_image_bytes(found))} of each worker, too"
        + "\nno time is predicted, since steps differ: most of them communicate with nobody"
    )
