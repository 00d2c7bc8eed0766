"""The summed loss of an epoch in a worker's position."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from mpips.checkpoint.position import Position
from mpips.training.epochs import _EpochSum


@pytest.mark.parametrize("loss", [2.5, math.inf, math.nan])
def test_the_loss_of_an_epoch_that_diverges_outlives_a_restart(loss):
    at = SimpleNamespace(epoch=1, step=3)
    cursor = _EpochSum(loss, 8).cursor(at)
    Position(0, 0, 1).set_cursor(cursor)
    cursor = json.loads(json.dumps(cursor, allow_nan=False))
    found = _EpochSum.of(SimpleNamespace(start=SimpleNamespace(cursor=cursor)), at)
    assert np.array_equal([found.loss, found.samples], [loss, 8], equal_nan=True)


def test_a_checkpoint_of_an_earlier_version_has_null_for_such_a_loss():
    cursor = {"epoch": 1, "step": 3, "loss": None, "samples": 8}
    worker = SimpleNamespace(start=SimpleNamespace(cursor=cursor))
    assert math.isnan(_EpochSum.of(worker, SimpleNamespace(epoch=1, step=3)).loss)
