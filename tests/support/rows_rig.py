"""A program that is killed while kernels change many rows; see test_journal.

Such kernels have no points to die at, so the lives are killed from outside, at random times in a loop that
does nothing but push rows and let the server apply them. What the next life finds must be, bit for bit,
what so many whole pushes give.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import numpy as np

from mpips import _native
from mpips.model.consistency import ASP
from mpips.model.optimizer import SGD, Adagrad, RowAdagrad
from mpips.model.placement import place
from mpips.model.table import EmbeddingTable
from mpips.server.durability import Durability
from mpips.server.server import Server
from mpips.transport.region import Regions, attach, new_token, persistent, unlink_job

N_ROWS = 3000
LONGEST_S = 0.02
TABLES = {
    "sgd": EmbeddingTable("e", 32, SGD(0.5), ASP(), init="zeros"),
    "whole": EmbeddingTable("e", 32, RowAdagrad(0.1), ASP(), init="zeros", row_dtype="bf16"),
    "wide": EmbeddingTable("e", 70, Adagrad(0.1), ASP(), init="zeros"),
}


class Rows:
    """A server of one table, with a journal or without, and its only worker's ring."""

    def __init__(self, table: EmbeddingTable, token: str, generation: int, journal: bool) -> None:
        layout = place([table], 1, 1, 32, 1 << 17)
        life = Durability(generation, journal=journal, warm=generation > 0)
        self.regions = Regions(token, shared=journal)
        self.server = Server(0, [table], layout, self.regions, 0, True, None, life)
        self.core = self.server.core
        if generation > 0:
            self.server.finish_recovery(lambda w, g: attach(token, f"w{w}-{g}", 0))
        elif journal:
            self.server.begin_journal()
        mailbox, geometry = layout.layouts[0].mailbox_offset(0), layout.layouts[0].geometry
        self.writer = _native.RingWriter(
            self.server.region, mailbox, geometry, 0, generation, False, 1
        )
        self.pushed = 0
        if generation > 0:
            at = self.core.position(0)
            self.writer.resume(at["sequence"], at["applied"], 0, False, 0, 0, [], False)
            self.pushed = at["taken"][0]
        rng = np.random.default_rng(1)
        self.updates = [
            (rng.permutation(N_ROWS), rng.standard_normal((N_ROWS, table.dim), np.float32))
            for _ in range(7)
        ]

    def push(self) -> None:
        """The next one, applied."""
        keys, update = self.updates[self.pushed % len(self.updates)]
        assert self.writer.push_rows(0, 0, keys, update, None, 0) == N_ROWS
        self.core.drain(0.0, 0)
        self.pushed += 1

    def values(self) -> bytes:
        """By key."""
        self.core.drain(0.0, 0)
        keys, values = self.core.embedding_rows(0)
        return values[np.argsort(keys)].tobytes()


def live(table: EmbeddingTable, token: str, generation: int, killed_after_s: float) -> None:
    """A life that pushes until it is killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            rig = Rows(table, token, generation, True)
            os.write(writer, b"!")
            while True:
                rig.push()
        finally:
            os._exit(1)
    os.close(writer)
    began = os.read(reader, 1)
    os.close(reader)
    time.sleep(killed_after_s)  # when it dies, not a wait for anything
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert began == b"!", f"generation {generation} did not begin"
    assert os.WIFSIGNALED(status), f"generation {generation} failed"


def main() -> None:
    table, lives, random_s = TABLES[sys.argv[1]], int(sys.argv[2]), random.Random(7)
    token = persistent(new_token())
    calm = Rows(table, new_token(), 0, False)
    try:
        for generation in range(lives):
            live(table, token, generation, random_s.uniform(0, LONGEST_S))
        found = Rows(table, token, lives, True)
        while calm.pushed < found.pushed:
            calm.push()
        assert found.values() == calm.values(), f"after {found.pushed} pushes and {lives} lives"
        print(found.pushed)
    finally:
        unlink_job(token)


if __name__ == "__main__":
    main()
