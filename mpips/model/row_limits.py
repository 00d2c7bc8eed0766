"""Limits of an embedding table: which keys get a row, and which rows leave it.

`admit` names the keys that get a row, `evict` the rows that leave. Both are decided when a clock closes, from
the keys that were pushed in it, so they need BSP without backup workers. A key that is pulled is not used: a
pull changes nothing. Values, the optimizer's state and the counts of a row leave with it; its key is then one
that has no row, whose pull returns the initial value.

With HashPartition the same rows are there for any number of servers, in every run and after every restart.
MaxRows and MaxBytes make one exception: sets of rows are divided between servers where the number of servers
is not a power of two (see MaxRows). native/src/server/row_limits.hpp has the algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta

from mpips.errors import ConfigError
from mpips.model.accepted import check_fields, unknown_name
from mpips.model.consistency import BSP, Consistency
from mpips.model.partition import HashPartition, Partition

# The package exports these names, so users write mpips.Idle.
__all__ = ["Idle", "MaxBytes", "MaxRows", "MinCount", "Probability"]

Clocks: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]
Order: TypeAlias = Literal["lru", "lfu"]
# Bytes that a server needs for a row besides its floats: key, use, place in a set, and the key's place in the
# map, of which between a seventh and four sevenths are in use.
OVERHEAD_BYTES = 8 + 8 + 4 + 36
LEAST_SET = 64  # rows of a set, of tables with more than one
MOST_ROWS = 2**32 - 2


@dataclass(frozen=True)
class MinCount:
    """A key gets a row in the `clocks`-th clock in which it is pushed; its pushes before are dropped.

    Each server counts in a sketch of `memory_mib`, 4 bytes a cell and two cells a key. Keys that share both
    cells count together, so a key may get its row too early, never too late. Counts are in the server's
    memory: they survive restarts in memory, and begin again at 0 when a job starts from a checkpoint.

    Attributes:
        clocks: Clocks with a push of the key, 2 to 255.
        within: A count begins again if the key was not pushed for so many clocks; at most 2^23.
        memory_mib: Size of the sketch on each server, MiB, a power of two.
    """

    name: ClassVar[str] = "min_count"
    clocks: Annotated[int, Meta(ge=2, le=255)]
    within: Annotated[int, Meta(ge=1, le=2**23)] = 10_000
    memory_mib: Annotated[int, Meta(ge=1, le=1024)] = 16

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            ConfigError: Names the value and what is accepted.
        """
        check_fields(self, "MinCount: ")
        if self.memory_mib & (self.memory_mib - 1):
            raise ConfigError(f"MinCount: memory_mib = {self.memory_mib}: must be a power of two")


@dataclass(frozen=True)
class Probability:
    """A key without a row gets one with probability `p` in each clock in which it is pushed.

    The choice depends on key, clock and seed of the job alone.

    Attributes:
        p: Probability, above 0 and below 1.
    """

    name: ClassVar[str] = "probability"
    p: Annotated[float, Meta(gt=0, lt=1)]

    def __post_init__(self) -> None:
        """Check the value.

        Raises:
            ConfigError: Names the value and what is accepted.
        """
        check_fields(self, "Probability: ")


@dataclass(frozen=True)
class Idle:
    """A row leaves after `clocks` clocks without a push of it.

    Attributes:
        clocks: Clocks, 1 or more. A row that was pushed in clock 10 with clocks = 3 is gone in clock 14.
    """

    name: ClassVar[str] = "idle"
    clocks: Clocks

    def __post_init__(self) -> None:
        """Check the value.

        Raises:
            ConfigError: Names the value and what is accepted.
        """
        check_fields(self, "Idle: ")


@dataclass(frozen=True)
class MaxRows:
    """The table has at most `rows` rows, on all servers together, after each clock.

    The keys are divided into sets by their hash, a power of two of them with 64 to 127 rows each, or one for
    fewer than 128 rows. A set that has more rows than it may, at the end of a clock, loses those that were
    used least. A table needs a set for each server. Where the number of servers is not a power of two, fewer
    sets than servers lie on two servers; then these have up to twice the rows.

    Attributes:
        rows: Number of rows, 1 or more.
        by: "lru": the rows leave whose last push is oldest. "lfu": the rows leave that were pushed in the
            fewest clocks since they were made, the oldest of these first; rows of the clock at hand stay
            before others. Rows that are equal leave by their keys' hashes.
    """

    name: ClassVar[str] = "max_rows"
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    by: Order = "lru"

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            ConfigError: Names the value and what is accepted.
        """
        check_fields(self, "MaxRows: ")


@dataclass(frozen=True)
class MaxBytes:
    """MaxRows with the number of rows that fit into `mib`, on all servers together.

    A row takes its floats (values and the optimizer's state) and 56 bytes for key, map and use. Memory that a
    server allocates ahead, at most a quarter, is not counted.

    Attributes:
        mib: Memory, MiB, 1 or more.
        by: See MaxRows.
    """

    name: ClassVar[str] = "max_bytes"
    mib: Annotated[int, Meta(ge=1, le=2**30)]
    by: Order = "lru"

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            ConfigError: Names the value and what is accepted.
        """
        check_fields(self, "MaxBytes: ")


Admission: TypeAlias = MinCount | Probability
Eviction: TypeAlias = Idle | MaxRows | MaxBytes
ADMISSIONS: dict[str, type[Any]] = {kind.name: kind for kind in (MinCount, Probability)}
EVICTIONS: dict[str, type[Any]] = {kind.name: kind for kind in (Idle, MaxRows, MaxBytes)}


def settled_limits(
    name: str,
    admit: object,
    evict: object,
    consistency: Consistency,
    partition: Partition | str,
    row_bytes: int,
) -> tuple[Admission | None, Eviction | None]:
    """Return the limits that a user has given for a table, as values or as mappings.

    Args:
        name: Name of the table.
        admit: Limit of the keys that get a row.
        evict: Limit of the rows that stay.
        consistency: Consistency model of the table.
        partition: Partition of the table.
        row_bytes: Bytes of a row of the table.

    Raises:
        ConfigError: Names the table, the value and what is accepted.
    """
    found: list[Any] = []
    for what, given, kinds, example in (
        ("admit", admit, ADMISSIONS, "MinCount(3)"),
        ("evict", evict, EVICTIONS, "Idle(1000)"),
    ):
        try:
            limit = _limit_of(what, given, kinds, example)
        except ConfigError as error:
            raise ConfigError(f"table {name!r}: {error}") from None
        found.append(limit)
        if limit is None:
            continue
        if not isinstance(consistency, BSP) or consistency.backup:
            raise ConfigError(
                f"table {name!r}: {what} = {limit} needs consistency = BSP() without backup workers: "
                "the close of a clock decides which rows are there"
            )
        if isinstance(limit, MaxRows | MaxBytes) and not isinstance(partition, HashPartition):
            raise ConfigError(
                f"table {name!r}: evict = {limit} needs partition = HashPartition(): a set of keys "
                "must lie on one server"
            )
    settled_admit, settled_evict = found
    if isinstance(settled_evict, MaxBytes):
        _check_rows(name, settled_evict, row_bytes)
    return settled_admit, settled_evict


def _check_rows(name: str, evict: MaxBytes, row_bytes: int) -> None:
    """Raise ConfigError if the memory is too small for one row, or has room for more than a table has."""
    n_rows, n_bytes = most_rows(evict, row_bytes), row_bytes + OVERHEAD_BYTES
    if n_rows < 1:
        raise ConfigError(
            f"table {name!r}: evict = {evict} is too little memory for a row of {n_bytes} bytes"
        )
    if n_rows > MOST_ROWS:
        raise ConfigError(
            f"table {name!r}: evict = {evict} allows {n_rows:,} rows of {n_bytes} bytes; a table has at "
            f"most {MOST_ROWS:,}: give less memory, or no limit"
        )


def _limit_of(what: str, value: object, kinds: Mapping[str, type[Any]], example: str) -> Any:
    """Return a limit that a user has given, as a value or as a mapping with "name"; None: none.

    Raises:
        ConfigError: `value` is not such a limit; the message lists those that exist.
    """
    if value is None or value == "none" or isinstance(value, tuple(kinds.values())):
        return value if value != "none" else None
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        shown = f"{value.__name__}, a class" if isinstance(value, type) else repr(value)
        raise ConfigError(
            f"{what} = {shown}: must be a limit such as {example}, in a job file a table with a name: "
            f"{', '.join(kinds)}"
        )
    if value["name"] not in kinds:
        raise unknown_name(what, str(value["name"]), [*kinds, "none"])
    kind, options = kinds[value["name"]], {k: v for k, v in value.items() if k != "name"}
    try:
        return kind(**options)
    except TypeError:
        known = ", ".join(field.name for field in fields(kind))
        given = ", ".join(map(str, options)) or "nothing"
        raise ConfigError(f"{what} {kind.name!r} has {known}, not {given}") from None


def limit_config(limit: Admission | Eviction | None) -> dict[str, Any] | None:
    """Return the mapping from which a table makes an equal limit; None for None."""
    return None if limit is None else {"name": limit.name, **asdict(limit)}


def most_rows(evict: Eviction | None, row_bytes: int) -> int:
    """Return the rows of `row_bytes` bytes that a table may have on all servers; 0: as many as are pushed."""
    if isinstance(evict, MaxRows):
        return evict.rows
    if isinstance(evict, MaxBytes):
        return (evict.mib << 20) // (row_bytes + OVERHEAD_BYTES)
    return 0


def n_sets(evict: Eviction | None, row_bytes: int) -> int:
    """Return the number of sets of MaxRows and MaxBytes, a power of two (native RowSets); else 0."""
    rows, n = most_rows(evict, row_bytes), 1
    while rows // (2 * n) >= LEAST_SET:
        n *= 2
    return n if rows else 0


def check_servers(name: str, evict: Eviction | None, row_bytes: int, n_servers: int) -> None:
    """Refuse a limit that servers could not keep together. `name`: of the table.

    Raises:
        ConfigError: There are fewer sets than servers, so each server would keep as many rows as the table.
    """
    if 0 < n_sets(evict, row_bytes) < n_servers:
        least = (1 << (n_servers - 1).bit_length()) * LEAST_SET
        raise ConfigError(
            f"table {name!r}: evict = {evict} is {most_rows(evict, row_bytes)} rows; {n_servers} servers "
            f"need a limit of {least} rows or more: give a greater limit, or fewer servers"
        )


def native_limits(
    admit: Admission | None, evict: Eviction | None, row_bytes: int, seed: int
) -> tuple[str, int, int, float, int, str, int, int]:
    """Return the limits of a table as `_native.ServerCore.set_limits` takes them, without memory.

    Args:
        admit: Limit of the keys that get a row.
        evict: Limit of the rows that stay.
        row_bytes: Bytes of a row of the table.
        seed: Seed of the table.
    """
    counted = isinstance(admit, MinCount)
    return (
        "counted" if counted else "random" if isinstance(admit, Probability) else "all",
        admit.clocks if isinstance(admit, MinCount) else 0,
        admit.within if isinstance(admit, MinCount) else 0,
        admit.p if isinstance(admit, Probability) else 1.0,
        seed,
        {None: "none", "lru": "recent", "lfu": "frequent"}[getattr(evict, "by", None)]
        if not isinstance(evict, Idle)
        else "idle",
        evict.clocks if isinstance(evict, Idle) else 0,
        most_rows(evict, row_bytes),
    )


def use_bytes(evict: Eviction | None) -> int:
    """Return the bytes that the limits take for each row, beside its values, its key and the map."""
    if evict is None:
        return 0
    return 8 if isinstance(evict, Idle) else 12


def set_bytes(evict: Eviction | None, row_bytes: int) -> int:
    """Return the bytes of the empty sets of MaxRows and MaxBytes on each server."""
    return 25 * n_sets(evict, row_bytes)


def sketch_bytes(admit: Admission | None) -> int:
    """Return the bytes of the counts of keys without rows on each server; 0: the table does not count."""
    return admit.memory_mib << 20 if isinstance(admit, MinCount) else 0
