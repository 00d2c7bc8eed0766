"""Descriptions of tables: what a job stores, how it is split, updated and kept consistent.

A description is a value without memory: every rank makes the same ones, and a checksum over them is
compared at start-up.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.consistency import BSP, Consistency
from mpips.model.initializer import Initializer
from mpips.model.optimizer import SGD, Optimizer, PythonRule
from mpips.model.partition import Partition

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class DenseTable:
    """A named float32 tensor, split over servers in contiguous ranges.

    Attributes:
        name: Unique in the job.
        shape: Of the tensor; () is a scalar.
        optimizer: Applied on the servers, state beside the values.
        consistency: BSP, SSP or ASP.
        init: An initialiser, or its text form ("zeros", "uniform(0.1)", "xavier", ...), or a float32
            array of this shape.
        partition: A partition value or its name: RangePartition (over all servers), LayerPartition
            (whole tensor to one server) or FrequencyPartition (as measured). Tensors with equal
            partitions are balanced together.
        clip_norm: Greatest L2 norm of a push; longer ones are scaled down by the worker. 0: off.
        check_finite: Refuse pushes that hold NaN or infinity, before they are sent.
    """

    name: str
    shape: tuple[int, ...]
    optimizer: Optimizer | PythonRule = field(default_factory=SGD)
    consistency: Consistency = field(default_factory=BSP)
    init: Initializer | str | Float32 = "zeros"
    partition: Partition | str = "range"
    clip_norm: float = 0.0
    check_finite: bool = True

    def __post_init__(self) -> None:
        """Check sizes and the initial values."""
        _check_common(self)
        shape = tuple(int(n) for n in self.shape)
        object.__setattr__(self, "shape", shape)
        if any(n < 1 for n in shape):
            raise ConfigError(f"table {self.name!r}: shape {shape} has a length below 1")
        if isinstance(self.init, str):
            object.__setattr__(self, "init", Initializer.parse(self.init))
        elif isinstance(self.init, np.ndarray):
            object.__setattr__(self, "init", _initial_array(self.name, self.init, shape))

    @property
    def n_elements(self) -> int:
        """Number of float32 values of the tensor."""
        return math.prod(self.shape)

    @property
    def fans(self) -> tuple[int, int]:
        """fan_in and fan_out for Xavier initialisation: of a (fan_in, fan_out) matrix."""
        if len(self.shape) < 2:
            return (self.n_elements, self.n_elements)
        return (math.prod(self.shape[:-1]), self.shape[-1])


@dataclass(frozen=True)
class EmbeddingTable:
    """int64 key -> float32 row; any key, rows made at their first push.

    Attributes:
        name: Unique in the job.
        dim: Floats per row.
        optimizer: Applied on the servers row by row, state beside the row.
        consistency: BSP, SSP or ASP.
        init: An initialiser or its text form; a row's initial value depends only on key and seed.
        partition: A partition value or its name: HashPartition, RangePartition(low, high) of the keys,
            or FrequencyPartition.from_counts.
        clip_norm: Greatest L2 norm of a push; longer ones are scaled down by the worker. 0: off.
        check_finite: Refuse pushes that hold NaN or infinity, before they are sent.
    """

    name: str
    dim: int
    optimizer: Optimizer | PythonRule = field(default_factory=SGD)
    consistency: Consistency = field(default_factory=BSP)
    init: Initializer | str = "zeros"
    partition: Partition | str = "hash"
    clip_norm: float = 0.0
    check_finite: bool = True

    def __post_init__(self) -> None:
        """Check the row length and the initialiser."""
        _check_common(self)
        if self.dim < 1:
            raise ConfigError(f"table {self.name!r}: dim = {self.dim}; 1 or more is accepted")
        if isinstance(self.init, str):
            object.__setattr__(self, "init", Initializer.parse(self.init))

    @property
    def fans(self) -> tuple[int, int]:
        """fan_in and fan_out for Xavier initialisation: a row maps one key to `dim` values."""
        return (1, self.dim)


Table = DenseTable | EmbeddingTable


def _check_common(table: Table) -> None:
    if isinstance(table.partition, str):
        object.__setattr__(table, "partition", Partition.from_config(table.partition))
    if not table.name or not table.name.isprintable() or "/" in table.name:
        raise ConfigError(f"table name {table.name!r}: a printable name without '/' is accepted")
    if not (math.isfinite(table.clip_norm) and table.clip_norm >= 0):
        raise ConfigError(
            f"table {table.name!r}: clip_norm = {table.clip_norm}; 0 or more is accepted"
        )


def _initial_array(name: str, values: NDArray[Any], shape: tuple[int, ...]) -> Float32:
    if values.shape != shape:
        raise ConfigError(f"table {name!r}: initial values of shape {values.shape}, not {shape}")
    array = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(array).all():
        raise ConfigError(f"table {name!r}: the initial values hold NaN or infinity")
    return array


def check_tables(tables: list[Table]) -> None:
    """Refuse a list of tables that cannot work together."""
    if not tables:
        raise ConfigError("a job needs at least one table")
    if len(tables) > 65535:
        raise ConfigError(f"{len(tables)} tables; at most 65535 are accepted")
    names = [t.name for t in tables]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tables are named {name!r}")
    backups = {t.consistency.backup for t in tables if isinstance(t.consistency, BSP)}
    if len(backups) > 1:
        raise ConfigError(
            f"BSP tables with different numbers of backup workers {sorted(backups)}: "
            "a clock closes for all tables at once, so give all the same"
        )
    if backups - {0} and any(not isinstance(t.consistency, BSP) for t in tables):
        raise ConfigError("backup workers need every table to be BSP")


def fingerprint(tables: list[Table], extra: str) -> str:
    """A checksum of everything that ranks must agree on."""
    digest = hashlib.blake2b(extra.encode(), digest_size=16)
    for table in tables:
        for f in dataclasses.fields(table):
            value = getattr(table, f.name)
            text = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            digest.update(f.name.encode() + b"=" + text + b";")
    return digest.hexdigest()
