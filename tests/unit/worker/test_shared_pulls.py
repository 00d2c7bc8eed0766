"""Pulls that workers of a node share: one of them writes, no other reads a value of another clock."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mpips import _native

SIZES = [40_000, 3]
CLOCKS = 60


@pytest.fixture
def memory() -> _native.SharedMemory:
    return _native.SharedMemory.anonymous(_native.SharedPulls.bytes_for(SIZES), 0)


def pulls_of(memory: _native.SharedMemory, n_workers: int) -> list[_native.SharedPulls]:
    return [_native.SharedPulls(memory, SIZES, w, n_workers, True) for w in range(n_workers)]


def test_one_worker_wins_each_clock(memory: _native.SharedMemory) -> None:
    first, second = pulls_of(memory, 2)
    assert not first.is_ready(0, 0)
    assert (first.claim(0, 0), second.claim(0, 0), first.claim(0, 0)) == (True, False, True)
    assert (second.claim(1, 0), first.claimant(0), first.claimant(1)) == (True, 0, 1)
    assert not second.wait_ready(0, 0, 0.0)
    first.values(0)[:] = 3.0
    first.publish(0, 0, 7)
    out = np.zeros(SIZES[0], np.float32)
    assert second.wait_ready(0, 0, 0.0)
    second.copy(0, out)
    assert (set(out), second.version(0)) == ({3.0}, 7)
    # A worker of an earlier clock, which repeats it after a restart, claims nothing back.
    assert second.claim(0, 5)
    assert not first.claim(0, 4)
    assert not first.is_ready(0, 5)


def test_wrong_numbers_are_refused(memory: _native.SharedMemory) -> None:
    (only,) = pulls_of(memory, 1)
    with pytest.raises(IndexError, match="part 2 of 2"):
        only.claim(2, 0)
    with pytest.raises(ValueError, match="out has 2 values, expected 3"):
        only.copy(1, np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="do not fit together"):
        _native.SharedPulls(memory, [1 << 20], 0, 1, True)
    with pytest.raises(ValueError, match="do not fit together"):
        _native.SharedPulls(memory, SIZES, 1, 1, True)


@pytest.mark.parametrize("n_workers", [2, 3])
def test_no_worker_reads_values_of_another_clock(
    memory: _native.SharedMemory, n_workers: int
) -> None:
    """Threads are workers. A clock of the server ends when all have ended it, as under BSP."""
    ended = [0] * n_workers
    turn = threading.Condition()
    winners: list[int] = []
    wrong: list[tuple[int, int, set[float]]] = []

    def work(worker: int, pulls: _native.SharedPulls) -> None:
        out = np.zeros(SIZES[0], np.float32)
        for clock in range(CLOCKS):
            if pulls.claim(0, clock):
                with turn:  # the wait for the server's clock
                    assert turn.wait_for(lambda now=clock: min(ended) >= now, 30.0)
                winners.append(worker)
                pulls.values(0)[:] = clock
                pulls.publish(0, clock, clock)
            assert pulls.wait_ready(0, clock, 30.0)
            pulls.copy(0, out)
            if (found := set(out.tolist())) != {float(clock)}:
                wrong.append((worker, clock, found))
            with turn:
                ended[worker] = clock + 1
                turn.notify_all()

    threads = [
        threading.Thread(target=work, args=(w, pulls))
        for w, pulls in enumerate(pulls_of(memory, n_workers))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert (wrong, len(winners)) == ([], CLOCKS)
