"""Sections of a job file about the data and the training: [data], [train], [schedule]."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mpips.data.holdout import Holdout
from mpips.data.options import (
    Categorical,
    Conversions,
    EmptyCells,
    FileList,
    Format,
    Header,
    Ignored,
    IndexBase,
    LabelKind,
    MissingTexts,
    Numeric,
    OnBad,
)
from mpips.errors import ConfigError


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[data]: the files to train and to evaluate on, and how they are read."""

    train: Annotated[
        str | tuple[str, ...],
        Meta(
            description="File to train on (.svm .libsvm .svmlight .csv .tsv .parquet .arrow .feather .npz "
            ".npy .h5 .hdf5), a pattern of several such as day_*.csv, a list of files and patterns, or "
            "digits."
        ),
    ] = ""
    test: Annotated[
        str | tuple[str, ...],
        Meta(
            description="File, pattern or list to evaluate on, or digits. With `validation` it is evaluated "
            "once, when training has ended. Empty: none."
        ),
    ] = ""
    validation: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | str | tuple[str, ...],
        Meta(
            description="Samples on which epochs are evaluated, and by which the best values are chosen: a "
            "file, pattern or list; or the fraction of the training samples that is held out for it: a "
            "random sample, by cluster.seed, whatever the number of workers. 0: none."
        ),
    ] = 0.0
    folds: Annotated[
        int,
        Meta(
            ge=0,
            description="Number of folds of equal size into which the training samples are dealt out, by "
            "cluster.seed; `fold` is held out for validation. `mpips sweep --folds` sets both. 0: none.",
        ),
    ] = 0
    fold: Annotated[int, Meta(ge=0, description="Number of the fold that is held out, from 1.")] = 0
    format: Format = "auto"
    index_base: IndexBase = "auto"
    label: Annotated[
        str | tuple[str, ...] | None,
        Meta(
            description="CSV, Parquet: column of the label. By default the column label, or else the only "
            "one that is named y, target or class in small or capital letters. Labels are numbers, or all of "
            "them are text. A list: columns of several labels, each 0 or 1."
        ),
    ] = None
    label_kind: LabelKind = "auto"
    categorical: Categorical = ()
    numeric: Numeric = "auto"
    ignore: Ignored = ()
    empty: EmptyCells = "error"
    missing: MissingTexts = ()
    convert: Conversions = {}
    header: Header = True
    on_bad: OnBad = "error"
    weight: Annotated[
        str,
        Meta(
            description="CSV, Parquet: numeric column with the weight of each training sample, by which its "
            "loss and its gradient are multiplied. Empty: none."
        ),
    ] = ""
    class_weight: Annotated[
        Literal["balanced"] | dict[str, float] | None,
        Meta(
            description="Weights of classes, such as {yes = 5, no = 1}; a class that is not named has 1. "
            "balanced: samples / (classes * samples of the class)."
        ),
    ] = None
    memory_mib: Annotated[
        float,
        Meta(
            gt=0,
            description="MiB of samples that a worker holds. If a worker's share is larger, by an estimate "
            "from the sizes of the files, the data is converted into a cache and read in windows.",
        ),
    ] = 1024.0
    cache: Annotated[
        str,
        Meta(
            description="Folder of caches of data that is read in windows; all nodes must share it. Later "
            "runs use a cache again if files and options are the same. Empty: the run directory, or without "
            "`mpips run` a temporary folder, which is removed at the end."
        ),
    ] = ""

    @property
    def train_files(self) -> str:
        """The training data as readers take it: a path, a pattern or a `FileList`."""
        return self.train if isinstance(self.train, str) else FileList(self.train)

    @property
    def test_files(self) -> str:
        """The test data as readers take it; "": none."""
        return self.test if isinstance(self.test, str) else FileList(self.test)

    @property
    def validation_files(self) -> str:
        """The validation data as readers take it; "": none, or a part of the training data."""
        if isinstance(self.validation, tuple):
            return FileList(self.validation)
        return self.validation if isinstance(self.validation, str) else ""

    @property
    def held_fraction(self) -> float:
        """Fraction of the training samples that is held out for validation; 0: none."""
        return self.validation if isinstance(self.validation, int | float) else 0.0

    def holdout(self, seed: int) -> Holdout | None:
        """Return the division of the training samples of a job with this seed; None: none are held out."""
        if self.folds:
            return Holdout(0.0, seed, self.folds, self.fold)
        return Holdout(self.held_fraction, seed) if self.held_fraction else None

    def check_folds(self) -> None:
        """Raise ConfigError for folds that do not go together."""
        if self.folds == 1 or not (1 <= self.fold <= self.folds or self.folds == self.fold == 0):
            raise ConfigError(
                f"data.folds = {self.folds}, data.fold = {self.fold}: must be 2 folds or more and the number "
                "of one of them, or 0 and 0"
            )
        if self.folds and self.validation:
            raise ConfigError(
                f"data.folds = {self.folds} and data.validation = {self.validation!r} are both set: a fold "
                "is the validation data; leave one of them out"
            )

    @property
    def evaluated_files(self) -> dict[str, str]:
        """The files to evaluate on, by "validation" and "test", in this order."""
        files = {"validation": self.validation_files, "test": self.test_files}
        return {name: path for name, path in files.items() if path}

    @property
    def several_labels(self) -> tuple[str, ...]:
        """Columns of several labels; (): a sample has one label."""
        return self.label if isinstance(self.label, tuple) else ()

    @property
    def evaluates(self) -> str:
        """The data that epochs are evaluated on: "validation", "test", or "" without such data."""
        has_validation = self.validation or self.folds
        return "validation" if has_validation else "test" if self.test else ""

    @property
    def is_tested_once(self) -> bool:
        """True if the test data is evaluated when training has ended, and not before."""
        return self.evaluates == "validation" and bool(self.test)


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[train]: length of the training, and size of a step."""

    epochs: Annotated[
        int, Meta(ge=0, description="Passes over the training data. 0: the default of the task.")
    ] = 0
    batch_size: Annotated[
        int, Meta(ge=0, description="Samples per step and worker. 0: the default of the task.")
    ] = 0
    eval_every: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["auto"],
        Meta(
            description="Epochs between evaluations on the validation data, or on the test data of a job "
            "without. 0: only at the end, or after each epoch if `patience` or checkpoint.keep_best is set. "
            "auto: as 0, but after each epoch too if that costs little: the data has at most a tenth of the "
            "training samples, and its metrics need one prediction of each sample."
        ),
    ] = "auto"
    patience: Annotated[
        int,
        Meta(
            ge=0,
            description="Evaluations without improvement of `metric` after which training ends early. "
            "0: never.",
        ),
    ] = 0
    metrics: Annotated[
        tuple[str, ...],
        Meta(
            description="More metrics of each evaluation. Two classes: f1 and pr_auc of the second one, "
            "calibration (sum of its probabilities / its samples); numbers: mae; and metrics that the task "
            "computes itself."
        ),
    ] = ()
    metric: Annotated[
        str,
        Meta(
            description="Metric of the validation data, or of the test data of a job without, that "
            "`patience` and checkpoint.keep_best watch: accuracy, "
            "auc, log_loss, cross_entropy, rmse, r2, f1, pr_auc, mae, or one that the task computes itself. "
            "auto: log_loss, cross_entropy or rmse, whichever the task has, else the first metric of its own."
        ),
    ] = "auto"
    on_epoch_end: Annotated[
        str,
        Meta(
            description="Function to call after each epoch on the first worker, as module:function: its "
            "argument is a dict with epoch, loss and, after an evaluation, metrics of the validation data, "
            "or of the test data of a job without. If it returns True, training ends. Empty: none."
        ),
    ] = ""
    min_delta: Annotated[
        float, Meta(ge=0, description="An improvement is a change of `metric` by more than this.")
    ] = 0.0


class ScheduleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[schedule]: learning rates that change during a run, as a factor on the rate of every table."""

    name: Annotated[
        Literal["constant", "linear", "cosine", "step", "one_cycle"],
        Meta(
            description="constant: 1 after the warm-up. linear, cosine: from 1 to `end`. step: `factor` once "
            "more every `every` epochs. one_cycle: linear up over `warmup` (0.3 if that is 0), linear down "
            "to `end`."
        ),
    ] = "constant"
    warmup: Annotated[
        float,
        Meta(
            ge=0, lt=1, description="Share of the run over which rates rise linearly from about 0."
        ),
    ] = 0.0
    end: Annotated[
        float,
        Meta(ge=0, le=1, description="Factor at the end of the run: linear, cosine, one_cycle."),
    ] = 0.0
    every: Annotated[int, Meta(ge=1, description="step: epochs between two changes.")] = 10
    factor: Annotated[float, Meta(gt=0, le=1, description="step: factor of each change.")] = 0.1

    @property
    def changes(self) -> bool:
        """True if rates change at all."""
        return self.name != "constant" or self.warmup > 0

    def __post_init__(self) -> None:
        """Set the warm-up of one_cycle."""
        if self.name == "one_cycle" and not self.warmup:
            msgspec.structs.force_setattr(self, "warmup", 0.3)
