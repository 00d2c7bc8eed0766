"""A memory of n-grams: as torch's own table with the same hash, announced, saved, exported, refused."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import pulled, relative, torch_job

import mpips
import mpips.torch
from mpips.errors import ConfigError
from mpips.torch import NgramEmbedding, prepare
from mpips.torch.job import TorchJob
from mpips.torch.plain_ngrams import PlainNgrams

ROWS = 50
TOKENS = torch.tensor([[3, 1, 3, 1, 3], [2**40, -5, 0, 0, 2**63 - 1]])
FORMS: dict[str, dict[str, Any]] = {
    "sum": {"dim": 4},
    "concat": {"dim": 8, "combine": "concat", "heads": 2},
    "padding": {"dim": 4, "pad_id": 0, "heads": 2},
}


def layer(**options: Any) -> NgramEmbedding:
    rule = {"optimizer": mpips.SGD(0.5), "init": "normal(1)"}
    return NgramEmbedding(**{"rows": ROWS, **rule, **options})


def plain_of(model: NgramEmbedding) -> PlainNgrams:
    """Return torch's own table with the initial rows of a layer."""
    return model.to_torch()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("has_mask", [False, True])
def test_training_is_that_of_a_table_of_torch(job, form, has_mask):
    model, optimizer = prepare(layer(**FORMS[form]))
    plain = plain_of(model)
    other = torch.optim.SGD(plain.parameters(), 0.5)
    mask = torch.rand(TOKENS.shape, generator=torch.Generator().manual_seed(2)) > 0.3
    arguments = (TOKENS, mask) if has_mask else (TOKENS,)
    for _ in range(3):
        found, wanted = model(*arguments), plain(*arguments)
        assert found.shape == (2, 5, FORMS[form]["dim"])
        assert relative(found, wanted) <= 1e-6
        for result, one in ((found, optimizer), (wanted, other)):
            one.zero_grad()
            (result * torch.arange(result.numel()).view(result.shape) / 20).sum().backward()
            one.step()
    if has_mask:
        assert not found[~mask].any()
    keys = np.arange(len(plain.weight))
    assert relative(pulled(job, "embedding", keys), plain.weight.detach()) <= 1e-6


def test_gradients_of_passes_add_up_as_in_torch(job):
    model, optimizer = prepare(layer(dim=4))
    plain = plain_of(model)
    other = torch.optim.SGD(plain.parameters(), 0.5)
    for one, step in ((model, optimizer), (plain, other)):
        for tokens in (TOKENS, TOKENS[:1], TOKENS.flip(0)):
            one(tokens).square().sum().div(50).backward()
        step.step()
    with torch.no_grad():
        assert relative(model(TOKENS), plain(TOKENS)) <= 1e-6
    # The rows without a gradient are not there.
    n_rows = len(np.unique(plain.keys(torch.cat([TOKENS, TOKENS.flip(0)])).numpy()))
    assert len(model.state_dict()["rows.keys"]) == n_rows


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (3,), (1, 1), (2, 2, 3)])
@pytest.mark.parametrize("form", FORMS)
def test_any_shape_of_tokens_has_results(job, form, shape):
    model, optimizer = prepare(layer(orders=(2, 6), **FORMS[form]))
    plain, tokens = plain_of(model), torch.arange(int(np.prod(shape))).view(shape)
    found = model(tokens)
    assert found.shape == (*shape, FORMS[form]["dim"])
    assert torch.allclose(found, plain(tokens))
    found.sum().backward()
    optimizer.step()
    assert model(tokens).shape == found.shape


def test_tokens_may_be_strided_and_all_padding(job):
    model, _ = prepare(layer(dim=4, pad_id=0))
    columns = torch.arange(1, 13).view(4, 3).T
    assert not columns.is_contiguous()
    assert torch.equal(model(columns), model(columns.contiguous()))
    assert not model(torch.zeros(2, 3, dtype=torch.int64)).any()
    # A later token changes no result before it.
    changed = columns.clone()
    changed[:, -1] = 99
    assert torch.equal(model(columns)[:, :-1], model(changed)[:, :-1])


def test_evaluation_makes_no_rows(job):
    model, _ = prepare(layer(dim=4, rows=2**40))
    model.eval()
    with torch.no_grad():
        found = model(TOKENS)
    assert found.any()
    assert not found.requires_grad
    assert not len(model.state_dict()["rows.keys"])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_model_trains_as_one_that_is_not(job):
    torch.compiler.reset()
    model = nn.Sequential(layer(dim=4), nn.Linear(4, 2))
    model, optimizer = prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    plain = nn.Sequential(plain_of(model[0]), copy.deepcopy(model[1]))
    other = torch.optim.SGD(
        [{"params": plain[0].parameters(), "lr": 0.5}, {"params": plain[1].parameters()}], 0.1
    )
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        for one, step in ((compiled, optimizer), (plain, other)):
            step.zero_grad()
            one(TOKENS).square().mean().backward()
            step.step()
    assert torch.allclose(model(TOKENS), plain(TOKENS), atol=1e-6)


def run(n_steps: int = 6, ahead: int | None = None, announces: bool = False, **options: Any):
    """Train on a prepared loader; return the bits at the end, and what was seen of the look-ahead."""
    tokens = torch.randint(0, 9, (24, 7), generator=torch.Generator().manual_seed(3))
    seen = []
    with torch_job() as script:
        torch.manual_seed(1)
        memory = layer(dim=4, ahead=ahead, **options)
        model = nn.Sequential(memory, nn.Linear(4, 9))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DataLoader(TensorDataset(tokens), batch_size=4)
        model, optimizer, loader = prepare(model, optimizer, loader)
        for _ in range(2):
            for (batch,) in loader:
                optimizer.zero_grad()
                if announces:
                    memory.announce(batch[:, :-1])
                    seen.append(script.worker.table("0")._prefetched is not None)
                logits = model(batch[:, :-1])
                nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
                handle = script.worker.table("0")
                if ahead:
                    seen.append(handle.has_ahead and handle._ahead._cache.wanted.size > 0)
                if announces:
                    seen.append(handle._prefetched is None)
                optimizer.step()
        assert not script.worker.table("0").has_ahead
        places = dict(script.part(TorchJob).position())
        state = model.state_dict()
    return [value.numpy().tobytes() for value in state.values()], places["loader 0"], seen


def test_rows_that_come_ahead_or_are_announced_change_no_bit():
    bits, place, _ = run()
    for options in ({"ahead": 3}, {"announces": True}, {"ahead": 2, "announces": False}):
        found, at, seen = run(**options)
        assert (found, at) == (bits, place)
        assert seen
        assert all(seen)


def test_a_second_loop_over_the_loader_goes_without_the_look_ahead(job):
    memory = layer(dim=4, ahead=2)
    loader = DataLoader(TensorDataset(torch.randint(0, 9, (12, 5))), batch_size=3)
    memory, optimizer, loader = prepare(memory, None, loader)
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 4
    del first
    seen = []
    for (tokens,) in loader:
        memory(tokens).sum().backward()
        optimizer.step()
        seen.append(job.worker.table("embedding").has_ahead)
    assert seen == [True] * 4


@pytest.mark.parametrize(
    ("batch", "finds"),
    [
        (TOKENS, True),
        ((TOKENS, 1), True),
        ({"input_ids": TOKENS, "labels": 1}, True),
        ({"text": TOKENS}, False),
        ([TOKENS.float()], False),
        ((), False),
        (5, False),
    ],
)
def test_tokens_are_found_in_the_usual_batches(job, batch, finds):
    model, _ = prepare(layer(dim=4))
    found = model.keys_of_batch(batch)
    assert list(found) == ["embedding"] * finds
    if finds:
        assert np.array_equal(found["embedding"].reshape(2, 5, 2), model.hash.keys(TOKENS.numpy()))


def test_an_announcement_is_for_these_tokens_only(job):
    model, _ = prepare(layer(dim=4))
    expected, others = model(TOKENS), model(TOKENS.flip(0))
    handle = job.worker.table("embedding")
    tokens = TOKENS.clone()
    model.announce(tokens)
    tokens.copy_(TOKENS.flip(0))
    assert torch.equal(model(tokens), others)
    model.announce(TOKENS)
    assert torch.equal(model(TOKENS, torch.ones(2, 5, dtype=torch.bool)), expected)
    assert handle._prefetched is None


@pytest.mark.parametrize("rule", [mpips.RowAdagrad(0.2), mpips.Adam(0.1), mpips.SGD(0.5)])
def test_rows_of_bf16_train_like_those_of_float32(rule):
    def trained(dtype: str) -> torch.Tensor:
        with torch_job():
            model, optimizer = prepare(layer(dim=32, optimizer=rule, row_dtype=dtype))
            for _ in range(10):
                model(TOKENS).square().mean().backward()
                optimizer.step()
            found = model.state_dict()["rows.values"]
            if dtype == "bf16":
                assert not (found.view(torch.int32) & 0xFFFF).any()
                fresh = TOKENS + 1000  # most of them without a row
                for tokens in (TOKENS, fresh):
                    assert torch.equal(model(tokens), model.to_torch()(tokens))
            return found

    half, whole = trained("bf16"), trained("float32")
    assert not torch.equal(half, whole)
    assert relative(half, whole) < 0.02


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_a_state_goes_on_in_a_new_job(dtype):
    def make() -> NgramEmbedding:
        return layer(dim=4, optimizer=mpips.RowAdagrad(0.5), row_dtype=dtype)

    def step(model: Any, optimizer: Any) -> None:
        model(TOKENS).square().mean().backward()
        optimizer.step()

    with torch_job(seed=4):
        model, optimizer = prepare(make())
        step(model, optimizer)
        file = io.BytesIO()
        torch.save((model.state_dict(), optimizer.state_dict()), file)
        step(model, optimizer)
        wanted = model(TOKENS).detach()
        pickled = pickle.loads(pickle.dumps(model))
    states = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert torch.equal(pickled(TOKENS), wanted)
    assert torch.equal(copy.deepcopy(pickled)(TOKENS), wanted)
    with torch_job(seed=4):
        model, optimizer = prepare(make())
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        step(model, optimizer)
        assert torch.equal(model(TOKENS), wanted)


def test_a_state_of_another_hash_is_refused(job):
    model, _ = prepare(layer(dim=4))
    state = model.state_dict()
    for other in ({"seed": 1}, {"rows": 60}, {"pad_id": 0}, {"orders": (2, 4)}):
        with pytest.raises(RuntimeError, match=r"rows.keys are of NgramHash\(orders=\(2, 3\)"):
            layer(dim=4, **other).load_state_dict(state)
    fresh = layer(dim=4)
    fresh.load_state_dict(state)
    assert torch.equal(fresh(TOKENS), model(TOKENS))


def test_a_restart_with_another_hash_is_refused(tmp_path):
    pytest.importorskip("h5py", reason="checkpoints need h5py")

    def go(**options: Any) -> int:
        with torch_job(save=tmp_path):
            loader = DataLoader(TensorDataset(TOKENS))
            model, optimizer, loader = prepare(layer(dim=4, **options), None, loader)
            n_steps = 0
            for _ in mpips.torch.epochs(2):
                for (tokens,) in loader:
                    model(tokens).sum().backward()
                    optimizer.step()
                    n_steps += 1
            return n_steps

    assert go() == 4
    with pytest.raises(ConfigError, match=r"keys of 'embedding' in the checkpoint are of .*seed=0"):
        go(seed=3)
    assert go() == 0


def test_an_export_is_a_layer_of_torch(job):
    model, optimizer = prepare(layer(dim=8, combine="concat", heads=2, pad_id=0))
    model(TOKENS).square().mean().backward()
    optimizer.step()
    exported = model.to_torch()
    assert torch.equal(exported(TOKENS), model(TOKENS))
    assert list(exported.state_dict()) == ["weight"]
    assert exported.weight.shape == (4 * ROWS, 2)
    rows = model.state_dict()
    assert torch.equal(exported.weight[rows["rows.keys"]], rows["rows.values"])
    again = pickle.loads(pickle.dumps(exported))
    assert torch.equal(again(TOKENS), model(TOKENS))


@pytest.mark.parametrize(
    ("tokens", "mask", "sentence"),
    [
        (TOKENS.int(), None, "'embedding' are torch.int32 on cpu: must be an int64 tensor"),
        ([[1, 2]], None, "'embedding' are list: must be an int64 tensor"),
        (torch.tensor(3), None, "are one number: must have shape"),
        (TOKENS, TOKENS, r"mask .* is torch.int64 of shape \(2, 5\): must be a bool tensor"),
        (TOKENS, TOKENS[0] > 1, r"torch.bool of shape \(5,\): must be .* tokens, \(2, 5\)"),
        (TOKENS, True, "mask of an NgramEmbedding is bool"),
    ],
)
def test_other_tokens_are_refused(job, tokens, mask, sentence):
    model, _ = prepare(layer(dim=4))
    for call in (model, model.announce, model.keys):
        with pytest.raises(ConfigError, match=sentence):
            call(tokens, mask)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dim": 4, "combine": "mean"}, "combine = 'mean': must be one of sum, concat"),
        ({"dim": 5, "combine": "concat"}, "dim = 5 with combine = 'concat': .* multiple of 2"),
        ({"dim": 0}, "dim = 0: must be a whole number"),
        ({"dim": 4, "ahead": -1}, "ahead = -1: must be a whole number, 0 or more, or None"),
        ({"dim": 4, "row_dtype": "int8"}, "row_dtype = 'int8': must be one of"),
        ({"dim": 4, "orders": (3, 1)}, r"orders = \(3, 1\)"),
    ],
)
def test_other_options_are_refused(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        layer(**options)


def test_a_layer_without_a_job_has_no_rows_but_keys():
    model = layer(dim=4)
    for call in (model, lambda _: model.to_torch()):
        with pytest.raises(ConfigError, match="NgramEmbedding is in no prepared model"):
            call(TOKENS)
    model.announce(TOKENS)
    assert model.keys(TOKENS).shape == (10, 2)


def test_a_table_that_does_not_fit_in_memory_is_not_exported(job):
    model, _ = prepare(layer(dim=4, rows=2**50))
    with pytest.raises(ConfigError, match="does not fit in memory"):
        model.to_torch()
