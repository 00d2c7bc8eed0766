"""The options --output and --force of commands that write one file, and how they write it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mpips.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])


def output_options(default: str, more: str = "") -> Callable[[Command], Command]:
    """Return the decorator of `output`, a path, and `force`.

    Args:
        default: Name of the file without --output.
        more: Further help about the file, after a space.
    """
    output = click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        default=Path(default),
        show_default=True,
        help=f"The file; it must not exist yet.{more}",
    )
    force = click.option("--force", is_flag=True, help="Replace the file if it exists.")
    return lambda command: output(force(command))


def check_new(output: Path, force: bool) -> None:
    """Check before the work that the file may be written.

    Raises:
        ConfigError: It exists, and `force` is False.
    """
    if output.exists() and not force:
        raise _exists(output)


def write_new(output: Path, content: bytes, force: bool) -> None:
    """Write the file; another process may have made it since `check_new`.

    Raises:
        ConfigError: It exists, and `force` is False; or it cannot be written.
    """
    try:
        with output.open("wb" if force else "xb") as file:
            file.write(content)
    except FileExistsError:
        raise _exists(output) from None
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror}") from None


def _exists(output: Path) -> ConfigError:
    return ConfigError(
        f"{output}: already exists; use --force to replace it, or -o for another name"
    )
