"""Data of tasks that read their files themselves: refused options, shares, and the arrays of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from mpips.config.schema import JobConfig
from mpips.config.sections import DataConfig
from mpips.data import DataInfo
from mpips.data.options import Share
from mpips.data.rows import Arrays, Purpose, Samples, TaskPart
from mpips.errors import CapabilityError, ConfigError, DataError
from mpips.model.optimizer import SGD
from mpips.model.table import Table
from mpips.mpi.one_rank import Ranks
from mpips.tasks import Task
from mpips.tasks.base import ReadsData


def refuse_reader_options(config: JobConfig) -> None:
    """Check that a job whose task reads its files itself sets no option of the readers of mpips.

    Raises:
        ConfigError: It does. The message names the option.
    """
    default = msgspec.to_builtins(DataConfig())
    files = ("train", "test", *(("validation",) if config.data.validation_files else ()))
    for name, value in msgspec.to_builtins(config.data).items():
        if name not in files and value != default[name]:
            raise ConfigError(
                f"data.{name} = {value!r} has no effect: task '{config.task}' reads its files itself; leave "
                "the option out, and see the options of the task"
            )


def read_own(
    task: type[ReadsData],
    options: msgspec.Struct,
    path: str,
    share: Share,
    like: Arrays | None,
    purpose: Purpose,
) -> TaskPart:
    """Return one worker's share of a file that the task reads. Not collective; blocks.

    Args:
        task: The class of the task.
        options: Its options.
        path: A file or a pattern of several.
        share: The share of this worker.
        like: The arrays of the training data; None: this is the training data.
        purpose: Use of the samples.

    Raises:
        DataError: The file cannot be read.
        CapabilityError: The samples do not fit into memory.
    """
    try:
        return task.read(path, options, share, like, purpose)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise CapabilityError(
            f"{path}: does not fit into memory: {error}; use fewer workers on this node, or more nodes"
        ) from None


def parts_own(
    task: type[ReadsData],
    options: msgspec.Struct,
    path: str,
    like: Arrays,
    say: Callable[[str], None],
) -> Iterator[Samples]:
    """Yield the samples of a file that is predicted, in parts; of a task without `read_parts`, all at once.

    Args:
        task: The class of the task.
        options: Its options.
        path: A file or a pattern of several.
        like: The arrays of the training data.
        say: Called with sentences for the user.

    Raises:
        DataError: The file cannot be read, or contains no samples.
        CapabilityError: The samples do not fit into memory.
    """
    read_parts: Any = getattr(task, "read_parts", None)
    if read_parts is None:
        part = read_own(task, options, path, Share(1, 0), like, "predict")
        for note in part.notes:
            say(note)
        yield part.data
        return
    n = 0
    try:
        for samples in read_parts(path, options, like, say):
            n += samples.n
            yield samples
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not n:
        raise DataError(f"{path}: contains no samples")


def learn_own(
    task: type[ReadsData] | None,
    options: msgspec.Struct,
    path: str,
    ranks: Ranks,
    n_workers: int,
) -> Arrays | None:
    """Return what a task must know of the whole training data before it reads. Collective over the ranks.

    Args:
        task: The class of the task; None: it does not read its files itself.
        options: Its options.
        path: The training data.
        ranks: Ranks of the job.
        n_workers: Number of workers.

    Returns:
        Arrays, see `mpips.tasks.base.LearnsData`; None for a task without `learn`.
    """
    learn: Any = getattr(task, "learn", None)
    if learn is None:
        return None
    found: Arrays = learn(path, options, ranks.worker, n_workers, ranks.agree)
    return found


def check_changes(task: Task, tables: Sequence[Table], config: JobConfig) -> None:
    """Check that servers apply the pushes of a task that pushes changes as they are.

    Raises:
        ConfigError: The job sets another optimizer or a schedule.
    """
    if not getattr(task, "pushes_changes", False):
        return
    for table in tables:
        if table.optimizer != SGD(lr=1.0):
            raise ConfigError(
                f"table '{table.name}' has the optimizer {table.optimizer!r}: task '{config.task}' pushes "
                "changes of values, which SGD with lr = 1 applies; remove the setting (the task has its own "
                "learning rate)"
            )
    if config.schedule.changes:
        raise ConfigError(
            f"schedule.name = '{config.schedule.name}': task '{config.task}' changes its learning rate "
            "itself; remove the schedule, and see the options of the task"
        )


def check_vocabulary(here: DataInfo, there: DataInfo, where: object) -> None:
    """Check that the keys of a checkpoint's rows mean what they mean in the training data.

    Args:
        here: Description of the training data.
        there: Description in the checkpoint.
        where: The checkpoint, for errors.

    Raises:
        ConfigError: The vocabularies differ.
    """
    if here.digest != there.digest:
        raise ConfigError(
            f"{where}: was trained with other names ({_counts(there)}; now {_counts(here)}), so its rows "
            "belong to other keys: train on the same names, or set checkpoint.resume = 'never'"
        )


def _counts(info: DataInfo) -> str:
    pairs = zip(info.arrays, info.sizes, strict=True)
    return ", ".join(f"{size:,} {path.partition('/')[2]}" for path, size in pairs) or "none"
