"""`mpips.fit`: train a task from Python, and use the model. It imports what it needs when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpips.inference.fitted import Fit


def fit(
    task: str,
    train: Any,
    test: Any = None,
    *,
    ranks: int = 1,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    patience: int | None = None,
    keep_best: bool = False,
    folder: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: bool = False,
    on_epoch_end: Callable[[dict[str, float]], object] | None = None,
    **options: Any,
) -> Fit:
    """Train a task and return the model with its metrics. Not collective; blocks until training has ended.

    Args:
        task: A task (softmax, mlp, logistic, fm, wide_deep, deepfm, dcnv2, kge, mf, module:Class), or a
            job file (.toml).
        train: Training data: a path, a pattern of files or a list of both; a pair (x, y) of an array or
            a sparse matrix of SciPy, shape (n, d), and n labels, numbers or texts; or a frame of pandas with
            a column of labels (label, y, target, class, or settings={"data.label": ...}).
        test: Data to evaluate on, in any of these forms; None: none.
        ranks: 1: train in this process, without MPI. 3 or more: start a scheduler, servers and workers with
            `mpips run` on this machine, or on the hosts of the Slurm allocation.
        epochs: Passes over the training data; None: the default of the task.
        lr: Learning rate; None: the default of the task.
        batch_size: Samples per step and worker; None: the default of the task.
        patience: Evaluations without improvement after which training ends; None or 0: never.
        keep_best: Keep the checkpoint of the epoch with the best metric, for `Fit.best_model`; the metric is
            settings={"train.metric": ...}.
        folder: Folder for checkpoints. None: a temporary folder, which is removed with the result. With
            several ranks: folder for the run directory; None: runs.
        settings: Other options of the job by their dotted names, as for `--set`:
            {"table.consistency": "asp"}.
        progress: Print a progress line.
        on_epoch_end: Called once after each epoch with its row of `Fit.history`: epoch, loss, and metrics of
            the test data if it was evaluated (settings={"train.eval_every": 1}). If it returns True,
            training ends after this epoch. An exception in it ends the training and is raised. With ranks = 1
            only.
        options: Options of the task, such as hidden=[64].

    Returns:
        The result; `fit(...).model.predict(x)` predicts.

    Raises:
        ConfigError: An option is wrong; or this process is a rank of a job.
        DataError: The data is wrong.
        MpipsError: The job of several ranks has failed; the message has its reason, and how to continue it.
    """
    from mpips.inference.fitted import fit_job

    given = {
        "train.epochs": epochs,
        "table.optimizer.lr": lr,
        "train.batch_size": batch_size,
        "train.patience": patience,
        "checkpoint.keep_best": keep_best or None,
    }
    pairs = {name: value for name, value in given.items() if value is not None}
    pairs |= {f"options.{name}": value for name, value in options.items()}
    where = Path(folder) if folder is not None else None
    return fit_job(
        task, train, test, ranks, {**pairs, **(settings or {})}, where, progress, on_epoch_end
    )
