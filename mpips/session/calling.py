"""The call of a worker's function, and the checks of the function and of its value."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpips.errors import ConfigError, MpipsError
from mpips.mpi.signals import TerminatedError

if TYPE_CHECKING:
    from mpips.worker.worker import Worker


class ExitedError(MpipsError):
    """A worker's function called sys.exit; the job ends with its code."""


def check_main(main: Callable[..., Any]) -> None:
    """Raise ConfigError for what cannot be called, and for a function whose call would run no line of it.

    Raises:
        ConfigError: `main` cannot be called, contains yield, or is declared with async.
    """
    if not callable(main):
        raise ConfigError(
            f"main is {type(main).__name__}: must be a function of a worker: mpips.run(main, tables)"
        )
    if inspect.isgeneratorfunction(main):
        raise ConfigError(f"{_name(main)} contains yield, so calling it trains nothing: use return")
    if inspect.iscoroutinefunction(main) or inspect.isasyncgenfunction(main):
        raise ConfigError(f"{_name(main)} is async, so calling it trains nothing: write def")


def call(main: Callable[[Worker], Any], worker: Worker, alone: bool) -> Any:
    """Call a worker's function and return its value; sys.exit() without a code counts as return.

    Args:
        main: The function.
        worker: Its argument.
        alone: All roles are in this process, so sys.exit with a code ends it as it ends any program.

    Raises:
        ConfigError: The value is a generator or a coroutine, so no line has run.
        ExitedError: The function called sys.exit with a code or a message.
    """
    caller = os.getpid()
    try:
        value = main(worker)
    except TerminatedError:
        raise
    except SystemExit as error:
        if os.getpid() != caller:
            raise  # in a forked child, sys.exit ends the child
        if error.code in (None, 0):
            return None
        if alone:
            raise
        exited = ExitedError(f"{_name(main)} called sys.exit({error.code!r})")
        exited.exit_code = error.code if isinstance(error.code, int) else 1
        raise exited from None
    if inspect.isgenerator(value):
        raise ConfigError(f"{_name(main)} returned a generator, so nothing was trained: use return")
    if inspect.iscoroutine(value):
        value.close()
        raise ConfigError(f"{_name(main)} returned a coroutine, so nothing was trained: write def")
    return value


def _name(main: Callable[..., Any]) -> str:
    return getattr(main, "__name__", type(main).__name__)
