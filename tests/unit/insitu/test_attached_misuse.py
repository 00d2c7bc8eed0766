"""A producer of a Python program in unusual places: daemon threads, handlers of signals, odd values."""

from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import processes
import program_rig as rig
import pytest
from program_rig import serve

from mpips import ConfigError, EndedError, StallError, attach
from mpips.testing import nodes

X = np.arange(3, dtype=np.float32)


@pytest.fixture
def name() -> Iterator[str]:
    with rig.queue_name() as chosen:
        yield chosen


# A daemon thread waits for room while the interpreter ends, which takes until stdin is closed.
ENDS_WHILE_A_THREAD_PUSHES = """
import os, sys, threading
import numpy as np
import mpips

class Slow:
    def __del__(self, write=os.write, read=os.read):
        write(1, b"ending\\n")
        read(0, 1)

producer = mpips.attach(sys.argv[1], timeout_s=60.0)
sample = {"x": np.ones(3, np.float32)}
producer.push(sample)
threading.Thread(target=producer.push, args=[sample], daemon=True).start()
while True:
    try:
        producer.try_push(sample)
    except RuntimeError:  # the thread waits
        break
slow = Slow()
"""


@pytest.mark.parametrize("comes_to_an_end", [True, False])
def test_a_program_may_end_while_a_daemon_thread_pushes(name: str, comes_to_an_end: bool) -> None:
    queue = serve(name, slots=1)
    with subprocess.Popen(
        [sys.executable, "-c", ENDS_WHILE_A_THREAD_PUSHES, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"ending\n"
            if comes_to_an_end:
                queue.take(1)
                assert processes.until(lambda: queue.written == 2)
            # A thread that looks for signals does so within this time.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.stdin.close()
            assert (process.stderr.read(), process.wait()) == (b"", 0)
        finally:
            process.kill()
    assert queue.written == (2 if comes_to_an_end else 1)
    assert not queue.is_closed


def test_the_handler_of_a_signal_cannot_use_the_interrupted_producer(name: str) -> None:
    queue = serve(name, slots=1)
    producer = attach(name, timeout_s=60.0)
    producer.push({"x": X})

    def close(number: int, frame: object) -> None:
        producer.close()

    before = signal.signal(signal.SIGALRM, close)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(RuntimeError, match="or the call that a signal has interrupted"):
            producer.push({"x": X})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert (queue.written, queue.is_closed) == (1, False)
    queue.take(1)
    producer.push({"x": X})
    assert queue.written == 2


def test_a_handler_that_raises_nothing_does_not_end_a_wait(name: str) -> None:
    queue = serve(name, slots=1)
    producer = attach(name, timeout_s=60.0)
    producer.push({"x": X})

    def take(number: int, frame: object) -> None:
        queue.take(1)

    before = signal.signal(signal.SIGALRM, take)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        producer.push({"x": X})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert queue.written == 2


def test_a_signal_in_a_block_leaves_the_producer_open(name: str) -> None:
    queue = serve(name, slots=1)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    made = []

    def in_a_block() -> None:
        with attach(name, timeout_s=60.0) as producer:
            made.append(producer)
            producer.push({"x": X})
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            producer.push({"x": X})

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_a_block()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert (queue.written, queue.is_closed, queue.is_attached) == (1, False, False)
    with pytest.raises(EndedError):
        made[0].push({"x": X})


def test_a_forked_child_that_forgets_the_producer_leaves_it_to_its_parent(name: str) -> None:
    queue = serve(name)
    producer = attach(name)
    pid = os.fork()
    if pid == 0:
        del producer
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert queue.is_attached
    producer.push({"x": X})
    assert queue.written == 1


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((None,), {}, "name = None: must be a text or a path"),
        ((3,), {}, "name = 3: must be a text or a path"),
        ((b"heat",), {}, "name = b'heat': must be a text or a path"),
        (("heat", "1"), {}, "number = '1': must be a whole number"),
        (("heat", 1.0), {}, "number = 1.0: must be a whole number"),
        (("heat",), {"timeout_s": np.complex128(1)}, r"timeout_s = .*1\+0j.*: must be seconds"),
        (("heat",), {"timeout_s": "1"}, "timeout_s = '1': must be seconds"),
        (("heat",), {"timeout_s": np.float32("nan")}, "timeout_s = .*nan.*: must be seconds"),
        (("heat",), {"comm": 3}, "comm = 3: must be a communicator of mpi4py"),
    ],
)
def test_a_wrong_argument_is_a_sentence(arguments: Any, options: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^attach: {text}"):
        attach(*arguments, **options)


@pytest.mark.parametrize(
    "timeout_s",
    [10**400, np.inf, np.int64(60), np.float32(60)],
    ids=["huge", "infinity", "int64", "float32"],
)
def test_a_timeout_may_be_any_number(name: str, timeout_s: Any) -> None:
    queue = serve(name, slots=1)
    with attach(name, timeout_s=timeout_s) as producer:
        producer.push({"x": X})
        queue.take(1)
        producer.push({"x": X})
        queue.take(2)
        queue.end()
    assert (queue.written, queue.is_closed) == (2, True)


def test_a_timeout_of_zero_waits_for_nothing(name: str) -> None:
    with pytest.raises(StallError, match=r"^attach: for 0 s no worker"):
        attach(name, timeout_s=0)
    queue = serve(name, slots=1)
    producer = attach(name, timeout_s=0)
    producer.push({"x": X})
    with pytest.raises(StallError, match=r"^push: .* has no room for 0 s"):
        producer.push({"x": X})
    with pytest.raises(StallError, match=r"^flush: "):
        producer.flush()
    assert queue.written == 1


@pytest.mark.parametrize("more", ["", "a"])
def test_a_message_may_be_cut_within_a_character(tmp_path: Path, more: str) -> None:
    # Messages of the library have at most 511 bytes, and the path has two for each letter.
    path = tmp_path / ("é" * 100 + more) / ("é" * 100) / ("é" * 100)
    with pytest.raises(StallError, match=r"^attach: for 0 s .*ééé"):
        attach(path, timeout_s=0)


def test_a_directory_may_have_a_name_that_is_no_text(name: str, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"run-\xff")
    folder.mkdir()
    with pytest.raises(StallError, match=r"^attach: for 0 s .*run-\ufffd has not"):
        attach(folder, timeout_s=0)
    (folder / "queue").write_text(name + "\n")
    queue = serve(name)
    assert attach(folder).name == name
    del queue


@pytest.mark.parametrize(
    ("variable", "value", "number", "text"),
    [
        ("MPIPS_PRODUCER", "first", 0, "MPIPS_PRODUCER = 'first': must be a whole number"),
        ("MPIPS_PRODUCER", "-1", 0, "MPIPS_PRODUCER = '-1'"),
        ("MPIPS_PRODUCER", "2 ", 0, "MPIPS_PRODUCER = '2 '"),
        ("MPIPS_PRODUCER", "", 0, "MPIPS_PRODUCER = ''"),
        ("MPIPS_PRODUCER", "18446744073709551617", 0, "MPIPS_PRODUCER = '18446744073709551617'"),
        ("MPIPS_PRODUCERS", "x", 0, "MPIPS_PRODUCERS = 'x'"),
        (
            "MPIPS_PRODUCERS",
            "2",
            2,
            "number = 2: this program has 2 of the producers of `mpips run`, counted from 0: set "
            "producers.queues",
        ),
    ],
)
def test_a_wrong_environment_is_a_sentence(
    name: str, monkeypatch: Any, variable: str, value: str, number: int, text: str
) -> None:
    queues = [serve(name, number=n) for n in range(6)]
    monkeypatch.setenv("MPIPS_STREAM", name)
    monkeypatch.setenv("MPIPS_PRODUCER", "2")
    monkeypatch.setenv("MPIPS_PRODUCERS", "2")
    producer = attach(number=1)
    assert producer.number == 3
    producer.detach()
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"^attach: {text}"):
        attach(number=number)
    assert not any(queue.is_attached for queue in queues)
    # A name that is given has nothing to do with the environment.
    assert attach(name, 4).number == 4


def test_a_child_that_is_forked_while_a_thread_pushes_can_detach(name: str) -> None:
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
    while True:
        try:
            producer.try_push({"x": X})
        except RuntimeError:  # the thread waits
            break
    pid = os.fork()
    if pid == 0:
        try:
            producer.detach()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    queue.take(1)
    thread.join()
    assert (queue.written, queue.is_attached) == (2, True)


def test_values_that_a_dead_worker_has_half_written_end_the_wait_until_others_come(
    name: str,
) -> None:
    queue = serve(name, steer=2)
    producer = attach(name, timeout_s=0.05)
    queue.publish(np.float32([1, 2]))
    words = np.memmap(rig.queue_path(name), np.uint64, "r+")
    words[words[5] // 8] += 1  # the word behind `steer_offset` of the header
    with pytest.raises(
        StallError, match=r"^steer: .* values are half written for 0.05 s: worker 2"
    ):
        producer.steer()
    # The next worker of the queue publishes, and the producer goes on.
    queue.publish(np.float32([3, 4]))
    steered = producer.steer()
    assert steered is not None
    assert (steered.version, steered.values.tolist()) == (2, [3, 4])
    producer.push({"x": X})
    assert queue.written == 1


ELSEWHERE = """
import sys, mpips
try:
    mpips.attach(sys.argv[1], timeout_s=0.05)
except mpips.StallError as error:
    print(error)
"""


def test_a_program_on_a_node_without_a_worker_is_told_where_it_is(name: str) -> None:
    if why := nodes.why_not():
        pytest.skip(why)
    queue = serve(name)
    # A node has its own name and its own shared memory.
    node = 'hostname node-2 && mount -t tmpfs none /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "--uts", "sh", "-c", node, "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", ELSEWHERE, name], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"attach: for 0.05 s no worker on this node, node-2, has served producer 0 of '{name}' "
        f"({rig.queue_path(name)}): a worker of the job must call StreamTable.serve here, since samples do "
        "not go between nodes\n"
    )
    assert not queue.is_attached


# Offsets in the first field of a queue file, behind its header; see native/src/queue/sample_queue.hpp.
NAME_END, TYPE, N_DIMS, SHAPE, COUNT, OFFSET = (256 + n for n in (63, 64, 68, 72, 136, 144))


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (NAME_END, "B", 65),
        (TYPE, "I", 0),
        (TYPE, "I", 12),
        (TYPE, "I", 1000),
        (N_DIMS, "I", 9),
        (N_DIMS, "I", 2),  # the second one is 0
        (SHAPE, "Q", 0),
        (SHAPE, "Q", 4),  # another one than the number of values says
        (SHAPE, "Q", 1 << 63),
        (COUNT, "Q", 4),
        (OFFSET, "Q", 4096),
        (OFFSET, "Q", 1 << 63),
    ],
)
def test_a_queue_with_a_damaged_field_is_not_used(
    name: str, at: int, form: str, value: int
) -> None:
    queue = serve(name)
    attach(name).detach()
    with rig.queue_path(name).open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(form, value))
    with pytest.raises(ConfigError, match="was made by another version of mpips, or is damaged"):
        attach(name)
    del queue
