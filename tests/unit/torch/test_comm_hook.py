"""DistributedDataParallel with the communication of mpips, in one process; tests/fault has two."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_rig import torch_job

import mpips.torch.ddp
from mpips.errors import ConfigError
from mpips.torch import CommState, comm_hook, prepare


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*[nn.Linear(40, 40) for _ in range(4)], nn.Linear(40, 1)).to(dtype)


def train(model: nn.Module, optimizer: Any, dtype: torch.dtype, sync: Any = None) -> list[Any]:
    torch.manual_seed(5)
    for step in range(5):
        optimizer.zero_grad()
        if sync is not None and step == 3:
            with sync():
                model(torch.randn(8, 40, dtype=dtype)).square().mean().backward()
        model(torch.randn(8, 40, dtype=dtype)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_trains_as_with_ddp_itself_also_when_its_buckets_change(
    group: None, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(mpips.torch.ddp, "SEGMENT", 1000)  # segments end within buckets
    model = network(dtype)
    plain = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.004)
    expected = train(plain, torch.optim.SGD(plain.parameters(), 0.1), dtype, plain.no_sync)
    seen: list[list[int]] = []

    def watching(state: Any, bucket: Any) -> Any:
        if bucket.index() == 0:
            seen.append([])
        seen[-1].append(bucket.buffer().numel())
        return comm_hook(state, bucket)

    watching.__annotations__ = {}  # DDP compares them with its own types
    with torch_job() as job:
        hooked = DistributedDataParallel(model, bucket_cap_mb=0.004)
        hooked.register_comm_hook(CommState(hooked), watching)
        found = train(hooked, torch.optim.SGD(hooked.parameters(), 0.1), dtype, hooked.no_sync)
        assert job.worker is not None
        assert job.worker.now == 5
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert len(seen[1]) > 1
    assert seen[0] != seen[1]
    assert {sum(sizes) for sizes in seen} == {sum(p.numel() for p in model.parameters())}


def test_ddp_accepts_the_hook_itself_and_passes_nan_on(group: None) -> None:
    with torch_job():
        model = DistributedDataParallel(nn.Linear(2, 1))
        model.register_comm_hook(CommState(model), comm_hook)
        model(torch.full((1, 2), float("nan"))).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        weight = next(iter(model.parameters()))
        assert weight.grad is not None
        assert weight.grad.isnan().all()


def test_bad_use_is_one_sentence(group: None) -> None:
    with pytest.raises(ConfigError, match=r"mpips\.init"):
        CommState(nn.Linear(2, 1))
    with torch_job():
        with pytest.raises(
            ConfigError, match=r"parameter 'weight' is torch.float64 on cpu: must be"
        ):
            CommState(nn.Linear(2, 1).double())
        with pytest.raises(ConfigError, match="no parameter that requires a gradient"):
            CommState(nn.Linear(2, 1).requires_grad_(False))
        model = DistributedDataParallel(nn.Linear(2, 1))
        model.register_comm_hook(None, comm_hook)
        with pytest.raises(ConfigError, match=r"its state is NoneType: register it by model"):
            model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(ConfigError, match=r"uses mpips\.torch\.comm_hook and mpips\.torch"):
            prepare(nn.Linear(2, 1))


def test_a_state_of_another_model_is_refused(group: None) -> None:
    with torch_job():
        model = DistributedDataParallel(nn.Linear(20, 1))
        model.register_comm_hook(CommState(nn.Linear(2, 1)), comm_hook)
        with pytest.raises(
            ConfigError, match=r"a bucket of 21 gradients .* behind 0 of the model's 3"
        ):
            model(torch.ones(1, 20)).sum().backward()


def test_the_process_group_must_have_the_workers() -> None:
    with torch_job(), pytest.raises(ConfigError, match="has 0 processes and the job 1 workers"):
        CommState(nn.Linear(2, 1))
