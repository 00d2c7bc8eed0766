"""Values that a task chooses by the training data where a job leaves them out. A run chooses once.

The description of the data carries them (`DataInfo.chosen`), so checkpoints contain them. A job that starts
from a checkpoint has those of its run: {} in one of an earlier version, whose tasks had fixed defaults.
A supervised run also writes them into its run directory, since it may restart before its first checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mpips.checkpoint import Manifest
from mpips.config.schema import JobConfig
from mpips.data import DataInfo
from mpips.mpi.one_rank import Ranks
from mpips.rundir.directory import read_json, replace_json
from mpips.tasks import Task
from mpips.training.sizing import start_manifest

FILE = "choice.json"


class ChoiceFile(msgspec.Struct, frozen=True):
    """Content of choice.json.

    Attributes:
        chosen: The values by dotted names, such as "train.epochs".
    """

    chosen: dict[str, Any]


class _Earlier(NamedTuple):
    """Values of the run that a job continues, and where they were found."""

    chosen: dict[str, Any]
    is_in_folder: bool


def agree_on_choice(
    ranks: Ranks,
    config: JobConfig,
    task: type[Task],
    options: msgspec.Struct,
    info: DataInfo,
    folder: Path | None,
) -> dict[str, Any]:
    """Return `DataInfo.chosen` of a job, equal on all ranks. Collective over the ranks; blocks.

    Args:
        ranks: Ranks of the job; that of the scheduler looks and chooses.
        config: The job.
        task: The class of the task.
        options: Its options.
        info: Description of the whole training data.
        folder: The run directory; None: the job is not supervised, or writes nothing.

    Raises:
        ConfigError: The file in the run directory is damaged.
        OSError: It cannot be written.
    """
    choose = getattr(task, "choose", None)
    if choose is None:
        return {}

    def look() -> dict[str, Any] | None:
        if not ranks.is_scheduler:
            return None
        earlier = _earlier(config, folder)
        chosen: dict[str, Any] = choose(info, options) if earlier is None else earlier.chosen
        if folder is not None and not (earlier is not None and earlier.is_in_folder):
            replace_json(folder / FILE, ChoiceFile(chosen), durable=True)
        return chosen

    rows = ranks.agree("choosing options by the data", look, True)
    return next(row for row in rows if row is not None)


def _earlier(config: JobConfig, folder: Path | None) -> _Earlier | None:
    """Return the values of the run that a job continues; None: it continues none."""
    written = read_json(folder / FILE, ChoiceFile) if folder is not None else None
    if written is not None:
        return _Earlier(written.chosen, True)
    manifest = start_manifest(config)
    return _Earlier(_of_manifest(manifest), False) if manifest is not None else None


def _of_manifest(manifest: Manifest) -> dict[str, Any]:
    return dict(manifest.data.get("chosen", {}))
