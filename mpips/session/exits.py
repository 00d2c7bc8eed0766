"""The ends of a process for which Python has no hook: sys.exit, and the end within a hook or exit handler."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from mpips.errors import MpipsError
from mpips.session.calling import ExitedError


class ScriptExit(SystemExit):
    """The SystemExit of sys.exit in a script; it notes that it ends the process.

    The interpreter reads `code` of the SystemExit that ends a process, and no Python frame is active then.
    Where the script catches the exception, or a thread ends by it, a frame reads `code`, or nothing does.
    """

    def __init__(self, code: object = None, note: Callable[[object], None] | None = None) -> None:
        """Take the argument of sys.exit. `note`: called with it if this exception ends the process."""
        super().__init__(code)
        self._given = code
        self._note = note

    @property
    def code(self) -> Any:  # type: ignore[override]
        """The argument of sys.exit."""
        if self._note is not None and sys._getframe().f_back is None:
            self._note(self._given)
        return self._given


class ExitFunctions:
    """sys.exit, exit and quit, replaced by a function that raises ScriptExit."""

    def __init__(self, note: Callable[[object], None]) -> None:
        """Replace nothing yet. `note`: called with the code of an exit that ends the process."""
        self._note = note
        self._old: list[tuple[ModuleType, str, Any]] = []

    def replace(self) -> None:
        """Replace the functions."""
        names = [(sys, "exit")]
        # At a prompt, `exit` also prints how to leave it.
        if not sys.flags.interactive:
            names += [(builtins, "exit"), (builtins, "quit")]
        self._old = [
            (module, name, getattr(module, name)) for module, name in names if hasattr(module, name)
        ]
        for module, name, _ in self._old:
            setattr(module, name, self._exit)

    def restore(self) -> None:
        """Restore the functions of before `replace`."""
        for module, name, function in self._old:
            setattr(module, name, function)
        self._old.clear()

    def _exit(self, code: object = None) -> NoReturn:
        # A thread ends silently by SystemExit itself only.
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit(code)
        raise ScriptExit(code, self._note)


def exited(code: object) -> ExitedError | None:
    """Return the error of a script that ends by sys.exit with this code; None if it counts as success."""
    if code is None or code == 0:
        return None
    error = ExitedError(f"the script called sys.exit({code!r})")
    error.exit_code = code if isinstance(code, int) else 1
    return error


def code_of(error: BaseException) -> int:
    """Return the exit code of a process that ends by this exception."""
    if isinstance(error, MpipsError):
        return error.exit_code
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def exit_now(code: int) -> NoReturn:
    """End this process within an exit handler or a hook, where SystemExit has no effect."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
