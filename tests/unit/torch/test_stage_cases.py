"""Special cases of a model in stages: frozen and unused parameters, one stage, few samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from report_rig import collected
from stage_rig import divided, pipeline
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import torch_job, values_of

import mpips.torch
from mpips.errors import ConfigError
from mpips.torch import staged_model
from mpips.torch.job import TorchJob
from mpips.torch.stage_run import Pipeline
from mpips.torch.stage_values import flatten, from_arrays, to_arrays
from mpips.worker.worker import connection_of

cross_entropy = nn.functional.cross_entropy
X, Y = torch.randn(11, 6, generator=torch.Generator().manual_seed(1)), torch.arange(11) % 3
STAGES = ["0-1", "2-3", "4"]


class Partly(nn.Module):
    """A layer with a parameter that it does not use, and a result that the next one does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x), torch.tanh(x) * self.layer.bias


class First(nn.Module):
    """A layer that uses the first of its arguments."""

    def forward(self, x: Any) -> Any:
        return x[0].relu()


def model(frozen: tuple[int, ...] = ()) -> nn.Module:
    torch.manual_seed(3)
    own = nn.Sequential(nn.Linear(6, 6), Partly(), First(), nn.Linear(6, 6), nn.Linear(6, 3))
    for number in frozen:
        own[(slice(0, 2), slice(2, 4), slice(4, 5))[number]].requires_grad_(False)
    return own


def plain() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (2,), (0, 1), (1, 2)])
def test_frozen_stages_and_unused_parameters_have_the_gradients_of_one_process(
    frozen: tuple[int, ...],
) -> None:
    def work(own: nn.Module, one: Pipeline) -> Any:
        # A batch that micro-batches do not divide, one with fewer samples than these, and one micro-batch.
        losses = [one.step(X, Y, cross_entropy, 4, "1f1b", (0, 0))]
        losses.append(one.step(X[:2], Y[:2], cross_entropy, 5, "gpipe", (0, 1)))
        losses.append(one.step(X[:7], Y[:7], cross_entropy, 1, "1f1b", (0, 2)))
        return losses, {name: p.grad for name, p in own.named_parameters()}

    alone = model(frozen)
    losses, expected = work(alone, pipeline(alone, STAGES))
    assert expected["1.unused.weight"] is None
    assert (expected["0.weight"] is None) == (0 in frozen)
    assert (expected["4.weight"] is None) == (2 in frozen)
    found = divided(lambda: model(frozen), STAGES, work)
    assert all(one[0] == losses for one in found)
    for name, gradient in expected.items():
        others = [one[1][name] for one in found if one[1][name] is not None]
        assert len(others) == (gradient is not None)
        assert gradient is None or torch.equal(others[0], gradient)


def test_a_model_without_a_parameter_that_trains_is_an_error() -> None:
    own = model((0, 1, 2))
    with pytest.raises(ConfigError, match="that depends on parameters of the model"):
        pipeline(own, STAGES).step(X, Y, cross_entropy, 2, "1f1b", (0, 0))


@pytest.mark.parametrize("stages", [1, 2])
def test_one_micro_batch_has_the_bits_of_plain_torch(job: Any, stages: int) -> None:
    own, other = plain(), plain()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.5)
    own, optimizer = mpips.torch.prepare(own, optimizer, stages=stages)
    loss = cross_entropy(other(X), Y)
    loss.backward()
    assert own.forward_backward(X, Y, cross_entropy, micro_batches=1) == loss
    for p, q in zip(own.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    norm = own.clip_grad_norm_(0.1)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(other.parameters(), 0.1))
    optimizer.step()
    torch.optim.SGD(other.parameters(), lr=0.5).step()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(values_of(own)[name], value)


def test_a_parameter_whose_gradient_the_script_drops_keeps_its_value(job: Any) -> None:
    own = plain()
    optimizer = torch.optim.AdamW(own.parameters(), lr=0.5, weight_decay=0.5)
    own, optimizer = mpips.torch.prepare(own, optimizer, stages=2)
    before = copy.deepcopy(values_of(own))
    own.forward_backward(X, Y, cross_entropy, micro_batches=3)
    own[0].weight.grad = None
    norm = own.clip_grad_norm_(1e9)
    others = [p.grad for p in own.parameters() if p.grad is not None]
    assert len(others) == 3
    torch.testing.assert_close(norm, torch.cat([g.flatten() for g in others]).norm())
    optimizer.step()
    found = values_of(own)
    assert torch.equal(found["0.weight"], before["0.weight"])
    assert not torch.equal(found["0.bias"], before["0.bias"])


@pytest.mark.parametrize(
    "register",
    [
        lambda m: m.register_forward_hook(print),
        lambda m: m.register_forward_pre_hook(print),
        lambda m: m.register_full_backward_hook(print),
        lambda m: m.register_full_backward_pre_hook(print),
        lambda m: m[0].register_forward_hook(print),
    ],
)
def test_hooks_of_what_is_not_called_are_refused_before_and_behind_prepare(
    job: Any, register: Callable[[nn.Module], Any]
) -> None:
    own = nn.Sequential(nn.Sequential(nn.Linear(6, 4)), nn.Linear(4, 3))
    handle = register(own)
    with pytest.raises(ConfigError, match=r"(the model|0) has hooks, which would not run"):
        mpips.torch.prepare(own, stages=2)
    handle.remove()
    own = mpips.torch.prepare(own, stages=2)
    own.eval()(X)
    register(own)
    with pytest.raises(ConfigError, match=r"(the model|0) has hooks, which would not run"):
        own(X)
    with pytest.raises(ConfigError, match=r"(the model|0) has hooks, which would not run"):
        own.forward_backward(X, Y, cross_entropy, micro_batches=1)


def test_a_replaced_forward_is_refused_before_and_behind_prepare(job: Any) -> None:
    own: Any = plain()
    own.forward = lambda x: x
    with pytest.raises(
        ConfigError, match="the forward of the model was replaced by another function"
    ):
        mpips.torch.prepare(own, stages=2)
    del own.forward
    own = mpips.torch.prepare(own, stages=2)
    own.forward = lambda x: x
    with pytest.raises(
        ConfigError, match="the forward of the model was replaced by another function"
    ):
        own.eval()(X)


def test_a_lazy_module_is_refused_by_name(job: Any) -> None:
    own = nn.Sequential(nn.Linear(6, 4), nn.LazyLinear(3))
    with pytest.raises(ConfigError, match=r"parameter '1\.weight' has no shape yet"):
        mpips.torch.prepare(own, stages=2)


def test_conjugated_and_negated_tensors_travel() -> None:
    value = torch.randn(2, 3, dtype=torch.complex64).conj()
    values = [value, value.imag, value.t()]
    assert values[0].is_conj()
    assert values[1].is_neg()
    sent = iter([array.copy() for array in to_arrays(flatten(values, "it"), {})])
    _, flat = from_arrays(lambda: next(sent))
    assert all(map(torch.equal, flat.tensors, values))


@pytest.mark.parametrize("is_first", [True, False])
def test_the_workers_of_the_first_stage_report_samples_and_losses(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    reports = collected(monkeypatch)
    losses = []
    with torch_job() as script:
        script.is_observed = True
        own = plain()
        loader = DataLoader(TensorDataset(X, Y), 4)
        own, optimizer, loader = mpips.torch.prepare(
            own, torch.optim.SGD(own.parameters(), 0.1), loader, stages=2
        )
        for x, y in loader:
            own._mpips_job.progress.counts = is_first  # as in a worker of a later stage
            optimizer.zero_grad()
            losses.append(own.forward_backward(x, y, cross_entropy, micro_batches=2).item())
            optimizer.step()
    assert [(r.epoch, r.step) for r in reports] == [(0, 1), (0, 2), (0, 3)]
    assert [r.samples for r in reports] == ([4, 4, 3] if is_first else [0, 0, 0])
    assert [r.loss_weight for r in reports] == ([4, 4, 3] if is_first else [0, 0, 0])
    if is_first:
        sums = [loss * n for loss, n in zip(losses, [4, 4, 3], strict=True)]
        assert [r.loss_sum for r in reports] == pytest.approx(sums)


@pytest.mark.parametrize("call", ["forward_backward", "model", "clip_grad_norm_", "state"])
def test_each_common_call_ends_the_clock_before_its_first_message(job: Any, call: str) -> None:
    """Messages of a clock are received at the same one, so its end must not wait for the first layer."""
    own = plain()
    own, optimizer = mpips.torch.prepare(own, torch.optim.SGD(own.parameters(), 0.1), stages=2)
    own.forward_backward(X, Y, cross_entropy, micro_batches=2)
    optimizer.step()
    own_job, found = own._mpips_job, []
    one = own._mpips_pipeline
    assert own_job.is_open

    def noted(*_: Any) -> Any:
        found.append((own_job.is_open, own._mpips_part.is_stale))
        return 0.5

    one.step = one.outputs = noted
    one.from_all = lambda *_: noted() and None
    own.eval()
    calls = {
        "forward_backward": lambda: own.forward_backward(X, Y, cross_entropy, micro_batches=2),
        "model": lambda: own(X),
        "clip_grad_norm_": lambda: own.clip_grad_norm_(1.0),
        "state": own.full_state_dict,
    }
    calls[call]()
    assert found == [(False, call == "clip_grad_norm_")]


class Reversed(nn.Module):
    """A model that has its modules in another order than it calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(8, 3), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.first(x))


def test_norms_of_all_stages_are_summed_in_the_order_of_one_process(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = mpips.torch.prepare(Reversed(), stages=2)
    own.forward_backward(X, Y, cross_entropy, micro_batches=2)
    norms = [p.grad.norm() for p in own.parameters()]

    def by_stage(_: Any, value: Any, __: Any) -> Any:
        """Return the values of two workers, that of the first stage first."""
        parts = [[i for i in value["places"] if (i < 2) == is_last] for is_last in (False, True)]
        return [{"places": part, "norms": value["norms"][part]} for part in parts]

    summed: list[Any] = []
    monkeypatch.setattr(
        staged_model, "total_norm", lambda found: summed.extend(found) or torch.tensor(1.0)
    )
    own._mpips_pipeline.from_all = by_stage
    own.clip_grad_norm_(1.0)
    assert [float(one) for one in summed] == [float(one) for one in norms]


def test_a_state_of_the_whole_model_is_that_of_the_first_stage(job: Any) -> None:
    own = mpips.torch.prepare(plain(), stages=2)
    whole = own.full_state_dict()
    first = {name: value for name, value in whole.items() if name[0] == "0"} | {"2.bias": "first"}
    last = {name: value for name, value in whole.items() if name[0] == "2"}
    own._mpips_pipeline.from_all = lambda *_: [first, last]
    found = own.full_state_dict()
    assert list(found) == list(whole)
    assert found["2.bias"] == "first"
    assert torch.equal(found["2.weight"], whole["2.weight"])


def test_a_value_that_the_script_sets_behind_a_pull_is_an_error(job: Any) -> None:
    own = plain()
    own, _ = mpips.torch.prepare(own, torch.optim.SGD(own.parameters(), 0.1), stages=2)
    own.forward_backward(X, Y, cross_entropy, micro_batches=2)
    with torch.no_grad():
        own[0].weight.zero_()
    with pytest.raises(ConfigError, match=r"0\.weight"):
        own.forward_backward(X, Y, cross_entropy, micro_batches=2)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_batch_without_a_step_ends_its_clock(job: Any, by_hand: bool) -> None:
    own = plain()
    loader = DataLoader(TensorDataset(X, Y), 3)
    own, optimizer, loader = mpips.torch.prepare(
        own, torch.optim.SGD(own.parameters(), 0.1), loader, stages=2
    )
    for number, (x, y) in enumerate(loader):
        if by_hand:
            for p in own.parameters():
                p.grad = None
        else:
            optimizer.zero_grad()
        own.forward_backward(x, y, cross_entropy, micro_batches=2)
        if number not in (0, 2):
            optimizer.step()
    assert number == 3
    assert mpips.torch.steps() == 4


def test_pipelines_and_seeds_draw_different_numbers(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = mpips.torch.prepare(plain(), stages=2)
    own._mpips_job.start()
    found = []
    for pipeline_number, seed in ((0, 1), (1, 1), (0, 2), (0, 1)):
        monkeypatch.setattr(TorchJob, "pipeline", property(lambda _, n=pipeline_number: n))
        monkeypatch.setattr(job, "seed", seed)
        own.__dict__["_mpips_pipeline"] = None
        found.append(own._mpips_connected().seed_of((0, 0)))
    assert len(set(found)) == 3
    assert found[0] == found[3]


@pytest.mark.parametrize("is_divided", [True, False])
def test_errors_of_messages_name_what_travels(
    job: Any, monkeypatch: pytest.MonkeyPatch, is_divided: bool
) -> None:
    own = mpips.torch.prepare(plain(), stages=2)
    worker = own._mpips_job.start()
    if is_divided:
        own._mpips_division.own = [0]
    assert own._mpips_connected().links.own == ([0] if is_divided else [0, 1])
    text = connection_of(worker).messages.text_of
    assert text(7) == "tag 7"
    assert text((1 << 62) + 3) == "the result of the stage for micro-batch 3"
