"""The folder of an export: the file that marks it, and its replacement, which removes no other files.

An export into a folder writes MARKER beside its files: a JSON list of their names. Readers of folders of
Parquet skip names that begin with a dot.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mpips.errors import ConfigError

MARKER = ".mpips-export.json"
_SHOWN = 3  # names in a message


def mark(folder: Path, names: Sequence[str]) -> None:
    """Write the marker of an export.

    Args:
        folder: The folder.
        names: Names of its files.

    Raises:
        OSError: The marker cannot be written.
    """
    (folder / MARKER).write_text(json.dumps(list(names)), encoding="utf-8")


def check_replaceable(folder: Path, names: Sequence[str]) -> None:
    """Check that a folder contains what an export wrote, and nothing else.

    Args:
        folder: The folder, or a link to one.
        names: Files of the new export. A folder without a marker, as earlier versions wrote it, may contain
            these.

    Raises:
        ConfigError: It contains something else, or is a link. The message names what lies there.
        OSError: The folder cannot be read.
    """
    if folder.is_symlink():
        raise ConfigError(
            f"{folder}: is a link to a folder, which --force does not replace; remove it, or give "
            "another --out"
        )
    own = _own_names(folder, names)
    others = sorted(
        path.name + "/" * path.is_dir()
        for path in folder.iterdir()
        if path.name not in own or path.is_dir()
    )
    if others:
        shown = ", ".join(others[:_SHOWN])
        more = f" and {len(others) - _SHOWN:,} more" if len(others) > _SHOWN else ""
        raise ConfigError(
            f"{folder}: contains {shown}{more}, which no export wrote, so --force does not replace it; give "
            "another --out, or remove the folder yourself"
        )


def remove(folder: Path, names: Sequence[str]) -> None:
    """Remove an earlier export. Files that appear in it meanwhile stay.

    Args:
        folder: The folder.
        names: As for `check_replaceable`.

    Raises:
        ConfigError: As of `check_replaceable`; then nothing is removed.
        OSError: A file cannot be removed, or another one has appeared.
    """
    check_replaceable(folder, names)
    own = _own_names(folder, names)
    for path in [path for path in folder.iterdir() if path.name in own]:
        path.unlink()
    folder.rmdir()


def _own_names(folder: Path, names: Sequence[str]) -> set[str]:
    """Return the names that an export may have written into the folder."""
    try:
        found = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set(names)
    listed = found if isinstance(found, list) else []
    return {MARKER, *(name for name in listed if isinstance(name, str))}
