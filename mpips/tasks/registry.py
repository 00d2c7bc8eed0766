"""Find a task by name, or a user's own by `module:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, get_args

import msgspec

from mpips.data.options import Wants
from mpips.errors import ConfigError
from mpips.tasks.base import Task
from mpips.tasks.fm import FactorizationMachine
from mpips.tasks.logistic import Logistic
from mpips.tasks.mlp import Mlp
from mpips.tasks.softmax import Softmax

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Softmax, Mlp, Logistic, FactorizationMachine)
}

METHODS = ("tables", "step", "predict", "prepare", "prefetch")
ATTRIBUTES = ("name", "Options", "default_epochs", "default_batch_size", "metrics")


def load_task(name: str) -> type[Task]:
    """Return the class of a built-in task, or of `module:Class` from the path or this folder.

    Imports the user's module.

    Raises:
        ConfigError: No such task, module or class, or the class lacks something.
    """
    if name in TASKS:
        return TASKS[name]
    module_name, colon, class_name = name.partition(":")
    if not colon or not module_name or not class_name:
        known = ", ".join(TASKS)
        raise ConfigError(f"unknown task '{name}'; known: {known}; or your own as module:Class")
    found = getattr(_import(name, module_name), class_name, None)
    if not isinstance(found, type):
        raise ConfigError(f"task '{name}': module {module_name} has no class {class_name}")
    _check(name, found)
    return found


def _import(name: str, module_name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that the user's own module misses is another error than the user's own missing.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"task '{name}': {module_name} imports {error.name}: {error}"
            ) from error
        raise ConfigError(
            f"task '{name}': no module {module_name} in {here} or on PYTHONPATH"
        ) from error
    except Exception as error:
        kind = type(error).__name__
        raise ConfigError(f"task '{name}': importing {module_name}: {kind}: {error}") from error


def _check(name: str, found: type) -> None:
    for method in METHODS:
        own = getattr(found, method, None)
        inherited = own is getattr(Task, method) and method in ("tables", "step", "predict")
        if not callable(own) or inherited:
            raise ConfigError(f"task '{name}': class {found.__name__} has no method {method}")
    for attribute in ATTRIBUTES:
        if not hasattr(found, attribute):
            raise ConfigError(
                f"task '{name}': class {found.__name__} has no attribute {attribute}; "
                "subclass mpips.tasks.Task to inherit all but name"
            )
    wanted = getattr(found, "labels", "classes")
    if wanted not in get_args(Wants):
        raise ConfigError(
            f"task '{name}': {found.__name__}.labels = {wanted!r}: must be one of "
            f"{', '.join(get_args(Wants))}"
        )
    options = getattr(found, "Options", None)
    if not (isinstance(options, type) and issubclass(options, msgspec.Struct)):
        raise ConfigError(f"task '{name}': {found.__name__}.Options is no msgspec.Struct")
