"""The versions of scikit-learn that mpips.sklearn works with."""

from __future__ import annotations

import re

from mpips.errors import CapabilityError

OLDEST = (1, 6)  # the first one with validate_data and __sklearn_tags__


def check_version(version: str) -> None:
    """Raise CapabilityError for a version of scikit-learn, such as "1.5.2", that is too old."""
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise CapabilityError(
            f"scikit-learn {version} is too old: mpips.sklearn needs {OLDEST[0]}.{OLDEST[1]} or newer"
        )
