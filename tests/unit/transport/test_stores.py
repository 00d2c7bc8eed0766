"""Stores past the caches: every path that may use them gives the bits of ordinary stores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import Rig, dense, floats, in_threads, rows
from journal_rig import Rig as JournalRig

from mpips import _native, kernels
from mpips.model.consistency import ASP
from mpips.model.optimizer import FTRL, SGD, Adagrad, Adam, Momentum
from mpips.transport.region import unlink_job

ROOT = Path(__file__).parents[3]
PROGRAM = """
import hashlib, sys
sys.path[:0] = sys.argv[1:]
import test_stores
digest = hashlib.blake2b()
for part in test_stores.everything():
    digest.update(part)
print(digest.hexdigest())
"""

# Below, at and above the sizes from which on a choice is made and halves are measured, and sizes that are
# no multiple of a vector or of a line
SIZES = (100, 511, 512, 700, 1000, 2047, 2048, 5000, 16384, 16401, 40000)
RULES = (SGD(lr=0.5), Momentum(lr=0.5), Adagrad(lr=0.5), Adam(lr=0.5), FTRL(lr=0.5))


def everything():
    """Yield the bytes of all values after pushes, with a journal and without one, and of all pulls."""
    for rule in RULES:
        for n in SIZES:
            yield from _dense(n, rule)
            yield from _logged(n, rule)
    for dim in (16, 20, 48, 64):
        yield from _rows(dim)


def _dense(n, rule):
    rig = Rig(dense(n, optimizer=rule), slot_bytes=64 << 10, checksums=False)
    worker, out = rig.worker(), np.empty(n, np.float32)
    for k in range(20):
        worker.table("w").push(floats(n, k)).wait()
        worker.table("w").pull(out)
        yield out.tobytes()


def _logged(n, rule):
    rig = JournalRig(dense(n, optimizer=rule), slot_bytes=64 << 10)
    try:
        for k in range(20):
            done, update = 0, floats(n, k)
            while done < n:
                done = rig.writer.push_dense(0, 0, update, None, done)
                rig.drain()
        yield rig.core.dense_values(0).tobytes()
    finally:
        rig.leave()
        unlink_job(rig.token)


def _rows(dim):
    rig = Rig(rows(dim, optimizer=SGD(lr=0.5)), slot_bytes=16 << 10, n_slots=16, checksums=False)
    table = rig.worker().table("e")
    random = np.random.default_rng(dim)
    for k in range(40):
        keys = random.integers(0, 500, 300)  # some of them twice
        table.push(keys, floats(300 * dim, k).reshape(300, dim)).wait()
        unique = np.unique(keys)
        table.push(unique, floats(len(unique) * dim, k).reshape(-1, dim)).wait()
        yield np.ascontiguousarray(table.pull(keys)).tobytes()


def run(way, program=PROGRAM):
    return subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent), str(ROOT / "tests/support")],
        env={**os.environ, "MPIPS_STORES": way},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_all_ways_give_the_same_bits():
    done = {way: run(way) for way in ("cached", "past", "")}
    assert all(d.returncode == 0 for d in done.values()), [d.stderr for d in done.values()]
    assert len({d.stdout for d in done.values()}) == 1, done


def test_an_unknown_way_is_refused():
    done = run("nontemporal", "from mpips import _native; _native.RingWriter")
    assert done.returncode == 0
    done = run("nontemporal")
    assert done.returncode != 0
    assert "MPIPS_STORES = 'nontemporal': must be cached or past" in done.stderr


NAN_PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import numpy as np
from harness import Rig, dense
for n in (600, 5000, 40000):
    for at in (0, 1, 299, n // 2, n - 1):
        rig = Rig(dense(n), slot_bytes=64 << 10)
        worker = rig.worker()
        update = np.ones(n, np.float32)
        update[at] = np.inf if at % 2 else np.nan
        try:
            worker.table("w").push(update)
        except Exception as error:
            assert "NaN" in str(error) or "finite" in str(error), error
        else:
            raise SystemExit(f"{n}, {at}: pushed")
        rig.drain()
        assert not rig.values().any()
"""


@pytest.mark.parametrize("way", ["past", ""])
def test_values_that_are_not_finite_are_refused_everywhere(way):
    done = run(way, NAN_PROGRAM)
    assert done.returncode == 0, done.stderr


READER_PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import test_stores
test_stores.read_while_it_changes()
"""


def read_while_it_changes():
    """Every pull sees whole blocks: all values of a block are those of one update."""
    n, block = 40000, 16384
    rig = Rig(dense(n, consistency=ASP()), n_workers=2, slot_bytes=64 << 10, n_slots=8)
    pushed = 400

    def write():
        table = rig.worker(0, local=False).table("w")
        for _ in range(pushed):
            table.push(np.ones(n, np.float32)).wait()

    def read():
        table, out = rig.worker(1, local=False).table("w"), np.empty(n, np.float32)
        seen = 0.0
        while seen > -pushed:
            table.pull(out)
            for start in range(0, n, block):
                part = out[start : start + block]
                assert (part == part[0]).all(), np.unique(part)
            seen = out[-1]

    with rig.serving():
        in_threads([write, read])
    assert (rig.values() == -pushed).all()


@pytest.mark.parametrize("way", ["past", "cached"])
def test_readers_see_whole_blocks(way):
    done = run(way, READER_PROGRAM)
    assert done.returncode == 0, done.stderr


NEAR, FROM_MEMORY, FAR = 7e-8, 1.5e-7, 2.8e-7
CLOCK = 2.5e-8  # of one read of the clock, which each of these times contains


def test_the_distance_changes_when_three_times_agree():
    distance = _native.CoreDistance()
    assert not distance.is_far
    seen = []
    for seconds in (FAR, FAR, NEAR, FAR, FAR, FAR, NEAR, FAR, NEAR, NEAR, NEAR):
        distance.found_in(seconds, CLOCK)
        seen.append(distance.is_far)
    assert seen == [False] * 5 + [True] * 5 + [False]


def test_times_of_memory_say_nothing_about_the_distance():
    distance = _native.CoreDistance()
    for seconds in (FAR, FROM_MEMORY, FAR, FROM_MEMORY, FAR):
        distance.found_in(seconds, CLOCK)
    assert distance.is_far
    for _ in range(10):
        distance.found_in(FROM_MEMORY, CLOCK)
    assert distance.is_far


def test_loads_that_were_interrupted_do_not_make_a_core_far():
    distance = _native.CoreDistance()
    for k in range(1000):
        distance.found_in(FAR if k % 10 == 0 else FROM_MEMORY, CLOCK)
        assert not distance.is_far


def test_a_distance_that_is_not_seen_again_is_forgotten():
    distance = _native.CoreDistance()
    for _ in range(3):
        distance.found_in(FAR, CLOCK)
    for k in range(1000):
        distance.found_in(FROM_MEMORY, CLOCK)
        assert distance.is_far == (k < 63)


def test_a_slow_clock_makes_no_core_far():
    distance = _native.CoreDistance()
    for clock in (8e-8, 9e-8, 9.5e-8, 1e-6, 1e-6, 1e-6):
        distance.found_in(clock + 5e-8, clock)
    assert not distance.is_far
    for _ in range(3):
        distance.found_in(1.3e-6, 1e-6)  # the clock takes longer than the load: nothing is known
    assert not distance.is_far
    for _ in range(3):
        distance.found_in(8e-8 + 2.5e-7, 8e-8)
    assert distance.is_far


def test_one_in_sixteen_new_values_is_timed():
    distance, due = _native.CoreDistance(), []
    for _ in range(40):
        due.append(distance.is_due)
        distance.found_in(NEAR, CLOCK) if distance.is_due else distance.found()
    assert [k for k, is_due in enumerate(due) if is_due] == [0, 16, 32]


# Sizes of the writes of a step, and seconds of a line whichever way it is written
PATTERNS = {
    "large": ([16384], [0.0]),
    "short": ([600], [0.0]),
    "short and large": ([512] * 16 + [4096] * 16, [0.0] * 32),
    "a step of 32": ([1024] * 16 + [1040] * 16, [20e-9] * 16 + [0.0] * 16),
    "blocks and the rest": ([16384, 16384, 1000], [0.0] * 3),
}


def share_past(pattern, cached_s, past_s, steps=600):
    """Return the share of floats that went past the caches in the second half of the steps."""
    sizes, each = PATTERNS[pattern]
    found = _native.choose_stores(
        sizes * steps, [s + cached_s for s in each] * steps, [s + past_s for s in each] * steps
    )
    half = len(found) // 2
    return sum(found[half:]) / sum((sizes * steps)[half:])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_writes_go_the_faster_way_whatever_a_step_writes(pattern):
    assert share_past(pattern, 8e-9, 11e-9) < 0.1
    assert share_past(pattern, 25e-9, 3e-9) > 0.9


def test_the_choice_follows_a_change():
    n, cached, past = 3000, [4e-9] * 3000, [8e-9] * 3000
    cached[1000:2000] = [25e-9] * 1000
    found = _native.choose_stores([4096] * n, cached, past)
    assert sum(found[:1000]) < 4096 * 30
    assert sum(found[1600:2000]) > 4096 * 390
    assert sum(found[2600:]) < 4096 * 10


def aligned(n, shift, seed):
    memory = np.empty(n + 32, np.float32)
    start = (-memory.ctypes.data // 4) % 16 + shift
    out = memory[start : start + n]
    out[:] = floats(n, seed)
    return out


@pytest.mark.parametrize("shift", [0, 1, 8])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("name", kernels.available_kernels())
def test_updates_past_the_caches_have_the_same_bits(name, rule, shift):
    config = rule.native()
    for n in (1, 15, 16, 31, 512, 1003):
        found = []
        for past in (False, True):
            values = aligned(n, shift, 1)
            state = [np.full(n, config.initial_state(k), np.float32) for k in range(config.n_state)]
            for step in (1, 2, 3):
                kernels.update(
                    config, values, state, floats(n, 1 + step), step, kernels=name, past_caches=past
                )
            found.append([values.tobytes(), *(s.tobytes() for s in state)])
        assert found[0] == found[1]
