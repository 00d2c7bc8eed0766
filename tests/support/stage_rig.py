"""Workers of a torch model in stages, each in a thread, over the messages of a rig."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from message_rig import Messenger, messengers
from torch import nn

from mpips.torch.stage_cut import cut
from mpips.torch.stage_run import Pipeline, StageLinks, text_of_tag


class Linked:
    """The part of Worker that exchanges arrays."""

    def __init__(self, mine: Messenger) -> None:
        self.index = mine.part.index
        self._messages = mine.messages
        self._messages.text_of = text_of_tag

    def send(self, array: Any, *, to: int, tag: int = 0) -> None:
        self._messages.send(array, to, tag)

    def recv(self, out: Any = None, *, source: int, tag: int = 0) -> np.ndarray:
        return self._messages.recv(out, source, tag)


def pipeline(model: nn.Module, stages: list[str], mine: Messenger | None = None) -> Pipeline:
    """Return the passes of a worker. None: it is alone, and computes all stages."""
    worker: Any = type("Alone", (), {"index": 0}) if mine is None else Linked(mine)
    return Pipeline(cut(model, stages), StageLinks(worker, len(stages), is_alone=mine is None), 5)


def divided(
    make: Callable[[], nn.Module], stages: list[str], work: Callable[[nn.Module, Pipeline], Any]
) -> list[Any]:
    """Call `work` for the worker of each stage, with a model of its own; return the values."""
    models = [make() for _ in stages]  # threads have one generator

    def one(mine: Messenger) -> Any:
        own = models[mine.part.index]
        return work(own, pipeline(own, stages, mine))

    return messengers(len(stages), one)
