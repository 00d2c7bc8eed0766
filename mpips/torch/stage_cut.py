"""Where a model is cut into stages: its units in the order of their calls, and the units of each stage.

A *unit* is a module that no stage divides. Containers (nn.Sequential, nn.ModuleList) are expanded, and every
other module is a unit. A model can be cut if it calls its units one after the other, each with the result of
the one before. An nn.Sequential does so by definition; the `forward` of another class is traced by torch.fx,
which calls it with a symbol in place of its argument, and everything in it but such calls is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn.parameter import UninitializedParameter

from mpips.errors import ConfigError
from mpips.torch.embedding import Embedding
from mpips.torch.module import Refresh
from mpips.torch.stage_balance import least_maximum, spans

_RANGE = re.compile(r"(.*?)(\d+)-(\d+)$")


class AutoStages:
    """Stages whose cuts are chosen by a measurement; an argument of `prepare`.

    Worker 0 computes each module of the model forward and backward on an example, and chooses the cuts with
    the least time of the slowest stage. Among cuts whose slowest stage takes at most 2% longer, those between
    which the fewest bytes travel are taken. All workers use this choice, and so does each restart: a run
    directory and checkpoints contain it. A choice for another model, example or limit does not count.

    Attributes:
        n: Number of stages.
        example: A micro-batch: an argument of the model, on the CPU, with as many samples as a micro-batch
            of the training has.
        memory_mib: Most memory of a worker, in MiB: parameters and buffers of its stage, their gradients, and
            what its micro-batches keep for their backward passes under "1f1b". Memory of mpips and of torch
            itself is not counted. None: no limit.
    """

    def __init__(self, n: int, example: Any, *, memory_mib: float | None = None) -> None:
        """Take the number of stages, an example and a limit.

        Raises:
            ConfigError: `n` or `memory_mib` is not accepted.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ConfigError(f"AutoStages: n = {n!r}: must be a number of stages, 1 or more")
        is_number = isinstance(memory_mib, int | float) and not isinstance(memory_mib, bool)
        if memory_mib is not None and not (is_number and 0 < memory_mib < float("inf")):
            raise ConfigError(
                f"AutoStages: memory_mib = {memory_mib!r}: must be None or a number greater than 0"
            )
        self.n = n
        self.example = example
        self.memory_mib = memory_mib

    def __repr__(self) -> str:
        """Return the number of stages and the limit; an example can be large."""
        limit = "" if self.memory_mib is None else f", memory_mib={self.memory_mib:g}"
        return f"AutoStages({self.n}{limit})"


Stages = int | Sequence[str] | AutoStages


class Unit(NamedTuple):
    """A module that no stage divides, and its name in the model."""

    path: str
    module: nn.Module


def cut(model: nn.Module, stages: int | Sequence[str]) -> list[list[Unit]]:
    """Return the units of each stage of a model, in the order of their calls.

    A number of stages cuts the model so that the largest stage has as few parameters as possible.

    Args:
        model: The model.
        stages: Number of stages; or for each stage the names of its modules, such as "embed, blocks.0-5".

    Raises:
        ConfigError: The model cannot be cut so; the message names the part of it.
    """
    units = units_to_cut(model)
    if isinstance(stages, bool) or not isinstance(stages, int | list | tuple):
        raise ConfigError(
            f"prepare: stages = {stages!r}: must be a number of stages, a list with the names of the modules "
            "of each stage, or mpips.torch.AutoStages(number, example)"
        )
    found = _balanced(units, stages) if isinstance(stages, int) else _named(units, stages)
    return _checked(found)


def units_to_cut(model: nn.Module) -> list[Unit]:
    """Return the units of a model that can have stages, in the order of their calls.

    Raises:
        ConfigError: The model cannot have stages; the message names the part of it.
    """
    _check(model)
    return units_of(model)


def cut_at(units: Sequence[Unit], ends: Sequence[int]) -> list[list[Unit]]:
    """Return the units of each stage. `ends`: number of units in front of the end of each stage.

    Raises:
        ConfigError: A stage has no parameters, or two stages share a tensor.
    """
    return _checked(_parts(units, ends))


def _checked(found: list[list[Unit]]) -> list[list[Unit]]:
    """Return the stages if each has parameters and none shares a tensor with another one."""
    for number, own in enumerate(found):
        if not any(p.numel() for unit in own for p in unit.module.parameters()):
            names = ", ".join(unit.path for unit in own) or "no modules"
            raise ConfigError(
                f"prepare: stage {number} ({names}) has no parameters: each stage needs one, so join it with "
                "a neighbour"
            )
    _check_shared(found)
    return found


def n_stages_of(stages: Stages) -> int:
    """Return the number of stages that an argument `stages` gives.

    Raises:
        ConfigError: It is not accepted.
    """
    if isinstance(stages, AutoStages):
        return stages.n
    n = stages if isinstance(stages, int) and not isinstance(stages, bool) else None
    if isinstance(stages, list | tuple):
        n = len(stages)
    if n is None or n < 1:
        raise ConfigError(
            f"stages = {stages!r}: must be a number of 1 or more, or a list with the names of the modules of "
            "each stage"
        )
    return n


def units_of(model: nn.Module) -> list[Unit]:
    """Return the units of a model in the order of their calls.

    Raises:
        ConfigError: The model does not call its units one after the other.
    """
    units = list(_expanded(model, ""))
    if not _is_plain_sequential(model):
        units = _called(model, units)
    known = {id(p) for unit in units for p in unit.module.parameters()}
    known |= {id(b) for unit in units for b in unit.module.buffers()}
    # The table of a buffer belongs to the first module that has it.
    inner = {id(m) for unit in units for m in unit.module.modules()}
    outer = {
        f"{path}.{key}".lstrip(".")
        for path, m in model.named_modules()
        for key in m._buffers
        if id(m) not in inner
    }
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in known or name in outer:
            raise ConfigError(
                f"prepare: stages: {name!r} belongs to no module that the model calls one after the other, "
                "so to no stage: make it a parameter or buffer of such a module"
            )
    return units


def containers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that a model in stages does not call, each with its path: "" for the model."""
    return [(path, m) for path, m in model.named_modules() if m is model or _is_container(m)]


def has_hooks(module: nn.Module) -> bool:
    """Return True if a module has hooks of the script."""
    return bool(
        module._forward_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or any(not isinstance(hook, Refresh) for hook in module._forward_pre_hooks.values())
    )


def check_not_called(containers: Sequence[tuple[str, nn.Module]]) -> None:
    """Raise ConfigError if one of these has hooks or a replaced forward. Cheap; for every call."""
    for path, module in containers:
        if has_hooks(module):
            raise ConfigError(
                f"a model in stages: {path or 'the model'} has hooks, which would not run, since its layers "
                "are called one by one: register them on its layers"
            )
        if "forward" in vars(module):
            raise ConfigError(
                f"a model in stages: the forward of {path or 'the model'} was replaced by another function, "
                "which would not run, since its layers are called one by one: give its class this forward"
            )


def _check(model: nn.Module) -> None:
    """Raise ConfigError for models that cannot have stages, whatever the cut."""
    for path, module in model.named_modules():
        if isinstance(module, Embedding):
            raise ConfigError(
                f"prepare: stages with {type(module).__name__} ({path or 'the model'}): its rows "
                "belong to no stage in mpips.torch; use torch.nn.Embedding, or leave out stages"
            )
        if hasattr(module, "_orig_mod") or isinstance(module, torch.jit.ScriptModule):
            raise ConfigError(
                f"prepare: stages with {path or 'a model'} compiled by torch.compile or torch.jit: give "
                "the module as it was before"
            )
    check_not_called(containers_of(model))
    for name, p in model.named_parameters():
        if isinstance(p, UninitializedParameter):
            raise ConfigError(
                f"prepare: stages: the parameter {name!r} has no shape yet (a lazy module): call the model "
                "once before prepare"
            )
        if p.device.type not in ("cpu", "meta"):
            raise ConfigError(
                f"prepare: stages: the parameter {name!r} is on {p.device}: stages need the CPU; use "
                "model.cpu(), or leave out stages"
            )


def _is_plain_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _is_container(module: nn.Module) -> bool:
    return _is_plain_sequential(module) or isinstance(module, nn.ModuleList)


def _expanded(module: nn.Module, prefix: str) -> Iterator[Unit]:
    """Yield the units in a module that is expanded, in the order of its children."""
    for name, child in module._modules.items():
        if child is None:
            continue
        path = f"{prefix}.{name}" if prefix else name
        if _is_container(child):
            yield from _expanded(child, path)
        else:
            yield Unit(path, child)


class _UnitTracer(fx.Tracer):
    """A trace of a model's `forward` in which units are calls."""

    def __init__(self, units: Sequence[Unit]) -> None:
        super().__init__()
        self._units = {id(unit.module) for unit in units}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return id(m) in self._units

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Return the arguments of the trace: one, as in a call. Others have their defaults."""
        return root_fn, [self.root, self.create_proxy("placeholder", "input", (), {})]


def _called(model: nn.Module, units: Sequence[Unit]) -> list[Unit]:
    """Return the units in the order in which the model's `forward` calls them, in both modes."""
    before, found = model.training, []
    try:
        for model.training in (True, False):
            found.append(_traced(model, units))
    finally:
        model.training = before
    if found[0] != found[1]:
        raise ConfigError(
            f"prepare: stages: the forward of {type(model).__name__} calls other modules in training mode "
            "than behind model.eval(): move the condition into a module"
        )
    return found[0]


def _traced(model: nn.Module, units: Sequence[Unit]) -> list[Unit]:
    """Return the units in the order in which the model's `forward` calls them."""
    advice = "make this part a module, or the model an nn.Sequential"
    try:
        graph = _UnitTracer(units).trace(model)
    except Exception as error:
        raise ConfigError(
            f"prepare: stages: torch.fx cannot follow the forward of {type(model).__name__} ({error}), so "
            "the order of its modules is unknown: make the model an nn.Sequential of its parts"
        ) from error
    found: list[Unit] = []
    by_path = {unit.path: unit for unit in units}
    before: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder":
            before = node
            continue
        if node.op == "output":
            is_next = node.args[0] is before
        else:
            is_next = node.op == "call_module" and node.args == (before,) and not node.kwargs
        if not is_next:
            behind = f" behind {found[-1].path!r}" if found else ""
            raise ConfigError(
                f"prepare: stages: the forward of {type(model).__name__} does more{behind} than to call its "
                f"modules one after the other, each with the result of the one before ({_text_of(node)}): "
                f"{advice}"
            )
        if node.op == "call_module":
            found.append(by_path[str(node.target)])
        before = node
    return found


def _text_of(node: fx.Node) -> str:
    """Return what a node of a trace is, in a few words."""
    if node.op == "call_module":
        return f"it calls {node.target} with other arguments"
    if node.op == "output":
        return "it returns something else"
    name = getattr(node.target, "__name__", node.target)
    return f"{'it reads' if node.op == 'get_attr' else 'it calls'} {name}"


def _balanced(units: Sequence[Unit], n: int) -> list[list[Unit]]:
    """Return the cut into `n` stages whose largest one has the fewest parameters. Ties: the first cut."""
    n_stages_of(n)
    seen: set[int] = set()
    sizes = []
    for unit in units:
        new = {id(p): p.numel() for p in unit.module.parameters() if id(p) not in seen}
        seen |= set(new)
        sizes.append(sum(new.values()))
    if sum(size > 0 for size in sizes) < n:
        raise ConfigError(
            f"prepare: stages = {n}: the model has {sum(size > 0 for size in sizes)} modules with parameters "
            "that a cut can separate, and each stage needs one: use fewer stages"
        )
    # A stage of modules without parameters is none.
    costs = spans(sizes)
    costs[costs == 0] = float("inf")
    _, ends = least_maximum([costs] * n)
    return _parts(units, ends)


def _parts(units: Sequence[Unit], ends: Sequence[int]) -> list[list[Unit]]:
    """Return the units of each stage. `ends`: number of units in front of the end of each stage."""
    return [list(units[a:b]) for a, b in pairwise([0, *ends])]


def _named(units: Sequence[Unit], names: Sequence[Any]) -> list[list[Unit]]:
    """Return the stages that a list of names gives."""
    n_stages_of(names)
    found: list[list[Unit]] = []
    stage_of: dict[str, int] = {}
    for number, text in enumerate(names):
        if not isinstance(text, str):
            raise ConfigError(
                f"prepare: stages[{number}] = {text!r}: must be text with the names of modules, such as "
                "'embed, blocks.0-5'"
            )
        for part in filter(None, (word.strip() for word in text.split(","))):
            for path in _in_range(part):
                named = [u.path for u in units if u.path == path or u.path.startswith(f"{path}.")]
                own = list(dict.fromkeys(named))  # a module that is called twice is named once
                if not own:
                    there = ", ".join(unit.path for unit in units[:8])
                    raise ConfigError(
                        f"prepare: stages[{number}] = {text!r}: the model has no module {path!r} that a cut "
                        f"can separate; it has {there}{', ...' if len(units) > 8 else ''}"
                    )
                for name in own:
                    if name in stage_of:
                        raise ConfigError(
                            f"prepare: stages: the module {name!r} is in stage {stage_of[name]} and in stage "
                            f"{number}: name it once"
                        )
                    stage_of[name] = number
        found.append([])
    newest = 0
    called: set[str] = set()
    for unit in units:
        stage = stage_of.get(unit.path)
        if unit.path in called and _is_empty(unit.module):
            stage = newest  # each call of a module without tensors belongs to the stage of the one before
        called.add(unit.path)
        if stage is None:
            raise ConfigError(
                f"prepare: stages: the module {unit.path!r} is in no stage: name every module of the model"
            )
        if stage < newest:
            raise ConfigError(
                f"prepare: stages: the module {unit.path!r} of stage {stage} is called behind modules of "
                f"stage {newest}: give the stages in the order in which the model calls its modules"
            )
        newest = stage
        found[stage].append(unit)
    return found


def _is_empty(module: nn.Module) -> bool:
    """Return True if a module has no parameters and buffers."""
    return not any(True for own in (module.parameters(), module.buffers()) for _ in own)


def _in_range(part: str) -> list[str]:
    """Return the paths that "blocks.0-5" stands for; other text is a path."""
    match = _RANGE.match(part)
    if match is None:
        return [part]
    prefix, first, last = match[1], int(match[2]), int(match[3])
    if last < first:
        raise ConfigError(f"prepare: stages: {part!r}: the range ends before it begins")
    return [f"{prefix}{i}" for i in range(first, last + 1)]


def _check_shared(stages: Sequence[Sequence[Unit]]) -> None:
    """Raise ConfigError if two stages share a parameter or a buffer."""
    owners: dict[int, tuple[int, str]] = {}
    for number, own in enumerate(stages):
        for unit in own:
            tensors = [*unit.module.named_parameters(), *unit.module.named_buffers()]
            for name, tensor in tensors:
                path = f"{unit.path}.{name}"
                stage, other = owners.setdefault(id(tensor), (number, path))
                if stage != number:
                    raise ConfigError(
                        f"prepare: stages: {other!r} of stage {stage} and {path!r} of stage {number} are one "
                        "tensor (tied): put both modules into one stage, or untie them"
                    )
