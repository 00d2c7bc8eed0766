"""The queue between a program in C and a worker: what is copied, who waits, and what a death leaves."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import program_rig as rig
import pytest
from program_rig import Program, refused, serve

from mpips.insitu.layout import DTYPES

RANDOM = np.random.default_rng(3)


@pytest.fixture
def name() -> Iterator[str]:
    with rig.queue_name() as chosen:
        yield chosen


def stored(queue: Any, number: int, field: int, dtype: str, shape: Sequence[int]) -> np.ndarray:
    at, n = queue.offset(field), int(np.prod(shape)) * np.dtype(dtype).itemsize
    return queue.slot(number)[at : at + n].view(dtype).reshape(shape).copy()


def views(dtype: str) -> Iterator[np.ndarray]:
    """Arrays with the strides that applications have."""

    def whole(*shape: int) -> np.ndarray:
        if dtype.startswith("float"):
            return RANDOM.standard_normal(shape).astype(dtype)
        return RANDOM.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)

    yield whole()
    yield whole(1)
    yield whole(700)
    yield whole(5, 6, 7)
    yield whole(9, 8)[1:-1, 1:-1]  # the inside of a halo
    yield np.asfortranarray(whole(4, 5, 6))
    yield whole(4, 5, 6)[:, ::2, ::-1]
    yield whole(6, 5)[::-2]
    yield whole(3, 1, 5)[:, :, 1:4]
    yield np.broadcast_to(whole(4), (3, 4))
    yield whole(2, 3, 2, 2, 2, 3, 2, 2)[..., 0:1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_arrive_bit_for_bit_whatever_their_strides(name: str, dtype: str) -> None:
    arrays = list(views(dtype))
    fields = [(f"a{i}", dtype, a.shape) for i, a in enumerate(arrays)]
    queue = serve(name, fields, slots=2)
    program = Program(name)
    program.declare_like(**{f"a{i}": a for i, a in enumerate(arrays)})
    for number in range(3):
        program.push(*arrays)
        assert queue.written == number + 1 == program.produced
        for i, a in enumerate(arrays):
            np.testing.assert_array_equal(stored(queue, number, i, dtype, a.shape), a, f"a{i}")
        queue.take(number + 1)


def test_float64_becomes_float32_on_the_way(name: str) -> None:
    queue = serve(name, [("x", "float32", (40, 3)), ("y", "float32", ())])
    program = Program(name)
    x, y = RANDOM.standard_normal((3, 40)).T, np.array(1 / 3)
    program.declare_like(y=y, x=x)
    program.push(y, x)
    np.testing.assert_array_equal(stored(queue, 0, 0, "float32", (40, 3)), x.astype(np.float32))
    assert stored(queue, 0, 1, "float32", ()) == np.float32(1 / 3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sample_with_nan_is_refused_at_every_place(name: str, dtype: str, bad: float) -> None:
    queue = serve(name, [("x", dtype, (37,))], slots=1)
    program = Program(name)
    x = RANDOM.standard_normal(37).astype(dtype)
    program.declare_like(x=x)
    for i in range(37):
        x[i], good = bad, x[i]
        with refused(
            rig.INVALID, "field 'x' of sample 0 of producer 0 of .* contains NaN or infinity"
        ):
            program.push(x)
        x[i] = good
    assert queue.written == 0
    program.push(x)
    np.testing.assert_array_equal(stored(queue, 0, 0, dtype, (37,)), x)


def test_a_number_beyond_float32_is_refused(name: str) -> None:
    queue = serve(name)
    program = Program(name)
    x = np.array([1, 1e39, 2])
    program.declare_like(x=x)
    with refused(rig.INVALID, "or a number beyond float32"):
        program.push(x)
    assert queue.written == 0


def test_a_stream_that_drops_such_samples_gets_them(name: str) -> None:
    queue = serve(name, check=False)
    program = Program(name)
    x = np.array([1, np.nan, 2], np.float32)
    program.declare_like(x=x)
    program.push(x)
    np.testing.assert_array_equal(stored(queue, 0, 0, "float32", (3,)), x)


def test_waits_end_and_name_the_worker(name: str) -> None:
    queue = serve(name, slots=2, worker=5)
    program = Program(name, timeout_s=0.05)
    x = np.arange(3, dtype=np.float32)
    program.declare_like(x=x)
    program.push(x)
    program.push(x)
    with refused(rig.FULL, "has no room"):
        program.push(x, wait=False)
    late = rf"for 0.05 s: worker 5 \(process {os.getpid()}\) is running but late; samples taken: 0 of 2"
    with refused(rig.STALLED, f"mpips_push: producer 0 of '{name}': the queue has no room {late}"):
        program.push(x)
    with refused(rig.STALLED, f"mpips_flush: .* servers do not hold all samples {late}"):
        program.flush()
    queue.take(1)
    program.push(x)
    queue.take(3)
    program.flush()
    program.push(x)
    del queue
    gc.collect()
    with refused(
        rig.STALLED, "worker 5 .* has ended, and no later launch of the job serves the queue"
    ):
        program.flush()


def test_no_worker_is_a_sentence_after_the_timeout(name: str) -> None:
    here = f"no worker on this node, {socket.gethostname()}, has served producer 0 of '{name}'"
    with refused(rig.STALLED, here):
        Program(name, timeout_s=0.05)


def test_the_end_is_acknowledged(name: str) -> None:
    queue = serve(name)
    program = Program(name, timeout_s=20.0)
    x = np.arange(3, dtype=np.float32)
    program.declare_like(x=x)
    program.push(x)
    assert not queue.is_closed
    errors: list[BaseException] = []

    def close() -> None:
        try:
            program.close()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    while not queue.is_closed:
        time.sleep(0)
    assert thread.is_alive()
    assert queue.written == 1
    queue.take(1)
    queue.end()
    thread.join()
    assert not errors
    assert not queue.is_attached


def test_one_program_and_one_worker_at_a_time(name: str) -> None:
    queue = serve(name)
    program = Program(name)
    with refused(rig.USAGE, f"process {os.getpid()} is producer 0 of '{name}' already"):
        Program(name)
    with pytest.raises(
        RuntimeError, match="another worker of this one, serves /dev/shm/mpips_queue"
    ):
        serve(name)
    assert queue.is_attached
    assert queue.program_pid == os.getpid()
    program.detach()
    assert not queue.is_attached
    Program(name).detach()


def test_the_next_worker_goes_on_with_what_is_in_the_queue(name: str) -> None:
    queue = serve(name)
    program = Program(name)
    x = np.zeros(3, np.float32)
    program.declare_like(x=x)
    for n in range(4):
        x[:] = n
        program.push(x)
    queue.take(1)
    # Servers hold two samples, and the worker dies before it frees the second one.
    del queue
    gc.collect()
    queue = serve(name, produced=2)
    assert queue.is_continued
    assert (queue.taken, queue.written) == (2, 4)
    assert stored(queue, 3, 0, "float32", (3,)).tolist() == [3, 3, 3]
    program.push(x)
    program.push(x)
    assert program.produced == 6
    # A program that starts again goes on as well.
    program.detach()
    assert Program(name).produced == 6


@pytest.mark.parametrize(
    ("change", "attached"),
    [
        ({"produced": 1}, True),  # an older checkpoint
        ({"produced": 5}, True),  # samples of another program
        ({"produced": 2, "declaration": 8}, True),
        ({"produced": 2, "slots": 5}, True),
        ({"produced": 2, "fields": [("y", "float32", (3,))]}, True),
        ({"produced": 0}, False),
    ],
)
def test_a_queue_of_other_samples_is_replaced(name: str, change: Any, attached: bool) -> None:
    queue = serve(name)
    program = Program(name)
    x = np.zeros(3, np.float32)
    program.declare_like(x=x)
    for _ in range(4):
        program.push(x)
    if attached:
        queue.take(2)
    else:
        program.detach()
    del queue
    gc.collect()
    queue = serve(name, **change)
    assert not queue.is_continued
    produced = change["produced"]
    assert (queue.taken, queue.written) == (produced, produced)
    if attached:
        for call in (lambda: program.push(x), lambda: program.push(x, wait=False), program.flush):
            with refused(rig.REPLACED, f"the job goes on with {produced} samples of it"):
                call()
        with refused(rig.REPLACED, "the job goes on with"):
            program.close()
    assert Program(name).produced == produced


def test_a_program_may_wait_through_the_start_of_a_new_job(name: str) -> None:
    queue = serve(name)
    program = Program(name)
    x = np.ones(3, np.float32)
    program.declare_like(x=x)
    program.push(x)
    del queue
    gc.collect()
    queue = serve(name, produced=0)
    assert queue.is_continued
    assert queue.written == 1
    assert stored(queue, 0, 0, "float32", (3,)).tolist() == [1, 1, 1]


def test_a_program_goes_on_if_a_worker_takes_the_mark_of_a_replaced_queue_back(name: str) -> None:
    queue = serve(name)
    program = Program(name)
    x = np.zeros(3, np.float32)
    program.declare_like(x=x)
    words = np.memmap(rig.queue_path(name), np.uint64, "r+")
    words[17] = 1
    # The file is in its place, so the program waits for the decision of the worker.
    program.push(x)
    program.detach()
    with refused(rig.STALLED, "no worker on this node, "):
        Program(name, timeout_s=0.05)
    words[17] = 0
    assert Program(name).produced == 1 == queue.written


def test_a_program_reads_whole_sets_of_values(name: str) -> None:
    # Publishing and reading take so long that they overlap most of the time.
    n, sets, done = 1 << 17, 100, threading.Event()
    queue = serve(name, steer=n)
    program = Program(name)
    assert program.steer(500) == (0, [-1.0] * 500)

    def publish() -> None:
        for i in range(1, sets + 1):
            queue.publish(np.full(n, i, np.float32))
            time.sleep(0)
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    last, all_values, first_values = 0, np.zeros(n, np.float32), np.zeros(2, np.float32)
    while not (done.is_set() and last == sets):
        for values in (all_values, first_values):
            version = program.steer_into(values)
            assert version >= last
            assert (values == version).all()
            last = version
    thread.join()
    assert program.steer(2) == (sets, [sets, sets])
    with refused(rig.USAGE, "n = 131073: the worker publishes 131072 values"):
        program.steer(n + 1)
    # A worker that was killed while it published.
    program.detach()
    program = Program(name, timeout_s=0.05)
    words = np.memmap(rig.queue_path(name), np.uint64, "r+")
    words[int(words[5]) // 8] += 1
    with refused(rig.STALLED, "mpips_steer: .* values are half written for 0.05 s"):
        program.steer(1)
    del queue
    gc.collect()
    queue = serve(name, steer=n)
    queue.publish(np.full(n, 7, np.float32))
    assert program.steer(1) == (sets + 1, [7.0])


def test_samples_are_never_torn_or_lost(name: str) -> None:
    shape, n = (3000,), 300
    queue = serve(name, [("x", "float32", shape), ("n", "int64", ())], slots=3)

    def push() -> None:
        program = Program(name, timeout_s=30.0)
        x, number = np.zeros(shape, np.float32), np.zeros((), np.int64)
        program.declare_like(n=number, x=x)
        for i in range(n):
            x[:], number[()] = i, i
            program.push(number, x)

    thread = threading.Thread(target=push)
    thread.start()
    for i in range(n):
        while queue.written == i:
            time.sleep(0)  # let the other thread have the interpreter
        assert queue.written - i <= 3
        x = stored(queue, i, 0, "float32", shape)
        assert x[0] == i
        assert (x == i).all()
        assert stored(queue, i, 1, "int64", ()) == i
        queue.take(i + 1)
    thread.join()


def test_wrong_declarations_and_calls_are_sentences(name: str) -> None:
    queue = serve(name, [("x", "float32", (3, 4)), ("n", "int32", ())])
    program = Program(name)
    for code, text, call in [
        (rig.USAGE, "has no field 'y'", lambda: program.declare("y", "float32", (3, 4))),
        (
            rig.USAGE,
            "field 'x' has another shape than the stream, \\(3, 4\\)",
            lambda: program.declare("x", "float32", (4, 3)),
        ),
        (rig.USAGE, "another shape", lambda: program.declare("x", "float32", (12,))),
        (
            rig.USAGE,
            "field 'n' has type 2, the stream has type 5",
            lambda: program.declare("n", "float64", ()),
        ),
        (rig.USAGE, "field 'x' of .* is not declared: call mpips_declare", lambda: program.push()),
    ]:
        with refused(code, text):
            call()
    program.declare("x", "float64", (3, 4))
    with refused(rig.USAGE, "field 'x' is declared already"):
        program.declare("x", "float32", (3, 4))
    with refused(rig.USAGE, "field 'n' of .* is not declared"):
        program.push(np.zeros((3, 4)))
    program.detach()
    for call in (program.flush, program.close, program.detach, lambda: program.push(np.zeros(1))):
        with refused(rig.USAGE, "the producer is NULL"):
            call()
    for bad in ("", "a/b", ".a", "x" * 65, "ä"):
        if bad not in ("", "a/b"):  # no name, and a folder: see test_queue_watch.py
            with refused(rig.USAGE, "the name must have 1 to 64 letters"):
                Program(bad)
        with pytest.raises(ValueError, match="must have 1 to 64 letters"):
            serve(bad)
    with refused(rig.USAGE, "number = -1"):
        Program(name, number=-1)
    assert queue.written == 0


def test_files_of_others_and_damaged_ones_are_not_used(name: str) -> None:
    path = Path(f"/dev/shm/mpips_queue.{os.geteuid()}.{name}.0")
    path.write_bytes(b"short")
    path.chmod(0o600)
    with refused(rig.SYSTEM, f"cannot use {path}"):
        Program(name)
    path.write_bytes(bytes(100000))
    with refused(rig.USAGE, "was made by another version of mpips, or is damaged"):
        Program(name)
    path.chmod(0o644)
    with refused(rig.SYSTEM, "Operation not permitted"):
        Program(name)
    path.unlink()
    path.symlink_to("/dev/shm/nothing")
    with refused(rig.SYSTEM, "cannot open"):
        Program(name)
