"""Buffers of a prepared model: running statistics and counters, of each dtype, by both rules."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import numpy as np
import torch
from harness import Rig, in_threads
from torch import nn
from torch.optim import SGD
from torch_rig import assert_equal, batches, both, pulled, relative, torch_job, values_of

from mpips.model.consistency import BSP
from mpips.torch import prepare
from mpips.torch.buffers import BufferTable
from mpips.worker.worker import Worker

RULES = ["worker 0", "average"]


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)
    )


def train(model: nn.Module, optimizer: Any) -> None:
    for x in batches(8, 5, 2, 6, 6):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("buffers", RULES)
def test_batch_normalisation_is_that_of_torch(buffers):
    expected, found = both(network(), lambda m: SGD(m.parameters(), 0.01), train, buffers=buffers)
    assert list(found) == list(expected)
    assert found["1.num_batches_tracked"].dtype == torch.int64
    assert found["1.num_batches_tracked"].item() == 8
    for name, value in expected.items():
        assert relative(found[name].double(), value.double()) <= 1e-6, name


@pytest.mark.parametrize("buffers", RULES)
def test_the_server_has_the_running_statistics(buffers):
    with torch_job() as script:
        model = network()
        model, optimizer = prepare(model, SGD(model.parameters(), 0.01), buffers=buffers)
        train(model, optimizer)
        own = model[1].running_mean.clone()
        assert torch.equal(pulled(script, "1.running_mean"), own)
        assert_equal({"mean": values_of(model)["1.running_mean"]}, {"mean": own})


class Scaled(nn.Module):
    """A layer with a buffer that the script itself sets."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("temperature", torch.tensor(1.0))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) / self.temperature


@pytest.mark.parametrize("buffers", RULES)
def test_what_a_script_sets_after_a_step_counts(buffers):
    def anneal(model, optimizer):
        model.seen = []
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(4, 2)).square().mean().backward()
            model.seen.append(model.temperature.item())
            optimizer.step()
            model.temperature.mul_(0.5)
            model.count.add_(3)

    with torch_job() as script:
        model = Scaled()
        model, optimizer = prepare(model, SGD(model.parameters(), 0.01), buffers=buffers)
        anneal(model, optimizer)
        assert model.seen == [1.0, 0.5, 0.25, 0.125, 0.0625]
        assert model.temperature.item() == 0.5**5
        assert pulled(script, "temperature").item() == 0.5**5
        assert model.count.item() == 15


def test_statistics_that_are_computed_anew_after_training_are_those_of_torch():
    def train_and_update(model, optimizer):
        train(model, optimizer)
        torch.optim.swa_utils.update_bn(batches(3, 5, 2, 6, 6), model)

    expected, found = both(network(), lambda m: SGD(m.parameters(), 0.01), train_and_update)
    assert found["1.num_batches_tracked"].item() == 3
    for name, value in expected.items():
        assert relative(found[name].double(), value.double()) <= 1e-6, name


def test_evaluation_changes_no_buffer_and_uses_the_statistics():
    def train_and_evaluate(model, optimizer):
        train(model, optimizer)
        model.eval()
        with torch.no_grad():
            model.result = model(torch.ones(1, 2, 6, 6))

    plain, model = network(), network()
    train_and_evaluate(plain, SGD(plain.parameters(), 0.01))
    with torch_job():
        model, optimizer = prepare(model, SGD(model.parameters(), 0.01))
        train_and_evaluate(model, optimizer)
        assert relative(model.result, plain.result) <= 1e-5
        assert model[1].num_batches_tracked.item() == 8


EXTREMES: dict[torch.dtype, list[Any]] = {
    torch.float64: [1 / 3, 1e300, -5e-324, float("inf"), float("nan")],
    torch.float32: [1 / 3, 3e38, -1e-45, float("-inf")],
    torch.float16: [1 / 3, 65504, -6e-8, float("inf"), float("nan")],
    torch.bfloat16: [1 / 3, 3e38, -1e-40, float("-inf")],
    torch.int64: [0, -1, 2**63 - 1, -(2**63), 2**53 + 1],
    torch.int32: [0, -1, 2**31 - 1, -(2**31)],
    torch.int16: [0, -1, 2**15 - 1],
    torch.int8: [0, -1, 127],
    torch.uint8: [0, 255, 128],
    torch.bool: [True, False, True],
    torch.complex64: [1 + 2j, -3e38j],
}


class Counting(nn.Module):
    """A model whose forward pass rolls its buffer."""

    def __init__(self, values: torch.Tensor, how: str, **options: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.how = how
        self.register_buffer("state", values, **options)

    def forward(self) -> torch.Tensor:
        rolled = self.state.roll(1)
        if self.how == "in place":
            self.state.copy_(rolled)
        else:
            self.state = rolled
        return self.weight * 2


@pytest.mark.parametrize("how", ["in place", "replaced"])
@pytest.mark.parametrize("shape", ["vector", "scalar"])
@pytest.mark.parametrize("dtype", EXTREMES, ids=str)
def test_buffers_of_each_dtype_arrive_bit_for_bit(dtype, shape, how):
    values = torch.tensor(EXTREMES[dtype], dtype=dtype)
    if shape == "scalar":
        values = values[-1]
    with torch_job():
        model = Counting(values.clone(), how)
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        for n in range(1, 4):
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            found = model.state_dict()["state"]
            assert found.dtype == dtype
            assert found.shape == values.shape
            assert (
                found.numpy(force=True).tobytes() == values.roll(n).numpy(force=True).tobytes()
                if dtype != torch.bfloat16
                else torch.equal(found, values.roll(n))
            )


def test_the_initial_buffers_of_each_dtype_are_those_of_worker_0():
    with torch_job():
        model = nn.Module()
        model.weight = nn.Parameter(torch.ones(2))
        for n, (dtype, values) in enumerate(EXTREMES.items()):
            model.register_buffer(f"b{n}", torch.tensor(values, dtype=dtype))
        expected = values_of(model)
        model.forward = lambda: model.weight.sum()
        model, _ = prepare(model, SGD(model.parameters(), 0.1))
        model()
        found = values_of(model)
        for name, value in expected.items():
            assert torch.equal(found[name].isnan(), value.isnan())
            assert torch.equal(found[name].nan_to_num(), value.nan_to_num()), name


def test_buffers_that_are_not_persistent_stay_in_the_process():
    with torch_job() as script:
        model = Counting(torch.arange(4.0), "in place", persistent=False)
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        model().backward()
        optimizer.step()
        model()
        assert model.state.tolist() == [2, 3, 0, 1]
        assert list(script.worker._handles) == ["weight"]


def test_empty_shared_and_absent_buffers_are_accepted():
    with torch_job() as script:
        model = Counting(torch.arange(3.0), "in place")
        model.register_buffer("empty", torch.zeros(0))
        model.register_buffer("absent", None)
        model.inner = nn.Module()
        model.inner.register_buffer("same", model.state)
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        model().backward()
        optimizer.step()
        model()
        assert list(script.worker._handles) == ["weight", "state"]
        assert model.inner.same.tolist() == [1, 2, 0]


def test_a_buffer_that_nothing_changes_is_pushed_once_at_most():
    with torch_job() as script:
        model = nn.Linear(2, 1)
        model.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        for x in batches(3, 4, 2):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        assert script.worker.counters()["pushed"] == 2 * 3
        assert pulled(script, "mask").tolist() == [0.0, float("-inf")]


def test_the_average_counts_a_worker_whose_buffer_did_not_change():
    owners = [nn.Module(), nn.Module()]
    for owner in owners:
        owner.register_buffer("most", torch.tensor([4.0]))
    buffers = [BufferTable("most", owner, "most", "average") for owner in owners]
    rig = Rig(buffers[0].table(BSP()), n_workers=2)

    def work(worker: Worker) -> None:
        own = buffers[worker.index]
        own.open(worker)
        worker.table("most").push(np.array([4.0], np.float32))  # the initial value of both
        worker.clock()
        for _ in range(3):
            own.pull()
            if worker.index == 0:
                owners[0].most.add_(1.0)
            own.push()
            worker.clock()
        own.pull()

    with rig.serving():
        workers = [rig.worker(w, local=False) for w in range(2)]
        in_threads([lambda w=w: work(w) for w in workers])
    assert [owner.most.item() for owner in owners] == [5.5, 5.5]
