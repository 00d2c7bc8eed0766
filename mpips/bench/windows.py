"""Data that is read in windows, in the suite `data`: memory and speed of `mpips train`, in one process.

`worker_memory` compares the peak of the process on data of 20 times the buffer (data.memory_mib) with that on
data of twice the buffer. `streamed_vs_in_memory` compares samples per second of the training.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from mpips.bench.data_files import write_libsvm
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.testing.errors import BenchError

_MEMORY_MIB = 32.0  # the buffer
_SAMPLE_BYTES = 184  # of a sample of 14 entries in memory
# The command line of mpips, which prints the peak of its resident memory in KiB at its end. The value of
# wait4 includes the memory of the process that has started it.
_PROGRAM = """
import atexit, re
from mpips.cli import main
status = lambda: print(re.search("VmHWM:.*?([0-9]+)", open("/proc/self/status").read())[1], flush=True)
atexit.register(status)
main()
"""


def run(options: Options) -> Findings:
    """Measure both ratios. Blocks."""
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
