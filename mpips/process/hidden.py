"""Imports of a library without another one that it would import only because it is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import cast


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let imports of a module fail within the block, unless it is imported already.

    For imports at the start of a process: another thread that imports the module meanwhile also fails.
    """
    # None in the place of a module makes its import raise ImportError, as the language defines.
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    if name in modules:
        yield
        return
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]
