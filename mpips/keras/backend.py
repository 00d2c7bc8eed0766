"""The version and the backend of Keras that mpips.keras works with."""

from __future__ import annotations

from typing import Any

from mpips.errors import CapabilityError
from mpips.session.versions import check_version

OLDEST = (3, 3)


def check_backend(keras: Any) -> None:
    """Raise CapabilityError for a Keras that is too old or computes with another library than torch.

    Args:
        keras: The imported module.

    Raises:
        CapabilityError: Names what was found and what is needed.
    """
    check_version("keras", keras.__version__, OLDEST, "mpips.keras")
    backend = keras.backend.backend()
    if backend != "torch":
        raise CapabilityError(
            f"Keras computes with {backend}: mpips.keras needs its torch backend; set the environment "
            "variable KERAS_BACKEND=torch before `import keras`"
        )
