"""Batches in which a script makes no step: each has its clock, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import torch_job

import mpips
import mpips.torch
from mpips.errors import ConfigError
from mpips.mpi.messages import END_OF_SCRIPT
from mpips.scheduler.step_counts import StepCounts

N = 8  # batches of an epoch
SKIPPED = (0, 2, 3, 7)
Loop = Callable[[Any, Any, Any], None]


class Net(nn.Module):
    """A weight and rows, whose gradients are whole numbers."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        rule: dict[str, Any] = {"optimizer": mpips.SGD(1.0), "init": "zeros"}
        rows = torch.zeros(N, 1)
        self.rows = mpips.torch.Embedding(1, **rule) if own else nn.Embedding(N, 1, _weight=rows)
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x + self.rows(x.long()).reshape(-1)).sum()


def zero_first(model: Any, optimizer: Any, loader: Any) -> None:
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x)
        if int(x) in SKIPPED:
            continue
        loss.backward()
        optimizer.step()


def before_forward(model: Any, optimizer: Any, loader: Any) -> None:
    for (x,) in loader:
        if int(x) in SKIPPED:
            continue
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()


def behind_backward(model: Any, optimizer: Any, loader: Any) -> None:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).backward()
        if int(x) in SKIPPED:
            continue
        optimizer.step()


def behind_some_backward(model: Any, optimizer: Any, loader: Any) -> None:
    for (x,) in loader:
        model.zero_grad(set_to_none=False)
        loss = model(x)
        if int(x) in SKIPPED[::2]:
            continue
        loss.backward()
        if int(x) in SKIPPED:
            continue
        optimizer.step()


def by_hand(model: Any, optimizer: Any, loader: Any) -> None:
    for (x,) in loader:
        for p in model.parameters():
            p.grad = None
        model(x).backward()
        if int(x) in SKIPPED[:-1]:
            continue
        optimizer.step()


def behind_backward_and_before(model: Any, optimizer: Any, loader: Any) -> None:
    for (x,) in loader:
        if int(x) in (0, 3):
            continue
        optimizer.zero_grad()
        model(x).backward()
        if int(x) in (2, 7):
            continue
        optimizer.step()


def zero_last(model: Any, optimizer: Any, loader: Any) -> None:
    for (x,) in loader:
        loss = model(x)
        if int(x) in SKIPPED:
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def mined(model: Any, optimizer: Any, loader: Any) -> None:
    for (x,) in loader:
        with torch.no_grad():
            model(x)
        if int(x) in SKIPPED:
            continue
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()


def by_scaler(model: Any, optimizer: Any, loader: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x)
        scaler.scale(loss * torch.inf if int(x) in SKIPPED else loss).backward()
        if int(x) % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 4.0)
        scaler.step(optimizer)
        scaler.update()


def read_ahead(model: Any, optimizer: Any, loader: Any) -> None:
    batches = loader
    if not isinstance(loader, DataLoader):
        batches = mpips.torch.lookahead(loader, keys=lambda batch: batch[0].long())
    zero_first(model, optimizer, batches)


LOOPS = [zero_first, before_forward, behind_backward, behind_some_backward, by_hand, zero_last]
LOOPS += [behind_backward_and_before, mined, by_scaler, read_ahead]

BEHIND_BACKWARD = [behind_backward, behind_some_backward, by_hand, behind_backward_and_before]


def prepared(net: nn.Module, **options: Any) -> Any:
    data = TensorDataset(torch.arange(float(N)))
    optimizer = SGD(net.parameters(), 1.0)
    return mpips.torch.prepare(net, optimizer, DataLoader(data), **options)


def beside() -> Any:
    """Return another prepared loader of as many batches."""
    data = TensorDataset(torch.arange(float(N)))
    return mpips.torch.prepare(nn.Flatten(), None, DataLoader(data), name="other")[-1]


# Backward may have sent what a script drops behind it: that is refused, in a test of its own.
@pytest.mark.parametrize(
    ("loop", "overlap"),
    [
        (loop, o)
        for loop in LOOPS
        for o in (False, None)
        if o is False or loop not in BEHIND_BACKWARD
    ],
)
def test_each_batch_has_a_clock_and_values_are_those_of_torch(loop: Loop, overlap: bool | None):
    plain = Net(own=False)
    loader = DataLoader(TensorDataset(torch.arange(float(N))))
    loop(plain, SGD([*plain.parameters()], 1.0), loader)
    loop(plain, SGD([*plain.parameters()], 1.0), loader)
    with torch_job() as script:
        model, optimizer, loader = prepared(Net(own=True), overlap=overlap)
        for epoch in range(2):
            loop(model, optimizer, loader)
            optimizer.zero_grad()
            assert mpips.torch.steps() == (epoch + 1) * N
        assert script.worker is not None
        assert script.worker.now == 2 * N
        assert torch.equal(model.weight, plain.weight)
        rows = script.worker.table("rows").pull(torch.arange(N).numpy())
        assert torch.equal(torch.from_numpy(rows), plain.rows.weight)


def accumulated(model: Any, optimizer: Any, loader: Any, zeros: bool) -> None:
    for i, (x,) in enumerate(loader):
        loss = model(x)
        if i not in (1, 6):
            loss.backward()
        if i % 4 == 3:
            if i != 7 or not zeros:
                optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("zeros", [False, True])
def test_gradients_that_are_accumulated_have_one_clock(zeros: bool):
    with torch_job():
        model, optimizer, loader = prepared(Net(own=True), overlap=False)
        for _ in range(2):
            accumulated(model, optimizer, loader, zeros)
        assert mpips.torch.steps() == 4
        assert model.weight.item() == -2 * (0 + 2 + 3 + (0 if zeros else 4 + 5 + 7))


def test_a_pass_that_evaluates_has_no_clocks():
    with torch_job():
        model, _, loader = prepared(Net(own=True))
        with torch.no_grad():
            for (x,) in loader:
                model(x)
        model.eval()
        for (x,) in loader:
            model(x)
        assert mpips.torch.steps() == 0


def test_two_optimizers_skip_two_clocks():
    with torch_job():
        data = TensorDataset(torch.arange(float(N)))
        first, second = nn.Linear(1, 1), nn.Linear(1, 1)
        first, a, loader = mpips.torch.prepare(
            first, SGD(first.parameters(), 0.5), DataLoader(data)
        )
        second, b = mpips.torch.prepare(second, SGD(second.parameters(), 0.5), name="second")
        other = DataLoader(data)
        for (x,), (_,) in zip(loader, other, strict=True):
            if int(x) in SKIPPED:
                continue
            for model, optimizer in ((first, a), (second, b)):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
        assert mpips.torch.steps() == 2 * N


def test_gradients_that_the_step_of_another_optimizer_leaves_do_not_wait():
    with torch_job():
        data = TensorDataset(torch.arange(float(N)).reshape(-1, 1))
        first, second = nn.Linear(1, 1), nn.Linear(1, 1)
        first, a, loader = mpips.torch.prepare(
            first, SGD(first.parameters(), 0.5), DataLoader(data)
        )
        second, b, other = mpips.torch.prepare(
            second, SGD(second.parameters(), 0.5), DataLoader(data), name="second"
        )
        for _ in range(2):
            for (x,) in loader:
                if int(x) in SKIPPED:
                    continue
                second.zero_grad()
                second(x).sum().backward()
                b.step()
                a.zero_grad()
                second(first(x)).sum().backward()
                a.step()
            with torch.no_grad():
                for (x,) in other:
                    second(x)
        assert mpips.torch.steps() == 4 * N


@pytest.mark.parametrize("n_optimizers", [1, 2])
def test_two_loaders_side_by_side_skip_one_clock(n_optimizers: int):
    pairs: list[Any] = []
    with torch_job():
        data = TensorDataset(torch.arange(float(N)).reshape(-1, 1))
        loaders = []
        for i in range(2):
            net = nn.Linear(1, 1)
            optimizer = SGD(net.parameters(), 0.5) if i < n_optimizers else None
            for p in net.parameters():
                p.requires_grad_(optimizer is not None)
            *pair, loader = mpips.torch.prepare(
                net, optimizer, DataLoader(data), name=f"m{i}", overlap=False
            )
            loaders.append(loader)
            pairs += [pair] if optimizer else []
        for _ in range(2):
            for (x,), (_,) in zip(*loaders, strict=True):
                if int(x) in (0, 3, 4):
                    continue
                for model, optimizer in pairs:
                    optimizer.zero_grad()
                    model(x).sum().backward()
                if int(x) in (2, 7):
                    continue
                for _, optimizer in pairs:
                    optimizer.step()
        for _, optimizer in pairs:
            optimizer.zero_grad()
        assert mpips.torch.steps() == 2 * N * n_optimizers


@pytest.mark.parametrize("is_before_step", [False, True])
@pytest.mark.parametrize("evaluates", [False, True])
def test_a_pass_that_looks_at_samples_has_no_clocks(is_before_step: bool, evaluates: bool):
    with torch_job():
        model, optimizer, loader = prepared(Net(own=True), overlap=False)
        other = beside()

        def look(n: int) -> None:
            for i, (x,) in enumerate(other):
                if evaluates:
                    with torch.no_grad():
                        model(x)
                if i == n:
                    break

        for _ in range(2):
            for (x,) in loader:
                if int(x) in SKIPPED:
                    continue
                optimizer.zero_grad()
                model(x).backward()
                if is_before_step:
                    look(3)
                optimizer.step()
                look(3)
            look(N)
        assert mpips.torch.steps() == 2 * N


@pytest.mark.parametrize("overlap", [False, None])
def test_gradients_that_are_set_to_0_by_hand_do_not_wait(overlap: bool | None):
    with torch_job():
        net = nn.Linear(1, 1)
        data = TensorDataset(torch.arange(float(N)).reshape(-1, 1))
        model, optimizer, loader = mpips.torch.prepare(
            net, SGD(net.parameters(), 1.0), DataLoader(data), overlap=overlap
        )
        for _ in range(2):
            for (x,) in loader:
                for p in model.parameters():
                    if p.grad is not None:
                        p.grad.zero_()
                if int(x) in SKIPPED:
                    continue
                model(x).sum().backward()
                if int(x) == 5 and overlap is False:
                    continue
                optimizer.step()
        optimizer.zero_grad()
        assert mpips.torch.steps() == 2 * N


def test_gradients_that_are_0_are_accumulated():
    with torch_job():
        net = nn.Linear(1, 1, bias=False)
        data = TensorDataset(torch.arange(float(N)).reshape(-1, 1))
        model, optimizer, loader = mpips.torch.prepare(
            net, SGD(net.parameters(), 1.0), DataLoader(data), overlap=False
        )
        for i, (x,) in enumerate(loader):
            model(x).sum().backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        assert mpips.torch.steps() == 2


def test_a_batch_that_is_skipped_after_backward_has_sent_it_is_an_error():
    found = pytest.raises(ConfigError, match=r"skipped after backward .* overlap=False")
    with found, torch_job():
        behind_backward(*prepared(Net(own=True), overlap=True))


def test_a_restart_repeats_the_batch_that_dropped_the_gradients_of_the_one_before():
    with torch_job() as script:
        model, optimizer, loader = prepared(Net(own=True), overlap=False)
        batches = iter(loader)
        model(next(batches)[0]).backward()
        next(batches)
        optimizer.zero_grad()
        assert script.worker is not None
        assert loader.position()["batch"] == 2
        assert script.worker.cursor["loader 0"]["batch"] == 1
        assert script.worker.cursor["steps"] == 1


def test_different_numbers_of_steps_at_a_place_name_the_workers():
    counts = StepCounts(3)
    for worker, place, steps in [(0, "a", 4), (1, "a", 4), (0, "b", 8), (2, "a", 4), (1, "b", 8)]:
        counts.note(worker, place, steps)
    with pytest.raises(ConfigError, match=r"steps at b: workers 0, 1: 8; worker 2: 7; since then"):
        counts.note(2, "b", 7)


def test_a_rate_that_one_worker_alone_has_changed_names_the_workers():
    counts = StepCounts(3)
    for worker, place in [(0, "a"), (1, "a"), (2, "a"), (0, "b"), (1, "b")]:
        counts.note(worker, place, 4, "lr = 0.1")
    wanted = r"up to b: workers 0, 1: lr = 0.1; worker 2: lr = 0.01; under BSP"
    with pytest.raises(ConfigError, match=wanted):
        counts.note(2, "b", 4, "lr = 0.01")


def test_rates_that_a_worker_does_not_know_are_not_compared():
    counts = StepCounts(2)
    for worker, rates in [(0, ""), (1, "lr = 0.1")]:
        counts.note(worker, "a", 4, rates)


def test_different_rates_at_the_end_of_the_script_are_a_warning():
    warnings: list[str] = []
    counts = StepCounts(3, warnings.append)
    for worker, rates in [(1, "lr = 0.1"), (0, "lr = 0.2")]:
        counts.note(worker, END_OF_SCRIPT, 8, rates)
        assert not warnings
    counts.note(2, END_OF_SCRIPT, 8, "lr = 0.1")
    (warning,) = warnings
    assert "end of the script: worker 0: lr = 0.2; workers 1, 2: lr = 0.1; under BSP" in warning


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_rates_are_those_of_the_newest_step(consistency: str):
    found: list[tuple[Any, ...]] = []
    with torch_job() as script:
        script.compare_steps = lambda *place: found.append(place)  # type: ignore[method-assign]
        model = nn.Linear(1, 1)
        optimizer = SGD(model.parameters(), lr=0.5, momentum=0.25)
        loader = DataLoader(TensorDataset(torch.ones(2, 1)), batch_size=1)
        model, optimizer, loader = mpips.torch.prepare(
            model, optimizer, loader, consistency=consistency
        )
        for epoch in range(3):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            # The next step has this rate: it is no step of the epoch that has ended.
            optimizer.param_groups[0]["lr"] = 0.5 / 2 ** (epoch + 1)
    lasting = "momentum = 0.25, weight_decay = 0"
    assert [rates for _, _, rates in found] == [
        f"lr = {lr}, {lasting}" for lr in (0.5, 0.5, 0.25, 0.125)
    ]


def test_different_numbers_of_steps_at_the_end_of_the_script_are_a_warning():
    warnings: list[str] = []
    counts = StepCounts(3, warnings.append)
    for worker, steps in [(0, 9), (2, 8)]:
        counts.note(worker, END_OF_SCRIPT, steps)
        assert not warnings
    counts.note(1, END_OF_SCRIPT, 9)
    assert len(warnings) == 1
    assert "at the end of the script: workers 0, 1: 9; worker 2: 8; since then" in warnings[0]


def test_gradients_that_wait_at_the_end_of_the_script_have_a_clock():
    with torch_job() as script:
        behind_backward(*prepared(Net(own=True), overlap=False))
    assert script._outcome is not None
    (worker,) = script._outcome.statistics["workers"]
    assert worker["clock"] == N


@pytest.mark.parametrize("loop", [behind_backward, behind_backward_and_before])
def test_steps_are_compared_behind_the_clocks_of_gradients_that_wait(loop: Loop):
    found: list[tuple[Any, ...]] = []
    with torch_job() as script:
        script.compare_steps = lambda *place: found.append(place)  # type: ignore[method-assign]
        model, optimizer, loader = prepared(Net(own=True), overlap=False)
        other = beside()
        for _ in range(2):
            loop(model, optimizer, loader)
            next(iter(other))
    begins = [f"the beginning of epoch {e} of loader {i}" for e in range(2) for i in range(2)]
    assert [place for place, *_ in found[:-1]] == begins
    assert [n for _, n, *_ in found] == [0, N, N, 2 * N, 2 * N]
