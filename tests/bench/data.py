"""The suite `data`: readers of files against scikit-learn, pandas and pyarrow; data that is read in windows.

Made-up samples are written to a file in each format. Ours and baseline take turns on a file that is in the
kernel's cache. Ours includes what a worker does with what it has read: it divides the samples, checks the
numbers, hashes the text. One process on one core, since pandas 3 reads CSV with a thread per core.

Data that is read in windows: memory and speed of `mpips train`, in one process. `worker_memory` compares the
peak of the process on data of 20 times the buffer (data.memory_mib) with that on data of twice the buffer.
`streamed_vs_in_memory` compares samples per second of the training.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from mpips.bench.kernels import one_core
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings, measure_alternately
from mpips.data import read
from mpips.testing.errors import BenchError
from tests.bench.data_files import write_csv, write_libsvm, write_parquet

N_SAMPLES, N_SAMPLES_QUICK = 200_000, 300
_MIB = float(1 << 20)
_MEMORY_MIB = 32.0  # the buffer
_SAMPLE_BYTES = 184  # of a sample of 14 entries in memory
# Runs `mpips` with the arguments, and prints the peak of the resident memory of this process in KiB at its
# end. The value of wait4 includes the memory of the process that has started it.
_PROGRAM = """
import atexit, re, runpy
status = lambda: print(re.search("VmHWM:.*?([0-9]+)", open("/proc/self/status").read())[1], flush=True)
atexit.register(status)
runpy.run_module("mpips", run_name="__main__")
"""


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure all ratios on this machine. `nodes` has no effect."""
    n = N_SAMPLES_QUICK if options.quick else N_SAMPLES
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as name, one_core():
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
    found.add(windows(options))
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


def windows(options: Options) -> Findings:
    """Measure both ratios of data that is read in windows. Blocks."""
    found = Findings()
    memory_mib = _MEMORY_MIB / (2000 if options.quick else 1)
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as name:
        folder = Path(name)
        # The file of 20 times the buffer is ten times the one of twice the buffer.
        small = write_libsvm(folder, int(2 * memory_mib * (1 << 20) / _SAMPLE_BYTES))
        text, large = small.read_bytes(), folder / "large.svm"
        with large.open("wb") as file:
            file.writelines([text] * 10)
        peaks: list[tuple[float, float]] = []
        rates: list[tuple[float, float]] = []
        for _ in range(options.repetitions):
            much, fast = _train(large, memory_mib)
            little, _ = _train(small, memory_mib)
            _, plain = _train(large, 1e6)
            peaks.append((much, little))
            rates.append((fast, plain))
    size = f"{len(text) / (1 << 20):,.0f} MiB of text and ten times as much"
    found.comparisons += [
        Comparison(
            name="worker_memory",
            what=f"peak of a process, buffer of {memory_mib:g} MiB, {size}",
            unit="MiB",
            ours=[much for much, _ in peaks],
            baseline=[little for _, little in peaks],
            baseline_name="a file of twice the buffer",
        ),
        Comparison(
            name="streamed_vs_in_memory",
            what="logistic, one process, the larger file, without the conversion",
            unit="samples/s",
            ours=[fast for fast, _ in rates],
            baseline=[plain for _, plain in rates],
            baseline_name="the same samples in memory",
        ),
    ]
    return found


def _train(path: Path, memory_mib: float) -> tuple[float, float]:
    """Train one epoch in a process; return its peak in MiB and its samples per second.

    Raises:
        BenchError: The training failed.
    """
    command = [sys.executable, "-c", _PROGRAM, "train", "logistic", "--train", str(path)]
    command += ["--epochs", "1", "--json", "--quiet", "--set", f"data.memory_mib={memory_mib!r}"]
    command += ["--set", "train.batch_size=512"]
    # By default glibc decides anew at each release from which size on memory goes back to the system, and the
    # peak varies by a fifth.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, check=False, env=env
    )
    if done.returncode:
        raise BenchError(f"mpips train failed: {done.stderr.decode(errors='replace')}")
    result, peak = done.stdout.splitlines()
    return int(peak) / 1024, float(msgspec.json.decode(result)["samples_per_s"])
