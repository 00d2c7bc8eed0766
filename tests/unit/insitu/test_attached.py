"""A Python program that is not a rank pushes into a queue: copies, waits, and what a death leaves."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import program_rig as rig
import pytest
from program_rig import serve

import mpips
from mpips import (
    ConfigError,
    EndedError,
    ForkError,
    QueueReplacedError,
    RegionError,
    StallError,
    StreamTable,
    Worker,
    attach,
)
from mpips.insitu.attached import AttachedProducer
from mpips.insitu.layout import DTYPES

RANDOM = np.random.default_rng(5)
X = np.arange(3, dtype=np.float32)


@pytest.fixture
def name() -> Iterator[str]:
    with rig.queue_name() as chosen:
        yield chosen


def stored(queue: Any, number: int, field: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    at, n = queue.offset(field), int(np.prod(shape)) * np.dtype(dtype).itemsize
    return queue.slot(number)[at : at + n].view(dtype).reshape(shape).copy()


def some(dtype: str, *shape: int) -> np.ndarray:
    if dtype.startswith("float"):
        return RANDOM.standard_normal(shape).astype(dtype)
    return RANDOM.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_arrive_bit_for_bit_whatever_their_strides(name: str, dtype: str) -> None:
    queue = serve(name, [("x", dtype, (4, 6)), ("y", dtype, ())], slots=1)
    records = np.zeros((4, 6), [("head", "u1"), ("x", dtype)])
    records["x"] = some(dtype, 4, 6)
    given = [
        some(dtype, 4, 6),
        np.asfortranarray(some(dtype, 4, 6)),
        some(dtype, 6, 8)[1:-1, 1:-1],
        some(dtype, 8, 6)[::-2],
        some(dtype, 6, 4).T,
        np.broadcast_to(some(dtype, 6), (4, 6)),
        records["x"],  # strides that are no multiples of a value, and odd addresses
        some(dtype, 4, 6),
        some(dtype, 4, 6).tolist(),
        some(dtype, 4, 6).astype(np.dtype(dtype).newbyteorder(">")),
    ]
    producer = attach(name)
    for i, x in enumerate(given):
        y = some(dtype)
        producer.push({"y": y, "x": x})
        assert queue.written == i + 1 == producer.produced
        np.testing.assert_array_equal(stored(queue, i, 0, dtype, (4, 6)), x, f"given {i}")
        np.testing.assert_array_equal(stored(queue, i, 1, dtype, ()), y)
        queue.take(i + 1)
    assert producer.fields == {"x": ((4, 6), dtype), "y": ((), dtype)}


def test_float64_becomes_float32_and_back_again_in_turn(name: str) -> None:
    queue = serve(name, [("x", "float32", (40,))], slots=2)
    producer = attach(name)
    double = RANDOM.standard_normal(80)[::2]
    producer.push({"x": double})
    producer.push({"x": double.astype(np.float32)})
    for n in range(2):
        np.testing.assert_array_equal(
            stored(queue, n, 0, "float32", (40,)), double.astype(np.float32)
        )


@pytest.mark.parametrize(
    ("sample", "error", "text"),
    [
        ({"x": [1, 2]}, ValueError, r"field 'x' has shape \(2,\), declared is \(3,\)"),
        ({"x": X, "y": 1}, ValueError, "a sample has the fields x; given: x, y"),
        ({}, ValueError, "a sample has the fields x; given: none"),
        ({"x": ["a", "b", "c"]}, TypeError, "has values of <U1"),
        ({"x": np.array([1j, 0, 0])}, TypeError, "has values of complex128"),
        ({"x": [0, np.nan, 1]}, ValueError, "^push: field 'x' of sample 0 of producer 0 of .* NaN"),
        ({"x": [0, 1e39, 0]}, ValueError, "or a number beyond float32"),
        ({"x": np.array([0, 1e39, 0], np.longdouble)}, ValueError, "1e.39, which is beyond float32"),
    ],
)  # fmt: skip
def test_a_wrong_sample_is_a_sentence_and_not_pushed(
    name: str, sample: Any, error: type[Exception], text: str
) -> None:
    queue = serve(name)
    producer = attach(name)
    for push in (producer.push, producer.try_push):
        with pytest.raises(error, match=text.replace("^push", "^(try_)?push")):
            push(sample)
    assert queue.written == 0
    producer.push({"x": X})
    assert queue.written == 1


def test_waits_end_and_name_the_worker(name: str) -> None:
    queue = serve(name, slots=2, worker=5)
    producer = attach(name, timeout_s=0.05)
    producer.push({"x": X})
    assert producer.try_push({"x": X}) is True
    assert producer.try_push({"x": X}) is False
    late = rf"for 0.05 s: worker 5 \(process {os.getpid()}\) is running but late; samples taken: 0 of 2"
    with pytest.raises(
        StallError, match=rf"^push: producer 0 of '{name}': the queue has no room {late}"
    ):
        producer.push({"x": X})
    with pytest.raises(StallError, match=rf"^flush: .* servers do not hold all samples {late}"):
        producer.flush()
    queue.take(2)
    producer.flush()
    with pytest.raises(StallError, match=r"^close: .* servers do not hold the end of the producer"):
        producer.close()
    assert queue.is_closed
    assert not queue.is_attached
    producer.close()  # the object is closed, so nothing follows
    with pytest.raises(EndedError, match=f"^producer 0 of '{name}' was used after close or detach"):
        producer.push({"x": X})
    with pytest.raises(EndedError):
        _ = producer.produced
    again = attach(name, timeout_s=0.05)
    with pytest.raises(
        EndedError, match=f"^producer 0 of '{name}' has ended, so no sample may follow"
    ):
        again.push({"x": X})


class Alarmed(Exception):
    pass


@pytest.mark.parametrize("wait", ["attach", "push", "flush", "close"])
def test_a_signal_ends_every_wait(name: str, wait: str) -> None:
    def alarm(number: int, frame: object) -> None:
        raise Alarmed

    def interrupted(call: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        call()

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        if wait == "attach":
            with pytest.raises(Alarmed):
                interrupted(lambda: attach(name, timeout_s=60.0))
            return
        queue = serve(name, slots=1)
        producer = attach(name, timeout_s=60.0)
        producer.push({"x": X})
        call = (lambda: producer.push({"x": X})) if wait == "push" else getattr(producer, wait)
        with pytest.raises(Alarmed):
            interrupted(call)
        assert queue.written == 1
        # The wait may be repeated; the end of a producer is in the queue.
        assert queue.is_attached is (wait != "close") is not queue.is_closed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_a_second_thread_is_refused_while_one_waits(name: str) -> None:
    queue = serve(name, slots=1)
    producer = attach(name, timeout_s=60.0)
    producer.push({"x": X})

    def push() -> None:
        while True:
            try:
                return producer.push({"x": X})
            except RuntimeError:  # the other thread was first
                pass

    thread = threading.Thread(target=push)
    thread.start()
    for call in (lambda: producer.try_push({"x": X}), producer.flush, producer.close):
        while True:
            try:
                # Until the thread waits there is no room, so this has no effect.
                producer.try_push({"x": X})
            except RuntimeError:
                break
        with pytest.raises(RuntimeError, match="another thread uses this producer"):
            call()
    queue.take(1)
    thread.join()
    assert queue.written == 2
    assert not queue.is_closed


def test_a_forked_child_can_only_detach(name: str) -> None:
    queue = serve(name)
    producer = attach(name)
    pid = os.fork()
    if pid == 0:
        refused = 0
        for call in (
            lambda: producer.push({"x": X}),
            producer.flush,
            producer.steer,
            producer.close,
            lambda: producer.produced,
        ):
            try:
                call()
            except ForkError as error:
                refused += f"was used in process {os.getpid()}, a forked child" in str(error)
        producer.detach()
        producer.__exit__(None, None, None) if refused == 0 else None
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    assert queue.is_attached
    producer.push({"x": X})
    assert (queue.written, queue.is_closed) == (1, False)


def test_the_end_of_a_block_ends_the_producer_and_an_error_does_not(name: str) -> None:
    queue = serve(name)

    def fails() -> None:
        with attach(name) as producer:
            producer.push({"x": X})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (queue.written, queue.is_closed, queue.is_attached) == (1, False, False)
    queue.take(1)
    queue.end()  # as if servers held it
    with attach(name) as producer:
        assert producer.produced == 1
    assert (queue.is_closed, queue.is_attached) == (True, False)
    # A program that forgets it, and is not killed, leaves the producer open as well.
    del producer
    forgotten = attach(name)
    assert queue.is_attached
    del forgotten
    gc.collect()
    assert not queue.is_attached


def test_values_of_the_worker_are_read(name: str) -> None:
    queue = serve(name, steer=2)
    producer = attach(name)
    assert producer.steer() is None
    for n in (1, 2):
        queue.publish(np.float32([n, -n]))
        steered = producer.steer()
        assert steered is not None
        assert (steered.version, steered.values.tolist()) == (n, [n, -n])
    first = producer.steer()
    queue.publish(np.zeros(2, np.float32))
    assert first is not None
    assert first.values.tolist() == [2, -2]  # the caller's own


def test_a_producer_is_found_by_run_name_and_rank(
    name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    queues = {number: serve(name, number=number) for number in (4, 6)}
    (tmp_path / "queue").write_text(name + "\n")
    monkeypatch.setenv("MPIPS_STREAM", name)
    monkeypatch.setenv("MPIPS_PRODUCER", "4")

    class Ranks:
        def Get_rank(self) -> int:
            return 2

    monkeypatch.chdir(tmp_path.parent)
    for number, made in [
        (6, lambda: attach(comm=Ranks())),
        (6, lambda: attach(name, 4, comm=Ranks())),
        (6, lambda: attach(number=np.int64(2))),
        (4, attach),
        (4, lambda: attach(tmp_path, 4)),
        (4, lambda: attach(Path(tmp_path.name), 4)),  # a path without '/' is a directory as well
        (4, lambda: attach(f"{tmp_path}/", 4)),
    ]:
        producer = made()
        assert (producer.name, producer.number) == (name, number)
        assert queues[number].is_attached
        producer.detach()
        producer.detach()
        assert not queues[number].is_attached


def test_what_cannot_be_attached_is_a_sentence(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("MPIPS_STREAM", raising=False)
    queue = serve(name)
    used = attach(name)
    (tmp_path / "queue").write_text("no name\n")
    damaged = rig.queue_path(name).with_name(rig.queue_path(name).name[:-1] + "7")
    damaged.write_bytes(b"short")
    damaged.chmod(0o600)
    cases: list[tuple[Any, type[Exception], str]] = [
        ((name, -1), ConfigError, "attach: number = -1: must be a whole number of at least 0"),
        ((name, True), ConfigError, "number = True"),
        ((name, 1 << 40), ConfigError, "must be at most 16777215"),
        ((name, 0, np.nan), ConfigError, "timeout_s = nan: must be seconds"),
        ((name, 0, -1), ConfigError, "timeout_s = -1"),
        (("a b",), ConfigError, "^attach: the name must have 1 to 64 letters"),
        (("a\0b",), ConfigError, "contains a zero byte"),
        (("",), ConfigError, "^attach: no name is given, and MPIPS_STREAM has none"),
        ((tmp_path,), ConfigError, "queue contains no name of queues"),
        ((tmp_path / "no", 0, 0.05), StallError, "^attach: for 0.05 s .*/no has not been the dir"),
        ((name, 1, 0.05), StallError, f"^attach: .* served producer 1 of '{name}'"),
        ((name, 0, 0.05), ConfigError, f"^attach: process {os.getpid()} is producer 0 of '{name}' already"),
        ((name, 7), RegionError, f"^attach: cannot use {damaged}"),
    ]  # fmt: skip
    for (given, *rest), error, text in cases:
        number, timeout_s = [*rest, *(0, 10.0)[len(rest) :]]
        with pytest.raises(error, match=text):
            attach(given, number, timeout_s=timeout_s)
    assert used.produced == queue.written == 0


def test_a_job_that_has_gone_back_is_an_error_of_its_own(name: str) -> None:
    queue = serve(name)
    producer = attach(name)
    for _ in range(4):
        producer.push({"x": X})
    queue.take(2)
    del queue
    gc.collect()
    queue = serve(name, produced=1)
    for call in (
        lambda: producer.push({"x": X}),
        lambda: producer.try_push({"x": X}),
        producer.flush,
        producer.close,
    ):
        with pytest.raises(
            QueueReplacedError, match=f"^producer 0 of '{name}': the job goes on with fewer"
        ):
            call()
    # The last call was close: the object is gone, and the producer goes on in the new queue.
    assert queue.written == 1
    assert attach(name).produced == 1


FIELDS: Any = {"x": (7, 5), "y": ((3,), "float64"), "n": ((), "int32")}


def sample(n: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(n)
    return {
        "x": random.standard_normal((7, 5), np.float32),
        "y": random.standard_normal(3) if n % 9 != 4 else np.full(3, np.nan),
        "n": np.array(n, np.int32),
    }


def test_a_stream_is_the_same_whether_a_program_or_a_worker_pushes(name: str) -> None:
    stream = StreamTable("s", FIELDS, 20, held_out=0.2, invalid="drop")
    n, errors = 60, list[BaseException]()

    def pushed(producer: Any) -> None:
        for i in range(n):
            producer.push(sample(i))
        producer.close()

    def program() -> None:
        try:
            pushed(attach(name, timeout_s=60.0))
        except BaseException as error:
            errors.append(error)

    def content(worker: Worker) -> Any:
        keys, rows = worker.table("s.samples").all_rows()
        reader = stream.reader(worker)
        moments = reader.moments()
        return keys.tolist(), rows.tobytes(), reader.counts(), repr(moments.mean), repr(moments.std)

    def by_program(worker: Worker) -> Any:
        stream.serve(worker, name)
        return content(worker)

    def by_worker(worker: Worker) -> Any:
        pushed(stream.producer(worker))
        return content(worker)

    thread = threading.Thread(target=program)
    thread.start()
    found = mpips.run(by_program, [stream], verbose=False).value
    thread.join()
    assert not errors
    assert found == mpips.run(by_worker, [stream], verbose=False).value
    assert (found[2].produced, found[2].dropped, found[2].ended) == (n, 7, 1)


# Pushes samples of which each value is its number, and prints a line before each push.
PROGRAM = """
import sys
import numpy as np
import mpips
with mpips.attach(sys.argv[1], timeout_s=60.0) as producer:
    for n in range(producer.produced, int(sys.argv[2])):
        x = np.full(producer.fields["x"][0], n, np.float64).T
        print(n, "mpi4py" in sys.modules, flush=True)
        producer.push({"x": x, "n": n})
"""


def test_a_killed_program_leaves_whole_samples_and_the_next_one_goes_on(name: str) -> None:
    n, side, kills = 300, 150, 3
    stream = StreamTable("s", {"x": (side, side), "n": ((), "int64")}, n)
    errors: list[BaseException] = []

    def simulate() -> None:
        random = np.random.default_rng(6)
        command = [sys.executable, "-c", PROGRAM, name, str(n)]
        for kill in range(kills + 1):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                first, has_mpi = process.stdout.readline().split()
                assert (int(first) > 0) is (kill > 0)
                assert has_mpi == "False"
                if kill < kills:
                    for _ in range(int(random.integers(1, n // kills // 2))):
                        process.stdout.readline()
                    process.kill()
                    assert process.wait() == -signal.SIGKILL
                else:
                    process.stdout.read()
                    assert process.wait() == 0

    def guarded() -> None:
        try:
            simulate()
        except BaseException as error:
            errors.append(error)

    def main(worker: Worker) -> Any:
        stream.serve(worker, name, slots=2)
        keys, rows = worker.table("s.samples").all_rows()
        return stream.reader(worker).counts(), keys, stream.layout.decode(rows)

    thread = threading.Thread(target=guarded)
    thread.start()
    counts, keys, found = mpips.run(main, [stream], verbose=False).value
    thread.join()
    assert not errors, errors
    assert (counts.produced, counts.held, counts.ended) == (n, n, 1)
    assert keys.tolist() == found.numbers.tolist() == found.arrays["n"].tolist() == list(range(n))
    expected = np.broadcast_to(np.arange(n)[:, None, None], (n, side, side))
    np.testing.assert_array_equal(found.arrays["x"], expected)


def test_an_attached_producer_is_what_attach_returns(name: str) -> None:
    queue = serve(name)
    with attach(name) as producer:
        assert isinstance(producer, AttachedProducer)
        assert str(producer) == f"producer 0 of '{name}'"
        queue.end()
