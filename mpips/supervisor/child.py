"""`mpips run` of a run directory in a process of its own, for commands and programs that start runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder
from mpips.rundir.reading import end_of

_RULE = re.compile(r"[-=\s]*")


def start(
    run: RunFolder, log: Path, options: Sequence[str] = (), show: bool = False
) -> subprocess.Popen[bytes]:
    """Start or continue a run; return the process of its supervisor.

    Args:
        run: The run directory.
        log: File to which stdout and stderr are added.
        options: Options of `mpips run`.
        show: stderr is that of this process instead.
    """
    command = [sys.executable, "-m", "mpips", "run", str(run.path), *options]
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=None if show else file
        )


def reason(run: RunFolder, log: Path) -> str:
    """Return why a run did not finish, in one line: of its status, or what its supervisor printed last."""
    try:
        status = run.status()
    except ConfigError as error:
        return str(error)
    if status is not None and status.message:
        return status.message
    lines = end_of(log).splitlines()
    return next((line.strip() for line in reversed(lines) if not _RULE.fullmatch(line)), "")
