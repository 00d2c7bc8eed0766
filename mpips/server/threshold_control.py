"""The thresholds of Reject("auto") at one server: where they begin, and lines about their changes.

The native server estimates them from the pushes that it applies (native/src/server/delay_threshold.hpp): each
server for its part of a table. Nothing has to be agreed on, since the staleness of an update also belongs to
one part. Between two estimates a threshold does not change, and an estimate depends on the applied pushes and
their order alone, so a replay of a recorded run makes the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpips import _native
from mpips.model.consistency import estimates_staleness
from mpips.model.table import Table


class ThresholdControl:
    """Reads the estimates of a native server. Not thread-safe: for the server's loop.

    Attributes:
        thresholds: The threshold of each table with one here, by name: updates of this staleness or more are
            dropped.
    """

    def __init__(
        self, core: _native.ServerCore, tables: Sequence[Table], thresholds: Mapping[str, int]
    ) -> None:
        """Begin with thresholds.

        Args:
            core: The native server, which has started.
            tables: All tables of the job.
            thresholds: Those of an earlier launch, by name of the table.
        """
        self._core = core
        self._tables = {
            t.name: i for i, t in enumerate(tables) if estimates_staleness(t.consistency)
        }
        self._n_estimates = 0
        self.thresholds: dict[str, int] = {}
        self.begin(thresholds)

    def begin(self, thresholds: Mapping[str, int]) -> None:
        """Begin with these thresholds, before any worker is at work."""
        for name, table in self._tables.items():
            if name in thresholds:
                self._core.set_delay_threshold(table, thresholds[name])
        self.thresholds = self.now()

    def now(self) -> dict[str, int]:
        """Return the thresholds by name of the table, after the updates that are applied; the caller's."""
        return {name: self._read(name)[0] for name in self._tables}

    def _read(self, name: str) -> tuple[int, float, float]:
        found = self._core.delay_threshold(self._tables[name])
        assert found is not None
        return found

    def poll(self) -> list[str]:
        """Return a line for people about each threshold that has changed. Cheap."""
        if self._core.n_estimates() == self._n_estimates:
            return []
        self._n_estimates = self._core.n_estimates()
        lines = []
        for name, before in self.thresholds.items():
            threshold, signal, noise = self._read(name)
            if threshold == before:
                continue
            self.thresholds[name] = threshold
            were = f"{before} or more" if before < _native.DelayThreshold.MOST else "none"
            lines.append(
                f"table {name!r}: updates of staleness {threshold} or more are dropped, before it {were}: "
                f"the variance of a gradient is {noise:.4g}, its squared norm {signal:.4g}"
            )
        return lines


def thresholds_in_memory(
    memory: _native.SharedMemory, layout: _native.Layout, tables: Sequence[Table]
) -> dict[str, int]:
    """Return the thresholds that a server of an earlier launch has left in its memory."""
    found = {}
    for i, table in enumerate(tables):
        if estimates_staleness(table.consistency):
            word = _native.read_word(memory, layout.decision_offset(i))
            if word:
                found[table.name] = word
    return found
