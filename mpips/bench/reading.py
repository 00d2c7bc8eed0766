"""The suite `data`: readers of files against scikit-learn, pandas and pyarrow; data that is read in windows.

Made-up samples are written to a file in each format. Ours and baseline take turns on a file that is in the
kernel's cache. Ours includes what a worker does with what it has read: it divides the samples, checks the
numbers, hashes the text. One process on one core, since pandas 3 reads CSV with a thread per core.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mpips.bench import windows
from mpips.bench.data_files import write_csv, write_libsvm, write_parquet
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings, measure_alternately
from mpips.data import read

N_SAMPLES, N_SAMPLES_QUICK = 200_000, 300
_MIB = float(1 << 20)


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure all ratios on this machine. `nodes` has no effect."""
    n = N_SAMPLES_QUICK if options.quick else N_SAMPLES
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as name, _one_core():
        folder = Path(name)
        for ratio, what, write, baseline in (
            ("libsvm_vs_sklearn", "LIBSVM text, 14 entries a sample", write_libsvm, _sklearn),
            ("csv_vs_pandas", "CSV, 7 columns of numbers, 9 of text", write_csv, _pandas),
            ("parquet_vs_pyarrow", "the same table as Parquet", write_parquet, _pyarrow),
        ):
            try:
                name_of_baseline, load = baseline()
                path = write(folder, n)
            except ImportError as error:
                found.skipped[ratio] = f"{error.name} is not installed"
                continue
            found.comparisons.append(_compared(ratio, what, path, name_of_baseline, load, options))
    found.add(windows.run(options))
    return found


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Keep this thread, and the threads that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


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
