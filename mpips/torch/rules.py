"""The server's rule for a param group of a torch optimizer.

The servers apply the optimizer, so its class and options are translated once. The definitions are equal: a
rule of `mpips.kernels.reference` and torch's optimizer change a weight in the same way, up to the rounding of
float32. Notes on each optimizer:

- SGD: the velocity starts at 0 here. torch sets it to the first gradient, which is equal without dampening.
- Adagrad, RMSprop, Adam, AdamW: eps is added to the root (in Adam to the corrected root) here and in torch.
- Adam, AdamW: the step of the bias correction counts the applied updates of a table here, and those of a
  tensor in torch. In an embedding table each row has its own step, and a row without a gradient remains;
  torch's Adam changes all rows in each step.
- AdamW, and Adam with decoupled_weight_decay=True: torch multiplies the weight by 1 - lr weight_decay,
  rounded to float32. Here lr weight_decay w is subtracted, which rounds less.
- Adagrad: torch fills the accumulators of all groups with the initial_accumulator_value of the constructor; a
  group cannot have its own.
- SparseAdam has one step for all rows and adds eps to the root before the correction. No rule here does so;
  use Adam with an embedding table.
- The rules that square gradients clip them here at 1.8e19 (Adagrad: at 2^50); torch's weights become NaN.

Defaults differ (RMSprop of torch has lr 0.01 and alpha 0.99), but all values are read from the param group.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.accepted import accepted, field_hints, plain
from mpips.model.optimizer import SGD, Adagrad, Adam, AdamW, Momentum, Nesterov, Optimizer, RMSProp

ACCEPTED: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
)

# Options that no rule has, with the only accepted value.
_OFF = {
    "maximize": False,
    "differentiable": False,
    "amsgrad": False,
    "centered": False,
    "dampening": 0,
    "lr_decay": 0,
}


def rule_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Optimizer:
    """Return the rule by which servers apply one param group of a torch optimizer.

    Reads the options only: the state of the optimizer (velocities, moments, steps) is not taken over. Options
    of the implementation (foreach, fused, capturable) are ignored. Not collective; a number that is a tensor
    on a device is copied from there.

    Args:
        optimizer: SGD, Adam, AdamW, Adagrad or RMSprop of `torch.optim`, or a subclass with the same `step`.
        group: One of `optimizer.param_groups`. A number can be a tensor with one element.

    Raises:
        ConfigError: No rule equals this optimizer. The message names the class, the option, its value and
            what is accepted.
    """
    base = _accepted_class(optimizer)
    where = f"torch.optim.{base.__name__}"
    for option, value in _OFF.items():
        if option in group and _number(group[option]) != value:
            raise ConfigError(f"{where}: {option} = {group[option]!r}: must be {value}")
    kind, fields = _translation(base, where, optimizer, group)

    # Check each number here, so that errors have the names of torch.
    hints = field_hints(kind)
    values = {field: _number(value) for field, (_, value) in fields.items()}
    for field, (option, value) in fields.items():
        try:
            msgspec.convert(plain(values[field]), hints[field])
        except msgspec.ValidationError:
            words = accepted(hints[field], plain(values[field]))
            raise ConfigError(f"{where}: {option} = {value!r}: must be {words}") from None
    return kind(**values)


_MOST_SHOWN = 4  # groups with different hyperparameters that a message shows

# Hyperparameters that servers apply. Others, such as fused, may depend on the device of a worker.
_APPLIED = ("lr", "momentum", "betas", "alpha", "eps", "weight_decay")


def rates_text(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return the hyperparameters of param groups as text, which is equal if they are.

    Args:
        groups: Names and plain values of each group; see mpips.torch.cursor.to_plain.

    Returns:
        "": there is no group, or the values of one are unknown.
    """
    if not all(groups):
        return ""
    texts = (
        ", ".join(f"{name} = {group[name]}" for name in _APPLIED if name in group)
        for group in groups
    )
    found = list(dict.fromkeys(texts))  # groups often have equal values
    if len(found) <= _MOST_SHOWN:
        return " and ".join(found)
    digest = _native.Xxh3()
    digest.update(np.frombuffer(" and ".join(found).encode(), np.uint8))
    return f"{found[0]} and {len(found) - 1} other groups ({digest.digest():016x})"


def _accepted_class(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """Return the accepted class that defines `optimizer.step`.

    Raises:
        ConfigError: No accepted class defines it.
    """
    # A prepared optimizer has a class of its own, with the script's class behind it.
    cls: Any = getattr(optimizer, "_mpips_plain", type(optimizer))
    names = ", ".join(one.__name__ for one in ACCEPTED)
    base: type[torch.optim.Optimizer] | None = next(
        (one for one in cls.__mro__ if one in ACCEPTED), None
    )
    name = f"{cls.__module__}.{cls.__qualname__}"
    if base is None:
        raise ConfigError(
            f"optimizer {name}: servers cannot apply it; use one of torch.optim: {names}"
        )
    # torch wraps `step` of each class that has instances, so compare the functions within the wrappers.
    if inspect.unwrap(cls.step) is not inspect.unwrap(base.step):
        raise ConfigError(
            f"optimizer {name}: its own step() cannot run on servers; use one of torch.optim, "
            f"or a subclass that does not define step(): {names}"
        )
    return base


# The class of a rule, and per field of the rule the name and the value of torch's option.
_Translation = tuple[type[Optimizer], dict[str, tuple[str, Any]]]


def _translation(
    base: type[torch.optim.Optimizer],
    where: str,
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
) -> _Translation:
    fields = {name: (name, group[name]) for name in ("lr", "weight_decay")}
    if base is torch.optim.SGD:
        if _number(group["momentum"]) == 0:
            return SGD, fields
        fields["momentum"] = ("momentum", group["momentum"])
        return (Nesterov if group["nesterov"] else Momentum), fields
    fields["eps"] = ("eps", group["eps"])
    if base is torch.optim.Adagrad:
        initial = "initial_accumulator_value"
        fields["initial_accumulator"] = (initial, optimizer.defaults[initial])
        return Adagrad, fields
    if base is torch.optim.RMSprop:
        if _number(group["momentum"]) != 0:
            raise ConfigError(f"{where}: momentum = {group['momentum']!r}: must be 0")
        fields["rho"] = ("alpha", group["alpha"])
        return RMSProp, fields
    for number, value in enumerate(group["betas"]):
        fields[f"beta{number + 1}"] = (f"betas[{number}]", value)
    decoupled = group.get("decoupled_weight_decay", base is torch.optim.AdamW)
    return (AdamW if decoupled else Adam), fields


def _number(value: Any) -> Any:
    """Return a tensor with one element as a number; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return value
