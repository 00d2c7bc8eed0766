"""Values of Keras variables as NumPy arrays."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def array_of(value: Any) -> NDArray[Any]:
    """Return the values of a variable, a tensor or a number; the array may share their memory.

    Keras' own conversions let NumPy copy a tensor, of which NumPy 2 warns.
    """
    tensor = torch.as_tensor(getattr(value, "value", value))
    found: NDArray[Any] = tensor.detach().cpu().numpy()
    return found
