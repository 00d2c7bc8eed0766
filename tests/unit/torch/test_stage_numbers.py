"""Random numbers of a model in stages: those of torch, NumPy and Python do not depend on the cut."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from stage_rig import pipeline
from torch import nn

cross_entropy = nn.functional.cross_entropy
X, Y = torch.randn(6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
Drawn = list[tuple[float, float, float]]


def draw(numbers: Drawn) -> None:
    numbers.append((torch.rand(()).item(), random.random(), float(np.random.random())))


def stir(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.default_generator.manual_seed(number)


class Drawing(nn.Linear):
    """A layer that draws from three generators."""

    def __init__(self, numbers: Drawn) -> None:
        super().__init__(6, 6)
        self.numbers = numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        draw(self.numbers)
        return super().forward(x) * float(np.random.uniform(0.5, 1.0)) * random.choice([1.0, 2.0])


def drawn(stages: list[str], hooked: bool = False) -> tuple[Drawn, list[Any]]:
    """Return the numbers that three units and the loss draw, and losses and gradients of a step."""
    numbers: Drawn = []
    torch.manual_seed(2)
    inner = nn.Sequential(*(Drawing(numbers) for _ in range(2)))
    own = nn.Sequential(Drawing(numbers), nn.Linear(6, 6), *inner, nn.Linear(6, 3))
    if hooked:
        own[1].register_forward_hook(lambda *_: draw(numbers))
        own[4].register_forward_pre_hook(lambda *_: draw(numbers))
        replaced: Any = own[4]
        plain = replaced.forward
        replaced.forward = lambda x: (draw(numbers), plain(x))[1]

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        draw(numbers)
        return cross_entropy(out, y) * random.random()

    one = pipeline(own, stages)
    plain_recv, count = one.links.recv, iter(range(1000))

    def recv(*arguments: Any) -> Any:
        """Receive in another process, whose generators have other states."""
        stir(next(count))
        return plain_recv(*arguments)

    one.links.recv = recv  # type: ignore[method-assign]
    stir(len(stages))  # what was drawn before the step does not count
    total = one.step(X, Y, loss, 3, "1f1b", (4, 0))
    with torch.no_grad():
        out = one.outputs(X, (4, 0))
    return numbers, [total, out.tolist(), *(p.grad.tolist() for p in own.parameters())]


@pytest.mark.parametrize("hooked", [False, True])
def test_no_generator_depends_on_the_cut(hooked: bool) -> None:
    expected = drawn(["0-4"], hooked)
    n_places = 3 + 1 + 3 * hooked
    assert (
        len(expected[0]) == 3 * n_places + n_places - 1
    )  # three micro-batches; no loss behind them
    for column in zip(*expected[0], strict=True):
        assert len(set(column)) == len(column)
    for stages in (["0", "1-4"], ["0-3", "4"], ["0-1", "2", "3-4"], ["0", "1", "2", "3", "4"]):
        assert drawn(stages, hooked) == expected


def test_a_step_leaves_all_generators_as_they_were() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    numbers: Drawn = []
    own = nn.Sequential(Drawing(numbers), nn.Linear(6, 3))
    state = torch.get_rng_state()
    pipeline(own, ["0", "1"]).step(X, Y, cross_entropy, 3, "1f1b", (4, 0))
    assert len(numbers) == 3
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert torch.equal(torch.get_rng_state(), state)
