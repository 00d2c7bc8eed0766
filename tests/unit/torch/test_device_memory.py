"""Host memory of a device: apart from the script's default device, and released however the job ends."""

from __future__ import annotations

import copy
import mmap
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from late_device import LateCopies
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset
from torch_rig import assert_equal, torch_job, values_of

import mpips.torch
from mpips.errors import DeviceError
from mpips.session.init import current
from mpips.torch.device import COPIES
from mpips.torch.device_memory import DeviceMemory
from mpips.torch.job import TorchJob


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[LateCopies]]:
    """Let parameters of the CPU be those of the imitated device."""
    monkeypatch.setitem(COPIES, "cpu", LateCopies)
    LateCopies.counted.clear()
    yield LateCopies
    LateCopies.counted.clear()


def fail(*_: Any) -> None:
    raise ZeroDivisionError


def step(model: Any, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("where", ["late", "cpu"])
def test_the_default_device_of_a_script_is_not_that_of_host_memory(where, request):
    if where == "late":
        request.getfixturevalue("late")

    def trained(default: str | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        net = nn.Sequential(mpips.torch.EmbeddingBag(4, init="normal(1)"), nn.Linear(4, 2))
        data = TensorDataset(torch.arange(24).view(12, 2) % 7)
        with torch_job():
            made = SGD(net.parameters(), 0.05)
            model, optimizer, loader = mpips.torch.prepare(net, made, DataLoader(data, 4))
            # A tensor of mpips or of torch's loader that takes this default has no values.
            torch.set_default_device(default)
            try:
                for (ids,) in loader:
                    step(model, optimizer, ids)
            finally:
                torch.set_default_device(None)
            return values_of(net)

    assert_equal(trained("meta"), trained(None))


def script(*, fails: bool) -> None:
    with torch_job():
        net = nn.Linear(4, 1)
        model, optimizer = mpips.torch.prepare(net, SGD(net.parameters(), 0.1), overlap=False)
        step(model, optimizer, torch.ones(2, 4))
        if fails:
            fail()


@pytest.mark.parametrize("place", ["the start", "a step"])
def test_a_job_that_ends_with_an_error_releases_its_memory(place, late, monkeypatch):
    """The process may go on, as in a notebook, and CUDA registers no memory twice."""
    if place == "the start":
        monkeypatch.setattr(TorchJob, "start_cursor", fail)
    with pytest.raises(ZeroDivisionError):
        script(fails=True)
    assert late.counted["registered"] == late.counted["released"] == 1


def test_a_script_that_goes_on_after_an_error_of_its_start_releases_its_memory(late, monkeypatch):
    with torch_job():
        net = nn.Linear(4, 1)
        model, _ = mpips.torch.prepare(net, SGD(net.parameters(), 0.1))
        monkeypatch.setattr(TorchJob, "start_cursor", fail)
        with pytest.raises(ZeroDivisionError):
            model(torch.ones(2, 4))
    assert late.counted["registered"] == late.counted["released"] == 1


def test_the_error_of_a_script_is_not_that_of_a_device_that_fails_too(late, monkeypatch):
    def close(_: Any, limit_s: float) -> None:
        limits.append(limit_s)
        raise DeviceError("the device is gone")

    limits: list[float] = []
    monkeypatch.setattr(late, "close", close)
    with pytest.raises(ZeroDivisionError):
        script(fails=True)
    assert limits == [10.0]
    # Without an error of the script it is one.
    with pytest.raises(DeviceError, match="is gone"):
        script(fails=False)
    assert limits[1] > 1000


def test_devices_share_no_page_of_registered_memory(late):
    """CUDA registers whole pages, and none twice."""
    with torch_job() as begun:
        net = nn.Linear(4, 1)
        mpips.torch.prepare(net, SGD(net.parameters(), 0.1))[0](torch.ones(2, 4))
        worker = begun.part(TorchJob).start()
        pieces = []
        for n_bytes in (4, 5000, 64):
            worker.allocate(16)  # of the script
            memory = DeviceMemory(torch.device("cpu"), "here", late(torch.device("cpu"), "here"))
            memory.reserve(n_bytes)
            memory.open(worker)
            (piece,) = memory.copies._registered
            pieces.append((piece.data_ptr(), piece.data_ptr() + piece.nbytes))
    for start, stop in pieces:
        assert start % mmap.PAGESIZE == stop % mmap.PAGESIZE == 0
    pieces.sort()
    assert all(a[1] <= b[0] for a, b in pairwise(pieces))


@pytest.mark.parametrize("where", ["late", "cpu"])
def test_the_job_may_start_within_inference_mode(where, request):
    if where == "late":
        request.getfixturevalue("late")

    def trained(first: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        net = nn.Linear(4, 2)
        with torch_job():
            model, optimizer = mpips.torch.prepare(net, SGD(net.parameters(), 0.05))
            with first:
                model(torch.ones(2, 4))
            for _ in range(3):
                step(model, optimizer, torch.ones(2, 4))
            return values_of(net)

    assert_equal(trained(torch.inference_mode()), trained(nullcontext()))


def test_streams_of_later_uses_wait_for_the_newest_values(late):
    with torch_job():
        net = nn.Linear(4, 2)
        model, optimizer = mpips.torch.prepare(net, SGD(net.parameters(), 0.05))
        model(torch.ones(2, 4))
        before = late.counted["follows"]
        model(torch.ones(2, 4))  # pulls nothing
        assert late.counted["follows"] == before + 2
        dict(model.named_parameters())
        assert late.counted["follows"] == before + 4
        step(model, optimizer, torch.ones(2, 4))


def test_hooks_of_two_threads_take_turns(late):
    """autograd has a thread for each device."""
    both, met = threading.Barrier(2), []  # passed if both threads are in a hook
    torch.manual_seed(3)
    nets = [nn.Linear(4, 2, bias=False) for _ in range(2)]
    plain = copy.deepcopy(nets)
    with torch_job():
        model, optimizer = mpips.torch.prepare(
            nn.ModuleList(nets), SGD([p for n in nets for p in n.parameters()], 0.5), overlap=True
        )
        opened = [
            p for p in current("the test").part(TorchJob)._opened if hasattr(p, "fingerprint")
        ]
        for table in opened:
            fingerprint = table.fingerprint

            def watched(fingerprint: Any = fingerprint) -> Any:
                with suppress(threading.BrokenBarrierError):
                    both.wait(0.2)
                    met.append(True)
                return fingerprint()

            table.fingerprint = watched
        losses = [net(torch.ones(3, 4)).sum() for net in model]
        threads = [threading.Thread(target=loss.backward) for loss in losses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        optimizer.step()
        assert not met
        found = [p.detach().clone() for p in model.parameters()]
    for one in plain:
        one(torch.ones(3, 4)).sum().backward()
        SGD(one.parameters(), 0.5).step()
    assert [p.tolist() for p in found] == [p.tolist() for n in plain for p in n.parameters()]
