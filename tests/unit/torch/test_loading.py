"""A checkpoint in a plain model: values, buffers and rows as the job had them, or nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")
pytest.importorskip("h5py", reason="checkpoints need h5py")

import torch
from torch import nn
from torch.optim import Adam
from torch_rig import assert_equal, batches, torch_job, values_of

import mpips
from mpips.errors import CheckpointError, ConfigError
from mpips.torch import Embedding, load_checkpoint, prepare

SEED = 5
KNOWN = torch.tensor([[3, -(2**60)], [2**61, 3]])
UNKNOWN = torch.tensor([[7, 8]])


class Network(nn.Module):
    """A model with a buffer of each form, a scalar, a bfloat16 parameter and rows."""

    def __init__(self, width: int = 4, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.rows = Embedding(2, optimizer=mpips.SGD(0.5), init="uniform(0.1)")
        self.norm = nn.BatchNorm1d(width)
        self.small = nn.Linear(width, 2).bfloat16()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        found = torch.cat([self.norm(x), self.rows(ids).flatten(1)[:, :2]], dim=1)
        return (
            self.small(found[:, :4].bfloat16()).float() * self.scale
            + self.rows(ids).sum((1, 2))[:, None]
        )


@pytest.fixture(scope="module")
def saved(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict, torch.Tensor, torch.Tensor]:
    """A folder of checkpoints, the values at its end, and rows of ids with and without a row."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with torch_job(save=folder, seed=SEED):
        model = Network()
        model, optimizer = prepare(model, Adam(model.parameters(), 0.1), name="net")
        for x in batches(4, 2, 4):
            optimizer.zero_grad()
            model(x, KNOWN).square().mean().backward()
            optimizer.step()
        values = {name: value.clone() for name, value in values_of(model).items()}
        with torch.no_grad():
            known, unknown = model.rows(KNOWN).clone(), model.rows(UNKNOWN).clone()
    return folder, values, known, unknown


def test_a_plain_model_has_the_values_and_rows_of_the_job(saved):
    folder, values, known, unknown = saved
    for path in (folder, next(folder.glob("step-*"))):
        model = Network(seed=9)
        load_checkpoint(model, path, name="net", seed=SEED)
        assert_equal(values_of(model), values)
        assert model.norm.num_batches_tracked.item() == 4
        assert model.small.weight.dtype == torch.bfloat16
        assert torch.equal(model.rows(KNOWN), known)
        assert torch.equal(model.rows(UNKNOWN), unknown)
        assert model.rows(torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 2, 2)
        # Rows of a checkpoint are no parameters.
        assert not model.rows(KNOWN).requires_grad


def test_initial_rows_are_those_of_the_seed(saved):
    folder, _, known, unknown = saved
    model = Network()
    load_checkpoint(model, folder, name="net", seed=SEED + 1)
    assert torch.equal(model.rows(KNOWN), known)
    assert not torch.equal(model.rows(UNKNOWN), unknown)


@pytest.mark.parametrize(
    ("width", "name", "sentence"),
    [
        (
            5,
            "net",
            r"'net.norm.weight' .* with shape \(4,\); the model needs dense with shape \(5,\)",
        ),
        (
            4,
            "",
            "has no table 'scale', which the model has; its tables are net.scale, net.norm.weight",
        ),
    ],
)
def test_another_model_is_refused_and_unchanged(width, name, sentence, saved):
    model = Network(width, seed=3)
    before = {key: value.clone() for key, value in values_of(model).items()}
    with pytest.raises(ConfigError, match=sentence):
        load_checkpoint(model, saved[0], name=name)
    assert_equal(values_of(model), before)
    with pytest.raises(ConfigError, match=r"or mpips.torch.load_checkpoint\(model, path\)"):
        model.rows(KNOWN)


def test_a_damaged_checkpoint_changes_nothing(saved, tmp_path):
    path = tmp_path / next(saved[0].glob("step-*")).name
    path.mkdir()
    for file in next(saved[0].glob("step-*")).iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    data = bytearray((path / "state.h5").read_bytes())
    data[-5] ^= 1
    (path / "state.h5").write_bytes(data)
    model = Network(seed=3)
    before = {key: value.clone() for key, value in values_of(model).items()}
    with pytest.raises(CheckpointError):
        load_checkpoint(model, path, name="net")
    with pytest.raises(CheckpointError, match="has no good checkpoint; "):
        load_checkpoint(model, tmp_path, name="net")
    with pytest.raises(ConfigError, match="no folder"):
        load_checkpoint(model, tmp_path / "none", name="net")
    assert_equal(values_of(model), before)


def test_a_model_of_a_job_is_refused(saved):
    with torch_job():
        model = Network()
        prepared, _ = prepare(model, Adam(model.parameters()))
        with pytest.raises(ConfigError, match="the model has been prepared"):
            load_checkpoint(prepared, saved[0], name="net")


def test_a_job_begins_with_the_values_and_rows_of_a_checkpoint(saved):
    folder, values, known, unknown = saved
    with torch_job(seed=SEED):
        loaded = Network(seed=9)
        load_checkpoint(loaded, folder, name="net")
        model, _ = prepare(loaded, Adam(loaded.parameters()), name="net")
        assert torch.equal(model.rows(KNOWN), known)
        assert torch.equal(model.rows(UNKNOWN), unknown)
        assert_equal(values_of(model), values)
