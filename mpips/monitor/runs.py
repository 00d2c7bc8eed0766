"""Find runs by name, and list those of a folder for `mpips ls`."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mpips.errors import ConfigError
from mpips.monitor.lent_hosts import host_lines
from mpips.monitor.producer_lines import producer_lines
from mpips.monitor.progress import epoch_of, rate_text
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Progress
from mpips.rundir.reading import DAMAGED, read_regular
from mpips.rundir.view import view_or_damage
from mpips.terminal.units import age_text, decimal_size


def find_run(which: str | None, folder: Path) -> RunFolder:
    """Return the run directory that the user named.

    Args:
        which: A run directory, or the beginning of a run's name; None: the newest run.
        folder: The folder that contains the runs.

    Raises:
        ConfigError: There is no such run. The message names the newest ones.
    """
    if which is not None and Path(which).is_dir():
        run = RunFolder(Path(which))
        run.info()
        return run
    there = runs_of(folder)
    if which is None:
        if there:
            return there[-1]
        raise ConfigError(f"no run in {folder.absolute()}; give a run directory, or --folder")
    meant = [run for run in there if run.path.name.startswith(which)]
    if meant:
        return meant[-1]
    names = ", ".join(run.path.name for run in there[-3:][::-1]) or "none"
    raise ConfigError(
        f"no run {which!r} in {folder.absolute()}; the newest there: {names}; give one of them, or --folder"
    )


def runs_of(folder: Path) -> list[RunFolder]:
    """Return the runs of a folder, the oldest first.

    Raises:
        ConfigError: A run.json is damaged.
    """
    there = [RunFolder(path.parent) for path in folder.glob("*/run.json")]
    there.sort(key=lambda run: run.info().created_s)
    return there


@dataclass(frozen=True)
class RunSummary:
    """A run in one line.

    Attributes:
        name: Name of the run directory.
        task: Task or script; "": unknown.
        state: State of the run; see mpips.rundir.view.
        epoch: Epochs begun, from 1; 0: unknown.
        step: Steps of the run.
        loss: Loss of the last report interval; None: unknown.
        learning_rate: Rate of the newest step, of several the first one; None: unknown.
        restarts: Failed attempts.
        created_s: Unix time at which the run directory was made.
        changed_s: Unix time of the last status; of the directory, if it has no status.
        n_bytes: Size of all files of the run directory, bytes.
        note: Why the run is damaged, or what its state means; "": nothing.
        hosts: Lines on the hosts of an elastic run that is alive.
        producers: Lines on the programs of [producers] of a run that is alive.
    """

    name: str
    task: str
    state: str
    epoch: int
    step: int
    loss: float | None
    restarts: int
    created_s: float
    changed_s: float
    n_bytes: int
    note: str
    hosts: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()
    learning_rate: float | None = None


def summaries(folder: Path, now: float | None = None) -> list[RunSummary]:
    """Return all runs of a folder, the newest first. Damaged runs are also listed.

    Args:
        folder: The folder that contains the runs.
        now: Unix time; None: the current time.

    Raises:
        ConfigError: The folder does not exist.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"{folder.absolute()}: is no folder; give the folder that contains the runs"
        )
    paths = [path.parent for path in folder.glob("*/run.json")]
    found = [_summary(RunFolder(path), now) for path in paths]
    return sorted(found, key=lambda run: (run.created_s, run.name), reverse=True)


def _summary(run: RunFolder, now: float | None) -> RunSummary:
    created_s = changed_s = _mtime_s(run.path)
    with contextlib.suppress(ConfigError):
        created_s = run.info().created_s
    view = view_or_damage(run, now)
    status = view.status
    progress = status.progress if status is not None else None
    if status is not None and status.time_s:
        changed_s = status.time_s
    return RunSummary(
        name=run.path.name,
        task=_task(run) if view.state != "damaged" else "",
        state=view.state,
        epoch=epoch_of(progress) if progress is not None else 0,
        step=progress.step if progress is not None else 0,
        loss=_loss(run, view.state, progress),
        restarts=view.failures,
        created_s=created_s,
        changed_s=changed_s,
        n_bytes=sum(_sizes(run.path)),
        note=view.note,
        hosts=tuple(host_lines(view.members, view.now)),
        producers=tuple(producer_lines(view.producers)),
        learning_rate=progress.learning_rate if progress is not None else None,
    )


def _loss(run: RunFolder, state: str, progress: Progress | None) -> float | None:
    """Return the mean loss of the last epoch of a run that is done; else of the last report interval."""
    if state == "done":
        with contextlib.suppress(OSError, *DAMAGED, AttributeError):
            found = msgspec.json.decode(read_regular(run.path / "summary.json")).get("loss")
            if isinstance(found, int | float) and math.isfinite(found):
                return float(found)
    return progress.loss if progress is not None else None


def _task(run: RunFolder) -> str:
    """Return the task of a run, or the name of its script; "" if config.json cannot be read."""
    try:
        config = msgspec.json.decode(read_regular(run.config_file))
        script = (config.get("run") or {}).get("script") or ""
        return str(Path(script).name or config.get("task") or "")
    except (OSError, *DAMAGED, AttributeError, TypeError):
        return ""


def _mtime_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _sizes(folder: Path) -> Iterator[int]:
    """Yield the size of each file below a folder; what disappears meanwhile counts nothing."""
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue


HEADINGS = ("run", "task", "state", "epoch", "step", "loss", "lr", "failures", "changed", "size")
RIGHT = (3, 4, 5, 6, 7, 8, 9)  # columns aligned to the right
_OPTIONAL = (1, 9, 6, 3, 7, 4)  # columns that a narrow terminal does not show, in this order


def optional(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that a narrow terminal does not show, the first one first; `rows`: `cells` of runs.

    Columns without a value of any run go first.
    """

    def is_empty(column: int) -> bool:
        return all(row[column] in ("-", "0") for row in rows)

    return sorted(_OPTIONAL, key=lambda column: not is_empty(column))


def cells(run: RunSummary, now: float | None = None) -> tuple[str, ...]:
    """Return the cells of a run in the order of HEADINGS. `now`: Unix time; None: the current time."""
    now = time.time() if now is None else now
    return (
        run.name,
        run.task or "-",
        run.state,
        str(run.epoch) if run.epoch else "-",
        f"{run.step:,}",
        "-" if run.loss is None else f"{run.loss:.4g}",
        "-" if run.learning_rate is None else rate_text(run.learning_rate),
        str(run.restarts),
        f"{age_text(now - run.changed_s)} ago",
        decimal_size(run.n_bytes),
    )
