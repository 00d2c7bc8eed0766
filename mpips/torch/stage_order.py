"""The order in which a stage computes the micro-batches of a step: GPipe and 1F1B.

With GPipe (Huang et al., arXiv 1811.06965) a stage computes all forwards and then all backwards. With 1F1B
(PipeDream, Narayanan et al., SOSP 2019; its flushed form as in Megatron-LM, arXiv 2104.04473) stage s of S
computes S - 1 - s forwards ahead, and then a backward behind each forward: it holds the activations of at
most S - s micro-batches in place of all. Both have the same bubble, and backwards in the order of the
micro-batches, so gradients are added in the same order and have the same bits.

The orders of all stages can be merged into one in which each value is made before it is used. So no stage
waits for ever, as long as a send waits only for the receive of an earlier message to the same stage.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Schedule = Literal["1f1b", "gpipe"]
SCHEDULES = ("1f1b", "gpipe")


class Action(NamedTuple):
    """The forward or backward pass of one micro-batch."""

    is_forward: bool
    micro_batch: int


def order_of(schedule: Schedule, stage: int, n_stages: int, n: int) -> list[Action]:
    """Return the passes of a stage, in their order, for `n` micro-batches."""
    ahead = n if schedule == "gpipe" else min(n_stages - 1 - stage, n)
    order = [Action(True, m) for m in range(ahead)]
    for m in range(ahead, n):
        order += [Action(True, m), Action(False, m - ahead)]
    return order + [Action(False, m) for m in range(n - ahead, n)]


def bounds_of(n_samples: int, n: int) -> list[tuple[int, int]]:
    """Return the first sample and the end of each micro-batch; the first ones have one sample more.

    A batch of fewer samples than micro-batches has one micro-batch for each sample.
    """
    n = min(n, n_samples)
    size, rest = divmod(n_samples, n)
    ends = [(m + 1) * size + min(m + 1, rest) for m in range(n)]
    return list(zip([0, *ends[:-1]], ends, strict=True))
