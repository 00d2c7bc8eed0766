"""A step of a model in stages: forward and backward passes of micro-batches, and what travels between them.

A worker computes one stage, and sends what it computes to the worker of the next or previous stage of its
pipeline by Worker.send and Worker.recv. A job of one worker computes all stages, with copies in place of
messages. Both cut the graph between two stages, at the same places, and add the gradients of micro-batches in
the same order. So both have the same bits if torch's kernels have: the number of torch's threads may change
them.

All messages of a clock are exchanged in front of the pushes of its step (see mpips.worker.messages). Every
wait for one ends after the job's timeout with a StallError that names the late worker.

Random numbers: the default generators of torch, NumPy and Python are seeded in front of each unit and of the
loss, by (seed, pipeline, step, pass of the step, unit, micro-batch). So dropout draws the same numbers for
every cut and every number of workers of a pipeline. The generators have their states of before when the step
ends. Backward passes are not seeded: torch.utils.checkpoint repeats torch's numbers by itself.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mpips.errors import ConfigError
from mpips.torch.generators import mix, restore_defaults
from mpips.torch.stage_cut import Unit, has_hooks
from mpips.torch.stage_order import Action, Schedule, bounds_of, order_of
from mpips.torch.stage_values import (
    Flat,
    Tree,
    digest_of_batch,
    flatten,
    from_arrays,
    n_samples_of,
    samples,
    to_arrays,
    unflatten,
)

UNIT_TAG = 0x746F7263682D756E
_EVALUATION_TAG = 0x746F7263682D6576
Kind = Literal["forward", "backward", "loss", "output", "norms", "state"]
_KINDS: tuple[Kind, ...] = ("forward", "backward", "loss", "output", "norms", "state")
_FIRST_TAG = 1 << 62  # above those of the script's own messages
_CONTENTS: dict[Kind, str] = {
    "forward": "the result of the stage for micro-batch {}",
    "backward": "the gradients of micro-batch {}",
    "loss": "the loss of forward_backward",
    "output": "the result of the model",
    "norms": "the norms for clip_grad_norm_",
    "state": "the state for full_state_dict",
}

Loss = Callable[[Any, Any], torch.Tensor]
AnyArray = NDArray[Any]


class ArrayWorker(Protocol):
    """The part of mpips.Worker that exchanges arrays."""

    index: int

    def send(self, array: Any, *, to: int, tag: int = 0) -> None:
        """Send a copy of an array."""

    def recv(self, out: AnyArray | None = None, *, source: int, tag: int = 0) -> AnyArray:
        """Receive an array. Blocks."""


class StageLinks:
    """Messages between the stages of one pipeline. With one worker all stages are its own.

    Attributes:
        own: Stages of this worker.
        n_stages: Number of stages of the model.
    """

    def __init__(self, worker: ArrayWorker, n_stages: int, is_alone: bool) -> None:
        """Connect a worker.

        Args:
            worker: The worker.
            n_stages: Number of stages of the model.
            is_alone: It computes all stages.
        """
        self.n_stages = n_stages
        self.own = list(range(n_stages)) if is_alone else [worker.index % n_stages]
        self._worker = worker
        self._first = worker.index - worker.index % n_stages
        self._is_alone = is_alone
        self._waiting: dict[tuple[str, int, int], deque[tuple[dict[str, Any], Flat]]] = {}

    @property
    def others(self) -> list[int]:
        """The stages of other workers."""
        return [stage for stage in range(self.n_stages) if stage not in self.own]

    def send(self, kind: Kind, number: int, flat: Flat, to: int, **head: Any) -> None:
        """Send tensors and a head to a stage. Copies them; see Worker.send for its waits."""
        if self._is_alone:
            copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in flat.tensors]
            queue = self._waiting.setdefault((kind, number, to), deque())
            queue.append((head, Flat(flat.structure, copies)))
            return
        for array in to_arrays(flat, head):
            self._worker.send(array, to=self._first + to, tag=_tag(kind, number))

    def recv(self, kind: Kind, number: int, source: int, own: int) -> tuple[dict[str, Any], Flat]:
        """Return head and tensors that a stage has sent to the stage `own`. Blocks like Worker.recv."""
        if self._is_alone:
            return self._waiting[kind, number, own].popleft()
        worker, source = self._worker, self._first + source
        return from_arrays(lambda: worker.recv(source=source, tag=_tag(kind, number)))

    def clear(self) -> None:
        """Forget what an interrupted step has left between the stages of this worker."""
        self._waiting.clear()


def _tag(kind: Kind, number: int) -> int:
    return _FIRST_TAG + (_KINDS.index(kind) << 48) + number


def text_of_tag(tag: int) -> str:
    """Return what a message with a tag contains, as errors name it."""
    kind, number = divmod(tag - _FIRST_TAG, 1 << 48)
    if not 0 <= kind < len(_KINDS):
        return f"tag {tag}"
    return _CONTENTS[_KINDS[kind]].format(number)


class _Entered(torch.autograd.Function):
    """A result with the values that a stage has received, which its first layer may change in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(0).set_(x)  # type: ignore[call-overload,no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class StagePasses:
    """The forward and backward passes of one stage."""

    def __init__(self, units: Sequence[tuple[int, Unit]]) -> None:
        """Take the units of the stage, each with its place in the model."""
        self._units = units
        self._open: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def forward(self, m: int, received: Flat, seed: Callable[[int, nn.Module], None]) -> Tree:
        """Return the result for micro-batch `m`. `seed` is called with the place of each unit."""
        leaves = [tensor for tensor in received.tensors if tensor.requires_grad]
        entered = [
            _Entered.apply(tensor) if tensor.requires_grad else tensor
            for tensor in received.tensors
        ]
        x = unflatten(Flat(received.structure, entered))
        for place, unit in self._units:
            seed(place, unit.module)
            x = unit.module(x)
        self._open[m] = leaves, []
        return x

    def note(self, m: int, results: Sequence[torch.Tensor]) -> None:
        """Note the tensors from which the backward pass of a micro-batch begins."""
        self._open[m] = self._open[m][0], [tensor for tensor in results if tensor.requires_grad]

    def backward(
        self, m: int, gradients: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Run a backward pass; return the gradients of what the stage has received.

        Args:
            m: Number of the micro-batch.
            gradients: Those of the tensors that `note` has received and that need one; empty: of a loss.
        """
        leaves, results = self._open.pop(m)
        pairs = list(zip(results, gradients or [None] * len(results), strict=True))
        used = [(r, g) for r, g in pairs if g is not None or not gradients]
        if used:
            torch.autograd.backward([r for r, _ in used], [g for _, g in used])
        # An argument of the model may be the result of a graph of the script.
        return [leaf.grad if leaf.is_leaf else None for leaf in leaves]

    def clear(self) -> None:
        """Forget passes that have not ended."""
        self._open.clear()


class Pipeline:
    """The stages that a worker computes, and its passes over them.

    Attributes:
        n_units: Number of units of all stages.
    """

    def __init__(self, stages: Sequence[Sequence[Unit]], links: StageLinks, seed: int) -> None:
        """Take all stages of a model.

        Args:
            stages: Their units.
            links: Links between them.
            seed: A number by which the random numbers of different pipelines differ.
        """
        # A module that is called twice has two places, and so other random numbers in each call.
        firsts = [0, *accumulate(len(own) for own in stages)]
        self.n_units = firsts[-1]
        self._stages = {
            number: StagePasses(list(enumerate(stages[number], firsts[number])))
            for number in links.own
        }
        self._links = links
        self._last = links.n_stages - 1
        self._seed = seed

    def step(
        self,
        inputs: Tree,
        targets: Tree,
        loss: Loss,
        n_micro: int,
        schedule: Schedule,
        clock: tuple[int, int],
    ) -> float:
        """Compute forward and backward passes of a batch; return its loss. Collective over the pipeline.

        Args:
            inputs: The batch.
            targets: Second argument of `loss`, with as many samples.
            loss: Returns the loss of a micro-batch, a mean over its samples.
            n_micro: Number of micro-batches.
            schedule: Their order.
            clock: Step of the run, and number of the pass within it.
        """
        n = n_samples_of(inputs, "the inputs of forward_backward")
        if n_samples_of(targets, "the targets of forward_backward") != n:
            raise ConfigError(
                f"forward_backward: {n} samples of inputs and "
                f"{n_samples_of(targets, 'the targets')} of targets: must be equally many"
            )
        step = _Step(self, inputs, targets, loss, bounds_of(n, n_micro), clock)
        with self._passing():
            for action in self._actions(schedule, len(step.bounds)):
                step.run(*action)
            return self._shared(step.total)

    def outputs(self, inputs: Tree, clock: tuple[int, int]) -> Tree:
        """Return the result of the model without gradients. Collective over the pipeline; all have it.

        Args:
            inputs: Its argument.
            clock: Step of the run, and number of the evaluation within it.
        """
        seed = functools.partial(_seed_unit, mix(self._seed, _EVALUATION_TAG, *clock), 0)
        call = ["model(x)", *clock]
        found: Tree = None
        with self._passing(), torch.no_grad():
            for number, stage in self._stages.items():
                if number:
                    head, flat = self._links.recv("forward", 0, number - 1, number)
                    _check_call(head["call"], call, number)
                else:
                    flat = flatten(inputs, "the input of the model")
                found = stage.forward(0, flat, seed)
                if number < self._last:
                    flat = flatten(found, f"the result of stage {number}")
                    self._links.send("forward", 0, flat, number + 1, call=call)
            return self._from_last("output", found, "the result of the model")

    def _from_last(self, kind: Kind, found: Tree, what: str) -> Tree:
        """Return a value of the last stage on all workers of the pipeline. `found`: the value, there."""
        links = self._links
        if self._last not in links.own:
            return unflatten(links.recv(kind, 0, self._last, links.own[0])[1])
        for other in links.others:
            links.send(kind, 0, flatten(found, what), other)
        return found

    def _shared(self, total: float) -> float:
        return float(self._from_last("loss", total, "the loss"))

    def from_all(self, kind: Kind, own: Tree, to: Sequence[int]) -> list[Tree] | None:
        """Return a value of each worker of the pipeline, by stage. Collective over the pipeline.

        Args:
            kind: Kind of the messages.
            own: The value of this worker.
            to: Stages whose workers receive them; others return None.
        """
        links, stage = self._links, self._links.own[0]
        if len(links.own) > 1 or links.n_stages == 1:
            return [own]
        for other in to:
            if other != stage:
                links.send(kind, 0, flatten(own, "the value"), other)
        if stage not in to:
            return None
        return [
            own if other == stage else unflatten(links.recv(kind, 0, other, stage)[1])
            for other in range(links.n_stages)
        ]

    def _actions(self, schedule: Schedule, n: int) -> Iterator[tuple[int, Action]]:
        """Yield the passes of this worker, each with its stage."""
        numbers = list(self._stages)
        if len(numbers) == 1:
            for action in order_of(schedule, numbers[0], self._last + 1, n):
                yield numbers[0], action
            return
        for m in range(n):
            yield from ((number, Action(True, m)) for number in numbers)
            yield from ((number, Action(False, m)) for number in reversed(numbers))

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """Restore the generators behind the block, and forget what it has not ended."""
        with ExitStack() as stack:
            restore_defaults(stack)
            try:
                yield
            finally:
                for one in self._stages.values():
                    one.clear()
                self._links.clear()

    def seed_of(self, clock: tuple[int, int]) -> int:
        """Return the seed of a training pass."""
        return mix(self._seed, *clock)

    @property
    def stages(self) -> dict[int, StagePasses]:
        """The stages of this worker, by number."""
        return self._stages

    @property
    def links(self) -> StageLinks:
        """Links between the stages."""
        return self._links


class _Step:
    """The passes of one batch.

    Attributes:
        bounds: First sample and end of each micro-batch.
        total: Loss of the micro-batches so far, each by its part of the samples; 0 but on the last stage.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: Tree,
        targets: Tree,
        loss: Loss,
        bounds: Sequence[tuple[int, int]],
        clock: tuple[int, int],
    ) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._inputs, self._targets, self._loss = inputs, targets, loss
        self._stages, self._links = pipeline.stages, pipeline.links
        self._seed, self._n_units = pipeline.seed_of(clock), pipeline.n_units
        self._call = ["forward_backward", *clock]
        self._last = self._links.n_stages - 1
        # Samples of the batch, number of its micro-batches, and its digest, which the stages compare.
        digest = digest_of_batch(inputs, targets) if self._links.others else 0
        self._cut = [bounds[-1][1], len(bounds), digest]
        # Number of gradients that come back from the next stage for each micro-batch; 0: none is sent.
        self._n_awaited: dict[tuple[int, int], int] = {}

    def run(self, number: int, action: Action) -> None:
        """Run a pass of a stage."""
        if action.is_forward:
            self._forward(number, action.micro_batch)
        else:
            self._backward(number, action.micro_batch)

    def _forward(self, number: int, m: int) -> None:
        first, end = self.bounds[m]
        if number:
            received = self._received(number, m)
        else:
            own = samples(self._inputs, first, end, "the inputs of forward_backward")
            received = flatten(own, "the inputs of forward_backward")
        stage = self._stages[number]
        found = stage.forward(m, received, functools.partial(_seed_unit, self._seed, m))
        if number == self._last:
            stage.note(m, [self._loss_of(found, m)])
            return
        flat = flatten(found, f"the result of stage {number}")
        stage.note(m, flat.tensors)
        self._n_awaited[number, m] = sum(tensor.requires_grad for tensor in flat.tensors)
        self._links.send("forward", m, flat, number + 1, call=self._call, samples=self._cut)

    def _received(self, number: int, m: int) -> Flat:
        """Return what the stage before has computed for a micro-batch."""
        head, flat = self._links.recv("forward", m, number - 1, number)
        _check_call(head["call"], self._call, number)
        if head["samples"] != self._cut:
            theirs, own = head["samples"], self._cut
            raise ConfigError(
                f"forward_backward: stage {number - 1} has a batch of {theirs[0]} samples in {theirs[1]} "
                f"micro-batches, and stage {number} one of {own[0]} in {own[1]}"
                f"{' with other values' if theirs[:2] == own[:2] else ''}: the workers of a pipeline need "
                "the same batch; divide the data by mpips.torch.prepare_loader"
            )
        return flat

    def _loss_of(self, found: Tree, m: int) -> torch.Tensor:
        """Return the part of a micro-batch in the loss of the batch."""
        first, end = self.bounds[m]
        targets = samples(self._targets, first, end, "the targets of forward_backward")
        _seed_all(mix(self._seed, m, self._n_units))
        loss = self._loss(found, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ConfigError(
                "forward_backward: loss must return a tensor of one element that depends on parameters of "
                f"the model, not {_described(loss)}"
            )
        part = loss.reshape(()) * ((end - first) / self.bounds[-1][1])
        self.total += float(part.detach())
        return part

    def _backward(self, number: int, m: int) -> None:
        gradients: list[torch.Tensor | None] = []
        if number < self._last and self._n_awaited.pop((number, m)):
            gradients = unflatten(self._links.recv("backward", m, number + 1, number)[1])
        back = self._stages[number].backward(m, gradients)
        if number and back:
            flat = flatten(back, f"the gradients of stage {number}")
            self._links.send("backward", m, flat, number - 1)


def _check_call(theirs: Sequence[Any], own: Sequence[Any], number: int) -> None:
    """Raise ConfigError if stage `number` has received a message of another call than its own.

    Args:
        theirs: Name of the call, step of the run and number of the call within it, of the stage before.
        own: Those of this stage.
        number: The stage that has received the message.
    """
    if list(theirs) != list(own):
        raise ConfigError(
            f"stage {number - 1} makes call {theirs[2]} of {theirs[0]} in step {theirs[1]}, and stage "
            f"{number} call {own[2]} of {own[0]} in step {own[1]}: the workers of a pipeline must make the "
            "same calls, and cannot go on behind an error in one of them"
        )


def _seed_unit(seed: int, m: int, place: int, module: nn.Module) -> None:
    """Seed the random numbers of a unit for a micro-batch."""
    word = mix(seed, m, place)
    if _draws_of_torch_alone(module):
        torch.default_generator.manual_seed(word)
    else:
        _seed_all(word)


def _seed_all(word: int) -> None:
    """Seed the default generators. NumPy takes a seed of 32 bits in a sixth of the time of a longer one."""
    torch.default_generator.manual_seed(word)
    random.seed(word)
    np.random.seed(word >> 32)


def _draws_of_torch_alone(module: nn.Module) -> bool:
    """Return True for plain layers of torch. Seeding all generators takes longer than a small layer."""
    return all(
        type(m).__module__.startswith("torch.nn.modules.")
        and not has_hooks(m)
        and "forward" not in vars(m)
        for m in module.modules()
    )


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"one of shape {tuple(value.shape)}, requires_grad={value.requires_grad}"
    return type(value).__name__


def total_norm(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of the norms of gradients, as torch.nn.utils.clip_grad_norm_ computes it."""
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(list(norms)), 2.0)
    return norm


def norms_of(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norms of the gradients of parameters that have one, float32, shape (n,)."""
    found = [
        torch.linalg.vector_norm(p.grad, 2.0).float() for p in parameters if p.grad is not None
    ]
    return torch.stack(found) if found else torch.zeros(0)
