"""The digests of samples that all workers read: each takes its part of them, so they must be the same."""

from __future__ import annotations

from mpips.errors import ConfigError
from mpips.scheduler.step_counts import names_of


class SampleDigests:
    """The digests at places that not all workers have passed."""

    def __init__(self, n_workers: int) -> None:
        """Know no place yet. `n_workers`: number of workers of the job."""
        self._n_workers = n_workers
        self._places: dict[str, dict[int, int]] = {}  # digests by worker

    def note(self, worker: int, place: str, digest: int) -> None:
        """Store the digest of a worker at a place.

        Raises:
            ConfigError: Another worker has another one. The message names the workers of both.
        """
        found = self._places.setdefault(place, {})
        found[worker] = digest
        others = [w for w, one in found.items() if one != digest]
        if others:
            same = [w for w, one in found.items() if one == digest]
            raise ConfigError(
                f"{names_of(others)} and {names_of(same)} read different streams: {place} differ, "
                f"so a division by {self._n_workers} workers would lose samples and train others "
                "twice. The dataset must yield the same on all workers: draw orders from the default "
                "generators of torch, NumPy or random, or from one that is an attribute of the dataset "
                "(mpips seeds them), or seed a generator by the epoch (set_epoch); sort names of files; "
                "neither time nor process nor mpips.rank() may decide. Change samples at random in collate_fn"
            )
        if len(found) == self._n_workers:
            del self._places[place]
