"""Gradients of rows between backward and `step`, as torch's own scripts change them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel
from torch_rig import torch_job
from torch_rows import IDS, rows_of

import mpips
from mpips.errors import ConfigError
from mpips.torch import Embedding, EmbeddingBag, prepare


@pytest.fixture
def job():
    with torch_job(seed=3) as script:
        yield script


class Model(nn.Module):
    """An embedding that is used twice, a bag, and a linear layer."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        if own:
            rule: dict[str, Any] = {"optimizer": mpips.SGD(0.5), "init": "zeros"}
            self.word: nn.Module = Embedding(3, **rule)
            self.bag: nn.Module = EmbeddingBag(3, mode="sum", **rule)
        else:
            self.word = nn.Embedding(11, 3, _weight=torch.zeros(11, 3))
            self.bag = nn.EmbeddingBag(11, 3, mode="sum", _weight=torch.zeros(11, 3))
        self.out = nn.Linear(3, 1, bias=False)
        nn.init.constant_(self.out.weight, 2.0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.word(ids).sum(1) + 4 * self.word(ids[:, :1]).sum(1) + self.bag(ids)
        return self.out(hidden).sum()


def clip_norm(model: nn.Module, optimizer: Any, losses: Any) -> None:
    next(losses).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()


def clip_norm_each(model: nn.Module, optimizer: Any, losses: Any) -> None:
    next(losses).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25, foreach=False)
    optimizer.step()


def clip_value(model: nn.Module, optimizer: Any, losses: Any) -> None:
    next(losses).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.25)
    optimizer.step()


def scale(model: nn.Module, optimizer: Any, losses: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(next(losses)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    scaler.step(optimizer)
    scaler.update()


def find_infinity(model: nn.Module, optimizer: Any, losses: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in (torch.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale(next(losses) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0


def own_loop(model: nn.Module, optimizer: Any, losses: Any) -> None:
    next(losses).backward()
    for p in model.parameters():
        assert p.grad is not None
        p.grad.mul_(0.5).add_(p * (p.grad != 0), alpha=0.25)
    optimizer.step()


def replace(model: nn.Module, optimizer: Any, losses: Any) -> None:
    next(losses).backward()
    for p in model.parameters():
        p.grad = torch.sign(p.grad) * 0.125
    optimizer.step()


def set_to_none(model: nn.Module, optimizer: Any, losses: Any) -> None:
    next(losses).backward()
    for p in model.parameters():
        p.grad = None
    next(losses).backward()
    optimizer.step()


def read_between(model: nn.Module, optimizer: Any, losses: Any) -> None:
    next(losses).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.25)
    next(losses).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    next(losses).backward()
    optimizer.step()


def zero_in_place(model: nn.Module, optimizer: Any, losses: Any) -> None:
    next(losses).backward()
    optimizer.zero_grad(set_to_none=False)
    next(losses).backward()
    model.zero_grad(set_to_none=False)
    next(losses).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()
    next(losses).backward()
    optimizer.step()


def freeze(model: Any, optimizer: Any, losses: Any) -> None:
    model.word.requires_grad_(False)
    next(losses).backward()
    optimizer.step()
    optimizer.zero_grad()
    model.word.requires_grad_(True)
    for p in model.bag.parameters():
        p.requires_grad = False
    next(losses).backward()
    optimizer.step()


def clip_after_a_skipped_step(model: nn.Module, optimizer: Any, losses: Any) -> None:
    next(losses).backward()
    next(losses).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    next(losses).backward()
    optimizer.step()


WAYS = [
    clip_norm,
    clip_norm_each,
    clip_value,
    scale,
    find_infinity,
    own_loop,
    replace,
    set_to_none,
    read_between,
    zero_in_place,
    freeze,
    clip_after_a_skipped_step,
]
BATCHES = (
    [[0, 3, 3], [5, 0, 10]],
    [[1, 3, 4], [3, 3, 9]],
    [[0, 0, 0], [2, 1, 0]],
    [[7, 8, 9]],
    [[3, 2, 1]],
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_rows_train_as_those_of_torch_whatever_changes_their_gradients(job, way):
    found, plain = Model(True), Model(False)
    own = SGD(plain.parameters(), 0.5)
    model, optimizer = prepare(found, SGD(found.parameters(), 0.5), overlap=False)
    for one, trained in ((plain, own), (model, optimizer)):
        is_own = one is model
        losses = (one(IDS[torch.tensor(b)] if is_own else torch.tensor(b)) for b in BATCHES)
        trained.zero_grad()
        next(losses).backward()
        trained.step()
        trained.zero_grad()
        way(one, trained, losses)
    for name in ("word", "bag"):
        expected = getattr(plain, name).weight.detach()
        assert torch.allclose(rows_of(job, name), expected, rtol=1e-6, atol=1e-7), name
    assert torch.allclose(model.state_dict()["out.weight"], plain.out.weight, rtol=1e-6)


def test_the_parameter_is_in_optimizer_and_model_but_in_no_state_dict(job):
    model = nn.Sequential(Embedding(3), nn.Linear(3, 1))
    assert len(list(model.parameters())) == 3
    assert sum(p.numel() for p in model.parameters()) == 4
    prepared, optimizer = prepare(model, SGD(model[1].parameters(), 0.5))
    assert optimizer.param_groups[0]["params"][-1] is model[0].weight
    names = ["0.rows.keys", "0.rows.values", "1.weight", "1.bias"]
    assert list(prepared.state_dict()) == names
    prepared.load_state_dict(prepared.state_dict(), strict=True)
    prepared(IDS).sum().backward()
    assert model[0].weight.grad.shape == model[0].weight.shape == (11, 3)
    optimizer.step()
    assert model[0].weight.grad is None
    assert model[0].weight.shape == (0, 3)


def test_copies_averages_and_pickles_have_a_parameter_of_their_own(job):
    model = nn.Sequential(Embedding(3, init="zeros"), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert one[0].weight is not model[0].weight
        assert not one[0].weight.requires_grad
    model[0].requires_grad_(True)
    model, optimizer = prepare(model, SGD(model.parameters(), 0.5))
    average = AveragedModel(model)
    for _ in range(2):
        model(IDS).sum().backward()
        copied = copy.deepcopy(model)
        assert copied[0].weight.grad is None
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    assert average(IDS).shape == (11, 1)


def test_a_moved_model_moves_the_parameter_and_keeps_its_kind(job):
    model = nn.Sequential(Embedding(3), nn.Linear(3, 1)).bfloat16()
    assert model[0].weight.dtype == torch.bfloat16
    model.to("meta")
    assert model[0].weight.device.type == "cpu"
    assert type(model[0].weight) is type(Embedding(3).weight)
    with torch.device("meta"):
        assert Embedding(3).weight.device.type == "cpu"


CHANGES = {
    "clamp": lambda p: p.data.clamp_(-1, 1),
    "in place": lambda p: p.detach().mul_(0.5),
    "data": lambda p: setattr(p, "data", p.data * 2),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_change_of_the_rows_themselves_is_refused_by_name(job, how):
    model = nn.Sequential(Embedding(3), nn.Linear(3, 1))
    model, optimizer = prepare(model, SGD(model.parameters(), 0.5))
    model(IDS).sum().backward()
    optimizer.step()

    def change_and_use() -> None:
        CHANGES[how](model[0].weight)
        model(IDS)

    with pytest.raises(ConfigError, match=r"the values of the embedding '0'"):
        change_and_use()


def test_a_gradient_of_another_shape_and_hooks_are_refused_by_name(job):
    model = nn.Sequential(Embedding(3), nn.Linear(3, 1))
    model, _ = prepare(model, SGD(model.parameters(), 0.5))
    model(IDS[:2]).sum().backward()
    with pytest.raises(ConfigError, match=r"'0' was replaced .* \(1, 3\): .* shape \(2, 3\)"):
        model[0].weight.grad = torch.zeros(1, 3)
    with pytest.raises(ConfigError, match="hook on the gradient of the embedding '0'"):
        model[0].weight.register_hook(lambda g: g)
    with pytest.raises(ConfigError, match="hook on the gradient of the embedding '0'"):
        model[0].weight.register_post_accumulate_grad_hook(lambda p: None)


def test_initial_values_that_have_no_effect_are_a_warning(job):
    model = nn.Sequential(Embedding(3), nn.Linear(3, 1))
    for p in model.parameters():
        nn.init.normal_(p)
    with pytest.warns(UserWarning, match=r"embedding '0'.*begins with the layer's init"):
        prepare(model, SGD(model.parameters(), 0.5))


# torch looks at the gradient of a tensor that enters a graph, which the one behind a break is not a leaf of.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("make", [Embedding, EmbeddingBag])
def test_a_compiled_model_trains_its_rows(job, make):
    model = nn.Sequential(make(3, optimizer=mpips.SGD(1.0), init="zeros"), nn.Linear(3, 1))
    nn.init.ones_(model[1].weight)
    model, optimizer = prepare(model, SGD(model.parameters(), 0.0))
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        optimizer.zero_grad()
        compiled(IDS.view(-1, 1)).sum().backward()
        optimizer.step()
    assert rows_of(job, "0").tolist() == [[-2.0] * 3] * 11
