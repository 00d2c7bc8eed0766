"""A torch script with hundreds of param groups, whose place in a checkpoint is longer than a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")
pytest.importorskip("h5py", reason="checkpoints need h5py")

import torch
from script_rig import wait_for_checkpoint
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import State, assert_equal, torch_job, values_of

from mpips.checkpoint import open_checkpoint
from mpips.errors import ConfigError
from mpips.snapshot import cut
from mpips.torch import prepare
from mpips.worker.worker import connection_of

N_GROUPS, N_STEPS = 300, 6
EQUAL, DISTINCT = 1.0, 0.97  # ratio of the learning rates of two groups that follow each other

Groups = dict[int, list[dict[str, Any]]]


class CrashError(Exception):
    """The end of a script in the middle."""


@pytest.fixture(autouse=True)
def _planned_by_clocks(monkeypatch):
    """Plan a checkpoint some clocks ahead, however fast the script is, so that none is left out."""
    monkeypatch.setattr(cut, "_MARGIN_S", 0.0)


class Run:
    """One run of the script.

    Attributes:
        groups: Hyperparameters of all groups before each step that was made, by step.
        scheduler: State of the scheduler at the end.
        values: Values at the end.
        room: Bytes of a record.
    """

    def __init__(
        self, ratio: float, crash_at: int = 0, groups: Groups | None = None, **options: Any
    ) -> None:
        self.groups: Groups = {} if groups is None else groups
        self.scheduler: dict[str, Any] = {}
        self.values: State = {}
        self._crash_at, self._folder = crash_at, options.get("save")
        with torch_job(seed=4, **options) as script:
            self._train(script, ratio)

    def _train(self, script: Any, ratio: float) -> None:
        model: Any = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(N_GROUPS)])
        rates = [0.1 * ratio**i for i in range(N_GROUPS)]
        optimizer: Any = AdamW(
            [{"params": [p], "lr": lr} for p, lr in zip(model, rates, strict=True)]
        )
        scheduler = OneCycleLR(optimizer, rates, total_steps=N_STEPS + 1)
        loader: Any = DataLoader(TensorDataset(torch.arange(1.0, N_STEPS + 1)), batch_size=1)
        model, optimizer, loader = prepare(model, optimizer, loader, scheduler=scheduler)
        for (x,) in loader:
            step = loader.batch - 1
            if self._folder and step and step % 3 == 0:
                wait_for_checkpoint(script, self._folder, step, "0")
            if self._crash_at == step > 0:
                raise CrashError
            self.groups[step] = [
                {name: value for name, value in group.items() if name != "params"}
                for group in optimizer.param_groups
            ]
            optimizer.zero_grad()
            sum((x.item() * p).square().sum() for p in model).backward()
            optimizer.step()
            scheduler.step()
        self.room = connection_of(script.worker).channels[0].layout.geometry.payload_capacity
        self.scheduler, self.values = scheduler.state_dict(), values_of(model)


@pytest.mark.parametrize(
    "ratio", [pytest.param(EQUAL, marks=pytest.mark.long), DISTINCT], ids=["equal", "distinct"]
)
def test_a_restart_restores_the_hyperparameters_of_hundreds_of_groups(tmp_path, ratio):
    expected = Run(ratio)
    with pytest.raises(CrashError):
        Run(ratio, 4, save=tmp_path, every_steps=3)
    (path,) = tmp_path.glob("step-*")
    with open_checkpoint(path) as checkpoint:
        (worker,) = checkpoint.manifest.workers
    changed = worker.cursor["optimizer 0"]["changed"]
    assert [changed[str(i)]["lr"] for i in range(N_GROUPS)] == [g["lr"] for g in expected.groups[3]]
    assert len(str(worker.cursor)) > expected.room

    found = Run(ratio, save=tmp_path, every_steps=3)
    assert found.groups == {step: expected.groups[step] for step in range(3, N_STEPS)}
    assert found.scheduler == expected.scheduler
    assert_equal(found.values, expected.values)


def test_groups_that_fit_into_no_record_are_refused_at_the_first_clock(tmp_path: Path) -> None:
    made: Groups = {}
    with pytest.raises(
        ConfigError,
        match=r"^the cursor and random state of worker 0 are too large for a checkpoint: 18,\d{3} bytes, "
        r"[\d,]+ when compressed, and a record has room for 4,032; the largest entry of the cursor is "
        r"'optimizer 0' with \d\d,\d{3} bytes: set slot_kib to \d+ or more, or store less in the cursor$",
    ):
        Run(DISTINCT, groups=made, slot_kib=4, save=tmp_path, every_steps=100)
    assert list(made) == [0]
    Run(DISTINCT, slot_kib=12)
