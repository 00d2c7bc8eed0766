"""The sections [table] and [tables.NAME] of a job file: options of all tables, and of one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mpips.model.consistency import (
    AutoBackup,
    AutoBound,
    AutoStaleness,
    ConsistencyName,
    Lambda,
    MostBackup,
    MostBound,
    PolicyName,
    Reduction,
    SwitchPlace,
    SwitchRate,
)
from mpips.model.hash_buckets import HashBuckets
from mpips.model.local_sgd import Delay, Fragments, InnerSteps, Mix
from mpips.model.row_values import RowDtype


class TableConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[table] for all tables, [tables.NAME] for one. The task chooses what is not set."""

    optimizer: Annotated[
        str | dict[str, Any] | None,
        Meta(
            description='Name, or table such as {name = "adam", lr = 0.01}. "module:function" is a rule of '
            "your own. A table without a name changes values of the optimizer that the task chooses."
        ),
    ] = None
    consistency: Annotated[
        ConsistencyName | None,
        Meta(description="Consistency model; auto: switch with switch_at = uneven."),
    ] = None
    bound: Annotated[
        AutoBound | None,
        Meta(
            description="SSP: clocks that a worker may be ahead of the slowest; auto: as many as measured "
            "push intervals suggest. Asynchronous diloco: outer steps."
        ),
    ] = None
    max_bound: Annotated[
        MostBound | None, Meta(description="SSP with bound auto: greatest bound; 8 by default.")
    ] = None
    reduce: Annotated[
        Reduction | None,
        Meta(
            description="BSP, switch and auto: an update under BSP is the mean or the sum of all workers' "
            "pushes."
        ),
    ] = None
    switch_at: Annotated[
        SwitchPlace | None,
        Meta(
            description="switch: number of clocks of the run under BSP, and ASP begins then; plateau: when "
            "the noise of the mean gradient is as large as the gradient; uneven: when workers would push a "
            "tenth more gradients per second under ASP."
        ),
    ] = None
    switch_rate: Annotated[
        SwitchRate | None,
        Meta(
            description="switch and auto: factor of the learning rate under ASP; 1 / number of workers by "
            'default with reduce = "mean", else 1.'
        ),
    ] = None
    backup: Annotated[
        AutoBackup | None,
        Meta(
            description="BSP: number of backup workers, whose pushes a clock does not wait for; auto: as "
            "measured times of the workers suggest."
        ),
    ] = None
    max_backup: Annotated[
        MostBackup | None, Meta(description="BSP with backup auto: greatest number; 8 by default.")
    ] = None
    policy: Annotated[
        PolicyName | None,
        Meta(description="SSP, ASP, switch and auto: what happens to a stale update."),
    ] = None
    max_staleness: Annotated[
        AutoStaleness | None,
        Meta(
            description="Policy reject: staleness, in updates, up to which an update is applied; auto: as "
            "the noise of the gradients suggests, for dense tables."
        ),
    ] = None
    lambda_: Annotated[
        Lambda | None, Meta(description="Policy compensate: factor of the compensation.")
    ] = None
    steps: Annotated[
        InnerSteps | None,
        Meta(
            description="local_sgd and diloco: steps of a worker between two outer steps; 24 by default."
        ),
    ] = None
    outer: Annotated[
        str | dict[str, Any] | None,
        Meta(
            description="diloco: optimizer that servers apply to the mean of the differences; {name = "
            '"nesterov", lr = 0.7, momentum = 0.9} by default.'
        ),
    ] = None
    fragments: Annotated[
        Fragments | None,
        Meta(description="diloco: groups of tables with outer steps one after the other."),
    ] = None
    delay: Annotated[
        Delay | None,
        Meta(description="diloco: steps of a worker between its push and the new values."),
    ] = None
    mix: Annotated[
        Mix | None,
        Meta(description="diloco with a delay: share of a worker's own values; 0.5 by default."),
    ] = None
    asynchronous: Annotated[
        bool | None,
        Meta(description="diloco: servers apply differences as they arrive; no worker waits."),
    ] = None
    steps_by_speed: Annotated[
        bool | None,
        Meta(
            description="diloco, asynchronous: slower workers make fewer steps between outer steps."
        ),
    ] = None
    partition: Annotated[
        str | dict[str, Any] | None,
        Meta(description='Name, or table such as {name = "range", low = 0, high = 1000}.'),
    ] = None
    init: Annotated[
        str | None,
        Meta(description="Initial values: zeros, uniform(0.1), normal(0.01), xavier, ..."),
    ] = None
    clip_norm: Annotated[
        float | None,
        Meta(description="Greatest L2 norm of a push; a longer one is scaled down. 0: off."),
    ] = None
    check_finite: Annotated[
        bool | None, Meta(description="Refuse pushes that contain NaN or infinity.")
    ] = None
    placement: Annotated[
        Literal["servers", "replicated", "auto"] | None,
        Meta(
            description="Dense tables: on servers, or replicated on all workers, with the same bits. "
            "Replicated tables need BSP. auto: what is faster by measured bandwidths."
        ),
    ] = None

    admit: Annotated[
        str | dict[str, Any] | None,
        Meta(
            description='Embedding tables under BSP: keys that get a row, {name = "min_count", clocks = 3} '
            'or {name = "probability", p = 0.1}; none: each key that is pushed.'
        ),
    ] = None
    evict: Annotated[
        str | dict[str, Any] | None,
        Meta(
            description='Embedding tables under BSP: rows that leave, {name = "idle", clocks = 1000}, '
            '{name = "max_rows", rows = 1000000, by = "lru"} or {name = "max_bytes", mib = 512, by = "lfu"}; '
            "none: rows stay."
        ),
    ] = None

    storage: Annotated[
        dict[str, Any] | None,
        Meta(
            description='Embedding tables larger than memory: {path = "/local/nvme", memory_mib = 8192}; '
            "rows that do not fit into this memory of a server lie in a file in this folder of its node."
        ),
    ] = None

    compression: Annotated[
        str | dict[str, Any] | None,
        Meta(
            description="Codec of pushes: none, bf16, fp16, int8, and for dense tables topk, randomk, "
            'onebit, shared_int8; or a table such as {name = "topk", fraction = 0.01} or {name = "auto", '
            'codecs = ["bf16", "int8"]}.'
        ),
    ] = None
    pull_compression: Annotated[
        str | dict[str, Any] | None,
        Meta(
            description="Codec of pulls: none, bf16 or int8, with which workers receive rounded values; and "
            "for dense tables under BSP topk or onebit, with which they receive differences."
        ),
    ] = None
    hash_buckets: Annotated[
        HashBuckets | None,
        Meta(
            description="Embedding tables: number of rows of a table of fixed size, to which keys are "
            "hashed. 0: each key has a row of its own."
        ),
    ] = None
    row_dtype: Annotated[
        RowDtype | None,
        Meta(
            description="Embedding tables: type of the stored values; bf16 takes half of the memory, and is "
            "rounded at random."
        ),
    ] = None
