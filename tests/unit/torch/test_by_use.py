"""Waits by use: whatever reads a parameter waits for it first. Values are NaN until something has waited."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from mpips.errors import ConfigError
from mpips.torch import model_part
from mpips.torch.by_use import UseWaits, in_order_of_use, is_seen
from mpips.torch.model_part import ModelPart
from mpips.torch.module import make_prepared
from mpips.torch.parameters import ParameterTable
from mpips.torch.skips import Skips


class LateTable(ParameterTable):
    """A parameter whose memory is NaN until `wait_for`."""

    def __init__(self, name: str, parameter: nn.Parameter) -> None:
        super().__init__(name, parameter, None)
        self.memory = parameter.detach().numpy()
        self.values = self.memory.copy()
        self.n_waits = 0
        self.memory.fill(np.nan)

    def wait_for(self, pulls: Any) -> None:
        self.n_waits += 1
        self.memory[...] = self.values


def late(model: nn.Module) -> tuple[list[LateTable], UseWaits]:
    tables = [LateTable(name, parameter) for name, parameter in model.named_parameters()]
    return tables, UseWaits(tables, None)  # type: ignore[arg-type]


class Attention(nn.Module):
    """torch's attention reads the parameters of its child `out_proj` itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.attention(x, x, x)[0]
        return found


class Tied(nn.Module):
    """One matrix is an embedding and the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 8)
        self.last = nn.Linear(8, 8, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.embedding((x[..., 0] > 0).long()))
        return found


class Reading(nn.Module):
    """A parent that reads the parameters of its children in many ways."""

    def __init__(self, how: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.list = nn.ParameterList([nn.Parameter(torch.randn(8, 8))])
        self.how = how
        self.earlier = [self.second.weight.detach().t()]  # a view from before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self, x)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ (weight * weight)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        _, weight = ctx.saved_tensors
        return g @ (weight * weight).t(), None


def functional(model: Any, x: torch.Tensor) -> torch.Tensor:
    named = {"weight": model.first.weight, "bias": model.second.bias}
    found: torch.Tensor = torch.func.functional_call(model.second, named, (x,))
    return found


def mapped(model: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.func.vmap(lambda row: row @ model.first.weight)(x.reshape(-1, 8))
    return found


def derived(model: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.func.grad(lambda w: (x @ w).square().sum())(model.first.weight)
    return found


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


compiled = torch.compile(product, backend="eager")


WAYS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "product": lambda m, x: x @ m.second.weight.t() + m.first.bias,
    "right operand": lambda m, x: (x[..., :1] * m.first.bias) @ m.list[0],
    "linear": lambda m, x: nn.functional.linear(x, m.second.weight, bias=m.first.bias),
    "in a list": lambda m, x: torch.cat([x.reshape(-1, 8), m.first.weight, m.list[0]]),
    "by name": lambda m, x: torch.matmul(input=x, other=m.list[0]),
    "a view from before": lambda m, x: x @ m.earlier[0],
    "data": lambda m, x: x @ m.first.weight.data,
    "numpy": lambda m, x: x * float(m.first.weight.detach().numpy().sum()),
    "item": lambda m, x: x * m.first.bias[3].item(),
    "iteration": lambda m, x: x * sum(row.sum() for row in m.first.weight),
    "in place": lambda m, x: torch.zeros(8, 8).add_(m.first.weight) + x.sum(),
    "comparison": lambda m, x: x if bool((m.first.weight > 10).any()) else 2 * x,
    "custom function": lambda m, x: Squared.apply(x, m.first.weight),
    "einsum": lambda m, x: torch.einsum("bsi,ij->bsj", x, m.second.weight),
    "dispatched": lambda m, x: torch.ops.aten.mm.default(x.reshape(-1, 8), m.list[0]),
    "checkpoint": lambda m, x: checkpoint(m.first, x, use_reentrant=False),
    "functional_call": functional,
    "vmap": mapped,
    "func.grad": derived,
    "compiled function": lambda m, x: compiled(x, m.first.weight),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "tied": Tied,
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2
    ),
    "lstm": lambda: nn.Sequential(nn.LSTM(8, 8, 2, batch_first=True), Taken(), nn.Linear(8, 2)),
    "shared module": lambda: nn.Sequential(layer := nn.Linear(8, 8), nn.ReLU(), layer),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8))),
    "norms": lambda: nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8), nn.PReLU(), nn.Linear(8, 3)),
    **{name: lambda how=how: Reading(how) for name, how in WAYS.items()},  # type: ignore[misc]
}


class Taken(nn.Module):
    def forward(self, found: Any) -> torch.Tensor:
        values: torch.Tensor = found[0]
        return values


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_reads_a_value_before_it_is_there(name: str, mode: str) -> None:
    torch.manual_seed(3)
    model, x = MODELS[name](), torch.randn(2, 5, 8)
    model.train(mode == "train" or name == "encoder")
    with torch.set_grad_enabled(mode == "train"):
        wanted = model(x)
        tables, waits = late(model)
        with waits:
            found = model(x)
    assert torch.equal(found, wanted)
    assert not found.isnan().any()
    assert all(table.n_waits <= 1 for table in tables)
    waits.finish()
    assert [table.n_waits for table in tables] == [1] * len(tables)


def test_layers_wait_for_their_own_values_only() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    tables, waits = late(model)
    seen = []
    for layer in model:
        layer.register_forward_pre_hook(lambda *_: seen.append([t.n_waits for t in tables]))
    with waits:
        assert model[2].weight.shape == (4, 4)
        assert next(iter(model.parameters())).dtype == torch.float32
        model(torch.randn(3, 4))
    assert seen == [[0] * 6, [1] * 2 + [0] * 4, [1] * 4 + [0] * 2]
    assert waits.used == tables


def test_the_order_of_use_comes_from_the_newest_pass_and_has_all_tables() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 2)})
    tables, waits = late(model)
    with waits:
        model["b"](model["c"](torch.ones(2)))
    assert [t.name for t in in_order_of_use(tables, waits.used)] == [
        "c.weight",
        "c.bias",
        "b.weight",
        "b.bias",
        "a.weight",
        "a.bias",
    ]


def test_models_with_parts_that_cannot_be_seen_are_pulled_whole() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert is_seen(plain)
    attention = nn.Sequential(nn.MultiheadAttention(4, 2), nn.Linear(4, 4))
    assert is_seen(attention)
    assert not is_seen(attention.eval())
    compiled = copy.deepcopy(plain)
    compiled[0] = torch.compile(compiled[0], backend="eager")
    in_place = copy.deepcopy(plain)
    in_place[0].compile(backend="eager")
    in_script = copy.deepcopy(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        in_script[0] = torch.jit.script(in_script[0])
    assert [is_seen(model) for model in (compiled, in_place, in_script)] == [False] * 3


def test_a_function_of_torch_jit_in_the_process_means_whole_pulls() -> None:
    """It reads parameters in an interpreter of its own."""
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import torch\nfrom mpips.torch.by_use import is_seen\n"
        "model = torch.nn.Linear(2, 2)\nassert is_seen(model)\n"
        "torch.jit.trace(lambda x: x + x, torch.ones(2))\nassert not is_seen(model)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class _Job:
    has_started = True

    def __init__(self) -> None:
        self.skips = Skips(self)  # type: ignore[arg-type]


def test_a_module_that_another_thread_calls_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    part = ModelPart(_Job(), [])  # type: ignore[arg-type]
    part.is_stale = False
    make_prepared(model, part)
    _, part.waits = late(model)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            model[0](torch.ones(2))
        except ConfigError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "was called in another thread" in str(errors[0])
    assert "pull='whole'" in str(errors[0])


class _Worker:
    """A worker on whose node are no servers."""

    def leave(self) -> None:
        pass


class _Pulls:
    """Values that are under way."""

    def finish(self) -> None:
        pass


class _Started(_Job):
    def start(self) -> _Worker:
        return _Worker()

    def settle(self) -> None:
        pass


class _AskingTable(LateTable):
    def ask(self) -> Any:
        return self, self.memory

    def wait_for(self, pulls: Any) -> None:
        super().wait_for(pulls)
        self._note_change()


def test_a_graph_from_before_an_error_is_not_used_with_values_that_came_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_part, "connection_of", lambda worker: worker)
    monkeypatch.setattr(model_part.PullsByUse, "asked", lambda *_: _Pulls())
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    loss = model(torch.ones(4)).square().sum()
    tables = [_AskingTable(name, parameter) for name, parameter in model.named_parameters()]
    part = ModelPart(_Started(), tables, tables)  # type: ignore[arg-type]

    def forward() -> None:
        with part.waiting_by_use():
            model[0](torch.ones(4))
            raise ValueError("in the first layer")

    with pytest.raises(ValueError, match="in the first layer"):
        forward()
    assert [table.n_waits for table in tables] == [1] * len(tables)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert part.is_stale


class Foreign(nn.Module):
    """A layer whose code reads its parameter as a C++ extension does: by its address."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.memory = self.weight.detach().numpy()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(self.memory.sum())


def test_own_parameters_are_there_before_the_forward_of_a_module() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Foreign(), Foreign())
    x = torch.randn(3, 8)
    wanted = model(x)
    part = ModelPart(_Job(), [])  # type: ignore[arg-type]
    part.is_stale = False
    make_prepared(model, part)
    tables, part.waits = late(model)
    seen = []
    for layer in model:
        layer.register_forward_hook(lambda *_: seen.append(sum(t.n_waits for t in tables)))
    with part.waits:
        assert torch.equal(model(x), wanted)
    assert seen == [2, 3, 4]
