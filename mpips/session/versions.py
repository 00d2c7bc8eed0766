"""The oldest versions of libraries that mpips works with."""

from __future__ import annotations

import re

from mpips.errors import CapabilityError


def check_version(library: str, version: str, oldest: tuple[int, int], user: str) -> None:
    """Raise CapabilityError for a library that is too old.

    Args:
        library: Its name.
        version: Its version, such as "2.4.0" or "2.0.dev0".
        oldest: First two numbers of the oldest version that works.
        user: The part of mpips that needs it.

    Raises:
        CapabilityError: Names both versions.
    """
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < oldest:
        raise CapabilityError(
            f"{library} {version} is too old: {user} needs {oldest[0]}.{oldest[1]} or newer"
        )
