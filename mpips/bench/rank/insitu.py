"""Ranks of the suite `insitu`: producers that push samples, and readers.

push     one producer: pushes of 1 MiB until the server holds them, and copies of as many bytes
attach   a program beside the ranks pushes 1 MiB into its queue, and copies as many bytes (attached.py)
solve    a solver that pushes its field after each step, and without pushes; a reader draws batches meanwhile
gather   producers whose samples one reader reads, each once; by a stream, and by files in /dev/shm
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpips.bench.insitu import InsituOptions
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings, measure_alternately, rates
from mpips.bench.rank.attached import SIDE
from mpips.bench.rank.ranks import BenchRanks
from mpips.errors import StallError
from mpips.insitu.stream_table import StreamTable
from mpips.process.patience import Patience
from mpips.testing.errors import BenchError
from mpips.worker.worker import Worker

MIB = 1 << 20
_HELD = 64  # samples that are held, and places to which memcpy copies: more than caches hold
_BATCH = 16  # samples that a reader takes at once
_PATIENCE_S = 60.0
_SHM = Path("/dev/shm")


class RedisClient:
    """A connection to a Redis server, for SET alone."""

    def __init__(self, address: str) -> None:
        """Connect. `address`: "HOST:PORT"."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def set(self, key: bytes, value: memoryview) -> None:
        """Store a value; return when the server has answered.

        Raises:
            RuntimeError: It answers with an error.
        """
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key, value.nbytes)
        self._socket.sendall(head)
        self._socket.sendall(value)
        self._socket.sendall(b"\r\n")
        answer = b""
        while not answer.endswith(b"\r\n"):
            part = self._socket.recv(4096)
            if not part:
                raise RuntimeError("the Redis server has closed the connection")
            answer += part
        if answer != b"+OK\r\n":
            raise RuntimeError(f"the Redis server answers {answer!r}")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def push(ranks: BenchRanks, options: InsituOptions) -> Findings | None:
    """Measure pushes on the rank of the worker. Collective."""
    shape = (SIDE, SIDE)
    streams = [
        StreamTable("full", {"x": shape}, _HELD, keep="newest"),
        StreamTable("plain", {"x": shape}, _HELD, keep="newest", moments="none"),
    ]

    def main(worker: Worker) -> Findings:
        x = np.random.default_rng(1).standard_normal((SIDE, SIDE), np.float32)
        works: dict[str, Callable[[], object]] = {}
        places = np.ones((_HELD, SIDE, SIDE), np.float32)
        at = [0]

        def copy() -> None:
            at[0] = (at[0] + 1) % _HELD
            np.copyto(places[at[0]], x)

        works["memcpy"] = copy
        for stream in streams:
            works[stream.name] = partial(stream.producer(worker).push, {"x": x})
        client = RedisClient(options.redis) if options.redis else None
        if client is not None:
            bytes_of_x = memoryview(x.reshape(-1).view(np.uint8).data)

            def send() -> None:
                at[0] = (at[0] + 1) % _HELD
                client.set(b"x%d" % at[0], bytes_of_x)

            works["redis"] = send
        # All samples that are held have been written once.
        for work in works.values():
            for _ in range(_HELD):
                work()
        calls = 4 if options.quick else 200
        found = measure_alternately([*works.values()], [calls] * len(works), options.repetitions)
        if client is not None:
            client.close()
        return push_findings(dict(zip(works, found, strict=True)))

    value: Findings | None = ranks.session(main, _tables(streams))
    return value


def push_findings(seconds: dict[str, list[float]]) -> Findings:
    """Return the ratios of pushes. `seconds`: of a call by repetition; "redis" may be missing."""
    us = {name: [1e6 * s for s in each] for name, each in seconds.items()}
    found = Findings()
    sides = [
        ("sample_push_vs_memcpy", "full", "memcpy", ""),
        ("sample_push_plain_vs_memcpy", "plain", "memcpy", ", moments = 'none'"),
        ("sample_push_vs_redis", "full", "redis", ""),
    ]
    for name, ours, baseline, how in sides:
        if baseline in us:
            found.comparisons.append(
                Comparison(
                    name=name,
                    what=f"a sample of 1 MiB, until the server holds it{how}",
                    unit="us",
                    ours=us[ours],
                    baseline=us[baseline],
                    baseline_name="memcpy" if baseline == "memcpy" else "SET of Redis, loopback",
                )
            )
    return found


def attach(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure pushes of a program, whose queue the rank of the worker serves. Collective."""
    stream = StreamTable("s", {"x": (SIDE, SIDE)}, _HELD, keep="newest", moments="none")

    def main(worker: Worker) -> Findings:
        with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
            name, out = Path(folder).name, Path(folder, "out.json")
            numbers = [str(4 if options.quick else 200), str(options.repetitions)]
            command = [sys.executable, "-m", "mpips.bench.rank.attached", name, *numbers, str(out)]
            with subprocess.Popen(command) as program:
                try:
                    stream.serve(worker, name, patience_s=_PATIENCE_S)
                    code = program.wait(_PATIENCE_S)
                finally:
                    program.kill()
            if code:
                raise BenchError(f"the program that pushes has ended with code {code}")
            seconds = msgspec.json.decode(out.read_bytes(), type=dict[str, list[float]])
        return Findings(
            comparisons=[
                Comparison(
                    name="sample_attach_vs_memcpy",
                    what="a sample of 1 MiB of a program beside the ranks, until it is in the queue",
                    unit="us",
                    ours=[1e6 * s for s in seconds["push"]],
                    baseline=[1e6 * s for s in seconds["memcpy"]],
                    baseline_name="memcpy",
                )
            ]
        )

    value: Findings | None = ranks.session(main, _tables([stream]))
    return value


def solve(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure a solver with and without pushes, on the rank of worker 0; worker 1 reads. Collective."""
    stream = StreamTable("s", {"x": (SIDE, SIDE)}, _HELD, keep="newest")
    steps = 3 if options.quick else 60

    def main(worker: Worker) -> Findings | None:
        if worker.index == 1:
            # It reads at any time alike, while the solver pushes and while it does not.
            for _ in stream.reader(worker).batches(4, patience_s=_PATIENCE_S):
                worker.clock()
            return None
        producer = stream.producer(worker)
        field = np.random.default_rng(2).standard_normal((SIDE, SIDE), np.float32)

        def step() -> None:
            """Some explicit steps of the heat equation: between two samples a solver makes several."""
            for _ in range(8):
                around = sum(np.roll(field, by, axis) for axis in (0, 1) for by in (-1, 1))
                field.__iadd__(np.float32(0.2) * (around - 4 * field))

        def pushing() -> None:
            step()
            producer.push({"x": field}, wait=False)
            worker.clock()

        def alone() -> None:
            step()
            worker.clock()

        pushing()
        with_s, without_s = measure_alternately([pushing, alone], [steps] * 2, options.repetitions)
        producer.close()
        return Findings(
            comparisons=[
                Comparison(
                    name="solver_slowdown",
                    what="steps of a solver that pushes 1 MiB after each, while a reader draws batches",
                    unit="ms",
                    ours=[1e3 * s for s in with_s],
                    baseline=[1e3 * s for s in without_s],
                    baseline_name="the same without pushes",
                )
            ]
        )

    value: Findings | None = ranks.session(main, _tables([stream]), servers=1)
    return value


def gather(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure one reader of many producers, on the rank of worker 0. Collective."""
    producers = ranks.size - 3  # without scheduler, server and reader
    side = 256  # samples of 256 KiB
    each = 8 if options.quick else 64
    stream = StreamTable(
        "s", {"x": (side, side)}, each * producers, producers=producers, keep="newest"
    )
    name = tempfile.mkdtemp(prefix="mpips-bench-", dir=_SHM) if ranks.rank == 0 else ""
    folder = Path(ranks.comm.bcast(name))

    def main(worker: Worker) -> Findings | None:
        mine = _Gathering(worker, stream, folder, side, each)
        seconds: dict[str, list[float]] = {"stream": [], "files": []}
        for repetition in range(options.repetitions + 1):
            for how, work in (("stream", mine.by_stream), ("files", mine.by_files)):
                worker.barrier(f"{how} {repetition}")
                start = time.perf_counter()
                work()
                seconds[how].append(time.perf_counter() - start)
        worker.barrier("end")
        if worker.index > 0:
            return None
        per_s = {how: rates(each_s[1:], each * producers) for how, each_s in seconds.items()}
        return Findings(
            comparisons=[
                Comparison(
                    name="many_to_one_vs_files",
                    what=f"samples of 256 KiB of {producers} producers, each read once by one reader",
                    unit="1/s",
                    ours=per_s["stream"],
                    baseline=per_s["files"],
                    baseline_name="files in /dev/shm",
                )
            ]
        )

    try:
        value: Findings | None = ranks.session(main, _tables([stream]), servers=1)
        return value
    finally:
        ranks.comm.Barrier()
        if ranks.rank == 0:
            shutil.rmtree(folder)


class _Gathering:
    """One worker's part: it reads (worker 0), or pushes and writes."""

    def __init__(
        self, worker: Worker, stream: StreamTable, folder: Path, side: int, each: int
    ) -> None:
        self._worker, self._folder, self._each = worker, folder, each
        self._total = each * stream.producers
        self._sums = 0.0
        if worker.index == 0:
            self._reader = stream.reader(worker)
        else:
            self._producer = stream.producer(worker, worker.index - 1)
            self._x = np.full((side, side), worker.index, np.float32)

    def by_stream(self) -> None:
        """Push samples, or read all of them, each once."""
        if self._worker.index == 0:
            batches = self._reader.batches(
                _BATCH, max_uses=1, limit=self._total // _BATCH, patience_s=_PATIENCE_S
            )
            for found in batches:
                self._sums += float(found["x"][:, 0, 0].sum())
            self._worker.clock()
            return
        for _ in range(self._each):
            self._producer.push({"x": self._x}, wait=False)
            self._worker.clock()
        self._producer.flush()

    def by_files(self) -> None:
        """Write files, or read all of them, each once."""
        if self._worker.index == 0:
            n, patience = 0, Patience(_PATIENCE_S)
            while n < self._total:
                for path in self._folder.glob("*.npy"):
                    self._sums += float(np.load(path)[0, 0])
                    path.unlink()
                    n += 1
                if patience.is_over:
                    raise StallError(f"{n} of {self._total} files were written")
            return
        for i in range(self._each):
            # Readers must see whole files.
            hidden = self._folder / f"{self._worker.index}-{i}.hidden"
            with hidden.open("wb") as file:
                np.save(file, self._x)
            hidden.rename(hidden.with_suffix(".npy"))


def _tables(streams: list[StreamTable]) -> list[Any]:
    return [table for stream in streams for table in stream.tables]
