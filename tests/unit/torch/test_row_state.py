"""Rows in state dicts: what a script saves is its whole model, and what it loads the servers have."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch_rig import assert_equal, torch_job, values_of

import mpips
from mpips.errors import ConfigError
from mpips.torch import Embedding, EmbeddingBag, load_checkpoint, prepare

SEED = 5
IDS = torch.tensor([[3, -(2**60), 9], [2**61, 3, -1]])
UNKNOWN = torch.tensor([[7, 8, 10]])
KEYS = ["0.rows.keys", "0.rows.values", "1.weight", "1.bias"]


def make(dim: int = 2) -> nn.Sequential:
    torch.manual_seed(1)
    rule = mpips.Adagrad(0.5)
    return nn.Sequential(
        EmbeddingBag(dim, mode="sum", optimizer=rule, init="uniform(1)"), nn.Linear(dim, 1)
    )


def prepared(model: nn.Module, name: str = "net") -> Any:
    return prepare(model, SGD(model.parameters(), 0.1), name=name)


def train(model: nn.Module, optimizer: Any, n: int = 3) -> None:
    for _ in range(n):
        optimizer.zero_grad()
        (model(IDS) - 2).square().mean().backward()
        optimizer.step()


def outputs(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(IDS), model(UNKNOWN)]).clone()


def saved_and_loaded(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.fixture(scope="module")
def trained() -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The state of a model that a job has trained, its outputs, and its rows as the servers had them."""
    with torch_job(seed=SEED):
        model, optimizer = prepared(make())
        train(model, optimizer)
        state = saved_and_loaded(model.state_dict())
        rows = model[0].rows(state["0.rows.keys"])[0].clone()
        return state, outputs(model), rows


def test_a_state_has_every_row_after_the_newest_step(trained):
    state, _, rows = trained
    assert list(state) == KEYS
    assert state["0.rows.keys"].tolist() == sorted(IDS.unique().tolist())
    assert state["0.rows.values"].dtype == torch.float32
    assert torch.equal(state["0.rows.values"], rows)


def test_a_plain_model_computes_with_loaded_rows(trained):
    state, expected, _ = trained
    model = make()
    assert str(model.load_state_dict(state)) == "<All keys matched successfully>"
    assert torch.equal(outputs(model), expected)
    # The state of a model without a job is that which it has loaded.
    again = make()
    again.load_state_dict(saved_and_loaded(model.state_dict()))
    assert torch.equal(outputs(again), expected)
    assert_equal(values_of(again), dict(state))


def test_entries_without_metadata_keep_the_rows(trained):
    state, expected, _ = trained
    model = make()
    model.load_state_dict(dict(state))
    assert torch.equal(outputs(model)[:2], expected[:2])
    assert not torch.equal(
        outputs(model)[2:], expected[2:]
    )  # of seed 0, and of a table without prefix


@pytest.mark.parametrize("when", ["before prepare", "after prepare"])
def test_servers_begin_with_loaded_rows(when, trained):
    state, expected, _ = trained
    with torch_job(seed=SEED):
        model = make()
        if when == "before prepare":
            model.load_state_dict(state)
        model, optimizer = prepared(model)
        if when == "after prepare":
            model.load_state_dict(state)
        assert_equal(values_of(model), dict(state))
        assert torch.equal(outputs(model), expected)
        assert_equal(values_of(model), dict(state))
        # Adagrad of a new row changes it by the whole rate at its first update.
        optimizer.zero_grad()
        model(IDS).sum().backward()
        optimizer.step()
        changes = (model.state_dict()["0.rows.values"] - state["0.rows.values"]).abs()
        assert torch.allclose(changes, torch.tensor(0.5))


def test_the_newest_load_counts_and_replaces_all_rows(trained):
    state, expected, _ = trained
    other = dict(state)
    other["0.rows.keys"] = torch.tensor([7, -5])
    other["0.rows.values"] = torch.ones(2, 2)
    with torch_job(seed=SEED):
        model, _ = prepared(make())
        model.load_state_dict(other)
        model.load_state_dict(state)
        assert torch.equal(outputs(model), expected)
        assert model.state_dict()["0.rows.keys"].tolist() == state["0.rows.keys"].tolist()


def test_a_layer_without_rows_has_both_entries():
    state = make().state_dict()
    assert (state["0.rows.keys"].shape, state["0.rows.values"].shape) == ((0,), (0, 2))
    assert not make().load_state_dict(state).missing_keys
    with torch_job():
        model, _ = prepared(make())
        assert model.state_dict()["0.rows.keys"].shape == (0,)
        model.load_state_dict(state)
        assert outputs(model).isfinite().all()
        assert model.state_dict()["0.rows.values"].shape == (0, 2)


def test_entries_that_lack_are_named(trained):
    state, _, _ = trained
    model = make()
    without = {name: one for name, one in state.items() if ".rows." not in name}
    with pytest.raises(RuntimeError, match=r'Missing key\(s\).*"0.rows.keys", "0.rows.values"'):
        model.load_state_dict(without)
    found = model.load_state_dict({**without, "0.weight": torch.zeros(3, 2)}, strict=False)
    assert found.missing_keys == ["0.rows.keys", "0.rows.values"]
    assert found.unexpected_keys == ["0.weight"]
    with pytest.raises(ConfigError, match="in no prepared model"):
        model(IDS)
    half = {name: one for name, one in state.items() if name != "0.rows.values"}
    assert model.load_state_dict(half, strict=False).missing_keys == ["0.rows.values"]


@pytest.mark.parametrize(
    ("keys", "values", "sentence"),
    [
        (
            None,
            torch.zeros(5, 4),
            r"0.rows.values is torch.float32 of shape \(5, 4\): must be floats of ",
        ),
        (
            None,
            torch.zeros(4, 2),
            r"must be floats of shape \(5, 2\), one row of the layer's dim = 2",
        ),
        (None, torch.zeros(5, 2, dtype=torch.int64), "0.rows.values is torch.int64 of"),
        (None, torch.zeros(5, 2, device="meta"), "0.rows.values is on the meta device: must be"),
        (None, 5, "0.rows.values is int: must be a tensor with values"),
        (
            torch.zeros(5),
            None,
            r"0.rows.keys is torch.float32 of shape \(5,\): must be int64 of shape",
        ),
        (
            torch.tensor([5, 2, 5, 1, 0]),
            None,
            "0.rows.keys has the key 5 twice: each key must have one",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_one_sentence(keys, values, sentence, trained):
    state = dict(trained[0])
    state["0.rows.keys"] = state["0.rows.keys"] if keys is None else keys
    state["0.rows.values"] = state["0.rows.values"] if values is None else values
    model = make()
    with pytest.raises(RuntimeError, match=sentence) as caught:
        model.load_state_dict(state)
    assert str(caught.value).count("\n") == 1
    with pytest.raises(ConfigError, match="in no prepared model"):
        model(IDS)


def test_keys_in_any_order_and_other_floats_are_taken(trained):
    state, expected, _ = trained
    order = torch.tensor([3, 1, 4, 0, 2])
    mixed = {**state, "0.rows.keys": state["0.rows.keys"][order]}
    mixed["0.rows.values"] = state["0.rows.values"][order].double()
    model = make()
    model.load_state_dict(mixed)
    assert torch.equal(outputs(model)[:2], expected[:2])
    assert_equal(values_of(model), dict(state))


@pytest.mark.parametrize("assign", [False, True])
def test_a_layer_has_the_memory_of_the_state_only_with_assign(assign, trained):
    state = {name: one.clone() for name, one in trained[0].items()}
    model = make()
    model.load_state_dict(state, assign=assign)
    state["0.rows.values"].zero_()
    is_zero = not model.state_dict()["0.rows.values"].any()
    assert is_zero == assign


def test_a_started_job_refuses_rows_of_one_layer(trained):
    state, _, _ = trained
    with torch_job():
        model, _ = prepared(make())
        model(IDS)
        own = {"rows.keys": state["0.rows.keys"], "rows.values": state["0.rows.values"]}
        with pytest.raises(
            ConfigError, match=r"of the embedding 'net.0' comes too late: the job has"
        ):
            model[0].load_state_dict(own)


def test_a_layer_at_two_paths_is_read_once():
    with torch_job():
        layer = Embedding(2, optimizer=mpips.SGD(1.0), init="zeros")
        model, optimizer = prepare(nn.ModuleList([layer, layer]))
        for step in range(1, 3):
            model[1](torch.tensor([step])).sum().backward()
            optimizer.step()
            state = model.state_dict()
            assert state["0.rows.values"] is state["1.rows.values"]
            assert state["1.rows.keys"].tolist() == list(range(1, step + 1))
            origins = [state._metadata[name]["mpips_rows"] for name in ("0", "1")]
            assert origins[0] == origins[1]
        # The same destination gets new rows.
        model[1](torch.tensor([1])).sum().backward()
        optimizer.step()
        found = model.state_dict(destination=state)
        assert found["0.rows.values"][0].tolist() == [-2, -2]
        assert found["1.rows.values"] is found["0.rows.values"]


def test_copies_read_the_rows_of_the_job_and_pickles_have_them(trained):
    state, expected, _ = trained
    with torch_job(seed=SEED):
        model, optimizer = prepared(make())
        train(model, optimizer)
        copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        shallow = copy.copy(model[0])
        assert_equal(values_of(copied), dict(state))
        train(model, optimizer, 1)
        now = model.state_dict()["0.rows.values"]
        assert torch.equal(copied.state_dict()["0.rows.values"], now)
        assert torch.equal(shallow.state_dict()["rows.values"], now)
        assert torch.equal(outputs(pickled), expected)
        assert_equal(values_of(pickled), dict(state))
        # A copy that loads rows has its own ones, and the job goes on.
        copied.load_state_dict(state)
        assert torch.equal(outputs(copied), expected)
        other = copy.deepcopy(model)
        other[0].load(copied[0]._rows_now())
        assert torch.equal(other.state_dict()["0.rows.values"], state["0.rows.values"])
        assert torch.equal(model.state_dict()["0.rows.values"], now)
        train(model, optimizer, 1)
        assert not torch.equal(model.state_dict()["0.rows.values"], now)
    assert torch.equal(outputs(pickled), expected)


def test_a_layer_of_a_model_has_its_rows_after_the_newest_step():
    with torch_job():
        model: Any = nn.Sequential(Embedding(2, optimizer=mpips.SGD(1.0), init="zeros"))
        model, optimizer = prepare(model)
        for step in range(1, 3):
            model(torch.tensor([5])).sum().backward()
            optimizer.step()
            # The prepared model has no part in this call.
            assert nn.Module.state_dict(model[0])["rows.values"].tolist() == [[-step, -step]]


def test_a_layer_that_is_the_model_itself():
    with torch_job():
        layer, optimizer = prepare(Embedding(2, optimizer=mpips.SGD(1.0), init="zeros"))
        layer(IDS).sum().backward()
        optimizer.step()
        state = layer.state_dict()
        assert list(state) == ["rows.keys", "rows.values"]
        for plain in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
            assert type(plain) is Embedding
            assert_equal(values_of(plain), state)
    other = Embedding(2, init="zeros")
    other.load_state_dict(state)
    assert other(torch.tensor([3, 4])).tolist() == [[-2, -2], [0, 0]]


class Scaled(Embedding):
    """A layer with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(2, init="zeros")
        self.scale = nn.Parameter(torch.tensor([3.0]))


def test_other_parameters_of_a_subclass_are_in_the_state():
    layer = Scaled()
    state = layer.state_dict()
    assert list(state) == ["scale", "rows.keys", "rows.values"]
    state["scale"] = torch.tensor([4.0])
    layer.load_state_dict(state)
    assert layer.scale.item() == 4


def test_a_checkpoint_and_a_state_are_exchanged(trained, tmp_path):
    pytest.importorskip("h5py", reason="checkpoints need h5py")
    state, expected, _ = trained
    with torch_job(seed=SEED, save=tmp_path):
        model, optimizer = prepared(make())
        model.load_state_dict(state)
        train(model, optimizer, 1)
        state, expected = saved_and_loaded(model.state_dict()), outputs(model)
    plain = make()
    load_checkpoint(plain, tmp_path, name="net", seed=SEED)
    assert torch.equal(outputs(plain), expected)
    assert_equal(values_of(plain), dict(state))
    with torch_job(seed=SEED):
        model, _ = prepared(plain)
        assert torch.equal(outputs(model), expected)
    # A run that continues has its own rows, whatever the script loads.
    with torch_job(seed=SEED, save=tmp_path):
        model, _ = prepared(make())
        model.load_state_dict({**state, "0.rows.values": torch.zeros(5, 2)})
        assert torch.equal(outputs(model), expected)
