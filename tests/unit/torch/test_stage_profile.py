"""Stages that a measurement cuts: what is measured, what is chosen, and who stores it."""

from __future__ import annotations

import copy
import importlib
import random
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from script_rig import wait_for_checkpoint
from torch import nn
from torch_rig import torch_job, values_of

import mpips.torch
from mpips.errors import ConfigError
from mpips.rundir.files import StagesChoice
from mpips.torch import stage_profile
from mpips.torch.stage_cut import AutoStages, Unit, cut, cut_at, n_stages_of, units_to_cut
from mpips.torch.stage_profile import (
    UnitProfile,
    choose_ends,
    choose_stages,
    digest_of,
    ends_of,
    profile_units,
)

prepare_module = importlib.import_module(
    "mpips.torch.prepare"
)  # the package has a function of its name
cross_entropy = nn.functional.cross_entropy
X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


class Clock:
    """The time of this test, in ns: layers move it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        own = SimpleNamespace(perf_counter_ns=lambda: self.now)
        monkeypatch.setattr(stage_profile, "time", own)


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: Clock, times: tuple[int, int]) -> torch.Tensor:
        ctx.clock, ctx.ns = clock, times[1]
        clock.now += times[0]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.clock.now += ctx.ns
        return gradients[0], None, None


class Timed(nn.Linear):
    """A layer that takes so many ns forward and backward; its first pass takes longer."""

    def __init__(self, clock: Clock, forward: int, backward: int) -> None:
        super().__init__(6, 6)
        self.clock, self.times, self.is_cold = clock, (forward, backward), True

    def __deepcopy__(self, memo: Any) -> Timed:
        return Timed(self.clock, *self.times)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 1000 * self.is_cold
        self.is_cold = False
        slow: Any = _Slow
        return slow.apply(super().forward(x), self.clock, self.times)  # type: ignore[no-any-return]


def timed(clock: Clock, *times: tuple[int, int]) -> nn.Sequential:
    return nn.Sequential(*(Timed(clock, *one) for one in times))


def plain() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Linear(8, 3)
    )


def test_both_passes_count_and_the_first_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = timed(Clock(monkeypatch), (3, 4), (10, 0), (0, 5))
    assert [one.ns for one in profile_units(units_to_cut(model), X)] == [7, 10, 5]


def test_a_measurement_changes_nothing_of_model_and_generators() -> None:
    model = plain()
    model[0].bias.grad = torch.ones(8)
    before = copy.deepcopy(model.state_dict()), torch.get_rng_state(), random.getstate()
    numbers = np.random.get_state()[1].tolist()
    with torch.no_grad():
        profile_units(units_to_cut(model), X)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before[0].items())
    assert torch.equal(torch.get_rng_state(), before[1])
    assert random.getstate() == before[2]
    assert np.random.get_state()[1].tolist() == numbers
    grads = [name for name, p in model.named_parameters() if p.grad is not None]
    assert grads == ["0.bias"]
    assert torch.equal(model[0].bias.grad, torch.ones(8))


class Passing(nn.Module):
    """A layer whose result has its argument and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return {"h": self.layer(x), "skip": x, "n": torch.zeros(len(x), dtype=torch.int64)}


class Joining(nn.Module):
    """A layer that takes such a result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4, bias=False)

    def forward(self, both: Any) -> torch.Tensor:
        return both["h"] + self.layer(both["skip"])


def held(profiles: list[UnitProfile], a: int, b: int) -> int:
    """Return the bytes that units a to b - 1 hold for a micro-batch."""
    areas = dict(profiles[a].received)
    for one in profiles[a:b]:
        areas |= one.saved
    return sum(areas.values())


def test_memory_that_two_units_keep_counts_once() -> None:
    example = torch.randn(5, 8)
    for inplace in (False, True):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace), nn.Linear(16, 4))
        found = profile_units(units_to_cut(model), example)
        result = 5 * 16 * 4
        assert held(found, 0, 1) == 5 * 8 * 4
        assert held(found, 0, 3) == 5 * 8 * 4 + result
        assert held(found, 1, 3) == (1 if inplace else 2) * result
        assert held(found, 2, 3) == result
        # Gradients come back for the results of layers.
        assert [one.n_sent for one in found] == [2 * result, 2 * result, 2 * 5 * 4 * 4]


def test_nested_results_are_measured_with_all_of_their_tensors() -> None:
    found = profile_units(units_to_cut(nn.Sequential(Passing(), Joining())), torch.randn(5, 6))
    assert found[0].n_sent == 2 * 5 * 4 * 4 + 5 * 6 * 4 + 5 * 8
    assert sum(found[1].received.values()) == 5 * 4 * 4 + 5 * 6 * 4 + 5 * 8
    # The argument that goes on is the memory of the first one.
    assert held(found, 0, 2) == 5 * 6 * 4


def made(times: list[int], sent: list[int], sizes: list[int]) -> tuple[list[Unit], Any]:
    """Return units with so many parameters, and their profiles."""
    units = [
        Unit(str(i), nn.Linear(n, 1, bias=False) if n else nn.ReLU()) for i, n in enumerate(sizes)
    ]
    rows = zip(times, sent, strict=True)
    profiles = [
        UnitProfile(str(i), t, {("value", i): 8}, {("inner", i): 4 * t}, s)
        for i, (t, s) in enumerate(rows)
    ]
    return units, profiles


def cost_of(ends: list[int], units: Any, profiles: Any, n: int) -> tuple[int, int, float]:
    """Return the time of the slowest stage, the bytes between all, and the most MiB of a stage."""
    parts = list(pairwise([0, *ends]))
    slowest = max(sum(one.ns for one in profiles[a:b]) for a, b in parts)
    sent = sum(profiles[end - 1].n_sent for end in ends[:-1])
    memory = 0.0
    for stage, (a, b) in enumerate(parts):
        values = sum(p.numel() for unit in units[a:b] for p in unit.module.parameters())
        memory = max(memory, (8 * values + (n - stage) * held(profiles, a, b)) / 2**20)
    return slowest, sent, memory


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_the_best_of_all_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_units, n = int(rng.integers(3, 9)), int(rng.integers(1, 4))
    times = rng.integers(1, 6, n_units).tolist()
    sizes = (rng.integers(1, 60, n_units) * (rng.random(n_units) < 0.8)).tolist()
    units, profiles = made(times, rng.integers(1, 9, n_units).tolist(), sizes)
    every = [
        [*inner, n_units]
        for inner in combinations(range(1, n_units), n - 1)
        if all(sum(sizes[a:b]) for a, b in pairwise([0, *inner, n_units]))
    ]
    limit: float | None = None
    if not every:
        with pytest.raises(ConfigError, match="parts with parameters that a cut can separate"):
            choose_ends(units, profiles, n, None)
        return
    for _ in range(3):
        costs = {tuple(ends): cost_of(ends, units, profiles, n) for ends in every}
        allowed = [c for c in costs.values() if limit is None or c[2] <= limit]
        if not allowed:
            least = min(c[2] for c in costs.values())
            with pytest.raises(ConfigError, match=rf"the least is {least:.1f} MiB"):
                choose_ends(units, profiles, n, limit)
            return
        slowest = min(c[0] for c in allowed)
        expected = min(c[1] for c in allowed if c[0] <= 1.02 * slowest)
        found = costs[tuple(choose_ends(units, profiles, n, limit))]
        assert found in allowed
        assert found[0] <= 1.02 * slowest
        assert found[1] == expected
        # The next limit refuses this choice.
        limit = found[2] * (1 - 1e-9)


def test_a_time_that_is_hardly_longer_is_taken_for_fewer_bytes() -> None:
    units, profiles = made([100, 2, 99], [50, 10, 0], [1, 1, 1])
    assert choose_ends(units, profiles, 2, None) == [2, 3]
    units, profiles = made([100, 3, 97], [50, 10, 0], [1, 1, 1])
    assert choose_ends(units, profiles, 2, None) == [1, 3]


def test_units_that_share_a_tensor_stay_together() -> None:
    units, profiles = made([5, 5, 5, 5], [1, 1, 1, 1], [2, 3, 2, 4])
    units[1].module.shared = units[2].module.weight
    assert choose_ends(units, profiles, 2, None) in ([1, 4], [3, 4])
    units[0].module.shared = units[3].module.weight
    with pytest.raises(ConfigError, match="fewer than 2 parts"):
        choose_ends(units, profiles, 2, None)


def test_the_choice_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = timed(Clock(monkeypatch), (2_000_000, 0), (1_000_000, 500_000), (0, 600_000))
    stages = AutoStages(2, X)
    units = units_to_cut(model)
    choice = choose_stages(units, stages, digest_of(units, stages))
    assert choice.ends == (1, 3)
    (text,) = choice.reasons
    assert text.startswith("2 stages, as measured with a micro-batch of 8 samples: 0 (2 ms, ")
    assert "1 to 2 (2.1 ms, " in text
    assert text.endswith("; 0.375 KiB travel between them")


def test_a_digest_depends_on_all_but_times() -> None:
    units = units_to_cut(plain())
    base = digest_of(units, AutoStages(2, X))
    assert digest_of(units_to_cut(plain()), AutoStages(2, X + 1)) == base
    other = plain()
    other[0].weight.requires_grad_(False)
    others = [
        digest_of(units, AutoStages(3, X)),
        digest_of(units, AutoStages(2, X[:4])),
        digest_of(units, AutoStages(2, X, memory_mib=9)),
        digest_of(units[:-1], AutoStages(2, X)),
        digest_of(units_to_cut(other), AutoStages(2, X)),
    ]
    assert len({base, *others}) == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AutoStages(0, X), "AutoStages: n = 0"),
        (lambda: AutoStages(True, X), "AutoStages: n = True"),
        (lambda: AutoStages(2, X, memory_mib=0), "memory_mib = 0"),
        (lambda: AutoStages(2, X, memory_mib="9"), "memory_mib = '9'"),  # type: ignore[arg-type]
        (
            lambda: profile_units(units_to_cut(plain()), X[:, :4]),
            "the module '0' raises RuntimeErr",
        ),
        (lambda: profile_units(units_to_cut(plain()), torch.ones(())), "the example of AutoStages"),
        (
            lambda: profile_units(units_to_cut(plain()), {1: X}),
            "the example of AutoStages contains",
        ),
        (lambda: cut(plain(), "auto"), "or mpips.torch.AutoStages(number, example)"),
        (
            lambda: choose_stages(
                units_to_cut(nn.Sequential(nn.Linear(6, 6, device="meta"))), AutoStages(1, X), ""
            ),
            "'0' are on the meta device",
        ),
    ],
)
def test_what_is_not_accepted_is_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize("ends", [(), (2,), (3, 5, 4), (0, 5), (5, 5)])
def test_a_stored_cut_that_does_not_fit_is_refused(ends: tuple[int, ...]) -> None:
    units = units_to_cut(plain())
    with pytest.raises(ConfigError, match=rf"the model has {len(units)} modules: remove stages"):
        ends_of(StagesChoice(digest="", ends=ends), units)
    assert cut_at(units, ends_of(StagesChoice(digest="", ends=(1, 5)), units)) == [
        units[:1],
        units[1:],
    ]


def train(stages: Any, steps: int = 3) -> tuple[list[Any], Any]:
    """Return losses and values of a model that is trained in a job of this process, and the job."""
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = mpips.torch.prepare(model, optimizer, stages=stages)
    found: list[Any] = []
    for _ in range(steps):
        optimizer.zero_grad()
        found.append(model.forward_backward(X, Y, cross_entropy, micro_batches=4).item())
        optimizer.step()
    return [*found, {k: v.tolist() for k, v in values_of(model).items()}], model._mpips_job


def test_a_measured_cut_trains_as_any_other() -> None:
    with torch_job():
        expected, _ = train(2)
    with torch_job():
        found, own = train(AutoStages(2, X[:2]))
        assert own.stages_choice.ends[-1] == 5
        assert own.position()["cut"] == {
            "digest": own.stages_choice.digest,
            "ends": list(own.stages_choice.ends),
            "reasons": list(own.stages_choice.reasons),
        }
    assert found == expected


def test_a_loader_takes_the_number_of_stages() -> None:
    assert n_stages_of(AutoStages(3, X)) == 3
    assert repr(AutoStages(3, X, memory_mib=0.5)) == "AutoStages(3, memory_mib=0.5)"


def chosen(ends: tuple[int, ...]) -> Any:
    """Return a function that chooses so, whatever the model."""
    return lambda units, stages, digest: StagesChoice(
        digest=digest, ends=ends, reasons=(f"the ends {ends}",)
    )


def test_a_restart_has_the_choice_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare_module, "choose_stages", chosen((3, 5)))
    options: dict[str, Any] = {"save": tmp_path, "every_steps": 3}
    with torch_job(**options, verbose=True) as script:
        train(AutoStages(2, X[:2]), 3)
        wait_for_checkpoint(script, tmp_path, 3, "0.weight")
    assert "note: the ends (3, 5)" in capsys.readouterr().err
    # Another measurement would choose otherwise.
    monkeypatch.setattr(prepare_module, "choose_stages", chosen((1, 5)))
    (saved,) = tmp_path.glob("step-*")
    for resume, stages, ends in (
        ("auto", AutoStages(2, X[:2]), (3, 5)),
        (str(saved), AutoStages(2, X[:2]), (3, 5)),
        ("auto", AutoStages(2, X[:4]), (1, 5)),
        ("never", AutoStages(2, X[:2]), (1, 5)),
    ):
        with torch_job(save=tmp_path, resume=resume, verbose=True):
            _, own = train(stages, 0)
            own.start()
            assert own.stages_choice.ends == ends
            assert own.steps == (0 if resume == "never" else 3)
        before = "as before in this run: " if ends == (3, 5) else ""
        assert f"note: {before}the ends {ends}" in capsys.readouterr().err
