"""Write the rows of a checkpoint into a Redis server, and later only what has changed.

    PREFIX             a hash: `checkpoint` (name), `run`, `step`, `xxh3` (identity of the checkpoint that
                       Redis has), `tables` (JSON: name -> {"dim", "rows"}), and while one is written
                       `writing` (the identity of that one)
    PREFIX:TABLE       a hash for each embedding table: a key in decimal digits -> its values, little-endian
                       float32, one after the other

If Redis has a checkpoint that the given one continues in a chain, the links behind it are applied: their rows
are set, the keys of their removed rows are deleted. Otherwise all rows are written under `PREFIX:TABLE:new`,
and one transaction renames these hashes. Both may be repeated after a kill at any point: `xxh3` changes last,
so links are applied again from the same place, and end in the same rows. A reader sees rows of both
checkpoints while links are applied, and never a part of a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
_FIELDS = 512  # of one command
_TIMEOUT_S = 60.0  # s, most time for one batch
_NEW = ":new"
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

    The checkpoint is not verified. No other process may publish under the same prefix meanwhile.

    Args:
        checkpoint: The checkpoint, whole or a link.
        url: redis://[:password@]host:port/db, rediss:// or unix:///path?db=0.
        prefix: Prefix of all names in Redis.
        tables: Names of embedding tables; empty: all of them.

    Raises:
        CapabilityError: The package redis is missing.
        ConfigError: The address has another form, or the checkpoint has no such embedding table.
        CheckpointError: The checkpoint cannot be read, or Redis cannot be reached or refuses a command.
    """
    entries = _chosen(checkpoint, tables)
    parts = [*(checkpoint.chain.parts if checkpoint.chain is not None else ()), checkpoint]
    redis = _load()
    if urlsplit(url).scheme not in _SCHEMES:
        raise ConfigError(f"{_shown(url)}: is no address of Redis: use redis://HOST:PORT/DB")
    try:
        client = redis.Redis.from_url(url, socket_timeout=_TIMEOUT_S)
        with client:
            return _Publication(client, prefix, entries).run(parts)
    except ValueError as error:
        raise ConfigError(f"{_shown(url)}: is no address of Redis: {error}") from None
    except (redis.RedisError, OSError) as error:
        raise CheckpointError(
            f"{checkpoint.path} was not published to {_shown(url)}: {error}; run the command again"
        ) from None


def _load() -> Any:
    try:
        import redis
    except ImportError as error:
        raise CapabilityError(
            f"publishing to Redis needs its client (pip install redis): {error}"
        ) from None
    return redis


def _shown(url: str) -> str:
    """Return an address without user and password."""
    head, at, rest = url.rpartition("@")
    return f"{head.partition('://')[0]}://{rest}" if at else url


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
        self._before: list[str] = []  # tables that Redis has

    def run(self, parts: Sequence[Checkpoint]) -> PublishedRows:
        """Bring Redis to the last one of `parts`, which is a chain, its base first."""
        top = parts[-1]
        state = self._client.hgetall(self._prefix)
        self._before = list(msgspec.json.decode(state.get(b"tables", b"{}")))
        links = _missing(parts, state, [entry.name for entry in self._entries])
        if links is None or links:
            self._client.hset(self._prefix, "writing", identity(top))
        if links is None:
            for entry in self._entries:
                self._write_table(top, entry)
        for link in links or ():
            for entry in self._entries:
                self._apply(link, entry.name)
        self._finish(top, links is None)
        return PublishedRows(
            top.path.resolve().name, links is None, len(links or ()), self._rows, self._removed
        )

    def _write_table(self, top: Checkpoint, entry: TableEntry) -> None:
        """Write all rows of a table beside those that Redis has."""
        name = self._name(entry.name) + _NEW
        self._client.delete(name)
        size = max(1, _BATCH_BYTES // (4 * entry.shape[1] + 8))
        for block in top.iter_rows(entry.name, block_rows=size):
            self._put(name, block.keys, block.values)

    def _apply(self, link: Checkpoint, table: str) -> None:
        """Apply the rows of a link of the chain."""
        assert link.manifest.link is not None
        entry, removed = (link.manifest.link.table(name) for name in (table, table + REMOVED))
        name, dataset = self._name(table), entry.dataset("values")
        for start, stop in _blocks(removed.shape[0], _BATCH_BYTES // 8):
            self._delete(name, link.read_file(removed.dataset("keys"), start, stop))
        for start, stop in _blocks(
            entry.shape[0], max(1, _BATCH_BYTES // (4 * entry.shape[1] + 8))
        ):
            values = link.read_file(dataset, start, stop)
            if dataset.dtype == "bfloat16":
                values = bf16_values(values)
            self._put(name, link.read_file(entry.dataset("keys"), start, stop), values)

    def _put(self, name: str, keys: Keys, values: NDArray[Any]) -> None:
        """Set rows, in one batch of commands."""
        packed = np.ascontiguousarray(values, "<f4")
        n_bytes, data = packed.shape[1] * 4, packed.tobytes()
        with self._client.pipeline(transaction=False) as batch:
            for start, stop in _blocks(len(keys), _FIELDS):
                rows = {
                    key: data[(start + i) * n_bytes : (start + i + 1) * n_bytes]
                    for i, key in enumerate(keys[start:stop].tolist())
                }
                batch.hset(name, mapping=rows)
            batch.execute()
        self._rows += len(keys)

    def _delete(self, name: str, keys: Keys) -> None:
        with self._client.pipeline(transaction=False) as batch:
            for start, stop in _blocks(len(keys), _FIELDS):
                batch.hdel(name, *keys[start:stop].tolist())
            batch.execute()
        self._removed += len(keys)

    def _finish(self, top: Checkpoint, whole: bool) -> None:
        """Rename what was written, and name the checkpoint that Redis has now, in one transaction."""
        tables = {e.name: {"dim": e.shape[1], "rows": e.shape[0]} for e in self._entries}
        state = {
            "checkpoint": top.path.resolve().name,
            "run": top.manifest.run_id,
            "step": top.manifest.step,
            "xxh3": identity(top),
            "tables": msgspec.json.encode(tables),
        }
        with self._client.pipeline(transaction=True) as batch:
            for entry in self._entries if whole else ():
                name = self._name(entry.name)
                # A hash without fields does not exist, and cannot be renamed.
                if entry.shape[0]:
                    batch.rename(name + _NEW, name)
                else:
                    batch.delete(name)
            for table in set(self._before) - set(tables):
                batch.delete(self._name(table))
            batch.hset(self._prefix, mapping=state)
            batch.hdel(self._prefix, "writing")
            batch.execute()

    def _name(self, table: str) -> str:
        return f"{self._prefix}:{table}"


def _missing(
    parts: Sequence[Checkpoint], state: dict[bytes, bytes], tables: Sequence[str]
) -> list[Checkpoint] | None:
    """Return the links that Redis does not have; None: it has none of this chain, or other tables."""
    has = state.get(b"xxh3", b"").decode()
    identities = [{part.manifest_xxh3, part.manifest.replaces} - {""} for part in parts]
    place = next((i for i, names in enumerate(identities) if has in names), None)
    if place is None or list(msgspec.json.decode(state.get(b"tables", b"{}"))) != list(tables):
        return None
    # Links that were applied in part are among those that are applied now, or their rows stay.
    writing = state.get(b"writing", b"").decode()
    if writing and not any(writing in names for names in identities[place + 1 :]):
        return None
    return list(parts[place + 1 :])


def _blocks(n: int, size: int) -> Iterator[tuple[int, int]]:
    return itertools.pairwise([*range(0, n, size), n]) if n else iter(())
