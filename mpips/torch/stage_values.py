"""Messages between stages: tensors, and tuples, lists and dicts of them, as arrays and a head.

The head is JSON text in a uint8 array: it has the structure, the dtype of each tensor, the order of its
dimensions in memory and whether a gradient comes back for it. The arrays follow, one for each tensor.
bfloat16, which NumPy lacks, travels as int16.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.torch.fingerprints import digest_of
from mpips.torch.generators import mix

AnyArray = NDArray[Any]
Tree = Any  # a tensor, a plain value, or a tuple, list or dict of trees

_ACCEPTED = (
    "must be a tensor, a number, text, None, or a tuple, list or dict (with text as keys) of these"
)


class Flat(NamedTuple):
    """A tree as its tensors, in their order, and the structure, of values that JSON has."""

    structure: Any
    tensors: list[torch.Tensor]


def flatten(value: Tree, what: str) -> Flat:
    """Return the tensors of a value and its structure. `what` names it in errors.

    Raises:
        ConfigError: It contains something else than numbers and tensors of the CPU.
    """
    tensors: list[torch.Tensor] = []

    def structure_of(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            if one.layout != torch.strided or one.device.type != "cpu":
                raise ConfigError(
                    f"{what} contains a tensor of layout {one.layout} on {one.device}: must be a dense "
                    "tensor of the CPU"
                )
            tensors.append(one)
            return ["t"]
        if one is None or type(one) in (bool, int, float, str):
            return ["v", one]
        if type(one) in (tuple, list):
            return ["u" if type(one) is tuple else "l", [structure_of(item) for item in one]]
        if type(one) is dict and all(type(key) is str for key in one):
            return ["d", {key: structure_of(item) for key, item in one.items()}]
        raise ConfigError(f"{what} contains {type(one).__name__}: {_ACCEPTED}")

    return Flat(structure_of(value), tensors)


def unflatten(flat: Flat) -> Tree:
    """Return the value that `flatten` was given, with these tensors."""
    tensors = iter(flat.tensors)

    def value_of(structure: Any) -> Any:
        kind = structure[0]
        if kind == "t":
            return next(tensors)
        if kind == "v":
            return structure[1]
        if kind == "d":
            return {key: value_of(item) for key, item in structure[1].items()}
        items = [value_of(item) for item in structure[1]]
        return tuple(items) if kind == "u" else items

    return value_of(flat.structure)


def to_arrays(flat: Flat, head: Mapping[str, Any]) -> Iterator[AnyArray]:
    """Yield a head and the tensors as arrays. `head`: more entries, of values that JSON has."""
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in flat.tensors]
    needs = [tensor.requires_grad for tensor in flat.tensors]
    # Bits of torch's kernels depend on the layout: a tensor arrives in that of a clone.
    owns = [_dense(tensor.detach()) for tensor in flat.tensors]
    orders = [sorted(range(own.ndim), key=own.stride, reverse=True) for own in owns]
    entries = {"tree": flat.structure, "dtypes": dtypes, "orders": orders, "needs": needs}
    yield np.frombuffer(json.dumps({**head, **entries}).encode(), np.uint8)
    for own, order in zip(owns, orders, strict=True):
        own = own.permute(order).contiguous()
        yield (own.view(torch.int16) if own.dtype == torch.bfloat16 else own).numpy()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    # NumPy has no tensors that are conjugated or negated when they are read.
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.is_contiguous() else tensor.clone()


def from_arrays(receive: Callable[[], AnyArray]) -> tuple[dict[str, Any], Flat]:
    """Return the head and the tensors that `to_arrays` made; `receive` returns the next array."""
    head: dict[str, Any] = json.loads(receive().tobytes())
    tensors = []
    columns = (head.pop(name) for name in ("dtypes", "orders", "needs"))
    for name, order, needs in zip(*columns, strict=True):
        found = torch.from_numpy(receive())
        found = found.view(torch.bfloat16) if name == "bfloat16" else found
        found = found.permute([order.index(i) for i in range(len(order))])
        tensors.append(found.requires_grad_(needs))
    return head, Flat(head.pop("tree"), tensors)


def n_samples_of(value: Tree, what: str) -> int:
    """Return the length of the first dimension of the tensors of a batch.

    Raises:
        ConfigError: It has no tensors with a dimension, or these have different lengths.
    """
    tensors = flatten(value, what).tensors
    lengths = sorted({len(tensor) for tensor in tensors if tensor.ndim})
    if len(lengths) != 1 or not lengths[0]:
        raise ConfigError(
            f"{what} has tensors with the first dimensions {lengths}: all must have one of the same length, "
            "the samples of the batch"
        )
    return lengths[0]


def digest_of_batch(*values: Tree) -> int:
    """Return a 64-bit digest of the tensors of a batch."""
    tensors = [tensor for value in values for tensor in flatten(value, "the batch").tensors]
    return mix(*(digest_of(tensor) or 0 for tensor in tensors))


def samples(value: Tree, first: int, end: int, what: str) -> Tree:
    """Return samples [first, end) of a batch: of its tensors with a dimension; other values as they are."""
    flat = flatten(value, what)
    own = [tensor[first:end] if tensor.ndim else tensor for tensor in flat.tensors]
    return unflatten(Flat(flat.structure, own))
