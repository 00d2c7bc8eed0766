"""Each wrong use of mpips.torch beside `prepare` is one clear sentence: scripts, steps, values, layers."""

from __future__ import annotations

import copy
import multiprocessing
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from bad_use_rig import fails, pair, step
from torch import nn
from torch.optim import SGD, Adam
from torch_rig import torch_job

import mpips
from mpips.errors import ConfigError, ForkError
from mpips.session.session import scripts
from mpips.torch import Embedding, EmbeddingBag, prepare
from mpips.torch.module import PreparedModule

CALLS = {
    "mpips.torch.prepare": lambda: prepare(*pair()),
    "mpips.rank": mpips.rank,
    "mpips.world_size": mpips.world_size,
    "mpips.report": lambda: mpips.report(loss=1.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_without_init(name):
    with fails(rf"^{name} needs a job: call mpips.init\(\) at the beginning of the script$"):
        CALLS[name]()


def test_init_twice(job):
    with fails("^mpips.init was called a second time: a script has one job$"):
        mpips.init()


def test_a_script_that_has_left_leaves_nothing_behind():
    before = sys.excepthook, sys.exit, list(scripts)
    with torch_job():
        assert sys.excepthook != before[0]
        assert sys.exit != before[1]
    assert (sys.excepthook, sys.exit, scripts) == before
    with pytest.raises(ZeroDivisionError), torch_job():
        raise ZeroDivisionError
    assert (sys.excepthook, sys.exit, scripts) == before


def test_a_report_before_the_start(job):
    prepare(*pair())
    with fails("^mpips.report comes before the first pull: report after a training step$"):
        mpips.report(loss=1.0)


@pytest.mark.parametrize("start", [True, False])
def test_a_param_group_after_prepare(job, start):
    model, optimizer = prepare(*pair())
    if start:
        step(model, optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with fails("^a param group was added after prepare: add all groups before mpips.torch.prepare"):
        step(model, optimizer)


def test_hyperparameters_that_change_to_wrong_ones(job):
    model, optimizer = prepare(*pair())
    optimizer.param_groups[0]["lr"] = -1.0
    with fails("^torch.optim.SGD: lr = -1.0: must be"):
        step(model, optimizer)


def test_a_change_of_the_kind_of_rule(job):
    model, optimizer = prepare(*pair())
    optimizer.param_groups[0]["momentum"] = 0.9
    with fails("^set_optimizer of table 'weight': Momentum.* must be an optimizer of the table's"):
        step(model, optimizer)


def test_sparse_gradients(job):
    model = nn.Embedding(5, 2, sparse=True)
    model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
    model(torch.tensor([1])).sum().backward()
    with fails("^the parameter 'weight' has a sparse gradient: use mpips.torch.Embedding, which"):
        optimizer.step()


def test_values_that_are_loaded_after_the_start(job):
    model, optimizer = prepare(*pair())
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(saved)
    step(model, optimizer)
    late = r"^load_state_dict comes too late: .*; load the values before it, or into a copy, "
    with fails(rf"{late}copy\.deepcopy\(model\)$"):
        model.load_state_dict(saved)


@pytest.mark.parametrize("rows", [False, True])
def test_the_best_state_is_loaded_into_the_copy_that_the_message_names(job, rows):
    model = nn.Sequential(Embedding(2), nn.Linear(2, 1)) if rows else nn.Linear(2, 1)
    model, optimizer = prepare(model, SGD(model.parameters(), 0.5))
    x = torch.tensor([3, 5]) if rows else torch.ones(1, 2)
    model(x).sum().backward()
    optimizer.step()
    with torch.no_grad():
        expected = model(x).tolist()
    best = copy.deepcopy(model.state_dict())
    model(x).sum().backward()
    optimizer.step()
    with torch.no_grad():
        assert model(x).tolist() != expected
    with fails(r"comes too late: .*copy\.deepcopy\(model\)$"):
        model.load_state_dict(best)
    plain = copy.deepcopy(model)
    assert not plain.load_state_dict(best).missing_keys
    assert plain(x).tolist() == expected


def test_rows_that_are_loaded_alone_after_the_start(job):
    layer = Embedding(2)
    model = nn.Sequential(layer, nn.Linear(2, 1))
    model, optimizer = prepare(model, SGD(model.parameters(), 0.5))
    saved = layer.state_dict()
    model(torch.tensor([3])).sum().backward()
    optimizer.step()
    with fails(r"^load_state_dict of the embedding '0' comes too late: .*copy\.deepcopy\(model\)$"):
        layer.load_state_dict(saved)


def test_an_optimizer_that_is_not_prepared(job):
    model = nn.Linear(2, 1)
    model, optimizer = prepare(model, SGD(model.parameters(), lr=0.1), overlap=False)
    other = SGD(model.parameters(), lr=0.1)
    for chosen in (optimizer, other):
        chosen.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        chosen.step()
    with torch.no_grad():
        model(torch.ones(1, 2))  # looks at the values as they are
    with pytest.raises(
        ConfigError, match=r"was changed in place after .* prepare the optimizer that"
    ):
        model(torch.ones(1, 2))


def test_values_that_replace_parameters(job):
    model, _ = prepare(*pair())
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    with fails("^load_state_dict with assign=True would replace the parameters"):
        model.load_state_dict(saved, assign=True)


def test_moments_that_are_loaded(job):
    model, optimizer = prepare(*pair())
    step(model, optimizer)
    plain = nn.Linear(2, 1)
    own = Adam(plain.parameters(), 0.1)
    step(plain, own)
    with fails("^load_state_dict of a prepared optimizer comes too late for the moments"):
        optimizer.load_state_dict(own.state_dict())


IDS = {
    "torch.int32 on cpu": torch.ones(2, dtype=torch.int32),
    "torch.float32 on cpu": torch.ones(2),
    "torch.int64 on meta": torch.ones(2, dtype=torch.int64, device="meta"),
    "list": [1, 2],
}


@pytest.mark.parametrize("found", IDS)
def test_ids_that_are_none(job, found):
    layer, _ = prepare(Embedding(2))
    with fails(
        f"^ids of the embedding 'embedding' are {found}: must be an int64 tensor with values$"
    ):
        layer(IDS[found])


@pytest.mark.parametrize("make", [Embedding, EmbeddingBag])
def test_a_layer_in_no_prepared_model(job, make):
    name = make.__name__
    with fails(rf"^this mpips.torch.{name} is in no prepared model: call mpips.torch.prepare\("):
        make(2)(torch.ones(1, 1, dtype=torch.int64))


def test_a_layer_in_two_models(job):
    layer = Embedding(2)
    prepare(nn.Sequential(layer), name="a")
    other = nn.Sequential(layer)
    with fails("^the embedding 'a.0' has been prepared already: prepare one module that contains"):
        prepare(other, name="b")
    assert not isinstance(other, PreparedModule)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dim": 0}, "dim = 0: must be 1 or more"),
        ({"dim": 2, "init": "random"}, "initializer 'random' is not understood"),
        ({"dim": 2, "consistency": "weak"}, "weak"),
        ({"dim": 2, "optimizer": mpips.SGD}, r"optimizer = SGD is a class; call it: SGD\(\)"),
    ],
)
def test_settings_of_layers(options, match):
    with fails(match):
        Embedding(**options)


def test_modes_of_bags():
    with fails("^EmbeddingBag: mode = 'median': must be 'sum', 'mean' or 'max'$"):
        EmbeddingBag(2, mode="median")


def use_in_child(model: nn.Module, optimizer: Any, found: Any) -> None:
    for use in (lambda: model(torch.ones(1, 2)), optimizer.step):
        try:
            use()
        except ForkError as error:
            found.put(str(error))
        else:
            found.put("no error")


@pytest.mark.parametrize("start", [True, False], ids=["after the start", "before the start"])
def test_use_in_a_forked_child(job, start):
    model, optimizer = prepare(*pair())
    if start:
        step(model, optimizer)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=use_in_child, args=(model, optimizer, found))
    child.start()
    messages = [found.get(timeout=20) for _ in range(2)]
    child.join(20)
    assert child.exitcode == 0
    assert all("child" in message or "helper" in message for message in messages), messages
    step(model, optimizer)
