"""Scripts that use gradients in rare ways: with overlap they train as in torch, or end with an error."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch_rig import batches, both, torch_job

from mpips.errors import ConfigError
from mpips.torch import prepare

STEPS = 6
OVERLAPS = [None, True]
Train = Callable[[Any, Any], None]


class Branches(nn.Module):
    """Layers a and b of equal width below a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, with_b: bool = True) -> torch.Tensor:
        hidden = self.a(x)
        return self.head(self.b(hidden) if with_b else hidden)


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), 0.1, momentum=0.9)


def assert_as_in_torch(
    train: Train, overlap: bool | None, make_optimizer: Callable[[Any], Any] = sgd
) -> None:
    expected, found = both(Branches(), make_optimizer, train, overlap=overlap)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6), name


def every_step(
    before: Train = lambda model, optimizer: None,
    between: Callable[[Any, Any, int], None] = lambda model, optimizer, number: None,
    with_b: Callable[[int], bool] = lambda number: True,
) -> Train:
    """A loop that calls `before` once, and `between` after each backward."""

    def train(model, optimizer):
        before(model, optimizer)
        for number, x in enumerate(batches(STEPS, 5, 4)):
            optimizer.zero_grad()
            model(x, with_b(number)).square().mean().backward()
            between(model, optimizer, number)
            optimizer.step()

    return train


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_frozen_parameter_may_get_a_gradient_by_hand(overlap):
    assert_as_in_torch(
        every_step(
            before=lambda model, _: model.head.bias.requires_grad_(False),
            between=lambda model, *_: setattr(model.head.bias, "grad", torch.full((2,), 0.5)),
        ),
        overlap,
    )


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_passes_that_freeze_parts_alternately(overlap, order):
    def train(model, optimizer):
        for x in batches(STEPS, 5, 4):
            optimizer.zero_grad()
            for part in order:
                model.a.requires_grad_(part == "a")
                model.b.requires_grad_(part == "b")
                model.head.requires_grad_(part == "b")
                (model(x) * (1 if part == "a" else -1)).square().mean().backward()
            model.requires_grad_(True)
            optimizer.step()

    assert_as_in_torch(train, overlap)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_rate_may_change_before_a_step_that_has_sent_nothing(overlap):
    def slow(model, optimizer, number):
        if number >= 4:
            optimizer.param_groups[0]["lr"] = 0.01

    assert_as_in_torch(
        every_step(
            before=lambda model, _: model.head.requires_grad_(False),
            between=slow,
            with_b=lambda number: number < 4,
        ),
        overlap,
    )


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_gradients_of_a_part_without_an_optimizer_are_free(overlap):
    def change(model, optimizer, number):
        for p in model.head.parameters():
            p.grad = None
        if number > 3:
            model.head(torch.ones(1, 4)).sum().backward()

    assert_as_in_torch(every_step(between=change), overlap, lambda m: SGD(m.a.parameters(), 0.1))


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_graph_that_is_used_for_two_steps_with_a_look_at_the_values(overlap):
    def train(model, optimizer):
        for x in batches(STEPS, 5, 4):
            loss = model.head(x).mean()
            for is_last in (False, True):
                optimizer.zero_grad()
                loss.backward(retain_graph=not is_last)
                if is_last:
                    model.state_dict()
                optimizer.step()

    # torch refuses the second pass through layers whose weights it needs: here it needs the input alone.
    assert_as_in_torch(train, overlap)


def test_a_penalty_of_gradients_with_a_graph():
    def train(model, optimizer):
        for x in batches(STEPS, 5, 4):
            optimizer.zero_grad()
            model(x).square().mean().backward(create_graph=True)
            penalty = sum(p.grad.square().sum() for p in model.parameters())
            (model(x).abs().mean() + penalty).backward()
            optimizer.step()
            for p in model.parameters():
                p.grad = None

    with pytest.warns(UserWarning, match="create_graph"):
        assert_as_in_torch(train, None, lambda m: SGD(m.parameters(), 0.05))


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_gradients_are_plain_tensors(overlap):
    def use(model, optimizer, number):
        gradient = model.a.weight.grad
        assert type(gradient) is torch.Tensor
        copy.deepcopy(gradient)
        nn.Parameter(gradient)
        saved = io.BytesIO()
        torch.save(gradient, saved)
        saved.seek(0)
        assert torch.equal(torch.load(saved, weights_only=True), gradient)

    assert_as_in_torch(every_step(between=use), overlap)


def ignore_an_error() -> None:
    with torch_job():
        model = Branches()
        model, optimizer = prepare(model, sgd(model), overlap=True)
        x = torch.ones(3, 4)
        model(x).sum().backward()
        with pytest.raises(ConfigError):
            model(x).sum().backward()
        optimizer.step()


def test_an_error_of_backward_that_a_script_ignores_is_raised_by_the_step():
    with pytest.raises(ConfigError, match="a second backward pass"):
        ignore_an_error()


def change_by_a_reference() -> None:
    with torch_job():
        model, found = Branches(), {}
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: found.update({id(p): p.grad}))
        model, optimizer = prepare(model, sgd(model), overlap=True)
        model(torch.ones(3, 4)).sum().backward()
        torch._foreach_mul_(list(found.values()), 0.1)
        optimizer.step()


def test_a_gradient_changed_through_a_reference_of_an_earlier_hook_is_an_error():
    with pytest.raises(ConfigError, match=r"'head\.bias' was changed"):
        change_by_a_reference()
