"""Turn samples into the inputs of a graph of ONNX or of a module of PyTorch, by its description alone.

Neither the checkpoint nor one of the libraries is needed. `mpips.inference.graph_description` makes the
description.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.cells import NotInNotation, text_keys, text_numbers
from mpips.data.columns import FLOAT32_MAX, Column
from mpips.data.csv_dialect import number
from mpips.data.missing import Missing
from mpips.data.words import PANDAS_MISSING, TEXTS, text_of, texts_of, truth
from mpips.errors import DataError

Array: TypeAlias = npt.NDArray[Any]
Facts: TypeAlias = Mapping[str, Any]
_NO_KEY = -1


def onnx_inputs(description: Facts, rows: Any) -> dict[str, Array]:
    """Return the inputs of the graph for samples, by name.

    Args:
        description: The JSON of the file, as `json.loads` returns it.
        rows: For a model of named columns, an iterable of mappings from the names of the columns to cells, as
            `csv.DictReader` yields: texts, numbers or None; other columns are left out; or a frame of
            pandas. For a model of rows of numbers, an array of shape (n, d). For a model of LIBSVM, an
            iterable of mappings from the numbers of the features in the file to values, or a sparse matrix
            of SciPy, whose column j is feature j + `index_base`.

    Returns:
        Arrays with the dtypes and shapes of the description's `inputs`.

    Raises:
        DataError: A sample lacks a column, or a cell or value is not what the model takes.
    """
    known = description.get("format") in ("mpips onnx", "mpips torch")
    if not known or description.get("format_version") != 1:
        raise DataError(
            f"the description has format {description.get('format')!r}, version "
            f"{description.get('format_version')!r}: must be 'mpips onnx' or 'mpips torch', version 1"
        )
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):
        rows = rows.to_dict("records")
    if description.get("columns") and not _is_array(rows):
        return _of_columns(description, list(rows))
    if description["form"] == "columns":
        raise DataError(
            f"samples of type {type(rows).__name__}: must be mappings from the names of the columns to cells"
        )
    if description["form"] == "rows":
        return {"features": _matrix(description, rows)}
    return _entries(_as_mappings(rows, description["index_base"]))


def _is_array(rows: Any) -> bool:
    """Return True for an array, a sparse matrix, or lists of numbers."""
    if hasattr(rows, "tocsr") or isinstance(rows, np.ndarray):
        return True
    return isinstance(rows, Sequence) and bool(rows) and isinstance(rows[0], Sequence)


def _of_columns(description: Facts, rows: list[Mapping[str, Any]]) -> dict[str, Array]:
    """Return the inputs of a model with named columns."""
    found: dict[str, Array] = {}
    for facts in description["inputs"]:
        filler = _NO_KEY if facts["dtype"] == "int64" else np.nan
        shape = (len(rows), facts["shape"][1])
        found[facts["name"]] = np.full(shape, filler, facts["dtype"])
    for facts in description["columns"]:
        cells = _cells(rows, facts["column"])
        column = Column(
            0,
            facts["name"],
            facts["input"] == "keys",
            description.get("words", {}).get("rule", TEXTS),
            facts["convert"],
            facts["part"],
            tuple(description["empty"]["more_texts"]),
        )
        try:
            if column.categorical:
                values: Array = text_keys(column, texts_of(cells))
            else:
                values = _numbers(column, cells)
        except NotInNotation as error:
            raise DataError(
                f"row {error.place}: column '{column.source}' contains {cells[error.place]!r}: must be "
                f"{f'in the notation {column.convert}' if column.convert else 'a number of float32'}"
            ) from None
        if not description["empty"]["allowed"] and np.isnan(values).any():
            raise DataError(
                f"row {int(np.argmax(np.isnan(values)))}: column '{column.source}' contains an empty cell: "
                "must be a number"
            )
        found[facts["input"]][:, facts["place"]] = values
    return found


def _cells(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """Return the cells of a column.

    Raises:
        DataError: A row lacks the column.
    """
    try:
        return [_without_missing(row[name]) for row in rows]
    except KeyError:
        i = next(i for i, row in enumerate(rows) if name not in row)
        raise DataError(f"row {i}: lacks column '{name}'") from None


def _without_missing(cell: Any) -> Any:
    """Return a cell, and None in the place of a missing value of pandas."""
    if cell is None or isinstance(cell, str | int | float):
        return cell
    return None if str(cell) in PANDAS_MISSING else cell


def _numbers(column: Column, cells: Sequence[Any]) -> npt.NDArray[np.float64]:
    """Return the cells of a column of numbers, float64, shape (n,); nan for an empty one."""
    found = np.full(len(cells), np.nan)
    missing = Missing.of(column.missing)
    for i, cell in enumerate(cells):
        if _is_number(cell) and not column.part:
            # No notation applies to what is a number already.
            found[i] = float(cell)
            is_empty = math.isnan(found[i])
        else:
            text = text_of(cell).strip()
            is_empty = missing.has(text)
            if not is_empty and column.convert:
                try:
                    found[i] = text_numbers(column, [text])[0]
                except NotInNotation:
                    raise NotInNotation(i) from None
                continue
            if not is_empty:
                found[i] = number(text)
                found[i] = truth(text) if math.isnan(found[i]) else found[i]
        if not is_empty and not abs(found[i]) <= FLOAT32_MAX:
            raise NotInNotation(i)
    return missing.blanked(found)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float | np.integer | np.floating)


def _matrix(description: Facts, rows: Any) -> Array:
    """Return rows of numbers."""
    facts = description["inputs"][0]
    width, base = facts["shape"][1], description["index_base"]
    if hasattr(rows, "tocsr") or not _is_array(rows):
        samples = _as_mappings(rows, base)
        found = np.zeros((len(samples), width), facts["dtype"])
        for i, sample in enumerate(samples):
            for key, value in sample.items():
                # The model has learned nothing about other features.
                if 0 <= key - base < width:
                    found[i, key - base] = value
    else:
        found = np.asarray(rows, facts["dtype"])
    if found.ndim != 2 or found.shape[1] != width:
        raise DataError(f"samples of shape {found.shape}: must be (n, {width})")
    return _finite(found)


def _as_mappings(rows: Any, base: int) -> list[Mapping[int, float]]:
    """Return samples as mappings from numbers of features to values."""
    if not hasattr(rows, "tocsr"):
        return list(rows)
    matrix = rows.tocsr()
    matrix.sum_duplicates()
    ends = matrix.indptr.tolist()
    keys, values = (matrix.indices.astype(np.int64) + base).tolist(), matrix.data.tolist()
    return [
        dict(zip(keys[start:end], values[start:end], strict=True))
        for start, end in itertools.pairwise(ends)
    ]


def _entries(samples: Iterable[Mapping[int, float]]) -> dict[str, Array]:
    """Return lists of features with values, filled up to the length of the longest one."""
    samples = list(samples)
    most = max(map(len, samples), default=0)
    keys = np.full((len(samples), max(most, 1)), _NO_KEY, np.int64)
    values = np.zeros(keys.shape, np.float32)
    for i, sample in enumerate(samples):
        keys[i, : len(sample)] = list(sample)
        values[i, : len(sample)] = list(sample.values())
    return {"keys": keys, "values": _finite(values)}


def _finite(numbers: Array) -> Array:
    """Return numbers after a check.

    Raises:
        DataError: One is nan, infinite or beyond float32.
    """
    good = np.abs(numbers) <= FLOAT32_MAX
    if not good.all():
        raise DataError(
            f"row {int(np.argmin(good.all(axis=1)))}: contains {numbers[~good][0]:g}: must be a finite "
            "number of float32"
        )
    return numbers
