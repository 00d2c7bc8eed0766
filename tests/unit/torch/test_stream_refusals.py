"""What a script cannot do with a streamed model: one sentence that refuses it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD
from torch_rig import batches, torch_job

import mpips
from mpips.errors import ConfigError
from mpips.torch import prepare


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3), nn.Linear(3, 2))


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), 0.5, momentum=0.9)


X = batches(4, 5, 4)


def streamed(model: nn.Module | None = None, **options: Any) -> tuple[Any, Any]:
    model = net() if model is None else model
    found: tuple[Any, Any] = prepare(model, sgd(model), **{"stream": 1, **options})
    return found


def backward(model: Any) -> None:
    model(X[0]).square().mean().backward()


def clip(model: Any, optimizer: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def scale(model: Any, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.unscale_(optimizer)


def zero_all(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()


def zero_model(model: Any, optimizer: Any) -> None:
    model.zero_grad()


def read(model: Any, optimizer: Any) -> None:
    print(model[0].weight.grad)


@pytest.mark.parametrize("use", [clip, scale, zero_all, zero_model, read])
def test_gradients_between_backward_and_step_are_refused(use):
    with torch_job():
        model, optimizer = streamed()
        backward(model)
        with pytest.raises(
            ConfigError, match="is used between backward, which has sent and freed it"
        ):
            use(model, optimizer)
        optimizer.step()
        use(model, optimizer) if use is not scale else None


def test_values_between_backward_and_step_are_refused_unless_they_are_in_memory():
    with torch_job():
        model, optimizer = streamed()
        backward(model)
        with pytest.raises(ConfigError, match=r"'3.weight' are used between backward"):
            model[3].weight.sum()
        optimizer.step()
        assert model[3].weight.sum().isfinite()


def test_what_accumulates_gradients_is_refused():
    with torch_job():
        model, optimizer = streamed()
        with pytest.raises(ConfigError, match="no_sync and stream exclude"), model.no_sync():
            pass
        loss = model(X[0]).square().mean()
        loss.backward(retain_graph=True)
        with pytest.raises(ConfigError, match="make one backward pass for each step"):
            loss.backward()
        optimizer.step()


def test_a_second_backward_pass_that_needs_no_values_is_refused():
    def script() -> None:
        with torch_job():
            model, optimizer = streamed(nn.Sequential(nn.Linear(4, 1)))
            model(X[0]).sum().backward()
            with pytest.raises(ConfigError, match="a second backward pass before step"):
                model(X[0]).sum().backward()
            optimizer.step()

    with pytest.raises(ConfigError, match="a second backward pass before step"):
        script()


def test_a_gradient_that_is_set_after_it_was_sent_is_refused():
    with torch_job():
        model, optimizer = streamed()
        backward(model)
        with pytest.raises(ConfigError, match=r"'0.bias' is used between backward"):
            model[0].bias.grad = torch.ones(8)
        optimizer.step()


def test_a_gradient_that_is_not_finite_ends_the_clock():
    with torch_job():
        model, optimizer = streamed()
        with pytest.raises(ConfigError, match=r"'3.bias' .*no script can skip such a step"):
            (model(X[0]).sum() * torch.inf).backward()
        with pytest.raises(ConfigError, match="no script can skip such a step"):
            optimizer.step()


def test_a_graph_from_before_the_newest_step_is_refused():
    with torch_job():
        model, optimizer = streamed()
        old = model(X[0]).square().mean()
        backward(model)
        optimizer.step()
        with pytest.raises(ConfigError, match="from before the newest step"):
            old.backward()
        old = model(X[0]).square().mean()
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        model(X[0])
        with pytest.raises(ConfigError, match="from before the newest step"):
            old.backward()


def test_an_activation_that_was_changed_in_place_is_refused_as_in_torch():
    with torch_job():
        model, _ = streamed(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()))
        y = model(X[0])
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_parameter_that_was_changed_in_place_is_refused():
    with torch_job():
        model, _ = streamed()
        model(X[0])
        with torch.no_grad():
            model[0].weight.mul_(2)
        with pytest.raises(ConfigError, match=r"'0.weight' was changed in place"):
            model(X[0])


def test_autocast_is_refused():
    with torch_job(), torch.autocast("cpu", torch.bfloat16):
        model, _ = streamed()
        with pytest.raises(ConfigError, match=r"stream and torch.autocast"):
            model(X[0])


def test_a_script_that_ends_between_backward_and_step_is_an_error():
    def script() -> None:
        with torch_job():
            backward(streamed()[0])

    with pytest.raises(ConfigError, match="ended after a backward pass without step"):
        script()


def test_two_optimizers_are_refused():
    with torch_job():
        model, _ = streamed()
        other = net()
        prepare(other, sgd(other), name="other")
        with pytest.raises(ConfigError, match="stream needs a script with one optimizer"):
            model(X[0])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "zero": ({"stream": 0}, "stream = 0: must be a number of layers, at least 1"),
    "replicated": (
        {"placement": "replicated"},
        r"placement = .* with stream = 1: must be 'servers', since a replicated model is whole",
    ),
    "flag": ({"stream": True}, "stream = True: must be a number of layers"),
    "text": ({"stream": "2"}, "stream = '2': must be a number of layers"),
    "ssp": ({"consistency": "ssp"}, "stream needs consistency 'bsp' without backup workers"),
    "backup": ({"consistency": mpips.BSP(backup=1)}, "stream needs consistency 'bsp'"),
    "overlap": ({"overlap": False}, "stream and overlap=False exclude"),
    "init": ({"stream": None, "init": nn.init.zeros_}, "init is given without stream"),
    "no function": ({"init": "zeros"}, "init is str: must be a function"),
}


@pytest.mark.parametrize("name", BAD)
def test_arguments_that_do_not_fit_together_are_refused(name):
    options, message = BAD[name]
    with torch_job(), pytest.raises(ConfigError, match=message):
        streamed(**options)


def test_compiled_modules_and_parameters_of_other_classes_are_refused():
    model = net()
    model[0] = torch.compile(model[0], backend="eager")
    with (
        torch_job(),
        pytest.raises(ConfigError, match=r"module '0' \(OptimizedModule\) is compiled"),
    ):
        streamed(model)
    with torch_job():
        model, _ = streamed()
        with pytest.raises(ConfigError, match=r"torch.compile and stream exclude each other"):
            model.compile()
        with pytest.raises(ConfigError, match=r"'weight' of '0' .* is a StreamedParameter"):
            streamed(nn.Sequential(model[0]))


def of_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def test_a_module_from_the_meta_device_that_cannot_be_filled_is_refused():
    with (
        torch_job(),
        pytest.raises(ConfigError, match=r"'0' \(MultiheadAttention\) is on the meta"),
    ):
        streamed(of_meta(lambda: nn.Sequential(nn.MultiheadAttention(4, 2))))
    with torch_job(), pytest.raises(ConfigError, match=r"'0.weight' has come from the meta device"):
        streamed(of_meta(net))[0].load_state_dict(net().state_dict())


def test_init_that_fills_or_makes_other_parameters_is_refused():
    model = of_meta(net)

    def all_of_them(module: nn.Module) -> None:
        for p in model.parameters():
            p.zero_()

    def new_ones(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(torch.zeros(module.weight.shape))

    with torch_job(), pytest.raises(ConfigError, match=r"init uses the parameter '2.weight' while"):
        streamed(model, init=all_of_them)[0](X[0])
    with (
        torch_job(),
        pytest.raises(ConfigError, match="init has replaced a parameter of the layer '0'"),
    ):
        streamed(of_meta(net), init=new_ones)[0](X[0])


@pytest.mark.parametrize("now", [None, 1])
def test_a_step_is_not_repeated_with_pushes_in_another_order(now, monkeypatch):
    ahead = SimpleNamespace(writer=SimpleNamespace(is_ahead_of=lambda clock: True))
    connection = SimpleNamespace(channels=[ahead])
    with torch_job():
        model, optimizer = streamed(stream=now, overlap=True)
        model(X[0])
        stepping = optimizer._mpips_stepping
        position = stepping.position()
        stepping.resume(position)
        monkeypatch.setattr("mpips.torch.stepping.connection_of", lambda worker: connection)
        stepping.resume(position)
        position["streamed"] = now is None
        with pytest.raises(ConfigError, match="this launch has another stream argument"):
            stepping.resume(position)
