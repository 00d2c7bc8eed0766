"""The server's rule equals the optimizer of torch, or is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import optim

from mpips.errors import ConfigError
from mpips.kernels import reference
from mpips.model.optimizer import SGD, Adagrad, Adam, AdamW, Momentum, Nesterov, RMSProp
from mpips.torch.rules import rule_of

N = 1000
Make = Callable[[list[Any]], Any]


def parameter() -> Any:
    return torch.nn.Parameter(torch.zeros(3))


def first_rule(optimizer: Any) -> Any:
    return rule_of(optimizer, optimizer.param_groups[0])


class Pair:
    """The same weights in the NumPy reference, and in torch at float32 and float64."""

    def __init__(self, make: Make, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.w = self.rng.standard_normal(N).astype(np.float32)
        kinds = (torch.float32, torch.float64)
        self.parameters = [torch.nn.Parameter(torch.tensor(self.w).to(kind)) for kind in kinds]
        self.optimizers = [make([one]) for one in self.parameters]
        rule = self.rule()
        self.state = np.zeros((rule.n_state, N), np.float32)
        if isinstance(rule, Adagrad):
            self.state[:] = rule.initial_accumulator
        self.n_steps = 0

    def rule(self) -> Any:
        return first_rule(self.optimizers[0])

    def step(self) -> None:
        self.n_steps += 1
        gradient = self.rng.standard_normal(N).astype(np.float32)
        for one, optimizer in zip(self.parameters, self.optimizers, strict=True):
            one.grad = torch.tensor(gradient).to(one.dtype)
            optimizer.step()
        reference.update(self.rule().native(), self.w, self.state, gradient, step=self.n_steps)

    def torch_weights(self) -> list[Any]:
        return [one.detach().numpy().astype(np.float64) for one in self.parameters]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lr", [0.1, 1e-3, 7.3])
def test_one_step_of_sgd_is_within_one_ulp(lr: float, seed: int) -> None:
    pair = Pair(lambda p: optim.SGD(p, lr=lr), seed)
    before = pair.w.copy()
    pair.step()
    found = pair.parameters[0].detach().numpy()
    assert not np.array_equal(found, before)

    # torch does not round lr * g before it subtracts. Where the difference cancels, that rounding is more
    # than an ulp of the result, so this is an ulp of the largest of the three numbers.
    largest = np.max(np.abs([before, found - before, found]), axis=0)
    assert (np.abs(pair.w - found) <= np.spacing(largest)).all()


# Without decoupled decay, or with one that float32 represents exactly (see below).
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "sgd with decay": lambda p: optim.SGD(p, lr=0.1, weight_decay=1e-2),
    "momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: optim.Adam(p),
    "adam with large eps": lambda p: optim.Adam(p, 1e-2, (0.8, 0.99), 1e-2, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, 2**-7, (0.8, 0.99), 1e-2, weight_decay=2**-6),
    "adagrad": lambda p: optim.Adagrad(p),
    "adagrad with large eps": lambda p: optim.Adagrad(p, 0.1, 0, 0.01, 0.5, 0.1),
    "rmsprop": lambda p: optim.RMSprop(p),
    "rmsprop with large eps": lambda p: optim.RMSprop(p, 0.01, 0.9, 0.1, weight_decay=0.01),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_hundred_steps_agree(make: Make) -> None:
    pair = Pair(make, 0)
    for _ in range(100):
        pair.step()
    found = pair.torch_weights()[0]
    assert np.abs(pair.w - found).max() <= 1e-6 * np.abs(found).max()


@pytest.mark.parametrize(("lr", "decay"), [(1e-3, 1e-2), (1e-2, 0.1), (3e-4, 0.1)])
def test_adamw_is_nearer_to_float64_than_float32_in_torch(lr: float, decay: float) -> None:
    # torch multiplies each weight in each step by 1 - lr * decay, rounded to float32.
    pair = Pair(lambda p: optim.AdamW(p, lr=lr, weight_decay=decay), 0)
    for _ in range(100):
        pair.step()
    single, double = pair.torch_weights()
    scale = np.abs(double).max()
    assert np.abs(pair.w - double).max() < np.abs(single - double).max() < 1e-5 * scale


def test_a_scheduler_changes_the_rule() -> None:
    pair = Pair(lambda p: optim.SGD(p, lr=0.1, momentum=0.9), 0)
    schedulers = [optim.lr_scheduler.StepLR(one, step_size=10) for one in pair.optimizers]
    rates = set()
    for _ in range(40):
        pair.step()
        rates.add(pair.rule().lr)
        for scheduler in schedulers:
            scheduler.step()
    assert len(rates) == 4
    found = pair.torch_weights()[0]
    assert np.abs(pair.w - found).max() <= 1e-6 * np.abs(found).max()


def test_all_options_reach_the_rule() -> None:
    p = [parameter()]
    assert first_rule(optim.SGD(p, 0.5, weight_decay=0.2)) == SGD(0.5, weight_decay=0.2)
    assert first_rule(optim.SGD(p, 0.5, 0.8)) == Momentum(0.5, 0.8)
    assert first_rule(optim.SGD(p, 0.5, 0.8, nesterov=True)) == Nesterov(0.5, 0.8)
    assert first_rule(optim.Adagrad(p, 0.5, 0, 0.2, 3.0, 1e-3)) == Adagrad(
        0.5, 1e-3, 3.0, weight_decay=0.2
    )
    assert first_rule(optim.RMSprop(p, 0.5, 0.8, 1e-3, 0.2)) == RMSProp(
        0.5, 0.8, 1e-3, weight_decay=0.2
    )
    decayed = {"weight_decay": 0.2}
    assert first_rule(optim.Adam(p, 0.5, (0.8, 0.7), 1e-3, 0.2)) == Adam(
        0.5, 0.8, 0.7, 1e-3, **decayed
    )
    adamw = AdamW(0.5, 0.8, 0.7, 1e-3, **decayed)
    assert first_rule(optim.AdamW(p, 0.5, (0.8, 0.7), 1e-3, 0.2)) == adamw
    coupled = optim.Adam(p, 0.5, (0.8, 0.7), 1e-3, 0.2, decoupled_weight_decay=True)
    assert first_rule(coupled) == adamw


def test_each_group_has_its_own_options() -> None:
    groups = [{"params": [parameter()]}, {"params": [parameter()], "lr": 0.5, "momentum": 0.0}]
    optimizer = optim.SGD(groups, lr=0.1, momentum=0.9)
    rules = [rule_of(optimizer, group) for group in optimizer.param_groups]
    assert rules == [Momentum(0.1, 0.9), SGD(0.5)]


def test_adagrad_starts_all_groups_as_torch_does() -> None:
    second = {"params": [parameter()], "initial_accumulator_value": 7.0}
    optimizer = optim.Adagrad([{"params": [parameter()]}, second], initial_accumulator_value=2.0)
    state = optimizer.state[second["params"][0]]
    rule = rule_of(optimizer, optimizer.param_groups[1])
    assert isinstance(rule, Adagrad)
    assert rule.initial_accumulator == state["sum"][0].item() == 2.0


def test_a_tensor_can_be_the_rate() -> None:
    assert first_rule(optim.SGD([parameter()], lr=torch.tensor(0.5))) == SGD(0.5)
    assert first_rule(optim.Adam([parameter()], lr=torch.tensor([0.5]), foreach=False)) == Adam(0.5)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"capturable": True}])
def test_options_of_the_implementation_are_ignored(options: dict[str, bool]) -> None:
    assert first_rule(optim.Adam([parameter()], lr=0.5, **options)) == Adam(0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda p: optim.SGD(p, momentum=0.9, dampening=0.1),
            "torch.optim.SGD: dampening = 0.1: must be 0",
        ),
        (lambda p: optim.SGD(p, maximize=True), "torch.optim.SGD: maximize = True: must be False"),
        (
            lambda p: optim.SGD(p, differentiable=True),
            "torch.optim.SGD: differentiable = True: must be False",
        ),
        (lambda p: optim.Adam(p, amsgrad=True), "torch.optim.Adam: amsgrad = True: must be False"),
        (
            lambda p: optim.AdamW(p, amsgrad=True),
            "torch.optim.AdamW: amsgrad = True: must be False",
        ),
        (
            lambda p: optim.RMSprop(p, centered=True),
            "torch.optim.RMSprop: centered = True: must be False",
        ),
        (
            lambda p: optim.RMSprop(p, momentum=0.9),
            "torch.optim.RMSprop: momentum = 0.9: must be 0",
        ),
        (
            lambda p: optim.Adagrad(p, lr_decay=0.1),
            "torch.optim.Adagrad: lr_decay = 0.1: must be 0",
        ),
        (lambda p: optim.Adam(p, eps=0.0), "torch.optim.Adam: eps = 0.0: must be from 1e-30 to"),
        (lambda p: optim.SGD(p, momentum=1.5), "torch.optim.SGD: momentum = 1.5: must be "),
        (lambda p: optim.RMSprop(p, alpha=1.5), "torch.optim.RMSprop: alpha = 1.5: must be "),
        (lambda p: optim.SGD(p, lr=1e30), "torch.optim.SGD: lr = 1e+30: must be from 0 to"),
        (
            lambda p: optim.SGD(p, lr=torch.tensor(1e30)),
            "torch.optim.SGD: lr = tensor(1.0000e+30): must be from 0 to",
        ),
    ],
)
def test_an_option_without_a_rule_is_refused(make: Make, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        first_rule(make([parameter()]))


def test_a_value_that_a_script_sets_later_is_checked() -> None:
    optimizer = optim.Adam([parameter()])
    optimizer.param_groups[0]["betas"] = (0.9, 1.0)
    with pytest.raises(ConfigError, match=re.escape("torch.optim.Adam: betas[1] = 1.0: must be ")):
        first_rule(optimizer)


ACCEPTED = "SGD, Adam, AdamW, Adagrad, RMSprop"


@pytest.mark.parametrize("make", [optim.Adadelta, optim.SparseAdam, optim.NAdam, optim.LBFGS])
def test_other_optimizers_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=f"{make.__name__}: servers cannot .*{ACCEPTED}"):
        first_rule(make([parameter()]))


class OwnStep(optim.Adam):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_subclass_with_the_same_step_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed(optim.Adam):
        """Has more than Adam, but the same step."""

        def report(self) -> int:
            return len(self.param_groups)

    # Its first instance comes before one of Adam, so torch puts a wrapper of Adam.step into this class.
    optim.Adam([parameter()])
    monkeypatch.setattr(optim.Adam, "step", optim.Adam.step.__wrapped__)
    for _ in range(2):
        assert first_rule(Renamed([parameter()], lr=0.5)) == Adam(0.5)
    assert "step" in vars(Renamed)


def test_a_subclass_with_its_own_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=rf"OwnStep: its own step\(\) .*{ACCEPTED}"):
        first_rule(OwnStep([parameter()]))
