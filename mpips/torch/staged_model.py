"""A prepared model in stages: its class, and the parameters of other stages, which this worker does not have.

All workers construct the whole model, and worker 0 sends its values to the servers. When the job has started,
parameters and buffers of other stages give their memory back: they stay objects of the model, with no
elements. Reading the gradient of one is an error, since a sum over all parameters (a global norm) would lack
the other stages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from mpips.errors import ConfigError
from mpips.model.table import DenseTable
from mpips.torch.generators import mix
from mpips.torch.job import TorchJob
from mpips.torch.model_part import ModelPart
from mpips.torch.module import PreparedModule, make_prepared
from mpips.torch.stage_cut import Unit, check_not_called, containers_of
from mpips.torch.stage_order import SCHEDULES, Schedule
from mpips.torch.stage_run import (
    UNIT_TAG,
    Loss,
    Pipeline,
    StageLinks,
    norms_of,
    text_of_tag,
    total_norm,
)
from mpips.torch.stepping import Stepping
from mpips.worker.worker import Worker, connection_of


class OtherStageParameter(torch.nn.Parameter):
    """A parameter of another stage, without elements. Parameters become objects of this class in place."""

    @property
    def grad(self) -> torch.Tensor | None:
        """Nothing.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "the gradient of a parameter of another stage of the model was read, and this worker has the "
            "parameters of its stage alone: clip gradients by model.clip_grad_norm_(max_norm), and for the "
            "rest look at those with elements (p.numel() > 0)"
        )

    @grad.setter
    def grad(self, value: Any) -> None:
        pass

    @grad.deleter
    def grad(self) -> None:
        pass


class Division:
    """The stages of one model, and those that this worker computes.

    Attributes:
        stages: The units of each stage.
        own: Stages of this worker: all in a job of one worker.
        containers: The modules that it does not call, each with its path.
    """

    def __init__(
        self, job: TorchJob, model: torch.nn.Module, stages: Sequence[Sequence[Unit]]
    ) -> None:
        """Take all stages of a model."""
        self.stages = stages
        self.containers = containers_of(model)
        self._job = job
        n = len(stages)
        self.own = list(range(n)) if job.n_stages == 1 else [job.script.rank % n]
        modules = [
            (s, m) for s, units in enumerate(stages) for u in units for m in u.module.modules()
        ]
        self._stage_of = {
            id(p): s for s, m in modules for p in m._parameters.values() if p is not None
        }
        self._others = [m for s, m in modules if s not in self.own]
        self._modules = {id(m): s for s, m in modules}
        self._optimizer: Any = None

    @property
    def is_divided(self) -> bool:
        """True if this worker computes a part of the model only."""
        return len(self.own) < len(self.stages)

    def is_own(self, parameter: torch.Tensor) -> bool:
        """Return True if a parameter of the model belongs to a stage of this worker."""
        return self._stage_of[id(parameter)] in self.own

    def has_module(self, module: torch.nn.Module) -> bool:
        """Return True if a module belongs to a stage of this worker."""
        return self._modules.get(id(module), 0) in self.own

    def is_elsewhere(self, module: torch.nn.Module) -> bool:
        """Return True if a module belongs to a stage of another worker."""
        return not self.has_module(module) and id(module) in self._modules

    def table(self, table: DenseTable, stage: int) -> DenseTable:
        """Return the table of a parameter or buffer of a stage. A model in one stage has plain tables."""
        return replace(table, stage=stage) if len(self.stages) > 1 else table

    def stage_of(self, parameter: torch.Tensor) -> int:
        """Return the stage of a parameter of the model."""
        return self._stage_of[id(parameter)]

    def stage_of_module(self, module: torch.nn.Module) -> int:
        """Return the stage of a module within a unit."""
        return self._modules[id(module)]

    def take_optimizer(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Take the prepared optimizer of the model, whose groups lose the parameters of other stages."""
        self._optimizer = optimizer

    @property
    def stepping(self) -> Stepping | None:
        """The steps of the prepared optimizer of the model; None: it has none."""
        return None if self._optimizer is None else self._optimizer._mpips_stepping

    def open(self, worker: Worker) -> None:
        """Free the parameters and buffers of other stages at the start of the job, when servers have them."""
        for module in self._others:
            for p in module._parameters.values():
                if p is not None:
                    p.grad = None
                    p.data = p.data.new_empty(0)
                    p.__class__ = OtherStageParameter
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[key] = buffer.new_empty(0)
        self._job.progress.counts = 0 in self.own
        if self.stepping is not None and self._others:
            self.stepping.leave_out(lambda p: isinstance(p, OtherStageParameter))


class StagedModule(PreparedModule):
    """Methods of a prepared model in stages."""

    _mpips_division: Division
    _mpips_job: TorchJob
    _mpips_pipeline: Pipeline | None
    _mpips_passes: tuple[int, int]
    _mpips_evaluations: tuple[int, int]

    def forward_backward(
        self,
        inputs: Any,
        targets: Any,
        loss: Loss,
        *,
        micro_batches: int,
        schedule: Schedule = "1f1b",
    ) -> torch.Tensor:
        """Compute a batch forward and backward, in micro-batches; add to the gradients of the parameters.

        In place of `loss(model(inputs), targets).backward()`. Collective over the workers of a pipeline, with
        the same batch on all of them; blocks. `optimizer.step()` follows. Several calls before it add up
        their gradients.

        The loss of the batch is the mean of those of its samples: a micro-batch counts by its part of the
        samples. Layers see one micro-batch at a time, so the statistics of BatchNorm are those of a
        micro-batch. Under one seed, with the same micro-batches, every cut and every number of workers of a
        pipeline computes the same bits, if torch has the same number of threads.

        Args:
            inputs: The argument of the model: a tensor, or a tuple, list or dict of tensors, on the CPU. The
                first dimension of each has the samples.
            targets: Second argument of `loss`, of the same form, with as many samples.
            loss: Called with the model's result and the targets of a micro-batch; returns its loss, the mean
                over its samples, a tensor of one element. Only the workers of the last stage call it.
            micro_batches: Number of pieces of the batch, 1 or more; the first ones have one sample more where
                it does not divide the batch.
            schedule: "1f1b": a stage holds the activations of few micro-batches; "gpipe": of all. The
                gradients have the same bits.

        Returns:
            The loss of the batch, float32, without a graph; the same on all workers of the pipeline.

        Raises:
            ConfigError: An argument is not accepted, gradients are off, or the workers of the pipeline have
                different batches.
            StallError: The worker of another stage was late for the job's timeout; the message names it.
        """
        if (
            not isinstance(micro_batches, int)
            or isinstance(micro_batches, bool)
            or micro_batches < 1
        ):
            raise ConfigError(
                f"forward_backward: micro_batches = {micro_batches!r}: must be a whole number of 1 or more"
            )
        if schedule not in SCHEDULES:
            raise ConfigError(
                f"forward_backward: schedule = {schedule!r}: must be one of {', '.join(SCHEDULES)}"
            )
        if not torch.is_grad_enabled():
            raise ConfigError(
                "forward_backward under torch.no_grad or inference_mode: it computes gradients; call the "
                "model itself to evaluate it"
            )
        part = self._mpips_part
        part.note_forward(True)
        part.check_unchanged()
        part.refresh()
        pipeline = self._mpips_connected()
        clock = self._mpips_passes = self._mpips_next(self._mpips_passes)
        found = pipeline.step(inputs, targets, loss, micro_batches, schedule, clock)
        if self._mpips_division.stepping is not None:
            self._mpips_division.stepping.note_pass()
        value = torch.tensor(found, dtype=torch.float32)
        self._mpips_job.progress.losses.add(value)
        return value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return the model's result without gradients, on all workers of the pipeline.

        Collective over the workers of a pipeline, with the same argument on all of them; blocks. It trains by
        `forward_backward`.

        Raises:
            ConfigError: The model is in training mode and gradients are recorded; or it is a slice.
            StallError: The worker of another stage was late for the job's timeout; the message names it.
        """
        if "_mpips_pipeline" not in self.__dict__:
            raise ConfigError("a slice of a model in stages cannot be called: call the whole model")
        if self.training and torch.is_grad_enabled():
            raise ConfigError(
                "a model in stages was called in training mode: train it by loss = "
                "model.forward_backward(inputs, targets, loss, micro_batches=N) in place of its call and "
                "backward(), and evaluate it behind model.eval() or under torch.no_grad()"
            )
        if len(arguments) != 1 or named:
            raise ConfigError(
                f"a model in stages was called with {len(arguments) + len(named)} arguments: must be one, "
                "which can be a tuple, list or dict of tensors"
            )
        part = self._mpips_part
        part.note_forward(False)
        part.refresh()
        # A restart may not repeat an evaluation, so the numbers of training passes do not count it.
        clock = self._mpips_evaluations = self._mpips_next(self._mpips_evaluations)
        return self._mpips_connected().outputs(arguments[0], clock)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the gradients of all stages so that their 2-norm is at most `max_norm`, in place.

        Collective over the workers of a pipeline; blocks. As torch.nn.utils.clip_grad_norm_ over the
        parameters of the whole model; call it between `forward_backward` and `optimizer.step()`.

        Returns:
            The norm before, float32; the same bits on all workers of the pipeline, for every cut.

        Raises:
            StallError: The worker of another stage was late for the job's timeout; the message names it.
        """
        self._mpips_job.start()
        self._mpips_job.settle()
        division = self._mpips_division
        parameters = list(torch.nn.Module.named_parameters(self))
        own = [
            (i, p)
            for i, (_, p) in enumerate(parameters)
            if division.is_own(p) and p.grad is not None
        ]
        value = {"places": [i for i, _ in own], "norms": norms_of([p for _, p in own])}
        everyone = range(len(division.stages))
        found = self._mpips_connected().from_all("norms", value, everyone) or []
        pairs = sorted(
            (place, norm)
            for one in found
            for place, norm in zip(one["places"], one["norms"], strict=True)
        )
        if not pairs:
            return torch.tensor(0.0)
        norm = total_norm([norm for _, norm in pairs])
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for _, p in own:
            assert p.grad is not None
            p.grad.mul_(factor)
        return norm

    def full_state_dict(self) -> dict[str, torch.Tensor] | None:
        """Return the state of the whole model on the worker of the first stage, None on the others.

        Collective over the workers of a pipeline; blocks like a pull. The values are those of `state_dict` of
        a plain model, as copies; see PreparedModule.state_dict.

        Raises:
            ConfigError: The state of a module has something else than tensors, numbers and text.
            StallError: The worker of another stage was late for the job's timeout; the message names it.
        """
        self._mpips_part.refresh()
        whole = torch.nn.Module.state_dict(self, keep_vars=True)
        found = self._mpips_connected().from_all("state", self._mpips_own(whole), [0])
        if found is None:
            return None
        merged = {name: value for one in reversed(found) for name, value in one.items()}
        return {name: merged[name] for name in whole}

    def _mpips_own(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of the entries of a state dict that this worker has. `whole`: has the tensors."""
        modules = self.named_modules(remove_duplicate=False)
        others = {path: m for path, m in modules if self._mpips_division.is_elsewhere(m)}
        # A parameter can have more than one name, also outside of its stage.
        tensors = {id(t) for m in others.values() for t in (*m.parameters(), *m.buffers())}

        def is_own(name: str, value: Any) -> bool:
            words = name.split(".")
            parents = (".".join(words[:i]) for i in range(1, len(words)))
            return id(value) not in tensors and others.keys().isdisjoint(parents)

        return {
            name: value.detach().clone()
            if isinstance(value, torch.Tensor)
            else copy.deepcopy(value)
            for name, value in whole.items()
            if is_own(name, value)
        }

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """As in torch, where one worker computes all stages.

        Raises:
            ConfigError: The model is divided, and the job has started.
        """
        if self._mpips_is_partial():
            raise ConfigError(
                "state_dict of a model in stages: this worker has the parameters of its stage alone; call "
                "model.full_state_dict() on all workers, or read a checkpoint by mpips.torch.load_checkpoint"
            )
        return super().state_dict(*arguments, **named)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch, for the parameters of this worker's stage."""
        with self._mpips_part.dropping(set_to_none):
            for parameter in _own_parameters(self):
                if set_to_none or parameter.grad is None:
                    parameter.grad = None
                else:
                    parameter.grad.detach_().zero_()
            if self._mpips_division.stepping is not None:
                self._mpips_division.stepping.drop_elsewhere()

    def no_sync(self) -> NoReturn:
        """Raise ConfigError: several calls of `forward_backward` add up their gradients by themselves."""
        raise ConfigError(
            "no_sync of a model in stages: call forward_backward several times before optimizer.step(), "
            "which adds up their gradients"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._mpips_is_partial():
            raise ConfigError(
                "a model in stages was copied or pickled: this worker has the parameters of its stage alone; "
                "load model.full_state_dict() into a new model"
            )
        return super().__reduce_ex__(protocol)

    def _mpips_is_partial(self) -> bool:
        division: Division | None = self.__dict__.get("_mpips_division")
        return division is not None and division.is_divided and self._mpips_part.is_started

    def _mpips_connected(self) -> Pipeline:
        """Return the passes over the stages; the job has started."""
        check_not_called(self._mpips_division.containers)
        if self._mpips_pipeline is None:
            job, division = self._mpips_job, self._mpips_division
            worker = job.start()
            connection_of(worker).messages.text_of = text_of_tag
            links = StageLinks(worker, len(division.stages), is_alone=not division.is_divided)
            seed = mix(UNIT_TAG, job.script.seed, job.pipeline)
            self._mpips_pipeline = Pipeline(division.stages, links, seed)
        return self._mpips_pipeline

    def _mpips_next(self, before: tuple[int, int]) -> tuple[int, int]:
        """Return the step of the run, and the number of a pass within it behind the pass `before`."""
        steps = self._mpips_job.steps
        return steps, before[1] + 1 if before[0] == steps else 0

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        """As in torch: `to` and others read the gradients of all parameters."""
        others: list[torch.nn.Parameter] = [
            p for p in self.parameters() if isinstance(p, OtherStageParameter)
        ]
        for p in others:
            p.__class__ = torch.nn.Parameter
        try:
            return super()._apply(fn, recurse)
        finally:
            for p in others:
                p.__class__ = OtherStageParameter


def _own_parameters(model: torch.nn.Module) -> Iterable[torch.nn.Parameter]:
    """Yield the parameters that this worker has."""
    for _, parameter in torch.nn.Module.named_parameters(model):
        if not isinstance(parameter, OtherStageParameter):
            yield parameter


def make_staged(model: torch.nn.Module, part: ModelPart, job: TorchJob, division: Division) -> None:
    """Turn a model into a prepared one in stages, in place."""
    state: Mapping[str, Any] = {
        "_mpips_division": division,
        "_mpips_job": job,
        "_mpips_pipeline": None,
        "_mpips_passes": (-1, 0),
        "_mpips_evaluations": (-1, 0),
    }
    model.__dict__.update(state)
    make_prepared(model, part, StagedModule)
