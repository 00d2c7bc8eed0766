"""The runs that one page shows: one run, or the newest of a folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mpips.errors import ConfigError
from mpips.monitor.runs import find_run
from mpips.rundir.directory import RunFolder, read_json
from mpips.rundir.files import RunInfo
from mpips.rundir.view import view_or_damage
from mpips.web.run_data import RunData
from mpips.web.sweep_data import SweepData

MOST_RUNS = 200  # newest runs of a folder that are listed, beside those that a page shows
_SHOWN = (
    "dead",
    "damaged",
)  # states of runs not at work of which /metrics tells in a folder of runs
_LIST_S = 5.0  # s between two looks at the list of runs


class RunsData:
    """The data of one or several runs. `refresh` is called from one thread at a time, the others from any.

    Only runs that were listed can be asked for, so a name leads to no other folder.
    """

    def __init__(self, where: Path) -> None:
        """Find the runs.

        Args:
            where: A run directory, or a folder that contains such.

        Raises:
            ConfigError: It is neither.
        """
        self._single = (where / "run.json").is_file()
        if not self._single and not where.is_dir():
            raise ConfigError(f"{where}: is no folder; give a run directory, or a folder of runs")
        if self._single:
            find_run(str(where), where.parent)  # raises if its run.json is damaged
        self._where = where.absolute()
        self._runs: dict[str, RunData] = {}
        self._rows: list[dict[str, Any]] = []
        self._sweep = SweepData(where)
        self._trials: dict[str, Any] | None = None
        self._next = (
            0.0  # monotonic s from which the list is to be read again; 0: it was not read yet
        )
        self._lock = threading.Lock()  # held while the list is read
        self._shown: frozenset[str] = frozenset()  # names of the last `refresh`

    @property
    def where(self) -> str:
        """Name of the run directory or of the folder, for people."""
        return self._where.name

    @property
    def is_single(self) -> bool:
        """True for one run, False for a folder, in which runs may appear."""
        return self._single

    def sweep(self) -> dict[str, Any] | None:
        """Return the trials as of the last `listed`, see `SweepData.read`; None: there is no sweep."""
        return self._trials

    def is_over(self, names: Iterable[str]) -> bool:
        """Return True if nothing of the page of these runs will change: one run, which is done and read."""
        runs = [run for run in map(self.get, names) if run is not None]
        return self._single and bool(runs) and all(run.is_done for run in runs)

    def listed(self) -> list[dict[str, Any]]:
        """Return name, state, begin, step and loss of each run, the newest first, as of a few seconds ago.

        One thread reads the list; meanwhile others get the last one, and wait only for the first. It sets
        `_runs` and `_rows` to new objects, so readers need no lock.
        """
        if time.monotonic() >= self._next and self._lock.acquire(blocking=not self._next):
            try:
                # Another thread may have read it while this one waited.
                if time.monotonic() >= self._next:
                    self._rows = self._read_list()
                    self._next = time.monotonic() + _LIST_S
            finally:
                self._lock.release()
        return self._rows

    def _read_list(self) -> list[dict[str, Any]]:
        newest_first = enumerate(sorted(self._created(), reverse=True))
        found = [run for i, run in newest_first if i < MOST_RUNS or run[1].name in self._shown]
        known = self._runs
        self._runs = {path.name: known.get(path.name) or RunData(path) for _, path in found}
        rows = [_row(path, created_s) for created_s, path in found]
        if not self._single:
            self._trials = self._sweep.read({row["name"]: row["state"] for row in rows})
        return rows

    def _created(self) -> Iterable[tuple[float, Path]]:
        """Return begin and folder of each run."""
        paths = (
            [self._where] if self._single else [p.parent for p in self._where.glob("*/run.json")]
        )
        for path in paths:
            try:
                info = read_json(path / "run.json", RunInfo)
                yield (info.created_s if info is not None else 0.0), path
            except ConfigError:
                yield 0.0, path

    def get(self, name: str) -> RunData | None:
        """Return a listed run by its name; None if it is not listed."""
        return self._runs.get(name)

    def refresh(self, names: Iterable[str]) -> None:
        """Read again what has changed in these runs, and keep them in the list. Blocks."""
        names = list(names)
        self._shown = frozenset(names)
        for name in names:
            run = self.get(name)
            if run is not None:
                run.refresh()

    def metrics(self) -> bytes:
        """Return the metrics of the runs that are at work, and of a single run in any state, for Prometheus.

        A run whose supervisor was lost keeps its metrics, with the state "dead", until it is continued, and
        one that cannot be read has the state "damaged", so that an alert can be raised. Blocks.
        """
        from mpips.rundir.exposition import exposition

        views = []
        for row in self.listed():
            run = self.get(row["name"])
            if run is not None and (row["alive"] or row["state"] in _SHOWN or self._single):
                views.append(view_or_damage(run.run))
        return exposition(views)

    def is_loading(self, names: Iterable[str]) -> bool:
        """Return True while a long file of one of these runs has not been read to its end."""
        return any(run.is_loading for run in map(self.get, names) if run is not None)


def _row(path: Path, created_s: float) -> dict[str, Any]:
    """Return a run in one line."""
    view = view_or_damage(RunFolder(path))
    progress = view.status.progress if view.status is not None else None
    return {
        "name": path.name,
        "created_s": created_s,
        "state": view.state,
        "alive": view.alive,
        "note": view.note,
        "step": progress.step if progress is not None else 0,
        "loss": progress.loss if progress is not None else None,
    }
