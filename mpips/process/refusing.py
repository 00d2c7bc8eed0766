"""A stand-in for an object that must not be used any more: every use raises the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from mpips.errors import MpipsError


class Refusing:
    """An object whose every attribute, item and call raises."""

    def __init__(self, error: Callable[[], MpipsError]) -> None:
        """`error` makes the error of a use."""
        object.__setattr__(self, "_error", error)

    def _refuse(self, *arguments: object) -> NoReturn:
        raise object.__getattribute__(self, "_error")()

    __getattr__ = __setattr__ = __getitem__ = __iter__ = __len__ = __call__ = _refuse
