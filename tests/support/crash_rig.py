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
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from crash_life import Life_
from crash_load import Load
from crash_loads import loads
from long_runs import by_day

from mpips import _native
from mpips.server.storage_files import remove_files
from mpips.transport.region import new_token, persistent, unlink_job

SANITIZED = "MPIPS_NATIVE_DIR" in os.environ


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


def points_of(n_points: int, stride: int) -> list[tuple[int, int]]:
    """Where the first life ends (every `stride`-th point) and where the second does.

    By day these are every eighth of them, every sixteenth with sanitizers, and always the first, the one in
    the middle and the last.
    """
    points = [(n, i % 41 + 1) for i, n in enumerate(range(1, n_points + 1, stride))]
    special = {points[0], points[len(points) // 2], points[-1]}
    return sorted({*by_day(points, 16 if SANITIZED else 8), *special})


def die_everywhere(load: Load, stride: int, all_of: int = 0) -> tuple[int, int, int]:
    """Kill the first life at `points_of` its points, and the second somewhere in turn.

    Args:
        load: What is done.
        stride: Of the points of the first life.
        all_of: Kill the second life at each of so many points instead, after each death of the first.

    Returns:
        The number of points of an undisturbed life, of those at which it was killed, and of kills.
    """
    token = persistent(new_token())
    _, (expected, n_points) = live(token, load, 0, "any:0")
    unlink_job(token)
    points, kills = points_of(n_points, stride), 0
    for n, turn in points:
        for second in range(1, all_of + 1) if all_of else [turn]:
            kills += die_twice(load, n, second, expected)
    return n_points, len(points), kills


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


def die_at(load: Load, points: Sequence[str], most: int) -> int:
    """Kill the first life at passages of these points, at most so many of each; return how many it were."""
    token = persistent(new_token())
    _, (expected, _) = live(token, load, 0, "any:0")
    unlink_job(token)
    kills = 0
    for point in points:
        for n in range(1, most + 1):
            token = persistent(new_token())
            try:
                ended, outcome = live(token, load, 0, f"{point}:{n}")
                if ended:
                    kills += 1
                    _, outcome = live(token, load, 1, "")
                compare(outcome[0], expected, f"killed at {point} {n}")
            finally:
                unlink_job(token)
    return kills


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
                # The first life of a run ends early, also where the machine is faster than it was.
                longest_s = whole_s if generation else whole_s / 4
                ended, outcome = live(token, load, generation, "", delays.uniform(0, longest_s))
                if not ended:
                    compare(outcome[0], expected, f"{generation} kills from outside")
                    break
                kills += 1
        finally:
            unlink_job(token)
    return runs, kills


def crash(load: str, how: str, number: int, program: str = __file__) -> list[int]:
    """Run a program whose `main` is ours with a load in a process of its own; the numbers that it prints."""
    command = [sys.executable, program, load, how, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split() if word.isdigit()]


def main(found: Mapping[str, Load]) -> None:
    """Do what the arguments say to one of these loads."""
    name, how, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    load = found[name]
    if how == "everywhere":
        print("{} points, {} of them tried, {} kills".format(*die_everywhere(load, number)))
    elif how == "twice":
        print("{} points, {} of them tried, {} kills".format(*die_everywhere(load, number, 24)))
    elif how == "moving":
        print(f"{die_at(load, ('row-moving', 'row-moved', 'rows-made'), number)} kills")
    elif how == "anytime":
        runs = len(by_day(range(8), 4))
        print("{} runs, {} kills".format(*die_anytime(load, number, runs)))
    else:
        print(f"{live_shortly(load, number)} lives")
    remove_files(load.tables)


if __name__ == "__main__":
    main(loads())
