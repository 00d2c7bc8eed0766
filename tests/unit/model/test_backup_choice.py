"""The number of backup workers that is chosen, compared with a simulation of a server's clocks in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from mpips.model.backup_choice import TOLERANCE, choose_backup, simulated_clocks


def gradients_per_second(times: np.ndarray, backup: int) -> float:
    """Simulate clocks; return how many gradients they apply per second.

    A clock closes when all but `backup` workers have ended it. A worker that is late then goes on at the open
    clock, when it has ended the one that it is in.

    Args:
        times: Seconds of each worker for each clock that it begins, shape (n workers, n).
        backup: Number of backup workers.
    """
    n_workers, n = times.shape
    begun = [0] * n_workers
    ends = times[:, 0].copy()  # when each worker ends the clock that it is in
    clocks = np.zeros(n_workers, int)  # the clock that it is in
    now, n_applied, open_clock = 0.0, 0, 0
    while max(begun) < n - 1:
        in_time = [w for w in np.argsort(ends) if clocks[w] == open_clock][: n_workers - backup]
        late = [w for w in range(n_workers) if clocks[w] < open_clock]
        # Late workers that end their clock before this one closes take part in it.
        closes = ends[in_time[-1]] if len(in_time) == n_workers - backup else np.inf
        first = min(late, key=lambda w: ends[w], default=None)
        if first is not None and ends[first] < closes:
            clocks[first] = open_clock
            begun[first] += 1
            ends[first] += times[first, begun[first]]
            continue
        now, n_applied, open_clock = closes, n_applied + len(in_time), open_clock + 1
        for w in in_time:
            clocks[w] = open_clock
            begun[w] += 1
            ends[w] = now + times[w, begun[w]]
    return n_applied / now


def times_of(kind: str, n_workers: int, n: int = 300) -> np.ndarray:
    """Return seconds of workers for a clock, shape (n_workers, n)."""
    rng = np.random.default_rng([3, n_workers])
    times = 1 + 0.02 * rng.random((n_workers, n))
    if kind == "slow":
        times[1] *= 3
    elif kind == "two slow":
        times[1:3] *= 3
    elif kind == "stalls":
        times[1, rng.random(n) < 0.01] += 8
    elif kind == "frequent stalls":
        times += 20 * (rng.random((n_workers, n)) < 0.04)
    elif kind == "exponential":
        times = rng.exponential(1, (n_workers, n))
    elif kind == "heavy tail":
        times = rng.pareto(1.5, (n_workers, n)) + 1
    return times


KINDS = ["even", "slow", "two slow", "stalls", "frequent stalls", "exponential", "heavy tail"]


@pytest.mark.parametrize("n_workers", [3, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_choice_has_nearly_the_most_gradients_per_second_of_all_numbers(
    kind: str, n_workers: int
) -> None:
    times = times_of(kind, n_workers)
    rates = [gradients_per_second(times, backup) for backup in range(n_workers)]
    choice = choose_backup(times.tolist(), n_workers)
    assert rates[choice.backup] >= max(rates) / (1 + TOLERANCE) / 1.02, (choice, rates)
    # And it differs from the wrong ones where these lose much.
    expected = {"even": 0, "slow": 1, "stalls": 0}.get(kind, choice.backup)
    if kind == "two slow":
        expected = 0 if n_workers == 3 else 2
    assert choice.backup == expected, (choice, rates)


N_PAPER = 16


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
def test_the_choice_for_the_times_of_the_paper(alpha: float) -> None:
    """Xu et al. simulate workers whose times are 1 - alpha + alpha X, where X is exponential with mean 1."""
    rng = np.random.default_rng([11, round(10 * alpha)])
    times, more = (1 - alpha + alpha * rng.exponential(1, (N_PAPER, n)) for n in (64, 200))
    rates = [gradients_per_second(more, backup) for backup in range(N_PAPER)]
    choice = choose_backup(times.tolist(), N_PAPER)
    # The choice sees 64 times of each worker, and the simulation others.
    assert rates[choice.backup] >= max(rates) / (1 + TOLERANCE) / 1.05, (choice, rates)
    assert (choice.backup == 0) == (alpha < 1), (choice, rates)
    # Clocks of all last as long as the greatest of the times (Renyi).
    expected = 1 - alpha + alpha * sum(1 / (i + 1) for i in range(N_PAPER))
    assert simulated_clocks(times.tolist(), [N_PAPER])[0] == pytest.approx(expected, rel=0.15)


def test_half_of_the_workers_become_backup_workers_when_they_are_slower() -> None:
    """A slow-down of half of the workers by a factor of 5, as in the paper: and back, when it ends."""
    even = np.ones((N_PAPER, 20))
    slower = even.copy()
    slower[::2] *= 5
    found = [choose_backup(times.tolist(), N_PAPER).backup for times in (even, slower, even)]
    assert found == [0, N_PAPER // 2, 0]
    rates = [gradients_per_second(slower, backup) for backup in range(N_PAPER)]
    assert int(np.argmax(rates)) == N_PAPER // 2
    # With at most 4 of them a clock still waits for slow workers.
    assert choose_backup(slower.tolist(), 4).backup == 0


@pytest.mark.parametrize("n", [2, 5, 20])
def test_clocks_of_all_last_as_long_as_the_greatest_of_exponential_times(n: int) -> None:
    """Its expected value is 1/n + 1/(n-1) + ... + 1 (Renyi). Half of the times are not counted."""
    times = np.random.default_rng(5).exponential(1, (n, 2000))
    expected = sum(1 / (n - i) for i in range(n))
    assert simulated_clocks(times.tolist(), [n])[0] == pytest.approx(expected, rel=0.07)


def test_a_slow_worker_ends_later_clocks_than_those_that_it_began() -> None:
    """Worker 2 needs 2.5 s. With one backup worker it ends the clocks of seconds 2.5, 5, ... too late."""
    times = [[1.0], [1.0], [2.5]]
    assert simulated_clocks(times, [3, 2, 1]).tolist() == [2.5, 1.0, 1.0]
    # A worker with few times repeats them: clocks of 10, 2, 10, 4 s, and again.
    assert simulated_clocks([[1, 2, 3, 4], [10, 0]], [2]).tolist() == [6.5]
    # Times 4 to 7 of worker 1 are 3, 3, 6, 3 s.
    assert simulated_clocks([[0, 0, 0, 0], [6, 3, 3]], [2]).tolist() == [3.75]
    assert simulated_clocks([[2.0]], [1]).tolist() == [2.0]


def test_the_greatest_number_and_one_worker_limit_the_choice() -> None:
    slow = [[1.0], [1.0], [9.0], [9.0], [9.0]]
    assert [choose_backup(slow, most).backup for most in (0, 1, 2, 3, 9)] == [0, 0, 0, 3, 3]
    assert choose_backup([[1e-9], [5.0]], 4).backup == 1
    assert choose_backup([[0.0], [0.0]], 4).backup == 0


def test_a_gain_within_the_tolerance_changes_nothing() -> None:
    for factor, expected in ((0.97, 0), (1.03, 1)):
        # 2 of 3 workers need 1 s, all of them `last`.
        last = 1.5 * (1 + TOLERANCE) * factor
        assert choose_backup([[1.0], [1.0], [last]], 2).backup == expected


def test_the_reason_has_the_times_behind_the_choice() -> None:
    assert (
        choose_backup([[0.03], [0.031], [0.094]], 2).reason
        == "clocks of 2 of 3 workers take 31 ms, those of all 94 ms"
    )
    assert choose_backup([[0.03], [0.031]], 2).reason == "clocks of all 2 workers take 31 ms"
