"""A model from a checkpoint of `mpips train`: its task, the scale of its features, its tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.checkpoint import Checkpoint, Manifest, find_newest, open_checkpoint
from mpips.checkpoint.find import choose_checkpoint, is_checkpoint
from mpips.checkpoint.folder import find_folder, parse_name
from mpips.checkpoint.structure import ATTACHED
from mpips.config.schema import JobConfig, config_of
from mpips.data import Batch, DataInfo, Dataset, Moments
from mpips.data.file_blocks import blocks, labelled_blocks
from mpips.data.hdf5 import load_hdf5
from mpips.data.options import Share
from mpips.data.rows import Arrays, Purpose, Samples
from mpips.data.several import asked_files, given_files
from mpips.errors import CapabilityError, CheckpointError, ConfigError, DataError
from mpips.inference.evaluating import batches_in, evaluated
from mpips.inference.samples import samples_of
from mpips.inference.stored_tables import StoredTables
from mpips.tasks import Task, load_task
from mpips.tasks.base import reader_of
from mpips.training.evaluation import batches_of
from mpips.training.example import check_example
from mpips.training.own_data import read_own
from mpips.training.preflight import task_options
from mpips.training.prepare import read_options
from mpips.training.stopping import asked_metrics

if TYPE_CHECKING:
    from mpips.inference.estimators import LoadedClassifier, LoadedRegressor
    from mpips.inference.network import Network

Numbers: TypeAlias = npt.NDArray[Any]


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
        refused: Why newer checkpoints of the folder are not used, a sentence for each.
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
    ) -> None:
        """Make the task of a job again.

        Args:
            checkpoint: An open checkpoint, which the model owns from now on.
            config: Configuration of the job.
            info: Description of the training data.
            moments: Moments of the training data.
            refused: See the class.
            arrays: Arrays of a task that reads its files itself; None: none.

        Raises:
            ConfigError: The task cannot be imported, or has other tables than the checkpoint.
        """
        kind = load_task(config.task)
        self.path = checkpoint.path
        self.manifest: Manifest = checkpoint.manifest
        self.info = info
        self.moments = moments
        self.arrays: Arrays = arrays or {}
        self.notes: tuple[str, ...] = ()
        self.refused = refused
        self.owns: object = None
        seed = config.cluster.seed
        self._given = task_options(kind, config.options)
        self.task: Task = kind(info, self._given, seed)
        self.tables = StoredTables(checkpoint, self.task.tables(), seed)
        self._own = reader_of(kind)
        if self._own is not None:
            self.task.receive(self.arrays)
        self.task.prepare(self.tables, moments)
        self._options = read_options(config, "test", info.wants)
        self._metrics = config.train.metrics

    def __repr__(self) -> str:
        """Return the task, the step and the tables."""
        shapes = ", ".join(f"{t.name} {t.shape}" for t in self.manifest.tables)
        return f"<mpips model: {self.manifest.config['task']}, step {self.manifest.step}; {shapes}>"

    @property
    def classes(self) -> Numbers:
        """The labels of the classes as in the training data, ascending, shape (k,); () for targets.

        Texts are str, whole numbers int64, other numbers float64.
        """
        if self.info.label_names:
            return np.array(self.info.label_names)
        labels = np.array(self.info.labels)
        whole = labels.astype(np.int64)
        return whole if np.array_equal(whole, labels) else labels

    def predict(self, data: Any) -> Numbers:
        """Return the most probable label of each sample, or the predicted number if the task has targets.

        A file is read block by block, unless the task reads it itself.

        Args:
            data: Files as of `evaluate`, or an array of shape (n, d), a sparse matrix or a frame; see
                `mpips.inference.samples.samples_of`. Labels in a file are not read.

        Returns:
            Labels as in the training data, shape (n,); float32 numbers of a task that has no classes.

        Raises:
            DataError: The data does not fit the training data.
        """
        parts = self._parts(data)
        if self.info.wants == "classes":
            parts = (self.labels_of(self.all_classes(scores)) for scores in parts)
        return np.concatenate([*parts])

    def labels_of(self, probabilities: Numbers) -> Numbers:
        """Return the label of the most probable class; of two equally probable ones the second.

        Args:
            probabilities: Shape (n, k), as `predict_proba` returned them.
        """
        if probabilities.shape[1] == 2:
            places = (probabilities[:, 1] >= np.float32(0.5)).astype(np.int64)
        else:
            places = np.argmax(probabilities, axis=1)
        labels: Numbers = self.classes[places]
        return labels

    def predict_proba(self, data: Any) -> Numbers:
        """Return the probability of each class, float32, shape (n, k), in the order of `classes`.

        Args:
            data: As of `predict`.

        Raises:
            ConfigError: The task predicts numbers, not classes.
        """
        if self.info.wants != "classes":
            raise ConfigError(
                f"task '{self.manifest.config['task']}' predicts numbers, which have no probabilities; use "
                "predict"
            )
        return self.all_classes(np.concatenate([*self._parts(data)]))

    def to_torch(self) -> Network:
        """Return the model as a module of PyTorch that takes raw features and returns logits.

        Raises:
            ConfigError: The task is not softmax or mlp.
            ImportError: PyTorch is missing.
        """
        from mpips.inference.network import network_of

        return network_of(self)

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
            batches = batches_of(self._read_own(files, "test"))
        else:
            self.notes = ()
            found = labelled_blocks(files, self._options, self.info, say=self._note)
            batches = batches_in(found, files)
        return evaluated(self.tables, self.task, batches, more)

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
        samples = self._read_own(os.fspath(data), "predict")
        found = [self.task.columns(self.tables, batch) for batch in batches_of(samples)]
        parts = [part for part in found if part is not None]
        if not parts:
            return None
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

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
            return self._predicted(batches_of(self._read_own(files, "predict")))
        if files is not None:
            self.notes = ()
            found = blocks(files, self._options, self.info, say=self._note)
            return self._predicted(batches_in(found, files))
        samples, self.notes = samples_of(data, self.info, self._options)
        return self._predicted(batches_of(samples))

    def _note(self, note: str) -> None:
        self.notes += (note,)

    def scores(self, samples: Samples) -> Numbers:
        """Return what the task predicts of samples in the form of the training data.

        Returns:
            Probabilities, float32, of class 1, shape (n,), or of all classes, shape (n, k); or numbers, (n,).
        """
        return np.concatenate([*self._predicted(batches_of(samples))])

    def _predicted(self, batches: Iterator[Batch]) -> Iterator[Numbers]:
        """Yield what the task predicts of each batch."""
        try:
            for batch in batches:
                yield self.task.predict(self.tables, batch)
        except NotImplementedError:
            name = self.manifest.config["task"]
            raise ConfigError(
                f"task '{name}' predicts columns: use `mpips predict` or columns(path)"
            ) from None

    def _read_own(self, path: str, purpose: Purpose) -> Samples:
        """Read a file with the task; sets `notes`."""
        assert self._own is not None
        part = read_own(self._own, self._given, path, Share(1, 0), self.arrays, purpose)
        self.notes = part.notes
        return part.data

    @property
    def reads_itself(self) -> bool:
        """True if the task reads its files itself, so that `columns` predicts a file."""
        return self._own is not None

    def blocks_of(
        self, path: str, part: int, parts: int, say: Callable[[str], None]
    ) -> Iterator[Dataset]:
        """Yield the samples of a file block by block; see `mpips.data.file_blocks.blocks`."""
        return blocks(path, self._options, self.info, part=part, parts=parts, say=say)

    @staticmethod
    def all_classes(scores: Numbers) -> Numbers:
        """Return the probabilities of both classes, shape (n, 2), if `scores` are those of class 1."""
        return np.stack([1 - scores, scores], axis=1) if scores.ndim == 1 else scores


def load_model(
    path: str | os.PathLike[str],
    check: bool = True,
    best: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Model:
    """Load a model; see `mpips.inference.loading.load`."""
    checkpoint, refused = _open(Path(path), best)
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
        attached = _attached(checkpoint, info)
        moments = Moments.from_arrays(attached)
        own = {name: attached[name] for name in info.arrays}
        model = Model(checkpoint, config, info, moments, refused, own)
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


def _open(path: Path, best: bool) -> tuple[Checkpoint, tuple[str, ...]]:
    """Open a checkpoint whose data is undamaged: this one, or the newest or best of a folder.

    Returns:
        The checkpoint, and why newer ones of the folder are not used.

    Raises:
        ConfigError: There is none.
        CheckpointError: It is damaged; or all in the folder are, then the error is that of the newest.
    """
    if best or is_checkpoint(path) or parse_name(path) is not None:
        checkpoint = open_checkpoint(choose_checkpoint(path, best))
        try:
            checkpoint.verify()
        except BaseException:
            checkpoint.close()
            raise
        return checkpoint, ()
    found = find_newest(find_folder(path))
    reasons = tuple(refusal.reason for refusal in found.refused)
    if found.checkpoint is None:
        raise CheckpointError(reasons[0] if reasons else f"{path}: contains no checkpoint")
    return found.checkpoint, reasons


def _attached(checkpoint: Checkpoint, info: DataInfo) -> dict[str, Numbers]:
    """Read the arrays beside the tables, by their path in the file.

    Raises:
        ConfigError: An earlier version wrote the checkpoint, without them.
    """
    h5py = load_hdf5("reading the scale of the features")
    with checkpoint.opened() as opened, h5py.File(opened, "r") as file:
        arrays = {name: np.array(file[name]) for name in ATTACHED if name in file}
        arrays |= {name: np.array(file[name]) for name in info.arrays}
    if "features/count" not in arrays:
        version = checkpoint.manifest.versions.get("mpips", "an earlier version")
        raise ConfigError(
            f"{checkpoint.path}: was written by mpips {version} without the scale of the features; continue "
            "the training from it with this version, and use the checkpoint that this writes"
        )
    return arrays
