"""What a torch script reports by itself: loss, samples, epoch, length of the run and learning rates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from report_rig import Reports, collected
from torch import nn
from torch.optim import SGD
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)
from torch_rig import torch_job

import mpips
from mpips.session import library_progress
from mpips.torch import epochs, prepare, prepare_loader
from mpips.torch import losses as losses_module
from mpips.torch import progress as module
from mpips.torch.job import TorchJob

PLAIN = torch.Tensor.backward


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """Return what scripts send: a report behind each step."""
    return collected(monkeypatch)


@contextmanager
def observed_job() -> Iterator[Any]:
    with torch_job() as script:
        script.is_observed = True
        yield script
    assert torch.Tensor.backward is PLAIN


def constant(*rates: float) -> tuple[Any, Any]:
    """Return a prepared model whose output is its input, and whose steps leave it as it is."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    parameters: Any = model.parameters()
    if len(rates) > 1:
        model.register_parameter("other", nn.Parameter(torch.zeros(1)))
        groups = zip((model.weight, model.other), rates, strict=True)
        parameters = [{"params": [p], "lr": rate} for p, rate in groups]
    trained: Any = prepare(model, SGD(parameters, lr=rates[0] if rates else 0.0), overlap=False)
    return trained


def loader_of(n: int, size: int, **options: Any) -> Any:
    x = torch.arange(1.0, n + 1).reshape(n, 1)
    return prepare_loader(DataLoader(TensorDataset(x), **({"batch_size": size} | options)))


def step(model: Any, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()


def test_a_plain_loop_reports_all_that_is_known_behind_each_step(reports: Reports) -> None:
    with observed_job():
        loader = loader_of(10, 4)
        model, optimizer = constant()
        for _ in epochs(2):
            for (x,) in loader:
                step(model, optimizer, x)
    found = [(r.epoch, r.step, r.samples, r.loss_sum) for r in reports]
    # Batches of 4, 4 and 2 samples.
    assert found == [
        (0, 1, 4, 10.0),
        (0, 2, 4, 26.0),
        (0, 3, 2, 19.0),
        (1, 4, 4, 10.0),
        (1, 5, 4, 26.0),
        (1, 6, 2, 19.0),
    ]
    details = [r.details for r in reports]
    assert [d.share for d in details if d] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])
    assert {(d.n_epochs, d.has_epoch, tuple(d.rates)) for d in details if d} == {(2, True, (0.0,))}
    assert [r.loss_weight for r in reports] == [4, 4, 2, 4, 4, 2]


def test_steps_of_an_interval_are_one_report_and_the_end_of_the_script_sends_the_last(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_progress, "INTERVAL_S", 1e9)
    with observed_job():
        loader = loader_of(10, 4, drop_last=True)
        model, optimizer = constant()
        for (x,) in loader:
            step(model, optimizer, x)
        assert not reports
    assert [(r.step, r.samples, r.loss_sum, r.loss_weight) for r in reports] == [(2, 8, 36.0, 8)]


def test_a_loop_over_range_has_epochs_without_a_number_of_them(reports: Reports) -> None:
    with observed_job():
        loader = loader_of(4, 2)
        model, optimizer = constant()
        for _ in range(2):
            for (x,) in loader:
                step(model, optimizer, x)
    found = [(r.epoch, r.details.has_epoch, r.details.n_epochs) for r in reports if r.details]
    assert found == [(0, True, 0), (0, True, 0), (1, True, 0), (1, True, 0)]


def test_without_a_loader_steps_weigh_the_same_and_epoch_and_samples_are_unknown(
    reports: Reports,
) -> None:
    with observed_job():
        model, optimizer = constant()
        for n in (1, 3):
            step(model, optimizer, torch.full((n, 1), float(n)))
    assert reports.total() == (0, 4.0, 2)
    assert not any(r.details.has_epoch for r in reports if r.details)


def test_a_second_loop_makes_the_run_longer(reports: Reports) -> None:
    with observed_job():
        loader = loader_of(1, 1)
        model, optimizer = constant()
        for n in (1, 3):
            for _ in epochs(n):
                for (x,) in loader:
                    step(model, optimizer, x)
    found = [(r.epoch, r.details.n_epochs, r.details.share) for r in reports if r.details]
    assert found == [(0, 1, 1.0), (1, 4, 0.5), (2, 4, 0.75), (3, 4, 1.0)]


def test_passes_over_the_loader_in_an_epoch_are_those_of_epochs_before(reports: Reports) -> None:
    with observed_job():
        loader = loader_of(2, 1)
        model, optimizer = constant()
        for _ in epochs(2):
            for _ in range(2):
                for (x,) in loader:
                    step(model, optimizer, x)
    found = [r.details.share for r in reports if r.details]
    # The first pass cannot know that another one follows.
    assert found == [0.25, 0.5, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0]
    assert reports.total()[0] == 8


class Stream(IterableDataset[Any]):
    """Samples without indices; `n` is their number, and `len` if it is known."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        yield from torch.arange(1.0, self.n + 1).reshape(self.n, 1)


class Sized(Stream):
    def __len__(self) -> int:
        return self.n


@pytest.mark.parametrize(
    ("kind", "shares"), [(Sized, [0.25, 0.5, 0.75, 1]), (Stream, [0, 0, 0.5, 0.5])]
)
def test_a_stream_reports_its_samples_and_with_a_length_its_share(
    reports: Reports, kind: Any, shares: list[float]
) -> None:
    with observed_job():
        loader = prepare_loader(DataLoader(kind(8), batch_size=4))
        model, optimizer = constant()
        for _ in epochs(2):
            for x in loader:
                step(model, optimizer, x)
    assert [(r.epoch, r.samples, r.loss_sum) for r in reports] == [
        (0, 4, 10.0),
        (0, 4, 26.0),
        (1, 4, 10.0),
        (1, 4, 26.0),
    ]
    assert [r.details.share for r in reports if r.details] == shares


def test_batches_of_a_stream_before_a_restart_are_not_counted_again(reports: Reports) -> None:
    with observed_job():
        loader = prepare_loader(DataLoader(Sized(8), batch_size=4))
        model, optimizer = constant()
        loader.resume({"epoch": 0, "batch": 1, "children": [1]})
        for x in loader:
            step(model, optimizer, x)
    assert [(r.samples, r.loss_sum) for r in reports] == [(4, 26.0)]


def test_batches_of_a_restart_are_not_counted_again(reports: Reports) -> None:
    with observed_job():
        loader = loader_of(10, 4)
        model, optimizer = constant()
        loader.resume({"epoch": 0, "batch": 1})
        for (x,) in loader:
            step(model, optimizer, x)
    assert [r.samples for r in reports] == [4, 2]


def test_a_batch_sampler_of_the_script_has_unknown_samples_and_that_of_torch_has_its_size(
    reports: Reports,
) -> None:
    class Own(BatchSampler):
        """Batches that the script forms."""

    for kind, expected in ((Own, 0), (BatchSampler, 6)):
        reports.clear()
        with observed_job():
            sampler = kind(SequentialSampler(range(6)), 2, False)
            loader = loader_of(6, 2, batch_size=1, batch_sampler=sampler)
            model, optimizer = constant()
            for (x,) in loader:
                step(model, optimizer, x)
        assert reports.total() == (expected, 21.0 if expected else 10.5, expected or 3)


def test_the_loss_of_accumulated_passes_is_their_sum_over_the_samples_of_all(
    reports: Reports,
) -> None:
    with observed_job():
        loader = loader_of(8, 2)
        model, optimizer = constant()
        for i, (x,) in enumerate(loader):
            (model(x).mean() / 2).backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
    assert [(r.samples, r.loss_sum, r.loss_weight) for r in reports] == [(4, 10.0, 4), (4, 26.0, 4)]


def test_losses_whose_gradients_are_dropped_do_not_count(reports: Reports) -> None:
    with observed_job():
        model, optimizer = constant()
        x = torch.full((1, 1), 3.0, requires_grad=True)
        for drop in (optimizer.zero_grad, model.zero_grad):
            model(x).sum().backward()
            drop()
            step(model, optimizer, torch.full((1, 1), 5.0))
    assert reports.total() == (0, 10.0, 2)


@pytest.mark.parametrize(
    "backward",
    [
        lambda loss, _: loss.backward(torch.tensor(0.5)),
        lambda loss, _: loss.backward(gradient=torch.tensor(0.5)),
        lambda loss, model: loss.backward(inputs=list(model.parameters())),
        lambda loss, model: loss.backward(None, None, False, list(model.parameters())),
        lambda loss, _: loss.as_subclass(_Own).backward(),
    ],
)
def test_another_backward_pass_than_that_of_the_whole_loss_leaves_the_step_without_one(
    reports: Reports, backward: Any
) -> None:
    with observed_job():
        model, optimizer = constant()
        model(torch.ones(1, 1)).sum().backward()
        backward(model(torch.ones(1, 1)).sum(), model)
        optimizer.step()
        step(model, optimizer, torch.full((1, 1), 5.0))
    assert reports.total() == (0, 5.0, 1)


class _Own(torch.Tensor):
    """A subclass of the script."""


def test_a_backward_pass_within_another_is_no_loss(reports: Reports) -> None:
    class Inner(torch.autograd.Function):
        """Computes its gradient by a backward pass of its own."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                (x * 2).sum().backward()
            return x.grad * g

    with observed_job():
        model, optimizer = constant()
        Inner.apply(model(torch.full((1, 1), 2.0))).sum().backward()
        optimizer.step()
    assert reports.total() == (0, 4.0, 1)


@pytest.mark.parametrize("unscales", [False, True])
def test_the_loss_under_a_grad_scaler_is_the_one_before_it_was_scaled(
    reports: Reports, unscales: bool
) -> None:
    with observed_job():
        model, optimizer = constant()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
        for value in (3.0, 5.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 1), value)).mean()).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert reports.total() == (0, 8.0, 2)


def test_a_scaled_loss_whose_scale_is_not_found_is_not_shown_nor_that_of_a_skipped_step(
    reports: Reports,
) -> None:
    with observed_job():
        model, optimizer = constant()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for make in (
            lambda loss: scaler.scale(loss) / 2,
            lambda loss: scaler.scale(loss) * 2.0,
            lambda loss: scaler.scale(loss * float("inf")),
        ):
            optimizer.zero_grad()
            make(model(torch.ones(1, 1)).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        # Of two passes the scale of one is not found.
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 1)).mean()).backward()
        (scaler.scale(model(torch.ones(1, 1)).mean()) / 2).backward()
        scaler.step(optimizer)
    assert len(reports) == 4
    assert reports.total() == (0, 0.0, 0)


@pytest.mark.parametrize(
    "scaled",
    [
        lambda loss: loss * torch.tensor(0.5),
        lambda loss: torch.tensor(0.5) * loss,
        lambda loss: torch.tensor([0.5], dtype=torch.bfloat16) * loss,
    ],
)
def test_a_loss_times_a_tensor_is_not_shown_since_that_may_be_a_scale(
    reports: Reports, scaled: Any
) -> None:
    with observed_job():
        model, optimizer = constant()
        scaled(model(torch.ones(1, 1)).mean()).backward()
        optimizer.step()
        step(model, optimizer, torch.full((1, 1), 5.0))
    assert reports.total() == (0, 5.0, 1)


@pytest.mark.parametrize(
    "made",
    [
        lambda loss: loss * 0.5,
        lambda loss: 0.5 * loss,
        lambda loss: loss / torch.tensor(2.0),
        lambda loss: loss * torch.tensor(0.5, requires_grad=True),
    ],
)
def test_a_loss_times_a_number_or_a_parameter_is_shown(reports: Reports, made: Any) -> None:
    with observed_job():
        model, optimizer = constant()
        made(model(torch.ones(1, 1)).mean()).backward()
        optimizer.step()
    assert reports.total() == (0, 0.5, 1)


def test_passes_without_a_step_take_no_more_memory_than_those_of_a_step(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses_module, "MOST_PASSES", 3)
    with observed_job() as script:
        model, optimizer = constant()
        losses = script.part(TorchJob).progress.losses
        for n in (2, 3, 4, 8):
            sizes = []
            for _ in range(n):
                model(torch.ones(1, 1)).mean().backward()
                sizes.append(len(losses._noted))
            assert max(sizes) <= 3
            optimizer.step()
            optimizer.zero_grad()
    # Steps of more passes than a step has are without a loss.
    assert [r.loss_sum for r in reports] == [2.0, 3.0, 0.0, 0.0]
    assert [r.loss_weight for r in reports] == [1, 1, 0, 0]


def test_two_optimizers_with_one_loss_have_it_and_with_two_none(reports: Reports) -> None:
    for has_two in (False, True):
        reports.clear()
        with observed_job():
            one, two = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
            nn.init.ones_(one.weight)
            nn.init.ones_(two.weight)
            one, first = prepare(one, SGD(one.parameters(), lr=0.0), name="one")
            two, second = prepare(two, SGD(two.parameters(), lr=0.0), name="two")
            for _ in range(2):
                first.zero_grad()
                second.zero_grad()
                two(one(torch.full((1, 1), 3.0))).sum().backward()
                first.step()
                if has_two:
                    second.zero_grad()
                    two(torch.ones(1, 1)).sum().backward()
                second.step()
        assert reports.total() == ((0, 0.0, 0) if has_two else (0, 6.0, 2))


def test_a_rate_is_that_of_the_step_and_param_groups_that_differ_have_one_each(
    reports: Reports,
) -> None:
    with observed_job():
        model, optimizer = constant(0.0, 0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(2):
            step(model, optimizer, torch.ones(1, 1))
            scheduler.step()
        optimizer.param_groups[1]["lr"] = 0.0
        step(model, optimizer, torch.ones(1, 1))
    assert [r.details.rates for r in reports if r.details] == [[0.0, 0.5], [0.0, 0.25], [0.0]]


def test_embeddings_have_a_rule_of_their_own_and_no_rate(reports: Reports) -> None:
    with observed_job():
        model, optimizer = prepare(mpips.torch.Embedding(2))
        model(torch.tensor([3])).sum().backward()
        optimizer.step()
    assert [r.details.rates for r in reports if r.details] == [[]]


def test_what_the_script_reports_counts_and_its_samples_are_counted_once(reports: Reports) -> None:
    with observed_job():
        loader = loader_of(8, 2)
        model, optimizer = constant()
        for _ in epochs(1):
            for i, (x,) in enumerate(loader):
                step(model, optimizer, x)
                if i == 2:
                    mpips.report(loss=7.0, samples=6)
                    assert torch.Tensor.backward is not PLAIN
        assert torch.Tensor.backward is PLAIN
    # Two automatic reports, the script's own one, and two without samples and losses.
    assert [(r.samples, r.loss_sum, r.loss_weight) for r in reports] == [
        (2, 3.0, 2),
        (2, 7.0, 2),
        (2, 42.0, 6),
        (0, 0.0, 0),
        (0, 0.0, 0),
    ]
    assert [r.details.share for r in reports if r.details] == [0.25, 0.5, 0.0, 0.75, 1.0]
    assert [r.epoch for r in reports] == [0] * 5


def test_without_a_number_of_samples_those_that_mpips_counts_go_on(reports: Reports) -> None:
    with observed_job():
        loader = loader_of(8, 2)
        model, optimizer = constant()
        for i, (x,) in enumerate(loader):
            step(model, optimizer, x)
            if i in (0, 2):
                mpips.report(loss=7.0)
    # The first call sends what was counted by then.
    assert [(r.samples, r.loss_sum, r.loss_weight) for r in reports] == [
        (2, 3.0, 2),
        (0, 7.0, 1),
        (2, 0.0, 0),
        (2, 0.0, 0),
        (0, 7.0, 1),
        (2, 0.0, 0),
    ]
    assert [r.is_by_library for r in reports] == [True, False, True, True, False, True]


def test_samples_that_the_script_counts_later_are_those_since_its_report_before(
    reports: Reports,
) -> None:
    with observed_job():
        loader = loader_of(8, 2)
        model, optimizer = constant()
        for i, (x,) in enumerate(loader):
            step(model, optimizer, x)
            if i == 1:
                mpips.report(loss=7.0)
            if i == 3:
                mpips.report(loss=7.0, samples=4)
    assert reports.total()[0] == 8


def test_an_evaluation_of_the_script_has_the_epoch_that_is_counted(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_progress, "INTERVAL_S", 1e9)
    found = []
    with observed_job() as script:
        loader = loader_of(2, 1)
        model, optimizer = constant()
        for _ in epochs(3):
            for (x,) in loader:
                step(model, optimizer, x)
            script.worker.report_metrics = lambda n, *_: found.append((n, len(reports)))
            mpips.report(auc=0.5)
        mpips.report(auc=0.5, epoch=7)
    assert found == [(1, 1), (2, 2), (3, 3), (8, 3)]


def test_a_job_that_nobody_looks_at_leaves_torch_alone_and_reports_nothing(
    reports: Reports,
) -> None:
    with torch_job():
        model, optimizer = constant()
        step(model, optimizer, torch.ones(1, 1))
        assert torch.Tensor.backward is PLAIN
    assert not reports


def test_torch_has_its_function_again_behind_a_script_that_failed(reports: Reports) -> None:
    def script() -> None:
        with observed_job():
            model, optimizer = constant()
            step(model, optimizer, torch.ones(1, 1))
            assert torch.Tensor.backward is not PLAIN
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        script()
    assert torch.Tensor.backward is PLAIN


def test_a_wrapper_of_another_library_stays_and_notes_nothing_behind_the_job(
    reports: Reports,
) -> None:
    with torch_job() as script:
        script.is_observed = True
        model, optimizer = constant()
        step(model, optimizer, torch.ones(1, 1))
        ours = torch.Tensor.backward
        torch.Tensor.backward = lambda *a, **k: ours(*a, **k)  # type: ignore[method-assign,assignment]
        theirs = torch.Tensor.backward
    try:
        assert torch.Tensor.backward is theirs
        x = torch.ones(1, requires_grad=True)
        (2 * x).backward()
        assert x.grad == 2
    finally:
        torch.Tensor.backward = PLAIN  # type: ignore[method-assign]


def test_a_fast_loop_has_the_losses_of_the_first_steps_behind_each_report(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_progress, "INTERVAL_S", 1e9)
    monkeypatch.setattr(module, "MOST", 2)
    with observed_job() as script:
        loader = loader_of(6, 1)
        model, optimizer = constant()
        for i, (x,) in enumerate(loader):
            if i == 4:
                script.reports.flush()
            step(model, optimizer, x)
    assert [(r.samples, r.loss_sum, r.loss_weight) for r in reports] == [(4, 6.0, 4), (2, 11.0, 2)]


def test_a_pass_that_ends_between_two_reports_is_counted_to_its_last_step(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_progress, "INTERVAL_S", 1e9)
    with observed_job():
        loader = loader_of(10, 4)
        model, optimizer = constant()
        for _ in range(2):
            for i, (x,) in enumerate(loader):
                step(model, optimizer, x)
                if i == 1:
                    break
        for (x,) in loader:
            step(model, optimizer, x)
    assert reports.total() == (8 + 8 + 10, pytest.approx(26 * (2 * 9 + 18.5) / 7), 26)
