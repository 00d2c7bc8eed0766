"""Scripts that change or read gradients between backward and step: as in torch, or an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from overlap_rig import net, plain_step, sgd
from torch import nn
from torch_rig import assert_equal, batches, both, torch_job, values_of

from mpips.errors import ConfigError
from mpips.torch import prepare
from mpips.torch.overlap import OBSERVED_STEPS

STEPS = 6


def clip(model: nn.Module, optimizer: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def clip_data(model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        p.grad.data.clamp_(-1e-4, 1e-4)


def by_numpy(model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        p.grad.numpy()[...] *= 0.5


def replace(model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        p.grad = p.grad * 2


def drop(model: nn.Module, optimizer: Any) -> None:
    model[2].bias.grad = None


def by_view(model: nn.Module, optimizer: Any) -> None:
    model[4].weight.grad.view(-1)[0] = 7


def by_foreach(model: nn.Module, optimizer: Any) -> None:
    torch._foreach_mul_([p.grad for p in model.parameters()], 3.0)


def rate(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


def by_out(model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        torch.mul(torch.ones_like(p), 0.01, out=p.grad)


def by_dlpack(model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        torch.from_dlpack(torch.utils.dlpack.to_dlpack(p.grad)).mul_(0.1)


def as_tensor(model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        torch.as_tensor(p.grad).mul_(0.1)


def as_integers(model: nn.Module, optimizer: Any) -> None:
    model[0].weight.grad.view(torch.int32).bitwise_and_(-65536)


def by_no_sync(model: nn.Module, optimizer: Any) -> None:
    with model.no_sync() if hasattr(model, "no_sync") else nullcontext():
        (3 * model(torch.ones(1, 4)).abs().mean()).backward()


CHANGES = [clip, clip_data, by_numpy, replace, drop, by_view, by_foreach, rate]
CHANGES += [by_out, by_dlpack, as_tensor, as_integers, by_no_sync]


@pytest.mark.parametrize("change", CHANGES)
def test_a_script_that_always_changes_gradients_trains_as_in_torch(change):
    def train(model, optimizer):
        for x in batches(STEPS, 5, 4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            change(model, optimizer)
            optimizer.step()

    expected, found = both(net(), sgd, train)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6), name


def test_gradients_that_a_grad_scaler_unscales_are_those_of_torch():
    """Also steps that it skips, since a gradient has overflown."""

    def train(model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        scales.append([])
        for number, x in enumerate(batches(STEPS, 5, 4)):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaled = scaler.scale(loss * float("inf") if number in (0, 3) else loss)
            scaled.backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scales[-1].append(scaler.get_scale())

    scales: list[list[float]] = []
    expected, found = both(net(), sgd, train)
    assert scales[0] == scales[1]
    assert len(set(scales[0])) > 1
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6), name


def changed_later(change: Callable[[Any, Any], None]) -> None:
    """Change gradients for the first time when overlap has begun."""
    with torch_job():
        model = net()
        model, optimizer = prepare(model, sgd(model))
        for x in batches(OBSERVED_STEPS + 1, 5, 4):
            plain_step(model, optimizer, x)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        change(model, optimizer)
        optimizer.step()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_gradients_were_sent_is_an_error(change):
    what = "a hyperparameter" if change is rate else "the gradient of '.*' was changed"
    with pytest.raises(ConfigError, match=f"{what}.*overlap=False"):
        changed_later(change)


def look(model: nn.Module) -> float:
    return sum(float(p.grad.data.norm() + p.grad.abs().max()) for p in model.parameters())


def test_gradients_may_be_read_at_any_time():
    with torch_job():
        model, plain = net(), net()
        assert_equal(values_of(model), values_of(plain))
        model, optimizer = prepare(model, sgd(model), overlap=True)
        reference = sgd(plain)
        for x in batches(STEPS, 5, 4):
            norms = []
            for one, steps in ((model, optimizer), (plain, reference)):
                steps.zero_grad()
                one(x).square().mean().backward()
                norms.append(look(one))
                steps.step()
            assert norms[0] == pytest.approx(norms[1], rel=1e-5)
            look(model)


def test_a_clip_that_changes_nothing_is_no_error_later():
    with torch_job():
        model = net()
        model, optimizer = prepare(model, sgd(model), overlap=True)
        for x in batches(STEPS, 5, 4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e9)
            optimizer.step()


def test_a_clip_that_first_changes_something_after_the_observed_steps_is_as_in_torch():
    def train(model, optimizer):
        for step, x in enumerate(batches(STEPS, 5, 4)):
            optimizer.zero_grad()
            model(x if step < OBSERVED_STEPS + 2 else 100 * x).square().mean().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            assert (norm > 5.0) == (step >= OBSERVED_STEPS + 2)
            optimizer.step()

    expected, found = both(net(), sgd, train)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6), name
