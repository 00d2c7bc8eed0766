"""Starting the ranks that a benchmark needs, and getting their findings back."""

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

# What ranks on imitated nodes see of this process's environment.
_CARRIED = ("MPIPS_", "OMPI_ALLOW", "OMP_", "PYTHON")


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """What a user can choose.

    Attributes:
        repetitions: Measurements of each thing.
        quick: Small sizes and few calls: does it run, not how fast.
        seconds: Length of the look for leaks of the suite `scale`.
        kills: Of processes, by the suite `recovery`.
        seed: Of what is drawn at random; 0: another one each time.
    """

    repetitions: int = 5
    quick: bool = False
    seconds: float = 60.0
    kills: int = 0
    seed: int = 0


def why_not_on_nodes() -> str:
    """What keeps a benchmark from running on imitated nodes; empty if nothing does."""
    version = subprocess.run(
        [find_mpirun(), "--version"], capture_output=True, text=True, check=False
    )
    if "Open MPI) 5" not in version.stdout:
        return "imitated nodes need the mpirun of Open MPI 5"
    return nodes.why_not()


def on_ranks(program: str, n: int, options: Options, timeout_s: float = 600.0) -> Findings:
    """Run `mpips.bench.rank.<program>` on `n` ranks of this machine; what its ranks found.

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
    """Run `mpips.bench.rank.<program>` on ranks of imitated nodes; what its ranks found.

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
        raise BenchError(f"{' '.join(command)} took longer than {timeout_s:g} s") from None
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} ended with code {done.returncode}")


def rank_command(program: str, options: Options, folder: Path) -> list[str]:
    """What each rank executes; findings go to files in `folder`."""
    chosen = msgspec.json.encode(options).decode()
    return [sys.executable, "-m", "mpips.bench.rank", program, chosen, str(folder)]


def collect(folder: Path) -> Findings:
    """The findings that ranks have left in `folder`."""
    found = Findings()
    for path in sorted(folder.glob("*.json")):
        found.add(msgspec.json.decode(path.read_bytes(), type=Findings))
    return found
