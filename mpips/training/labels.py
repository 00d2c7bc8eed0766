"""The kind of a job's labels, and the data columns that hold weights or several labels, not features."""

from __future__ import annotations

import msgspec

from mpips.config.schema import JobConfig
from mpips.data import DataInfo, Dataset
from mpips.data.info import align
from mpips.data.label_columns import LabelColumns
from mpips.data.label_sets import LabelSets
from mpips.data.options import Wants
from mpips.errors import ConfigError
from mpips.tasks import TASKS, Task
from mpips.tasks.base import labels_of
from mpips.training.weights import WeightColumn


def wants_of(config: JobConfig, task: type[Task], options: msgspec.Struct) -> Wants:
    """Return how a job uses labels.

    Args:
        config: The job.
        task: Its task.
        options: Options of the task.

    Raises:
        ConfigError: It names several columns of labels, and the task takes one label.
    """
    wants = labels_of(task, options)
    if not config.data.several_labels:
        return wants
    option = f"data.label = {list(config.data.several_labels)}"
    if not getattr(task, "takes_several", False):
        others = ", ".join(name for name, own in TASKS.items() if own.takes_several)
        raise ConfigError(
            f"{option}: task '{config.task}' takes one label of each sample; several labels are for {others}"
        )
    if wants == "targets":
        raise ConfigError(
            f"{option}: several labels are 0 or 1 each, and options.labels = '{wants}' means something else; "
            "leave one of them out"
        )
    return "several"


class Apart(msgspec.Struct, frozen=True):
    """The columns of the training data that are not features.

    Attributes:
        weight: Weights of the samples; None: the job names none.
        labels: Several labels, in columns or in front of lines; None: the job has one label.
    """

    weight: WeightColumn | None
    labels: LabelColumns | LabelSets | None

    @classmethod
    def of(cls, config: JobConfig, info: DataInfo) -> Apart:
        """Return the columns of a job.

        Args:
            config: The job.
            info: Description of the training data as it was read.

        Raises:
            ConfigError: There is no such column, or it is text.
        """
        names = config.data.several_labels
        source = config.data.train_files
        labels = LabelColumns.of(names, info, source) if names else LabelSets.of(info)
        return cls(WeightColumn.of(config, info), labels)

    def without(self, info: DataInfo) -> DataInfo:
        """Return the description of data as it was read without the columns."""
        if self.weight is not None and self.weight.name in info.columns:
            info = self.weight.without(info)
        return self.labels.without(info) if self.labels is not None else info

    def read_as(self, info: DataInfo) -> DataInfo:
        """Return the description of test files as they are read, from that of the training data."""
        return self.labels.read_as(info) if self.labels is not None else info

    def notes(self, info: DataInfo, source: str) -> tuple[str, ...]:
        """Return sentences on the labels of test data, described as it was read."""
        if not isinstance(self.labels, LabelSets):
            return ()
        return self.labels.unknown(info.labels, source)

    def aligned(self, data: Dataset, like: DataInfo) -> Dataset:
        """Return the data without the columns, with weights and labels from them, aligned with `like`.

        Args:
            data: The data as it was read.
            like: Description of the data as it was read, with the columns of the training data.

        Raises:
            DataError: A weight or a label is wrong, or the data does not fit the training data.
        """
        if isinstance(self.labels, LabelSets):
            return align(self.labels.taken_out(data), like)
        data, columns = align(data, like), like.columns
        if self.weight is not None and self.weight.name in columns:
            data = self.weight.taken_out(data, columns)
            columns = tuple(name for name in columns if name != self.weight.name)
        return self.labels.taken_out(data, columns) if self.labels is not None else data
