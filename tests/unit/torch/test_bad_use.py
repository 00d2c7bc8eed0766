"""Each wrong use of mpips.torch is one clear sentence, and leaves no half-prepared model behind."""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch_rig import torch_job

import mpips
from mpips.errors import ConfigError, ForkError
from mpips.session.session import scripts
from mpips.torch import Embedding, EmbeddingBag, prepare
from mpips.torch.module import PreparedModule
from mpips.torch.stepping import PreparedOptimizer


@pytest.fixture
def job():
    with torch_job() as found:
        yield found


def pair(*shape: int) -> tuple[nn.Module, Any]:
    model = nn.Linear(*(shape or (2, 1)))
    return model, SGD(model.parameters(), 0.1)


def fails(match: str) -> Any:
    """Expect a ConfigError whose message matches."""
    return pytest.raises(ConfigError, match=match)


def step(model: nn.Module, optimizer: Any) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


CALLS = {
    "mpips.torch.prepare": lambda: prepare(*pair()),
    "mpips.rank": mpips.rank,
    "mpips.world_size": mpips.world_size,
    "mpips.report": lambda: mpips.report(loss=1.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_without_init(name):
    with fails(rf"^{name} needs a job: call mpips.init\(\) at the beginning of the script$"):
        CALLS[name]()


def test_init_twice(job):
    with fails("^mpips.init was called a second time: a script has one job$"):
        mpips.init()


def test_a_script_that_has_left_leaves_nothing_behind():
    before = sys.excepthook, sys.exit, list(scripts)
    with torch_job():
        assert sys.excepthook != before[0]
        assert sys.exit != before[1]
    assert (sys.excepthook, sys.exit, scripts) == before
    with pytest.raises(ZeroDivisionError), torch_job():
        raise ZeroDivisionError
    assert (sys.excepthook, sys.exit, scripts) == before


def test_a_report_before_the_start(job):
    prepare(*pair())
    with fails("^mpips.report comes before the first pull: report after a training step$"):
        mpips.report(loss=1.0)


DTYPES = [torch.float64, torch.int64, torch.complex64, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parameters_of_other_dtypes(job, dtype):
    model = nn.Module()
    model.inner = nn.Module()
    model.inner.weight = nn.Parameter(torch.ones(2).to(dtype), requires_grad=False)
    name = str(dtype).removeprefix("torch.")
    with fails(f"^the parameter 'inner.weight' is {name}: parameters must be float32, bfloat16 or"):
        prepare(model)
    assert not isinstance(model, PreparedModule)


def test_parameters_without_shape_or_values(job):
    with fails("^the parameter 'weight' has no shape yet .a lazy module.: call the model once"):
        prepare(nn.LazyLinear(2))
    with fails("^the parameter 'weight' is on the meta device: materialise it first$"):
        prepare(nn.Linear(2, 2, device="meta"))


@pytest.mark.parametrize("what", ["text", None, [1], pair()[1]])
def test_a_model_that_is_none(job, what):
    with fails(f"^prepare: model is {type(what).__name__}: must be a torch.nn.Module$"):
        prepare(what)


def test_an_optimizer_that_is_none(job):
    loader = DataLoader(TensorDataset(torch.zeros(4, 2)))
    with fails("^prepare: optimizer is DataLoader: must be a torch.optim.Optimizer; pass a loader"):
        prepare(pair()[0], loader)


def test_a_model_that_is_prepared_already(job):
    model, optimizer = prepare(*pair())
    with fails("^the model has been prepared already: call prepare once for each model$"):
        prepare(model, SGD(model.parameters(), 0.1), name="again")
    with fails("^the optimizer has been prepared already: use one optimizer for each model$"):
        prepare(pair()[0], optimizer, name="other")


@pytest.mark.parametrize("part_first", [True, False])
def test_a_part_of_a_prepared_model(job, part_first):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    first, second = (model[1], model) if part_first else (model, model[1])
    prepare(first, name="first")
    with fails(r"^the parameter 'second.* has been prepared already, as 'first.*: prepare one"):
        prepare(second, name="second")
    assert not isinstance(second, PreparedModule)


def test_two_models_of_one_name(job):
    prepare(*pair())
    with fails("^two tables are named 'weight': prepare each model once, and give models"):
        prepare(*pair())


def test_prepare_after_the_start(job):
    step(*prepare(*pair()))
    with fails("^prepare comes too late: the job has started with the first forward pass"):
        prepare(*pair(), name="other")


def test_an_optimizer_after_its_first_step(job):
    for make in (
        lambda p: Adam(p, 0.1),
        lambda p: SGD(p, 0.1, momentum=0.9),
        lambda p: Adagrad(p, 0.1),
    ):
        model = nn.Linear(2, 1)
        optimizer = make(model.parameters())
        step(model, optimizer)
        with fails("^the optimizer has made steps before prepare, whose moments the servers would"):
            prepare(model, optimizer)
        assert not isinstance(optimizer, PreparedOptimizer)


def test_an_optimizer_of_another_model(job):
    model, _ = pair()
    other = nn.Linear(3, 3)
    optimizer = SGD([{"params": model.parameters()}, {"params": [other.weight]}], 0.1)
    with fails(r"^the optimizer's param group 1 has a parameter of shape \(3, 3\) that is not in"):
        prepare(model, optimizer)


@pytest.mark.parametrize("start", [True, False])
def test_a_param_group_after_prepare(job, start):
    model, optimizer = prepare(*pair())
    if start:
        step(model, optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with fails("^a param group was added after prepare: add all groups before mpips.torch.prepare"):
        step(model, optimizer)


def test_optimizers_that_servers_cannot_apply(job):
    model, _ = pair()
    with fails("^optimizer torch.optim.*LBFGS: servers cannot apply it; use one of torch.optim"):
        prepare(model, torch.optim.LBFGS(model.parameters()))
    with fails("^torch.optim.Adam: amsgrad = True: must be False$"):
        prepare(model, Adam(model.parameters(), amsgrad=True))


def test_hyperparameters_that_change_to_wrong_ones(job):
    model, optimizer = prepare(*pair())
    optimizer.param_groups[0]["lr"] = -1.0
    with fails("^torch.optim.SGD: lr = -1.0: must be"):
        step(model, optimizer)


def test_a_change_of_the_kind_of_rule(job):
    model, optimizer = prepare(*pair())
    optimizer.param_groups[0]["momentum"] = 0.9
    with fails("^set_optimizer of table 'weight': Momentum.* must be an optimizer of the table's"):
        step(model, optimizer)


@pytest.mark.parametrize("make", [lambda o: "cosine", lambda o: [StepLR(o, 1), 5]])
def test_schedulers_that_a_restart_cannot_continue(job, make):
    model, optimizer = pair()
    with fails("^prepare: scheduler is .*: must be an LRScheduler of torch, or have"):
        prepare(model, optimizer, scheduler=make(optimizer))
    assert not isinstance(model, PreparedModule)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_loaders_that_cannot_be_divided(job):
    model, optimizer = pair()
    with fails("^dataset of class Stream is an IterableDataset, which has no indices to divide"):
        prepare(model, optimizer, DataLoader(Stream()))
    with fails("^loader of class builtins.list: must be a torch.utils.data.DataLoader$"):
        prepare(model, optimizer, [1, 2, 3])
    assert not isinstance(model, PreparedModule)
    prepare(model, optimizer, DataLoader(TensorDataset(torch.ones(2))))


@pytest.mark.parametrize("buffers", ["mean", None])
def test_rules_of_buffers(job, buffers):
    with fails(f"^prepare: buffers = {buffers!r}: must be 'worker 0' or 'average'$"):
        prepare(*pair(), buffers=buffers)
    with fails("^prepare: buffers = 'average' needs consistency 'bsp', not 'asp': without common"):
        prepare(*pair(), buffers="average", consistency="asp")


def test_a_consistency_that_is_none(job):
    with fails("consistency"):
        prepare(*pair(), consistency="weak")
    with fails("consistency"):
        prepare(*pair(), consistency=3)


@pytest.mark.parametrize("name", ["a/b", "a\n"])
def test_a_name_that_is_none(job, name):
    model, optimizer = pair()
    with fails("name"):
        prepare(model, optimizer, name=name)
    assert not isinstance(model, PreparedModule)


def test_a_distributed_model(job, tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        model = nn.parallel.DistributedDataParallel(pair()[0])
        with fails("^the model is a DistributedDataParallel: prepare the module in it instead$"):
            prepare(model)
    finally:
        torch.distributed.destroy_process_group()


def test_sparse_gradients(job):
    model = nn.Embedding(5, 2, sparse=True)
    model, optimizer = prepare(model, SGD(model.parameters(), 0.1))
    model(torch.tensor([1])).sum().backward()
    with fails("^the parameter 'weight' has a sparse gradient: use mpips.torch.Embedding, which"):
        optimizer.step()


def test_values_that_are_loaded_after_the_start(job):
    model, optimizer = prepare(*pair())
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(saved)
    step(model, optimizer)
    with fails("^load_state_dict comes too late: the job has started with the first forward pass"):
        model.load_state_dict(saved)


def test_an_optimizer_that_is_not_prepared(job):
    model = nn.Linear(2, 1)
    model, optimizer = prepare(model, SGD(model.parameters(), lr=0.1), overlap=False)
    other = SGD(model.parameters(), lr=0.1)
    for chosen in (optimizer, other):
        chosen.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        chosen.step()
    with torch.no_grad():
        model(torch.ones(1, 2))  # looks at the values as they are
    with pytest.raises(
        ConfigError, match=r"was changed in place after .* prepare the optimizer that"
    ):
        model(torch.ones(1, 2))


@pytest.mark.parametrize("how", ["data", "view", "slice"])
def test_parameters_that_share_memory(job, how):
    model = nn.ModuleDict({"encoder": nn.Linear(4, 4, bias=False), "decoder": nn.Linear(4, 4)})
    shared = model["encoder"].weight.data
    part = {"data": shared, "view": shared.t(), "slice": shared[2:]}[how]
    model["decoder"].weight = nn.Parameter(part)
    with pytest.raises(
        ConfigError,
        match=r"'decoder.weight' and 'encoder.weight' share memory, but are two objects",
    ):
        prepare(model, SGD(model.parameters(), lr=0.1))


def test_slices_of_one_buffer_share_no_memory(job):
    whole = torch.randn(6, 4)
    model = nn.ParameterList(
        [nn.Parameter(whole[:2]), nn.Parameter(whole[2:4]), nn.Parameter(whole[4:])]
    )
    prepare(model, SGD(model.parameters(), lr=0.1))


def test_values_that_replace_parameters(job):
    model, _ = prepare(*pair())
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    with fails("^load_state_dict with assign=True would replace the parameters"):
        model.load_state_dict(saved, assign=True)


def test_moments_that_are_loaded(job):
    _, optimizer = prepare(*pair())
    plain = nn.Linear(2, 1)
    own = Adam(plain.parameters(), 0.1)
    step(plain, own)
    with fails(
        "^load_state_dict of a prepared optimizer cannot load the moments of each parameter"
    ):
        optimizer.load_state_dict(own.state_dict())


IDS = {
    "torch.int32 on cpu": torch.ones(2, dtype=torch.int32),
    "torch.float32 on cpu": torch.ones(2),
    "torch.int64 on meta": torch.ones(2, dtype=torch.int64, device="meta"),
    "list": [1, 2],
}


@pytest.mark.parametrize("found", IDS)
def test_ids_that_are_none(job, found):
    layer, _ = prepare(Embedding(2))
    with fails(
        f"^ids of the embedding 'embedding' are {found}: must be an int64 tensor with values$"
    ):
        layer(IDS[found])


@pytest.mark.parametrize("make", [Embedding, EmbeddingBag])
def test_a_layer_in_no_prepared_model(job, make):
    with fails(r"^this mpips.torch.Embedding is in no prepared model: call mpips.torch.prepare\("):
        make(2)(torch.ones(1, 1, dtype=torch.int64))


def test_a_layer_in_two_models(job):
    layer = Embedding(2)
    prepare(nn.Sequential(layer), name="a")
    other = nn.Sequential(layer)
    with fails("^the embedding 'a.0' has been prepared already: prepare one module that contains"):
        prepare(other, name="b")
    assert not isinstance(other, PreparedModule)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dim": 0}, "dim = 0: must be 1 or more"),
        ({"dim": 2, "init": "random"}, "initializer 'random' is not understood"),
        ({"dim": 2, "consistency": "weak"}, "weak"),
        ({"dim": 2, "optimizer": mpips.SGD}, r"optimizer = SGD is a class; call it: SGD\(\)"),
    ],
)
def test_settings_of_layers(options, match):
    with fails(match):
        Embedding(**options)


def test_modes_of_bags():
    with fails("^EmbeddingBag: mode = 'median': must be 'sum', 'mean' or 'max'$"):
        EmbeddingBag(2, mode="median")


def use_in_child(model: nn.Module, optimizer: Any, found: Any) -> None:
    for use in (lambda: model(torch.ones(1, 2)), optimizer.step):
        try:
            use()
        except ForkError as error:
            found.put(str(error))
        else:
            found.put("no error")


@pytest.mark.parametrize("start", [True, False], ids=["after the start", "before the start"])
def test_use_in_a_forked_child(job, start):
    model, optimizer = prepare(*pair())
    if start:
        step(model, optimizer)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=use_in_child, args=(model, optimizer, found))
    child.start()
    messages = [found.get(timeout=20) for _ in range(2)]
    child.join(20)
    assert child.exitcode == 0
    assert all("child" in message or "helper" in message for message in messages), messages
    step(model, optimizer)
