"""Unit tests can run on another build of the native module, such as one with sanitizers."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType


def _load(folder: Path, package: ModuleType, name: str) -> None:
    """Put a module built in `folder` where `from package import name` looks first."""
    (path,) = folder.glob(f"{name}.*.so")
    full = f"{package.__name__}.{name}"
    spec = importlib.util.spec_from_file_location(full, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    spec.loader.exec_module(module)
    setattr(package, name, module)


def _load_all(folder: Path) -> None:
    import mpips

    _load(folder, mpips, "_native")

    import mpips.bench

    _load(folder, mpips.bench, "_loops")


if "MPIPS_NATIVE_DIR" in os.environ:
    _load_all(Path(os.environ["MPIPS_NATIVE_DIR"]))


def pytest_report_header() -> list[str]:
    native = sys.modules.get("mpips._native")
    return [f"mpips._native: {native.__file__}"] if native is not None else []
