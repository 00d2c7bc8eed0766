"""Paths as text: mpips writes them into its files, which are UTF-8."""

from __future__ import annotations

import os
import sys

from mpips.errors import ConfigError


def check_path_text(path: str | os.PathLike[str], what: str) -> None:
    """Raise ConfigError for a path that has no form in UTF-8.

    Python reads the bytes of a path by the encoding of the locale. Bytes that it cannot read become halves of
    surrogate pairs, which no file of mpips can contain.

    Args:
        path: The path.
        what: Its place, for the error.

    Raises:
        ConfigError: The path has no such form; the message has the bytes, and the remedy.
    """
    text = os.fspath(path)
    try:
        text.encode()
        return
    except UnicodeEncodeError:
        pass
    encoding = sys.getfilesystemencoding()
    content = text.encode(encoding, "surrogateescape")
    try:
        shown = repr(content.decode())
        way = f"this process reads names as {encoding}: set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
    except UnicodeDecodeError:
        shown, way = repr(content)[1:], "rename it"
    raise ConfigError(f"{what} = {shown} is not text in UTF-8: {way}")
