"""The Trainer of transformers, with its own loop, on the parameter server: values, restarts, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")
pytest.importorskip(
    "accelerate", reason="accelerate is not installed (bash tests/run.sh long installs it)"
)
pytest.importorskip(
    "transformers", reason="transformers is not installed (bash tests/run.sh long installs it)"
)

import torch
from script_rig import wait_for_checkpoint
from torch import nn
from torch.utils.data import IterableDataset
from torch_rig import State, assert_equal, relative, torch_job, values_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

    from mpips.torch.transformers import ParameterServerMixin, ParameterServerTrainer

import mpips.torch
from mpips.errors import ConfigError
from mpips.session.script import Script
from mpips.snapshot import cut

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error:the values of the model"),
]
N, SIZE = 40, 4
PER_EPOCH = N // SIZE


class CrashError(Exception):
    """The end of a script in the middle."""


class Network(nn.Module):
    """A model as the Trainer wants it: it returns its loss first."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(drop), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.net(x)[:, 0]
        return (found - labels).square().mean(), found


def data() -> list[dict[str, Any]]:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(5))
    return [{"x": one, "labels": one.sum().item()} for one in x]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(data())


class Watching(TrainerCallback):
    """Notes steps and evaluations, and may end the script."""

    def __init__(
        self, script: Script | None = None, folder: Path | None = None, crash: Any = None
    ) -> None:
        self.script, self.folder, self.crash = script, folder, crash
        self.steps: list[Any] = []
        self.evaluated: list[Any] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if self.crash == state.global_step:
            self.end(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.steps.append((state.global_step, state.epoch, named["lr_scheduler"].get_last_lr()))

    def on_evaluate(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.evaluated.append((state.global_step, state.epoch, named["metrics"]["eval_loss"]))
        if self.crash == -state.global_step:
            self.end(state)

    def end(self, state: Any) -> None:
        assert self.script is not None
        assert self.folder is not None
        wait_for_checkpoint(self.script, self.folder, state.global_step, "net.0.weight")
        raise CrashError


def arguments(folder: Path, **options: Any) -> Any:
    return TrainingArguments(
        **{
            "output_dir": str(folder),
            "num_train_epochs": 3,
            "per_device_train_batch_size": SIZE,
            "learning_rate": 0.05,
            "lr_scheduler_type": "linear",
            "optim": "sgd",
            "eval_strategy": "epoch",
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            **options,
        }
    )


def trainer_of(
    kind: Any, folder: Path, callback: Any, drop: float = 0.0, dataset: Any = None, **options: Any
) -> Any:
    return kind(
        Network(drop),
        arguments(folder, **options),
        train_dataset=data() if dataset is None else dataset,
        eval_dataset=data(),
        callbacks=[callback, *([] if options else [EarlyStoppingCallback(50)])],
    )


SEQUENTIAL = {"train_sampling_strategy": "sequential"}


@pytest.mark.parametrize(
    ("options", "dataset"),
    [
        ({"gradient_accumulation_steps": 3, "optim": "adamw_torch", **SEQUENTIAL}, None),
        ({"max_steps": 25, "max_grad_norm": 0.0}, Stream()),
    ],
)
def test_training_is_that_of_the_plain_trainer(tmp_path: Path, options: Any, dataset: Any) -> None:
    torch.set_num_threads(1)
    plain, found = Watching(), Watching()
    expected = trainer_of(Trainer, tmp_path / "a", plain, 0.0, dataset, **options)
    wanted = expected.train()
    with torch_job():
        trainer = trainer_of(
            ParameterServerTrainer,
            tmp_path / "b",
            found,
            0.0,
            dataset,
            save_strategy="epoch",
            **options,
        )
        got = trainer.train()
        values = values_of(trainer.model)
        assert mpips.torch.steps() == trainer.state.global_step
    assert found.steps == plain.steps
    assert got.training_loss == pytest.approx(wanted.training_loss, rel=1e-4)
    for one, other in zip(found.evaluated, plain.evaluated, strict=True):
        assert one[:2] == other[:2]
        assert one[2] == pytest.approx(other[2], rel=1e-4)
    tolerance = 1e-2 if "optim" in options else 1e-5
    for name, value in expected.model.state_dict().items():
        assert relative(values[name], value) < tolerance, name
    assert list((tmp_path / "b").glob("checkpoint-*/model.safetensors"))


@pytest.mark.long
def test_a_compiled_model_trains_on_current_values(tmp_path: Path) -> None:
    options = {"num_train_epochs": 1, **SEQUENTIAL}
    expected = trainer_of(Trainer, tmp_path, Watching(), **options)
    expected.train()
    compiled = {"torch_compile": True, "torch_compile_backend": "eager", **options}
    with torch_job():
        torch.compiler.reset()
        trainer = trainer_of(ParameterServerTrainer, tmp_path, Watching(), **compiled)
        trainer.train()
        found = values_of(trainer.model)
    for name, value in expected.model.state_dict().items():
        assert relative(found[name], value) < 1e-5, name


def run(
    folder: Path,
    crash: int | None = None,
    every_steps: int = 1,
    dataset: Any = None,
    **options: Any,
) -> tuple[Watching, State, Any]:
    saving = {"save": folder, "every_steps": every_steps} if every_steps else {}
    with torch_job(seed=4, **saving) as script:
        watching = Watching(script, folder, crash)
        named = {"metric_for_best_model": "loss", "greater_is_better": False, **options}
        trainer = ParameterServerTrainer(
            Network(0.3),
            arguments(folder / "out", save_strategy="no", **named),
            train_dataset=data() if dataset is None else dataset,
            eval_dataset=data(),
            callbacks=[watching],
        )
        stopping = EarlyStoppingCallback(50, 10.0)  # counts all evaluations but the first
        trainer.add_callback(stopping)
        trainer.train()
        counts = stopping.early_stopping_patience_counter, trainer.state.best_metric
        return watching, values_of(trainer.model), counts


@pytest.mark.parametrize(
    ("crash", "per_step"),
    [(7, 4), (-10, 1), pytest.param(13, 1, marks=pytest.mark.long)],
)
def test_training_that_ended_in_the_middle_continues_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: int, per_step: int
) -> None:
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)
    options = {"gradient_accumulation_steps": per_step}
    expected, values, counts = run(tmp_path, every_steps=0, **options)
    done = abs(crash)
    with pytest.raises(CrashError):
        run(tmp_path, crash, done, **options)
    found, again, counted = run(tmp_path, None, 1000, **options)
    assert found.steps == expected.steps[done:]
    # The evaluation that the crash interrupted runs again.
    n_before = (done - (crash < 0)) // -(-PER_EPOCH // per_step)
    assert found.evaluated == expected.evaluated[n_before:]
    assert_equal(again, values)
    assert counted == counts


@pytest.mark.parametrize(
    ("crash", "n_before", "is_stream", "options"),
    [
        (-10, 0, True, {"max_steps": 25}),
        (-25, 2, True, {"max_steps": 25}),
        (-15, 1, False, {"max_steps": 15}),
        (-5, 0, False, {"eval_strategy": "steps", "eval_steps": 5}),
        pytest.param(
            -10, 1, False, {"eval_strategy": "steps", "eval_steps": 5}, marks=pytest.mark.long
        ),
        pytest.param(-14, 1, True, {"max_steps": 14}, marks=pytest.mark.long),
    ],
)
def test_an_evaluation_that_was_interrupted_runs_again_and_no_step_is_lost_or_added(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crash: int,
    n_before: int,
    is_stream: bool,
    options: dict[str, Any],
) -> None:
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)
    named = {"dataset": Stream() if is_stream else None, **options}
    expected, values, counts = run(tmp_path, every_steps=0, **named)
    with pytest.raises(CrashError):
        run(tmp_path, crash, -crash, **named)
    found, again, counted = run(tmp_path, None, 1000, **named)
    assert [one[0] for one in found.steps] == [one[0] for one in expected.steps[-crash:]]
    assert [(a, c) for a, _, c in found.evaluated] == [
        (a, c) for a, _, c in expected.evaluated[n_before:]
    ]
    assert_equal(again, values)
    assert counted == counts


@pytest.mark.long  # a process of its own reads all of transformers again
def test_a_rank_of_mpirun_is_a_single_process_to_transformers(tmp_path: Path) -> None:
    code = """
import os
import mpips.torch.transformers
from transformers import TrainingArguments
args = TrainingArguments(output_dir=OUT, use_cpu=True, report_to=[])
print(args.world_size, [name for name in os.environ if name.endswith("_SIZE")])
""".replace("OUT", repr(str(tmp_path)))
    env = {**os.environ, "OMPI_COMM_WORLD_SIZE": "4", "PMI_SIZE": "4", "MV2_COMM_WORLD_SIZE": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "1 []\n", done.stderr


def test_what_is_not_supported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mpips.init"):
        trainer_of(ParameterServerTrainer, tmp_path, Watching())
    with torch_job():
        named = {"save_strategy": "epoch", "load_best_model_at_end": True}
        with pytest.raises(ConfigError, match="load_best_model_at_end = True: must be False"):
            trainer_of(ParameterServerTrainer, tmp_path, Watching(), **named)

        class Own(ParameterServerMixin, Trainer):
            prepare_options = {"consistency": "asp"}  # noqa: RUF012

        trainer = trainer_of(Own, tmp_path, Watching(), num_train_epochs=1)
        with pytest.raises(ConfigError, match="a run continues by itself"):
            trainer.train(resume_from_checkpoint=True)
        trainer.train()
        with pytest.raises(ConfigError, match="train comes too late"):
            trainer.train()
