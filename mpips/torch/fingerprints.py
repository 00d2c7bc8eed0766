"""Fingerprints of gradients: they find changes between backward and `step()`.

A gradient of the CPU is hashed (XXH3-64). A gradient of a device stays there: its elements are read as
integers, and added up by rows and by columns of a matrix of _COLUMNS columns. The sums of rows are multiplied
by odd 64-bit weights, those of columns by even ones, and added, modulo 2^64. A fingerprint does not depend on
the order of additions, and a change of one element always changes it. The host waits for the device once for
all fingerprints of a model.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mpips import _native

Fingerprint = int | torch.Tensor | None

_COLUMNS = 1024
_MULTIPLIER = 6364136223846793005  # of Knuth's linear congruential generator, odd
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_of(gradient: torch.Tensor | None) -> int | None:
    """Return the XXH3-64 of a gradient's elements; None for no gradient or a sparse one, which is refused."""
    if gradient is None or gradient.layout != torch.strided:
        return None
    elements = gradient.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    hashing = _native.Xxh3()
    hashing.update(elements.numpy())
    return hashing.digest()


class DeviceFingerprints:
    """The fingerprints of gradients on one device. Not thread-safe."""

    def __init__(self) -> None:
        """Make no weights yet."""
        self._weights: dict[int, torch.Tensor] = {}  # by their number

    def of(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return a fingerprint, int64, shape (), on the gradient's device. Does not wait for the device.

        None for no gradient or a sparse one, as in `digest_of`.
        """
        if gradient is None or gradient.layout != torch.strided:
            return None
        words = gradient.detach().reshape(-1).view(_INTEGERS[gradient.element_size()])
        whole = len(words) // _COLUMNS * _COLUMNS
        found = self._weighted(words[whole:].long())
        if whole:
            matrix = words[:whole].view(-1, _COLUMNS)
            found = found + self._weighted(matrix.sum(1, dtype=torch.int64))
            found = found + 2 * self._weighted(matrix.sum(0, dtype=torch.int64))
        return found

    def _weighted(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the sum of integers with odd weights, modulo 2^64."""
        n = len(sums)
        if n not in self._weights:
            places = torch.arange(n, device=sums.device, dtype=torch.int64)
            # The lower bits of i * MULTIPLIER have short periods; the factor 2 i + 3 mixes them.
            weights = (places * _MULTIPLIER + 1) * (2 * places + 3) | 1
            weights.sum().item()  # wait once, so that kernels of all streams can read them
            self._weights[n] = weights
        return (sums * self._weights[n]).sum()


def differing(pairs: Iterable[tuple[int, Fingerprint, Fingerprint]]) -> set[int]:
    """Return the places whose two fingerprints differ. Waits once for each device.

    Args:
        pairs: A place and two fingerprints of its gradient, made by the same function.
    """
    found: set[int] = set()
    on_devices: dict[torch.device, list[tuple[int, torch.Tensor, torch.Tensor]]] = {}
    for place, one, other in pairs:
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            on_devices.setdefault(one.device, []).append((place, one, other))
        elif type(one) is not type(other) or one != other:
            found.add(place)
    for group in on_devices.values():
        places, ones, others = zip(*group, strict=True)
        equal = (torch.stack(ones) == torch.stack(others)).tolist()
        found.update(place for place, same in zip(places, equal, strict=True) if not same)
    return found
