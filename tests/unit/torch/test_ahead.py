"""Values that are copied while the worker computes: when copies begin, and that all end in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch_rig import assert_equal, batches, torch_job, values_of

import mpips
from mpips.errors import ConfigError
from mpips.torch import ahead, prepare

X = batches(4, 5, 4)


class Deferred:
    """An executor that does the work as late as it can: when the result is asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def submit(self, function: Callable[..., None], *arguments: Any) -> Any:
        executor = self

        class Copy:
            is_done = False

            def result(self) -> None:
                if not self.is_done:
                    executor.log.append("copied")
                    function(*arguments)
                self.is_done = True

        self.log.append("begun")
        return Copy()


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)])


def train(model: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    for x in X:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return values_of(model)


def streamed(k: int | None, executor: Any = None) -> tuple[Any, Any]:
    model = net()
    found: tuple[Any, Any] = prepare(model, SGD(model.parameters(), 0.5), stream=k, overlap=True)
    if executor is not None:
        model._mpips_stream._ahead = ahead.Ahead(lambda: executor, 0)
    return found


@pytest.mark.parametrize("k", [2, 3])
def test_late_copies_change_no_bit(k):
    with torch_job():
        expected = train(*streamed(None))
    executor = Deferred()
    with torch_job():
        assert_equal(train(*streamed(k, executor)), expected)
    assert executor.log.count("copied") > 20


def test_one_layer_alone_leaves_no_place_for_the_next_one():
    executor = Deferred()
    with torch_job():
        train(*streamed(1, executor))
    assert executor.log == []


def test_the_next_layer_is_copied_while_a_layer_computes():
    executor = Deferred()
    events: list[Any] = []
    with torch_job():
        model, optimizer = streamed(2, executor)
        train(model, optimizer)
        for i, layer in enumerate(model):
            layer.register_forward_hook(
                lambda *_, i=i: events.append((i, executor.log.count("begun"))) and None
            )
        model(X[0])
        executor.log.clear()
        events.clear()
        model(X[0])
    # The weight and the bias of layer i + 1 begin before layer i returns; layer 0 follows the last one.
    begun = [count for _, count in events]
    assert begun == [2 * (i + 1) for i in range(5)]


def test_copies_end_before_a_gradient_closes_its_table():
    executor = Deferred()
    with torch_job():
        model, optimizer = streamed(2, executor)
        model(X[0])
        executor.log.clear()
        table = model[0].weight._mpips_table
        model._mpips_stream._ahead.start(table)
        model[0].weight.grad = torch.ones(4, 4)
        push = table._handle.push

        def logged(*arguments: Any, **named: Any) -> Any:
            executor.log.append("pushed")
            return push(*arguments, **named)

        table._handle.push = logged
        optimizer.step()
        assert executor.log[:3] == ["begun", "copied", "pushed"]


def test_copies_end_before_backward_closes_a_table():
    executor = Deferred()
    with torch_job():
        model, optimizer = streamed(2, executor)
        loss = model(X[0]).sum()
        executor.log.clear()
        table = model[0].bias._mpips_table  # backward needs no value of it
        model._mpips_stream._ahead.start(table)
        push = table._handle.push

        def logged(*arguments: Any, **named: Any) -> Any:
            assert "copied" in executor.log
            executor.log.append("pushed")
            return push(*arguments, **named)

        table._handle.push = logged
        loss.backward()
        assert "pushed" in executor.log
        optimizer.step()


def test_copies_end_before_the_clock_does():
    executor = Deferred()
    with torch_job():
        model, optimizer = streamed(2, executor)
        model(X[0])
        executor.log.clear()
        model._mpips_stream._ahead.start(model[0].weight._mpips_table)
        optimizer.step()
        assert executor.log == ["begun", "copied"]


def test_views_are_ready_once_servers_of_this_node_have_the_values_of_the_clock(monkeypatch):
    with torch_job():
        model, optimizer = streamed(2)
        optimizer.zero_grad()
        model(X[0]).square().mean().backward()
        handle = model[0].weight._mpips_table._handle
        with pytest.raises(ConfigError, match="had closed"):
            handle.ready_views()
        optimizer.step()
        mpips.torch.steps()  # the clock ends
        with monkeypatch.context() as patch:
            patch.setattr(handle._reader, "is_settled", lambda max_s: False)
            assert handle.ready_views() is None
        with monkeypatch.context() as patch:
            patch.setattr(handle._connection, "channels", [object()])  # of another node
            assert handle.ready_views() is None
        values = handle.pull()
        parts = handle.ready_views()
        assert [(start, stop) for start, stop, _ in parts] == [(0, 16)]
        assert parts[0][2].tolist() == values.reshape(-1).tolist()
