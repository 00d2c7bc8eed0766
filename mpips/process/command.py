"""Whether this process is a command of mpips or another program that imports it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def is_command(argv: Sequence[str], original: Sequence[str]) -> bool:
    """Return True if this process is a command of mpips.

    Args:
        argv: `sys.argv`.
        original: `sys.orig_argv`, the interpreter's own arguments.
    """
    first = argv[0] if argv else ""
    if first == "-m":
        at = original.index("-m") if "-m" in original else len(original)
        return list(original[at + 1 : at + 2]) in (["mpips"], ["mpips.supervisor.script"])
    return os.path.basename(first) == "mpips"


# Found when mpips is imported, because Python changes sys.argv[0] of `python -m` later.
IS_COMMAND = is_command(sys.argv, sys.orig_argv)
