"""Tables as mappings of plain values: a table of one process can be made anew in another one.

Only the module and name of a Python rule are in the mapping, so the other process must be able to import it.
Arrays of initial values are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mpips.errors import ConfigError
from mpips.model import codec
from mpips.model.consistency import MODELS, POLICIES, Consistency, Switch
from mpips.model.initializer import Initializer
from mpips.model.local_sgd import DiLoCo
from mpips.model.optimizer import Optimizer
from mpips.model.optimizer import from_config as optimizer_from_config
from mpips.model.partition import Partition
from mpips.model.python_rule import PythonRule
from mpips.model.replicated import Replicated
from mpips.model.row_limits import limit_config
from mpips.model.storage import storage_config
from mpips.model.table import DenseTable, EmbeddingTable, Table


def to_config(table: Table) -> dict[str, Any]:
    """Return the mapping from which `from_config` makes an equal table.

    Raises:
        ConfigError: The table has an array of initial values, or a Python rule of the program itself.
    """
    if not isinstance(table.init, Initializer):
        raise ConfigError(f"table {table.name!r}: an array as init cannot be sent to other ranks")
    assert isinstance(table.partition, Partition)
    if isinstance(table.optimizer, PythonRule):
        module, _, function = table.optimizer.path.partition(":")
        if module == "__main__" or "<" in function:
            raise ConfigError(
                f"table {table.name!r}: the rule {table.optimizer.path} is defined in the script, which "
                "servers do not run: define the function in a module that the script imports"
            )
    shape: dict[str, Any] = {}
    if isinstance(table, EmbeddingTable):
        limits = {
            "admit": limit_config(table.admit),
            "evict": limit_config(table.evict),
            "storage": storage_config(table.storage),
        }
        shape = {
            "dim": table.dim,
            "row_dtype": table.row_dtype,
            "hash_buckets": table.hash_buckets,
            # Without limits the mapping is that of an mpips that has none.
            **{k: v for k, v in limits.items() if v is not None},
        }
    if isinstance(table, DenseTable):
        shape = {"shape": list(table.shape), "placement": _placement_config(table)}
    return {
        "name": table.name,
        **shape,
        "optimizer": table.optimizer.to_config(),
        "consistency": _consistency_config(table.consistency),
        "init": table.init.to_config(),
        "partition": table.partition.to_config(),
        "clip_norm": float(table.clip_norm),
        "check_finite": bool(table.check_finite),
        "compression": _codec_config(table.compression),
        "pull_compression": _codec_config(table.pull_compression),
        "stage": table.stage,
    }


def from_config(config: Mapping[str, Any]) -> Table:
    """Make the table that `to_config` describes.

    Raises:
        ConfigError: A Python rule cannot be imported.
    """
    given = {
        **config,
        "optimizer": optimizer_from_config(config["optimizer"]),
        "consistency": _consistency(config["consistency"]),
        "partition": Partition.from_config(config["partition"]),
    }
    if "shape" in config:
        placement = config["placement"]
        where = Replicated(**placement) if isinstance(placement, Mapping) else placement
        return DenseTable(**{**given, "shape": tuple(config["shape"]), "placement": where})
    return EmbeddingTable(**given)


def _codec_config(value: codec.PushCodec | str | None) -> dict[str, Any] | None:
    assert not isinstance(value, str)
    return codec.to_config(value)


def _placement_config(table: DenseTable) -> str | dict[str, int]:
    if isinstance(table.placement, Replicated):
        return {"check_every": table.placement.check_every}
    return table.placement


def _consistency_config(value: Consistency) -> dict[str, Any]:
    if isinstance(value, DiLoCo):
        assert isinstance(value.outer, Optimizer)
        return {
            "name": value.name,
            "steps": int(value.steps),
            "outer": value.outer.to_config(),
            "fragments": int(value.fragments),
            "delay": int(value.delay),
            "mix": None if value.mix is None else float(value.mix),
            "compression": _codec_config(value.compression),
            "asynchronous": value.asynchronous,
            "bound": None if value.bound is None else int(value.bound),
            "steps_by_speed": value.steps_by_speed,
        }
    found: dict[str, Any] = {"name": value.name, **msgspec.to_builtins(value)}
    if isinstance(value, Switch):
        found["first"] = _consistency_config(value.first)
        found["then"] = _consistency_config(value.then)
    if "policy" in found:
        policy = getattr(value, "policy")  # noqa: B009 - BSP has none
        found["policy"] = {"name": policy.name, **found["policy"]}
    return found


def _consistency(config: Mapping[str, Any]) -> Consistency:
    options = dict(config)
    model = MODELS[options.pop("name")]
    if "policy" in options:
        policy = dict(options["policy"])
        options["policy"] = POLICIES[policy.pop("name")](**policy)
    for part in ("first", "then"):
        if part in options:
            options[part] = _consistency(options[part])
    return model(**options)
