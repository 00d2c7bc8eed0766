"""A last layer that is divided between workers, in a job of one worker, and what it refuses."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch_rig import torch_job

import mpips
import mpips.torch
from mpips.errors import ConfigError
from mpips.torch import ShardedLinear
from mpips.torch.shard_workers import own_range, text_of_tag

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(8) % 5
cross_entropy = nn.functional.cross_entropy


class Model(nn.Module):
    """A model with a last layer of one of both kinds."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
        self.head = head

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x)


def linear(bias: bool = True) -> nn.Linear:
    torch.manual_seed(2)
    return nn.Linear(4, 5, bias=bias)


def prepared(divide: Any = "out_features", **options: Any) -> tuple[Any, Any]:
    rule = mpips.Adam(lr=0.1)
    model = Model(ShardedLinear.of_linear(linear(), optimizer=rule, divide=divide))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return mpips.torch.prepare(model, optimizer, **options)  # type: ignore[no-any-return]


@pytest.mark.parametrize("divide", ["out_features", "in_features"])
def test_training_is_that_of_a_linear_layer(job: Any, divide: str) -> None:
    model, optimizer = prepared(divide)
    plain = Model(linear())
    steps = torch.optim.Adam(plain.parameters(), lr=0.1)
    for n in (8, 8, 3):
        optimizer.zero_grad()
        loss = model.head.cross_entropy(model(X[:n]), Y[:n])
        loss.backward()
        optimizer.step()
        steps.zero_grad()
        expected = cross_entropy(plain.head(plain(X[:n])), Y[:n])
        expected.backward()
        steps.step()
        torch.testing.assert_close(loss, expected)
    found = model.head.to_linear()
    torch.testing.assert_close(found.weight, plain.head.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.bias, plain.head.bias, rtol=1e-4, atol=1e-5)
    body = model.state_dict()["body.0.weight"]
    torch.testing.assert_close(body, plain.body[0].weight.detach(), rtol=1e-4, atol=1e-5)
    scores, classes = model.head.topk(model(X), 2)
    best = plain.head(plain(X)).topk(2)
    assert torch.equal(classes, best.indices)
    torch.testing.assert_close(scores, best.values, rtol=1e-4, atol=1e-5)
    assert not scores.requires_grad


@pytest.mark.parametrize("divide", ["out_features", "in_features"])
def test_losses_are_reduced_as_in_torch(job: Any, divide: str) -> None:
    model, _ = prepared(divide)
    scores = linear()(model(X))
    for reduction in ("mean", "sum", "none"):
        found = model.head.cross_entropy(model(X), Y, reduction=reduction)
        torch.testing.assert_close(found, cross_entropy(scores, Y, reduction=reduction))


def test_a_state_has_all_classes_and_goes_into_another_job() -> None:
    with torch_job():
        model, optimizer = prepared()
        model.head.cross_entropy(model(X), Y).backward()
        optimizer.step()
        state = copy.deepcopy(model.state_dict())
        assert state["head.rows.keys"].tolist() == list(range(5))
        assert state["head.rows.values"].shape == (5, 5)
        before = model.head.to_linear()
    with torch_job():
        other, _ = prepared()
        other.load_state_dict(state)
        found = other.head.to_linear()
        assert torch.equal(found.weight, before.weight)
        assert torch.equal(found.bias, before.bias)


def test_a_layer_with_divided_inputs_is_called_as_a_linear_layer(job: Any) -> None:
    model, _ = prepared("in_features")
    plain, x = Model(linear()), X.reshape(2, 4, 6)
    expected, found = plain.head(plain(x)), model.head(model(x))
    torch.testing.assert_close(found, expected)
    assert found.shape == (2, 4, 5)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(
        model.body[0].weight.grad, plain.body[0].weight.grad, rtol=1e-4, atol=1e-5
    )
    of_rows = torch.cat([plain.head.weight.grad.t(), plain.head.bias.grad[None]])  # type: ignore[union-attr,operator]
    torch.testing.assert_close(model.head.weight.grad, of_rows, rtol=1e-4, atol=1e-5)
    model.head.weight.requires_grad_(False)
    assert not model.head(torch.ones(1, 4)).requires_grad
    assert model.head(torch.ones(4)).shape == (5,)


def test_a_state_with_divided_inputs_has_all_features_and_the_bias_behind_them() -> None:
    with torch_job():
        model, optimizer = prepared("in_features")
        model.head.cross_entropy(model(X), Y).backward()
        optimizer.step()
        state = copy.deepcopy(model.state_dict())
        before = model.head.to_linear()
    assert state["head.rows.keys"].tolist() == list(range(5))
    assert torch.equal(state["head.rows.values"][:4].t(), before.weight)
    assert torch.equal(state["head.rows.values"][4], before.bias)
    assert not torch.equal(before.bias, linear().bias)
    with torch_job():
        other, _ = prepared("in_features")
        other.load_state_dict(state)
        assert torch.equal(other.head.to_linear().weight, before.weight)


@pytest.mark.parametrize("divide", ["out_features", "in_features"])
def test_classes_begin_as_those_of_a_linear_layer_do(divide: Any) -> None:
    with torch_job():
        model = Model(ShardedLinear(4, 3000, divide=divide))
        mpips.torch.prepare(model)
        found = model.head.to_linear()  # type: ignore[operator,union-attr]
        for value in (found.weight, found.bias):
            assert value.abs().max() <= 0.5
            assert value.abs().max() > 0.49
            assert abs(value.mean()) < 0.03
    layer = ShardedLinear.of_linear(linear(bias=False), divide=divide)
    assert torch.equal(layer.to_linear().weight, linear(bias=False).weight)
    assert not layer.to_linear().bias.any()


def test_a_worker_pulls_and_pushes_its_own_classes_alone(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = prepared()
    model(X)
    handle, asked, pushed = model.head._access.handle, [], []
    pull, push = handle.pull, handle.push
    monkeypatch.setattr(handle, "pull", lambda keys: (asked.append(keys.tolist()), pull(keys))[1])
    monkeypatch.setattr(
        handle, "push", lambda keys, rows: (pushed.append(keys.tolist()), push(keys, rows))[1]
    )

    def two(index: int, n_workers: int, n_classes: int) -> tuple[int, int]:
        return own_range(1, 2, n_classes)

    monkeypatch.setattr("mpips.torch.sharded.own_range", two)
    y = torch.full((8,), 4)
    model.head.cross_entropy(model(X), y).backward()
    optimizer.step()
    assert asked == pushed == [[3, 4]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consistency": "ssp"}, "consistency 'ssp'"),
        ({"consistency": "asp"}, "consistency 'asp'"),
        ({"consistency": mpips.LocalSGD()}, "consistency 'local_sgd'"),
        ({"consistency": mpips.BSP(backup=1)}, "backup workers"),
        ({"overlap": True}, "overlap = True"),
        ({"stream": 1}, "stream = 1"),
        ({"stages": 2}, "stages with ShardedLinear (head)"),
    ],
)
def test_options_that_do_not_fit_are_refused(job: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda h: h(X[:, :4]), "no worker has the scores of all classes; train by"),
        (
            lambda h: h.cross_entropy(X, Y),
            "x is torch.float32 of shape (8, 6) on cpu: must be torch.f",
        ),
        (lambda h: h.cross_entropy(X[:, :4].double(), Y), "x is torch.float64 of shape (8, 4)"),
        (lambda h: h.cross_entropy(X[:, :4], Y[:3]), "targets is torch.int64 of shape (3,)"),
        (lambda h: h.cross_entropy(X[:, :4], Y.int()), "targets is torch.int32"),
        (lambda h: h.cross_entropy(X[:, :4], [0] * 8), "targets is list: must be torch.int64"),
        (lambda h: h.cross_entropy(X[:, :4], Y + 1), "worker 0 has the target 5: must be a class"),
        (lambda h: h.cross_entropy(X[:, :4], Y, reduction="max"), "reduction = 'max'"),
        (lambda h: h.topk(X[:, :4], 0), "k = 0: must be a whole number from 1 to 5"),
        (lambda h: h.topk(X[:, :4], 6), "k = 6"),
        (lambda h: copy.deepcopy(h).topk(X[:, :4]), "this ShardedLinear is in no prepared model"),
        (lambda h: ShardedLinear(4, 5).cross_entropy(X[:, :4], Y), "is in no prepared model"),
        (lambda h: ShardedLinear(0, 5), "in_features = 0"),
        (lambda h: ShardedLinear(4, True), "out_features = True"),
        (
            lambda h: ShardedLinear(4, 5, divide="rows"),
            "divide = 'rows': must be 'out_features' or",
        ),  # type: ignore[arg-type]
    ],
)
def test_uses_that_it_does_not_take_are_errors(job: Any, use: Any, message: str) -> None:
    model, _ = prepared()
    with pytest.raises(ConfigError) as caught:
        use(model.head)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda h: h(X), "x is torch.float32 of shape (8, 6) on cpu: must be torch.float32 of sh"),
        (lambda h: h(X[:, :4].double()), "x is torch.float64 of shape (8, 4)"),
        (lambda h: h([1.0] * 4), "x is list"),
        (lambda h: h.cross_entropy(X[:, :4], Y + 1), "the target 5: must be a class from 0 to 4"),
        (lambda h: h.cross_entropy(X[:, :4], Y - 1), "the target -1: must be a class"),
        (lambda h: copy.deepcopy(h)(X[:, :4]), "or use layer.to_linear()"),
    ],
)
def test_uses_that_divided_inputs_do_not_take_are_errors(job: Any, use: Any, message: str) -> None:
    model, _ = prepared("in_features")
    with pytest.raises(ConfigError) as caught:
        use(model.head)
    assert message in str(caught.value)


def test_a_run_with_such_a_layer_does_not_continue_in_memory(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = prepared()
    model(X)
    began: list[str] = []
    messages = SimpleNamespace(begin=began.append, text_of=None)
    monkeypatch.setattr(
        "mpips.torch.sharded.connection_of", lambda _: SimpleNamespace(messages=messages)
    )
    model.head.cross_entropy(model(X), Y)
    assert began == ["ShardedLinear"]
    assert messages.text_of is text_of_tag
