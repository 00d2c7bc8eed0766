"""The versions of torch that mpips.torch works with."""

from __future__ import annotations

import re

from mpips.errors import CapabilityError

OLDEST = (2, 4)


def check_version(version: str) -> None:
    """Raise CapabilityError for a torch that is too old.

    Args:
        version: torch.__version__.

    Raises:
        CapabilityError: Names both versions.
    """
    found = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if found < OLDEST:
        raise CapabilityError(
            f"torch {version} is too old: mpips.torch needs {OLDEST[0]}.{OLDEST[1]} or newer"
        )
