"""One rank of a launch of `mpips doctor`: what a job does, stage by stage, each told before and after.

python -m mpips.doctor.rank.ranks STAGE,STAGE,... FOLDER TIMEOUT_S

After each stage the ranks exchange whether it went well, so that no rank enters the next one alone. A
stage that hangs is ended by whoever started the launch.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
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
from mpips.doctor.stages import MARK, Word
from mpips.model.table import Table
from mpips.mpi import launch
from mpips.mpi.exchange import exchange
from mpips.transport.region import SHM

_TAG = 11
_FORK_S = 10.0


class Rank:
    """This rank, and what it does in each stage."""

    def __init__(self, stages: list[str], folder: Path, timeout_s: float) -> None:
        """Nothing is started."""
        self.stages = stages
        self.folder = folder
        self.timeout_s = timeout_s
        self.rank = launch.launched_rank()
        self.host = socket.gethostname()
        self.comm: Any = None

    def say(
        self, stage: str, done: bool, error: str = "", data: dict[str, Any] | None = None
    ) -> None:
        """One line, in one piece."""
        word = Word(
            rank=self.rank, host=self.host, stage=stage, done=done, error=error, data=data or {}
        )
        line = MARK + msgspec.json.encode(word).decode() + "\n"
        os.write(sys.stdout.fileno(), line.encode())

    def run(self) -> int:
        """All stages; 1 if one failed that the next ones need."""
        for stage in self.stages:
            self.say(stage, False)
            work: Callable[[], dict[str, Any]] = getattr(self, f"do_{stage}")
            try:
                error, data = "", work()
            except Exception as problem:
                error, data = f"{type(problem).__name__}: {problem}"[:1000], {}
            self.say(stage, True, error, data)
            if self.comm is None and error:
                return 1
            if self.comm is not None:
                exchange(self.comm, bool(error))
        return 0

    def do_start(self) -> dict[str, Any]:
        """Before MPI: versions."""
        return {"versions": {"python": platform.python_version(), **versions()}}

    def do_mpi(self) -> dict[str, Any]:
        """Initialise MPI; how many it sees."""
        self.comm = launch.load_mpi()
        self.rank = self.comm.Get_rank()
        from mpi4py import MPI

        library = library_name(MPI.Get_library_version())
        return {"size": self.comm.Get_size(), "library": library}

    def do_facts(self) -> dict[str, Any]:
        """What this rank may use, and how its clock stands to that of rank 0."""
        space = os.statvfs(SHM)
        return {
            "skew_s": self._skew(),
            "shm_free": space.f_frsize * space.f_bavail,
            "affinity": sorted(os.sched_getaffinity(0)),
            "cores": os.cpu_count() or 1,
        }

    def _skew(self, rounds: int = 11) -> float:
        """Seconds that this host's clock is ahead of rank 0's; collective over ranks."""
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
        """Whether a file that rank 0 makes in the folder is there for all."""
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
            raise FileNotFoundError(f"{self.folder} is not the same folder as on rank 0's host")
        return {}

    def do_fork(self) -> dict[str, Any]:
        """Whether a forked child of a process with MPI runs, as data loaders fork them."""
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
            raise TimeoutError("a forked child does not run once MPI is up")
        return {}

    def do_session(self) -> dict[str, Any]:
        """A small job, as users have it."""
        return self._session("auto")

    def do_rma(self) -> dict[str, Any]:
        """The same through an MPI window."""
        return self._session("rma")

    def do_p2p(self) -> dict[str, Any]:
        """The same by messages."""
        return self._session("p2p")

    def _session(self, transport: str) -> dict[str, Any]:
        """Push and pull known numbers; every value is compared."""
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
        return {"transports": sorted({t for row in outcome.transports for t in row})}

    def do_hdf5(self) -> dict[str, Any]:
        """Write a file together and read it back."""
        from mpips.checkpoint.structure import hdf5_kind
        from mpips.data.hdf5 import load_hdf5

        kinds = exchange(self.comm, hdf5_kind())
        if set(kinds) != {"parallel"}:
            return {"kind": kinds[self.rank]}
        name = exchange(self.comm, f".mpips-doctor-{os.getpid()}-{time.time_ns()}.h5")[0]
        path = self.folder / name
        h5py, size = load_hdf5("writing checkpoints"), self.comm.Get_size()
        with h5py.File(path, "w", driver="mpio", comm=self.comm) as file:
            rows = file.create_dataset("rows", (size, 4096), "i8")
            with rows.collective:
                rows[self.rank] = np.arange(4096) + self.rank
            file.flush()
        self.comm.Barrier()
        wrong = False
        if self.rank == 0:
            with h5py.File(path, "r") as file:
                expected = np.arange(4096)[np.newaxis] + np.arange(size)[:, np.newaxis]
                wrong = not np.array_equal(file["rows"][()], expected)
            path.unlink(missing_ok=True)
        if exchange(self.comm, wrong)[0]:
            raise ValueError(f"what was written to {path} is not what was read")
        return {"kind": "parallel"}

    def do_failing(self) -> dict[str, Any]:
        """A job whose worker fails: all ranks must end. Does not return."""

        def fail(worker: mpips.Worker) -> None:
            raise ArithmeticError("the error that mpips doctor asked for")

        table = DenseTable("dense", (10,))
        mpips.run(fail, [table], comm=self.comm, verbose=False, timeout_s=self.timeout_s)
        return {}


def _push_and_pull(worker: mpips.Worker) -> None:
    dense, rows = worker.table("dense"), worker.table("rows")
    keys = np.arange(-50, 50, dtype=np.int64) * 1_000_003
    update = np.arange(5000, dtype=np.float32)
    for step in range(1, 4):
        dense.push(-update)
        rows.push(keys, np.full((100, 8), -1.0, np.float32))
        worker.clock()
        times = step * worker.n_workers
        if not np.array_equal(dense.pull(), update * times):
            raise ValueError("a dense table holds other values than were pushed")
        if not np.array_equal(rows.pull(keys), np.full((100, 8), times, np.float32)):
            raise ValueError("rows hold other values than were pushed")


def main() -> None:
    """Called by mpirun only."""
    stages, folder, timeout_s = sys.argv[1:]
    sys.exit(Rank(stages.split(","), Path(folder), float(timeout_s)).run())


main()
