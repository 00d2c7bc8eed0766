"""Imports without the garbage collector, which takes a quarter of their time and finds nothing.

A rank imports about 600 modules, whose objects live to its end. Python examines them again and again for
reference cycles while there are more and more of them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from mpips.process import command


@contextmanager
def paused() -> Iterator[None]:
    """Collect no cycles within the block; for imports.

    In a command of mpips, what exists at the end of the block is never examined later either. Another
    program's objects remain examined.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if command.IS_COMMAND:
            gc.freeze()
        gc.enable()
