"""Schedules that fit the loader before it was divided among workers, and `prepare_loader`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import torch_job

import mpips
from mpips.errors import ConfigError
from mpips.torch import epochs, prepare, prepare_loader
from mpips.torch.schedules import Schedules, lengths_of

BEFORE, WORKERS, NOW, EPOCHS = 40, 4, 10, 3


class Divided:
    """A loader of 40 batches, of which each of 4 workers has 10."""

    n_workers, n_undivided, has_length = WORKERS, BEFORE, True

    def __init__(self, came_first: bool) -> None:
        self.came_first = came_first

    def __len__(self) -> int:
        return NOW


def optimizer_of() -> SGD:
    return SGD([torch.zeros(1, requires_grad=True)], 1.0, momentum=0.9)


def warned(
    make: Callable[[Any], Any],
    n_epochs: int | None = EPOCHS,
    came_first: bool = True,
    every: int = 1,
    warns: bool = True,
) -> list[str]:
    """Return the warnings of an epoch that steps a scheduler behind each `every`-th batch; 0: at its end."""
    optimizer = optimizer_of()
    scheduler = make(optimizer)
    schedules = Schedules(warns)
    schedules.add(optimizer, [scheduler])
    schedules.n_epochs = n_epochs
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            watch = schedules.watch(Divided(came_first))
            for n in range(NOW):
                optimizer.step()
                if every and (n + 1) % every == 0:
                    scheduler.step()
                if watch is not None and n + 1 < NOW and not watch.next():
                    watch = None
            if not every:
                scheduler.step()
    return [str(one.message) for one in found]


def sequential(first: int, total: int) -> Callable[[Any], Any]:
    return lambda o: SequentialLR(
        o, [LinearLR(o, total_iters=first), CosineAnnealingLR(o, total - first)], [first]
    )


def decay(n: int, *, num_training_steps: int) -> float:
    return 1 - n / num_training_steps


# A scheduler of as many steps, and the name of its length in the message.
MAKERS: dict[str, tuple[str, Callable[[int], Callable[[Any], Any]]]] = {
    "one cycle": ("OneCycleLR.total_steps", lambda n: lambda o: OneCycleLR(o, 1.0, total_steps=n)),
    "cosine": ("CosineAnnealingLR.T_max", lambda n: lambda o: CosineAnnealingLR(o, n)),
    "linear": ("LinearLR.total_iters", lambda n: lambda o: LinearLR(o, total_iters=n)),
    "constant": ("ConstantLR.total_iters", lambda n: lambda o: ConstantLR(o, total_iters=n)),
    "polynomial": ("PolynomialLR.total_iters", lambda n: lambda o: PolynomialLR(o, n)),
    "step": ("StepLR.step_size", lambda n: lambda o: StepLR(o, n)),
    "milestones": ("a milestone of MultiStepLR", lambda n: lambda o: MultiStepLR(o, [7, n])),
    "warm": (
        "CosineAnnealingWarmRestarts.T_0",
        lambda n: lambda o: CosineAnnealingWarmRestarts(o, n),
    ),
    "cyclic": ("CyclicLR.total_size", lambda n: lambda o: CyclicLR(o, 0.1, 1.0, n - 7, 7)),
    "lambda": (
        "num_training_steps of LambdaLR",
        lambda n: lambda o: LambdaLR(o, partial(decay, num_training_steps=n)),
    ),
    "sequential": (
        "a milestone of SequentialLR + CosineAnnealingLR.T_max",
        lambda n: sequential(7, n),
    ),
    "sequential in a chain": (
        "a milestone of SequentialLR + CosineAnnealingLR.T_max",
        lambda n: lambda o: ChainedScheduler([ExponentialLR(o, 0.99), sequential(7, n)(o)], o),
    ),
    "chained": (
        "CosineAnnealingLR.T_max",
        lambda n: lambda o: ChainedScheduler([ExponentialLR(o, 0.99), CosineAnnealingLR(o, n)], o),
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_schedule_of_the_undivided_loader_is_a_warning_and_one_of_the_divided_loader_none(name):
    label, make = MAKERS[name]
    (found,) = warned(make(EPOCHS * BEFORE))
    assert found == (
        f"{label} = 120 is 3 x 40 steps, the length of the loader before it was divided; each of 4 workers "
        "makes 10 in an epoch, so 3 epochs end at step 30 of it: call loader = "
        "mpips.torch.prepare_loader(loader) first, and make the scheduler from its len(loader)"
    )
    assert warned(make(EPOCHS * NOW)) == []


def test_the_longest_of_the_fitting_lengths_is_named():
    (found,) = warned(sequential(BEFORE, EPOCHS * BEFORE))
    assert found.startswith("a milestone of SequentialLR + CosineAnnealingLR.T_max = 120 is 3 x 40")
    assert [n for _, n in lengths_of(sequential(7, 30)(optimizer_of()))] == [30, 7, 7]


@pytest.mark.parametrize(
    ("total", "n_epochs", "came_first", "warns"),
    [
        (
            120,
            None,
            False,
            True,
        ),  # 3 epochs of 40, or 12 of 10: the scheduler came before the division
        (120, None, True, False),  # it may have the right length
        (120, 12, False, False),
        (120, 12, True, False),
        (120, 3, False, True),
        (
            240,
            3,
            True,
            False,
        ),  # more than the undivided loader: the script ends before its schedule
        (30, 3, True, False),
        (44, None, False, False),
        (80, 3, True, True),  # a part of 2 epochs
    ],
)
def test_what_is_known_of_the_epochs_decides(total, n_epochs, came_first, warns):
    found = warned(lambda o: CosineAnnealingLR(o, total), n_epochs, came_first)
    assert len(found) == warns
    if warns and n_epochs is None:
        assert "so it takes 12 epochs: call" in found[0]


@pytest.mark.parametrize(
    ("every", "total", "warns"), [(2, 60, True), (2, 15, False), (3, 42, True)]
)
def test_steps_of_several_batches_count_as_one(every, total, warns):
    assert len(warned(lambda o: CosineAnnealingLR(o, total), every=every)) == warns


def test_a_step_of_an_epoch_or_more_is_the_same_before_and_after_the_division(monkeypatch):
    monkeypatch.setattr(Divided, "n_undivided", NOW + 1)
    assert warned(lambda o: CosineAnnealingLR(o, 30), None, False, every=NOW - 1) == []


def test_a_scheduler_of_epochs_is_not_compared():
    assert warned(lambda o: CosineAnnealingLR(o, BEFORE), None, False, every=0) == []
    assert len(warned(lambda o: CosineAnnealingLR(o, BEFORE), None, False)) == 1


def test_other_workers_and_one_worker_do_not_warn(monkeypatch):
    assert warned(lambda o: CosineAnnealingLR(o, 120), warns=False) == []
    monkeypatch.setattr(Divided, "n_workers", 1)
    assert warned(lambda o: CosineAnnealingLR(o, 120)) == []


def run(n_workers: int, first: bool, with_epochs: bool, total: int = 0) -> tuple[float, list[str]]:
    """Train two epochs as worker 0 of so many; return the rate at the end, and the warnings."""
    with torch_job(seed=4) as script, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        script.n_workers = n_workers
        model = nn.Linear(2, 1)
        optimizer = SGD(model.parameters(), 1.0)
        loader: Any = DataLoader(TensorDataset(torch.ones(32, 2)), batch_size=2)
        if first:
            loader = prepare_loader(loader)
        scheduler = CosineAnnealingLR(optimizer, total or 2 * len(loader))
        if first:
            model, optimizer = prepare(model, optimizer, scheduler=scheduler)
        else:
            model, optimizer, loader = prepare(model, optimizer, loader, scheduler=scheduler)
        for _ in epochs(2) if with_epochs else range(2):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                scheduler.step()
        return optimizer.param_groups[0]["lr"], [str(one.message) for one in found]


@pytest.mark.parametrize("with_epochs", [True, False])
def test_a_loader_that_is_prepared_first_gives_the_length_of_the_schedule(with_epochs):
    for n_workers in (1, 2):
        assert run(n_workers, True, with_epochs) == (pytest.approx(0, abs=1e-12), [])
    rate, found = run(2, False, with_epochs)
    assert rate == pytest.approx(0.5)
    assert len(found) == 1
    assert "CosineAnnealingLR.T_max = 32 is 2 x 16 steps" in found[0]
    assert run(2, False, with_epochs, 2 * 8) == (
        pytest.approx(0, abs=1e-12),
        []
        if with_epochs
        else [
            found[0].replace("T_max = 32 is 2 x", "T_max = 16 is 1 x").replace("takes 4", "takes 2")
        ],
    )


def test_a_prepared_loader_is_accepted_and_one_loader_is_prepared_once(job):
    plain = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2)
    loader = prepare_loader(plain)
    model = nn.Linear(2, 1)
    with pytest.raises(
        ConfigError, match=r"prepared already: call mpips\.torch\.prepare_loader once"
    ):
        prepare_loader(loader)
    with pytest.raises(ConfigError, match="prepared already"):
        prepare(model, SGD(model.parameters(), 1.0), plain)
    model, optimizer, again = prepare(model, SGD(model.parameters(), 1.0), loader)
    assert again is loader
    for (x,) in loader:
        model(x).sum().backward()
        optimizer.step()
    mpips.torch.steps()
    assert list(job.worker.cursor) == ["torch", "workers", "steps", "loader 0", "optimizer 0"]
    with pytest.raises(ConfigError, match="prepare_loader comes too late: the job has started"):
        prepare_loader(DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2))
