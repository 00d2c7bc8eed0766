"""The content of a trained model, as graphs and exports use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from mpips.checkpoint import Manifest
from mpips.data import DataInfo, Moments
from mpips.data.options import ReadOptions
from mpips.data.rows import Arrays
from mpips.inference.stored_tables import StoredTables
from mpips.tasks import Task

Numbers: TypeAlias = npt.NDArray[Any]


class ModelContent(Protocol):
    """A task, prepared for prediction, with its tables and the description of its data: a `Model`.

    Attributes:
        path: The checkpoint.
        manifest: Description of the checkpoint: step, configuration, versions.
        task: The task.
        info: Description of the training data.
        moments: Moments of the training data.
        arrays: Arrays of a task that reads its files itself, such as its vocabularies.
        tables: Values by name of the table.
    """

    path: Path
    manifest: Manifest
    task: Task
    info: DataInfo
    moments: Moments
    arrays: Arrays
    tables: StoredTables

    @property
    def read_options(self) -> ReadOptions:
        """Options with which files without labels are read."""

    @property
    def classes(self) -> Numbers:
        """The labels of the classes as in the training data, ascending, shape (k,); () for targets."""

    @staticmethod
    def all_classes(scores: Numbers) -> Numbers:
        """Return the probabilities of both classes, shape (n, 2), if `scores` are those of class 1, (n,)."""
