"""Weights of training samples: from a column of the data, and by class.

A weight multiplies the loss and the gradient of a sample, not its share of a mean: a batch of samples that
all have weight 2 has twice the gradient. Reported losses of the training are weighted, metrics are not.

A column of weights is read like the other columns, but never as logarithms, and taken out afterwards, so
that every reader and cache has it. Then the data, its description and the model do not contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.config.schema import JobConfig
from mpips.data import DataInfo, Dataset
from mpips.data.csv_dialect import number
from mpips.data.dataset import Batch
from mpips.data.label_columns import take_out
from mpips.data.options import Wants
from mpips.errors import ConfigError, DataError
from mpips.tasks import Task

Float32: TypeAlias = npt.NDArray[np.float32]
Int64: TypeAlias = npt.NDArray[np.int64]
Change: TypeAlias = Callable[[Dataset], Dataset]


def check_weights(config: JobConfig, task: type[Task], wants: Wants) -> None:
    """Check the options of weights, as far as that is possible before the data is read.

    Args:
        config: The job.
        task: Its task.
        wants: Kind of labels that the job needs.

    Raises:
        ConfigError: The task uses no weights, or it has no classes, or a weight is not 0 or more.
    """
    data = config.data
    set_ones = [f"data.{name}" for name in ("weight", "class_weight") if getattr(data, name)]
    if set_ones and not getattr(task, "uses_weights", False):
        raise ConfigError(
            f"{set_ones[0]}: task '{config.task}' does not use weights of samples; leave the option out"
        )
    if data.class_weight and wants != "classes":
        what = "several labels" if wants == "several" else "numbers"
        raise ConfigError(
            f"data.class_weight: task '{config.task}' predicts {what}, which are no classes; leave the "
            "option out"
        )
    if isinstance(data.class_weight, dict):
        for name, value in data.class_weight.items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"data.class_weight.{name} = {value}: must be 0 or more")


class WeightColumn(msgspec.Struct, frozen=True):
    """The column of weights in data as it was read.

    Attributes:
        name: Its name.
    """

    name: str

    @classmethod
    def of(cls, config: JobConfig, info: DataInfo) -> WeightColumn | None:
        """Return the column; None: the job names none.

        Args:
            config: The job.
            info: Description of the training data as it was read.

        Raises:
            ConfigError: There is no such column, it is the only one, or it is text.
        """
        name = config.data.weight
        if not name:
            return None
        if name not in info.columns:
            have = (
                f"the columns are {', '.join(info.columns[:20])}" if info.columns else "it has none"
            )
            raise ConfigError(
                f"data.weight = {name!r}: must be a column of {config.data.train_files} beside the label; "
                f"{have}"
            )
        if name in info.categorical:
            raise ConfigError(f"data.weight = {name!r}: the column is text, weights are numbers")
        if len(info.columns) == 1:
            raise ConfigError(f"data.weight = {name!r}: the data has no other column")
        return cls(name)

    def without(self, info: DataInfo) -> DataInfo:
        """Return the description of the data without the column."""
        columns = tuple(name for name in info.columns if name != self.name)
        n_features = info.n_features - (info.kind == "dense")
        return replace(info, columns=columns, n_features=n_features)

    def taken_out(self, data: Dataset, columns: Sequence[str]) -> Dataset:
        """Return the data without the column, with its numbers as weights.

        Args:
            data: The data as it was read.
            columns: Names of its columns.

        Raises:
            DataError: A number is negative or infinite.
        """
        rest, numbers = take_out(data, [columns.index(self.name)])
        # An empty cell of sparse data counts as 0.
        weights = np.where(np.isnan(numbers[:, 0]), 0.0, numbers[:, 0])
        return msgspec.structs.replace(rest, weights=self._checked(weights))

    def _checked(self, numbers: npt.NDArray[np.float64]) -> Float32:
        strange = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
        if len(strange):
            raise DataError(
                f"column '{self.name}': the weight {numbers[strange[0]]:g} is not a number of 0 or more"
            )
        return numbers.astype(np.float32)


def _class_of(name: str, names: Sequence[str], are_texts: bool) -> int:
    """Return the place of a class; -1: there is no such class.

    Args:
        name: Its name, or another form of a label that is a number, such as 1e+06 for 1000000.
        names: Names of the classes.
        are_texts: Labels are texts, not numbers.
    """
    if name in names or are_texts:
        return names.index(name) if name in names else -1
    value = number(name)
    return next((place for place, own in enumerate(names) if float(own) == value), -1)


class ClassWeights(msgspec.Struct, frozen=True):
    """The weights of the classes: float32, shape (k,)."""

    values: Float32

    @classmethod
    def of(
        cls, wanted: Literal["balanced"] | dict[str, float] | None, info: DataInfo, counts: Int64
    ) -> ClassWeights | None:
        """Return the weights that a job requests; None: it requests none.

        Args:
            wanted: The option data.class_weight.
            info: Description of the training data.
            counts: Training samples of each class, of all workers; used by "balanced" only.

        Raises:
            ConfigError: A class does not exist.
        """
        if not wanted:
            return None
        if wanted == "balanced":
            # A class that only validation samples have needs no weight.
            return cls((counts.sum() / (len(counts) * np.maximum(counts, 1))).astype(np.float32))
        names = info.class_names
        values = np.ones(len(names), np.float32)
        for name, value in wanted.items():
            place = _class_of(name, names, bool(info.label_names))
            if place < 0:
                raise ConfigError(
                    f"data.class_weight: there is no class {name!r}; the classes are {', '.join(names[:20])}"
                )
            values[place] = value
        return cls(values)

    def applied(self, batch: Batch) -> Batch:
        """Return the batch with its weights multiplied by those of the classes of its samples."""
        weights: Float32 = self.values[batch.labels.astype(np.int64, copy=False)]
        if batch.weights is not None:
            weights = weights * batch.weights
        return msgspec.structs.replace(batch, weights=weights)
