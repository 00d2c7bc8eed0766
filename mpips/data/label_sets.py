"""Several labels of a sample as LIBSVM text has them: whole numbers with commas between them, or none.

The reader makes an entry of each label: its key is the label, and its field is `LABEL`, where features have
the field `FEATURE`. So every reader and cache has the labels. They are taken out afterwards. Then the data
has labels of shape (n, k), one column for each label that the training data of all workers contains, and the
entries have no fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.dataset import FEATURE, LABEL, Dataset, Fields, SparseData
from mpips.data.info import DataInfo
from mpips.errors import DataError

Int64 = npt.NDArray[np.int64]

_SHOWN = 10  # labels that a sentence names


class LabelSets(msgspec.Struct, frozen=True):
    """The labels of the training data.

    Attributes:
        names: The numbers as text, ascending.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, info: DataInfo) -> LabelSets | None:
        """Return the labels of data as it was read, or of a model; None: its labels have no such form.

        Args:
            info: Description of the training data.

        Raises:
            DataError: No sample has a label.
        """
        if info.wants != "several" or info.kind != "sparse" or info.columns:
            return None
        names = info.label_names or tuple(str(int(label)) for label in info.labels)
        if not names:
            raise DataError(
                "no sample of the training data has a label; in LIBSVM text with several labels "
                "(options.labels = 'several') a line begins with them, such as 1,3,7"
            )
        return cls(names)

    def without(self, info: DataInfo) -> DataInfo:
        """Return the description of data after the labels were taken out."""
        return replace(info, labels=(), counts=(), label_names=self.names)

    def read_as(self, info: DataInfo) -> DataInfo:
        """Return the description of files as they are read, from that of the training data."""
        return replace(info, label_names=())

    def unknown(self, labels: Sequence[float], source: str) -> tuple[str, ...]:
        """Return a sentence on labels that the training data does not contain; (): it contains all.

        Args:
            labels: Distinct labels of other data.
            source: Its file.
        """
        known = set(self.names)
        strange = [name for name in (str(int(label)) for label in labels) if name not in known]
        if not strange:
            return ()
        more = ", ..." if len(strange) > _SHOWN else ""
        return (
            f"{source}: left out labels that no training sample has: "
            f"{', '.join(strange[:_SHOWN])}{more}",
        )

    def taken_out(self, data: Dataset) -> Dataset:
        """Return the data without entries of labels, with labels int64, shape (n, k), each 0 or 1.

        Labels that the training data does not contain are left out.

        Args:
            data: The data as it was read.
        """
        assert isinstance(data, SparseData)
        assert data.fields is not None
        is_label = data.fields == LABEL
        found = data.indices[is_label]
        known = np.array([int(name) for name in self.names], np.int64)
        columns = np.minimum(np.searchsorted(known, found), len(known) - 1)
        is_known = known[columns] == found
        rows = np.repeat(np.arange(data.n), np.diff(data.indptr))[is_label]
        labels = np.zeros((data.n, len(known)), np.int64)
        labels[rows[is_known], columns[is_known]] = 1
        return msgspec.structs.replace(only_features(data), labels=labels)


def only_features(data: SparseData) -> SparseData:
    """Return the data without entries of labels; its own labels do not change."""
    if data.fields is None:
        return data
    is_feature = data.fields == FEATURE
    before = np.concatenate(([0], np.cumsum(is_feature, dtype=np.int64)))
    changes: dict[str, Any] = {
        "indptr": before[data.indptr],
        "indices": data.indices[is_feature],
        "values": data.values[is_feature],
        "fields": None,
        "n_fields": 0,
    }
    return msgspec.structs.replace(data, **changes)


def numbered(indices: Int64, fields: Fields | None, change: int) -> Int64:
    """Return the keys with `change` added to those of features; labels keep theirs."""
    if fields is None or not change:
        return indices + change
    return np.where(fields == FEATURE, indices + change, indices)
