"""Parameters of streamed models in places where their values are not in memory, or must not be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch_rig import assert_equal, batches, both, torch_job

from mpips.errors import ConfigError
from mpips.torch import prepare

X = batches(4, 5, 4)


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), 0.1, momentum=0.9)


def streamed(model: nn.Module, **options: Any) -> tuple[Any, Any]:
    found: tuple[Any, Any] = prepare(model, sgd(model), **{"stream": 1, **options})
    return found


def assert_trains_alike(make: Callable[[], nn.Module], evaluate: Callable[..., Any]) -> None:
    """Assert that a training has the same bits in memory and with 1, 2 and 9 layers in memory.

    `evaluate` is a block in which the model is called before each training pass.
    """

    def train(model, optimizer):
        for x in X:
            with evaluate():
                model(x)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    expected = both(make(), sgd, train, overlap=True)[1]
    assert not any(value.isnan().any() for value in expected.values())
    assert any(not torch.equal(v, expected[name]) for name, v in make().state_dict().items())
    for k in (1, 2, 9):
        assert_equal(both(make(), sgd, train, stream=k)[1], expected)


class Masked(torch.autograd.Function):
    """The identity, whose backward needs a parameter that forward does not use."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return gradient * (weight.diagonal().abs() <= 0.3), None


class Masking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(Masked.apply(self.layers(x), self.head.weight)).tanh()


class Scaled(nn.Module):
    """A model with a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = net()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


class Negated(nn.Module):
    """A model that uses a view whose elements have the other sign than those in memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.pairs = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * torch.view_as_complex(self.pairs).conj().imag).tanh()


@pytest.mark.parametrize("evaluate", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [net, Masking, Scaled, Negated])
def test_a_training_between_evaluations_has_the_bits_of_one_in_memory(make, evaluate):
    assert_trains_alike(make, evaluate)


def test_values_come_to_the_cpu_whatever_the_default_device_is():
    with torch_job():
        model, _ = streamed(net())
        model(X[0])
        with torch.device("meta"):
            found = model[0].weight.square().sum()
        assert torch.equal(found.detach(), net()[0].weight.square().sum().detach())


def test_hooks_of_parameters_from_the_meta_device_are_called():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    calls: list[str] = []
    removed = model[1].bias.register_hook(lambda g: calls.append("removed"))
    model[0].weight.register_hook(lambda g: calls.append("gradient"))
    model[0].bias.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
    with torch_job():
        model, optimizer = streamed(model)
        removed.remove()
        model(X[0]).sum().backward()
        optimizer.step()
    assert sorted(calls) == ["accumulated", "gradient"]


class Extended(nn.Linear):
    """A layer whose reset_parameters, that of its base class, does not fill all it has."""

    def __init__(self, kind: str) -> None:
        super().__init__(4, 4)
        if kind == "parameter":
            self.extra = nn.Parameter(torch.ones(3))
        else:
            self.register_buffer("extra", torch.ones(3))


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_what_reset_parameters_leaves_without_values_is_refused(kind):
    with torch.device("meta"):
        model = nn.Sequential(Extended(kind))
    with torch_job(), pytest.raises(ConfigError, match=f"the {kind} .*extra.* NaN is left in it"):
        streamed(model)[0](X[0])


CHANGES: dict[str, Callable[[Any], object]] = {
    "data": lambda model: setattr(model[0].weight, "data", torch.zeros(4, 4)),
    "double": lambda model: model.double(),
    "share_memory": lambda model: model.share_memory(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_memory_that_is_replaced_after_the_start_is_refused(name):
    def change_and_use(model: Any) -> None:
        CHANGES[name](model)
        model(X[0])

    with torch_job():
        model, _ = streamed(net())
        model(X[0])
        with pytest.raises(ConfigError, match=r"memory of the parameter '0.weight' was replaced"):
            change_and_use(model)


def test_a_change_is_refused_again_when_the_script_goes_on():
    with torch_job():
        model, _ = streamed(net())
        model(X[0])
        with torch.no_grad():
            model[0].weight.zero_()
        for _ in range(3):
            with pytest.raises(ConfigError, match=r"'0.weight' was changed in place"):
                model(X[0])


def test_a_change_through_a_view_of_a_layer_out_of_memory_is_refused():
    with torch_job():
        model, _ = streamed(net())
        model(X[0])
        view = model[0].weight.detach()
        model(X[0])
        assert not model[0].weight._mpips_table.has_values
        view.zero_()
        with pytest.raises(ConfigError, match=r"'0.weight' was changed in place"):
            model(X[0])


def test_a_format_that_the_script_chooses_before_the_start_counts():
    torch.manual_seed(3)
    with torch_job():
        model, _ = streamed(nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 8, 2)))
        model.to(memory_format=torch.channels_last)
        expected = model[1].weight.stride()
        assert expected != torch.empty(8, 1, 2, 2).stride()
        model(X[0])
        assert model[1].weight.stride() == expected


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_trace_is_refused():
    with torch_job():
        model, _ = streamed(net())
        model(X[0])
        with pytest.raises(ConfigError, match=r"stream and torch.jit.trace exclude each other"):
            torch.jit.trace(model, X[0])
