"""Descriptions of tables: the tensors and rows of a job, their partition, optimizer and consistency.

A description is a value; it holds no memory of the table. Every rank makes the same descriptions, and the
ranks compare a checksum over them at start-up (job_tables.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.accepted import check_value, is_count
from mpips.model.codec import Auto, Biased, PullCodec, PushCodec
from mpips.model.consistency import BSP, Consistency
from mpips.model.hash_buckets import bucket_keys, settled_buckets
from mpips.model.initializer import Initializer
from mpips.model.optimizer import SGD, Optimizer, PythonRule
from mpips.model.partition import Partition
from mpips.model.replicated import Replicated, TablePlacement
from mpips.model.row_limits import Admission, Eviction, settled_limits
from mpips.model.row_values import RowDtype, check_row_dtype
from mpips.model.storage import Storage, settled_storage
from mpips.model.table_options import (
    check_row_codecs,
    initial_array,
    settle_options,
    settle_placement,
    settle_stage,
    shape_of,
)

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
        stage: Stage of the model whose workers alone push to the table and pull from it, from 0; None: all
            workers do. See mpips.model.stages.
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
    stage: int | None = None

    def __post_init__(self) -> None:
        """Check all values; names of optimizer, consistency, partition, init and placement become values.

        Raises:
            ConfigError: Names the table, the value and what is accepted.
        """
        settle_options(self, is_dense=True)
        settle_placement(self)
        shape = shape_of(self.name, self.shape)
        object.__setattr__(self, "shape", shape)
        if isinstance(self.init, str):
            object.__setattr__(self, "init", Initializer.parse(self.init))
        elif isinstance(self.init, np.ndarray):
            object.__setattr__(self, "init", initial_array(self.name, self.init, shape))
        check_value(f"table {self.name!r}: init", self.init, (Initializer, np.ndarray), "'zeros'")
        settle_stage(self)

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


_MOST_ROWS = (1 << 32) - 1  # rows that a server can hold of a table


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
        row_dtype: Type of the stored values: "float32", or "bf16" with half of the memory. Servers compute in
            float32 and round at random (mpips.model.row_values); pulls give float32, and state stays float32.
        hash_buckets: Number of rows of a table of fixed size: a key stands for the row of its bucket
            (mpips.model.hash_buckets), which it shares with other keys. Pushes, pulls and look-aheads take
            keys; `all_rows` and checkpoints have buckets. 0: each key has a row of its own.
        admit: MinCount(3) or Probability(0.1): only some keys get a row; None: each key that is pushed. Only
            under BSP without backup workers. See mpips.model.row_limits.
        evict: Idle(clocks), MaxRows(n, by="lru") or MaxBytes(mib, by="lru"): rows that leave the table, with
            the state of their optimizer; None: rows stay. Only under BSP without backup workers.
        storage: Storage(path, memory_mib): rows that do not fit into `memory_mib` of a server lie in a file
            on the disk of its node; None: all rows lie in memory. Not with `admit`, `evict` and PythonRule,
            nor in jobs with replicas of servers (redundancy.partner). See mpips.model.storage.
        expected_rows: Number of rows that the table will have at most, on all servers; 0: unknown. The
            start-up refuses a job whose memory is too small for them, and `mpips plan` counts them. More rows
            are not refused.
        stage: As in a DenseTable.
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
    row_dtype: RowDtype = "float32"
    hash_buckets: int = 0
    admit: Admission | None = None
    evict: Eviction | None = None
    storage: Storage | None = None
    expected_rows: int = 0
    stage: int | None = None

    def __post_init__(self) -> None:
        """Check all values; names of optimizer, consistency, partition and init become values.

        Raises:
            ConfigError: Names the table, the value and what is accepted.
        """
        settle_options(self, is_dense=False)
        if not is_count(self.dim) or self.dim < 1:
            raise ConfigError(f"table {self.name!r}: dim = {self.dim}: must be 1 or more")
        object.__setattr__(self, "dim", int(self.dim))
        if not is_count(self.expected_rows) or not 0 <= self.expected_rows <= _MOST_ROWS:
            raise ConfigError(
                f"table {self.name!r}: expected_rows = {self.expected_rows!r}: must be a whole number from 0 "
                f"to {_MOST_ROWS}"
            )
        check_row_codecs(self)
        n_buckets = settled_buckets(self.name, self.hash_buckets, self.partition)
        object.__setattr__(self, "hash_buckets", n_buckets)
        check_row_dtype(self.name, self.row_dtype, self.optimizer)
        self._settle_rows()
        if isinstance(self.init, str):
            object.__setattr__(self, "init", Initializer.parse(self.init))
        check_value(f"table {self.name!r}: init", self.init, (Initializer,), "'zeros'")
        settle_stage(self)

    def _settle_rows(self) -> None:
        """Replace mappings by limits and storage, and check that these fit to the other options."""
        if self.admit is not None or self.evict is not None:
            admit, evict = settled_limits(
                self.name,
                self.admit,
                self.evict,
                self.consistency,
                self.partition,
                self.row_bytes,
            )
            object.__setattr__(self, "admit", admit)
            object.__setattr__(self, "evict", evict)
        if self.storage is not None:
            others = {
                "admit": self.admit is not None,
                "evict": self.evict is not None,
                "a PythonRule": isinstance(self.optimizer, PythonRule),
            }
            storage = settled_storage(self.name, self.storage, self.row_bytes, others)
            object.__setattr__(self, "storage", storage)

    @property
    def fans(self) -> tuple[int, int]:
        """fan_in and fan_out for Xavier initialisation: a row maps one key to `dim` values."""
        return (1, self.dim)

    def stored_keys(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the keys of the rows for which `keys` (int64, any shape) stand: their buckets, or they."""
        return bucket_keys(keys, self.hash_buckets) if self.hash_buckets else keys

    @property
    def counts_updates(self) -> bool:
        """True if each row has a count of its updates, for the rule or for the random numbers of bf16."""
        rule = self.optimizer
        uses_step = isinstance(rule, Optimizer) and rule.native().uses_step
        return uses_step or self.row_dtype == "bf16"

    @property
    def row_floats(self) -> int:
        """Floats of a row's content: values, each state of the rule, its state of the row, count of updates.

        The count is a number of 32 bits in the place of the last float. `counts_updates` is True for rows
        that have one.
        """
        rule = self.optimizer
        return self.dim * (1 + rule.n_state) + rule.n_row_state + self.counts_updates

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row; two values of bf16 take a float."""
        saved = self.dim // 2 if self.row_dtype == "bf16" else 0
        return 4 * (self.row_floats - saved)


Table = DenseTable | EmbeddingTable


def feedback_tables(tables: Sequence[Table]) -> dict[int, DenseTable]:
    """Return the tables whose pushes have residuals, by their index in `tables`."""
    return {
        i: t
        for i, t in enumerate(tables)
        if isinstance(t, DenseTable) and isinstance(t.compression, Biased)
    }


def replicated_tables(tables: Sequence[Table]) -> dict[int, DenseTable]:
    """Return the replicated tables by their index in `tables`."""
    return {i: t for i, t in enumerate(tables) if isinstance(t, DenseTable) and t.is_replicated}


def native_codec(table: Table) -> _native.Codec | None:
    """Return the codec of a table's pushes as native code needs it; None: they are not encoded."""
    return _native_codec(table, table.compression)


def native_pull_codec(table: Table) -> _native.Codec | None:
    """Return the codec of a table's pulls as native code needs it; None: they are not encoded."""
    return _native_codec(table, table.pull_compression)


def _native_codec(table: Table, codec: PushCodec | PullCodec | str | None) -> _native.Codec | None:
    assert not isinstance(codec, str | Auto), "a job replaces Auto at its start"
    if codec is None:
        return None
    return codec.native(table.dim if isinstance(table, EmbeddingTable) else None)
