"""Unit tests can run on another build of the native module, such as one with sanitizers.

The other build must be found by the first import: pybind11 returns the module that is loaded already when a
second file of the same module is loaded, so a later replacement would have no effect.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from script_machine import Machine

_NATIVE = {"mpips._native": "_native", "mpips.bench._loops": "_loops"}


class _NativeFinder:
    """A finder that finds the native modules in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        files = list(self._folder.glob(f"{_NATIVE[name]}.*.so")) if name in _NATIVE else []
        return importlib.util.spec_from_file_location(name, files[0]) if files else None


if "MPIPS_NATIVE_DIR" in os.environ:
    folder = Path(os.environ["MPIPS_NATIVE_DIR"]).resolve()
    assert not any(name in sys.modules for name in _NATIVE), "mpips was imported before this file"
    sys.meta_path.insert(0, _NativeFinder(folder))  # type: ignore[arg-type]
    from mpips import _native

    assert Path(str(_native.__file__)).parent == folder, _native.__file__


def _addresses() -> int:
    """Return the bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


# A server reserves up to 3 TiB of addresses for an embedding table, and a process has 128 TiB. Rigs of single
# parts, which no session ends, are cycles of references, which the garbage collector may find too late.
_AT_START = _addresses()  # sanitizers take 20 TiB
_MOST_ADDRESSES = 16 << 40


@pytest.fixture(autouse=True)
def _few_addresses() -> Iterator[None]:
    yield
    if _addresses() - _AT_START > _MOST_ADDRESSES:
        gc.collect()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without root."""
    return Machine(tmp_path)


def pytest_report_header() -> list[str]:
    native = sys.modules.get("mpips._native")
    return [f"mpips._native: {native.__file__}"] if native is not None else []
