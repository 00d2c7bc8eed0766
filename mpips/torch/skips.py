"""Batches in which a script makes no step: their clocks have no push of this worker.

Workers count clocks by steps, and under BSP the gradients of equal clocks are averaged. So a worker that
skips the step of a batch (`continue`, since its loss is not finite) must end the clock all the same, or its
later gradients would be averaged with those of other batches. The clocks end

    at the next batch of a prepared loader, if no gradient waits for a step;
    at `zero_grad`, if gradients of batches before wait, which it drops;
    in `step`, if GradScaler has found infinity (see stepping.py).

As many clocks end as the newest batch with a step had: a GAN has two. Gradients that wait and are not dropped
are accumulated: the next step pushes them. In a script that has done that, a batch without a step is no
reason for a clock, but gradients that `zero_grad` drops are.

A pass over the loader that has made no step so far, and whose forward passes record no gradients, evaluates.

What this cannot see is found later: at each beginning of an epoch, and at the end of the script, the
scheduler compares the numbers of steps of all workers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

Mark = tuple["weakref.ref[torch.Tensor]", int] | None


class Marks:
    """The gradients of some parameters at a time, by which later ones are found."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        """Mark no gradient."""
        self._parameters = parameters
        self._marks: list[Mark] = [None] * len(parameters)

    def note(self) -> None:
        """Mark the gradients that there are now."""
        self._marks = [_mark(p.grad) for p in self._parameters]

    def has_others(self) -> bool:
        """Return True if there is a gradient that is not marked, or that has been changed since."""
        return any(
            p.grad is not None and _mark(p.grad) != mark
            for p, mark in zip(self._parameters, self._marks, strict=True)
        )

    def has_any(self) -> bool:
        """Return True if there is a gradient."""
        return any(p.grad is not None for p in self._parameters)


def _mark(gradient: torch.Tensor | None) -> Mark:
    if gradient is None:
        return None
    # Other weak references compare their objects, and tensors compare by element.
    return _Ref(gradient), -1 if gradient.is_inference() else gradient._version


class _Ref(weakref.ref["torch.Tensor"]):
    """A reference to a tensor; two are equal if they refer to the same one, which is there."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        own = self()
        return own is not None and isinstance(other, _Ref) and own is other()

    __hash__ = weakref.ref.__hash__


class Skipping(Protocol):
    """A prepared optimizer."""

    @property
    def waits(self) -> bool:
        """True if gradients have come since `note_gradients`, which wait for a step."""

    @property
    def has_gradients(self) -> bool:
        """True if a parameter has a gradient, whether it waits or not."""

    def note_gradients(self) -> None:
        """Note that the gradients that there are now do not wait."""

    def skip(self) -> None:
        """Make a step that pushes nothing."""


class SkippingJob(Protocol):
    """The script's job."""

    def loader_positions(self) -> dict[str, Any]:
        """Return the places of the loaders, as in the cursor."""

    def settle(self, places: dict[str, Any] | None = None) -> None:
        """End the clock of the newest step, with these places of the loaders."""


class Skips:
    """The optimizers of a script, and which of them have made a step in the current batch.

    Attributes:
        n_steps: Number of steps that the script has made.
    """

    def __init__(self, job: SkippingJob) -> None:
        """Know no optimizer yet."""
        self.n_steps = 0
        self._job = job
        self._optimizers: list[Skipping] = []
        self._stepped: list[Skipping] = []  # since the newest batch, in the order of their steps
        self._pattern: list[Skipping] = []  # those of the newest batch with a step
        self._carried: list[Skipping] = []  # those with gradients of batches before, which wait
        self._places: dict[
            str, Any
        ] = {}  # of the loaders before the batch at which they began to wait
        self._accumulates = False
        self._waiting: Callable[[int], None] | None = None
        self._has_trained = self._has_evaluated = False  # forward passes since the newest batch

    def add(self, optimizer: Skipping) -> None:
        """Add a prepared optimizer."""
        self._optimizers.append(optimizer)

    def note_step(self, optimizer: Skipping) -> None:
        """Note a step of an optimizer, also one that pushes nothing."""
        self.n_steps += 1
        optimizer.note_gradients()
        self._stepped.append(optimizer)
        if optimizer in self._carried:
            self._accumulates = True
        self._decide(0)

    def note_forward(self, is_training: bool) -> None:
        """Note a forward pass, before it pulls. `is_training`: it records gradients."""
        if is_training:
            self._has_trained = True
            # The script may drop gradients by hand, with p.grad = None.
            if self._carried and not any(one.has_gradients for one in self._carried):
                self._end(self._places)
        else:
            self._has_evaluated = True

    def begin_batch(self, is_later: bool, has_stepped: bool, trains: bool) -> None:
        """End what the batch before has left open, before the next one is read.

        Args:
            is_later: The pass over the loader has had a batch before.
            has_stepped: There was a step since then.
            trains: The pass has had a step.
        """
        if self._stepped:
            self._pattern, self._stepped = self._stepped, []
        elif is_later and not has_stepped and self._optimizers:
            waiting = [one for one in self._optimizers if one.waits]
            evaluates = self._has_evaluated and not self._has_trained and not trains
            if waiting or self._carried:
                self._places = self._job.loader_positions()
                self._carried += [one for one in waiting if one not in self._carried]
                for one in waiting:
                    one.note_gradients()
            elif not self._accumulates and not evaluates:
                self._end(None)
        self._has_trained = self._has_evaluated = False

    def when_decided(self, call: Callable[[int], None]) -> None:
        """Call a function when it is known whether the batches so far had clocks that have not ended.

        It receives the number of these clocks.
        """
        if self._carried:
            self._waiting = call
        else:
            call(0)

    def end(self) -> None:
        """End the clocks of the newest batch at the end of the script."""
        if self._carried and not self._accumulates:
            self._end(None)

    def _decide(self, n_clocks: int) -> None:
        self._carried.clear()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting(n_clocks)

    @contextmanager
    def dropping(self, optimizers: Sequence[Skipping], sets_to_none: bool) -> Iterator[None]:
        """Let the block drop all gradients of some optimizers."""
        dropped = [one for one in self._carried if one in optimizers]
        # Has a backward pass added to them since, the newest batch has been used, too.
        places = None if any(one.waits for one in dropped) else self._places
        yield
        if not sets_to_none:
            for one in optimizers:
                one.note_gradients()
        if dropped:
            self._end(places)

    def _end(self, places: dict[str, Any] | None) -> None:
        """End the clocks of a batch without steps.

        Args:
            places: Places of the loaders, if it is the batch before the newest one. None: it is the newest,
                and the last clock stays open.
        """
        skipped = self._pattern or self._optimizers
        self._decide(len(skipped))
        n_steps, stepped = (
            self.n_steps,
            list(self._stepped),
        )  # a skip is no step of the newest batch
        for one in skipped:
            one.skip()
            if places is not None:
                self._job.settle(places)
        self.n_steps, self._stepped = n_steps, stepped


class BatchClocks:
    """The clocks of one pass over a loader."""

    def __init__(self, skips: Skips) -> None:
        """Begin a pass."""
        self._skips = skips
        self._steps: int | None = None  # when the newest batch was read
        self._trains = False

    def next(self) -> bool:
        """End the clocks of the batch before, but for the last one; return False before the first batch."""
        is_later, has_stepped = self._steps is not None, self._steps != self._skips.n_steps
        self._trains = self._trains or (is_later and has_stepped)
        self._skips.begin_batch(is_later, has_stepped, self._trains)
        self._steps = self._skips.n_steps
        return is_later
