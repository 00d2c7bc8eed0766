"""Changes of a job's configuration to the tables of its task: [table] and [tables.NAME]."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from mpips.config.schema import JobConfig
from mpips.config.table_section import TableConfig
from mpips.errors import ConfigError
from mpips.model.accepted import unknown_name
from mpips.model.consistency import (
    ASP,
    AUTO,
    BSP,
    DEFAULT_MOST_BACKUP,
    PLAIN_MODELS,
    POLICIES,
    SSP,
    UNEVEN,
    Consistency,
    Policy,
    Switch,
)
from mpips.model.job_tables import check_tables
from mpips.model.local_sgd import DiLoCo, LocalSGD
from mpips.model.optimizer import Optimizer, PythonRule
from mpips.model.optimizer import from_config as optimizer_from_config
from mpips.model.partition import FrequencyPartition, Partition
from mpips.model.table import DenseTable, EmbeddingTable, Table

MEASURED = "frequency"  # partition of an embedding table that needs key frequencies of the data


def merged(common: TableConfig, own: TableConfig) -> TableConfig:
    """Return the options of one table: `own` where it sets a value, else `common`.

    An optimizer in `own` that has no name changes values of the optimizer in `common`.
    """
    values = {
        name: getattr(own, name) if getattr(own, name) is not None else getattr(common, name)
        for name in TableConfig.__struct_fields__
    }
    if common.optimizer is not None and own.optimizer is not None and not has_name(own.optimizer):
        below = (
            {"name": common.optimizer} if isinstance(common.optimizer, str) else common.optimizer
        )
        assert isinstance(own.optimizer, dict)
        values["optimizer"] = {**below, **own.optimizer}
    return TableConfig(**values)


def has_name(optimizer: str | dict[str, Any]) -> bool:
    """Return True if this replaces the optimizer of a table, False if it only changes values of it."""
    return isinstance(optimizer, str) or "name" in optimizer


def apply_overrides(
    tables: Sequence[Table], config: JobConfig, measured: FrequencyPartition | None
) -> list[Table]:
    """Return the tables of the task with the options of [table] and [tables.NAME].

    Args:
        tables: The tables of the task.
        config: The job.
        measured: Key frequencies of the training data; None unless `asks_for_measurement`.

    Raises:
        ConfigError: A table does not exist, or a combination of options is impossible.
    """
    names = sorted({t.name for t in tables})
    for name in config.tables:
        if name not in names:
            raise unknown_name("table", name, names)
    result = []
    for table in tables:
        own = config.tables.get(table.name, TableConfig())
        if own.placement == "replicated" and isinstance(table, EmbeddingTable):
            raise ConfigError(
                f"table {table.name!r}: remove placement = 'replicated': embedding tables lie on servers"
            )
        for option in ("hash_buckets", "row_dtype", "admit", "evict", "storage"):
            value = getattr(own, option)
            if value is not None and isinstance(table, DenseTable):
                raise ConfigError(
                    f"table {table.name!r}: remove {option} = {value!r}: dense tables have no rows by key"
                )
        try:
            result.append(_override(table, _of(table.name, config), measured))
        except ConfigError as error:
            named = str(error).startswith("table ")
            raise error if named else ConfigError(f"table {table.name!r}: {error}") from None
    check_tables(result)
    return result


def asks_for_measurement(config: JobConfig) -> bool:
    """Return True if a table is to be partitioned by measured key frequencies."""
    return any(t.partition == MEASURED for t in (config.table, *config.tables.values()))


def _of(name: str, config: JobConfig) -> TableConfig:
    return merged(config.table, config.tables.get(name, TableConfig()))


def _override(table: Table, options: TableConfig, measured: FrequencyPartition | None) -> Table:
    changes: dict[str, Any] = {}
    if options.optimizer is not None:
        changes["optimizer"] = _optimizer(options.optimizer, table.optimizer)
    changes["consistency"] = parse_consistency(options, table.consistency)
    if options.partition is not None:
        changes["partition"] = _partition(table, options.partition, measured)
    if options.placement is not None and isinstance(table, DenseTable):
        changes["placement"] = options.placement
    for name in ("init", "clip_norm", "check_finite", "compression", "pull_compression"):
        if getattr(options, name) is not None:
            changes[name] = getattr(options, name)
    for name in ("hash_buckets", "row_dtype", "admit", "evict", "storage"):
        if getattr(options, name) is not None and isinstance(table, EmbeddingTable):
            changes[name] = getattr(options, name)
    return dataclasses.replace(table, **changes)


def _optimizer(
    value: str | dict[str, Any], default: Optimizer | PythonRule
) -> Optimizer | PythonRule:
    if isinstance(value, str) or has_name(value):
        return optimizer_from_config(value)
    if isinstance(default, PythonRule):
        key, given = next(iter(value.items()))
        raise ConfigError(
            f"{key} = {given}: the optimizer is a PythonRule, which has no options; give the optimizer a "
            'name, such as {name = "adam", lr = 0.01}'
        )
    return optimizer_from_config({"name": default.name, **dataclasses.asdict(default), **value})


def _partition(
    table: Table, value: str | dict[str, Any], measured: FrequencyPartition | None
) -> Partition:
    if value != MEASURED:
        return Partition.from_config(value)
    if isinstance(table, EmbeddingTable):
        if measured is None:
            raise ConfigError(
                f"table {table.name!r}: partition 'frequency' needs sparse training data to measure"
            )
        return measured
    # Tasks push every dense table once per step.
    return FrequencyPartition(updates={table.name: 1.0})


# The model or policy that has the option.
_HOMES = {
    "reduce": "BSP, switch and auto",
    "switch_at": "switch",
    "switch_rate": "switch and auto",
    "backup": "BSP",
    "max_backup": "BSP with backup 'auto'",
    "bound": "SSP and asynchronous diloco",
    "max_bound": "SSP with bound 'auto'",
    "steps": "local_sgd and diloco",
    "outer": "diloco",
    "fragments": "diloco",
    "delay": "diloco",
    "mix": "diloco",
    "asynchronous": "diloco",
    "steps_by_speed": "diloco",
    "policy": "SSP, ASP, switch and auto",
    "max_staleness": "policy 'reject'",
    "lambda_": "policy 'compensate'",
}


# Options of each model.
_OPTIONS: dict[str, set[str]] = {
    "bsp": {"reduce", "backup"},
    "ssp": {"bound", "policy"},
    "asp": {"policy"},
    "switch": {"switch_at", "switch_rate", "reduce", "policy"},
    "auto": {"switch_rate", "reduce", "policy"},
    "local_sgd": {"steps"},
    "diloco": {
        "steps",
        "outer",
        "fragments",
        "delay",
        "mix",
        "asynchronous",
        "bound",
        "steps_by_speed",
    },
}


def parse_consistency(options: TableConfig, default: Consistency) -> Consistency:
    """Return the consistency model that the options describe.

    Args:
        options: Options of one table.
        default: The model of the task; its values are used where the options set none.

    Raises:
        ConfigError: An option does not belong to the model or to its policy.
    """
    model = options.consistency if options.consistency is not None else default.name
    allowed = _OPTIONS[model]
    if model == "ssp" and _bound(options, default) == AUTO:
        allowed = allowed | {"max_bound"}
    if model == "bsp" and _backup(options, default) == AUTO:
        allowed = allowed | {"max_backup"}
    if options.policy == "reject":
        allowed = allowed | {"max_staleness"}
    if options.policy == "compensate":
        allowed = allowed | {"lambda_"}
    for option in _HOMES:
        value = getattr(options, option)
        if value is not None and option not in allowed:
            raise ConfigError(
                f"{option} = {value!r} applies only to {_HOMES[option]}: remove it "
                f"({model.upper()} takes {' and '.join(sorted(allowed))})"
            )
    if model in ("switch", "auto"):
        return _switch(options, default)
    same = default if default.name == model else PLAIN_MODELS[model]()
    assert not isinstance(same, Switch)
    if isinstance(same, LocalSGD | DiLoCo):
        given = {name: getattr(options, name) for name in _OPTIONS[model]}
        given = {k: v for k, v in given.items() if v is not None}
        if (
            isinstance(same, DiLoCo)
            and given.get("asynchronous", same.asynchronous) != same.asynchronous
        ):
            given = {"outer": None, **given}  # the default rule is another one
        return dataclasses.replace(same, **given)
    if isinstance(same, BSP):
        return BSP(
            reduce=options.reduce if options.reduce is not None else same.reduce,
            backup=_backup(options, same),
            max=_most_backup(options, same),
        )
    policy = _policy(options, same.policy)
    if isinstance(same, SSP):
        bound, most = _bound(options, same), options.max_bound
        if most is None:
            # The task's greatest bound belongs to its bound "auto".
            most = same.max if bound == "auto" else SSP().max
        return SSP(bound, policy, most)
    return ASP(policy)


def _switch(options: TableConfig, default: Consistency) -> Switch:
    """Return BSP and ASP as the options, else the task, describe them."""
    same = default if isinstance(default, Switch) else None
    own_at, own_rate = (same.at, same.rate) if same is not None else (None, None)
    at = options.switch_at if options.switch_at is not None else own_at
    if options.consistency == AUTO:
        at = UNEVEN
    if at is None:
        raise ConfigError(
            "consistency = 'switch': add switch_at, the number of clocks of the run under BSP, or plateau or "
            "uneven"
        )
    first = same.first if same is not None else default if isinstance(default, BSP) else BSP()
    if options.reduce is not None:
        first = BSP(reduce=options.reduce)
    then = same.then if same is not None else default if isinstance(default, ASP) else ASP()
    rate = options.switch_rate if options.switch_rate is not None else own_rate
    return Switch(first, ASP(_policy(options, then.policy)), at, rate)


def _bound(options: TableConfig, default: Consistency) -> int | Literal["auto"]:
    """Return the bound of SSP: that of the options, or else that of the task."""
    if options.bound is not None:
        return options.bound
    return (default if isinstance(default, SSP) else SSP()).bound


def _backup(options: TableConfig, default: Consistency) -> int | Literal["auto"]:
    """Return the backup workers of BSP: those of the options, or else those of the task."""
    if options.backup is not None:
        return options.backup
    return (default if isinstance(default, BSP) else BSP()).backup


def _most_backup(options: TableConfig, same: BSP) -> int:
    if options.max_backup is not None:
        return options.max_backup
    return same.max if _backup(options, same) == AUTO else DEFAULT_MOST_BACKUP


def _policy(options: TableConfig, default: Policy) -> Policy:
    if options.policy is None:
        return default
    settings: dict[str, Any] = {}
    if options.max_staleness is not None:
        settings["max_staleness"] = options.max_staleness
    if options.lambda_ is not None:
        settings["lambda_"] = options.lambda_
    return POLICIES[options.policy](**settings)
