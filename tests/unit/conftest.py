"""Unit tests can run on another build of the native module, such as one with sanitizers."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def _load_native(folder: Path) -> None:
    """Put the module built in `folder` where `from mpips import _native` looks first."""
    import mpips

    (path,) = folder.glob("_native*.so")
    spec = importlib.util.spec_from_file_location("mpips._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mpips._native"] = module
    spec.loader.exec_module(module)
    mpips._native = module


if "MPIPS_NATIVE_DIR" in os.environ:
    _load_native(Path(os.environ["MPIPS_NATIVE_DIR"]))


def pytest_report_header() -> list[str]:
    native = sys.modules.get("mpips._native")
    return [f"mpips._native: {native.__file__}"] if native is not None else []
