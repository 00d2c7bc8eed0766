"""The optimizer state of rows in the state dict of a torch optimizer: a script goes on with it."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD, Adam
from torch_rig import assert_equal, relative, torch_job, values_of

import mpips
from mpips.errors import ConfigError
from mpips.model.local_sgd import LocalSGD
from mpips.torch import EmbeddingBag, prepare

BATCHES = torch.tensor([[[3, -(2**60)], [5, 3]], [[9, 3], [2**61, -1]], [[7, 5], [3, 3]]])
RULES = {
    "adam": (mpips.Adam(0.3), ["keys", "step", "m", "v"]),
    "adagrad": (mpips.Adagrad(0.5), ["keys", "accumulator"]),
}
KEY = "mpips rows of net.0"


def make(rule: Any, **options: Any) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(
        EmbeddingBag(2, mode="sum", optimizer=rule, init="uniform(1)"), nn.Linear(2, 1)
    )
    return model, Adam(model.parameters(), 0.1)


def train(model: nn.Module, optimizer: Any, first: int, stop: int) -> None:
    for i in range(first, stop):
        optimizer.zero_grad()
        (model(BATCHES[i % 3]) - 2).square().mean().backward()
        optimizer.step()


def both(model: nn.Module, optimizer: Any) -> Any:
    """The states as another script loads them."""
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.fixture(scope="module", params=RULES)
def run(request) -> Any:
    """The rule, states after two steps, and values after five."""
    rule, entries = RULES[request.param]
    with torch_job():
        model, optimizer = prepare(*make(rule), name="net")
        train(model, optimizer, 0, 2)
        saved = both(model, optimizer)
        train(model, optimizer, 2, 5)
        return rule, entries, saved, values_of(model)


@pytest.mark.parametrize("when", ["before prepare", "after prepare", "by a plain script"])
def test_a_script_goes_on_with_the_state_of_rows(when, run):
    rule, entries, (values, state), expected = run
    entry = state["state"][KEY]
    assert list(entry) == entries
    assert entry["keys"].tolist() == values["0.rows.keys"].tolist()
    if "step" in entry:
        assert dict(zip(entry["keys"].tolist(), entry["step"].tolist(), strict=True))[3] == 2
        assert entry["step"].tolist().count(1) == 5
    if when == "by a plain script":
        plain = make(rule)[1]
        plain.load_state_dict(state)
        state = plain.state_dict()
    found = []
    for given in (state, {**state, "state": {k: v for k, v in state["state"].items() if k != KEY}}):
        with torch_job():
            model, optimizer = make(rule)
            if when == "after prepare":
                model, optimizer = prepare(model, optimizer, name="net")
            model.load_state_dict(values)
            optimizer.load_state_dict(copy.deepcopy(given))
            if when != "after prepare":
                model, optimizer = prepare(model, optimizer, name="net")
            if given is state:
                own = optimizer.state_dict()["state"][KEY]
                assert all(torch.equal(own[name], one) for name, one in entry.items())
            train(model, optimizer, 2, 5)
            found.append(values_of(model))
    assert_equal(found[0], expected)
    assert relative(found[1]["0.rows.values"], expected["0.rows.values"]) >= 1e-2


def test_rows_without_state_begin_with_that_of_new_ones(run):
    rule, _, (values, state), _ = run
    entry = copy.deepcopy(state["state"][KEY])
    # The keys in another order, one without values, and none of the first row.
    flipped = {name: one.flip(0)[:-1] for name, one in entry.items()}
    more = {name: torch.cat([one, one[:1]]) for name, one in flipped.items()}
    more["keys"][-1] = 77
    first = int(entry["keys"][0])
    with torch_job():
        model, optimizer = prepare(*make(rule), name="net")
        model.load_state_dict(values)
        optimizer.load_state_dict({**state, "state": {**state["state"], KEY: more}})
        model(BATCHES[0])
        own = optimizer.state_dict()["state"][KEY]
    assert own["keys"].tolist() == values["0.rows.keys"].tolist()
    for name, one in own.items():
        assert torch.equal(one[1:], entry[name][1:])
        assert name == "keys" or not one[0].any()
    assert int(own["keys"][0]) == first


def test_state_of_rows_is_taken_under_local_sgd(run):
    rule, _, (values, state), _ = run
    with torch_job():
        model, optimizer = make(rule)
        optimizer.load_state_dict({**state, "state": {KEY: state["state"][KEY]}})
        model.load_state_dict(values)
        model, optimizer = prepare(model, optimizer, name="net", consistency=LocalSGD(2))
        model(BATCHES[0])
        own = optimizer.state_dict()["state"][KEY]
    assert all(torch.equal(own[name], one) for name, one in state["state"][KEY].items())


def test_a_rule_without_state_has_no_entry():
    with torch_job():
        model, _ = make(None)
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1), name="net")
        train(model, optimizer, 0, 2)
        assert optimizer.state_dict()["state"] == {}


def change(entry: Any, **changes: Any) -> Any:
    return {KEY: {**entry, **changes}}


@pytest.mark.parametrize("run", ["adam"], indirect=True)
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            lambda e: {"mpips rows of other": e},
            "rows of 'other', which is no embedding of the model",
        ),
        (
            lambda e: {KEY: {"keys": e["keys"]}},
            r"has \['keys'\]: must have \['keys', 'm', 'step', 'v'\]",
        ),
        (lambda e: {KEY: 7}, r"has int: must have"),
        (
            lambda e: change(e, m=e["m"][:1]),
            r"'m' in .* of shape \(1, 2\): must be torch.float32 of shape",
        ),
        (lambda e: change(e, v=e["v"].double()), "'v' in .* is torch.float64"),
        (lambda e: change(e, keys=e["keys"] * 0), "has a key twice"),
        (lambda e: change(e, step=e["step"] - 2), "has the step -1: must be from 0 to 4294967295"),
    ],
)
def test_state_of_rows_that_does_not_fit_is_refused_before_anything_changes(changed, sentence, run):
    rule, _, (_, state), _ = run
    with torch_job():
        model, optimizer = make(rule)
        optimizer.load_state_dict({**state, "state": changed(state["state"][KEY])})
        with pytest.raises(ConfigError, match=sentence):
            prepare(model, optimizer, name="net")
        assert type(model) is nn.Sequential
        assert optimizer.state


def test_state_without_the_rows_is_refused_at_the_start(run):
    rule, _, (_, state), _ = run
    with torch_job():
        model, optimizer = prepare(*make(rule), name="net")
        optimizer.load_state_dict(state)
        with pytest.raises(
            ConfigError, match=r"state of the rows of 'net\.0', and the model has no rows"
        ):
            model(BATCHES[0])


def test_a_state_without_an_entry_of_rows_drops_that_of_an_earlier_one(run):
    rule, _, (values, state), _ = run
    others = {key: one for key, one in state["state"].items() if key != KEY}
    with torch_job():
        model, optimizer = prepare(*make(rule), name="net")
        model.load_state_dict(values)
        optimizer.load_state_dict(copy.deepcopy(state))
        optimizer.load_state_dict({**copy.deepcopy(state), "state": copy.deepcopy(others)})
        assert KEY not in optimizer.state_dict()["state"]


def test_parameters_of_another_list_are_refused_and_not_shifted():
    layer, dense = mpips.torch.Embedding(3, optimizer=mpips.SGD(0.1)), nn.Linear(3, 1)
    plain = nn.ParameterList([nn.Parameter(torch.ones(1)), *nn.Linear(3, 1).parameters()])
    other = Adam(plain.parameters(), 0.1)
    sum(p.sum() for p in plain).backward()
    other.step()
    with torch_job():
        _, optimizer = prepare(nn.ModuleList([layer, dense]), Adam(dense.parameters(), 0.1))
        with pytest.raises(ValueError, match="size of optimizer's group"):
            optimizer.load_state_dict(other.state_dict())


def test_an_adagrad_of_rows_alone_loads_its_own_state() -> None:
    def made() -> Any:
        model = EmbeddingBag(2, mode="sum", optimizer=mpips.Adagrad(0.5), init="uniform(1)")
        return prepare(model, torch.optim.Adagrad(model.parameters()), name="net")

    with torch_job():
        model, optimizer = made()
        for _ in range(2):
            optimizer.zero_grad()
            (model(BATCHES[0]) - 2).square().mean().backward()
            optimizer.step()
        saved = both(model, optimizer)
    (key,) = saved[1]["state"]
    with torch_job():
        model, optimizer = made()
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        model(BATCHES[0])
        found = optimizer.state_dict()["state"][key]
        assert_equal(found, saved[1]["state"][key])
