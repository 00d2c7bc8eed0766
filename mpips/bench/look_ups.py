"""The cost of look-ups in the suite `limits`: a server that is asked while it trains, beside one that is not.

The measure is CPU seconds of the server, as in mpips.bench.row_limits. A thread asks in the way of `mpips
serve`, in the same memory; its own time does not count.
"""

from __future__ import annotations

import threading
import time

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.row_limits import ClockedServer, LimitSizes, spread
from mpips.server.look_ups import MOST_KEYS, N_SLOTS, ROWS_BYTES

ROWS_PER_S = 10_000  # rows that are looked up in a second of the server's time
N_KEYS = 100  # of one request
_WAIT_S = 60.0


class Asker:
    """A thread that looks rows up, one request each time it is told to."""

    def __init__(self, server: ClockedServer, dim: int) -> None:
        """Let the server answer, and start the thread."""
        sizes, core, text = (N_SLOTS, MOST_KEYS, ROWS_BYTES), server.side.core, b"{}"
        memory = server.side.regions.create("ask0-0", _native.look_up_bytes(*sizes, text))
        core.set_look_ups(memory, *sizes, text)
        everything = memory.view(0, memory.n_bytes, True)
        self._bell = everything[64:72].view(np.uint64)
        self._client = _native.LookUpClient(everything, 1)
        self._rows = np.empty((N_KEYS, dim), np.float32)
        self._has = np.empty(N_KEYS, np.uint8)
        self._keys: NDArray[np.int64] | None = None
        self._asks, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._status = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._asks.acquire() and self._keys is not None:
            status, _, _ = self._client.ask(0, self._keys, self._rows, self._has, _WAIT_S)
            self._status = status if self._has.all() else "rows are missing"
            self._done.release()

    def ask(self, keys: NDArray[np.int64]) -> None:
        """Look up keys that have rows, shape (N_KEYS,); return when the request waits at the server."""
        self._keys = keys
        self._asks.release()
        end = time.monotonic() + _WAIT_S
        while self._bell[0] == 0:
            if time.monotonic() > end:
                raise AssertionError("a look-up has not reached the server")
            time.sleep(0)

    def finish(self) -> None:
        """Wait until the request is answered."""
        if not self._done.acquire(timeout=_WAIT_S) or self._status != "answered":
            raise AssertionError(f"a look-up was not answered: {self._status or 'late'}")

    def end(self) -> None:
        """End the thread."""
        self._keys = None
        self._asks.release()
        self._thread.join(_WAIT_S)


def measure_look_ups(sizes: LimitSizes, options: Options) -> Findings:
    """Measure pushed rows per second while `ROWS_PER_S` are looked up, and while none are."""
    live = spread(np.random.default_rng(5).permutation(sizes.n_live))
    updates = np.random.default_rng(6).standard_normal((sizes.keys, sizes.dim), np.float32)
    parts = np.array_split(live, max(1, sizes.n_live // sizes.keys))
    servers = {name: ClockedServer(sizes.dim) for name in ("asked", "alone")}
    asker = Asker(servers["asked"], sizes.dim)
    rates: dict[str, list[float]] = {name: [] for name in servers}
    try:
        for part in parts:
            for server in servers.values():
                server.seconds(part, updates, answers=True)
        since = N_KEYS / ROWS_PER_S  # seconds of the server for which nobody has asked
        n_asked = 0
        for _ in range(options.repetitions):
            sums = dict.fromkeys(servers, 0.0)
            for clock in range(sizes.clocks):
                part = parts[clock % len(parts)]
                asks = since >= N_KEYS / ROWS_PER_S
                if asks:
                    asker.ask(live[:N_KEYS])
                    since -= N_KEYS / ROWS_PER_S
                    n_asked += 1
                # The order changes, so that caches and drift affect both alike.
                for name in ("asked", "alone") if clock % 2 else ("alone", "asked"):
                    taken = servers[name].seconds(part, updates, answers=True)
                    sums[name] += taken
                    since += taken if name == "asked" else 0.0
                if asks:
                    asker.finish()
            for name in servers:
                rates[name].append(sizes.keys * sizes.clocks / sums[name])
    finally:
        asker.end()
        for server in servers.values():
            server.side.regions.unlink()
    return Findings(
        comparisons=[
            Comparison(
                name="serve_slowdown",
                what=f"pushes of rows while {ROWS_PER_S:,} rows per second are looked up, {n_asked} requests",
                unit="rows/s",
                ours=rates["asked"],
                baseline=rates["alone"],
                baseline_name="without look-ups",
            )
        ]
    )
