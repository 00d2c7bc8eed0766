"""Data files for tests: write one, and read it as dense or sparse samples."""

from __future__ import annotations

from pathlib import Path

from mpips.data import DenseData, ReadOptions, SparseData, read

HASH = ReadOptions(categorical=("C*",))


def write(path: Path, text: str) -> Path:
    """Write a text file and return its path."""
    path.write_text(text)
    return path


def dense(path: Path | str, options: ReadOptions | None = None, **share: int) -> DenseData:
    """Read a file that must have dense samples; `share`: stride and offset."""
    data = read(path, options=options, **share).data
    assert isinstance(data, DenseData)
    return data


def sparse(path: Path | str, options: ReadOptions | None = None, **share: int) -> SparseData:
    """Read a file that must have sparse samples; `share`: stride and offset."""
    data = read(path, options=options, **share).data
    assert isinstance(data, SparseData)
    return data
