"""The options of a table: names become values, and options that do not fit together are refused."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.accepted import check_value, is_count
from mpips.model.arrays import as_float32
from mpips.model.codec import (
    LEAST_INT8_DIM,
    MOST_BLOCK,
    Auto,
    Biased,
    Int8,
    PushCodec,
    SharedInt8,
    check_differences,
    codec_of,
    pull_codec_of,
)
from mpips.model.consistency import (
    BSP,
    Consistency,
    Switch,
    estimates_staleness,
    is_adaptive,
    needs_base,
)
from mpips.model.consistency import of_name as consistency_of
from mpips.model.local_sgd import DiLoCo, Local
from mpips.model.optimizer import Optimizer, PythonRule
from mpips.model.optimizer import from_config as optimizer_from_config
from mpips.model.partition import Partition
from mpips.model.replicated import Replicated, check_replicated, placement_of

if TYPE_CHECKING:
    from mpips.model.table import DenseTable, EmbeddingTable, Table

Float32 = NDArray[np.float32]
MOST_STAGES = 65536  # of a model; see mpips.model.stages


def is_table_name(name: str) -> bool:
    """Return True for a valid name of a table. The name can become part of the name of a file."""
    return bool(name) and name.isprintable() and "/" not in name


def settle_options(table: Table, is_dense: bool) -> None:
    """Check the options that all tables have; names become values.

    Args:
        table: The table.
        is_dense: True for a dense table.

    Raises:
        ConfigError: Names the table, the value and what is accepted.
    """
    _settle_rules(table, is_dense)
    if isinstance(table.consistency, Local):
        _check_local(table, is_dense)
    where = f"table {table.name!r}:"
    if isinstance(table.partition, str):
        object.__setattr__(table, "partition", Partition.from_config(table.partition))
    check_value(f"{where} partition", table.partition, (Partition,), "HashPartition()")
    check_value(f"{where} check_finite", table.check_finite, (bool, np.bool_), "True")
    check_value(f"{where} clip_norm", table.clip_norm, (int, float, np.integer, np.floating), "1.0")
    _settle_compression(table, is_dense)
    if not isinstance(table.name, str) or not is_table_name(table.name):
        raise ConfigError(f"table name {table.name!r}: must be printable text without '/'")
    if not (math.isfinite(table.clip_norm) and table.clip_norm >= 0):
        raise ConfigError(f"table {table.name!r}: clip_norm = {table.clip_norm}: must be 0 or more")


def _settle_rules(table: Table, is_dense: bool) -> None:
    """Replace names of optimizer and consistency by values; refuse any other value, and rules of rows.

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
                "DiLoCo(), or a name: bsp, ssp, asp, local_sgd, diloco, auto; or Switch(BSP(), ASP(), "
                "at=1000)"
            )
        object.__setattr__(table, what, value)
    if is_dense and table.optimizer.n_row_state:
        raise ConfigError(
            f"table {table.name!r}: optimizer {table.optimizer.name} has one state for each row of an "
            "embedding table, and this is a dense table: use Adagrad()"
        )


def _check_local(table: Table, is_dense: bool) -> None:
    """Raise ConfigError if a table cannot have its consistency LocalSGD or DiLoCo.

    Args:
        table: The table; its optimizer, consistency and codecs are values.
        is_dense: True for a dense table.
    """
    name = type(table.consistency).__name__
    if not is_dense:
        raise ConfigError(
            f"table {table.name!r}: consistency {name} is for dense tables: workers do not hold all rows; "
            "use ASP() for embedding tables of such a job"
        )
    if isinstance(table.optimizer, PythonRule):
        raise ConfigError(
            f"table {table.name!r}: consistency {name} needs an optimizer of mpips, not the Python rule "
            f"{table.optimizer.name}: workers apply it, and Python rules run on servers"
        )


def settle_placement(table: DenseTable) -> None:
    """Replace the name of a placement by the placement.

    Raises:
        ConfigError: There is no such placement, or it does not fit to the table's other options.
    """
    try:
        placement = placement_of(table.placement)
        if isinstance(placement, Replicated):
            check_replicated(table.consistency, table.optimizer)
    except ConfigError as error:
        raise ConfigError(f"table {table.name!r}: {error}") from None
    object.__setattr__(table, "placement", placement)
    codec = table.compression or table.pull_compression
    if table.is_replicated and codec is not None:
        raise ConfigError(
            f"table {table.name!r}: compression = {codec} with placement = 'replicated': workers sum "
            "float32 values; remove one of the two"
        )


def _settle_compression(table: Table, is_dense: bool) -> None:
    """Replace the name of a codec by the codec.

    Raises:
        ConfigError: There is no such codec, or it does not fit to the table's other options.
    """
    try:
        codec = codec_of(table.compression)
        object.__setattr__(table, "compression", codec)
        _settle_codec(table)
        codec = codec_of(table.compression)
        pulls = pull_codec_of(table.pull_compression)
        object.__setattr__(table, "pull_compression", pulls)
        is_bsp = isinstance(table.consistency, BSP)
        check_differences(pulls, is_dense, is_bsp)
        if pulls is not None and isinstance(table.consistency, Switch):
            raise ConfigError(
                f"pull_compression = {pulls} with Switch: applies to one consistency model; remove it"
            )
    except ConfigError as error:
        named = str(error).startswith("table ")
        raise error if named else ConfigError(f"table {table.name!r}: {error}") from None
    if codec is not None:
        _check_codec(table, codec)


def _settle_codec(table: Table) -> None:
    """Make the codec of DiLoCo(compression=...) that of the table's pushes.

    Raises:
        ConfigError: The table has another codec of its own.
    """
    if not isinstance(table.consistency, DiLoCo) or table.consistency.compression is None:
        return
    if table.compression not in (None, table.consistency.compression):
        raise ConfigError(
            f"table {table.name!r}: compression = {table.compression} and DiLoCo(compression="
            f"{table.consistency.compression}): give one of the two"
        )
    object.__setattr__(table, "compression", table.consistency.compression)


def _check_codec(table: Table, codec: PushCodec) -> None:
    """Raise ConfigError if pushes to the table cannot have this codec."""
    if needs_base(table.consistency):
        raise ConfigError(
            f"table {table.name!r}: compression = {codec} with the policy Compensate: pushes then also carry "
            "the values that an update was computed on; use Accept, Scale or Reject"
        )
    if isinstance(codec, Biased) and isinstance(table.consistency, Switch):
        raise ConfigError(
            f"table {table.name!r}: compression = {codec} with Switch: its residuals belong to one "
            "consistency model; use 'bf16', 'fp16' or 'int8'"
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


def check_row_codecs(table: EmbeddingTable) -> None:
    """Raise ConfigError if rows of this length cannot have the table's codecs."""
    if isinstance(table.compression, Biased):
        raise ConfigError(
            f"table {table.name!r}: compression = {table.compression} is for dense tables: a worker cannot "
            "hold a residual for every row; use 'bf16', 'fp16' or 'int8'"
        )
    for what in ("compression", "pull_compression"):
        codec = getattr(table, what)
        codecs = codec.codecs if isinstance(codec, Auto) else (codec,)
        if any(isinstance(one, Int8) for one in codecs) and table.dim < LEAST_INT8_DIM:
            raise ConfigError(
                f"table {table.name!r}: {what} = 'int8' with dim = {table.dim}: needs rows of "
                f"{LEAST_INT8_DIM} values or more; use 'bf16'"
            )
        if codec is not None and table.dim > MOST_BLOCK:
            raise ConfigError(
                f"table {table.name!r}: {what} with dim = {table.dim}: rows may have up to {MOST_BLOCK} "
                "values"
            )


def settle_stage(table: Table) -> None:
    """Check the stage of a table, after its other options.

    Raises:
        ConfigError: It is not a whole number, or does not fit to the table's other options.
    """
    stage = table.stage
    if stage is None:
        return
    if not is_count(stage) or not 0 <= stage < MOST_STAGES:
        raise ConfigError(
            f"table {table.name!r}: stage = {stage!r}: must be None or a whole number from 0 to "
            f"{MOST_STAGES - 1}"
        )
    object.__setattr__(table, "stage", int(stage))
    if other := _of_all_workers(table):
        raise ConfigError(
            f"table {table.name!r}: stage = {stage} with {other}, which needs all workers: remove one of "
            "the two"
        )


def _of_all_workers(table: Table) -> str:
    """Return an option of a table that takes all workers of the job; "": it has none."""
    model, placement = table.consistency, getattr(table, "placement", "servers")
    if isinstance(model, Local | Switch):
        return f"consistency = {type(model).__name__}"
    if isinstance(model, BSP) and model.backup:
        return f"backup = {model.backup}"
    if is_adaptive(model):
        return "SSP('auto')"
    if estimates_staleness(model):
        return "the policy Reject('auto')"
    if placement != "servers":
        return f"placement = {placement!r}"
    for what in ("compression", "pull_compression"):
        if isinstance(codec := getattr(table, what), Biased | Auto):
            return f"{what} = {codec}"
    return ""


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """Return the shape of a dense table as a tuple of whole numbers.

    Raises:
        ConfigError: `shape` does not consist of whole numbers, or a length is below 1.
    """
    try:
        lengths = tuple(operator.index(n) for n in shape)
    except TypeError:
        raise ConfigError(
            f"table {name!r}: shape = {shape!r}: must be a tuple of whole numbers, such as (1000, 64)"
        ) from None
    if any(n < 1 for n in lengths):
        raise ConfigError(f"table {name!r}: shape = {lengths}: each length must be 1 or more")
    return lengths


def initial_array(name: str, values: NDArray[Any], shape: tuple[int, ...]) -> Float32:
    """Return the initial values of a dense table as float32.

    Raises:
        ConfigError: They have another shape, are not real numbers, or are not finite.
    """
    try:
        array = as_float32("it", values, shape)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"table {name!r}: the array given as init: {error}") from None
    if not np.isfinite(array).all():
        raise ConfigError(f"table {name!r}: the array given as init contains NaN or infinity")
    return array
