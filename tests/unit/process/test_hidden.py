"""Modules that are hidden while another one is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mpips.process.hidden import hidden


def test_a_hidden_module_cannot_be_imported_and_can_afterwards() -> None:
    sys.modules.pop("this", None)
    with pytest.raises(ImportError), hidden("this"):
        __import__("this")
    assert "this" not in sys.modules


def test_a_module_that_is_imported_stays() -> None:
    with hidden("subprocess"):
        assert sys.modules["subprocess"] is subprocess


def test_the_log_of_events_does_not_load_torch() -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    code = (
        "import sys, mpips.scheduler.event_log; assert 'tensorboardX' in sys.modules; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
