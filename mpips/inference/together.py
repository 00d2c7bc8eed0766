"""Write a model into several files that appear when all of them are complete and checked."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from mpips.errors import ConfigError


def write_together(
    out: Path, others: Sequence[Path], force: bool, write: Callable[[Path], str]
) -> str:
    """Write files into a new folder, and move them to their places when `write` returns.

    Args:
        out: The file that comes last: with it, all is there.
        others: Files beside it that `write` may write. One that it does not write is removed if `force`.
        force: Replace existing files.
        write: Writes the files under their names beside a path of the name of `out`, and returns how they
            were checked.

    Returns:
        A text for people: the files, and how they were checked.

    Raises:
        ConfigError: A file exists already and `force` is False, or cannot be written.
    """
    files = [*others, out]
    for path in files:
        if path.exists() and not force:
            raise ConfigError(f"{path}: already exists; use --force to replace it")
    folder = out.with_name(f".{out.name}-{uuid.uuid4().hex[:8]}")
    try:
        folder.mkdir()
        checked = write(folder / out.name)
        written = [path for path in files if (folder / path.name).exists()]
        for path in files:
            if path in written:
                os.replace(folder / path.name, path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return f"{', '.join(map(str, [out, *written[:-1]]))} ({checked})"
