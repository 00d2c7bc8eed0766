"""Schedulers of a torch script: whether restarts restore them, and whether their length fits the loader.

A script that computes `T_max = epochs * len(loader)` from the loader of all samples gets a schedule that is
n times too long for n workers: each of them makes one n-th of the steps. A scheduler may count batches or
epochs, which shows only when the script steps it. So the lengths are compared at the batch behind the first
step of a scheduler within a pass over a prepared loader.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from mpips.errors import ConfigError

# Attributes of schedulers that are numbers of steps: those of torch, and one of the partial functions that
# transformers gives to LambdaLR.
_LENGTHS = ("total_steps", "T_max", "total_iters", "T_0", "step_size", "total_size")
_OF_LAMBDA = "num_training_steps"
_MOST_ACCUMULATED = 256  # batches of one step; behind them a pass is not looked at any more


class DividedLoader(Protocol):
    """A loader that has been divided among workers.

    Attributes:
        came_first: True if schedulers could be made from its length.
    """

    came_first: bool

    @property
    def n_workers(self) -> int:
        """Number of workers that share its samples."""

    @property
    def has_length(self) -> bool:
        """False for a loader of a stream without a length."""

    @property
    def n_undivided(self) -> int:
        """Number of batches of an epoch before it was divided."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch of one worker."""


class Schedules:
    """The schedulers that a script gave to `prepare`, by optimizer.

    Attributes:
        n_epochs: Number of epochs of the script's loop over mpips.torch.epochs; None: there is no such loop.
    """

    def __init__(self, warns: bool) -> None:
        """Know no scheduler. `warns`: this worker is the one that warns."""
        self.n_epochs: int | None = None
        self._warns = warns
        self._optimizers: list[torch.optim.Optimizer] = []
        self._given: list[Any] = []
        self._checked: list[Any] = []

    def add(self, optimizer: torch.optim.Optimizer | None, schedulers: Sequence[Any]) -> None:
        """Add a prepared optimizer, and schedulers that restarts restore."""
        self._optimizers += [optimizer] if optimizer is not None else []
        self._given += schedulers

    def check_given(self) -> None:
        """Check that restarts restore the schedulers, for a loop that passes over complete epochs.

        Raises:
            ConfigError: A scheduler was made for an optimizer, and `prepare` got none of it.
        """
        # A scheduler notes the rate of each group in it.
        owners = [getattr(one, "optimizer", None) for one in self._given]
        for optimizer in self._optimizers:
            scheduled = any("initial_lr" in group for group in optimizer.param_groups)
            if scheduled and None not in owners and all(one is not optimizer for one in owners):
                raise ConfigError(
                    "mpips.torch.epochs passes over complete epochs, and the optimizer has a scheduler that "
                    "was not given to prepare, so a restart would begin its schedule anew: make it before "
                    "prepare, and pass scheduler=scheduler"
                )

    def watch(self, loader: DividedLoader) -> Pass | None:
        """Return what compares schedules with the length of a loader in a pass; None: nothing is left."""
        if not self._warns or loader.n_workers == 1 or not loader.has_length:
            return None
        left = [
            one
            for one in self._given
            if all(one is not other for other in self._checked) and count_of(one) is not None
        ]
        return Pass(left, self._checked, loader, self.n_epochs) if left else None


class Pass:
    """The schedulers that have not been stepped within a pass over a loader so far."""

    def __init__(
        self, left: list[Any], checked: list[Any], loader: DividedLoader, n_epochs: int | None
    ) -> None:
        """Begin a pass.

        Args:
            left: Schedulers to compare.
            checked: Receives those that were compared.
            loader: The loader.
            n_epochs: Number of epochs of the script, if it is known.
        """
        self._left = [(one, count_of(one)) for one in left]
        self._checked = checked
        self._loader = loader
        self._n_epochs = n_epochs
        self._n_batches = 0

    def next(self) -> bool:
        """Compare schedulers that the newest batch has stepped; return False if nothing is left."""
        self._n_batches += 1
        waiting = []
        for one, start in self._left:
            count = count_of(one)
            if count == start:
                waiting.append((one, start))
                continue
            self._checked.append(one)
            if start is not None and count == start + 1:
                _warn_of_length(one, self._loader, self._n_batches, self._n_epochs)
        self._left = waiting
        return bool(waiting) and self._n_batches < _MOST_ACCUMULATED


def count_of(scheduler: Any) -> int | None:
    """Return the number of steps of a scheduler; None: it is not known."""
    found = getattr(scheduler, "last_epoch", None)
    if found is None and (inner := getattr(scheduler, "_schedulers", None)):
        return count_of(inner[0])
    return found if type(found) is int else None


def lengths_of(scheduler: Any) -> Iterator[tuple[str, int]]:
    """Yield the lengths of a schedule and of its parts, in steps, each with its name; the longest first."""
    found = sorted(_lengths(scheduler), key=lambda length: -length[1])
    return ((name, int(steps)) for name, steps in found)


def _lengths(scheduler: Any) -> Iterator[tuple[str, float]]:
    own = type(scheduler).__name__
    for name in _LENGTHS:
        yield from _number(f"{own}.{name}", getattr(scheduler, name, None))
    for one in getattr(scheduler, "lr_lambdas", ()):
        if isinstance(one, functools.partial):
            yield from _number(f"{_OF_LAMBDA} of {own}", one.keywords.get(_OF_LAMBDA))
    milestones = getattr(scheduler, "milestones", None)  # of MultiStepLR, with their numbers
    if isinstance(milestones, Mapping):
        for at in milestones:
            yield from _number(f"a milestone of {own}", at)

    # A part of SequentialLR begins at its milestone.
    begins = [0, *getattr(scheduler, "_milestones", ())]
    inner = getattr(scheduler, "_schedulers", ())
    for part, begin in zip(
        inner, begins if len(begins) == len(inner) else [0] * len(inner), strict=True
    ):
        if begin:
            yield f"a milestone of {own}", begin
        for name, steps in _lengths(part):
            yield (f"a milestone of {own} + {name}" if begin else name), begin + steps


def _number(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield a positive whole number with its name, and nothing for other values."""
    if isinstance(value, int | float) and value > 0 and value == int(value):
        yield name, value


def _warn_of_length(
    scheduler: Any, loader: DividedLoader, per_step: int, n_epochs: int | None
) -> None:
    """Warn of a schedule that fits the loader before it was divided, and not the divided one.

    Args:
        scheduler: The scheduler.
        loader: The divided loader.
        per_step: Number of its batches for each step of the scheduler.
        n_epochs: Number of epochs of the script; None: it is not known.
    """
    before, now = (steps_of(n, per_step) for n in (loader.n_undivided, len(loader)))
    for name, total in lengths_of(scheduler):
        fitting = [n for n in before if n > max(now) and total % n == 0]
        if not fitting or not _is_wrong(total, fitting[0], now, n_epochs, loader.came_first):
            continue
        n_steps = max(now)
        lasts = (
            f"{n_epochs} epochs end at step {n_epochs * n_steps} of it"
            if n_epochs is not None
            else f"it takes {total / n_steps:.6g} epochs"
        )
        warnings.warn(
            f"{name} = {total} is {total // fitting[0]} x {fitting[0]} steps, the length of the loader "
            f"before it was divided; each of {loader.n_workers} workers makes {n_steps} in an epoch, so "
            f"{lasts}: call loader = mpips.torch.prepare_loader(loader) first, and make the scheduler from "
            "its len(loader)",
            stacklevel=5,
        )
        return


def steps_of(n_batches: int, per_step: int) -> list[int]:
    """Return the possible numbers of steps of an epoch, of which each takes `per_step` batches."""
    return sorted({n_batches // per_step, -(-n_batches // per_step)} - {0})


def _is_wrong(
    total: int, before: int, now: Iterable[int], n_epochs: int | None, came_first: bool
) -> bool:
    """Return True if a schedule whose length is a multiple of `before` steps does not fit `now`."""
    if n_epochs is not None:
        ends = max(now) * n_epochs
        return ends < total <= before * n_epochs
    # The length may be that of n times as many epochs of the divided loader.
    return not came_first or all(total % n for n in now)
