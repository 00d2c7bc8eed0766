"""Gradients that are pushed while backward runs: the values of torch, and errors where they would differ."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from overlap_rig import net, plain_step, sgd
from torch import nn
from torch.optim import SGD, Adam
from torch_rig import assert_equal, batches, both, table_statistics, torch_job, values_of

from mpips.errors import ConfigError
from mpips.torch import prepare
from mpips.torch.job import TorchJob
from mpips.torch.overlap import OBSERVED_STEPS, Overlap
from mpips.torch.parameters import ParameterTable

STEPS = 6


class Log:
    """The order of pushes and of steps of backward, as text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        push = ParameterTable.push

        def note(table: ParameterTable) -> None:
            self.events.append(table.name)
            push(table)

        monkeypatch.setattr(ParameterTable, "push", note)

    def take(self) -> list[str]:
        found, self.events[:] = list(self.events), []
        return found


@pytest.fixture
def log(monkeypatch):
    return Log(monkeypatch)


ORDER = ["4.bias", "4.weight", "2.bias", "2.weight", "0.bias", "0.weight"]


@pytest.mark.parametrize("overlap", [None, True, False])
def test_gradients_are_pushed_in_one_order_while_backward_runs(log, overlap):
    with torch_job():
        model = net()
        model, optimizer = prepare(model, sgd(model), overlap=overlap)
        for number, x in enumerate(batches(STEPS, 5, 4)):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            log.take()
            loss.backward()
            in_backward = log.take()
            optimizer.step()
            begun = overlap or (overlap is None and number >= OBSERVED_STEPS)
            assert in_backward == (ORDER if begun else [])
            assert in_backward + log.take() == ORDER


def test_a_layer_is_pushed_before_backward_reaches_the_layer_below(log):
    with torch_job():
        model = net()
        model, optimizer = prepare(model, sgd(model), overlap=True)
        model(batches(1, 5, 4)[0])  # the job starts
        model[2].register_full_backward_hook(lambda *_: log.events.append("below"))
        plain_step(model, optimizer, batches(1, 5, 4)[0])
        assert log.take()[:2] == ["4.bias", "4.weight"]


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("overlap", [True, None])
def test_values_are_those_of_torch(overlap, to_none):
    def train(model, optimizer):
        for x in batches(STEPS, 5, 4):
            optimizer.zero_grad(set_to_none=to_none)
            model(x).square().mean().backward()
            optimizer.step()

    expected, found = both(net(), sgd, train, overlap=overlap)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-6, atol=1e-7), name


def trained(train: Callable[[Any, Any], None], **options: Any) -> tuple[dict, dict]:
    with torch_job() as script:
        model = net()
        prepared = prepare(model, Adam(model.parameters(), 0.1), **options)
        train(*prepared)
        values = values_of(model)
    return values, table_statistics(script, "0.weight")


@pytest.mark.parametrize("consistency", ["bsp", "ssp", "asp"])
def test_overlap_changes_no_bit(consistency):
    def train(model, optimizer):
        for x in batches(STEPS, 5, 4):
            plain_step(model, optimizer, x)

    early, counted = trained(train, overlap=True, consistency=consistency)
    late, expected = trained(train, overlap=False, consistency=consistency)
    assert_equal(early, late)
    for name in ("updates", "applied", "pushed"):
        assert counted[name] == expected[name] == STEPS


@pytest.mark.parametrize("marked", [True, False])
def test_accumulated_gradients_are_those_of_torch(marked, log):
    def train(model, optimizer):
        for x in batches(STEPS, 6, 4):
            optimizer.zero_grad()
            first, second = x[:3], x[3:]
            if marked and hasattr(model, "no_sync"):
                with model.no_sync():
                    model(first).square().mean().backward()
            else:
                model(first).square().mean().backward()
            log.take()
            model(second).square().mean().backward()
            in_backward.append(log.take())
            optimizer.step()

    in_backward: list[list[str]] = []
    expected, found = both(net(), sgd, train)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6), name
    assert in_backward[-1] == (ORDER if marked else [])


def backward_twice(then: int) -> None:
    """Make a step, and then run backward so many times without a step."""
    with torch_job():
        model = net()
        model, optimizer = prepare(model, sgd(model), overlap=True)
        (x,) = batches(1, 5, 4)
        plain_step(model, optimizer, x)
        for _ in range(then):
            model(x).square().mean().backward()


def test_a_second_backward_after_the_first_sent_is_an_error():
    with pytest.raises(ConfigError, match=r"a second backward pass .*no_sync"):
        backward_twice(2)


def test_a_backward_without_a_step_at_the_end_is_an_error():
    with pytest.raises(ConfigError, match=r"without step\(\), which had sent"):
        backward_twice(1)


def test_a_backward_without_a_step_before_overlap_is_none():
    with torch_job():
        model = net()
        model, optimizer = prepare(model, sgd(model))
        (x,) = batches(1, 5, 4)
        plain_step(model, optimizer, x)
        model(x).square().mean().backward()


def test_several_optimizers_do_not_overlap(log):
    with torch_job():
        models = [net(), net()]
        pairs = [prepare(m, sgd(m), name=f"model{i}") for i, m in enumerate(models)]
        for x in batches(STEPS, 5, 4):
            for model, optimizer in pairs:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                assert log.take() == []
                optimizer.step()
                log.take()


def test_overlap_beside_another_optimizer_is_refused():
    with torch_job():
        a, b = net(), net()
        prepare(a, sgd(a), name="a", overlap=True)
        prepare(b, sgd(b), name="b")
        with pytest.raises(ConfigError, match="overlap=True needs a script with one optimizer"):
            a(torch.zeros(1, 4))


def test_a_value_that_is_none_of_the_three_is_refused():
    with torch_job():
        model = net()
        with pytest.raises(ConfigError, match="overlap = 'yes': must be True, False or None"):
            prepare(model, sgd(model), overlap="yes")


def test_unused_and_frozen_parameters(log):
    def train(model, optimizer):
        for number, x in enumerate(batches(STEPS, 5, 4)):
            model[2].weight.requires_grad_(number not in (3, 4))
            optimizer.zero_grad()
            hidden = model[1](model[0](x))
            # Step 5 does not use the last layer.
            out = model[2](hidden) if number == 5 else model[4](model[3](model[2](hidden)))
            out.square().mean().backward()
            optimizer.step()

    expected, found = both(net(), lambda m: SGD(m.parameters(), 0.5), train, overlap=True)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6), name


def test_checkpointed_segments_and_a_closure_and_bfloat16():
    from torch.utils.checkpoint import checkpoint

    def train(model, optimizer):
        for x in batches(STEPS, 5, 4):

            def closure(x: torch.Tensor = x) -> Any:
                optimizer.zero_grad()
                hidden = checkpoint(model[:2], x.to(torch.bfloat16), use_reentrant=False)
                loss = checkpoint(model[2:], hidden, use_reentrant=False).square().mean()
                loss.backward()
                return loss

            assert optimizer.step(closure) is not None

    early = _of_half(train, True)
    assert_equal(early, _of_half(train, False))


def _of_half(train: Callable[[Any, Any], None], overlap: bool) -> dict[str, torch.Tensor]:
    with torch_job():
        model = net().to(torch.bfloat16)
        train(*prepare(model, SGD(model.parameters(), 0.125), overlap=overlap))
        return values_of(model)


def test_a_shared_parameter_is_sent_once(log):
    def train(model, optimizer):
        for x in batches(STEPS, 5, 4):
            plain_step(model, optimizer, x)

    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    expected, found = both(model, sgd, train, overlap=True)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6), name
    assert log.take() == ["0.weight"] * STEPS


def test_copies_have_no_hooks():
    with torch_job():
        model = net()
        model, optimizer = prepare(model, sgd(model), overlap=True)
        (x,) = batches(1, 5, 4)
        plain_step(model, optimizer, x)
        twin = copy.deepcopy(model)
        model(x).square().mean().backward()
        for _ in range(2):
            twin(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("overlap", [True, None])
def test_a_rate_that_changes_between_steps_reaches_the_servers_first(overlap):
    def train(model, optimizer):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for number, x in enumerate(batches(STEPS, 5, 4)):
            plain_step(model, optimizer, x)
            scheduler.step()
            if number == 3:
                optimizer.param_groups[0]["lr"] = 0.25

    expected, found = both(net(), sgd, train, overlap=overlap)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-6, atol=1e-7), name


def test_a_param_group_that_comes_late_is_refused_in_backward():
    with torch_job():
        model = net()
        model, optimizer = prepare(model, sgd(model), overlap=True)
        (x,) = batches(1, 5, 4)
        plain_step(model, optimizer, x)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        with pytest.raises(ConfigError, match="a param group was added after prepare"):
            model(x).square().mean().backward()


def test_a_step_that_is_not_finite_can_be_skipped():
    def train(model, optimizer):
        for number, x in enumerate(batches(STEPS, 5, 4)):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            (loss * float("nan") if number == 3 else loss).backward()
            if all(p.grad.isfinite().all() for p in model.parameters()):
                optimizer.step()

    expected, found = both(net(), sgd, train, overlap=True)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6), name


def test_a_gradient_that_is_not_finite_is_an_error_of_the_step():
    with torch_job():
        model = net()
        model, optimizer = prepare(model, sgd(model), overlap=True)
        (model(torch.ones(1, 4)) * float("nan")).sum().backward()
        with pytest.raises(ValueError, match=r"'4\.bias' contains nan"):
            optimizer.step()


def backward_with_nan_in_a_lower_layer() -> None:
    with torch_job():
        model = net()
        model, _ = prepare(model, sgd(model), overlap=True)
        loss = model(torch.ones(1, 4)).sum()
        model[2].weight.register_hook(lambda g: g * float("nan"))
        loss.backward()


def test_a_lower_layer_that_is_not_finite_is_an_error_of_backward():
    with pytest.raises(ConfigError, match=r"'2\.weight' contains nan.*overlap=False"):
        backward_with_nan_in_a_lower_layer()


def test_the_rig_finds_the_hooks():
    with torch_job() as script:
        model = net()
        _, optimizer = prepare(model, sgd(model))
        part = script.part(TorchJob)
        assert part.n_optimizers == 1
        assert isinstance(optimizer._mpips_stepping._overlap, Overlap)
