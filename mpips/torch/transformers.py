"""The Trainer of transformers on the parameter server: `ParameterServerTrainer` in its place.

Each worker runs a Trainer of its own, whose loop is that of transformers. The subclass divides the loader of
training data, prepares the model with the optimizer and the scheduler that the Trainer has made, and lets
worker 0 write logs and checkpoints. The Trainer reads all batches of a step before it uses the first one,
so `StepLoader` ends the clock of a step before the first batch of the next one.

A restart runs the script from its beginning. The Trainer then begins in the epoch in which the run was, with
the batches that are left of it. The cursor of the worker has what its state and its callbacks need for that.

The import removes those variables of mpirun from the environment that have the number of ranks, so that
each worker is a single process for transformers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

try:
    import transformers as _transformers
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    from mpips.errors import CapabilityError

    raise CapabilityError(
        f"mpips.torch.transformers needs transformers 5 ({error}): pip install transformers accelerate"
    ) from None

import mpips
from mpips.errors import ConfigError
from mpips.session.versions import check_version
from mpips.torch.job import TorchJob
from mpips.torch.loader import StartingLoader, StepChecks, prepare_loader
from mpips.torch.prepare import prepare
from mpips.torch.skips import BatchClocks

check_version("transformers", _transformers.__version__, (5, 0), "mpips.torch.transformers")
_Trainer: Any = _transformers.Trainer
# With one of these variables of mpirun TrainingArguments(use_cpu=True) would begin a process group of torch.
# MPI has read them in mpips.init.
for _name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"):
    os.environ.pop(_name, None)

# Fields of a TrainerState that a restart needs; the numbers of steps are known otherwise.
_FIELDS = (
    "best_global_step",
    "best_metric",
    "best_model_checkpoint",
    "num_input_tokens_seen",
    "total_flos",
)
_END: Any = object()


class StepLoader:
    """A divided loader of which all batches of a step are read before the first one is used.

    Attributes not defined here are those of the loader.
    """

    def __init__(self, loader: StartingLoader, job: TorchJob, per_step: int) -> None:
        """Take the loader. `per_step`: batches of each step but the last one of an epoch."""
        self.loader = loader
        self._job = job
        self._per_step = per_step

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        batches = self.loader.reading()
        # The evaluation behind a restart has drawn numbers that an undisturbed run drew within its last step.
        self._job.begin_step(self._job.start())
        clocks, checks = BatchClocks(self._job.skips), StepChecks(self._job, self.loader)
        n_read = 0
        while True:
            if n_read % self._per_step == 0:
                if clocks.next():
                    checks.between()
                self._job.settle()
            batch = next(batches, _END)
            if batch is _END:
                clocks.end()
                return
            n_read += 1
            yield batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.loader, name)


class TrainerPlace:
    """The entries of the cursor for a Trainer's state and its callbacks, as JSON text."""

    def __init__(self, trainer: Any) -> None:
        """Take the trainer."""
        self._trainer = trainer

    def position(self) -> str:
        """Return fields of the state, and the attributes of callbacks that can be saved."""
        callbacks = {
            type(one).__name__: one.state()["attributes"] for one in self._stateful_callbacks()
        }
        state = {name: getattr(self._trainer.state, name) for name in _FIELDS}
        return json.dumps({"state": state, "callbacks": callbacks})

    def resume(self, position: str) -> None:
        """Set the fields and the attributes."""
        found = json.loads(position)
        for name, value in found["state"].items():
            setattr(self._trainer.state, name, value)
        for one in self._stateful_callbacks():
            for name, value in found["callbacks"].get(type(one).__name__, {}).items():
                setattr(one, name, value)

    def _stateful_callbacks(self) -> list[Any]:
        callbacks = self._trainer.callback_handler.callbacks
        return [one for one in callbacks if isinstance(one, ExportableState)]


class WholeEpochs(_transformers.TrainerCallback):  # type: ignore[misc]
    """Lets the state of a Trainer count the batches of the epoch in which a restart begins."""

    def __init__(self, loader: StartingLoader) -> None:
        """Take the loader of training data."""
        self._loader = loader

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Set the number of epochs that were trained."""
        if self._loader.has_length:
            state.epoch = self._loader.epoch + self._loader.batch / len(self._loader)


class ParameterServerMixin:
    """Methods of a Trainer whose parameters and optimizer are on the servers.

    Put it before the Trainer's class: `class MyTrainer(ParameterServerMixin, SomeTrainer)`. Make the Trainer
    after `mpips.init`. Training data are divided among the workers, and `per_device_train_batch_size` is that
    of one worker; each worker evaluates on all data. Worker 0 writes logs and checkpoints.

    Attributes:
        prepare_options: Keyword arguments of mpips.torch.prepare, such as {"consistency": "ssp"}.
    """

    prepare_options: dict[str, Any] = {}  # noqa: RUF012 - a subclass replaces it

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As in transformers.

        Raises:
            ConfigError: `mpips.init` has not been called, or an argument is not supported.
        """
        self._job = TorchJob.of_script("ParameterServerTrainer")
        super().__init__(*arguments, **named)
        self._loader: StepLoader | None = None
        self._place: tuple[int, int] | None = None  # epoch and batch of the restart
        self._ready: Any = None
        args = self._trainer.args
        for name in ("load_best_model_at_end", "auto_find_batch_size"):
            if getattr(args, name):
                raise ConfigError(
                    f"TrainingArguments: {name} = True: must be False, since the values of the model lie on "
                    "the servers from its first step on"
                )
        # The process writes as one of several, and computes as a single one.
        args.distributed_state.process_index = mpips.rank()
        args.distributed_state.local_process_index = self._job.script.local_worker

    @property
    def _trainer(self) -> Any:
        return self

    def train(self, resume_from_checkpoint: Any = None, **named: Any) -> Any:
        """Train, as in transformers. Collective over all ranks at the start of the job.

        Raises:
            ConfigError: The job has started, or `resume_from_checkpoint` is given.
        """
        if resume_from_checkpoint:
            raise ConfigError(
                "train(resume_from_checkpoint=...): a run continues by itself, from its memory or from "
                "checkpoints of mpips; to begin with the values of a file, load them into the model before"
            )
        if self._job.has_started:
            raise ConfigError(
                "train comes too late: the job has started with the first training or evaluation; call train "
                "once, before evaluate"
            )
        return super().train(**named)  # type: ignore[misc]

    def get_train_dataloader(self) -> Any:
        """Return the loader of training data, divided among the workers.

        Raises:
            ConfigError: It cannot be divided.
        """
        # Accelerate would read a batch ahead of its step.
        accelerator = self._trainer.accelerator
        accelerator.prepare = lambda loader: loader
        try:
            plain = super().get_train_dataloader()  # type: ignore[misc]
        finally:
            del accelerator.prepare
        per_step = self._trainer.args.gradient_accumulation_steps
        self._loader = StepLoader(prepare_loader(plain), self._job, per_step)
        return self._loader

    def _init_training_state(self, max_steps: int, *arguments: Any) -> tuple[int, int]:
        """Prepare model, optimizer and scheduler, and start the job: then the place of the run is known."""
        trainer = self._trainer
        parent: Any = super()
        parent._init_training_state(max_steps, *arguments)
        assert self._loader is not None
        self._ready = parent._prepare_for_training(max_steps, self._loader, None)
        prepare(
            trainer.model,
            trainer.optimizer.optimizer,
            scheduler=trainer.lr_scheduler,
            **self.prepare_options,
        )
        self._job.restore("trainer", TrainerPlace(trainer))
        self._job.start()
        return self._begin(self._loader.loader), 0

    def _begin(self, loader: StartingLoader) -> int:
        """Set the place after a restart; return the epoch in which it is."""
        if not self._job.steps:
            return 0
        trainer = self._trainer
        place = loader.position()
        epoch, batch = place["epoch"], place["batch"]
        if loader.has_length:
            batch = len(loader) - loader.n_left(epoch)
        is_complete = loader.has_length and batch >= len(loader)
        loader.seek(epoch + 1 if is_complete else epoch)
        trainer.state.global_step = self._job.steps
        trainer.state.epoch = epoch + (batch / len(loader) if loader.has_length else 0)
        trainer.callback_handler.callbacks.insert(0, WholeEpochs(loader))
        self._place = epoch, batch
        return int(epoch)

    def _prepare_for_training(self, *arguments: Any) -> Any:
        """Return what `_init_training_state` has prepared."""
        return self._ready

    def _run_epoch(self, **named: Any) -> None:
        """Run an epoch; that of a restart with the batches that are left of it."""
        trainer = self._trainer
        if self._place is None or named["epoch"] != self._place[0]:
            super()._run_epoch(**named)  # type: ignore[misc]
            return
        state, control = trainer.state, trainer.control
        self._job.arrive(is_there=True)
        # The evaluation of the newest step: a restart has the states of callbacks before it.
        due = _transformers.DefaultFlowCallback().on_step_end(
            trainer.args, state, _transformers.TrainerControl()
        )
        if due.should_evaluate:
            control.should_evaluate, control.should_save = True, due.should_save
            self._evaluate_or_save(named)
        control = trainer.control
        control.should_training_stop |= state.global_step >= state.max_steps
        assert self._loader is not None
        n_left, batches = named["steps_in_epoch"] - self._place[1], iter(self._loader)
        ends = control.should_training_stop or n_left <= 0
        first = _END if ends else next(batches, _END)
        if first is not _END:
            per_step = trainer.args.gradient_accumulation_steps
            named["steps_in_epoch"] = n_left
            named["num_update_steps_per_epoch"] = -(-n_left // per_step)
            named["train_dataloader"] = chain([first], batches)
            super()._run_epoch(**named)  # type: ignore[misc]
            return
        # The end of the epoch, which the launch before may not have reached. A Trainer that finds no batch in
        # an epoch would end the training.
        handler = trainer.callback_handler
        trainer.control = handler.on_epoch_end(trainer.args, state, control)
        self._evaluate_or_save(named)

    def _evaluate_or_save(self, named: dict[str, Any]) -> None:
        """Do what callbacks have decided on. `named`: arguments of `_run_epoch`."""
        trainer = self._trainer
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss,
            None,
            named["model"],
            named["trial"],
            named["epoch"],
            named["ignore_keys_for_eval"],
            named["start_time"],
            learning_rate=trainer._get_learning_rate(),
        )

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        """Save the model on worker 0."""
        if self._trainer.args.should_save:
            super()._save_checkpoint(*arguments, **named)  # type: ignore[misc]


class ParameterServerTrainer(ParameterServerMixin, _Trainer):  # type: ignore[misc]
    """The Trainer of transformers on the parameter server; see ParameterServerMixin."""
