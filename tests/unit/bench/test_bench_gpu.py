"""The suite `gpu`: one sentence without a device, and its checks, which find wrong values."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from click.testing import CliRunner

pytest.importorskip("torch", reason="the suite trains models of PyTorch")

import torch
from late_device import LateCopies
from torch_rig import torch_job

from mpips.bench import gpu
from mpips.bench.gpu_checks import CHECKS
from mpips.bench.launching import Options
from mpips.cli.bench import command
from mpips.errors import CapabilityError
from mpips.testing.errors import BenchError
from mpips.torch.device import COPIES

NO_DEVICE = gpu.why_no_device()


@pytest.mark.skipif(not NO_DEVICE, reason="this node has a CUDA device")
@pytest.mark.parametrize("flags", [[], ["--check"], ["--quick"]])
def test_without_a_device_the_suite_ends_with_one_sentence(flags):
    error = CliRunner().invoke(command, ["gpu", *flags]).exception
    assert isinstance(error, CapabilityError)
    assert error.exit_code == 69
    assert str(error) == f"the suite 'gpu' needs a CUDA device: {NO_DEVICE}"
    assert "CUDA" in NO_DEVICE or "driver" in NO_DEVICE


@pytest.mark.parametrize("kind", ["plain", "mpips", "copies"])
def test_each_side_measures_on_an_imitated_device(kind, monkeypatch):
    monkeypatch.setitem(COPIES, "cpu", LateCopies)
    with torch_job() if kind != "plain" else nullcontext():
        found = gpu.measured(kind, True, torch.device("cpu"))
    assert (found.step_s > 0) == (kind != "copies")
    names = {"to_host", "to_host pinned", "to_device", "to_device pinned"}
    assert set(found.rates) == (names if kind == "copies" else set())
    assert all(rate > 0 for rate in found.rates.values())


@pytest.mark.parametrize("name", CHECKS)
def test_the_checks_pass_on_the_cpu(name):
    with torch_job():
        CHECKS[name](torch.device("cpu"))


@pytest.mark.parametrize("name", ["overlap", "clipping", "bfloat16", "rows"])
def test_the_checks_find_a_wrong_gradient(name, monkeypatch):
    backward = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: backward(2 * loss))
    with torch_job(), pytest.raises(BenchError, match="values differ from those of the CPU"):
        CHECKS[name](torch.device("cpu"))


@pytest.mark.skipif(bool(NO_DEVICE), reason=f"needs a CUDA device: {NO_DEVICE}")
@pytest.mark.parametrize("name", CHECKS)
def test_the_checks_pass_on_a_device(name):
    with torch_job():
        CHECKS[name](torch.device("cuda:0"))


@pytest.mark.skipif(bool(NO_DEVICE), reason=f"needs a CUDA device: {NO_DEVICE}")
@pytest.mark.timeout(300)
def test_the_suite_gives_every_ratio_on_a_device():
    found = gpu.run("gpu", Options(repetitions=1, quick=True), 0)
    names = {"gpu_to_host_vs_pinned", "gpu_to_device_vs_pinned", "gpu_step_vs_plain"}
    assert {comparison.name for comparison in found.comparisons} == names
    assert all(comparison.ratio > 0 for comparison in found.comparisons)
