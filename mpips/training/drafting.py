"""Draft a job file for a data file: what was found, a task that suits the data, options to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from glob import escape

from msgspec.structs import replace as replace_struct

from mpips.data import DataInfo, Part, ReadOptions, files_of, read
from mpips.data.column_needs import LEAST_ROWS
from mpips.data.columns import UnusableColumnsError
from mpips.data.label_sets import LabelSets
from mpips.data.readers import choose_reader
from mpips.data.summary import summarise
from mpips.errors import DataError
from mpips.tasks import TASKS
from mpips.tasks.features import MAX_DENSE_FEATURES
from mpips.training.drafting_columns import DraftColumns
from mpips.training.drafting_lines import (
    CONSISTENCY,
    as_comment,
    last_sections,
    quoted,
    train_section,
    validation_line,
)

_MOST_CLASSES = 1000  # more distinct labels are rather numbers to be predicted
# So are more than _FEW whole numbers with fewer than _EACH samples each.
_FEW = 50
_EACH = 10
_LEAST_SAMPLES = 2000  # of which a tenth can tell epochs apart


def draft(train: str, test: str = "", label: str | None = None) -> str:
    """Return the text of a commented job file. Not collective; blocks for reading the data.

    Args:
        train: File to train on.
        test: File to evaluate on; "": none.
        label: Where the labels are, as data.label; None: found by name.

    Raises:
        DataError: The data cannot be read, or no built-in task suits its labels.
    """
    columns = DraftColumns.of(train, label)
    part, left_out = _read_all(train, test, columns, ReadOptions(label=label))
    info = part.info
    several = info.wants == "several"
    name, others = _tasks(train, info)
    task = TASKS[name]
    holds_out = info.n_samples_total >= _LEAST_SAMPLES
    lines = [
        as_comment(summarise(train, info).removeprefix("data: ")),
        *map(as_comment, part.notes),
        *(
            as_comment(f"{train}: {note}")
            for note in (columns.notes if columns is not None else ())
        ),
        f"task = {quoted(name)}  # {_or(others)}mpips train --help lists all",
        "",
        "[data]",
        f"train = {quoted(train)}",
        validation_line(holds_out),
        f"test = {quoted(test)}" if test else '# test = "FILE"  # evaluated once, at the end',
    ]
    if columns is not None:
        lines += [*columns.lines(), *columns.section()]
    elif info.columns:
        lines += _columns(info, left_out)
    elif label is not None:
        lines.append(f"label = {quoted(label)}")
    if several:
        lines += [
            "",
            "[options]",
            'labels = "several"  # lists in front of the lines, such as 1,3,7',
        ]
    if info.wants == "targets":
        lines += ["", "[options]", 'labels = "targets"  # numbers to be predicted, not classes']
    lines += [
        "",
        *train_section(task, info, holds_out),
        "",
        "# [schedule]",
        '# name = "cosine"  # rates fall over the run; not with FTRL, the default of logistic, fm',
        "",
        "# [table]",
        CONSISTENCY,
        '# optimizer = { name = "adagrad", lr = 0.05 }',
        "",
        *last_sections(holds_out),
    ]
    return "\n".join(lines)


def _read_all(
    train: str, test: str, columns: DraftColumns | None, options: ReadOptions
) -> tuple[Part, tuple[str, ...]]:
    """Read the training data, and the test data as data to evaluate on.

    Returns the former, and columns of a typed table that are left out: they are neither numbers nor text.

    Args:
        train: Files to train on.
        test: Files to evaluate on; "": none.
        columns: Options for CSV, which are widened if something behind the beginning needs it; None: another
            format.
        options: Options for another format.

    Raises:
        DataError: The data cannot be read, or all labels are equal.
    """
    left_out: tuple[str, ...] = ()
    while True:
        chosen = columns.options if columns is not None else options
        try:
            part = _read(train, chosen)
            info = part.info
            if test:
                several = info.wants == "several"
                like = replace(info, label_names=()) if several else info
                read(test, options=chosen, like=like)
            return part, left_out
        except UnusableColumnsError as error:
            if not error.names:
                raise
            left_out += error.names
            options = replace_struct(options, ignore=tuple(map(escape, left_out)))
        except DataError:
            files = [*files_of(train), *(files_of(test) if test else ())]
            if columns is None or not columns.widened(files):
                raise


def _read(train: str, options: ReadOptions) -> Part:
    """Read the training data; its labels are numbers to be predicted if they do not look like classes.

    Lines of LIBSVM text that have several labels or none are read as such.

    Raises:
        DataError: The data cannot be read, or all labels are equal.
    """
    refused: DataError | None = None
    if options.wants == "targets":
        part = read(train, options=options)
        low, high = part.info.target_range
        if low == high:
            raise DataError(
                f"{train}: all samples have the label {low:g}; nothing can be learned from it"
            )
        return part
    try:
        part = read(train, options=options)
    except DataError as error:
        refused, several = error, _with_label_sets(train, options)
        if several is not None:
            return several
    else:
        info = part.info
        if info.n_classes < 2:
            raise DataError(
                f"{train}: all samples have the label {info.class_names[0]}; nothing can be learned from it"
            )
        n = info.n_samples_total
        if info.label_names and (
            info.n_classes > _MOST_CLASSES or (n >= LEAST_ROWS and 2 * info.n_classes > n)
        ):
            raise DataError(
                f"{train}: column '{info.label_column}' has {info.n_classes:,} distinct texts in "
                f"{n:,} samples, which are too many to be classes: name another column with --label"
            )
        whole = all(label == int(label) for label in info.labels)
        few = info.n_classes <= _FEW or info.n_samples_total >= _EACH * info.n_classes
        if info.label_names or (whole and few and info.n_classes <= _MOST_CLASSES):
            return part
    try:
        part = read(train, options=replace_struct(options, wants="targets"))
    except DataError:
        raise refused or AssertionError from None
    low, high = part.info.target_range
    note = f"{train}: the labels look like numbers to be predicted, from {low:g} to {high:g}"
    return replace(part, notes=(*part.notes, note))


def _with_label_sets(train: str, options: ReadOptions) -> Part | None:
    """Read LIBSVM text whose lines have several labels or none; None: it is something else."""
    try:
        if choose_reader(files_of(train)[0], options.format).name != "libsvm":
            return None
        part = read(train, options=replace_struct(options, wants="several"))
        sets = LabelSets.of(part.info)
    except DataError:
        return None
    return replace(part, info=sets.without(part.info)) if sets is not None else None


def _tasks(train: str, info: DataInfo) -> tuple[str, Sequence[str]]:
    """Return the task to begin with, and others that suit the data.

    Raises:
        DataError: No built-in task suits it.
    """
    if info.kind == "sparse" and info.n_fields:
        others = ("logistic", "fm") if info.n_classes == 2 else ()
        return "wide_deep", ("deepfm", "dcnv2", *others)
    if info.kind == "sparse" and info.n_classes == 2:
        return "logistic", ("fm",)
    if info.kind == "dense" and info.n_features > MAX_DENSE_FEATURES:
        raise DataError(
            f"{train}: has {info.n_features:,} columns of numbers, and built-in tasks take up to "
            f"{MAX_DENSE_FEATURES:,}; write them as LIBSVM, which may have any number of features"
        )
    return "mlp", ("softmax",) if info.wants == "classes" else ()


def _columns(info: DataInfo, left_out: Sequence[str]) -> list[str]:
    """Return the lines about the columns of a file with names. `left_out`: columns that cannot be used."""
    lines = [f"label = {quoted(info.label_column)}"]
    if info.categorical:
        names = ", ".join(quoted(escape(name)) for name in info.categorical)
        lines.append(f"categorical = [{names}]  # hashed; other columns are numbers")
    if left_out:
        names = ", ".join(quoted(escape(name)) for name in left_out)
        return [*lines, f"ignore = [{names}]  # neither numbers nor text"]
    return [*lines, '# ignore = ["id"]  # columns to leave out, as names or patterns']


def _or(names: Sequence[str]) -> str:
    return f"or {', '.join(names)}; " if names else ""
