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


def test_a_gradient_that_the_script_sets_itself_is_pushed_by_step():
    def train(model, optimizer):
        model(X[0])
        for p in model.parameters():
            p.grad = torch.full(p.shape, 0.25)
        optimizer.step()
        optimizer.zero_grad()

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


# Dynamo asks for the gradient of each tensor and hides torch's warning, but not where it is an error. Torch
# gives it once in a process, so only the test that comes first would fail.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
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


def test_parameters_without_stream_are_plain():
    with torch_job():
        model = net()
        model, _ = prepare(model, Adam(model.parameters()))
        assert {type(p) for p in model.parameters()} == {nn.Parameter}
        assert not any(isinstance(value, Stream) for value in vars(model).values())


def test_a_model_is_evaluated_without_an_optimizer():
    with torch_job(), torch.no_grad():
        model = prepare(net(), stream=1)
        assert torch.equal(model(X[0]), net()(X[0]))


def test_rows_of_embeddings_are_no_part_of_a_stream():
    found = []
    for k in (None, 1):
        with torch_job():
            torch.manual_seed(3)
            bag = mpips.torch.EmbeddingBag(4, mode="sum", optimizer=mpips.Adagrad(0.1))
            model = nn.Sequential(bag, nn.Linear(4, 3), nn.Linear(3, 1))
            model, optimizer = streamed(model, stream=k, overlap=True)
            for _ in X:
                optimizer.zero_grad()
                model(torch.tensor([[3, 2**60, -7], [3, 3, 5]])).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                found.append({**values_of(model), "rows": bag(torch.tensor([[3], [5]]))})
    assert_equal(*found)
