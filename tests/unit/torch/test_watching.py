"""Changes of parameters that torch does not count are refused before the next pull overwrites them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch_rig import batches, torch_job

from mpips.errors import ConfigError
from mpips.torch import prepare
from mpips.torch.watching import N_WINDOWS, WHOLE, Watch

Change = Callable[[nn.Module], None]
X = batches(1, 5, 4)[0]


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))


def clamp(model: Any) -> None:
    for p in model.parameters():
        p.data.clamp_(-0.01, 0.01)


def vector(model: Any) -> None:
    found = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(found.clamp(-0.01, 0.01), model.parameters())


def replace(model: Any) -> None:
    model[1].weight.data = model[1].weight.data.renorm(2, 0, 0.01)


def one_element(model: Any) -> None:
    model[0].bias.data[3] += 1


def through_numpy(model: Any) -> None:
    model[1].bias.data.view(torch.uint8).numpy()[:] = 2


CHANGES = [clamp, vector, replace, one_element, through_numpy]


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(X).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused_at_the_next_forward_pass(
    change: Change, is_fresh: bool, dtype: torch.dtype
):
    with torch_job():
        model = net().to(dtype)
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        optimizer.zero_grad()
        model(X.to(dtype)).square().mean().backward()
        optimizer.step()
        if is_fresh:
            model.state_dict()
        change(model)
        with pytest.raises(ConfigError, match=r"the parameter '.*' was changed in place .* clamp"):
            model(X.to(dtype))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_each_step_is_refused_whenever_it_begins(change: Change):
    with torch_job():
        model = net()
        model, optimizer = prepare(model, SGD(model.parameters(), 0.01))
        for _ in range(WHOLE + 5):
            step(model, optimizer)
        with pytest.raises(ConfigError, match="was changed in place"):  # noqa: PT012
            for _ in range(N_WINDOWS + 1):
                change(model)
                step(model, optimizer)


def test_values_that_are_back_before_the_next_training_pass_are_accepted():
    """An average of weights takes their place for an evaluation."""
    with torch_job():
        model = net()
        model, optimizer = prepare(model, SGD(model.parameters(), 0.01))
        for _ in range(N_WINDOWS + WHOLE):
            step(model, optimizer)
            values = {name: p.detach().clone() for name, p in model.named_parameters()}
            memory = {name: p.data for name, p in model.named_parameters()}
            model.eval()
            for name, p in model.named_parameters():
                if name.startswith("0"):
                    p.data.mul_(0.5)
                else:
                    p.data = torch.zeros_like(p)
            with torch.no_grad():
                assert model(X).eq(0).all()
            for name, p in model.named_parameters():
                p.data = memory[name]
                p.data.copy_(values[name])
            model.train()
            model.share_memory()


class Watched:
    """Elements that are watched."""

    def __init__(self, n_elements: int, is_watched_whole: bool = False) -> None:
        self.n_elements, self.is_watched_whole = n_elements, is_watched_whole
        self.window = 0, 0

    def watch(self, start: int, stop: int) -> None:
        self.window = start, stop


def test_windows_cover_all_elements_once_in_a_round():
    sizes = [1, 1000, 3, 70]
    parts = [Watched(n) for n in sizes] + [Watched(50, True)]
    watch = Watch(parts)
    for _ in range(WHOLE):
        watch.next()
        assert [part.window for part in parts] == [(0, n) for n in (*sizes, 50)]
    seen: list[list[int]] = [[] for _ in parts]
    for _ in range(N_WINDOWS):
        watch.next()
        windows = [range(*part.window) for part in parts]
        assert sum(map(len, windows[:-1])) in (1074 // N_WINDOWS, 1074 // N_WINDOWS + 1)
        for own, window in zip(seen, windows, strict=True):
            own += window
    assert [sorted(own) for own in seen] == [list(range(n)) for n in (*sizes, 50)]
