"""Which instruction sets there are, how one is forced, and that programs compute the same bits with each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpips import kernels
from mpips.errors import KernelError
from mpips.model.optimizer import OPTIMIZERS

NAMES = kernels.available_kernels()


def test_scalar_is_always_there_and_unknown_names_list_what_is():
    assert NAMES[0] == "scalar"
    assert len(set(NAMES)) == len(NAMES)
    with pytest.raises(KernelError, match=f"'sse9'.*{', '.join(NAMES)}"):
        kernels.scale(np.zeros(1, np.float32), 1.0, kernels="sse9")


CPU_FLAGS = {"avx2": {"avx2"}, "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"}}


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="asks Linux for the CPU's flags")
def test_available_kernels_are_what_the_cpu_has():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    assert ["scalar", *(name for name, need in CPU_FLAGS.items() if need <= flags)] == NAMES


def run_with_kernels(forced, code):
    env = {**os.environ, "MPIPS_KERNELS": forced}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )


def test_environment_variable_forces_a_table(isa):
    done = run_with_kernels(isa, "from mpips import kernels; print(kernels.kernels_name())")
    assert (done.returncode, done.stdout.strip()) == (0, isa), done.stderr


def test_empty_environment_variable_means_the_widest():
    done = run_with_kernels("", "from mpips import kernels; print(kernels.kernels_name())")
    assert (done.returncode, done.stdout.strip()) == (0, NAMES[-1]), done.stderr


CALLS = [
    "kernels.kernels_name()",
    "kernels.all_finite(np.zeros(3, np.float32))",
    "SGD().native()",
]


@pytest.mark.parametrize("call", CALLS)
def test_bad_environment_variable_raises_at_first_use_not_at_import(call):
    code = f"""
import itertools

import numpy as np
from mpips import kernels
from mpips.errors import KernelError
from mpips.model.optimizer import SGD
print("imported")
try:
    {call}
except KernelError as error:
    print(error)
"""
    done = run_with_kernels("avx1024", code)
    assert done.returncode == 0, done.stderr
    imported, message = done.stdout.splitlines()
    assert imported == "imported"
    assert message == (
        f"MPIPS_KERNELS = 'avx1024': must be an instruction set of this machine: {', '.join(NAMES)}"
    )


# Lengths on both sides of the points where vectors, stripes and blocks begin.
CHECKSUMS = """
import numpy as np
from mpips import _native
data = np.random.default_rng(1).integers(0, 256, 300_000).astype(np.uint8)
for n in (0, 1, 16, 128, 240, 241, 255, 256, 257, 1023, 1024, 1025, 65_537, 300_000):
    whole, cut = _native.Xxh3(), _native.Xxh3()
    whole.update(data[:n])
    for at in range(0, n, 997):
        cut.update(data[at : min(at + 997, n)])
    assert whole.digest() == cut.digest(), n
    print(n, whole.digest())
"""


def test_checksums_are_the_same_on_every_instruction_set():
    runs = [run_with_kernels(name, CHECKSUMS) for name in NAMES]
    assert all(done.returncode == 0 for done in runs), runs[-1].stderr
    assert "300000 " in runs[0].stdout
    assert len({done.stdout for done in runs}) == 1


# Push rows through a server with and without a journal: this runs the kernels of rows, whole and cut.
ROWS = """
import hashlib
import numpy as np
from mpips.bench.journal import Side
from mpips.model.consistency import ASP
from mpips.model.optimizer import OPTIMIZERS
from mpips.model.table import EmbeddingTable

def digest(optimizer, dim, journal):
    table = EmbeddingTable("e", dim, optimizer=optimizer(0.1), consistency=ASP())
    side, rng = Side(table, journal, 4096), np.random.default_rng(dim)
    for _ in range(3):
        keys = rng.permutation(700)[:600]
        update = rng.standard_normal((600, dim), np.float32)
        assert side.writer.push_rows(0, 0, keys, update, None, 0) == 600
        side.core.drain(0.0, 0)
    keys, values = side.core.embedding_rows(0)
    side.regions.unlink()
    assert len(keys) > 600 and np.isfinite(values).all()
    return hashlib.sha256(values[np.argsort(keys)].tobytes()).hexdigest()

for name, optimizer in OPTIMIZERS.items():
    for dim in (1, 5, 16, 32, 33, 70):
        found = {digest(optimizer, dim, journal) for journal in (False, True)}
        assert len(found) == 1, (name, dim)
        print(name, dim, *found)
"""


def test_rows_have_the_same_bits_on_every_instruction_set_with_a_journal_and_without():
    runs = [run_with_kernels(name, ROWS) for name in NAMES]
    assert all(done.returncode == 0 for done in runs), [done.stderr[-2000:] for done in runs]
    assert len(runs[0].stdout.splitlines()) == 6 * len(OPTIMIZERS)
    assert len({done.stdout for done in runs}) == 1
