"""Search for the newest checkpoint that is undamaged.

The newest checkpoint is the one with the greatest step among those with the greatest generation number, that
is, among those of the last launch that wrote any. So a run that was restarted from an earlier step continues
from what it has written since then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mpips.checkpoint.folder import CheckpointName, find_folder, list_checkpoints, parse_name
from mpips.checkpoint.manifest import MANIFEST, Manifest
from mpips.checkpoint.reader import Checkpoint, open_checkpoint
from mpips.checkpoint.steps import Peers, Steps, finish
from mpips.errors import CheckpointError, ConfigError, NewerFormatError
from mpips.model.best_value import BestValue

if TYPE_CHECKING:
    from mpi4py import MPI


class Refusal(msgspec.Struct, frozen=True):
    """A checkpoint that is not used, and the reason."""

    path: Path
    reason: str


class Found(msgspec.Struct, frozen=True):
    """The newest undamaged checkpoint, open and owned by the caller, or None; and refused newer ones."""

    checkpoint: Checkpoint | None
    refused: tuple[Refusal, ...]


class Ordered(msgspec.Struct, frozen=True):
    """The checkpoints of a folder, judged without reading their data.

    Attributes:
        readable: Checkpoints whose manifest is valid and whose file has the right size, newest first.
        refused: All other checkpoints, among them those of a newer format.
        newer: Error about a checkpoint of a newer format; "": no such checkpoint.
        best: The best checkpoint of the run that wrote the newest one; None: it marked none as best. Values
            of another metric than the last one that the run watched, or on other data, do not count. The
            newest of equal ones.
        needed: For each readable link of a chain, the checkpoints that it continues.
    """

    readable: tuple[CheckpointName, ...]
    refused: tuple[Refusal, ...]
    newer: str = ""
    best: CheckpointName | None = None
    needed: Mapping[Path, tuple[Path, ...]] = {}


def order(folder: Path) -> Ordered:
    """Sort the checkpoints of a folder, newest first, without reading their data. Local, blocking.

    Raises:
        ConfigError: The folder cannot be read.
    """
    readable: list[tuple[tuple[int, int, int], CheckpointName]] = []
    manifests: dict[Path, Manifest] = {}
    needed: dict[Path, tuple[Path, ...]] = {}
    refused: list[Refusal] = []
    newer = ""
    for name in reversed(list_checkpoints(folder)):
        try:
            with open_checkpoint(name.path) as checkpoint:
                key = (checkpoint.manifest.generation, name.step, name.attempt)
                readable.append((key, name))
                manifests[name.path] = checkpoint.manifest
                if checkpoint.chain is not None:
                    parts = (part.path.name for part in checkpoint.chain.parts)
                    needed[name.path] = tuple(folder / part for part in parts)
        except CheckpointError as error:
            refused.append(Refusal(name.path, str(error)))
            if isinstance(error, NewerFormatError):
                newer = newer or str(error)
    readable.sort(key=lambda item: item[0], reverse=True)
    names = tuple(name for _, name in readable)
    return Ordered(names, tuple(refused), newer, _best(names, manifests), needed)


def _best(
    names: Sequence[CheckpointName], manifests: Mapping[Path, Manifest]
) -> CheckpointName | None:
    """Return `Ordered.best`; `names`: the readable checkpoints, newest first."""
    found: CheckpointName | None = None
    best: BestValue | None = None
    for name in names:
        manifest = manifests[name.path]
        mark = manifest.best
        if mark is None or manifest.run_id != manifests[names[0].path].run_id:
            continue
        if best is None or (mark.is_comparable(best) and mark.is_better(best)):
            found, best = name, mark
    return found


def is_checkpoint(path: Path) -> bool:
    """Return True if `path` names one checkpoint, False if it names a folder of checkpoints."""
    return (path / MANIFEST).exists() or (path.is_dir() and parse_name(path) is not None)


def choose_checkpoint(path: Path, best: bool = False) -> Path:
    """Return the checkpoint that `path` names: itself, or the newest readable one of a run.

    Args:
        path: A checkpoint, a folder of checkpoints, or a run directory.
        best: Return the best checkpoint of the run instead of the newest one.

    Raises:
        ConfigError: There is no such checkpoint, or none of the run can be read; or `best`, and the run has
            marked none as best, or `path` is one checkpoint.
    """
    if best:
        return _choose_best(path)
    if is_checkpoint(path):
        return path
    if parse_name(path) is not None:
        raise ConfigError(
            f"{path}: there is no such checkpoint; mpips ckpt ls lists those of a run"
        )
    ordered = order(find_folder(path))
    if not ordered.readable:
        why = f"; the newest: {ordered.refused[0].reason}" if ordered.refused else ""
        raise ConfigError(
            f"{path}: has no checkpoint that can be read{why} (see mpips ckpt verify)"
        )
    return ordered.readable[0].path


def _choose_best(path: Path) -> Path:
    """Return the best checkpoint of a run; see `choose_checkpoint`."""
    if is_checkpoint(path) or parse_name(path) is not None:
        raise ConfigError(
            f"{path}: is one checkpoint; the best one is chosen among those of a run, so give the run "
            "directory or its folder of checkpoints"
        )
    found = order(find_folder(path)).best
    if found is None:
        raise ConfigError(
            f"{path}: has no best checkpoint; train with checkpoint.keep_best = true, or leave out --best"
        )
    return found.path


def find_newest(folder: Path, comm: MPI.Intracomm | None = None, timeout_s: float = 300.0) -> Found:
    """Open the newest checkpoint that is undamaged. Collective over `comm` if given; blocking.

    The ranks together read every byte of a candidate and compare it with its checksums. If the candidate is
    damaged, they continue with the one before it.

    Args:
        folder: The run's `checkpoints` folder; it need not exist.
        comm: Ranks that share the reading; each gets its own open checkpoint.
        timeout_s: Time limit of a wait for other ranks, seconds.

    Raises:
        NewerFormatError: There is a checkpoint of a newer format. An older one is not used in its place.
        ConfigError: The folder cannot be read.
        StallError: Another rank did not come in time.
    """
    peers = Peers(comm, timeout_s, f"looking for checkpoints in {folder}")
    return finish(_find(peers, folder))


def _find(peers: Peers, folder: Path) -> Steps[Found]:
    # Let rank 0 list the folder, so that all ranks have the same candidates.
    mine: list[Any] = []
    if peers.rank == 0:
        mine = _look(folder)
    candidates, refused, newer, failure = (yield from peers.exchange(mine))[0]
    if failure:
        raise ConfigError(failure)
    if newer:
        raise NewerFormatError(newer)
    refusals = [Refusal(Path(path), reason) for path, reason in refused]
    # Verify candidates together until one is undamaged.
    for path in map(Path, candidates):
        checkpoint, problems = None, []
        try:
            checkpoint = open_checkpoint(path)
            problems = checkpoint.damage(peers.rank, peers.size)
        except CheckpointError as error:
            problems = [str(error)]
        yield True
        found = [text for part in (yield from peers.exchange(problems)) for text in part]
        if not found:
            return Found(checkpoint, tuple(refusals))
        if checkpoint is not None:
            checkpoint.close()
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        refusals.append(Refusal(path, f"{path}: {found[0].removeprefix(f'{path}: ')}{more}"))
    return Found(None, tuple(refusals))


def _look(folder: Path) -> list[Any]:
    """Return what rank 0 sends: paths, newest first; refused paths; error about a newer format; failure."""
    if not folder.is_dir():
        return [[], [], "", ""]
    try:
        ordered = order(folder)
    except ConfigError as error:
        return [[], [], "", str(error)]
    refused = [[str(refusal.path), refusal.reason] for refusal in ordered.refused]
    return [[str(name.path) for name in ordered.readable], refused, ordered.newer, ""]
