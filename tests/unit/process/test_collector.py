"""Imports with Python's garbage collector off."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mpips.process.collector import paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    """The collector is on before and after each test."""
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_within_the_block_and_on_behind_it() -> None:
    with paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_behind_an_import_that_fails() -> None:
    with pytest.raises(ImportError), paused():
        raise ImportError
    assert gc.isenabled()


def test_who_has_turned_it_off_finds_it_off() -> None:
    gc.disable()
    with paused():
        pass
    assert not gc.isenabled()


def test_blocks_may_be_nested() -> None:
    with paused():
        with paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


# What a module leaves to the collector when it is loaded: whether it is on, and what is never examined.
SHOW = "import gc; print(gc.isenabled(), gc.get_freeze_count() > 1000)"


def test_a_program_that_imports_mpips_keeps_its_collector() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", f"import mpips; {SHOW}"], capture_output=True, text=True, check=True
    )
    # Python itself freezes nothing; a build of it may.
    assert shown.stdout.split() == ["True", "False"]


def test_a_command_does_not_examine_what_it_has_imported() -> None:
    command = f"import sys; sys.argv = ['mpips']; import mpips; {SHOW}"
    shown = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["True", "True"]
