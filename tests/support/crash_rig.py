"""A server and its workers in one process that dies at a chosen point, and the processes that go on.

Runs as a program (see test_journal.py): `python crash_rig.py LOAD [STRIDE]`. Every life is a fork of a
process without threads, made by `os.fork`, so that hundreds of them take seconds.

What is pushed is a script, the same for every life. A life skips what the server says is there already,
as a worker does that goes on after a restart; so at the end the bits must be those of a run that nobody
disturbed, wherever the lives before it ended.
"""

from __future__ import annotations

import os
import pickle
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import pair_rig

from mpips import _native
from mpips.model.codec import Biased, OneBit, RandomK, SharedInt8, TopK
from mpips.model.common_copy import has_common, stored_states
from mpips.model.consistency import ASP, BSP, SSP, Compensate, Reject, Scale
from mpips.model.optimizer import FTRL, SGD, Adagrad, Adam, Momentum, PythonRule
from mpips.model.placement import Placement, place
from mpips.model.served import served
from mpips.model.shared_scales import scale_tables
from mpips.model.table import DenseTable, EmbeddingTable, Table, native_codec, native_pull_codec
from mpips.server.durability import Durability
from mpips.server.server import Server
from mpips.transport.region import Regions, attach, new_token, persistent, unlink_job
from mpips.worker.residuals import Residuals, residual_layout

N_SLOTS = 4
STAGING_BYTES = 1 << 22


@dataclass(frozen=True)
class Push:
    """One push of the script: whose, when, the how manieth to its table in that clock, and what."""

    worker: int
    clock: int
    table: int
    ordinal: int
    update: np.ndarray
    keys: np.ndarray | None = None
    base: np.ndarray | None = None
    base_version: int = 0
    staged: bool = False


Step = Push | tuple[str, int, int]  # ("pull" | "tick" | "cut" | "finish", worker, clock)


@dataclass(frozen=True)
class Load:
    """Tables, and what workers push to them.

    Attributes:
        sizes: For each push of a clock: table, elements or rows, and how ("", "staged", "base").
        drain_every: Steps between two looks of the server at the rings.
        slot_bytes: Of a record.
        partner: Bound of the lag of a copy (0: sync), in which every life but the first goes on: the
            server's own memory is lost with its life. None: no partner.
        alternates: Steps of the workers alternate, although BSP takes in one worker after the other.
        pulls: Each clock of a worker begins with a pull, so all before it is consumed.
    """

    tables: list[Table]
    sizes: list[tuple[int, int, str]]
    n_workers: int = 2
    clocks: int = 2
    drain_every: int = 1
    slot_bytes: int = 1024
    partner: int | None = None
    pulls: bool = True
    alternates: bool = False

    def steps(self) -> Iterator[Step]:
        """All steps in order. Without backup workers BSP takes in one worker after the other."""
        by_turns = any(
            isinstance(t.consistency, BSP) and not t.consistency.backup for t in self.tables
        )
        for clock in range(self.clocks):
            if self.pulls:
                yield from (("pull", w, clock) for w in range(self.n_workers))
            lists = [
                [*self._pushes(w, clock), ("tick", w, clock), ("cut", w, clock)]
                for w in range(self.n_workers)
            ]
            in_turn = by_turns and not self.alternates
            yield from chain(*(lists if in_turn else zip_longest(*lists)))
        yield from (("finish", w, self.clocks) for w in range(self.n_workers))

    def _pushes(self, w: int, clock: int) -> Iterator[Push]:
        ordinals = [-1] * len(self.tables)
        for i, (table, n, how) in enumerate(self.sizes):
            ordinals[table] += 1
            yield self._push(w, clock, table, ordinals[table], i, n, how)

    def _push(self, w: int, clock: int, table: int, ordinal: int, i: int, n: int, how: str) -> Push:
        rng = np.random.default_rng([w, clock, table, i])
        spec = self.tables[table]
        keys = None
        if isinstance(spec, EmbeddingTable):
            keys = np.unique(rng.integers(0, 3 * n, n))[: max(n - 1, 1)].astype(np.int64)
            shape: tuple[int, ...] = (keys.size, spec.dim)
        else:
            shape = (n,)
        update = rng.integers(-3, 4, shape).astype(np.float32)
        base = rng.integers(-3, 4, shape).astype(np.float32) if "base" in how else None
        return Push(w, clock, table, ordinal, update, keys, base, clock, how == "staged")


class Life_:
    """One process's life: the server and all writers."""

    def __init__(self, token: str, load: Load, generation: int) -> None:
        self.load, self.generation = load, generation
        placement = place(load.tables, 1, load.n_workers, N_SLOTS, load.slot_bytes)
        self.layout = placement.layouts[0]
        self.regions = Regions(token, shared=True)
        if load.partner is not None and generation > 0:
            pair_rig.lose_the_server(token)
        life = Durability(generation, journal=True, warm=generation > 0)
        self.server = Server(0, load.tables, placement, self.regions, 0, True, None, life)
        self.core = self.server.core
        if generation == 0:
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
        if load.partner is not None:
            self.pair = pair_rig.Pair(self.server, self._copy, load.partner)

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
            self.pull(writer, clock)

    def pull(self, writer: _native.RingWriter, clock: int) -> None:
        """One pull of rows, answered before it goes on."""
        for t, table in enumerate(self.load.tables):
            if not isinstance(table, EmbeddingTable):
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
            found[f"{table.name} counts"] = (stats, self.core.version(i), self.core.steps(i))
            if isinstance(table, EmbeddingTable):
                keys, rows = self.core.embedding_content(i)
                order = np.argsort(keys)
                found[f"{table.name} keys"] = keys[order].astype(np.float32).tobytes()
                found[f"{table.name} rows"] = rows[order].tobytes()
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


def read_or_kill(fd: int, pid: int, after_s: float | None, new: bool) -> bytes:
    """All that a life says; it is killed `after_s` after its start, or after it could be taken over."""
    data, deadline = b"", None
    if after_s is not None and not new:
        deadline = time.monotonic() + after_s
    with os.fdopen(fd, "rb", buffering=0) as pipe:
        while True:
            patience_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not select.select([pipe], [], [], patience_s)[0]:
                os.kill(pid, signal.SIGKILL)
                deadline = None
                continue
            more = pipe.read(1 << 20)
            if not more:
                return data
            data += more
            if new and after_s is not None and deadline is None:
                deadline = time.monotonic() + after_s


def live(
    token: str, load: Load, generation: int, fault: str, killed_after_s: float | None = None
) -> tuple[int, Any]:
    """A life in a process of its own: how it ended (0, or the signal) and what it found.

    With `killed_after_s` it is killed from outside, so long after it could be taken over.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            # A new server cannot be taken over before it has begun; its first life is armed then.
            _native.arm_fault(fault if generation else "")
            life = Life_(token, load, generation)
            if generation == 0:
                _native.arm_fault(fault)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(b"!")
                pipe.flush()
                life.run()
                pipe.write(pickle.dumps((life.result(), _native.faults_passed())))
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    data = read_or_kill(reader, pid, killed_after_s, generation == 0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status), None
    if os.WEXITSTATUS(status) != 0:
        raise AssertionError(f"generation {generation} failed with fault {fault!r}")
    return 0, pickle.loads(data[1:])


def compare(found: dict[str, bytes], expected: dict[str, bytes], story: str) -> None:
    for name, value in expected.items():
        if found[name] == value:
            continue
        a, b = pickle.loads(found[name]), pickle.loads(value)
        if isinstance(a, bytes) and isinstance(b, bytes) and len(a) == len(b):
            a, b = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
            where = np.flatnonzero(a != b)
            a, b = a[where[:8]], f"{b[where[:8]]} at {where[:8]} of {where.size}"
        raise AssertionError(f"{story}: {name} is {a}, not {b}")


def die_everywhere(load: Load, stride: int, all_of: int = 0) -> tuple[int, int]:
    """Kill the first life at every point (every `stride`-th), and the second somewhere in turn.

    Args:
        load: What is done.
        stride: Of the points of the first life.
        all_of: Kill the second life at each of so many points instead, after each death of the first.

    Returns:
        The number of points of an undisturbed life and of kills.
    """
    token = persistent(new_token())
    _, (expected, n_points) = live(token, load, 0, "any:0")
    unlink_job(token)
    kills, turn = 0, 0
    for n in range(1, n_points + 1, stride):
        turn = turn % 40 + 1
        for second in range(1, all_of + 1) if all_of else [turn]:
            kills += die_twice(load, n, second, expected)
    return n_points, kills


def die_twice(load: Load, n: int, second: int, expected: dict[str, bytes]) -> int:
    """Kill the first life at a point and the next one at another; how many of them came so far."""
    token = persistent(new_token())
    try:
        ended, _ = live(token, load, 0, f"any:{n}")
        assert ended == signal.SIGKILL, f"point {n} was not reached"
        kills, story = 1, f"killed at point {n}"
        ended, outcome = live(token, load, 1, f"any:{second}")
        if ended:
            kills += 1
            story += f", and the next life at its point {second}"
            _, outcome = live(token, load, 2, "")
        compare(outcome[0], expected, story)
        return kills
    finally:
        unlink_job(token)


def live_shortly(load: Load, points: int) -> int:
    """Every life ends after so many points; returns the number of lives it took."""
    token = persistent(new_token())
    _, (expected, _) = live(token, load, 0, "any:0")
    unlink_job(token)
    token, generation = persistent(new_token()), 0
    try:
        while True:
            ended, outcome = live(token, load, generation, f"any:{points}")
            generation += 1
            if not ended:
                compare(outcome[0], expected, f"{generation} lives of {points} points")
                return generation
            assert generation < 5000, "no progress"
    finally:
        unlink_job(token)


def die_anytime(load: Load, seed: int, runs: int) -> tuple[int, int]:
    """Kill lives from outside at random times until one comes to its end; returns runs and kills."""
    token = persistent(new_token())
    started = time.monotonic()
    _, (expected, _) = live(token, load, 0, "")
    whole_s = time.monotonic() - started
    unlink_job(token)
    delays, kills = random.Random(seed), 0
    for _ in range(runs):
        token = persistent(new_token())
        try:
            for generation in range(1000):
                ended, outcome = live(token, load, generation, "", delays.uniform(0, whole_s))
                if not ended:
                    compare(outcome[0], expected, f"{generation} kills from outside")
                    break
                kills += 1
        finally:
            unlink_job(token)
    return runs, kills


def python_rule(values: Any, state: Any, update: Any, step: int) -> None:
    """Momentum, with the step in it."""
    state[0] = 0.5 * state[0] + update
    values -= 0.25 * state[0] * (1 + step % 2)


def dense(n: int, name: str, optimizer: Any, consistency: Any) -> DenseTable:
    return DenseTable(name, (n,), optimizer=optimizer, consistency=consistency)


def rows(dim: int, name: str, optimizer: Any, consistency: Any) -> EmbeddingTable:
    return EmbeddingTable(name, dim, optimizer=optimizer, consistency=consistency)


# Records hold 240 floats: a dense table of 600 is pushed in three segments; 40 rows of 4 in three that
# fit into the ring, 130 in seven that do not.
def loads() -> dict[str, Load]:
    """All loads by name."""
    found: dict[str, Load] = {}
    optimizers = {
        "sgd": SGD(0.5),
        "momentum": Momentum(0.5),
        "adam": Adam(0.1),
        "adagrad": Adagrad(0.1),
        "ftrl": FTRL(0.1),
        "python": PythonRule(python_rule, n_state=1),
    }
    models = {"bsp": BSP(), "backup": BSP(backup=1), "ssp": SSP(2), "asp": ASP()}
    for o, optimizer in optimizers.items():
        for m, model in models.items():
            tables = [dense(600, "d", optimizer, model), rows(4, "e", optimizer, model)]
            sizes = [(0, 600, ""), (1, 40, ""), (0, 600, "staged"), (1, 9, "")]
            found[f"{o}-{m}"] = Load(tables, sizes)
    tables = [dense(600, "d", SGD(0.5), ASP()), rows(4, "e", SGD(0.5), ASP())]
    sizes = [(0, 600, "staged"), (1, 40, ""), (0, 600, ""), (1, 130, ""), (1, 9, "")]
    found["queued"] = Load(tables, sizes, n_workers=3, drain_every=7)
    tables = [dense(600, "d", Adam(0.1), BSP()), rows(4, "e", Adam(0.1), BSP())]
    found["queued-bsp"] = Load(tables, sizes, n_workers=3, drain_every=7)
    # Rows of the next clock wait in their slots while another worker closes this one.
    tables = [dense(300, "d", Adam(0.1), BSP()), rows(4, "e", SGD(0.5), ASP())]
    sizes = [(1, 9, ""), (1, 130, ""), (0, 300, "")]
    found["mixed"] = Load(tables, sizes, clocks=3, drain_every=1000, pulls=False)
    tables = [
        dense(600, "d", SGD(0.5), ASP(Compensate(0.5))),
        rows(4, "e", Adagrad(0.1), ASP(Scale())),
        dense(40, "r", SGD(0.5), ASP(Reject(1))),
    ]
    sizes = [(0, 600, "base"), (1, 40, ""), (2, 40, ""), (2, 40, "")]
    found["policies"] = Load(tables, sizes)
    # More than a unit of the journal, and more than a block.
    tables = [dense(20_000, "d", Adam(0.1), ASP()), rows(16, "e", Adam(0.1), ASP())]
    found["large"] = Load(tables, [(0, 20_000, ""), (1, 300, "")], n_workers=1, clocks=1)
    tables = [dense(20_000, "d", Adam(0.1), BSP(backup=1)), rows(16, "e", SGD(0.1), BSP(backup=1))]
    sizes = [(0, 20_000, ""), (1, 300, "")]
    found["large-backup"] = Load(tables, sizes, n_workers=3, clocks=1)
    tables = [dense(300, "d", Adam(0.1), BSP()), rows(4, "e", SGD(0.5), BSP())]
    found["small-bsp"] = Load(tables, [(0, 300, ""), (1, 7, "")], clocks=1)
    tables = [dense(300, "d", SGD(0.5), ASP()), rows(4, "e", Adam(0.1), ASP())]
    sizes = [(0, 300, ""), (1, 60, ""), (0, 300, "staged")]
    found["small-asp"] = Load(tables, sizes, n_workers=1, clocks=1)
    # Rows of several pieces, one after the other.
    tables = [rows(70, "e", Adam(0.1), ASP()), rows(40, "f", Momentum(0.5), ASP())]
    found["small-wide"] = Load(tables, [(0, 5, ""), (1, 6, "")], n_workers=1, clocks=1)
    tables = [dense(600, "d", Adam(0.1), BSP()), rows(4, "e", Adam(0.1), BSP())]
    sizes = [(0, 600, ""), (1, 40, ""), (0, 600, ""), (1, 130, ""), (1, 9, "")]
    for bound in (0, 1, 3):
        found[f"pair-bsp-{bound}"] = Load(tables, sizes, drain_every=3, partner=bound)
    tables = [dense(600, "d", Momentum(0.5), ASP()), rows(4, "e", Adagrad(0.1), ASP())]
    for bound in (0, 2):
        # With one worker there is one order only.
        found[f"pair-asp-{bound}"] = Load(tables, sizes, 1, drain_every=3, partner=bound)
    # Blocks of 128 values in records of 960 bytes; each launch repeats the rounding of the one before.
    for m, model in {"bsp": BSP(), "asp": ASP()}.items():
        tables = [
            DenseTable("d", (3000,), Adam(0.1), model, compression="int8", pull_compression="int8"),
            EmbeddingTable(
                "e", 20, Adagrad(0.1), model, compression="int8", pull_compression="bf16"
            ),
            EmbeddingTable("f", 3, SGD(0.5), model, compression="fp16"),
        ]
        sizes = [(0, 3000, ""), (1, 40, ""), (2, 150, ""), (0, 3000, "")]
        found[f"encoded-{m}"] = Load(tables, sizes, n_workers=2 if m == "bsp" else 1)
    # A push with a residual takes one record (topk), or several (onebit).
    for m, model in {"bsp": BSP(), "asp": ASP()}.items():
        tables = [
            DenseTable("t", (700,), Momentum(0.5), model, compression=TopK(0.1)),
            DenseTable("o", (8000,), SGD(0.5), model, compression=OneBit()),
            DenseTable("r", (900,), SGD(0.5), model, compression=RandomK(0.5)),
        ]
        sizes = [(0, 700, ""), (1, 8000, ""), (2, 900, ""), (0, 700, ""), (1, 8000, "")]
        found[f"feedback-{m}"] = Load(tables, sizes, n_workers=2 if m == "bsp" else 1)
    # The first clock is sent as floats. A block of `s` takes two records, a record of `t` several blocks.
    tables = served(
        [
            DenseTable("s", (3000,), Momentum(0.5), BSP(), compression=SharedInt8(2048)),
            DenseTable("t", (1500,), SGD(0.5), BSP(), compression=SharedInt8(48)),
        ]
    )
    sizes = [(0, 3000, ""), (1, 1500, ""), (0, 3000, "")]
    found["shared"] = Load(tables, sizes, clocks=3)
    found["shared-queued"] = Load(tables, sizes, n_workers=3, clocks=3, drain_every=7)
    for bound in (0, 2):
        found[f"pair-shared-{bound}"] = Load(tables, sizes, clocks=3, drain_every=3, partner=bound)
    # All records of a worker's clock fit into its ring, so that workers need not take turns.
    table = DenseTable("s", (2500,), Adam(0.1), BSP(), compression=SharedInt8(600))
    load = Load(served([table]), [(0, 2500, "staged")], 3, 4, alternates=True)
    found["shared-alternating"] = load
    # Pulls are differences: their copy takes several units.
    for m, model in {"bsp": BSP(), "backup": BSP(backup=1)}.items():
        tables = [
            DenseTable("t", (700,), Momentum(0.5), model, pull_compression=TopK(0.1)),
            DenseTable("o", (9000,), SGD(0.5), model, pull_compression=OneBit()),
            DenseTable(
                "p", (300,), PythonRule(python_rule, n_state=1), model, pull_compression=OneBit()
            ),
        ]
        sizes = [(0, 700, ""), (1, 9000, "staged"), (2, 300, ""), (0, 700, "")]
        found[f"differences-{m}"] = Load(tables, sizes, clocks=3)
        if m == "bsp":
            sizes = [(0, 700, ""), (1, 9000, "")]
            for bound in (0, 3):
                found[f"differences-pair-{bound}"] = Load(
                    tables, sizes, drain_every=3, partner=bound
                )
    for m, model in {"bsp": BSP(), "backup": BSP(backup=1), "asp": ASP()}.items():
        dim = 70 if m == "asp" else 32
        tables = [dense(150_000, "d", Adam(0.1), model), rows(dim, "e", Adam(0.1), model)]
        sizes = [(0, 150_000, "staged"), (1, 3000, ""), (0, 150_000, "")]
        found[f"heavy-{m}"] = Load(tables, sizes, slot_bytes=1 << 17)
    return found


def crash(load: str, how: str, number: int) -> list[int]:
    """Run this program with a load in a process of its own; the numbers that it prints."""
    command = [sys.executable, __file__, load, how, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split() if word.isdigit()]


def main() -> None:
    name, how, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    load = loads()[name]
    if how == "everywhere":
        print("{} points, {} kills".format(*die_everywhere(load, number)))
    elif how == "twice":
        print("{} points, {} kills".format(*die_everywhere(load, number, 24)))
    elif how == "anytime":
        print("{} runs, {} kills".format(*die_anytime(load, number, 8)))
    else:
        print(f"{live_shortly(load, number)} lives")


if __name__ == "__main__":
    main()
