"""`state_dict` of a prepared optimizer has torch's form and the servers' values: a script goes on with it."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from late_device import LateCopies
from moments_rig import OPTIMIZERS, Net, loaded, train
from torch import nn
from torch.optim import SGD, Adam
from torch_rig import batches, relative, torch_job

import mpips
from mpips.errors import ConfigError
from mpips.model.local_sgd import LocalSGD
from mpips.torch import Embedding, averaged, prepare
from mpips.torch.device import COPIES
from mpips.torch.streaming import Stream


def through_a_file(*states: Any) -> Any:
    """The states as another script loads them."""
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return torch.load(file)


def check_form(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Compare a state dict with torch's own."""
    assert found["param_groups"] == expected["param_groups"]
    assert list(found["state"]) == list(expected["state"])
    for index, own in expected["state"].items():
        other = found["state"][index]
        assert list(other) == list(own)
        for entry, one in own.items():
            assert (other[entry].dtype, other[entry].shape) == (one.dtype, one.shape)
            assert other[entry].device == one.device
            assert relative(other[entry], one) <= (0 if entry == "step" else tolerance), entry


@pytest.mark.parametrize("placement", ["servers", "replicated"])
@pytest.mark.parametrize("name", [*OPTIMIZERS, "sgd"])
def test_the_state_is_that_of_torch_and_a_script_goes_on_with_it(name, placement):
    make = {**OPTIMIZERS, "sgd": lambda p: SGD(p, 0.05)}[name]
    plain = Net()
    own = make(plain.parameters())
    train(plain, own, 0, 4)
    with torch_job():
        model = Net()
        model, optimizer = prepare(model, make(model.parameters()), placement=placement)
        train(model, optimizer, 0, 4)
        found = optimizer.state_dict()  # also ends the clock of the step
        values, found = through_a_file(model.state_dict(), found)
        # What was returned does not change with the servers.
        held = copy.deepcopy(found)
        train(model, optimizer, 4, 5)
        optimizer.state_dict()
        check_form(found, held, 0)
    check_form(found, own.state_dict())
    train(plain, own, 4, 8)
    expected = plain.state_dict()

    # A plain script goes on with it, and so does a job.
    other, optimizer = loaded(make, values, found)
    train(other, optimizer, 4, 8)
    with torch_job():
        model, optimizer = prepare(*loaded(make, values, found), placement=placement)
        check_form(optimizer.state_dict(), found, 0)
        train(model, optimizer, 4, 8)
        check_form(optimizer.state_dict(), own.state_dict())
        again = {key: one.clone() for key, one in model.state_dict().items()}
    for key, one in expected.items():
        assert relative(other.state_dict()[key], one) <= 1e-5, key
        assert relative(again[key], one) <= 1e-5, key


class Parts(nn.Module):
    """A model with a shared, a frozen and a bfloat16 parameter, one of another layout, and rows of zeros."""

    def __init__(self, has_rows: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.coarse = nn.Parameter(torch.randn(3, 2, dtype=torch.bfloat16))
        turned = torch.randn(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        self.turned = nn.Parameter(turned)
        self.left = nn.Linear(4, 1)
        if has_rows:
            self.rows = Embedding(4, init="zeros", optimizer=mpips.SGD(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.frozen(self.second(torch.tanh(self.first(x))))
        if hasattr(self, "rows"):
            y = y + self.rows(torch.arange(len(x)))
        return self.left(y).sum() * self.coarse.float().sum() * self.turned.square().sum()


def made(model: Parts) -> Adam:
    """An optimizer over a part of the model, in two groups."""
    first = [model.first.weight, model.first.bias, model.second.bias, *model.frozen.parameters()]
    return Adam([{"params": first}, {"params": [model.coarse, model.turned], "lr": 0.25}], 0.5)


def two_steps(model: Any, optimizer: Any) -> None:
    for x in batches(2, 3, 4):
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()


@pytest.mark.parametrize("is_on_device", [False, True])
def test_groups_and_parameters_of_any_kind_are_those_of_the_script(is_on_device, monkeypatch):
    if is_on_device:
        monkeypatch.setitem(COPIES, "cpu", LateCopies)
    plain = Parts(has_rows=False)
    own = made(plain)
    two_steps(plain, own)
    with torch_job():
        model = Parts()
        model, optimizer = prepare(model, made(model))
        two_steps(model, optimizer)
        seen = []
        optimizer.register_state_dict_post_hook(lambda _, state: seen.extend(state["state"]))
        found = optimizer.state_dict()
        assert found["state"][6]["exp_avg"].is_contiguous(memory_format=torch.channels_last)
        # The layer of rows is in the first group, where the script has not put it.
        for state in (
            {**found, "state": {}},
            {"state": {}, "param_groups": optimizer.param_groups},
        ):
            assert len(optimizer.param_groups[0]["params"]) == 6
            optimizer.load_state_dict(state)
        assert model.rows.weight is optimizer.param_groups[0]["params"][-1]
    check_form(found, own.state_dict(), 1e-2)
    assert seen == [0, 1, 2, 5, 6]
    # float32 of the servers; torch rounds bfloat16 in each step.
    exact = {k: v for k, v in found["state"].items() if k != 5}
    check_form({**found, "state": exact}, {**own.state_dict(), "state": exact}, 0)
    made(Parts(has_rows=False)).load_state_dict(found)


def test_state_can_be_loaded_until_the_job_starts():
    make = OPTIMIZERS["adam"]
    plain = Net()
    own = make(plain.parameters())
    train(plain, own, 0, 3)
    values, state = copy.deepcopy((plain.state_dict(), own.state_dict()))
    train(plain, own, 3, 6)
    with torch_job():
        model = Net()
        model, optimizer = prepare(model, make(model.parameters()))
        wrong = copy.deepcopy(state)
        del wrong["state"][0]["exp_avg_sq"]
        wrong["param_groups"][0]["lr"] = 7.0
        with pytest.raises(ConfigError, match="'exp_avg_sq' of the parameter 'scale' is missing"):
            optimizer.load_state_dict(wrong)
        assert optimizer.param_groups[0]["lr"] == 0.05
        assert optimizer.state_dict()["state"] == {}
        model.load_state_dict(values)
        optimizer.load_state_dict(state)
        check_form(optimizer.state_dict(), state, 0)
        train(model, optimizer, 3, 6)
        found = optimizer.state_dict()
        with pytest.raises(ConfigError, match="comes too late for the moments"):
            optimizer.load_state_dict(found)
    check_form(found, own.state_dict())


def test_copies_have_the_state():
    with torch_job():
        model = Net()
        model, optimizer = prepare(model, OPTIMIZERS["adam"](model.parameters()))
        train(model, optimizer, 0, 3)
        expected = optimizer.state_dict()
        for found in (copy.deepcopy(optimizer), through_a_file(expected)[0]):
            state = found if isinstance(found, dict) else found.state_dict()
            check_form(state, expected, 0)
        assert type(copy.copy(optimizer)) is Adam


@pytest.mark.parametrize("options", [{"overlap": True}, {"stream": 1}])
def test_state_cannot_be_read_when_backward_has_sent_gradients(options, monkeypatch):
    plain = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    with torch_job():
        model = copy.deepcopy(plain)
        model, optimizer = prepare(model, Adam(model.parameters(), 0.1), **options)
        for x in batches(2, 5, 4):
            optimizer.zero_grad()
            model(x).sum().backward()
            with pytest.raises(ConfigError, match=r"read it after step\(\), or (use )?prepare"):
                optimizer.state_dict()
            optimizer.step()
        # Values of a streamed model are not brought for it.
        monkeypatch.setattr(Stream, "call", None)
        state = optimizer.state_dict()
        monkeypatch.undo()
    own = Adam(plain.parameters(), 0.1)
    for x in batches(2, 5, 4):
        own.zero_grad()
        plain(x).sum().backward()
        own.step()
    check_form(state, own.state_dict())


def test_state_under_local_sgd_is_that_of_the_workers_own_steps():
    plain = Net()
    own = OPTIMIZERS["adam"](plain.parameters())
    train(plain, own, 0, 5)
    with torch_job():
        model = Net()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        model, optimizer = prepare(model, optimizer, consistency=LocalSGD(3))
        with pytest.raises(ConfigError, match="under LocalSGD and DiLoCo, and with stream"):
            optimizer.load_state_dict(own.state_dict())
        train(model, optimizer, 0, 5)
        check_form(optimizer.state_dict(), own.state_dict())
        with averaged(model):
            check_form(optimizer.state_dict(), own.state_dict())


def test_a_continued_run_has_its_state(tmp_path):
    pytest.importorskip("h5py", reason="checkpoints need h5py")
    plain = Net()
    own = OPTIMIZERS["rmsprop"](plain.parameters())
    train(plain, own, 0, 5)
    for first, stop in ((0, 2), (2, 5)):
        with torch_job(save=tmp_path):
            model = Net()
            model, optimizer = prepare(model, OPTIMIZERS["rmsprop"](model.parameters()))
            train(model, optimizer, first, stop)
            found = optimizer.state_dict()
    check_form(found, own.state_dict())


def test_an_adagrad_without_steps_loads_its_own_state_under_local_sgd():
    with torch_job():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.5)
        _, optimizer = prepare(model, optimizer, consistency=LocalSGD(2))
        state = optimizer.state_dict()
        assert state["state"][0]["step"] == 0
        optimizer.load_state_dict(state)
        state["state"][0]["step"] += 1
        with pytest.raises(ConfigError, match="cannot load the moments of each parameter"):
            optimizer.load_state_dict(state)


@pytest.mark.parametrize("step", [-1, 2**32, 1.5, float("nan"), None, torch.tensor([1.0, 2.0])])
def test_a_step_that_is_no_number_of_steps_is_refused(step):
    with torch_job():
        model = nn.Linear(2, 1)
        optimizer = Adam(model.parameters(), 0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        _, optimizer = prepare(model, Adam(model.parameters(), 0.1))
        state["state"][0]["step"] = step
        with pytest.raises(
            ConfigError, match=r"has the step .*: must be an integer from 0 to 42949"
        ):
            optimizer.load_state_dict(state)
