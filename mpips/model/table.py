"""Descriptions of tables: the tensors and rows of a job, their partition, optimizer and consistency.

A description is a value; it holds no memory of the table. Every rank makes the same descriptions, and the
ranks compare a checksum over them at start-up (`fingerprint`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.accepted import check_value, is_count
from mpips.model.arrays import as_float32
from mpips.model.codec import (
    LEAST_INT8_DIM,
    MOST_BLOCK,
    Auto,
    Biased,
    Int8,
    PullCodec,
    PushCodec,
    SharedInt8,
    check_differences,
    codec_of,
    pull_codec_of,
)
from mpips.model.consistency import BSP, Consistency, needs_base
from mpips.model.consistency import of_name as consistency_of
from mpips.model.initializer import Initializer
from mpips.model.local_sgd import Local, check_local, settle_codec
from mpips.model.optimizer import SGD, Optimizer, PythonRule
from mpips.model.optimizer import from_config as optimizer_from_config
from mpips.model.partition import Partition
from mpips.model.replicated import Replicated, TablePlacement, check_replicated, placement_of
from mpips.model.served import check_together

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class DenseTable:
    """A named float32 tensor, split over servers in contiguous ranges.

    Attributes:
        name: Unique in the job.
        shape: Lengths of the tensor's axes, each at least 1; () is a scalar.
        optimizer: The rule that servers apply to updates, or its name, such as "adam".
        consistency: BSP, SSP or ASP, or its name, such as "ssp"; or LocalSGD or DiLoCo: workers hold the
            values and apply the optimizer themselves, and communicate at outer steps only.
        init: An initialiser, its text form ("zeros", "uniform(0.1)", "xavier", ...), or a float32 array of
            this shape.
        partition: A partition or its name: RangePartition (over all servers), LayerPartition (the whole
            tensor on one server) or FrequencyPartition (by measured updates). Tensors with equal partitions
            are balanced together.
        clip_norm: Greatest L2 norm of a push; the worker scales down a longer one. 0: off. Each push is
            bounded by itself, before BSP sums the pushes of a clock and of all workers.
        check_finite: The worker refuses to send a push that contains NaN or infinity.
        placement: "servers", or "replicated" (Replicated()): every worker holds the table, and workers sum
            and apply the updates themselves. Only with BSP without backup workers, and no PythonRule. Values
            are equal bit by bit either way. "auto": the job decides at its start, see
            mpips.model.auto_placement.
        compression: Codec of pushes: Bf16(), Fp16(), Int8(), TopK(), RandomK(), OneBit(), SharedInt8() or a
            name, such as "int8"; None: float32. Needs check_finite, and no policy that compensates stale
            updates. Auto(...): the job decides at its start. See mpips.model.codec.
        pull_compression: Codec of pulls: Bf16(), Int8() or a name; None: float32. Workers receive rounded
            values; those on servers and in checkpoints are not rounded. TopK() or OneBit(), under BSP:
            workers receive differences, and what a difference does not send follows with later ones.
    """

    name: str
    shape: tuple[int, ...]
    optimizer: Optimizer | PythonRule = field(default_factory=SGD)
    consistency: Consistency = field(default_factory=BSP)
    init: Initializer | str | Float32 = "zeros"
    partition: Partition | str = "range"
    clip_norm: float = 0.0
    check_finite: bool = True
    placement: TablePlacement | str = "servers"
    compression: PushCodec | str | None = None
    pull_compression: PullCodec | str | None = None

    def __post_init__(self) -> None:
        """Check all values; names of optimizer, consistency, partition, init and placement become values.

        Raises:
            ConfigError: Names the table, the value and what is accepted.
        """
        _check_common(self)
        _settle_placement(self)
        codec = self.compression or self.pull_compression
        if self.is_replicated and codec is not None:
            raise ConfigError(
                f"table {self.name!r}: compression = {codec} with placement = 'replicated': workers sum "
                "float32 values; remove one of the two"
            )
        shape = _shape(self.name, self.shape)
        object.__setattr__(self, "shape", shape)
        if any(n < 1 for n in shape):
            raise ConfigError(
                f"table {self.name!r}: shape = {shape}: each length must be 1 or more"
            )
        if isinstance(self.init, str):
            object.__setattr__(self, "init", Initializer.parse(self.init))
        elif isinstance(self.init, np.ndarray):
            object.__setattr__(self, "init", _initial_array(self.name, self.init, shape))
        check_value(f"table {self.name!r}: init", self.init, (Initializer, np.ndarray), "'zeros'")

    @property
    def is_replicated(self) -> bool:
        """True if every worker holds the table."""
        return isinstance(self.placement, Replicated)

    def is_checked_at(self, clock: int) -> bool:
        """Return True if the copies of a replicated table are compared when a worker comes to this clock."""
        every = self.placement.check_every if isinstance(self.placement, Replicated) else 0
        return every > 0 and clock % every == 0

    @property
    def n_elements(self) -> int:
        """Number of float32 values of the tensor."""
        return math.prod(self.shape)

    @property
    def fans(self) -> tuple[int, int]:
        """fan_in and fan_out for Xavier initialisation.

        A matrix is (inputs, outputs), as in `x @ w`. A tensor of three axes or more is the kernel of a
        convolution, (*window, input channels, output channels): each output sums over window * input
        channels, and each input contributes to window * output channels. Keras has the same order of axes;
        torch.nn has (outputs, inputs, *window), with the same fans.
        """
        if len(self.shape) < 2:
            return (self.n_elements, self.n_elements)
        window = math.prod(self.shape[:-2])
        return (window * self.shape[-2], window * self.shape[-1])


@dataclass(frozen=True)
class EmbeddingTable:
    """A map from int64 keys to float32 rows. Any key exists; a row is made at its first push.

    Attributes:
        name: Unique in the job.
        dim: Floats per row, at least 1.
        optimizer: The rule that servers apply to each row, or its name, such as "adam".
        consistency: BSP, SSP or ASP, or its name, such as "ssp".
        init: An initialiser or its text form. The initial value of a row depends only on key and seed.
        partition: A partition or its name: HashPartition, RangePartition(low, high) of the keys, or
            FrequencyPartition.from_counts.
        clip_norm: Greatest L2 norm of a push, over all its keys together, after rows of equal keys are
            summed. The worker scales down a longer push. 0: off. Each push is bounded by itself, as in a
            DenseTable.
        check_finite: The worker refuses to send a push that contains NaN or infinity, or whose rows of equal
            keys sum to infinity.
        compression: Codec of pushes: Bf16(), Fp16() or Int8(), as in a DenseTable. Each row is a block. Int8
            needs rows of 16 values or more.
        pull_compression: Codec of pulls, as in a DenseTable. Each row is a block.
    """

    name: str
    dim: int
    optimizer: Optimizer | PythonRule = field(default_factory=SGD)
    consistency: Consistency = field(default_factory=BSP)
    init: Initializer | str = "zeros"
    partition: Partition | str = "hash"
    clip_norm: float = 0.0
    check_finite: bool = True
    compression: PushCodec | str | None = None
    pull_compression: PullCodec | str | None = None

    def __post_init__(self) -> None:
        """Check all values; names of optimizer, consistency, partition and init become values.

        Raises:
            ConfigError: Names the table, the value and what is accepted.
        """
        _check_common(self)
        if not is_count(self.dim) or self.dim < 1:
            raise ConfigError(f"table {self.name!r}: dim = {self.dim}: must be 1 or more")
        object.__setattr__(self, "dim", int(self.dim))
        if isinstance(self.compression, Biased):
            raise ConfigError(
                f"table {self.name!r}: compression = {self.compression} is for dense tables: a worker cannot "
                "hold a residual for every row; use 'bf16', 'fp16' or 'int8'"
            )
        for what in ("compression", "pull_compression"):
            codec = getattr(self, what)
            codecs = codec.codecs if isinstance(codec, Auto) else (codec,)
            if any(isinstance(one, Int8) for one in codecs) and self.dim < LEAST_INT8_DIM:
                raise ConfigError(
                    f"table {self.name!r}: {what} = 'int8' with dim = {self.dim}: needs rows of "
                    f"{LEAST_INT8_DIM} values or more; use 'bf16'"
                )
            if codec is not None and self.dim > MOST_BLOCK:
                raise ConfigError(
                    f"table {self.name!r}: {what} with dim = {self.dim}: rows may have up to {MOST_BLOCK} "
                    "values"
                )
        if isinstance(self.init, str):
            object.__setattr__(self, "init", Initializer.parse(self.init))
        check_value(f"table {self.name!r}: init", self.init, (Initializer,), "'zeros'")

    @property
    def fans(self) -> tuple[int, int]:
        """fan_in and fan_out for Xavier initialisation: a row maps one key to `dim` values."""
        return (1, self.dim)


Table = DenseTable | EmbeddingTable


def is_table_name(name: str) -> bool:
    """Return True for a valid name of a table. The name can become part of the name of a file."""
    return bool(name) and name.isprintable() and "/" not in name


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    try:
        return tuple(operator.index(n) for n in shape)
    except TypeError:
        raise ConfigError(
            f"table {name!r}: shape = {shape!r}: must be a tuple of whole numbers, such as (1000, 64)"
        ) from None


def _settle_rules(table: Table) -> None:
    """Replace names of optimizer and consistency by values; refuse a class or any other value.

    Raises:
        ConfigError: Names the table, the value and what is accepted; for a class, shows the call.
    """
    for what in ("optimizer", "consistency"):
        value: Any = getattr(table, what)
        name, shown = table.name, getattr(value, "__name__", value)
        if isinstance(value, type):
            rate = f" or {value.__name__}(lr={value.lr:g})" if hasattr(value, "lr") else ""
            raise ConfigError(
                f"table {name!r}: {what} = {shown} is a class; call it: {shown}(){rate}"
            )
        try:
            if what == "optimizer" and isinstance(value, str | Mapping):
                value = optimizer_from_config(value)
            elif what == "consistency" and isinstance(value, str):
                value = consistency_of(value)
        except ConfigError as error:
            raise ConfigError(f"table {name!r}: {error}") from None
        if what == "optimizer" and not isinstance(value, Optimizer | PythonRule):
            raise ConfigError(
                f"table {name!r}: {what} = {shown}: must be an optimizer such as Adam(lr=0.001), or its name"
            )
        if what == "consistency" and not isinstance(value, Consistency):
            raise ConfigError(
                f"table {name!r}: {what} = {shown}: must be BSP(), SSP(bound=2), ASP(), LocalSGD() or "
                "DiLoCo(), or a name: bsp, ssp, asp, local_sgd, diloco"
            )
        object.__setattr__(table, what, value)


def _settle_placement(table: DenseTable) -> None:
    try:
        placement = placement_of(table.placement)
        if isinstance(placement, Replicated):
            check_replicated(table.consistency, table.optimizer)
    except ConfigError as error:
        raise ConfigError(f"table {table.name!r}: {error}") from None
    object.__setattr__(table, "placement", placement)


def _settle_compression(table: Table) -> None:
    """Replace the name of a codec by the codec.

    Raises:
        ConfigError: There is no such codec, or it does not fit to the table's other options.
    """
    try:
        codec = codec_of(table.compression)
        object.__setattr__(table, "compression", codec)
        settle_codec(table)
        codec = codec_of(table.compression)
        pulls = pull_codec_of(table.pull_compression)
        object.__setattr__(table, "pull_compression", pulls)
        is_bsp = isinstance(table.consistency, BSP)
        check_differences(pulls, isinstance(table, DenseTable), is_bsp)
    except ConfigError as error:
        named = str(error).startswith("table ")
        raise error if named else ConfigError(f"table {table.name!r}: {error}") from None
    if codec is None:
        return
    if needs_base(table.consistency):
        raise ConfigError(
            f"table {table.name!r}: compression = {codec} with the policy Compensate: pushes then also carry "
            "the values that an update was computed on; use Accept, Scale or Reject"
        )
    if isinstance(codec, Biased) and isinstance(table.consistency, Local):
        raise ConfigError(
            f"table {table.name!r}: compression = {codec} with {table.consistency.name}: the differences of "
            "many steps have no residual; use 'bf16', 'fp16' or 'int8'"
        )
    if isinstance(codec, SharedInt8) and not (
        isinstance(table.consistency, BSP) and table.consistency.backup == 0
    ):
        raise ConfigError(
            f"table {table.name!r}: compression = {codec} needs BSP without backup workers: the workers of a "
            "clock share its scales; use 'int8'"
        )
    if not table.check_finite:
        raise ConfigError(
            f"table {table.name!r}: compression = {codec} needs check_finite = true: codecs scale by the "
            "greatest value of a block"
        )


def feedback_tables(tables: Sequence[Table]) -> dict[int, DenseTable]:
    """Return the tables whose pushes have residuals, by their index in `tables`."""
    return {
        i: t
        for i, t in enumerate(tables)
        if isinstance(t, DenseTable) and isinstance(t.compression, Biased)
    }


def native_pull_codec(table: Table) -> _native.Codec | None:
    """Return the codec of a table's pulls as native code needs it; None: they are not encoded."""
    assert not isinstance(table.pull_compression, str | Auto), "a job replaces Auto at its start"
    if table.pull_compression is None:
        return None
    return table.pull_compression.native(table.dim if isinstance(table, EmbeddingTable) else None)


def native_codec(table: Table) -> _native.Codec | None:
    """Return the codec of a table's pushes as native code needs it; None: they are not encoded."""
    assert not isinstance(table.compression, str | Auto), "a job replaces Auto at its start"
    if table.compression is None:
        return None
    return table.compression.native(table.dim if isinstance(table, EmbeddingTable) else None)


def replicated_tables(tables: Sequence[Table]) -> dict[int, DenseTable]:
    """Return the replicated tables by their index in `tables`."""
    return {i: t for i, t in enumerate(tables) if isinstance(t, DenseTable) and t.is_replicated}


def _check_common(table: Table) -> None:
    _settle_rules(table)
    if isinstance(table.consistency, Local):
        check_local(table, isinstance(table, DenseTable))
    where = f"table {table.name!r}:"
    if isinstance(table.partition, str):
        object.__setattr__(table, "partition", Partition.from_config(table.partition))
    check_value(f"{where} partition", table.partition, (Partition,), "HashPartition()")
    check_value(f"{where} check_finite", table.check_finite, (bool, np.bool_), "True")
    check_value(f"{where} clip_norm", table.clip_norm, (int, float, np.integer, np.floating), "1.0")
    _settle_compression(table)
    if not isinstance(table.name, str) or not is_table_name(table.name):
        raise ConfigError(f"table name {table.name!r}: must be printable text without '/'")
    if not (math.isfinite(table.clip_norm) and table.clip_norm >= 0):
        raise ConfigError(f"table {table.name!r}: clip_norm = {table.clip_norm}: must be 0 or more")


def _initial_array(name: str, values: NDArray[Any], shape: tuple[int, ...]) -> Float32:
    try:
        array = as_float32("it", values, shape)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"table {name!r}: the array given as init: {error}") from None
    if not np.isfinite(array).all():
        raise ConfigError(f"table {name!r}: the array given as init contains NaN or infinity")
    return array


def check_tables(tables: list[Table]) -> None:
    """Refuse a list of tables that one job cannot have.

    Raises:
        ConfigError: There is no table or too many, two have one name, or backup workers do not fit together.
    """
    if not tables:
        raise ConfigError("a job needs at least one table, none is given")
    if len(tables) > 65535:
        raise ConfigError(
            f"{len(tables)} tables are given: a job takes at most 65535; join small ones"
        )
    name, count = Counter(t.name for t in tables).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"two tables are named {name!r}; rename one")
    check_together(tables)
    backups = {t.consistency.backup for t in tables if isinstance(t.consistency, BSP)}
    if len(backups) > 1:
        raise ConfigError(
            f"BSP tables with different numbers of backup workers {sorted(backups)}: "
            "a clock closes for all tables at once, so give all of them the same backup"
        )
    if backups - {0} and any(not isinstance(t.consistency, BSP) for t in tables):
        raise ConfigError("backup workers need every table to be BSP; set backup = 0 or use BSP")


def fingerprint(tables: list[Table], extra: str) -> str:
    """Return a checksum of the tables and of `extra`, which must be equal on all ranks."""
    digest = hashlib.blake2b(extra.encode(), digest_size=16)
    for table in tables:
        for f in dataclasses.fields(table):
            value = getattr(table, f.name)
            text = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
            digest.update(f.name.encode() + b"=" + text + b";")
    return digest.hexdigest()
