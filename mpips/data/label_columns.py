"""Several labels of a sample, each in a column of its own that contains 0 or 1.

Such columns are read like the features, but never as logarithms, and taken out afterwards, so that every
reader and cache has them. Then the data has labels of shape (n, k), and its description names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Dataset, SparseData
from mpips.data.info import DataInfo
from mpips.errors import ConfigError, DataError

Float64 = npt.NDArray[np.float64]


class LabelColumns(msgspec.Struct, frozen=True):
    """The columns of labels.

    Attributes:
        names: Their names, in the order of the labels.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str], info: DataInfo, source: str) -> LabelColumns:
        """Return the columns after a check.

        Args:
            names: As in the option data.label.
            info: Description of the training data as it was read.
            source: Its files, for errors.

        Raises:
            ConfigError: A column is missing, named twice or text; or there is no other column.
        """
        option = f"data.label = {list(names)}"
        if len(set(names)) < len(names):
            twin = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{option}: names '{twin}' twice")
        missing = [name for name in names if name not in info.columns]
        if missing:
            have = (
                f"the columns are {', '.join(info.columns[:20])}"
                if info.columns
                else "it has no named columns, which CSV and Parquet have; for lists of labels in LIBSVM "
                "text leave data.label out and set options.labels = 'several'"
            )
            raise ConfigError(f"{option}: {source} has no column '{missing[0]}'; {have}")
        text = [name for name in names if name in info.categorical]
        if text:
            raise ConfigError(
                f"{option}: column '{text[0]}' is text; a column of each of several labels has 0 or 1"
            )
        if len(names) == len(info.columns):
            raise ConfigError(f"{option}: {source} has no other column")
        return cls(tuple(names))

    def without(self, info: DataInfo) -> DataInfo:
        """Return the description of data without the columns, with their labels."""
        left = tuple(name for name in info.columns if name not in self.names)
        n_features = info.n_features - len(self.names) * (info.kind == "dense")
        return replace(
            info,
            columns=left,
            n_features=n_features,
            wants="several",
            labels=(),
            counts=(),
            target_range=(),
            label_names=self.names,
            label_column="",
        )

    def read_as(self, info: DataInfo) -> DataInfo:
        """Return the description of files with the columns, which come last, from that of the data."""
        n_features = info.n_features + len(self.names) * (info.kind == "dense")
        columns = (*info.columns, *self.names)
        return replace(info, columns=columns, n_features=n_features, label_names=())

    def taken_out(self, data: Dataset, columns: Sequence[str]) -> Dataset:
        """Return the data without the columns, with their numbers as labels, int64, shape (n, k).

        Args:
            data: The data as it was read.
            columns: Names of its columns.

        Raises:
            DataError: A label is neither 0 nor 1, or missing.
        """
        rest, numbers = take_out(data, [columns.index(name) for name in self.names])
        wrong = np.argwhere((numbers != 0) & (numbers != 1))
        if len(wrong):
            value = numbers[tuple(wrong[0])]
            found = "an empty cell" if np.isnan(value) else f"{value:g}"
            raise DataError(
                f"label column '{self.names[wrong[0][1]]}' contains {found}: each of several labels "
                "(data.label) is 0 or 1 in every sample"
            )
        return msgspec.structs.replace(rest, labels=numbers.astype(np.int64))


def take_out(data: Dataset, places: Sequence[int]) -> tuple[Dataset, Float64]:
    """Return the data without some columns, and their numbers.

    Args:
        data: Dense data, or sparse data with fields.
        places: Places of the columns, each once.

    Returns:
        The rest, and float64, shape (n, len(places)); nan in sparse data for an empty cell.
    """
    if not isinstance(data, SparseData):
        numbers = data.x[:, list(places)].astype(np.float64)
        return msgspec.structs.replace(data, x=np.delete(data.x, places, axis=1)), numbers
    assert data.fields is not None
    # The column in the result of each field, or its new place; for each field one is valid.
    taken = np.full(data.n_fields, -1)
    taken[list(places)] = np.arange(len(places))
    place = np.cumsum(taken < 0) - 1
    is_taken = taken[data.fields] >= 0
    rows = np.repeat(np.arange(data.n), np.diff(data.indptr))
    numbers = np.full((data.n, len(places)), np.nan)
    numbers[rows[is_taken], taken[data.fields[is_taken]]] = data.values[is_taken]
    others = ~is_taken
    before = np.concatenate(([0], np.cumsum(others, dtype=np.int64)))
    changes: dict[str, Any] = {
        "indptr": before[data.indptr],
        "indices": data.indices[others],
        "values": data.values[others],
        "fields": place[data.fields[others]].astype(np.int32),
        "n_fields": data.n_fields - len(places),
    }
    return msgspec.structs.replace(data, **changes), numbers
