"""Read the tables of a link from all files of its chain: the base, and the changes of each link.

Rows. The keys in all links are sorted; for each key the newest link counts. `RowOverlay` finds the position
of each of these keys among the keys of the base, which it reads once, in blocks. Between two of these keys
the rows of the chain are those of the base. So any range of rows is a range of the base in which rows are
replaced, inserted and left out. Memory holds the keys of the links, and one block.

Pieces of dense tables lie in a fixed grid, so the newest one of each place is copied over the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.manifest import DTYPES, REMOVED, DatasetEntry, Link, TableEntry
from mpips.checkpoint.shards import Float32, Keys
from mpips.errors import CheckpointError
from mpips.model.row_values import bf16_values

if TYPE_CHECKING:
    from mpips.checkpoint.reader import Checkpoint

_KEYS = 1 << 20  # keys of the base that are read at once
_BLOCK_BYTES = 8 << 20  # bytes of a link that are read at once
_PIECES = 1 << 12  # pieces that are copied together

Places = NDArray[np.int64]


class Chain:
    """The checkpoints that a link continues, open; the link itself is passed to each method. Not thread-safe.

    Attributes:
        parts: The base and the links before this one, oldest first.
    """

    def __init__(self, parts: Sequence[Checkpoint]) -> None:
        """Take over open checkpoints."""
        self.parts = list(parts)
        self._rows: dict[str, RowOverlay] = {}
        self._pieces: dict[str, _Pieces] = {}
        self._keys: dict[str, list[tuple[Keys, Keys]]] = {}

    def close(self) -> None:
        """Close the files; no effect when repeated."""
        for part in self.parts:
            part.close()

    def _links(self, top: Checkpoint) -> list[Checkpoint]:
        return [*self.parts[1:], top]

    def read(self, top: Checkpoint, entry: DatasetEntry, start: int, stop: int) -> NDArray[Any]:
        """Read units [start, stop) of a dataset of a whole table. Blocking.

        Args:
            top: The link to whose chain this belongs.
            entry: Entry of the dataset in `top.manifest.tables`.
            start: First unit.
            stop: One past the last one; the range lies in the dataset.

        Returns:
            As `Checkpoint.read_stored`.

        Raises:
            CheckpointError: A file cannot be read, or the files do not fit each other.
        """
        table = _table_of(top, entry)
        if table.kind == "embedding":
            return self._overlay(top, table).read(entry.role, start, stop)
        if table.name not in self._pieces:
            self._pieces[table.name] = _Pieces(self._base(table), self._links(top), table)
        return self._pieces[table.name].read(entry.role, start, stop)

    def _overlay(self, top: Checkpoint, table: TableEntry) -> RowOverlay:
        if table.name not in self._rows:
            keys = self._keys_of(top, table.name)
            self._rows[table.name] = RowOverlay(self._base(table), self._links(top), keys, table)
        return self._rows[table.name]

    def _base(self, table: TableEntry) -> _Base:
        """Return the table in the base."""
        entry = self.parts[0].manifest.table(table.name)
        roles = [[d.role for d in e.datasets] for e in (table, entry)]
        if entry.kind != table.kind or roles[0] != roles[1]:
            raise CheckpointError(
                f"{self.parts[0].path}: table {table.name!r} has another kind or other datasets than in the "
                "links of its chain"
            )
        return _Base(self.parts[0], entry)

    def _keys_of(self, top: Checkpoint, name: str) -> list[tuple[Keys, Keys]]:
        """Return for each link the keys of its rows and those of removed rows, ascending."""
        if name not in self._keys:
            found = []
            for part in self._links(top):
                link = _link_of(part)
                pair = [_keys(part, link.table(entry)) for entry in (name, name + REMOVED)]
                found.append((pair[0], pair[1]))
            self._keys[name] = found
        return self._keys[name]

    def find_rows(
        self, top: Checkpoint, table: TableEntry, keys: Keys
    ) -> tuple[NDArray[np.bool_], Float32]:
        """As `Checkpoint.find_rows`: search the newest link first, then those before it, then the base."""
        dim = table.shape[1]
        found, values = np.zeros(len(keys), np.bool_), np.zeros((len(keys), dim), np.float32)
        left = np.arange(len(keys))
        pairs = zip(self._links(top), self._keys_of(top, table.name), strict=True)
        for part, (rows, removed) in reversed(list(pairs)):
            places, has = _search(rows, keys[left])
            entry = _link_of(part).table(table.name).dataset("values")
            for i, place in zip(left[has].tolist(), places[has].tolist(), strict=True):
                row = part.read_file(entry, place, place + 1)[0]
                values[i] = bf16_values(row) if entry.dtype == "bfloat16" else row
            found[left[has]] = True
            left = left[~has & ~_search(removed, keys[left])[1]]
        has, rest = self.parts[0].find_rows(table.name, keys[left])
        found[left[has]] = True
        values[left[has]] = rest
        return found, values[found]

    def mismatches(self, top: Checkpoint) -> list[str]:
        """Return one sentence for each table whose files do not fit each other. Blocking; reads all keys."""
        found = []
        for table in top.manifest.tables:
            try:
                if table.kind == "embedding":
                    self._overlay(top, table)
                else:
                    self.read(top, table.dataset("values"), 0, 0)
            except CheckpointError as error:
                found.append(str(error))
        return found


def _table_of(top: Checkpoint, entry: DatasetEntry) -> TableEntry:
    group = entry.path.removesuffix(f"/{entry.role}")
    for table in top.manifest.tables:
        if table.group == group:
            return table
    raise CheckpointError(f"{top.path}: has no dataset {entry.path}")


def _link_of(part: Checkpoint) -> Link:
    assert part.manifest.link is not None
    return part.manifest.link


def _keys(part: Checkpoint, entry: TableEntry) -> Keys:
    """Read all keys of a table of a link."""
    dataset = entry.dataset("keys")
    keys: Keys = part.read_file(dataset, 0, dataset.n_units)
    if len(keys) > 1 and (keys[1:] <= keys[:-1]).any():
        raise CheckpointError(
            f"{part.path}: the keys of {entry.group} do not ascend: it is damaged"
        )
    return keys


def _search(ordered: Keys, keys: Keys) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the place of each key among ascending ones, and which of them are there."""
    if len(ordered) == 0:
        return np.zeros(len(keys), np.intp), np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return places, ordered[places] == keys


class _Base:
    """One table in the base of a chain."""

    def __init__(self, checkpoint: Checkpoint, entry: TableEntry) -> None:
        self._checkpoint = checkpoint
        self.entry = entry
        self.n = entry.datasets[0].n_units
        self.path = checkpoint.path

    def read(self, role: str, start: int, stop: int) -> NDArray[Any]:
        """Read units [start, stop)."""
        return self._checkpoint.read_file(self.entry.dataset(role), start, stop)


class _Sources:
    """The datasets of one table in all links, oldest first."""

    def __init__(self, links: Sequence[Checkpoint], name: str) -> None:
        self._links = links
        self._entries = [_link_of(part).table(name) for part in links]

    def put(
        self, role: str, source: NDArray[np.int32], rows: Places, at: Places, out: NDArray[Any]
    ) -> None:
        """Copy rows of links.

        Args:
            role: Role of the dataset.
            source: Index of the link that has each row.
            rows: Its place in the link; ascending for each link.
            at: Its place in `out`.
            out: Receives the rows.
        """
        for i in np.unique(source).tolist():
            mine = source == i
            out[at[mine]] = self._take(i, role, rows[mine])

    def _take(self, i: int, role: str, rows: Places) -> NDArray[Any]:
        """Return rows of one link, given by ascending places. Reads blocks of bounded size."""
        entry = self._entries[i].dataset(role)
        most = max(1, _BLOCK_BYTES // entry.unit_bytes)
        parts, at = [], 0
        while at < len(rows):
            end = int(np.searchsorted(rows, rows[at] + most))
            block = self._links[i].read_file(entry, int(rows[at]), int(rows[end - 1]) + 1)
            parts.append(block[rows[at:end] - rows[at]])
            at = end
        return np.concatenate(parts)


def _newest(keys: Sequence[Keys], rows: Sequence[Places]) -> tuple[Keys, NDArray[np.int32], Places]:
    """Return all keys of several links, ascending, and for each the newest link that has it, and the row.

    Args:
        keys: Keys of each link, oldest first.
        rows: Number of each of them that is returned.
    """
    everything = np.concatenate(keys)
    source = np.repeat(np.arange(len(keys), dtype=np.int32), [len(mine) for mine in keys])
    number = np.concatenate(rows)
    # The sort is stable, so of equal keys the newest one is the last.
    order = np.argsort(everything, kind="stable")
    ordered = everything[order]
    last = np.ones(len(ordered), np.bool_)
    last[:-1] = ordered[1:] != ordered[:-1]
    chosen = order[last]
    return everything[chosen], source[chosen], number[chosen]


class RowOverlay:
    """The rows of one embedding table of a chain.

    Entry i is a key in a link. `at[i]` is the index of its row in the chain, or of the next row if the key
    has been removed. `shift[i]` is the number of rows of the chain with smaller keys, less that of the base.
    """

    def __init__(
        self,
        base: _Base,
        links: Sequence[Checkpoint],
        keys: Sequence[tuple[Keys, Keys]],
        table: TableEntry,
    ) -> None:
        """Find the places of all keys of links. Blocking: reads the keys of the base.

        Args:
            base: The table in the base.
            links: The links, oldest first.
            keys: For each of them the keys of its rows, and of removed rows, ascending.
            table: The whole table.

        Raises:
            CheckpointError: A file cannot be read, or the chain has another number of rows than `table`.
        """
        self._base, self._sources = base, _Sources(links, table.name)
        self._dtypes = {d.role: (np.dtype(DTYPES[d.dtype]), d.shape[1:]) for d in table.datasets}
        both = [np.concatenate(pair) for pair in keys]
        none = [np.full(len(removed), -1) for _, removed in keys]
        rows = [
            np.concatenate([np.arange(len(mine)), gone])
            for (mine, _), gone in zip(keys, none, strict=True)
        ]
        named, source, row = _newest(both, rows)
        place, exists = self._places(named)
        # Drop keys that a link added and a later one removed: neither the base nor the chain has them.
        known = exists | (row >= 0)
        self._source, self._row = source[known], row[known]
        self._place, self._exists = place[known], exists[known]
        present = self._row >= 0
        change = present.astype(np.int64) - self._exists
        self._shift = np.concatenate(([0], np.cumsum(change)))
        self._at = self._place + self._shift[:-1]
        n = base.n + int(self._shift[-1])
        if n != table.shape[0]:
            raise CheckpointError(
                f"{links[-1].path}: the chain gives {n:,} rows of table {table.name!r} in place of "
                f"{table.shape[0]:,}: one of its checkpoints is damaged"
            )

    def _places(self, named: Keys) -> tuple[Places, NDArray[np.bool_]]:
        """Return the place of each key among those of the base, and whether the base has it."""
        place, exists = np.full(len(named), self._base.n), np.zeros(len(named), np.bool_)
        done = 0
        for start in range(0, self._base.n, _KEYS):
            if done == len(named):
                break
            block: Keys = self._base.read("keys", start, min(start + _KEYS, self._base.n))
            end = int(np.searchsorted(named, block[-1], side="right"))
            places, has = _search(block, named[done:end])
            place[done:end], exists[done:end] = start + places, has
            done = end
        return place, exists

    def read(self, role: str, start: int, stop: int) -> NDArray[Any]:
        """Read rows [start, stop) of a dataset."""
        first, last = np.searchsorted(self._at, [start, stop]).tolist()
        part = slice(first, last)
        # Read rows [low, high) of the base, and drop those that a link replaces or removes.
        low, high = start - int(self._shift[first]), stop - int(self._shift[last])
        present = self._row[part] >= 0
        at = self._at[part][present] - start
        if present.all() and self._exists[part].all():
            out = self._base.read(role, low, high)
        else:
            dtype, rest = self._dtypes[role]
            out = np.empty((stop - start, *rest), dtype.newbyteorder("="))
            self._put_base(role, low, high, self._place[part][self._exists[part]], at, out)
        self._sources.put(role, self._source[part][present], self._row[part][present], at, out)
        return out

    def _put_base(
        self, role: str, low: int, high: int, without: Places, taken: Places, out: NDArray[Any]
    ) -> None:
        """Copy rows [low, high) of the base except `without` to the rows of `out` that are not in `taken`."""
        free = np.ones(len(out), np.bool_)
        free[taken] = False
        targets, done = np.flatnonzero(free), 0
        step = max(1, len(out))
        for start in range(low, high, step):
            stop = min(start + step, high)
            stay = np.ones(stop - start, np.bool_)
            first, last = np.searchsorted(without, [start, stop]).tolist()
            stay[without[first:last] - start] = False
            rows = self._base.read(role, start, stop)[stay]
            out[targets[done : done + len(rows)]] = rows
            done += len(rows)


class _Pieces:
    """The elements of one dense table of a chain."""

    def __init__(self, base: _Base, links: Sequence[Checkpoint], table: TableEntry) -> None:
        self._base, self._sources = base, _Sources(links, table.name)
        link = _link_of(links[-1])
        if (
            any(_link_of(part).piece != link.piece for part in links)
            or base.n != table.datasets[0].n_units
        ):
            raise CheckpointError(
                f"{links[-1].path}: the size of table {table.name!r}, or of its pieces, differs within the "
                "chain"
            )
        keys = [_keys(part, _link_of(part).table(table.name)) for part in links]
        self._length = link.piece
        self._starts, self._source, self._row = _newest(keys, [np.arange(len(k)) for k in keys])
        # A piece ends with its shard. All checkpoints of a chain are of one launch, so shards are the same.
        ends = np.sort(np.array([shard.stop for shard in table.shards], np.int64))
        inside = (self._starts >= 0) & (self._starts < base.n)
        if not inside.all():
            raise CheckpointError(
                f"{links[-1].path}: table {table.name!r} has pieces outside of the table"
            )
        own = ends[np.searchsorted(ends, self._starts, side="right")] if len(ends) else self._starts
        self._stops = np.minimum(self._starts + self._length, own)

    def read(self, role: str, start: int, stop: int) -> NDArray[Any]:
        """Read elements [start, stop) of a dataset."""
        out = self._base.read(role, start, stop)
        first, last = np.searchsorted(self._starts, [start - self._length + 1, stop]).tolist()
        for low in range(first, last, _PIECES):
            part = slice(low, min(low + _PIECES, last))
            pieces = np.empty((part.stop - part.start, self._length), out.dtype)
            at = np.arange(len(pieces))
            self._sources.put(role, self._source[part], self._row[part], at, pieces)
            place = self._starts[part][:, None] + np.arange(self._length)
            mine = (place >= start) & (place < stop) & (place < self._stops[part][:, None])
            out[place[mine] - start] = pieces[mine]
        return out
