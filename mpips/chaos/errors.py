"""Errors of faults that are injected on purpose."""

from __future__ import annotations

from mpips.errors import MpipsError


class ChaosError(MpipsError):
    """A run cannot be disturbed any more, or a run that was started for it failed."""


class NotNowError(Exception):
    """A fault cannot happen at this moment; the message gives the reason. It is left out, not an error."""
