"""A model in stages whose worker is late: each call ends with an error that names it and what is missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from crowd import Network
from message_rig import Messenger
from stage_rig import pipeline
from torch import nn

from mpips.errors import StallError
from mpips.torch.stage_cut import cut
from mpips.torch.stage_run import Pipeline, text_of_tag
from mpips.torch.staged_model import StagedModule

cross_entropy = nn.functional.cross_entropy
X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3))


def pipeline_of(mine: Messenger, n: int) -> Pipeline:
    return pipeline(model(), ["0-1", "2", "3"] if n == 3 else ["0-1", "2-3"], mine)


def staged(one: Pipeline, stage: int) -> Any:
    """Return a model in two stages whose job has started, as far as its collective methods use it."""
    own = model()
    own.__class__ = type("Sequential", (StagedModule, nn.Sequential), {})
    stages = cut(own, ["0-1", "2-3"])
    units = [[id(p) for unit in units for p in unit.module.parameters()] for units in stages]
    others = [unit.module for unit in stages[1 - stage]]
    own.__dict__["_mpips_division"] = SimpleNamespace(
        stages=stages,
        containers=[],
        is_own=lambda p: id(p) in units[stage],
        is_elsewhere=lambda m: any(m is one for one in others),
    )
    own.__dict__["_mpips_part"] = SimpleNamespace(refresh=lambda: None, is_started=False)
    job = SimpleNamespace(start=lambda: None, settle=lambda: None)
    own.__dict__.update(_mpips_job=job, _mpips_pipeline=one)
    for p in own.parameters():
        p.grad = torch.ones_like(p) if id(p) in units[stage] else None
    return own


def step(one: Pipeline, _: int) -> Any:
    return one.step(X, Y, cross_entropy, 2, "1f1b", (0, 0))


def outputs(one: Pipeline, _: int) -> Any:
    return one.outputs(X, (0, 0))


def clip(one: Pipeline, stage: int) -> Any:
    return staged(one, stage).clip_grad_norm_(1.0)


def whole_state(one: Pipeline, stage: int) -> Any:
    return staged(one, stage).full_state_dict()


@pytest.mark.parametrize(
    ("call", "stage", "missing"),
    [
        (step, 1, "the result of the stage for micro-batch 0"),
        (step, 0, "the gradients of micro-batch 0"),
        (outputs, 1, "the result of the stage for micro-batch 0"),
        (outputs, 0, "the result of the model"),
        (clip, 0, "the norms for clip_grad_norm_"),
        (clip, 1, "the norms for clip_grad_norm_"),
        (whole_state, 0, "the state for full_state_dict"),
    ],
)
def test_each_call_ends_where_the_worker_of_another_stage_is_silent(
    call: Callable[[Pipeline, int], Any], stage: int, missing: str
) -> None:
    mine = Messenger(stage, 2, Network(), timeout_s=0.1)
    late = 1 - stage
    with pytest.raises(StallError) as caught:
        call(pipeline_of(mine, 2), stage)
    said = f"worker {late} has sent no message with {missing}; it does not answer, for 0."
    assert said in str(caught.value)
    assert mine.part.states[-2:] == [f"receiving from worker {late} ({missing})", "computing"]


def test_the_worker_for_which_the_late_one_waits_is_named_too() -> None:
    """Of three stages the first one does something else, and the others wait for each other."""
    network, stop = Network(), threading.Event()
    # A worker asks another one after a 64th of its time limit.
    rigs = [Messenger(w, 3, network, timeout_s=24, stop=stop) for w in range(3)]
    rigs[0].part.state = "reading a file"

    def until_told(done: Callable[[], bool], late: Callable[[], str]) -> None:
        """Wait until the other worker has answered for which worker it waits."""
        guard = time.monotonic() + 60
        while not done():
            answer = rigs[2].mail.answer_of(1)
            if answer is not None and len(answer.rows) == 2:
                raise StallError(late())
            assert time.monotonic() < guard

    rigs[2].part.wait_until = until_told  # type: ignore[method-assign]
    over = threading.Event()
    ends: list[str] = []

    def second() -> None:
        try:
            step(pipeline_of(rigs[1], 3), 1)
        except AssertionError as error:
            ends.append(str(error))

    threads = [
        threading.Thread(target=lambda: rigs[0].serve(over.is_set), daemon=True),
        threading.Thread(target=second, daemon=True),
    ]
    for thread in threads:
        thread.start()
    with pytest.raises(StallError) as caught:
        step(pipeline_of(rigs[2], 3), 2)
    over.set()
    threads[0].join(20)
    stop.set()
    threads[1].join(20)
    assert ends == ["another worker has failed"]
    what = "the result of the stage for micro-batch 0"
    assert str(caught.value) == (
        f"worker 1 has sent no message with {what}; receiving from worker 0 ({what}) at clock 3; worker 0: "
        "reading a file at clock 3"
    )


def test_messages_of_the_script_keep_their_tags_in_errors() -> None:
    assert text_of_tag(5) == "tag 5"
    assert text_of_tag((1 << 62) + (1 << 48) + 7) == "the gradients of micro-batch 7"
    assert text_of_tag((1 << 63) - 1) == f"tag {(1 << 63) - 1}"
