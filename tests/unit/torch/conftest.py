"""A job around a test. Without torch this file is read, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def job() -> Iterator[Any]:
    """The script of a job that the test is part of."""
    from torch_rig import torch_job

    with torch_job() as script:
        yield script
