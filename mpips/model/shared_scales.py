"""The tables of scales that servers keep for tables with SharedInt8 (native/src/server/scale_shard.hpp).

A table of scales is a dense table beside the one that it is for. Its values are exponents: e stands for the
scale 2^(e - 127), 0 for the scale 0. Only servers change it, when they close a clock. Programs do not see it;
checkpoints contain it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from mpips.model.codec import SharedInt8
from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD

if TYPE_CHECKING:
    from mpips.model.table import DenseTable, Table


def scales_name(name: str) -> str:
    """Return the name of the table with the scales of table `name`."""
    return f"{name}.scales"


def with_scales(tables: Sequence[Table]) -> list[Table]:
    """Return the tables, and behind them a table of scales for each one that needs one."""
    return [*tables, *(_scales(t) for t in tables if _shares(t))]


def scale_tables(tables: Sequence[Table]) -> dict[int, int]:
    """Return the index of each table of scales by that of the table that it is for."""
    indices = {table.name: i for i, table in enumerate(tables)}
    return {
        i: indices[scales_name(t.name)]
        for i, t in enumerate(tables)
        if _shares(t) and scales_name(t.name) in indices
    }


def shared_codec(table: Table) -> SharedInt8:
    """Return the codec of a table that has shared scales."""
    assert isinstance(table.compression, SharedInt8)
    return table.compression


def _shares(table: Table) -> TypeGuard[DenseTable]:
    return isinstance(table.compression, SharedInt8)


def _scales(table: DenseTable) -> DenseTable:
    n = -(-table.n_elements // shared_codec(table).block)
    return dataclasses.replace(
        table,
        name=scales_name(table.name),
        shape=(n,),
        optimizer=SGD(1.0),
        consistency=BSP(reduce="sum"),
        init="zeros",
        clip_norm=0.0,
        compression=None,
        pull_compression=None,
    )
