"""The cuts of a model by a measurement: time, parameters and memory of each unit on an example.

Each unit computes the example forward and backward as in a step (see StagePasses), on a copy of its module,
so that nothing of the model changes. The first pass warms up and notes what autograd keeps; of the others
the shortest counts. The gradients of a unit's result are ones, and the loss is not measured.

Memory of a stage: its parameters and buffers, the gradients of those that train, and for each micro-batch
that 1F1B holds (see stage_order.py) the values that the stage has received and those that autograd keeps.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from mpips.errors import ConfigError
from mpips.rundir.files import StagesChoice
from mpips.torch.generators import restore_defaults
from mpips.torch.stage_balance import Costs, least_maximum, least_sum, spans
from mpips.torch.stage_cut import AutoStages, Unit
from mpips.torch.stage_run import StagePasses
from mpips.torch.stage_values import Flat, Tree, flatten, n_samples_of

_MOST_PASSES = 7  # of a unit, besides the first one
_ENOUGH_S = 0.5  # s of passes of a unit, behind which it makes no more
_NEARLY = 1.02  # a measured time that is so many times as long counts as equal
_MIB = 1 << 20
Held = Mapping[Hashable, int]  # bytes of memory areas, by a name of each


class UnitProfile(NamedTuple):
    """The measured costs of a unit.

    Attributes:
        path: Name of the module.
        ns: Nanoseconds of the forward and backward pass of the example.
        received: Memory of the tensors that it receives.
        saved: Memory that autograd keeps for the backward pass.
        n_sent: Bytes that a cut behind it sends forward and back for the example.
    """

    path: str
    ns: int
    received: Held
    saved: Held
    n_sent: int


def profile_units(units: Sequence[Unit], example: Tree) -> list[UnitProfile]:
    """Measure all units on an example. Takes about ten passes over the model; leaves it as it is.

    Raises:
        ConfigError: The example is not a value that stages accept, or a module raises an error with it.
    """
    n_samples_of(example, "the example of AutoStages")
    found: list[UnitProfile] = []
    names: dict[int, Hashable] = {}
    flat = flatten(example, "the example of AutoStages")
    for k, tensor in enumerate(flat.tensors):
        names.setdefault(_area(tensor), ("value", 0, k))
    labels = [names[_area(tensor)] for tensor in flat.tensors]
    with ExitStack() as stack:
        restore_defaults(stack)
        stack.enter_context(torch.enable_grad())  # type: ignore[no-untyped-call,unused-ignore]
        for place, unit in enumerate(units):
            try:
                one, flat, labels = _profile(place, unit, flat, labels)
            except ConfigError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"AutoStages: the module {unit.path!r} raises {type(error).__name__} with the example "
                    f"({error}): must be an argument of the model, with the samples of a micro-batch"
                ) from error
            found.append(one)
    return found


def _profile(
    place: int, unit: Unit, received: Flat, labels: Sequence[Hashable]
) -> tuple[UnitProfile, Flat, list[Hashable]]:
    """Return the costs of a unit, its result, and the names of the memory of the result.

    Args:
        place: Its place in the model.
        unit: The unit.
        received: The tensors that it receives.
        labels: Name of the memory of each of them; tensors that share memory share a name.
    """
    module = copy.deepcopy(unit.module)
    stage = StagePasses([(0, Unit(unit.path, module))])
    own = {_area(t) for t in (*module.parameters(), *module.buffers())}
    entering = {label: _n_bytes(t) for label, t in zip(labels, received.tensors, strict=True)}

    def passed(note: bool) -> tuple[int, Flat, list[Hashable], Held]:
        inputs = _fresh(received)
        packed: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            packed.append(tensor)
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with ExitStack() as stack:
            if note:
                stack.enter_context(hooks)
            start = time.perf_counter_ns()
            out = flatten(stage.forward(0, inputs, lambda *_: None), f"the result of {unit.path!r}")
            middle = time.perf_counter_ns()
        stage.note(0, out.tensors)
        ends, saved = _named(place, inputs.tensors, labels, out.tensors, packed, own)
        ones = [torch.ones_like(t) for t in out.tensors if t.requires_grad]
        begin = time.perf_counter_ns()
        stage.backward(0, ones)
        return middle - start + time.perf_counter_ns() - begin, out, ends, saved

    _, result, ends, saved = passed(note=True)
    times: list[int] = []
    while not times or (len(times) < _MOST_PASSES and sum(times) < _ENOUGH_S * 1e9):
        times.append(passed(note=False)[0])
    n_sent = sum(_n_values_bytes(t) * (2 if t.requires_grad else 1) for t in result.tensors)
    return UnitProfile(unit.path, min(times), entering, saved, n_sent), result, ends


def _fresh(flat: Flat) -> Flat:
    """Return copies of tensors, as a stage receives them."""
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in flat.tensors]
    return Flat(flat.structure, copies)


def _named(
    place: int,
    inputs: Sequence[torch.Tensor],
    labels: Sequence[Hashable],
    outputs: Sequence[torch.Tensor],
    packed: Sequence[torch.Tensor],
    own: set[int],
) -> tuple[list[Hashable], Held]:
    """Name the memory areas of a pass, so that one that two units use counts once in a stage.

    Returns:
        The names of the areas of the results; and the bytes of each area that autograd keeps, by its name.
    """
    names: dict[int, Hashable] = {}
    for label, tensor in zip(labels, inputs, strict=True):
        names.setdefault(_area(tensor), label)
    for k, tensor in enumerate(outputs):
        names.setdefault(_area(tensor), ("value", place + 1, k))
    saved = {}
    for tensor in packed:
        area = _area(tensor)
        if area not in own:
            saved[names.setdefault(area, ("inner", place, area))] = _n_bytes(tensor)
    return [names[_area(tensor)] for tensor in outputs], saved


def _area(tensor: torch.Tensor) -> int:
    """Return the address of the memory of a tensor."""
    return tensor.untyped_storage().data_ptr()


def _n_bytes(tensor: torch.Tensor) -> int:
    """Return the size of the memory of a tensor, which other tensors may share."""
    return tensor.untyped_storage().nbytes()


def _n_values_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def choose_ends(
    units: Sequence[Unit], profiles: Sequence[UnitProfile], n: int, memory_mib: float | None
) -> list[int]:
    """Return the ends of the `n` stages whose slowest one takes the least time.

    Cuts whose slowest stage takes up to 2% longer count as equal; of these the one that sends the fewest
    bytes is chosen.

    Args:
        units: The units of the model.
        profiles: Their costs.
        n: Number of stages.
        memory_mib: Most memory of a stage, in MiB; None: no limit.

    Raises:
        ConfigError: There is no such cut.
    """
    times = spans([one.ns for one in profiles])
    times[~_is_stage(units)] = np.inf
    memory = _memory(units, profiles, n)
    if not np.isfinite(least_maximum([times] * n)[0]):
        raise ConfigError(
            f"AutoStages({n}): the model has fewer than {n} parts with parameters that a cut can separate: "
            "use fewer stages"
        )
    costs = [times] * n
    if memory_mib is not None:
        costs = [np.where(m <= memory_mib * _MIB, times, np.inf) for m in memory]
    slowest, _ = least_maximum(costs)
    if not np.isfinite(slowest):
        least, _ = least_maximum([np.where(np.isfinite(times), m, np.inf) for m in memory])
        raise ConfigError(
            f"AutoStages({n}, memory_mib={memory_mib:g}): no cut has so little memory on every worker; the "
            f"least is {least / _MIB:.1f} MiB: raise the limit, use more stages or smaller micro-batches"
        )
    # Bytes of a cut at each place; nothing travels behind the last stage.
    sent = np.array([0.0, *(one.n_sent for one in profiles[:-1]), 0.0])
    _, ends = least_sum([np.where(c <= _NEARLY * slowest, sent[None, :], np.inf) for c in costs])
    return ends


def _is_stage(units: Sequence[Unit]) -> Any:
    """Return for each pair of places whether the units between them can be a stage, shape (n + 1, n + 1)."""
    n = len(units)
    sizes, first, is_place = np.zeros(n), dict[int, int](), np.ones(n + 1, bool)
    for i, unit in enumerate(units):
        for tensor in (*unit.module.parameters(), *unit.module.buffers()):
            # A cut must not lie between two units that share a tensor.
            is_place[first.setdefault(id(tensor), i) + 1 : i + 1] = False
        sizes[i] = sum(p.numel() for p in unit.module.parameters())
    spanned = spans(sizes)
    return np.isfinite(spanned) & (spanned > 0) & is_place[:, None] & is_place[None, :]


def _memory(units: Sequence[Unit], profiles: Sequence[UnitProfile], n: int) -> list[Costs]:
    """Return the bytes of each possible stage, for each of its places in a pipeline of `n` stages."""
    seen: set[int] = set()
    fixed = []
    for unit in units:
        tensors = {
            id(t): _n_values_bytes(t) * (2 if t.requires_grad else 1)
            for t in (*unit.module.parameters(), *unit.module.buffers())
            if id(t) not in seen
        }
        seen |= set(tensors)
        fixed.append(float(sum(tensors.values())))
    held = np.zeros((len(units) + 1,) * 2)
    for a in range(len(units)):
        areas = dict(profiles[a].received)
        total = float(sum(areas.values()))
        for b in range(a, len(units)):
            for name, n_bytes in profiles[b].saved.items():
                if name not in areas:
                    areas[name] = n_bytes
                    total += n_bytes
            held[a, b + 1] = total
    parameters = spans(fixed)
    return [parameters + (n - stage) * held for stage in range(n)]


def digest_of(units: Sequence[Unit], stages: AutoStages) -> str:
    """Return a digest of what a choice depends on, besides measured times; the same on all workers."""
    flat = flatten(stages.example, "the example of AutoStages")
    values = [[str(t.dtype), list(t.shape), t.requires_grad] for t in flat.tensors]
    parts = [
        [
            unit.path,
            type(unit.module).__qualname__,
            [
                [name, str(t.dtype), list(t.shape), t.requires_grad]
                for name, t in (*unit.module.named_parameters(), *unit.module.named_buffers())
            ],
        ]
        for unit in units
    ]
    text = repr([stages.n, stages.memory_mib, flat.structure, values, parts])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def choose_stages(units: Sequence[Unit], stages: AutoStages, digest: str) -> StagesChoice:
    """Measure the units of a model, and return where to cut it.

    Raises:
        ConfigError: The example is not accepted, or there is no such cut.
    """
    meta = next((u.path for u in units for p in u.module.parameters() if p.is_meta), None)
    if meta is not None:
        raise ConfigError(
            f"AutoStages: the parameters of {meta!r} are on the meta device, without values to compute with: "
            "give a number of stages, or make the model on the CPU"
        )
    profiles = profile_units(units, stages.example)
    ends = choose_ends(units, profiles, stages.n, stages.memory_mib)
    memory = _memory(units, profiles, stages.n)
    lines = []
    for stage, (a, b) in enumerate(pairwise([0, *ends])):
        names = profiles[a].path + (f" to {profiles[b - 1].path}" if b - a > 1 else "")
        ms = sum(one.ns for one in profiles[a:b]) / 1e6
        lines.append(f"{names} ({ms:.3g} ms, {memory[stage][a, b] / _MIB:.3g} MiB)")
    samples = n_samples_of(stages.example, "the example of AutoStages")
    sent = sum(profiles[end - 1].n_sent for end in ends[:-1]) / 1024
    reason = (
        f"{stages.n} stages, as measured with a micro-batch of {samples} samples: {'; '.join(lines)}; "
        f"{sent:.3g} KiB travel between them"
    )
    return StagesChoice(digest=digest, ends=tuple(ends), reasons=(reason,))


def ends_of(choice: StagesChoice, units: Sequence[Unit]) -> Sequence[int]:
    """Return the ends of the stages of a stored choice.

    Raises:
        ConfigError: It was changed, so that it does not fit the model.
    """
    if any(a >= b for a, b in pairwise([0, *choice.ends])) or choice.ends[-1:] != (len(units),):
        raise ConfigError(
            f"stages.json of the run, or the cut in its checkpoint, ends stages at {list(choice.ends)}, and "
            f"the model has {len(units)} modules: remove stages.json, or give the stages by number"
        )
    return choice.ends
