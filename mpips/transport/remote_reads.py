"""One-sided reads of a server's region over a network: dense values, heads of tables, clocks of workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.transport import common_copies
from mpips.transport.batched_reads import BatchedReads
from mpips.transport.channel import whole_min_clock, whole_version, whole_word
from mpips.transport.image import decode_image, image_bytes

if TYPE_CHECKING:
    from mpips.transport.gate import Gate
    from mpips.transport.remote_memory import Asking, Awaited, Bytes, RemoteMemory

Float32 = NDArray[np.float32]

_PAIR_BYTES = 16
_HEAD_BYTES = 64
_BLOCK_BYTES = 4 * _native.BLOCK_FLOATS
_NEAR_BYTES = 1 << 10  # between two words that a get reads together
_GET_BYTES = 4 << 20  # bytes of one get of a dense pull


class RemoteReads:
    """The reads of one worker at one server. Each blocks until its gets are complete."""

    def __init__(
        self,
        memory: RemoteMemory,
        layout: _native.Layout,
        n_workers: int,
        writer: _native.RingWriter,
        gate: Gate,
    ) -> None:
        """Read nothing yet.

        Args:
            memory: Access to the server's region.
            layout: Layout of the server's region.
            n_workers: Number of workers of the job.
            writer: Receives the versions and the number of bytes of what is read.
            gate: The gate of this process.
        """
        self._gate = gate
        self._memory = memory
        self._layout = layout
        self._n_workers = n_workers
        self._writer = writer
        self._scratch = np.zeros(_HEAD_BYTES, np.uint8)
        self._common = common_copies.CommonCopies(layout, writer)
        self._batched = BatchedReads(self.dense_together)

    def head(self, table: int) -> tuple[int, int] | None:
        """Return (version, lowest clock) of a table's head, or None if it is being written."""
        self._read(self._layout.head_offset(table), self._scratch)
        return _head_of(self._scratch)

    def version(self, table: int) -> int:
        """Return the present version of a table."""
        return whole_version(lambda: self.head(table), table)

    def dense(self, table: int, out: Float32, max_s: float) -> bool:
        """Read the values of a table; see Channel.read_dense."""
        if table in self._common.tables:
            self._writer.set_base_version(table, self.version(table))
            return self._common.read(
                table, out, lambda number, copy: self._follow(table, number, copy, max_s)
            )
        values_at, block = self._layout.dense_offsets(table)[1], _BLOCK_BYTES
        raw = out.view(np.uint8).reshape(-1)
        image = self._layout.dense_image(table)
        if image is not None:
            values_at, block, codec = image
            raw = np.empty(image_bytes(self._layout, table, out.size), np.uint8)
        version = self._whole_blocks(table, values_at, block, raw, max_s)
        if version is None:
            return False
        if image is not None:
            decode_image(codec, raw, block, out)
        self._writer.set_base_version(table, version)
        self._writer.count_pulled(raw.nbytes)
        return True

    def state(self, table: int, slot: int, out: Float32, max_s: float) -> bool:
        """Read a state of a table's rule; see Channel.read_state. Versions of blocks guard it like values."""
        at, raw = self._layout.dense_state(table, slot), out.view(np.uint8).reshape(-1)
        return self._whole_blocks(table, at, _BLOCK_BYTES, raw, max_s) is not None

    def updates(self, table: int) -> int:
        """Return the number of updates of a table's rule."""
        return self._word(table, self._layout.updates_offset(table))

    def decision(self, table: int) -> tuple[int, int]:
        """Read the lowest clock of all workers, then the decision; see Channel.read_decision."""
        clock = whole_min_clock(lambda: self.head(table), table)
        return clock, self._word(table, self._layout.decision_offset(table))

    def _word(self, table: int, at: int) -> int:
        """Return the value of a pair of words in a table's head."""
        words = np.empty(2, np.uint64)

        def read() -> int | None:
            self._read(at, words.view(np.uint8))
            value, complement = (int(word) for word in words)
            return value if value ^ complement == 2**64 - 1 else None

        return whole_word(read, table)

    def _whole_blocks(
        self, table: int, at: int, block: int, raw: Bytes, max_s: float
    ) -> int | None:
        """Read what the versions of a table's blocks guard.

        Args:
            table: Index of the table.
            at: Offset of block 0.
            block: Bytes from block to block.
            raw: Receives all blocks.
            max_s: Seconds.

        Returns:
            The version that the table had before; None if blocks kept changing for `max_s` seconds.
        """
        versions_at, _, n_blocks = self._layout.dense_offsets(table)
        self._gate.close()
        before = np.empty(n_blocks * _PAIR_BYTES, np.uint8)
        after = np.empty_like(before)
        self._memory.get(versions_at, before)
        version = self.version(table)
        self._read(at, raw)
        end = time.monotonic() + max_s
        # A block is done when its versions before and after the copy agree; read only the others again.
        pending = set(range(n_blocks))
        while True:
            self._read(versions_at, after)
            pending &= set(_native.unstable_blocks(before, after))
            if not pending:
                return version
            if time.monotonic() > end:
                return None
            before, after = after, before
            for b in sorted(pending):
                self._read(at + b * block, raw[b * block : (b + 1) * block])

    def expect(self, asking: Asking, table: int, version: int, out: Float32) -> Awaited | None:
        """Ask for the values of a version; see Channel.expect_dense."""
        if table in self._common.tables:
            return None
        image = self._layout.dense_image(table)
        at = self._layout.dense_offsets(table)[1] if image is None else image[0]
        n_bytes = image_bytes(self._layout, table, out.size)
        raw = out.view(np.uint8) if image is None else np.empty(n_bytes, np.uint8)

        def taken() -> None:
            if image is not None:
                decode_image(image[2], raw, image[1], out)
            self._writer.set_base_version(table, version)
            self._writer.count_pulled(n_bytes)

        return asking.await_values(self._layout.head_offset(table), version, at, raw, taken)

    def _follow(
        self, table: int, number: int | None, copy: Float32, max_s: float
    ) -> tuple[int, int] | None:
        """Bring a common copy to the newest number; see common_copies.Follow.

        The gets between two equal heads are complete, so what they brought is whole.
        """
        place = self._layout.dense_common(table)
        assert place is not None
        head_at, copy_at, codec = place
        before, after = np.empty((2, _HEAD_BYTES), np.uint8)
        end = time.monotonic() + max_s
        self._read(head_at, before)
        while True:
            head = common_copies.parse_head(before)
            if head is not None and head[0] == number:
                return head[0], 0
            target = copy.view(np.uint8)
            if head is not None and common_copies.follows(head, number):
                target = np.empty(head[1], np.uint8)
                self._read(head_at + _HEAD_BYTES, target)
            elif head is not None:
                number = None  # from here on the copy is overwritten
                self._read(copy_at, target)
            self._read(head_at, after)
            if head is not None and before.tobytes() == after.tobytes():
                if number is not None:
                    common_copies.add(codec, target, copy)
                return head[0], target.nbytes
            if time.monotonic() > end:
                return None
            before, after = after, before

    def take_dense(self, table: int, clock: int, out: Float32) -> bool:
        """Take values that came with an earlier pull; see Channel.take_dense."""
        self._gate.close()
        return self._noted(table, self._batched.take(table, clock, out))

    def fetch_dense(self, table: int, clock: int, out: Float32) -> bool:
        """Read a small table with others; see Channel.fetch_dense."""
        return self._noted(table, self._batched.fetch(table, clock, out))

    def _noted(self, table: int, version: int | None) -> bool:
        """Note the version of values that were pulled; return False if no values were."""
        if version is not None:
            self._writer.set_base_version(table, version)
        return version is not None

    def dense_together(self, wanted: Mapping[int, Float32], version: int) -> dict[int, int]:
        """Read small dense tables in three round trips in all.

        The order is that of `dense`: versions of blocks and heads, then values, then versions again.

        Args:
            wanted: The destination of each table's range here, by the index of the table; float32, (n,).
            version: Tables of a lower version are left out.

        Returns:
            The version of each table that was read, by index. Those that are being written are left out.
        """
        self._gate.close()
        places = {table: self._layout.dense_offsets(table) for table in wanted}
        marks = {t: (at, n_blocks * _PAIR_BYTES) for t, (at, _, n_blocks) in places.items()}
        lines = {t: (self._layout.head_offset(t), _HEAD_BYTES) for t in wanted}
        heads, before = self._read_near(lines), self._read_near(marks)
        self._memory.flush()
        found = {table: _head_of(heads[table]) for table in wanted}
        versions = {t: head[0] for t, head in found.items() if head and head[0] >= version}
        images = {t: self._layout.dense_image(t) for t in versions}
        raw = {}
        for table in versions:
            image, out = images[table], wanted[table]
            at = places[table][1] if image is None else image[0]
            n_bytes = image_bytes(self._layout, table, out.size)
            raw[table] = out.view(np.uint8) if image is None else np.empty(n_bytes, np.uint8)
            self._memory.get(at, raw[table])
        self._memory.flush()
        after = self._read_near({table: marks[table] for table in versions})
        self._memory.flush()
        for table in list(versions):
            if _native.unstable_blocks(before[table], after[table]):
                del versions[table]
                continue
            image = images[table]
            if image is not None:
                decode_image(image[2], raw[table], image[1], wanted[table])
            self._writer.count_pulled(raw[table].nbytes)
        return versions

    def _read_near(self, wanted: Mapping[int, tuple[int, int]]) -> dict[int, Bytes]:
        """Start to read (offset, bytes) of each table; neighbours share a get. `flush` must follow.

        Returns:
            Views of the memory that is read into, by the index of the table.
        """
        ends = {table: at + n for table, (at, n) in wanted.items()}
        spans: list[list[int]] = []
        for table in sorted(wanted, key=lambda t: wanted[t]):
            at = wanted[table][0]
            if not spans or at - spans[-1][1] > _NEAR_BYTES:
                spans.append([at, ends[table]])
            spans[-1][1] = max(spans[-1][1], ends[table])
        found: dict[int, Bytes] = {}
        for start, end in spans:
            memory = np.empty(end - start, np.uint8)
            self._memory.get(start, memory)
            for table, (at, n) in wanted.items():
                if start <= at < end:
                    found[table] = memory[at - start : at - start + n]
        return found

    def clocks(self) -> list[int]:
        """Return the workers' clocks at this server."""
        lines = np.empty(self._n_workers * _native.CLOCK_LINE_BYTES, np.uint8)
        self._read(self._layout.clocks_offset, lines)
        words = lines.view(np.uint64).reshape(self._n_workers, -1)
        return [int(word) for word in words[:, 0]]

    def awaited_worker(self) -> int:
        """Return the worker that this server waits for (BSP)."""
        word = np.empty(8, np.uint8)
        self._read(self._layout.awaited_offset, word)
        return int(word.view(np.uint64)[0])

    def _read(self, offset: int, out: Bytes) -> None:
        self._gate.close()
        for start in range(0, len(out), _GET_BYTES):
            part = out[start : start + _GET_BYTES]
            self._memory.get(offset + start, part)
        self._memory.flush()


def _head_of(line: Bytes) -> tuple[int, int] | None:
    """Return (version, lowest clock) of the line of a head, or None if it was being written."""
    version, not_version, clock, not_clock = (int(w) for w in line.view(np.uint64)[:4])
    if version ^ not_version != 2**64 - 1 or clock ^ not_clock != 2**64 - 1:
        return None
    return version, clock
