"""Puts the package beside this file before any other of its name; Python runs this when it starts."""

import sys
from importlib.machinery import PathFinder
from pathlib import Path


class _Instead:
    """Finds the made-up mpips."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] != "mpips":
            return None
        return PathFinder.find_spec(name, path or [str(Path(__file__).parent)], target)


sys.meta_path.insert(0, _Instead)  # type: ignore[arg-type]
