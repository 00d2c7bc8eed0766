"""Several files that are read as one: those of a list, or those that match a pattern, sorted by name.

The samples are numbered over all files, and the rule that divides samples among workers is applied to these
numbers. So a worker has the samples, in the order, that it would have of one file with the content of all.
The first file decides about the columns and which of them are text; the others must have these columns.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from mpips.data.columns import exactly
from mpips.data.dataset import join
from mpips.data.info import DataInfo, Part, describe, relabel
from mpips.data.options import FileList, ReadOptions, Share
from mpips.errors import DataError


def given_files(data: Any) -> str | None:
    """Return files as readers take them: a path, a pattern, or a `FileList` for a list of these.

    None: `data` is something else, such as an array.
    """
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    if not isinstance(data, list | tuple) or not data:
        return None
    if not all(isinstance(path, str | os.PathLike) for path in data):
        return None
    return FileList([os.fspath(path) for path in data]) if len(data) > 1 else os.fspath(data[0])


def asked_files(data: Any) -> str:
    """Return files as `given_files` does; raises DataError for something else."""
    files = given_files(data)
    if files is None:
        raise DataError(
            f"data of type {type(data).__name__}: must be a path, a pattern or a list of them"
        )
    return files


def files_of(path: str) -> list[str]:
    """Return the files that a path or a pattern (`*`, `?`, `[...]`, `**` for folders) names, sorted by text.

    A path without these characters names itself, even if no such file exists; so does the path of an existing
    file. The files of a `FileList` are those of its entries, in the order of the list.

    Raises:
        DataError: No file matches a pattern, or a list names a file twice.
    """
    if isinstance(path, FileList):
        files = [file for entry in path.paths for file in files_of(entry)]
        known: dict[str, str] = {}
        for file in files:
            # Links and other spellings lead to the same samples, too.
            place = os.path.realpath(file)
            if place in known:
                before = known[place]
                also = f" (also as {before})" if before != file else ""
                raise DataError(
                    f"{path}: the list names {file} twice{also}; each file can be read once"
                )
            known[place] = file
        return files
    if not glob.has_magic(path) or os.path.exists(path):
        return [path]
    found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    if not found:
        raise DataError(f"{path}: no file matches this pattern (working folder: {os.getcwd()})")
    return found


def read_files(
    pattern: str,
    paths: Sequence[str],
    options: ReadOptions,
    share: Share,
    read_file: Callable[[str, ReadOptions, Share], Part],
) -> Part:
    """Read one worker's share of several files. Not collective, blocking.

    Args:
        pattern: The pattern, for messages.
        paths: The files, at least two.
        options: Options of the readers.
        share: The share of all files together.
        read_file: Reads a share of one file.

    Raises:
        DataError: A file cannot be read, or does not fit to those before it; names the file.
    """
    parts: list[Part] = []
    for path in paths:
        first = sum(part.info.n_samples_total for part in parts)
        parts.append(read_file(path, options, replace(share, first=first)))
        _check(paths, parts)
        if len(parts) == 1:
            options = _like_first(options, parts[0].info)
    # Files of LIBSVM text have one base, which is 0 if index 0 occurs in any of them.
    bases = {part.info.index_base for part in parts}
    if len(bases) > 1:
        return read_files(
            pattern, paths, msgspec.structs.replace(options, index_base=0), share, read_file
        )
    return _joined(pattern, paths, parts)


def _like_first(options: ReadOptions, first: DataInfo) -> ReadOptions:
    """Return the options with the columns of the first file."""
    if not first.columns:
        return options
    return msgspec.structs.replace(
        options,
        label=first.label_column or options.label,
        columns=first.columns,
        categorical=tuple(map(exactly, first.categorical)),
        finds_text=False,
    )


def _check(paths: Sequence[str], parts: Sequence[Part]) -> None:
    """Check that the last part fits to the first.

    Raises:
        DataError: It does not.
    """
    first, last = parts[0].info, parts[-1].info
    path = paths[len(parts) - 1]
    if first.kind != last.kind:
        raise DataError(f"{path}: its data is {last.kind}, that of {paths[0]} is {first.kind}")
    if last.kind == "dense" and first.n_features != last.n_features:
        raise DataError(
            f"{path}: has {last.n_features} features, {paths[0]} has {first.n_features}; use files with the "
            "same columns"
        )
    if bool(first.label_names) != bool(last.label_names):
        text, numbers = (paths[0], path) if first.label_names else (path, paths[0])
        raise DataError(f"{text}: its labels are text, those of {numbers} are numbers")


def _joined(pattern: str, paths: Sequence[str], parts: Sequence[Part]) -> Part:
    """Return the samples of all parts as one."""
    infos = [part.info for part in parts]
    first = infos[0]
    # Classes of text are numbered in the order of all names.
    names = tuple(sorted({name for info in infos for name in info.label_names}))
    place = {name: float(i) for i, name in enumerate(names)}
    parts_data = [
        relabel(part.data, {float(i): place[n] for i, n in enumerate(part.info.label_names)})
        for part in parts
    ]
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    part = describe(
        join(parts_data),
        sum(info.n_samples_total for info in infos),
        pattern,
        first.index_base,
        wants=first.wants,
        columns=first.columns,
        label_column=first.label_column,
        notes=(f"{pattern}: {len(paths)} files, {paths[0]} to {paths[-1]}", *notes),
    )
    info = replace(part.info, label_names=names, categorical=first.categorical, words=first.words)
    info = replace(info, of_array=first.of_array)
    if names and info.wants == "classes" and first.label_names:
        # Describe all classes, also those that this share does not contain.
        counts = np.bincount(part.data.labels.astype(np.int64), minlength=len(names))
        info = replace(info, labels=tuple(place.values()), counts=tuple(counts.tolist()))
    return replace(part, info=info)
