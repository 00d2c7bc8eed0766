"""Parameters on an imitated device with late copies: the bits of the CPU, and errors that name the worker."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from late_device import LateCopies
from torch import nn
from torch.optim import SGD, Adam
from torch_rig import assert_equal, batches, torch_job, values_of

import mpips
import mpips.torch
from mpips.errors import CapabilityError, ConfigError, DeviceError
from mpips.mpi.roles import Assignment
from mpips.torch.device import COPIES
from mpips.torch.device_table import DeviceTable
from mpips.torch.fingerprints import DeviceFingerprints, differing
from mpips.torch.parameters import ParameterTable

STEPS = 6
Train = Callable[[Any, Any], None]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[LateCopies]]:
    """Let parameters of the CPU be those of the imitated device."""
    monkeypatch.setitem(COPIES, "cpu", LateCopies)
    LateCopies.counted.clear()
    yield LateCopies
    assert LateCopies.counted["registered"] == LateCopies.counted["released"]


class Net(nn.Module):
    """Shared, frozen and unused parameters, running statistics, and rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = mpips.torch.EmbeddingBag(4, mode="sum", init="normal(1)", padding_idx=9)
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.back = nn.Linear(8, 4, bias=False)
        self.again = nn.Linear(8, 4, bias=False)
        self.again.weight = self.back.weight
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(3 * len(x)).view(len(x), 3) % 10
        hidden = torch.relu(self.norm(self.first(x + self.words(ids))))
        return self.scale * self.frozen(self.back(hidden) + self.again(hidden * hidden))


def momentum(model: nn.Module) -> Any:
    return SGD(model.parameters(), 0.05, momentum=0.9)


def step(model: Any, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def train_plainly(model: Any, optimizer: Any) -> None:
    for x in batches(STEPS, 5, 4):
        step(model, optimizer, x)


def train_with_sums(model: Any, optimizer: Any) -> None:
    for x in batches(STEPS, 6, 4):
        optimizer.zero_grad(set_to_none=False)
        with model.no_sync():
            model(x[:3]).square().mean().backward()
        model(x[3:]).square().mean().backward()
        optimizer.step()


def train_with_clipping(model: Any, optimizer: Any) -> None:
    for x in batches(STEPS, 5, 4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def train_with_scaler(model: Any, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for number, x in enumerate(batches(STEPS, 5, 4)):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss * float("inf") if number in (1, 4) else loss).backward()
        scaler.step(optimizer)
        scaler.update()


def train_in_a_thread(model: Any, optimizer: Any) -> None:
    """Call hooks in another thread, while the thread that uses the worker waits: as autograd with CUDA."""
    for x in batches(STEPS, 5, 4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        optimizer.step()


def train_with_skipped_steps(model: Any, optimizer: Any) -> None:
    """Skip a step whose gradients are not finite, as scripts do that look at them themselves."""
    for number, x in enumerate(batches(STEPS, 5, 4)):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        (loss * float("nan") if number == 3 else loss).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if all(grad.isfinite().all() for grad in grads):
            optimizer.step()


def values(train: Train, make: Callable[[Any], Any], dtype: Any, **options: Any) -> dict[str, Any]:
    """Return the values of the model and of some rows after training."""
    with torch_job():
        model = Net().to(dtype)
        train(*mpips.torch.prepare(model, make(model), **options))
        found = values_of(model)
        with torch.no_grad():
            found["rows"] = model.words(torch.arange(9).view(9, 1)).clone()
        return found


CASES: dict[str, tuple[Train, dict[str, Any]]] = {
    "observed": (train_plainly, {}),
    "overlap": (train_plainly, {"overlap": True}),
    "no overlap": (train_plainly, {"overlap": False}),
    "ssp": (train_plainly, {"overlap": True, "consistency": "ssp"}),
    "asp": (train_plainly, {"consistency": "asp"}),
    "local sgd": (train_plainly, {"consistency": mpips.LocalSGD(steps=2)}),
    "replicated": (train_plainly, {"placement": "replicated"}),
    "int8": (train_plainly, {"compression": "int8", "overlap": True}),
    "bf16 values": (train_plainly, {"pull_compression": "bf16"}),
    "average": (train_plainly, {"buffers": "average"}),
    "sums": (train_with_sums, {"overlap": True}),
    "clipping": (train_with_clipping, {}),
    "scaler": (train_with_scaler, {}),
    "thread": (train_in_a_thread, {"overlap": True}),
    "skipped": (train_with_skipped_steps, {"overlap": False}),
}


@pytest.mark.parametrize("queries", [0, 2, 10**6])
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_cpu(name, queries, late, monkeypatch):
    train, options = CASES[name]
    monkeypatch.setattr(late, "queries", queries)
    found = values(train, momentum, torch.float32, **options)
    assert late.counted["to_host"] > 0
    assert late.counted["orders"] > 0
    monkeypatch.delitem(COPIES, "cpu")
    assert_equal(found, values(train, momentum, torch.float32, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_parameters_have_float32_masters_on_the_servers(dtype, late, monkeypatch):
    def train(model: Any, optimizer: Any) -> None:
        for x in batches(STEPS, 5, 4):
            optimizer.zero_grad()
            model(x.to(dtype)).float().square().mean().backward()
            optimizer.step()

    def trained() -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
        with torch_job():
            train(*mpips.torch.prepare(net, Adam(net.parameters(), 0.01), overlap=True))
            return values_of(net)

    found = trained()
    monkeypatch.delitem(COPIES, "cpu")
    assert_equal(found, trained())


def test_gradients_are_pushed_by_later_hooks_in_the_fixed_order(late, monkeypatch):
    pushed: list[str] = []
    push = DeviceTable.push
    monkeypatch.setattr(
        DeviceTable, "push", lambda table: (pushed.append(table.name), push(table))[1]
    )
    with torch_job():
        net = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(6)])
        model, optimizer = mpips.torch.prepare(net, SGD(net.parameters(), 0.1), overlap=True)
        model(torch.ones(2, 4)).sum().backward()
        # The third query finds the copy of the last layer done, and the first one of the others waits.
        in_backward = list(pushed)
        optimizer.step()
    order = [f"{i}.weight" for i in (5, 4, 3, 2, 1, 0)]
    assert in_backward == order[: len(in_backward)]
    assert 1 <= len(in_backward) < 6
    assert pushed == order


def test_a_missing_wait_would_give_other_bits(late, monkeypatch):
    """The imitated device finds what it is made for."""

    def broken() -> None:
        with torch_job():
            net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
            train_plainly(*mpips.torch.prepare(net, momentum(net), overlap=True))

    monkeypatch.setattr("late_device.LateCopied.order", lambda copied: None)
    with pytest.raises(ValueError, match="contains nan"):
        broken()
    monkeypatch.undo()
    monkeypatch.setitem(COPIES, "cpu", LateCopies)
    monkeypatch.setattr("late_device.LateCopied.is_done", lambda copied: True)
    monkeypatch.setattr("late_device.LateCopied.wait", lambda copied: None)
    with pytest.raises(ValueError, match="contains nan"):
        broken()
    LateCopies.counted.clear()


def test_a_change_of_a_gradient_on_its_way_is_an_error_whatever_the_device_has_done(
    late, monkeypatch
):
    monkeypatch.setattr(late, "queries", 10**6)  # nothing is pushed in backward
    with torch_job():
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        model, optimizer = mpips.torch.prepare(net, SGD(net.parameters(), 0.1), overlap=True)
        model(torch.ones(2, 4)).sum().backward()
        net[0].weight.grad.data.mul_(0.5)
        with pytest.raises(ConfigError, match=r"'0\.weight' was changed between backward"):
            optimizer.step()


def test_a_parameter_that_does_not_fit_into_staging_memory_is_pushed_from_other_memory(late):
    with torch_job(staging_mib=1):
        net = nn.Linear(1024, 100, bias=False)
        plain = copy.deepcopy(net)
        model, optimizer = mpips.torch.prepare(net, SGD(net.parameters(), 0.5))
        with pytest.warns(UserWarning, match="raise staging_mib"):
            model(torch.ones(2, 1024))
        step(model, optimizer, torch.ones(2, 1024))
        step(plain, SGD(plain.parameters(), 0.5), torch.ones(2, 1024))
        assert_equal(values_of(model), values_of(plain))
    assert late.counted["new_host"] == 1


FAILURES = [("to_device", "forward"), ("to_host", "step"), ("waits", "step"), ("orders", "forward")]


@pytest.mark.parametrize(("call", "place"), FAILURES)
def test_a_failed_device_is_a_typed_error_with_the_worker_and_its_host(
    call, place, late, monkeypatch
):
    def script() -> None:
        with torch_job():
            net = nn.Linear(4, 1)
            model, optimizer = mpips.torch.prepare(net, SGD(net.parameters(), 0.1), overlap=False)
            step(model, optimizer, torch.ones(2, 4))
            monkeypatch.setattr(late, "fails", call)
            try:
                step(model, optimizer, torch.ones(2, 4))
            finally:
                monkeypatch.setattr(late, "fails", "")

    with pytest.raises(
        DeviceError, match=r"^worker 0 on .*: the device cpu failed while .*CUDA error"
    ) as e:
        script()
    assert "more lines" not in str(e.value)
    assert e.value.exit_code == 1
    late.counted.clear()


def test_a_parameter_that_was_converted_to_a_longer_dtype_is_refused(late):
    with torch_job():
        net = nn.Linear(4, 1).half()
        model, _ = mpips.torch.prepare(net, SGD(net.parameters(), 0.1))
        net.float()
        with pytest.raises(ConfigError, match=r"'.*' on cpu was converted to torch.float32"):
            model(torch.ones(2, 4))
    late.counted.clear()


def test_a_scaler_unscales_gradients_of_a_fused_optimizer_too():
    """Fused optimizers of torch unscale by themselves; servers do not."""

    def trained(fused: bool) -> dict[str, torch.Tensor]:
        with torch_job():
            torch.manual_seed(3)
            net = nn.Linear(4, 2)
            optimizer = SGD(net.parameters(), 0.05, fused=fused)
            train_with_scaler(*mpips.torch.prepare(net, optimizer))
            return values_of(net)

    assert_equal(trained(True), trained(False))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this node has a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:3"])
def test_cuda_without_a_driver_is_one_sentence(name):
    with torch_job():
        net = nn.Linear(4, 1)
        with pytest.raises(
            CapabilityError, match=f"^prepare: device = '{name}' needs CUDA on [^\n]*$"
        ) as error:
            mpips.torch.prepare(net, SGD(net.parameters(), 0.1), device=name)
        assert error.value.exit_code == 69
        # Nothing is lost: the model is a plain one, and can be prepared.
        mpips.torch.prepare(net, SGD(net.parameters(), 0.1), device=mpips.torch.device())
        assert net(torch.ones(1, 4)).shape == (1, 1)


@pytest.mark.parametrize("name", ["gpu", "meta", 7.5])
def test_a_wrong_device_is_one_sentence(name):
    with torch_job():
        net = nn.Linear(4, 1)
        with pytest.raises(ConfigError, match=f"^prepare: device = {name!r}: "):
            mpips.torch.prepare(net, SGD(net.parameters(), 0.1), device=name)


def test_workers_of_a_node_take_its_devices_in_turn(monkeypatch):
    ranks = Assignment((0, 0, 1, 1, 1, 0), ("a", "b"), 0, (0, 2), (1, 3, 4, 5))
    assert [ranks.local_worker(rank) for rank in ranks.workers] == [0, 0, 1, 1]
    with torch_job() as script:
        assert mpips.torch.device() == torch.device("cpu") or torch.cuda.is_available()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        found = []
        for script.local_worker in range(3):
            found.append(mpips.torch.device())
    assert found == [torch.device("cuda", n) for n in (0, 1, 0)]


@pytest.mark.parametrize("n", [1, 2, 7, 1023, 1024, 1025, 5000])
def test_a_fingerprint_finds_each_change_of_one_element_and_of_signs(n):
    prints = DeviceFingerprints()
    (gradient,) = batches(1, n)
    before = prints.of(gradient)
    assert torch.equal(before, prints.of(gradient.clone()))
    for place in {0, n // 2, n - 1}:
        changed = gradient.clone()
        changed.view(torch.int32)[place] ^= 1
        assert differing([(place, before, prints.of(changed))]) == {place}
    others = [-gradient, 0.5 * gradient, gradient.flip(0), gradient.roll(1)]
    for number, changed in enumerate(others[: 4 if n > 2 else 2]):
        assert differing([(number, before, prints.of(changed))]) == {number}
    assert differing([(0, before, before), (1, None, None), (2, None, before), (3, 5, 5)]) == {2}


def test_parameters_of_other_devices_and_of_the_cpu_have_plain_tables():
    with torch_job() as script:
        net = nn.Linear(4, 1)
        mpips.torch.prepare(net, SGD(net.parameters(), 0.1))
        opened = script.part(mpips.torch.job.TorchJob)._opened
        assert {type(part) for part in opened if hasattr(part, "rule")} == {ParameterTable}
