"""A training of plain torch goes on in a job: servers begin with the moments that the optimizer has."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from moments_rig import OPTIMIZERS, Net, loaded, train
from torch import nn
from torch_rig import relative, torch_job

import mpips
import mpips.torch
from mpips.errors import ConfigError
from mpips.torch import epochs, prepare


@pytest.mark.parametrize("placement", ["servers", "replicated"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_job_goes_on_with_the_moments_of_torch(name, placement):
    make = OPTIMIZERS[name]
    plain = Net()
    own = make(plain.parameters())
    train(plain, own, 0, 4)
    state, moments = copy.deepcopy((plain.state_dict(), own.state_dict()))
    train(plain, own, 4, 8)
    expected = plain.state_dict()
    found = []
    for given in (moments, None):
        with torch_job():
            model, optimizer = prepare(*loaded(make, state, given), placement=placement)
            train(model, optimizer, 4, 8)
            values = {key: one.clone() for key, one in model.state_dict().items()}
        found.append(max(relative(values[key], one) for key, one in expected.items()))
    assert found[0] <= 1e-5
    assert found[1] >= 1e-2


def test_a_restart_has_the_moments_of_the_run(tmp_path):
    pytest.importorskip("h5py", reason="checkpoints need h5py")
    make = OPTIMIZERS["adam"]
    plain = Net()
    own = make(plain.parameters())
    train(plain, own, 0, 3)
    state, moments = copy.deepcopy((plain.state_dict(), own.state_dict()))
    train(plain, own, 3, 8)
    for first, stop in ((3, 5), (5, 8)):
        with torch_job(save=tmp_path):
            model, optimizer = prepare(*loaded(make, state, moments))
            train(model, optimizer, first, stop)
            values = {key: one.clone() for key, one in model.state_dict().items()}
    for key, one in plain.state_dict().items():
        assert relative(values[key], one) <= 1e-5, key


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.pop("exp_avg_sq"), "'exp_avg_sq' of the parameter 'first.weight' is missing"),
        (
            lambda s: s.update(exp_avg=torch.zeros(3)),
            r"'exp_avg' of the parameter 'first.weight' is of shape \(3,\): must be a tensor",
        ),
        (
            lambda s: s["exp_avg_sq"].fill_(float("inf")),
            "'exp_avg_sq' of the parameter 'first.weight' contains NaN or infinity",
        ),
    ],
)
def test_state_that_does_not_fit_is_refused_before_anything_changes(change, sentence):
    model = Net()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train(model, optimizer, 0, 1)
    change(optimizer.state[model.first.weight])
    with torch_job():
        with pytest.raises(ConfigError, match=sentence):
            prepare(model, optimizer)
        assert type(model) is Net
        assert optimizer.state


def test_second_moments_that_float16_has_rounded_to_0_are_refused():
    model = nn.Linear(3, 1).half()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-4)
    optimizer.step()
    with (
        torch_job(),
        pytest.raises(ConfigError, match=r"'exp_avg_sq' of the parameter .* is 0 where"),
    ):
        prepare(model, optimizer)


def test_an_optimizer_is_a_state_of_epochs():
    with torch_job():
        model = Net()
        model, optimizer = prepare(model, OPTIMIZERS["rmsprop"](model.parameters()))
        found = []
        for _ in epochs(2, state=[optimizer]):
            train(model, optimizer, 0, 2)
            found.append(len(optimizer.state_dict()["state"]))
    assert found == [5, 5]


def test_a_refused_state_leaves_the_optimizer_as_it_is():
    table = mpips.torch.Embedding(3, optimizer=mpips.SGD(0.1))
    model = nn.ModuleList([table, nn.Linear(3, 1)])
    plain = OPTIMIZERS["adam"](model[1].parameters())
    model[1](torch.ones(1, 3)).sum().backward()
    plain.step()
    state = plain.state_dict()
    for own in state["state"].values():
        del own["exp_avg_sq"]
    with torch_job():
        model, optimizer = prepare(model, OPTIMIZERS["adam"](model[1].parameters()))
        before = [list(group["params"]) for group in optimizer.param_groups]
        with pytest.raises(ConfigError, match="is missing"):
            optimizer.load_state_dict(state)
        after = [group["params"] for group in optimizer.param_groups]
        assert [[*map(id, own)] for own in after] == [[*map(id, own)] for own in before]
