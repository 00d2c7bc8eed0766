"""JAX models on the parameter server: pytrees and rows that are pulled and pushed around a jitted function.

Open `job.py`, which describes how a script's steps become clocks, then `pytree.py` and `lookup.py`.
"""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    from mpips.errors import CapabilityError

    raise CapabilityError(f"mpips.jax needs JAX ({error}): pip install jax") from None

from mpips.jax.job import key, step, steps
from mpips.jax.lookup import Lookup, LookupHandle, embedding
from mpips.jax.pytree import PytreeHandle, declare

__all__ = [
    "Lookup",
    "LookupHandle",
    "PytreeHandle",
    "declare",
    "embedding",
    "key",
    "step",
    "steps",
]
