"""`prepare`: model, optimizer and loader of a plain torch script become parts of the script's job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from mpips.errors import ConfigError
from mpips.model.codec import PullCodec, PushCodec, common_codecs
from mpips.model.consistency import ASP, BSP, Consistency, Switch
from mpips.model.consistency import of_name as consistency_of
from mpips.model.local_sgd import Local
from mpips.model.replicated import Replicated, TablePlacement, common_placement
from mpips.model.table import DenseTable
from mpips.mpi.launch import asked_threads
from mpips.session.script import Script
from mpips.torch.buffers import BUFFER_RULES, BufferRule, BufferTable, buffer_tables
from mpips.torch.cursor import SchedulerState
from mpips.torch.device import move
from mpips.torch.device_table import table_maker
from mpips.torch.embedding import Embedding
from mpips.torch.job import TorchJob
from mpips.torch.loader import StartingLoader, divided
from mpips.torch.model_part import ModelPart
from mpips.torch.module import PreparedModule, make_prepared
from mpips.torch.optimizer_state import has_steps, initial_state
from mpips.torch.parameters import ParameterTable, check_memory, table_names
from mpips.torch.row_moments import RowStates, row_states
from mpips.torch.rules import rule_of
from mpips.torch.sharded import ShardedLayer
from mpips.torch.stage_cut import AutoStages, Stages, cut, cut_at, units_to_cut
from mpips.torch.stage_profile import choose_stages, digest_of, ends_of
from mpips.torch.staged_model import Division, make_staged
from mpips.torch.stepping import PreparedOptimizer, Stepping, make_stepping
from mpips.torch.streamed_model import (
    Make,
    check_stream,
    fill_buffers,
    make_stream,
    make_streamed,
)
from mpips.torch.streamed_table import Init
from mpips.torch.streaming import Stream


def prepare(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    loader: DataLoader[Any] | StartingLoader | None = None,
    *,
    scheduler: Any = None,
    consistency: Consistency | str = "bsp",
    buffers: BufferRule = "worker 0",
    overlap: bool | None = None,
    placement: Replicated | str = "servers",
    compression: PushCodec | str | None = None,
    pull_compression: PullCodec | str | None = None,
    stream: int | None = None,
    pull: str = "by use",
    init: Init | None = None,
    name: str = "",
    device: torch.device | str | None = None,
    stages: Stages | None = None,
) -> Any:
    """Let the servers of the job hold and train a model. Call it before the first forward pass.

    Not collective; with AutoStages collective over all ranks, and blocking. Every parameter becomes a dense
    table with its torch name, every mpips.torch.Embedding an embedding table.
    The script goes on as before: `loss.backward()` computes gradients, `optimizer.step()` pushes them and
    ends the worker's clock, and the next forward pass first pulls the new values. At the first forward pass,
    or the first iteration of the loader, all ranks start the job together; the values of worker 0 are the
    initial ones.

    Under BSP a step applies the mean of all workers' gradients, as DistributedDataParallel does. Under SSP
    and ASP each worker's gradient is a step of its own, with the whole learning rate.

    A restart (`mpips run`, or `mpips.init(save=...)`) runs the script from its beginning: mpips.torch.epochs
    yields the epochs that are left, and the epoch of the restart yields the rest of its batches. In a loop
    over `range`, epochs that are complete yield no batches. Random numbers of a step depend on the job's
    seed, the worker and its clock only, so dropout repeats.

    Args:
        model: The model; parameters in float32, bfloat16 or float16. It is changed in place.
        optimizer: torch.optim.SGD, Adam, AdamW, Adagrad or RMSprop over parameters of the model. It is
            changed in place. If it has made steps, or has loaded the state of one that has, the servers begin
            with the moments of worker 0; not with LocalSGD, DiLoCo and `stream`. None: only for a model
            without parameters (its embeddings have their own rules), or one that is not trained.
        loader: A DataLoader, which is divided among the workers; see mpips.torch.sampling. None: it was
            divided by `prepare_loader`, which comes before schedulers that need its length, or the script
            divides its data by mpips.rank() and mpips.world_size().
        scheduler: A learning-rate scheduler of the optimizer, or several in a list, whose states restarts
            restore. With mpips.torch.epochs give all of them; in a loop over `range`, those that are stepped
            once per epoch need not be given. A schedule whose length fits the loader before it was divided is
            a warning, at its first step.
        consistency: Consistency model of all tables: "bsp", "ssp", "asp", "auto" or a value such as
            SSP(bound=2). LocalSGD() or DiLoCo(): each worker steps its own copy of the parameters, and
            workers communicate at outer steps only; evaluate within mpips.torch.averaged(model). Embeddings
            and buffers then are under ASP.
        buffers: "worker 0": its buffers count, as with DistributedDataParallel; "average": the mean of all
            workers' buffers, only with BSP.
        overlap: Push gradients while backward runs. False: `step` pushes them. None: backward does so after
            two steps in which nothing has changed gradients or hyperparameters between backward and `step`
            (clipping, GradScaler), no second backward pass has added to gradients outside `no_sync`, and no
            other optimizer is prepared. A script that does one of these later gets a ConfigError. True: from
            the first step on.
        placement: "servers", or "replicated": every worker holds the parameters, and workers sum gradients
            and apply the optimizer themselves; see DenseTable. The values are equal bit by bit. Only with
            BSP. Embeddings and buffers are on servers in any case. Replicated(check_every=N) also compares
            the copies on different nodes every N steps. "auto": the job decides for each parameter at its
            start, by measured bandwidths and the free memory; see mpips.model.auto_placement.
        compression: Codec of the pushes of all parameters, such as "int8" or Bf16(); None: float32.
            Embeddings have one of their own. See mpips.model.codec.
        pull_compression: Codec of the pulls of all parameters, "bf16" or "int8"; None: float32. Workers then
            compute with rounded values. Under BSP also "topk" or "onebit": workers then compute with a copy
            that follows the values by differences.
        stream: Number of layers whose parameters may be in the memory of this worker, for models that are
            larger; None: all. A layer is a module that has parameters of its own. The values of a parameter
            are pulled when a function of torch receives it, in forward and in backward, and freed when
            those of other layers need the place. Gradients are pushed by backward, as with overlap=True, and
            freed: the script cannot clip, scale or accumulate them. Needs BSP without backup workers. See
            mpips.torch.streaming.
        pull: "by use": values from servers on other nodes are asked for in the order of their use, and each
            function of torch in the forward pass waits only for those that it receives; see
            mpips.torch.by_use. "whole": all values are there before the first layer computes, as they are in
            any case for values on this node, and for models with compiled or scripted parts.
        init: Fills the parameters and buffers that a module itself has, of a module that was made on the
            meta device (`with torch.device("meta")`), which has no memory for its parameters. Called for one
            module after the other on worker 0 at the start of the job, and in `prepare` for modules with
            buffers. None: module.reset_parameters(). Only with `stream`.
        name: Prefix of the tables' names, for a second model.
        device: Device to which the model is moved first, such as mpips.torch.device(); None: parameters stay
            where they are. "cuda" is the CUDA device of this worker by its place on its node. Parameters and
            gradients on a CUDA device stay there, and are copied to and from the host on side streams while
            the device computes. Workers may have different devices.
        stages: Divide the model between the workers of a pipeline, which each compute a stage: a number of
            stages, with parts of about as many parameters; a list with the names of the modules of each
            stage, such as ["embed, blocks.0-5", "blocks.6-11, head"]; or AutoStages(number, example), which
            measures where to cut. The model must call its modules one
            after the other. It trains by `model.forward_backward`; see
            mpips.torch.staged_model.StagedModule. The number of workers must be a multiple of the number of
            stages; a job of one worker computes all of them. None: each worker computes the whole model.

    Returns:
        The model; or a tuple of model, optimizer and loader as far as given, in this order.

    Raises:
        ConfigError: A parameter, option or loader is not accepted; the message names it. Or the job has
            started, `mpips.init` has not been called, or the model has been prepared before.
        CapabilityError: `device` needs CUDA, which this process does not have.
        DeviceError: A device failed.
    """
    job = TorchJob.of_script("mpips.torch.prepare")
    rules = consistency_of(consistency) if isinstance(consistency, str) else consistency
    where = common_placement(placement, rules)
    codecs = common_codecs(compression, pull_compression)
    _check(model, optimizer, job, rules, buffers, overlap, pull)
    check_stream(stream, init, rules, overlap)
    overlap = _overlap_with_shards(model, rules, overlap, stream)
    division = _division(model, job, stages, rules, overlap, placement, stream, device)
    begins_anew = optimizer is None or not has_steps(optimizer)
    if not begins_anew:
        _check_moments(rules, stream)
    if stream is not None:
        where = _on_servers(where, stream)
    others: Consistency = rules
    if isinstance(rules, Local):
        # Gradients stay in the worker: nothing is to be sent while backward runs.
        others, overlap = ASP(), False
    if division is not None:
        overlap = False  # messages of a step come before its pushes

    # Change the model in place, and find its tables.
    if device is not None:
        move(model, device, job.script.rank)
    streamed: Stream | None = None
    make: Make = table_maker(job.devices)
    if stream is not None:
        streamed, make = make_stream(model, optimizer, stream, init)
    found = _find_tables(model, optimizer, name, make, streamed, buffers, others, begins_anew)
    schedulers = _schedulers(scheduler)
    prepared = divided(job, loader, came_first=False) if loader is not None else None
    own = found if division is None else _of_stage(found, division)
    is_by_use = streamed is None and division is None and pull == "by use"
    owners = own.parameters if streamed is None else [streamed]
    part = ModelPart(job, [*owners, *own.buffers], own.parameters if is_by_use else [])

    # Declare the tables. The job opens them at its start.
    _declare(job, found, others, lambda table: table.table(rules, where, *codecs), division)

    # Turn what the script gave into prepared objects.
    if division is not None:
        make_staged(model, part, job, division)
    elif streamed is None:
        make_prepared(model, part)
    else:
        make_streamed(model, part, streamed)
    takes_state = streamed is None and not isinstance(rules, Local)
    is_staged = division is not None
    trained = _stepping(optimizer, job, found, own, part, overlap, takes_state, is_staged)
    if division is not None:
        division.take_optimizer(trained)
        job.add(division)
    if prepared is not None and prepared not in job.loaders:
        job.add_loader(prepared)
    job.schedules.add(trained, schedulers)
    for one in schedulers:
        job.restore("scheduler", SchedulerState(one))
    take_cores(job.script)
    result = [model, *(one for one in (trained, prepared) if one is not None)]
    return tuple(result) if len(result) > 1 else model


class _ModelTables(NamedTuple):
    """The tables of a model.

    Attributes:
        parameters: Those of its parameters.
        buffers: Those of its buffers.
        embeddings: Its embeddings, by the names of their tables.
        rows: Rows with which embeddings begin, by the same names; others have those of their `init`.
    """

    parameters: list[ParameterTable]
    buffers: list[BufferTable]
    embeddings: dict[str, Embedding]
    rows: dict[str, RowStates]


def _find_tables(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    name: str,
    make: Make,
    streamed: Stream | None,
    buffers: BufferRule,
    others: Consistency,
    begins_anew: bool,
) -> _ModelTables:
    """Return the tables of a model, with the moments of an optimizer that has made steps.

    Args:
        model: The model.
        optimizer: Its optimizer.
        name: Prefix of the tables' names.
        make: Makes the table of a parameter.
        streamed: The stream of a streamed model, whose buffers this fills.
        buffers: The buffers that count.
        others: Consistency of embeddings and buffers.
        begins_anew: The optimizer has made no steps.
    """
    tables = _parameter_tables(model, optimizer, name, make)
    for table in tables:
        if optimizer is not None and table.rule is not None and not begins_anew:
            state = optimizer.state.get(table.parameter, {})
            table.state = initial_state(table.name, table.parameter, table.rule, state)
    if streamed is not None:
        fill_buffers(streamed)
    own_buffers = list(buffer_tables(model, name, buffers))
    embeddings = _embeddings(model, name)
    states = {} if optimizer is None else dict(optimizer.state)
    rows = row_states(states, [one.table(path, others) for path, one in embeddings.items()])
    return _ModelTables(tables, own_buffers, embeddings, rows)


def _overlap_with_shards(
    model: torch.nn.Module, rules: Consistency, overlap: bool | None, stream: int | None
) -> bool | None:
    """Return the argument `overlap`; False for a model with layers that are divided between the workers.

    Their workers exchange values in backward, which must be done before the first push.

    Raises:
        ConfigError: Such a layer does not fit another argument.
    """
    found = next((one for one in model.modules() if isinstance(one, ShardedLayer)), None)
    if found is None:
        return overlap
    refused = {
        f"consistency {rules.name!r}": not isinstance(rules, BSP),
        "backup workers": isinstance(rules, BSP) and bool(rules.backup),
        "overlap = True": overlap is True,
        f"stream = {stream}": stream is not None,
    }
    for what, is_there in refused.items():
        if is_there:
            raise ConfigError(
                f"prepare: a model with {type(found).__name__} and {what}: all workers compute this layer "
                "together in each step, and push behind it; use BSP() and leave out the other"
            )
    return False


def _division(
    model: torch.nn.Module,
    job: TorchJob,
    stages: Stages | None,
    rules: Consistency,
    overlap: bool | None,
    placement: Replicated | str,
    stream: int | None,
    device: torch.device | str | None,
) -> Division | None:
    """Return the stages of the model; None: it is not divided.

    Raises:
        ConfigError: The model cannot be divided so, or another argument does not fit.
    """
    if job.asks_stages and (stages is None or job.has_parts):
        raise ConfigError(
            "prepare: the loader or another model was prepared with stages: give prepare the same stages, "
            "and one model that contains all others"
        )
    if stages is None:
        return None
    refused = {
        "other prepared models": job.has_parts,
        f"consistency {rules.name!r}": isinstance(rules, Local | Switch),
        "overlap = True": overlap is True,
        f"placement = {placement!r}": placement != "servers",
        f"stream = {stream}": stream is not None,
        f"device = {device!r}": device is not None and torch.device(device).type != "cpu",
    }
    for what, is_there in refused.items():
        if is_there:
            raise ConfigError(
                f"prepare: stages = {stages!r} with {what}: a model in stages does not take it; leave out "
                "one of the two"
            )
    if not isinstance(stages, AutoStages):
        found = cut(model, stages)
        job.divide(len(found))
        return Division(job, model, found)

    # Measure with as many threads as in the steps.
    job.divide(stages.n)
    take_cores(job.script)
    units = units_to_cut(model)
    digest = digest_of(units, stages)
    choice = job.script.ask_stages(digest, lambda: choose_stages(units, stages, digest))
    job.stages_choice = choice
    return Division(job, model, cut_at(units, ends_of(choice, units)))


def _of_stage(found: _ModelTables, division: Division) -> _ModelTables:
    """Return the tables of the stages that this worker computes."""
    return found._replace(
        parameters=[table for table in found.parameters if division.is_own(table.parameter)],
        buffers=[table for table in found.buffers if division.has_module(table.owner)],
    )


def _declare(
    job: TorchJob,
    found: _ModelTables,
    others: Consistency,
    table_of: Callable[[ParameterTable], DenseTable],
    division: Division | None,
) -> None:
    """Declare the tables of a model to the script's job.

    Args:
        job: The job.
        found: The tables.
        others: Consistency of embeddings and buffers.
        table_of: Returns the table of a parameter, as the job declares it.
        division: The stages of the model; a worker opens the tables of its own. None: it is not divided.
    """
    for table in found.parameters:
        job.claim(table.parameter, table.name)
    for path, embedding in found.embeddings.items():
        embedding.join(job, path)
        if path in found.rows:
            embedding.begin_with(found.rows[path])
    own = found if division is None else _of_stage(found, division)
    for table in found.parameters:
        declared = table_of(table)
        if division is not None:
            declared = division.table(declared, division.stage_of(table.parameter))
        job.script.declare(declared, table.initial_values, table.group, state=table.initial_state)
    for buffer in found.buffers:
        declared = buffer.table(others)
        if division is not None:
            declared = division.table(declared, division.stage_of_module(buffer.owner))
        job.script.declare(declared, buffer.initial_values)
    for opened in own.parameters:
        job.add(opened)
    for pushed in own.buffers:
        job.add(pushed)
    for path, embedding in found.embeddings.items():
        job.script.declare(embedding.table(path, others), rows=embedding.initial_rows)
        job.add(embedding)


def take_cores(script: Script) -> None:
    """Let torch use this rank's share of the cores of its node, unless the user has set a number."""
    if not asked_threads() and script.n_workers > 1:
        torch.set_num_threads(script.n_cores)


def _on_servers(placement: TablePlacement, stream: int) -> TablePlacement:
    """Return the placement of a streamed model.

    Raises:
        ConfigError: The placement is another one than "servers" and "auto".
    """
    if placement not in ("auto", "servers"):
        raise ConfigError(
            f"prepare: placement = {placement!r} with stream = {stream}: must be 'servers', since a "
            "replicated model is whole in the memory of each node"
        )
    return "servers"


def _check_moments(rules: Consistency, stream: int | None) -> None:
    """Raise ConfigError for a job that cannot begin with the moments of an optimizer that has made steps."""
    if isinstance(rules, Local) or stream is not None:
        what = f"stream = {stream}" if stream is not None else f"consistency {rules.name!r}"
        raise ConfigError(
            f"the optimizer has made steps before prepare, and a job with {what} cannot begin with their "
            "moments: prepare it before its first step"
        )


def _check(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    job: TorchJob,
    consistency: Consistency,
    buffers: BufferRule,
    overlap: bool | None,
    pull: str,
) -> None:
    """Raise ConfigError for arguments of `prepare` that are not accepted."""
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"prepare: model is {type(model).__name__}: must be a torch.nn.Module")
    job.check_new(model, PreparedModule)
    _refuse_max_norm(model)
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"prepare: optimizer is {type(optimizer).__name__}: must be a torch.optim.Optimizer; pass a "
            "loader by its name, loader=..., and prepare each module that has its own optimizer by itself"
        )
    if isinstance(optimizer, PreparedOptimizer):
        raise ConfigError(
            "the optimizer has been prepared already: use one optimizer for each model"
        )
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise ConfigError(
            "the model is a DistributedDataParallel: prepare the module in it instead"
        )
    if overlap not in (None, True, False):
        raise ConfigError(f"prepare: overlap = {overlap!r}: must be True, False or None")
    if pull not in ("by use", "whole"):
        raise ConfigError(f"prepare: pull = {pull!r}: must be 'by use' or 'whole'")
    if buffers not in BUFFER_RULES:
        raise ConfigError(f"prepare: buffers = {buffers!r}: must be 'worker 0' or 'average'")
    if buffers == "average" and consistency.name != "bsp":
        raise ConfigError(
            f"prepare: buffers = 'average' needs consistency 'bsp', not {consistency.name!r}: without "
            "common clocks there is no mean"
        )


def _refuse_max_norm(model: torch.nn.Module) -> None:
    """Raise ConfigError for an embedding of torch whose forward pass changes its weight."""
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag):
            continue
        if module.max_norm is not None:
            kind, bound = type(module).__name__, f"{module.norm_type:g}, 0, {module.max_norm:g}"
            function = "embedding_bag" if isinstance(module, torch.nn.EmbeddingBag) else "embedding"
            raise ConfigError(
                f"prepare: the layer {path!r} is {_a(kind)} with max_norm = {module.max_norm:g}, which "
                "changes its weight in each forward pass, but the weights are those of the servers: make it "
                "without max_norm, and bound its rows where they are used, by "
                f"torch.nn.functional.{function}(ids, torch.renorm(layer.weight, {bound}))"
            )


def _a(kind: str) -> str:
    return f"{'an' if kind[:1] in 'AEIOU' else 'a'} {kind}"


def _parameter_tables(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    prefix: str,
    make: Make,
) -> list[ParameterTable]:
    """Return the tables of all parameters, with the rules of their param groups."""
    named = table_names(model, prefix)
    check_memory(named)
    rules = {}
    if optimizer is not None:
        known = {id(p) for p in model.parameters()}
        for i, group in enumerate(optimizer.param_groups):
            rule = rule_of(optimizer, group)
            for p in group["params"]:
                if id(p) not in known:
                    raise ConfigError(
                        f"the optimizer's param group {i} has a parameter of shape {tuple(p.shape)} that is "
                        "not in the model: prepare the model that contains it, with this optimizer"
                    )
                rules[id(p)] = rule
    return [make(name, p, rules.get(id(p))) for name, p in named.items()]


def _schedulers(given: Any) -> list[Any]:
    """Return the argument `scheduler` as a list.

    Raises:
        ConfigError: One of them has no state that can be restored.
    """
    found = list(given) if isinstance(given, list | tuple) else [given] * (given is not None)
    for one in found:
        if not hasattr(one, "state_dict") or not hasattr(one, "load_state_dict"):
            raise ConfigError(
                f"prepare: scheduler is {type(one).__name__}: must be an LRScheduler of torch, or have its "
                "methods state_dict and load_state_dict"
            )
    return found


def _embeddings(model: torch.nn.Module, prefix: str) -> dict[str, Embedding]:
    """Return the model's embeddings by the names of their tables; a shared one once."""
    return {
        ".".join(filter(None, (prefix, path))) or "embedding": module
        for path, module in model.named_modules()
        if isinstance(module, Embedding)
    }


def _stepping(
    optimizer: torch.optim.Optimizer | None,
    job: TorchJob,
    found: _ModelTables,
    own: _ModelTables,
    part: ModelPart,
    overlap: bool | None,
    takes_state: bool,
    is_staged: bool,
) -> torch.optim.Optimizer | None:
    """Prepare the optimizer; make one for a model that has embeddings and no parameters.

    `found`: the tables of the model, `own`: those of the stages that this worker computes. Until the job
    starts the optimizer has the state of the whole model, which worker 0 gives to the servers.
    """
    tables, layers = found.parameters, list(found.embeddings.values())
    if optimizer is None and (tables or not layers):
        return None
    if optimizer is None:
        optimizer = torch.optim.SGD([layer.weight for layer in layers], 0.0)
    # GradScaler looks at what the optimizer has. A layer's rows are trained also if the script left it out.
    present = {id(p) for group in optimizer.param_groups for p in group["params"]}
    added = [layer.weight for layer in layers if id(layer.weight) not in present]
    optimizer.param_groups[0]["params"] += added
    by_parameter = {id(table.parameter): table for table in tables}
    groups = [
        [by_parameter[id(p)] for p in group["params"] if id(p) in by_parameter]
        for group in optimizer.param_groups
    ]
    # Gradients come from the last layer to the first.
    stepping = Stepping(
        job,
        optimizer,
        groups,
        own.parameters[::-1],
        layers,
        own.buffers,
        part,
        overlap,
        added,
        takes_state,
        is_staged,
    )
    make_stepping(optimizer, stepping, layers)
    job.restore("optimizer", stepping)
    job.add(stepping)
    return optimizer
