"""What all tests share."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import settings

# A loaded machine, a sanitizer or five ranks on two cores say nothing about a property.
# Examples are the same in every run; HYPOTHESIS_PROFILE=default draws new ones.
settings.register_profile("mpips", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "mpips"))


@pytest.fixture(autouse=True, scope="module")
def _freeze() -> None:
    """Exempt what lives to the end from the collections of garbage that tests start.

    Modules and reports of thousands of tests would make each of them take 0.1 s.
    """
    gc.collect()
    gc.freeze()
