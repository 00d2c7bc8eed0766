"""Runs with a fake launcher, and the shared memory that they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervisor_rig import Case


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A run in a folder of its own."""
    return Case(tmp_path, monkeypatch)
