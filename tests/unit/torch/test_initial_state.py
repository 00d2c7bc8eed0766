"""A training of plain torch goes on in a job: servers begin with the moments that the optimizer has."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from moments_rig import OPTIMIZERS, Net, loaded, train
from torch_rig import relative, torch_job

from mpips.errors import ConfigError
from mpips.torch import prepare


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
