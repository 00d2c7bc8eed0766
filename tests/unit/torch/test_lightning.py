"""Lightning's Trainer, with its own loop, on the parameter server: values, restarts, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")
pytest.importorskip(
    "lightning", reason="lightning is not installed (bash tests/run.sh long installs it)"
)

import torch
from script_rig import wait_for_checkpoint
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch_rig import State, assert_equal, relative, torch_job, values_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning as L
    from lightning.pytorch.callbacks import EarlyStopping

    from mpips.torch.lightning import CallbackStates, ParameterServerStrategy

from mpips.errors import ConfigError
from mpips.session.script import Script
from mpips.snapshot import cut

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error:the values of the model"),
]
N, SIZE = 48, 8
PER_EPOCH = N // SIZE


class CrashError(Exception):
    """The end of a script in the middle."""


class Module(L.LightningModule):
    """A network with dropout; logs what it does."""

    def __init__(self, scheduler: str = "cycle", drop: float = 0.0, optimizers: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(drop), nn.Linear(8, 1))
        self.kind, self.n = scheduler, optimizers
        self.steps: list[Any] = []
        self.validated: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def loss(self, batch: Any) -> torch.Tensor:
        return (self(batch[0]) - batch[1]).square().mean()

    def training_step(self, batch: Any, i: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("train", loss, on_step=True, on_epoch=True, sync_dist=True)
        (rate,) = {group["lr"] for group in self.trainer.optimizers[0].param_groups}
        self.steps.append((self.current_epoch, i, self.global_step, rate, loss.item()))
        return loss

    def validation_step(self, batch: Any, i: int) -> None:
        self.log("val", self.loss(batch))

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append((self.current_epoch, self.global_step))

    def configure_optimizers(self) -> Any:
        if self.n != 1:
            self.automatic_optimization = False
            return [torch.optim.SGD(self.parameters(), 0.1) for _ in range(self.n)]
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        if self.kind == "cycle":
            n_steps = self.trainer.estimated_stepping_batches
            one = {"scheduler": OneCycleLR(optimizer, 0.1, total_steps=n_steps), "interval": "step"}
        elif self.kind == "epoch":
            one = {"scheduler": ExponentialLR(optimizer, 0.8), "interval": "epoch"}
        else:
            plateau = ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
            one = {"scheduler": plateau, "monitor": "val"}
        return {"optimizer": optimizer, "lr_scheduler": one}


class Crash(L.Callback):
    """Ends the script before a batch of an epoch, or in the validation behind it."""

    def __init__(self, script: Script, folder: Path, epoch: int, batch: int) -> None:
        self.script, self.folder = script, folder
        self.epoch, self.batch = epoch, batch

    def end(self, trainer: Any) -> None:
        wait_for_checkpoint(self.script, self.folder, trainer.global_step, "net.0.weight")
        raise CrashError

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, i: int) -> None:
        if (trainer.current_epoch, i) == (self.epoch, self.batch):
            self.end(trainer)

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        at_end = self.batch == PER_EPOCH and not trainer.sanity_checking
        if at_end and trainer.current_epoch == self.epoch:
            self.end(trainer)


def trainer_of(**options: Any) -> Any:
    return L.Trainer(
        **{
            "max_epochs": 4,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        }
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(5))
    return x, x.sum(1, keepdim=True)


def fit(trainer: Any, module: Module, shuffle: bool = False) -> Module:
    loader = DataLoader(TensorDataset(*data()), SIZE, shuffle=shuffle)
    trainer.fit(module, loader, DataLoader(TensorDataset(*data()), N))
    return module


def module_of(*arguments: Any) -> Module:
    torch.manual_seed(1)
    return Module(*arguments)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("cycle", {"accumulate_grad_batches": 4, "gradient_clip_val": 0.5}), ("plateau", {})],
)
def test_a_fit_is_that_of_one_device(kind: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    plain = trainer_of(**options)
    expected = fit(plain, module_of(kind))
    with torch_job():
        trainer = trainer_of(strategy=ParameterServerStrategy(), **options)
        module = fit(trainer, module_of(kind))
        metrics = dict(trainer.callback_metrics)
        found, validated = values_of(module), list(module.validated)
        assert trainer.is_global_zero
        (again,) = trainer.validate(module, DataLoader(TensorDataset(*data()), N), verbose=False)
        assert again["val"] == pytest.approx(metrics["val"].item(), rel=1e-6)
    for name, value in expected.state_dict().items():
        assert relative(found[name], value) < 1e-5, name
    assert validated == expected.validated
    for one, other in zip(module.steps, expected.steps, strict=True):
        assert one[:4] == other[:4]
        assert one[4] == pytest.approx(other[4], rel=1e-4)
    for name in ("train_epoch", "val"):
        wanted = plain.callback_metrics[name].item()
        assert metrics[name].item() == pytest.approx(wanted, rel=1e-4)


@pytest.mark.long
def test_compiled_layers_train_on_current_values() -> None:
    expected = fit(trainer_of(max_epochs=2), module_of())
    with torch_job():
        torch.compiler.reset()
        module = module_of()
        module.net.compile(backend="eager")
        fit(trainer_of(max_epochs=2, strategy=ParameterServerStrategy()), module)
        found = values_of(module)
    for name, value in expected.state_dict().items():
        assert relative(found[name], value) < 1e-5, name


def run(
    kind: str,
    crash: tuple[int, int] | None = None,
    folder: Path | None = None,
    every_steps: int = 1,
) -> tuple[Module, State, Any]:
    options = {} if folder is None else {"save": folder, "every_steps": every_steps}
    with torch_job(seed=4, **options) as script:
        stopping = EarlyStopping("val", patience=50)
        callbacks: list[Any] = [stopping]
        if crash is not None:
            assert folder is not None
            callbacks.append(Crash(script, folder, *crash))
        trainer = trainer_of(strategy=ParameterServerStrategy(), callbacks=callbacks)
        module = module_of(kind, 0.3)
        fit(trainer, module, shuffle=True)
        return module, values_of(module), stopping.state_dict()


@pytest.mark.parametrize(
    ("kind", "crash"),
    [
        ("cycle", (1, 2)),
        pytest.param("epoch", (2, 5), marks=pytest.mark.long),
        ("plateau", (1, PER_EPOCH)),
        pytest.param("epoch", (3, PER_EPOCH), marks=pytest.mark.long),
        pytest.param("plateau", (2, 1), marks=pytest.mark.long),
    ],
)
def test_a_fit_that_ended_in_the_middle_continues_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, crash: tuple[int, int]
) -> None:
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)
    expected, values, stopping = run(kind)
    epoch, batch = crash
    done = epoch * PER_EPOCH + batch
    with pytest.raises(CrashError):
        run(kind, crash, tmp_path, done)
    found, again, stopped = run(kind, None, tmp_path, 1000)
    assert found.steps == expected.steps[done:]
    # The validation that the crash interrupted runs again.
    assert found.validated == expected.validated[epoch:]
    assert_equal(again, values)
    assert stopped == stopping


class Lengthless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(*data(), strict=True))


def plain_loader() -> Any:
    return DataLoader(TensorDataset(*data()), SIZE)


@pytest.mark.parametrize(
    ("message", "options", "loader", "n_optimizers", "named"),
    [
        ("returned 2 optimizers: must be one", {}, plain_loader, 2, {}),
        ("a run continues by itself", {}, plain_loader, 1, {"ckpt_path": "a.ckpt"}),
        ("divided once", {"reload_dataloaders_every_n_epochs": 1}, plain_loader, 1, {}),
        ("has several loaders", {}, lambda: [plain_loader(), plain_loader()], 1, {}),
        ("Lengthless has no length", {}, lambda: DataLoader(Lengthless(), SIZE), 1, {}),
    ],
)
def test_what_a_strategy_does_not_support_is_refused(
    message: str, options: Any, loader: Any, n_optimizers: int, named: Any
) -> None:
    with torch_job():
        trainer = trainer_of(strategy=ParameterServerStrategy(), **options)
        with pytest.raises(ConfigError, match=message):
            trainer.fit(Module("cycle", 0.0, n_optimizers), loader(), **named)


def test_a_second_fit_and_options_of_the_strategy_are_refused() -> None:
    with torch_job():
        with pytest.raises(ConfigError, match="scheduler cannot be set"):
            ParameterServerStrategy(scheduler=None)
        fit(trainer_of(max_epochs=1, strategy=ParameterServerStrategy(consistency="asp")), Module())
        with pytest.raises(ConfigError, match="a script calls `fit` once"):
            fit(trainer_of(strategy=ParameterServerStrategy()), Module())


def test_a_callback_whose_state_is_no_text_is_refused() -> None:
    class Own(L.Callback):
        def state_dict(self) -> Any:
            return {"values": torch.ones(2)}

    trainer = type("T", (), {"callbacks": [Own()]})()
    with pytest.raises(ConfigError, match="Own has a Tensor, which cannot be sent or saved"):
        CallbackStates(trainer).position()


def test_values_of_workers_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one worker: shapes and dtypes. tests/fault/test_trainers.py has two."""
    with torch_job():
        strategy = ParameterServerStrategy()
        assert strategy.broadcast("own") == "own"
        fit(trainer_of(max_epochs=1, strategy=strategy), Module())
        value = torch.tensor([1.5, 2.0])
        assert torch.equal(strategy.reduce(value), value)
        assert strategy.reduce(torch.tensor(2), reduce_op="sum").item() == 2
        assert torch.equal(strategy.all_gather(value), value[None])
        assert strategy.broadcast({"a": [1, None]}) == {"a": [1, None]}
        with pytest.raises(ConfigError, match="broadcast has a set, which cannot be sent"):
            strategy.broadcast({1})
        assert strategy.all_gather(torch.ones(2, 0)).shape == (1, 2, 0)
        half = torch.tensor(2.5, dtype=torch.bfloat16)
        assert torch.equal(strategy.all_gather(half), half[None])
        assert strategy.reduce_boolean_decision(True)
        assert not strategy.reduce_boolean_decision(False, all=False)
        strategy.barrier("x")
        with pytest.raises(ConfigError, match="must be 'mean' or 'sum'"):
            strategy.reduce(value, reduce_op="max")
        with pytest.raises(ConfigError, match="sync_grads"):
            strategy.all_gather(value, sync_grads=True)
