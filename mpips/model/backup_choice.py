"""The number of backup workers of BSP(backup="auto"): computed from the times that workers need for a clock.

With b backup workers of n, a clock closes when k = n - b workers have ended it (Chen et al., "Revisiting
Distributed Synchronous SGD", 2016). So it lasts as long as the k-th fastest time of its n workers, the k-th
order statistic, and it applies k gradients. Chen et al. try numbers b and take the one whose training ends
first. Xu, Neglia and Sebastianelli ("Dynamic backup workers for parallel machine learning", IFIP Networking
2020) choose k while training runs: the k with the greatest ratio of the expected gain of a clock to its
expected duration, both estimated from what servers have measured.

Here the gain of a clock is k: the regime in which gradients are noisy, so that k of them allow a step k times
as long. So the number is chosen with which servers apply most gradients per second. This gain needs no loss,
and no norm of gradients.

The rate of a number is that of a simulation which uses the measured times as they are. A plain mean of order
statistics would not do: a worker that stops for a time is late in all clocks that close meanwhile, and more
clocks close with more backup workers.

Servers measure the times of all workers, of late ones as well, without their waits for others. A worker in
time that does something before its first pull of a clock, such as reading a batch, does it while it would
wait for others. So this part of its time is measured only as far as it is longer than that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A number of backup workers must apply more gradients per second than a smaller number by this share. So an
# even cluster, whose times differ by chance, has none.
TOLERANCE = 0.1


@dataclass(frozen=True)
class BackupChoice:
    """A choice of the number of backup workers.

    Attributes:
        backup: The number.
        reason: The measurement behind it, for people.
    """

    backup: int
    reason: str


def simulated_clocks(
    times: Sequence[Sequence[float]], needed: Sequence[int]
) -> NDArray[np.float64]:
    """Return the mean duration of a clock that closes when so many workers have ended it.

    A worker in time begins the next clock when this one closes. A late one goes on with the clock that it is
    in, and then begins the open one. Each uses its times in order, again and again. The first half of the
    clocks is not counted, since it begins with all workers in time.

    Args:
        times: The times of each worker, seconds; at least one worker, and one time of each.
        needed: Numbers of workers, 1 to that of `times`.

    Returns:
        float64, shape (len(needed),), seconds.
    """
    n_workers, n = len(times), max(map(len, times))
    own = np.array([np.resize(np.asarray(t, np.float64), n) for t in times])
    lengths = np.array([len(t) for t in times])
    cases, workers = np.arange(len(needed)), np.arange(n_workers)
    last = np.asarray(needed) - 1
    used = np.zeros((len(needed), n_workers), np.int64)  # times of each worker
    late = np.zeros((len(needed), n_workers))  # seconds until it begins the open clock
    total = np.zeros(len(needed))
    for clock in range(2 * n):
        ends = late + own[workers, used % lengths]
        durations = np.sort(ends, axis=1)[cases, last]
        closes = durations[:, None]
        # Who has begun the open clock has used a time. Who has not ended it has the rest of it to go.
        used += late < closes
        late = np.where(ends <= closes, 0.0, np.where(late < closes, ends, late) - closes)
        if clock >= n:
            total += durations
    mean: NDArray[np.float64] = total / n
    return mean


def choose_backup(times: Sequence[Sequence[float]], most: int) -> BackupChoice:
    """Return the number of backup workers with most gradients per second.

    Args:
        times: The times of each worker that is at work, seconds: two workers or more, and one time of each.
        most: Greatest number. The result is at most the number of workers less one as well.
    """
    n = len(times)
    needed = range(n, max(1, n - most) - 1, -1)
    durations = simulated_clocks(times, needed)
    # An unmeasurably short clock is the best.
    rates = np.asarray(needed) / np.maximum(durations, 1e-12)
    backup = int(np.argmax(rates >= rates.max() / (1 + TOLERANCE)))
    found, without = 1e3 * durations[backup], 1e3 * durations[0]
    reason = (
        f"clocks of all {n} workers take {without:.4g} ms"
        if not backup
        else f"clocks of {n - backup} of {n} workers take {found:.4g} ms, those of all {without:.4g} ms"
    )
    return BackupChoice(backup, reason)
