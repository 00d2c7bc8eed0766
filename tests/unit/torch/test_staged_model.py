"""A prepared model in stages, in a job of one process: training, evaluation, states and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import values_of

import mpips.torch
from mpips.errors import ConfigError
from mpips.torch.job import TorchJob
from mpips.torch.stage_cut import cut
from mpips.torch.staged_model import Division, OtherStageParameter, StagedModule

cross_entropy = nn.functional.cross_entropy
X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3


def plain() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    )


def prepared(**options: Any) -> tuple[Any, Any]:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return mpips.torch.prepare(model, optimizer, **{"stages": 2, **options})  # type: ignore[no-any-return]


def test_training_is_that_of_plain_torch_with_accumulated_micro_batches(job: Any) -> None:
    model, optimizer = prepared()
    other = plain()
    steps = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model.forward_backward(X, Y, cross_entropy, micro_batches=4)
        norm = model.clip_grad_norm_(0.5)
        optimizer.step()
        steps.zero_grad()
        parts = [cross_entropy(other(X[i : i + 4]), Y[i : i + 4]) / 4 for i in range(0, 16, 4)]
        sum(parts).backward()  # type: ignore[union-attr]
        expected_norm = nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        steps.step()
        assert loss.item() == pytest.approx(sum(part.item() for part in parts), rel=1e-6)
        torch.testing.assert_close(norm, expected_norm)
    found = values_of(model)
    assert list(found) == list(other.state_dict())
    for name, value in other.state_dict().items():
        torch.testing.assert_close(found[name], value)
    whole = model.full_state_dict()
    assert list(whole) == list(found)
    assert all(torch.equal(whole[name], value) for name, value in found.items())
    model.eval()
    torch.testing.assert_close(model(X), other.eval()(X))
    assert not model(X).requires_grad
    copied = copy.deepcopy(model)
    assert type(copied) is nn.Sequential


def test_calls_of_one_step_add_up_and_zero_grad_drops(job: Any) -> None:
    model, _ = prepared()
    model.eval()  # statistics stay, so equal calls have equal gradients
    model.forward_backward(X, Y, cross_entropy, micro_batches=1)
    once = [p.grad.clone() for p in model.parameters()]
    model.forward_backward(X, Y, cross_entropy, micro_batches=1)
    assert all(torch.equal(p.grad, 2 * g) for p, g in zip(model.parameters(), once, strict=True))
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert model.clip_grad_norm_(1.0).item() == 0.0


def test_each_pass_of_a_step_has_a_number_of_its_own(job: Any) -> None:
    model, optimizer = prepared()
    found = []
    for _ in range(2):
        for _ in range(2):
            model.forward_backward(X, Y, cross_entropy, micro_batches=2)
            found.append(model._mpips_passes)
        optimizer.step()
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_an_evaluation_changes_no_random_number_of_training(job: Any) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    model, _ = mpips.torch.prepare(model, torch.optim.SGD(model.parameters(), 0.0), stages=2)
    model.eval()
    model(X)
    model(X)  # a restart at the next step does not repeat it
    assert model._mpips_evaluations == (0, 1)
    model.train()
    first = model.forward_backward(X, Y, cross_entropy, micro_batches=2)
    assert model._mpips_passes == (0, 0)
    assert model.forward_backward(X, Y, cross_entropy, micro_batches=2) != first


@pytest.mark.parametrize("rank", [0, 1])
def test_a_state_that_is_loaded_before_the_start_is_that_of_all_stages(
    job: Any, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    other = plain()
    steps = torch.optim.Adam(other.parameters(), lr=0.1)
    cross_entropy(other(X), Y).backward()
    steps.step()
    saved = copy.deepcopy(steps.state_dict())
    declared: list[Any] = []
    with monkeypatch.context() as patch:
        # The script is one of two workers; the job does not start.
        patch.setattr(job, "n_workers", 2)
        patch.setattr(job, "rank", rank)
        patch.setattr(
            job, "declare", lambda *_, state=None, **__: declared.extend([state] * bool(state))
        )
        model = plain()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model, optimizer = mpips.torch.prepare(model, optimizer, stages=2)
        optimizer.load_state_dict(saved)
        found = optimizer.state_dict()["state"]
        division = model._mpips_division
        assert division.own == [rank]
        states = [state() for state in declared]
        division._job.progress.counts = True
        division.open(SimpleNamespace())
    assert len(found) == len(saved["state"]) == len(states) == 8
    for number, state in saved["state"].items():
        torch.testing.assert_close(found[number]["exp_avg"], state["exp_avg"])
        assert states[number][1] == 1
        torch.testing.assert_close(torch.from_numpy(states[number][0][0]), state["exp_avg"])
    assert not optimizer._mpips_stepping.has_gradients  # those of other stages are not read
    # The optimizer keeps the tables of its stage alone, and none has the state of another one.
    kept = [t for own in optimizer._mpips_stepping._groups for t in own]
    assert [t.parameter for t in kept] == [p for p in model.parameters() if p.numel()]


def test_a_worker_of_a_frozen_stage_counts_the_clocks_of_the_others(job: Any) -> None:
    model = plain().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(X, Y), 2)
    model, optimizer, loader = mpips.torch.prepare(model, optimizer, loader, stages=2)
    model._mpips_connected()
    optimizer._mpips_stepping.leave_out(lambda p: False)
    # Gradients are those of workers of other stages.
    model._mpips_pipeline.step = lambda *_: 0.5
    for number, (a, b) in enumerate(loader):
        model.forward_backward(a, b, cross_entropy, micro_batches=1)
        if number in (1, 3):  # a step for two batches
            optimizer.step()
            (optimizer if number == 1 else model).zero_grad()
    # The script has accumulated, so batches 4 to 7 wait until they are dropped, and have a clock each.
    assert mpips.torch.steps() == 2
    model.zero_grad()
    assert not optimizer._mpips_stepping.has_gradients


@pytest.mark.parametrize("drops", [lambda m, o: m.zero_grad(), lambda m, o: o.zero_grad()])
def test_gradients_of_other_stages_are_dropped_with_the_own(job: Any, drops: Any) -> None:
    model = plain().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = mpips.torch.prepare(model, optimizer, stages=2)
    model._mpips_connected()
    stepping = optimizer._mpips_stepping
    stepping.leave_out(lambda p: False)
    model._mpips_pipeline.step = lambda *_: 0.5
    model.forward_backward(X, Y, cross_entropy, micro_batches=1)
    assert stepping.waits
    assert stepping.has_gradients
    drops(model, optimizer)
    assert not stepping.waits
    assert not stepping.has_gradients


class Noted(nn.Linear):
    """A layer whose state has a number."""

    def get_extra_state(self) -> Any:
        return 7

    def set_extra_state(self, state: Any) -> None:
        assert state == 7


class Named(nn.Module):
    """A model with a second name for a parameter and for a layer, and a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Noted(6, 4), nn.Linear(4, 3)
        self.last, self.weight = self.second, self.second.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x))

    def get_extra_state(self) -> Any:
        return {"version": 2}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"version": 2}


def test_the_whole_state_has_each_name_of_a_plain_one(job: Any) -> None:
    model = mpips.torch.prepare(Named(), stages=2)
    found = model.full_state_dict()
    other = Named()
    assert list(found) == list(other.state_dict())
    other.load_state_dict(found)
    assert found["first._extra_state"] == 7
    assert found["weight"].data_ptr() != model.weight.data_ptr()

    # Of two workers each has the entries of its stage.
    division, whole = model._mpips_division, nn.Module.state_dict(model, keep_vars=True)
    parts = []
    for own in range(2):
        division.own = [own]
        parts.append(set(model._mpips_own(whole)) - {"_extra_state"})
    assert parts[0] == {"first.weight", "first.bias", "first._extra_state"}
    assert parts[1] == set(whole) - {"_extra_state"} - parts[0]


def test_a_divided_model_can_be_converted() -> None:
    model = plain()
    model.__class__ = type("Sequential", (StagedModule, nn.Sequential), {})
    model[0].weight.data = torch.empty(0)
    model[0].weight.__class__ = OtherStageParameter
    model.to(torch.float64).to("cpu")
    assert type(model[0].weight) is OtherStageParameter
    assert model[3].weight.dtype == torch.float64


def test_an_error_within_a_step_leaves_nothing_for_the_next(job: Any) -> None:
    model, _ = prepared()
    calls = iter(range(100))

    def failing(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if next(calls) == 1:
            raise ValueError("planted")
        return cross_entropy(out, target)

    with pytest.raises(ValueError, match="planted"):
        model.forward_backward(X, Y, failing, micro_batches=4)
    pipeline = model._mpips_pipeline
    assert all(not stage._open for stage in pipeline.stages.values())
    assert not pipeline.links._waiting
    model.forward_backward(X, Y, failing, micro_batches=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap": True}, "overlap = True"),
        ({"placement": "replicated"}, "placement = 'replicated'"),
        ({"placement": "auto"}, "placement = 'auto'"),
        ({"stream": 1}, "stream = 1"),
        ({"consistency": mpips.LocalSGD()}, "consistency 'local_sgd'"),
        ({"consistency": mpips.DiLoCo()}, "consistency 'diloco'"),
        ({"consistency": mpips.BSP(backup=1)}, "backup = 1"),
        ({"consistency": mpips.SSP("auto")}, "SSP('auto')"),
        ({"compression": "auto"}, "compression"),
        ({"compression": "topk"}, "compression"),
        ({"device": "cuda"}, "device = 'cuda'"),
        ({"stages": 9}, "stages = 9"),
    ],
)
def test_options_that_stages_do_not_take_are_refused_before_the_start(
    job: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(**options)
    assert message in str(caught.value)
    assert not job.part(TorchJob).has_started


def test_a_second_model_and_other_stages_of_a_loader_are_refused(job: Any) -> None:
    loader = mpips.torch.prepare_loader(DataLoader(TensorDataset(X, Y), 4), stages=3)
    with pytest.raises(ConfigError, match="prepared with stages: give prepare the same stages"):
        mpips.torch.prepare(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="stages = 2, and the loader was prepared for 3"):
        prepared()
    prepared(stages=3)
    assert len(loader) == 4
    with pytest.raises(ConfigError, match="one model that contains all others"):
        prepared(stages=3)


def test_a_model_prepared_before_is_refused(job: Any) -> None:
    mpips.torch.prepare(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="with other prepared models"):
        prepared()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda m: m(X), "was called in training mode: train it by loss = model.forward_backward"),
        (lambda m: m.eval()(X, X), "was called with 2 arguments"),
        (lambda m: m[:2].eval()(X), "a slice of a model in stages"),
        (lambda m: m.no_sync(), "call forward_backward several times"),
        (lambda m: m.forward_backward(X, Y, cross_entropy, micro_batches=0), "micro_batches = 0"),
        (lambda m: m.forward_backward(X, Y[:8], cross_entropy, micro_batches=2), "16 samples of"),
        (lambda m: m.forward_backward((X, Y[:8]), Y, cross_entropy, micro_batches=2), "[8, 16]"),
        (
            lambda m: m.forward_backward(X, Y, cross_entropy, micro_batches=2, schedule="x"),
            "schedule = 'x': must be one of 1f1b, gpipe",
        ),
        (
            lambda m: m.forward_backward(X, Y, lambda out, y: out, micro_batches=2),
            "not one of shape (8, 3)",
        ),
        (
            lambda m: torch.no_grad()(m.forward_backward)(X, Y, cross_entropy, micro_batches=2),
            "under torch.no_grad",
        ),
    ],
)
def test_uses_that_a_model_in_stages_does_not_take_are_errors(
    job: Any, use: Callable[[Any], Any], message: str
) -> None:
    model, _ = prepared()
    with pytest.raises(ConfigError) as caught:
        use(model)
    assert message in str(caught.value)


def test_a_grad_scaler_is_refused_by_name(job: Any) -> None:
    model, optimizer = prepared()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model.forward_backward(
        X, Y, lambda out, y: scaler.scale(cross_entropy(out, y)), micro_batches=2
    )
    with pytest.raises(ConfigError, match="GradScaler with a model in stages: each worker would"):
        scaler.step(optimizer)
    scaler.unscale_(optimizer)
    with pytest.raises(ConfigError, match="GradScaler with a model in stages: each worker would"):
        scaler.step(optimizer)
    assert mpips.torch.steps() == 0


def divided_job(n_workers: int, n_stages: int, rank: int = 0) -> Any:
    script = SimpleNamespace(rank=rank, n_workers=n_workers)
    job = SimpleNamespace(script=script, loaders=[], _asked_stages=None, n_stages=1)
    TorchJob.divide(job, n_stages)  # type: ignore[arg-type]
    return job


def test_the_number_of_workers_is_a_multiple_of_the_stages_or_one() -> None:
    assert divided_job(1, 3).n_stages == 1
    assert divided_job(6, 3).n_stages == 3
    with pytest.raises(ConfigError, match="4 workers with 3 stages: the number of workers must be"):
        divided_job(4, 3)
    job = divided_job(2, 1)
    job.loaders, job._asked_stages = [1], None
    with pytest.raises(ConfigError, match=r"call prepare_loader\(loader, stages=...\)"):
        TorchJob.divide(job, 2)


def test_parameters_of_other_stages_are_freed_and_their_gradients_cannot_be_read() -> None:
    model = plain()
    division = Division(divided_job(4, 2, rank=3), model, cut(model, ["0-2", "3-5"]))
    assert division.own == [1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    left: list[Any] = []
    stepping = SimpleNamespace(
        leave_out=lambda is_out: left.extend(filter(is_out, model.parameters()))
    )
    optimizer._mpips_stepping = stepping  # type: ignore[attr-defined]
    division.take_optimizer(optimizer)
    division._job.progress = SimpleNamespace(counts=True)  # type: ignore[assignment]
    before = [p.data_ptr() for p in model[3:].parameters()]
    division.open(SimpleNamespace())  # type: ignore[arg-type]
    assert not division._job.progress.counts
    assert [id(p) for p in left] == [id(p) for p in model[:3].parameters()]
    assert all(type(p) is OtherStageParameter and not p.numel() for p in model[:3].parameters())
    assert not any(buffer.numel() for buffer in model[:3].buffers())
    assert [p.data_ptr() for p in model[3:].parameters()] == before
    with pytest.raises(ConfigError, match=r"clip gradients by model\.clip_grad_norm_"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
