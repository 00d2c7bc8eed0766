"""Partitions: the map from the parts of a table to servers, as values.

A partition is a strategy. Together with the number of servers it determines the owner of every part of a
table by arithmetic alone. So all ranks agree without a message, and a plan can be printed before a job
starts. `place` distributes dense tensors, `partitioner` the keys of an embedding table. Some strategies
support only one of the two; the other raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.accepted import unknown_name
from mpips.model.partition_plan import (
    FLOAT_BYTES,
    Balance,
    PlannedPiece,
    PlannedPlacement,
    assign_longest_first,
    cut_at_lines,
    whole_tensors,
)
from mpips.terminal.table import text_table

MAX_SERVERS = 65535
INT64 = np.iinfo(np.int64)

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """Base of all strategies. A strategy defines `name`, and `_pieces` or `_partitioner` or both."""

    name: ClassVar[str]

    def place(self, sizes: Mapping[str, int], n_servers: int) -> PlannedPlacement:
        """Distribute dense tensors.

        Args:
            sizes: Elements (float32) of every tensor by name. The order influences the placement.
            n_servers: From 1 to 65535.

        Returns:
            The pieces of every tensor.

        Raises:
            ConfigError: The strategy does not place dense tensors, or a number is out of range.
        """
        _check_servers(n_servers)
        for tensor, size in sizes.items():
            if size < 0:
                raise ConfigError(f"tensor {tensor!r}: {size} elements: must be 0 or more")
        return PlannedPlacement(n_servers, self._pieces(sizes, n_servers))

    def partitioner(self, n_servers: int) -> _native.Partitioner:
        """Return the map from key to server of an embedding table, for the C++ kernels.

        Args:
            n_servers: From 1 to 65535.

        Raises:
            ConfigError: The strategy does not distribute keys, or a number is out of range.
        """
        _check_servers(n_servers)
        return self._partitioner(n_servers)

    def owners(self, keys: Keys, n_servers: int) -> npt.NDArray[np.uint16]:
        """Return the server of each key.

        Args:
            keys: int64, shape (n,), contiguous.
            n_servers: From 1 to 65535.

        Returns:
            uint16, shape (n,).

        Raises:
            KeyError: A key lies outside the partition.
        """
        return self.partitioner(n_servers).owners(keys)

    def key_balance(self, keys: Keys, n_servers: int) -> Balance:
        """Return the rows of each server for a table with `keys` (int64, shape (n,), unique)."""
        counts = np.bincount(self.owners(keys, n_servers), minlength=n_servers)
        return Balance("rows", tuple(counts.tolist()))

    def to_config(self) -> dict[str, Any]:
        """Return a mapping for TOML or JSON from which `from_config` makes an equal value."""
        options = {option.name: getattr(self, option.name) for option in fields(self)}
        given = {option: value for option, value in options.items() if value is not None}
        return {"name": self.name, **given}

    @classmethod
    def from_config(cls, config: str | Mapping[str, Any]) -> Partition:
        """Read a name ("hash") or a table ({"name": "range", "low": 0, "high": 1000}).

        Raises:
            ConfigError: An unknown name or option, or a wrong value.
        """
        table = {"name": config} if isinstance(config, str) else dict(config)
        chosen = _class_named(table.pop("name", None))
        options = [option.name for option in fields(chosen)]
        for option in table:
            if option not in options:
                raise ConfigError(
                    f"partition {chosen.name!r} has no option {option!r}; it has "
                    f"{', '.join(options) or 'none'}"
                )
        return chosen(**table)

    def describe(self) -> str:
        """Return a table of the strategy's options, as text of several lines."""
        options = [(option, str(value)) for option, value in self.to_config().items()]
        return "\n".join(text_table([("partition", self.name), *options[1:]], right=[1]))

    def _pieces(
        self, sizes: Mapping[str, int], n_servers: int
    ) -> dict[str, tuple[PlannedPiece, ...]]:
        raise ConfigError(_unsuitable(self.name, "dense", "_pieces"))

    def _partitioner(self, n_servers: int) -> _native.Partitioner:
        raise ConfigError(_unsuitable(self.name, "embedding", "_partitioner"))


@dataclass(frozen=True)
class HashPartition(Partition):
    """Embedding keys by their hash: balanced for any keys, and without a known range of keys."""

    name: ClassVar[str] = "hash"

    def _partitioner(self, n_servers: int) -> _native.Partitioner:
        return _native.Partitioner.hash(n_servers)


@dataclass(frozen=True)
class RangePartition(Partition):
    """Contiguous ranges: of every dense tensor, or of the keys from `low` to below `high`.

    Attributes:
        low: The first key; None for dense tensors, which need no bounds.
        high: One more than the last key; None for dense tensors.
    """

    name: ClassVar[str] = "range"
    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            return
        for bound in (self.low, self.high):
            if isinstance(bound, bool) or not isinstance(bound, int):
                raise ConfigError(
                    f"partition 'range': low = {self.low!r} and high = {self.high!r}: both low and high "
                    "must be whole numbers"
                )
        if not INT64.min <= self._bounds()[0] < self._bounds()[1] <= INT64.max:
            raise ConfigError(
                f"partition 'range': low = {self.low} and high = {self.high}: must be low < high within "
                "int64"
            )

    def _bounds(self) -> tuple[int, int]:
        if self.low is None or self.high is None:
            raise ConfigError(
                "partition 'range' of an embedding table needs low and high, the range of its keys"
            )
        return self.low, self.high

    def _pieces(
        self, sizes: Mapping[str, int], n_servers: int
    ) -> dict[str, tuple[PlannedPiece, ...]]:
        return cut_at_lines(sizes, n_servers)

    def _partitioner(self, n_servers: int) -> _native.Partitioner:
        low, high = self._bounds()
        boundaries = [low + (high - low) * s // n_servers for s in range(n_servers + 1)]
        return _native.Partitioner.range(np.array(boundaries, dtype=np.int64))


@dataclass(frozen=True)
class LayerPartition(Partition):
    """Whole dense tensors, balanced by bytes: fewest messages, but uneven if one tensor is large."""

    name: ClassVar[str] = "layer"

    def _pieces(
        self, sizes: Mapping[str, int], n_servers: int
    ) -> dict[str, tuple[PlannedPiece, ...]]:
        return whole_tensors(sizes, assign_longest_first(list(sizes.values()), n_servers))


@dataclass(frozen=True, repr=False)
class FrequencyPartition(Partition):
    """Whole dense tensors, or hash buckets of embedding keys, balanced by measured updates.

    The value holds the measurement, not the assignment, so that it fits any number of servers.

    Attributes:
        updates: For dense tensors: name -> updates measured over some time. The weight of a tensor is its
            bytes times its updates. Tensors without updates are balanced by bytes.
        bucket_counts: For embedding tables: updates measured in each hash bucket. Buckets without updates are
            spread evenly.
    """

    name: ClassVar[str] = "frequency"
    updates: dict[str, float] = field(default_factory=dict)
    bucket_counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.updates, dict) or not isinstance(self.bucket_counts, (list, tuple)):
            raise ConfigError(
                f"partition 'frequency': updates is a {type(self.updates).__name__} and bucket_counts a "
                f"{type(self.bucket_counts).__name__}: must be a table and an array"
            )
        for updates in self.updates.values():
            _check_count(updates, whole=False)
        for count in self.bucket_counts:
            _check_count(count, whole=True)
        if len(self.bucket_counts) > MAX_SERVERS:
            raise ConfigError(
                f"partition 'frequency' has {len(self.bucket_counts)} buckets: must be at most "
                f"{MAX_SERVERS} buckets"
            )
        # JSON and TOML have lists, not tuples.
        object.__setattr__(self, "bucket_counts", tuple(self.bucket_counts))

    @classmethod
    def from_counts(
        cls, keys: Keys, counts: npt.NDArray[np.int64], *, n_buckets: int = 4096
    ) -> FrequencyPartition:
        """Sum the measured updates of keys into hash buckets.

        Args:
            keys: int64, shape (n,); a key may occur several times.
            counts: int64, shape (n,), not negative: updates of each key.
            n_buckets: From the number of servers to 65535. More buckets make the balance finer.

        Raises:
            ConfigError: The shapes differ, or a number is out of range.
        """
        if keys.shape != counts.shape:
            raise ConfigError(
                f"keys of shape {keys.shape} and counts of shape {counts.shape} do not match; give one count "
                "per key"
            )
        if not 1 <= n_buckets <= MAX_SERVERS:
            raise ConfigError(f"n_buckets = {n_buckets}: must be from 1 to {MAX_SERVERS}")
        for count in counts[counts < 0][:1].tolist():
            _check_count(count, whole=True)
        totals = np.zeros(n_buckets, dtype=np.int64)
        np.add.at(totals, _native.Partitioner.hash(n_buckets).owners(keys), counts)
        return cls(bucket_counts=tuple(totals.tolist()))

    def to_config(self) -> dict[str, Any]:
        """Return a mapping for TOML or JSON from which `from_config` makes an equal value."""
        return {
            "name": self.name,
            "updates": dict(self.updates),
            "bucket_counts": list(self.bucket_counts),
        }

    def describe(self) -> str:
        """Return a table with a line for each measured tensor and one for all buckets, as text."""
        rows = [(tensor, f"{updates:,}") for tensor, updates in self.updates.items()]
        total = sum(self.bucket_counts)
        rows.append((f"({len(self.bucket_counts)} buckets of keys)", f"{total:,}"))
        return "\n".join(text_table([("partition frequency", "updates"), *rows], right=[1]))

    def __repr__(self) -> str:
        return f"FrequencyPartition({len(self.updates)} tensors, {len(self.bucket_counts)} buckets)"

    def _pieces(
        self, sizes: Mapping[str, int], n_servers: int
    ) -> dict[str, tuple[PlannedPiece, ...]]:
        missing = [tensor for tensor in sizes if tensor not in self.updates]
        if missing:
            raise ConfigError(
                f"partition 'frequency' has no measured updates of {', '.join(missing)}; add them to updates"
            )
        # Balance updated tensors by bytes times updates, then the others by bytes.
        n_bytes = np.array(list(sizes.values()), dtype=np.int64) * FLOAT_BYTES
        weights = n_bytes * np.array([self.updates[tensor] for tensor in sizes])
        servers = _spread(weights, n_bytes, n_servers)
        return whole_tensors(sizes, servers.tolist())

    def _partitioner(self, n_servers: int) -> _native.Partitioner:
        if len(self.bucket_counts) < n_servers:
            raise ConfigError(
                f"partition 'frequency' has {len(self.bucket_counts)} buckets for {n_servers} "
                "servers; measure counts into at least as many (from_counts)"
            )
        counts = np.array(self.bucket_counts, dtype=np.int64)
        servers = _spread(counts, (counts == 0).astype(np.int64), n_servers)
        return _native.Partitioner.buckets(servers, n_servers)


def _spread(
    weights: npt.NDArray[Any], sizes: npt.NDArray[np.int64], n_servers: int
) -> npt.NDArray[np.uint16]:
    """Assign items by weight, then items without weight by size.

    Args:
        weights: Shape (n,), not negative.
        sizes: int64, shape (n,), not negative.
        n_servers: At least 1.

    Returns:
        The server of each item, uint16, shape (n,).
    """
    servers = np.zeros(weights.size, dtype=np.uint16)
    (busy,) = np.nonzero(weights > 0)
    (idle,) = np.nonzero(weights == 0)
    servers[busy] = assign_longest_first(weights[busy].tolist(), n_servers)
    loads = np.bincount(servers[busy], weights=sizes[busy], minlength=n_servers)
    servers[idle] = assign_longest_first(sizes[idle].tolist(), n_servers, loads.tolist())
    return servers


STRATEGIES: tuple[type[Partition], ...] = (
    FrequencyPartition,
    HashPartition,
    LayerPartition,
    RangePartition,
)
PARTITIONS: dict[str, type[Partition]] = {strategy.name: strategy for strategy in STRATEGIES}


def _class_named(name: object) -> type[Partition]:
    if isinstance(name, str) and name in PARTITIONS:
        return PARTITIONS[name]
    raise unknown_name("partition", name, PARTITIONS)


def _unsuitable(name: str, tables: str, method: str) -> str:
    """Return the message for strategy `name`, which lacks `method` and so cannot split `tables`."""
    suitable = [
        other
        for other, strategy in PARTITIONS.items()
        if getattr(strategy, method) is not getattr(Partition, method)
    ]
    names = f"{', '.join(suitable[:-1])} or {suitable[-1]}"
    return f"partition {name!r} does not split {tables} tables; use {names}"


def _check_count(count: float, whole: bool) -> None:
    is_number = type(count) is int or (type(count) is float and not whole)
    if not (is_number and 0 <= count <= INT64.max):
        kind = "a whole number" if whole else "a number"
        raise ConfigError(
            f"partition 'frequency': count {count!r}: must be {kind} from 0 to {INT64.max}"
        )


def _check_servers(n_servers: int) -> None:
    if not 1 <= n_servers <= MAX_SERVERS:
        raise ConfigError(f"n_servers = {n_servers}: must be from 1 to {MAX_SERVERS}")
