"""Batches in which a script makes no step: their clocks have no push of this worker.

Workers count clocks by steps, and under BSP the gradients of equal clocks are averaged. So a worker that
skips the step of a batch (`continue`, since its loss is not finite) must nevertheless end the clock, or its
later gradients would be averaged with those of other batches. The clocks end

    at the next batch of a prepared loader, if no gradient waits for a step;
    at `zero_grad`, if gradients of batches before wait, which it drops, also for batches since then that
    brought no gradients;
    in `step`, if GradScaler has found infinity (see stepping.py).

As many clocks end as the newest batch with a step had: a GAN has two. Gradients that wait and are not dropped
are accumulated: the next step pushes them. In a script that has done that, a batch without a step does
not cause a clock, but gradients that `zero_grad` drops do.

A pass over the loader that has made no step so far, and whose forward passes record no gradients, evaluates,
or looks at its samples. Its batches have no clocks, unless a training forward pass follows in the same pass:
then they have been skipped.

Cases that this module does not detect are found later: at each beginning of an epoch, and at the end of the
script, the scheduler compares the numbers of steps of all workers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

Mark = tuple["weakref.ref[torch.Tensor]", int] | None
Places = dict[str, Any]  # of the loaders, as in the cursor


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
            p.grad is not None and _mark(p.grad) != mark and not _is_zeroed(p.grad, mark)
            for p, mark in zip(self._parameters, self._marks, strict=True)
        )

    def has_any(self) -> bool:
        """Return True if there is a gradient that has not been set to 0 since it was marked."""
        return any(
            p.grad is not None and not _is_zeroed(p.grad, mark)
            for p, mark in zip(self._parameters, self._marks, strict=True)
        )


def _is_zeroed(gradient: torch.Tensor, mark: Mark) -> bool:
    """Return True if a gradient that was marked has been changed in place since, to 0."""
    if mark is None or mark[0]() is not gradient or _mark(gradient) == mark:
        return False
    return not (gradient._values() if gradient.is_sparse else gradient).any()


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

    @property
    def rates(self) -> str:
        """Hyperparameters of the newest step as text; "": unknown."""


class SkippingJob(Protocol):
    """The script's job."""

    def loader_positions(self) -> Places:
        """Return the places of the loaders, as in the cursor."""

    def settle(self, places: Places | None = None) -> None:
        """End the clock of the newest step, with these places of the loaders."""


class Skips:
    """The optimizers of a script, and which of them have made a step in the current batch.

    Attributes:
        n_steps: Number of steps that the script has made.
        n_left: Number of batches without a step that the script has left.
        n_trainings: Number of forward passes that record gradients, and of `zero_grad`.
        passes: Passes over loaders that have not ended.
    """

    def __init__(self, job: SkippingJob) -> None:
        """Know no optimizer yet."""
        self.n_steps = self.n_left = self.n_trainings = 0
        self.passes: weakref.WeakSet[BatchClocks] = weakref.WeakSet()
        self._job = job
        self._optimizers: list[Skipping] = []
        self._stepped: list[Skipping] = []  # since the newest batch, in the order of their steps
        self._pattern: list[Skipping] = []  # those of the newest batch with a step
        self._carried: list[Skipping] = []  # those with gradients of batches before, which wait
        # Of the loaders behind the batch at which they began to wait, and behind each one since then.
        self._places: list[Places] = []
        self._accumulates = False
        self._waiting: list[tuple[Callable[[int], None], int]] = []  # with the batches before each

    def add(self, optimizer: Skipping) -> None:
        """Add a prepared optimizer."""
        self._optimizers.append(optimizer)

    def note_step(self, optimizer: Skipping) -> None:
        """Note a step of an optimizer, also one that pushes nothing."""
        self.n_steps += 1
        # The backward pass may have left gradients in parameters of other optimizers: they do not wait.
        for one in self._optimizers:
            one.note_gradients()
        self._stepped.append(optimizer)
        if optimizer in self._carried:
            self._accumulates = True
        self._decide(0)

    def note_forward(self, is_training: bool) -> None:
        """Note a forward pass, before it pulls. `is_training`: it records gradients."""
        if not is_training:
            return
        # The script may drop gradients by hand, with p.grad = None or p.grad.zero_().
        if self._carried and not any(one.has_gradients for one in self._carried):
            self._end(self._places)
        self._note_training()

    def _note_training(self) -> None:
        """End the clocks of batches of which it was not known whether their pass trains."""
        self.n_trainings += 1
        places = self._take_early()
        # Behind a step of the newest batch it is too late for clocks before it.
        if not places or self._accumulates or self._stepped:
            return
        if self._carried:
            self._places += places
        else:
            self._end(places)

    def _take_early(self) -> list[Places]:
        """Return the longest list of early batches of a pass, and empty all.

        Passes that a script reads side by side have equal ones.
        """
        lists = [one.early for one in self.passes]
        longest = max(map(list, lists), key=len, default=[])
        for early in lists:
            early.clear()
        return longest

    def begin_batch(self, has_ended: bool, early: list[Places] | None) -> None:
        """End what the batch before has left open, before the next one is read.

        Args:
            has_ended: The pass over the loader has had no batch before, or there was a step since then, or
                another pass has ended it.
            early: Takes the batch before as long as its pass is not known to train. None: the pass trains.
        """
        if self._stepped:
            self._pattern, self._stepped = self._stepped, []
        elif not has_ended and self._optimizers:
            if early is not None:
                early.append(self._job.loader_positions())
            elif (waiting := [one for one in self._optimizers if one.waits]) or self._carried:
                self._carry(waiting)
            elif not self._accumulates:
                self.n_left += 1
                self._end([None])

    def _carry(self, waiting: Sequence[Skipping]) -> None:
        """Leave a batch open until the gradients that wait are pushed or dropped.

        Args:
            waiting: Optimizers to which the batch has brought gradients.
        """
        self.n_left += 1
        self._carried += [one for one in waiting if one not in self._carried]
        for one in waiting:
            one.note_gradients()
        # Gradients that came to those that wait are of one clock with them.
        if waiting or self._accumulates:
            self._places = []
        self._places.append(self._job.loader_positions())

    @property
    def is_decided(self) -> bool:
        """True if it is known whether the batches so far had clocks that have not ended."""
        return not self._carried

    @property
    def rates(self) -> str:
        """Hyperparameters of the newest step of each optimizer as text; "": those of one are unknown."""
        found = [one.rates for one in self._optimizers]
        return ", then ".join(found) if all(found) else ""

    def when_decided(self, call: Callable[[int], None]) -> None:
        """Call a function when it is known whether the batches so far had clocks that have not ended.

        It receives the number of these clocks.
        """
        if self._carried:
            self._waiting.append((call, len(self._places)))
        else:
            call(0)

    def end(self) -> None:
        """End the clocks of the newest batch at the end of the script."""
        if self._carried and not self._accumulates:
            self._end([*self._places[:-1], None])

    def _decide(self, n_clocks: int) -> None:
        """Forget gradients that wait. `n_clocks`: the clocks of each batch that they left open."""
        self._carried.clear()
        self._places = []
        waiting, self._waiting = self._waiting, []
        for call, n_batches in waiting:
            call(n_clocks * n_batches)

    @contextmanager
    def dropping(self, optimizers: Sequence[Skipping], sets_to_none: bool) -> Iterator[None]:
        """Let the block drop all gradients of some optimizers."""
        dropped = [one for one in self._carried if one in optimizers]
        places: list[Places | None] = [*self._places]
        # Has a backward pass added to them since, the newest batch has been used, too.
        if any(one.waits for one in dropped):
            places[-1] = None
        yield
        if not sets_to_none:
            for one in optimizers:
                one.note_gradients()
        if dropped:
            self._end(places)
        self._note_training()

    def _end(self, places: Sequence[Places | None]) -> None:
        """End the clocks of batches without steps.

        Args:
            places: Places of the loaders behind each batch, if it is before the newest one. None: it is the
                newest, and its last clock stays open.
        """
        skipped = self._pattern or self._optimizers
        self._decide(len(skipped))
        # A skip is no step of the newest batch.
        n_steps, stepped = self.n_steps, list(self._stepped)
        for place in places:
            for one in skipped:
                one.skip()
                if place is not None:
                    self._job.settle(place)
        self.n_steps, self._stepped = n_steps, stepped


class BatchClocks:
    """The clocks of one pass over a loader.

    Attributes:
        early: Places of the loaders behind each batch, until a step or a training forward pass comes.
    """

    def __init__(self, skips: Skips) -> None:
        """Begin a pass."""
        self.early: list[Places] = []
        self._skips = skips
        self._ended: tuple[int, int] | None = None  # steps and batches, when the newest was read
        self._so_far = 0, 0  # steps and training forward passes, at the beginning
        skips.passes.add(self)

    def next(self) -> bool:
        """End the clocks of the batch before, but for the last one; return False before the first batch."""
        skips, is_later = self._skips, self._ended is not None
        trains = self._so_far != (skips.n_steps, skips.n_trainings)
        has_ended = self._ended != (skips.n_steps, skips.n_left)
        skips.begin_batch(not is_later or has_ended, None if trains else self.early)
        if not is_later:
            self._so_far = skips.n_steps, skips.n_trainings
        self._ended = skips.n_steps, skips.n_left
        return is_later

    def end(self) -> None:
        """End the pass: if nothing in it has trained, its batches have no clocks."""
        self.early.clear()
