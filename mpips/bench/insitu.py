"""The suite `insitu`: samples of a simulation, pushed into a stream and read from it.

Pushes are compared with memcpy, and with a Redis server on this machine if there is one: those of a program
beside the ranks, into its queue, and those of a rank, until servers hold the sample. A solver that pushes is
compared with the same solver alone, many producers and one reader with files in /dev/shm.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Findings
from mpips.testing.errors import BenchError

_PATIENCE_S = 20.0  # until a Redis server that was started accepts connections
RATIOS = (
    "sample_attach_vs_memcpy",
    "sample_push_vs_memcpy",
    "sample_push_plain_vs_memcpy",
    "sample_push_vs_redis",
    "solver_slowdown",
    "many_to_one_vs_files",
)


class InsituOptions(Options, kw_only=True, frozen=True):
    """Options with the Redis server to compare with.

    Attributes:
        redis: "HOST:PORT" of the server; "" without one.
    """

    redis: str = ""


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on this machine. `nodes` above 1 skips the suite.

    Raises:
        BenchError: A launch failed, or a Redis server that is installed does not start.
    """
    if nodes > 1:
        return Findings(
            skipped=dict.fromkeys(RATIOS, "needs only one node: run it without --nodes")
        )
    found = Findings()
    with redis_server() as redis:
        chosen = InsituOptions(
            repetitions=options.repetitions, quick=options.quick, cores=options.cores, redis=redis
        )
        # One rank is scheduler and server, the other one the producer.
        found.add(on_ranks("mpips.bench.rank.insitu:push", 2, chosen))
    if not redis:
        found.skipped["sample_push_vs_redis"] = "there is no redis-server in PATH"
    found.add(on_ranks("mpips.bench.rank.insitu:attach", 2, options))
    # Scheduler, server and reader, with one solver and with several producers.
    found.add(on_ranks("mpips.bench.rank.insitu:solve", 4, options))
    producers = 2 if options.quick else 8
    found.add(on_ranks("mpips.bench.rank.insitu:gather", 3 + producers, options))
    return found


@contextmanager
def redis_server() -> Iterator[str]:
    """Start a Redis server of its own; yield the address of its port on the loopback, "" without the program.

    Raises:
        BenchError: It accepts no connection within 20 s.
    """
    program = shutil.which("redis-server")
    if program is None:
        yield ""
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        command += ["--save", "", "--appendonly", "no"]
        with (
            Path(folder, "log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
        ):
            try:
                _await_port(port, process)
                yield f"127.0.0.1:{port}"
            finally:
                process.kill()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.02)
    raise BenchError(f"redis-server accepts no connection on port {port}")
