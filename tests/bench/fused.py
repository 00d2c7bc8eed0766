"""The suite `fused`: update rules of the kernels against torch.optim with fused=True, on the same arrays.

One thread on one core; arrays have the layout of a server's region, as in the suite `kernels` of `mpips
bench`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.bench.kernels import (
    CALLS,
    LEARNING_RATE,
    N_PARAMETERS,
    N_PARAMETERS_QUICK,
    Shard,
    one_core,
)
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings, measure_alternately, rates
from mpips.errors import CapabilityError

Float32 = NDArray[np.float32]

# rule -> (class of torch.optim, names of its states).
FUSED_RULES = {
    "adam": ("Adam", ("exp_avg", "exp_avg_sq")),
    "sgd": ("SGD", ()),
    "adagrad": ("Adagrad", ("sum",)),
}


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure each rule in this process. `nodes` has no effect."""
    found = Findings()
    with one_core():
        shard = Shard(N_PARAMETERS_QUICK if options.quick else N_PARAMETERS)
        n = shard.values.size
        for rule, (_, states) in FUSED_RULES.items():
            update = shard.update(rule)
            try:
                step = fused_step(
                    rule, shard.values, shard.states[: len(states)], shard.gradient, LEARNING_RATE
                )
            except CapabilityError as error:
                found.skipped[f"{rule}_vs_torch_fused"] = str(error)
                continue
            ours, theirs = measure_alternately((update, step), (CALLS, CALLS), options.repetitions)
            found.comparisons.append(
                Comparison(
                    name=f"{rule}_vs_torch_fused",
                    what=f"{rule}: {n} parameters, one thread, against torch.optim with fused=True",
                    unit="Mparam/s",
                    ours=rates(ours, n / 1e6),
                    baseline=rates(theirs, n / 1e6),
                    baseline_name="torch fused",
                )
            )
    return found


def fused_step(
    rule: str, values: Float32, states: Float32, gradient: Float32, lr: float
) -> Callable[[], None]:
    """Return a function that makes one step in place on one thread.

    The first step is made here, so that torch creates its states. They are copied to `states`, and all later
    steps work on `states`. The caller must not free or resize the arrays while it uses the function.

    Args:
        rule: A key of FUSED_RULES.
        values: float32, shape (n,).
        states: float32, shape (number of states of the rule, n).
        gradient: float32, shape (n,).
        lr: Learning rate; all other options have torch's defaults.

    Raises:
        CapabilityError: torch is not installed, or it has no fused rule of this name for CPUs.
    """
    try:
        import torch
    except ImportError:
        raise CapabilityError("torch is not installed: pip install torch") from None
    class_name, state_names = FUSED_RULES[rule]
    parameter: Any = torch.nn.Parameter(torch.from_numpy(values))
    parameter.grad = torch.from_numpy(gradient)
    try:
        optimizer = getattr(torch.optim, class_name)([parameter], lr=lr, fused=True)
        optimizer.step()
    except (TypeError, RuntimeError) as error:
        raise CapabilityError(
            f"torch {torch.__version__} cannot run a fused {class_name} on this CPU: {error}"
        ) from None
    for name, array in zip(state_names, states, strict=True):
        mine = torch.from_numpy(array)
        mine.copy_(optimizer.state[parameter][name])
        optimizer.state[parameter][name] = mine

    def step() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            optimizer.step()
        finally:
            torch.set_num_threads(before)

    return step
