"""Two ranks write a checkpoint and, alternating with it, the same number of bytes to plain files.

Rows of an embedding table and dense values are measured separately. Each way writes new files, so all of them
allocate memory (page cache) and disk blocks; only `in_place` overwrites. A link of a chain, with one row in a
hundred, follows the checkpoint of the rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings, rates
from mpips.bench.rank.ranks import BenchRanks
from mpips.checkpoint import (
    CheckpointInfo,
    DenseShardData,
    EmbeddingShardData,
    ManifestHead,
    find_newest,
    write_checkpoint,
)
from mpips.checkpoint.changes import Changed, Increment
from mpips.checkpoint.shards import ShardData
from mpips.checkpoint.structure import hdf5_kind
from mpips.checkpoint.writer import SWITCH

_BLOCK = 8 << 20
_DIM = 64
_WARM_UP = 2
_ONE_IN = 100


class Bench:
    """One rank's part of the measurement. Every way writes or reads the same number of bytes.

    Attributes:
        n_bytes: Bytes of all ranks together.
    """

    def __init__(self, ranks: BenchRanks, folder: Path, n_bytes: int) -> None:
        """Make the data and the plain files.

        Args:
            ranks: Both ranks.
            folder: An empty folder that all ranks see.
            n_bytes: Bytes of all ranks together.
        """
        self._ranks = ranks
        self._folder = folder
        self.n_bytes = n_bytes
        share = n_bytes // ranks.size
        self._values = np.random.default_rng(ranks.rank).random(share // 4, dtype=np.float32)
        self._raw, self._same = (
            os.open(folder / f"{kind}-{ranks.rank}", os.O_RDWR | os.O_CREAT)
            for kind in ("raw", "same")
        )
        row_bytes = 8 + 4 * _DIM
        n = share // row_bytes
        # Interleave the keys of the ranks, as a hash partition does.
        keys = np.random.default_rng(7).permutation(n * ranks.size)[ranks.rank :: ranks.size]
        self._rows = keys.astype(np.int64), self._values[: n * _DIM].reshape(n, _DIM)
        self._changed = np.sort(np.random.default_rng(9).permutation(n)[: n // _ONE_IN])
        self._base: CheckpointInfo | None = None
        self.sizes: list[tuple[int, int]] = []

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds that the slowest rank needs for `work`. Collective."""
        self._ranks.comm.Barrier()
        start = time.perf_counter()
        work()
        self._ranks.comm.Barrier()
        return time.perf_counter() - start

    def raw(self) -> None:
        """Write this rank's values to its own empty file, block by block; then fsync."""
        self._write_plain(self._raw)

    def in_place(self) -> None:
        """Overwrite a file that already has its page cache and disk blocks; then fsync."""
        self._write_plain(self._same)

    def _write_plain(self, fd: int) -> None:
        data = self._values.view(np.uint8).data
        for start in range(0, len(data), _BLOCK):
            os.pwrite(fd, data[start : start + _BLOCK], start)
        os.fsync(fd)

    def write(self, name: str) -> None:
        """Write a new checkpoint of the values ("dense"; "posix": without MPI-IO) or of the rows ("rows").

        Collective.
        """
        shard: ShardData
        table: mpips.DenseTable | mpips.EmbeddingTable
        if name != "rows":
            n = len(self._values)
            table = mpips.DenseTable("w", (n * self._ranks.size,))
            shard = DenseShardData("w", n * self._ranks.rank, self._values)
        else:
            table = mpips.EmbeddingTable("w", _DIM)
            shard = EmbeddingShardData("w", *self._rows)
        head = ManifestHead("bench", 0, 1, time.time(), [table])
        parallel = False if name == "posix" else None
        self._base = write_checkpoint(
            self._ranks.comm, self._folder / name, head, [shard], parallel=parallel
        )

    def link(self) -> None:
        """Write a link behind the checkpoint of the rows, with one row in `_ONE_IN`. Collective."""
        table = mpips.EmbeddingTable("w", _DIM)
        head = ManifestHead("bench", 0, 2, time.time(), [table])
        assert self._base is not None
        assert self._base.place is not None
        increment = Increment(self._base.place, {"w": Changed(self._changed)})
        info = write_checkpoint(
            self._ranks.comm,
            self._folder / "rows",
            head,
            [EmbeddingShardData("w", *self._rows)],
            increment=increment,
        )
        self.sizes.append((info.n_bytes, self._base.n_bytes))

    def find(self) -> None:
        """Find the checkpoint "dense" and verify its checksums. Collective."""
        found = find_newest(self._folder / "dense", self._ranks.comm)
        assert found.checkpoint is not None
        found.checkpoint.close()

    def clear(self, *names: str) -> None:
        """Free page cache and disk blocks: empty the raw file, remove the checkpoints `names`. Collective."""
        os.ftruncate(self._raw, 0)
        if self._ranks.rank == 0:
            for name in names:
                shutil.rmtree(self._folder / name)
        self._ranks.comm.Barrier()

    def close(self) -> None:
        """Close the plain files."""
        os.close(self._raw)
        os.close(self._same)


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure all ways on two ranks; return findings on rank 0, None on rank 1. Collective."""
    name = tempfile.mkdtemp(prefix="mpips-bench-checkpoint-") if ranks.rank == 0 else ""
    folder = Path(ranks.comm.bcast(name))
    bench = Bench(ranks, folder, (16 << 20) if options.quick else (1 << 30))
    ways: dict[str, Callable[[], object]] = {
        "raw": bench.raw,
        "dense": lambda: bench.write("dense"),
        "verify": bench.find,
        "posix": lambda: bench.write("posix"),
        "rows": lambda: bench.write("rows"),
        "link": bench.link,
        "in_place": bench.in_place,
    }
    # Remove these files after each way, so that the next way reuses their page cache and disk blocks.
    after = {"raw": (), "verify": ("dense",), "posix": ("posix",), "link": ("rows",)}
    times: dict[str, list[float]] = {way: [] for way in ways}
    try:
        # The first repetitions warm up: they allocate memory and disk blocks.
        for repetition in range(_WARM_UP + options.repetitions):
            for way, work in ways.items():
                seconds = bench.seconds(work)
                if repetition >= _WARM_UP:
                    times[way].append(seconds)
                if way in after:
                    bench.clear(*after[way])
    finally:
        bench.close()
        ranks.comm.Barrier()
        if ranks.rank == 0:
            shutil.rmtree(folder)
    if ranks.rank:
        return None
    gib = {way: rates(found, bench.n_bytes / (1 << 30)) for way, found in times.items()}
    found = _findings(gib)
    found.comparisons += _of_links(bench.sizes[_WARM_UP:], times["link"], times["rows"])
    return found


def _of_links(
    sizes: list[tuple[int, int]], links: list[float], wholes: list[float]
) -> list[Comparison]:
    what = f"a link of a chain with one row in {_ONE_IN} of the rows, two servers"
    whole = "a checkpoint of all rows"
    return [
        Comparison(
            name="delta_vs_full_bytes",
            what=what,
            unit="bytes",
            ours=[float(link) for link, _ in sizes],
            baseline=[float(n_bytes) for _, n_bytes in sizes],
            baseline_name=whole,
        ),
        Comparison(
            name="delta_vs_full_s",
            what=what,
            unit="s",
            ours=links,
            baseline=wholes,
            baseline_name=whole,
        ),
    ]


def _findings(gib: dict[str, list[float]]) -> Findings:
    baseline = "write + fsync, one file per process"
    what = {
        "dense": ("write_vs_raw", "a dense tensor written by two servers"),
        "rows": ("write_rows_vs_raw", "rows of an embedding table, sorted by key while written"),
    }
    comparisons = [
        Comparison(
            name=name,
            what=text,
            unit="GiB/s",
            ours=gib[way],
            baseline=gib["raw"],
            baseline_name=baseline,
        )
        for way, (name, text) in what.items()
    ]
    skipped = {}
    if hdf5_kind() == "parallel" and os.environ.get(SWITCH) != "0":
        comparisons.append(
            Comparison(
                name="posix_vs_mpio",
                what="a dense tensor written by two servers without MPI-IO",
                unit="GiB/s",
                ours=gib["posix"],
                baseline=gib["dense"],
                baseline_name="the same by MPI-IO",
            )
        )
    else:
        skipped["posix_vs_mpio"] = "needs an h5py that is built with MPI"
    figures = [
        Figure(
            name="raw_in_place",
            what="plain files overwritten in place",
            unit="GiB/s",
            values=gib["in_place"],
        ),
        Figure(
            name="checkpoint_verify",
            what="reading a checkpoint and its checksums, two ranks",
            unit="GiB/s",
            values=gib["verify"],
        ),
    ]
    return Findings(comparisons=comparisons, figures=figures, skipped=skipped)
