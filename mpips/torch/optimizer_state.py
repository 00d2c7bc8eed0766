"""The state of a torch optimizer: as that with which the servers begin, and as that which they have.

    torch.optim    entries of a parameter        states of the server's rule
    SGD            momentum_buffer               momentum
    Adam, AdamW    exp_avg, exp_avg_sq, step     m, v, and the number of updates of the table
    Adagrad        sum, step                     accumulator
    RMSprop        square_avg, step              mean_square

The definitions are equal (rules.py), so training goes on as torch would, up to rounding. A parameter without
an update has no state, except with Adagrad. SGD counts no steps in torch: its tables begin with one update.

Tensors of torch have the dtype of the parameter, and servers have float32: state of a bfloat16 parameter is
rounded, as its values are in a state dict of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from mpips.errors import ConfigError
from mpips.model.optimizer import Optimizer

if TYPE_CHECKING:
    from mpips.torch.parameters import ParameterTable

_MOST_STEPS = 2**32 - 1

# Entries of torch, by the name of the rule, in the order of the rule's states.
_ENTRIES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "nesterov": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adagrad": ("sum",),
    "rmsprop": ("square_avg",),
}


def has_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer has made steps, or has loaded the state of one that has."""
    # Adagrad makes its state, with step 0, in its constructor; SGD counts no steps.
    # Keys of entries that belong to no parameter are texts.
    items = optimizer.state.items()
    return any(step_of(state) for key, state in items if state and not isinstance(key, str))


def initial_state(
    name: str, parameter: torch.Tensor, rule: Optimizer, state: Mapping[str, Any]
) -> tuple[list[torch.Tensor], int] | None:
    """Return the states of the rule and the number of updates; None: the parameter begins anew.

    Args:
        name: Name of the parameter, for errors.
        parameter: The parameter.
        rule: Its rule on the servers.
        state: Its entry of `optimizer.state`. The tensors are returned as they are.

    Raises:
        ConfigError: The state lacks an entry of the rule, or one has another shape than the parameter, is
            not finite, or is too small for float16.
    """
    entries = _ENTRIES[rule.name]
    if not state or not step_of(state) or not entries:
        return None
    found = [state.get(entry) for entry in entries]
    if found == [None] and rule.name in ("momentum", "nesterov"):
        return None  # torch gives a parameter its buffer with its first gradient
    for entry, one in zip(entries, found, strict=True):
        if not isinstance(one, torch.Tensor) or one.shape != parameter.shape:
            what = f"of shape {tuple(one.shape)}" if isinstance(one, torch.Tensor) else "missing"
            raise ConfigError(
                f"prepare: the optimizer's state {entry!r} of the parameter {name!r} is {what}: must be a "
                f"tensor of shape {tuple(parameter.shape)}; load the state of an optimizer of this class and "
                "model"
            )
        if not bool(torch.isfinite(one).all()):
            raise ConfigError(
                f"prepare: the optimizer's state {entry!r} of the parameter {name!r} contains NaN or "
                "infinity: must be finite; float16 ends at 65,504, so continue from a checkpoint of mpips"
            )
    tensors = [one for one in found if one is not None]
    if parameter.dtype == torch.float16 and rule.name in ("adam", "adamw"):
        first, second = tensors
        if bool(((second == 0) & (first != 0)).any()):
            raise ConfigError(
                f"prepare: the optimizer's state 'exp_avg_sq' of the parameter {name!r} is 0 where 'exp_avg' "
                "is not, because float16 has no smaller numbers: continue from a checkpoint of mpips"
            )
    return tensors, step_of(state)


def state_of(table: ParameterTable, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a parameter's entry of `optimizer.state`, in new tensors as torch has them; {}: it has none.

    Blocks like a pull. Besides the result it takes float32 memory for one state of the parameter where that
    has another dtype, layout or device.

    Args:
        table: The parameter, which the optimizer has.
        group: Its param group.

    Raises:
        ConfigError: The table was closed in this clock.
        StallError: A worker or server was late for the job's timeout; the message names it.
    """
    assert table.rule is not None
    name = table.rule.name
    steps = table.n_updates() if _ENTRIES[name] else 0
    if not steps and name != "adagrad":
        return {}
    state = {}
    # Tensors of inference_mode could not be loaded outside of it.
    with torch.inference_mode(False):
        if name not in ("momentum", "nesterov"):
            # As in torch: on the device only where a kernel reads it there.
            on_device = group.get("fused") or group.get("capturable")
            double = torch.get_default_dtype() == torch.float64 and not group.get("fused")
            dtype = torch.float64 if double else torch.float32
            device = table.parameter.device if on_device else torch.device("cpu")
            state["step"] = torch.tensor(float(steps), dtype=dtype, device=device)
        for slot, entry in enumerate(_ENTRIES[name]):
            state[entry] = table.optimizer_state(slot)
    return state


def step_of(state: Mapping[str, Any]) -> int:
    """Return the number of steps of a parameter; 1 where its optimizer counts none.

    Raises:
        ConfigError: It is not a number of steps.
    """
    given = state.get("step", 1)
    try:
        number = float(given)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 <= number <= _MOST_STEPS or number != int(number):
        raise ConfigError(
            f"the optimizer's state has the step {given!r} of a parameter: must be an integer from 0 to "
            f"{_MOST_STEPS}"
        )
    return int(number)
