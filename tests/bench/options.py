"""Options of the suites of this folder, beside those of `mpips bench`."""

from __future__ import annotations

from mpips.bench.launching import Options


class SuiteOptions(Options, kw_only=True, frozen=True):
    """Options that a developer can choose.

    Attributes:
        seconds: Length of the suite `soak`, in seconds.
        steps: Length of the suite `soak` in steps of each worker, in place of `seconds`; 0: by `seconds`.
        workers: Number of imitated workers in the suite `scale`; 0: it starts real ranks.
        servers: Number of imitated servers there; 0: a tenth of `workers`.
        kills: Number of launches that the suite `kills` ends at random.
        matrix: The suite `kills` runs the sample of faults that contains all pairs, in place of `kills`.
        seed: Seed of random faults; 0: a new one in each run.
    """

    seconds: float = 60.0
    steps: int = 0
    workers: int = 0
    servers: int = 0
    kills: int = 10
    matrix: bool = False
    seed: int = 0
