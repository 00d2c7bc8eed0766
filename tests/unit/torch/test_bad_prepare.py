"""Each model, optimizer, loader or option that `prepare` refuses: one clear sentence, nothing prepared."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch
from bad_use_rig import fails, pair, step
from torch import nn
from torch.optim import SGD, Adagrad, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import mpips
from mpips.errors import ConfigError
from mpips.torch import prepare
from mpips.torch.module import PreparedModule
from mpips.torch.stepping import PreparedOptimizer

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


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_that_bounds_its_rows_in_place(job, kind):
    function = {"Embedding": "embedding", "EmbeddingBag": "embedding_bag"}[kind.__name__]
    model = nn.ModuleDict({"words": kind(9, 4, max_norm=1.5, norm_type=1.0)})
    with fails(
        f"^prepare: the layer 'words' is an {kind.__name__} with max_norm = 1.5, which changes its weight .*"
        rf"functional.{function}.ids, torch.renorm.layer.weight, 1, 0, 1.5..$"
    ):
        prepare(model, SGD(model.parameters(), 0.1))
    assert not isinstance(model, PreparedModule)
    prepare(nn.ModuleDict({"words": kind(9, 4)}))


def test_rows_that_are_bounded_as_the_message_advises(job):
    plain = nn.Embedding(9, 4, max_norm=1.5, norm_type=1.0)
    layer = nn.Embedding.from_pretrained(plain.weight.detach().clone(), freeze=False)
    model, optimizer = prepare(layer, SGD(layer.parameters(), 0.1))
    ids = torch.arange(9)
    model(ids)  # the values of the servers
    bounded = nn.functional.embedding(ids, torch.renorm(model.weight, 1, 0, 1.5))
    torch.testing.assert_close(bounded, plain(ids), rtol=1e-5, atol=1e-6)
    bounded.square().sum().backward()
    optimizer.step()


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
    with fails(
        "^the model has been prepared already: call prepare once for each model; where parts "
    ):
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
        for options, what in (
            ({"consistency": mpips.DiLoCo()}, "consistency 'diloco'"),
            ({"stream": 1}, "stream = 1"),
        ):
            with fails(
                f"^the optimizer has made steps before prepare, and a job with {what} cannot"
            ):
                prepare(model, optimizer, **options)
            assert not isinstance(optimizer, PreparedOptimizer)


def test_an_optimizer_of_another_model(job):
    model, _ = pair()
    other = nn.Linear(3, 3)
    optimizer = SGD([{"params": model.parameters()}, {"params": [other.weight]}], 0.1)
    with fails(r"^the optimizer's param group 1 has a parameter of shape \(3, 3\) that is not in"):
        prepare(model, optimizer)


def test_optimizers_that_servers_cannot_apply(job):
    model, _ = pair()
    with fails("^optimizer torch.optim.*LBFGS: servers cannot apply it; use one of torch.optim"):
        prepare(model, torch.optim.LBFGS(model.parameters()))
    with fails("^torch.optim.Adam: amsgrad = True: must be False$"):
        prepare(model, Adam(model.parameters(), amsgrad=True))


@pytest.mark.parametrize("make", [lambda o: "cosine", lambda o: [StepLR(o, 1), 5]])
def test_schedulers_that_a_restart_cannot_continue(job, make):
    model, optimizer = pair()
    with fails("^prepare: scheduler is .*: must be an LRScheduler of torch, or have"):
        prepare(model, optimizer, scheduler=make(optimizer))
    assert not isinstance(model, PreparedModule)


def test_loaders_that_cannot_be_divided(job):
    model, optimizer = pair()
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
