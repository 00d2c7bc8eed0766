"""LocalSGD and DiLoCo in NumPy, written from the papers: workers in a loop, no clocks, no servers.

The numbers are small whole numbers and powers of two, so that all sums and products are exact in float32 and
results can be compared with `==`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def gradient(worker: int, step: int, table: int, n: int) -> np.ndarray:
    """Return a gradient of whole numbers, multiples of 192: means over 3 workers and halves stay exact."""
    rng = np.random.default_rng([worker, step, table])
    return 192.0 * rng.integers(-4, 5, n)


@dataclass
class Simulation:
    """A job of `n_workers`; the inner rule is SGD(1.0).

    Attributes:
        sizes: Number of values of each table.
        fragment: Fragment of each table.
        steps, fragments, delay, mix: As in mpips.DiLoCo.
        lr, momentum: Outer Nesterov: m = momentum m + g; w -= lr (g + momentum m).
    """

    n_workers: int
    sizes: Sequence[int]
    fragment: Sequence[int]
    steps: int
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0
    lr: float = 1.0
    momentum: float = 0.0

    def run(self, n_steps: int) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
        """Return the values of worker 0 before each step, and those of the servers at the end."""
        tables = range(len(self.sizes))
        outer = [np.zeros(n) for n in self.sizes]
        velocity = [np.zeros(n) for n in self.sizes]
        own = [[np.zeros(n) for n in self.sizes] for _ in range(self.n_workers)]
        base = [v.copy() for v in outer]
        coming: list[tuple[int, int]] = []  # (step at which values are taken, fragment)
        seen = []
        for t in range(1, n_steps + 1):
            for due, f in [c for c in coming if c[0] == t - 1]:
                coming.remove((due, f))
                for i in tables:
                    if self.fragment[i] == f:
                        base[i] = outer[i].copy()
                        for w in range(self.n_workers):
                            own[w][i] = self.mix * own[w][i] + (1 - self.mix) * outer[i]
            seen.append([v.copy() for v in own[0]])
            for w in range(self.n_workers):
                for i, n in enumerate(self.sizes):
                    g = gradient(w, t - 1, i, n)
                    own[w][i] = own[w][i] - g
            in_period = (t - 1) % self.steps + 1
            for f in range(self.fragments):
                if in_period == (f + 1) * self.steps // self.fragments:
                    for i in tables:
                        if self.fragment[i] == f:
                            mean = sum(base[i] - own[w][i] for w in range(self.n_workers))
                            mean = mean / self.n_workers
                            velocity[i] = self.momentum * velocity[i] + mean
                            outer[i] = outer[i] - self.lr * (mean + self.momentum * velocity[i])
                    coming.append((t + self.delay, f))
        return seen, outer
