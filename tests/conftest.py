"""What all tests share."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

# A loaded machine, a sanitizer or five ranks on two cores say nothing about a property.
# Examples are the same in every run; HYPOTHESIS_PROFILE=default draws new ones.
settings.register_profile("mpips", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "mpips"))


def pytest_collection_finish() -> None:
    """What was collected lives to the end: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()
