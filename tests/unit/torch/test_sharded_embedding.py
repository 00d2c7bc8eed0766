"""An embedding that is divided between workers, in a job of one worker, and what it refuses."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_rig import torch_job

import mpips
import mpips.torch
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.initial_rows import initial_rows
from mpips.torch import ShardedEmbedding
from mpips.torch.id_shards import ShardedLookup
from mpips.torch.shard_workers import own_range

N, DIM = 9, 4
IDS = torch.tensor([[1, 8, 1], [0, 1, 4]])
TARGETS = torch.arange(24.0).reshape(2, 3, DIM)


def plain(padding_idx: int | None = None) -> nn.Embedding:
    torch.manual_seed(2)
    return nn.Embedding(N, DIM, padding_idx)


def prepared(layer: ShardedEmbedding, **options: Any) -> tuple[Any, Any]:
    model = nn.ModuleDict({"words": layer})
    return mpips.torch.prepare(model, **options)  # type: ignore[no-any-return]


def of_plain(padding_idx: int | None = None) -> ShardedEmbedding:
    return ShardedEmbedding.of_embedding(plain(padding_idx), optimizer=mpips.SGD(lr=0.25))


@pytest.mark.parametrize("padding_idx", [None, 0, -1])
def test_training_has_the_bits_of_an_embedding_of_torch(job: Any, padding_idx: int | None) -> None:
    model, optimizer = prepared(of_plain(padding_idx))
    expected = plain(padding_idx)
    steps = torch.optim.SGD(expected.parameters(), lr=0.25)
    for ids in (IDS, IDS[:0], IDS.int(), IDS[1, 2]):
        optimizer.zero_grad()
        found = model["words"](ids)
        (found - TARGETS[: len(found)] if ids.ndim else found).square().sum().backward()
        optimizer.step()
        steps.zero_grad()
        rows = expected(ids)
        (rows - TARGETS[: len(rows)] if ids.ndim else rows).square().sum().backward()
        steps.step()
        assert torch.equal(found, rows)
        assert found.shape == (*ids.shape, DIM)
    end = model["words"].to_embedding()
    assert torch.equal(end.weight, expected.weight)
    assert not torch.equal(end.weight, plain(padding_idx).weight)
    assert end.padding_idx == expected.padding_idx
    assert end.weight.requires_grad


@pytest.mark.parametrize(("n_passes", "is_whole"), [(1, False), (2, True)])
def test_gradients_of_several_calls_and_passes_add_up_as_in_torch(
    job: Any, n_passes: int, is_whole: bool
) -> None:
    """Sums of several passes have another order than in torch, so these gradients are integers."""
    model, optimizer = prepared(of_plain())
    expected = plain()
    steps = torch.optim.SGD(expected.parameters(), lr=0.25)
    factors = 9 * torch.randn(3, 2, 3, DIM, generator=torch.Generator().manual_seed(7))
    factors = factors.round() if is_whole else factors
    for layer in (model["words"], expected):
        for _ in range(n_passes):
            calls = zip((IDS, IDS // 2, IDS), factors, strict=True)
            total: Any = sum((layer(ids) * factor).sum() for ids, factor in calls)
            total.backward()
    optimizer.step()
    steps.step()
    assert torch.equal(model["words"].to_embedding().weight, expected.weight)


def test_rows_begin_with_values_of_id_and_seed() -> None:
    with torch_job() as script:
        layer = ShardedEmbedding(3000, DIM)
        prepared(layer)
        rows = layer(torch.arange(3000)).detach()
        table = layer.table("words", BSP())
        expected = initial_rows(table, script.seed, np.arange(3000))
        assert torch.equal(rows, torch.from_numpy(expected))
        assert torch.equal(layer.to_embedding().weight, rows)
        # The distribution of torch.nn.Embedding.
        assert abs(rows.mean()) < 0.03
        assert abs(rows.std() - 1) < 0.03


def test_a_padding_id_has_zeros_and_is_in_no_pull(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = ShardedEmbedding(N, DIM, 1)
    prepared(layer)
    assert layer(torch.tensor([2])).any()
    assert layer._access is not None
    handle, asked = layer._access.handle, []
    assert handle is not None
    pull = handle.pull
    monkeypatch.setattr(handle, "pull", lambda keys: (asked.append(keys.tolist()), pull(keys))[1])
    rows = layer(IDS)
    assert asked == [[0, 4, 8]]
    assert (rows == 0).all(-1).equal(IDS == 1)
    assert not layer.to_embedding().weight[1].any()


def test_a_state_has_the_trained_rows_and_goes_into_another_job() -> None:
    with torch_job():
        model, optimizer = prepared(ShardedEmbedding(N, DIM))
        model["words"](IDS).sum().backward()
        optimizer.step()
        state = copy.deepcopy(model.state_dict())
        assert state["words.rows.keys"].tolist() == [0, 1, 4, 8]
        before = model["words"].to_embedding().weight
        assert torch.equal(before[[0, 1, 4, 8]], state["words.rows.values"])
    with torch_job():
        other, _ = prepared(ShardedEmbedding(N, DIM))
        other.load_state_dict(state)
        assert torch.equal(other["words"].to_embedding().weight, before)


def test_rows_have_no_gradients_where_torch_has_none(job: Any) -> None:
    model, _ = prepared(of_plain())
    with torch.no_grad():
        assert not model["words"](IDS).requires_grad
    model["words"].weight.requires_grad_(False)
    assert not model["words"](IDS).requires_grad


def test_a_worker_pulls_and_pushes_its_own_rows_alone(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = prepared(of_plain())
    layer = model["words"]
    layer(IDS)
    handle, asked, pushed = layer._access.handle, [], []
    pull, push = handle.pull, handle.push
    monkeypatch.setattr(handle, "pull", lambda keys: (asked.append(keys.tolist()), pull(keys))[1])
    monkeypatch.setattr(
        handle, "push", lambda keys, rows: (pushed.append(keys.tolist()), push(keys, rows))[1]
    )
    # The ids of the second of two workers, of which the first one has no sample.
    first, end = own_range(1, 2, N)
    upper = IDS[(first <= IDS) & (end > IDS)]
    layer(upper).sum().backward()
    optimizer.step()
    assert asked == pushed == [[8]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_norm": 1.0}, "max_norm = 1.0 is not accepted: a lookup does not change rows"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq = True is not accepted"),
        ({"sparse": True}, "sparse = True is not accepted: only rows of the step are pushed"),
        ({"dtype": torch.float16}, "dtype = torch.float16 is not accepted: rows are float32"),
        ({"padding_idx": 9}, "padding_idx = 9: must be None or a whole number from -9 to 8"),
        ({"padding_idx": -10}, "padding_idx = -10"),
        ({"padding_idx": True}, "padding_idx = True"),
        ({"padding_idx": 1.0}, "padding_idx = 1.0"),
        ({"row_dtype": "int8"}, "row_dtype"),
        ({"init": "normal"}, "initializer 'normal'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ShardedEmbedding(N, DIM, **options)
    assert message in str(caught.value)
    assert (
        ShardedEmbedding(N, DIM, -9, None, 1.0, False, False, dtype=torch.float32).padding_idx == 0
    )


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda e: e(IDS + 1), "worker 0 has the id 9: must be from 0 to 8"),
        (lambda e: e(IDS - 1), "worker 0 has the id -1"),
        (lambda e: e((IDS + 1).int()), "worker 0 has the id 9"),
        (
            lambda e: e(IDS.float()),
            "ids are torch.float32 on cpu: must be an int64 or int32 tensor",
        ),
        (lambda e: e(IDS.to("meta")), "ids are torch.int64 on meta"),
        (lambda e: e([1, 2]), "ids are list"),
        (lambda e: copy.deepcopy(e)(IDS), "this ShardedEmbedding is in no prepared model"),
        (lambda e: ShardedEmbedding(N, DIM)(IDS), "or use layer.to_embedding()"),
        (lambda e: ShardedEmbedding(N, DIM).to_embedding(), "is in no prepared model"),
        (lambda e: ShardedEmbedding(0, DIM), "num_embeddings = 0: must be a whole number of 1"),
        (lambda e: ShardedEmbedding(N, 2.0), "embedding_dim = 2.0"),  # type: ignore[arg-type]
    ],
)
def test_uses_that_it_does_not_take_are_errors(job: Any, use: Any, message: str) -> None:
    model, _ = prepared(of_plain())
    with pytest.raises(ConfigError) as caught:
        use(model["words"])
    assert message in str(caught.value)


def test_embeddings_of_torch_that_it_cannot_continue_are_refused() -> None:
    for options, message in (
        ({"max_norm": 2.0}, "max_norm = 2.0"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq = True"),
    ):
        with pytest.raises(ConfigError, match=message):
            ShardedEmbedding.of_embedding(nn.Embedding(N, DIM, **options))  # type: ignore[arg-type]
    padded = nn.Embedding.from_pretrained(torch.ones(N, DIM), padding_idx=3)
    with pytest.raises(
        ConfigError, match="the row of padding_idx = 3 is not zeros: set it to zeros"
    ):
        ShardedEmbedding.of_embedding(padded)
    copied = plain()
    layer = ShardedEmbedding.of_embedding(copied)
    with torch.no_grad():
        copied.weight.zero_()
    assert torch.equal(layer.to_embedding().weight, plain().weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"consistency": "asp"},
            "with ShardedEmbedding and consistency 'asp': all workers compute",
        ),
        ({"consistency": mpips.BSP(backup=1)}, "backup workers"),
        ({"overlap": True}, "overlap = True"),
        ({"stages": 2}, "stages with ShardedEmbedding (words)"),
    ],
)
def test_options_that_do_not_fit_are_refused(job: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(of_plain(), **options)
    assert message in str(caught.value)


def test_a_run_with_such_a_layer_does_not_continue_in_memory(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = prepared(of_plain())
    began: list[str] = []
    messages = SimpleNamespace(begin=began.append, text_of=None)
    monkeypatch.setattr(
        "mpips.torch.sharded.connection_of", lambda _: SimpleNamespace(messages=messages)
    )
    model["words"](IDS)
    assert began == ["ShardedEmbedding"]


def test_backward_compares_the_programs_before_its_messages() -> None:
    """A message has no name, so a worker in another pass would take the one of this pass."""
    calls: list[str] = []

    class Workers:
        index, n_workers = 0, 1

        def gather(self, what: str, payload: bytes) -> list[bytes]:
            calls.append(what)
            return [payload]

        def swap(self, parts: list[Any]) -> list[Any]:
            calls.append("swap")
            return parts

    from mpips.torch.id_shards import divided_ids

    workers: Any = Workers()
    rows = torch.ones(N, DIM, requires_grad=True)
    apply: Any = ShardedLookup.apply
    found = apply(rows, divided_ids(workers, np.arange(N), N, None), workers)
    found.sum().backward()
    assert calls == ["the ids", "swap", "swap", "the gradients of the rows", "swap"]
