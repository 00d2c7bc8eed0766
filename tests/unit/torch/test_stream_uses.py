"""What scripts do with a streamed model: the values of torch, or one sentence that refuses it."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam
from torch_rig import assert_equal, batches, both, torch_job, values_of

import mpips
from mpips.errors import ConfigError
from mpips.torch import prepare
from mpips.torch.blocks import Blocks
from mpips.torch.streaming import Stream


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


def assert_trains_alike(
    train: Callable[[Any, Any], object], make: Callable[[], nn.Module] = net
) -> None:
    """Assert that a training has the same bits with stream=1 and in memory."""
    expected = both(make(), sgd, train, overlap=True)[1]
    assert any(not torch.equal(v, expected[name]) for name, v in make().state_dict().items())
    assert_equal(both(make(), sgd, train, stream=1)[1], expected)


def test_a_loss_may_use_parameters_outside_forward_in_lists_and_through_submodules():
    def train(model, optimizer):
        kept = list(model.parameters())
        for x in X:
            optimizer.zero_grad()
            hidden = model[:2](x)
            decay = (
                sum(p.square().sum() for p in kept) + (model[0].weight.t() * x[0][:, None]).sum()
            )
            decay = decay + torch._foreach_norm(kept)[2]
            (model[2:](hidden).square().mean() + 0.01 * decay).backward()
            optimizer.step()

    assert_trains_alike(train)


def test_a_gradient_penalty_goes_backward_twice():
    def train(model, optimizer):
        for x in X:
            optimizer.zero_grad()
            x = x.clone().requires_grad_(True)
            loss = torch.tanh(model(x)).square().mean()
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            (loss + slope.square().sum()).backward()
            optimizer.step()

    assert_trains_alike(train)


def test_hooks_of_parameters_may_change_gradients():
    def train(model, optimizer):
        for p in model.parameters():
            p.register_hook(lambda g: g.clamp(-0.01, 0.01))
        for x in X:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    assert_trains_alike(train)


def test_other_hooks_for_saved_tensors_get_activations_and_no_parameters():
    saved = []
    with torch_job():
        model, optimizer = streamed()
        model(X[0])
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            loss = model(X[0]).square().mean()
        # The input of each layer, the output of relu, and what square needs; no (8, 4), (3, 8) or (2, 3).
        assert sorted({tuple(t.shape) for t in saved}) == [(5, 2), (5, 3), (5, 4), (5, 8)]
        loss.backward()
        optimizer.step()


def test_a_function_with_many_layers_leaves_only_k_of_them():
    with torch_job(), torch.no_grad():
        model, _ = streamed(stream=2)
        model(X[0])
        norms = torch._foreach_norm(list(model.parameters()))
        assert torch.stack(norms).isfinite().all()
        assert sum(p._mpips_table.has_values for p in model.parameters()) == 4


def test_a_gradient_without_a_forward_pass_waits_for_step():
    with torch_job():
        model, optimizer = streamed()
        model(X[0])
        losses = [sum(p.sum() for p in model.parameters()) for _ in range(2)]
        losses[0].backward()
        optimizer.step()
        losses[1].backward()
        assert model[0].bias.grad.tolist() == [1.0] * 8
        before = model[3].weight.sum()  # the new values can still be read
        optimizer.step()
        assert model[0].bias.grad is None
        # With momentum 0.9 the second step is 1.9 times the first one.
        assert torch.allclose(model[3].weight.sum(), before - 0.5 * 1.9 * 6)


def test_other_hooks_for_saved_tensors_have_the_activations():
    def train(model, optimizer):
        for x in X:
            optimizer.zero_grad()
            with torch.autograd.graph.save_on_cpu():
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()

    assert_trains_alike(train)


def test_torch_compile_around_the_model_changes_no_bit():
    def train(model, optimizer):
        compiled = torch.compile(model, backend="eager")
        for x in X:
            optimizer.zero_grad()
            compiled(x).square().mean().backward()
            optimizer.step()

    assert_trains_alike(train)


def test_values_come_one_layer_at_a_time_and_copies_are_plain():
    with torch_job():
        model, optimizer = streamed()
        for x in X:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        state = values_of(model)
        assert not any(value.isnan().any() for value in state.values())
        for name, p in model.named_parameters():
            assert torch.equal(p, state[name])
            assert repr(p) == repr(nn.Parameter(state[name]))
        out = io.BytesIO()
        torch.save(model, out)
        out.seek(0)
        for copied in (copy.deepcopy(model), torch.load(out, weights_only=False)):
            assert type(copied) is nn.Sequential
            assert {type(p) for p in copied.parameters()} == {nn.Parameter}
            assert_equal(dict(copied.state_dict()), state)
            assert torch.equal(copied(X[0]), model(X[0]))


def test_a_state_is_loaded_before_the_job_starts():
    state = {name: torch.full_like(value, 0.5) for name, value in net().state_dict().items()}
    with torch_job():
        model, _ = streamed()
        model.load_state_dict(state)
        assert_equal(values_of(model), state)
        model(X[0])
        assert_equal(values_of(model), state)
        with pytest.raises(ConfigError, match="load_state_dict comes too late"):
            model.load_state_dict(state)


def test_adagrads_sums_are_on_the_servers_only():
    with torch_job():
        model = net()
        _, optimizer = prepare(model, Adagrad(model.parameters()), stream=1)
        assert not optimizer.state


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


def test_a_gradient_that_the_script_sets_itself_is_pushed_by_step():
    def train(model, optimizer):
        model(X[0])
        for p in model.parameters():
            p.grad = torch.full(p.shape, 0.25)
        optimizer.step()
        optimizer.zero_grad()

    assert_trains_alike(train)


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


def test_blocks_are_used_again_once_no_tensor_refers_to_them():
    blocks = Blocks()
    size, large = (256, 1024), (512, 1024)
    first = blocks.empty(size, (1024, 1), torch.float32)
    place, view = first.data_ptr(), first.t()
    del first
    second = blocks.empty(size, (1, 256), torch.float32)
    assert second.stride() == (1, 256)
    assert second.data_ptr() != place
    del view
    third = blocks.empty((512, 1024), (1024, 1), torch.bfloat16)
    assert third.data_ptr() == place
    del second, third
    assert sum(map(len, blocks._free)) == 2 << 20
    # A larger block is mapped only after others were unmapped, up to the most that was in use.
    fourth = blocks.empty(large, (1024, 1), torch.float32)
    assert blocks._free == []
    fourth.fill_(1)
    fifth = blocks.empty((3,), (1,), torch.float32)
    assert blocks._in_use == 2 << 20
    del fourth, fifth
    assert blocks._in_use == 0


def test_parameters_without_stream_are_plain():
    with torch_job():
        model = net()
        model, _ = prepare(model, Adam(model.parameters()))
        assert {type(p) for p in model.parameters()} == {nn.Parameter}
        assert not any(isinstance(value, Stream) for value in vars(model).values())
