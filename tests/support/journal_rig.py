"""Server 0 with a journal and its workers' rings in this process, and the launches that take over."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from mpips import _native
from mpips.model.placement import place
from mpips.model.table import Table
from mpips.server.durability import Durability
from mpips.server.server import Server
from mpips.transport.region import Regions, attach, new_token, persistent


class Rig:
    """One launch at a time: `leave` ends it as a kill would, `again` begins the next one."""

    def __init__(
        self, *tables: Table, n_workers: int = 1, n_slots: int = 4, slot_bytes: int = 1024
    ) -> None:
        self.tables, self.token, self.n_workers = list(tables), persistent(new_token()), n_workers
        self.placement = place(self.tables, 1, n_workers, n_slots, slot_bytes)
        self.layout = self.placement.layouts[0]
        self.open(0)
        self.server.begin_journal()

    def open(self, generation: int) -> None:
        """Make the server, or take over what the launch before has left."""
        life = Durability(generation, journal=True, warm=generation > 0)
        self.regions = Regions(self.token, shared=True)
        self.server = Server(0, self.tables, self.placement, self.regions, 0, True, None, life)
        self.core = self.server.core
        if generation > 0:
            self.server.finish_recovery(lambda w, g: attach(self.token, f"w{w}-{g}", 0))
        self.writers = [
            _native.RingWriter(
                self.server.region,
                self.layout.mailbox_offset(w),
                self.layout.geometry,
                w,
                generation,
                True,
                len(self.tables),
            )
            for w in range(self.n_workers)
        ]

    @property
    def writer(self) -> _native.RingWriter:
        """The ring of worker 0."""
        return self.writers[0]

    def leave(self) -> None:
        """Nothing is written any more and all locks are gone; the names stay."""
        self.core = self.server = self.regions = None
        self.writers = []
        gc.collect()

    def again(self, generation: int = 1) -> dict[str, Any]:
        """Begin the next launch, whose writers go on behind the records that are there.

        Returns:
            Where worker 0 stands. What it writes now is new: nothing is left out as a repetition.
        """
        self.leave()
        self.open(generation)
        for w, writer in enumerate(self.writers):
            at = self.core.position(w)
            writer.resume(at["sequence"], at["applied"], 0, False, 0, 0, [], False)
        return self.core.position(0)

    def repeat(self, generation: int = 1, skips_clocks: bool = False) -> list[dict[str, Any]]:
        """Begin the next launch, whose workers repeat what they had not ended everywhere.

        Returns:
            Where each worker stands.
        """
        self.leave()
        self.open(generation)
        positions = [self.core.position(w) for w in range(self.n_workers)]
        for writer, at in zip(self.writers, positions, strict=True):
            names = ("sequence", "applied", "clock", "finished", "pushes", "tag", "ended")
            writer.resume(*(at[name] for name in names), skips_clocks)
        return positions

    def set_clock(self, clock: int) -> None:
        """Let the image of the journal say that worker 0, alone, and all tables stand at a clock."""
        self.stand_at(clock=clock, version=clock)

    def stand_at(
        self, *, sequence: int | None = None, clock: int | None = None, version: int | None = None
    ) -> None:
        """Change the journal's image as after a long run; the next launch goes on there.

        The image lies one page into the segment: the current clock, then the words of each worker and of
        each table (Journal::GlobalWord, WorkerWord, TableWord in native/src/journal/journal.hpp).

        Args:
            sequence: Number of consumed records of each worker; its ring must be empty.
            clock: The current clock, and that of each worker.
            version: Version of each table.
        """
        n_worker_words, n_table_words = 15, 84
        next_record, worker_clock, position = 0, 6, 9
        memory = attach(self.token, "s0-journal", 1 << 20)
        words = memory.view(4096, 1 << 13, True).view(np.uint64)
        for w in range(self.n_workers):
            worker = words[1 + w * n_worker_words :]
            if sequence is not None:
                worker[next_record] = sequence
            if clock is not None:
                worker[worker_clock] = worker[position] = clock
        if clock is not None:
            words[0] = clock
        first_table = 1 + self.n_workers * n_worker_words
        for table in range(len(self.tables)):
            if version is not None:
                words[first_table + table * n_table_words] = version
        del words, worker

    def drain(self) -> int:
        """Consume what can be consumed."""
        return self.core.drain(0.0, 0)
