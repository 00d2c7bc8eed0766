"""Import the package mpips beside this file instead of the real one. Python runs this file at its start."""

import sys
from importlib.machinery import PathFinder
from pathlib import Path


class _Instead:
    """Importer that finds the imitated mpips."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] != "mpips":
            return None
        return PathFinder.find_spec(name, path or [str(Path(__file__).parent)], target)


sys.meta_path.insert(0, _Instead)  # type: ignore[arg-type]
