"""The suite `data`: readers of files against scikit-learn, pandas and pyarrow, in one process and one thread.

Made-up samples are written to a file in each format. Ours and baseline take turns on a file that is in the
kernel's cache. Ours includes what a worker does with what it has read: it divides the samples, checks the
numbers, hashes the text.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings, measure_alternately
from mpips.data import read

N_SAMPLES, N_SAMPLES_QUICK = 200_000, 300
_N_ENTRIES = 14  # of a LIBSVM sample, as in Adult
_N_NUMBERS, _N_TEXTS = 7, 9  # columns of a table, as of the bank data
_MIB = float(1 << 20)


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure all ratios on this machine. `nodes` has no effect."""
    n = N_SAMPLES_QUICK if options.quick else N_SAMPLES
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as name:
        folder = Path(name)
        for ratio, what, write, baseline in (
            ("libsvm_vs_sklearn", "LIBSVM text, 14 entries a sample", _write_libsvm, _sklearn),
            ("csv_vs_pandas", "CSV, 7 columns of numbers, 9 of text", _write_csv, _pandas),
            ("parquet_vs_pyarrow", "the same table as Parquet", _write_parquet, _pyarrow),
        ):
            try:
                name_of_baseline, load = baseline()
                path = write(folder, n)
            except ImportError as error:
                found.skipped[ratio] = f"{error.name} is not installed"
                continue
            found.comparisons.append(_compared(ratio, what, path, name_of_baseline, load, options))
    return found


def _compared(
    ratio: str,
    what: str,
    path: Path,
    baseline: str,
    load: Callable[[str], object],
    options: Options,
) -> Comparison:
    size = path.stat().st_size / _MIB
    works = (lambda: read(str(path)), lambda: load(str(path)))
    ours, theirs = measure_alternately(works, (1, 1), options.repetitions)
    return Comparison(
        name=ratio,
        what=f"{what}, {size:.1f} MiB",
        unit="MiB/s",
        ours=[size / seconds for seconds in ours],
        baseline=[size / seconds for seconds in theirs],
        baseline_name=baseline,
    )


def _sklearn() -> tuple[str, Callable[[str], object]]:
    datasets = importlib.import_module("sklearn.datasets")
    return "sklearn.datasets.load_svmlight_file", datasets.load_svmlight_file


def _pandas() -> tuple[str, Callable[[str], object]]:
    pandas = importlib.import_module("pandas")
    return "pandas.read_csv", lambda path: pandas.read_csv(path, engine="c")


def _pyarrow() -> tuple[str, Callable[[str], object]]:
    parquet = importlib.import_module("pyarrow.parquet")

    def load(path: str) -> object:
        table = parquet.read_table(path, use_threads=False)
        return [
            column.combine_chunks().to_numpy(zero_copy_only=False)
            if name.startswith("number")
            else column.dictionary_encode()
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]

    return "pyarrow.parquet.read_table, text as dictionaries", load


def _write_libsvm(folder: Path, n: int) -> Path:
    random = np.random.default_rng(1)
    keys = np.sort(random.integers(1, 10_000, (n, _N_ENTRIES)), axis=1) * 16 + np.arange(_N_ENTRIES)
    values = random.integers(1, 1000, (n, _N_ENTRIES)) / 8
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


def _write_csv(folder: Path, n: int) -> Path:
    columns = _columns(n)
    path = folder / "data.csv"
    with path.open("w") as file:
        file.write(",".join(columns) + "\n")
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)
    return path


def _write_parquet(folder: Path, n: int) -> Path:
    pyarrow = importlib.import_module("pyarrow")
    path = folder / "data.parquet"
    table = pyarrow.table({name: pyarrow.array(c.tolist()) for name, c in _columns(n).items()})
    importlib.import_module("pyarrow.parquet").write_table(table, path)
    return path
