"""`mpips.torch.epochs`: a script that is run again after errors logs each epoch as an undisturbed one."""

from __future__ import annotations

import gc
import math
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")
pytest.importorskip("h5py", reason="checkpoints need h5py")

import torch
from script_rig import wait_for_checkpoint
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import assert_equal, torch_job, values_of

import mpips
from mpips.errors import ConfigError
from mpips.snapshot import cut
from mpips.torch import epochs, prepare, prepare_loader, steps
from mpips.torch.epochs import EpochLoops, LoopState

N_EPOCHS, N_BATCHES, EVERY = 4, 4, 3


@pytest.fixture(autouse=True)
def _planned_by_clocks(monkeypatch):
    """Plan a checkpoint some clocks ahead, however fast the script is, so that none is left out."""
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)


class CrashError(Exception):
    """The end of a script in the middle."""


class Crash:
    """Lets a script write its checkpoints, and ends it before a step."""

    def __init__(self, script: Any, folder: Path | None, at: int, table: str = "0.weight") -> None:
        self._script, self._folder, self._at, self._table = script, folder, at, table

    def before(self, step: int) -> None:
        if self._folder and self._at >= 0 and step and step % EVERY == 0:
            steps()  # ends the clock of the step before
            wait_for_checkpoint(self._script, self._folder, step, self._table)
        if step == self._at:
            raise CrashError


class Stopper:
    """An object of the script that counts epochs without a better value."""

    def __init__(self) -> None:
        self.best, self.n_bad = math.inf, 0

    def update(self, value: float) -> None:
        self.n_bad = 0 if value < self.best else self.n_bad + 1
        self.best = min(self.best, value)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "n_bad": self.n_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.n_bad = state["best"], state["n_bad"]


class Run:
    """One run of a script with a loss of each epoch, its best value, and two schedulers.

    Attributes:
        printed: Epochs whose code behind the batches has run.
        state: The state of the script at its end.
    """

    def __init__(self, folder: Path | None = None, crash_at: int = -1) -> None:
        self.printed: list[int] = []
        self.state: dict[str, Any] = {"log": [], "total": 0.0, "none": None, "nan": math.nan}
        self.stopper = Stopper()
        options = {"save": folder, "every_steps": EVERY} if folder else {}
        with torch_job(seed=4, **options) as script:
            self._train(script, Crash(script, folder, crash_at))

    def _train(self, script: Any, crash: Crash) -> None:
        torch.manual_seed(1)
        model: Any = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.Linear(2, 1))
        optimizer: Any = SGD(model.parameters(), 0.1)
        samples = TensorDataset(torch.linspace(-1, 1, 48).view(16, 3))
        loader = prepare_loader(DataLoader(samples, batch_size=4, shuffle=True))
        by_step, by_epoch = ExponentialLR(optimizer, 0.9), StepLR(optimizer, 1, gamma=0.5)
        model, optimizer = prepare(model, optimizer, scheduler=[by_step, by_epoch])
        for epoch in epochs(N_EPOCHS, state=[self.state, self.stopper]):
            model.train()
            self.state["total"] = 0.0
            for (x,) in loader:
                crash.before(epoch * N_BATCHES + loader.batch - 1)
                optimizer.zero_grad()
                loss = (model(x) - 1).square().mean()
                loss.backward()
                optimizer.step()
                by_step.step()
                self.state["total"] += loss.item()
            model.eval()
            with torch.no_grad():
                value = (model(torch.ones(1, 3)) - 1).square().item()
            self.stopper.update(-value if epoch % 2 else value)
            by_epoch.step()
            rate = optimizer.param_groups[0]["lr"]
            self.printed.append(epoch)
            self.state["log"].append([epoch, steps(), self.state["total"], value, rate])
        self.values = values_of(model)


@pytest.mark.parametrize(
    ("crashes", "printed"),
    [
        ((7, 15), [[0], [1, 2], [3]]),
        ((3, 9), [[], [0, 1], [2, 3]]),
        (
            (7, 13),
            [[0], [1, 2], [2, 3]],
        ),  # the checkpoint of step 12 is behind the last step of epoch 2
        ((0, 0), [[], [], [0, 1, 2, 3]]),
    ],
)
def test_a_script_that_ends_twice_has_the_log_the_best_value_and_the_rate_of_an_undisturbed_one(
    tmp_path, crashes, printed
):
    expected = Run()
    assert [line[:2] for line in expected.state["log"]] == [[0, 4], [1, 8], [2, 12], [3, 16]]
    found = []
    for crash_at in (*crashes, -1):
        script = object.__new__(Run)
        found.append(script)
        if crash_at >= 0:
            with pytest.raises(CrashError):
                script.__init__(tmp_path, crash_at)  # type: ignore[misc]
        else:
            script.__init__(tmp_path)  # type: ignore[misc]
    assert [one.printed for one in found] == printed
    last = found[-1]
    assert math.isnan(last.state.pop("nan"))
    assert math.isnan(expected.state.pop("nan"))
    assert last.state == expected.state
    assert last.stopper.state_dict() == expected.stopper.state_dict()
    assert_equal(last.values, expected.values)


def trained(
    folder: Path | None, n: int, crash_at: int = -1, *, with_epochs: bool = True
) -> tuple[list[Any], Any]:
    """Train with a loader of each epoch and one of every second epoch; return what was read, and values."""
    seen: list[Any] = []
    options = {"save": folder, "every_steps": EVERY} if folder else {}
    with torch_job(seed=4, **options) as script:
        crash = Crash(script, folder, crash_at, "weight")
        torch.manual_seed(1)
        model: Any = nn.Linear(1, 1)
        optimizer: Any = SGD(model.parameters(), 0.01)
        first, second = (
            prepare_loader(
                DataLoader(TensorDataset(torch.arange(n).float().view(-1, 1)), 2, shuffle=True)
            )
            for n in (4, 6)
        )
        model, optimizer = prepare(model, optimizer)
        count = steps()
        for epoch in epochs(n) if with_epochs else range(n):
            for number, loader in enumerate([first, second] if epoch % 2 else [first]):
                for (x,) in loader:
                    crash.before(count)
                    seen.append((epoch, number, x.flatten().int().tolist()))
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                    count += 1
        return seen, values_of(model)


def partly(folder, crash_at=-1):
    """Train three epochs with a prepared loader and two without between; return rates by step, and values."""
    options = {"save": folder, "every_steps": EVERY} if folder else {}
    with torch_job(seed=4, **options) as script:
        crash = Crash(script, folder, crash_at, "weight")
        torch.manual_seed(1)
        model: Any = nn.Linear(2, 1)
        optimizer: Any = SGD(model.parameters(), 0.1)
        loader: Any = prepare_loader(DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2))
        scheduler = ExponentialLR(optimizer, 0.9)
        model, optimizer = prepare(model, optimizer, scheduler=scheduler)
        rates = {}
        for epoch in epochs(5):
            # Without a prepared loader the script leaves out the steps that are made.
            own = [torch.full((2, 2), 1.0 + epoch)] * (8 + 3 * (epoch - 1) - steps())
            for x in (batch[0] for batch in loader) if epoch not in (2, 3) else own:
                crash.before(steps())
                optimizer.zero_grad()
                nn.functional.dropout(model(x)).square().mean().backward()
                optimizer.step()
                scheduler.step()
                rates[steps()] = optimizer.param_groups[0]["lr"]
        return rates, values_of(model)


def test_an_epoch_without_a_prepared_loader_continues_with_its_rate_and_random_numbers(tmp_path):
    rates, values = partly(None)
    with pytest.raises(CrashError):
        partly(tmp_path, 12)
    found, again = partly(tmp_path)
    assert found == {n: rate for n, rate in rates.items() if n > 12}
    assert_equal(again, values)


@pytest.mark.parametrize("crash_at", [4, 7, 8, 10, 13])
def test_loaders_that_are_read_in_different_epochs_continue_at_their_places(tmp_path, crash_at):
    seen, values = trained(None, 4)
    assert len(seen) == 14
    with pytest.raises(CrashError):
        trained(tmp_path, 4, crash_at)
    found, again = trained(tmp_path, 4)
    assert found == seen[crash_at - crash_at % EVERY :]
    assert_equal(again, values)


def test_a_run_continues_with_more_epochs_and_a_complete_one_has_none_left(tmp_path):
    seen, _ = trained(None, 4)
    assert trained(tmp_path, 2)[0] == seen[:7]
    assert trained(tmp_path, 2)[0] == []
    assert trained(tmp_path, 1)[0] == []
    assert trained(tmp_path, 4)[0] == seen[7:]


def test_a_checkpoint_of_a_loop_over_range_continues_with_epochs_and_the_other_way_round(tmp_path):
    seen, values = trained(None, 3)
    for before in (True, False):
        folder = tmp_path / str(before)
        with pytest.raises(CrashError):
            trained(folder, 3, 5, with_epochs=before)
        found, again = trained(folder, 3, with_epochs=not before)
        assert found == seen[3:]
        assert_equal(again, values)


def phases(folder: Path, crash_at: int = -1) -> tuple[list[Any], list[Any]]:
    """Run two loops without a loader; return the epochs that were yielded, and the states."""
    seen: list[Any] = []
    one, two = {"n": 0}, {"n": 0}
    with torch_job(save=folder, every_steps=EVERY) as script:
        crash = Crash(script, folder, crash_at, "weight")
        model: Any = nn.Linear(1, 1)
        model, optimizer = prepare(model, SGD(model.parameters(), 0.01))
        for phase, (n, state) in enumerate([(2, one), (3, two)]):
            loop = epochs(n, state=state)
            left = len(loop)
            for epoch in loop:
                seen.append((phase, epoch, left))
                done = (2 * phase + epoch) * 2
                for count in range(max(steps(), done), done + 2):
                    crash.before(count)
                    optimizer.zero_grad()
                    model(torch.ones(1, 1)).sum().backward()
                    optimizer.step()
                    state["n"] += 1
                if phase == 0 and epoch == 1:
                    break
        assert steps() == 10
    return seen, [one, two]


@pytest.mark.parametrize(
    ("crash_at", "left"),
    [(3, (0, 1, 1)), (5, (0, 1, 1)), (7, (1, 1, 2)), (9, (1, 2, 1))],
)
def test_loops_one_after_the_other_continue_in_the_one_of_the_restart(tmp_path, crash_at, left):
    with pytest.raises(CrashError):
        phases(tmp_path, crash_at)
    seen, states = phases(tmp_path)
    assert seen[0] == left
    assert seen[-1][:2] == (1, 2)
    assert states == [{"n": 4}, {"n": 6}]


def with_workers(folder: Path, n_workers: int, size: int, crash_at: int = -1) -> list[Any]:
    seen: list[Any] = []
    with torch_job(save=folder, every_steps=EVERY, seed=4) as script:
        script.n_workers = n_workers  # the batches of worker 0 of so many
        crash = Crash(script, folder, crash_at, "weight")
        model: Any = nn.Linear(1, 1)
        loader = DataLoader(TensorDataset(torch.arange(16.0).view(-1, 1)), batch_size=size)
        model, optimizer, loader = prepare(model, SGD(model.parameters(), 1e-6), loader)
        state = {"n": 0}
        for epoch in epochs(3, state=state):
            for (x,) in loader:
                crash.before(epoch * len(loader) + loader.batch - 1)
                seen.append((epoch, state["n"], int(x[0])))
                model(x).sum().backward()
                optimizer.step()
                state["n"] += 1
    return seen


def test_other_workers_continue_in_the_epoch_of_the_restart(tmp_path):
    with pytest.raises(CrashError):
        with_workers(tmp_path, 2, 2, crash_at=7)
    assert with_workers(tmp_path, 1, 4)[:3] == [(1, 6, 8), (1, 7, 12), (2, 8, 0)]


def test_a_change_of_a_state_behind_the_end_of_its_clock_is_told():
    def run(looks: bool) -> list[str]:
        with torch_job(), warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            model: Any = nn.Linear(1, 1)
            loader = DataLoader(TensorDataset(torch.ones(6, 1)), batch_size=2)
            model, optimizer, loader = prepare(model, SGD(model.parameters(), 0.1), loader)
            state = {"n": 0}
            for _ in epochs(2, state=state):
                for (x,) in loader:
                    model(x).sum().backward()
                    optimizer.step()
                    if looks:
                        model.state_dict()
                    state["n"] += 1
                model.state_dict()
                state["n"] += 1
            return [str(one.message) for one in found]

    assert run(False) == []
    texts = run(True)
    assert len(texts) == 6
    assert "change the state directly after the step, or evaluate before the next step" in texts[0]


def prepared(**options: Any) -> Any:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), 0.1)
    make = options.pop("make", None)
    scheduler = make(optimizer) if make else None
    return prepare(model, optimizer, **({"scheduler": scheduler} if options.get("given") else {}))


def test_misuse_is_an_error_of_one_sentence(job):
    with pytest.raises(ConfigError, match=r"epochs comes before mpips\.torch\.prepare"):
        epochs(3)
    prepared()
    for n in (-1, True, 2.0, "3"):
        with pytest.raises(ConfigError, match=r"epochs: n = .*: must be an integer, 0 or more"):
            epochs(n)  # type: ignore[arg-type]
    for state, what in (
        (3, "state is int: must be a dict, an object with"),
        ([{}, "x"], "state is str"),
        ({"a": torch.ones(1)}, r"state\['a'\] is Tensor: must be numbers"),
        ({"a": [1, (2,)]}, r"state\['a'\]\[1\] is tuple"),
        ({"a": {1: 2}}, r"state\['a'\] has the key 1: must be text"),
        (nn.Linear(1, 1), r"state\['weight'\] is Tensor"),
    ):
        with pytest.raises(ConfigError, match=what):
            epochs(3, state=state)
    for _ in epochs(2):
        with pytest.raises(
            ConfigError, match=r"epochs\(5\) begins within the loop over .*epochs\(2\)"
        ):
            next(epochs(5))
    gc.collect()
    assert list(epochs(np.int64(2))) == [0, 1]
    loop = epochs(1)
    assert (list(loop), list(loop), len(loop)) == ([0], [], 0)


@pytest.mark.parametrize("given", [True, False])
def test_a_scheduler_that_restarts_do_not_restore_is_an_error(job, given):
    prepared(make=lambda o: StepLR(o, 1), given=given)
    if given:
        assert list(epochs(2)) == [0, 1]
        return
    with pytest.raises(ConfigError, match="has a scheduler that was not given to prepare"):
        epochs(2)


def test_a_script_that_leaves_out_the_loop_of_the_restart_does_not_end_well():
    """A loop before it, whose result is in a file, was left out: the loop that is left is taken for that."""
    loops = EpochLoops()
    loops.resume({"loop": 1, "epoch": 2, "begun": [], "states": "[[], []]"})
    assert list(loops.make(20, [], [], mock.Mock())) == []
    with pytest.raises(
        ConfigError, match=r"of loop 2 over mpips\.torch\.epochs, and this launch made 1, so"
    ):
        loops.check_end()
    assert list(loops.make(4, [], [], mock.Mock())) == [2, 3]
    loops.check_end()


def test_a_state_that_changes_between_steps_of_accumulated_gradients_is_not_late():
    with torch_job():
        model: Any = nn.Linear(3, 1)
        loader = prepare_loader(DataLoader(TensorDataset(torch.ones(16, 3)), batch_size=4))
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
        state = {"epochs": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in epochs(3, state=state):
                for i, (x,) in enumerate(loader):
                    model(x).sum().backward()
                    if i % 2:
                        optimizer.step()
                        optimizer.zero_grad()
                steps()
                state["epochs"] += 1


def test_a_restart_with_other_states_is_an_error():
    loops = EpochLoops()
    loops.resume({"loop": 0, "epoch": 1, "begun": [], "states": "[[{}]]"})
    with pytest.raises(
        ConfigError, match=r"a script with 1 states .*, this one has 0: use the same"
    ):
        loops.make(3, [], [], None)  # type: ignore[arg-type]
    state = {"b": 1}
    assert len(loops.make(3, [LoopState(state)], [], None)) == 2  # type: ignore[arg-type]
    assert state == {}


def test_a_cursor_of_a_script_without_epochs_has_the_released_entries_and_one_with_it_one_more(job):
    model, optimizer = prepared()
    for _ in range(2):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    steps()
    assert set(job.worker.cursor) == {"torch", "workers", "steps", "optimizer 0"}
    for _ in mpips.torch.epochs(1, state={"a": np.float32(0.5)}):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        steps()
    assert job.worker.cursor["epochs"] == {
        "loop": 0,
        "epoch": 0,
        "begun": [],
        "states": '[[{"a": 0.5}]]',
    }


def test_steps_between_loops_leave_the_place_of_the_restart_and_a_new_epoch_ends_an_open_clock():
    loops, ended = EpochLoops(), []

    class Job:
        """Notes the epoch to which an open clock belongs."""

        def settle(self) -> None:
            ended.append(loops.position()["epochs"]["epoch"])

    place = {"loop": 1, "epoch": 2, "begun": [], "states": '[[{"a": 1}], [{"b": 2}]]'}
    loops.resume(place)
    one: dict[str, Any] = {}
    two: dict[str, Any] = {}
    assert list(loops.make(3, [LoopState(one)], [], Job())) == []
    # For people epochs are counted over all loops: three of the first one, and two.
    assert loops.position() == {"epochs": place, "epoch": 5}
    assert list(loops.make(4, [LoopState(two)], [], Job())) == [2, 3]
    assert (one, two) == ({"a": 1}, {"b": 2})
    assert ended == [2, 2, 3, 4]
