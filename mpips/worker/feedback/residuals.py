"""Residuals: what pushes with some codecs have not sent yet, and why none is lost or doubled.

The codecs are TopK, RandomK, OneBit and SharedInt8. A push encodes residual + update. The part that its
codes do not contain is the new residual (error feedback). There is one residual for each table with such a
codec and each server that has a part of the table (native/src/ring/feedback.hpp). All residuals of a worker
lie in its memory (mpips.worker.image.memory).

Protocol. Each half has a tag: one more than the number of the record that ended the push after which it is
the residual; 0 for the residual of the beginning. A push

1. waits until the record of the push before, whose tag the current half has, is in memory that survives the
   worker: the server's, and that of the server's partner if there is one (`Arrivals.wait_for`);
2. removes the tag of the other half, and writes the new residual there, while it writes its records;
3. stores the new tag;
4. stores the stamp of its last record. Then the other half is the current one.

A worker that continues after a restart knows from each server the number of its next record there (`next`).
All records below it are there. It takes the half with the greatest tag that is at most `next`, and removes a
greater tag, before it writes any record.

Why it is right. Let p be the last push whose records are all at the server.

* The tag of p is at most `next`, because its last record is below `next`; it was stored before the stamp of
  that record (3, 4). Its half is complete, since the tag was stored last (2, 3).
* No later push has a valid tag: its last record is not there, so that its tag is greater than `next`.
* The half of p was not overwritten: only the push after the next one writes there, and it waits in (1) until
  the next push has arrived. Then that one would be p.
* So the worker takes exactly the residual after p. A server skips no push and takes none twice: pushes up to
  p are not written again when the worker repeats their clock (RingWriter::skips_push), and such a repeated
  push does not change the residual. All later pushes are encoded again, from the residual after p. Records of
  an incomplete push are dropped by the server.
* A greater tag must be removed: other records get its number later.

Bits. A repeated push has the same residual, update and random key as the first time, so it has the same bits.

Lost residuals. If the file is not on the worker's node (the node was lost, or the worker moved), or if it is
older than the last launch that completed its start-up, there is no valid half. The worker then continues with
zeros. Start-up counts and reports such residuals. The result lacks what they held since the last push that
sent it.

Checkpoints. At a cut, before its cut record, each worker writes its residuals into its image
(mpips.worker.image). So the image holds the state after the same part of the worker's program as the servers'
shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.worker_image import RESIDUALS, PartImage
from mpips.errors import MpipsError
from mpips.model.codec import Biased, OneBit, SharedInt8
from mpips.model.placement import Placement
from mpips.model.table import DenseTable, Table, feedback_tables
from mpips.transport.channel import Channel
from mpips.worker.table_part import TablePart

Float32 = NDArray[np.float32]

HEAD_BYTES = 64  # of a worker's memory, in front of the residuals


class ResidualSpan(NamedTuple):
    """The place of one residual: table, server, its part of the flat tensor, and bytes into the memory."""

    table: int
    server: int
    start: int
    stop: int
    offset: int


def residual_layout(
    tables: Sequence[Table], placement: Placement, halves: int
) -> tuple[list[ResidualSpan], int]:
    """Return the place of each residual of a worker, and the bytes of the memory; 0: it needs none.

    Args:
        tables: All tables of the job.
        placement: Shards of each server.
        halves: 2 for memory that outlives a launch, else 1.
    """
    spans, offset = [], HEAD_BYTES
    for index, table in feedback_tables(tables).items():
        for part in placement.dense[table.name]:
            spans.append(ResidualSpan(index, part.server, part.start, part.stop, offset))
            offset += _native.Feedback.n_bytes(part.stop - part.start, halves)
    return spans, offset if spans else 0


class Residuals(TablePart):
    """The residuals of one worker. Not thread-safe.

    Attributes:
        lost: Number of residuals that were lost at the start of this launch.
    """

    def __init__(
        self,
        memory: _native.SharedMemory,
        tables: Sequence[Table],
        placement: Placement,
        halves: int,
    ) -> None:
        """Use memory of the size that `residual_layout` returns.

        Args:
            memory: The memory; new, or that of an earlier launch.
            tables: All tables of the job.
            placement: Shards of each server.
            halves: As for `residual_layout`.
        """
        self._tables: dict[int, DenseTable] = feedback_tables(tables)
        self._spans, _ = residual_layout(tables, placement, halves)
        self.lost = 0
        # Residuals that were lost, by table and server; those of the group's leader before; see `owe`.
        self._lost: set[tuple[int, int]] = set()
        self._owed: dict[tuple[int, int], Float32] = {}
        self._feedback = {
            (span.table, span.server): _feedback(memory, span, self._tables[span.table], halves)
            for span in self._spans
        }

    def fill(self, values: Mapping[str, Float32]) -> None:
        """Begin with these residuals of whole tensors, float32, flat; zeros for tables that are missing.

        For new memory.
        """
        for span in self._spans:
            name = self._tables[span.table].name
            n = span.stop - span.start
            whole = values.get(name)
            part = np.zeros(n, np.float32) if whole is None else whole[span.start : span.stop]
            self._feedback[span.table, span.server].fill(np.ascontiguousarray(part))

    def forget(self) -> None:
        """Let all residuals be lost: the memory is that of an earlier launch than the last one."""
        for feedback in self._feedback.values():
            feedback.forget()

    def count_lost(self, next_records: Sequence[int]) -> int:
        """Return how many residuals `settle` will find lost. Changes nothing."""
        return sum(
            not feedback.is_valid(next_records[server])
            for (_, server), feedback in self._feedback.items()
        )

    def settle(self, next_records: Sequence[int]) -> int:
        """Take the valid half of each residual; return how many residuals have none and are lost.

        Call it before the worker writes a record.

        Args:
            next_records: Number of the worker's next record at each server.
        """
        self._lost = {
            key
            for key, feedback in self._feedback.items()
            if not feedback.settle(next_records[key[1]])
        }
        self.lost = len(self._lost)
        return self.lost

    @property
    def spans(self) -> Sequence[ResidualSpan]:
        """The place of each residual."""
        return self._spans

    def has_pushed(self, index: int, server: int) -> bool:
        """Return True if the worker has pushed to a part of a table, or if its residual is lost."""
        key = index, server
        return self._feedback[key].pushed > 0 or key in self._lost

    def part(self, index: int, server: int) -> Float32:
        """Return a copy of the residual of a part of a table, without what the worker owes."""
        return np.array(self._feedback[index, server].residual, np.float32)

    def owe(self, index: int, server: int, values: Float32) -> None:
        """Add residuals of another worker to a part of a table; the next encoded push to it also has them.

        See mpips.worker.groups.handover.
        """
        before = self._owed.get((index, server))
        self._owed[index, server] = values if before is None else before + values

    def owed(self, index: int, server: int) -> Float32 | None:
        """Return what the next encoded push to a part of a table adds to its update; None: nothing."""
        return self._owed.get((index, server))

    def note_paid(self, index: int, server: int) -> None:
        """Note that a push has contained what was owed for a part of a table."""
        self._owed.pop((index, server), None)

    def feedback(self, index: int, server: int) -> _native.Feedback:
        """Return the residual of a table at a server."""
        return self._feedback[index, server]

    def check_complete(self, index: int, name: str) -> None:
        """Verify that no push to a table has stopped half written.

        Such a push cannot go on: its update belongs to the caller, who may have changed it since.

        Raises:
            MpipsError: A push has.
        """
        for (table, server), feedback in self._feedback.items():
            if table == index and feedback.is_open:
                raise MpipsError(
                    f"an earlier push to table {name!r} was interrupted (by a stall or Ctrl-C) when a part "
                    f"of it had been sent to server {server}, so this worker can push to the table no more: "
                    "end the job and start it again"
                )

    def values(self, only: Sequence[str] | None = None) -> dict[str, Float32]:
        """Return the residuals as whole tensors by table, float32, flat; `only` of these tables. Copies."""
        chosen = {i: t for i, t in self._tables.items() if only is None or t.name in only}
        found = {t.name: np.empty(t.n_elements, np.float32) for t in chosen.values()}
        for span in self._spans:
            if span.table in chosen:
                target = found[chosen[span.table].name]
                part = self._feedback[span.table, span.server].residual
                owed = self.owed(span.table, span.server)
                target[span.start : span.stop] = part if owed is None else part + owed
        return found

    def image(self) -> dict[str, PartImage]:
        """Return the residuals as whole tensors by table. Copies."""
        return {RESIDUALS: PartImage(b"{}", self.values())}


def _feedback(
    memory: _native.SharedMemory, span: ResidualSpan, table: DenseTable, halves: int
) -> _native.Feedback:
    codec = table.compression
    assert isinstance(codec, Biased)
    share = 1.0 if isinstance(codec, OneBit | SharedInt8) else float(codec.fraction)
    block = codec.block if isinstance(codec, SharedInt8) else 1
    n = span.stop - span.start
    return _native.Feedback(memory, span.offset, n, span.start, halves, codec.name, share, block)


def settled(residuals: Residuals | None, channels: Sequence[Channel]) -> Residuals | None:
    """Return the residuals, each with its valid half; call it before the worker writes a record."""
    if residuals is not None:
        residuals.settle([channel.writer.next_sequence for channel in channels])
    return residuals
