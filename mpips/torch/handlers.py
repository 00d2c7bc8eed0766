"""Reads of states by handlers of signals, which Python runs in the middle of whatever the script does.

Between two calls of mpips such a read is like any other. Within one, such as the end of a clock, it would use
the worker while a part of its state is new and another one old, so it is refused.
"""

from __future__ import annotations

import sys

from mpips.errors import ConfigError

# Modules whose functions cannot be interrupted by another use of the worker; no script's code runs in them.
_INNER = (
    "mpips.worker.",
    "mpips.transport.",
    "mpips.session.script_job",
    "mpips.torch.buffers",
    "mpips.torch.device_table",
    "mpips.torch.model_part",
    "mpips.torch.overlap",
    "mpips.torch.parameters",
    "mpips.torch.streamed_gradients",
    "mpips.torch.watching",
)
_OUTER = "mpips.worker.ahead.lookahead"  # reads the script's loader


def refuse_interrupting(what: str) -> None:
    """Raise ConfigError if the script's call `what` interrupts one of mpips, as a signal's handler does."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_INNER) and module != _OUTER:
            raise ConfigError(
                f"{what} was called by a handler of a signal that has interrupted a step, push or pull of "
                "this worker: let the handler only set a flag, and save behind the next optimizer.step()"
            )
        frame = frame.f_back
