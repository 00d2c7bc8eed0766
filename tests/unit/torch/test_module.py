"""A prepared model as a torch module: state_dict, copies, averages, torch.compile."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import SGD, Adam
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_rig import assert_equal, batches, relative, values_of

from mpips.torch import prepare, steps
from mpips.torch.module import PreparedModule
from mpips.torch.stepping import PreparedOptimizer


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def network() -> Network:
    torch.manual_seed(3)
    return Network()


def train(model: nn.Module, optimizer: Any, n: int = 5) -> None:
    for x in batches(n, 6, 4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def trained() -> nn.Module:
    plain = network()
    train(plain, SGD(plain.parameters(), 0.1))
    return plain


def assert_trained(found: dict[str, torch.Tensor]) -> None:
    for name, value in trained().state_dict().items():
        assert relative(found[name].double(), value.double()) <= 1e-5, name


@pytest.fixture
def prepared(job):
    model = network()
    return prepare(model, SGD(model.parameters(), 0.1))


def test_a_prepared_model_and_optimizer_keep_identity_and_class(job):
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    found, found_optimizer = prepare(model, optimizer)
    assert (found, found_optimizer) == (model, optimizer)
    assert isinstance(model, Network)
    assert isinstance(optimizer, SGD)
    assert isinstance(model, PreparedModule)
    assert type(model).__name__ == "Network"
    assert repr(model) == repr(network())


READS = {
    "state_dict": lambda m: m.state_dict(),
    "named_parameters": lambda m: dict(m.named_parameters()),
    "parameters": lambda m: dict(
        zip(dict(network().named_parameters()), m.parameters(), strict=True)
    ),
    "buffers": lambda m: dict(zip(dict(network().named_buffers()), m.buffers(), strict=True)),
    "deepcopy": lambda m: copy.deepcopy(m).state_dict(),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)).state_dict(),
}


@pytest.mark.parametrize("name", READS)
def test_all_that_reads_values_reads_those_after_the_last_step(prepared, name):
    train(*prepared)
    expected = trained().state_dict()
    found = READS[name](prepared[0])
    assert set(found) <= set(expected)
    for key, value in found.items():
        assert relative(value.detach().double(), expected[key].double()) <= 1e-5, key


def test_a_state_dict_is_that_of_a_plain_model(prepared):
    model, _ = prepared
    train(*prepared)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    plain = network()
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(torch.load(file, weights_only=True))
    assert_equal(values_of(plain), values_of(model))


def test_values_that_are_loaded_before_the_start_are_the_initial_ones(prepared):
    model, optimizer = prepared
    torch.manual_seed(17)
    other = Network()
    model.load_state_dict(other.state_dict())
    train(model, optimizer)
    train(other, SGD(other.parameters(), 0.1))
    for name, value in other.state_dict().items():
        assert relative(model.state_dict()[name].double(), value.double()) <= 1e-5


@pytest.mark.parametrize("start", [True, False], ids=["after the start", "before the start"])
@pytest.mark.parametrize(
    "how",
    [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))],
    ids=["deep", "copy", "pickle"],
)
def test_copies_are_plain_models(prepared, how, start):
    model, _ = prepared
    if start:
        train(*prepared)
    other = how(model)
    assert type(other) is Network
    assert not [name for name in vars(other) if name.startswith("_mpips")]
    assert_equal(values_of(other), values_of(model))
    expected = values_of(model)
    if how is not copy.copy:
        train(other, SGD(other.parameters(), 0.1))
        assert_equal(values_of(model), expected)


def test_a_copy_can_be_prepared(prepared):
    copied = copy.deepcopy(prepared[0])
    pair = prepare(copied, Adam(copied.parameters(), 0.01), name="copy")
    train(*prepared)
    assert_trained(values_of(prepared[0]))
    train(*pair)
    assert_trained(values_of(prepared[0]))
    plain = network()
    train(plain, Adam(plain.parameters(), 0.01))
    for name in ("last.weight", "last.bias", "norm.weight"):
        assert relative(pair[0].state_dict()[name], plain.state_dict()[name]) <= 1e-4


def test_copies_of_the_optimizer_are_plain_ones(prepared):
    train(*prepared)
    optimizer = prepared[1]
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(other) is SGD
        assert not isinstance(other, PreparedOptimizer)
        assert other.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("use_buffers", [True, False])
@pytest.mark.parametrize("average", ["equal", "exponential"])
def test_a_moving_average_reads_current_values(prepared, use_buffers, average):
    function = get_ema_multi_avg_fn(0.5) if average == "exponential" else None

    def run(model, optimizer):
        mean = AveragedModel(model, multi_avg_fn=function, use_buffers=use_buffers)
        for x in batches(6, 6, 4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            mean.update_parameters(model)
        mean.eval()
        with torch.no_grad():
            return mean(torch.ones(2, 4)), values_of(mean.module)

    plain = network()
    result, expected = run(plain, SGD(plain.parameters(), 0.1))
    found, values = run(*prepared)
    assert relative(found, result) <= 1e-5
    for name, value in expected.items():
        assert relative(values[name].double(), value.double()) <= 1e-5, name


def test_a_forward_pass_of_a_submodule_pulls(prepared):
    model, _ = prepared
    train(*prepared)
    expected = trained()
    with torch.no_grad():
        x = torch.ones(2, 4)
        assert relative(model.first(x), expected.first(x)) <= 1e-5


def test_values_are_pulled_once_after_a_step(prepared, monkeypatch):
    model, optimizer = prepared
    train(model, optimizer, 1)
    pulls: list[int] = []
    part = model._mpips_part
    tables = part._pulled
    monkeypatch.setattr(
        part, "_pulled", [type("Table", (), {"pull": lambda self: pulls.append(1)})()]
    )
    for _ in range(3):
        model(torch.ones(2, 4))
        model.state_dict()
    assert pulls == [1]
    part._pulled = tables


def test_no_sync_accumulates(prepared):
    model, optimizer = prepared
    plain = network()
    for one in (model, plain):
        for n, x in enumerate(batches(4, 6, 4)):
            if n < 3 and one is model:
                with model.no_sync():
                    one(x).sum().backward()
            else:
                one(x).sum().backward()
    torch.optim.SGD(plain.parameters(), 0.1).step()
    optimizer.step()
    for name, value in plain.state_dict().items():
        assert relative(model.state_dict()[name].double(), value.double()) <= 1e-5


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler reads it
@pytest.mark.parametrize("how", ["wrapped", "in place", "wrapped before prepare"])
def test_a_compiled_model_is_one_graph_that_trains_on_current_values(job, how):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = network()
    if how == "in place":
        model.compile(backend=counter)
    if how == "wrapped before prepare":
        model = torch.compile(model, backend=counter)
    model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
    compiled = torch.compile(model, backend=counter) if how == "wrapped" else model
    train(compiled, optimizer)
    found = {name.removeprefix("_orig_mod."): value for name, value in values_of(model).items()}
    assert_trained(found)
    assert counter.frame_count == 1
    assert counter.op_count >= 4


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiled_submodule_alone_sees_current_values(prepared):
    model, optimizer = prepared
    torch.compiler.reset()
    first = torch.compile(model.first, backend="aot_eager")
    expected = network()
    trained_on = SGD(expected.parameters(), 0.1)
    for _ in range(3):
        train(expected, trained_on, 1)
        train(model, optimizer, 1)
        with torch.no_grad():
            x = torch.ones(2, 4)
            assert relative(first(x), expected.first(x)) <= 1e-5


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_of_the_model_leaves_the_clock_of_the_step_open(job, prepared, to_none):
    model, optimizer = prepared
    train(model, optimizer, 1)
    # A scheduler is stepped behind this call, and the cursor of the clock must have its new state.
    before = job.worker.now
    model.zero_grad(set_to_none=to_none)
    assert job.worker.now == before
    grads = [p.grad for p in model.parameters()]
    assert job.worker.now == before + 1
    assert all(g is None if to_none else not g.any() for g in grads)


class Scaled(nn.Module):
    """A model whose method reads its own parameters before it calls a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(4))
        self.scale = nn.Parameter(torch.ones(4))
        self.layer = nn.Linear(4, 1)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer((x + self.bias) * self.scale).square().mean()


def test_a_method_other_than_forward_reads_current_parameters_of_the_model(job):
    torch.manual_seed(3)
    plain = Scaled()
    model = copy.deepcopy(plain)
    expected: Any = SGD(plain.parameters(), 0.1)
    model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
    steps()  # starts the job, as the first batch of a prepared loader does
    for x in batches(6, 6, 4):
        for one, step in ((plain, expected), (model, optimizer)):
            step.zero_grad()
            one.loss(x).backward()
            step.step()
    for name, value in plain.state_dict().items():
        assert relative(model.state_dict()[name], value) <= 1e-5, name


def test_a_slice_of_a_sequential_has_the_current_values(job):
    torch.manual_seed(3)
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)]
    plain, model = nn.Sequential(*copy.deepcopy(layers)), nn.Sequential(*layers)
    optimizer = SGD(plain.parameters(), 0.1)
    model, trained = prepare(model, SGD(model.parameters(), 0.1))

    def check(found, expected):
        assert list(found) == list(expected)
        assert all(relative(found[name], expected[name]) <= 1e-6 for name in found)

    for x in batches(4, 5, 4):
        for one, steps_it in ((plain, optimizer), (model, trained)):
            steps_it.zero_grad()
            one[2:](one[:2](x)).square().mean().backward()
            steps_it.step()
        check(model[:2].state_dict(), plain[:2].state_dict())
        check(dict(model[1:][1:].named_parameters()), dict(plain[1:][1:].named_parameters()))
    copied = pickle.loads(pickle.dumps(model[:2]))
    assert type(copied) is nn.Sequential
    check(copied.state_dict(), plain[:2].state_dict())
    assert not hasattr(model[0], "__getitem__")
