"""The tables of a run at work, read from the memory of its servers on this node.

Rows are asked for in the file of each server (mpips.server.look_ups); dense tables are copied from its
region, block by block, each at a version in which it is whole. If a server ends, is killed or does not answer
in time, `LiveGone` has the reason, and the caller takes the newest checkpoint. A later attempt of the run, on
any number of servers, is found within `RETRY_S` seconds.

Values are valid for these reasons:
- Rows are copied from an answer that the server has completed (native/src/server/look_up_port.hpp).
- A dense block is copied between two loads of its version word (native/src/ring/dense_view.hpp). That alone
  is not enough: a server may be killed, and the next attempt takes the region over and repairs it before it
  serves. So the server must answer a request after the copy, through the file of its own attempt. Then it
  ran during the whole copy, and was the only writer.
- All files are those of one attempt, which the names contain, and belong to this user. Another user could
  make a file with the name of a removed one, so the owner is checked on the open file.

A server holds an owner's lock on its file while it runs (native/src/shm/shared_memory.hpp). A client asks the
kernel for that lock and takes none, not even for a moment, so it keeps no launch from removing files or from
taking them over.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from mpips import _native
from mpips.errors import ConfigError, DataError
from mpips.model.hash_buckets import bucket_keys
from mpips.model.partition import Partition
from mpips.server.look_ups import N_SLOTS, LookUpTable, LookUpText
from mpips.transport.region import LOOK_UPS, SHM, own_segments, persistent

Float32: TypeAlias = npt.NDArray[np.float32]
Keys: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Has: TypeAlias = npt.NDArray[np.bool_]
_T = TypeVar("_T")

RETRY_S = 1.0  # seconds between two searches for the servers of a run
PATIENCE_S = 1.0  # seconds within which a server that runs must answer
_LOOK_S = 0.1  # seconds of a wait after which it is tested whether the server runs
_COPY_S = 0.5  # seconds within which a block of a dense table must be at rest
_TRIES = 3  # copies of a dense table that changes meanwhile
_PART = re.compile(LOOK_UPS + r"(\d+)-(\d+)")
_LOCK = struct.Struct("hhqqi4x")  # struct flock


class LiveGone(Exception):
    """The memory of the run cannot be read now. The message is the reason, without paths."""


class LiveRows(NamedTuple):
    """Rows of an embedding table.

    Attributes:
        values: float32, shape (n, dim); of keys without a row the initial values.
        has: True for the keys that have a row, shape (n,).
        version: Updates of the table that the rows contain at least, since the start or the last restart that
            read a checkpoint; the least of all servers.
        step: The clock of the run, in whole steps of the slowest worker; the least of all servers.
    """

    values: Float32
    has: Has
    version: int
    step: int


class LiveValues(NamedTuple):
    """The values of a dense table.

    Attributes:
        values: float32, of the table's shape.
        version: As of `LiveRows`. Blocks of 64 KiB are whole; different ones may have different versions
            while workers push.
        step: As of `LiveRows`.
    """

    values: Float32
    version: int
    step: int


class LiveServer:
    """The memory of one server. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Map the file of look-ups.

        Raises:
            OSError: The file is gone, or belongs to another user.
            ValueError: It is not complete, or of another format.
        """
        self._fd = -1
        self._fd = _open_own(path, os.O_RDWR)
        memory: Bytes = np.frombuffer(mmap.mmap(self._fd, 0), np.uint8)
        self.client = _native.LookUpClient(memory, secrets.randbits(64))
        self.text = msgspec.json.decode(self.client.text, type=LookUpText)
        self._region: Bytes | None = None
        # More threads than slots would wait for each other, and not for the server.
        self._turns = threading.BoundedSemaphore(N_SLOTS)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def runs(self) -> bool:
        """False if no process holds the owner's lock on the file: the server has ended, however it did."""
        wanted = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, wanted)
        return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def region(self) -> Bytes:
        """Return the region, mapped read-only.

        Raises:
            OSError: It is gone, or belongs to another user.
        """
        if self._region is None:
            fd = _open_own(SHM / Path(self.text.region).name, os.O_RDONLY)
            try:
                memory = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
            self._region = np.frombuffer(memory, np.uint8)
        return self._region

    def ask(self, table: int, keys: Keys, rows: Float32, has: Bytes) -> tuple[int, int]:
        """Look up to `client.n_keys` keys up; return version and clock. Blocks for 2 * PATIENCE_S at most.

        Raises:
            LiveGone: The server has ended, or does not answer in time.
        """
        if not self._turns.acquire(timeout=PATIENCE_S):
            raise self._late()
        try:
            return self._asked(table, keys, rows, has)
        finally:
            self._turns.release()

    def _asked(self, table: int, keys: Keys, rows: Float32, has: Bytes) -> tuple[int, int]:
        end = time.monotonic() + PATIENCE_S
        while True:
            status, version, clock = self.client.ask(table, keys, rows, has, _LOOK_S)
            if status == "answered":
                return version, clock
            if status == "closed" or not self.runs:
                raise LiveGone(f"server {self.text.server} has ended")
            if status == "refused":
                raise LiveGone(f"server {self.text.server} has other tables")
            if time.monotonic() > end:
                raise self._late()

    def _late(self) -> LiveGone:
        return LiveGone(f"server {self.text.server} has not answered within {PATIENCE_S:g} s")


def _open_own(path: Path, access: int) -> int:
    """Open a file of this user.

    Raises:
        OSError: It is gone, or no regular file of this user.
    """
    fd = os.open(path, access | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise PermissionError(f"{path} is no file of this user")
    return fd


class _Attempt:
    """The servers of one attempt of the run, all of which are on this node."""

    def __init__(self, generation: int, servers: list[LiveServer]) -> None:
        self.generation = generation
        self.servers = servers
        self.tables = {table.name: table for table in servers[0].text.tables}
        self.partitioners = {
            name: Partition.from_config(table.partition).partitioner(len(servers))
            for name, table in self.tables.items()
            if table.kind == "embedding"
        }


class LiveRun:
    """The tables of a run at work, as far as this node has its servers. Thread-safe."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Look for nothing yet.

        Args:
            token: Token of the run, in run.json.
            clock: Seconds of any clock.
        """
        self._token = token
        self._clock = clock
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        self._retry_at = float("-inf")
        self._why = "the run is not at work on this node"

    @property
    def why(self) -> str:
        """Reason why there is no live memory; "": there is."""
        return "" if self.follow() else self._why

    def follow(self) -> bool:
        """Find the servers of the run; return True if they can be asked. Cheap if they were found before.

        The memory of servers that have ended is given back.
        """
        try:
            attempt = self._current()
        except LiveGone:
            return False
        if all(server.client.is_open and server.runs for server in attempt.servers):
            return True
        self._drop(attempt, "the servers have ended")
        try:
            self._current()
        except LiveGone:
            return False
        return True

    def table(self, name: str) -> LookUpTable | None:
        """Return a table in the memory of the servers; None: they have no such table.

        Raises:
            LiveGone: See the class.
        """
        return self._current().tables.get(name)

    def tables(self) -> tuple[str, ...]:
        """Return the names of the tables in the memory of the servers; () while these cannot be read."""
        try:
            return tuple(self._current().tables)
        except LiveGone:
            return ()

    def rows(self, name: str, keys: Keys) -> LiveRows:
        """Return the rows of keys. Blocks for 2 * PATIENCE_S at most for 1,024 keys of a server.

        Args:
            name: Name of an embedding table.
            keys: int64, shape (n,), any keys in any order.

        Raises:
            DataError: A key lies outside the range of the table's partition.
            LiveGone: See the class.
        """
        attempt = self._current()
        table = self._checked(attempt, name, "embedding")
        keys = np.ascontiguousarray(keys, np.int64)
        if table.hash_buckets:
            keys = bucket_keys(keys, table.hash_buckets)
        try:
            owners = attempt.partitioners[name].owners(keys)
        except (KeyError, IndexError) as error:
            raise DataError(f"table '{name}': {error}") from None
        values = np.empty((len(keys), table.shape[0]), np.float32)
        has = np.empty(len(keys), np.uint8)
        heads = []
        for index, server in enumerate(attempt.servers):
            mine = np.flatnonzero(owners == index)
            # Without keys one server tells version and clock.
            if len(mine) or (not len(keys) and not index):
                heads += self._asked(attempt, server, table, keys, mine, values, has)
        return LiveRows(values, has != 0, min(h[0] for h in heads), min(h[1] for h in heads))

    def _asked(
        self,
        attempt: _Attempt,
        server: LiveServer,
        table: LookUpTable,
        keys: Keys,
        mine: npt.NDArray[np.intp],
        values: Float32,
        has: Bytes,
    ) -> list[tuple[int, int]]:
        """Ask a server for the rows at the places `mine`, in parts; return version and clock of each."""
        dim = table.shape[0]
        most = max(1, min(server.client.n_keys, server.client.rows_bytes // (4 * dim)))
        heads = []
        for start in range(0, max(len(mine), 1), most):
            at = mine[start : start + most]
            rows, marks = np.empty((len(at), dim), np.float32), np.empty(len(at), np.uint8)
            heads.append(
                self._try(attempt, lambda: server.ask(table.index, keys[at], rows, marks))  # noqa: B023
            )
            values[at], has[at] = rows, marks
        return heads

    def dense(self, name: str) -> LiveValues:
        """Return a dense table. Blocks for less than 15 s per shard, and for some seconds if servers hang.

        Raises:
            LiveGone: See the class.
        """
        attempt = self._current()
        table = self._checked(attempt, name, "dense")
        return self._try(attempt, lambda: self._copied(attempt, table))

    def _copied(self, attempt: _Attempt, table: LookUpTable) -> LiveValues:
        n = max((stop for _, _, stop in table.shards), default=0)
        values = np.empty(n, np.float32)
        for _ in range(_TRIES):
            before = self._heads(attempt, table)
            for index, start, stop in table.shards:
                server = attempt.servers[index]
                versions, at = server.text.places[table.name]
                try:
                    region = server.region()
                except OSError:
                    raise LiveGone(f"the memory of server {index} is gone") from None
                if not _native.copy_dense_at(region, versions, at, values[start:stop], _COPY_S):
                    raise LiveGone(f"table '{table.name}' does not come to rest on server {index}")
            # A server that was killed in the middle of an update must not be read.
            after = self._heads(attempt, table)
            if before == after:
                break
        version, step = min(v for v, _ in before), min(c for _, c in before)
        return LiveValues(values.reshape(table.shape), version, step)

    def _heads(self, attempt: _Attempt, table: LookUpTable) -> list[tuple[int, int]]:
        """Return version and clock of a table at each server that has a part of it, all of which run."""
        none, rows, has = np.empty(0, np.int64), np.empty((0, 1), np.float32), np.empty(0, np.uint8)
        indices = sorted({index for index, _, _ in table.shards}) or [0]
        return [attempt.servers[i].ask(table.index, none, rows, has) for i in indices]

    def _checked(self, attempt: _Attempt, name: str, kind: str) -> LookUpTable:
        table = attempt.tables.get(name)
        if table is None or table.kind != kind:
            raise LiveGone(f"the servers hold no {kind} table '{name}'")
        return table

    def _try(self, attempt: _Attempt, ask: Callable[[], _T]) -> _T:
        """Return the result of `ask`; drop the attempt if it is gone."""
        try:
            return ask()
        except LiveGone as gone:
            self._drop(attempt, str(gone))
            raise

    def _drop(self, attempt: _Attempt, why: str) -> None:
        with self._lock:
            if self._attempt is attempt:
                self._attempt, self._why = None, why
                self._retry_at = self._clock() + RETRY_S

    def _current(self) -> _Attempt:
        """Return the servers of the newest attempt; search for them if it is time.

        Raises:
            LiveGone: They are not at work, or not here.
        """
        attempt = self._attempt
        if attempt is not None:
            return attempt
        with self._lock:
            if self._attempt is not None:
                return self._attempt
            now = self._clock()
            if now < self._retry_at:
                raise LiveGone(self._why)
            self._retry_at = now + RETRY_S
            self._attempt = self._found()
            return self._attempt

    def _found(self) -> _Attempt:
        """Map the files of the newest attempt.

        Raises:
            LiveGone: They are not all there, or a server does not run.
        """
        paths: dict[int, dict[int, Path]] = {}
        for token in (self._token, persistent(self._token)):
            for part, path in own_segments(token):
                if match := _PART.fullmatch(part):
                    paths.setdefault(int(match[2]), {})[int(match[1])] = path
        if not paths:
            self._why = "the run is not at work on this node"
            raise LiveGone(self._why)
        newest = max(paths)
        servers: list[LiveServer] = []
        try:
            for _, path in sorted(paths[newest].items()):
                servers.append(LiveServer(path))
            self._check(servers)
        except (OSError, ValueError, msgspec.MsgspecError, ConfigError) as error:
            self._why = str(error) if isinstance(error, _NotAll) else "the servers are starting"
            raise LiveGone(self._why) from None
        self._why = ""
        return _Attempt(newest, servers)

    def _check(self, servers: list[LiveServer]) -> None:
        n = servers[0].text.n_servers
        if [server.text.server for server in servers] != list(range(n)):
            raise _NotAll(f"{len(servers)} of the {n} servers are on this node")
        if not all(server.client.is_open and server.runs for server in servers):
            raise _NotAll("the servers have ended")


class _NotAll(ValueError):
    """Not all servers of an attempt are at work on this node."""
