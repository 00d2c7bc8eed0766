"""Parameters of a prepared model: kinds, shapes and dtypes, frozen and shared ones, changes in place."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD, Adam
from torch_rig import assert_equal, batches, both, pulled, relative, torch_job, values_of

from mpips.errors import ConfigError
from mpips.torch import prepare


class Parts(nn.Module):
    """A model of given parameters; the loss is the sum of their products with fixed numbers."""

    def __init__(self, **parameters: torch.Tensor) -> None:
        super().__init__()
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, scale: float = 1.0, skip: str = "") -> torch.Tensor:
        return sum(
            (scale * (torch.arange(p.numel()).view(p.shape) - 1.5) * p).sum()
            for name, p in self._parameters.items()
            if name != skip
        )


def step(model: nn.Module, optimizer: Any, *arguments: Any) -> None:
    optimizer.zero_grad()
    model(*arguments).backward()
    optimizer.step()


def assert_close(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert found[name].dtype == value.dtype
        if value.numel():
            assert relative(found[name], value) <= 1e-6, name


def test_a_parameter_without_a_gradient_keeps_value_and_momentum():
    def train(model, optimizer):
        for skip in ("", "a", "a", "b", ""):
            step(model, optimizer, 1.0, skip)

    def make(model):
        return SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)

    expected, found = both(Parts(a=torch.ones(3), b=torch.ones(2)), make, train)
    assert_close(found, expected)


def test_a_frozen_parameter_keeps_its_value():
    model = Parts(a=torch.ones(3), b=torch.ones(2))
    model.a.requires_grad_(False)

    def train(model, optimizer):
        for _ in range(4):
            step(model, optimizer)

    expected, found = both(model, lambda m: SGD(m.parameters(), 0.1, weight_decay=0.5), train)
    assert_equal({"a": found["a"]}, {"a": torch.ones(3)})
    assert_close(found, expected)


@pytest.mark.parametrize("first", [True, False], ids=["trained first", "frozen first"])
def test_parameters_are_frozen_and_trained_again_in_the_middle(first):
    def train(model, optimizer):
        seen = []
        for n in range(12):
            model.a.requires_grad_((n // 3) % 2 == (0 if first else 1))
            step(model, optimizer)
            seen.append(model.state_dict()["a"].clone())
        return seen

    model, plain = (Parts(a=torch.ones(3), b=torch.ones(2)) for _ in range(2))
    expected = train(plain, Adam(plain.parameters(), 0.1))
    with torch_job():
        for found, value in zip(
            train(*prepare(model, Adam(model.parameters(), 0.1))), expected, strict=True
        ):
            assert relative(found, value) <= 1e-6


def test_a_forward_pass_after_freezing_sees_the_last_step():
    with torch_job():
        model = Parts(a=torch.ones(3))
        model, optimizer = prepare(model, SGD(model.parameters(), 1.0))
        step(model, optimizer)
        model.a.requires_grad_(False)
        model()
        assert model.a.tolist() == [2.5, 1.5, 0.5]


def test_a_gradient_of_before_the_freezing_is_applied_as_in_torch():
    def train(model, optimizer):
        model().backward()
        model.a.requires_grad_(False)
        optimizer.step()

    expected, found = both(Parts(a=torch.ones(3)), lambda m: SGD(m.parameters(), 0.5), train)
    assert expected["a"].tolist() == [1.75, 1.25, 0.75]
    assert_equal(found, expected)


def test_parameters_of_no_optimizer_keep_their_values():
    def train(model, optimizer):
        for _ in range(3):
            model.zero_grad()
            step(model, optimizer)

    model = Parts(a=torch.ones(3), b=torch.ones(2))
    expected, found = both(model, lambda m: SGD([m.a], 0.25), train)
    assert found["b"].tolist() == [1, 1]
    assert_equal(found, expected)


class Tied(nn.Module):
    """A table of words whose transpose gives the scores, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.words = nn.Embedding(5, 3)
        self.scores = nn.Linear(3, 5, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.scores(self.words(ids)), ids)


def test_a_shared_parameter_is_one_table_with_the_sum_of_its_gradients():
    def train(model, optimizer):
        for ids in torch.arange(60).view(20, 3) % 5:
            step(model, optimizer, ids)
        assert model.scores.weight is model.words.weight

    expected, found = both(Tied(), lambda m: SGD(m.parameters(), 0.5), train)
    assert_close(found, expected)
    assert torch.equal(found["words.weight"], found["scores.weight"])


def test_parameters_of_each_shape_are_trained():
    torch.manual_seed(1)
    model = Parts(
        scalar=torch.tensor(0.5),
        empty=torch.zeros(0, 3),
        one=torch.ones(1, 1, 1),
        turned=torch.randn(3, 4).t(),
        channels_last=torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    )

    def train(model, optimizer):
        strides = {name: p.stride() for name, p in model.named_parameters()}
        assert not model.turned.is_contiguous()
        assert not model.channels_last.is_contiguous()
        for _ in range(10):
            step(model, optimizer)
        assert {name: p.stride() for name, p in model.named_parameters()} == strides

    expected, found = both(model, lambda m: Adam(m.parameters(), 0.01), train)
    assert_close(found, expected)


def test_a_channels_last_network_is_trained():
    def train(model, optimizer):
        for x in batches(5, 2, 3, 6, 6):
            optimizer.zero_grad()
            model(x.to(memory_format=torch.channels_last)).square().mean().backward()
            optimizer.step()

    torch.manual_seed(1)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    expected, found = both(model, lambda m: SGD(m.parameters(), 0.1), train)
    assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_masters_in_float32_add_up_steps_that_the_dtype_would_round_away(dtype):
    tiny = 2.0**-12

    def train(model, optimizer):
        for _ in range(64):
            optimizer.zero_grad()
            model.a.sum().backward()
            optimizer.step()
            model.state_dict()
        return model.a

    plain, model = Parts(a=torch.ones(3, dtype=dtype)), Parts(a=torch.ones(3, dtype=dtype))
    with torch_job() as script:
        lost = train(plain, SGD(plain.parameters(), tiny))
        model, optimizer = prepare(model, SGD(model.parameters(), tiny))
        model.forward = lambda: model.a.sum()
        found = train(model, optimizer)
        assert found.dtype == dtype
        assert found.tolist() == [1 - 64 * tiny] * 3
        assert (dtype == torch.float16) or lost.tolist() == [1.0] * 3
        assert pulled(script, "a").tolist() == [1 - 64 * tiny] * 3


def test_values_of_half_precision_are_the_rounded_masters():
    torch.manual_seed(1)
    with torch_job() as script:
        model = nn.Linear(4, 3).to(torch.bfloat16)
        model, optimizer = prepare(model, Adam(model.parameters(), 0.01))
        for x in batches(10, 6, 4):
            optimizer.zero_grad()
            model(x.to(torch.bfloat16)).square().mean().backward()
            optimizer.step()
        for name, value in model.state_dict().items():
            master = pulled(script, name)
            assert torch.equal(value, master.to(torch.bfloat16))
            assert not torch.equal(value.float(), master)


def test_the_initial_values_are_those_at_the_first_pull():
    with torch_job():
        model = nn.Linear(2, 1)
        model, _ = prepare(model, SGD(model.parameters(), 0.1))
        with torch.no_grad():
            model.weight.fill_(3.0)
            model.bias.zero_()
        assert model(torch.ones(1, 2)).item() == 6.0


CHANGES = {
    "fill_": lambda p: p.fill_(1.0),
    "clamp_": lambda p: p.clamp_(-1, 1),
    "index": lambda p: p.__setitem__(0, 0.0),
    "init": lambda p: nn.init.normal_(p),
}


@pytest.mark.parametrize("stale", [True, False], ids=["before a pull", "after a pull"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_place_after_the_start_is_an_error(name, stale):
    def train(model, optimizer):
        for _ in range(2):
            step(model, optimizer)

    with torch_job():
        model = Parts(a=torch.ones(3), b=torch.ones(2))
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        step(model, optimizer)
        if not stale:
            model()
        with torch.no_grad():
            CHANGES[name](model.a)
        with pytest.raises(ConfigError, match="'a' was changed in place after the job had started"):
            train(model, optimizer)


def test_a_graph_of_before_a_pull_cannot_be_used_after_it():
    with torch_job():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        early = model(torch.ones(1, 2)).sum()
        step(model, optimizer, torch.ones(1, 2))
        model(torch.ones(1, 2))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            early.backward()


def test_values_of_a_gradient_that_is_not_finite_stay_away_from_the_servers():
    with torch_job():
        model = Parts(a=torch.ones(3))
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        with pytest.raises(ValueError, match="table 'a' contains nan"):
            step(model, optimizer, float("nan"))


def test_a_prepared_model_trains_after_a_change_of_dtype():
    with torch_job():
        model = Parts(a=torch.ones(3))
        model, optimizer = prepare(model, SGD(model.parameters(), 1.0))
        step(model, optimizer)
        model.to(torch.float16)
        step(model, optimizer)
        assert values_of(model)["a"].dtype == torch.float16
        assert values_of(model)["a"].tolist() == [4.0, 2.0, 0.0]


def test_a_change_in_place_of_a_frozen_parameter_is_an_error():
    with torch_job():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        model[0].requires_grad_(False)
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        step(model, optimizer, torch.ones(1, 2))
        with torch.no_grad():
            model[0].weight.mul_(0.5)
        with pytest.raises(ConfigError, match=r"'0\.weight' was changed in place .* use a buffer"):
            model(torch.ones(1, 2))
