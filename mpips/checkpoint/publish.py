"""Write the rows of a checkpoint into a Redis server, and later only what has changed.

    PREFIX             a hash: `checkpoint` (name), `run`, `step`, `xxh3` (identity of the checkpoint that
                       Redis has), `tables` (JSON: name -> {"dim", "rows"}), and while one is written
                       `writing` (the identity of that one)
    PREFIX:TABLE       a hash for each embedding table: a key in decimal digits -> its values, little-endian
                       float32, one after the other
    PREFIX/lock        while one is written: a random text of the process that writes; it expires

If Redis has a checkpoint that the given one continues in a chain, the links behind it are applied: their rows
are set, the keys of their removed rows are deleted. Otherwise all rows are written under `PREFIX:TABLE/new`
(names of tables have no "/"), and one transaction renames these hashes. Both may be repeated after a kill at
any point: `xxh3` changes last, so links are applied again from the same place, and end in the same rows. A
reader sees rows of both checkpoints while links are applied, and never a part of a row.

Each batch is a transaction, which is done only if this process still has the lock. A hash with another number
of rows than its table has lost some of them, as when Redis evicts at its limit of memory: links are then not
enough, and all rows are written.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.delta import identity
from mpips.checkpoint.manifest import REMOVED, TableEntry
from mpips.checkpoint.reader import Checkpoint
from mpips.errors import CapabilityError, CheckpointError, ConfigError
from mpips.model.row_values import bf16_values

_BATCH_BYTES = 4 << 20  # bytes of values that are sent at once
_BATCH_ROWS = 1 << 14  # of a batch, during which Redis answers nobody else
_FIELDS = 512  # of one command
_TIMEOUT_S = 60.0  # s, most time for one batch
_LOCK_S = 120  # s after its last batch until the lock of a killed process is free
_NEW, _LOCK = "/new", "/lock"
_SCHEMES = ("redis", "rediss", "unix")

Keys = NDArray[np.int64]


class PublishedRows(msgspec.Struct, frozen=True):
    """The result of `publish`.

    Attributes:
        checkpoint: Name of the checkpoint that Redis has now.
        whole: All rows were written; False: those of links.
        links: Number of links that were applied.
        rows: Number of rows that were set.
        removed: Number of keys that were deleted, or that were to be deleted and were not there.
    """

    checkpoint: str
    whole: bool
    links: int
    rows: int
    removed: int


def publish(
    checkpoint: Checkpoint, url: str, prefix: str, tables: Sequence[str] = ()
) -> PublishedRows:
    """Bring a Redis server to an open checkpoint. Blocking; memory holds a batch.

    The checkpoint is not verified. After an error Redis has the former rows, or some of those of links.

    Args:
        checkpoint: The checkpoint, whole or a link.
        url: redis://[:password@]host:port/db, rediss:// or unix:///path?db=0.
        prefix: Prefix of all names in Redis.
        tables: Names of embedding tables; empty: all of them.

    Raises:
        CapabilityError: The package redis is missing.
        ConfigError: The address has another form, the checkpoint has no such embedding table, or the prefix
            names something else in Redis.
        CheckpointError: The checkpoint cannot be read, Redis cannot be reached or refuses a command, or
            another process publishes under the prefix.
    """
    entries = _chosen(checkpoint, tables)
    parts = [*(checkpoint.chain.parts if checkpoint.chain is not None else ()), checkpoint]
    redis = _load()
    try:
        with _client(redis, url) as client:
            return _Publication(client, prefix, entries).run(parts)
    except (redis.RedisError, OSError) as error:
        # A connection that is lost in a transaction is a WatchError as well.
        is_taken = isinstance(error, redis.WatchError) and "watching" not in str(error)
        why = _taken(prefix) if is_taken else _reason(error)
        raise CheckpointError(
            f"{checkpoint.path} was not published to {_shown(url)}: {why}; run the command again"
        ) from None


def _load() -> Any:
    try:
        import redis
    except ImportError as error:
        raise CapabilityError(
            f"publishing to Redis needs its client (pip install redis): {error}"
        ) from None
    return redis


def _client(redis: Any, url: str) -> Any:
    """Return a connected client. Raises ConfigError for any other address."""
    try:
        if urlsplit(url).scheme not in _SCHEMES:
            raise ConfigError(f"{_shown(url)}: is no address of Redis: use redis://HOST:PORT/DB")
        client = redis.Redis.from_url(url, socket_timeout=_TIMEOUT_S)
        if client.get_connection_kwargs().get("decode_responses"):
            raise ValueError("decode_responses cannot be used")
        client.ping()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{_shown(url)}: is no address of Redis: {error}") from None
    return client


def _shown(url: str) -> str:
    """Return an address without what may hold a password: user, password and options."""
    head, at, rest = url.partition("?")[0].rpartition("@")
    return f"{head.partition('://')[0]}://{rest}" if at else rest


def _reason(error: Exception) -> str:
    """Return the text of an error without the command, which has the bytes of rows."""
    return str(error).rpartition(" of pipeline caused error: ")[2]


def _taken(prefix: str) -> str:
    return f"another process publishes under prefix {prefix!r}, or was killed less than {_LOCK_S} s ago"


def _chosen(checkpoint: Checkpoint, tables: Sequence[str]) -> list[TableEntry]:
    there = {t.name: t for t in checkpoint.manifest.tables if t.kind == "embedding"}
    for name in tables:
        if name not in there:
            raise ConfigError(
                f"{checkpoint.path}: has no embedding table {name!r}; it has {', '.join(there) or 'none'}"
            )
    return [there[name] for name in tables or there]


class _Publication:
    """One call of `publish`."""

    def __init__(self, client: Any, prefix: str, entries: Sequence[TableEntry]) -> None:
        self._client, self._prefix, self._entries = client, prefix, entries
        self._rows = self._removed = 0
        self._lock, self._token = prefix + _LOCK, uuid.uuid4().hex.encode()

    def run(self, parts: Sequence[Checkpoint]) -> PublishedRows:
        """Bring Redis to the last one of `parts`, which is a chain, its base first."""
        if not self._client.set(self._lock, self._token, nx=True, ex=_LOCK_S):
            raise CheckpointError(f"nothing was published: {_taken(self._prefix)}")
        try:
            return self._run(parts)
        except BaseException:
            self._give_up()
            raise

    def _run(self, parts: Sequence[Checkpoint]) -> PublishedRows:
        top = parts[-1]
        state = _State(self._client, self._prefix)
        links = _missing(parts, state, [entry.name for entry in self._entries])
        if links is not None and self._lacks_rows(state):
            links = None
        if links is None or links:
            self._send(lambda batch: batch.hset(self._prefix, "writing", identity(top)))
        for link in links or ():
            for entry in self._entries:
                self._apply(link, entry.name)
        if links is None or self._differs(""):
            links = None
            for entry in self._entries:
                self._write_table(top, entry)
            if self._differs(_NEW):
                raise CheckpointError(
                    f"{top.path} was not published: Redis has lost rows while they were written: give it "
                    "more memory, or another maxmemory-policy"
                )
        self._finish(top, links is None, state.tables)
        return PublishedRows(
            top.path.resolve().name, links is None, len(links or ()), self._rows, self._removed
        )

    def _lacks_rows(self, state: _State) -> bool:
        """Return True if a hash has not the number of rows that it had when Redis was complete."""
        # Links that were applied in part have changed the number.
        return not state.writing and any(
            self._client.hlen(self._name(name)) != table["rows"]
            for name, table in state.tables.items()
        )

    def _differs(self, suffix: str) -> bool:
        """Return True if a hash has not the number of rows of its table."""
        return any(
            self._client.hlen(self._name(entry.name) + suffix) != entry.shape[0]
            for entry in self._entries
        )

    def _write_table(self, top: Checkpoint, entry: TableEntry) -> None:
        """Write all rows of a table beside those that Redis has."""
        name = self._name(entry.name) + _NEW
        self._send(lambda batch: batch.unlink(name))
        for block in top.iter_rows(entry.name, block_rows=_rows_of_batch(entry)):
            self._put(name, block.keys, block.values)

    def _apply(self, link: Checkpoint, table: str) -> None:
        """Apply the rows of a link of the chain."""
        assert link.manifest.link is not None
        entry, removed = (link.manifest.link.table(name) for name in (table, table + REMOVED))
        name, dataset = self._name(table), entry.dataset("values")
        for start, stop in _blocks(removed.shape[0], _BATCH_ROWS):
            self._delete(name, link.read_file(removed.dataset("keys"), start, stop))
        for start, stop in _blocks(entry.shape[0], _rows_of_batch(entry)):
            values = link.read_file(dataset, start, stop)
            if dataset.dtype == "bfloat16":
                values = bf16_values(values)
            self._put(name, link.read_file(entry.dataset("keys"), start, stop), values)

    def _put(self, name: str, keys: Keys, values: NDArray[Any]) -> None:
        """Set rows, in one batch of commands."""
        packed = np.ascontiguousarray(values, "<f4")
        n_bytes, data = packed.shape[1] * 4, packed.tobytes()

        def add(batch: Any) -> None:
            for start, stop in _blocks(len(keys), _FIELDS):
                rows = {
                    key: data[(start + i) * n_bytes : (start + i + 1) * n_bytes]
                    for i, key in enumerate(keys[start:stop].tolist())
                }
                batch.hset(name, mapping=rows)

        self._send(add)
        self._rows += len(keys)

    def _delete(self, name: str, keys: Keys) -> None:
        def add(batch: Any) -> None:
            for start, stop in _blocks(len(keys), _FIELDS):
                batch.hdel(name, *keys[start:stop].tolist())

        self._send(add)
        self._removed += len(keys)

    def _send(self, add: Callable[[Any], object]) -> None:
        """Do commands in one transaction, and keep the lock.

        Raises:
            redis.WatchError: Another process has the lock; nothing was done.
        """
        from redis import WatchError

        with self._client.pipeline(transaction=True) as batch:
            batch.watch(self._lock)
            if batch.get(self._lock) != self._token:
                raise WatchError("the lock is gone")
            batch.multi()
            add(batch)
            batch.expire(self._lock, _LOCK_S)
            batch.execute()

    def _give_up(self) -> None:
        """Remove what was written beside the rows, and the lock, if Redis can be reached."""
        from redis import RedisError

        names = [self._name(entry.name) + _NEW for entry in self._entries]
        with suppress(RedisError, OSError):
            # Without a transaction, which Redis refuses at its limit of memory.
            if self._client.get(self._lock) == self._token:
                self._client.unlink(*names, self._lock)

    def _finish(self, top: Checkpoint, whole: bool, before: dict[str, dict[str, int]]) -> None:
        """Rename what was written, and name the checkpoint that Redis has now, in one transaction."""
        tables = {e.name: {"dim": e.shape[1], "rows": e.shape[0]} for e in self._entries}
        state = {
            "checkpoint": top.path.resolve().name,
            "run": top.manifest.run_id,
            "step": top.manifest.step,
            "xxh3": identity(top),
            "tables": msgspec.json.encode(tables),
        }

        def add(batch: Any) -> None:
            for entry in self._entries if whole else ():
                name = self._name(entry.name)
                # Redis frees the former rows beside other commands, and not within the rename.
                batch.unlink(name)
                # A hash without fields does not exist, and cannot be renamed.
                if entry.shape[0]:
                    batch.rename(name + _NEW, name)
            for table in set(before) - set(tables):
                batch.unlink(self._name(table))
            batch.hset(self._prefix, mapping=state)
            batch.hdel(self._prefix, "writing")
            batch.unlink(self._lock)

        self._send(add)

    def _name(self, table: str) -> str:
        return f"{self._prefix}:{table}"


class _State:
    """The content of the hash of a prefix.

    Attributes:
        has: Identity of the checkpoint that Redis has; "": none.
        writing: Identity of the one that was being written; "": none.
        tables: {"dim", "rows"} of each table that Redis has.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        """Read the hash.

        Raises:
            ConfigError: It is not of `publish`.
        """
        has, writing, tables = client.hmget(prefix, ["xxh3", "writing", "tables"])
        is_other = has is None and writing is None and client.exists(prefix)
        self.has, self.writing = ((word or b"").decode(errors="replace") for word in (has, writing))
        try:
            self.tables = msgspec.json.decode(tables or b"{}", type=dict[str, dict[str, int]])
            is_other = is_other or any("rows" not in table for table in self.tables.values())
        except (msgspec.DecodeError, UnicodeDecodeError):
            is_other = True
        if is_other:
            raise ConfigError(
                f"{prefix!r} is something else in Redis, which `publish` has not written: choose another "
                "prefix"
            )


def _missing(
    parts: Sequence[Checkpoint], state: _State, tables: Sequence[str]
) -> list[Checkpoint] | None:
    """Return the links that Redis does not have; None: it has none of this chain, or other tables."""
    identities = [{part.manifest_xxh3, part.manifest.replaces} - {""} for part in parts]
    place = next((i for i, names in enumerate(identities) if state.has in names), None)
    if place is None or list(state.tables) != list(tables):
        return None
    # Links that were applied in part are among those that are applied now, or their rows stay.
    if state.writing and not any(state.writing in names for names in identities[place + 1 :]):
        return None
    return list(parts[place + 1 :])


def _rows_of_batch(entry: TableEntry) -> int:
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // (4 * entry.shape[1] + 8)))


def _blocks(n: int, size: int) -> Iterator[tuple[int, int]]:
    return itertools.pairwise([*range(0, n, size), n]) if n else iter(())
