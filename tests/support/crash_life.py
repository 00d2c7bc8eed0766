"""One life of a crash test: a server and the writers of its workers in one process. See crash_rig.py."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pair_rig
from crash_load import Load, Push, Step

from mpips import _native
from mpips.model.codec import Biased
from mpips.model.common_copy import has_common, stored_states
from mpips.model.placement import Placement, place
from mpips.model.shared_scales import scale_tables
from mpips.model.table import DenseTable, EmbeddingTable, native_codec, native_pull_codec
from mpips.server.durability import Durability
from mpips.server.server import Server
from mpips.transport.region import Regions, attach
from mpips.worker.feedback.residuals import Residuals, residual_layout

N_SLOTS = 4
STAGING_BYTES = 1 << 22


class Life_:
    """One process's life: the server and all writers."""

    def __init__(self, token: str, load: Load, generation: int) -> None:
        self.load, self.generation = load, generation
        placement = place(load.tables, 1, load.n_workers, N_SLOTS, load.slot_bytes)
        self.layout = placement.layouts[0]
        self.regions = Regions(token, shared=True)
        if load.partner and generation > 0:
            pair_rig.lose_the_server(token)
        life = Durability(generation, journal=True, warm=generation > 0)
        self.server = Server(0, load.tables, placement, self.regions, 0, True, None, life)
        self.core = self.server.core
        if generation == 0:
            if self.server.backup_control is not None:
                self.core.set_backup(1)  # from clock 1 on
            if self.server.switch_control is not None:
                self.server.switch_control.set(2)
            self.core.begin_journal()
        else:
            self.server.finish_recovery(lambda w, g: attach(token, f"w{w}-{g}", 0))
            self.check_images()
        self.residuals = [self._residuals(w, placement) for w in range(load.n_workers)]
        self.staging, self.used = [], [0] * load.n_workers
        self.writers, self.at = [], []
        for w in range(load.n_workers):
            memory = self.regions.create_sparse(f"w{w}-{generation}", STAGING_BYTES)
            self.core.set_staging(w, memory)
            self.staging.append(memory)
            self.writers.append(self._writer(w))
            if self.residuals[w] is not None:
                lost = self.residuals[w].settle([self.writers[w].next_sequence])
                assert not lost, "a residual has no valid half"
        self.steps = 0
        self.pair = None
        if load.partner:
            self.pair = pair_rig.Pair(self.server, self._copy)

    def _copy(self, name: str) -> Server:
        """The copy that a partner makes of the server."""
        placement = place(self.load.tables, 1, self.load.n_workers, N_SLOTS, self.load.slot_bytes)
        life = Durability(self.generation, journal=True, warm=True, name=name)
        return Server(0, self.load.tables, placement, self.regions, 0, True, None, life)

    def _residuals(self, w: int, placement: Placement) -> Residuals | None:
        tables = self.load.tables
        _, n_bytes = residual_layout(tables, placement, 2)
        if not n_bytes:
            return None
        if self.generation > 0:
            return Residuals(self.regions.reopen(f"e{w}"), tables, placement, 2)
        found = Residuals(self.regions.create(f"e{w}", n_bytes), tables, placement, 2)
        found.fill({})
        return found

    def drain(self) -> int:
        """Consume what can be consumed; something is returned if anything has moved."""
        return self.core.drain(0.0, 0) if self.pair is None else self.pair.work()

    def _writer(self, w: int) -> _native.RingWriter:
        writer = _native.RingWriter(
            self.server.region,
            self.layout.mailbox_offset(w),
            self.layout.geometry,
            w,
            self.generation,
            bool(w % 2),
            len(self.load.tables),
        )
        at = {"clock": 0, "finished": False, "taken": [0] * len(self.load.tables)}
        if self.generation > 0:
            at = self.core.position(w)
            # What is there is left out by `is_there`.
            writer.resume(at["sequence"], at["applied"], 0, False, 0, 0, [], False)
        self.at.append(at)
        return writer

    def is_there(self, step: Step) -> bool:
        """True if the server has it of an earlier life."""
        if isinstance(step, Push):
            at = self.at[step.worker]
            if step.clock != at["clock"]:
                return step.clock < at["clock"]
            return step.ordinal < at["taken"][step.table]
        kind, w, clock = step
        at = self.at[w]
        # What a worker says of itself may be said again.
        return at["finished"] or (kind != "finish" and clock < at["clock"] - (kind == "cut"))

    def run(self) -> None:
        """Everything that is not there yet."""
        for step in self.load.steps():
            if self.is_there(step):
                continue
            if isinstance(step, Push):
                self.push(step)
            else:
                self.say(*step)
            self.steps += 1
            if self.steps % self.load.drain_every == 0:
                self.drain()
        while self.drain():
            pass

    def until(self, write: Any) -> None:
        """Call `write` till it is done; whoever has no credit lets the server work."""
        while not write():
            if self.drain() == 0:
                raise AssertionError("a full ring and nothing that can be consumed")

    def push(self, p: Push) -> None:
        writer, done = self.writers[p.worker], 0
        writer.set_base_version(p.table, p.base_version)
        n = p.update.shape[0]
        scales = scale_tables(self.load.tables)
        encodes = True
        if p.table in scales:
            encodes = self.take_scales(p, scales[p.table])
        if p.staged and not (encodes and p.table in scales):
            where = self.stage(p)
            self.until(lambda: writer.push_staged(p.table, p.clock, where, None, n))
            return

        codec = native_codec(self.load.tables[p.table])
        key = hash((p.worker, p.clock, p.table, p.ordinal)) & 0xFFFF
        plan = _native.KeyPlan()
        if p.keys is not None:
            plan.build(p.keys, _native.Partitioner.hash(1))

        def write() -> bool:
            nonlocal done
            if not encodes:
                done = writer.push_dense(p.table, p.clock, p.update, None, done)
            elif isinstance(self.load.tables[p.table].compression, Biased):
                feedback = self.residuals[p.worker].feedback(p.table, 0)
                done = writer.push_feedback(p.table, p.clock, feedback, p.update, key)
            elif codec is not None and p.keys is None:
                done = writer.push_encoded(p.table, p.clock, codec, p.update, 0, n, key, done)
            elif codec is not None:
                done = writer.push_planned(
                    p.table, p.clock, plan, 0, p.update, None, done, codec, key
                )
            elif p.keys is None:
                done = writer.push_dense(p.table, p.clock, p.update, p.base, done)
            else:
                done = writer.push_rows(p.table, p.clock, p.keys, p.update, p.base, done)
            return done == n

        self.until(write)

    def take_scales(self, p: Push, scales: int) -> bool:
        """Give the residual the scales of the clock; False if there are none yet."""
        self.until(lambda: self.core.version(scales) >= p.clock)
        assert self.core.version(scales) == p.clock, "not the scales of this clock"
        feedback = self.residuals[p.worker].feedback(p.table, 0)
        if self.pair is not None:
            # The half that the push overwrites must not be the only one that is valid.
            self.until(lambda: int(self.pair.words()[p.worker][0]) >= feedback.pushed)
        exponents = self.core.dense_values(scales).astype(np.uint8)
        feedback.set_scales(exponents)
        return bool(exponents.any())

    def stage(self, p: Push) -> int:
        """Put the update into the staging memory, where nothing that is in use lies."""
        at = self.used[p.worker]
        assert at + p.update.nbytes <= STAGING_BYTES
        self.used[p.worker] = at + p.update.nbytes
        self.staging[p.worker].commit(at, p.update.nbytes)
        view = self.staging[p.worker].view(at, p.update.nbytes, True)
        view[:] = p.update.view(np.uint8)
        return at

    def say(self, kind: str, w: int, clock: int) -> None:
        writer = self.writers[w]
        if kind == "tick":
            self.until(lambda: writer.tick(clock))
        elif kind == "finish":
            self.until(lambda: writer.finish(clock))
        elif kind == "cut":
            self.until(
                lambda: writer.cut(
                    clock + 1, 0, clock + 1, f"{w} after {clock}".encode() * (1 + clock)
                )
            )
        else:
            self.pull(writer, w, clock)

    def pull(self, writer: _native.RingWriter, w: int, clock: int) -> None:
        """One pull of rows, answered before it goes on."""
        for t, table in enumerate(self.load.tables):
            if not isinstance(table, EmbeddingTable) or not self.load.takes_part(w, t):
                continue
            keys = np.arange(5, dtype=np.int64)
            out = np.empty((5, table.dim), np.float32)
            plan, codec = _native.KeyPlan(), native_pull_codec(table)
            plan.build(keys, _native.Partitioner.hash(1))
            self.until(
                lambda t=t, p=plan, o=out, c=codec: (
                    writer.pull_planned(t, clock, p, 0, o, 0, c) == 5
                )
            )
            self.until(lambda: writer.collect() == 0)

    def check_images(self) -> None:
        """Pulls with a codec see the values, as soon as the server has recovered."""
        for i, table in enumerate(self.load.tables):
            codec = native_pull_codec(table)
            if codec is None or isinstance(table, EmbeddingTable):
                continue
            if has_common(table):
                self.check_common(i, table)
                continue
            seen, image = np.empty((2, table.n_elements), np.float32)
            assert _native.copy_dense(self.server.region, self.layout, i, seen, 1.0, True)
            codes = _native.encode_nearest(codec, self.core.dense_values(i))
            _native.decode(codec, codes, 0, image)
            assert image.tobytes() == seen.tobytes(), "the image is not that of the values"

    def check_common(self, i: int, table: DenseTable) -> None:
        """A new worker reads the common copy whole; it is ahead of the difference before it by that."""
        seen = np.empty(table.n_elements, np.float32)
        read = _native.read_common(self.server.region, self.layout, i, None, seen, 1.0, True)
        assert read is not None
        assert read[0] == self.core.steps(i), "the copy has not the number of the newest update"
        copy = self.core.dense_state(i, table.optimizer.n_state)
        assert copy.tobytes() == seen.tobytes()

    def result(self) -> dict[str, bytes]:
        """All that must be as if nothing had happened."""
        self.check_images()
        found: dict[str, Any] = {}
        for i, table in enumerate(self.load.tables):
            stats = self.core.stats(i)
            stats.pop("pulled_rows")
            # Counts of what a process has done with rows: a kill may lose some.
            for name in ("rows_made", "rows_evicted", "rows_returned"):
                stats.pop(name)
            found[f"{table.name} counts"] = (stats, self.core.version(i), self.core.steps(i))
            if isinstance(table, EmbeddingTable):
                keys, rows = self.core.embedding_content(i)
                order = np.argsort(keys)
                found[f"{table.name} keys"] = keys[order].astype(np.float32).tobytes()
                found[f"{table.name} rows"] = rows[order].tobytes()
                if table.evict is not None:
                    uses = self.core.embedding_uses(i)[order]
                    found[f"{table.name} uses"] = uses.astype(np.float32).tobytes()
                continue
            found[f"{table.name} values"] = self.core.dense_values(i).tobytes()
            for slot in range(len(stored_states(table))):
                found[f"{table.name} state {slot}"] = self.core.dense_state(i, slot).tobytes()
        for w, residuals in enumerate(self.residuals):
            for name, values in residuals.values().items() if residuals is not None else ():
                found[f"{name} residual of worker {w}"] = values.tobytes()
        for w in range(self.load.n_workers):
            found[f"worker {w}"] = (
                self.core.clock(w),
                self.core.finished(w),
                self.core.position_text(w),
            )
        return {name: pickle.dumps(value) for name, value in found.items()}
