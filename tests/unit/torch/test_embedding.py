"""Layers with rows on the servers, against torch.nn.Embedding."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset
from torch_rig import batches, relative, table_statistics, torch_job
from torch_rows import DIM, IDS, N, rows_of

import mpips
from mpips.errors import ConfigError
from mpips.torch import Embedding, EmbeddingBag, prepare

RULES: dict[str, tuple[Any, Any]] = {
    "sgd": (lambda p: SGD(p, 0.5), mpips.SGD(0.5)),
    "momentum": (lambda p: SGD(p, 0.1, momentum=0.5), mpips.Momentum(0.1, momentum=0.5)),
    "adagrad": (
        lambda p: torch.optim.Adagrad(p, 0.2, eps=1e-8),
        mpips.Adagrad(0.2, eps=1e-8),
    ),
}


@pytest.fixture
def job():
    with torch_job(seed=3) as script:
        yield script


def places(n: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Return places in IDS, with repetitions."""
    generator = torch.Generator().manual_seed(8)
    return [torch.randint(0, N, shape, generator=generator) for _ in range(n)]


def same_table(script: Any, name: str = "embedding", **options: Any) -> nn.Embedding:
    """Return torch's layer with the rows of IDS."""
    plain = nn.Embedding(N, DIM, **options)
    with torch.no_grad():
        plain.weight.copy_(rows_of(script, name))
    return plain


@pytest.mark.parametrize("n_calls", [1, 3])
@pytest.mark.parametrize("name", RULES)
def test_rows_are_trained_as_those_of_torch(job, name, n_calls):
    make, rule = RULES[name]
    layer, optimizer = prepare(Embedding(DIM, optimizer=rule, init="normal(1)"))
    layer(IDS[:0])
    plain = same_table(job)
    own = make(plain.parameters())
    factors = batches(12, 4, 5, DIM)
    for first in range(0, 12, n_calls):
        for one in (optimizer, own):
            one.zero_grad()
        for call in range(first, first + n_calls):
            at, factor = places(12, (4, 5))[call], factors[call]
            (layer(IDS[at]) * factor).sum().backward()
            (plain(at) * factor).sum().backward()
        # A row of mpips without a gradient has no momentum in this step; give each one a gradient.
        (layer(IDS) * 0.5).sum().backward()
        (plain(torch.arange(N)) * 0.5).sum().backward()
        optimizer.step()
        own.step()
        assert relative(rows_of(job), plain.weight.detach()) <= 1e-6


def test_rows_without_a_gradient_remain(job):
    layer, optimizer = prepare(Embedding(DIM, optimizer=mpips.Adam(0.5), init="normal(1)"))
    before = layer(IDS).detach()
    layer(IDS[:2]).sum().backward()
    optimizer.step()
    after = layer(IDS).detach()
    assert torch.equal(before[2:], after[2:])
    assert (before[:2] != after[:2]).all()


def test_several_calls_of_a_graph_add_up_in_one_push(job):
    layer, optimizer = prepare(Embedding(DIM, optimizer=mpips.SGD(1.0), init="zeros"))
    (layer(IDS[:3]).sum() + 2 * layer(IDS[1:4]).sum() + layer(IDS[[1, 1]]).sum()).backward()
    optimizer.step()
    assert layer(IDS)[:, 0].tolist() == [-1, -5, -3, -2] + [0] * 7
    assert job.worker.counters()["pushed"] == 1


def test_accumulated_gradients_are_one_push(job):
    layer, optimizer = prepare(Embedding(DIM, optimizer=mpips.SGD(1.0), init="zeros"))
    for _ in range(3):
        layer(IDS[:2]).sum().backward()
    optimizer.step()
    assert layer(IDS)[:3, 0].tolist() == [-3, -3, 0]
    assert job.worker.counters()["pushed"] == 1


def test_a_graph_can_be_used_twice(job):
    layer, optimizer = prepare(Embedding(DIM, optimizer=mpips.SGD(1.0), init="zeros"))
    loss = layer(IDS[:2]).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    assert layer(IDS)[:3, 0].tolist() == [-2, -2, 0]


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 0), (0,), (2, 2, 2)])
def test_the_shape_of_the_result_is_that_of_the_ids_and_a_row(job, shape):
    layer, optimizer = prepare(Embedding(DIM))
    ids = torch.ones(shape, dtype=torch.int64)
    found = layer(ids)
    assert found.shape == (*shape, DIM)
    assert found.dtype == torch.float32
    found.sum().backward()
    optimizer.step()


def test_ids_can_be_a_view_of_other_strides(job):
    layer = prepare(Embedding(DIM, init="normal(1)"))[0]
    ids = IDS[:6].view(2, 3)
    assert torch.equal(layer(ids.t()), layer(ids).transpose(0, 1))
    assert torch.equal(layer(IDS[::2]), layer(IDS)[::2])


class Model(nn.Module):
    """Words of two kinds share a layer."""

    def __init__(self, words: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = words
        self.second = words
        self.out = nn.Linear(DIM, 1)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.out(self.first(a) * self.second(b)).square().mean()


def test_a_shared_layer_is_one_table_beside_dense_parameters(job):
    model = Model(Embedding(DIM, optimizer=mpips.SGD(0.05), init="normal(1)"))
    model, optimizer = prepare(model, SGD(model.parameters(), 0.05))
    with torch.no_grad():
        model(IDS[:1], IDS[:1])
    plain = Model(same_table(job, "first"))
    own = SGD(plain.parameters(), 0.05)
    assert list(job.worker._handles) == ["out.weight", "out.bias", "first"]
    for a, b in zip(places(10, (6,)), reversed(places(10, (6,))), strict=True):
        for one, step, ids in ((model, optimizer, IDS), (plain, own, torch.arange(N))):
            step.zero_grad()
            one(ids[a], ids[b]).backward()
            step.step()
    assert relative(rows_of(job, "first"), plain.first.weight.detach()) <= 1e-6
    for name in ("out.weight", "out.bias"):
        assert relative(model.state_dict()[name], plain.state_dict()[name]) <= 1e-6


@pytest.mark.parametrize("how", ["no_grad", "inference_mode", "eval with no_grad", "no backward"])
def test_a_forward_pass_without_training_makes_no_row(how):
    context = {"inference_mode": torch.inference_mode, "no backward": torch.enable_grad}
    with torch_job() as script:
        layer, optimizer = prepare(Embedding(DIM, init="normal(1)"))
        layer.train("eval" not in how)
        with context.get(how, torch.no_grad)():
            first = layer(IDS)
            assert torch.equal(first, layer(IDS))
        optimizer.step()
        assert (first.numpy(force=True) == layer._access.handle.initial(IDS.numpy())).all()
        layer(IDS[:2]).sum().backward()
        optimizer.step()
        layer(IDS)
    assert table_statistics(script, "embedding")["rows"] == 2


@pytest.mark.parametrize("by", ["optimizer", "model"])
def test_zero_grad_drops_gradients_of_rows(job, by):
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = Embedding(DIM, optimizer=mpips.SGD(1.0), init="zeros")

    model, optimizer = prepare(Holder())
    model.rows(IDS[:3]).sum().backward()
    (optimizer if by == "optimizer" else model).zero_grad()
    model.rows(IDS[2:4]).sum().backward()
    optimizer.step()
    assert model.rows(IDS)[:5, 0].tolist() == [0, 0, -1, -1, 0]


def test_rows_are_pushed_once(job):
    layer, optimizer = prepare(Embedding(DIM, optimizer=mpips.SGD(1.0), init="zeros"))
    layer(IDS[:1]).sum().backward()
    optimizer.step()
    optimizer.step()
    assert layer(IDS)[0, 0].item() == -1


def test_a_layer_has_its_own_consistency(job):
    layer, optimizer = prepare(
        Embedding(DIM, optimizer=mpips.SGD(1.0), init="zeros", consistency="asp")
    )
    for _ in range(3):
        layer(IDS[:1]).sum().backward()
        optimizer.step()
    assert layer(IDS)[0, 0].item() == -3
    assert layer._access.handle._table.consistency.name == "asp"


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = Embedding(DIM, optimizer=mpips.SGD(1.0), init="normal(1)")
        self.out = nn.Linear(DIM, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(ids)).sum()


@pytest.mark.parametrize("start", [True, False], ids=["after the start", "before the start"])
def test_a_copy_reads_the_rows_and_trains_none(job, start):
    model, optimizer = (lambda m: prepare(m, SGD(m.parameters(), 0.0)))(Scores())
    if start:
        model(IDS)
    other = copy.deepcopy(model)
    assert torch.equal(other.words(IDS), model.words(IDS))
    before = rows_of(job, "words")
    other(IDS).backward()
    optimizer.step()
    assert torch.equal(rows_of(job, "words"), before)
    model(IDS).backward()
    optimizer.step()
    assert not torch.equal(rows_of(job, "words"), before)
    assert torch.equal(other.words(IDS), model.words(IDS))


def test_a_moving_average_of_a_model_with_rows_can_be_evaluated(job):
    model, optimizer = (lambda m: prepare(m, SGD(m.parameters(), 0.1)))(Scores())
    average = AveragedModel(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(IDS[:4]).backward()
        optimizer.step()
        average.update_parameters(model)
    with torch.no_grad():
        expected = (average.module.out(model.words(IDS))).sum()
        assert torch.equal(average(IDS), expected)


def test_an_unpickled_layer_has_the_rows_without_the_job(job):
    model, _ = (lambda m: prepare(m, SGD(m.parameters(), 0.1)))(Scores())
    before = model.words(IDS).detach().clone()
    other = pickle.loads(pickle.dumps(model))
    assert torch.equal(other.out.weight, model.out.weight)
    assert torch.equal(other.words(IDS), before)
    assert not other.words(IDS).requires_grad
    with pytest.raises(ConfigError, match="is in no prepared model"):
        pickle.loads(pickle.dumps(Scores()))(IDS)


class Numbered(Dataset[Any]):
    """Ids and targets."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[torch.Tensor, float]:
        return IDS[[i % N, (3 * i) % N]], float(i)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_loader_processes_feed_a_model_with_rows(start):
    def run(n_children):
        with torch_job(seed=3) as script:
            model = Scores()
            loader = DataLoader(
                Numbered(),
                batch_size=4,
                shuffle=True,
                num_workers=n_children,
                multiprocessing_context=start if n_children else None,
            )
            model, optimizer, batches = prepare(model, SGD(model.parameters(), 0.1), loader)
            for ids, target in batches:
                optimizer.zero_grad()
                (model(ids) - target.float().mean()).square().backward()
                optimizer.step()
            return rows_of(script, "words"), model.out.weight.detach().clone()

    for found, expected in zip(run(2), run(0), strict=True):
        assert torch.equal(found, expected)


def test_extreme_ids_are_different_rows(job):
    layer, _ = prepare(Embedding(DIM, init="normal(1)"))
    assert len(np.unique(layer(IDS).detach().numpy()[:, 0])) == N


@pytest.mark.parametrize("stream", [None, 1])
def test_the_memory_of_a_job_is_free_after_its_end(stream):
    """Whatever the script leaves: gradients that no step has pushed, and a model that it holds."""
    model = nn.Sequential(EmbeddingBag(DIM), nn.Linear(DIM, 5), nn.Linear(5, 1))
    with torch_job() as script:
        optimizer = SGD(model[1:].parameters(), 0.1)
        trained, optimizer = prepare(model, optimizer, stream=stream)
        for _ in range(4):
            optimizer.zero_grad()
            trained(IDS[:6].view(2, 3)).sum().backward()
            optimizer.step()
        worker = weakref.ref(script.worker)
    del script, trained, optimizer, model
    gc.collect()
    assert worker() is None
