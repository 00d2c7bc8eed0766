"""The built-in tasks by name, and tasks of users by `module:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, get_args

import msgspec

from mpips.data.metrics import (
    BINARY_METRICS,
    CLASS_METRICS,
    LABEL_METRICS,
    MORE_BINARY,
    MORE_REGRESSION,
    REGRESSION_METRICS,
)
from mpips.data.options import Wants
from mpips.data.quotients import Direction
from mpips.errors import ConfigError
from mpips.model.accepted import unknown_name
from mpips.tasks.base import Task
from mpips.tasks.dcnv2 import DcnV2
from mpips.tasks.deepfm import DeepFm
from mpips.tasks.fm import FactorizationMachine
from mpips.tasks.kge import Kge
from mpips.tasks.logistic import Logistic
from mpips.tasks.mf import MatrixFactorization
from mpips.tasks.mlp import Mlp
from mpips.tasks.softmax import Softmax
from mpips.tasks.wide_deep import WideDeep
from mpips.tasks.word2vec import Word2Vec

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Softmax,
        Mlp,
        Logistic,
        FactorizationMachine,
        WideDeep,
        DeepFm,
        DcnV2,
        Kge,
        MatrixFactorization,
        Word2Vec,
    )
}

METHODS = ("tables", "step", "predict", "prepare", "prefetch")
# Keys of a result, and names of metrics that are computed from scores.
_RESERVED = frozenset(
    (
        *(
            "epoch",
            "epochs",
            "history",
            "stopped",
            "best",
            "steps",
            "samples",
            "seconds",
            "samples_per_s",
            "model",
        ),
        *("n_samples", "n_features", "loss", "checkpoint", "staleness", "transports", "auto"),
        *(BINARY_METRICS + CLASS_METRICS + REGRESSION_METRICS + LABEL_METRICS),
        *(MORE_BINARY + MORE_REGRESSION),
    )
)
ATTRIBUTES = ("name", "Options", "default_epochs", "default_batch_size", "metrics")


def load_task(name: str) -> type[Task]:
    """Return the class of a built-in task, or of `module:Class` of a user.

    The module is imported from PYTHONPATH or from the working folder.

    Raises:
        ConfigError: There is no such task, module or class, or the class misses a method or an attribute.
    """
    if name in TASKS:
        return TASKS[name]
    module_name, colon, class_name = name.partition(":")
    if not colon or not module_name or not class_name:
        raise ConfigError(
            f"{unknown_name('task', name, TASKS)}; or write module:Class for your own"
        )
    found = getattr(_import(f"task '{name}'", module_name), class_name, None)
    if not isinstance(found, type):
        raise ConfigError(f"task '{name}': module {module_name} has no class {class_name}")
    _check(name, found)
    return found


def load_named(what: str, name: str) -> Any:
    """Return what a module of the user calls by a name.

    The module is imported from PYTHONPATH or from the working folder.

    Args:
        what: The option, for errors.
        name: `module:name`.

    Raises:
        ConfigError: There is no such module or name.
    """
    module_name, colon, own = name.partition(":")
    if not colon or not module_name or not own:
        raise ConfigError(f"{what}: must be module:function")
    module = _import(what, module_name)
    if not hasattr(module, own):
        raise ConfigError(f"{what}: module {module_name} has no {own}")
    return getattr(module, own)


def _import(what: str, module_name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Distinguish a missing module of the user from a module that it imports.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{what}: {module_name} imports {error.name}: {error}") from error
        raise ConfigError(f"{what}: no module {module_name} in {here} or on PYTHONPATH") from error
    except Exception as error:
        kind = type(error).__name__
        raise ConfigError(f"{what}: importing {module_name}: {kind}: {error}") from error


def _check(name: str, found: type) -> None:
    for method in METHODS:
        own = getattr(found, method, None)
        needed = ("tables", "step") if _has_columns(found) else ("tables", "step", "predict")
        inherited = own is getattr(Task, method) and method in needed
        if not callable(own) or inherited:
            raise ConfigError(f"task '{name}': class {found.__name__} has no method {method}")
    for attribute in ATTRIBUTES:
        if not hasattr(found, attribute):
            raise ConfigError(
                f"task '{name}': class {found.__name__} has no attribute {attribute}; "
                "subclass mpips.tasks.Task to inherit all but name"
            )
    wanted = getattr(found, "labels", "classes")
    # A class cannot choose several labels: the job's data.label does; see `takes_several`.
    known = [own for own in get_args(Wants) if own != "several"]
    if wanted not in known:
        raise ConfigError(
            f"task '{name}': {found.__name__}.labels = {wanted!r}: must be one of {', '.join(known)}"
        )
    _check_own_metrics(name, found)
    options = getattr(found, "Options", None)
    if not (isinstance(options, type) and issubclass(options, msgspec.Struct)):
        raise ConfigError(
            f"task '{name}': {found.__name__}.Options is no subclass of msgspec.Struct"
        )


def _has_columns(found: type) -> bool:
    """Return True if a task reads its files itself, and so may write columns in place of predictions."""
    own = getattr(found, "columns", None)
    return callable(getattr(found, "read", None)) and callable(own) and own is not Task.columns


def _check_own_metrics(name: str, found: type) -> None:
    """Check the metrics of a task's own.

    Raises:
        ConfigError: A direction is unknown, `measure` is missing, or a task without labels has no metrics.
    """
    own = getattr(found, "own_metrics", {})
    for metric, direction in own.items():
        if metric in _RESERVED:
            raise ConfigError(
                f"task '{name}': {found.__name__}.own_metrics[{metric!r}]: the name has another meaning in "
                "results; choose another one"
            )
        if direction not in get_args(Direction):
            raise ConfigError(
                f"task '{name}': {found.__name__}.own_metrics[{metric!r}] = {direction!r}: must be one of "
                f"{', '.join(get_args(Direction))}"
            )
    measure = getattr(found, "measure", None)
    if own and (not callable(measure) or measure is Task.measure):
        raise ConfigError(f"task '{name}': {found.__name__} has own_metrics and no method measure")
    if getattr(found, "labels", "classes") == "none" and not own:
        raise ConfigError(
            f"task '{name}': {found.__name__}.labels = 'none' and no own_metrics: declare the metrics that "
            "measure returns"
        )
