"""Made-up samples in files of several formats, for benchmarks."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

N_ENTRIES = 14  # of a LIBSVM sample, as in Adult
_N_NUMBERS, _N_TEXTS = 7, 9  # columns of a table, as of the bank data


def write_libsvm(folder: Path, n: int) -> Path:
    """Write `n` samples of 14 entries as LIBSVM text; return the path."""
    random = np.random.default_rng(1)
    keys = np.sort(random.integers(1, 10_000, (n, N_ENTRIES)), axis=1) * 16 + np.arange(N_ENTRIES)
    values = random.integers(1, 1000, (n, N_ENTRIES)) / 8
    path = folder / "data.svm"
    with path.open("w") as file:
        for i, (row, numbers) in enumerate(zip(keys.tolist(), values.tolist(), strict=True)):
            entries = " ".join(f"{k}:{v}" for k, v in zip(row, numbers, strict=True))
            file.write(f"{i % 2} {entries}\n")
    return path


def _columns(n: int) -> dict[str, Any]:
    """Return the columns of a table: numbers, text with 4 to 1024 words, and the label `y`."""
    random = np.random.default_rng(2)
    columns: dict[str, Any] = {
        f"number{i}": random.normal(0, 100, n).round(3) for i in range(_N_NUMBERS)
    }
    for i in range(_N_TEXTS):
        words = np.array([f"word-{k}" for k in range(4 << i)])
        columns[f"text{i}"] = words[random.integers(0, len(words), n)]
    return {**columns, "y": random.integers(0, 2, n)}


def write_csv(folder: Path, n: int) -> Path:
    """Write a table of `n` rows as CSV; return the path."""
    columns = _columns(n)
    path = folder / "data.csv"
    with path.open("w") as file:
        file.write(",".join(columns) + "\n")
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)
    return path


def write_parquet(folder: Path, n: int) -> Path:
    """Write the table of `write_csv` as Parquet; return the path. Raises ImportError without pyarrow."""
    pyarrow = importlib.import_module("pyarrow")
    path = folder / "data.parquet"
    table = pyarrow.table({name: pyarrow.array(c.tolist()) for name, c in _columns(n).items()})
    importlib.import_module("pyarrow.parquet").write_table(table, path)
    return path
