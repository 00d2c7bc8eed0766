"""Finding the newest checkpoint that can be trusted.

Newest means: of the latest launch (generation) that wrote any, the greatest step. So a run that was
sent back to an earlier step goes on from what it wrote since.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpips.checkpoint.folder import CheckpointName, list_checkpoints
from mpips.checkpoint.reader import Checkpoint, open_checkpoint
from mpips.checkpoint.steps import Peers, Steps, finish
from mpips.errors import CheckpointError, ConfigError, NewerFormatError

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Refusal:
    """A checkpoint that was not taken, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Found:
    """The newest good checkpoint, open, or None; and the newer ones that were refused."""

    checkpoint: Checkpoint | None
    refused: tuple[Refusal, ...]


@dataclass(frozen=True)
class Ordered:
    """Checkpoints of a folder: those whose manifest and size are right, newest first; the rest.

    Newer formats are among the rest, with `newer` set to what there is to say.
    """

    readable: tuple[CheckpointName, ...]
    refused: tuple[Refusal, ...]
    newer: str = ""


def order(folder: Path) -> Ordered:
    """Look at all checkpoints of a folder without reading their data.

    Raises:
        ConfigError: The folder cannot be read.
    """
    readable: list[tuple[tuple[int, int, int], CheckpointName]] = []
    refused: list[Refusal] = []
    newer = ""
    for name in reversed(list_checkpoints(folder)):
        try:
            with open_checkpoint(name.path) as checkpoint:
                key = (checkpoint.manifest.generation, name.step, name.attempt)
                readable.append((key, name))
        except CheckpointError as error:
            refused.append(Refusal(name.path, str(error)))
            if isinstance(error, NewerFormatError):
                newer = newer or str(error)
    readable.sort(key=lambda item: item[0], reverse=True)
    return Ordered(tuple(name for _, name in readable), tuple(refused), newer)


def find_newest(folder: Path, comm: MPI.Intracomm | None = None, timeout_s: float = 300.0) -> Found:
    """Open the newest checkpoint that verifies. Collective over `comm` if given; blocking.

    Every byte of a candidate is read, by all ranks together, and compared with its checksum. A damaged one
    is refused and the one before it is looked at.

    Args:
        folder: The run's `checkpoints` folder; a missing one holds none.
        comm: Ranks that share the reading; each gets its own open checkpoint.
        timeout_s: A longer wait for other ranks is an error.

    Raises:
        NewerFormatError: There is a checkpoint of a newer format: whatever is older is not what the
            user wants.
        ConfigError: The folder cannot be read.
    """
    peers = Peers(comm, timeout_s, f"looking for checkpoints in {folder}")
    return finish(_find(peers, folder))


def _find(peers: Peers, folder: Path) -> Steps[Found]:
    mine: list[Any] = []
    if peers.rank == 0:
        mine = _look(folder)
    candidates, refused, newer, failure = (yield from peers.exchange(mine))[0]
    if failure:
        raise ConfigError(failure)
    if newer:
        raise NewerFormatError(newer)
    refusals = [Refusal(Path(path), reason) for path, reason in refused]
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
    """What rank 0 tells: paths, newest first; those refused; what is of a newer format; a failure."""
    if not folder.is_dir():
        return [[], [], "", ""]
    try:
        ordered = order(folder)
    except ConfigError as error:
        return [[], [], "", str(error)]
    refused = [[str(refusal.path), refusal.reason] for refusal in ordered.refused]
    return [[str(name.path) for name in ordered.readable], refused, ordered.newer, ""]
