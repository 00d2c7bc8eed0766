"""Draft a job file for a data file: what was found, a task that suits the data, options to begin with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from glob import escape

from mpips.data import DataInfo, ReadOptions, read
from mpips.data.summary import summarise
from mpips.errors import DataError
from mpips.tasks import TASKS

_MOST_CLASSES = 1000  # more distinct labels are rather numbers to be predicted


def draft(train: str, test: str = "", label: str | None = None) -> str:
    """Return the text of a commented job file. Not collective; blocks for reading the data.

    Args:
        train: File to train on.
        test: File to evaluate on; "": none.
        label: Where the labels are, as data.label; None: found by name.

    Raises:
        DataError: The data cannot be read, or no built-in task suits its labels.
    """
    options = ReadOptions(label=label)
    part = read(train, options=options)
    info = part.info
    _check_labels(train, info)
    if test:
        read(test, options=options, like=info)
    name, others = _tasks(info)
    task = TASKS[name]
    lines = [
        _comment(summarise(train, info).removeprefix("data: ")),
        *map(_comment, part.notes),
        f"task = {_text(name)}  # {_or(others)}mpips train --help lists all",
        "",
        "[data]",
        f"train = {_text(train)}",
        f"test = {_text(test)}" if test else '# test = "FILE"  # evaluated at the end',
    ]
    if info.columns:
        lines += _columns(info)
    elif label is not None:
        lines.append(f"label = {_text(label)}")
    lines += [
        "",
        "[train]",
        f"epochs = {task.default_epochs}",
        f"# batch_size = {task.default_batch_size}  # samples per step and worker",
        "# eval_every = 5",
        "",
        "# [schedule]",
        '# name = "cosine"  # rates fall over the run; not with FTRL, the default of logistic, fm',
        "",
        "# [table]",
        '# consistency = "bsp"  # bsp: equal bits in every run; ssp with bound = 2; asp',
        '# optimizer = { name = "adagrad", lr = 0.05 }',
        "",
        "# [cluster]",
        "# servers = 1  # by default chosen from the number of ranks",
        "",
        "[checkpoint]",
        "every_s = 600.0  # mpips run keeps them in the run directory; mpips train needs --save FOLDER",
        "",
    ]
    return "\n".join(lines)


def _check_labels(train: str, info: DataInfo) -> None:
    """Refuse labels that are rather numbers to be predicted, or of one class only."""
    whole = all(label == int(label) for label in info.labels)
    if info.n_classes > _MOST_CLASSES or not whole:
        raise DataError(
            f"{train}: has {info.n_classes:,} distinct labels, which look like numbers to be predicted; the "
            "built-in tasks predict classes: write a task with labels = 'targets' (docs/howto/task.md), or "
            "set data.label to another column"
        )
    if info.n_classes < 2:
        raise DataError(
            f"{train}: all samples have the label {info.class_names[0]}; nothing can be learned from it"
        )


def _tasks(info: DataInfo) -> tuple[str, Sequence[str]]:
    """Return the task to begin with, and others that suit the data."""
    if info.kind == "sparse" and info.n_classes == 2:
        if info.n_fields:
            return "wide_deep", ("deepfm", "dcnv2", "logistic", "fm")
        return "logistic", ("fm",)
    return "mlp", ("softmax",)


def _columns(info: DataInfo) -> list[str]:
    """Return the lines about the columns of a CSV file."""
    lines = [f"label = {_text(info.label_column)}"]
    if info.categorical:
        names = ", ".join(_text(escape(name)) for name in info.categorical)
        lines.append(f"categorical = [{names}]  # hashed; other columns are numbers")
    return [*lines, '# ignore = ["id"]  # columns to leave out, as names or patterns']


def _comment(text: str) -> str:
    """Return a line of comment."""
    return f"# {' '.join(text.split())}"


def _or(names: Sequence[str]) -> str:
    return f"or {', '.join(names)}; " if names else ""


def _text(value: str) -> str:
    """Return a string of TOML."""
    return json.dumps(value, ensure_ascii=False)
