"""Gate and progress thread: one thread at a time, errors, ends, forks; and a stream in two threads."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time

import numpy as np
import pytest
from fake_network import KINDS, remote
from harness import Rig, rows

import mpips
from mpips.errors import ProtocolError
from mpips.model.consistency import BSP, SSP
from mpips.model.optimizer import SGD
from mpips.transport.gate import Gate
from mpips.transport.progress import ProgressThread, is_wanted
from mpips.worker.worker import connection_of

LONG_S = 20.0


class Transfers:
    """A channel on which something is always under way; `advance` notes who is in it."""

    def __init__(self) -> None:
        self.is_under_way = True
        self.is_inside = False
        self.work = lambda: None
        self.first = threading.Event()
        self.threads: set[str] = set()

    def advance(self) -> bool:
        self.is_inside = True
        self.threads.add(threading.current_thread().name)
        self.work()
        self.is_inside = False
        self.first.set()
        return True


@contextlib.contextmanager
def progressing(transfers, guard=lambda what: contextlib.nullcontext()):
    gate = Gate()
    progress = ProgressThread(gate, [transfers], guard)
    progress.begin_use()
    try:
        yield gate, progress
    finally:
        with contextlib.suppress(ProtocolError):
            progress.stop()


def threads_of_progress():
    return [t for t in threading.enumerate() if t.name == "mpips-progress"]


def test_no_step_begins_or_goes_on_while_the_gate_is_closed():
    transfers = Transfers()
    transfers.work = lambda: [os.sched_yield() for _ in range(20)]
    with progressing(transfers) as (gate, progress):
        for _ in range(400):
            progress.open()
            for _ in range(20):
                os.sched_yield()
            gate.close()
            assert not transfers.is_inside
            before = progress.n_steps
            for _ in range(50):
                os.sched_yield()
                assert not transfers.is_inside
            assert progress.n_steps == before
        progress.open()
        assert transfers.first.wait(LONG_S)
    assert transfers.threads == {"mpips-progress"}


def test_an_error_of_the_thread_is_raised_once_by_the_next_call():
    transfers = Transfers()

    def broken():
        transfers.first.set()
        raise ProtocolError("a message that no server sends")

    transfers.work = broken
    with progressing(transfers) as (gate, progress):
        progress.open()
        assert transfers.first.wait(LONG_S)
        progress._thread.join(LONG_S)
        with pytest.raises(ProtocolError, match="no server sends"):
            gate.close()
        gate.close()
        assert not gate.is_served
        progress.open()
        gate.close()
        progress.stop()


def test_an_error_that_no_call_follows_is_raised_at_the_end():
    transfers = Transfers()

    def broken():
        raise ProtocolError("late")

    transfers.work = broken
    gate = Gate()
    progress = ProgressThread(gate, [transfers], lambda what: contextlib.nullcontext())
    progress.begin_use()
    progress.open()
    progress._thread.join(LONG_S)
    with pytest.raises(ProtocolError):
        gate.close()


class Interrupting:
    """A lock whose first taking is interrupted, as by a signal handler that raises."""

    def __init__(self, lock, before):
        self.lock, self.before, self.n = lock, before, 0

    def __enter__(self):
        self.n += 1
        if self.n == 1 and self.before:
            raise KeyboardInterrupt
        self.lock.acquire()
        if self.n == 1:
            self.lock.release()
            raise KeyboardInterrupt

    def __exit__(self, *error):
        self.lock.release()


@pytest.mark.parametrize("before", [True, False])
def test_a_close_that_a_signal_has_interrupted_is_made_again(before):
    transfers, entered, may_end = Transfers(), threading.Event(), threading.Event()

    def slow():
        entered.set()
        may_end.wait(LONG_S)

    transfers.work = slow
    with progressing(transfers) as (gate, progress):
        progress.open()
        assert entered.wait(LONG_S)
        whole = gate.lock
        if not before:
            may_end.set()
        gate.lock = Interrupting(whole, before)
        with pytest.raises(KeyboardInterrupt):
            gate.close()
        may_end.set()
        gate.close()
        gate.lock = whole
        assert not transfers.is_inside
        assert not whole.locked()


def test_nothing_under_way_needs_no_thread_and_no_step():
    transfers = Transfers()
    transfers.is_under_way = False
    with progressing(transfers) as (gate, progress):
        progress.open()
        assert progress._thread is None
        transfers.is_under_way = True
        transfers.work = lambda: setattr(transfers, "is_under_way", False)
        progress.open()
        assert transfers.first.wait(LONG_S)
        gate.close()
        n = progress.n_steps
        progress.open()
        assert progress.n_steps == n == 1


def test_pauses_and_ends_keep_the_gate_closed():
    transfers = Transfers()
    with progressing(transfers) as (gate, progress):
        progress.open()
        assert transfers.first.wait(LONG_S)
        with progress.paused():
            progress.open()
            assert not gate.is_open
            with progress.paused():
                pass
            progress.open()
            assert not gate.is_open
        progress.open()
        assert gate.is_open
        progress.stop()
        progress.stop()
        progress.open()
        assert not gate.is_open
        assert not progress._thread.is_alive()


def test_a_guard_is_around_each_step():
    transfers, named = Transfers(), []

    @contextlib.contextmanager
    def guard(what):
        named.append(what)
        yield

    with progressing(transfers, guard) as (gate, progress):
        progress.open()
        assert transfers.first.wait(LONG_S)
        gate.close()
        assert len(named) == progress.n_steps > 0


def test_a_forked_child_has_no_thread_and_waits_for_none():
    transfers, entered, may_end = Transfers(), threading.Event(), threading.Event()

    def slow():
        entered.set()
        may_end.wait(LONG_S)

    transfers.work = slow
    with progressing(transfers) as (gate, progress):
        progress.open()
        assert entered.wait(LONG_S)
        assert gate.lock.locked()
        child = os.fork()
        if child == 0:
            gate.close()
            progress.open()
            progress.stop()
            os._exit(0 if not gate.is_open else 1)
        deadline = time.monotonic() + LONG_S
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            assert time.monotonic() < deadline
            os.sched_yield()
        may_end.set()
        assert ended[1] == 0


def test_the_switch():
    assert is_wanted({})
    assert is_wanted({"MPIPS_PROGRESS": "1"})
    assert not is_wanted({"MPIPS_PROGRESS": "0"})


def streamed(kind, seed, consistency, depth, in_two_threads):
    """Train rows over a bad network; return what each step has pulled, and the steps of the thread."""
    table = rows(8, optimizer=SGD(0.5), consistency=consistency)
    rig = Rig(table, n_slots=6)
    gate = Gate()
    channel = remote(rig, seed=seed, kind=kind, gate=gate)[1]
    worker = rig.worker(channel=channel)
    progress = ProgressThread(gate, [channel], lambda what: contextlib.nullcontext())
    connection_of(worker).progress = progress if in_two_threads else None
    batches = [np.random.default_rng([seed, i]).zipf(1.3, 40) % 60 for i in range(15)]
    loop = batches
    if depth:
        loop = mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=depth)
    found, pause = [], np.random.default_rng(seed)
    handle = worker.table("e")
    for keys in loop:
        # Compute for a random time, in which only the thread may use the network.
        for _ in range(int(pause.integers(0, 30))):
            os.sched_yield()
        values = handle.pull(keys)
        found.append(values.tobytes())
        handle.push(keys, values * np.float32(0.25) + np.float32(1))
        worker.clock()
    del loop
    gc.collect()
    connection_of(worker).finish()
    progress.stop()
    assert rig.core.stats(0)["pushed"] == len(batches)
    assert not channel.is_under_way
    return found, progress.n_steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_a_stream_brings_the_same_bits(kind, seed):
    plain, _ = streamed(kind, seed, BSP(), 0, False)
    for depth in (1, 4):
        assert streamed(kind, seed, BSP(), depth, False)[0] == plain
        assert streamed(kind, seed, BSP(), depth, True)[0] == plain


@pytest.mark.parametrize("kind", KINDS)
def test_the_thread_does_work(kind):
    assert sum(streamed(kind, seed, SSP(2), 3, True)[1] for seed in range(6)) > 0
