"""Lightning's Trainer on the parameter server: `Trainer(strategy=ParameterServerStrategy())`.

Each worker runs a Trainer of its own. The strategy divides the loader of training data when the Trainer sets
it up, prepares the LightningModule with its optimizer and schedulers directly behind `configure_optimizers`,
and starts the job at the end of `Strategy.setup`. All else is the Trainer's own loop.

A restart runs the script from its beginning. The strategy then gives the Trainer's loops the numbers that
they would have loaded from a checkpoint of Lightning: epoch, batch and steps. A batch at which the loops
validate is followed by its validation again, since the launch before may have ended within it. Callbacks with
a `state_dict` get their states from the cursor of the worker.

The classes are those of the package that the script has imported, `lightning` or `pytorch_lightning`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import mpips
from mpips.errors import CapabilityError, ConfigError
from mpips.session.versions import check_version
from mpips.torch.device import device as device_of_worker
from mpips.torch.job import TorchJob
from mpips.torch.loader import StartingLoader, prepare_loader
from mpips.torch.prepare import prepare

_OLDEST = (2, 5)


def _package() -> Any:
    """Return the module of Lightning that the script uses.

    Raises:
        CapabilityError: Lightning is not installed.
    """
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reason = error
    raise CapabilityError(
        f"mpips.torch.lightning needs Lightning 2.6 ({reason}): pip install lightning"
    ) from None


_lightning = _package()
check_version("lightning", _lightning.__version__, _OLDEST, "mpips.torch.lightning")
_zero: Any = importlib.import_module(f"{_lightning.__name__}.utilities.rank_zero")
_Base: Any = _lightning.strategies.SingleDeviceStrategy


class LazyLoader:
    """The divided loader of training data, as Lightning reads it.

    Lightning makes an iterator of the first epoch long before it reads a batch. The epoch begins with the
    first batch.
    """

    def __init__(self, loader: StartingLoader, job: TorchJob) -> None:
        """Take the loader."""
        self.loader = loader
        self._job = job

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        # The validation behind a restart has drawn numbers that an undisturbed run drew within its last step.
        self._job.begin_step(self._job.start())
        yield from batches

    def state_dict(self) -> dict[str, Any]:
        """Return {}: the place is in the cursor of the worker. Lightning asks for such a method."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


class CallbackStates:
    """The states of a Trainer's callbacks in the cursor of the worker, as JSON text."""

    def __init__(self, trainer: Any) -> None:
        """Take the trainer."""
        self._trainer = trainer

    def position(self) -> dict[str, str]:
        """Return the states of the callbacks that have one, by their keys.

        Raises:
            ConfigError: A state has other values than numbers, text, None, lists and dicts.
        """
        found = {}
        for callback in self._trainer.callbacks:
            if state := callback.state_dict():
                found[callback.state_key] = json.dumps(
                    _to_json(state, f"the state of the callback {callback.state_key}")
                )
        return found

    def resume(self, position: dict[str, str]) -> None:
        """Set the states of the callbacks."""
        for callback in self._trainer.callbacks:
            if callback.state_key in position:
                callback.load_state_dict(_from_json(json.loads(position[callback.state_key])))


def _to_json(value: Any, name: str) -> Any:
    """Return a value as JSON has it: tensors of one number as {"tensor": number}, dicts as pairs."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return {"tensor": value.item()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_to_json(one, name) for one in value]
    if isinstance(value, dict):
        return {"pairs": [[_to_json(k, name), _to_json(v, name)] for k, v in value.items()]}
    raise ConfigError(
        f"{name} has a {type(value).__name__}, which cannot be sent or saved: it must have numbers, text, "
        "None, lists and dicts"
    )


def _from_json(value: Any) -> Any:
    """Return the value that `_to_json` was given, lists for tuples."""
    if isinstance(value, list):
        return [_from_json(one) for one in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return torch.tensor(value["tensor"])
        return {_from_json(k): _from_json(v) for k, v in value["pairs"]}
    return value


class ParameterServerStrategy(_Base):  # type: ignore[misc]
    """A strategy of Lightning's Trainer whose parameters and optimizer are on the servers.

    Make it after `mpips.init`. Training data are divided among the workers, and each worker validates, tests
    and predicts on all data that it is given. Worker 0 writes logs and checkpoints. `self.log` with
    sync_dist=True, `all_gather`, EarlyStopping and barriers communicate between workers, once `fit` has
    begun; all of them must come to such a place.
    """

    optimizers: Any  # those of the module, a property of Lightning

    strategy_name = "mpips"
    is_distributed = True  # Lightning reduces values of `self.log(..., sync_dist=True)` only then

    def __init__(self, *, device: torch.device | str | None = None, **options: Any) -> None:
        """Make the strategy. Not collective.

        Args:
            device: Device of this worker; None: mpips.torch.device().
            options: Keyword arguments of mpips.torch.prepare, such as consistency="ssp".

        Raises:
            ConfigError: `mpips.init` has not been called, or an option is the affair of the strategy.
        """
        self._job = TorchJob.of_script("ParameterServerStrategy")
        for name in ("model", "optimizer", "loader", "scheduler", "stream", "init", "name"):
            if name in options:
                raise ConfigError(
                    f"ParameterServerStrategy: {name} cannot be set: the strategy prepares the model of the "
                    "Trainer with its optimizer, schedulers and loader"
                )
        super().__init__(device_of_worker() if device is None else torch.device(device))
        self._options = options
        self._loader: StartingLoader | None = None
        self.global_rank = mpips.rank()
        self.local_rank = self._job.script.local_worker
        self.world_size = mpips.world_size()
        _zero.rank_zero_only.rank = self.global_rank

    @property
    def is_global_zero(self) -> bool:
        """True on worker 0, which writes logs and checkpoints."""
        return bool(self.global_rank == 0)

    # Set-up.

    def setup_environment(self) -> None:
        """As in Lightning, which must not divide loaders itself."""
        super().setup_environment()
        self.lightning_module.trainer._accelerator_connector.use_distributed_sampler = False

    def process_dataloader(self, dataloader: Any) -> Any:
        """Divide the loader of training data; return others as they are.

        Raises:
            ConfigError: There are several of them, or it cannot be divided.
        """
        trainer = self.lightning_module.trainer
        # Loaders of validation data come later.
        if trainer.state.fn != "fit" or trainer.fit_loop._combined_loader is not None:
            return dataloader
        if self._loader is not None:
            raise ConfigError(
                "the Trainer has several loaders of training data: give it one, over a dataset that contains "
                "all of them"
            )
        self._loader = prepare_loader(dataloader)
        if not self._loader.has_length:
            raise ConfigError(
                f"the dataset {type(dataloader.dataset).__qualname__} has no length, so Lightning would read "
                "a batch ahead of its step: define its __len__"
            )
        return LazyLoader(self._loader, self._job)

    def setup(self, trainer: Any) -> None:
        """Set up model, optimizer and loader, and start the job. Collective in `fit`; blocks then."""
        is_fit = trainer.state.fn == "fit"
        if is_fit:
            self._check(trainer)
            trainer.fit_loop.setup_data()
        super().setup(trainer)
        if is_fit and self._loader is not None:
            self._job.start()
            self._continue(trainer, self._loader)

    def _check(self, trainer: Any) -> None:
        """Raise ConfigError for what the strategy does not support."""
        if self._job.has_started:
            raise ConfigError(
                "the job has started, with the first `fit` of a Trainer: a script calls `fit` once; raise "
                "max_epochs, or start another script"
            )
        if trainer.reload_dataloaders_every_n_epochs:
            raise ConfigError(
                "reload_dataloaders_every_n_epochs: the loader of training data is divided once, before the "
                "job starts; let its dataset or sampler change with `set_epoch`"
            )

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **named: Any) -> Any:
        """Read a file, as other strategies do, for `validate`, `test` and `predict`.

        Raises:
            ConfigError: `fit` was called with the file.
        """
        if self.lightning_module.trainer.state.fn == "fit":
            raise ConfigError(
                "fit(ckpt_path=...): a run continues by itself, from memory or from checkpoints of mpips; "
                "to begin with the values of a file, load them into the module before `fit`"
            )
        return super().load_checkpoint(checkpoint_path, *arguments, **named)

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the optimizer and the schedulers of the module, and prepare all of them.

        Raises:
            ConfigError: The module has several optimizers, or one is not accepted.
        """
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            raise ConfigError(
                f"configure_optimizers returned {len(self.optimizers)} optimizers: must be one; use "
                "mpips.torch.prepare in a loop of your own for several"
            )
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        _, optimizer = prepare(
            self.lightning_module, self.optimizers[0], scheduler=schedulers, **self._options
        )
        self._job.restore("callbacks", CallbackStates(trainer))
        # Lightning's wrapper of the optimizer takes over its class.
        self.optimizers = [optimizer]

    def _continue(self, trainer: Any, loader: StartingLoader) -> None:
        """Give the loops of the Trainer their place after a restart."""
        if not self._job.steps:
            return
        fit, n_batches = trainer.fit_loop, trainer.num_training_batches
        place = loader.position()
        epoch, batch = place["epoch"], place["batch"]
        # With another number of workers what is left of the epoch has fewer batches.
        batch = max(batch, int(min(n_batches, len(loader))) - loader.n_left(epoch))
        is_complete = batch >= n_batches
        loader.seek(epoch + 1 if is_complete else epoch)
        self._job.arrive()

        state, steps = fit.state_dict(), self._job.steps
        begun = epoch + 1 if batch else epoch
        _set(state["epoch_progress"], begun, epoch)
        batches = state["epoch_loop.batch_progress"]
        _set(batches, batch, batch)
        _fill(batches["total"], *[int(epoch * n_batches) + batch] * 2)
        batches["is_last_batch"] = is_complete
        _set(
            state["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"],
            steps,
            steps,
        )
        _set(state["epoch_loop.manual_optimization.optim_step_progress"], steps, steps)
        state["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
        # A validation that has begun and not ended.
        _fill(state["epoch_loop.val_loop.batch_progress"]["total"], 1, 0)
        fit.load_state_dict(state)

    def on_train_start(self) -> None:
        """Let the loop step schedulers with a metric also at the end of the epoch of a restart."""
        super().on_train_start()
        self.lightning_module.trainer.fit_loop._restarting = False

    # Steps.

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Run the module's training_step within its call, which pulls values and notes that it trains."""
        module = self.lightning_module
        own = module.__dict__.get("forward")

        def forward(*arguments: Any, **named: Any) -> Any:
            _set_forward(module, own)
            return module.training_step(*arguments, **named)

        module.__dict__["forward"] = forward
        try:
            with self.precision_plugin.train_step_context():
                return module(*arguments, **named)
        finally:
            _set_forward(module, own)

    # Communication between workers.

    def barrier(self, name: str | None = None, *arguments: Any, **named: Any) -> None:
        """Wait for all workers, once the job has started. Collective over workers; blocks."""
        if self._job.has_started:
            self._settled().barrier(f"lightning {name or ''}")

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object of worker `src`; before the start of the job its own. Collective.

        Raises:
            ConfigError: It has other values than numbers, text, None, lists and dicts.
        """
        if not self._job.has_started:
            return obj
        own = json.dumps(_to_json(obj, "broadcast")) if src == self.global_rank else ""
        found = self._settled().gather("lightning broadcast", own.encode())[src]
        return _from_json(json.loads(found))

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the sum or the mean of a tensor over the workers. Collective over workers; blocks.

        Raises:
            ConfigError: `reduce_op` is another operation.
        """
        name = str(reduce_op).rpartition(".")[2].lower()
        if name not in ("none", "mean", "avg", "sum"):
            raise ConfigError(f"reduce_op = {reduce_op!r}: must be 'mean' or 'sum'")
        if not self._job.has_started:
            return tensor
        value = torch.as_tensor(tensor)
        array = value.detach().cpu().double().numpy()
        total = self._settled().reduce("lightning reduce", array)
        found = torch.as_tensor(np.asarray(total)).reshape(value.shape)
        if name != "sum":
            found = found / self.world_size
        return found.to(value.device, value.dtype if value.is_floating_point() else None)

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the tensors of all workers, shape (workers, *shape). Collective over workers; blocks.

        Raises:
            ConfigError: `sync_grads` is True.
        """
        if sync_grads:
            raise ConfigError(
                "all_gather: sync_grads = True: must be False, gradients stay on a worker"
            )
        if not self._job.has_started:
            return tensor[None]
        own = tensor.detach().cpu().contiguous()
        if not own.numel():
            return torch.stack([own] * self.world_size).to(tensor.device)
        payload = own.reshape(-1).view(torch.uint8).numpy().tobytes()
        parts = self._settled().gather("lightning all_gather", payload)
        found = [torch.frombuffer(bytearray(part), dtype=own.dtype) for part in parts]
        return torch.stack([one.reshape(own.shape) for one in found]).to(tensor.device)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all workers decide so, or any of them. Collective over workers; blocks."""
        if not self._job.has_started:
            return decision
        parts = self._settled().gather("lightning decision", bytes([bool(decision)]))
        return bool((min(parts) if all else max(parts)) == b"\1")

    def _settled(self) -> Any:
        """Return the worker, between the clocks of two steps."""
        self._job.settle()
        return self._job.start()


def _set(progress: dict[str, Any], begun: int, ended: int) -> None:
    """Set the numbers of a progress state of Lightning, of this epoch and of all."""
    for part in ("total", "current"):
        _fill(progress[part], begun, ended)


def _fill(numbers: dict[str, int], begun: int, ended: int) -> None:
    """Set the numbers of events that have begun and ended."""
    for name in numbers:
        numbers[name] = begun if name in ("ready", "started") else ended


def _set_forward(module: torch.nn.Module, own: Any) -> None:
    """Let a module have its own `forward` again."""
    if own is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = own
