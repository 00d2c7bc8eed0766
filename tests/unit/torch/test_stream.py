"""Models of which at most k layers are in memory: the bits of the same model without a stream."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint
from torch_rig import assert_equal, batches, torch_job, values_of

import mpips
from mpips.torch import ahead, prepare
from mpips.torch.streamed_table import ParameterMemory, StreamedTable

STEPS = 3


@pytest.fixture(autouse=True)
def copies_of_small_parameters(monkeypatch):
    monkeypatch.setattr(ahead.Ahead.__init__, "__defaults__", (lambda: ThreadPoolExecutor(1), 0))


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.LayerNorm(6)),
        nn.Linear(6, 3),
        nn.ReLU(),
        nn.Linear(3, 2),
    )


class Tied(nn.Module):
    """An embedding whose weight is also that of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = (x.abs() * 3).long().clamp(max=6)
        return self.head(self.middle(self.embedding(ids)))


class Borrowing(nn.Module):
    """A module that uses the parameters of its submodules itself, as views, in lists and twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.parts = nn.ParameterList([nn.Parameter(torch.full((4,), 0.5 + i)) for i in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x @ self.first.weight.t() * self.scale + self.first.bias)
        x = torch.tanh(torch.einsum("bi,oi->bo", x, self.second.weight[[1, 0, 3, 2]]))
        x = self.first(self.first(x) * torch.stack(list(self.parts)).prod(0))
        return x * self.first.weight.detach().sum()


class OtherTypes(nn.Module):
    """A module that uses a parameter as complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 2))
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last((torch.view_as_complex(self.weight) * self.first(x)).abs())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, num_layers=2)
        self.last = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.rnn(x.view(-1, 1, 4))[0])


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(4, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 8))
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        if self.training:
            hidden = checkpoint(self.block, hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Unflatten(0, (5, 1)), nn.TransformerEncoder(layer, 2), nn.Linear(4, 1))


def partly_frozen() -> nn.Module:
    model = net()
    for p in [*model[0].parameters(), model[2][0].weight, model[3].bias]:
        p.requires_grad_(False)
    return model


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 3, 1),
        nn.BatchNorm2d(3),
        nn.Flatten(),
        nn.utils.parametrizations.weight_norm(nn.Linear(12, 3)),
    )


def channels_last() -> nn.Module:
    model = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 8, 3, padding=1), nn.Flatten())
    return model.to(memory_format=torch.channels_last)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "nested": net,
    "shared weight": Tied,
    "borrowed weights": Borrowing,
    "complex views": OtherTypes,
    "lstm": Recurrent,
    "attention": transformer,
    "checkpoint": lambda: Checkpointed(False),
    "reentrant checkpoint": lambda: Checkpointed(True),
    "frozen": partly_frozen,
    "batch norm and weight norm": normed,
    "channels last": channels_last,
    "bfloat16": lambda: net().to(torch.bfloat16),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name]()


def step(model: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(x.to(next(model.parameters()).dtype)).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def trained(model: nn.Module, **options: Any) -> tuple[dict[str, torch.Tensor], list[float]]:
    with torch_job():
        optimizer: Any = Adam(model.parameters(), 0.05)
        model, optimizer = prepare(model, optimizer, **options)
        losses = [step(model, optimizer, x).item() for x in batches(STEPS, 5, 4)]
        model.eval()
        with torch.no_grad():
            losses.append(
                model(batches(1, 5, 4)[0].to(next(model.parameters()).dtype)).sum().item()
            )
        return values_of(model), losses


@pytest.mark.parametrize("name", MODELS)
def test_a_streamed_model_has_the_bits_of_one_in_memory(name):
    expected, losses = trained(made(name), overlap=True)
    assert any(not torch.equal(v, expected[k]) for k, v in made(name).state_dict().items())
    n_layers = sum(bool(m._parameters) for m in made(name).modules())
    for k in (1, 2, n_layers + 1):
        found, own = trained(made(name), stream=k)
        assert own == losses
        assert_equal(found, expected)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        model = make()
    torch.manual_seed(3)
    return model


@pytest.mark.parametrize("name", ["nested", "shared weight", "lstm", "bfloat16"])
def test_a_model_from_the_meta_device_has_the_bits_of_one_in_memory(name):
    expected, losses = trained(made(name), overlap=True)
    found, own = trained(on_meta(MODELS[name]), stream=1)
    assert own == losses
    assert_equal(found, expected)


def fill(module: nn.Module) -> None:
    for p in filter(torch.is_tensor, module._parameters.values()):
        p.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
    for b in module._buffers.values():
        b.zero_()


def test_init_fills_modules_from_the_meta_device_and_their_buffers():
    def make() -> nn.Module:
        attention = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), attention, nn.Linear(4, 2))

    plain = make()
    with torch.no_grad():
        for module in plain.modules():
            fill(module)
    expected, losses = trained(plain, overlap=True)
    found, own = trained(on_meta(make), stream=2, init=fill)
    assert own == losses
    assert_equal(found, expected)


def test_parameters_that_are_no_part_of_the_meta_device_keep_their_values():
    def make() -> nn.Module:
        model = net()
        with torch.device("meta"):
            model[3] = nn.Linear(6, 3)
        torch.manual_seed(9)
        return model

    plain = net()
    torch.manual_seed(9)
    plain[3].reset_parameters()
    assert_equal(trained(make(), stream=1)[0], trained(plain, overlap=True)[0])


def test_parameters_of_a_module_that_has_others_on_the_meta_device_keep_their_values():
    def make() -> nn.Module:
        model = net()
        model[3].weight = nn.Parameter(torch.empty(3, 6, device="meta"))
        return model

    plain = net()
    nn.init.ones_(plain[3].weight)

    def ones(module: nn.Module) -> None:
        for p in module.parameters():
            nn.init.ones_(p)

    found = trained(make(), stream=1, init=ones)[0]
    assert_equal(found, trained(plain, overlap=True)[0])


def test_a_shared_parameter_has_memory_only_while_a_layer_gets_its_values():
    seen = []

    def note(module: nn.Module) -> None:
        seen.append([layer.weight._mpips_table.has_values for layer in model])
        fill(module)

    model = on_meta(lambda: nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]))
    model[1].weight = model[0].weight
    with torch_job():
        model, _ = prepare(model, SGD(model.parameters(), 0.1), stream=1, init=note)
        mpips.torch.steps()
    assert seen == [[True, True, False], [True, True, False], [False, False, True]]


@pytest.mark.parametrize("meta", [False, True])
def test_values_have_the_strides_that_the_script_gave_them(meta):
    model = on_meta(channels_last) if meta else channels_last()
    expected = channels_last()[1].weight.stride()
    assert expected != torch.empty(8, 1, 3, 3).stride()
    with torch_job():
        model, _ = prepare(model, SGD(model.parameters(), 0.1), stream=1)
        model(batches(1, 5, 4)[0])
        assert model[1].weight.stride() == expected


class Watch:
    """Memory of parameters: layers that have it, and storages that are alive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.storages: list[StorageWeakRef] = []
        self.layers: list[int] = []
        take = StreamedTable.take

        def watched(table: StreamedTable, memory: ParameterMemory, generation: int) -> None:
            take(table, memory, generation)
            self.storages.append(StorageWeakRef(table.values.untyped_storage()))
            self.layers.append(len(table.stream._resident))

        monkeypatch.setattr(StreamedTable, "take", watched)

    def alive(self) -> int:
        self.storages = [one for one in self.storages if not one.expired()]
        return len(self.storages)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("name", ["nested", "lstm", "checkpoint", "frozen"])
def test_at_most_k_layers_are_in_memory(name, k, monkeypatch):
    watch = Watch(monkeypatch)
    most = max(len(m._parameters) for m in made(name).modules())
    with torch_job():
        model = made(name)
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1), stream=k)
        for x in batches(2, 5, 4):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            assert 0 < watch.alive() <= k * most
            loss.backward()
            assert 0 < watch.alive() <= k * most
            optimizer.step()
    assert max(watch.layers) == k


@pytest.mark.parametrize("reverse", [False, True], ids=["in order", "head first"])
def test_each_gradient_is_freed_before_the_next_one_is_made(reverse):
    layers = [nn.Linear(4, 4, bias=False) for _ in range(4)]
    found: list[int] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers[::-1] if reverse else layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in layers:
                x = layer(x)
                x.register_hook(
                    lambda _: found.append(
                        sum(p._mpips_table.gradient is not None for p in model.parameters())
                    )
                )
            return x

    with torch_job():
        model = Model()
        model, optimizer = prepare(model, SGD(model.parameters(), 0.1), stream=2)
        for x in batches(2, 5, 4):
            step(model, optimizer, x)
            assert all(p.grad is None for p in model.parameters())
    assert found == [0] * 8
