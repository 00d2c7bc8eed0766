"""Removal of old checkpoints.

The newest `keep_last` checkpoints remain. With `keep_every` = M the first checkpoint at or after each
multiple of M steps remains as well. The newest undamaged checkpoint always remains, and so does the best one
of the run (`mpips.checkpoint.find.Ordered.best`). The checkpoints that a remaining link continues remain.

Damaged checkpoints do not count. Those newer than the newest undamaged one remain, so that a user can examine
them; older ones are removed. If the folder has checkpoints of a newer format, they remain, and so do all
damaged ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from mpips.checkpoint.find import Refusal, order
from mpips.checkpoint.folder import CheckpointName, locked, parse_name, remove, sweep
from mpips.checkpoint.reader import open_checkpoint
from mpips.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class Retention:
    """The rule that selects the checkpoints that remain.

    Attributes:
        keep_last: Number of newest checkpoints that remain; at least 1.
        keep_every: Steps; the first checkpoint at or after each multiple of it remains; 0: no such rule.
    """

    keep_last: int = 3
    keep_every: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers out of range."""
        if self.keep_last < 1:
            raise ConfigError(f"keep_last = {self.keep_last}: must be 1 or more")
        if self.keep_every < 0:
            raise ConfigError(f"keep_every = {self.keep_every}: must be 0 or more")

    def remaining(self, names: list[CheckpointName]) -> set[Path]:
        """Return the paths of the checkpoints that remain; `names` are undamaged ones, newest first."""
        chosen = {name.path for name in names[: self.keep_last]}
        seen: set[int] = set()
        for name in sorted(names, key=lambda name: (name.step, name.attempt)):
            if self.keep_every and name.step // self.keep_every not in seen:
                seen.add(name.step // self.keep_every)
                chosen.add(name.path)
        return chosen


class Pruned(msgspec.Struct, frozen=True):
    """The result of a removal, or of a dry run.

    Attributes:
        removed: Names that were, or would be, removed.
        remaining: Names that remain.
        damaged: Damaged checkpoints with the reason, whether removed or not.
    """

    removed: tuple[str, ...]
    remaining: tuple[str, ...]
    damaged: tuple[Refusal, ...]


def retain(folder: Path, rule: Retention, *, full: bool = False, dry_run: bool = False) -> Pruned:
    """Remove old checkpoints, and files that failed writers have left. Local, blocking.

    Args:
        folder: The run's `checkpoints` folder.
        rule: Selects the checkpoints that remain.
        full: Read the newest checkpoints completely until one is undamaged. Otherwise a valid manifest and
            the right size are enough, for example when the caller has just written the newest one.
        dry_run: Remove nothing; return what would be removed.

    Raises:
        CheckpointError: Another process has the folder's lock, or a checkpoint cannot be removed.
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
    # Remove undamaged ones by the rule, and damaged ones only if they are older than the newest good one.
    stay = rule.remaining(names)
    if ordered.best is not None and ordered.best in names:
        stay.add(ordered.best.path)
    # A link that remains as damaged may only have a damaged chain, so its chain remains as well.
    newer = [r.path for r in damaged if not names or not _is_older(r.path, names[0])]
    for path in (*stay, *newer):
        stay.update(ordered.needed.get(path, ()))
    going = [name.path.name for name in names if name.path not in stay]
    if names and not ordered.newer:
        going += [
            r.path.name for r in damaged if r.path not in stay and _is_older(r.path, names[0])
        ]
    left = [r.path.name for r in damaged if r.path.name not in going and r.path not in stay]
    return Pruned(tuple(sorted(going)), (*sorted(p.name for p in stay), *left), tuple(damaged))


def _is_older(path: Path, newest: CheckpointName) -> bool:
    name = parse_name(path)
    return name is not None and (name.step, name.attempt) < (newest.step, newest.attempt)
