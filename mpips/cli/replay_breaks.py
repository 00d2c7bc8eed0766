"""The breaks of `mpips replay`: where it copies the tables, and what it does with the copies."""

from __future__ import annotations

import code
import itertools
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpips.errors import ConfigError
from mpips.record.files import NO_STOP, ReplayBreak, break_folder
from mpips.record.legs import AttemptLeg
from mpips.record.reading import TICK, read_order
from mpips.rundir.directory import RunFolder
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.checkpoint import Checkpoint

Call = Callable[["Checkpoint"], object]


def breaks_of(
    places: tuple[str, ...], until: int | None, legs: list[AttemptLeg]
) -> tuple[ReplayBreak, ...]:
    """Return the breaks that options name.

    Args:
        places: Values of --break-at.
        until: Value of --until.
        legs: The repeated parts of attempts.

    Raises:
        ConfigError: A value is wrong, the run has no such table, or it has no such step.
    """
    names = [table.name for table in legs[-1].head.tables]
    found: list[ReplayBreak] = []
    for place in places:
        table, colon, number = place.rpartition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,18}", number) or int(number) == 0:
            raise ConfigError(
                f"--break-at {place}: must be a table and a number of its updates from 1 on, as in "
                f"{names[0]}:100"
            )
        if table not in names:
            raise ConfigError(
                f"--break-at {place}: the run has no table {table!r}; its tables are {', '.join(names)}"
            )
        found.append(ReplayBreak(table=table, number=int(number)))
    if until is not None:
        _require_step(legs, until)
        found.append(ReplayBreak(number=until))
    return tuple(dict.fromkeys(found))


def _require_step(legs: list[AttemptLeg], until: int) -> None:
    """Raise ConfigError if no worker has so many steps in what is repeated, or all of them had more."""
    first, last = legs[0].head.begin, legs[-1]
    if first and until <= min(first):
        raise ConfigError(
            f"--until {until}: what is repeated begins behind step {min(first)}: leave --from out"
        )
    ended = [0] * last.head.n_workers
    for file in last.servers:
        for record in read_order(file):
            if record.kind == TICK:
                ended[record.worker] = max(ended[record.worker], record.clock + 1)
    begin = last.head.begin or (0,) * last.head.n_workers
    most = max(b + n for b, n in zip(begin, ended, strict=True))
    if until > most:
        raise ConfigError(f"--until {until}: the run has {most} steps")


def legs_until(legs: list[AttemptLeg], until: int) -> list[AttemptLeg]:
    """Return the legs as far as the one in which every worker comes to a step, or ends before it."""
    for i, (leg, after) in enumerate(itertools.pairwise(legs)):
        working = [
            b for b, stop in zip(after.head.begin, leg.stops, strict=True) if stop != NO_STOP
        ]
        if all(begin >= until for begin in working):
            return legs[: i + 1]
    return legs


def function_of(place: str | None, breaks: tuple[ReplayBreak, ...]) -> Call | None:
    """Return the function that --call names; None without the option.

    Runs the file, as a module and not as a program.

    Raises:
        ConfigError: There is no such file or function, the file fails, or there is no break.
    """
    if place is None:
        return None
    if not breaks:
        raise ConfigError(f"--call {place}: has no effect without --break-at or --until")
    file, _, name = place.rpartition(":")
    if not file or not name.isidentifier():
        raise ConfigError(
            f"--call {place}: must be a file and a function in it, as in look.py:show"
        )
    path = Path(file).absolute()
    if not path.is_file():
        raise ConfigError(f"--call {place}: there is no file {file}")
    sys.path.insert(0, str(path.parent))
    try:
        found = runpy.run_path(str(path)).get(name)
    except Exception as error:
        raise ConfigError(
            f"--call {place}: {file} raised {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ConfigError(f"--call {place}: {file} has no function {name}")
    function: Call = found
    return function


def show_breaks(
    new: RunFolder, breaks: tuple[ReplayBreak, ...], call: Call | None, quiet: bool
) -> None:
    """Print where the tables of each break are, and hand them to the function or to a Python prompt.

    Raises:
        ConfigError: The replay has not come to one of the breaks, or the function raised an exception.
    """
    from mpips.checkpoint import open_checkpoint

    opened: dict[str, Checkpoint] = {}
    try:
        for at in breaks:
            path = _path_of(new, at)
            if path is not None:
                opened[at.name] = open_checkpoint(path)
                say(f"mpips replay: {_place(at)}: tables in {path}", err=False)
        for name, checkpoint in opened.items() if call is not None else ():
            assert call is not None
            try:
                call(checkpoint)
            except Exception as error:
                raise ConfigError(
                    f"--call: raised {type(error).__name__} at {name}: {error}"
                ) from error
        if opened and call is None and not quiet and sys.stdin.isatty():
            _prompt(opened)
    finally:
        for checkpoint in opened.values():
            checkpoint.close()
    missing = [_place(at) for at in breaks if at.name not in opened]
    if missing:
        raise ConfigError(
            f"the replay has not come to {', '.join(missing)} on all servers: with several servers each "
            "counts the updates of its own part"
        )


def _path_of(new: RunFolder, at: ReplayBreak) -> Path | None:
    return next(iter(sorted(break_folder(new, at).glob("step-*"))), None)


def _place(at: ReplayBreak) -> str:
    return f"update {at.number:,} of table {at.table!r}" if at.table else f"step {at.number:,}"


def _prompt(opened: dict[str, Checkpoint]) -> None:
    """Open a Python prompt with the checkpoints, by the names of their breaks."""
    import numpy as np

    names: dict[str, Any] = {"breaks": opened, "np": np}
    first = next(iter(opened))
    banner = (
        f"breaks: {', '.join(opened)}\n"
        f"breaks[{first!r}] is an opened checkpoint: .manifest, .read_dense(TABLE), .iter_rows(TABLE), "
        ".find_rows(TABLE, KEYS); Ctrl-D ends"
    )
    code.interact(banner, local=names, exitmsg="")
