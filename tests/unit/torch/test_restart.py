"""A script that ends by an error and is run again: the values at its end are those of an undisturbed run."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")
pytest.importorskip("h5py", reason="checkpoints need h5py")

import torch
from script_rig import wait_for_checkpoint
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch_rig import State, assert_equal, pulled, torch_job, values_of

import mpips
from mpips.checkpoint import WorkerState
from mpips.errors import ConfigError
from mpips.session.script import Script
from mpips.snapshot import cut
from mpips.torch import Embedding, prepare

N_EPOCHS, N_BATCHES = 4, 6


@pytest.fixture(autouse=True)
def _planned_by_clocks(monkeypatch):
    """Plan a checkpoint some clocks ahead, however fast the script is, so that none is left out."""
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)


class CrashError(Exception):
    """The end of a script in the middle."""


class Noisy(Dataset[Any]):
    """Samples with noise from all generators."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.randn(4) + random.random() + np.random.rand()
        return torch.full((4,), i / 22) + 0.1 * noise, torch.tensor(i % 5)


class Network(nn.Module):
    """Dense layers with dropout and running statistics, and rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words = Embedding(4, optimizer=mpips.Adagrad(0.1), init="normal(1)")
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1)
        )

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(x + self.words(ids)).square().mean()


# When the script steps the scheduler, whether it gives it to prepare, and the scheduler.
Plan = tuple[str, bool, Callable[[Any], Any]]
PLANS: dict[str, Plan] = {
    "none": ("never", False, lambda o: None),
    "one cycle": (
        "batch",
        True,
        lambda o: OneCycleLR(o, 0.1, total_steps=N_EPOCHS * N_BATCHES + 1),
    ),
    "lambda": ("batch", True, lambda o: LambdaLR(o, lambda n: 1 / (n + 1))),
    "exponential": ("batch", True, lambda o: ExponentialLR(o, 0.9)),
    "sequential": (
        "batch",
        True,
        lambda o: SequentialLR(o, [ExponentialLR(o, 0.8), CosineAnnealingLR(o, 9)], [7]),
    ),
    "chained": (
        "batch",
        True,
        lambda o: ChainedScheduler([ExponentialLR(o, 0.9), StepLR(o, 5)], o),
    ),
    "several": (
        "batch",
        True,
        lambda o: [ExponentialLR(o, 0.9), LambdaLR(o, lambda n: 1 / (n + 1))],
    ),
    "per epoch": ("epoch", False, lambda o: StepLR(o, 1, gamma=0.5)),
    "per epoch, given": ("epoch", True, lambda o: StepLR(o, 1, gamma=0.5)),
    "lambda per epoch": ("epoch", False, lambda o: LambdaLR(o, lambda n: 1 / (n + 1))),
    "plateau per batch": ("batch loss", True, lambda o: ReduceLROnPlateau(o, patience=1)),
    "plateau": ("loss", False, lambda o: ReduceLROnPlateau(o, patience=0)),
    "plateau, given": ("loss", True, lambda o: ReduceLROnPlateau(o, patience=0)),
}


class Run:
    """One run of the script.

    Attributes:
        rates: Learning rates of the steps that were made.
        values: Values at the end.
    """

    def __init__(self, plan: Plan, crash_at: int = -1, accumulate: int = 1, **options: Any) -> None:
        self.rates: dict[tuple[int, int], float] = {}
        self.values: State = {}
        self._crash_at = crash_at
        self._accumulate = accumulate
        self._folder = options.get("save")
        self._every = options.get("every_steps", 1)
        with torch_job(seed=4, **options) as script:
            self._train(script, *plan)
            self.rows = pulled(script, "words", np.arange(5))

    def _train(self, script: Any, when: str, is_given: bool, make: Callable[[Any], Any]) -> None:
        torch.manual_seed(1)
        model = Network()
        optimizer: Any = Adam(model.parameters(), 0.01)
        scheduler = make(optimizer)
        loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
        model, optimizer, loader = prepare(
            model, optimizer, loader, scheduler=scheduler if is_given else None
        )
        for epoch in range(N_EPOCHS):
            for x, ids in loader:
                n = loader.batch - 1
                # A clock ends with the next batch, so the checkpoint of the step before is due now.
                step, part = divmod(epoch * N_BATCHES + n, self._accumulate)
                if self._folder and step and not part and step % self._every == 0:
                    wait_for_checkpoint(script, self._folder, step, "layers.0.weight")
                model(x, ids).backward()
                if (n + 1) % self._accumulate:
                    continue
                if self._crash_at == epoch * N_BATCHES + n:
                    raise CrashError
                self.rates[epoch, n] = optimizer.param_groups[0]["lr"]
                optimizer.step()
                optimizer.zero_grad()
                if when == "batch loss":
                    scheduler.step(1.0)
                if when == "batch":
                    for one in scheduler if isinstance(scheduler, list) else [scheduler]:
                        one.step()
            if when == "epoch":
                scheduler.step()
            if when == "loss":
                scheduler.step(1.0)
            torch.rand(epoch), random.random(), np.random.rand()
        self.values = values_of(model)


_undisturbed: dict[str, Run] = {}


def undisturbed(name: str) -> Run:
    if name not in _undisturbed:
        _undisturbed[name] = Run(PLANS[name])
    return _undisturbed[name]


def check_same_end(found: Run, expected: Run) -> None:
    assert found.rates.items() <= expected.rates.items()
    assert_equal(found.values, expected.values)
    assert torch.equal(found.rows, expected.rows)


# Checkpoints are written at the steps 3, 6, 9 ...; an epoch has 6 steps.
PLACES = [(name, crash_at) for name in PLANS for crash_at in (4, 19)]
PLACES += [(name, crash_at) for name in ("one cycle", "per epoch") for crash_at in (6, 8)]


@pytest.mark.parametrize(("name", "crash_at"), PLACES)
def test_a_second_run_ends_with_the_values_of_an_undisturbed_one(tmp_path, name, crash_at):
    expected = undisturbed(name)
    assert len(set(expected.rates.values())) > 1 or name == "none"
    with pytest.raises(CrashError):
        Run(PLANS[name], crash_at, save=tmp_path, every_steps=3)
    found = Run(PLANS[name], save=tmp_path, every_steps=3)
    assert min(found.rates) == divmod(crash_at // 3 * 3, N_BATCHES)
    check_same_end(found, expected)


@pytest.mark.parametrize("name", ["one cycle", "per epoch"])
def test_runs_that_end_again_and_again_reach_the_same_end(tmp_path, name):
    for crash_at in (4, 5, 7, 14, 15, 23):
        with pytest.raises(CrashError):
            Run(PLANS[name], crash_at, save=tmp_path, every_steps=3)
    check_same_end(Run(PLANS[name], save=tmp_path, every_steps=3), undisturbed(name))


def test_a_run_without_a_checkpoint_begins_again(tmp_path):
    with pytest.raises(CrashError):
        Run(PLANS["lambda"], 2, save=tmp_path, every_steps=3)
    found = Run(PLANS["lambda"], save=tmp_path, every_steps=3)
    assert min(found.rates) == (0, 0)
    check_same_end(found, undisturbed("lambda"))


def test_a_run_after_the_last_step_trains_nothing(tmp_path):
    first = Run(PLANS["one cycle"], save=tmp_path, every_steps=34)
    again = Run(PLANS["one cycle"], save=tmp_path, every_steps=34)
    assert again.rates == {}
    check_same_end(again, first)


def test_accumulated_gradients_restart_between_steps(tmp_path):
    expected = Run(PLANS["exponential"], accumulate=2)
    with pytest.raises(CrashError):
        Run(PLANS["exponential"], 17, accumulate=2, save=tmp_path, every_steps=3)
    found = Run(PLANS["exponential"], accumulate=2, save=tmp_path, every_steps=3)
    assert min(found.rates) == (2, 1)
    check_same_end(found, expected)


def test_two_loaders_continue_where_both_were(tmp_path):
    def run(crash_at=0, **options):
        count = 0
        with torch_job(seed=4, **options) as script:
            torch.manual_seed(1)
            pairs = []
            for name in ("a", "b"):
                model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
                optimizer = SGD(model.parameters(), 0.1)
                scheduler = StepLR(optimizer, 1, gamma=0.5)
                loader = DataLoader(Noisy(), batch_size=8, shuffle=True)
                pairs.append((*prepare(model, optimizer, loader, name=name), scheduler))
            for _ in range(3):
                for model, optimizer, loader, scheduler in pairs:
                    for x, _ in loader:
                        if count and count % 3 == 0 and crash_at:
                            wait_for_checkpoint(script, tmp_path, count, "a.0.weight")
                        optimizer.zero_grad()
                        model(x).square().mean().backward()
                        optimizer.step()
                        count += 1
                        if count == crash_at:
                            raise CrashError
                    scheduler.step()
            return count, [values_of(model) for model, *_ in pairs]

    n_steps, expected = run()
    assert n_steps == 18
    with pytest.raises(CrashError):
        run(11, save=tmp_path, every_steps=3)
    n_steps, found = run(save=tmp_path, every_steps=3)
    assert n_steps == 9
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


def run_groups(folder: Path, n_groups: int, **options: Any) -> None:
    """Make one step with as many param groups, and a scheduler or none."""
    with torch_job(save=folder, every_steps=1):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        layers = [model] if n_groups == 1 else list(model)
        optimizer: Any = SGD([{"params": list(one.parameters())} for one in layers], 0.1)
        if options.get("scheduled"):
            scheduler = StepLR(optimizer, 1)
            model, optimizer = prepare(model, optimizer, scheduler=scheduler)
        else:
            model, optimizer = prepare(model, optimizer)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_a_restart_of_another_script_is_an_error(tmp_path):
    run_groups(tmp_path, 1)
    with pytest.raises(
        ConfigError,
        match="of a script that prepared optimizer 0; this one prepares optimizer 0, scheduler 0: use",
    ):
        run_groups(tmp_path, 1, scheduled=True)
    with pytest.raises(ConfigError, match="optimizer has 1 param groups, this one has 2: use"):
        run_groups(tmp_path, 2)


def test_a_restart_continues_the_numbers_of_a_script_without_a_loader(tmp_path):
    def run(first, last, **options):
        with torch_job(**{"save": tmp_path, "every_steps": 1, "seed": 4, **options}):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
            model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
            for _ in range(first, last):
                optimizer.zero_grad()
                model(torch.ones(3, 4)).square().mean().backward()
                optimizer.step()
            return values_of(model)

    run(0, 4)
    found = run(4, 9)
    assert_equal(found, run(0, 9, save=None))


def seen_of(folder: Path, n_workers: int, batch_size: int, crash_at: int = -1) -> list[int]:
    """Return the samples that worker 0 of as many workers trains on, up to a step."""
    seen: list[int] = []
    with torch_job(save=folder, every_steps=1, seed=4) as script:
        script.n_workers = (
            n_workers  # the batches of worker 0 of so many; one process makes the steps
        )
        model = nn.Linear(1, 1)
        samples = torch.arange(80.0).view(-1, 1)
        loader = DataLoader(TensorDataset(samples), batch_size=batch_size)
        model, optimizer, loader = prepare(model, SGD(model.parameters(), 1e-6), loader)
        for n, (x,) in enumerate(loader):
            if n == crash_at:
                break
            seen += x.flatten().int().tolist()
            model(x).sum().backward()
            optimizer.step()
    return seen


@pytest.mark.parametrize(
    ("before", "steps", "after", "first"),
    [
        ((2, 4), 4, (1, 8), 32),  # 8 samples a step before and after
        ((2, 4), 6, (1, 8), 48),
        ((1, 8), 5, (4, 2), 40),
        ((1, 8), 5, (2, 8), 40),  # 16 samples a step: what is left is divided anew
        ((2, 8), 3, (1, 8), 48),
        ((3, 16), 2, (1, 16), None),  # two steps of 48 are the whole epoch
    ],
)
def test_a_restart_with_other_workers_continues_with_the_next_samples(
    tmp_path, before, steps, after, first
):
    seen_of(tmp_path, *before, crash_at=steps)
    assert seen_of(tmp_path, *after)[:1] == ([] if first is None else [first])


@pytest.mark.parametrize("places", [(3, 5), (5, 3)])
def test_workers_at_different_places_leave_their_samples_to_other_workers(
    tmp_path, monkeypatch, places
):
    seen_of(tmp_path, 2, 4, crash_at=4)
    asked = []

    def at_places(script: Script) -> list[WorkerState]:
        start = script.worker.start if script.worker is not None else None
        assert start is not None
        cursor = dict(start.workers[0].cursor)
        assert cursor["loader 0"]["batch"] == cursor["steps"] == 4
        found = []
        for worker, step in enumerate(places):
            loader = {**cursor["loader 0"], "batch": step}
            own = {**cursor, "steps": step, "loader 0": loader}
            found.append(WorkerState(worker=worker, clock=step, cursor=own))
        asked.append(found)
        return found

    monkeypatch.setattr(Script, "other_workers", property(at_places))
    left = [
        8 * k + 4 * w + i for k in range(10) for w in (0, 1) for i in range(4) if k >= places[w]
    ]
    assert seen_of(tmp_path, 1, 8) == left
    assert asked


def test_a_cursor_has_the_released_format():
    with torch_job() as script:
        model = nn.Linear(2, 1)
        optimizer = SGD(model.parameters(), 0.5)
        scheduler = ExponentialLR(optimizer, 0.5)
        loader = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2)
        model, optimizer, loader = prepare(model, optimizer, loader, scheduler=scheduler)
        for _ in range(2):
            for (x,) in loader:
                model(x).sum().backward()
                optimizer.step()
                scheduler.step()
                if mpips.torch.steps() == 5:
                    break
        assert script.worker is not None
        found = dict(script.worker.cursor)
        assert found.pop("scheduler 0")["last_epoch"] == 5
        assert found == {
            "torch": 1,
            "workers": 1,
            "steps": 5,
            "optimizer 0": {"groups": 1, "changed": {"0": {"lr": 1 / 64}}, "overlap": True},
            "loader 0": {"epoch": 1, "batch": 1, "per_step": 2, "steps": 4},
        }


@pytest.mark.parametrize("looks", [True, False])
def test_a_look_at_the_values_before_the_scheduler_is_told(looks):
    with torch_job():
        model = nn.Linear(1, 1)
        optimizer = SGD(model.parameters(), 0.1)
        scheduler = StepLR(optimizer, 1, gamma=0.5)
        loader = DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2)
        model, optimizer, loader = prepare(model, optimizer, loader, scheduler=scheduler)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for (x,) in loader:
                model(x).sum().backward()
                optimizer.step()
                if looks:
                    model.state_dict()
                scheduler.step()
        said = [str(one.message) for one in found]
        assert (
            any("step the scheduler directly after the optimizer" in one for one in said) == looks
        )
