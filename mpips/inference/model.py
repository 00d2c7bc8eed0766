"""A model from a checkpoint of `mpips train`: its task, the scale of its features, its tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mpips.checkpoint import Checkpoint, Manifest
from mpips.config.schema import JobConfig, config_of
from mpips.data import Batch, DataInfo, Dataset, Moments
from mpips.data.columns import notation_of, sources_of
from mpips.data.file_blocks import blocks, labelled_blocks
from mpips.data.info import MOST_LABEL
from mpips.data.known_words import PATH, KnownWords, WordCounts, counted, counts_of
from mpips.data.label_columns import LabelColumns
from mpips.data.label_sets import LabelSets
from mpips.data.metrics import HIGHER_IS_BETTER, LOWER_IS_BETTER
from mpips.data.options import ReadOptions, Share
from mpips.data.rows import Arrays, Samples
from mpips.data.several import asked_files, given_files
from mpips.errors import CapabilityError, ConfigError, DataError
from mpips.inference.content import Numbers
from mpips.inference.evaluating import batches_in, evaluated
from mpips.inference.importance import MOST_SAMPLES, Importance, columns_of, measure, sample
from mpips.inference.opening import attached_of, open_undamaged
from mpips.inference.samples import samples_of
from mpips.inference.stored_tables import ON_MISSING, OnMissing, StoredTables
from mpips.model.accepted import unknown_name
from mpips.monitor.best_epoch import is_higher, watched_name
from mpips.tasks import Task, load_task
from mpips.tasks.base import reader_of
from mpips.training.evaluation import batches_of
from mpips.training.example import check_example
from mpips.training.own_data import parts_own, read_own
from mpips.training.preflight import task_options
from mpips.training.reading import read_options
from mpips.training.stopping import asked_metrics

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import nn

    from mpips.inference.estimators import LoadedClassifier, LoadedRegressor


class Model:
    """A trained model; not thread-safe. `mpips.load` makes it.

    Attributes:
        path: The checkpoint.
        manifest: Description of the checkpoint: step, configuration, versions.
        task: The task, prepared for prediction.
        info: Description of the training data.
        moments: Moments of the training data, from which the task has computed the scale of the features.
        arrays: Arrays of a task that reads its files itself, such as its vocabularies (`mpips.data.rows`).
        tables: Values by name of the table, read when first used: an array, or (keys, rows).
        refused: Reasons why newer checkpoints of the folder are not used, a sentence for each.
        notes: Sentences on the data that was used last, such as columns that were left out.
        owns: Kept as long as the model, such as a temporary folder with its checkpoint.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: JobConfig,
        info: DataInfo,
        moments: Moments,
        refused: tuple[str, ...] = (),
        arrays: Arrays | None = None,
        known: KnownWords | None = None,
        on_missing: OnMissing = "initial",
    ) -> None:
        """Make the task of a job again.

        Args:
            checkpoint: An open checkpoint, which the model owns from now on.
            config: Configuration of the job.
            info: Description of the training data.
            moments: Moments of the training data.
            refused: See the class.
            arrays: Arrays of a task that reads its files itself; None: none.
            known: The words of the training data; None: the checkpoint has no record of them.
            on_missing: Value of keys without a row; see `mpips.load`.

        Raises:
            ConfigError: The task cannot be imported, or has other tables than the checkpoint.
        """
        kind = load_task(config.task)
        self.path = checkpoint.path
        self.manifest: Manifest = checkpoint.manifest
        self.info = info
        self.moments = moments
        self._known = known
        self.arrays: Arrays = arrays or {}
        self.notes: tuple[str, ...] = ()
        self.refused = refused
        self.owns: object = None
        seed = config.cluster.seed
        self._given = task_options(kind, config.options)
        self.task: Task = kind(info, self._given, seed)
        self.tables = StoredTables(checkpoint, self.task.tables(), seed, on_missing)
        self._own = reader_of(kind)
        if self._own is not None:
            self.task.receive(self.arrays)
        self.task.prepare(self.tables, moments)
        self._options = read_options(config, "test", info.wants)
        # Labels that are columns are read like features; those of LIBSVM text are not.
        columns = info.wants == "several" and LabelSets.of(info) is None
        self._several = LabelColumns(info.label_names) if columns else None
        self._metrics = config.train.metrics

    def __repr__(self) -> str:
        """Return the task, the step and the tables."""
        shapes = ", ".join(f"{t.name} {t.shape}" for t in self.manifest.tables)
        return f"<mpips model: {self.manifest.config['task']}, step {self.manifest.step}; {shapes}>"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that a sample to be predicted has; (): the training data had none.

        Several features can come from one column, as the parts of a date do.
        """
        return sources_of(self.info.columns, self._options)

    @property
    def read_options(self) -> ReadOptions:
        """Options with which files without labels are read."""
        return self._unlabelled()

    @property
    def decimal_commas(self) -> frozenset[str]:
        """Names of the columns whose numbers have a decimal comma in text (data.convert)."""
        options = self._options
        return frozenset(n for n in self.inputs if notation_of(n, options) == "decimal_comma")

    @property
    def classes(self) -> Numbers:
        """The labels of the classes as in the training data, ascending, shape (k,); () for targets.

        If samples have several labels, the names of these. Texts are str, whole numbers int64, other numbers
        float64.
        """
        if self.info.label_names:
            return np.array(self.info.label_names)
        labels = np.array(self.info.labels)
        if len(labels) and (np.abs(labels) > MOST_LABEL).any():
            return labels
        whole = labels.astype(np.int64)
        return whole if np.array_equal(whole, labels) else labels

    def predict(self, data: Any) -> Numbers:
        """Return the most probable label of each sample, or the predicted number if the task has targets.

        If samples have several labels, return 1 for each label whose probability is 0.5 or more, else 0.

        A file is read block by block, unless the task reads it itself.

        Args:
            data: Files as of `evaluate`, or an array of shape (n, d), a sparse matrix or a frame; see
                `mpips.inference.samples.samples_of`. Labels in a file are not read.

        Returns:
            Labels as in the training data, shape (n,); several labels, int64, shape (n, k); float32 numbers
            of a task that has no classes.

        Raises:
            DataError: The data does not fit the training data.
        """
        parts = self._parts(data)
        if self.info.wants in ("classes", "several"):
            parts = (self.labels_of(self.all_classes(scores)) for scores in parts)
        return np.concatenate([*parts])

    def labels_of(self, probabilities: Numbers) -> Numbers:
        """Return the label of the most probable class; of two equally probable ones the second.

        Args:
            probabilities: Shape (n, k), as `predict_proba` returned them.

        Returns:
            Shape (n,); several labels, int64, shape (n, k).
        """
        if self.info.wants == "several":
            return (probabilities >= np.float32(0.5)).astype(np.int64)
        if probabilities.shape[1] == 2:
            places = (probabilities[:, 1] >= np.float32(0.5)).astype(np.int64)
        else:
            places = np.argmax(probabilities, axis=1)
        labels: Numbers = self.classes[places]
        return labels

    def predict_proba(self, data: Any) -> Numbers:
        """Return the probability of each class or label, float32, shape (n, k), in the order of `classes`.

        Args:
            data: As of `predict`.

        Raises:
            ConfigError: The task predicts numbers, not classes.
        """
        if self.info.wants not in ("classes", "several"):
            raise ConfigError(
                f"task '{self.manifest.config['task']}' predicts numbers, which have no probabilities; use "
                "predict"
            )
        return self.all_classes(np.concatenate([*self._parts(data)]))

    def to_torch(self) -> nn.Module:
        """Return the model as a module of PyTorch that takes raw numbers, and returns logits or numbers.

        `logistic`, `softmax` and `mlp` with a dense table of weights are a `mpips.inference.network.Network`,
        which takes raw features, shape (n, d), unless numbers become logarithms or empty cells mean 0. Others
        are the module that `mpips export --format torch` writes, which takes the inputs that `onnx_inputs`
        makes, as tensors.

        Raises:
            ConfigError: The model's task has no such module.
            ImportError: PyTorch is missing.
        """
        from mpips.inference.dense import is_dense
        from mpips.inference.graph_description import empty_is_zero, logarithms

        if is_dense(self) and not any(logarithms(self)) and not empty_is_zero(self):
            from mpips.inference.network import network_of

            return network_of(self)
        from mpips.inference.torch_writing import module_of

        return module_of(self)

    def to_onnx(self) -> ModelProto:
        """Return the model as a graph of ONNX, which scales raw numbers itself.

        Its metadata has, under "mpips", the description of its inputs, of which `onnx_inputs` makes them.

        Raises:
            ConfigError: The model's task has no graph, or the model has more than 2 GB; `mpips export`
                writes such a one.
            CapabilityError: onnx is missing.
        """
        from mpips.inference.onnx_writing import proto_of

        return proto_of(self)

    def onnx_inputs(self, rows: Any) -> dict[str, Numbers]:
        """Return the inputs of the graph of `to_onnx`, or of `to_torch` as arrays, for samples.

        See `mpips.inference.onnx_inputs`.

        Args:
            rows: Mappings from names of columns to cells, as `csv.DictReader` yields, or a frame of pandas;
                an array, shape (n, d); or mappings from numbers of features to values, or a sparse matrix.

        Raises:
            ConfigError: The model's task has no graph.
            DataError: A sample is not what the model takes.
        """
        from mpips.inference.graph_description import description_of
        from mpips.inference.onnx_inputs import onnx_inputs

        return onnx_inputs(description_of(self, "onnx"), rows)

    def to_sklearn(self) -> LoadedClassifier | LoadedRegressor:
        """Return the model as a fitted estimator of scikit-learn, for pipelines and tools that predict.

        Its `fit` changes nothing.

        Raises:
            CapabilityError: scikit-learn is missing.
        """
        try:
            from mpips.inference.estimators import estimator_of
        except ImportError as error:
            raise CapabilityError(
                f"to_sklearn needs scikit-learn (pip install scikit-learn): {error}"
            ) from None
        return estimator_of(self)

    def evaluate(
        self, path: str | os.PathLike[str] | Sequence[str], metrics: Sequence[str] = ()
    ) -> dict[str, float]:
        """Return the metrics of a file with labels, as `mpips train` computes them of its test file.

        Read block by block, unless the task reads files itself. Areas under curves need 16 bytes a sample.

        Args:
            path: The file, a pattern of files, or a list of both; columns and labels are as in training.
            metrics: Names of metrics to add: "f1", "pr_auc" and "calibration" of two classes, "mae" of
                numbers. Those that the job asked for (train.metrics) are there in any case.

        Raises:
            ConfigError: The scores of the task have no such metric.
            DataError: The file cannot be read, or does not fit the training data.
        """
        known = getattr(self.task, "own_metrics", {})
        files = asked_files(path)
        more = asked_metrics((*self._metrics, *metrics), self.task.metrics, known)
        if self._own is not None:
            batches = batches_of(self._read_own(files))
        else:
            self.notes = ()
            found = counted(self._labelled(files), self.word_counts(), self._note, files)
            batches = batches_in(found, files)
        return evaluated(self.tables, self.task, batches, more)

    def importance(
        self,
        path: str | os.PathLike[str] | Sequence[str],
        metric: str = "auto",
        *,
        repeats: int = 5,
        seed: int = 0,
        samples: int = MOST_SAMPLES,
    ) -> Importance:
        """Return how much worse a metric becomes when the values of a column are shuffled, for each column.

        Equal arguments give equal results. Blocks for columns * repeats + 1 evaluations of the samples.

        Args:
            path: Files as of `evaluate`.
            metric: A metric that has better values; "auto": log_loss, cross_entropy or rmse.
            repeats: Permutations of each column, 1 or more.
            seed: Seed of the permutations, and of the choice of samples.
            samples: Greatest number of samples that are used, 2 or more; of more a random part.

        Raises:
            ConfigError: The task reads its files itself, or has no such metric with better values; or there
                are more than 10,000 features without names; or a number is too small.
            DataError: The file cannot be read, or does not fit the training data.
        """
        if self._own is not None:
            name = self.manifest.config["task"]
            raise ConfigError(
                f"importance: task '{name}' reads its files itself, and has no columns"
            )
        if repeats < 1 or samples < 2 or seed < 0:
            raise ConfigError(
                f"importance: repeats = {repeats}, samples = {samples}, seed = {seed}: must be 1, 2 and 0 or "
                "more"
            )
        known = getattr(self.task, "own_metrics", {})
        wanted = (metric,) if metric != "auto" else ()
        more = asked_metrics((*self._metrics, *wanted), self.task.metrics, known)
        files = asked_files(path)
        self.notes = ()
        blocks_there = counted(self._labelled(files), self.word_counts(), self._note, files)
        data, n_total = sample(blocks_there, samples, seed)
        if data.n < n_total:
            self._note(f"{files}: a random {data.n:,} of {n_total:,} samples are used")

        def metrics(some: Dataset) -> dict[str, float]:
            return evaluated(self.tables, self.task, batches_of(some), more)

        name = watched_name({0: metrics(data)}, metric, known)
        directed = name in HIGHER_IS_BETTER | LOWER_IS_BETTER or known.get(name, "none") != "none"
        if not directed:
            raise ConfigError(
                f"importance: metric {metric!r} has no better values, or the data has none of this name"
            )
        columns = columns_of(data, self.info, self._options, max(self.info.index_base, 0))
        value, found = measure(
            data, columns, lambda some: metrics(some)[name], is_higher(name, known), repeats, seed
        )
        return Importance(name, value, data.n, n_total, repeats, seed, found)

    def columns(self, data: str | os.PathLike[str]) -> dict[str, Numbers] | None:
        """Return the columns that a task which reads its files itself writes for a file.

        Args:
            data: The file.

        Returns:
            Arrays of equal length by name; None for other tasks, and for those without columns of their own.

        Raises:
            DataError: The file cannot be read.
        """
        if self._own is None:
            return None
        batches = self._own_batches(os.fspath(data))
        found = [self.task.columns(self.tables, batch) for batch in batches]
        parts = [part for part in found if part is not None]
        if not parts:
            return None
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def column_blocks(self, path: str) -> Iterator[dict[str, Numbers]]:
        """Yield the columns of a file that the task reads itself, block by block; see `columns`.

        For a task without columns of its own, yield the column "prediction".
        """
        for batch in self._own_batches(path):
            found = self.task.columns(self.tables, batch)
            yield found if found is not None else {"prediction": self._scores_of(batch)}

    def _parts(self, data: Any) -> Iterator[Numbers]:
        """Yield what the task predicts of some samples each: probabilities, (n,) or (n, k), or numbers.

        Sets `notes`.
        """
        files = given_files(data)
        if self._own is not None:
            name = self.manifest.config["task"]
            if files is None:
                raise DataError(
                    f"data of type {type(data).__name__}: task '{name}' reads its files itself; give a path"
                )
            if type(self.task).predict is Task.predict:
                how = "use `mpips predict` or columns(path)"
                raise ConfigError(f"task '{name}' predicts columns: {how}")
            return map(self._scores_of, self._own_batches(files))
        if files is not None:
            self.notes = ()
            read = blocks(files, self._unlabelled(), self.info, say=self._note)
            found = counted(read, self.word_counts(), self._note, files)
            return map(self._scores_of, batches_in(found, files))
        samples, self.notes = samples_of(data, self.info, self._unlabelled())
        counts = self.word_counts()
        if counts is not None:
            counts.add(samples)
            self.notes += counts.notes("the data")
        return map(self._scores_of, batches_of(samples))

    def _labelled(self, path: str | os.PathLike[str]) -> Iterator[Dataset]:
        """Yield the samples of a file with their labels, block by block."""
        several = self._several
        if several is None:
            yield from labelled_blocks(path, self._options, self.info, say=self._note)
            return
        read_as = several.read_as(self.info)
        for block in blocks(path, self._options, read_as, say=self._note):
            yield several.taken_out(block, read_as.columns)

    def _unlabelled(self) -> ReadOptions:
        """Return the options for files whose labels are not read."""
        if self._several is None:
            return self._options
        ignore = (*self._options.ignore, *map(escape, self._several.names))
        return msgspec.structs.replace(self._options, ignore=ignore)

    def _note(self, note: str) -> None:
        self.notes += (note,)

    def scores(self, samples: Samples) -> Numbers:
        """Return what the task predicts of samples in the form of the training data.

        Returns:
            Probabilities, float32, of class 1, shape (n,), or of all classes, shape (n, k); or numbers, (n,).
        """
        return np.concatenate([*map(self._scores_of, batches_of(samples))])

    def _scores_of(self, batch: Batch) -> Numbers:
        """Return what the task predicts of a batch."""
        try:
            return self.task.predict(self.tables, batch)
        except NotImplementedError:
            name = self.manifest.config["task"]
            raise ConfigError(
                f"task '{name}' predicts columns: use `mpips predict` or columns(path)"
            ) from None

    def _read_own(self, path: str) -> Samples:
        """Read a file to evaluate with the task; sets `notes`."""
        assert self._own is not None
        part = read_own(self._own, self._given, path, Share(1, 0), self.arrays, "test")
        self.notes = part.notes
        return part.data

    def _own_batches(self, path: str) -> Iterator[Any]:
        """Yield the batches of a file to predict that the task reads; sets `notes`."""
        assert self._own is not None
        self.notes = ()
        for part in parts_own(self._own, self._given, path, self.arrays, self._note):
            yield from batches_of(part)

    @property
    def reads_itself(self) -> bool:
        """True if the task reads its files itself, so that `columns` predicts a file."""
        return self._own is not None

    def blocks_of(
        self, path: str, part: int, parts: int, say: Callable[[str], None]
    ) -> Iterator[Dataset]:
        """Yield the samples of a file block by block; see `mpips.data.file_blocks.blocks`."""
        return blocks(path, self._unlabelled(), self.info, part=part, parts=parts, say=say)

    def word_counts(self) -> WordCounts | None:
        """Return counts of the words of data to be predicted; None: the model has no record of words."""
        return counts_of(self._known, self.info)

    @staticmethod
    def all_classes(scores: Numbers) -> Numbers:
        """Return the probabilities of both classes, shape (n, 2), if `scores` are those of class 1, (n,)."""
        return np.stack([1 - scores, scores], axis=1) if scores.ndim == 1 else scores


def load_model(
    path: str | os.PathLike[str],
    check: bool = True,
    best: bool = False,
    options: Mapping[str, Any] | None = None,
    on_missing: OnMissing = "initial",
) -> Model:
    """Load a model; see `mpips.inference.loading.load`."""
    if on_missing not in ON_MISSING:
        raise unknown_name("on_missing", on_missing, ON_MISSING)
    checkpoint, refused = open_undamaged(Path(path), best)
    try:
        manifest = checkpoint.manifest
        if not manifest.config.get("task") or not manifest.data:
            raise ConfigError(
                f"{checkpoint.path}: was written by a script or an early version, and names no task to "
                "predict with; read its tables with mpips.checkpoint.open_checkpoint, or a PyTorch model "
                "with mpips.torch.load_checkpoint"
            )
        info = DataInfo.from_config(manifest.data)
        config = _with_options(config_of(manifest.config), options or {})
        attached = attached_of(checkpoint, info)
        moments = Moments.from_arrays(attached)
        own = {name: attached[name] for name in info.arrays}
        known = KnownWords(attached[PATH]) if PATH in attached else None
        model = Model(checkpoint, config, info, moments, refused, own, known, on_missing)
        if check:
            check_example(checkpoint, model.task, info, config.cluster.seed, attached)
        return model
    except BaseException:
        checkpoint.close()
        raise


def _with_options(config: JobConfig, options: Mapping[str, Any]) -> JobConfig:
    """Return the configuration of a job with other options of prediction.

    Raises:
        ConfigError: The task lets no such option be changed.
    """
    known = getattr(load_task(config.task), "prediction_options", ()) if options else ()
    for name in options:
        if name not in known:
            accepted = ", ".join(f"options.{own}" for own in known) or "none of its options"
            raise ConfigError(
                f"options.{name}: is fixed by the training; task '{config.task}' lets {accepted} be changed"
            )
    return msgspec.structs.replace(config, options={**config.options, **options})
