"""Removing old checkpoints: which ones stay.

The newest `keep_last` stay, and with `keep_every` = M the first one at or after each multiple of M
steps. The newest good one always stays, whatever the numbers say. Damaged ones that are newer than
it stay too, for whoever wants to look at them, and are not counted; older ones go. Checkpoints of a
newer format are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpips.checkpoint.find import Refusal, order
from mpips.checkpoint.folder import CheckpointName, locked, parse_name, remove, sweep
from mpips.checkpoint.reader import open_checkpoint
from mpips.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay.

    Attributes:
        keep_last: So many of the newest; at least 1.
        keep_every: The first one at or after each multiple of so many steps; 0: none for this reason.
    """

    keep_last: int = 3
    keep_every: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that keep nothing."""
        if self.keep_last < 1:
            raise ConfigError(f"keep_last = {self.keep_last}: must be 1 or more")
        if self.keep_every < 0:
            raise ConfigError(f"keep_every = {self.keep_every}: must be 0 or more")

    def remaining(self, names: list[CheckpointName]) -> set[Path]:
        """Those that stay, of good ones given newest first."""
        chosen = {name.path for name in names[: self.keep_last]}
        seen: set[int] = set()
        for name in sorted(names, key=lambda name: (name.step, name.attempt)):
            if self.keep_every and name.step // self.keep_every not in seen:
                seen.add(name.step // self.keep_every)
                chosen.add(name.path)
        return chosen


@dataclass(frozen=True)
class Pruned:
    """What was (or would be) removed and what stayed, by name; damaged ones with their reason."""

    removed: tuple[str, ...]
    remaining: tuple[str, ...]
    damaged: tuple[Refusal, ...]


def retain(folder: Path, rule: Retention, *, full: bool = False, dry_run: bool = False) -> Pruned:
    """Remove what the rule does not keep, and what dead writers have left. Local, blocking.

    Args:
        folder: The run's `checkpoints` folder.
        rule: What stays.
        full: Read the newest checkpoints until one verifies, and take that as the newest good one.
            Otherwise manifest and size decide, which suits whoever has just written it.
        dry_run: Only say what would go.

    Raises:
        CheckpointError: Another process is writing there, or a checkpoint cannot be removed.
        ConfigError: The folder cannot be read.
    """
    if dry_run:
        return _choose(folder, rule, full)
    try:
        with locked(folder):
            swept = sweep(folder)
            chosen = _choose(folder, rule, full)
            for name in chosen.removed:
                remove(folder / name)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or folder}: cannot be removed: {error.strerror}"
        ) from None
    return Pruned((*swept, *chosen.removed), chosen.remaining, chosen.damaged)


def _choose(folder: Path, rule: Retention, full: bool) -> Pruned:
    ordered = order(folder)
    names = list(ordered.readable)
    damaged = list(ordered.refused)
    while full and names:
        with open_checkpoint(names[0].path) as checkpoint:
            damage = checkpoint.damage()
        if not damage:
            break
        damaged.append(Refusal(names[0].path, f"{names[0].path}: {damage[0]}"))
        del names[0]
    stay = rule.remaining(names)
    going = [name.path.name for name in names if name.path not in stay]
    if names and not ordered.newer:
        going += [r.path.name for r in damaged if _is_older(r.path, names[0])]
    left = [r.path.name for r in damaged if r.path.name not in going]
    return Pruned(tuple(sorted(going)), (*sorted(p.name for p in stay), *left), tuple(damaged))


def _is_older(path: Path, newest: CheckpointName) -> bool:
    name = parse_name(path)
    return name is not None and (name.step, name.attempt) < (newest.step, newest.attempt)
