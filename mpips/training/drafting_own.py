"""Draft a job file for a task that reads its files itself: kge, mf, word2vec."""

from __future__ import annotations

import msgspec

from mpips.data.options import Share
from mpips.data.summary import summarise
from mpips.errors import ConfigError, DataError
from mpips.mpi.one_rank import OneRank
from mpips.tasks import TASKS
from mpips.tasks.base import reader_of
from mpips.training.drafting_lines import (
    CONSISTENCY,
    as_comment,
    last_sections,
    quoted,
    train_section,
)
from mpips.training.own_data import learn_own, read_own
from mpips.training.preflight import task_options

# Options to begin with, and what they mean.
_OPTIONS = {
    "kge": {
        "model": "complex, distmult, rotate, transe",
        "dim": "values of an entity's row",
        "known": 'files of triples that are no wrong answers, such as ["valid.txt"]',
    },
    "mf": {
        "implicit": "true: learn which items users have, instead of ratings",
        "dim": "length of a factor",
        "learning_rate": "of Adagrad",
    },
    "word2vec": {
        "dim": "length of a vector",
        "window": "words on each side",
        "min_count": "rarer words are left out",
    },
}


def own_tasks() -> list[str]:
    """Return the names of the built-in tasks that read their files themselves."""
    return [name for name, task in TASKS.items() if reader_of(task) is not None]


def draft_own(task: str, train: str, test: str = "") -> str:
    """Return the text of a commented job file. Not collective; blocks for reading the data.

    Args:
        task: The task.
        train: File to train on.
        test: File to evaluate on; "": none.

    Raises:
        ConfigError: There is no such task, or it reads no files itself.
        DataError: The data cannot be read, or is empty.
    """
    names = own_tasks()
    if task not in names:
        raise ConfigError(
            f"task {task!r}: must be one of {', '.join(names)}; for other tasks leave it out: the data "
            "decides"
        )
    kind = TASKS[task]
    reads, options = reader_of(kind), task_options(kind, {})
    assert reads is not None
    learned = learn_own(reads, options, train, OneRank(), 1)
    part = read_own(reads, options, train, Share(1, 0), learned, "train")
    if not part.info.n_samples_total:
        raise DataError(f"{train}: contains no samples")
    notes = list(part.notes)
    if test:
        arrays = part.arrays if learned is None else learned
        notes += read_own(reads, options, test, Share(1, 0), arrays, "test").notes
    lines = [
        as_comment(summarise(train, part.info).removeprefix("data: ")),
        *map(as_comment, notes),
        f"task = {quoted(task)}  # mpips train --help lists all",
        "",
        "[data]",
        f"train = {quoted(train)}",
        f"test = {quoted(test)}" if test else '# test = "FILE"  # evaluated at the end',
        "",
        "# [options]",
        *(
            f"# {name} = {msgspec.json.encode(getattr(options, name)).decode()}  # {meaning}"
            for name, meaning in _OPTIONS[task].items()
        ),
        "",
        *train_section(kind, part.info),
        "",
        "# [table]",
        CONSISTENCY,
        "",
        *last_sections(),
    ]
    return "\n".join(lines)
