"""The command line of mpips in this process: what `python -m mpips` prints and how it ends.

A process costs a second, most of it for imports. `process=True` starts one nevertheless.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from mpips.cli import main


@contextlib.contextmanager
def _working_folder(folder: Path | None) -> Iterator[None]:
    """Go to a folder for a while, and forget the modules that were imported from there."""
    if folder is None:
        yield
        return
    before, loaded, path = Path.cwd(), set(sys.modules), list(sys.path)
    try:
        os.chdir(folder)
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in set(sys.modules) - loaded:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).is_relative_to(folder):
                del sys.modules[name]


def mpips(
    *arguments: object,
    folder: Path | None = None,
    env: dict[str, str] | None = None,
    process: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command.

    Args:
        *arguments: Behind `mpips`.
        folder: The working folder.
        env: More environment variables.
        process: Start a process, as the shell does.
    """
    words = [str(argument) for argument in arguments]
    if process:
        return subprocess.run(
            [sys.executable, "-m", "mpips", *words],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=folder,
            env={**os.environ, **(env or {})},
        )
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code = 0
    with (
        _working_folder(folder),
        mock.patch.object(sys, "argv", ["mpips", *words]),
        mock.patch.dict(os.environ, env or {}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(["mpips", *words], code, *texts)
