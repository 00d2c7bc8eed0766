"""Made-up samples in files of several formats, for benchmarks."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

N_ENTRIES = 14  # of a LIBSVM sample, as in Adult
# Values of each category of a sample, as in Adult.
_CATEGORIES = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 4, 4, 6, 42)
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


def write_categories(folder: Path, name: str, n: int, seed: int) -> tuple[Path, Path]:
    """Write samples of 14 categories and one of two classes, as of the Adult data.

    Args:
        folder: Where the files are written.
        name: Name of the files without extension.
        n: Number of samples.
        seed: Seed of the samples; the classes depend on the categories in the same way for each seed.

    Returns:
        The samples as LIBSVM text, and as input of Vowpal Wabbit.
    """
    model, random = np.random.default_rng(7), np.random.default_rng(seed)
    first, logits, columns = 1, np.full(n, -1.2), []
    for n_values in _CATEGORIES:
        weights = model.normal(0, 0.8, n_values)
        shares = model.dirichlet(np.full(n_values, 0.7))
        values = random.choice(n_values, n, p=shares)
        logits += weights[values] - weights @ shares
        columns.append(values + first)
        first += n_values
    labels = (random.random(n) < 1 / (1 + np.exp(-logits))).tolist()
    rows = np.stack(columns, axis=1).tolist()
    paths = folder / f"{name}.svm", folder / f"{name}.vw"
    with paths[0].open("w") as libsvm, paths[1].open("w") as wabbit:
        for label, row in zip(labels, rows, strict=True):
            libsvm.write(f"{int(label)} {' '.join(f'{key}:1' for key in row)}\n")
            wabbit.write(f"{1 if label else -1} | {' '.join(map(str, row))}\n")
    return paths


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
