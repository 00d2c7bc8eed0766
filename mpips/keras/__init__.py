"""Keras models on the parameter server: `prepare(model)`, and `model.fit` trains as before.

Open `prepare.py`, then `job.py`, which describes each step and epoch of `fit`.
"""

try:
    import keras as _keras
except ImportError as error:
    from mpips.errors import CapabilityError

    raise CapabilityError(
        f"mpips.keras needs Keras 3 on PyTorch ({error}): pip install keras torch, and set the environment "
        "variable KERAS_BACKEND=torch before `import keras`"
    ) from None

from mpips.keras.backend import check_backend

check_backend(_keras)

from mpips.keras.job import steps  # noqa: E402
from mpips.keras.prepare import prepare  # noqa: E402

__all__ = ["prepare", "steps"]
