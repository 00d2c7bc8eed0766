"""A model in stages: where it is cut, the order of passes, what travels, and equal bits for every cut."""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mpips.torch
from mpips.errors import ConfigError
from mpips.torch.stage_cut import cut
from mpips.torch.stage_order import SCHEDULES, bounds_of, order_of
from mpips.torch.stage_run import Pipeline, StageLinks
from mpips.torch.stage_values import (
    Flat,
    digest_of_batch,
    flatten,
    from_arrays,
    samples,
    to_arrays,
    unflatten,
)

cross_entropy = nn.functional.cross_entropy


class Chained(nn.Module):
    """Modules that are called one after the other, in another order than they are made."""

    def __init__(self, between: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.embed = nn.Linear(5, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3))
        self.between = between

    def forward(self, x: torch.Tensor) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.between(x))


def paths(stages: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [[unit.path for unit in own] for own in stages]


def test_a_list_cuts_at_the_modules_that_it_names() -> None:
    found = paths(cut(Chained(), ["embed, blocks.0-1", "blocks.2", "head"]))
    blocks = [[f"blocks.{i}.0", f"blocks.{i}.1"] for i in range(3)]
    assert found == [["embed", *blocks[0], *blocks[1]], blocks[2], ["head"]]


def test_a_number_cuts_so_that_the_largest_stage_is_least() -> None:
    model = nn.Sequential(*(nn.Linear(1, n, bias=False) for n in (5, 1, 1, 5, 4)), nn.ReLU())
    assert paths(cut(model, 3)) == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert paths(cut(model, 1)) == [["0", "1", "2", "3", "4", "5"]]
    # Modules without parameters are never a stage of their own.
    sparse = nn.Sequential(nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.ReLU(), nn.Linear(2, 2))
    assert paths(cut(sparse, 2)) in ([["0", "1", "2", "3"], ["4"]], [["0", "1"], ["2", "3", "4"]])


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.register_forward_hook(lambda *_: None)
    return model


class Owner(nn.Sequential):
    """A model that has a parameter besides its modules."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.Linear(2, 2))
        self.scale = nn.Parameter(torch.ones(1))


class Branching(nn.Module):
    """A forward that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.a(x) if x.sum() > 0 else self.b(x)


class Parallel(Branching):
    """A forward that gives its argument to both modules."""

    def forward(self, x: torch.Tensor) -> Any:
        self.a(x)
        return self.b(x)


class Moody(Branching):
    """A forward that differs between training and evaluation."""

    def forward(self, x: torch.Tensor) -> Any:
        x = self.a(x)
        return self.b(x) if self.training else x


class Optional(Branching):
    """A forward with arguments that a call with one argument does not give."""

    def forward(self, x: torch.Tensor, mask: Any = None, twice: bool = False) -> Any:
        x = self.a(x)
        if mask is not None:
            x = self.b(x)
        return self.b(self.a(x) if twice else x)


class Two(Branching):
    """A forward that needs another argument."""

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> Any:
        return self.b(self.a(x))


class Repeating(Branching):
    """A forward that calls a module without parameters more than once."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.between = between

    def forward(self, x: torch.Tensor) -> Any:
        return self.between(self.b(self.between(self.a(x))))


class Alias(nn.Sequential):
    """A model with another name for the buffer of a layer."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.register_buffer("mean", self[1].running_mean)


def pair() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("model", "stages", "message"),
    [
        (pair, 0, "must be a number of 1 or more"),
        (pair, True, "must be a number of stages, a list"),
        (pair, 3, "the model has 2 modules with parameters"),
        (pair, ["0"], "'1' is in no stage"),
        (pair, ["1", "0"], "'1' of stage 0 is called behind modules of stage 1"),
        (pair, ["0-1", "1"], "'1' is in stage 0 and in stage 1"),
        (pair, ["0", "2"], "has no module '2'"),
        (pair, ["0-1", ""], "stage 1 (no modules) has no parameters"),
        (pair, ["1-0"], "the range ends before it begins"),
        (pair, [0, 1], "stages[0] = 0: must be text"),
        (tied, 2, "'0.weight' of stage 0 and '1.weight' of stage 1 are one tensor (tied)"),
        (hooked, 2, "the model has hooks"),
        (Owner, 2, "'scale' belongs to no module"),
        (Alias, 2, "'mean' belongs to no module"),
        (Moody, 2, "calls other modules in training mode than behind model.eval()"),
        (Two, 2, "missing 1 required positional argument: 'other'"),
        (Parallel, 2, "behind 'a' than to call its modules one after the other"),
        (Branching, 2, "torch.fx cannot follow the forward of Branching"),
        (
            lambda: Chained(lambda x: x.mean(1)),
            2,
            "behind 'blocks.2.1' than to call its modules one",
        ),
        (lambda: Chained(torch.relu), 2, "(it calls relu)"),
        (lambda: nn.Sequential(mpips.torch.Embedding(4)), 1, "stages with Embedding (0)"),
        (
            lambda: nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager")),
            1,
            "0 compiled by torch.compile",
        ),
    ],
)
def test_what_a_cut_cannot_separate_is_refused(
    model: Callable[[], nn.Module], stages: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        cut(model(), stages)
    assert message in str(caught.value)


def test_tied_parameters_of_one_stage_are_accepted() -> None:
    assert paths(cut(tied(), 1)) == [["0", "1"]]


def test_arguments_with_a_default_have_it_and_the_mode_stays() -> None:
    one = Optional().eval()
    assert paths(cut(one, 2)) == [["a"], ["b"]]
    assert not one.training


@pytest.mark.parametrize("stages", [2, ["a, between", "b"], ["a", "b, between"]])
def test_a_module_without_parameters_that_is_called_twice_is_in_two_stages(stages: Any) -> None:
    found = paths(cut(Repeating(nn.ReLU()), stages))
    assert [path for own in found for path in own] == ["a", "between", "b", "between"]
    assert "b" in found[1]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("n_stages", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_no_stage_waits_for_ever_and_backwards_are_in_order(
    schedule: Any, n_stages: int, n: int
) -> None:
    orders = [order_of(schedule, s, n_stages, n) for s in range(n_stages)]
    for s, order in enumerate(orders):
        assert [m for forward, m in order if not forward] == list(range(n))
        assert [m for forward, m in order if forward] == list(range(n))
        held = most = 0
        for forward, _ in order:
            held += 1 if forward else -1
            most = max(most, held)
        assert most == (n if schedule == "gpipe" else min(n_stages - s, n))

    # Each pass needs those of the neighbours; run what can run until nothing is left.
    done: set[tuple[int, bool, int]] = set()
    while any(orders):
        before = len(done)
        for s, order in enumerate(orders):
            while order:
                forward, m = order[0]
                needs = (s - 1, True, m) if forward else (s + 1, False, m)
                if needs not in done and 0 <= needs[0] < n_stages:
                    break
                done.add((s, forward, m))
                order.pop(0)
        assert len(done) > before


def test_micro_batches_have_all_samples_and_differ_by_one() -> None:
    assert bounds_of(7, 3) == [(0, 3), (3, 5), (5, 7)]
    assert bounds_of(2, 5) == [(0, 1), (1, 2)]


def test_nested_values_arrive_as_they_were_sent() -> None:
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    value = {"a": (half, [torch.arange(3), None]), "b": 2, "c": torch.ones(2, 3).t()}
    arrays = [array.copy() for array in to_arrays(flatten(value, "it"), {"more": [1]})]
    sent = iter(arrays)
    head, flat = from_arrays(lambda: next(sent))
    found = unflatten(flat)
    assert head == {"more": [1]}
    assert found["b"] == 2
    assert type(found["a"]) is tuple
    assert found["a"][1][1] is None
    assert found["a"][0].dtype == torch.bfloat16
    assert found["a"][0].requires_grad
    assert not found["c"].requires_grad
    assert torch.equal(found["a"][0], half)
    assert torch.equal(found["c"], value["c"])
    assert torch.equal(samples(value["a"], 1, 2, "it")[1][0], torch.tensor([1]))


def test_tensors_arrive_in_their_layout() -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    values = [images, torch.randn(3, 2).t(), torch.randn(4, 6, 2)[:, ::2].permute(2, 0, 1)]
    values += [
        torch.randn(3, 1).expand(3, 4),
        torch.tensor(2.0),
        torch.randn(0, 2),
        images.bfloat16(),
    ]
    sent = iter([array.copy() for array in to_arrays(flatten(values, "it"), {})])
    _, flat = from_arrays(lambda: next(sent))
    for found, value in zip(flat.tensors, values, strict=True):
        assert torch.equal(found, value)
        assert not value.numel() or found.stride() == value.clone().stride()


@pytest.mark.parametrize("value", [object(), {1: 2}, torch.ones(2, device="meta"), {1, 2}])
def test_other_values_do_not_travel(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"the result contains|the result contains a tensor"):
        flatten([value], "the result")


class Queues(dict[Any, "queue.Queue[np.ndarray]"]):
    """Queues by their keys; threads that ask for one at the same time get the same."""

    def __missing__(self, key: Any) -> queue.Queue[np.ndarray]:
        return self.setdefault(key, queue.Queue())


class Mail:
    """Workers of one pipeline, each in a thread; arrays of one tag keep their order."""

    def __init__(self, index: int, queues: Queues) -> None:
        self.index = index
        self._queues = queues

    def send(self, array: Any, *, to: int, tag: int = 0) -> None:
        self._queues[self.index, to, tag].put(np.array(array))

    def recv(self, out: Any = None, *, source: int, tag: int = 0) -> Any:
        return self._queues[source, self.index, tag].get(timeout=20)


class Passing(nn.Module):
    """A layer that passes its argument by, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return self.layer(x), {"skip": x, "ids": torch.arange(len(x))}


class Joining(nn.Module):
    """A layer whose argument is nested."""

    def forward(self, x: Any) -> Any:
        assert torch.equal(x[1]["ids"], torch.arange(len(x[0])))
        return x[0].t().contiguous().t() + x[1]["skip"]


def model() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [
        nn.Linear(6, 6),
        Passing(),
        Joining(),
        nn.BatchNorm1d(6),
        nn.Dropout(0.3),
        nn.Linear(6, 6),
    ]
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Linear(6, 3))


X, Y = torch.randn(11, 6, generator=torch.Generator().manual_seed(1)), torch.arange(11) % 3
CUTS = {
    1: ["0-7"],
    2: ["0-1", "2-7"],
    3: ["0-1", "2-5", "6-7"],
    4: ["0", "1", "2-5", "6-7"],
}


def passes(one: nn.Sequential, pipeline: Pipeline, schedule: Any) -> tuple[Any, ...]:
    """Return losses of two calls, gradients, statistics and results of a pipeline."""
    losses = [pipeline.step(X, Y, cross_entropy, 4, schedule, (7, i)) for i in range(2)]
    one.eval()
    with torch.no_grad():
        out = pipeline.outputs(X, (7, 2))
    one.train()
    gradients = {name: p.grad for name, p in one.named_parameters()}
    return losses, gradients, dict(one.named_buffers()), out


def divided(n: int, schedule: Any) -> list[tuple[Any, ...]]:
    """Return the results of workers that compute a stage each."""
    queues = Queues()
    found: list[Any] = [None] * n
    models = [model() for _ in range(n)]  # threads have one generator

    def work(index: int) -> None:
        try:
            own = models[index]
            links = StageLinks(Mail(index, queues), n, is_alone=False)
            found[index] = passes(own, Pipeline(cut(own, CUTS[n]), links, 5), schedule)
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def alone(n: int) -> tuple[Any, ...]:
    own = model()
    links = StageLinks(Mail(0, Queues()), n, is_alone=True)
    return passes(own, Pipeline(cut(own, CUTS[n]), links, 5), "1f1b")


@pytest.mark.parametrize("n", CUTS)
def test_one_worker_has_equal_bits_for_every_cut(n: int) -> None:
    expected, found = alone(1), alone(n)
    assert found[0] == expected[0]
    assert torch.equal(found[3], expected[3])
    for i in (1, 2):
        assert all(torch.equal(value, found[i][name]) for name, value in expected[i].items())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_workers_with_a_stage_each_have_the_bits_of_one(schedule: Any) -> None:
    # Threads draw from one generator: the model has no dropout here.
    expected = without_dropout(lambda: alone(3))
    found = without_dropout(lambda: divided(3, schedule))
    stages = cut(model(), CUTS[3])
    for number, one in enumerate(found):
        assert not isinstance(one, BaseException), one
        assert one[0] == expected[0]
        assert torch.equal(one[3], expected[3])
        prefixes = tuple(f"{unit.path}." for unit in stages[number])
        for i in (1, 2):
            own = {name for name in expected[i] if name.startswith(prefixes)}
            assert own or i == 2
            assert all(torch.equal(one[i][name], expected[i][name]) for name in own)
        others = [g for name, g in one[1].items() if not name.startswith(prefixes)]
        assert all(gradient is None for gradient in others)


def without_dropout(call: Callable[[], Any]) -> Any:
    plain = nn.Dropout.forward
    nn.Dropout.forward = lambda self, x: x  # type: ignore[method-assign]
    try:
        return call()
    finally:
        nn.Dropout.forward = plain  # type: ignore[method-assign]


def test_the_loss_is_the_mean_of_the_samples_also_of_unequal_micro_batches() -> None:
    torch.manual_seed(2)
    own = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    plain = copy.deepcopy(own)
    loss = cross_entropy(plain(X), Y)
    loss.backward()
    pipeline = Pipeline(cut(own, 2), StageLinks(Mail(0, Queues()), 2, is_alone=True), 0)
    assert pipeline.step(X, Y, cross_entropy, 4, "1f1b", (0, 0)) == pytest.approx(loss.item())
    for p, other in zip(own.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, other.grad)


def test_a_step_leaves_the_generators_as_they_were_and_passes_draw_different_numbers() -> None:
    own = model()
    pipeline = Pipeline(cut(own, 2), StageLinks(Mail(0, Queues()), 2, is_alone=True), 0)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    losses = {
        pipeline.step(X, Y, cross_entropy, 2, "1f1b", (i, j)) for i in range(2) for j in range(2)
    }
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert len(losses) == 4


def test_different_batches_in_one_pipeline_are_an_error() -> None:
    links = StageLinks(Mail(1, Queues()), 2, is_alone=False)
    flat = Flat(["t"], [torch.ones(2, 2)])
    own = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    sender = StageLinks(Mail(0, links._worker._queues), 2, is_alone=False)  # type: ignore[attr-defined]
    for sent, message in [
        (
            [8, 4, 1],
            "stage 0 has a batch of 8 samples in 4 micro-batches, and stage 1 one of 11 in 4:",
        ),
        ([11, 4, digest_of_batch(X, Y + 1)], "one of 11 in 4 with other values: the workers of a"),
    ]:
        sender.send("forward", 0, flat, 1, call=["forward_backward", 0, 0], samples=sent)
        with pytest.raises(ConfigError, match=message):
            Pipeline(cut(own, 2), links, 0).step(X, Y, cross_entropy, 4, "1f1b", (0, 0))


def test_different_calls_in_one_pipeline_are_an_error() -> None:
    links = StageLinks(Mail(1, Queues()), 2, is_alone=False)
    flat = Flat(["t"], [torch.ones(2, 2)])
    own = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    sender = StageLinks(Mail(0, links._worker._queues), 2, is_alone=False)  # type: ignore[attr-defined]
    pipeline = Pipeline(cut(own, 2), links, 0)
    sender.send("forward", 0, flat, 1, call=["model(x)", 3, 0])
    with pytest.raises(
        ConfigError, match=r"call 0 of model\(x\) in step 3, and stage 1 call 0 of forward"
    ):
        pipeline.step(X, Y, cross_entropy, 4, "1f1b", (3, 0))
    # A pass that an error has ended leaves messages.
    cut_of_batch = [11, 4, digest_of_batch(X, Y)]
    sender.send("forward", 0, flat, 1, call=["forward_backward", 3, 0], samples=cut_of_batch)
    with pytest.raises(ConfigError, match="cannot go on behind an error in one of them"):
        pipeline.step(X, Y, cross_entropy, 4, "1f1b", (3, 1))
    sender.send("forward", 0, flat, 1, call=["forward_backward", 3, 2], samples=cut_of_batch)
    with pytest.raises(ConfigError, match=r"call 1 of model\(x\)"):
        pipeline.outputs(X, (3, 1))


def test_a_stage_without_gradients_gets_none_back() -> None:
    def make() -> nn.Sequential:
        own = model()
        own[0].requires_grad_(False)
        own[1].requires_grad_(False)
        return own

    queues = Queues()
    found: list[Any] = []
    first = Pipeline(cut(make(), CUTS[2]), StageLinks(Mail(0, queues), 2, is_alone=False), 0)
    last = Pipeline(cut(make(), CUTS[2]), StageLinks(Mail(1, queues), 2, is_alone=False), 0)
    # The first stage waits for nothing but the loss.
    thread = threading.Thread(
        target=lambda: found.append(first.step(X, Y, cross_entropy, 2, "gpipe", (0, 0))),
        daemon=True,
    )
    thread.start()
    loss = last.step(X, Y, cross_entropy, 2, "gpipe", (0, 0))
    thread.join(20)
    assert found == [loss]
    assert all(waiting.empty() for waiting in queues.values())


def test_a_layer_that_changes_its_argument_in_place_changes_nothing_of_the_stage_before() -> None:
    def gradients(inplace: bool) -> list[Any]:
        torch.manual_seed(2)
        layers = [nn.Linear(6, 5), nn.Tanh(), nn.LeakyReLU(0.1, inplace), nn.Linear(5, 3)]
        own = nn.Sequential(*layers)
        pipeline = Pipeline(
            cut(own, ["0-1", "2-3"]), StageLinks(Mail(0, Queues()), 2, is_alone=True), 0
        )
        pipeline.step(X, Y, cross_entropy, 2, "1f1b", (0, 0))
        return [p.grad for p in own.parameters()]

    # The backward pass of Tanh reads its own result.
    assert all(map(torch.equal, gradients(True), gradients(False)))


def test_each_unit_draws_other_numbers_for_each_micro_batch_whatever_the_cut() -> None:
    drawn: list[float] = []

    class Drawing(nn.Module):
        """Note a random number."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            drawn.append(torch.rand(()).item())
            return x

    def numbers(stages: list[str]) -> list[float]:
        drawn.clear()
        own = nn.Sequential(nn.Linear(6, 5), Drawing(), Drawing(), nn.Linear(5, 3))
        links = StageLinks(Mail(0, Queues()), len(stages), is_alone=True)
        Pipeline(cut(own, stages), links, 0).step(X, Y, cross_entropy, 3, "1f1b", (0, 0))
        return list(drawn)

    found = numbers(["0-3"])
    assert len(set(found)) == 6
    assert numbers(["0-1", "2-3"]) == found


def test_each_call_of_one_module_draws_other_numbers() -> None:
    drawn: list[float] = []

    class Drawing(nn.Module):
        """Note a random number."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            drawn.append(torch.rand(()).item())
            return x

    def numbers(stages: int) -> list[float]:
        drawn.clear()
        own, links = Repeating(Drawing()), StageLinks(Mail(0, Queues()), stages, is_alone=True)
        Pipeline(cut(own, stages), links, 0).outputs(torch.ones(1, 2), (0, 0))
        return list(drawn)

    found = numbers(1)
    assert len(set(found)) == 2
    assert numbers(2) == found


@pytest.mark.filterwarnings("error")
def test_an_argument_that_needs_a_gradient_gets_one() -> None:
    own = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    x, other = X.clone().requires_grad_(), X.clone().requires_grad_()
    pipeline = Pipeline(cut(own, 2), StageLinks(Mail(0, Queues()), 2, is_alone=True), 0)
    pipeline.step(x, Y, cross_entropy, 4, "1f1b", (0, 0))
    cross_entropy(own(other), Y).backward()
    torch.testing.assert_close(x.grad, other.grad)
