"""One rank of a launch of `mpips doctor`. It runs stages, and reports each at its start and at its end.

python -m mpips.doctor.rank.ranks STAGE,STAGE,... FOLDER TIMEOUT_S

After each stage the ranks exchange whether it failed, so that no rank enters the next stage alone. The
process that started the launch kills it if a stage hangs.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import mpips
from mpips import DenseTable, EmbeddingTable
from mpips.doctor.description import versions
from mpips.doctor.situation import library_name
from mpips.doctor.stages import MARK, StageReport
from mpips.model.table import Table
from mpips.mpi import launch
from mpips.mpi.exchange import exchange
from mpips.transport.region import SHM

_TAG = 11  # of the messages that compare clocks
_FORK_S = 10.0  # seconds that a forked child has to run


class Rank:
    """This rank and its stages: method `do_NAME` runs stage NAME and returns its results."""

    def __init__(self, stages: list[str], folder: Path, timeout_s: float) -> None:
        """Prepare to run `stages`.

        Args:
            stages: Names of stages, in their order.
            folder: Folder for checkpoints.
            timeout_s: Limit of the waits of a job, in seconds.
        """
        self.stages = stages
        self.folder = folder
        self.timeout_s = timeout_s
        self.rank = launch.launched_rank()
        self.host = socket.gethostname()
        self.comm: Any = None

    def report(
        self, stage: str, done: bool, error: str = "", data: dict[str, Any] | None = None
    ) -> None:
        """Print a report in one write, so that lines of different ranks do not mix."""
        report = StageReport(
            rank=self.rank, host=self.host, stage=stage, done=done, error=error, data=data or {}
        )
        line = MARK + msgspec.json.encode(report).decode() + "\n"
        os.write(sys.stdout.fileno(), line.encode())

    def run(self) -> int:
        """Run all stages. Collective over the ranks once MPI is up.

        Returns:
            Exit code: 1 if a stage before MPI failed, 0 otherwise.
        """
        for stage in self.stages:
            self.report(stage, False)
            work: Callable[[], dict[str, Any]] = getattr(self, f"do_{stage}")
            try:
                error, data = "", work()
            except Exception as problem:
                error, data = f"{type(problem).__name__}: {problem}"[:1000], {}
            self.report(stage, True, error, data)
            if self.comm is None and error:
                return 1
            if self.comm is not None:
                exchange(self.comm, bool(error))
        return 0

    def do_start(self) -> dict[str, Any]:
        """Return the versions of Python and its packages. Needs no MPI."""
        return {"versions": {"python": platform.python_version(), **versions()}}

    def do_mpi(self) -> dict[str, Any]:
        """Initialise MPI; return the number of ranks in COMM_WORLD and the name of the library."""
        self.comm = launch.load_mpi()
        self.rank = self.comm.Get_rank()
        from mpi4py import MPI

        library = library_name(MPI.Get_library_version())
        return {"size": self.comm.Get_size(), "library": library}

    def do_facts(self) -> dict[str, Any]:
        """Return the free shared memory, the cores of this rank, and the skew of its clock. Collective."""
        space = os.statvfs(SHM)
        return {
            "skew_s": self._skew(),
            "shm_free": space.f_frsize * space.f_bavail,
            "affinity": sorted(os.sched_getaffinity(0)),
            "cores": os.cpu_count() or 1,
        }

    def _skew(self, rounds: int = 11) -> float:
        """Return the seconds that this host's clock is ahead of rank 0's. Collective.

        Each rank requests the time of rank 0 and takes half of the round trip as the delay of the
        answer; the
        median over `rounds` counts.
        """
        buffer = np.zeros(1)
        found = 0.0
        for other in range(1, self.comm.Get_size()):
            offsets = []
            for _ in range(rounds):
                if self.rank == 0:
                    self.comm.Recv(buffer, other, _TAG)
                    self.comm.Send(np.array([time.time()]), other, _TAG)
                elif self.rank == other:
                    before = time.time()
                    self.comm.Send(buffer, 0, _TAG)
                    self.comm.Recv(buffer, 0, _TAG)
                    offsets.append((before + time.time()) / 2 - float(buffer[0]))
            if offsets:
                found = statistics.median(offsets)
        return found

    def do_folder(self) -> dict[str, Any]:
        """Check that all ranks see a file that rank 0 makes in the folder. Collective."""
        name = exchange(self.comm, f".mpips-doctor-{os.getpid()}-{time.time_ns()}")[0]
        path = self.folder / name
        problem = ""
        if self.rank == 0:
            try:
                path.write_text(name)
            except OSError as error:
                problem = str(error)
        problem = exchange(self.comm, problem)[0]
        seen = path.is_file()
        self.comm.Barrier()
        if self.rank == 0:
            path.unlink(missing_ok=True)
        if problem:
            raise OSError(problem)
        if not seen:
            raise FileNotFoundError(
                f"{self.folder} is not the same folder as on the host of rank 0"
            )
        return {}

    def do_fork(self) -> dict[str, Any]:
        """Check that a forked child of a process with MPI runs, as data loaders need it."""
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write_end, b"1")
            os._exit(0)
        os.close(write_end)
        came = bool(select.select([read_end], [], [], _FORK_S)[0]) and os.read(read_end, 1) == b"1"
        os.close(read_end)
        if not came:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)
        os.waitpid(child, 0)
        if not came:
            raise TimeoutError("a child that was forked after the start of MPI does not run")
        return {}

    def do_session(self) -> dict[str, Any]:
        """Run a small job by the transport that mpips chooses. Collective."""
        return self._session("auto")

    def do_rma(self) -> dict[str, Any]:
        """Run a small job through an MPI window. Collective."""
        return self._session("rma")

    def do_p2p(self) -> dict[str, Any]:
        """Run a small job by messages. Collective."""
        return self._session("p2p")

    def _session(self, transport: str) -> dict[str, Any]:
        """Run a job that pushes known numbers and compares all pulled values; return its transports."""
        tables: list[Table] = [
            DenseTable("dense", (5000,), mpips.SGD(1.0), mpips.BSP(reduce="sum")),
            EmbeddingTable("rows", 8, mpips.SGD(1.0), mpips.BSP(reduce="sum"), init="zeros"),
        ]
        outcome = mpips.run(
            _push_and_pull,
            tables,
            comm=self.comm,
            verbose=False,
            transport=transport,
            timeout_s=self.timeout_s,
            staging_mib=16,
        )
        return {"transports": sorted(outcome.transports)}

    def do_hdf5(self) -> dict[str, Any]:
        """Write a checkpoint by all ranks, and verify it on rank 0. Collective. Rank 0 needs h5py."""
        from mpips.checkpoint import DenseShardData, ManifestHead, open_checkpoint, write_checkpoint
        from mpips.checkpoint.structure import hdf5_kind

        kind = hdf5_kind()
        first, is_there = exchange(self.comm, [kind, self.folder.is_dir()])[0]
        if first == "none":
            return {"kind": kind}
        if not is_there:
            raise FileNotFoundError(f"{self.folder}: no such folder")
        name = exchange(self.comm, f".mpips-doctor-{os.getpid()}-{time.time_ns()}")[0]
        n = 4096
        values = np.arange(n * self.rank, n * (self.rank + 1), dtype=np.float32)
        table = DenseTable("w", (n * self.comm.Get_size(),))
        head = ManifestHead("doctor", 0, 0, time.time(), [table])
        try:
            written = write_checkpoint(
                self.comm,
                self.folder / name,
                head,
                [DenseShardData("w", n * self.rank, values, {}, 0)],
                timeout_s=self.timeout_s,
            )
            if self.rank == 0:
                with open_checkpoint(written.path) as checkpoint:
                    checkpoint.verify()
        finally:
            if self.rank == 0:
                shutil.rmtree(self.folder / name, ignore_errors=True)
        return {"kind": kind}

    def do_failing(self) -> dict[str, Any]:
        """Run a job whose workers raise an error, which must end all ranks. Does not return. Collective."""

        def fail(worker: mpips.Worker) -> None:
            raise ArithmeticError("mpips doctor raises this error on purpose")

        table = DenseTable("dense", (10,))
        mpips.run(fail, [table], comm=self.comm, verbose=False, timeout_s=self.timeout_s)
        return {}


def _push_and_pull(worker: mpips.Worker) -> None:
    """Push known updates for three clocks, and compare every pulled value with their sum.

    Raises:
        ValueError: A value differs.
    """
    dense, rows = worker.table("dense"), worker.table("rows")
    keys = np.arange(-50, 50, dtype=np.int64) * 1_000_003
    update = np.arange(5000, dtype=np.float32)
    for step in range(1, 4):
        dense.push(-update)
        rows.push(keys, np.full((100, 8), -1.0, np.float32))
        worker.clock()
        times = step * worker.n_workers
        if not np.array_equal(dense.pull(), update * times):
            raise ValueError("a dense table has other values than the sum of the pushes")
        if not np.array_equal(rows.pull(keys), np.full((100, 8), times, np.float32)):
            raise ValueError(
                "rows of an embedding table have other values than the sum of the pushes"
            )


def main() -> None:
    """Run the stages named on the command line; mpirun starts this program."""
    stages, folder, timeout_s = sys.argv[1:]
    sys.exit(Rank(stages.split(","), Path(folder), float(timeout_s)).run())


main()
