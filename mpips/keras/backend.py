"""The version and the backend of Keras that mpips.keras works with."""

from __future__ import annotations

import re
from typing import Any

from mpips.errors import CapabilityError

OLDEST = (3, 3)


def check_backend(keras: Any) -> None:
    """Raise CapabilityError for a Keras that is too old or computes with another library than torch.

    Args:
        keras: The imported module.

    Raises:
        CapabilityError: Names what was found and what is needed.
    """
    found = tuple(int(n) for n in re.findall(r"\d+", keras.__version__)[:2])
    if found < OLDEST:
        raise CapabilityError(
            f"keras {keras.__version__} is too old: mpips.keras needs {OLDEST[0]}.{OLDEST[1]} or newer"
        )
    backend = keras.backend.backend()
    if backend != "torch":
        raise CapabilityError(
            f"Keras computes with {backend}: mpips.keras needs its torch backend; set the environment "
            "variable KERAS_BACKEND=torch before `import keras`"
        )
